"""Outbox rows that a sender claims: a long send keeps its claim, and a reply reuses its preview."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from shoal.delivery import previews
from shoal.delivery.hub import Hub
from shoal.delivery.previews import Previews
from shoal.delivery.sender import (
    BY_REACTION,
    CLAIM_SECONDS,
    KEEP_ATTEMPTS_MIN,
    KEEP_SECONDS,
    QUIET_SECONDS,
    RETRY_SECONDS_MAX,
    ROWS_A_CLAIM,
    SPOKEN_TRIES,
    UNKNOWN_MAX,
    Sender,
)
from shoal.kernel.errors import PlatformError, ProviderDown, StoreUnavailable
from shoal.kernel.ids import ThreadId, TurnId, make_thread_id, unopened
from shoal.kernel.posts import REPEATED, WRITING, Button, OutboundPost, Window
from shoal.kernel.records import (
    Committed,
    DeliveryStatus,
    NewPost,
    OutboxRow,
)
from shoal.store.outbox import Outbox, put_claimed
from shoal.store.sqlite import SqliteDriver
from shoal.testing.chat import LIMITS, FakeChat, Posted
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database

PAUSE_SECONDS = CLAIM_SECONDS * 0.9
SLOW = msgspec.structs.replace(LIMITS, windows=(Window(1, PAUSE_SECONDS),))
PIECES = 4
ANSWER = NewPost("T1:reply", make_thread_id("fake", "harbour", "1"), "The tide is low.")


class NotingOutbox(Outbox):
    """An outbox that records every claim and its outcome."""

    def __init__(self, driver: SqliteDriver, clock: ManualClock) -> None:
        super().__init__(driver, clock)
        self.claimed: list[str] = []
        self.put_back: list[datetime] = []
        self.attempts: list[int] = []
        self.away = 0
        self.refused: list[bool] = []

    async def fail(self, row: OutboxRow, error: str, refused: bool = True) -> None:
        await super().fail(row, error, refused)
        self.refused.append(refused)

    async def give_back(self, row: OutboxRow) -> None:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("The database is away.")
        await super().give_back(row)

    async def retry(self, row: OutboxRow, at: datetime, error: str, *, maybe_sent: bool = False) -> None:
        await super().retry(row, at, error, maybe_sent=maybe_sent)
        self.put_back.append(at)
        self.attempts.append(row.attempts)

    async def claim(
        self, platforms: Sequence[str], limit: int, claim_seconds: float, held: Sequence[str] = ()
    ) -> list[OutboxRow]:
        rows = await super().claim(platforms, limit, claim_seconds, held)
        self.claimed += [row.id for row in rows]
        return rows

    async def finish(self, claim_seconds: float) -> Committed:
        row = await self._driver.write(put_claimed(ANSWER, self._clock.now(), claim_seconds)) if claim_seconds else None
        if row is None:
            await self.put(ANSWER)
            return Committed(())
        return Committed((), claimed=(row,))


class SlowChat(FakeChat):
    def __init__(self, gate: asyncio.Event, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.asked = asyncio.Event()
        self._gate = gate

    async def post(self, post: OutboundPost) -> str:
        self.asked.set()
        await self._gate.wait()
        return await super().post(post)


@asynccontextmanager
async def sending(sender: Sender) -> AsyncGenerator[None]:
    running = asyncio.ensure_future(sender.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def outbox(tmp_path: Path, clock: ManualClock) -> AsyncIterator[NotingOutbox]:
    driver = SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF")
    yield NotingOutbox(driver, clock)
    await driver.close()


async def test_a_long_answer_in_slow_pieces_is_claimed_once(outbox: NotingOutbox, clock: ManualClock) -> None:
    chat = FakeChat(limits=SLOW, clock=clock)
    await outbox.put(NewPost("long", make_thread_id("fake", "harbour", "1"), "word " * (400 * PIECES - 10)))
    async with sending(Sender(chat, outbox, clock)):
        while len(chat.posted) < PIECES:
            await clock.advance(5)
            await outbox.depth()
        assert outbox.claimed == ["long"]


async def test_a_row_being_sent_is_not_reclaimed(outbox: NotingOutbox, clock: ManualClock) -> None:
    """The clock can jump ahead while the sender works, for example after the machine was suspended."""
    gate = asyncio.Event()
    chat = SlowChat(gate, clock)
    await outbox.put(NewPost("p", make_thread_id("fake", "harbour", "1"), "short"))
    async with sending(Sender(chat, outbox, clock)):
        await chat.asked.wait()
        for _ in range(3):
            clock.jump(5 * CLAIM_SECONDS)
            await clock.advance(5)
            await outbox.depth()
        gate.set()
        while await outbox.depth():
            await clock.advance(1)
        assert outbox.claimed == ["p"]
        assert len(chat.posted) == 1


async def test_a_turns_answer_is_sent_without_polling_the_outbox(outbox: NotingOutbox, clock: ManualClock) -> None:
    chat = FakeChat(clock=clock)
    sender = Sender(chat, outbox, clock)
    async with sending(sender):
        await clock.sleepers()
        await sender.enqueue([ANSWER], outbox.finish)
        await chat.sees(ANSWER.thread, ANSWER.text)
        while await outbox.depth():
            pass
    assert outbox.claimed == []


async def test_a_stopped_sender_leaves_an_answer_to_other_senders(outbox: NotingOutbox, clock: ManualClock) -> None:
    await Sender(FakeChat(clock=clock), outbox, clock).enqueue([ANSWER], outbox.finish)
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    assert (row.id, row.maybe_sent) == (ANSWER.id, False)


@pytest.mark.parametrize("known", [True, False])
async def test_an_answer_whose_sender_ends_while_storing_it_is_not_marked_as_a_repeat(
    outbox: NotingOutbox, clock: ManualClock, known: bool
) -> None:
    sender = Sender(FakeChat(clock=clock), outbox, clock)
    running = asyncio.ensure_future(sender.run())
    await clock.sleepers()

    async def finish(claim_seconds: float) -> Committed:
        finished = await outbox.finish(claim_seconds)
        running.cancel()
        await asyncio.wait([running])
        if not known:
            raise asyncio.CancelledError
        return finished

    with suppress(asyncio.CancelledError):
        await sender.enqueue([ANSWER], finish)
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    assert not row.maybe_sent


@pytest.mark.parametrize("away", [0, 1])
async def test_an_answer_with_an_unknown_commit_is_sent_once_and_unmarked(
    outbox: NotingOutbox, clock: ManualClock, away: int
) -> None:
    chat = FakeChat(limits=msgspec.structs.replace(LIMITS, idempotent_posts=False), clock=clock)
    sender = Sender(chat, outbox, clock)

    async def finish(claim_seconds: float) -> Committed:
        await outbox.finish(claim_seconds)
        outbox.away = away
        raise StoreUnavailable("The database went away while it committed.")

    async with sending(sender):
        await clock.sleepers()
        with pytest.raises(StoreUnavailable):
            await sender.enqueue([ANSWER], finish)
        while await outbox.depth():
            await clock.advance(1)
    assert chat.texts(ANSWER.thread) == [ANSWER.text]
    assert outbox.claimed == [ANSWER.id]


async def test_an_answer_waits_at_the_concurrency_limit(
    outbox: NotingOutbox, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.delivery.sender.ROWS_AT_ONCE_MAX", 1)
    gate = asyncio.Event()
    chat = SlowChat(gate, clock)
    sender = Sender(chat, outbox, clock)
    await outbox.put(NewPost("p", make_thread_id("fake", "harbour", "2"), "short"))
    async with sending(sender):
        await chat.asked.wait()
        await sender.enqueue([ANSWER], outbox.finish)
        assert await outbox.fate(ANSWER.id) == DeliveryStatus("pending", "")
        gate.set()
        async with asyncio.timeout(60):
            while await outbox.depth():
                pass
    assert outbox.claimed == ["p", ANSWER.id]


async def test_a_delayed_row_is_sent_when_due_without_polling(outbox: NotingOutbox, clock: ManualClock) -> None:
    chat = FakeChat(clock=clock)
    chat.troubles.append(PlatformError("Busy.", retry_after_seconds=QUIET_SECONDS / 2))
    await outbox.put(NewPost("p", make_thread_id("fake", "harbour", "1"), "short"))
    async with sending(Sender(chat, outbox, clock)):
        async with asyncio.timeout(60):
            while not outbox.put_back or clock.next_wake_at() not in outbox.put_back:
                await outbox.depth()
            await clock.advance_to(outbox.put_back[0])
            await chat.sees(make_thread_id("fake", "harbour", "1"), "short")
        assert outbox.put_back == [clock.now()]


async def test_more_threads_than_fit_in_a_claim_are_served_without_a_pause(
    outbox: NotingOutbox, clock: ManualClock
) -> None:
    chat = FakeChat(clock=clock)
    for number in range(2 * ROWS_A_CLAIM + 1):
        await outbox.put(NewPost(f"p{number}", make_thread_id("fake", "harbour", str(number)), "short"))
    async with sending(Sender(chat, outbox, clock)):
        async with asyncio.timeout(60):
            while await outbox.depth():
                pass
        assert len(chat.posted) == 2 * ROWS_A_CLAIM + 1


async def test_the_next_post_of_a_thread_follows_without_a_pause(outbox: NotingOutbox, clock: ManualClock) -> None:
    chat, thread = FakeChat(clock=clock), make_thread_id("fake", "harbour", "1")
    for name in ("first", "second", "third"):
        await outbox.put(NewPost(name, thread, name))
    async with sending(Sender(chat, outbox, clock)), asyncio.timeout(60):
        while await outbox.depth():
            pass
    assert [made.post.markdown for made in chat.posted] == ["first", "second", "third"]


async def test_a_fully_sent_post_is_completed(outbox: NotingOutbox, clock: ManualClock) -> None:
    chat = FakeChat(clock=clock)
    await outbox.put(NewPost("p", make_thread_id("fake", "harbour", "1"), "short"))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await outbox.posted(row, 0, "m0", last=False)
    await outbox.retry(row, clock.now(), "later")
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await Sender(chat, outbox, clock).deliver(row)
    assert await outbox.depth() == 0
    assert chat.posted == []


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_reply_reuses_a_killed_processs_unrecorded_preview(
    outbox: NotingOutbox, clock: ManualClock, idempotent: bool
) -> None:
    chat = FakeChat(limits=msgspec.structs.replace(LIMITS, idempotent_posts=idempotent), clock=clock)
    thread = make_thread_id("fake", "harbour", "1")
    await outbox.begin_preview(thread, TurnId("T1"))
    await chat.post(OutboundPost(thread, "preview:T1", "The ti" + WRITING))
    await outbox.put(NewPost("T1:reply", thread, "The tide is low."))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await Sender(chat, outbox, clock, Previews(chat, Hub(), outbox, clock)).deliver(row)
    assert chat.texts(thread) == (["The tide is low."] if idempotent else ["The ti" + WRITING, "The tide is low."])
    assert await outbox.depth() == 0


async def test_an_answer_sent_without_its_preview_never_uses_the_preview_later(
    outbox: NotingOutbox, clock: ManualClock
) -> None:
    chat = FakeChat(limits=msgspec.structs.replace(LIMITS, idempotent_posts=False), clock=clock)
    thread, turn = make_thread_id("fake", "harbour", "1"), TurnId("T1")
    await outbox.begin_preview(thread, turn)
    preview = await chat.post(OutboundPost(thread, "preview:T1", "The ti" + WRITING))
    await outbox.put(NewPost("T1:reply", thread, "The tide is low."))
    chat.troubles.append(PlatformError("The answer was lost.", outcome_unknown=True))
    for _ in range(2):
        (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
        await Sender(chat, outbox, clock, Previews(chat, Hub(), outbox, clock)).deliver(row)
        assert not await outbox.previewed(thread, turn, preview)
        await clock.advance(CLAIM_SECONDS)
    assert chat.texts(thread) == ["The ti" + WRITING, "The tide is low.", f"{REPEATED}The tide is low."]


class Noted(NotingOutbox):
    """An outbox in which another process records the preview's id just before this one continues without the
    preview.
    """

    async def unpreviewed(self, thread: ThreadId, turn: TurnId) -> None:
        await self.previewed(thread, turn, "m1")
        await super().unpreviewed(thread, turn)


async def test_a_preview_whose_id_arrives_late_is_deleted(tmp_path: Path, clock: ManualClock) -> None:
    driver = SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF")
    outbox, thread = Noted(driver, clock), make_thread_id("fake", "harbour", "1")
    chat = FakeChat(limits=msgspec.structs.replace(LIMITS, idempotent_posts=False), clock=clock)
    await outbox.begin_preview(thread, TurnId("T1"))
    await chat.post(OutboundPost(thread, "preview:T1", "The ti" + WRITING))
    await outbox.put(NewPost("T1:reply", thread, "The tide is low."))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await Sender(chat, outbox, clock, Previews(chat, Hub(), outbox, clock)).deliver(row)
    assert chat.texts(thread) == ["The tide is low."]
    await driver.close()


class ReadBack(FakeChat):
    """A platform that has forgotten all idempotency keys but can list its posts."""

    async def find_posted(self, post: OutboundPost) -> list[str]:
        self._keys.clear()
        return [one.id for one in self.posted if one.markdown == post.markdown]


@pytest.mark.parametrize("taken", [True, False])
async def test_a_possibly_sent_post_is_found_by_reading_back(
    outbox: NotingOutbox, clock: ManualClock, taken: bool
) -> None:
    chat, thread = ReadBack(clock=clock), make_thread_id("fake", "harbour", "1")
    sender = Sender(chat, outbox, clock)
    for name in ("first", "second"):
        await outbox.put(NewPost(name, thread, "Done."))
    (first,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await sender.deliver(first)
    (second,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    if taken:
        await chat.post(OutboundPost(thread, "second:0", "Done."))
    await outbox.release("fake")  # its sender was killed
    (second,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await sender.deliver(second)
    assert chat.texts(thread) == ["Done.", "Done."]
    assert len({*await outbox.posted_ids("first"), *await outbox.posted_ids("second")}) == 2


@pytest.mark.parametrize("idempotent", [True, False])
async def test_an_opening_with_a_lost_answer_is_found_by_its_key_or_marked_as_a_repeat(
    outbox: NotingOutbox, clock: ManualClock, idempotent: bool
) -> None:
    chat = FakeChat(limits=msgspec.structs.replace(LIMITS, idempotent_posts=idempotent), clock=clock)
    chat.troubles.append(PlatformError("The answer was lost.", outcome_unknown=True))
    await outbox.put(NewPost("p", unopened("fake", "harbour"), "A storm is coming.", "opening"))
    for _ in range(2):
        (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
        await Sender(chat, outbox, clock).deliver(row)
        await clock.advance(CLAIM_SECONDS)
    assert await outbox.depth() == 0
    repeat = [] if idempotent else [f"{REPEATED}A storm is coming."]
    assert [one.markdown for one in chat.posted] == ["A storm is coming.", *repeat]
    assert len({one.post.thread for one in chat.posted}) == 1


async def test_a_permanently_refused_opening_is_given_up(outbox: NotingOutbox, clock: ManualClock) -> None:
    chat = FakeChat(clock=clock)
    chat.troubles.append(PlatformError("No such channel.", permanent=True))
    await outbox.put(NewPost("p", unopened("fake", "harbour"), "A storm is coming.", "opening"))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await Sender(chat, outbox, clock).deliver(row)
    assert await outbox.fate("p") == DeliveryStatus("failed", "No such channel.")
    assert outbox.refused == [True]


async def test_a_refused_piece_is_not_marked_as_a_repeat_after_a_repeated_piece(
    outbox: NotingOutbox, clock: ManualClock
) -> None:
    def refuse_what_follows_the_repeat(made: Posted) -> None:
        if made.markdown.startswith(REPEATED):
            chat.troubles.append(PlatformError("Busy."))

    limits = msgspec.structs.replace(LIMITS, idempotent_posts=False)
    chat = FakeChat(limits=limits, clock=clock, on_post=refuse_what_follows_the_repeat)
    chat.troubles.append(PlatformError("The answer was lost.", outcome_unknown=True))
    await outbox.put(NewPost("p", make_thread_id("fake", "harbour", "1"), "word " * 700))
    for _ in range(3):
        (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
        await Sender(chat, outbox, clock).deliver(row)
        await clock.advance(CLAIM_SECONDS)
    assert await outbox.depth() == 0
    assert [one.markdown.startswith(REPEATED) for one in chat.posted] == [False, True, False]


async def test_a_started_post_is_recorded_when_the_sender_ends(outbox: NotingOutbox, clock: ManualClock) -> None:
    gate, thread = asyncio.Event(), make_thread_id("fake", "harbour", "1")
    chat = SlowChat(gate, clock)
    await outbox.put(NewPost("p", thread, "short"))
    running = asyncio.ensure_future(Sender(chat, outbox, clock).run())
    await chat.asked.wait()
    running.cancel()
    await outbox.depth()
    gate.set()
    await asyncio.wait([running])
    assert chat.texts(thread) == ["short"]
    assert await outbox.fate("p") == DeliveryStatus("sent", "")


async def test_a_started_opening_is_recorded_when_the_sender_ends(outbox: NotingOutbox, clock: ManualClock) -> None:
    gate = asyncio.Event()
    chat = SlowChat(gate, clock)
    await outbox.put(NewPost("p", unopened("fake", "harbour"), "A storm is coming.", "opening"))
    running = asyncio.ensure_future(Sender(chat, outbox, clock).run())
    await chat.asked.wait()
    running.cancel()
    await outbox.depth()
    gate.set()
    await asyncio.wait([running])
    assert [one.markdown for one in chat.posted] == ["A storm is coming."]
    assert await outbox.fate("p") == DeliveryStatus("sent", "")


async def test_an_endless_post_is_cut_off_and_may_be_a_repeat(
    outbox: NotingOutbox, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "ENDING_SECONDS", 0.0)
    chat = SlowChat(asyncio.Event(), clock)
    await outbox.put(NewPost("p", make_thread_id("fake", "harbour", "1"), "short"))
    async with sending(Sender(chat, outbox, clock)):
        await chat.asked.wait()
    await outbox.release("fake")
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    assert row.maybe_sent


async def test_an_unstarted_post_is_not_marked_as_a_repeat(outbox: NotingOutbox, clock: ManualClock) -> None:
    chat, thread = FakeChat(limits=SLOW, clock=clock), make_thread_id("fake", "harbour", "1")
    await outbox.put(NewPost("p", thread, "word " * 790))
    async with sending(Sender(chat, outbox, clock)):
        await chat.sees(thread, "word")  # the second part waits for its slot
    await outbox.release("fake")
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    assert (row.part, row.maybe_sent) == (1, False)


async def test_an_edit_changes_both_messages_of_a_piece_posted_twice(outbox: NotingOutbox, clock: ManualClock) -> None:
    chat, thread = FakeChat(clock=clock), make_thread_id("fake", "harbour", "1")
    await outbox.put(NewPost("p", thread, "May I?"))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    for key in ("one", "other"):
        await outbox.posted(row, 0, await chat.post(OutboundPost(thread, key, "May I?")), last=True)
    await outbox.put(NewPost("e", thread, "Allowed.", "edit", edits="p"))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await Sender(chat, outbox, clock).deliver(row)
    assert chat.texts(thread) == ["Allowed.", "Allowed."]


class Uneditable(FakeChat):
    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        raise PlatformError("Too old to be edited.", permanent=True)


async def test_an_answer_whose_preview_cannot_be_edited_is_posted_and_the_preview_deleted(
    outbox: NotingOutbox, clock: ManualClock
) -> None:
    chat = Uneditable(clock=clock)
    thread = make_thread_id("fake", "harbour", "1")
    await outbox.begin_preview(thread, TurnId("T1"))
    await outbox.previewed(thread, TurnId("T1"), await chat.post(OutboundPost(thread, "k", "The ti" + WRITING)))
    await outbox.put(NewPost("T1:reply", thread, "The tide is low."))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await Sender(chat, outbox, clock, Previews(chat, Hub(), outbox, clock)).deliver(row)
    assert chat.texts(thread) == ["The tide is low."]
    assert await outbox.depth() == 0


async def test_only_the_first_piece_answers_a_message(outbox: NotingOutbox, clock: ManualClock) -> None:
    chat = FakeChat(clock=clock)
    thread = make_thread_id("fake", "harbour", "1")
    await outbox.put(NewPost("long", thread, "word " * (400 * 3 - 10), reply_to="m7"))
    async with sending(Sender(chat, outbox, clock)):
        while await outbox.depth():
            await clock.advance(1)
    assert [made.post.reply_to for made in chat.posted] == ["m7", "", ""]


async def test_a_post_carries_its_kind_to_the_platform(outbox: NotingOutbox, clock: ManualClock) -> None:
    chat, thread = FakeChat(clock=clock), make_thread_id("fake", "harbour", "1")
    await outbox.put(NewPost("question", thread, "May I?", "card", approval="a1"))
    await outbox.put(NewPost("answer", thread, "Done."))
    async with sending(Sender(chat, outbox, clock)), asyncio.timeout(60):
        while await outbox.depth():
            pass
    assert [made.post.kind for made in chat.posted] == ["card", "text"]


class RefusingChat(FakeChat):
    def __init__(self, clock: ManualClock, *times: int) -> None:
        super().__init__(clock=clock)
        self._left = list(times)

    async def post(self, post: OutboundPost) -> str:
        part = int(post.key.rpartition(":")[2])
        if self._left[part]:
            self._left[part] -= 1
            raise PlatformError("It is busy.")
        return await super().post(post)


async def test_a_piece_is_not_delayed_by_refusals_of_the_previous_piece(
    outbox: NotingOutbox, clock: ManualClock
) -> None:
    chat = RefusingChat(clock, 4, 2)
    await outbox.put(NewPost("long", make_thread_id("fake", "harbour", "1"), "word " * (400 * 2 - 10)))
    async with sending(Sender(chat, outbox, clock)):
        while await outbox.depth():
            await clock.advance(1)
    assert outbox.attempts == [0, 1, 2, 3, 0, 1]


DAY_OLD = timedelta(seconds=KEEP_SECONDS)
REFUSED = PlatformError("It is busy.")
LOST = PlatformError("The answer was lost.", outcome_unknown=True)


@pytest.mark.parametrize(
    ("trouble", "age", "attempts", "state"),
    [
        (REFUSED, DAY_OLD, 1000, "pending"),
        (REFUSED, DAY_OLD + timedelta(seconds=1), KEEP_ATTEMPTS_MIN - 1, "pending"),
        (REFUSED, DAY_OLD + timedelta(seconds=1), KEEP_ATTEMPTS_MIN, "failed"),
        (LOST, timedelta(), UNKNOWN_MAX - 2, "pending"),
        (LOST, timedelta(), UNKNOWN_MAX - 1, "failed"),
    ],
)
async def test_a_post_is_retried_for_a_day_and_a_possibly_sent_one_a_few_times(
    outbox: NotingOutbox, clock: ManualClock, trouble: PlatformError, age: timedelta, attempts: int, state: str
) -> None:
    chat = FakeChat(clock=clock)
    chat.troubles.append(trouble)
    await outbox.put(NewPost("p", make_thread_id("fake", "harbour", "1"), "short"))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    row = msgspec.structs.replace(row, created_at=clock.now() - age, attempts=attempts)
    assert await Sender(chat, outbox, clock).deliver(row)
    fate = await outbox.fate("p")
    assert fate is not None
    assert (fate.state, fate.error) == (state, str(trouble))
    assert outbox.refused == ([False] if state == "failed" else [])


@pytest.mark.parametrize(
    ("attempts", "wanted", "least", "most"),
    [(0, None, 0.5, 1.0), (4, None, 8.0, 16.0), (0, 7.0, 7.0, 7.7), (0, 3600.0, 300.0, 300.0)],
)
async def test_a_refused_post_waits_as_requested_for_at_most_five_minutes(
    outbox: NotingOutbox, clock: ManualClock, attempts: int, wanted: float | None, least: float, most: float
) -> None:
    chat = FakeChat(clock=clock)
    chat.troubles.append(PlatformError("It is busy.", retry_after_seconds=wanted))
    await outbox.put(NewPost("p", make_thread_id("fake", "harbour", "1"), "short"))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await Sender(chat, outbox, clock).deliver(msgspec.structs.replace(row, attempts=attempts))
    assert most <= RETRY_SECONDS_MAX
    assert least <= (outbox.put_back[0] - clock.now()).total_seconds() <= most


async def test_a_possibly_sent_post_stays_a_repeat_after_a_refused_retry(
    outbox: NotingOutbox, clock: ManualClock
) -> None:
    chat = FakeChat(limits=msgspec.structs.replace(LIMITS, idempotent_posts=False), clock=clock)
    chat.troubles += [LOST, REFUSED]
    await outbox.put(NewPost("p", make_thread_id("fake", "harbour", "1"), "short"))
    async with sending(Sender(chat, outbox, clock)):
        while await outbox.depth():
            await clock.advance(1)
    assert [made.markdown for made in chat.posted] == ["short", f"{REPEATED}short"]


async def test_a_post_whose_adapter_fails_is_retried_as_possibly_sent(outbox: NotingOutbox, clock: ManualClock) -> None:
    def break_once(made: Posted) -> None:
        if len(chat.posted) == 1:
            raise ZeroDivisionError("surprise")

    chat = FakeChat(limits=msgspec.structs.replace(LIMITS, idempotent_posts=False), clock=clock, on_post=break_once)
    await outbox.put(NewPost("p", make_thread_id("fake", "harbour", "1"), "short"))
    async with sending(Sender(chat, outbox, clock)):
        while await outbox.depth():
            await clock.advance(1)
    assert [made.markdown for made in chat.posted] == ["short", f"{REPEATED}short"]


async def test_an_answer_that_cannot_be_spoken_is_posted_as_text_with_the_reason(
    outbox: NotingOutbox, clock: ManualClock
) -> None:
    async def speak(row: OutboxRow) -> Path:
        tries.append(row.attempts)
        raise ProviderDown("The voice is away.")

    tries: list[int] = []
    chat, thread = FakeChat(clock=clock), make_thread_id("fake", "harbour", "1")
    await outbox.put(NewPost("p", thread, "The tide is low.", "voice", reply_to="m7"))
    running = asyncio.ensure_future(Sender(chat, outbox, clock).run(speak=speak))
    while await outbox.depth():
        await clock.advance(1)
    running.cancel()
    await asyncio.wait([running])
    assert tries == list(range(SPOKEN_TRIES))
    assert chat.texts(thread) == ["I could not speak this answer: The voice is away."]
    assert [(made.post.kind, made.post.reply_to) for made in chat.posted] == [("text", "m7")]


@pytest.mark.parametrize("done", [0, 1])
async def test_an_interrupted_edit_resumes_with_the_next_message_of_the_post(
    outbox: NotingOutbox, clock: ManualClock, done: int
) -> None:
    chat, thread = FakeChat(clock=clock), make_thread_id("fake", "harbour", "1")
    sender = Sender(chat, outbox, clock)
    await outbox.put(NewPost("p", thread, "word " * 700))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await sender.deliver(row)
    first = chat.texts(thread)[0]
    await outbox.put(NewPost("e", thread, "Allowed.", "edit", edits="p"))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    assert await sender.deliver(msgspec.structs.replace(row, part=done))
    assert chat.texts(thread) == [first if done else "Allowed.", "…"]
    assert await outbox.depth() == 0


async def test_a_refused_edit_resumes_with_the_refused_message(outbox: NotingOutbox, clock: ManualClock) -> None:
    class Busy(FakeChat):
        edits = 0

        async def edit(
            self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()
        ) -> None:
            self.edits += 1
            if self.edits == 2:
                raise REFUSED
            await super().edit(thread, message_id, markdown, buttons)

    chat, thread = Busy(clock=clock), make_thread_id("fake", "harbour", "1")
    await outbox.put(NewPost("p", thread, "word " * 700))
    await outbox.put(NewPost("e", thread, "Allowed.", "edit", edits="p"))
    async with sending(Sender(chat, outbox, clock)):
        while await outbox.depth():
            await clock.advance(1)
    assert chat.texts(thread) == ["Allowed.", "…"]
    assert chat.edits == 3


@pytest.mark.parametrize(
    ("reactions", "channel", "offered"),
    [("all", "-7", True), ("all", "7", True), ("direct", "-7", False), ("direct", "7", True), ("", "7", False)],
)
@pytest.mark.parametrize("has_buttons", [True, False])
async def test_a_question_lists_the_ways_to_decide_on_its_platform(
    outbox: NotingOutbox,
    clock: ManualClock,
    reactions: Literal["", "direct", "all"],
    channel: str,
    offered: bool,
    has_buttons: bool,
) -> None:
    limits = msgspec.structs.replace(LIMITS, reactions=reactions, group_prefix="-", has_buttons=has_buttons)
    chat = FakeChat(limits=limits, clock=clock)
    await outbox.put(NewPost("question", make_thread_id("fake", channel, "1"), "May I?", "card", approval="a1"))
    (row,) = await outbox.claim(["fake"], 1, CLAIM_SECONDS)
    await Sender(chat, outbox, clock).deliver(row)
    (made,) = chat.posted
    assert (BY_REACTION in made.markdown, "write `allow a1`" in made.markdown) == (offered, not has_buttons)
