"""A damaged, replaced or outdated database is detected, and Shoal stops writing to it."""

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kernel.errors import StoreCorrupt, StoreError, StoreUnavailable
from shoal.kernel.home import Home
from shoal.maintenance import HEALTH_CHECK_SECONDS, watch_health
from shoal.store.driver import (
    FIRST_MIGRATION,
    Row,
    Script,
    query,
    text,
)
from shoal.store.sqlite import SqliteDriver
from shoal.store.sqlite_checks import check_file
from shoal.store.sqlite_errors import DISK_READ_BYTES
from shoal.testing.clock import ManualClock

KEYS = [f"{number:03}" for number in range(120)]
WATCHED = ("", "-wal", "-shm")
SUFFIXES = (*WATCHED, "-used")


def put(key: str) -> Script[list[Row]]:
    return query("setting_put", scope="s", key=key, value=key * 40)


async def fill(driver: SqliteDriver) -> None:
    for key in KEYS:
        await driver.write(put(key))


def keys_in(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute("select key, value from settings where scope = 's' order by key").fetchall()
    return [key for key, value in rows if value == key * 40]


async def keys_of(driver: SqliteDriver) -> list[str]:
    found: list[str] = []
    for key in KEYS:
        rows = await driver.read(query("setting_get", scope="s", key=key))
        found += [key for row in rows if text(row[0]) == key * 40]
    return found


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def copy_files(source: Path, target: Path) -> Path:
    """Copy the files of a database in use. A killed process would leave them in the same state."""
    target.mkdir(exist_ok=True)
    for suffix in SUFFIXES:
        shutil.copy2(beside(source, suffix), beside(target / source.name, suffix))
    return target / source.name


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[SqliteDriver]:
    """A database in use that contains every key, some of them only in the -wal file."""
    driver = SqliteDriver(tmp_path / "shoal.db")
    await fill(driver)
    yield driver
    await driver.close()


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database files of a killed process that had stored every key."""
    import asyncio

    folder = tmp_path_factory.mktemp("left")

    async def make() -> Path:
        driver = SqliteDriver(folder / "shoal.db")
        await fill(driver)
        kept = copy_files(folder / "shoal.db", folder / "kept")
        await driver.close()
        return kept

    return asyncio.run(make())


def remove(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace(path: Path) -> None:
    other = path.with_name("other")
    shutil.copyfile(path, other)
    other.replace(path)


# ---- while the database is in use ----


@pytest.mark.parametrize("change", [remove, move, replace])
@pytest.mark.parametrize("suffix", WATCHED)
async def test_a_removed_or_replaced_file_stops_writing_and_is_saved_whole(
    driver: SqliteDriver, tmp_path: Path, suffix: str, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "shoal.db"
    change(beside(path, suffix))
    with pytest.raises(StoreCorrupt, match=f"/shoal.db{suffix} was removed or replaced"):
        await driver.write(put("late"))
    saved = path.with_name("shoal.db.rescued-1")
    assert str(saved) in driver.health.damage
    assert keys_in(saved) == KEYS
    assert saved.stat().st_mode & 0o777 == 0o600
    shutil.move(saved, tmp_path / "again.db")
    again = SqliteDriver(tmp_path / "again.db")
    assert await keys_of(again) == KEYS
    await again.close()


@pytest.mark.parametrize("goes_on_with", ["what was saved", "what replaced it"])
@pytest.mark.parametrize("change", [remove, replace])
async def test_a_start_is_refused_until_the_rescued_copy_or_the_database_is_chosen(
    driver: SqliteDriver, tmp_path: Path, change: Callable[[Path], None], goes_on_with: str
) -> None:
    path = tmp_path / "shoal.db"
    saved = path.with_name("shoal.db.rescued-1")
    change(path)
    with pytest.raises(StoreCorrupt, match="saved the content as"):
        await driver.write(put("late"))
    await driver.close()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=r"rescued-1 when "):
            SqliteDriver(path)
    if goes_on_with == "what was saved":
        for suffix in ("", "-wal", "-shm"):
            beside(path, suffix).unlink(missing_ok=True)
        saved.rename(path)
    else:
        saved.rename(tmp_path / "elsewhere.db")
        beside(path, "-wal").unlink(missing_ok=True)
        beside(path, "-shm").unlink(missing_ok=True)
    again = SqliteDriver(path)
    if goes_on_with == "what was saved":
        assert await keys_of(again) == KEYS
    await again.close()


async def test_a_database_written_after_the_rescue_starts_next_to_it(driver: SqliteDriver, tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    await driver.close()
    saved = path.with_name("shoal.db.rescued-1")
    shutil.copyfile(path, saved)
    os.utime(saved, ns=(0, 0))
    again = SqliteDriver(path)
    assert await keys_of(again) == KEYS
    await again.close()


async def test_an_idle_process_notices_a_missing_wal(driver: SqliteDriver, tmp_path: Path) -> None:
    driver.health.check()
    beside(tmp_path / "shoal.db", "-wal").unlink()
    with pytest.raises(StoreCorrupt, match=r"shoal\.db-wal"):
        driver.health.check()


async def test_a_truncated_wal_stops_writing(driver: SqliteDriver, tmp_path: Path) -> None:
    wal = beside(tmp_path / "shoal.db", "-wal")
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - 4000)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="was truncated while Shoal was using it"):
            await driver.write(put("late"))


async def test_an_overwriting_file_is_left_unchanged(driver: SqliteDriver, tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("create table mine (a)")
    content = (tmp_path / "other.db").read_bytes()
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="was overwritten while Shoal was using it"):
        await driver.write(put("late"))
    wal = beside(path, "-wal").read_bytes()
    await driver.close()
    assert (path.read_bytes(), beside(path, "-wal").read_bytes()) == (content, wal)


def checkpoint(path: Path) -> None:
    """Copy the complete -wal into the database file from another connection. The next commit starts a new -wal."""
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("pragma wal_checkpoint(full)").fetchall()


def lay_over(path: Path, older: bytes) -> None:
    path.write_bytes(older)


def blot(path: Path, older: bytes) -> None:
    """Overwrite half of the pages. The -wal may contain a newer copy of a single page, which would hide the damage."""
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        file.seek(pages // 2 * 4096)
        file.write(b"\xa5" * 4096 * (pages - pages // 2))


@pytest.mark.parametrize("change", [lay_over, blot])
async def test_a_foreign_write_to_the_file_is_detected_before_more_rows_are_accepted(
    driver: SqliteDriver, tmp_path: Path, change: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "shoal.db"
    checkpoint(path)
    older = path.read_bytes()
    for _ in range(3):
        for key in KEYS:
            await driver.write(put(f"{key} more {_} {key * 50}"))
        checkpoint(path)
        await driver.write(put("between"))
        driver.health.check()
    written_at = path.stat().st_mtime_ns
    while path.stat().st_mtime_ns == written_at:  # file times have a resolution of some milliseconds
        change(path, older)
    with pytest.raises(StoreCorrupt, match=r"is damaged|was overwritten"):
        await driver.write(put("late"))


async def test_a_table_that_another_program_dropped_stops_writing(driver: SqliteDriver, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "shoal.db")) as other:
        other.execute("drop table settings")
    with pytest.raises(StoreCorrupt, match="is damaged: no such table: settings"):
        await driver.write(put("late"))
    with pytest.raises(StoreCorrupt, match="no such table"):
        driver.health.check()


async def test_pages_that_cannot_be_read_stop_writing(driver: SqliteDriver, tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    checkpoint(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    with contextlib.suppress(StoreCorrupt):
        await keys_of(driver)
    await driver.health.look_through(60)
    assert "is damaged" in driver.health.damage
    content = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="is damaged"):
        await driver.write(put("late"))
    await driver.close()
    assert path.read_bytes() == content


async def test_the_daily_check_finds_an_index_that_lacks_rows(driver: SqliteDriver, tmp_path: Path) -> None:
    await driver.health.look_through(60)
    driver.health.check()
    with contextlib.closing(sqlite3.connect(tmp_path / "shoal.db", isolation_level=None)) as other:
        other.execute("pragma writable_schema = on")
        other.execute("create index extra on settings (value)")
        root = other.execute("select rootpage from sqlite_master where name = 'extra'").fetchone()[0]
        other.execute("delete from sqlite_master where name = 'extra'")
        other.execute("create table t (a)")
        other.execute("insert into t values (1)")
        other.execute(
            "insert into sqlite_master values ('index', 'hollow', 't', ?, 'create index hollow on t (a)')", (root,)
        )
    await driver.health.look_through(60)
    with pytest.raises(StoreCorrupt, match="is damaged"):
        await driver.write(put("late"))


# ---- at startup ----


def flip(path: Path) -> None:
    """Change a page without changing the file's timestamp, as a failing disk does."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    at = content.find(KEYS[-1].encode() * 40) & ~4095
    content[at : at + 8] = b"\xff" * 8
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


async def stopped(folder: Path) -> Path:
    driver = SqliteDriver(folder / "shoal.db")
    await fill(driver)
    await driver.close()
    return folder / "shoal.db"


async def test_a_start_after_a_clean_stop_skips_the_check(tmp_path: Path) -> None:
    path = await stopped(tmp_path)
    flip(path)
    driver = SqliteDriver(path)
    await driver.health.look_through(60)
    assert "is damaged" in driver.health.damage
    await driver.close()
    with pytest.raises(StoreCorrupt, match="is damaged"):
        SqliteDriver(path)


def _write(path: Path) -> None:
    path.touch()


def _use(path: Path) -> None:
    beside(path, "-used").write_bytes(b"mark")


def _empty(path: Path) -> None:
    beside(path, "-used").write_bytes(b"")


def _lose(path: Path) -> None:
    beside(path, "-used").unlink()


def _mark(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("pragma application_id = 7")
    connection.close()
    os.utime(beside(path, "-used"), ns=(0, path.stat().st_mtime_ns))


@pytest.mark.parametrize("unclean", [_write, _use, _empty, _lose, _mark])
async def test_a_start_checks_for_damage_unless_the_stop_was_provably_clean(
    tmp_path: Path, unclean: Callable[[Path], None]
) -> None:
    path = await stopped(tmp_path)
    unclean(path)
    flip(path)
    with pytest.raises(StoreCorrupt, match="is damaged"):
        SqliteDriver(path)


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_start_checks_for_damage_after_a_kill(tmp_path: Path, *, is_idle: bool) -> None:
    path = await stopped(tmp_path)
    driver = SqliteDriver(path)
    if not is_idle:
        await driver.write(put(KEYS[0]))
    left = copy_files(path, tmp_path / "left")
    await driver.close()
    flip(left)
    with pytest.raises(StoreCorrupt, match="is damaged"):
        SqliteDriver(left)


async def test_a_write_during_a_clean_stop_changes_the_modification_time(tmp_path: Path) -> None:
    path = await stopped(tmp_path)
    before = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes())
    assert path.stat().st_mtime_ns != before


async def test_a_killed_process_loses_nothing(left: Path, tmp_path: Path) -> None:
    driver = SqliteDriver(copy_files(left, tmp_path))
    assert await keys_of(driver) == KEYS
    await driver.close()
    assert keys_in(tmp_path / "shoal.db") == KEYS


async def test_a_change_interrupted_before_the_wal_existed_is_rolled_back(driver: SqliteDriver, tmp_path: Path) -> None:
    """A kill during the first start, or during the first start after a restore, leaves this state."""
    await driver.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "shoal.db", isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = delete")
        connection.execute("pragma cache_size = 1")  # makes SQLite write pages before the commit
        connection.execute("begin")
        connection.execute("update settings set value = zeroblob(5000)")
        (tmp_path / "killed").mkdir()
        for suffix in ("", "-journal"):
            shutil.copy2(tmp_path / f"shoal.db{suffix}", tmp_path / "killed")
    again = SqliteDriver(tmp_path / "killed" / "shoal.db")
    try:
        assert await keys_of(again) == KEYS
    finally:
        await again.close()


@pytest.mark.parametrize("lost", [("-wal",), ("-wal", "-shm")])
async def test_a_start_without_the_wal_that_was_in_use_is_refused(
    left: Path, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    path = copy_files(left, tmp_path)
    for suffix in lost:
        beside(path, suffix).unlink()
    content = path.read_bytes()
    for _ in range(2):
        for read_only in (False, True):
            with pytest.raises(StoreCorrupt, match=r"its shoal\.db-wal is missing"):
                SqliteDriver(path, read_only=read_only)
    assert path.read_bytes() == content
    shutil.copyfile(beside(left, "-wal"), beside(path, "-wal"))
    driver = SqliteDriver(path)
    assert await keys_of(driver) == KEYS
    await driver.close()


async def test_a_lost_wal_is_detected_even_if_a_reader_delayed_the_mark(tmp_path: Path) -> None:
    """While a reader keeps the new mark out of the database file, only the time of the last commit reveals the loss."""
    path = await stopped(tmp_path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from settings").fetchone()
        driver = SqliteDriver(path)
        await driver.write(put("early"))
    checkpoint(path)
    await driver.write(put("late"))
    left = copy_files(path, tmp_path / "left")
    await driver.close()
    beside(left, "-wal").unlink()
    with pytest.raises(StoreCorrupt, match=r"its shoal\.db-wal is missing"):
        SqliteDriver(left)


async def test_a_wal_checkpointed_by_another_program_is_not_reported(left: Path, tmp_path: Path) -> None:
    path = copy_files(left, tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert other.execute("select count(*) from settings where scope = 's'").fetchone() == (len(KEYS),)
    assert not beside(path, "-wal").exists()
    driver = SqliteDriver(path)
    assert await keys_of(driver) == KEYS
    await driver.close()


async def test_a_copied_database_without_its_wal_is_usable(left: Path, tmp_path: Path) -> None:
    path = copy_files(left, tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("vacuum into ?", [str(tmp_path / "copy.db")])
    driver = SqliteDriver(tmp_path / "copy.db")
    assert await keys_of(driver) == KEYS
    await driver.close()


@pytest.mark.parametrize("age", ["closed", "in use", "last but one"])
async def test_an_older_copy_next_to_a_newer_wal_is_refused(tmp_path: Path, age: str) -> None:
    path, older = tmp_path / "shoal.db", tmp_path / "older.db"
    driver = SqliteDriver(path)
    await fill(driver)
    await driver.close()
    if age == "closed":
        shutil.copy2(path, older)
    driver = SqliteDriver(path)
    for number in range(4):
        await driver.write(put(f"more {number}"))
        checkpoint(path)
        await driver.write(put("between"))
        driver.health.check()
        if age != "closed" and number == (2 if age == "last but one" else 0):
            shutil.copy2(path, older)
    await driver.write(
        put("after")
    )  # the -wal now contains the mark that the earlier write requested, and no other mark follows
    killed, left = copy_files(path, tmp_path / "killed"), copy_files(path, tmp_path / "left")
    await driver.close()
    again = SqliteDriver(killed)  # the files of the killed process are intact
    assert await keys_of(again) == KEYS
    await again.close()
    shutil.copyfile(older, left)
    with pytest.raises(StoreCorrupt, match=r"shoal.db is older than shoal.db-wal"):
        SqliteDriver(left)
    again = SqliteDriver(left, accept_loss=True)
    assert await keys_of(again) == KEYS
    assert not await again.read(query("setting_get", scope="s", key="more 3"))
    await again.close()
    assert beside(left, "-wal.left").exists()


async def test_a_loss_can_be_accepted_once(left: Path, tmp_path: Path) -> None:
    path = copy_files(left, tmp_path)
    beside(path, "-wal").unlink()
    await SqliteDriver(path, accept_loss=True).close()
    await SqliteDriver(path).close()


async def test_a_wal_without_its_database_is_kept(left: Path, tmp_path: Path) -> None:
    path = copy_files(left, tmp_path)
    wal = beside(path, "-wal").read_bytes()
    path.unlink()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="is missing or empty"):
            SqliteDriver(path)
    assert beside(path, "-wal").read_bytes() == wal


async def test_a_closed_database_can_be_moved_without_a_wal(driver: SqliteDriver, tmp_path: Path) -> None:
    await driver.close()
    assert not beside(tmp_path / "shoal.db", "-wal").exists()
    shutil.move(tmp_path / "shoal.db", tmp_path / "moved.db")
    again = SqliteDriver(tmp_path / "moved.db")
    assert await keys_of(again) == KEYS
    await again.close()


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1), bits=st.integers(1, 255), cut=st.booleans())
async def test_a_truncated_or_changed_wal_loses_nothing_silently(
    left: Path, share: float, bits: int, cut: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = copy_files(left, Path(folder))
        wal = bytearray(beside(path, "-wal").read_bytes())
        place = int(share * (len(wal) - 1))
        if cut:
            del wal[place:]
        else:
            wal[place] ^= bits
        beside(path, "-wal").write_bytes(wal)
        try:
            driver = SqliteDriver(path)
        except StoreCorrupt:
            assert beside(path, "-wal").read_bytes() == wal
            return
        assert await keys_of(driver) == KEYS
        await driver.close()


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=600)), min_size=1, max_size=6),
)
async def test_random_bytes_in_the_file_are_reported_or_every_row_can_be_read(
    left: Path, data: list[tuple[float, bytes]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = copy_files(left, Path(folder))
        with contextlib.closing(sqlite3.connect(path)) as whole:
            whole.execute("pragma wal_checkpoint(truncate)").fetchall()
            whole.execute("pragma application_id = 0")
        for suffix in SUFFIXES[1:]:
            beside(path, suffix).unlink(missing_ok=True)
        content = bytearray(path.read_bytes())
        for share, noise in data:
            place = int(share * (len(content) - len(noise)))
            content[place : place + len(noise)] = noise
        path.write_bytes(content)
        try:
            driver = SqliteDriver(path)
        except StoreError:
            assert path.read_bytes() == content
            return
        try:
            for key in KEYS:
                await driver.read(query("setting_get", scope="s", key=key))
            await driver.write(put("more"))
        except StoreCorrupt:
            assert driver.health.damage
        finally:
            await driver.close()


# ---- checks of the database file ----


@pytest.mark.parametrize("is_emptied", [True, False])
async def test_a_missing_or_empty_database_is_not_a_new_home(
    driver: SqliteDriver, tmp_path: Path, *, is_emptied: bool
) -> None:
    await driver.close()
    path = tmp_path / "shoal.db"
    if is_emptied:
        path.write_bytes(b"")
    else:
        path.unlink()
    for _ in range(2):
        with pytest.raises(
            StoreCorrupt, match=r"missing or empty.* To start with an empty database, remove shoal\.db-used\."
        ):
            SqliteDriver(path)
    beside(path, "-used").unlink()
    await SqliteDriver(path).close()


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("lies_there", ["folder", "pipe", "circle", "device"])
def test_a_database_path_that_is_not_a_file_is_reported(tmp_path: Path, lies_there: str, *, read_only: bool) -> None:
    path = tmp_path / "shoal.db"
    match lies_there:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "circle":
            path.symlink_to(path)
        case _:
            path.symlink_to("/dev/zero")
    with pytest.raises(StoreCorrupt, match="is not a regular file"):
        SqliteDriver(Home(tmp_path).database_file, read_only=read_only)
    with pytest.raises(StoreCorrupt, match="is not a regular file"):
        check_file(path, "quick_check")


def test_a_check_ends_when_its_time_is_up(tmp_path: Path) -> None:
    path = tmp_path / "large.db"
    with contextlib.closing(sqlite3.connect(path)) as large:
        large.execute("create table t (a)")
        numbers = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 200000) select i from n"
        large.execute(f"insert into t select hex(randomblob(200)) from ({numbers})")
        large.commit()
    assert check_file(path, "integrity_check").is_whole
    assert check_file(path, "integrity_check", 0.001) == ("", False)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_DATA])
async def test_a_failing_disk_leads_to_a_restart_and_not_to_a_restore(tmp_path: Path, code: int) -> None:
    driver, told = SqliteDriver(tmp_path / "shoal.db"), list[str]()

    def fails() -> Script[None]:
        yield from query("setting_get", scope="a", key="b")
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    async def tell(text: str) -> None:
        told.append(text)

    with pytest.raises(StoreCorrupt, match="Storing failed"):
        await driver.write(fails())
    await watch_health(driver.health, ManualClock(), tell)
    await driver.close()
    assert "restart Shoal, which checks the database" in told[0]
    assert str(tmp_path / "shoal.db") in told[0]
    assert "damaged" not in told[0]
    assert "restore" not in told[0]
    again = SqliteDriver(tmp_path / "shoal.db")
    assert not again.health.damage
    await again.close()


@pytest.mark.parametrize(
    ("version", "says"), [(9_999, "written by a newer version of Shoal"), (FIRST_MIGRATION, "older schema")]
)
async def test_tables_of_another_version_are_not_called_damage(tmp_path: Path, version: int, says: str) -> None:
    await SqliteDriver(tmp_path / "shoal.db").close()
    driver = SqliteDriver(tmp_path / "shoal.db", read_only=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "shoal.db")) as changed:
        changed.execute("alter table settings rename to preferences")
        changed.execute(f"pragma user_version = {version}")
    with pytest.raises(StoreError, match=says):
        await driver.read(query("setting_get", scope="a", key="b"))
    with pytest.raises(StoreError, match=says):
        SqliteDriver(tmp_path / "shoal.db", read_only=True)
    assert not driver.health.damage
    await driver.close()


@pytest.mark.parametrize("by_sqlite", [True, False])
async def test_a_disk_that_fails_to_read_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_sqlite: bool
) -> None:
    """SQLite uses the same error code for failed reads and for damage. Shoal's own reads of the file can also fail."""
    driver, pread = SqliteDriver(tmp_path / "shoal.db"), os.pread

    def fails() -> Script[None]:
        yield from query("setting_get", scope="a", key="b")
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    def read(file: int, length: int, offset: int) -> bytes:
        if by_sqlite and length < DISK_READ_BYTES:
            return pread(file, length, offset)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", read)
    with pytest.raises(StoreCorrupt, match=r"Storing failed: .*Input/output error.*restart Shoal"):
        await driver.write(fails())
    monkeypatch.undo()
    await driver.close()


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM]
)
async def test_a_transient_error_is_not_damage(tmp_path: Path, code: int) -> None:
    driver = SqliteDriver(tmp_path / "shoal.db")

    def fails() -> Script[None]:
        yield from query("setting_get", scope="a", key="b")
        error = sqlite3.OperationalError("locking protocol")
        error.sqlite_errorcode = code
        raise error

    with pytest.raises(StoreUnavailable, match=r"shoal\.db"):
        await driver.write(fails())
    assert not driver.health.damage
    await driver.close()


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_READONLY])
async def test_the_owner_is_notified_of_an_unwritable_disk_once_an_hour(tmp_path: Path, code: int) -> None:
    driver, clock, told = SqliteDriver(tmp_path / "shoal.db"), ManualClock(), list[str]()

    def fails() -> Script[None]:
        yield from query("setting_get", scope="a", key="b")
        error = sqlite3.OperationalError("no")
        error.sqlite_errorcode = code
        raise error

    async def tell(text: str) -> None:
        told.append(text)

    watching = asyncio.create_task(watch_health(driver.health, clock, tell))
    for _ in range(3):
        with pytest.raises(StoreError):
            await driver.read(fails())
        await clock.sleepers(1)
        await clock.advance(HEALTH_CHECK_SECONDS)
    watching.cancel()
    await driver.close()
    assert len(told) == 1
    assert str(tmp_path / "shoal.db") in told[0]
