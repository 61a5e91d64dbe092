"""Requests built again from a journal: the same, or the first thing in which they are not."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scenarios.kit import echo, echoes

from shoal.domain.events import AssistantSaid, Event, ToolFinished, TurnStarted, UserSaid
from shoal.domain.ids import CallId
from shoal.domain.messages import Image, ToolMessage, ToolSpec
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario
from shoal.turn.budget import ESTIMATES
from shoal.turn.prompt import SystemPrompt, decode_prompt
from shoal.turn.replay import Kept, ReplayReport, _message_digest, changed_tools, replay, stored_tools

SPEC = ToolSpec("echo", "Say it back.", '{"type":"object"}')


class Past:
    """A conversation that happened: three calls of a model, the first of which called a tool."""

    def __init__(self, events: list[Event], prompts: Mapping[str, SystemPrompt]) -> None:
        self.events = events
        self.prompts = prompts

    def replay(
        self, change: Callable[[Event], Event] = lambda event: event, tools: str = "", turn: str = ""
    ) -> ReplayReport:
        """Build its requests again, of other events or after tools have changed."""
        digest = next(e.data.asked.tools for e in self.events if isinstance(e.data, AssistantSaid) and e.data.asked)
        return replay([change(event) for event in self.events], Kept(self.prompts, {digest: tools}, ESTIMATES), turn)


@pytest.fixture
async def past(tmp_path: Path) -> Past:
    async with scenario(tmp_path, FakeModel(echoes("sea"), "blue", "green"), tools=(echo,)) as world:
        for number, text in enumerate(("what colour is the sea?", "and the wood?"), 1):
            await world.ada.says(text)
            await world.happens(world.ada.thread, "turn_finished", number)
        events = await world.journal()
        digests = {event.data.system for event in events if isinstance(event.data, TurnStarted)}
        bodies = {digest: await world.app.store.journal.prompt(digest) for digest in digests}
        return Past(events, {digest: decode_prompt(body) for digest, body in bodies.items() if body})


def other(kind: type[UserSaid | ToolFinished], text: str) -> Callable[[Event], Event]:
    """A change of what the events of a kind say."""

    def change(event: Event) -> Event:
        if not isinstance(event.data, kind):
            return event
        return msgspec.structs.replace(event, data=msgspec.structs.replace(event.data, text=text))

    return change


def test_the_past_comes_out_the_same(past: Past) -> None:
    assert past.replay() == ReplayReport(3, 0, ())
    turn = past.events[-1].turn
    assert past.replay(turn=turn).calls == 1
    assert past.replay(turn="none").calls == 0


def test_another_message_is_found_in_the_first_request_that_has_it(past: Past) -> None:
    report = past.replay(other(ToolFinished, "lake"))
    assert [one.seq for one in report.differences] == [7, 12]
    assert "message 3 of 3, from event 3, is another one" in report.differences[0].detail
    assert '"text":"lake"' in report.differences[0].detail
    assert "before those that this call was the first to send" in report.differences[1].detail
    assert past.replay(other(UserSaid, "hm")).identical == 0


def test_a_message_that_is_missing_today(past: Past) -> None:
    def without(event: Event) -> Event:
        if not isinstance(event.data, ToolFinished):
            return event
        return msgspec.structs.replace(event, data=TurnStarted("main", "m", system=_system(past)))

    assert not past.replay(without).differences[0].detail.startswith("there were"), "its call gets a stand-in"


def _system(past: Past) -> str:
    return next(event.data.system for event in past.events if isinstance(event.data, TurnStarted))


def test_a_system_text_that_is_put_together_in_another_way(past: Past) -> None:
    again = Past(
        past.events,
        {digest: SystemPrompt(f"{one.text} ", digest, one.sections) for digest, one in past.prompts.items()},
    )
    assert {one.detail for one in again.replay().differences} == {
        "the system text is put together in another way than it was"
    }
    assert Past(past.events, {}).replay().identical == 0, "one that is gone cannot be compared"


def test_tools_that_have_changed_are_told_for_every_call_that_offered_them(past: Past) -> None:
    assert [one.detail for one in past.replay(tools="there is no tool echo any more").differences] == [
        "there is no tool echo any more"
    ] * 3


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (SPEC, ""),
        (None, "there is no tool echo any more"),
        (ToolSpec("echo", "Say it louder.", '{"type":"object"}'), "described in another way: 'louder.\\n{"),
    ],
)
def test_how_tools_have_changed(now: ToolSpec | None, told: str) -> None:
    assert told in changed_tools(stored_tools([SPEC])[1], {"echo": now} if now else {})
    assert bool(told) == bool(changed_tools(stored_tools([SPEC])[1], {"echo": now} if now else {}))


def test_answers_of_an_earlier_version_are_counted_and_not_compared(past: Past) -> None:
    def earlier(event: Event) -> Event:
        if not isinstance(event.data, AssistantSaid):
            return event
        return msgspec.structs.replace(event, data=msgspec.structs.replace(event.data, asked=None))

    assert past.replay(earlier) == ReplayReport(3, 3, ())


@given(st.text(), st.text())
def test_images_count_by_their_names_wherever_the_home_is(text: str, folder: str) -> None:
    def seen(path: str) -> str:
        return _message_digest(ToolMessage(CallId("c"), "see", text, images=(Image(path, "image/png"),)))

    assert seen("/x/a.png") == seen(f"{folder}/a.png") != seen("/x/b.png")
