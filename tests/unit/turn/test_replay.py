"""Rebuilding requests from a journal: they are identical, or the first difference is reported."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scenarios.kit import echo, echoes

from shoal.agents.lifecycle import AgentLifecycle
from shoal.agents.registry import AgentRegistry
from shoal.kernel.events import Event, ToolFinished, TurnStarted, UserSaid
from shoal.kernel.home import Home
from shoal.kernel.ids import CallId
from shoal.kernel.messages import Image, ToolMessage, ToolSpec
from shoal.kernel.ports import Models
from shoal.store.store import Store
from shoal.testing.model import FakeModel
from shoal.testing.scenario import FakeModels, World, scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.registry import Registry
from shoal.turn.context import ContextBuilder
from shoal.turn.digests import message_digest
from shoal.turn.prompt import SystemPrompt, decode_prompt
from shoal.turn.replay import ReplayReport, Today, changed_tools, replay, replay_thread
from shoal.turn.tokens import ESTIMATES

SPEC = ToolSpec("echo", "Say it back.", '{"type":"object"}')


class Past:
    """A past conversation with three model calls, the first of which called a tool."""

    def __init__(self, events: list[Event], prompts: Mapping[str, SystemPrompt]) -> None:
        self.events = events
        self.prompts = prompts

    def replay(self, change: Callable[[Event], Event] = lambda event: event, turn: str = "") -> ReplayReport:
        return replay([change(event) for event in self.events], self.prompts, ESTIMATES, turn)


@pytest.fixture
async def past(tmp_path: Path) -> Past:
    async with scenario(tmp_path, FakeModel(echoes("sea"), "blue", "green"), tools=(echo,)) as world:
        for number, text in enumerate(("what colour is the sea?", "and the wood?"), 1):
            await world.ada.says(text)
            await world.happens(world.ada.thread, "turn_finished", number)
        events = await world.journal()
        digests = {event.data.system for event in events if isinstance(event.data, TurnStarted)}
        bodies = {digest: await world.app[Store].journal.prompt(digest) for digest in digests}
        return Past(events, {digest: decode_prompt(body) for digest, body in bodies.items() if body})


def other(kind: type[UserSaid | ToolFinished], text: str) -> Callable[[Event], Event]:
    def change(event: Event) -> Event:
        if not isinstance(event.data, kind):
            return event
        return msgspec.structs.replace(event, data=msgspec.structs.replace(event.data, text=text))

    return change


def test_an_unchanged_past_replays_identically(past: Past) -> None:
    report = past.replay()
    assert (report.calls, report.differences) == (3, ())
    turn = past.events[-1].turn
    assert past.replay(turn=turn).calls == 1
    assert past.replay(turn="none").calls == 0


def test_a_changed_message_is_reported_in_its_first_request(past: Past) -> None:
    report = past.replay(other(ToolFinished, "lake"))
    assert [one.seq for one in report.differences] == [7, 12]
    assert "message 3 of 3, from event 3, is now" in report.differences[0].detail
    assert '"text":"lake"' in report.differences[0].detail
    assert "sent by an earlier call" in report.differences[1].detail
    assert past.replay(other(UserSaid, "hm")).identical == 0


def test_a_missing_message_is_reported(past: Past) -> None:
    def without(event: Event) -> Event:
        if not isinstance(event.data, ToolFinished):
            return event
        return msgspec.structs.replace(event, data=TurnStarted("main", "m", system=_system(past)))

    assert not past.replay(without).differences[0].detail.startswith("the request had"), "its call gets a stand-in"


def _system(past: Past) -> str:
    return next(event.data.system for event in past.events if isinstance(event.data, TurnStarted))


def test_a_differently_assembled_system_text_is_reported(past: Past) -> None:
    again = Past(
        past.events,
        {digest: SystemPrompt(f"{one.text} ", digest, one.sections) for digest, one in past.prompts.items()},
    )
    assert {one.detail for one in again.replay().differences} == {"the code now assembles a different system text"}
    assert Past(past.events, {}).replay().identical == 0, "one that is gone cannot be compared"


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (SPEC, ""),
        (None, "the echo tool no longer exists"),
        (ToolSpec("echo", "Say it louder.", '{"type":"object"}'), "a different description: 'louder.\\n{"),
    ],
)
def test_changed_tools_are_described(now: ToolSpec | None, told: str) -> None:
    found = changed_tools([SPEC], {"echo": now} if now else {})
    assert told in found
    assert bool(told) == bool(found)


@given(st.text(), st.text())
def test_images_are_compared_by_name_in_any_home(text: str, folder: str) -> None:
    def seen(path: str) -> str:
        return message_digest(ToolMessage(CallId("c"), "see", text, images=(Image(path, "image/png"),)))

    assert seen("/x/a.png") == seen(f"{folder}/a.png") != seen("/x/b.png")


async def differences(world: World) -> list[tuple[int, str, str]]:
    app = world.app
    today = Today(app[ContextBuilder], app[Models], app[Registry].every(), app[AgentRegistry].known)
    report = await replay_thread(app[Store].journal, world.ada.thread, app[ContextBuilder].meter, today)
    return [(one.seq, one.kind, one.detail) for one in report.differences]


async def test_changed_options_are_described_in_words(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("blue"), replays=False) as world:
        file = world.app[Home].agent("main") / "agent.toml"
        file.write_text("max_output_tokens = 77\ntemperature = 0.9\n")
        await world.ada.says("what colour is the sea?")
        await world.ada.sees("blue")
        assert await differences(world) == []
        file.write_text("temperature = 0.9\n")
        told = "the request had 77 tokens, and would now have 4096 tokens"
        assert await differences(world) == [(3, "options", told)]
        file.write_text("max_output_tokens = 77\n")
        told = "the request had temperature 0.9, and would now have no temperature"
        assert await differences(world) == [(3, "options", told)]


async def test_a_replay_uses_the_chosen_model_and_its_current_window(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("blue", "green"), replays=False) as world:
        await world.ada.says("what colour is the sea?")
        await world.ada.sees("blue")
        await world.ada.asks("/model fake/other")
        await world.ada.says("and the wood?")
        await world.ada.sees("green")
        assert await differences(world) == []
        models = world.app[Models]
        assert isinstance(models, FakeModels)
        models.context_tokens = 4000
        told = "the request had 4096 tokens, and would now have 1000 tokens"
        assert [one[1:] for one in await differences(world)] == [("options", told)] * 2


async def test_changed_instructions_are_named_and_memory_changes_are_not(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("blue"), replays=False) as world:
        await world.ada.says("what colour is the sea?")
        await world.ada.sees("blue")
        home = world.app[Home]
        (home.agent("main") / "docs").mkdir(parents=True)
        (home.data / "MEMORY.md").write_text("- The sea is green.\n")
        (home.agent("main") / "USER.md").write_text("A sailor.\n")
        assert await differences(world) == []
        (home.agent("main") / "SOUL.md").write_text("Whisper.\n")
        (home.agent("main") / "docs" / "tides.md").write_text("Twice a day.\n")
        told = "the instructions have changed since then: main/SOUL.md, docs"
        assert await differences(world) == [(3, "instructions", told)]


async def test_a_missing_agent_is_reported(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("blue"), replays=False) as world:
        await world.app[AgentLifecycle].create("gull", {}, "ada")
        await world.app[AgentLifecycle].bind("gull", world.ada.thread, "ada")
        await world.ada.says("what colour is the sea?")
        await world.ada.sees("blue")
        assert await differences(world) == []
        world.app[Home].agent("gull").rename(tmp_path / "away")
        assert await differences(world) == [(3, "instructions", "the agent gull no longer exists")]


async def test_a_branch_keeps_the_options_of_its_own_history(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("one", "two", "three"), replays=False) as world:
        file = world.app[Home].agent("main") / "agent.toml"
        await world.ada.says("one?")
        await world.ada.sees("one")
        rest = (await world.journal())[-1].seq
        for word in ("two", "three"):
            file.write_text("temperature = 0.9\n")
            await world.ada.says(f"{word}?")
            await world.ada.sees(word)
            await world.app[Orchestrator].go_to(world.ada.thread, rest, "ada")
        assert [kind for _, kind, _ in await differences(world)] == ["options"]
