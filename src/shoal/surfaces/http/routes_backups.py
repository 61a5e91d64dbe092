"""Calls about backups: which there are, and one now."""

from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.domain.records import AuditEntry
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import ADMINS, READERS, Answer, Endpoint, caller, json_answer


class BackupView(msgspec.Struct, frozen=True):
    """A backup that was read again and checked when it was made."""

    name: str
    at: datetime
    size_bytes: int


class BackupsView(msgspec.Struct, frozen=True):
    """The backups that are kept, newest first. `problem` says why the last try failed; `scheduled` is false where
    none are made by themselves."""

    scheduled: bool
    problem: str
    backups: list[BackupView]


async def _backups(web: Web, _: Request) -> Response:
    backups = web.core.backups
    found = [BackupView(one.name, one.at, one.size_bytes) for one in await backups.listed()]
    return json_answer(BackupsView(backups.is_scheduled, await backups.problem(), found))


async def _back_up(web: Web, request: Request) -> Response:
    made, by = await web.core.backups.make(), caller(request)
    entry = AuditEntry("backup", made.name, "allow", user=by.author.id, token=by.token.name)
    await web.core.store.audit.record("owner", [entry])
    return json_answer(BackupView(made.name, made.at, made.size_bytes), 201)


ENDPOINTS = (
    Endpoint(
        method="GET", path="/api/backups", handler=_backups, scopes=READERS,
        summary="The backups that are kept, newest first.", answer=Answer("Backups.", BackupsView),
    ),
    Endpoint(
        method="POST", path="/api/backups", handler=_back_up, scopes=ADMINS,
        summary="Make a backup now; 409 where backup.to is empty, 503 when it fails.",
        answer=Answer("The backup, checked.", BackupView, 201),
    ),
)  # fmt: skip
