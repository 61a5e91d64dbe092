"""A provider rejects part of the history: the conversation continues, and the chat reports it once."""

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from tests.scenarios.kit import calls

from shoal.kernel.events import AssistantSaid, Compacted, Failed
from shoal.kernel.messages import ModelDone, ModelEvent, ModelRequest
from shoal.testing.model import FakeModel, Refusal, Reply
from shoal.testing.model.script import Seen, Step
from shoal.testing.scenario import World, scenario

POISON = "the poison"


async def turn(world: World, text: str, number: int) -> str:
    await world.ada.says(text)
    await world.happens(world.ada.thread, "turn_finished", number)
    await world.rests()
    return world.chat.texts(world.ada.thread)[-1]


class Picky:
    """A model that rejects every request that contains the poison. A summary can remove the poison."""

    def __init__(self, refusal: Refusal, *, summarises: bool = True) -> None:
        self.refusal = refusal
        self.summarises = summarises

    def __call__(self, seen: Seen) -> Step | str:
        if "Write the summary now." in seen.user_text:
            return "They spoke of boats." if self.summarises else self.refusal
        if any(POISON in message.text for message in seen.messages):
            return self.refusal
        return f"heard {len(seen.messages)}"


REFUSALS = (
    Refusal(400, "Bad Request"),
    Refusal(400, "The request was rejected because it was considered high risk by content management policy."),
)


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("summarises", [True, False])
async def test_a_refused_history_is_dropped(tmp_path: Path, refusal: Refusal, summarises: bool) -> None:
    model = FakeModel(script=Picky(refusal, summarises=summarises))
    async with scenario(tmp_path, model) as world:
        assert await turn(world, "hello", 1) == "heard 1"
        assert "rejected the request" in (said := await turn(world, f"take {POISON}", 2)) or "declined" in said
        said = await turn(world, "and now?", 3)
        assert said.startswith("heard 2")
        assert said.endswith(
            "_fake rejected the earlier part of this conversation, so I continue with a summary of it._"
        )
        calls_so_far = model.calls
        assert await turn(world, "and then?", 4) == "heard 4"
        assert model.calls == calls_so_far + 1
        (left,) = [event.data for event in await world.journal() if isinstance(event.data, Compacted)]
        assert left.reason == "refused"
        assert ("boats" in left.summary) is summarises
        assert POISON not in left.summary


async def test_a_message_that_is_refused_even_alone_does_not_drop_the_history(tmp_path: Path) -> None:
    model = FakeModel(script=lambda seen: "hi" if "hello" in seen.user_text else Refusal(400, "Bad Request"))
    async with scenario(tmp_path, model) as world:
        await turn(world, "hello", 1)
        assert "rejected the request" in await turn(world, "other", 2)
        assert "compacted" not in await world.types()
        assert model.calls == 3, "the turn was tried alone, once"


async def test_a_fallback_answers_before_any_history_is_dropped(tmp_path: Path) -> None:
    def script(seen: Seen) -> Step | str:
        return Refusal(400, "Bad Request") if seen.model == "first" else "the second"

    settings = {"model": {"name": "first", "fallback": ["second"]}}
    async with scenario(tmp_path, FakeModel(script=script), settings=settings) as world:
        await turn(world, "hello", 1)
        assert (await turn(world, "and now?", 2)).startswith("the second")
        assert "compacted" not in await world.types()


async def test_a_refused_turn_with_calls_is_retried_with_its_results(tmp_path: Path) -> None:
    def script(seen: Seen) -> Step | str:
        if any(POISON in message.text for message in seen.messages):
            return Refusal(400, "Bad Request")
        if "Write the summary now." in seen.user_text:
            return "boats"
        if "go" in seen.user_text and not seen.results:
            return calls("nothing")
        return Reply("done")

    async with scenario(tmp_path, FakeModel(script=script)) as world:
        await turn(world, f"take {POISON}", 1)
        assert (await turn(world, "go", 2)).startswith("done")
        said = [event.data for event in await world.journal() if isinstance(event.data, AssistantSaid)]
        assert len(said) == 2
        notes = [
            event.data for event in await world.journal() if isinstance(event.data, Failed) and not event.data.fatal
        ]
        assert len(notes) == 1


class Deaf(FakeModel):
    """A model that reports that it received less than was sent."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        async for event in super().stream(request):
            yield msgspec.structs.replace(event, notes=("It heard half.",)) if isinstance(event, ModelDone) else event


async def test_a_models_missing_content_is_reported_once_per_thread(tmp_path: Path) -> None:
    said = list[str]()
    for _ in range(2):
        async with scenario(tmp_path, Deaf(script=lambda seen: "hi")) as world:
            for text in ("hello", "/new", "again"):
                ended = (await world.types()).count("turn_finished")
                await world.ada.says(text)
                if text != "/new":
                    await world.happens(world.ada.thread, "turn_finished", ended + 1)
                await world.rests()
            said += [one for one in world.chat.texts(world.ada.thread) if one.startswith("hi")]
    assert ["heard half" in one for one in said] == [True, False, False, False]
