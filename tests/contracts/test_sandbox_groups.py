"""Control groups that limit the resources of commands."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest
from tests.waiting import until

from shoal.sandbox.limits import (
    ENDING_MAX,
    CommandLimits,
    ControlGroups,
    find_groups,
)


@pytest.fixture
def groups() -> Iterator[ControlGroups]:
    if not Path("/sys/fs/cgroup/pids/tasks").exists() or not (control_groups := find_groups(CommandLimits())).can_bound:
        pytest.skip("there are no control groups of version 1 here, or no right to make them")
    yield control_groups
    until(control_groups.close)  # the kernel needs a moment to remove an ended thread


def group_of(starter: Executor | None) -> str:
    """Return Shoal's control groups of a process that the thread starts, one per line."""
    assert starter is not None
    cat = starter.submit(subprocess.check_output, ["cat", "/proc/self/cgroup"], text=True).result()
    return "\n".join(line for line in cat.splitlines() if f"/shoal-{os.getpid()}-" in line)


def test_a_child_belongs_to_the_groups_from_its_start(groups: ControlGroups) -> None:
    with groups.membership() as member:
        assert sorted(line.split(":")[1] for line in group_of(member.starter).splitlines()) == ["memory", "pids"]
    assert f"/shoal-{os.getpid()}-" not in Path("/proc/self/cgroup").read_text()


def test_groups_serve_one_command_at_a_time_and_are_reused(groups: ControlGroups) -> None:
    with groups.membership() as first, groups.membership() as second:
        used = group_of(first.starter)
        assert group_of(second.starter) != used
    with groups.membership() as third, groups.membership() as fourth:
        assert used in {group_of(third.starter), group_of(fourth.starter)}


def test_groups_with_many_leftovers_are_not_reused(groups: ControlGroups) -> None:
    with groups.membership() as first:
        used = group_of(first.starter)
        assert first.starter is not None
        argv = ["sleep", "60"]
        left = [first.starter.submit(subprocess.Popen[bytes], argv).result() for _ in range(ENDING_MAX + 1)]
    try:
        with groups.membership() as second:
            assert group_of(second.starter) != used
    finally:
        for process in left:
            process.kill()
            process.wait()
