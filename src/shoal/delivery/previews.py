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
preview that stands although nobody learnt its id is found again where the platform can tell, by its key.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from typing import Protocol

import anyio
import anyio.abc

from shoal.delivery.hub import Hub
from shoal.delivery.pacing import Pacer
from shoal.delivery.pieces import first_piece_of
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.events import Event, LiveEvent, StatusChanged, TextStreamed, ToolFinished, TurnFinished, UserSaid
from shoal.domain.ids import ThreadId, TurnId, thread_address
from shoal.domain.ports import ChatAdapter
from shoal.domain.posts import WRITING, ChatLimits, Deletes, OutboundPost, ReadsBack, preview_key, turn_of_reply
from shoal.domain.records import OutboxRow
from shoal.domain.unfinished import closed, marked, settled
from shoal.store.outbox import Outbox

log = logging.getLogger(__name__)


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
SILENT = "[SILENT]"
STOPPED = "\n\n⏹ Stopped."
MOVED = "_↓ The answer is below._"
"""What is left of a preview that other posts came after, where a message cannot be deleted."""


class PreviewSource(Protocol):
    """What the sender needs of previews."""

    async def run(self, pacer: Pacer) -> None:
        """Show previews until cancelled."""
        ...

    async def take(self, row: OutboxRow) -> str | None:
        """End the preview of a reply's turn and return its message's id; empty when there is none, None when one may
        stand whose id is not known."""
        ...


class _NoPreviews:
    async def run(self, pacer: Pacer) -> None:
        pass

    async def take(self, row: OutboxRow) -> str | None:
        return ""


NO_PREVIEWS: PreviewSource = _NoPreviews()


class _Preview:
    """One turn's answer as far as it is written."""

    __slots__ = (
        "changed",
        "doubtful",
        "ending",
        "lock",
        "message_id",
        "over",
        "reply_to",
        "seen",
        "shown",
        "shown_step",
        "step",
        "text",
        "thread",
        "turn",
    )

    def __init__(self, thread: ThreadId, turn: TurnId, reply_to: str) -> None:
        self.thread = thread
        self.turn = turn
        self.reply_to = reply_to
        self.text = ""
        self.step = self.shown_step = 0
        self.shown = self.seen = ""
        self.message_id = ""
        self.doubtful: bool | None = None  # whether it may stand already; None: not looked up yet
        self.ending = STOPPED
        self.over = False
        self.changed = asyncio.Event()
        self.lock = asyncio.Lock()

    def add(self, data: TextStreamed) -> None:
        """Take a piece in; another step begins the text anew."""
        if data.step != self.step:
            self.step, self.text = data.step, ""
        self.text += data.text
        self.changed.set()

    def give_way(self) -> None:
        """A tool says it to the person; what was shown stays, without a mark."""
        self.ending = ""
        self.end()

    def end(self) -> None:
        """No further edits."""
        self.over = True
        self.changed.set()


class Previews:
    """Implements `PreviewSource` for one platform whose limits have `has_preview`."""

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
        """Show previews until cancelled."""
        self._begun = GracePeriod()
        async with anyio.create_task_group() as tasks:
            with self._begun.watched():
                while await self._watch(tasks, pacer):
                    pass  # fell behind: what was missed only makes a preview shorter

    async def _watch(self, tasks: anyio.abc.TaskGroup, pacer: Pacer) -> bool:
        """Follow the hub until it closes (False) or this fell behind (True)."""
        with self._hub.subscribe() as coming:
            async for item in coming:
                if thread_address(item.thread).platform == self._adapter.platform:
                    await self._look(item, tasks, pacer)
        return coming.lost

    async def take(self, row: OutboxRow) -> str | None:
        """See `PreviewSource`."""
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
        match item.data:
            case UserSaid():
                self._asked[item.thread] = item.data.message_id
            case TextStreamed() | StatusChanged(state="thinking" | "tool"):
                preview = self._open.get(item.thread)
                if preview is None or preview.turn != item.turn:
                    if len(self._open) >= PREVIEWS_MAX:
                        return
                    preview = _Preview(item.thread, item.turn, self._asked.get(item.thread, ""))
                    self._open[item.thread] = preview
                    tasks.start_soon(self._paint, preview, pacer)
                if isinstance(item.data, TextStreamed):
                    preview.add(item.data)
            case ToolFinished(answers=True) if item.thread in self._open:
                self._open[item.thread].give_way()
            case TurnFinished():
                self._asked.pop(item.thread, None)
                await self._finish(item.thread, item.turn, item.data)
            case _:
                pass

    async def _finish(self, thread: ThreadId, turn: TurnId, data: TurnFinished) -> None:
        preview = self._open.pop(thread, None)
        if preview is None:
            if not data.reply:  # what a killed process showed of it is over
                for message_id in filter(None, await self._outbox.posted_ids(preview_key(turn))):
                    await self._try(withdraw(self._adapter, thread, message_id))
            return
        if not preview.over:
            self._ending[preview.turn] = preview  # its post may be on the way: whoever takes it waits for that
        preview.end()
        if data.reply:
            return
        async with preview.lock:
            if preview.message_id:
                await self._try(
                    self._adapter.edit(thread, preview.message_id, marked(closed(preview.shown), preview.ending))
                )

    async def _paint(self, preview: _Preview, pacer: Pacer) -> None:
        """Show what is written, as often as the platform likes, until the preview is over."""
        try:
            await self._follow(preview, pacer)
        finally:
            self._ending.pop(preview.turn, None)

    async def _follow(self, preview: _Preview, pacer: Pacer) -> None:
        seconds = pacer.edit_seconds(preview.thread)
        told_at = -TYPING_SECONDS
        while not preview.over:
            preview.changed.clear()
            if _may_show(preview.text) and preview.text != preview.seen:
                async with preview.lock:
                    await self._show(preview, pacer)
                await self._clock.sleep(seconds)
                continue
            if self._clock.monotonic() - told_at >= TYPING_SECONDS:
                told_at = self._clock.monotonic()
                await self._try(self._adapter.typing(preview.thread, "…"))
            await self._clock.wait(preview.changed, TYPING_SECONDS)

    async def _show(self, preview: _Preview, pacer: Pacer) -> None:
        if preview.over:
            return
        text = preview.text
        piece, is_whole = shown_of(text, self._adapter.limits)
        filled = not is_whole and preview.shown_step == preview.step and preview.shown  # it would only become shorter
        if filled or piece in ("", preview.shown):
            preview.seen = text
            return
        try:
            if not preview.message_id and not await self._may_begin(preview):
                return
            if preview.message_id:
                if pacer.barred(preview.thread):
                    return
                await self._adapter.edit(preview.thread, preview.message_id, marked(piece, WRITING))
            else:
                if not pacer.take_now(preview.thread):  # a preview never stands in the way of an answer
                    return
                await self._begin(preview, piece)
        except PlatformError as error:
            if error.retry_after_seconds:
                pacer.refused(preview.thread, error.retry_after_seconds, everywhere=error.everywhere)
            log.info("a preview was not shown", extra={"thread_id": preview.thread, "why": str(error)})
        preview.shown, preview.shown_step, preview.seen = piece, preview.step, text

    async def _may_begin(self, preview: _Preview) -> bool:
        """Take up what a process before this one showed of the turn; where that is nothing, note that it is begun now,
        unless an earlier post of the thread has yet to be made.

        That comes before the pacer is asked, so that a post leaves when its time is counted.
        """
        if preview.doubtful is None:
            kept = await self._outbox.posted_ids(preview_key(preview.turn))
            preview.message_id = kept[0] if kept else ""
            preview.doubtful = bool(kept)
        return bool(preview.message_id) or await self._outbox.begin_preview(preview.thread, preview.turn)

    async def _begin(self, preview: _Preview, piece: str) -> None:
        """Post it and note its id."""
        thread, turn, maybe = preview.thread, preview.turn, bool(preview.doubtful)
        text = marked(piece, WRITING)
        post = OutboundPost(thread, preview_key(turn), text, reply_to=preview.reply_to, maybe_posted=maybe)
        try:
            with self._begun.finishing(), self._outbox.underway(thread):
                preview.message_id = await post_once(self._adapter, self._outbox, post)
                await self._outbox.previewed(thread, turn, preview.message_id)
        except PlatformError as error:
            preview.doubtful = maybe or error.outcome_unknown
            raise

    async def _try(self, doing: Awaitable[None]) -> None:
        """Do what may as well fail."""
        try:
            await doing
        except PlatformError as error:
            log.debug("a platform did not take a sign of life", extra={"why": str(error)})


async def post_once(adapter: ChatAdapter, outbox: Outbox, post: OutboundPost) -> str:
    """Post, or where an earlier try may have gone through, take what stands there and is no other post's.

    Returns the message's id. Raises PlatformError.
    """
    if post.maybe_posted and isinstance(adapter, ReadsBack):
        for message_id in await adapter.find_posted(post):
            if not await outbox.is_noted(adapter.platform, message_id):
                return message_id
    return await adapter.post(post)


async def withdraw(adapter: ChatAdapter, thread: ThreadId, message_id: str) -> None:
    """Delete a preview whose answer stands elsewhere; where that cannot be, have it point there.

    One that is gone already is left. Raises PlatformError for what may yet succeed.
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
    """As much of a text that is being written as one message takes, with what is open closed, and whether that is all.

    Where a message can only be added to, it is no more than what stays as it is.
    """
    reserve = len(STOPPED)
    while True:
        piece, rest, _ = first_piece_of(text, limits, reserve)
        shown = settled(piece) if limits.can_stream else closed(piece)
        length = limits.rendered_length(marked(shown, STOPPED))
        if length <= limits.text_chars_max or reserve > limits.text_chars_max // 2:
            return shown, not rest
        reserve += length - limits.text_chars_max


def _may_show(text: str) -> bool:
    """Whether there is something, and not the beginning of an answer that is to be silent."""
    stripped = text.strip()
    return bool(stripped) and not SILENT.startswith(stripped)
