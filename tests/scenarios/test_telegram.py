"""The whole app on Telegram: what people see there, also after a restart, an outage and a click."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.scenarios.kit import in_time

from shoal.app import App, Doubles, open_app
from shoal.config import load_config
from shoal.domain.clock import Clock
from shoal.domain.permissions import Asker
from shoal.sandbox.host import HostSandbox
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Gate, Reply
from shoal.testing.platforms.telegram import TOKEN, FakeTelegram, Sent
from shoal.testing.platforms.wire import Called
from shoal.testing.scenario import FakeModels

ADA = 7
SECONDS_MAX = 20.0


@pytest.fixture
async def telegram() -> AsyncIterator[FakeTelegram]:
    server = FakeTelegram()
    server.add_chat(ADA)
    server.add_chat(9)
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def running(
    home: Path, telegram: FakeTelegram, model: FakeModel | None, clock: Clock | None = None, profile: str = "open"
) -> AsyncGenerator[App]:
    """The app with one bot, whose owner is ada; without a model the demo one answers."""
    account: Mapping[str, object] = {"token": TOKEN, "api_base": telegram.server.address, "owner": str(ADA)}
    overrides: Mapping[str, object] = {
        "platforms": {"telegram": [account]},
        "permissions": {"default_profile": profile},
        "sandbox": {"kind": "host"},
    }
    models = FakeModels(model) if model is not None else None
    doubles = Doubles(clock=clock, models=models, sandbox=HostSandbox())
    async with open_app(load_config(home, {}, overrides), doubles) as app:
        yield app


async def sees(telegram: FakeTelegram, part: str, chat: int = ADA) -> Sent:
    """What the bot wrote, as soon as it stands there."""
    async with asyncio.timeout(SECONDS_MAX):
        return await telegram.sees(chat, part)


async def test_a_message_is_answered_by_the_demo_model(tmp_path: Path, telegram: FakeTelegram) -> None:
    async with running(tmp_path, telegram, None):
        asked = await telegram.says(ADA, "hello")
        answer = await sees(telegram, "Hello!")
    assert answer.reply_to == asked


async def test_an_approval_is_given_by_button(tmp_path: Path, telegram: FakeTelegram) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "echo x > made"}'),)), "It is made.")
    async with running(tmp_path, telegram, model, profile="standard") as app:
        await telegram.says(ADA, "go")
        card = await sees(telegram, "echo x > made")
        await telegram.clicks(card.id, "Allow once")
        await sees(telegram, "It is made.")
        assert (app.agents.spec("main").workspace / "made").read_text() == "x\n"
        await sees(telegram, "it ran")
    assert telegram.answers == ["Allowed."]
    assert card.buttons == ()


async def test_a_reaction_stops_the_turn_before_the_bot_knows_the_id_of_what_it_posted(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    model = FakeModel(Reply("One, two, three, four, five", gate=Gate(), gate_at=2))
    handed_over = asyncio.Event()

    def mute(called: Called) -> bool:
        if called.path.endswith("/getUpdates") and "message_reaction" in telegram.updates[-1]:
            handed_over.set()
        return called.path.endswith("/sendMessage")

    telegram.server.mute = mute
    async with running(tmp_path, telegram, model), asyncio.timeout(SECONDS_MAX):
        await telegram.says(ADA, "count")
        await telegram.called("sendMessage")
        (shown,) = telegram.said(ADA)
        await telegram.reacts(shown.id, "❌")
        await handed_over.wait()
        telegram.server.unmuted.set()
        assert await sees(telegram, "Stopped") is shown


async def test_a_restart_answers_once_what_came_before_and_after(tmp_path: Path, telegram: FakeTelegram) -> None:
    async with running(tmp_path, telegram, FakeModel("first")):
        await telegram.says(ADA, "one")
        await sees(telegram, "first")
    await telegram.says(ADA, "while it was away")
    async with running(tmp_path, telegram, FakeModel("second")):
        await sees(telegram, "second")
    assert [message.text for message in telegram.said(ADA)] == ["first", "second"]


async def test_an_outage_of_an_hour_loses_nothing(tmp_path: Path, telegram: FakeTelegram) -> None:
    clock = ManualClock()
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "true"}'),)), "after the outage", "and again")
    async with running(tmp_path, telegram, model, clock, profile="standard") as app:
        await telegram.says(ADA, "go")
        card = await in_time(clock, sees(telegram, "true"))
        await telegram.stop()
        (asked,) = await app.store.approvals.search()
        assert dict(card.buttons)["Allow once"] == f"allow:{asked.id}"
        await app.orchestrator.decide(asked.id, True, Asker(user=str(ADA), platform="telegram"))
        for _ in range(60):
            await clock.advance(60)
        assert await app.store.outbox.depth() > 0
        await telegram.start()
        await in_time(clock, sees(telegram, "after the outage"))
        await telegram.says(ADA, "still there?")
        await in_time(clock, sees(telegram, "and again"))
        assert [message.text for message in telegram.said(ADA)].count("after the outage") == 1


async def test_a_stranger_gets_a_code_and_no_answer(tmp_path: Path, telegram: FakeTelegram) -> None:
    model = FakeModel("never")
    async with running(tmp_path, telegram, model):
        await telegram.says(9, "/status", user=9)
        await sees(telegram, "shoal pair", chat=9)
        await telegram.says(9, "let me in", user=9)
        await telegram.fetched()
    assert len(telegram.said(9)) == 1
    assert not model.requests


async def test_a_storm_of_refusals_ends_with_the_reply(tmp_path: Path, telegram: FakeTelegram) -> None:
    clock = ManualClock()
    telegram.troubles.extend([("refuse", 5.0), ("fail", 0.0), ("refuse", 30.0)])
    async with running(tmp_path, telegram, FakeModel("at last"), clock):
        await telegram.says(ADA, "go")
        await in_time(clock, sees(telegram, "at last"))


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("/context", "Nothing was said here yet."),
        ("/thread list", "main has no threads here."),
        ("/tasks", "main has nothing to do."),
        ("/model", "answers with demo"),
        ("/agent list", "main demo, open (default)"),
        ("/settings", "in this channel: nothing chosen"),
    ],
)
async def test_commands_are_answered_without_the_model(
    tmp_path: Path, telegram: FakeTelegram, command: str, part: str
) -> None:
    model = FakeModel()
    async with running(tmp_path, telegram, model):
        await telegram.says(ADA, command)
        await sees(telegram, part)
    assert not model.requests
