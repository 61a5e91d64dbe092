"""SQLite beyond the store contract: group commit, and files that are full, locked, foreign or damaged."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import shoal.store
from shoal.kernel.errors import (
    Conflict,
    ShoalError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNewer,
    StoreReadOnly,
    StoreUnavailable,
)
from shoal.store.driver import (
    Row,
    Script,
    query,
    statements,
    text,
)
from shoal.store.sqlite import BATCH_SCRIPTS_MAX, SqliteDriver


def put(key: str, value: str = "v") -> Script[list[Row]]:
    return query("setting_put", scope="s", key=key, value=value)


async def value(driver: SqliteDriver, key: str) -> str | None:
    rows = await driver.read(query("setting_get", scope="s", key=key))
    return text(rows[0][0]) if rows else None


@pytest.fixture
async def driver(tmp_path: Path, connections: list[sqlite3.Connection]) -> AsyncIterator[SqliteDriver]:
    """A fresh database. Its write connection is the first of `connections`."""
    driver = SqliteDriver(tmp_path / "shoal.db")
    yield driver
    await driver.close()


def hold_writer(driver: SqliteDriver) -> tuple[asyncio.Event, "asyncio.Future[None]", Script[None]]:
    """Return a started event, a future, and a script that waits inside its transaction until the future has a
    result.
    """
    loop = asyncio.get_running_loop()
    entered, release = asyncio.Event(), loop.create_future()

    async def wait() -> None:
        await release

    def script() -> Script[None]:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(wait(), loop).result()
        yield from query("setting_get", scope="s", key="x")

    return entered, release, script()


def commits_of(connection: sqlite3.Connection) -> list[str]:
    """Return a list that grows with every commit of the writer."""
    found: list[str] = []
    connection.set_trace_callback(lambda sql: found.append(sql) if sql.lower() == "commit" else None)
    return found


# ---- group commit ----


async def test_scripts_submitted_during_a_commit_share_the_next_one(
    driver: SqliteDriver, connections: list[sqlite3.Connection]
) -> None:
    commits = commits_of(connections[0])
    entered, release, script = hold_writer(driver)
    async with asyncio.TaskGroup() as group:
        group.create_task(driver.write(script))
        await entered.wait()
        for number in range(BATCH_SCRIPTS_MAX):
            group.create_task(driver.write(put(str(number))))
        await asyncio.sleep(0)
        release.set_result(None)
    assert len(commits) == 2
    assert await value(driver, "255") == "v"


async def test_a_batch_is_bounded(driver: SqliteDriver, connections: list[sqlite3.Connection]) -> None:
    commits = commits_of(connections[0])
    entered, release, script = hold_writer(driver)
    async with asyncio.TaskGroup() as group:
        group.create_task(driver.write(script))
        await entered.wait()
        for number in range(BATCH_SCRIPTS_MAX + 1):
            group.create_task(driver.write(put(str(number))))
        await asyncio.sleep(0)
        release.set_result(None)
    assert len(commits) == 3


async def test_a_failing_script_is_rolled_back_alone(driver: SqliteDriver) -> None:
    def failing() -> Script[None]:
        yield from put("bad")
        raise Conflict("no")

    entered, release, script = hold_writer(driver)
    held = asyncio.gather(driver.write(script))
    await entered.wait()
    others = asyncio.gather(
        driver.write(put("a")), driver.write(failing()), driver.write(put("b")), return_exceptions=True
    )
    await asyncio.sleep(0)
    release.set_result(None)
    await held
    outcomes = await others
    assert [type(outcome) for outcome in outcomes] == [list, Conflict, list]
    assert (await value(driver, "a"), await value(driver, "bad"), await value(driver, "b")) == ("v", None, "v")


async def test_a_failing_script_is_undone_and_earlier_scripts_are_kept(driver: SqliteDriver) -> None:
    def failing() -> Script[None]:
        yield from put("a", "wrong")
        yield from put("c", "wrong")
        raise Conflict("no")

    def seeing() -> Script[str]:
        yield from put("b", "2")
        rows = yield from query("setting_get", scope="s", key="a")
        return text(rows[0][0])

    entered, release, script = hold_writer(driver)
    held = asyncio.gather(driver.write(script))
    await entered.wait()
    others = asyncio.gather(
        *(driver.write(one) for one in (put("a", "1"), failing(), seeing(), failing(), put("d", "4"))),
        return_exceptions=True,
    )
    await asyncio.sleep(0)
    release.set_result(None)
    await held
    outcomes = await others
    assert [type(outcome) for outcome in outcomes] == [list, Conflict, str, Conflict, list]
    assert outcomes[2] == "1"
    assert [await value(driver, key) for key in "abcd"] == ["1", "2", None, "4"]


async def test_a_script_that_fails_before_any_change_does_not_affect_others(
    driver: SqliteDriver, connections: list[sqlite3.Connection]
) -> None:
    def failing() -> Script[None]:
        yield from query("setting_get", scope="s", key="x")
        raise Conflict("no")

    seen: list[str] = []
    connections[0].set_trace_callback(lambda sql: seen.append(sql.split()[0].lower()))
    outcomes = await asyncio.gather(driver.write(put("a")), driver.write(failing()), return_exceptions=True)
    assert isinstance(outcomes[1], Conflict)
    assert seen[:4] == ["begin", "insert", "select", "commit"]


async def test_scripts_from_one_turn_of_the_loop_share_a_commit(
    driver: SqliteDriver, connections: list[sqlite3.Connection]
) -> None:
    commits = commits_of(connections[0])
    await asyncio.gather(*(driver.write(put(str(number))) for number in range(20)))
    assert len(commits) == 1


async def test_a_cancelled_write_is_completed(driver: SqliteDriver) -> None:
    entered, release, script = hold_writer(driver)
    held = asyncio.gather(driver.write(script))
    await entered.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await driver.write(put("a"))
    release.set_result(None)
    await held
    await driver.write(put("b"))
    assert await value(driver, "a") == "v"


async def test_pending_scripts_are_committed_before_closing(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "shoal.db")
    writes = asyncio.gather(*(driver.write(put(str(number))) for number in range(20)))
    await asyncio.sleep(0)
    await driver.close()
    await writes
    with pytest.raises(StoreUnavailable):
        await driver.write(put("late"))
    with pytest.raises(StoreUnavailable):
        await value(driver, "late")
    again = SqliteDriver(tmp_path / "shoal.db")
    assert await value(again, "19") == "v"
    await again.close()


async def test_a_reader_sees_a_consistent_snapshot(driver: SqliteDriver) -> None:
    await driver.write(put("a", "before"))
    loop = asyncio.get_running_loop()

    def script() -> Script[tuple[str, str]]:
        first = yield from query("setting_get", scope="s", key="a")
        asyncio.run_coroutine_threadsafe(driver.write(put("a", "after")), loop).result()
        second = yield from query("setting_get", scope="s", key="a")
        return text(first[0][0]), text(second[0][0])

    assert await driver.read(script()) == ("before", "before")
    assert await value(driver, "a") == "after"


# ---- files ----


async def test_a_full_disk_is_reported_and_survived(
    driver: SqliteDriver, connections: list[sqlite3.Connection]
) -> None:
    await driver.write(put("a"))
    pages = connections[0].execute("pragma page_count").fetchone()[0]
    connections[0].execute(f"pragma max_page_count = {pages + 2}")
    with pytest.raises(StoreFull, match="full"):
        await driver.write(put("big", "x" * 100_000))
    await driver.write(put("small", "fits"))
    connections[0].execute("pragma max_page_count = 1000000")
    await driver.write(put("big", "x" * 100_000))
    assert (await value(driver, "a"), await value(driver, "small")) == ("v", "fits")


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreReadOnly, match="directory"):
        SqliteDriver(tmp_path / "absent" / "shoal.db")


def test_a_file_that_is_not_a_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    path.write_bytes(b"my shopping list" * 500)
    with pytest.raises(StoreCorrupt, match="not a database"):
        SqliteDriver(path)
    assert path.read_bytes() == b"my shopping list" * 500


async def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    driver = SqliteDriver(path)
    for number in range(200):
        await driver.write(put(str(number), "x" * 500))
    await driver.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(2, size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)
    with pytest.raises(StoreCorrupt, match="damaged"):
        await damaged_use(path)


async def damaged_use(path: Path) -> None:
    driver = SqliteDriver(path)
    try:
        await value(driver, "50")
        await driver.write(put("50"))
    finally:
        await driver.close()


async def test_a_read_only_driver_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreReadOnly):
        SqliteDriver(tmp_path / "shoal.db", read_only=True)
    assert list(tmp_path.iterdir()) == []
    driver = SqliteDriver(tmp_path / "shoal.db")
    await driver.write(put("a"))
    reader = SqliteDriver(tmp_path / "shoal.db", read_only=True)
    assert await value(reader, "a") == "v"
    with pytest.raises(StoreReadOnly):
        await reader.write(put("b"))
    await reader.close()
    await driver.close()


# ---- killed processes ----


# ---- named queries ----


def test_both_dialects_have_the_same_queries() -> None:
    assert statements("sqlite").keys() == statements("postgres").keys()


def test_each_query_is_defined_once_with_a_description() -> None:
    package = Path(shoal.store.__file__).parents[1]
    files = [*package.glob("store/queries/*.sql"), *package.glob("features/*/queries.sql")]
    found = [line for path in files for line in path.read_text("utf-8").splitlines() if line]
    at = [place for place, line in enumerate(found) if line.startswith("-- name: ")]
    names = [found[place].removeprefix("-- name: ") for place in at]
    assert sorted(names) == sorted(statements("sqlite"))
    assert [found[place] for place in at if not found[place + 1].startswith("-- ")] == []


async def test_a_failure_of_another_kind_is_reported_with_sqlites_words(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "shoal.db", synchronous="OFF")
    with pytest.raises(StoreError, match=r"^The database shoal\.db returned an error: unterminated string\.$"):
        await driver.read(query("search_said", quoted='"', low="", high="z", limit=1))
    await driver.close()


def test_parameters_and_dialect_parts_are_translated() -> None:
    assert statements("postgres")["inbox_known"].endswith("platform = %(platform)s and key = %(key)s")
    assert "skip locked" in statements("postgres")["outbox_claim"]
    assert "skip locked" not in statements("sqlite")["outbox_claim"]


async def test_parameters_are_bound_only_by_position(
    driver: SqliteDriver, connections: list[sqlite3.Connection]
) -> None:
    """With `?1` parameters, Python 3.12 emits a warning each time, which makes queries five times slower. Python
    3.14 raises an error.
    """
    bound: list[str] = []
    connections[0].set_trace_callback(bound.append)
    await driver.write(put("a"))
    assert any("'a'" in sql for sql in bound)
    assert not re.search(r"\?\d|:[a-z]", " ".join(bound))


def test_parts_for_other_dialects_are_removed() -> None:
    assert statements("sqlite")["wake"] == ""
    assert "shoal_wake" in statements("postgres")["wake"]
    assert statements("postgres")["search_insert"] == ""


def test_expected_failures_share_one_base_class() -> None:
    assert all(issubclass(kind, ShoalError) for kind in (StoreFull, StoreReadOnly, StoreCorrupt, StoreNewer))


async def test_no_one_else_may_read_a_new_database(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "shoal.db", synchronous="OFF")
    await driver.write(query("setting_put", scope="s", key="k", value="v"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("shoal.db*")}
    await driver.close()
    assert set(modes.values()) == {0o600}, modes
