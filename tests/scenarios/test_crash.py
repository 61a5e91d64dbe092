"""Kills around every durable write. After a restart, every message is answered once and no finished step repeats."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.forks import ForkServer, fork_server

from shoal.testing.crash import Order, World, sayings
from shoal.testing.database import empty_database

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[ForkServer[Order]]:
    with fork_server("shoal.testing.crash", Order) as found:
        yield found


def order_in(folder: Path, seed: int) -> Order:
    (folder / "home").mkdir(parents=True)
    (folder / "world").mkdir()
    empty_database(folder / "home" / "shoal.db")
    return Order(str(folder / "home"), str(folder / "world"), seed=seed)


class Journal:
    """The contents of the database, read without the product's code."""

    def __init__(self, order: Order) -> None:
        file = Path(order.home) / "shoal.db"
        # a writable connection would checkpoint the -wal file
        with sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True) as database:
            self.rows = database.execute("select thread, seq, turn, type, data from events order by thread, seq")
            self.events = [(*row[:4], json.loads(row[4])) for row in self.rows]
            self.waiting = database.execute("select count(*) from threads where open_turn <> ''").fetchone()[0]
        database.close()

    def asked(self) -> list[str]:
        return [data["message_id"] for _, _, _, kind, data in self.events if kind == "user_message"]

    def finished_models(self) -> set[tuple[str, int]]:
        """Return the finished model calls as pairs of the message and the step."""
        found: set[tuple[str, int]] = set()
        current: dict[str, str] = {}
        rounds: dict[str, int] = {}
        for _, _, turn, kind, data in self.events:
            if kind == "user_message":
                current[turn], rounds[turn] = data["message_id"], 0
            elif kind == "assistant_message":
                found.add((current[turn], rounds[turn]))
                rounds[turn] += 1
        return found

    def touched_calls(self) -> set[str]:
        return {f"{turn}/{data['call_id']}" for _, _, turn, kind, data in self.events if kind == "tool_started"}


def check_after(order: Order, before: Journal, seen_models: int, seen_tools: int) -> None:
    world, journal = World(Path(order.world)), Journal(order)
    keys = sorted(key for _, key, _ in sayings(order))
    assert sorted(journal.asked()) == keys, "every message is taken into the journal once"
    assert journal.waiting == 0
    by_thread: dict[str, list[int]] = {}
    for thread, seq, *_ in journal.events:
        by_thread.setdefault(thread, []).append(seq)
    assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in by_thread.values()), "the journal has no gap"
    for person in range(order.threads):
        mine = [key for key in journal.asked() if key.startswith(f"{person}.")]
        assert mine == sorted(mine), "each person's messages are answered in order"
    posts = {line["key"]: str(line["text"]).split()[2] for line in world.read("chat")}
    assert sorted(posts.values()) == keys, "every message has one reply"
    assert len(world.read("chat")) - len(posts) <= order.threads, "only what was in flight is sent again"
    redone = {(line["id"], line["round"]) for line in world.read("model")[seen_models:]} & before.finished_models()
    assert not redone, "no finished model call is repeated"
    ran = [line["call"] for line in world.read("tools")]
    assert len(ran) == len(set(ran)), "no tool call runs twice"
    again = {line["call"] for line in world.read("tools")[seen_tools:]} & before.touched_calls()
    assert not again, "no started call of a tool that is not idempotent runs again"


@pytest.mark.parametrize(("side", "seed"), [("before", 1), ("after", 2)])
def test_a_kill_at_every_durable_write_loses_and_repeats_nothing(
    server: ForkServer[Order], tmp_path: Path, side: str, seed: int
) -> None:
    whole = order_in(tmp_path / "whole", seed)
    outcome = server.run(whole)
    assert outcome.status == 0
    assert outcome.writes > 20
    for at in range(1, outcome.writes + 1, 2):  # a kill after one write has the same effect as before the next
        order = order_in(tmp_path / str(at), seed)
        killed = server.run(msgspec.structs.replace(order, side=side, at=at))
        if killed.status == 0:  # this run had fewer writes, because it grouped them differently
            assert at > outcome.writes // 2
            continue
        assert killed.status == -9
        world = World(Path(order.world))
        seen_models, seen_tools = len(world.read("model")), len(world.read("tools"))
        before = Journal(order)
        assert server.run(order).status == 0, f"killed {side} write {at}: not everybody is answered after the restart"
        check_after(order, before, seen_models, seen_tools)
