"""Closed, deleted and moved chats: every message reaches a person."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.delivery.sender import MOVED_HERE, Senders
from shoal.kernel.ids import ThreadId
from shoal.kernel.records import NewPost
from shoal.notices import Notices
from shoal.platforms.account import MOVED
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.database import empty_database
from shoal.testing.model import Call, FakeModel, Gate, Reply
from shoal.testing.platforms.telegram import BOT_NAME, TOKEN, FakeTelegram, Sent
from shoal.testing.scenario import FakeModels

ADA, BEN = 7, 9
GROUP, SUPERGROUP, TOPIC = -100, -300, 41
SECONDS_MAX = 60.0
KICKED = "Forbidden: bot was kicked from the supergroup chat"


@pytest.fixture
async def telegram() -> AsyncIterator[FakeTelegram]:
    server = FakeTelegram()
    server.add_chat(ADA)
    server.add_chat(GROUP, "supergroup", (TOPIC,))
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def running(
    home: Path, telegram: FakeTelegram, model: FakeModel, channels: tuple[str, ...] = (), *, profile: str = "open"
) -> AsyncGenerator[Services]:
    account: Mapping[str, object] = {
        "token": TOKEN, "api_base": telegram.server.address, "owner": str(ADA), "allow": [str(BEN)],
        "channels": list(channels),
    }  # fmt: skip
    overrides: Mapping[str, object] = {
        "platforms": {"telegram": [account]}, "permissions": {"default_profile": profile}, "sandbox": {"kind": "host"},
    }  # fmt: skip
    if not (home / "shoal.db").exists():
        empty_database(home / "shoal.db")
    parts = Overrides(models=FakeModels(model), sandbox=HostSandbox())
    async with open_app(load_config(home, {}, overrides), parts) as app, asyncio.timeout(SECONDS_MAX):
        yield app


async def asks(telegram: FakeTelegram, text: str, *, chat: int = GROUP, topic: int = TOPIC, user: int = BEN) -> None:
    await telegram.says(chat, f"@{BOT_NAME} {text}", user=user, topic=topic)


async def sees(telegram: FakeTelegram, chat: int, part: str) -> Sent:
    return await telegram.sees(chat, part)


@pytest.mark.parametrize("why", ["TOPIC_CLOSED", "message thread not found", "TOPIC_DELETED"])
async def test_an_answer_to_a_closed_topic_is_posted_in_the_group(
    tmp_path: Path, telegram: FakeTelegram, why: str
) -> None:
    async with running(tmp_path, telegram, FakeModel(Reply("High tide is at six."))):
        telegram.barred[f"{GROUP}/{TOPIC}"] = f"Bad Request: {why}"
        await asks(telegram, "when?")
        said = await sees(telegram, GROUP, "High tide")
    assert (said.topic, said.text) == (0, f"{MOVED_HERE.strip('_')}\n\nHigh tide is at six.")


async def test_an_answer_to_a_closed_group_is_posted_when_the_bot_returns(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    async with running(tmp_path, telegram, FakeModel(Reply("High tide is at six."))) as app:
        telegram.barred[str(GROUP)] = KICKED
        await asks(telegram, "when?")
        told = await sees(telegram, ADA, "High tide")
        assert "I will keep trying for a day" in told.text
        assert any("bot was kicked" in note for note in app[Notices].notes)
        telegram.barred.clear()
        said = await sees(telegram, GROUP, "High tide")
        assert said.topic == TOPIC
    assert len(telegram.said(ADA)) == 1, "the owner is told once"


async def test_a_post_to_a_deleted_chat_is_reported_to_the_owner(tmp_path: Path, telegram: FakeTelegram) -> None:
    async with running(tmp_path, telegram, FakeModel()) as app:
        await app[Senders].post(NewPost("reminder", ThreadId("telegram:-999:0"), "Feed the seals."))
        told = await sees(telegram, ADA, "Feed the seals.")
    assert told.text.startswith(
        "I could not post in telegram, chat -999. Telegram returned an error: Bad Request: chat not found"
    )


async def test_without_a_reachable_person_the_page_shows_the_failure(tmp_path: Path, telegram: FakeTelegram) -> None:
    async with running(tmp_path, telegram, FakeModel()) as app:
        telegram.barred[str(ADA)] = "Forbidden: bot was blocked by the user"
        await app[Senders].post(NewPost("reminder", ThreadId("telegram:-999:0"), "Feed the seals."))
        await telegram.until(lambda: len(app[Notices].notes) >= 2)
    assert any("chat -999" in note for note in app[Notices].notes)
    assert any("bot was blocked" in note for note in app[Notices].notes)


@pytest.mark.parametrize("rules", [(), (str(GROUP),)])
async def test_a_conversation_continues_when_its_group_becomes_a_supergroup(
    tmp_path: Path, telegram: FakeTelegram, rules: tuple[str, ...]
) -> None:
    model = FakeModel(Reply("At six."), Reply("At noon."), Reply("At dusk."))
    async with running(tmp_path, telegram, model, rules) as app:
        await asks(telegram, "high tide?", topic=0)
        await sees(telegram, GROUP, "At six.")
        await telegram.migrates(GROUP, SUPERGROUP)
        await sees(telegram, SUPERGROUP, MOVED)
        told = await sees(telegram, ADA, "has changed to -300")
        assert ('replace "-100" with "-300"' in told.text) == bool(rules)
        await asks(telegram, "low tide?", chat=SUPERGROUP, topic=0)
        await sees(telegram, SUPERGROUP, "At noon.")
        assert "high tide?" in str(model.requests[-1]), "the conversation goes on"
        await app[Senders].post(NewPost("reminder", ThreadId(f"telegram:{GROUP}:0"), "Feed the seals."))
        await sees(telegram, SUPERGROUP, "Feed the seals.")
    edited = (str(SUPERGROUP),) if rules else ()
    async with running(tmp_path, telegram, model, edited):
        await asks(telegram, "and now?", chat=SUPERGROUP, topic=0)
        await sees(telegram, SUPERGROUP, "At dusk.")
    assert "low tide?" in str(model.requests[-1])


# ---- a group that migrates during other work ----


@pytest.mark.parametrize("told", [(), (1,), (0, 1, 0)])
async def test_an_answer_written_while_its_group_moves_arrives(
    tmp_path: Path, telegram: FakeTelegram, told: tuple[int, ...]
) -> None:
    gate = Gate()
    model = FakeModel(Reply("High tide is at six. Low tide is at noon.", gate=gate, gate_at=3), Reply("At noon."))
    async with running(tmp_path, telegram, model):
        await asks(telegram, "when?", topic=0)
        await telegram.until(lambda: telegram.said(GROUP) or None)
        await telegram.migrates(GROUP, SUPERGROUP, told=told)
        gate.open()
        await sees(telegram, SUPERGROUP, "High tide is at six.")
        await asks(telegram, "and then?", chat=SUPERGROUP, topic=0)
        await sees(telegram, SUPERGROUP, "At noon.")
    assert [one.text for one in telegram.said(SUPERGROUP) if one.text != MOVED] == [
        "High tide is at six. Low tide is at noon.",
        "At noon.",
    ]


@pytest.mark.parametrize("click", ["old", "new"])
@pytest.mark.parametrize("restart", [False, True])
async def test_an_open_approval_in_a_moving_group_can_be_decided(
    tmp_path: Path, telegram: FakeTelegram, restart: bool, click: str
) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "date > made"}'),)), *(Reply("Done.") for _ in range(9)))
    home = tmp_path / "home"
    home.mkdir()

    async def fill() -> None:
        """Post until a message in the new group has the number of the approval."""
        for number in range(card.id):
            await app[Senders].post(NewPost(f"fill{number}", ThreadId(f"telegram:{GROUP}:0"), f"Post {number}."))
        await sees(telegram, SUPERGROUP, f"Post {card.id - 1}.")

    async with running(home, telegram, model, profile="standard") as app:
        for _ in range(6):  # gives the approval a higher message number, which the new group will reuse
            await telegram.says(GROUP, "The tide is in.", user=BEN)
        await asks(telegram, "make it", topic=0)
        card = await sees(telegram, GROUP, "date > made")
        await telegram.migrates(GROUP, SUPERGROUP)
        await sees(telegram, SUPERGROUP, MOVED)
        await fill()
        if not restart:
            await decides(telegram, app, card, click)
    if restart:
        async with running(home, telegram, model, profile="standard") as app:
            await decides(telegram, app, card, click)
    posts = [one.text for one in telegram.said(SUPERGROUP) if one.text.startswith("Post ")]
    assert posts == [f"Post {number}." for number in range(card.id)]


async def decides(telegram: FakeTelegram, app: Services, card: Sent, click: str) -> None:
    """Allow the call as ada and wait until it has run. `click` selects the old button or a command in the new group."""
    if click == "old":
        await telegram.clicks(card.id, "Allow once", user=ADA, chat=GROUP)
    else:
        await asks(telegram, "/approve", chat=SUPERGROUP, topic=0, user=ADA)
    await sees(telegram, SUPERGROUP, "Done.")


async def test_a_message_in_a_moved_group_is_identified_by_chat_and_number(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    model = FakeModel(*(Reply(f"Answer {number}.") for number in range(4)))
    async with running(tmp_path, telegram, model) as app:
        for number in range(2):
            await asks(telegram, "when?", topic=0)
            await sees(telegram, GROUP, f"Answer {number}.")
        await telegram.migrates(GROUP, SUPERGROUP)
        await sees(telegram, SUPERGROUP, MOVED)
        await asks(telegram, "when?", chat=SUPERGROUP, topic=0)
        said = await sees(telegram, SUPERGROUP, "Answer 2.")
        await asks(telegram, "and then?", chat=SUPERGROUP, topic=0)
        await sees(telegram, SUPERGROUP, "Answer 3.")
        found = await app[Store].outbox.thread_of(f"telegram:{GROUP}", f"{SUPERGROUP}/{said.id}")
        assert found == ThreadId(f"telegram:{GROUP}:0")


async def test_a_group_that_moves_repeatedly_stays_one_conversation(tmp_path: Path, telegram: FakeTelegram) -> None:
    model = FakeModel(*(Reply(f"Answer {number}.") for number in range(5)))
    async with running(tmp_path, telegram, model) as app:
        await asks(telegram, "one", topic=0)
        await sees(telegram, GROUP, "Answer 0.")
        await telegram.migrates(GROUP, SUPERGROUP, told=(1, 0))
        await asks(telegram, "two", chat=SUPERGROUP, topic=0)
        await sees(telegram, SUPERGROUP, "Answer 1.")
        await telegram.migrates(SUPERGROUP, -400, told=(1,))
        await telegram.migrates_again(GROUP, SUPERGROUP)
        await asks(telegram, "three", chat=-400, topic=0)
        await sees(telegram, -400, "Answer 2.")
        assert "one" in str(model.requests[-1])
        await app[Senders].post(NewPost("reminder", ThreadId(f"telegram:{GROUP}:0"), "Feed the seals."))
        await sees(telegram, -400, "Feed the seals.")
    async with running(tmp_path, telegram, model) as app:
        await asks(telegram, "four", chat=-400, topic=0)
        await sees(telegram, -400, "Answer 3.")
        assert "three" in str(model.requests[-1])
