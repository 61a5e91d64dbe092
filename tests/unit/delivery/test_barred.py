"""Posts that a channel rejects. They are sent to the parent chat, retried, or reported to the owner."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from shoal.delivery.barred import BarredChats
from shoal.delivery.hub import Hub
from shoal.delivery.previews import MOVED as PREVIEW_MOVED
from shoal.delivery.previews import Previews
from shoal.delivery.sender import CUT_HERE_CHARS_MAX, KEEP_SECONDS, LATE_SECONDS, MOVED_HERE, Sender
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import ThreadId, TurnId, channel_of, make_thread_id
from shoal.kernel.posts import WRITING, Button, OutboundPost, preview_key, reply_key
from shoal.kernel.records import NewPost, OutboxRow
from shoal.markdown.pieces import MARKDOWN
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.chat import LIMITS, FakeChat
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.testing.scenario import WatchedDriver

TOPIC = make_thread_id("fake", "harbour", "41")
HARBOUR = make_thread_id("fake", "harbour", "0")
CHANNEL = channel_of(TOPIC)
CLOSED = PlatformError("The chat is closed.", barred=True)
GONE = PlatformError("The chat is gone.", barred=True, permanent=True)
TIDE = "High tide is at six."


class Stand:
    """A sender that records its notices and failed posts."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.chat = FakeChat(clock=clock, limits=msgspec.structs.replace(LIMITS, edits_notify=False))
        self.told: list[tuple[str, str]] = []
        self.lost: list[str] = []

    async def tell(self, row: OutboxRow, why: str) -> None:
        self.told.append((row.post.text, why))

    async def give_up(self, row: OutboxRow, why: str, refused: bool) -> None:
        self.lost.append(row.id)
        await self.store.outbox.fail(row, why, refused)

    @asynccontextmanager
    async def sending(self) -> AsyncGenerator[None]:
        previews = Previews(self.chat, Hub(), self.store.outbox, self.clock)
        sender = Sender(self.chat, self.store.outbox, self.clock, previews)
        barred = BarredChats("fake", self.store.settings, self.tell)
        running = asyncio.ensure_future(sender.run(None, self.give_up, None, barred))
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            await self.clock.advance(1)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await self.passes(1)

    async def put(self, id: str, text: str = TIDE, thread: ThreadId = TOPIC) -> None:
        await self.store.outbox.put(NewPost(id, thread, text))


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    driver = WatchedDriver(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"))
    clock = ManualClock(wait_idle=driver.rests)  # the manual clock must not advance while the database is working
    store = Store(driver, clock)
    yield Stand(store, clock)
    await store.close()


@pytest.mark.parametrize("shut", [CLOSED, GONE])
async def test_an_answer_for_a_closed_thread_is_posted_to_the_chat_around_it(stand: Stand, shut: PlatformError) -> None:
    stand.chat.shut[TOPIC] = shut
    await stand.put("p")
    async with stand.sending():
        await stand.until(lambda: bool(stand.chat.posted))
        while await stand.store.outbox.depth():
            await stand.passes(1)
    assert stand.chat.texts(HARBOUR) == [f"{MOVED_HERE}\n\n{TIDE}"]
    assert (stand.told, stand.lost) == ([], [])
    assert (await stand.store.outbox.thread_of(CHANNEL, stand.chat.posted[0].id)) == TOPIC, "an answer goes on there"


async def test_a_text_without_room_for_the_note_is_posted_after_it(stand: Stand) -> None:
    stand.chat.shut[TOPIC] = GONE
    await stand.put("p", "x" * LIMITS.text_chars_max)
    async with stand.sending():
        await stand.until(lambda: len(stand.chat.posted) == 2)
    assert stand.chat.texts(HARBOUR) == [MOVED_HERE, "x" * LIMITS.text_chars_max]


async def test_a_closed_chat_gets_its_posts_when_it_reopens_and_the_owner_one_notice(stand: Stand) -> None:
    stand.chat.shut[CHANNEL] = CLOSED
    await stand.put("first")
    await stand.put("second", "Low tide is at noon.")
    async with stand.sending():
        await stand.until(lambda: bool(stand.told))
        assert stand.chat.posted == []
        stand.chat.shut.clear()
        await stand.until(lambda: len(stand.chat.posted) == 2)
        assert stand.chat.texts(TOPIC) == [TIDE, "Low tide is at noon."]
        assert stand.told == [(TIDE, "The chat is closed.")]
        stand.chat.shut[CHANNEL] = CLOSED
        await stand.put("third", "It is foggy.")
        await stand.until(lambda: len(stand.told) == 2)
    assert [text for text, _ in stand.told] == [TIDE, "It is foggy."], "it is another time"


async def test_a_restart_does_not_repeat_the_notice(stand: Stand) -> None:
    stand.chat.shut[CHANNEL] = CLOSED
    await stand.put("first")
    async with stand.sending():
        await stand.until(lambda: bool(stand.told))
    async with stand.sending():
        await stand.passes(10)
    assert len(stand.told) == 1


async def test_posts_to_a_closed_chat_fail_after_a_day(stand: Stand) -> None:
    stand.chat.shut[CHANNEL] = CLOSED
    await stand.put("first")
    async with stand.sending():
        await stand.passes(600)
        assert stand.lost == []
        stand.clock.jump(KEEP_SECONDS)
        await stand.until(lambda: bool(stand.lost))
    assert stand.lost == ["first"]


async def test_a_post_to_a_deleted_chat_fails_immediately(stand: Stand) -> None:
    stand.chat.shut[CHANNEL] = GONE
    await stand.put("first")
    async with stand.sending():
        await stand.until(lambda: bool(stand.lost))
    assert (stand.lost, stand.told) == (["first"], [])


async def test_an_edit_in_a_closed_thread_fails(stand: Stand) -> None:
    class Shut(FakeChat):
        async def edit(
            self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()
        ) -> None:
            raise CLOSED

    stand.chat = Shut(clock=stand.clock)
    await stand.put("card")
    async with stand.sending():
        while await stand.store.outbox.depth():
            await stand.passes(1)
        await stand.store.outbox.put(NewPost("change", TOPIC, "Allowed.", "edit", edits="card"))
        await stand.until(lambda: bool(stand.lost))
    assert (stand.lost, stand.told) == (["change"], [])


@pytest.mark.parametrize(("age_seconds", "notifies"), [(LATE_SECONDS / 2, False), (LATE_SECONDS, True)])
async def test_a_late_answer_is_posted_again_and_its_preview_deleted(
    stand: Stand, age_seconds: float, notifies: bool
) -> None:
    turn = TurnId("T1")
    assert await stand.store.outbox.begin_preview(TOPIC, turn)
    preview = await stand.chat.post(OutboundPost(TOPIC, preview_key(turn), f"High{WRITING}"))
    assert await stand.store.outbox.previewed(TOPIC, turn, preview)
    stand.clock.jump(age_seconds)
    await stand.put(reply_key(turn))
    async with stand.sending():
        await stand.until(lambda: stand.chat.texts(TOPIC) == [TIDE])
    assert stand.chat.texts(TOPIC) == [TIDE]
    assert (stand.chat.posted[0].id != preview) == notifies


async def test_further_pieces_of_a_late_answer_are_new_posts(stand: Stand) -> None:
    turn = TurnId("T1")
    assert await stand.store.outbox.begin_preview(TOPIC, turn)
    preview = await stand.chat.post(OutboundPost(TOPIC, preview_key(turn), f"word{WRITING}"))
    assert await stand.store.outbox.previewed(TOPIC, turn, preview)
    stand.clock.jump(60)
    await stand.put(reply_key(turn), "word " * 500)
    async with stand.sending():
        await stand.until(lambda: len(stand.chat.posted) == 2)
    assert [one.id == preview for one in stand.chat.posted] == [True, False]


class Stubborn(FakeChat):
    refusals: tuple[PlatformError, ...] = ()

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        await self._refuse()
        await super().delete(thread, message_id)

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        await self._refuse()
        await super().edit(thread, message_id, markdown, buttons)

    async def _refuse(self) -> None:
        if self.refusals:
            first, self.refusals = self.refusals[0], self.refusals[1:]
            raise first


NEVER = PlatformError("A message is too old to be deleted.", permanent=True)
BUSY = PlatformError("Slow down.", retry_after_seconds=2.0)
LOST = PlatformError("The connection broke.", outcome_unknown=True)


@pytest.mark.parametrize(
    ("odd", "shown"),
    [
        ("is posted late", [TIDE]),
        ("undeletable", [PREVIEW_MOVED, TIDE]),
        ("untouchable", [f"High{WRITING}", TIDE]),
        ("busy", [TIDE]),
        ("deleted by somebody", [TIDE]),
        ("deleted before a kill", [TIDE]),
        ("answer lost", [TIDE]),
        ("refused once", [TIDE]),
        ("something between", ["Something else.", TIDE]),
        ("clock set back", [TIDE]),
    ],
)
async def test_a_late_answer_arrives_once_as_a_separate_message(stand: Stand, odd: str, shown: list[str]) -> None:
    limits = msgspec.structs.replace(LIMITS, edits_notify=False, idempotent_posts=True)
    chat = stand.chat = Stubborn(clock=stand.clock, limits=limits)
    turn = TurnId("T1")
    assert await stand.store.outbox.begin_preview(TOPIC, turn)
    preview = await chat.post(OutboundPost(TOPIC, preview_key(turn), f"High{WRITING}"))
    assert await stand.store.outbox.previewed(TOPIC, turn, preview)
    if odd == "something between":
        await stand.put("between", "Something else.")
        async with stand.sending():
            await stand.until(lambda: "Something else." in chat.texts(TOPIC))
    stand.clock.jump(1 if odd == "is posted late" else 60)
    await stand.put(reply_key(turn))
    if odd == "is posted late":  # the chat was unreachable
        stand.clock.jump(LATE_SECONDS)
    elif odd == "clock set back":
        stand.clock.jump(-5)
    elif odd == "undeletable":
        chat.refusals = (NEVER,)
    elif odd == "untouchable":
        chat.refusals = (NEVER, NEVER)
    elif odd == "busy":
        chat.refusals = (BUSY, BUSY)
    elif odd in ("deleted by somebody", "deleted before a kill"):
        await chat.delete(TOPIC, preview)
    elif odd == "answer lost":
        chat.troubles.append(LOST)
    elif odd == "refused once":
        chat.troubles.append(BUSY)
    async with stand.sending():
        await stand.until(lambda: chat.texts(TOPIC)[-1:] == [TIDE])
        while await stand.store.outbox.depth():
            await stand.passes(1)
    async with stand.sending():  # nothing is posted again after a restart
        await stand.passes(5)
    assert chat.texts(TOPIC) == shown
    assert chat.posted[-1].id != preview
    assert stand.lost == []


async def test_a_long_text_is_split_off_the_event_loop(stand: Stand) -> None:
    cut_in = set[int]()

    def note(text: str) -> str:
        cut_in.add(threading.get_ident())
        return text

    markup = msgspec.structs.replace(MARKDOWN, text=note)
    stand.chat.limits = msgspec.structs.replace(LIMITS, markup=markup, edits_notify=False)
    await stand.put("p", "word " * CUT_HERE_CHARS_MAX, HARBOUR)
    async with stand.sending():
        await stand.until(lambda: bool(stand.chat.posted))
    assert cut_in
    assert threading.get_ident() not in cut_in
