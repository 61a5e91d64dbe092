"""Calls about backups: list them, make one."""

import msgspec

from shoal.backups import Backup, Backups
from shoal.kernel.records import AuditEntry
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import (
    ADMINS,
    READERS,
    Routes,
)
from shoal.threads.principals import Principal

routes = Routes()


class BackupsView(msgspec.Struct, frozen=True):
    """The backups that are kept, newest first. `problem` says why the last try failed; `scheduled` is false where
    none are made on a schedule, `has_place` where backup.to is empty, so that none can be made."""

    scheduled: bool
    problem: str
    backups: list[Backup]
    has_place: bool
    to: str
    every_hours: float


@routes("GET /api/backups", READERS)
async def backups(backups: Backups) -> BackupsView:
    """The backups that are kept, newest first."""
    found, problem = backups, await backups.problem()
    wanted = found.wanted
    listed = list(await found.listed())
    return BackupsView(found.is_scheduled, problem, listed, found.place is not None, wanted.to, wanted.every_hours)


@routes("POST /api/backups", ADMINS, status=201)
async def back_up(store: Store, backups: Backups, by: Principal) -> Backup:
    """Make a backup now, and check it; 409 where backup.to is empty, 503 when it fails."""
    made = await backups.make()
    entry = AuditEntry("backup", made.name, "allow", user=by.author.id, token=by.token.name)
    await store.audit.record("owner", [entry])
    return made
