"""The whole app where the place of a conversation is closed, gone or moved: what is said reaches somebody."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.app import App, Overrides, open_app
from shoal.chat.account import MOVED
from shoal.config import load_config
from shoal.delivery.sender import MOVED_HERE
from shoal.domain.ids import ThreadId
from shoal.domain.records import NewPost
from shoal.sandbox.host import HostSandbox
from shoal.testing.database import empty_database
from shoal.testing.model import FakeModel, Reply
from shoal.testing.platforms.telegram import BOT_NAME, TOKEN, FakeTelegram, Sent
from shoal.testing.scenario import FakeModels

ADA, BEN = 7, 9
GROUP, SUPERGROUP, TOPIC = -100, -300, 41
SECONDS_MAX = 60.0
KICKED = "Forbidden: bot was kicked from the supergroup chat"


@pytest.fixture
async def telegram() -> AsyncIterator[FakeTelegram]:
    """Ada's direct chat with the bot, and a group with a topic."""
    server = FakeTelegram()
    server.add_chat(ADA)
    server.add_chat(GROUP, "supergroup", (TOPIC,))
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def running(
    home: Path, telegram: FakeTelegram, model: FakeModel, channels: tuple[str, ...] = ()
) -> AsyncGenerator[App]:
    """The app with one bot, whose owner is ada; ben may speak."""
    account: Mapping[str, object] = {
        "token": TOKEN, "api_base": telegram.server.address, "owner": str(ADA), "allow": [str(BEN)],
        "channels": list(channels),
    }  # fmt: skip
    overrides: Mapping[str, object] = {
        "platforms": {"telegram": [account]}, "permissions": {"default_profile": "open"}, "sandbox": {"kind": "host"},
    }  # fmt: skip
    if not (home / "shoal.db").exists():
        empty_database(home / "shoal.db")
    parts = Overrides(models=FakeModels(model), sandbox=HostSandbox())
    async with open_app(load_config(home, {}, overrides), parts) as app, asyncio.timeout(SECONDS_MAX):
        yield app


async def asks(telegram: FakeTelegram, text: str, *, chat: int = GROUP, topic: int = TOPIC) -> None:
    """Ben asks the bot in the group."""
    await telegram.says(chat, f"@{BOT_NAME} {text}", user=BEN, topic=topic)


async def sees(telegram: FakeTelegram, chat: int, part: str) -> Sent:
    """What the bot wrote, as soon as it stands there."""
    return await telegram.sees(chat, part)


@pytest.mark.parametrize("why", ["TOPIC_CLOSED", "message thread not found", "TOPIC_DELETED"])
async def test_an_answer_to_a_closed_topic_stands_in_the_group(
    tmp_path: Path, telegram: FakeTelegram, why: str
) -> None:
    async with running(tmp_path, telegram, FakeModel(Reply("High tide is at six."))):
        telegram.barred[f"{GROUP}/{TOPIC}"] = f"Bad Request: {why}"
        await asks(telegram, "when?")
        said = await sees(telegram, GROUP, "High tide")
    assert (said.topic, said.text) == (0, f"{MOVED_HERE.strip('_')}\n\nHigh tide is at six.")


async def test_an_answer_to_a_group_that_shut_the_bot_out_comes_when_it_is_let_in(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    async with running(tmp_path, telegram, FakeModel(Reply("High tide is at six."))) as app:
        telegram.barred[str(GROUP)] = KICKED
        await asks(telegram, "when?")
        told = await sees(telegram, ADA, "High tide")
        assert "I try again for a day" in told.text
        assert any("bot was kicked" in note for note in app.notices.notes)
        telegram.barred.clear()
        said = await sees(telegram, GROUP, "High tide")
        assert said.topic == TOPIC
    assert len(telegram.said(ADA)) == 1, "the owner is told once"


async def test_a_post_to_a_chat_that_is_gone_reaches_the_owner(tmp_path: Path, telegram: FakeTelegram) -> None:
    async with running(tmp_path, telegram, FakeModel()) as app:
        await app.senders.post(NewPost("reminder", ThreadId("telegram:-999:0"), "Feed the seals."))
        told = await sees(telegram, ADA, "Feed the seals.")
    assert told.text.startswith(
        "I could not post in telegram, chat -999. Telegram refused: Bad Request: chat not found"
    )


async def test_where_nobody_can_be_told_the_page_says_so(tmp_path: Path, telegram: FakeTelegram) -> None:
    async with running(tmp_path, telegram, FakeModel()) as app:
        telegram.barred[str(ADA)] = "Forbidden: bot was blocked by the user"
        await app.senders.post(NewPost("reminder", ThreadId("telegram:-999:0"), "Feed the seals."))
        await telegram.until(lambda: len(app.notices.notes) >= 2)
    assert any("chat -999" in note for note in app.notices.notes)
    assert any("bot was blocked" in note for note in app.notices.notes)


@pytest.mark.parametrize("rules", [(), (str(GROUP),)])
async def test_a_group_that_becomes_a_supergroup_goes_on(
    tmp_path: Path, telegram: FakeTelegram, rules: tuple[str, ...]
) -> None:
    model = FakeModel(Reply("At six."), Reply("At noon."), Reply("At dusk."))
    async with running(tmp_path, telegram, model, rules) as app:
        await asks(telegram, "high tide?", topic=0)
        await sees(telegram, GROUP, "At six.")
        await telegram.migrates(GROUP, SUPERGROUP)
        await sees(telegram, SUPERGROUP, MOVED)
        told = await sees(telegram, ADA, "has the id -300 now")
        assert ('write "-300" for "-100"' in told.text) == bool(rules)
        await asks(telegram, "low tide?", chat=SUPERGROUP, topic=0)
        await sees(telegram, SUPERGROUP, "At noon.")
        assert "high tide?" in str(model.requests[-1]), "the conversation goes on"
        await app.senders.post(NewPost("reminder", ThreadId(f"telegram:{GROUP}:0"), "Feed the seals."))
        await sees(telegram, SUPERGROUP, "Feed the seals.")
    edited = (str(SUPERGROUP),) if rules else ()
    async with running(tmp_path, telegram, model, edited):
        await asks(telegram, "and now?", chat=SUPERGROUP, topic=0)
        await sees(telegram, SUPERGROUP, "At dusk.")
    assert "low tide?" in str(model.requests[-1])
