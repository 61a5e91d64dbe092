"""The sender: carries the outbox to the platforms.

    row state   means                                left by
    ---------   ----------------------------------   ---------------------------------------------------------------
    pending     to be posted when due                claim -> sending
    sending     a sender holds it for claim_seconds  every piece posted -> sent; refused -> pending with a later time,
                                                     or failed; the holder ends before it begins -> pending; the
                                                     holder died -> claimed again, marked maybe_sent
    sent        all pieces are on the platform       -
    failed      given up, with its error             -

The answer of a turn that runs in the sender's own process is claimed in the transaction that closes the turn, when no
other post of its thread has to go first, and so is `sending` from the start; where nobody learns how that transaction
ended, the row is given back before the sender looks on.

Rows of one thread go one after the other; threads go at once, each post when the pacer says. The claim of a row that
takes long, in many pieces or slowed down by the platform, is extended. A piece's idempotency key is
`row:part`, stable over retries. Where the platform forgets keys soon, a piece whose outcome is unknown is looked for
before it goes out again; where it has none and tells nothing, it goes out again marked as a repeat. A reply whose
preview stands edits that message instead of posting anew, unless other posts came after it: then the preview is
deleted first, so that posts stand in the order of their rows. A post that opens a thread ends together with what is to
be in that thread: the rest of it, its note, and the prompt that it brings.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

import anyio
import anyio.abc
import msgspec

from shoal.delivery.pacing import Pacer
from shoal.delivery.pieces import pieces_of
from shoal.delivery.previews import ENDING_SECONDS, NO_PREVIEWS, GracePeriod, PreviewSource, post_once, withdraw
from shoal.domain.cards import card_id
from shoal.domain.clock import Clock, retry_delay
from shoal.domain.errors import PlatformError, StoreError, StoreUnavailable
from shoal.domain.files import STILL_FOLDERS, Folders
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.ports import ChatAdapter
from shoal.domain.posts import REPEATED, Button, OutboundPost, preview_key, turn_of_reply
from shoal.domain.records import Committed, NewPost, OutboxRow
from shoal.store.outbox import Outbox

log = logging.getLogger(__name__)

ROWS_A_CLAIM = 50
ROWS_AT_ONCE_MAX = 500
CLAIM_SECONDS = 60.0
UNKNOWN_MAX = 50
"""How often a piece goes out whose outcome stays unknown."""
KEEP_SECONDS = 86_400.0
"""How long a post is tried that the platform does not take, an outage say; and KEEP_ATTEMPTS_MIN times in any case,
since a machine may have been suspended, or its clock set."""
KEEP_ATTEMPTS_MIN = 10
RETRY_BASE_SECONDS = 1.0
RETRY_SECONDS_MAX = 300.0
QUIET_SECONDS = 3.0
"""Longest wait before looking at the outbox again, should a poke be missed."""

SHORT_ID_CHARS = 8
"""How much of an approval's id, from its end, a person has to write."""


class Openings(Protocol):
    """What the end of a row brings with it; the orchestrator, which has to know of new prompts."""

    async def opened(self, row: OutboxRow, thread: ThreadId, rest: Sequence[NewPost]) -> None:
        """An `opening` has opened this thread, where `rest` is to go; ends the row."""
        ...

    async def gave_up(self, row: OutboxRow, error: str) -> None:
        """A row fails for good; ends it."""
        ...


class Sender:
    """Delivers the posts of one platform."""

    def __init__(
        self,
        adapter: ChatAdapter,
        outbox: Outbox,
        clock: Clock,
        previews: PreviewSource = NO_PREVIEWS,
        folders: Folders = STILL_FOLDERS,
    ) -> None:
        self._adapter = adapter
        self._outbox = outbox
        self._clock = clock
        self._previews = previews
        self._folders = folders
        self._openings: Openings | None = None
        self._pacer = Pacer(adapter.limits, clock)
        self._at_work: dict[str, float] = {}
        """Rows with when they were claimed, on the monotonic clock."""
        self._wall_ahead_seconds = self._wall_ahead()
        self._expected = 0
        """Rows that may come claimed from transactions under way."""
        self._doubtful: dict[str, OutboxRow] = {}
        """Rows that may have come so without anybody knowing."""
        self._tasks: anyio.abc.TaskGroup | None = None
        self._put_back: list[datetime] = []
        """When rows are due again; those that others put back are found by looking every QUIET_SECONDS."""
        self._poked = asyncio.Event()
        self._ending = GracePeriod()

    def poke(self) -> None:
        """Something was put into the outbox."""
        self._poked.set()

    async def enqueue(self, posts: Sequence[NewPost], finishing: Callable[[float], Awaitable[Committed]]) -> Committed:
        """Run the transaction that enqueues these posts, and begin at once with those that it claims."""
        now, is_room = self._clock.monotonic(), self._tasks is not None and self._room() > 0
        for post in posts:  # enqueued once more: it was not the last time
            self._doubtful.pop(post.id, None)
        self._expected += is_room
        try:
            committed = await finishing(CLAIM_SECONDS if is_room else 0.0)
        except BaseException:
            if is_room:
                created_at = self._clock.now()
                self._doubtful |= {post.id: OutboxRow(post.id, post.thread, post, 0, 0, created_at) for post in posts}
                with suppress(StoreError):
                    await self._give_back_doubtful()
            raise
        finally:
            self._expected -= is_room
        for row in committed.claimed:
            if self._tasks is None:
                await self._give_back(row)
            else:
                self._begin(row, now, self._tasks)
        if not committed.claimed or len(committed.claimed) < len(posts):
            self.poke()
        return committed

    async def run(self, openings: Openings | None = None) -> None:
        """Deliver until cancelled; what has begun then has ENDING_SECONDS, and the rest is put back.

        Without `openings` no post brings a prompt.
        """
        self._openings = openings
        self._ending = GracePeriod()
        await self._give_back_doubtful()
        await self._outbox.release(self._adapter.platform)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._previews.run, self._pacer)
            with self._ending.watched():
                self._tasks = tasks
                try:
                    await self._look_on(tasks)
                finally:
                    self._tasks = None

    async def _look_on(self, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            if not await self._look(tasks):
                await self._wait()

    async def _look(self, tasks: anyio.abc.TaskGroup) -> bool:
        """Claim what is due and begin with it; whether more may be due."""
        self._poked.clear()
        await self._give_back_doubtful()
        room = min(ROWS_A_CLAIM, self._room())
        slow, now, looked_at = self._slow(), self._clock.monotonic(), self._clock.now()
        platforms = (self._adapter.platform,)
        self._expected += room
        try:
            rows = await self._outbox.claim(platforms, room, CLAIM_SECONDS, slow) if room or slow else []
        finally:
            self._expected -= room
        self._at_work.update((id, now) for id in slow if id in self._at_work)
        for row in rows:
            self._begin(row, now, tasks)
        self._put_back = [at for at in self._put_back if at > looked_at]
        return 0 < room <= len(rows)

    def _room(self) -> int:
        return ROWS_AT_ONCE_MAX - len(self._at_work) - self._expected

    def _begin(self, row: OutboxRow, claimed_at: float, tasks: anyio.abc.TaskGroup) -> None:
        if row.id not in self._at_work:
            self._at_work[row.id] = claimed_at
            tasks.start_soon(self._work_on, row)

    async def _give_back_doubtful(self) -> None:
        while self._doubtful:
            id, row = next(iter(self._doubtful.items()))
            await self._outbox.give_back(row)
            self._doubtful.pop(id, None)

    def _slow(self) -> list[str]:
        """What is at work for so long that its claim has to be extended; everything when the wall clock, by which
        claims end, was set meanwhile or the machine was suspended."""
        ahead, before = self._wall_ahead(), self._clock.monotonic() - CLAIM_SECONDS / 3
        was_set = abs(ahead - self._wall_ahead_seconds) > CLAIM_SECONDS / 3
        self._wall_ahead_seconds = ahead if was_set else self._wall_ahead_seconds
        return sorted(id for id, claimed_at in self._at_work.items() if was_set or claimed_at < before)

    def _wall_ahead(self) -> float:
        """By how many seconds the wall clock is ahead of the one that nobody sets."""
        return self._clock.now().timestamp() - self._clock.monotonic()

    async def _work_on(self, row: OutboxRow) -> None:
        is_more = True
        try:
            is_more = await self.deliver(row)
        except anyio.get_cancelled_exc_class():
            await self._give_back(row)
            raise
        finally:
            is_full = self._room() <= 0
            self._at_work.pop(row.id, None)
            if is_more or is_full:
                self.poke()

    async def _give_back(self, row: OutboxRow) -> None:
        """What was cancelled before it began is nobody's repeat; without the database it counts as one."""
        with anyio.move_on_after(ENDING_SECONDS, shield=True):
            try:
                await self._outbox.give_back(row)
            except StoreError as error:
                log.info("a post could not be put back", extra={"post": row.id, "why": str(error)})

    async def _wait(self) -> None:
        due = min(self._put_back, default=None)
        seconds = QUIET_SECONDS
        if due is not None:
            seconds = min(seconds, max(0.0, (due - self._clock.now()).total_seconds()))
        await self._clock.wait(self._poked, seconds)

    async def deliver(self, row: OutboxRow) -> bool:
        """Post what is left of a row and note how it went; whether another may be posted because of that."""
        if row.post.kind == "edit":
            await self._change_card(row)
            return True
        if row.post.kind == "opening":
            await self._open_thread(row)
            return True
        pieces = self._pieces(self._text(row))
        if row.part >= len(pieces):  # what is left is nothing: pieces have become longer since
            return await self._outbox.posted(row, row.part, "", last=True)
        is_more: bool | None = True
        for part in range(row.part, len(pieces)):
            is_more = await self._deliver_piece(row, part, pieces)
            if is_more is None:
                return True
            row = msgspec.structs.replace(row, part=part + 1, attempts=0, maybe_sent=False)
        return is_more

    async def _deliver_piece(self, row: OutboxRow, part: int, pieces: Sequence[str]) -> bool | None:
        """Whether another row may be posted because of it; None when it was put back, given up or cut off."""
        with ExitStack() as way:
            message_id = await self._attempt(row, self._put(row, part, pieces[part], way))
            if message_id is not None:
                return await self._outbox.posted(row, part, message_id, last=part == len(pieces) - 1)
        return None

    def _pieces(self, text: str) -> list[str]:
        limits = self._adapter.limits
        return pieces_of(text, limits, 0 if limits.idempotent_posts else len(REPEATED))

    async def _put(self, row: OutboxRow, part: int, piece: str, way: ExitStack) -> str:
        """Post a piece, or make the preview of a reply its first piece. Until `way` ends, a new one is underway and
        is not cut off."""
        preview = await self._previews.take(row) if part == 0 and row.post.kind == "text" else ""
        if preview is None:
            preview = await self._found_preview(row, piece)
        if preview:
            if not await self._outbox.is_overtaken(row.thread, turn_of_reply(row.id)):
                try:
                    await self._adapter.edit(row.thread, preview, piece)
                except PlatformError as error:
                    if not error.permanent:
                        raise
                else:
                    return preview
            await self._withdraw(row.thread, preview)
        post = self._post(row, part, piece)
        if row.post.file:
            post = msgspec.structs.replace(post, file=await self._file(row))
        await self._pacer.turn(row.thread)
        way.enter_context(self._ending.finishing())
        way.enter_context(self._outbox.underway(row.thread))
        return await post_once(self._adapter, self._outbox, post)

    async def _withdraw(self, thread: ThreadId, preview: str) -> None:
        try:
            await withdraw(self._adapter, thread, preview)
        except PlatformError as error:  # it has posted nothing
            raise PlatformError(
                str(error), retry_after_seconds=error.retry_after_seconds, everywhere=error.everywhere
            ) from error

    async def _found_preview(self, row: OutboxRow, piece: str) -> str:
        """The preview that nobody learnt the id of: where a repeat makes no second message, that brings it."""
        if not self._adapter.limits.idempotent_posts:
            return ""
        turn = turn_of_reply(row.id)
        await self._pacer.turn(row.thread)
        post = OutboundPost(row.thread, preview_key(turn), piece, reply_to=row.post.reply_to, maybe_posted=True)
        message_id = await post_once(self._adapter, self._outbox, post)
        await self._outbox.previewed(row.thread, turn, message_id)  # an edit may make it unrecognisable
        return message_id

    async def _file(self, row: OutboxRow) -> Path:
        """The file of a post, brought here where another machine has it."""
        try:
            await self._folders.pull(row.thread)
        except StoreUnavailable as error:
            raise PlatformError(str(error)) from error
        return Path(self._folders.here(row.thread, row.post.file))

    def _text(self, row: OutboxRow) -> str:
        """The text to post; where there are no buttons, with the words that answer a question."""
        post = row.post
        if not post.approval or self._adapter.limits.has_buttons:
            return post.text
        short = post.approval[-SHORT_ID_CHARS:]
        return f"{post.text}\n\nTo decide, write `allow {short}` or `deny {short}`."

    async def _open_thread(self, row: OutboxRow) -> None:
        """Post to a channel, which opens a thread; what is left of the text and the file follow in that thread."""
        first, *rest = self._pieces(row.post.text or "…")
        post = self._post(row, 0, first)
        channel = thread_address(row.thread).channel
        with self._ending.finishing():
            posting = self._adapter.open_thread(channel, post.markdown, post.key, maybe_posted=post.maybe_posted)
            opened = await self._attempt(row, posting)
            if opened is not None:
                await self._note_opened(row, ThreadId(opened), rest)

    async def _note_opened(self, row: OutboxRow, thread: ThreadId, rest: Sequence[str]) -> None:
        follow = [NewPost(f"{row.id}:{number}", thread, piece) for number, piece in enumerate(rest, 1)]
        if row.post.file:
            follow.append(NewPost(f"{row.id}:file", thread, "", "file", file=row.post.file))
        await (self._openings or self._outbox).opened(row, thread, follow)

    async def _change_card(self, row: OutboxRow) -> None:
        """Edit the messages of an earlier post; nothing happens where there are none or none can be edited."""
        changed = row.post.edits or card_id(row.post.approval)
        ids = await self._outbox.posted_ids(changed) if self._adapter.limits.can_edit else []
        pieces = self._pieces(row.post.text)
        for part, message_id in enumerate(ids):
            piece = pieces[part] if part < len(pieces) else "…"
            if part >= row.part and await self._attempt(row, self._edit(row, message_id, piece)) is None:
                return
            if part >= row.part and part < len(ids) - 1:
                await self._outbox.posted(row, part, "", last=False)
        await self._outbox.posted(row, len(ids), "", last=True)

    async def _edit(self, row: OutboxRow, message_id: str, piece: str) -> str:
        await self._adapter.edit(row.thread, message_id, piece)
        return message_id

    async def _attempt(self, row: OutboxRow, posting: Awaitable[str]) -> str | None:
        """The platform's message id, or None when the row was put back or given up."""
        try:
            return await posting
        except PlatformError as error:
            await self._refused(row, error)
        except Exception as error:
            log.exception("posting failed", extra={"thread_id": row.thread, "post": row.id})
            unknown = PlatformError(f"{type(error).__name__}: {error}", outcome_unknown=True)
            await self._refused(row, unknown)
        return None

    def _post(self, row: OutboxRow, part: int, piece: str) -> OutboundPost:
        post = row.post
        repeated = row.maybe_sent and not self._adapter.limits.idempotent_posts
        return OutboundPost(
            thread=row.thread,
            key=f"{row.id}:{part}",
            markdown=REPEATED + piece if repeated else piece,
            kind="text" if post.kind in ("edit", "opening") else post.kind,
            buttons=post.buttons or _buttons(post),
            reply_to=post.reply_to if part == 0 else "",
            user=post.user,
            maybe_posted=row.maybe_sent,
        )

    async def _refused(self, row: OutboxRow, error: PlatformError) -> None:
        if error.retry_after_seconds:
            self._pacer.refused(row.thread, error.retry_after_seconds, everywhere=error.everywhere)
        age = (self._clock.now() - row.created_at).total_seconds()
        is_old = age > KEEP_SECONDS and row.attempts >= KEEP_ATTEMPTS_MIN
        if error.permanent or is_old or (error.outcome_unknown and row.attempts + 1 >= UNKNOWN_MAX):
            log.error("a post was given up", extra={"thread_id": row.thread, "post": row.id, "why": str(error)})
            give_up = self._openings.gave_up if self._openings is not None else self._outbox.fail
            await give_up(row, str(error))
            return
        delay = min(retry_delay(row.attempts + 1, error.retry_after_seconds, RETRY_BASE_SECONDS), RETRY_SECONDS_MAX)
        at = self._clock.now() + timedelta(seconds=delay)
        await self._outbox.retry(row, at, str(error), maybe_sent=row.maybe_sent or error.outcome_unknown)
        self._put_back.append(at)


class Senders:
    """The senders of all platforms, by name."""

    def __init__(self, senders: Mapping[str, Sender]) -> None:
        self._senders = senders

    def poke(self, thread: ThreadId) -> None:
        """The outbox has something for a thread."""
        self.poke_platform(thread_address(thread).platform)

    def poke_platform(self, platform: str) -> None:
        """The outbox has something for a platform; empty: for any of them."""
        for name, sender in self._senders.items():
            if platform in (name, ""):
                sender.poke()

    async def enqueue(
        self, thread: ThreadId, posts: Sequence[NewPost], finishing: Callable[[float], Awaitable[Committed]]
    ) -> Committed:
        """Run the transaction that enqueues a thread's posts; see `Sender.enqueue`."""
        sender = self._senders.get(thread_address(thread).platform)
        return await (sender.enqueue(posts, finishing) if sender is not None else finishing(0.0))

    async def run(self, platform: str, openings: Openings) -> None:
        """Deliver the posts of one platform until cancelled."""
        await self._senders[platform].run(openings)


def _buttons(post: NewPost) -> tuple[Button, ...]:
    if not post.approval:
        return ()
    thread = () if post.only_once else (Button("Allow for this thread", f"thread:{post.approval}"),)
    return (Button("Allow once", f"allow:{post.approval}"), *thread, Button("Deny", f"deny:{post.approval}"))
