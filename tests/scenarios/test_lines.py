"""Messages in several lines: each is answered once, in few turns, and nobody is asked to wait."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scenarios.kit import in_time

from shoal.kernel.events import TurnStarted, UserSaid
from shoal.kernel.messages import Attachment, Deletion, Edit
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Gate, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.orchestrator import Orchestrator

PAUSING = {"mailbox": {"pause_seconds": 1.5}}
LINES = [f"line {number}" for number in range(8)]


async def asked(world: World) -> list[str]:
    return [event.data.text for event in await world.journal() if isinstance(event.data, UserSaid)]


async def test_eight_quick_messages_are_all_answered_by_two_turns(tmp_path: Path) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("first", gate=gate), "all of it"), settings=PAUSING) as world:
        receipts = [await world.ada.says(LINES[0])]
        await gate.reached.wait()
        receipts += [await world.ada.says(line) for line in LINES[1:]]
        assert {receipt.status for receipt in receipts} == {"accepted"}
        gate.open()
        await world.ada.sees("all of it")
        assert await asked(world) == [LINES[0], "\n".join(LINES[1:])]
        (_, said) = [event.data for event in await world.journal() if isinstance(event.data, UserSaid)]
        ids = [receipt.message_id for receipt in receipts]
        assert ([*said.joined, said.message_id]) == ids[1:], "each is known by its own id"
        assert (await world.ada.sees("all of it")).post.reply_to == ids[-1]
        again = [(await world.ada.says(line, message_id=id)).status for line, id in zip(LINES, ids, strict=True)]
        assert again == ["duplicate"] * 8
    assert world.model.calls == 2


async def test_the_first_message_is_answered_immediately_and_further_ones_after_a_pause(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel("one", "two", "three"), clock=clock, settings=PAUSING) as world:
        await world.ada.says("well")
        await world.ada.sees("one")  # the first message is answered without a pause
        await world.ada.says("what")
        await clock.advance(1.0)
        await world.ada.says("I mean")
        await clock.advance(1.4)
        assert await asked(world) == ["well"], "she is still writing"
        await in_time(clock, world.ada.sees("two"))
        assert await asked(world) == ["well", "what\nI mean"]
        await clock.advance(60)
        await world.ada.says("another thing")
        await world.ada.sees("three")


async def test_two_people_never_share_a_turn(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply("first", gate=gate), "to ada", "to bob")
    async with scenario(tmp_path, model, settings=PAUSING) as world:
        bob = world.person("bob", "1")
        await world.ada.says("begin")
        await gate.reached.wait()
        for number in range(4):
            assert (await world.ada.says(f"ada {number}")).status == "accepted"
            assert (await bob.says(f"bob {number}")).status == "accepted"
        gate.open()
        await world.ada.sees("to bob")
        said = await asked(world)
        assert said == ["begin", *("\n".join(f"{name} {number}" for number in range(4)) for name in ("ada", "bob"))]
    assert "bob" not in model.requests[1].messages[-1].text


async def test_a_waiting_line_can_be_edited_deleted_and_stopped(tmp_path: Path) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("first", gate=gate), "second", "third"), settings=PAUSING) as world:
        await world.ada.says("begin")
        await gate.reached.wait()
        for number in range(3):
            await world.ada.says(f"line {number}", message_id=f"m{number}")
        send = world.app[Orchestrator].send
        said = next(event.data.author for event in await world.journal() if isinstance(event.data, UserSaid))
        await send(Edit(world.ada.thread, "m1", "line one", said))
        await send(Deletion(world.ada.thread, "m2", said))
        gate.open()
        await world.ada.sees("second")
        assert await asked(world) == ["begin", "line 0\nline one"]


async def test_stop_keeps_waiting_lines_and_stop_all_drops_them(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    model = FakeModel(*(Reply("held", gate=gate) for gate in gates), "after")
    async with scenario(tmp_path, model, settings=PAUSING) as world:
        await world.ada.says("begin")
        await gates[0].reached.wait()
        for line in LINES[:3]:
            await world.ada.says(line)
        await world.ada.stops()
        await gates[1].reached.wait()
        assert await asked(world) == ["begin", "\n".join(LINES[:3])]
        for line in LINES[3:]:
            await world.ada.says(line)
        await world.ada.stops(everything=True)
        await world.happens(world.ada.thread, "turn_finished", 2)
        assert await world.app[Store].inbox.waiting() == []
        assert len(await asked(world)) == 2


async def test_files_of_joined_lines_are_kept_in_order(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply("first", gate=gate), "seen")
    async with scenario(tmp_path / "home", model, settings=PAUSING) as world:
        await world.ada.says("begin")
        await gate.reached.wait()
        for name in ("one.txt", "two.txt", "three.txt"):
            (tmp_path / name).write_text(f"content of {name}")
            file = Attachment(name, "text/plain", path=str(tmp_path / name))
            await world.chat.says("harbour", "1", f"see {name}", attachments=(file,))
        gate.open()
        await world.ada.sees("seen")
    text = model.requests[-1].messages[-1].text
    places = [text.index(f"content of {name}") for name in ("one.txt", "two.txt", "three.txt")]
    assert places == sorted(places)
    assert model.calls == 2


async def test_waiting_lines_survive_a_restart(tmp_path: Path) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("never", gate=gate)), settings=PAUSING) as world:
        await world.ada.says("begin")
        await gate.reached.wait()
        for line in LINES:
            await world.ada.says(line)
    async with scenario(tmp_path, FakeModel("first", "all of it"), settings=PAUSING) as world:
        await world.ada.sees("all of it")
        assert await asked(world) == ["begin", "\n".join(LINES)]
        assert len([event for event in await world.journal() if isinstance(event.data, TurnStarted)]) == 2


@pytest.mark.parametrize("texts", [lambda number: f"/model demo line {number}", lambda number: f"line {number}"])
async def test_without_a_pause_each_message_is_its_own_turn(tmp_path: Path, texts: Callable[[int], str]) -> None:
    gate = Gate()
    model = FakeModel(Reply("first", gate=gate), "second", "third")
    async with scenario(tmp_path, model, settings={"mailbox": {"pause_seconds": 0}}) as world:
        await world.ada.says("begin")
        await gate.reached.wait()
        await world.ada.asks(texts(1))
        await world.ada.asks(texts(2))
        gate.open()
        await world.ada.sees("third")
        assert await asked(world) == ["begin", "line 1", "line 2"]
