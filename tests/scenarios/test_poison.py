"""A message that crashes every process is dropped at the third start. All other work continues."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forks import ForkServer, fork_server
from tests.postgres import empty
from tests.scenarios.poison_life import DEATH, OTHER, THREAD, Life, Where

from shoal.kernel.crash_log import ENDED_TWICE
from shoal.testing.crash import World
from shoal.testing.database import empty_database

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer[Life]]:
    with fork_server("tests.scenarios.poison_life", Life) as found:
        yield found


@pytest.mark.parametrize("where", ["model", "tool", "opening", "post"])
def test_the_third_start_fails_a_turn_that_crashed_twice(
    server: ForkServer[Life], tmp_path: Path, where: Where
) -> None:
    for name in ("home", "world"):
        (tmp_path / name).mkdir()
    empty_database(tmp_path / "home" / "shoal.db")
    life, world = Life(str(tmp_path / "home"), str(tmp_path / "world"), where), World(tmp_path / "world")
    assert [server.run(life).status for _ in range(3)] == [DEATH, DEATH, 0]
    texts = [str(line["text"]) for line in world.read("chat") if line["thread"] == THREAD]
    assert len(texts) == (0 if where == "post" else 1)
    assert all(ENDED_TWICE in text for text in texts)
    assert any("Answered hello" in str(line["text"]) for line in world.read("chat") if line["thread"] == OTHER)
    assert [line["lane"] for line in world.read("aside")] == [THREAD]
    assert server.run(life).status == 0


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("where", ["model", "opening"])
def test_crashes_of_two_cluster_processes_count_together(
    server: ForkServer[Life], tmp_path: Path, postgres_database: str, where: Where
) -> None:
    empty(postgres_database)
    address = f"postgresql:///?{'&'.join(postgres_database.split())}"
    for name in ("one", "two", "world"):
        (tmp_path / name).mkdir()
    one, two = (Life(str(tmp_path / name), str(tmp_path / "world"), where, address) for name in ("one", "two"))
    assert [server.run(life).status for life in (one, two)] == [DEATH, DEATH]
    started = [server.run(life).status for life in (one, two, one)]  # either process may take over the message
    assert started.count(DEATH) <= 1
    assert started[-1] == 0
    world = World(tmp_path / "world")
    assert THREAD in [line["lane"] for line in world.read("aside")]
    assert any(ENDED_TWICE in str(line["text"]) for line in world.read("chat") if line["thread"] == THREAD)
