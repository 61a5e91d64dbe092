"""The whole app on Microsoft Teams: what people see there, also after an outage, a storm of refusals and a click."""

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
from shoal.platforms.teams.adapter import TeamsAdapter
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.testing.model import Call, FakeModel, Gate, Reply
from shoal.testing.platforms.teams import TENANT, FakeTeams, TeamsPosted
from shoal.testing.scenario import FakeModels
from shoal.threads.orchestrator import Orchestrator

DIRECT, HARBOUR = "a:1ada", "19:harbour@thread.tacv2"
SECONDS_MAX = 60.0
MAKES = Reply(calls=(Call("bash", '{"command": "echo x > made"}'),))


class Quay:
    """A bot with a direct chat with ada, and a channel."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fake = FakeTeams(self.clock)
        self.fake.add(DIRECT, "personal")
        self.fake.add(HARBOUR, "channel")

    async def sees(self, conversation: str, part: str) -> TeamsPosted:
        """What the bot wrote, as soon as it stands there; time passes meanwhile."""
        async with asyncio.timeout(SECONDS_MAX):
            return await in_time(self.clock, self.fake.sees(conversation, part))


@pytest.fixture
async def quay() -> AsyncIterator[Quay]:
    made = Quay()
    await made.fake.start()
    yield made
    await made.fake.stop()


@asynccontextmanager
async def running(home: Path, quay: Quay, model: FakeModel, profile: str = "open") -> AsyncGenerator[Services]:
    """The app with two bots, whose owner is ada; `quay` delivers to the first."""
    first: Mapping[str, object] = {**quay.fake.settings(), "owner": "aad-ada"}
    overrides: Mapping[str, object] = {
        "platforms": {"teams": [first, {**first, "account": "second"}]},
        "permissions": {"default_profile": profile},
        "sandbox": {"kind": "host"},
    }
    parts = Overrides(clock=quay.clock, models=FakeModels(model), sandbox=HostSandbox())
    empty_database(home / "shoal.db")
    async with open_app(load_config(home, {}, overrides), parts) as app:
        for adapter in app[Connections].adapters.values():
            if isinstance(adapter, TeamsAdapter):
                await adapter.connected.wait()
        await in_time(quay.clock, quay.fake.until(lambda: quay.fake.granted))
        use(quay, app, "teams")
        yield app


def use(quay: Quay, app: Services, name: str) -> None:
    """Deliver to this account from now on."""
    adapter = app[Connections].adapters[name]
    assert isinstance(adapter, TeamsAdapter)
    quay.fake.deliver = adapter.receive


async def test_a_thread_of_a_channel_is_followed_once_it_was_named_there(tmp_path: Path, quay: Quay) -> None:
    async with running(tmp_path, quay, FakeModel("Hello in here", "And again")):
        await quay.fake.says(HARBOUR, "nothing for you")
        asked = await quay.fake.says(HARBOUR, "what is the tide?", named=True)
        assert (await quay.sees(HARBOUR, "Hello in here")).conversation == f"{HARBOUR};messageid={asked}"
        await quay.fake.says(HARBOUR, "thanks, and tomorrow?", root=asked)
        assert (await quay.sees(HARBOUR, "And again")).conversation == f"{HARBOUR};messageid={asked}"


async def test_an_answer_is_shown_while_it_is_written(tmp_path: Path, quay: Quay) -> None:
    gate = Gate()
    async with running(tmp_path, quay, FakeModel(Reply("One, two, three, four", gate=gate, gate_at=2))):
        await quay.fake.says(DIRECT, "count")
        await in_time(quay.clock, quay.fake.until(lambda: bool(quay.fake.said(DIRECT))))
        gate.open()
        done = await quay.sees(DIRECT, "three, four")
    assert quay.fake.said(DIRECT) == [done]


@pytest.mark.parametrize("by", ["button", "submit", "words"])
async def test_an_approval_is_given(tmp_path: Path, quay: Quay, by: str) -> None:
    async with running(tmp_path, quay, FakeModel(MAKES, "It is made."), profile="standard") as app:
        await quay.fake.says(DIRECT, "go")
        card = await quay.sees(DIRECT, "echo x > made")
        (asked,) = await app[Store].approvals.search()
        if by == "words":
            await quay.fake.says(DIRECT, f"allow {asked.id[-8:]}")
        else:
            await quay.fake.clicks(card.id, "Allow once", submits=by == "submit")
        await quay.sees(DIRECT, "It is made.")
        assert (app[AgentRegistry].spec("main").workspace / "made").read_text() == "x\n"
        await quay.sees(DIRECT, "it ran")
    assert card.buttons == ()


@pytest.mark.parametrize("by", ["command", "reaction"])
async def test_a_turn_is_stopped(tmp_path: Path, quay: Quay, by: str) -> None:
    model = FakeModel(Reply("One, two, three, four, five", gate=Gate(), gate_at=2))
    async with running(tmp_path, quay, model) as app:
        await quay.fake.says(DIRECT, "count")
        await in_time(quay.clock, quay.fake.until(lambda: bool(quay.fake.said(DIRECT))))
        (shown,) = quay.fake.said(DIRECT)
        if by == "command":
            await quay.fake.says(DIRECT, "/stop")
        else:
            while await app[Store].outbox.thread_of("teams:a%3A1ada:", shown.id) is None:
                await quay.clock.advance(1)
            await quay.fake.reacts(DIRECT, shown.id, "274c_crossmark")
        assert await quay.sees(DIRECT, "Stopped") is not None


async def test_files_go_both_ways(tmp_path: Path, quay: Quay) -> None:
    calls = Reply(calls=(Call("upload", '{"path": "tides.txt"}'),))
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "echo high > tides.txt"}'),)), calls, "Sent.")
    async with running(tmp_path, quay, model):
        await quay.fake.sends_file(DIRECT, "question.txt", b"When is high tide?\n")
        await quay.sees(DIRECT, "Sent.")
        offered = await quay.sees(DIRECT, "tides.txt")
        await quay.fake.accepts(offered.id)
    assert "When is high tide?" in str(model.requests[0].messages[-1])
    assert [one.file for one in quay.fake.said(DIRECT) if one.file] == [(offered.text, b"high\n")]


async def test_an_outage_of_an_hour_loses_nothing(tmp_path: Path, quay: Quay) -> None:
    async with running(tmp_path, quay, FakeModel(MAKES, "after the outage"), profile="standard") as app:
        await quay.fake.says(DIRECT, "go")
        await quay.sees(DIRECT, "echo x")
        await quay.fake.stop()
        (asked,) = await app[Store].approvals.search()
        await app[Orchestrator].decide(asked.id, True, Asker(trust="trusted", user="aad-ada", platform="teams"))
        for _ in range(60):
            await quay.clock.advance(60)
        assert await app[Store].outbox.depth() > 0
        await quay.fake.start()
        await quay.sees(DIRECT, "after the outage")
    assert [message.text for message in quay.fake.said(DIRECT)].count("after the outage") == 1


async def test_a_storm_ends_with_each_reply_at_least_once(tmp_path: Path, quay: Quay) -> None:
    """Teams has no keys: only after a lost answer a reply may stand there twice, and then it says so."""
    async with running(tmp_path, quay, FakeModel("at last", "and once more")):
        quay.fake.troubles.extend([("refuse", 5.0), ("refuse", 30.0)])
        await quay.fake.says(DIRECT, "go")
        await quay.sees(DIRECT, "at last")
        quay.fake.troubles.extend([("lose", 0.0), ("fail", 0.0), ("lose", 0.0)])
        await quay.fake.says(DIRECT, "again")
        await quay.sees(DIRECT, "and once more")
        await in_time(quay.clock, quay.fake.until(lambda: not quay.fake.troubles))
        await quay.sees(DIRECT, "repeat")
    texts = [message.text for message in quay.fake.said(DIRECT)]
    assert texts.count("at last") == 1
    assert all("once more" in text for text in texts[1:])


async def test_settings_hold_in_the_team_where_they_were_made(tmp_path: Path, quay: Quay) -> None:
    pier = "19:pier@thread.tacv2"
    quay.fake.add(pier, "channel")
    async with running(tmp_path, quay, FakeModel()):
        data = {"tenant": {"id": TENANT}, "team": {"id": "19:fleet@thread.tacv2"}}
        await quay.fake.says(HARBOUR, "/settings permissions locked", named=True, channelData=data)
        await quay.sees("a:aad-ada", "permissions is locked in teams@19:fleet@thread.tacv2")
        await quay.fake.says(pier, "/settings", named=True, channelData=data)
        await quay.sees("a:aad-ada", "in this server: permissions locked")
        await quay.fake.says(DIRECT, "/settings")
        await quay.sees(DIRECT, "the permissions open")


async def test_a_stranger_gets_a_code_and_each_account_answers_its_own(tmp_path: Path, quay: Quay) -> None:
    model = FakeModel("one", "two")
    quay.fake.add("a:1mallory", "personal")
    async with running(tmp_path, quay, model) as app:
        await quay.fake.says("a:1mallory", "let me in", user="mallory")
        await quay.sees("a:1mallory", "shoal pair")
        await quay.fake.says(DIRECT, "first")
        await quay.sees(DIRECT, "one")
        use(quay, app, "teams.second")
        await quay.fake.says(DIRECT, "second")
        await quay.sees(DIRECT, "two")
        threads = [row.thread for row in await app[Store].journal.threads()]
    assert {"teams:a%3A1ada:0", "teams.second:a%3A1ada:0"} <= set(map(str, threads))
