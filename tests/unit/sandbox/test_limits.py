"""Parts of sandboxes: paths, limits, control groups and the macOS profile."""

import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import until

from shoal.kernel.errors import SandboxError
from shoal.kernel.ports import Mount
from shoal.sandbox.bubblewrap import MountedPaths, require_inside
from shoal.sandbox.host import seatbelt_profile
from shoal.sandbox.limits import (
    STARTERS_KEPT_MAX,
    CommandLimits,
    ControlGroups,
    Hierarchy,
    find_groups,
    ulimit_line,
)

MOUNTS = (
    Mount(Path("/h/w"), "/workspace", writable=True),
    Mount(Path("/h/w/deep"), "/scratch"),
    Mount(Path("/s"), "/skills"),
)
PATHS = MountedPaths()


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("/h/w", "/workspace"),
        ("/h/w/a/b", "/workspace/a/b"),
        ("/h/w/deep/c", "/scratch/c"),
        ("/h/w/../x", "/h/w/../x"),
        ("/h/wide", "/h/wide"),
        ("/s/./x", "/skills/x"),
    ],
)
def test_host_paths_map_to_sandbox_paths(host: str, inside: str) -> None:
    assert PATHS.inside(Path(host), MOUNTS) == inside


@pytest.mark.parametrize(
    ("inside", "host"),
    [
        ("/workspace", "/h/w"),
        ("/workspace/a/../b", "/h/w/b"),
        ("/workspace/../etc/passwd", "/workspace/../etc/passwd"),
        ("/workspaces", "/workspaces"),
        ("/skills/x", "/s/x"),
    ],
)
def test_sandbox_paths_map_to_host_paths(inside: str, host: str) -> None:
    assert PATHS.outside(inside, MOUNTS) == Path(host)


@given(st.lists(st.sampled_from(["a", "b", "deep", "x y"]), max_size=5))
def test_path_mapping_round_trips(parts: list[str]) -> None:
    path = Path("/h/w").joinpath(*parts)
    assert PATHS.outside(PATHS.inside(path, MOUNTS), MOUNTS) == path


def test_a_working_directory_must_be_in_a_mount() -> None:
    assert require_inside(Path("/h/w/a"), MOUNTS) == "/workspace/a"
    for path in ("/h", "/h/w/../..", "/"):
        with pytest.raises(SandboxError, match="outside the sandbox"):
            require_inside(Path(path), MOUNTS)


def test_limits_become_a_shell_line() -> None:
    line = ulimit_line(CommandLimits(2048, 3, 4096, 0, 5, 6))
    assert line == "ulimit -c 0 -d 2 -f 4 -n 6 -t 5 -u 3 || exit 125; "
    assert ulimit_line(CommandLimits(0, 0, 0, 0, 0, 0)) == "ulimit -c 0 || exit 125; "


def test_a_limit_never_exceeds_that_of_the_server_process() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this process has no limit of open files")
    assert f"-n {hard} " in ulimit_line(CommandLimits(open_files_max=hard * 2))


def test_a_plain_directory_is_not_a_control_group(tmp_path: Path) -> None:
    assert not find_groups(CommandLimits(), tmp_path).can_bound
    assert list(tmp_path.iterdir()) == []
    with find_groups(CommandLimits(), tmp_path / "missing").group() as join_files:
        assert join_files == ()


def test_a_group_that_cannot_be_created_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    groups = ControlGroups((Hierarchy(tmp_path, {"pids.max": 5}),))
    with pytest.raises(SandboxError, match="control group"), groups.group():
        pytest.fail("it was made")
    assert list(tmp_path.iterdir()) == []


def test_groups_of_dead_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / "shoal-999999999-1").mkdir()
    (tmp_path / "shoal-1-1").mkdir()
    find_groups(CommandLimits(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["shoal-1-1"]


def test_no_thread_joins_a_plain_directory(tmp_path: Path) -> None:
    with ControlGroups((Hierarchy(tmp_path, {}),)).membership() as member:
        assert member.starter is None
        assert [Path(file).name for file in member.join_files] == ["cgroup.procs"]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def groups() -> Iterator[ControlGroups]:
    """Control groups of version 1. Skips the test if this machine does not provide them."""
    if not Path("/sys/fs/cgroup/pids/tasks").exists() or not (found := find_groups(CommandLimits())).can_bound:
        pytest.skip("there are no control groups of version 1 here, or no right to make them")
    yield found
    until(found.close)  # the kernel needs a moment to end a thread


def starters() -> set[threading.Thread]:
    """Return the threads that start commands. Threads of earlier tests may be among them and may end at any time."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("shoal-start")}


def test_idle_groups_are_bounded(groups: ControlGroups) -> None:
    before = starters()
    members = [groups.membership() for _ in range(STARTERS_KEPT_MAX + 2)]
    for member in members:
        member.__enter__()
    for member in members:
        member.__exit__(None, None, None)
    assert len(starters() - before) == STARTERS_KEPT_MAX


def test_the_macos_profile_denies_first_and_names_the_mounts() -> None:
    text = seatbelt_profile(MOUNTS, open_network=False)
    assert text.startswith("(version 1)\n(deny default)")
    assert '(allow file-write* (subpath "/h/w"))' in text
    assert '(allow file-read* (subpath "/s"))' in text
    assert '(allow file-write* (subpath "/s"))' not in text
    assert "network" not in text
    assert "(allow network*)" in seatbelt_profile(MOUNTS, open_network=True)


def test_a_path_cannot_write_into_the_macos_profile() -> None:
    odd = Mount(Path('/a") (allow default) ("'), "/workspace", writable=True)
    assert r'(subpath "/a\") (allow default) (\"")' in seatbelt_profile((odd,), open_network=False)
    with pytest.raises(SandboxError, match="control characters"):
        seatbelt_profile((Mount(Path("/a\nb"), "/workspace"),), open_network=False)
