"""Check backups in `shoal doctor`."""

import asyncio
from collections.abc import AsyncGenerator

from shoal.features.backups.service import LOOK_SECONDS_MAX, PROBLEM, listed_in
from shoal.features.backups.settings import BackupSettings
from shoal.features.backups.storage import backup_storage
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import ShoalError
from shoal.kernel.settings import Config
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.findings import DoctorFinding, fail, ok, warn


async def look_at_backups(context: CommandContext, config: Config) -> AsyncGenerator[DoctorFinding]:
    settings, where = config.section(BackupSettings), backup_storage(config, context.home)
    if where is None:
        yield warn("backups", "no backups are scheduled.", "Set backup.to to a directory on another disk, or s3://….")
        return
    try:
        problem = await asyncio.to_thread(context.read, lambda store: store.settings.get(*PROBLEM))
    except ShoalError:  # the database check reports this error
        problem = ""
    try:
        backups = await asyncio.to_thread(listed_in, where)
    except OSError as error:
        yield fail("backups", f"Shoal cannot read {settings.to}: {error}.", "Check backup.to.")
        return
    hours = settings.every_hours
    newest = f"stored backups: {len(backups)}, newest: {backups[0].name}." if backups else "no backup exists."
    late = (
        hours
        and backups
        and (SystemClock().now() - backups[0].at).total_seconds() > 2 * hours * 3600 + LOOK_SECONDS_MAX
    )
    if problem:
        yield fail("backups", f"{newest} The last attempt failed: {problem}", "Run `shoal backup` to try again.")
    elif late:
        yield warn("backups", newest, f"Keep `shoal run` running. It makes a backup every {hours:g} h.")
    else:
        yield ok("backups", newest)
