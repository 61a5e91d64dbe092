"""Missed messages are added before the next turn. Each is added once, and the bot's own messages are skipped."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.clock import Clock
from shoal.kernel.errors import PlatformError
from shoal.kernel.events import ApprovalRequested, Failed, UserSaid
from shoal.kernel.messages import Author, Prompt
from shoal.permissions.access import AccessRules
from shoal.sandbox.host import HostSandbox
from shoal.testing.chat import FakeChat
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import FakeModels, World, scenario
from shoal.threads.orchestrator import Orchestrator


def missed(world: World, key: str, text: str, *, minutes: float, user: str = "bob") -> Prompt:
    at = world.app[Clock].now() - timedelta(minutes=minutes)
    return Prompt(world.ada.thread, key, text, Author(user, user, trusted=True), at, message_id=key)


async def backfilled(world: World) -> list[str]:
    datas = [event.data for event in await world.journal() if isinstance(event.data, UserSaid)]
    return [data.text for data in datas if data.backfill]


async def test_missed_messages_are_included_first_and_once(tmp_path: Path) -> None:
    clock, model = ManualClock(), FakeModel("one", "two")
    async with scenario(tmp_path, model, clock=clock) as world:
        world.chat.past = [
            missed(world, "p1", "  the pier is closed\r\n", minutes=30),
            missed(world, "p2", "until Monday", minutes=20),
        ]
        await world.ada.says("can I go?")
        await world.ada.sees("one")
        first, second, asked = model.requests[-1].messages
        assert first.text.endswith("UTC) the pier is closed")
        assert first.text.startswith("[bob] (")
        assert "until Monday" in second.text
        assert "can I go?" in asked.text
        await clock.advance(60)
        await world.ada.says("and now?")
        await world.ada.sees("two")
        assert await backfilled(world) == ["the pier is closed", "until Monday"]


async def test_known_own_old_later_and_empty_messages_are_skipped(tmp_path: Path) -> None:
    clock, model = ManualClock(), FakeModel("one", "two")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("hello", message_id="k1")
        posted = await world.ada.sees("one")
        await clock.advance(600)
        world.chat.past = [
            missed(world, "p0", "long ago", minutes=26 * 60),
            missed(world, "k1", "hello", minutes=10),
            missed(world, posted.id, "one", minutes=9, user="shoal"),
            missed(world, "p3", "   ", minutes=8),
            missed(world, "p4", "this one", minutes=7),
            missed(world, "p5", "from the future", minutes=-5),
        ]
        await world.ada.says("again")
        await world.ada.sees("two")
        assert await backfilled(world) == ["this one"]


async def test_the_number_of_backfilled_messages_is_bounded(tmp_path: Path) -> None:
    settings = {"context": {"backfill_messages_max": 3}}
    async with scenario(tmp_path, FakeModel("one"), clock=ManualClock(), settings=settings) as world:
        world.chat.past = [missed(world, f"p{number}", f"line {number}", minutes=60 - number) for number in range(20)]
        await world.ada.says("hi")
        await world.ada.sees("one")
        assert await backfilled(world) == ["line 17", "line 18", "line 19"]


async def test_cleared_messages_are_not_backfilled(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel("one", "two"), clock=clock) as world:
        await world.ada.says("hi")
        await world.ada.sees("one")
        await clock.advance(600)
        await world.app[Orchestrator].clear(world.ada.thread, "ada")
        await clock.advance(600)
        world.chat.past = [
            missed(world, "p1", "before", minutes=15),
            missed(world, "p2", "after", minutes=5),
        ]
        await world.ada.says("again")
        await world.ada.sees("two")
        assert await backfilled(world) == ["after"]


async def test_an_unreadable_history_is_noted_and_the_turn_continues(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("one")) as world:
        world.chat.history_trouble = PlatformError("it sleeps")
        await world.ada.says("hi")
        await world.ada.sees("one")
        (note,) = [event.data for event in await world.journal() if isinstance(event.data, Failed)]
        assert (note.kind, note.fatal, note.detail) == ("backfill", False, "it sleeps")


@asynccontextmanager
async def guarded(home: Path, model: FakeModel, rules: AccessRules) -> AsyncGenerator[World]:
    clock = ManualClock()
    chat = FakeChat(clock=clock)
    config = load_config(home, {}, {"permissions": {"default_profile": "open"}, "sandbox": {"kind": "host"}})
    parts = Overrides(
        clock=clock, models=FakeModels(model), sandbox=HostSandbox(), adapters=(chat,), access={chat.platform: rules}
    )
    async with open_app(config, parts) as app:
        yield World(app, chat, model)


async def test_an_untrusted_persons_missed_message_is_wrapped_and_taints(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "curl --version"}'),)), "done")
    async with guarded(tmp_path, model, AccessRules(allow=("ada",))) as world:
        world.chat.past = [missed(world, "p1", "run curl for me", minutes=5, user="eve")]
        await world.ada.says("what did I miss?")
        await world.ada.is_asked()
        assert "<untrusted" in model.requests[-1].messages[0].text
        (request,) = [event.data for event in await world.journal() if isinstance(event.data, ApprovalRequested)]
        assert "trusted people (eve)" in request.reason


async def test_a_missed_message_of_a_trusted_person_is_trusted(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "curl --version"}'),)), "done")
    async with guarded(tmp_path, model, AccessRules(allow=("ada", "bob"))) as world:
        world.chat.past = [missed(world, "p1", "run curl for me", minutes=5)]
        await world.ada.says("what did I miss?")
        await world.ada.sees("done")
        assert "<untrusted" not in model.requests[-1].messages[0].text


async def test_open_access_does_not_make_anyone_trusted(tmp_path: Path) -> None:
    async with guarded(tmp_path, FakeModel("done"), AccessRules(owners=("ada",), allow=("*",))) as world:
        world.chat.past = [
            missed(world, "p1", "one", minutes=5, user="eve"),
            missed(world, "p2", "two", minutes=4, user="ada"),
        ]
        await world.ada.says("what did I miss?")
        await world.ada.sees("done")
        said = [event.data for event in await world.journal() if isinstance(event.data, UserSaid)]
        assert [(one.author.id, one.author.trusted) for one in said if one.backfill] == [("eve", False), ("ada", True)]
