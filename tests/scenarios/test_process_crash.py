"""Kills around every durable write while a process runs. No orphaned process remains, and no hook fires twice."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.forks import ForkServer, fork_server
from tests.scenarios.process_life import Life

from shoal.sandbox.processes import identity_of
from shoal.testing.crash import World
from shoal.testing.database import empty_database

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[ForkServer[Life]]:
    with fork_server("tests.scenarios.process_life", Life) as found:
        yield found


def life_in(folder: Path) -> Life:
    """Return a run whose process prints one line, records its process id, and ends soon. Hooks report the line and
    the end.
    """
    for name in ("home", "world"):
        (folder / name).mkdir(parents=True)
    command = f"echo $$ >> {folder}/pids; echo ready; sleep 0.1; exit 3"
    hooks: list[dict[str, object]] = [{"on": "exit"}, {"on": "output", "pattern": "^ready$"}]
    empty_database(folder / "home" / "shoal.db")
    return Life(str(folder / "home"), str(folder / "world"), command, hooks)


def alive(folder: Path) -> list[int]:
    pids = [int(line) for line in (folder / "pids").read_text().split()] if (folder / "pids").exists() else []
    return [pid for pid in pids if identity_of(pid)]


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_kill_at_every_durable_write_leaves_no_process_and_repeats_no_hook(
    server: ForkServer[Life], tmp_path: Path, side: str
) -> None:
    whole = server.run(life_in(tmp_path / "whole"))
    assert whole.status == 0
    assert whole.writes > 15
    for at in range(1, whole.writes + 1, 2):  # a kill after one write has the same effect as before the next
        folder = tmp_path / f"at-{at}"
        life = life_in(folder)
        killed = server.run(msgspec.structs.replace(life, side=side, at=at))
        if killed.status == 0:  # this run had fewer writes
            assert at > whole.writes // 2
            continue
        assert killed.status == -9
        again = server.run(life)
        assert again.status == 0, f"killed {side} write {at}: not everything is told after the restart"
        assert alive(folder) == []
        check_once(folder, at)


def check_once(folder: Path, at: int) -> None:
    world = World(folder / "world")
    starts = len((folder / "pids").read_text().split()) if (folder / "pids").exists() else 0
    assert starts <= 1, f"killed at {at}: the process was started twice"
    posts = [line["key"] for line in world.read("chat") if line["text"] == "I was told."]
    assert len(set(posts)) <= 2
    told = [str(line["what"]) for line in world.read("told")]
    ends = {what for what in told if "wrote a line" not in what}
    assert len(ends) <= 1, f"killed at {at}: two ends were told: {ends}"
    if starts:
        assert ends, f"killed at {at}: nobody was told of the end"


def test_a_process_that_survives_its_server_is_found_and_ended(server: ForkServer[Life], tmp_path: Path) -> None:
    life, pids = life_in(tmp_path / "life"), tmp_path / "life" / "pids"
    children = f"echo $$ >> {pids}; setsid sleep 300 & echo $! >> {pids}"
    life = msgspec.structs.replace(life, command=f"{children}; sleep 0.3; kill -9 $PPID; sleep 300")
    assert server.run(life).status == -9
    left = [int(line) for line in pids.read_text().split()]
    assert len(left) == 2
    assert server.run(life).status == 0
    assert not any(map(identity_of, left))
    assert [line["what"] for line in World(tmp_path / "life" / "world").read("told")] != []
