"""The whole app on Google Chat: what people see there, also after an outage, a storm of refusals and a click."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.scenarios.kit import in_time

from shoal.agents.registry import AgentRegistry
from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.connections import Connections
from shoal.kernel.permissions import Asker
from shoal.platforms.google_chat.adapter import GoogleChatAdapter
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.testing.model import Call, FakeModel, Gate, Reply
from shoal.testing.platforms.google_chat import FakeGoogleChat
from shoal.testing.platforms.google_chat_wire import ChatMessage
from shoal.testing.scenario import FakeModels
from shoal.threads.orchestrator import Orchestrator

DIRECT, HARBOUR = "DmAda", "AAAAharbour"
SECONDS_MAX = 60.0
MAKES = Reply(calls=(Call("bash", '{"command": "echo x > made"}'),))


class Quay:
    """An app with direct messages with ada, and a space."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fake = FakeGoogleChat(self.clock)
        self.fake.add(DIRECT, "DIRECT_MESSAGE")
        self.fake.add(HARBOUR, "SPACE")

    async def sees(self, space: str, part: str) -> ChatMessage:
        """What the app wrote, as soon as it stands there; time passes meanwhile."""
        async with asyncio.timeout(SECONDS_MAX):
            return await in_time(self.clock, self.fake.sees(space, part))


@pytest.fixture
async def quay() -> AsyncIterator[Quay]:
    made = Quay()
    await made.fake.start()
    yield made
    await made.fake.stop()


@asynccontextmanager
async def running(home: Path, quay: Quay, model: FakeModel, profile: str = "open") -> AsyncGenerator[Services]:
    """The app with two accounts, whose owner is ada; `quay` delivers to the first."""
    (home / "app.json").write_bytes(quay.fake.key_file())
    first: Mapping[str, object] = {
        **quay.fake.settings(), "service_account_file": "app.json", "owner": "1001",
    }  # fmt: skip
    overrides: Mapping[str, object] = {
        "platforms": {"google_chat": [first, {**first, "account": "second"}]},
        "permissions": {"default_profile": profile},
        "sandbox": {"kind": "host"},
        "web": {"public_url": "https://bot.example.org"},
    }
    parts = Overrides(clock=quay.clock, models=FakeModels(model), sandbox=HostSandbox())
    empty_database(home / "shoal.db")
    async with open_app(load_config(home, {}, overrides), parts) as app:
        await in_time(quay.clock, quay.fake.until(lambda: quay.fake.granted == 2))
        use(quay, app, "google_chat")
        yield app


def use(quay: Quay, app: Services, name: str) -> None:
    """Deliver to this account from now on."""
    adapter = app[Connections].adapters[name]
    assert isinstance(adapter, GoogleChatAdapter)
    quay.fake.deliver = adapter.receive


async def test_a_thread_of_a_space_is_followed_once_it_was_named_there(tmp_path: Path, quay: Quay) -> None:
    """What does not name the app comes by Google Workspace's events."""
    async with running(tmp_path, quay, FakeModel("Hello in here", "And again")):
        await quay.fake.says(HARBOUR, "nothing for you", named=False)
        asked = quay.fake.message(await quay.fake.says(HARBOUR, "what is the tide?"))
        assert (await quay.sees(HARBOUR, "Hello in here")).thread == asked.thread
        await quay.fake.says(HARBOUR, "thanks, and tomorrow?", thread=asked.thread, named=False)
        assert (await quay.sees(HARBOUR, "And again")).thread == asked.thread


async def test_an_answer_is_shown_while_it_is_written(tmp_path: Path, quay: Quay) -> None:
    gate = Gate()
    async with running(tmp_path, quay, FakeModel(Reply("One, two, three, four", gate=gate, gate_at=2))):
        await quay.fake.says(DIRECT, "count")
        await in_time(quay.clock, quay.fake.until(lambda: bool(quay.fake.said(DIRECT))))
        gate.open()
        done = await quay.sees(DIRECT, "three, four")
    assert quay.fake.said(DIRECT) == [done]


@pytest.mark.parametrize("by", ["button", "words"])
async def test_an_approval_is_given(tmp_path: Path, quay: Quay, by: str) -> None:
    async with running(tmp_path, quay, FakeModel(MAKES, "It is made."), profile="standard") as app:
        await quay.fake.says(HARBOUR, "go")
        card = await quay.sees(HARBOUR, "echo x > made")
        (asked,) = await app[Store].approvals.search()
        if by == "button":
            await quay.fake.clicks(card.name, "Allow once")
        else:
            await quay.fake.says(HARBOUR, f"allow {asked.id[-8:]}", thread=card.thread)
        await quay.sees(HARBOUR, "It is made.")
        assert (app[AgentRegistry].spec("main").workspace / "made").read_text() == "x\n"
        await quay.sees(HARBOUR, "it ran")
    assert card.buttons == ()


@pytest.mark.parametrize("by", ["slash", "menu", "reaction"])
async def test_commands_and_reactions_are_obeyed(tmp_path: Path, quay: Quay, by: str) -> None:
    model = FakeModel(Reply("One, two, three, four, five", gate=Gate(), gate_at=2))
    async with running(tmp_path, quay, model) as app:
        await quay.fake.says(DIRECT, "count")
        await in_time(quay.clock, quay.fake.until(lambda: bool(quay.fake.said(DIRECT))))
        (shown,) = quay.fake.said(DIRECT)
        if by == "slash":
            await quay.fake.says(DIRECT, "/stop")
        elif by == "menu":
            await quay.fake.chooses(DIRECT, 4)
        else:
            while await app[Store].outbox.thread_of(f"google_chat:{DIRECT}:", shown.name) is None:
                await quay.clock.advance(1)
            await quay.fake.reacts(shown.name, "❌")
        await quay.sees(DIRECT, "Stopped")


async def test_an_answer_to_a_command_is_for_its_asker_alone(tmp_path: Path, quay: Quay) -> None:
    async with running(tmp_path, quay, FakeModel("never")):
        await quay.fake.says(HARBOUR, "/help")
        told = await quay.sees(HARBOUR, "/status")
    assert told.viewer == "users/1001"


async def test_files_come_in_and_are_named_on_their_way_out(tmp_path: Path, quay: Quay) -> None:
    calls = Reply(calls=(Call("upload", '{"path": "tides.txt"}'),))
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "echo high > tides.txt"}'),)), calls, "Done.")
    async with running(tmp_path, quay, model):
        await quay.fake.sends_file(DIRECT, "question.txt", b"When is high tide?\n")
        await quay.sees(DIRECT, "Done.")
        await quay.sees(DIRECT, "Google Chat accepts no files")
    assert "When is high tide?" in str(model.requests[0].messages[-1])


async def test_events_are_pulled_where_google_cannot_call(tmp_path: Path, quay: Quay) -> None:
    quay.fake.pulls = True
    async with running(tmp_path, quay, FakeModel("pulled")):
        await quay.fake.says(DIRECT, "hello?")
        await quay.sees(DIRECT, "pulled")
        await in_time(quay.clock, quay.fake.until(lambda: not quay.fake.waiting))


async def test_an_outage_of_an_hour_loses_nothing(tmp_path: Path, quay: Quay) -> None:
    async with running(tmp_path, quay, FakeModel(MAKES, "after the outage"), profile="standard") as app:
        await quay.fake.says(DIRECT, "go")
        await quay.sees(DIRECT, "echo x")
        await quay.fake.stop()
        (asked,) = await app[Store].approvals.search()
        await app[Orchestrator].decide(asked.id, True, Asker(trust="trusted", user="1001", platform="google_chat"))
        for _ in range(60):
            await quay.clock.advance(60)
        assert await app[Store].outbox.depth() > 0
        await quay.fake.start()
        await quay.sees(DIRECT, "after the outage")
    assert [message.text for message in quay.fake.said(DIRECT)].count("after the outage") == 1


async def test_a_storm_ends_with_each_reply_once(tmp_path: Path, quay: Quay) -> None:
    async with running(tmp_path, quay, FakeModel("at last", "and once more")):
        quay.fake.troubles.extend([("refuse", 5.0), ("lose", 0.0), ("fail", 0.0), ("refuse", 30.0), ("lose", 0.0)])
        await quay.fake.says(DIRECT, "go")
        await quay.sees(DIRECT, "at last")
        await quay.fake.says(DIRECT, "again")
        await quay.sees(DIRECT, "and once more")
        await in_time(quay.clock, quay.fake.until(lambda: not quay.fake.troubles))
    assert [message.text for message in quay.fake.said(DIRECT)] == ["at last", "and once more"]


async def test_a_stranger_gets_a_code_and_each_account_answers_its_own(tmp_path: Path, quay: Quay) -> None:
    model = FakeModel("one", "two")
    quay.fake.add("DmMallory", "DIRECT_MESSAGE")
    async with running(tmp_path, quay, model) as app:
        await quay.fake.says("DmMallory", "let me in", user="1009")
        await quay.sees("DmMallory", "shoal pair")
        await quay.fake.says(DIRECT, "first")
        await quay.sees(DIRECT, "one")
        use(quay, app, "google_chat.second")
        await quay.fake.says(DIRECT, "second")
        await quay.sees(DIRECT, "two")
        threads = {str(row.thread) for row in await app[Store].journal.threads()}
    assert {f"google_chat:{DIRECT}:0", f"google_chat.second:{DIRECT}:0"} <= threads
