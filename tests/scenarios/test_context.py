"""The model's view of a long conversation: a stable prefix, background summaries, and a sliding window."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FunctionType

import msgspec
import pytest
from tests.waiting import until

from shoal.backend import Backend
from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.errors import StoreFull
from shoal.kernel.events import Compacted, Event, Failed, TurnFinished, TurnStarted
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author, ModelMessage, ModelRequest, Prompt, ToolMessage
from shoal.kernel.ports import Models
from shoal.kernel.records import Commit, Committed, Lease
from shoal.notices import Notices
from shoal.store.journal import Journal
from shoal.store.store import Store
from shoal.testing.clock import ManualClock, in_time
from shoal.testing.model import Call, FakeModel, Gate, Refusal, Reply, Seen, Step
from shoal.testing.scenario import FakeModels, World, scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.turn.compaction import Compactor

PARAGRAPH = "The quick brown fox jumps over the lazy dog near the river bank. " * 60


def talker(seen: Seen) -> Step | str:
    if "Write the summary now." in seen.user_text:
        return "goal: talk\nprogress: much was said"
    return f"noted: {PARAGRAPH}"


async def compactions(world: World) -> list[Compacted]:
    return [event.data for event in await world.journal() if isinstance(event.data, Compacted)]


def shown(message: ModelMessage) -> tuple[str, str]:
    return type(message).__name__, message.text + (message.call_id if isinstance(message, ToolMessage) else "")


def conversation(requests: list[ModelRequest]) -> list[ModelRequest]:
    return [request for request in requests if request.tools]


async def test_a_long_conversation_is_summarized_between_turns(tmp_path: Path) -> None:
    model = FakeModel(script=talker)
    async with scenario(tmp_path, model, settings={"model": {"context_tokens_max": 24_000}}) as world:
        for number in range(14):
            await world.ada.says(f"part {number}: {PARAGRAPH}")
            await world.happens(world.ada.thread, "turn_finished", number + 1)
        found = await compactions(world)
        assert found
        assert "progress: much was said" in found[0].summary
        last = conversation(list(model.requests))[-1].messages
        assert "progress: much was said" in last[0].text
        assert "part 13" in last[-1].text
        texts = [event.data for event in await world.journal()]
        assert sum(isinstance(data, TurnFinished) for data in texts) == 14, "nothing leaves the journal"


def watchers() -> int:
    """Return the number of background summary tasks that are still in memory."""
    name = f"{Compactor.after_turn.__qualname__}.<locals>.watch"
    return sum(isinstance(one, FunctionType) and one.__qualname__ == name for one in gc.get_objects())


async def test_summarized_messages_are_freed(tmp_path: Path) -> None:
    """A reference cycle would keep the messages in memory until the next garbage collection."""
    begun = list[Gate]()

    def script(seen: Seen) -> Step | str:
        if "Write the summary now." not in seen.user_text:
            return talker(seen)
        begun.append(Gate())
        asyncio.get_running_loop().call_later(0.05, begun[-1].open)
        return Reply("progress: much was said", gate=begun[-1])

    async with scenario(
        tmp_path, FakeModel(script=script), settings={"model": {"context_tokens_max": 24_000}}
    ) as world:
        gc.collect()
        gc.disable()
        try:
            for number in range(14):
                await world.ada.says(f"part {number}: {PARAGRAPH}")
                await world.happens(world.ada.thread, "turn_finished", number + 1)
                await world.is_quiet()
                if begun:
                    await world.happens(world.ada.thread, "compacted", len(begun))
            await asyncio.to_thread(until, lambda: watchers() <= 1)  # the last ones may just be ending
        finally:
            gc.enable()
        assert len(begun) > 2


async def test_a_failed_summary_keeps_the_journal_and_is_reported(tmp_path: Path) -> None:
    def script(seen: Seen) -> Step | str:
        if "Write the summary now." in seen.user_text:
            return Refusal(400, "I would rather not.")
        return f"noted: {PARAGRAPH}"

    async with scenario(
        tmp_path, FakeModel(script=script), settings={"model": {"context_tokens_max": 16_000}}
    ) as world:
        for number in range(6):
            await world.ada.says(f"part {number}: {PARAGRAPH}")
            await world.happens(world.ada.thread, "turn_finished", number + 1)
        assert not await compactions(world)
        notes = [event.data for event in await world.journal() if isinstance(event.data, Failed)]
        assert notes
        assert all(note.kind == "compaction" and not note.fatal for note in notes)
        outcomes = [event.data.outcome for event in await world.journal() if isinstance(event.data, TurnFinished)]
        assert outcomes == ["done"] * 6


async def test_a_new_message_does_not_wait_for_a_background_summary(tmp_path: Path) -> None:
    gate = Gate()

    def script(seen: Seen) -> Step | str:
        if "Write the summary now." in seen.user_text:
            return Reply("too late", gate=gate)
        return "here" if "urgent" in seen.user_text else f"noted: {PARAGRAPH}"

    async with scenario(
        tmp_path, FakeModel(script=script), settings={"model": {"context_tokens_max": 24_000}}
    ) as world:
        await filled(world, gate)
        await world.ada.says("urgent")
        await world.ada.sees("here")
        gate.open()


async def test_a_message_accepted_by_another_process_ends_a_background_summary(tmp_path: Path) -> None:
    gate = Gate()

    def script(seen: Seen) -> Step | str:
        if "Write the summary now." in seen.user_text:
            return Reply("too late", gate=gate)
        return "here" if "urgent" in seen.user_text else f"noted: {PARAGRAPH}"

    clock = SystemClock()
    async with scenario(
        tmp_path, FakeModel(script=script), settings={"model": {"context_tokens_max": 24_000}}
    ) as world:
        await filled(world, gate)
        thread, key = world.ada.thread, clock.new_id()
        prompt = Prompt(thread, key, "urgent", Author("ada", trusted=True), clock.now(), message_id=key)
        await world.app[Store].inbox.accept(prompt, 5)
        await world.app[Backend].engine.woken(thread)
        await world.ada.sees("here")
        gate.open()


class Slow:
    """Delays the readable files until the test opens the gate."""

    def __init__(self, inner: Callable[[ThreadId, list[Event]], Awaitable[None]]) -> None:
        self.reached, self.gate = asyncio.Event(), asyncio.Event()
        self._inner = inner

    async def project(self, thread: ThreadId, events: list[Event]) -> None:
        self.reached.set()
        await self.gate.wait()
        await self._inner(thread, events)


async def test_a_message_right_before_a_background_summary_does_not_wait_for_it(tmp_path: Path) -> None:
    gate = Gate()

    def script(seen: Seen) -> Step | str:
        if "Write the summary now." in seen.user_text:
            return Reply("too late", gate=gate)
        return "here" if "urgent" in seen.user_text else f"noted: {PARAGRAPH}"

    small = {"model": {"context_tokens_max": 24_000}}
    async with scenario(tmp_path / "first", FakeModel(script=script), settings=small) as world:
        turns = await filled(world, gate)
        gate.open()
    gate = Gate()
    async with scenario(tmp_path / "second", FakeModel(script=script), settings=small) as world:
        for number in range(1, turns):
            await world.ada.says(f"part {number}: {PARAGRAPH}")
            await world.happens(world.ada.thread, "turn_finished", number)
    async with scenario(tmp_path / "second", world.model, settings=small) as world:
        services = world.app[Orchestrator].services
        slow = Slow(services.project)
        world.app[Orchestrator].services = msgspec.structs.replace(services, project=slow.project)
        await world.ada.says(f"part {turns}: {PARAGRAPH}")
        await slow.reached.wait()
        await world.ada.says("urgent")
        slow.gate.set()
        await world.ada.sees("here")
        gate.open()


async def filled(world: World, gate: Gate) -> int:
    number = 0
    while not gate.reached.is_set():
        number += 1
        await world.ada.says(f"part {number}: {PARAGRAPH}")
        await world.happens(world.ada.thread, "turn_finished", number)
        await world.app[Clock].sleep(0.02)
    return number


async def test_a_conversation_cleared_during_its_summary_stays_cleared(tmp_path: Path) -> None:
    gate = Gate()

    def script(seen: Seen) -> Step | str:
        if "Write the summary now." in seen.user_text:
            return Reply("progress: much was said", gate=gate)
        return f"noted: {PARAGRAPH}"

    model = FakeModel(script=script)
    async with scenario(tmp_path, model, settings={"model": {"context_tokens_max": 24_000}}) as world:
        number = await filled(world, gate)
        await world.app[Orchestrator].clear(world.ada.thread, "ada")
        gate.open()
        while world.app[Orchestrator].running:
            await world.app[Clock].sleep(0.02)
        await world.ada.says("Where were we?")
        await world.happens(world.ada.thread, "turn_finished", number + 1)
        (asked,) = conversation(list(model.requests))[-1].messages
        assert "Where were we?" in asked.text


async def test_an_overflow_is_answered_by_a_summary_and_one_retry(tmp_path: Path) -> None:
    refused: list[str] = []

    def script(seen: Seen) -> Step | str:
        if "Write the summary now." in seen.user_text:
            return "the gist"
        if "part 9" in seen.user_text and not refused:
            refused.append(seen.user_text)
            return Refusal(400, "maximum context length exceeded", code="context_length_exceeded")
        return f"noted: {PARAGRAPH}"

    model = FakeModel(script=script)
    settings = {"context": {"keep_recent_tokens": 2000}}
    async with scenario(tmp_path, model, settings=settings) as world:
        for number in range(10):
            await world.ada.says(f"part {number}: {PARAGRAPH}")
            await world.happens(world.ada.thread, "turn_finished", number + 1)
        (found,) = await compactions(world)
        assert (found.reason, found.summary) == ("overflow", "the gist")
        assert "the gist" in model.requests[-1].messages[0].text


@pytest.mark.parametrize("is_stated", [True, False])
async def test_an_unknown_window_is_learned_from_an_overflow(tmp_path: Path, *, is_stated: bool) -> None:
    """Shoal uses the window that the error states. If it states none, Shoal assumes half of the rejected size."""
    real, refused = 12_000, list[int]()

    def script(seen: Seen) -> Step | str:
        size = len(seen.prompt) // 4
        if size > real:
            refused.append(size)
            words = f"maximum context length is {real} tokens" if is_stated else "input exceeds context length"
            return Refusal(400, words, code="context_length_exceeded")
        return "the gist" if "Write the summary now." in seen.user_text else "noted"

    model = FakeModel(script=script)
    async with scenario(tmp_path, model) as world:
        models = world.app[Models]
        assert isinstance(models, FakeModels)
        models.context_tokens = 0
        for number in range(6):
            await world.ada.says(f"part {number}: {PARAGRAPH * 20}")
            await world.happens(world.ada.thread, "turn_finished", number + 1)
        finished = [event.data for event in await world.journal() if isinstance(event.data, TurnFinished)]
        assert [one.outcome for one in finished] == ["done"] * 6
        assert 1 <= len(refused) <= (1 if is_stated else 4), "it is learnt once, not anew by every turn"
        notes = [note for note in world.app[Notices].notes if "context window of demo is unknown" in note]
        assert len(notes) == 1
    async with scenario(tmp_path, FakeModel("noted")) as world:
        assert await world.app[Store].settings.get("windows", "demo") == "128000"


async def test_instructions_are_fitted_to_a_learned_window(tmp_path: Path) -> None:
    def script(seen: Seen) -> Step | str:
        if len(seen.prompt) // 4 > 2000:
            return Refusal(400, "maximum context length is 2000 tokens", code="context_length_exceeded")
        return "there you are"

    model = FakeModel(script=script)
    async with scenario(tmp_path, model) as world:
        for number in (1, 2):
            await world.ada.says("hello")
            await world.happens(world.ada.thread, "turn_finished", number)
        assert world.chat.texts(world.ada.thread) == ["there you are"] * 2
        assert len(model.requests) == 3, "the window is learnt once"
        assert len(model.requests[1].tools) < len(model.requests[0].tools)


async def test_a_failed_summary_drops_nothing(tmp_path: Path) -> None:
    def script(seen: Seen) -> Step | str:
        if "Write the summary now." in seen.user_text:
            return Refusal(400, "no summaries today")
        if "part 4" in seen.user_text and len(model.requests) == 5:
            return Refusal(400, "maximum context length exceeded", code="context_length_exceeded")
        return f"noted: {PARAGRAPH}"

    model = FakeModel(script=script)
    async with scenario(tmp_path, model, settings={"context": {"keep_recent_tokens": 200}}) as world:
        for number in range(6):
            await world.ada.says(f"part {number}: {PARAGRAPH}")
            await world.happens(world.ada.thread, "turn_finished", number + 1)
        assert not await compactions(world)
        notes = [event.data for event in await world.journal() if isinstance(event.data, Failed)]
        assert [(note.kind, note.fatal) for note in notes] == [("compaction", False)]
        whole, last = model.requests[4], model.requests[6]
        assert "part 0" in whole.messages[0].text
        assert "part 0" not in str(last.messages)
        assert last.messages[-1] == whole.messages[-1]
        assert "part 0" in model.requests[7].messages[0].text


async def test_the_window_covers_the_last_day(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel("one", "two", "three")
    async with scenario(tmp_path, model, clock=clock) as world:
        for hours, text, answer in ((0, "yesterday", "one"), (20, "this morning", "two"), (5, "now", "three")):
            clock.skip(hours * 3600)
            await world.ada.says(text)
            await world.ada.sees(answer)
        texts = [message.text for message in model.requests[-1].messages]
        assert not any("yesterday" in text for text in texts)
        assert any("this morning" in text for text in texts)
        assert any("now" in text for text in texts)


async def test_the_window_can_be_unlimited(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel("one", "two")
    settings = {"context": {"window_hours": 0}}
    async with scenario(tmp_path, model, clock=clock, settings=settings) as world:
        await world.ada.says("long ago")
        await world.ada.sees("one")
        clock.skip(90 * 86_400)
        await world.ada.says("now")
        await world.ada.sees("two")
        assert len(model.requests[-1].messages) == 3


@pytest.mark.slow
async def test_each_request_starts_with_the_previous_one(tmp_path: Path) -> None:
    """Provider caches work only if the prefix is unchanged."""

    def script(seen: Seen) -> Step | str:
        turn = seen.user_text.split("turn ")[-1].split()[0].rstrip(".")
        if seen.rounds == 0 and int(turn) % 5 == 0:
            fact = f'{{"text": "fact {turn} is worth keeping", "scope": "channel"}}'
            return Reply(calls=(Call("remember", fact), Call("time", "{}")))
        return f"that was turn {turn}. {PARAGRAPH[:300]}"

    clock = ManualClock()
    model = FakeModel(script=script)
    async with scenario(tmp_path, model, clock=clock) as world:
        bob = world.person("bob", "2")
        for number in range(50):
            clock.skip(30)
            await world.ada.says(f"turn {number}")
            await bob.says(f"turn {number}")
            for person in (world.ada, bob):
                await world.happens(person.thread, "turn_finished", number + 1)
        for person in (world.ada, bob):
            mine = [request for request in model.requests if request.cache_key == person.thread]
            assert len(mine) == 60
            for before, after in pairwise(mine):
                assert after.system == before.system
                assert after.tools == before.tools
                assert [shown(m) for m in after.messages[: len(before.messages)]] == [shown(m) for m in before.messages]
        last = next(request for request in reversed(model.requests) if request.cache_key == world.ada.thread)
        assert any("fact 45" in message.text for message in last.messages)
        usages = [event.data.usage for event in await world.journal() if isinstance(event.data, TurnFinished)]
        cached, sent = sum(one.cached_tokens for one in usages), sum(one.input_tokens for one in usages)
        assert cached / sent >= 0.95


class FullOnce(Journal):
    is_full = True

    async def open_turn(self, lease: Lease, prompt: Prompt, commit: Commit, more: Sequence[Prompt] = ()) -> Committed:
        if self.is_full:
            self.is_full = False
            raise StoreFull("The disk is full.")
        return await super().open_turn(lease, prompt, commit, more)


async def test_a_prompt_is_stored_even_if_its_first_turn_cannot_be_opened(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel("hello"), clock=clock) as world:
        store = world.app[Store]
        store.journal = FullOnce(store.driver, clock)
        await world.ada.says("hi")
        await in_time(clock, world.ada.sees("hello"))
        (started,) = [event.data for event in await world.journal() if isinstance(event.data, TurnStarted)]
        assert await store.journal.prompt(started.system) is not None
