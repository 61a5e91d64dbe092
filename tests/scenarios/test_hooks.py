"""Hooks and commands of packages in complete turns. A hook can only make a decision stricter."""

import asyncio
from pathlib import Path

import pytest

import shoal
from shoal.kernel.events import ToolFinished
from shoal.store.store import Store
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario

RING = Reply(calls=(Call("ring", '{"place": "kitchen"}'),))


class Bell:
    """A host program with a tool that rings a bell, and with a hook that decides about it."""

    def __init__(self, ruling: shoal.HookRuling | None = None) -> None:
        self.rung = 0
        self.planned: list[shoal.PlannedCall] = []
        self.ruling = ruling

    def tool(self) -> shoal.Tool:
        @shoal.tool
        def ring(place: str) -> str:
            """Ring the bell of a place."""
            self.rung += 1
            return "It rang."

        return ring

    def hooks(self) -> dict[str, shoal.Hooks]:
        async def before_call(call: shoal.PlannedCall) -> shoal.HookRuling | None:
            self.planned.append(call)
            return self.ruling

        return {"night": shoal.Hooks(before_call=before_call)}


def profile(treatment: str) -> dict[str, object]:
    mine = {"extends": "standard", treatment: ["tool:ring:.*"]}
    return {"permissions": {"default_profile": "mine", "profiles": {"mine": mine}}}


async def test_a_hook_sees_the_resolved_call_and_allows_it(tmp_path: Path) -> None:
    bell = Bell()
    model = FakeModel(RING, "Done.")
    async with scenario(tmp_path, model, tools=[bell.tool()], hooks=bell.hooks(), settings=profile("allow")) as world:
        await world.ada.says("ring")
        await world.ada.sees("Done.")
    (call,) = bell.planned
    assert (call.tool, call.decision, call.asked_by, call.agent) == ("ring", "allow", "fake:ada", "main")
    assert call.actions == ('tool:ring:{"place":"kitchen"}',)
    assert '"place":"kitchen"' in call.arguments
    assert bell.rung == 1


async def test_a_call_denied_by_a_hook_does_not_run_and_is_audited(tmp_path: Path) -> None:
    bell = Bell(shoal.HookRuling("deny", "People are asleep."))
    model = FakeModel(RING, "They sleep.")
    async with scenario(tmp_path, model, tools=[bell.tool()], hooks=bell.hooks(), settings=profile("allow")) as world:
        await world.ada.says("ring")
        await world.ada.sees("They sleep.")
        event = await world.happens(world.ada.thread, "tool_result")
        assert isinstance(event.data, ToolFinished)
        assert event.data.is_error
        assert event.data.text.startswith("Permission denied by the hook 'night': People are asleep.")
        rows = await world.app[Store].audit.tail(chain_name=world.ada.thread)
        checks = [row.entry for row in rows if row.entry.kind == "hook"]
        assert [(entry.decision, entry.rule, entry.action) for entry in checks] == [
            ("deny", "night", 'tool:ring:{"place":"kitchen"}')
        ]
    assert bell.rung == 0


async def test_a_hook_can_require_one_approval(tmp_path: Path) -> None:
    bell = Bell(shoal.HookRuling("ask", "People are asleep."))
    model = FakeModel(RING, "Done.")
    async with scenario(tmp_path, model, tools=[bell.tool()], hooks=bell.hooks(), settings=profile("allow")) as world:
        await world.ada.says("ring")
        approval = await world.ada.is_asked()
        assert "People are asleep." in approval.reason
        assert bell.rung == 0
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("Done.")
    assert bell.rung == 1


async def test_hooks_do_not_see_calls_that_the_rules_deny(tmp_path: Path) -> None:
    bell = Bell()
    model = FakeModel(RING, "No.")
    async with scenario(tmp_path, model, tools=[bell.tool()], hooks=bell.hooks(), settings=profile("deny")) as world:
        await world.ada.says("ring")
        await world.ada.sees("No.")
    assert (bell.planned, bell.rung) == ([], 0)


async def test_a_hook_cannot_skip_an_approval(tmp_path: Path) -> None:
    bell = Bell()
    model = FakeModel(RING, "Done.")
    async with scenario(tmp_path, model, tools=[bell.tool()], hooks=bell.hooks(), settings=profile("ask")) as world:
        await world.ada.says("ring")
        await world.ada.is_asked()
    assert {call.decision for call in bell.planned} == {"ask"}
    assert bell.rung == 0


async def test_a_turn_is_delivered_even_if_its_hook_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended: list[shoal.TurnSummary] = []
    both = asyncio.Event()

    async def after_turn(summary: shoal.TurnSummary) -> None:
        ended.append(summary)
        if len(ended) == 2:
            both.set()
        raise ValueError("full")

    hooks = {"report": shoal.Hooks(after_turn=after_turn)}
    async with scenario(tmp_path, FakeModel("Hello.", "Again."), hooks=hooks) as world:
        await world.ada.says("hi")
        await world.ada.sees("Hello.")
        await world.ada.says("hi again")
        await world.ada.sees("Again.")
        await both.wait()
    assert [(one.outcome, one.reply, one.agent, one.steps) for one in ended] == [
        ("done", "Hello.", "main", 1), ("done", "Again.", "main", 1),
    ]  # fmt: skip
    assert "hook failed" in caplog.messages


async def test_a_command_of_a_program_is_listed_and_answered(tmp_path: Path) -> None:
    @shoal.chat_command("roll a die", "[SIDES]")
    async def dice(asked: shoal.CommandRequest) -> str:
        return f"{asked.author.id} rolls a {asked.argument or '6'}."

    async with scenario(tmp_path, FakeModel("It is a game."), commands=[dice]) as world:
        assert await world.ada.asks("/dice 20") == "ada rolls a 20."
        assert "`/dice [SIDES]` roll a die" in await world.ada.asks("/help")
