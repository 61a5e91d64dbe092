"""Previews of answers while the model writes them: a post, then edits at the platform's interval.

This module also defines the grace period at shutdown, in which posts that have reached the platform are recorded.

    from    to      when
    -----   -----   --------------------------------------------------------------------------------------------
    none    shown   there is text to show, and no earlier post of the thread is pending
    shown   ended   the reply is delivered: the sender edits the preview into the reply
    shown   ended   the reply is delivered, but later posts may exist: the reply is posted as a new message, and
                    the preview is deleted
    shown   ended   the turn ends without a reply: the preview is marked as stopped

A silent turn has no preview. The outbox is authoritative: if a preview misses text, the reply's row delivers it. The
outbox also stores the id of the preview's message, so the reply can edit its preview after a restart. The start of a
preview is recorded before the preview is posted. If the message id remains unknown, platforms with search find the
message by its key. On other platforms, the reply deletes the record before it is posted as a new message. If the
preview's id becomes known later, the preview is deleted.
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
from shoal.markdown.unfinished import closed, finished_part, marked
from shoal.store.outbox import Outbox

log = logging.getLogger(__name__)

T = TypeVar("T")


ENDING_SECONDS = 5.0
"""Seconds in which posts that have started can finish after their sender is cancelled."""


class GracePeriod:
    """Lets the posts of a service finish within ENDING_SECONDS after the service ends."""

    def __init__(self) -> None:
        self._at = math.inf
        self._begun: set[anyio.CancelScope] = set()

    @contextmanager
    def watched(self) -> Generator[None]:
        """Run the service's loop in this block. The grace period starts when the block ends."""
        try:
            yield
        finally:
            self._at = anyio.current_time() + ENDING_SECONDS
            for scope in self._begun:
                scope.deadline = self._at

    @contextmanager
    def finishing(self) -> Generator[None]:
        """Shield the block from cancellation until the grace period ends. Then the block is cancelled without an
        exception.
        """
        with anyio.CancelScope(shield=True, deadline=self._at) as scope:
            self._begun.add(scope)
            try:
                yield
            finally:
                self._begun.discard(scope)


PREVIEWS_MAX = 200
"""Maximum number of concurrent previews. Without a preview, a turn's answer appears when it is complete."""
TYPING_SECONDS = 4.0
TOOLS_CHARS_MAX = 60
THINKING = "is thinking…"
"""Status that is shown after the agent's name."""
STOPPED = "\n\n⏹ Stopped."
MOVED = "_↓ The answer is below._"
"""Text that replaces a preview if the answer was posted below it and the preview cannot be deleted."""


class _Preview(msgspec.Struct, eq=False):
    """The preview of a turn's answer: its current text, and the message that shows it."""

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
    """Whether the platform may have a preview whose message id is unknown. None if this has not been checked."""
    ending: str = STOPPED
    over: bool = False
    changed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    def end(self) -> None:
        self.over = True
        self.changed.set()


class Previews:
    """All previews of one platform. Used only if the platform's limits set `has_preview`."""

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
                while fell_behind:  # a missed event only makes a preview shorter
                    with self._hub.subscribe() as coming:
                        async for item in coming:
                            await self._look(item, tasks, pacer)
                    fell_behind = coming.lost

    async def take(self, row: OutboxRow) -> str | None:
        """End the preview of a reply's turn and return the id of its message.

        Return an empty string if the turn has no preview, and None if a message with an unknown id may exist.
        """
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
        posted = await self._outbox.posted_ids(preview_key(turn))
        return posted[0] or None if posted else ""

    async def _look(self, item: Event | LiveEvent, tasks: anyio.abc.TaskGroup, pacer: Pacer) -> None:
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
                    if preview is not None:  # the turn has ended, but this process missed it
                        preview.end()
                    preview = self._open[thread] = _Preview(thread, item.turn, self._asked.get(thread, ""))
                    tasks.start_soon(self._paint, preview, pacer)
                if isinstance(data, StatusChanged):
                    is_tool = data.state == "tool" and data.text
                    preview.doing = f"is running {data.text[:TOOLS_CHARS_MAX]}…" if is_tool else THINKING
                else:
                    if data.step != preview.step:  # the text starts over with each step
                        preview.step, preview.text = data.step, ""
                    preview.text += data.text
                    preview.changed.set()
            case ToolFinished(answers=True) if preview is not None:
                preview.ending = ""  # a tool already posted the answer, so append no "stopped" marker
                preview.end()
            case TurnFinished():
                self._asked.pop(thread, None)
                if preview is None:
                    if not data.reply:  # withdraw the preview of a process that was killed
                        for message_id in filter(None, await self._outbox.posted_ids(preview_key(item.turn))):
                            await self._try(withdraw(self._adapter, thread, message_id))
                    return
                del self._open[thread]
                if not preview.over:
                    self._ending[preview.turn] = preview  # its post may be in flight, so `take` waits for it
                preview.end()
                if not data.reply:
                    async with preview.lock:
                        if preview.message_id:
                            text = marked(closed(preview.shown), preview.ending)
                            await self._try(self._adapter.edit(thread, preview.message_id, text))
            case _:
                pass

    async def _paint(self, preview: _Preview, pacer: Pacer) -> None:
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
        """Edit the preview's message, or post it and store its id.

        A preview of an earlier process is continued. A new preview begins only if no post of the thread is pending.
        Its start is stored before the rate limit is checked, because a post must be sent as soon as it is counted.
        """
        thread, turn, text = preview.thread, preview.turn, preview.text
        piece, is_whole = shown_of(text, self._adapter.limits)
        filled = not is_whole and preview.shown_step == preview.step and preview.shown  # the message is already full
        if filled or piece in ("", preview.shown):
            preview.seen = text
            return
        try:
            if preview.doubtful is None:
                posted = await self._outbox.posted_ids(preview_key(turn))
                preview.message_id = posted[0] if posted else ""
                preview.doubtful = bool(posted)
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
            else:  # never delay an answer for a preview
                return
        except PlatformError as error:
            if error.retry_after_seconds:
                pacer.refused(thread, error.retry_after_seconds, everywhere=error.everywhere)
            preview.doubtful = preview.doubtful or (not preview.message_id and error.outcome_unknown)
            log.info("showing preview failed", extra={"thread_id": thread, "why": str(error)})
        preview.shown, preview.shown_step, preview.seen = piece, preview.step, text

    async def _try(self, doing: Awaitable[None]) -> None:
        try:
            await by_adapter(doing)
        except PlatformError as error:
            log.debug("platform rejected preview update", extra={"why": str(error)})


async def by_adapter(doing: Awaitable[T]) -> T:
    """Await an adapter's call. Raises only StoreError and PlatformError.

    All other errors, including bugs, become a PlatformError.
    """
    try:
        return await doing
    except (PlatformError, StoreError):
        raise
    except Exception as error:
        log.exception("adapter failed")
        raise PlatformError(f"{type(error).__name__}: {error}", outcome_unknown=True) from error


async def post_once(adapter: ChatAdapter, outbox: Outbox, post: OutboundPost) -> str:
    """Post a message and return its id. Raises PlatformError.

    If an earlier attempt may have succeeded, adapters that can search look for its message first.
    """
    if post.maybe_posted and isinstance(adapter, ReadsBack):
        for message_id in await adapter.find_posted(post):
            if not await outbox.is_noted(adapter.platform, message_id):
                return message_id
    return await adapter.post(post)


async def withdraw(adapter: ChatAdapter, thread: ThreadId, message_id: str) -> None:
    """Delete a preview whose answer was posted elsewhere, or replace it with a pointer to the answer.

    Raises PlatformError only if a retry may succeed.
    """
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
    """Return the part of an unfinished text that fits in one message, and True if this is the complete text.

    Open markup is closed. If the platform can only append to messages, the part contains only text that will not
    change.
    """
    reserve = len(STOPPED)
    while True:
        piece, is_more = first_piece_of(text, limits, reserve)
        shown = finished_part(piece) if limits.can_stream else closed(piece)
        length = rendered_length(marked(shown, STOPPED), limits)
        if length <= limits.text_chars_max or reserve > limits.text_chars_max // 2:
            return shown, not is_more
        reserve += length - limits.text_chars_max
