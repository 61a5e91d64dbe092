"""Staged calls: if the model does not need the result of a call, the call waits for one approval at the end of the
turn.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.scenarios.kit import Door, calls, in_time

from shoal.agents.registry import AgentRegistry
from shoal.kernel.events import ToolFinished
from shoal.kernel.messages import Author
from shoal.kernel.ports import Tool, ToolContext
from shoal.kernel.traits import Traits
from shoal.permissions.access import AccessRules, Links
from shoal.platforms.inbox import press
from shoal.store.approvals import EXPIRED
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Refusal, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.access_gate import OpenInbox
from shoal.threads.admissions import Admissions
from shoal.threads.departures import Departures
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.functions import tool
from shoal.tools.registry import Registry

STANDARD: dict[str, dict[str, object]] = {"permissions": {"default_profile": "standard"}}
WAITS: dict[str, dict[str, object]] = {
    "permissions": {"default_profile": "mine", "profiles": {"mine": {"extends": "standard", "allow": ["tool:wait:.*"]}}}
}
ADA = Author("ada", "Ada", trusted=True)


class Outside:
    """An outside service with a tool `send`. It records each call with its idempotency key, and the record
    survives kills.
    """

    def __init__(self, file: Path, *, idempotent: bool = False) -> None:
        self._file = file
        self._idempotent = idempotent

    @property
    def sent(self) -> list[str]:
        return [line.split()[1] for line in self.lines]

    @property
    def lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def tool(self) -> Tool:
        @tool(
            Traits(
                effect="outward",
                can_stage=True,
                idempotent=self._idempotent,
                origin="own",
                changes="nothing",
                harm="message",
            )
        )
        async def send(context: ToolContext, to: str, text: str = "") -> str:
            """Send something to somebody."""
            with self._file.open("a") as file:
                file.write(f"{context.turn}/{context.call_id} {to} {text}\n")
                file.flush()
                os.fsync(file.fileno())
            return f"delivered to {to}"

        return send


def sends(*to: str, text: str = "") -> Reply:
    return Reply(text, calls=tuple(Call("send", json.dumps({"to": one, "text": f"hello {one}"})) for one in to))


async def pressed(world: World, part: str, label: str) -> str:
    card = await world.ada.sees(part)
    value = next(button.value for button in card.buttons if button.label.startswith(label))
    return await press(value, world.ada.thread, ADA, world.app[OpenInbox])


async def test_the_turn_continues_and_its_final_card_runs_all_calls_in_order(tmp_path: Path) -> None:
    outside = Outside(tmp_path / "sent")
    model = FakeModel(sends("bob"), sends("eve"), "I prepared two messages.", "You are welcome.")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD) as world:
        await world.ada.says("write to bob and eve")
        await world.ada.sees("I prepared two messages.")
        card = await world.ada.sees("Run these 2 actions?")
        assert [button.label for button in card.buttons] == ["Do all", "Choose", "Discard"]
        assert outside.sent == []
        results = [event.data for event in await world.journal() if isinstance(event.data, ToolFinished)]
        assert all(result.staged and result.text.startswith("Staged, not done: ") for result in results)
        assert await pressed(world, "Run these 2 actions?", "Do all") == "Accepted."
        await world.happens(world.ada.thread, "turn_finished", 2)
        assert outside.sent == ["bob", "eve"]
        await world.rests()
        assert "✅ Done." in card.markdown
        assert card.buttons == ()
        await world.ada.says("thanks")
        await world.ada.sees("You are welcome.")
        assert "delivered to bob" in model.requests[-1].messages[-1].text
        assert len(model.requests) == 4, "what was accepted runs without the model"
        assert await world.app[Store].approvals.search() == []
        assert world.app[AgentRegistry].spec("main").profile == "standard"


async def test_discarded_calls_never_run_and_the_model_is_informed(tmp_path: Path) -> None:
    outside = Outside(tmp_path / "sent")
    model = FakeModel(sends("bob"), "prepared", "I see.")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD) as world:
        await world.ada.says("write to bob")
        card = await world.ada.sees("Run this action?")
        assert [button.label for button in card.buttons] == ["Do it", "Discard"]
        assert await pressed(world, "Run this action?", "Discard") == "Discarded."
        await world.rests()
        assert "It did not run." in card.markdown
        await world.ada.says("well")
        await world.ada.sees("I see.")
        assert "discarded by a person, not done: send" in model.requests[-1].messages[-1].text
        assert outside.sent == []
        assert (await world.types()).count("turn_started") == 2, "nothing ran"


async def test_ticked_calls_run_in_order(tmp_path: Path) -> None:
    outside = Outside(tmp_path / "sent")
    model = FakeModel(sends("one", "two", "three"), "prepared")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD) as world:
        await world.ada.says("write")
        card = await world.ada.sees("Run these 3 actions?")
        await pressed(world, "Run these 3 actions?", "Choose")
        await world.rests()
        assert [button.label[:3] for button in card.buttons[:3]] == ["☑ 1", "☑ 2", "☑ 3"]
        await pressed(world, "Run these 3 actions?", "☑ 2")
        await world.rests()
        assert [button.label for button in card.buttons[3:]] == ["Do 1 and 3, discard the rest", "Discard"]
        assert await pressed(world, "Run these 3 actions?", "Do 1 and 3") == "Accepted 1 and 3. Discarded 2."
        await world.happens(world.ada.thread, "turn_finished", 2)
        assert outside.sent == ["one", "three"]


@pytest.mark.parametrize(
    ("words", "sent"),
    [("do all", ["one", "two"]), ("Do 2", ["two"]), ("discard", []), ("yes", None), ("ok", None), ("do it soon", None)],
)
async def test_words_for_the_card_decide_it_and_a_plain_yes_goes_to_the_agent(
    tmp_path: Path, words: str, sent: list[str] | None
) -> None:
    outside = Outside(tmp_path / "sent")
    model = FakeModel(sends("one", "two"), "prepared", "talked on")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD) as world:
        await world.ada.says("write")
        await world.ada.sees("Run these 2 actions?")
        await world.ada.says(words)
        if sent is None:
            await world.ada.sees("talked on")
            assert len(await world.app[Store].approvals.search()) == 2, "the card still waits"
        else:
            await world.happens(world.ada.thread, "turn_finished", 2 if sent else 1)
        await world.rests()
        assert outside.sent == (sent or [])


async def test_an_unanswered_card_expires(tmp_path: Path) -> None:
    clock, outside = ManualClock(), Outside(tmp_path / "sent")
    model = FakeModel(sends("bob"), "prepared", "I see.")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD, clock=clock) as world:
        await world.ada.says("write")
        card = await world.ada.sees("Run this action?")
        value = card.buttons[0].value
        await clock.advance(3_700)
        await in_time(clock, world.happens(world.ada.thread, "approval_decided"))
        assert await press(value, world.ada.thread, ADA, world.app[OpenInbox]) == EXPIRED
        await world.ada.says("well")
        await in_time(clock, world.ada.sees("I see."))
        assert "expired without an answer, not done" in model.requests[-1].messages[-1].text
        assert outside.sent == []


async def test_only_the_first_permitted_answer_counts(tmp_path: Path) -> None:
    outside = Outside(tmp_path / "sent")
    async with scenario(
        tmp_path, FakeModel(sends("bob"), "prepared"), tools=[outside.tool()], settings=STANDARD
    ) as world:
        await world.ada.says("write")
        card = await world.ada.sees("Run this action?")
        values = [button.value for button in card.buttons]
        eve = Author("eve", "Eve", trusted=False)
        assert "decide" in await press(values[0], world.ada.thread, eve, world.app[OpenInbox])
        assert await press(values[1], world.ada.thread, ADA, world.app[OpenInbox]) == "Discarded."
        said = await press(values[0], world.ada.thread, ADA, world.app[OpenInbox])
        assert said == "This approval was already decided: it was denied. To change the decision, ask the agent again."
        await world.rests()
        assert outside.sent == []


async def test_two_cards_and_the_messages_between_them_stay_separate(tmp_path: Path) -> None:
    outside = Outside(tmp_path / "sent")
    model = FakeModel(sends("one"), "first", sends("two"), "second")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD) as world:
        await world.ada.says("write")
        await world.ada.sees("first")
        await world.ada.says("and the other")
        await world.ada.sees("second")
        first, second = reversed([one.item.card for one in await world.app[Store].approvals.search()])
        await world.app[Orchestrator].decide_card(second, True, world.ada.asker)
        await world.happens(world.ada.thread, "turn_finished", 3)
        assert outside.sent == ["two"]
        await world.app[Orchestrator].decide_card(first, True, world.ada.asker)
        await world.happens(world.ada.thread, "turn_finished", 4)
        assert outside.sent == ["two", "one"]


async def test_a_stopped_turn_shows_no_card_and_runs_no_call(tmp_path: Path) -> None:
    outside, door = Outside(tmp_path / "sent"), Door()
    model = FakeModel(sends("bob", "eve"), calls("wait"), "I see.")
    async with scenario(tmp_path, model, tools=[outside.tool(), door.tool()], settings=WAITS) as world:
        await world.ada.says("write")
        await door.entered.wait()
        await world.ada.stops()
        await world.ada.sees("The turn was stopped before you were asked. Not done: send")
        assert await world.app[Store].approvals.search(pending=False) == []
        await world.ada.says("well")
        await world.ada.sees("I see.")
        assert "- not done: The turn was stopped" in model.requests[-1].messages[-1].text
        assert "eve" in model.requests[-1].messages[-1].text
        assert outside.sent == []


async def test_a_failed_turn_lists_the_calls_it_did_not_run(tmp_path: Path) -> None:
    outside = Outside(tmp_path / "sent")
    model = FakeModel(sends(*(f"p{number}" for number in range(7))), Refusal(401), "I see.")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD) as world:
        await world.ada.says("write")
        notice = await world.ada.sees("The turn failed before you were asked. Not done: send")
        assert "; and 2 more. Ask again if you still want it." in notice.markdown
        await world.ada.says("well")
        await world.ada.sees("I see.")
        assert "- not done: The turn failed" in model.requests[-1].messages[-1].text
        assert outside.sent == []


@pytest.mark.parametrize(
    ("ending", "truth"),
    [
        ("leaves", "Accepted, but it did not run: the person who asked for it no longer has access."),
        ("stops", "Accepted, but stopped before it ran."),
        ("breaks", "Accepted, but stopped before it ran."),
    ],
)
async def test_a_card_shows_that_accepted_calls_never_ran(tmp_path: Path, ending: str, truth: str) -> None:
    outside, door = Outside(tmp_path / "sent"), Door()
    model = FakeModel(sends("bob"), "prepared", calls("wait"), "done", "I see.")
    access = AccessRules(owners=("zoe",), allow=("ada", "carl"))
    async with scenario(tmp_path, model, tools=[outside.tool(), door.tool()], settings=WAITS, access=access) as world:
        carl = world.person("carl", "1", "harbour")
        assert carl.thread == world.ada.thread
        await world.ada.says("write")
        card = await world.ada.sees("Run this action?")
        await carl.says("wait")
        await door.entered.wait()
        assert await pressed(world, "Run this action?", "Do it") == "Accepted."
        settings = tmp_path / "agents/main/agent.toml"
        match ending:
            case "leaves":
                links = world.app[Admissions].links
                rules = AccessRules(owners=("zoe",), allow=("carl",))
                links.become(Links(links.people, {**links.rules, "fake": rules}))
                await world.app[Departures].sweep()
            case "stops":
                await carl.stops(everything=True)
            case _:
                settings.write_text("colour = 1\n")
        door.open.set()
        await world.is_quiet()
        assert truth in card.markdown
        settings.unlink(missing_ok=True)
        await carl.says("well")
        await carl.sees("done" if ending == "stops" else "I see.")
        told = model.requests[-1].messages[-1].text
        assert "Outcome of the calls that you had staged" in told
        assert ("failed: send" if ending == "breaks" else "- not done: ") in told
        assert outside.sent == []


async def test_the_same_call_is_staged_once(tmp_path: Path) -> None:
    outside = Outside(tmp_path / "sent")
    model = FakeModel(sends("bob"), sends("bob"), "prepared")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD) as world:
        await world.ada.says("write")
        await world.ada.sees("Run this action?")
        assert len(await world.app[Store].approvals.search()) == 1


async def test_a_removed_tool_is_reported_in_one_sentence(tmp_path: Path) -> None:
    outside = Outside(tmp_path / "sent")
    model = FakeModel(sends("bob"), "prepared", "I see.")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD, changes=("tools",)) as world:
        await world.ada.says("write")
        card = await world.ada.sees("Run this action?")
        world.app[Registry].remove("send")
        await pressed(world, "Run this action?", "Do it")
        await world.happens(world.ada.thread, "turn_finished", 2)
        await world.rests()
        assert "it did not run, because something it depends on has changed" in card.markdown
        await world.ada.says("well")
        await world.ada.sees("I see.")
        assert "No tool is named" in model.requests[-1].messages[-1].text
        assert outside.sent == []


async def test_a_changed_file_asks_again(tmp_path: Path) -> None:
    call = Call("message", json.dumps({"text": "the plan", "to": "fake:office", "file": "plan.txt"}))
    model = FakeModel(Reply(calls=(call,)), "prepared")
    async with scenario(tmp_path, model, settings=STANDARD) as world:
        plan = world.app[AgentRegistry].spec("main").workspace / "plan.txt"
        plan.write_text("as it was shown")
        await world.ada.says("send the plan to the office")
        await world.ada.sees("Run this action?")
        plan.write_text("something else")
        await pressed(world, "Run this action?", "Do it")
        anew = await world.happens(world.ada.thread, "approval_requested", 2)
        assert "plan.txt" in getattr(anew.data, "reason", "")
        assert "changed since you were asked" in getattr(anew.data, "reason", "")
        await world.rests()
        assert not [one for one in world.chat.posted if "office" in one.post.thread]


async def test_the_card_shows_the_turns_file_changes_and_undoes_them(tmp_path: Path) -> None:
    outside = Outside(tmp_path / "sent")
    write = Reply(calls=(Call("write", json.dumps({"path": "notes.md", "content": "boats: 2\n"})),))
    model = FakeModel(write, sends("bob"), "prepared")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD) as world:
        notes = world.app[AgentRegistry].spec("main").workspace / "notes.md"
        await world.ada.says("note it and write to bob")
        card = await world.ada.sees("Run this action?")
        assert "`notes.md` added +1" in card.markdown
        assert "+boats: 2" in card.markdown
        await pressed(world, "Run this action?", "Discard")
        await world.rests()
        assert f"/undo {(await world.journal())[-1].turn}" in card.markdown
        assert world.chat.inbox is not None
        ((label, value),) = [(button.label, button.value) for button in card.buttons]
        assert label == "Undo the files"
        assert notes.exists()
        eve = Author("eve", "Eve", trusted=False)
        refused = await press(value, world.ada.thread, eve, world.chat.inbox)
        assert refused == "Only the person who asked, or the owner, can undo this turn."
        assert notes.exists()
        said = await press(value, world.ada.thread, ADA, world.chat.inbox)
        assert said == "Restored 1 file. `/undo back` reverses this undo."
        assert not notes.exists()
        assert "These changes have already been undone." in await press(value, world.ada.thread, ADA, world.chat.inbox)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_thousands_of_deletions_share_a_card_with_a_count(tmp_path: Path) -> None:
    count, outside = 2_847, Outside(tmp_path / "sent")
    model = FakeModel(sends(*map(str, range(count))), "prepared")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD, replays=False) as world:
        await world.ada.says("delete the newsletters")
        async with asyncio.timeout(300):
            card = await world.chat.sees(world.ada.thread, "Run these 2,847 actions?")
        assert "- 2,847 × send" in card.markdown
        assert [button.label for button in card.buttons] == ["Do all 2847", "Discard"]
        assert all(len(button.value) <= 64 for button in card.buttons)
        assert len(card.markdown) < 4_000
        assert outside.sent == []


async def killed(folder: Path, side: str, at: int, *more: str) -> int:
    arguments = ("-m", "tests.scenarios.staging_life", str(folder), side, str(at), *more)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=Path(__file__).parents[2])
    return await process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("idempotent",)], ids=["once", "idempotent"])
@pytest.mark.timeout(600)
async def test_an_accepted_set_runs_once_in_order_despite_kills(tmp_path: Path, more: tuple[str, ...]) -> None:
    kills = 0
    for at in range(1, 60, 2):
        folder = tmp_path / str(at)
        folder.mkdir()
        status = await killed(folder, "before" if at % 4 == 1 else "after", at, *more)
        kills += status == -signal.SIGKILL
        assert status in (0, -signal.SIGKILL)
        assert await killed(folder, "after", 0, *more) == 0
        sent = list(dict.fromkeys(line.split()[1] for line in Outside(folder / "sent").lines))
        keys = [line.split()[0] for line in Outside(folder / "sent").lines]
        if more:
            assert sent == ["one", "three"], "each reaches the other side under one key"
            assert len(set(keys)) == 2
        else:
            assert len(keys) == len(set(keys)) == len(sent), "nothing runs twice"
            assert sent in (["one", "three"], ["one"], ["three"]), "one that was under way may be unknown"
        if status == 0:
            break
    assert kills >= 12
