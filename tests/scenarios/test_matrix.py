"""The whole app on Matrix: what people see there, also after a restart, an outage and a storm of refusals."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.scenarios.kit import in_time

from shoal.agents.registry import AgentRegistry
from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.permissions import Asker
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.testing.model import Call, FakeModel, Gate, Reply, Seen
from shoal.testing.platforms.matrix import TOKEN, FakeMatrix
from shoal.testing.platforms.matrix_wire import Written
from shoal.testing.platforms.matrix_world import ADA, BOT
from shoal.testing.scenario import FakeModels
from shoal.threads.orchestrator import Orchestrator

SECONDS_MAX = 60.0
STEP_SECONDS = 0.5
BEN = "@ben:harbour.example"
MAKES = Reply(calls=(Call("bash", '{"command": "echo x > made"}'),))


class Pier:
    """A room of ada's own with the bot, and a larger one."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.fake = FakeMatrix(clock)
        self.direct = self.fake.add_room()
        self.harbour = self.fake.add_room(ADA, BEN, name="harbour")

    async def sees(self, room: str, part: str) -> Written:
        """What the bot wrote, as soon as it stands there; time passes meanwhile."""
        async with asyncio.timeout(SECONDS_MAX):
            return await in_time(self.clock, self.fake.sees(room, part), STEP_SECONDS)


@pytest.fixture
async def pier() -> AsyncIterator[Pier]:
    made = Pier(ManualClock())
    await made.fake.start()
    yield made
    await made.fake.stop()


def account_of(pier: Pier, **more: object) -> Mapping[str, object]:
    """A bot whose owner is ada."""
    return {"homeserver": pier.fake.address, "user": BOT, "access_token": TOKEN, "owner": ADA, **more}


@asynccontextmanager
async def running(home: Path, pier: Pier, model: FakeModel, profile: str = "open") -> AsyncGenerator[Services]:
    """The app with one bot that has synced once."""
    overrides: Mapping[str, object] = {
        "platforms": {"matrix": [account_of(pier)]},
        "permissions": {"default_profile": profile},
        "sandbox": {"kind": "host"},
    }
    parts = Overrides(clock=pier.clock, models=FakeModels(model), sandbox=HostSandbox())
    syncs = pier.fake.syncs
    empty_database(home / "shoal.db")
    async with open_app(load_config(home, {}, overrides), parts) as app:
        await in_time(pier.clock, pier.fake.until(lambda: pier.fake.syncs > syncs or None))
        yield app


async def test_a_question_in_a_room_is_answered_in_a_thread_of_its_own(tmp_path: Path, pier: Pier) -> None:
    async with running(tmp_path, pier, FakeModel("Hello **in here**", "And again")):
        asked = await pier.fake.says(pier.harbour, f"{BOT}: what is the tide?")
        first = await pier.sees(pier.harbour, "Hello in here")
        await pier.fake.says(pier.harbour, "thanks, and tomorrow?", thread=asked)  # not named, but followed
        second = await pier.sees(pier.harbour, "And again")
    assert first.thread == second.thread == asked
    assert "<strong>in here</strong>" in first.html


async def test_an_answer_is_shown_while_it_is_written(tmp_path: Path, pier: Pier) -> None:
    gate = Gate()
    model = FakeModel(Reply("Let me count: one, two, three, four, five", gate=gate, gate_at=2))
    async with running(tmp_path, pier, model):
        await pier.fake.says(pier.direct, "count")
        shown = await in_time(pier.clock, pier.fake.until(lambda: next(iter(pier.fake.said(pier.direct)), None)))
        assert shown is not None
        assert shown.text.endswith(" …")
        gate.open()
        whole = await pier.sees(pier.direct, "five")
    assert whole.id == shown.id
    assert whole.edits > 0


async def test_an_approval_is_given_by_an_emoji(tmp_path: Path, pier: Pier) -> None:
    async with running(tmp_path, pier, FakeModel(MAKES, "It is made."), profile="standard") as app:
        await pier.fake.says(pier.direct, "go")
        card = await pier.sees(pier.direct, "echo x > made")
        await pier.fake.reacts(pier.direct, card.id, "✅", user=BEN)  # he may not
        await pier.fake.reacts(pier.direct, card.id, "✅")
        await pier.sees(pier.direct, "It is made.")
        assert (app[AgentRegistry].spec("main").workspace / "made").read_text() == "x\n"
        await pier.sees(pier.direct, "it ran")


async def test_an_approval_is_given_in_words(tmp_path: Path, pier: Pier) -> None:
    async with running(tmp_path, pier, FakeModel(MAKES, "It is made."), profile="standard") as app:
        await pier.fake.says(pier.direct, "go")
        card = await pier.sees(pier.direct, "echo x > made")
        (asked,) = await app[Store].approvals.search()
        assert f"allow {asked.id[-8:]}" in card.text
        await pier.fake.says(pier.direct, f"allow {asked.id[-8:]}")
        await pier.sees(pier.direct, "It is made.")


async def test_a_reaction_or_a_command_stops_the_turn(tmp_path: Path, pier: Pier) -> None:
    counting = [Reply("Let me count: one, two, three, four, five", gate=Gate(), gate_at=2) for _ in range(2)]
    async with running(tmp_path, pier, FakeModel(*counting)):
        await pier.fake.says(pier.direct, "count")
        shown = await in_time(pier.clock, pier.fake.until(lambda: next(iter(pier.fake.said(pier.direct)), None)))
        assert shown is not None
        await pier.fake.reacts(pier.direct, shown.id, "❌")
        assert (await pier.sees(pier.direct, "Stopped")).id == shown.id
        await pier.fake.says(pier.direct, "count again")
        again = await in_time(
            pier.clock,
            pier.fake.until(lambda: next((one for one in pier.fake.said(pier.direct) if "…" in one.text), None)),
        )
        assert again is not None
        await pier.fake.says(pier.direct, "!stop")

        def stopped(preview: str = again.id) -> Written | None:
            return next((one for one in pier.fake.said(pier.direct) if one.id == preview and "Stop" in one.text), None)

        await in_time(pier.clock, pier.fake.until(stopped))


async def test_files_go_both_ways(tmp_path: Path, pier: Pier) -> None:
    calls = Reply(calls=(Call("upload", '{"path": "tides.txt"}'),))
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "echo high > tides.txt"}'),)), calls, "Sent.")
    async with running(tmp_path, pier, model):
        await pier.fake.sends_file(pier.direct, "question.txt", b"When is high tide?\n")
        await pier.sees(pier.direct, "Sent.")
    assert "question.txt" in str(model.requests[0].messages[-1])
    assert [one.file for one in pier.fake.said(pier.direct) if one.file] == [("tides.txt", b"high\n")]


async def test_a_restart_answers_once_what_came_meanwhile(tmp_path: Path, pier: Pier) -> None:
    async with running(tmp_path, pier, FakeModel("first")):
        await pier.fake.says(pier.direct, "one")
        await pier.sees(pier.direct, "first")
    await pier.fake.says(pier.direct, "while it was away")
    async with running(tmp_path, pier, FakeModel("second")):
        await pier.sees(pier.direct, "second")
    assert [message.text for message in pier.fake.said(pier.direct)] == ["first", "second"]


def tides(seen: Seen) -> str:
    """What the model answers."""
    return "It is high." if "then" in seen.user_text else "The tide is low."


async def test_a_post_that_was_never_confirmed_is_found_although_its_transaction_is_forgotten(
    tmp_path: Path, pier: Pier
) -> None:
    async with running(tmp_path, pier, FakeModel(script=tides)):
        pier.fake.server.mute = lambda called: "/send/m.room.message/" in called.path
        await pier.fake.says(pier.direct, "how is the tide?")
        await in_time(pier.clock, pier.fake.until(lambda: pier.fake.said(pier.direct) or None), STEP_SECONDS)
    pier.fake.server.mute = lambda _: False
    pier.fake.world.transactions.clear()
    await pier.clock.advance(6 * 3600)
    async with running(tmp_path, pier, FakeModel(script=tides)):
        await pier.fake.says(pier.direct, "and then?")
        await pier.sees(pier.direct, "It is high.")
    assert [message.text for message in pier.fake.said(pier.direct)] == ["The tide is low.", "It is high."]


async def test_an_outage_of_an_hour_loses_nothing_either_way(tmp_path: Path, pier: Pier) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "touch made"}'),)), "after the outage", "and again")
    async with running(tmp_path, pier, model, profile="standard") as app:
        await pier.fake.says(pier.direct, "go")
        await pier.sees(pier.direct, "touch made")
        await pier.fake.stop()
        (asked,) = await app[Store].approvals.search()
        await app[Orchestrator].decide(asked.id, True, Asker(trust="trusted", user=ADA, platform="matrix"))
        for _ in range(60):
            await pier.clock.advance(60)
        assert await app[Store].outbox.depth() > 0
        missed = await pier.fake.says(pier.harbour, f"{BOT} are you there?")
        await pier.fake.start()
        await pier.sees(pier.direct, "after the outage")
        assert (await pier.sees(pier.harbour, "and again")).thread == missed
    assert [message.text for message in pier.fake.said(pier.direct)].count("after the outage") == 1


async def test_a_storm_of_refusals_ends_with_one_reply(tmp_path: Path, pier: Pier) -> None:
    async with running(tmp_path, pier, FakeModel("at last")) as app:
        pier.fake.troubles.extend([("refuse", 5.0), ("fail", 0.0), ("lose", 0.0), ("refuse", 30.0), ("lose", 0.0)])
        await pier.fake.says(pier.direct, "go")
        await pier.sees(pier.direct, "at last")
        async with asyncio.timeout(SECONDS_MAX):
            while await app[Store].outbox.depth():
                await pier.clock.advance(STEP_SECONDS)
    assert [message.text for message in pier.fake.said(pier.direct)] == ["at last"]


async def test_two_bots_answer_each_in_its_own_name(tmp_path: Path, pier: Pier) -> None:
    other = Pier(pier.clock)
    await other.fake.start()
    accounts = [account_of(pier), account_of(other, account="second")]
    overrides: Mapping[str, object] = {"platforms": {"matrix": accounts}, "sandbox": {"kind": "host"}}
    parts = Overrides(clock=pier.clock, models=FakeModels(FakeModel("hello", "hello")), sandbox=HostSandbox())
    async with open_app(load_config(tmp_path, {}, overrides), parts) as app:
        for one in (pier, other):
            await in_time(pier.clock, one.fake.until(lambda one=one: one.fake.syncs or None))
            await one.fake.says(one.direct, "hi")
            await one.sees(one.direct, "hello")
        found = {row.thread.partition(":")[0] for row in await app[Store].journal.threads()}
    assert found == {"matrix", "matrix.second"}
    await other.fake.stop()


async def test_a_stranger_who_wants_to_talk_alone_gets_a_code_and_a_room_of_many_is_declined(
    tmp_path: Path, pier: Pier
) -> None:
    async with running(tmp_path, pier, FakeModel()):
        room = await pier.fake.invites(user="@mallory:harbour.example", direct=True)
        code = await pier.sees(room, "pair")
        declined = await pier.fake.invites(user="@mallory:harbour.example", name="many")
        members = pier.fake.world.rooms[declined].members
        await in_time(pier.clock, pier.fake.until(lambda: members[BOT] == "leave" or None))
    assert "@mallory" not in code.text
