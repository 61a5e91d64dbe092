"""API endpoints for backups."""

from typing import Annotated

import msgspec

from shoal.features.backups.service import Backup, Backups
from shoal.features.backups.settings import BackupSettings
from shoal.features.backups.storage import NOT_SET, backup_storage
from shoal.kernel.errors import InvalidInput
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.records import AuditEntry
from shoal.kernel.settings import Config
from shoal.setup.live import LiveSetup
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import ADMINS, READERS, Routes
from shoal.threads.principals import Principal

routes = Routes()


class BackupTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Location and schedule of backups.

    `to`: directory or s3://BUCKET/PREFIX.
    `every_hours`: interval in hours. 0 means on demand only.
    """

    to: Annotated[str, msgspec.Meta(min_length=1, max_length=1_000)]
    every_hours: Annotated[float, msgspec.Meta(ge=0, le=8_784)] = 24.0


class BackupsView(msgspec.Struct, frozen=True):
    """Stored backups, newest first, and their settings.

    `scheduled`: whether backups are made on a schedule.
    `problem`: error of the last scheduled backup, or empty.
    `has_place`: whether backup.to is set.
    """

    scheduled: bool
    problem: str
    backups: list[Backup]
    has_place: bool
    to: str
    every_hours: float


@routes("GET /api/backups", READERS)
async def show_backups(backups: Backups) -> BackupsView:
    """List the backups, newest first."""
    problem, listed, settings = await backups.problem(), await backups.listed(), backups.settings
    has_place = backups.storage is not None
    return BackupsView(backups.is_scheduled, problem, listed, has_place, settings.to, settings.every_hours)


@routes("PUT /api/backups", ADMINS, owner_only=True)
async def move_backups(
    setup: LiveSetup, backups: Backups, live: LiveConfig, home: Home, by: Principal, body: BackupTarget
) -> BackupsView:
    """Change the location and the interval of backups. First makes and checks a backup in the new location. Returns 400
    with the reason if that fails.
    """

    async def try_out(config: Config) -> None:
        place = backup_storage(config, home)
        if place is None:
            raise InvalidInput(NOT_SET)
        await backups.try_storage(place, config.section(BackupSettings).keep)

    values = {"backup.to": body.to, "backup.every_hours": body.every_hours}
    await setup.change_section(f"backups to {body.to}", "backup", values, by.person, try_out)
    backups.change(backup_storage(live.current, home), live.current.section(BackupSettings))
    return await show_backups(backups)


@routes("POST /api/backups", ADMINS, status=201)
async def back_up(store: Store, backups: Backups, by: Principal) -> Backup:
    """Make and check a backup now. Returns 409 if backup.to is empty and 503 if the backup fails."""
    made = await backups.make()
    entry = AuditEntry("backup", made.name, "allow", user=by.author.id, token=by.token.name)
    await store.audit.record("owner", [entry])
    return made
