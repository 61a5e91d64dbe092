"""Create backups on demand and on a schedule, verify each stored copy, and delete old ones."""

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import anyio.to_thread
import msgspec

from shoal.backend import Backend
from shoal.features.backups.settings import BackupSettings
from shoal.features.backups.storage import NOT_SET, BackupStorage, backup_storage
from shoal.kernel import lazy_re
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, InvalidInput, ShoalError, StoreError
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import Settings
from shoal.maintenance import Upkeep
from shoal.notices import Notices
from shoal.store.store import Store

if TYPE_CHECKING:
    from shoal.services import Services

log = logging.getLogger(__name__)

LOOK_SECONDS_MAX = 3600.0
"""Maximum time between checks for a due backup or a retry."""
PROBLEM = ("backup", "problem")
"""Setting that stores the error of the last scheduled backup. Empty after a success."""
_NAME = lazy_re.compile(r"shoal-(\d{8}T\d{6}Z)\.tar\.gz")
_TIME = "%Y%m%dT%H%M%SZ"

_T = TypeVar("_T")


def attach(services: "Services") -> None:
    services[Backend].add_single("backups", services[Upkeep].keep("backups", services[Backups].run))


class Backup(msgspec.Struct, frozen=True):
    """A complete backup. `size_bytes` is the archive's size."""

    name: str
    at: datetime
    size_bytes: int


class Backups(msgspec.Struct, eq=False):
    """Service that creates backups on demand and on a schedule. Calls `notify` once when scheduled backups begin to
    fail.
    """

    home: Home
    storage: BackupStorage | None
    clock: Clock
    stored: Settings
    notify: Callable[[str], Awaitable[None]]
    settings: BackupSettings
    database_url: Callable[[], str]
    _making: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    _changed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, services: "Services") -> Self:
        """Create the service from the configuration. Raises ConfigError if backup.to is invalid."""
        config, home = services[LiveConfig].current, services[Home]
        return cls(
            home,
            backup_storage(config, home),
            services[Clock],
            services[Store].settings,
            services[Notices].notify_owner,
            config.section(BackupSettings),
            config.database.url.reveal,
        )

    def change(self, storage: BackupStorage | None, settings: BackupSettings) -> None:
        """Change the location or the schedule. Takes effect within LOOK_SECONDS_MAX seconds."""
        self.storage, self.settings = storage, settings
        self._changed.set()

    @property
    def is_scheduled(self) -> bool:
        return self.storage is not None and bool(self.settings.every_hours)

    async def listed(self) -> list[Backup]:
        """Return the stored backups, newest first. Raises StoreError if the location cannot be read."""
        return await _blocking(partial(listed_in, self.storage)) if self.storage is not None else []

    async def problem(self) -> str:
        """Return the error of the last scheduled backup, or an empty string after a success."""
        return await self.stored.get(*PROBLEM) or ""

    async def make(self) -> Backup:
        """Create a backup now, verify it, and delete old backups beyond backup.keep.

        Raises Conflict if backup.to is empty, and StoreError if the backup fails. A failure leaves existing backups
        unchanged. Cancelling the call does not stop the backup, which continues in its thread.
        """
        if self.storage is None:
            raise Conflict(NOT_SET)
        return await self._make(self.storage, self.settings.keep, StoreError)

    async def try_storage(self, storage: BackupStorage, keep: int) -> Backup:
        """Create a backup in another location without switching to it. Raises InvalidInput on failure."""
        return await self._make(storage, keep, InvalidInput)

    async def _make(self, storage: BackupStorage, keep: int, failure: type[ShoalError]) -> Backup:
        work = partial(make_backup, self.home, storage, self.clock.now(), keep, self.database_url())
        async with self._making:
            made = await _blocking(work, failure)
        if await self.problem():
            await self.stored.put(*PROBLEM, "")
        log.info("backup made", extra={"backup": made.name, "bytes": made.size_bytes})
        return made

    async def run(self) -> None:
        """Create a backup whenever the newest is older than `every_hours`, until cancelled.

        Raises StoreError if the stored settings cannot be read or written.
        """
        while True:
            if not self.is_scheduled:
                self._changed.clear()
                await self._changed.wait()
                continue
            every, wait = timedelta(hours=self.settings.every_hours), LOOK_SECONDS_MAX
            try:
                now = self.clock.now()  # a wrong clock created backups with future dates, so ignore them
                newest = next((backup for backup in await self.listed() if backup.at <= now), None)
                due = newest.at + every if newest is not None else self.clock.now()
                if due <= self.clock.now():
                    due = (await self.make()).at + every
                wait = min(wait, max(0.0, (due - self.clock.now()).total_seconds()))
            except StoreError as error:
                why = str(error)
                log.error("backup failed; see `shoal doctor`", extra={"why": why})
                if not await self.problem():
                    await self.stored.put(*PROBLEM, why)
                    await self.notify(f"I could not make a backup and will retry every hour. {why}")
            await self.clock.sleep(wait)


async def _blocking(work: Callable[[], _T], failure: type[ShoalError] = StoreError) -> _T:
    from shoal.features.backups.archive import FAILURES

    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except FAILURES as error:
        why: object = error
        if isinstance(error, OSError) and error.strerror:
            why = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        raise failure(f"The backup failed: {why}. Check the free space and permissions of backup.to.") from error


def listed_in(storage: BackupStorage) -> list[Backup]:
    """Return the stored backups, newest first. Raises OSError if the location cannot be read."""
    backups: list[Backup] = []
    for name, size_bytes in storage.sizes().items():
        if match := _NAME.fullmatch(name):
            with contextlib.suppress(ValueError):  # the name contains no valid time, so the file is not ours
                backups.append(Backup(name, datetime.strptime(match[1], _TIME).replace(tzinfo=UTC), size_bytes))
    return sorted(backups, key=lambda backup: backup.at, reverse=True)


def make_backup(home: Home, storage: BackupStorage, now: datetime, keep: int, database_url: str) -> Backup:
    """Create a backup, verify the stored copy, and delete old backups beyond `keep`.

    Backups with future dates are deleted first, because a wrong clock created them. A failure leaves existing backups
    unchanged. Raises OSError, StoreError, InvalidInput.
    """
    from shoal.features.backups.archive import check_archive, write_archive

    name = f"shoal-{now.strftime(_TIME)}.tar.gz"
    unchecked = f"{name}.partial"
    for left in storage.sizes():
        if left.startswith("shoal-") and left.endswith(".partial"):  # left by an interrupted backup
            storage.remove(left)
    with tempfile.TemporaryDirectory(prefix="shoal-backup-") as folder:
        made, read = Path(folder) / name, Path(folder) / "read"
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as target:
            notes = list[str]()
            write_archive(home, target, notes, with_secrets=False, database_url=database_url)
            for note in notes:
                log.warning("backup incomplete", extra={"what": note})
        try:
            storage.put(made, unchecked)
            made.unlink()
            storage.fetch(unchecked, read)
            check_archive(read)
        except (OSError, ShoalError):
            with contextlib.suppress(OSError, ShoalError):  # the next backup removes it
                storage.remove(unchecked)
            raise
        size_bytes = read.stat().st_size
    storage.rename(unchecked, name)
    others = [backup for backup in listed_in(storage) if backup.name != name]
    for old in sorted(others, key=lambda other: other.at <= now, reverse=True)[keep - 1 :]:
        storage.remove(old.name)
    return Backup(name, now.replace(microsecond=0), size_bytes)
