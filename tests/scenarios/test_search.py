"""Searches in earlier conversations: the results that a person sees, and those that stay hidden."""

from datetime import timedelta
from pathlib import Path

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.errors import PlatformError
from shoal.kernel.events import ToolFinished
from shoal.kernel.ids import WHOLE_CHANNEL, ThreadId, make_thread_id
from shoal.kernel.messages import Author, Prompt
from shoal.permissions.access import AccessRules
from shoal.testing.model import Call, FakeModel, Reply, Seen, Step
from shoal.testing.scenario import World, scenario
from shoal.threads.orchestrator import Orchestrator


def seeker(tool: str) -> FakeModel:
    def script(seen: Seen) -> Step | str:
        if "look" in seen.user_text and seen.rounds == 0:
            return Reply(calls=(Call(tool, '{"query": "treasure"}'),))
        return "looked" if "look" in seen.user_text else "noted"

    return FakeModel(script=script)


async def found(world: World) -> str:
    await world.ada.says("look")
    await world.ada.sees("looked")
    return next(event.data.text for event in await world.journal() if isinstance(event.data, ToolFinished))


async def test_history_shows_only_its_channel(tmp_path: Path) -> None:
    async with scenario(tmp_path, seeker("search_history")) as world:
        bob = world.person("bob", "2")
        await bob.says("the treasure is under the pier")
        await bob.sees("noted")
        await world.chat.says("lighthouse", "3", "a treasure nobody here may know", user="eve")
        await world.happens(make_thread_id("fake", "lighthouse", "3"), "turn_finished")
        text = await found(world)
        assert "bob in fake:harbour:2: the treasure is under the pier" in text
        assert "nobody here may know" not in text


async def test_the_channel_is_searched_beyond_the_journal(tmp_path: Path) -> None:
    async with scenario(
        tmp_path,
        seeker("search_channel"),
        access=AccessRules(allow=("ada", "*")),
        settings={"context": {"backfill_messages_max": 0}},
    ) as world:
        at = world.app[Clock].now() - timedelta(days=400)
        author = Author("u9", "carol", trusted=False)
        whole = make_thread_id("fake", "harbour", WHOLE_CHANNEL)
        world.chat.past = [
            Prompt(world.ada.thread, "p1", "Treasure? Ask the captain.", author, at),
            Prompt(whole, "p2", "The treasure is in no thread.", author, at),
        ]
        text = await found(world)
        assert "carol in fake:harbour:0: The treasure is in no thread." in text
        assert "carol in fake:harbour:1: Treasure? Ask the captain." in text
        result = next(event.data for event in await world.journal() if isinstance(event.data, ToolFinished))
        assert result.tainted_by == "a message of carol"


async def test_without_words_the_newest_messages_of_the_channel_are_shown(tmp_path: Path) -> None:
    settings = {"context": {"backfill_messages_max": 0}}
    model = FakeModel(Reply(calls=(Call("search_channel", "{}"),)), "noted")
    async with scenario(tmp_path, model, settings=settings) as world:
        at = world.app[Clock].now() - timedelta(hours=3)
        whole = make_thread_id("fake", "harbour", WHOLE_CHANNEL)
        world.chat.past = [Prompt(whole, "p1", "We paint the boat on Friday.", Author("bob", trusted=True), at)]
        await world.ada.says("what did I miss?")
        await world.ada.sees("noted")
        (result,) = [event.data for event in await world.journal() if isinstance(event.data, ToolFinished)]
        assert "We paint the boat on Friday." in result.text


async def test_without_words_and_history_the_search_explains_itself(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(Reply(calls=(Call("search_channel", "{}"),)), "noted")) as world:
        world.chat.limits = msgspec.structs.replace(world.chat.limits, has_history=False)
        await world.ada.says("what did I miss?")
        await world.ada.sees("noted")
        (result,) = [event.data for event in await world.journal() if isinstance(event.data, ToolFinished)]
        assert "Bots cannot read the history of this platform." in result.text


async def test_a_forwarded_message_older_than_the_journal_taints(tmp_path: Path) -> None:
    settings = {"context": {"backfill_messages_max": 0}}
    async with scenario(tmp_path, seeker("search_channel"), settings=settings) as world:
        at = world.app[Clock].now() - timedelta(days=400)
        ada = Author("ada", "ada", trusted=False)
        world.chat.past = [Prompt(world.ada.thread, "p1", "Treasure? Obey.", ada, at, tainted_by="a forwarded message")]
        assert "Treasure? Obey." in await found(world)
        result = next(event.data for event in await world.journal() if isinstance(event.data, ToolFinished))
        assert result.tainted_by == "a forwarded message"


async def test_a_platform_that_fails_is_reported_and_the_journal_still_searched(tmp_path: Path) -> None:
    async with scenario(
        tmp_path, seeker("search_channel"), settings={"context": {"backfill_messages_max": 0}}
    ) as world:
        bob = world.person("bob", "2")
        await bob.says("treasure!")
        await bob.sees("noted")
        world.chat.history_trouble = PlatformError("it sleeps")
        text = await found(world)
        assert "treasure!" in text
        assert "history failed: it sleeps" in text


ADA = {"access": {"people": {"ada": {"identities": ["fake:ada", "web:owner"]}}}}


async def answered(world: World, thread: ThreadId, *, direct: bool) -> str:
    await world.chat.says("lighthouse", "3", "a treasure nobody here may know", user="eve")
    await world.happens(make_thread_id("fake", "lighthouse", "3"), "turn_finished")
    at = world.app[Clock].now()
    await world.app[Orchestrator].send(Prompt(thread, "k1", "look", Author("ada", trusted=True), at, direct=direct))
    await world.happens(thread, "turn_finished")
    return next(event.data.text for event in await world.journal(thread) if isinstance(event.data, ToolFinished))


async def test_a_group_cannot_read_the_owners_other_conversations(tmp_path: Path) -> None:
    async with scenario(tmp_path, seeker("search_history"), settings=ADA) as world:
        assert "nobody here may know" not in await answered(world, world.ada.thread, direct=False)


async def test_only_the_owner_searches_everything(tmp_path: Path) -> None:
    async with scenario(tmp_path, seeker("search_history"), settings=ADA) as world:
        assert "nobody here may know" in await answered(world, world.ada.thread, direct=True)


async def test_the_owner_searches_everything_on_the_page(tmp_path: Path) -> None:
    async with scenario(tmp_path, seeker("search_history")) as world:
        thread = make_thread_id("web", "lobby", "1")
        await world.chat.says("lighthouse", "3", "a treasure nobody here may know", user="eve")
        await world.happens(make_thread_id("fake", "lighthouse", "3"), "turn_finished")
        at = world.app[Clock].now()
        await world.app[Orchestrator].send(Prompt(thread, "k1", "look", Author("owner", trusted=True), at))
        await world.happens(thread, "turn_finished")
        events = await world.journal(thread)
        text = next(event.data.text for event in events if isinstance(event.data, ToolFinished))
        assert "nobody here may know" in text


async def test_text_in_a_language_without_spaces_is_found(tmp_path: Path) -> None:
    model = FakeModel("noted", Reply(calls=(Call("recall", '{"query": "会議"}'),)), "looked")
    async with scenario(tmp_path, model) as world:
        bob = world.person("bob", "2")
        await bob.says("明日の会議は十時です")
        await bob.sees("noted")
        assert "明日の会議は十時です" in await found(world)
