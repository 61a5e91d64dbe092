"""Folders that move between machines with their conversation: thread files, workspaces, notices and local paths."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.kernel.agents import AgentSpec
from shoal.kernel.errors import StoreUnavailable
from shoal.kernel.events import ToolFinished, UserSaid
from shoal.kernel.files import STILL_FOLDERS, relocated
from shoal.kernel.home import Home
from shoal.kernel.ids import CallId, make_thread_id
from shoal.kernel.messages import Attachment, Author, Image
from shoal.store.files import LocalFiles
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.tools.synced_folders import SyncedFolders
from shoal.tools.tainted_files import MarkedFiles

THREAD = make_thread_id("web", "lobby", "sea")


class Machine:
    def __init__(self, root: Path, files: LocalFiles, store: Store) -> None:
        self.home = Home(root)
        self.agent = AgentSpec("main", self.home.agent("main"), self.home.agent("main") / "workspace", "demo", "open")
        self.settings = store.settings
        self.marks = MarkedFiles(store.settings, self.home)
        self.folders = SyncedFolders(files, store.settings, self.home, self.marks)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
async def machines(tmp_path: Path) -> AsyncIterator[tuple[Machine, Machine]]:
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), ManualClock())
    files = LocalFiles(tmp_path / "files")
    yield Machine(tmp_path / "a", files, store), Machine(tmp_path / "b", files, store)
    await store.close()


async def test_a_threads_files_and_its_agents_workspace_are_synced(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write(a.home.attachments(THREAD) / "chart.txt", "depth")
    a.write(a.agent.workspace / "log.md", "day one")
    assert await a.folders.push(THREAD, a.agent) == ()
    assert await b.folders.pull(THREAD, b.agent) == ()
    assert (b.home.attachments(THREAD) / "chart.txt").read_text() == "depth"
    assert (b.agent.workspace / "log.md").read_text() == "day one"


async def test_each_machine_keeps_its_own_readable_log(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write(a.home.thread(THREAD) / "log.jsonl", "of a")
    a.write(a.home.scratch(THREAD) / "log.jsonl", "mine")
    await a.folders.push(THREAD)
    await b.folders.pull(THREAD)
    assert [path.name for path in b.home.thread(THREAD).iterdir()] == ["scratch"]


async def test_the_model_is_informed_of_conflicting_changes(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    for machine, text in ((a, "of a"), (b, "of b")):
        machine.write(machine.agent.workspace / "obey me", text)
    assert await a.folders.push(THREAD, a.agent) == ()
    (notice,) = await b.folders.push(THREAD, b.agent)
    assert notice.startswith("[A file was changed here and on another machine")


async def test_failed_uploads_are_reported_and_failed_downloads_retried(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    a, b = machines
    a.write(a.agent.workspace / "f", "1")
    await a.folders.push(THREAD, a.agent)
    for path in (tmp_path / "files").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    with pytest.raises(StoreUnavailable, match="agent main"):
        await b.folders.pull(THREAD, b.agent)
    blocked = SyncedFolders(LocalFiles(tmp_path / "shoal.db"), b.settings, b.home, b.marks)
    b.write(b.agent.workspace / "g", "2")
    (notice,) = await blocked.push(THREAD, b.agent)
    assert "could not send the changes made here to other machines" in notice


async def test_paths_of_another_machine_map_to_this_one(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    theirs = str(a.home.attachments(THREAD) / "chart.png")
    ours = str(b.home.attachments(THREAD) / "chart.png")
    assert b.folders.here(THREAD, theirs) == ours
    assert b.folders.here(THREAD, ours) == ours
    assert b.folders.here(THREAD, "/etc/passwd") == "/etc/passwd"
    assert STILL_FOLDERS.here(THREAD, theirs) == theirs
    said = UserSaid(
        "look", Author("u", trusted=True), attachments=(Attachment("chart.png", path=theirs), Attachment("gone"))
    )
    moved = relocated(said, lambda path: b.folders.here(THREAD, path))
    assert isinstance(moved, UserSaid)
    assert [one.path for one in moved.attachments] == [ours, ""]
    shown = ToolFinished(CallId("c"), "read", "", images=(Image(theirs, "image/png"),))
    seen = relocated(shown, lambda path: b.folders.here(THREAD, path))
    assert isinstance(seen, ToolFinished)
    assert seen.images == (Image(ours, "image/png"),)
    assert relocated(said, lambda path: path) is said


async def test_untrusted_files_stay_marked_on_the_next_machine(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    marked = {
        a.agent.workspace / "log.md": b.agent.workspace / "log.md",
        a.home.scratch(THREAD) / "draft": b.home.scratch(THREAD) / "draft",
        a.home.attachments(THREAD) / "chart.txt": b.home.attachments(THREAD) / "chart.txt",
    }
    for path in marked:
        a.write(path, "of a stranger")
        await a.marks.note(path.parent, [path], "a stranger")
    a.write(a.agent.workspace / "own", "of the owner")
    await a.folders.push(THREAD, a.agent)
    await b.folders.pull(THREAD, b.agent)
    for path in marked.values():
        assert (await b.marks.sources([path.parent]))(path) == "a stranger"
    assert (await b.marks.sources([b.agent.workspace]))(b.agent.workspace / "own") == ""
