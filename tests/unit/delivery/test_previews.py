"""Previews of an answer that is still being written: content, edit rate, and final state."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects import DIALECTS

from shoal.delivery.hub import Hub
from shoal.delivery.pacing import Pacer
from shoal.delivery.previews import STOPPED, WRITING, Previews, shown_of
from shoal.kernel.errors import PlatformError
from shoal.kernel.events import Event, EventData, StatusChanged, TextStreamed, ToolFinished, TurnFinished, UserSaid
from shoal.kernel.ids import CallId, ThreadId, TurnId, make_thread_id
from shoal.kernel.messages import Author
from shoal.kernel.posts import Button, ChatLimits, OutboundPost
from shoal.kernel.records import NewPost, OutboxRow
from shoal.markdown.render import rendered_length
from shoal.markdown.unfinished import marked
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.chat import FakeChat
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database

LIMITS = ChatLimits(200, can_edit=True, has_preview=True, edit_seconds_min=1.0)
THREAD = make_thread_id("fake", "harbour", "1")
TURN = TurnId("T1")
MARKUPS = ("markdown", "telegram", "slack", "discord", "matrix", "plain")


class MeetingChat(FakeChat):
    """A platform that runs `before_posting` once, just before the next post."""

    before_posting: Callable[[], Awaitable[None]] | None = None

    async def post(self, post: OutboundPost) -> str:
        meet, self.before_posting = self.before_posting, None
        if meet is not None:
            await meet()
        return await super().post(post)


class Stand:
    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.hub = Hub()
        self.chat = MeetingChat(limits=LIMITS, clock=clock)
        self.pacer = Pacer(LIMITS, clock)
        self.previews = self.made()

    def made(self) -> Previews:
        return Previews(self.chat, self.hub, self.store.outbox, self.clock)

    def happens(self, data: EventData, thread: ThreadId = THREAD) -> None:
        self.hub.publish([Event(1, thread, TURN, datetime(2026, 1, 5, tzinfo=UTC), data)])

    async def writes(self, text: str, step: int = 0) -> None:
        self.hub.show(THREAD, TURN, TextStreamed(text, step))
        await self.clock.advance(0)
        await self.clock.sleepers()  # until the database has the message and the preview is waiting for more text

    async def passes(self, seconds: float = 0.0) -> None:
        await self.clock.advance(seconds)

    @property
    def texts(self) -> list[str]:
        return self.chat.texts(THREAD)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    clock = ManualClock()
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), clock)
    made = Stand(store, clock)
    running = asyncio.ensure_future(made.previews.run(made.pacer))
    await made.passes()
    made.happens(UserSaid("go", Author("ada", trusted=True), "m-asked"))
    yield made
    running.cancel()
    await asyncio.wait({running})
    await store.close()


def reply(text: str = "done", turn: TurnId = TURN) -> OutboxRow:
    post = NewPost(f"{turn}:reply", THREAD, text)
    return OutboxRow(post.id, THREAD, post, 0, 0, datetime(2026, 1, 5, tzinfo=UTC))


async def test_an_answer_grows_in_one_message_at_the_platforms_pace(stand: Stand) -> None:
    await stand.writes("The tide")
    assert stand.texts == ["The tide" + WRITING]
    assert stand.chat.posted[0].post.reply_to == "m-asked"
    for word in (" is", " low", " at"):
        await stand.writes(word)
    assert stand.texts == ["The tide" + WRITING], "an edit came before its time"
    await stand.passes(1.0)
    assert stand.texts == ["The tide is low at" + WRITING]


async def test_a_new_step_restarts_the_text(stand: Stand) -> None:
    await stand.writes("Let me look.")
    await stand.writes("It is", step=1)
    await stand.passes(1.0)
    assert stand.texts == ["It is" + WRITING]


@pytest.mark.parametrize("text", ["[SIL", "[SILENT]", "  \n"])
async def test_a_possibly_silent_answer_is_not_previewed(stand: Stand, text: str) -> None:
    await stand.writes(text)
    await stand.passes(5.0)
    assert stand.texts == []


async def test_a_long_answer_shows_its_first_part(stand: Stand) -> None:
    await stand.writes("word " * 100)
    assert len(stand.texts[0]) <= LIMITS.text_chars_max
    await stand.passes(1.0)
    await stand.writes("more " * 100)
    await stand.passes(1.0)
    assert len(stand.chat.posted) == 1


async def test_a_growing_text_shows_no_unclosed_markup(stand: Stand) -> None:
    shown: list[str] = []
    for piece in ("Some **bo", "ld** and [a li", "nk](https://x.y", ") here.\n\n```py\nx =", " 1\n``", "`"):
        await stand.writes(piece)
        await stand.passes(1.0)
        shown.append(stand.texts[0].removesuffix(WRITING))
    assert shown == [
        "Some **bo**",
        "Some **bold** and a li",
        "Some **bold** and a link",
        "Some **bold** and [a link](https://x.y) here.\n\n```py\nx =\n```\n\n",
        "Some **bold** and [a link](https://x.y) here.\n\n```py\nx = 1\n```\n\n",
        "Some **bold** and [a link](https://x.y) here.\n\n```py\nx = 1\n```\n\n",
    ]
    stand.happens(TurnFinished("aborted"))
    await stand.passes()
    assert stand.texts[0].endswith("```\n\n" + STOPPED)


async def test_a_full_preview_does_not_shrink(stand: Stand) -> None:
    await stand.writes("word " * 36)
    await stand.passes(1.0)
    full = stand.texts
    await stand.writes("more " * 10)
    await stand.passes(1.0)
    assert stand.texts == full


@pytest.mark.parametrize("markup", MARKUPS)
@given(
    st.lists(st.sampled_from(["**bo", "ld**", " *a", "`c", "[l](h", "```\n", "\n\n", "- x", "word " * 9]), max_size=40)
)
def test_a_preview_and_its_ending_always_fit(markup: str, parts: list[str]) -> None:
    limits = ChatLimits(200, markup=DIALECTS[markup], text_unit="utf16", can_stream=len(parts) % 2 == 0)
    shown, _ = shown_of("".join(parts), limits)
    for end in (WRITING, STOPPED):
        assert rendered_length(marked(shown, end), limits) <= 200


@pytest.mark.parametrize("sign", ["&", "<", "a "])
def test_a_preview_shows_as_much_as_fits(sign: str) -> None:
    limits = ChatLimits(200, markup=DIALECTS["telegram"])
    shown, is_all = shown_of(sign * 500, limits)
    assert not is_all
    assert rendered_length(marked(shown, STOPPED), limits) > 150


async def test_the_reply_takes_over_the_preview_and_no_edit_follows(stand: Stand) -> None:
    await stand.writes("The tide")
    assert await stand.previews.take(reply()) == "m1"
    await stand.writes(" is low")
    await stand.passes(5.0)
    assert stand.texts == ["The tide" + WRITING]
    assert await stand.previews.take(reply(turn=TurnId("T0"))) == ""


async def test_the_message_is_found_after_a_restart(stand: Stand) -> None:
    await stand.writes("The tide")
    assert await stand.made().take(reply()) == "m1"
    assert await stand.store.outbox.thread_of("fake:harbour:", "m1") == THREAD


async def test_a_preview_continues_in_the_message_of_a_killed_process(stand: Stand) -> None:
    await stand.store.outbox.begin_preview(THREAD, TURN)
    await stand.store.outbox.previewed(THREAD, TURN, "m1")
    await stand.chat.post(OutboundPost(THREAD, "k1", "The ti" + WRITING))
    await stand.writes("The tide")
    assert stand.texts == ["The tide" + WRITING]
    assert await stand.previews.take(reply()) == "m1"


async def test_a_reply_reuses_a_killed_processs_message_before_showing_anything_new(stand: Stand) -> None:
    await stand.store.outbox.begin_preview(THREAD, TURN)
    await stand.store.outbox.previewed(THREAD, TURN, "m1")
    await stand.writes("[SIL")
    assert await stand.previews.take(reply()) == "m1"


async def test_a_preview_with_an_unknown_id_is_treated_as_possibly_posted(stand: Stand) -> None:
    await stand.store.outbox.begin_preview(THREAD, TURN)
    assert await stand.previews.take(reply()) is None
    await stand.writes("The tide")
    assert stand.chat.posted[0].post.maybe_posted
    assert await stand.previews.take(reply()) == "m1"


async def test_a_refused_preview_counts_as_unposted_and_an_unconfirmed_one_as_possibly_posted(stand: Stand) -> None:
    stand.chat.troubles.append(PlatformError("no"))
    await stand.writes("The tide")
    assert await stand.previews.take(reply()) == ""
    assert await stand.made().take(reply()) == ""
    other = TurnId("T2")
    stand.chat.troubles.append(PlatformError("lost", outcome_unknown=True))
    stand.hub.show(THREAD, other, TextStreamed("Again", 0))
    await stand.passes()
    await stand.clock.sleepers()
    assert await stand.previews.take(reply(turn=other)) is None
    assert await stand.made().take(reply(turn=other)) is None


async def test_a_preview_is_deleted_if_another_process_posted_the_answer(stand: Stand) -> None:
    async def another_process_posts() -> None:
        await stand.store.outbox.unpreviewed(THREAD, TURN)
        await stand.chat.post(OutboundPost(THREAD, "T1:reply:0", "The tide is low."))

    stand.chat.before_posting = another_process_posts
    await stand.writes("The tide")
    assert stand.texts == ["The tide is low."]
    await stand.writes(" is low.")
    await stand.passes(5.0)
    assert stand.texts == ["The tide is low."]
    assert await stand.store.outbox.posted_ids("preview:T1") == []


async def test_a_stopped_turn_is_marked_as_stopped(stand: Stand) -> None:
    await stand.writes("The tide")
    stand.happens(TurnFinished("aborted"))
    await stand.passes()
    assert stand.texts == ["The tide" + STOPPED]


async def test_the_preview_of_a_killed_process_is_deleted_if_the_turn_has_no_answer(stand: Stand) -> None:
    await stand.chat.post(OutboundPost(THREAD, "k1", "The ti" + WRITING))
    await stand.store.outbox.begin_preview(THREAD, TURN)
    await stand.store.outbox.previewed(THREAD, TURN, "m1")
    stand.happens(TurnFinished("aborted"))
    async with asyncio.timeout(60):
        while stand.texts:
            await stand.store.outbox.depth()
            await stand.passes()


async def test_a_preview_starts_after_an_earlier_post(stand: Stand) -> None:
    await stand.store.outbox.put(NewPost("early", THREAD, "first"))
    await stand.writes("The tide")
    assert stand.texts == []
    (row,) = await stand.store.outbox.claim(["fake"], 1, 60)
    await stand.store.outbox.posted(row, 0, "m0", last=True)
    await stand.passes(1.0)
    await stand.clock.sleepers()
    assert stand.texts == ["The tide" + WRITING]


async def test_a_refused_preview_delays_the_next_one(stand: Stand) -> None:
    stand.chat.troubles.append(PlatformError("slow down", retry_after_seconds=30))
    await stand.writes("The tide")
    assert stand.texts == []
    assert stand.pacer.barred(THREAD)
    await stand.writes(" is low")
    await stand.passes(31.0)
    await stand.clock.sleepers()
    assert stand.texts == ["The tide is low" + WRITING]


async def test_the_preview_shows_the_running_tool(stand: Stand) -> None:
    thinks = StatusChanged("thinking")
    for does in (thinks, StatusChanged("tool", "bash"), StatusChanged("tool", "read_url, " * 20), thinks):
        stand.hub.show(THREAD, TURN, does)
        await stand.passes(4.0)
    said = [status for _, status in stand.chat.typed]
    assert said[0] == "is thinking…"
    assert "is running bash…" in said
    assert "is thinking…" in said[2:]
    assert max(map(len, said)) < 80


async def test_the_preview_shows_activity_before_there_is_text(stand: Stand) -> None:
    stand.hub.show(THREAD, TURN, StatusChanged("thinking"))
    await stand.passes(9.0)
    assert len(stand.chat.typed) == 3
    stand.happens(TurnFinished("done", "hi"))
    await stand.passes(30.0)
    assert len(stand.chat.typed) == 3


async def test_a_turn_without_an_end_event_shows_no_activity_after_the_next_turn(stand: Stand) -> None:
    await stand.writes("[SIL")
    other = TurnId("T2")
    stand.hub.show(THREAD, other, TextStreamed("[SIL", 0))
    await stand.passes()
    stand.hub.publish([Event(2, THREAD, other, datetime(2026, 1, 5, tzinfo=UTC), TurnFinished("done", "hi"))])
    await stand.passes(5.0)
    told = len(stand.chat.typed)
    await stand.passes(60.0)
    assert len(stand.chat.typed) == told


async def test_concurrent_previews_are_bounded(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.delivery.previews.PREVIEWS_MAX", 1)
    await stand.writes("The tide")
    other, turn = make_thread_id("fake", "harbour", "2"), TurnId("T2")

    stand.hub.show(other, turn, TextStreamed("Here", 0))
    await stand.passes(5.0)
    assert stand.chat.texts(other) == []
    stand.happens(TurnFinished("done", "The tide is low."))
    stand.hub.show(other, turn, TextStreamed("Here", 0))
    await stand.passes()
    await stand.chat.sees(other, "Here" + WRITING)


async def test_turns_on_other_platforms_are_not_previewed(stand: Stand) -> None:
    stand.hub.show(make_thread_id("other", "harbour", "1"), TURN, TextStreamed("The tide", 0))
    await stand.passes(5.0)
    assert (stand.chat.posted, stand.chat.typed) == ([], [])


async def test_an_answer_given_by_a_tool_adds_no_mark_to_the_preview(stand: Stand) -> None:
    await stand.writes("Let me tell her")
    stand.happens(ToolFinished(CallId("a"), "message", "sent", answers=True))
    stand.happens(TurnFinished("done", ""))
    await stand.passes()
    assert stand.texts == ["Let me tell her"]


async def test_a_preview_is_not_edited_while_its_channel_is_barred(stand: Stand) -> None:
    await stand.writes("The tide")
    stand.pacer.refused(THREAD, 10.0)
    await stand.writes(" is low")
    await stand.passes(5.0)
    assert stand.texts == ["The tide" + WRITING]
    await stand.passes(6.0)
    await stand.chat.sees(THREAD, "The tide is low" + WRITING)


class ClumsyChat(MeetingChat):
    """An adapter with bugs. Posts fail until `is_mended` is set. Typing notices and edits always fail."""

    is_mended = False

    async def post(self, post: OutboundPost) -> str:
        if not self.is_mended:
            raise KeyError("channel")
        return await super().post(post)

    async def typing(self, thread: ThreadId, status: str) -> None:
        raise RuntimeError("not written yet")

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        raise TypeError("an id")


async def test_an_adapter_error_only_loses_the_preview(tmp_path: Path) -> None:
    clock = ManualClock()
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), clock)
    stand = Stand(store, clock)
    stand.chat = chat = ClumsyChat(limits=LIMITS, clock=clock)
    running = asyncio.ensure_future(stand.made().run(stand.pacer))
    await stand.passes()
    stand.hub.show(THREAD, TURN, StatusChanged("thinking"))
    await stand.passes()
    await stand.writes("The tide")
    chat.is_mended = True
    await stand.passes(1.0)
    await stand.writes(" is")
    await stand.passes(1.0)
    await stand.writes(" low")
    await stand.passes(1.0)
    assert not running.done()
    assert stand.texts == ["The tide is" + WRITING]
    running.cancel()
    await asyncio.wait({running})
    await store.close()
