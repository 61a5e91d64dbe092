"""Time for what has begun when its service has to end: a post that is at the platform is noted, not cut off.

The preview of an answer while the model writes it: a post, then edits as far apart as the platform wants them.

    preview    means                                      left by
    --------   ----------------------------------------   ------------------------------------------------------------
    none       nothing was written yet, or it is silent,  text that may be shown -> shown
               or earlier posts have yet to be made
    shown      a message stands; edits follow the text    the reply is delivered: the sender edits it -> gone, or
                                                          where other posts may stand after it posts anew and has
                                                          it deleted; the turn ended without a reply: marked as
                                                          stopped -> gone

The outbox has the truth: whatever a preview misses, the reply's row brings. The message's id is kept there as well,
so that after a restart the reply still goes where its preview stands. That one is begun is noted before its post; so a
preview that stands although nobody learnt its id is found again where the platform can tell, by its key. Elsewhere the
reply takes that note away before it is posted anew: whoever learns the preview's id later deletes it.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from typing import TypeVar

import anyio
import anyio.abc
import msgspec

from shoal.delivery.hub import Hub
from shoal.delivery.pacing import Pacer
from shoal.kernel.clock import Clock
from shoal.kernel.errors import PlatformError, StoreError
from shoal.kernel.events import Event, LiveEvent, StatusChanged, TextStreamed, ToolFinished, TurnFinished, UserSaid
from shoal.kernel.ids import ThreadId, TurnId, thread_address
from shoal.kernel.messages import SILENT
from shoal.kernel.ports import ChatAdapter
from shoal.kernel.posts import (
    WRITING,
    ChatLimits,
    Deletes,
    OutboundPost,
    ReadsBack,
    preview_key,
    turn_of_reply,
)
from shoal.kernel.records import OutboxRow
from shoal.markdown.pieces import first_piece_of
from shoal.markdown.render import rendered_length
from shoal.markdown.unfinished import closed, marked, settled
from shoal.store.outbox import Outbox

log = logging.getLogger(__name__)

T = TypeVar("T")


ENDING_SECONDS = 5.0
"""How long a post that has begun may still take when its sender is cancelled."""


class GracePeriod:
    """Of one run of a service."""

    def __init__(self) -> None:
        self._at = math.inf
        self._begun: set[anyio.CancelScope] = set()

    @contextmanager
    def watched(self) -> Generator[None]:
        """Around the service's loop: when it is left, the time of what has begun runs."""
        try:
            yield
        finally:
            self._at = anyio.current_time() + ENDING_SECONDS
            for scope in self._begun:
                scope.deadline = self._at

    @contextmanager
    def finishing(self) -> Generator[None]:
        """No cancellation reaches the block before that time is over; then it is cut off, and left without a word."""
        with anyio.CancelScope(shield=True, deadline=self._at) as scope:
            self._begun.add(scope)
            try:
                yield
            finally:
                self._begun.discard(scope)


PREVIEWS_MAX = 200
"""Turns previewed at once; more are shown when they are done."""
TYPING_SECONDS = 4.0
"""How often a platform is told that the agent works."""
TOOLS_CHARS_MAX = 60
"""Of the names of the tools at work, people are shown no more."""
THINKING = "is thinking…"
"""What the agent does, in words that go on from its name."""
STOPPED = "\n\n⏹ Stopped."
MOVED = "_↓ The answer is below._"
"""What is left of a preview that other posts came after, where a message cannot be deleted."""


class _Preview(msgspec.Struct, eq=False):
    """One turn's answer as far as it is written: what there is of it, what its message shows, and how it goes on.
    `doubtful` says whether a message may stand whose id is not known; None where that was not looked up yet."""

    thread: ThreadId
    turn: TurnId
    reply_to: str
    doing: str = THINKING
    text: str = ""
    step: int = 0
    shown: str = ""
    shown_step: int = 0
    seen: str = ""
    message_id: str = ""
    doubtful: bool | None = None
    ending: str = STOPPED
    over: bool = False
    changed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    def end(self) -> None:
        self.over = True
        self.changed.set()


class Previews:
    """The previews of one platform whose limits have `has_preview`."""

    def __init__(self, adapter: ChatAdapter, hub: Hub, outbox: Outbox, clock: Clock) -> None:
        self._adapter = adapter
        self._hub = hub
        self._outbox = outbox
        self._clock = clock
        self._open: dict[ThreadId, _Preview] = {}
        self._ending: dict[TurnId, _Preview] = {}
        self._asked: dict[ThreadId, str] = {}
        self._begun = GracePeriod()

    async def run(self, pacer: Pacer) -> None:
        self._begun = GracePeriod()
        async with anyio.create_task_group() as tasks:
            with self._begun.watched():
                fell_behind = True
                while fell_behind:  # what was missed only makes a preview shorter
                    with self._hub.subscribe() as coming:
                        async for item in coming:
                            await self._look(item, tasks, pacer)
                    fell_behind = coming.lost

    async def take(self, row: OutboxRow) -> str | None:
        """End the preview of a reply's turn and return its message's id; empty when there is none, None when one may
        stand whose id is not known."""
        turn = turn_of_reply(row.id)
        if not turn:
            return ""
        preview = self._open.get(row.thread)
        if preview is None or preview.turn != turn:
            preview = self._ending.get(turn)
        if preview is not None:
            preview.end()
            async with preview.lock:
                if preview.message_id or preview.doubtful:
                    return preview.message_id or None
                if preview.doubtful is False:
                    await self._outbox.unpreviewed(row.thread, preview.turn)
                    return ""
        kept = await self._outbox.posted_ids(preview_key(turn))
        return kept[0] or None if kept else ""

    async def _look(self, item: Event | LiveEvent, tasks: anyio.abc.TaskGroup, pacer: Pacer) -> None:
        """Take an event in, if it is of this platform."""
        if thread_address(item.thread).platform != self._adapter.platform:
            return
        thread, data, preview = item.thread, item.data, self._open.get(item.thread)
        match data:
            case UserSaid():
                self._asked[thread] = data.message_id
            case TextStreamed() | StatusChanged(state="thinking" | "tool"):
                if preview is None or preview.turn != item.turn:
                    if len(self._open) >= PREVIEWS_MAX:
                        return
                    if preview is not None:  # its turn is over, of which this process has not heard
                        preview.end()
                    preview = self._open[thread] = _Preview(thread, item.turn, self._asked.get(thread, ""))
                    tasks.start_soon(self._paint, preview, pacer)
                if isinstance(data, StatusChanged):
                    is_tool = data.state == "tool" and data.text
                    preview.doing = f"is running {data.text[:TOOLS_CHARS_MAX]}…" if is_tool else THINKING
                else:
                    if data.step != preview.step:  # another step begins the text anew
                        preview.step, preview.text = data.step, ""
                    preview.text += data.text
                    preview.changed.set()
            case ToolFinished(answers=True) if preview is not None:
                preview.ending = ""  # a tool says it to the person; what was shown stays, without a mark
                preview.end()
            case TurnFinished():
                self._asked.pop(thread, None)
                if preview is None:
                    if not data.reply:  # what a killed process showed of it is over
                        for message_id in filter(None, await self._outbox.posted_ids(preview_key(item.turn))):
                            await self._try(withdraw(self._adapter, thread, message_id))
                    return
                del self._open[thread]
                if not preview.over:
                    self._ending[preview.turn] = preview  # its post may be on the way: whoever takes it waits for that
                preview.end()
                if not data.reply:
                    async with preview.lock:
                        if preview.message_id:
                            text = marked(closed(preview.shown), preview.ending)
                            await self._try(self._adapter.edit(thread, preview.message_id, text))
            case _:
                pass

    async def _paint(self, preview: _Preview, pacer: Pacer) -> None:
        """Show what is written, as often as the platform likes, until the preview is over."""
        seconds, told_at = pacer.edit_seconds(preview.thread), -TYPING_SECONDS
        try:
            while not preview.over:
                preview.changed.clear()
                stripped = preview.text.strip()
                if stripped and not SILENT.startswith(stripped) and preview.text != preview.seen:
                    async with preview.lock:
                        if not preview.over:
                            await self._show(preview, pacer)
                    await self._clock.sleep(seconds)
                    continue
                if self._clock.monotonic() - told_at >= TYPING_SECONDS:
                    told_at = self._clock.monotonic()
                    await self._try(self._adapter.typing(preview.thread, preview.doing))
                await self._clock.wait(preview.changed, TYPING_SECONDS)
        finally:
            self._ending.pop(preview.turn, None)

    async def _show(self, preview: _Preview, pacer: Pacer) -> None:
        """Bring the message up to what is written, or post it and note its id.

        What a process before this one showed of the turn is taken up; where that is nothing, that a preview begins is
        noted, unless an earlier post of the thread has yet to be made. That comes before the pacer is asked, so that a
        post leaves when its time is counted.
        """
        thread, turn, text = preview.thread, preview.turn, preview.text
        piece, is_whole = shown_of(text, self._adapter.limits)
        filled = not is_whole and preview.shown_step == preview.step and preview.shown  # it would only become shorter
        if filled or piece in ("", preview.shown):
            preview.seen = text
            return
        try:
            if preview.doubtful is None:
                kept = await self._outbox.posted_ids(preview_key(turn))
                preview.message_id = kept[0] if kept else ""
                preview.doubtful = bool(kept)
            if preview.message_id:
                if pacer.barred(thread):
                    return
                await by_adapter(self._adapter.edit(thread, preview.message_id, marked(piece, WRITING)))
            elif await self._outbox.begin_preview(thread, turn) and pacer.take_now(thread):
                shown, maybe = marked(piece, WRITING), preview.doubtful
                post = OutboundPost(thread, preview_key(turn), shown, reply_to=preview.reply_to, maybe_posted=maybe)
                with self._begun.finishing(), self._outbox.underway(thread):
                    preview.message_id = await by_adapter(post_once(self._adapter, self._outbox, post))
                    if not await self._outbox.previewed(thread, turn, preview.message_id):
                        stray, preview.message_id = preview.message_id, ""
                        preview.end()
                        await by_adapter(withdraw(self._adapter, thread, stray))
            else:  # a preview never stands in the way of an answer
                return
        except PlatformError as error:
            if error.retry_after_seconds:
                pacer.refused(thread, error.retry_after_seconds, everywhere=error.everywhere)
            preview.doubtful = preview.doubtful or (not preview.message_id and error.outcome_unknown)
            log.info("a preview was not shown", extra={"thread_id": thread, "why": str(error)})
        preview.shown, preview.shown_step, preview.seen = piece, preview.step, text

    async def _try(self, doing: Awaitable[None]) -> None:
        """Do what may as well fail."""
        try:
            await by_adapter(doing)
        except PlatformError as error:
            log.debug("the platform did not take a preview's update", extra={"why": str(error)})


async def by_adapter(doing: Awaitable[T]) -> T:
    """What an adapter does. Raises StoreError, and PlatformError for whatever else goes wrong, its own mistakes too."""
    try:
        return await doing
    except (PlatformError, StoreError):
        raise
    except Exception as error:
        log.exception("an adapter made a mistake")
        raise PlatformError(f"{type(error).__name__}: {error}", outcome_unknown=True) from error


async def post_once(adapter: ChatAdapter, outbox: Outbox, post: OutboundPost) -> str:
    """Post, or where an earlier try may have gone through, take what stands there and is no other post's. Returns the
    message's id. Raises PlatformError."""
    if post.maybe_posted and isinstance(adapter, ReadsBack):
        for message_id in await adapter.find_posted(post):
            if not await outbox.is_noted(adapter.platform, message_id):
                return message_id
    return await adapter.post(post)


async def withdraw(adapter: ChatAdapter, thread: ThreadId, message_id: str) -> None:
    """Delete a preview whose answer stands elsewhere; where that cannot be, have it point there. One that is gone
    already is left. Raises PlatformError for what may yet succeed."""
    try:
        if isinstance(adapter, Deletes):
            await adapter.delete(thread, message_id)
            return
    except PlatformError as error:
        if not error.permanent:
            raise
    try:
        await adapter.edit(thread, message_id, MOVED)
    except PlatformError as error:
        if not error.permanent:
            raise


def shown_of(text: str, limits: ChatLimits) -> tuple[str, bool]:
    """As much of a text that is being written as one message takes, with what is open closed, and whether that is all.
    Where a message can only be added to, it is no more than what stays as it is."""
    reserve = len(STOPPED)
    while True:
        piece, is_more = first_piece_of(text, limits, reserve)
        shown = settled(piece) if limits.can_stream else closed(piece)
        length = rendered_length(marked(shown, STOPPED), limits)
        if length <= limits.text_chars_max or reserve > limits.text_chars_max // 2:
            return shown, not is_more
        reserve += length - limits.text_chars_max
