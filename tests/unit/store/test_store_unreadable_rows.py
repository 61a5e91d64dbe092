"""An unreadable row does not stop the others."""

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.config import load_config
from shoal.features.processes.records import Process, ProcessEnd, ProcessSpec
from shoal.features.processes.store import ProcessStore
from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author
from shoal.kernel.records import NewPost
from shoal.maintenance import note_settings
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing import ManualClock
from shoal.tools.tainted_files import SCOPE, MarkedFiles

THREAD, OWNER = ThreadId("web:lobby:a"), Author("owner", trusted=True)
UNREADABLE = ("garbage", '{"form": 7}', "[" * 100_000)


class Kept:
    """A store that is closed while the test writes to its file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "shoal.db"
        self.clock = ManualClock()
        self.home = Home(folder)
        self.store = self._open()

    def _open(self) -> Store:
        return Store(SqliteDriver(self.file, synchronous="OFF"), self.clock)

    async def written(self, statement: str, value: str) -> None:
        await self.store.close()
        connection = sqlite3.connect(self.file)
        connection.execute(statement, (value,))
        connection.commit()
        connection.close()
        self.store = self._open()


@pytest.mark.parametrize("value", UNREADABLE)
async def test_an_unreadable_trigger_is_disabled_alone(tmp_path: Path, value: str) -> None:
    kept = Kept(tmp_path)
    spec, at = NewTrigger("periodic", "0 9 * * *", "go", OWNER, "", thread=THREAD), kept.clock.now()
    bad, good = [await TriggerStore(kept.store.driver, kept.clock).add(spec, at) for _ in range(2)]
    await kept.written(f"update triggers set spec = ? where id = '{bad.id}'", value)
    assert [one.id for one in await TriggerStore(kept.store.driver, kept.clock).all()] == [good.id]
    assert [one.id for one in await TriggerStore(kept.store.driver, kept.clock).due()] == [good.id]
    assert await TriggerStore(kept.store.driver, kept.clock).claim(good, at + timedelta(days=1)) is not None
    assert await TriggerStore(kept.store.driver, kept.clock).next_due_at() == at + timedelta(days=1)
    await kept.store.close()


@pytest.mark.parametrize("value", UNREADABLE)
@pytest.mark.parametrize("state", ["running", "exited"])
async def test_an_unreadable_process_is_skipped(tmp_path: Path, value: str, state: str) -> None:
    kept, now = Kept(tmp_path), ManualClock().now()
    spec = ProcessSpec("main", THREAD, "sleep 60", author=OWNER, tainted_by="")
    bad, good = [Process(kept.clock.new_id(), spec, "running", "here 7 1 1", "", now, now) for _ in range(2)]
    for one in (bad, good):
        assert await ProcessStore(kept.store.driver, kept.clock).add(one, 8)
        if state == "exited":
            await ProcessStore(kept.store.driver, kept.clock).end(one.id, ProcessEnd("exited"))
    await kept.written(f"update processes set spec = ? where id = '{bad.id}'", value)
    rows = ProcessStore(kept.store.driver, kept.clock)
    found = [await rows.beat("here 7 1 1"), await rows.search(running=True)]
    if state == "exited":
        found = [await rows.unreported()]
    assert [[one.id for one in some] for some in found] == [[good.id]] * len(found)
    await kept.store.close()


@pytest.mark.parametrize("value", UNREADABLE)
async def test_an_unreadable_post_fails_alone(tmp_path: Path, value: str) -> None:
    kept = Kept(tmp_path)
    for number in range(3):
        await kept.store.outbox.put(NewPost(f"p{number}", THREAD, "hello"))
    await kept.written("update outbox set payload = ? where id = 'p0'", value)
    claims = [await kept.store.outbox.claim(["web"], 10, 60) for _ in range(3)]
    assert [[one.id for one in claim] for claim in claims] == [[], ["p1"], []]
    status = await kept.store.outbox.fate("p0")
    assert status is not None
    assert (status.state, status.error) == ("failed", "The stored post is unreadable.")
    await kept.store.close()


@pytest.mark.parametrize("value", UNREADABLE)
async def test_unreadable_marks_taint_every_file(tmp_path: Path, value: str) -> None:
    kept = Kept(tmp_path)
    kept.home.data.mkdir()
    (kept.home.data / "notes.md").write_text("x", "utf-8")
    marked = MarkedFiles(kept.store.settings, kept.home)
    await kept.store.settings.put(SCOPE, "data", value)
    assert (await marked.sources([kept.home.data]))(kept.home.data / "notes.md") == "unreadable taint marks"
    assert await marked.forget_unused() == 0
    await kept.store.close()


@pytest.mark.parametrize("value", UNREADABLE)
async def test_an_unreadable_settings_record_is_replaced(tmp_path: Path, value: str) -> None:
    kept = Kept(tmp_path)
    await kept.store.settings.put("audit", "settings", value)
    await note_settings(load_config(tmp_path, {}), kept.store, kept.home, ["main"])
    assert await kept.store.settings.get("audit", "settings") != value
    await kept.store.close()
