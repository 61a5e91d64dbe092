"""Workspace trees: safe scans, comparisons and restores. An interrupted restore changes nothing."""

import os
import random
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.features.undo.restore import restore
from shoal.kernel.checkpoints import CheckpointsSettings, shown_path
from shoal.store.files import LocalFiles
from shoal.tools.taint_spans import Marks
from shoal.tools.trees import Scan, Trees

SETTINGS = CheckpointsSettings()


class Stand:
    def __init__(self, root: Path) -> None:
        self.root = root / "workspace"
        self.root.mkdir(exist_ok=True)
        self.trees = Trees(LocalFiles(root / "kept"))

    def scan(self, before: Scan | None = None, wanted: CheckpointsSettings = SETTINGS) -> Scan:
        return self.trees.scan(self.root, wanted, Marks(), before.seen if before is not None else {})

    def changed(self, before: str, after: str) -> list[str]:
        return [shown_path(change.path) for change in self.trees.changes(before, after)]

    def becomes(self, tree: str) -> list[str]:
        """Restore a tree and return the paths that failed."""
        return [shown_path(path) for path in restore(self.root, self.trees, self.scan().tree, tree, "undo")]


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


# ---- workspace contents ----


def test_undecodable_names_are_handled(stand: Stand) -> None:
    before = stand.scan()
    for name in (b"a\nb", b"\xff\xfe", b"-rf", b" ", "ü".encode(), b"\x1b[2J", b"%s", b"a" * 255):
        (stand.root / os.fsdecode(name)).write_text("x")
    after = stand.scan()
    assert {"a\\nb", "\\xff\\xfe", "\\x1b[2J", "ü"} <= set(stand.changed(before.tree, after.tree))
    assert stand.becomes(before.tree) == []
    assert not list(stand.root.iterdir())
    assert stand.becomes(after.tree) == []
    assert (stand.root / os.fsdecode(b"\xff\xfe")).read_text() == "x"


def test_pipes_sockets_and_links_are_not_opened(stand: Stand, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    before = stand.scan()
    os.mkfifo(stand.root / "pipe")
    with socket.socket(socket.AF_UNIX) as heard:
        here = Path.cwd()
        os.chdir(stand.root)  # the full path may be too long for a socket
        try:
            heard.bind("socket")
        finally:
            os.chdir(here)
    (stand.root / "link").symlink_to(tmp_path / "outside")
    (stand.root / "circle").symlink_to("circle")
    (stand.root / "folders").symlink_to("/")
    after = stand.scan()
    assert stand.changed(before.tree, after.tree) == ["circle", "folders", "link", "pipe", "socket"]
    assert stand.becomes(before.tree) == []
    assert stand.becomes(after.tree) == ["socket"], "a socket cannot be made again"
    assert os.readlink(stand.root / "link") == str(tmp_path / "outside")
    assert stat.S_ISFIFO((stand.root / "pipe").lstat().st_mode)
    assert (tmp_path / "outside").read_text() == "secret"


def test_a_file_replaced_by_a_folder_is_restored(stand: Stand) -> None:
    (stand.root / "a").write_text("file")
    (stand.root / "b").mkdir()
    (stand.root / "b" / "c").write_text("inside")
    before = stand.scan()
    (stand.root / "a").unlink()
    (stand.root / "a" / "deep").mkdir(parents=True)
    (stand.root / "a" / "deep" / "x").write_text("x")
    (stand.root / "b" / "c").unlink()
    (stand.root / "b").rmdir()
    (stand.root / "b").symlink_to("/etc")
    after = stand.scan()
    for tree in (before.tree, after.tree, before.tree):
        assert stand.becomes(tree) == []
        assert stand.changed(stand.scan().tree, tree) == []
    assert ((stand.root / "a").read_text(), (stand.root / "b" / "c").read_text()) == ("file", "inside")


def test_permissions_are_restored_and_never_block_a_restore(stand: Stand) -> None:
    (stand.root / "d").mkdir()
    for name in ("run", "d/x"):
        (stand.root / name).write_text("x")
    (stand.root / "run").chmod(0o755)
    (stand.root / "d").chmod(0o555)
    before = stand.scan()
    (stand.root / "run").chmod(0o600)
    (stand.root / "d").chmod(0o700)
    (stand.root / "d" / "x").write_text("y")
    (stand.root / "d").chmod(0o500)
    assert stand.becomes(before.tree) == []
    modes = [stat.S_IMODE((stand.root / name).stat().st_mode) for name in ("run", "d")]
    assert modes == [0o755, 0o555]
    assert (stand.root / "d" / "x").read_text() == "x"


def test_a_link_in_the_path_is_not_followed(stand: Stand, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("theirs")
    (stand.root / "d").mkdir()
    (stand.root / "d" / "x").write_text("one")
    before = stand.scan()
    (stand.root / "d" / "x").write_text("two")
    now = stand.scan().tree
    (stand.root / "d").rename(stand.root / "moved")
    (stand.root / "d").symlink_to(outside)
    assert [shown_path(path) for path in restore(stand.root, stand.trees, now, before.tree, "u")] == ["d/x"]
    assert (outside / "x").read_text() == "theirs"


def test_concurrent_changes_are_kept(stand: Stand) -> None:
    for name in ("a", "b"):
        (stand.root / name).write_text("one")
    before = stand.scan()
    for name in ("a", "b"):
        (stand.root / name).write_text("two")
    now = stand.scan().tree
    (stand.root / "a").write_text("mine")
    assert [shown_path(path) for path in restore(stand.root, stand.trees, now, before.tree, "u")] == ["a"]
    assert ((stand.root / "a").read_text(), (stand.root / "b").read_text()) == ("mine", "one")


def test_bounds_are_enforced_without_hiding_other_files(stand: Stand) -> None:
    for number in range(5):
        folder = stand.root / f"d{number}"
        folder.mkdir()
        (folder / "deep").mkdir()
        (folder / "deep" / "x").write_text("12345")
    (stand.root / "top").write_text("12345678901")
    bounds = CheckpointsSettings(files_max=11, bytes_max=15, file_bytes_max=10)
    before = stand.scan(wanted=bounds)
    assert not [note for note in before.notes if "not readable" in note], "what is too much is not told as closed"
    (stand.root / "top").write_text("changed, and too large")
    (stand.root / "d1" / "deep" / "x").write_text("54321")
    after = stand.scan(wanted=bounds)
    assert "top" in stand.changed(before.tree, after.tree)
    assert stand.becomes(before.tree) == ["top"], "what was not kept stays as it is"
    assert (stand.root / "d4" / "deep" / "x").read_text() == "12345", "what was not looked at is not taken for gone"


def test_a_very_deep_folder_is_handled(stand: Stand) -> None:
    before, folder = stand.scan(), stand.root
    for _ in range(400):
        folder /= "d"
    folder.mkdir(parents=True)
    after = stand.scan()
    assert len(stand.changed(before.tree, after.tree)) > 100
    assert any("deepest" in note for note in after.notes)


def test_a_changed_file_is_noticed_regardless_of_its_timestamp(stand: Stand) -> None:
    file = stand.root / "a"
    file.write_text("one")
    os.utime(file, (1, 1))
    before = stand.scan()
    file.write_text("two")
    os.utime(file, (1, 1))
    assert stand.changed(before.tree, stand.scan(before).tree) == ["a"]


def test_unreferenced_content_is_deleted(stand: Stand, tmp_path: Path) -> None:
    (stand.root / "a").write_text("one")
    old = stand.scan()
    (stand.root / "a").write_text("two")
    new = stand.scan(old)
    for path in (tmp_path / "kept").rglob("*"):
        os.utime(path, (1, 1))
    assert stand.trees.sweep([new.tree]) == 2
    assert stand.trees.used([new.tree]) >= {new.tree}
    assert stand.becomes(new.tree) == []


# ---- random changes ----

NAMES = ("a", "b", "d", "d/a", "d/e", "d/e/f", "a/x")


def shuffle(root: Path, seed: int) -> None:
    drawn = random.Random(seed)
    for _ in range(drawn.randint(1, 8)):
        path, other = root / drawn.choice(NAMES), root / drawn.choice(NAMES)
        if path.is_fifo():
            path.unlink()
        with suppress(OSError):
            match drawn.randrange(9):
                case 0:
                    path.write_text(str(drawn.random()))
                case 1:
                    path.write_text("same")
                case 2:
                    path.mkdir()
                case 3:
                    path.unlink()
                case 4:
                    path.rmdir()
                case 5:
                    path.symlink_to(drawn.choice(["a", "missing"]))
                case 6:
                    path.chmod(drawn.choice([0o600, 0o755, 0o700]))
                case 7:
                    os.mkfifo(path)
                case _:
                    path.rename(other)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_any_state_can_be_restored_to_any_other(first: int, second: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand(Path(folder))
        shuffle(stand.root, first)
        before = stand.scan()
        shuffle(stand.root, second)
        after = stand.scan(before)
        assert stand.changed(after.tree, stand.scan().tree) == [], "what was seen before changes no result"
        for tree in (before.tree, after.tree):
            assert stand.becomes(tree) == []
            assert stand.changed(stand.scan().tree, tree) == []


# ---- kills at any point ----
