"""The complete app on Telegram, across a restart, an outage and a button press."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.clock import Clock
from shoal.kernel.ports import channel_names
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.testing.model import FakeModel, Gate, Reply
from shoal.testing.platforms.telegram import TOKEN, FakeTelegram, Sent
from shoal.testing.platforms.wire import Called
from shoal.testing.scenario import FakeModels

ADA = 7
SECONDS_MAX = 60.0


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
) -> AsyncGenerator[Services]:
    account: Mapping[str, object] = {"token": TOKEN, "api_base": telegram.server.address, "owner": str(ADA)}
    overrides: Mapping[str, object] = {
        "platforms": {"telegram": [account]},
        "permissions": {"default_profile": profile},
        "sandbox": {"kind": "host"},
    }
    models = FakeModels(model) if model is not None else None
    parts = Overrides(clock=clock, models=models, sandbox=HostSandbox())
    empty_database(home / "shoal.db")
    async with open_app(load_config(home, {}, overrides), parts) as app:
        yield app


async def sees(telegram: FakeTelegram, part: str, chat: int = ADA) -> Sent:
    async with asyncio.timeout(SECONDS_MAX):
        return await telegram.sees(chat, part)


async def test_a_group_is_known_by_name_before_anyone_addresses_the_agent(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    telegram.add_chat(-100, "group")
    async with running(tmp_path, telegram, None) as app:
        await telegram.says(-100, "not for the agent")
        await telegram.says(ADA, "hello")
        await sees(telegram, "Hello!")
        assert await app[Store].settings.page(channel_names("telegram")) == [("-100", "harbour")]


async def test_a_message_is_answered_by_the_demo_model(tmp_path: Path, telegram: FakeTelegram) -> None:
    async with running(tmp_path, telegram, None):
        asked = await telegram.says(ADA, "hello")
        answer = await sees(telegram, "Hello!")
    assert answer.reply_to == asked


async def test_a_reaction_stops_the_turn_before_the_posts_id_is_known(tmp_path: Path, telegram: FakeTelegram) -> None:
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


async def test_a_flood_wait_of_an_hour_delays_an_answer_without_losing_it(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    clock = ManualClock()
    async with running(tmp_path, telegram, FakeModel("at last"), clock), asyncio.timeout(SECONDS_MAX):
        telegram.troubles.append(("refuse_all", 3600.0))
        await telegram.says(ADA, "go")
        await telegram.until(lambda: not telegram.troubles or None)
        asked_for = clock.now()
        while not telegram.said(ADA):
            await clock.advance(30)
    assert [message.text for message in telegram.said(ADA)] == ["at last"]
    assert (clock.now() - asked_for).total_seconds() >= 3600
    assert sum(method == "sendMessage" for method, _ in telegram.calls) == 2
