"""Kills around every durable write of a turn with a subagent. The call has one child, and its end is reported once."""

from pathlib import Path

import msgspec
import pytest
from tests.forks import ForkServer
from tests.scenarios.test_crash import Journal, order_in, server

from shoal.testing.crash import Order, World

__all__ = ["server"]

pytestmark = pytest.mark.slow


def check_tree(order: Order) -> None:
    world, journal = World(Path(order.world)), Journal(order)
    assert journal.waiting == 0
    child = {thread for thread, *_ in journal.events if thread.startswith("agent:")}
    assert len(child) == 1, "the call began one thread, however often it ran"
    kinds = [(thread in child, kind) for thread, _, _, kind, _ in journal.events]
    assert kinds.count((True, "turn_finished")) == 1
    assert kinds.count((True, "user_message")) == 1
    notes = [
        data for _, _, _, kind, data in journal.events if kind == "user_message" and data.get("origin") == "system"
    ]
    assert len(notes) == (order.delegating == "spawn")
    results = [data for _, _, _, kind, data in journal.events if kind == "tool_result"]
    assert len(results) == 2, "the call of the parent has one result, and that of the child"
    told = next(
        data["text"] for thread, _, _, kind, data in journal.events if kind == "tool_result" and thread not in child
    )
    assert ("has finished" if order.delegating == "subagent" else "Started the subagent") in told
    marks = [line["call"] for line in world.read("tools")]
    assert len(marks) == len(set(marks)) <= 1, "what the child did is not repeated"
    posts = {line["key"] for line in world.read("chat")}
    assert len(posts) == 1, "the person is answered once"


@pytest.mark.parametrize("tool", ["subagent", "spawn"])
def test_a_kill_around_every_write_leaves_no_orphan_and_repeats_nothing(
    server: ForkServer[Order], tmp_path: Path, tool: str
) -> None:
    def order_of(name: str) -> Order:
        return msgspec.structs.replace(order_in(tmp_path / name, 0), threads=1, messages=1, delegating=tool)

    whole = order_of("whole")
    outcome = server.run(whole)
    assert outcome.status == 0
    check_tree(whole)
    # each point once: a kill after one write has the same effect as before the next
    for gap in range(outcome.writes + 1):
        side, at = ("after", gap) if gap % 2 else ("before", gap + 1)
        order = order_of(str(gap))
        killed = server.run(msgspec.structs.replace(order, side=side, at=at))
        if killed.status == 0:  # this run had fewer writes, because it grouped them differently
            assert at > outcome.writes // 2
            continue
        assert killed.status == -9
        assert server.run(order).status == 0, f"killed {side} write {at}: not answered after the restart"
        check_tree(order)
