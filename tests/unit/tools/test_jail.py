"""The file jail: no path, link or race reads or writes outside the roots. Pipes and devices are rejected."""

import ctypes
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.kernel.errors import ToolError
from shoal.kernel.ports import Mount
from shoal.testing.contracts.tool import tool_context
from shoal.tools.jail import ENTRIES_MAX, Jail, jail_of
from shoal.tools.openat import KernelOpener, WalkingOpener, best_opener

OPENERS = [KernelOpener(), WalkingOpener()]
SECRET = "secret outside"
RACES = 3000
AT_FDCWD, RENAME_EXCHANGE = -100, 2


@pytest.fixture(params=OPENERS, ids=["kernel", "walking"])
def opener(request: pytest.FixtureRequest) -> WalkingOpener:
    return request.param


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside.txt"
    path.write_text(SECRET)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def jail(root: Path, tmp_path: Path, outside: Path, opener: WalkingOpener) -> Jail:
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "SKILL.md").write_text("a skill")
    roots = Mount(root, "/workspace", writable=True), Mount(tmp_path / "skills", "/skills")
    return Jail(roots, opener)


def test_openat2_is_used_where_it_works() -> None:
    assert isinstance(best_opener(), KernelOpener)


def test_every_spelling_of_a_path_leads_to_the_same_file(jail: Jail, root: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "b.txt").write_text("content")
    places = [jail.resolve(path) for path in ("a/b.txt", "/workspace/a/b.txt", f"{root}/a/b.txt", "x/../a/./b.txt")]
    assert {place.shown for place in places} == {"/workspace/a/b.txt"}
    assert {jail.read(place) for place in places} == {b"content"}


def test_a_path_outside_is_refused_with_the_usable_roots(jail: Jail, outside: Path) -> None:
    for path in ("../outside.txt", str(outside), "/etc/passwd", "/", "a/../../outside.txt", "~/x/../../.."):
        with pytest.raises(ToolError, match=r"outside the directories.*/workspace, /skills \(read only\)"):
            jail.read(jail.resolve(path))


@pytest.mark.parametrize("path", ["", "a\0b", "/workspace\0/etc/passwd"])
def test_an_impossible_path_is_refused(jail: Jail, path: str) -> None:
    with pytest.raises(ToolError, match=r"empty|NUL"):
        jail.resolve(path)


def test_an_overlong_or_undecodable_name_is_refused(jail: Jail) -> None:
    for path in ("x" * 300, "/".join("x" * 5000), "\ud800"):
        with pytest.raises(ToolError):
            jail.write(jail.resolve(path), b"")


def test_a_link_to_an_undecodable_name_is_refused(jail: Jail, root: Path) -> None:
    (root / "a\udcffb").write_text("x")
    (root / "link").symlink_to("a\udcffb")
    with pytest.raises(ToolError, match=r"The name of .*a\?b is not UTF-8. Rename the file first"):
        jail.resolve("link")


def test_links_out_are_refused_and_links_within_followed(jail: Jail, root: Path, outside: Path) -> None:
    (root / "real.txt").write_text("inside")
    (root / "within").symlink_to("real.txt")
    (root / "out").symlink_to(outside)
    (root / "up").symlink_to("..")
    (root / "absolute").symlink_to("/etc")
    assert jail.resolve("within").shown == "/workspace/real.txt"
    assert jail.read(jail.resolve("within")) == b"inside"
    for path in ("out", "up/outside.txt", "absolute/passwd", "up/up/etc"):
        with pytest.raises(ToolError, match="is outside"):
            jail.resolve(path)
    assert outside.read_text() == SECRET


def test_a_link_loop_is_reported(jail: Jail, root: Path) -> None:
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    with pytest.raises(ToolError):
        jail.read(jail.resolve("one"))


def test_writing_through_a_dangling_link_creates_nothing_outside(jail: Jail, root: Path, tmp_path: Path) -> None:
    (root / "dangling").symlink_to(tmp_path / "made")
    with pytest.raises(ToolError):
        jail.write(jail.resolve("dangling"), b"x")
    with pytest.raises(ToolError):
        jail.write(jail.resolve("dangling/below"), b"x")
    assert not (tmp_path / "made").exists()


def test_writing_creates_directories_and_keeps_the_mode(jail: Jail, root: Path) -> None:
    place = jail.resolve("a/b/c.sh")
    jail.write(place, b"one")
    (root / "a/b/c.sh").chmod(0o755)
    jail.write(place, b"two")
    assert (root / "a/b/c.sh").read_bytes() == b"two"
    assert stat.S_IMODE((root / "a/b/c.sh").stat().st_mode) == 0o755
    assert os.listdir(root / "a/b") == ["c.sh"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_written_by_root_belong_to_the_directorys_owner(jail: Jail, root: Path) -> None:
    os.chown(root, 1000, 1001)
    jail.write(jail.resolve("a/b"), b"x")
    assert [(found.st_uid, found.st_gid) for found in ((root / "a").stat(), (root / "a/b").stat())] == [
        (1000, 1001)
    ] * 2
    os.chown(root / "a/b", 1002, 1003)
    jail.write(jail.resolve("a/b"), b"y")
    assert ((root / "a/b").stat().st_uid, (root / "a/b").stat().st_gid) == (1002, 1003)


def test_writing_replaces_the_file_and_leaves_hard_links_alone(jail: Jail, root: Path, outside: Path) -> None:
    os.link(outside, root / "hard")
    jail.write(jail.resolve("hard"), b"changed")
    assert (root / "hard").read_bytes() == b"changed"
    assert outside.read_text() == SECRET


def test_a_failed_write_leaves_the_old_content_and_nothing_else(jail: Jail, root: Path) -> None:
    (root / "folder").mkdir()
    with pytest.raises(ToolError, match="directory, not a file"):
        jail.write(jail.resolve("folder"), b"x")
    (root / "file").write_text("old")
    with pytest.raises(ToolError):
        jail.write(jail.resolve("file/below"), b"x")
    assert sorted(os.listdir(root)) == ["file", "folder"]
    assert (root / "file").read_text() == "old"


def test_a_read_only_root_is_not_written(jail: Jail, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"/skills/SKILL.md is read only.*/workspace"):
        jail.write(jail.resolve("/skills/SKILL.md"), b"x")
    with pytest.raises(ToolError, match="read only"):
        jail.write(jail.resolve("/skills/new"), b"x")
    assert os.listdir(tmp_path / "skills") == ["SKILL.md"]
    assert jail.read(jail.resolve("/skills/SKILL.md")) == b"a skill"


def test_a_pipe_or_device_or_socket_is_refused_immediately(jail: Jail, root: Path) -> None:
    os.mkfifo(root / "pipe")
    made = ["pipe"]
    if os.geteuid() == 0:
        os.mknod(root / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        made.append("zero")
    for name in made:
        with pytest.raises(ToolError, match="not a file"):
            jail.read(jail.resolve(name))
        with pytest.raises(ToolError, match="not a file"):
            jail.write(jail.resolve(name), b"x")
        with pytest.raises(ToolError, match="not a file"):
            jail.size(jail.resolve(name))


def test_a_long_file_is_not_read(jail: Jail, root: Path) -> None:
    (root / "long").write_bytes(b"x" * 101)
    with pytest.raises(ToolError, match="101 bytes long, more than the limit of 100 for reading"):
        jail.read(jail.resolve("long"), bytes_max=100)
    assert len(jail.read(jail.resolve("long"), bytes_max=101)) == 101


def test_size_distinguishes_missing_from_empty(jail: Jail, root: Path) -> None:
    (root / "empty").touch()
    assert jail.size(jail.resolve("empty")) == 0
    assert jail.size(jail.resolve("missing/below")) is None
    with pytest.raises(ToolError, match="does not exist"):
        jail.read(jail.resolve("missing"))


def test_a_directory_is_listed_in_order_and_bounded(jail: Jail, root: Path) -> None:
    (root / "b").mkdir()
    (root / "a").write_bytes(b"123")
    (root / "link").symlink_to("/etc")
    entries, is_cut = jail.entries(jail.resolve("."))
    assert [tuple(entry) for entry in entries] == [("a", "file", 3), ("b", "directory", 0), ("link", "link", 0)]
    assert not is_cut
    for number in range(ENTRIES_MAX):
        (root / "b" / str(number)).touch()
    assert not jail.entries(jail.resolve("b"))[1]
    (root / "b" / "more").touch()
    entries, is_cut = jail.entries(jail.resolve("b"))
    assert (len(entries), is_cut) == (ENTRIES_MAX, True)


@pytest.fixture
def swapping(root: Path, tmp_path: Path, outside: Path) -> Iterator[Path]:
    """A path in the workspace that alternates between a directory and a link to the outside."""
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "outside.txt").write_text(SECRET)
    (root / "place").mkdir()
    (root / "place" / "outside.txt").write_text("inside")
    (root / "other").symlink_to(tmp_path / "trap")
    done = threading.Event()
    names = os.fsencode(root / "place"), os.fsencode(root / "other")
    libc = ctypes.CDLL(None, use_errno=True)

    def swap() -> None:
        while not done.is_set():
            assert libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0

    thread = threading.Thread(target=swap)
    thread.start()
    yield root / "place"
    done.set()
    thread.join()


def test_a_link_swapped_in_is_never_followed_out(jail: Jail, swapping: Path, tmp_path: Path) -> None:
    read = refused = 0
    for _ in range(RACES):
        try:
            place = jail.resolve("place/outside.txt")
            read += jail.read(place) == b"inside"
            jail.write(place, b"inside")
        except ToolError:
            refused += 1
    assert read
    assert refused
    assert (tmp_path / "trap" / "outside.txt").read_text() == SECRET
    assert os.listdir(tmp_path / "trap") == ["outside.txt"]


def test_a_constantly_replaced_file_keeps_its_name(jail: Jail, root: Path) -> None:
    (root / "a.txt").write_text("first")
    done = threading.Event()

    def replace() -> None:
        while not done.is_set():
            (root / "new").write_text("next")
            (root / "new").replace(root / "a.txt")

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        names = {jail.resolve("a.txt").shown for _ in range(RACES)}
    finally:
        done.set()
        thread.join()
    assert names == {"/workspace/a.txt"}


def test_a_resolved_path_does_not_follow_a_later_link(jail: Jail, root: Path, outside: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "outside.txt").write_text("inside")
    place = jail.resolve("a/outside.txt")
    (root / "a").rename(root / "moved")
    (root / "a").symlink_to(outside.parent)
    for attempt in (lambda: jail.read(place), lambda: jail.write(place, b"x"), lambda: jail.entries(place)):
        with pytest.raises(ToolError):
            attempt()
    assert outside.read_text() == SECRET


NAMES = st.sampled_from(
    ["a", "b", "up", "out", "within", "..", ".", "", "outside.txt", "workspace", "etc", "proc", "self"]
)
PATHS = st.builds(
    lambda start, names: start + "/".join(names),
    st.sampled_from(["", "/", "/workspace/", "/skills/", "//", "./", "/proc/self/root/", "/proc/self/cwd/"]),
    st.lists(NAMES, max_size=8),
)


@pytest.mark.parametrize("opener", OPENERS, ids=["kernel", "walking"])
@given(path=PATHS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_escapes_the_roots(opener: WalkingOpener, tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    base = tmp_path_factory.getbasetemp() / f"no-path-{type(opener).__name__}"
    root = base / "workspace"
    if not root.exists():
        root.mkdir(parents=True)
        (base / "outside.txt").write_text(SECRET)
        (root / "a").mkdir()
        (root / "a" / "b").write_text("inside")
        (root / "up").symlink_to("..")
        (root / "out").symlink_to("/etc")
        (root / "within").symlink_to("a")
    jail = Jail((Mount(root, "/workspace", writable=True),), opener)
    try:
        place = jail.resolve(path)
        assert os.path.realpath(place.host).startswith(str(root))
        assert not os.path.islink(place.host)
        content = jail.read(place)
    except ToolError:
        return
    assert content == b"inside"


def test_an_agents_jail_is_its_mounts(tmp_path: Path) -> None:
    context = tool_context(tmp_path)
    jail = jail_of(context)
    assert jail.resolve("x").shown == "/workspace/x"
    assert jail.resolve("/scratch/x").shown == "/scratch/x"
    with pytest.raises(ToolError, match="outside"):
        jail.resolve(str(context.home.database_file))


def test_an_unrestricted_agent_reaches_every_real_path(tmp_path: Path) -> None:
    context = tool_context(tmp_path)
    context = msgspec.structs.replace(
        context, agent=msgspec.structs.replace(context.agent, restrict_to_workspace=False)
    )
    jail = jail_of(context)
    (tmp_path / "outside.txt").write_text("x")
    (context.agent.workspace / "link").symlink_to(tmp_path / "outside.txt")
    assert jail.resolve("a").shown == "/workspace/a"
    real = os.path.realpath(tmp_path / "outside.txt")
    assert jail.resolve("link").shown == jail.resolve(str(tmp_path / "outside.txt")).shown == real
    assert jail.read(jail.resolve("link")) == b"x"


def test_a_host_path_never_uses_the_name_of_a_mount(tmp_path: Path) -> None:
    roots = Mount(tmp_path / "w", "/workspace", writable=True), Mount(Path("/"), "/", writable=True)
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "link").symlink_to("/workspace/x")
    jail = Jail(roots, WalkingOpener())
    assert jail.resolve("/workspace/x").host == tmp_path / "w" / "x"
    assert jail.resolve("link").shown == "host:/workspace/x"
    assert jail.resolve("/docs/x").shown == "host:/docs/x"
