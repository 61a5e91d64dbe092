"""Backups: schedule, verification, restore, and consistency under load."""

import asyncio
import contextlib
import errno
import gzip
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Generator
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import S3Store
from tests import s3
from tests.postgres import database

from shoal.features.backups.archive import check_archive
from shoal.features.backups.bucket import S3Storage
from shoal.features.backups.service import Backups, listed_in, make_backup
from shoal.features.backups.settings import BackupSettings
from shoal.features.backups.storage import BackupStorage, DirectoryStorage
from shoal.kernel.errors import Conflict, InvalidInput, StoreCorrupt, StoreError
from shoal.kernel.home import Home
from shoal.kernel.records import AuditEntry
from shoal.store.postgres import open_postgres
from shoal.store.s3 import S3Settings
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing import ManualClock

DAY_SECONDS = 86_400
GZIP_HEADER_BYTES = 10


@pytest.fixture(scope="module")
def s3_server() -> Generator[str]:
    with s3.server() as address:
        yield address


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.xdist_group("s3"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> BackupStorage:
    if request.param == "directory":
        return DirectoryStorage(tmp_path / "kept")
    address: str = request.getfixturevalue("s3_server")
    bucket = f"kept-{tmp_path.name.lower().replace('_', '-')}"[:60].rstrip("-")
    settings = S3Settings(bucket, "some/prefix", address, "us-east-1", "key", "secret")
    config = {"endpoint": address, "access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    import httpx2

    assert httpx2.put(f"{address}/{bucket}").status_code == 200
    obstore.put(S3Store(bucket, config=config, client_options={"allow_http": True}), "other/file", b"x")
    return S3Storage(settings)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    (home.root / "agents/main").mkdir(parents=True)
    (home.root / "agents/main/agent.md").write_text("You are main.")
    return home


@pytest.fixture
async def store(home: Home) -> AsyncIterator[Store]:
    store = Store(SqliteDriver(home.database_file), ManualClock())
    await store.settings.put("s", "key", "value")
    yield store
    await store.close()


class Schedule:
    """A backup schedule with a manual clock. `told` lists the notices to the owner."""

    def __init__(self, home: Home, place: BackupStorage | None, store: Store, *, keep: int = 3) -> None:
        self.clock = ManualClock()
        self.told: list[str] = []
        self.backups = Backups(
            home, place, self.clock, store.settings, self._tell, BackupSettings(every_hours=24, keep=keep), str
        )

    async def _tell(self, text: str) -> None:
        self.told.append(text)

    async def run_for(self, days: float) -> None:
        running = asyncio.create_task(self.backups.run())
        until = self.clock.now() + timedelta(days=days)
        while self.clock.now() < until:
            await self.clock.advance_to_next()
        await self.clock.sleepers()
        running.cancel()


def unpacked(place: BackupStorage, name: str, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    place.fetch(name, folder / "file.tar.gz")
    with tarfile.open(folder / "file.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "shoal.db"


async def test_a_due_backup_is_made_and_the_newest_are_kept(
    home: Home, place: BackupStorage, store: Store, tmp_path: Path
) -> None:
    schedule = Schedule(home, place, store)
    await schedule.run_for(5.5)
    listed = await schedule.backups.listed()
    assert [(backup.at - listed[-1].at).total_seconds() / DAY_SECONDS for backup in listed] == [2, 1, 0]
    assert set(place.sizes()) == {backup.name for backup in listed}
    assert (schedule.told, await schedule.backups.problem()) == ([], "")
    copy = Store(SqliteDriver(unpacked(place, listed[0].name, tmp_path / "copy")), ManualClock())
    assert await copy.settings.get("s", "key") == "value"
    await copy.close()


async def test_a_restart_makes_no_backup_before_it_is_due(home: Home, store: Store, tmp_path: Path) -> None:
    place = DirectoryStorage(tmp_path / "kept")
    schedule = Schedule(home, place, store)
    await schedule.backups.make()
    for _ in range(3):
        await schedule.run_for(0.2)
    assert len(await schedule.backups.listed()) == 1


@pytest.mark.parametrize("keep", [1, 3])
async def test_a_corrected_clock_neither_delays_nor_deletes_backups(
    home: Home, store: Store, tmp_path: Path, keep: int
) -> None:
    place = DirectoryStorage(tmp_path / "kept")
    schedule = Schedule(home, place, store, keep=keep)
    began = schedule.clock.now()
    schedule.clock.jump(40 * DAY_SECONDS)
    await schedule.run_for(2.5)
    schedule.clock.jump(-40 * DAY_SECONDS)
    await schedule.run_for(4)
    listed = await schedule.backups.listed()
    assert len(listed) == keep
    assert all(backup.at - began < timedelta(days=7) for backup in listed)
    assert listed[0].at - began >= timedelta(days=6)


async def test_a_failure_is_reported_once_and_leaves_existing_backups(home: Home, store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    schedule = Schedule(home, DirectoryStorage(folder), store, keep=1)
    await schedule.backups.make()
    before = await schedule.backups.listed()
    moved = folder.rename(tmp_path / "moved")
    folder.write_text("not a directory")
    await schedule.run_for(2)
    assert len(schedule.told) == 1
    assert "kept" in await schedule.backups.problem()
    folder.unlink()
    moved.rename(folder)
    assert await schedule.backups.listed() == before
    await schedule.run_for(0.1)
    assert await schedule.backups.problem() == ""
    assert len(await schedule.backups.listed()) == 1
    assert await schedule.backups.listed() != before


class TearingStorage(DirectoryStorage):
    """Backup storage that cuts the last bytes off each file."""

    def put(self, file: Path, name: str) -> None:
        file.write_bytes(file.read_bytes()[:-200])
        super().put(file, name)


def unread(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")


def nested(file: Path) -> None:
    file.write_bytes(b"a = " + b"[" * 60_000)


@pytest.mark.parametrize("odd", [unread, nested, os.mkfifo])
@pytest.mark.timeout(60)
async def test_an_unreadable_configuration_does_not_stop_the_schedule(
    home: Home, store: Store, tmp_path: Path, odd: Callable[[Path], None]
) -> None:
    odd(home.config_file)
    schedule = Schedule(home, DirectoryStorage(tmp_path / "kept"), store)
    await schedule.run_for(0.5)
    assert bool(await schedule.backups.listed()) != bool(schedule.told)


async def test_files_without_a_time_in_their_name_are_ignored(home: Home, store: Store, tmp_path: Path) -> None:
    place = DirectoryStorage(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    odd = {f"shoal-{time}Z.tar.gz" for time in ("20261399T000000", "00000101T000000", "٢٠٢٦٠١٠١T٠٠٠٠٠٠")}
    for name in odd:
        (tmp_path / "kept" / name).touch()
    schedule = Schedule(home, place, store)
    await schedule.run_for(0.5)
    (backup,) = await schedule.backups.listed()
    assert (schedule.told, {*place.sizes()}) == ([], {*odd, backup.name})


async def test_an_incomplete_backup_does_not_count(home: Home, store: Store, tmp_path: Path) -> None:
    place = TearingStorage(tmp_path / "kept")
    with pytest.raises(StoreError, match="not a complete backup"):
        await Schedule(home, place, store).backups.make()
    assert not place.sizes()


async def test_a_damaged_database_does_not_replace_the_last_backup(home: Home, store: Store, tmp_path: Path) -> None:
    place = DirectoryStorage(tmp_path / "kept")
    clock = ManualClock()
    backup = make_backup(home, place, clock.now(), 1, "")
    await store.close()
    content = bytearray(home.database_file.read_bytes())
    content[8192:] = b"\xa5" * (len(content) - 8192)
    home.database_file.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        make_backup(home, place, clock.now() + timedelta(days=1), 1, "")
    assert listed_in(place) == [backup]
    assert set(place.sizes()) == {backup.name}


async def test_leftovers_of_a_killed_process_are_removed(home: Home, store: Store, tmp_path: Path) -> None:
    place = DirectoryStorage(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/shoal-20260101T000000Z.tar.gz.partial").write_text("half")
    (tmp_path / "kept/mine.txt").write_text("stays")
    backup = await Schedule(home, place, store, keep=1).backups.make()
    assert set(place.sizes()) == {backup.name, "mine.txt"}


async def test_a_full_disk_leaves_no_partial_backup(home: Home, store: Store, tmp_path: Path) -> None:
    class Full(DirectoryStorage):
        def put(self, file: Path, name: str) -> None:
            (tmp_path / "kept" / name).write_bytes(file.read_bytes()[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "kept").mkdir()
    with pytest.raises(StoreError, match="The backup failed: No space left on device"):
        await Schedule(home, Full(tmp_path / "kept"), store, keep=1).backups.make()
    assert not list((tmp_path / "kept").iterdir())


async def test_backups_start_once_a_destination_is_set(home: Home, store: Store, tmp_path: Path) -> None:
    schedule = Schedule(home, None, store)
    running = asyncio.create_task(schedule.backups.run())
    await asyncio.sleep(0)
    assert not schedule.backups.is_scheduled
    assert await schedule.backups.listed() == []
    with pytest.raises(Conflict, match=r"backup\.to is empty"):
        await schedule.backups.make()
    schedule.backups.change(DirectoryStorage(tmp_path / "kept"), schedule.backups.settings)
    await schedule.clock.sleepers()  # until the next backup is due
    assert len(await schedule.backups.listed()) == 1
    running.cancel()


def test_a_truncated_archive_is_reported(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        entry = tarfile.TarInfo("data/a")
        entry.size = 100_000
        archive.addfile(entry, io.BytesIO(bytes(range(250)) * 400))
    file = tmp_path / "backup.tar.gz"
    file.write_bytes(whole.getvalue())
    check_archive(file)
    for size in range(0, len(whole.getvalue()) - 8, 97):
        file.write_bytes(whole.getvalue()[:size])
        with pytest.raises(InvalidInput, match="not a complete backup"):
            check_archive(file)


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_every_flipped_bit_of_an_archive_is_detected(at: int, bit: int) -> None:
    """A tar archive has no checksums for file contents. The gzip stream has a single one, at its end."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        entry = tarfile.TarInfo("agents/main/SOUL.md")
        entry.size = 5120
        archive.addfile(entry, io.BytesIO(bytes(range(256)) * 20))
    whole = bytearray(gzip.compress(plain.getvalue()))
    whole[GZIP_HEADER_BYTES + at % (len(whole) - GZIP_HEADER_BYTES)] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "backup.tar.gz"
        file.write_bytes(whole)
        with contextlib.suppress(InvalidInput):
            check_archive(file)
            assert gzip.decompress(whole) == plain.getvalue(), "a few bits do not affect the content"


async def test_a_backup_under_load_is_consistent(home: Home, store: Store, tmp_path: Path) -> None:
    """Each writer writes its numbers in order. A backup must therefore contain all numbers up to some point, and
    at least those accepted before the backup started.
    """
    place, schedule = DirectoryStorage(tmp_path / "kept"), Schedule(home, DirectoryStorage(tmp_path / "kept"), store)
    accepted = [0] * 4

    async def write(writer: int) -> None:
        while True:
            number = accepted[writer] + 1
            await store.settings.put(f"writer{writer}", f"{number:06}", "x" * 500)
            await store.audit.record("system", [AuditEntry("load", f"{writer}:{number}")])
            accepted[writer] = number

    writers = [asyncio.create_task(write(writer)) for writer in range(4)]
    before: dict[str, list[int]] = {}
    after: dict[str, list[int]] = {}
    for _ in range(3):
        async with asyncio.timeout(60):
            goal = sum(accepted) + 40
            while sum(accepted) < goal:
                await store.outbox.depth()
        schedule.clock.jump(60)
        counted = list(accepted)
        backup = await schedule.backups.make()
        before[backup.name], after[backup.name] = counted, list(accepted)
    for task in writers:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    for name, counted in before.items():
        assert sum(after[name]) > sum(counted)
        copy = Store(SqliteDriver(unpacked(place, name, tmp_path / name)), ManualClock())
        for writer in range(4):
            numbers = [int(key) for key, _ in await copy.settings.page(f"writer{writer}", limit=100_000)]
            assert numbers == list(range(1, len(numbers) + 1))
            assert counted[writer] <= len(numbers) <= after[name][writer] + 1
        assert not (await copy.audit.verify()).broken
        await copy.close()


@pytest.mark.xdist_group("postgres")
async def test_a_server_database_is_backed_up(home: Home, tmp_path: Path) -> None:
    if not shutil.which("pg_dump"):
        pytest.skip("pg_dump, which is not installed")
    place = DirectoryStorage(tmp_path / "kept")
    with database() as url, database() as empty:
        store = Store(await open_postgres(url), ManualClock())
        await store.settings.put("s", "key", "value")
        backup = make_backup(home, place, ManualClock().now(), 1, url)
        await store.close()
        folder = unpacked(place, backup.name, tmp_path / "copy").parent
        assert not (folder / "shoal.db").exists()
        command = ["pg_restore", "--no-owner", "--dbname", empty, str(folder / "shoal.dump")]
        restoring = await asyncio.create_subprocess_exec(*command)
        assert await restoring.wait() == 0
        copy = Store(await open_postgres(empty), ManualClock())
        assert await copy.settings.get("s", "key") == "value"
        await copy.close()


def test_a_failed_dump_is_reported_without_the_password(home: Home, tmp_path: Path) -> None:
    url = "postgresql://somebody:hunter2secret@127.0.0.1:1/none"
    with pytest.raises(StoreError, match="pg_dump") as failed:
        make_backup(home, DirectoryStorage(tmp_path / "kept"), ManualClock().now(), 1, url)
    assert "hunter2secret" not in str(failed.value)
