"""Calls about who was let in by pairing code, and who waits; codes are never told."""

from datetime import datetime
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import ADMINS, READERS, Answer, Endpoint, caller, json_answer
from shoal.surfaces.http.parse import path_part, read_json


class PairedView(msgspec.Struct, frozen=True):
    """Somebody who was let in by code: when (null: unknown), and by whom."""

    platform: str
    user: str
    name: str
    by: str
    at: datetime | None


class WaitingView(msgspec.Struct, frozen=True):
    """A stranger who was given a code, which is good until `expires_at`."""

    platform: str
    user: str
    name: str
    expires_at: datetime


class AccessView(msgspec.Struct, frozen=True):
    """The people of all platforms, beside those that the configuration names."""

    paired: list[PairedView]
    waiting: list[WaitingView]


class PairRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code that a stranger was given."""

    code: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]


class PairAnswer(msgspec.Struct, frozen=True):
    """Who may speak now."""

    platform: str
    user: str


class ShutOut(msgspec.Struct, frozen=True):
    """They may not speak any more."""

    removed: bool


async def _access(web: Web, _: Request) -> Response:
    paired: list[PairedView] = []
    waiting: list[WaitingView] = []
    for platform in sorted(web.core.adapters):
        found = await web.core.pairing.roster(platform)
        paired += [PairedView(platform, one.user, one.name, one.by, one.at) for one in found.paired]
        waiting += [WaitingView(platform, one.user, one.name, one.expires_at) for one in found.waiting]
    return json_answer(AccessView(paired, waiting))


async def _pair(web: Web, request: Request) -> Response:
    body = await read_json(request, PairRequest, seconds=web.options.body_seconds)
    platform, user = await web.core.pairing.confirm(body.code, sorted(web.core.adapters), caller(request).person)
    return json_answer(PairAnswer(platform, user))


async def _unpair(web: Web, request: Request) -> Response:
    await web.core.pairing.remove(path_part(request, "platform"), path_part(request, "user"), caller(request).person)
    return json_answer(ShutOut(True))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/api/access", handler=_access, scopes=READERS,
        summary="Who was let in by pairing code, and who waits for it.", answer=Answer("People.", AccessView),
    ),
    Endpoint(
        method="POST", path="/api/access/pair", handler=_pair, scopes=ADMINS, body=PairRequest,
        summary="Let in whoever was given this code; 404 when there is none or it has expired.",
        answer=Answer("Who it was.", PairAnswer),
    ),
    Endpoint(
        method="DELETE", path="/api/access/{platform}/{user:path}", handler=_unpair, scopes=ADMINS,
        summary="Shut somebody out who was let in by code.", answer=Answer("Done.", ShutOut),
    ),
)  # fmt: skip
