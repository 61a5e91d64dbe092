"""Workspaces that move between machines with their conversation. No file is lost."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kernel.errors import InvalidInput, StoreCorrupt
from shoal.kernel.files import digest_of
from shoal.kernel.home import Home
from shoal.store.files import GRACE_SECONDS, LocalFiles
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.tools import manifests as tree
from shoal.tools.manifests import ManifestEntry
from shoal.tools.tainted_files import MarkedFiles
from shoal.tools.workspaces import SCOPE, WorkspaceSync

NAME = "agents/main"


class Machine:
    def __init__(self, folder: Path, files: LocalFiles, store: Store) -> None:
        self.root = folder / "workspace"
        self.root.mkdir(parents=True)
        self.files = files.below("agents%2Fmain")
        self.store = store
        self.memory = folder / "memory"
        self.marks = MarkedFiles(store.settings, Home(folder))
        self.sync = WorkspaceSync(files, store.settings, self.memory, self.marks)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    async def push(self, *skip: str) -> list[str]:
        return await self.sync.push(NAME, self.root, lambda name: name not in skip, [self.root])

    async def pull(self, *skip: str) -> list[str]:
        return await self.sync.pull(NAME, self.root, lambda name: name not in skip, [self.root])

    async def mark(self, *paths: str, source: str = "a page") -> None:
        await self.marks.note(self.root, [self.root / path for path in paths], source)

    async def marked(self) -> dict[str, str]:
        source_of = await self.marks.sources([self.root])
        found = {path: source_of(self.root / path) for path, entry in self.entries().items() if entry.kind == "file"}
        return {path: source for path, source in found.items() if source}

    def forget_the_sweep(self) -> None:
        """Pretend that the last sweep was long ago."""
        for path in self.memory.glob("*.json"):
            path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), "swept_at": 0.0}))

    def shows(self) -> dict[str, str]:
        return {path: f"{entry.kind} {entry.value} {entry.mode:o}" for path, entry in self.entries().items()}

    def entries(self) -> dict[str, ManifestEntry]:
        return tree.scan(self.root, {}, 0).entries

    async def newest(self) -> str | None:
        return await self.store.settings.get(SCOPE, NAME)


@pytest.fixture
async def machines(tmp_path: Path) -> AsyncIterator[tuple[Machine, Machine]]:
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), ManualClock())
    files = LocalFiles(tmp_path / "files")
    yield Machine(tmp_path / "a", files, store), Machine(tmp_path / "b", files, store)
    await store.close()


async def test_the_whole_workspace_is_synced(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("notes.txt", "one")
    a.write("deep/er/run.sh", "#!/bin/sh")
    (a.root / "deep/er/run.sh").chmod(0o755)
    (a.root / "empty").mkdir()
    (a.root / "link").symlink_to("deep/er/run.sh")
    await a.push()
    await b.pull()
    assert b.shows() == a.shows()
    assert (b.root / "link").read_text() == "#!/bin/sh"
    assert (b.root / "deep/er/run.sh").stat().st_mode & 0o777 == 0o755


async def test_changes_and_removals_are_synced_in_both_directions(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    for path in ("keep", "change", "drop", "folder/inside"):
        a.write(path, "old")
    await a.push()
    await b.pull()
    b.write("change", "new")
    (b.root / "drop").unlink()
    (b.root / "folder/inside").unlink()
    (b.root / "folder").rmdir()
    b.write("folder", "a file now")
    b.write("keep2/more", "x")
    await b.push()
    await a.pull()
    assert a.shows() == b.shows()
    assert (a.root / "folder").read_text() == "a file now"
    (a.root / "folder").unlink()
    a.write("folder/again", "a folder")
    await a.push()
    await b.pull()
    assert a.shows() == b.shows()


async def test_nothing_is_pushed_when_nothing_changed(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("f", "x")
    await a.push()
    newest = await a.newest()
    await a.push()
    await b.pull()
    await b.push()
    await b.pull()
    assert await a.newest() == newest


async def test_changes_of_different_files_on_two_machines_are_merged(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("a", "1")
    a.write("b", "1")
    await a.push()
    await b.pull()
    a.write("a", "2")
    b.write("b", "2")
    await asyncio.gather(a.push(), b.push())
    await asyncio.gather(a.pull(), b.pull())
    assert a.shows() == b.shows()
    assert ((a.root / "a").read_text(), (a.root / "b").read_text()) == ("2", "2")


async def test_conflicting_changes_of_one_file_are_both_kept(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("f", "1")
    await a.push()
    await b.pull()
    a.write("f", "of a")
    await a.push()
    b.write("f", "of b")
    assert await b.pull() == ["f"]
    assert (b.root / "f").read_text() == "of a"
    assert (b.root / "f.conflict").read_text() == "of b"
    await b.push()
    await a.pull()
    assert a.shows() == b.shows()


async def test_concurrent_pushes_of_one_file_are_both_kept(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("f", "1")
    await a.push()
    await b.pull()
    a.write("f", "of a")
    b.write("f", "of b")
    assert await a.push() == []
    assert await b.push() == ["f"]
    for machine in (a, b):
        assert await machine.pull() == []
        assert (machine.root / "f").read_text() == "of b"
        assert (machine.root / "f.conflict").read_text() == "of a"


async def test_identical_changes_do_not_conflict(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    for machine in machines:
        machine.write("f", "same")
        assert await machine.push() == []
    assert await b.pull() == await a.pull() == []
    assert b.shows().keys() == a.shows().keys() == {"f"}


async def test_machine_specific_files_stay_local(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("log", "of a")
    a.write("deep/log", "shared")
    await a.push("log")
    b.write("log", "of b")
    assert await b.pull("log") == []
    assert b.shows().keys() == {"log", "deep", "deep/log"}
    assert (b.root / "log").read_text() == "of b"


async def test_unreferenced_content_is_deleted_daily(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("f", "1")
    await a.push()
    a.write("f", "2")
    await a.push()
    a.write("g", "3")
    old = time.time() - GRACE_SECONDS - 1
    for path in [path for path in (tmp_of(a)).rglob("*") if path.is_file()]:
        os.utime(path, (old, old))
    a.forget_the_sweep()
    await a.push()
    assert not a.files.has(digest_of(b"1"))
    assert a.files.has(digest_of(b"2")), "the newest manifest names it"
    await b.pull()
    assert b.shows() == a.shows()


def tmp_of(machine: Machine) -> Path:
    return machine.files.path("x" * 32).parents[1]


async def test_a_change_wins_over_a_removal_elsewhere(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("f", "1")
    await a.push()
    await b.pull()
    (a.root / "f").unlink()
    await a.push()
    b.write("f", "changed")
    await b.pull()
    assert b.shows().keys() == {"f.conflict"}


async def test_a_missing_directory_does_not_count_as_emptied(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("f", "1")
    await a.push()
    (a.root / "f").unlink()
    a.root.rmdir()
    await a.push()
    await b.pull()
    await a.pull()
    assert a.shows() == b.shows()
    assert (a.root / "f").read_text() == "1"


async def test_nothing_is_written_through_a_link(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    a, b = machines
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("mine")
    a.write("dir/f", "theirs")
    a.write("file", "theirs")
    await a.push()
    (b.root / "dir").symlink_to(outside)
    (b.root / "file").symlink_to(outside / "f")
    await b.pull()
    assert (outside / "f").read_text() == "mine"
    assert (b.root / "dir/f").read_text() == "theirs"
    assert (b.root / "file").read_text() == "theirs"
    (a.root / "dir/f").unlink()
    await a.push()
    (b.root / "dir/f").unlink()
    (b.root / "dir").rmdir()
    (b.root / "dir").symlink_to(outside)
    await b.pull()
    assert (outside / "f").read_text() == "mine"


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out", "", "a/\0"])
async def test_a_manifest_with_outside_paths_is_refused(machines: tuple[Machine, Machine], path: str) -> None:
    a, b = machines
    content = a.files.keep(b"bad")
    manifest = a.files.keep(msgspec.json.encode({"entries": {path: ManifestEntry("file", content, 0o644)}}))
    await a.store.settings.put(SCOPE, NAME, manifest)
    with pytest.raises(InvalidInput, match="outside its directory"):
        await b.pull()
    assert b.shows() == {}


async def test_damage_is_reported_and_local_files_are_kept(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("f", "1")
    await a.push()
    await b.pull()
    a.write("f", "2")
    a.write("g", "2")
    await a.push()
    digest = a.entries()["f"].value
    a.files.path(digest).write_bytes(b"3")
    with pytest.raises(OSError, match="damaged"):
        await b.pull()
    assert (b.root / "f").read_text() == "1"
    a.files.path(digest).write_bytes(b"2")
    await b.pull()
    assert a.shows() == b.shows()
    await a.store.settings.put(SCOPE, NAME, "f" * 32)
    with pytest.raises(StoreCorrupt):
        await b.pull()


async def test_an_oversized_directory_is_reported(
    machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = machines
    monkeypatch.setattr(tree, "ENTRIES_MAX", 5)
    for number in range(5):
        a.write(str(number), "x")
    await a.push()
    a.write("one more", "x")
    with pytest.raises(InvalidInput, match="shared volume"):
        await a.push()


async def test_an_unchanged_file_is_not_read_again(machines: tuple[Machine, Machine]) -> None:
    a, _ = machines
    a.write("f", "x")
    before = tree.scan(a.root, {}, 0)
    later = before.seen["f"].modified + tree.SETTLED_NANOSECONDS + 1
    known = {"f": msgspec.structs.replace(before.seen["f"], at=later, digest="known")}
    assert tree.scan(a.root, known, later).entries["f"].value == "known"
    early = {"f": msgspec.structs.replace(before.seen["f"], at=later - 2, digest="known")}
    assert tree.scan(a.root, early, later).entries["f"].value == before.entries["f"].value


paths = st.sampled_from(["a", "b", "d", "d/e", "d/f", "d/g/h", "z"])
steps = st.lists(
    st.tuples(
        st.integers(0, 1), st.sampled_from(["write", "remove", "link", "push", "pull"]), paths, st.integers(0, 3)
    ),
    max_size=25,
)


@given(steps)
@settings(max_examples=60, deadline=None)
def test_machines_with_concurrent_changes_converge(done: list[tuple[int, str, str, int]]) -> None:
    asyncio.run(agree(done))


async def agree(done: list[tuple[int, str, str, int]]) -> None:
    """Run the steps on two machines, sync both, and assert that their workspaces are equal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = Store(SqliteDriver(empty_database(folder / "shoal.db"), synchronous="OFF"), ManualClock())
        files = LocalFiles(folder / "files")
        machines = Machine(folder / "a", files, store), Machine(folder / "b", files, store)
        for which, what, path, value in done:
            await act(machines[which], what, path, value)
        for machine in (*machines, *machines):
            await machine.pull()
            await machine.push()
        await machines[0].pull()
        assert machines[0].shows() == machines[1].shows()
        await store.close()


async def act(machine: Machine, what: str, path: str, value: int) -> None:
    place = machine.root / path
    if what == "push":
        await machine.push()
    elif what == "pull":
        await machine.pull()
    elif what == "remove":
        if place.is_file() or place.is_symlink():
            place.unlink()
    elif not os.path.lexists(place) and all(_is_folder_or_nothing(parent) for parent in place.parents):
        place.parent.mkdir(parents=True, exist_ok=True)
        if what == "write":
            place.write_text(str(value))
        else:
            place.symlink_to(str(value))
    elif what == "write" and place.is_file():
        place.write_text(str(value))


def _is_folder_or_nothing(place: Path) -> bool:
    return place.is_dir() if os.path.lexists(place) else True


def test_no_step_of_a_sync_follows_a_link(tmp_path: Path) -> None:
    root, outside, content = tmp_path / "root", tmp_path / "outside", tmp_path / "content"
    root.mkdir()
    outside.mkdir()
    (outside / "f").write_text("mine")
    content.write_text("theirs")
    for name in ("made", "removed", "kept"):
        (root / name).symlink_to(outside)
    tree.make(root, "made/f", ManifestEntry("file", "", 0o644), content)
    tree.remove(root, "removed/f")
    tree.keep_beside(root, "kept/f")
    assert (root / "made/f").read_text() == "theirs"
    assert not (root / "made").is_symlink()
    assert sorted(path.name for path in outside.iterdir()) == ["f"]
    assert (outside / "f").read_text() == "mine"


def wait_a_tick(machine: Machine) -> None:
    """Wait until new files get timestamps outside the tolerance of existing taint spans."""
    probe = machine.root.with_name("probe")
    probe.touch()
    began = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns < began + 100_000_000:
        probe.touch()


async def test_marks_are_synced_with_their_files(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    a, b = machines
    c = Machine(tmp_path / "c", LocalFiles(tmp_path / "files"), a.store)
    for path in ("clean", "steered"):
        a.write(path, path)
        wait_a_tick(a)
    await a.mark("steered")
    await a.push()
    await b.pull()
    assert await b.marked() == {"steered": "a page"}
    wait_a_tick(a)
    b.write("clean", "more")
    b.write("further", "words")
    await b.push()
    await a.pull()
    await c.pull()
    assert await a.marked() == await c.marked() == {"steered": "a page"}
    assert a.shows() == b.shows() == c.shows()


async def test_a_file_rewritten_elsewhere_is_clean_on_both_machines(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("notes", "of a stranger")
    await a.mark("notes")
    await a.push()
    await b.pull()
    wait_a_tick(a)
    b.write("notes", "of the owner")
    await b.push()
    await a.pull()
    assert (await a.marked(), await b.marked()) == ({}, {})


async def test_a_mark_causes_no_conflict(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    a.write("notes", "of a stranger")
    await a.mark("notes")
    await a.push()
    await b.pull()
    assert await b.push() == []
    assert await a.pull() == []
    a.write("other", "x")
    await a.push()
    assert await b.pull() == []
    assert (b.shows(), await b.marked()) == (a.shows(), {"notes": "a page"})


async def test_both_copies_of_a_conflict_stay_marked(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    for machine in machines:
        machine.write("notes", "")
        await machine.push()
        await machine.pull()
    a.write("notes", "theirs")
    await a.mark("notes", source="their page")
    await a.push()
    wait_a_tick(a)
    b.write("notes", "ours")
    await b.mark("notes", source="our page")
    assert await b.pull() == ["notes"]
    assert await b.marked() == {"notes": "our page and their page", "notes.conflict": "our page and their page"}


async def test_an_interrupted_pull_leaves_nothing_unmarked(
    machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    a.write("notes", "of a stranger")
    await a.mark("notes")
    await a.push()

    replace = Path.replace

    def crash(fresh: Path, target: Path) -> Path:
        if target.parent == b.memory:
            raise KeyboardInterrupt
        return replace(fresh, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        await b.pull()
    monkeypatch.undo()
    await b.pull()
    assert await b.marked() == {"notes": "a page"}
