"""The whole app on Slack: what people see there, also after a restart, an outage, a storm of refusals and a click."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.scenarios.kit import in_time

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.ids import ThreadId
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.testing.model import Call, FakeModel, Gate, Reply
from shoal.testing.platforms.slack import APP_TOKEN, BOT_TOKEN, FakeSlack
from shoal.testing.platforms.slack_methods import BOT
from shoal.testing.platforms.slack_wire import Room, Sent
from shoal.testing.scenario import FakeModels

DIRECT, HARBOUR = "D00000001", "C00000001"
SECONDS_MAX = 60.0
MAKES = Reply(calls=(Call("bash", '{"command": "echo x > made"}'),))


class Pier:
    """A workspace with one channel, and a direct conversation with ada."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.fake = FakeSlack()
        self.fake.add_room(Room(DIRECT, "", "im", ["UADA", BOT]))
        self.fake.add_room(Room(HARBOUR, "harbour", "channel", ["UADA", "UBEA", "USTRANGER", BOT]))

    async def sees(self, channel: str, part: str) -> Sent:
        """What the bot wrote, as soon as it stands there; time passes meanwhile."""
        async with asyncio.timeout(SECONDS_MAX):
            return await in_time(self.clock, self.fake.sees(channel, part))

    async def hears(self, part: str) -> None:
        """Wait for an answer that its asker alone can read."""
        async with asyncio.timeout(SECONDS_MAX):
            said = self.fake.until(lambda: any(part in str(answer["text"]) for answer in self.fake.answers))
            await in_time(self.clock, said)

    def account(self, **more: object) -> Mapping[str, object]:
        """The account's settings."""
        address = f"{self.fake.address}/api/"
        return {"bot_token": BOT_TOKEN, "app_token": APP_TOKEN, "api_base": address, "owner": "UADA", **more}


@pytest.fixture
async def pier() -> AsyncIterator[Pier]:
    made = Pier(ManualClock())
    await made.fake.start()
    yield made
    await made.fake.stop()


@asynccontextmanager
async def running(
    home: Path, pier: Pier, model: FakeModel, profile: str = "open", accounts: list[object] | None = None
) -> AsyncGenerator[Services]:
    """The app with one app of Slack's, whose owner is ada."""
    overrides: Mapping[str, object] = {
        "platforms": {"slack": accounts or [pier.account()]},
        "permissions": {"default_profile": profile},
        "sandbox": {"kind": "host"},
    }
    parts = Overrides(clock=pier.clock, models=FakeModels(model), sandbox=HostSandbox())
    empty_database(home / "shoal.db")
    async with open_app(load_config(home, {}, overrides), parts) as app:
        yield app


async def test_the_home_tab_says_how_the_agent_is_talked_to(tmp_path: Path, pier: Pier) -> None:
    async with running(tmp_path, pier, FakeModel()):
        await pier.fake.opens_home("UADA", "messages")
        await pier.fake.opens_home("UBEA")
        await in_time(pier.clock, pier.fake.called("views.publish"))
    assert list(pier.fake.homes) == ["UBEA"]
    how, commands = (str(block) for block in pier.fake.homes["UBEA"])
    assert "mention me in a channel" in how
    assert "`/voice [on|off|auto]` answer aloud" in commands


async def test_an_answer_is_streamed_while_it_is_written(tmp_path: Path, pier: Pier) -> None:
    gate = Gate()
    model = FakeModel(Reply("Let me count: one, two, three", gate=gate, gate_at=3))
    async with running(tmp_path, pier, model):
        asked = await pier.fake.says(HARBOUR, f"<@{BOT}> count")
        await in_time(pier.clock, pier.fake.called("chat.startStream"))
        (shown,) = pier.fake.said(HARBOUR)
        assert (shown.streaming, shown.thread_ts) == (True, asked)
        assert "Let me count".startswith(shown.text[:12])
        gate.open()
        done = await pier.sees(HARBOUR, "one, two, three")
    assert done.ts == shown.ts
    assert len(pier.fake.said(HARBOUR)) == 1


async def test_a_refreshed_socket_in_the_middle_of_a_turn_loses_and_repeats_nothing(tmp_path: Path, pier: Pier) -> None:
    gate = Gate()
    async with running(tmp_path, pier, FakeModel(Reply("first", gate=gate), "second")):
        await pier.fake.says(DIRECT, "one")
        await in_time(pier.clock, gate.reached.wait())
        await pier.fake.socket.ask_to_reconnect()
        await pier.fake.says(DIRECT, "two")
        gate.open()
        await pier.sees(DIRECT, "second")
    own = [message.text for message in pier.fake.said(DIRECT)]
    assert (sum("first" in text for text in own), sum("second" in text for text in own)) == (1, 1)


async def test_two_workspaces_are_answered_each_where_it_asked(tmp_path: Path, pier: Pier) -> None:
    other = Pier(pier.clock)
    async with AsyncExitStack() as stack:
        await other.fake.start()
        stack.push_async_callback(other.fake.stop)
        accounts: list[object] = [pier.account(), other.account(account="second")]
        app = await stack.enter_async_context(running(tmp_path, pier, FakeModel("one", "two"), accounts=accounts))
        await pier.fake.says(DIRECT, "first")
        await pier.sees(DIRECT, "one")
        await other.fake.says(DIRECT, "second")
        await other.sees(DIRECT, "two")
        for thread in (f"slack:{DIRECT}:0", f"slack.second:{DIRECT}:0"):
            assert await app[Store].journal.events(ThreadId(thread))
    assert [len(one.fake.said(DIRECT)) for one in (pier, other)] == [1, 1]
