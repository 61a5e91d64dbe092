"""One approval message for all calls of a model message. People decide the calls together or one by one."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest
from tests.scenarios.kit import in_time

from shoal.agents.registry import AgentRegistry
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, Forbidden, Gone, InvalidInput
from shoal.kernel.events import ApprovalRequested
from shoal.kernel.messages import Author, Prompt, Reference
from shoal.kernel.permissions import Asker
from shoal.kernel.posts import CHOOSING
from shoal.kernel.records import Approval
from shoal.platforms.inbox import press
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.access_gate import OpenInbox
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.executor import MOVED_ON

ROOT = Path(__file__).parents[2]
ADA = Author("ada", "Ada", trusted=True)
CAREFUL: dict[str, dict[str, object]] = {
    "permissions": {
        "default_profile": "careful",
        "profiles": {"careful": {"ask": ["tool:bash:.*"], "allow": ["tool:read:.*"]}},
    }
}


def bash(*commands: str, text: str = "") -> Reply:
    return Reply(text, calls=tuple(Call("bash", json.dumps({"command": command})) for command in commands))


def line(number: int) -> str:
    return f"echo {number} >> log"


async def asked(world: World, calls: int) -> list[Approval]:
    await world.happens(world.ada.thread, "approval_requested", calls)
    waiting = await world.app[Store].approvals.search(thread=world.ada.thread)
    found = await world.app[Store].approvals.on_card(waiting[0].item.card)
    assert [call.item.number for call in found] == list(range(1, calls + 1))
    return found


async def delivered(world: World) -> None:
    while await world.app[Store].outbox.depth():
        await world.rests()


def ran(world: World) -> list[str]:
    log = world.app[AgentRegistry].spec("main").workspace / "log"
    return log.read_text().split() if log.exists() else []


async def test_calls_of_one_message_share_a_card_and_run_once_when_all_are_allowed(tmp_path: Path) -> None:
    model = FakeModel(bash(line(1), line(2), line(3), text="I note [three](https://evil.example) lines."), "done")
    async with scenario(tmp_path, model, settings=CAREFUL) as world:
        await world.ada.says("go")
        calls = await asked(world, 3)
        card = await world.ada.sees("3 calls are waiting")
        assert [button.label for button in card.buttons] == ["Allow all", "Choose", "Deny"]
        assert "The model says: “I note three lines.”" in card.markdown.replace("\\", "")
        assert len([text for text in world.chat.texts(world.ada.thread) if "echo" in text]) == 1
        said = await press(card.buttons[0].value, world.ada.thread, ADA, world.app[OpenInbox])
        assert said == "Allowed."
        await world.ada.sees("done")
        assert ran(world) == ["1", "2", "3"]
        with pytest.raises(Conflict, match="it was allowed"):
            await world.app[Orchestrator].decide_card(calls[0].item.card, False, world.ada.asker)


async def test_chosen_calls_run_in_order_and_the_rest_never(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash(line(1), line(2), line(3)), "done"), settings=CAREFUL) as world:
        await world.ada.says("go")
        await asked(world, 3)
        card = await world.ada.sees("3 calls are waiting")
        assert await press(card.buttons[1].value, world.ada.thread, ADA, world.app[OpenInbox]) == CHOOSING
        await delivered(world)
        assert len(card.buttons) == 5
        assert [button.label.partition(":")[0] for button in card.buttons[:3]] == ["☑ 1", "☑ 2", "☑ 3"]
        await press(card.buttons[1].value, world.ada.thread, ADA, world.app[OpenInbox])
        await delivered(world)
        assert card.buttons[1].label.startswith("☐ 2")
        assert card.buttons[3].label == "Allow 1 and 3, deny the rest"
        said = await press(card.buttons[3].value, world.ada.thread, ADA, world.app[OpenInbox])
        assert said == "Allowed 1 and 3. Denied 2."
        await world.ada.sees("done")
        assert ran(world) == ["1", "3"]
        await delivered(world)
        assert card.buttons == ()
        assert "⛔ Denied by ada" in card.markdown


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ("allow", ["1", "2", "3"]),
        ("deny", []),
        ("allow 1 3", ["1", "3"]),
        ("allow 2, 3", ["2", "3"]),
        ("erlauben 1 und 2", ["1", "2"]),
        ("allow all", ["1", "2", "3"]),
    ],
)
async def test_a_card_is_decided_in_words(tmp_path: Path, words: str, runs: list[str]) -> None:
    async with scenario(tmp_path, FakeModel(bash(line(1), line(2), line(3)), "done"), settings=CAREFUL) as world:
        await world.ada.says("go")
        await asked(world, 3)
        await world.ada.says(words)
        await world.ada.sees("done")
        assert ran(world) == runs


async def test_a_partly_decided_card_waits_for_the_rest_and_keeps_the_order(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash(line(1), line(2), line(3)), "done"), settings=CAREFUL) as world:
        await world.ada.says("go")
        calls = await asked(world, 3)
        await world.ada.decides(calls[1].id, allow=True)
        await world.rests()
        assert ran(world) == [], "the call before it waits"
        with pytest.raises(Conflict, match="Call 2 was already decided: it was allowed"):
            await world.app[Orchestrator].decide_card(calls[0].item.card, True, world.ada.asker, [2])
        with pytest.raises(InvalidInput, match=r"no call 7\. Its calls are numbered 1 to 3"):
            await world.app[Orchestrator].decide_card(calls[0].item.card, True, world.ada.asker, [7])
        said = await world.app[Orchestrator].decide_card(calls[0].item.card, False, world.ada.asker, [1])
        assert said == "Denied 1. 3 still waits."
        await world.happens(world.ada.thread, "tool_result", 2)
        assert ran(world) == ["2"]
        await world.app[Orchestrator].decide_card(calls[0].item.card, True, world.ada.asker)
        await world.ada.sees("done")
        assert ran(world) == ["2", "3"]


async def test_a_card_expires_as_a_whole(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel(bash(line(1), line(2)), "nobody was there")
    async with scenario(tmp_path, model, settings=CAREFUL, clock=clock) as world:
        await world.ada.says("go")
        calls = await asked(world, 2)
        await clock.advance(3700)
        await in_time(clock, world.ada.sees("nobody was there"))
        with pytest.raises(Gone, match="Ask the agent again"):
            await world.app[Orchestrator].decide_card(calls[0].item.card, True, world.ada.asker)
        assert ran(world) == []


async def test_only_approvers_decide_the_calls(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash(line(1), line(2)), "done"), settings=CAREFUL) as world:
        await world.ada.says("go")
        calls = await asked(world, 2)
        bob = Asker(trust="trusted", user="bob", platform=world.chat.platform)
        for numbers in ((), (1,)):
            with pytest.raises(Forbidden):
                await world.app[Orchestrator].decide_card(calls[0].item.card, True, bob, numbers)
        with pytest.raises(Forbidden):
            await world.app[Orchestrator].choose(calls[0].item.card, [1], bob)
        assert {call.state for call in await world.app[Store].approvals.on_card(calls[0].item.card)} == {"pending"}


async def test_a_dependent_file_change_is_shown_once_it_is_known(tmp_path: Path) -> None:
    settings: dict[str, dict[str, object]] = {
        "permissions": {"default_profile": "careful", "profiles": {"careful": {"ask": ["tool:.*"]}}}
    }
    wanted = tuple(
        Call("edit", json.dumps({"path": path, "old_string": old, "new_string": new}))
        for path, old, new in (("note.txt", "one", "two"), ("note.txt", "two", "three"), ("other.txt", "a", "b"))
    )
    model = FakeModel(Reply(calls=wanted), "done")
    async with scenario(tmp_path, model, settings=settings) as world:
        workspace = world.app[AgentRegistry].spec("main").workspace
        (workspace / "note.txt").write_text("one")
        (workspace / "other.txt").write_text("a")
        await world.ada.says("edit them")
        calls = await asked(world, 2)
        assert ["note.txt" in call.shown for call in calls] == [True, False]
        await world.ada.says("allow")
        await world.happens(world.ada.thread, "approval_requested", 3)
        assert "+three" in (await world.ada.is_asked()).shown
        await world.ada.says("allow")
        await world.ada.sees("done")
        assert [(workspace / name).read_text() for name in ("note.txt", "other.txt")] == ["three", "b"]


async def test_a_call_changed_by_earlier_calls_asks_again(tmp_path: Path) -> None:
    settings: dict[str, dict[str, object]] = {
        "permissions": {"default_profile": "careful", "profiles": {"careful": {"ask": ["tool:.*"]}}}
    }
    edit = Call("edit", json.dumps({"path": "note.txt", "old_string": "one", "new_string": "two"}))
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "echo more >> note.txt"}'), edit)), "done")
    async with scenario(tmp_path, model, settings=settings) as world:
        note = world.app[AgentRegistry].spec("main").workspace / "note.txt"
        note.write_text("one\n")
        await world.ada.says("edit it")
        await asked(world, 2)
        await world.ada.says("allow")
        await world.happens(world.ada.thread, "approval_requested", 3)
        anew = await world.ada.is_asked()
        assert anew.reason == MOVED_ON
        assert note.read_text() == "one\nmore\n"
        await world.ada.says("allow")
        await world.ada.sees("done")
        assert note.read_text() == "two\nmore\n"


async def test_a_card_shows_who_wrote_the_values_of_its_calls(tmp_path: Path) -> None:
    model = FakeModel(bash("pay DE89370400440532013000", "mail anna@example.org"), "done")
    async with scenario(tmp_path, model, settings=CAREFUL) as world:
        bill = Reference("quote", "Pay to DE89 3704 0044 0532 0130 00 at once.", Author("", "the shop", trusted=False))
        text, now = "Pay the bill and write anna@example.org.", world.app[Clock].now()
        await world.app[OpenInbox].send(Prompt(world.ada.thread, "k1", text, ADA, now, refers_to=(bill,), direct=True))
        pay, mail = await asked(world, 2)
        assert pay.item.foreign
        assert [(one.value, one.named_by) for one in mail.item.origins] == [("anna@example.org", "you")]
        card = await world.ada.sees("2 calls are waiting")
        assert card.buttons[0].label.startswith("Allow all, including 1 from")
        assert card.buttons[1].value.endswith(":2"), "what only the bill asked for is not ticked"


async def test_events_carry_the_number_on_the_card(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash(line(1), line(2)), "done"), settings=CAREFUL) as world:
        await world.ada.says("go")
        await asked(world, 2)
        places = [event.data.item for event in await world.journal() if isinstance(event.data, ApprovalRequested)]
        assert [(place.number, place.total) for place in places] == [(1, 2), (2, 2)]
        assert len({place.card for place in places}) == 1


@pytest.mark.parametrize("numbers", [(1, 2, 3), (1, 3), (2,), ()], ids=str)
async def test_a_decision_survives_a_kill_before_anything_ran(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.scenarios.killed_at_decision", str(tmp_path), *map(str, numbers), cwd=ROOT
    )
    assert await killed.wait() == -signal.SIGKILL
    async with scenario(tmp_path, FakeModel("after the kill"), settings=CAREFUL) as world:
        await world.ada.sees("after the kill")
        assert ran(world) == [str(number) for number in numbers]
