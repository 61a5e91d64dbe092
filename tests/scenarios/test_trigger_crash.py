"""Kills around every durable write while triggers are created and fire. Each trigger fires exactly once."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import psycopg
import pytest
from tests.forks import ForkServer, fork_server
from tests.postgres import database, empty
from tests.scenarios.test_crash import Journal
from tests.scenarios.trigger_life import KINDS, OPENING_KINDS, Life

from shoal.testing.crash import Order, World
from shoal.testing.database import empty_database

pytestmark = pytest.mark.slow
MOMENTS = 8
"""Number of writes for the kills, where each life takes seconds."""


@pytest.fixture
def server() -> Iterator[ForkServer[Life]]:
    with fork_server("tests.scenarios.trigger_life", Life) as found:
        yield found


def life_in(folder: Path) -> Life:
    for name in ("home", "world"):
        (folder / name).mkdir(parents=True)
    empty_database(folder / "home" / "shoal.db")
    return Life(str(folder / "home"), str(folder / "world"))


def journal_of(life: Life) -> tuple[list[Mapping[str, str]], int]:
    if not life.database:
        journal = Journal(Order(life.home, life.world))
        return [data for _, _, _, kind, data in journal.events if kind == "user_message"], journal.waiting
    with psycopg.connect(life.database) as connection:
        said = connection.execute("select data from shoal.events where type = 'user_message'").fetchall()
        still = connection.execute("select 1 from shoal.threads where open_turn <> ''").fetchall()
    return [json.loads(data) for (data,) in said], len(still)


def check_once(life: Life, where: str) -> None:
    world, (said, waiting) = World(Path(life.world)), journal_of(life)
    assert waiting == 0, where
    came = [data["message_id"] for data in said if data.get("origin") == "trigger"]
    assert len(came) == len(set(came)) == len(KINDS), f"{where}: {came}"
    texts = {str(line["key"]): str(line["text"]) for line in world.read("chat")}
    openings = [f"it is time: {kind}" for kind in OPENING_KINDS]
    assert Counter(texts.values()) == Counter([*openings, *(f"did {kind}" for kind in KINDS), "planned"]), where
    rounds = Counter((line["what"], line["round"]) for line in world.read("model"))
    assert max(rounds.values()) <= 2, f"{where}: only the call that was cut off is made again: {rounds}"
    assert sum(count - 1 for count in rounds.values()) <= len(KINDS), where


@pytest.mark.parametrize("first", [1, 4])  # two short tests instead of a long one
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_kill_at_every_write_repeats_no_trigger_and_loses_none(
    server: ForkServer[Life], tmp_path: Path, side: str, first: int
) -> None:
    whole = life_in(tmp_path / "whole")
    outcome = server.run(whole)
    assert outcome.status == 0
    check_once(whole, "not killed")
    for at in range(first, outcome.writes + 1, 8):  # both parameters together cover half of the points between writes
        life = life_in(tmp_path / str(at))
        killed = server.run(msgspec.structs.replace(life, side=side, at=at))
        if killed.status == 0:  # this run had fewer writes, because it grouped them differently
            assert at > outcome.writes // 2
            continue
        where = f"killed {side} write {at}"
        assert killed.status == -9, where
        assert server.run(life).status == 0, f"{where}: not everything came after the restart"
        check_once(life, where)


@pytest.mark.xdist_group("postgres")
def test_a_kill_over_postgres_repeats_no_trigger_and_loses_none(server: ForkServer[Life], tmp_path: Path) -> None:
    with database() as url:
        whole = msgspec.structs.replace(life_in(tmp_path / "whole"), database=f"postgresql:///?{'&'.join(url.split())}")
        outcome = server.run(whole)
        assert outcome.status == 0
        check_once(whole, "not killed")
        for share in range(1, MOMENTS + 1):
            empty(url)
            at = outcome.writes * share // (MOMENTS + 1)
            life = msgspec.structs.replace(life_in(tmp_path / str(at)), database=whole.database)
            where = f"killed after write {at}"
            killed = server.run(msgspec.structs.replace(life, side="after", at=at))
            if killed.status == 0:  # this run had fewer writes, because it grouped them differently
                assert at > outcome.writes // 2
                continue
            assert killed.status == -9, where
            assert server.run(life).status == 0, f"{where}: not everything came after the restart"
            check_once(life, where)
