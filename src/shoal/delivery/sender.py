"""Delivery of the outbox to the platforms.

    from      to        when
    -------   -------   ----------------------------------------------------------------------------------
    pending   sending   the post is due, and a sender claims it for CLAIM_SECONDS
    sending   sent      every piece is on the platform
    sending   pending   an attempt fails and will be repeated, or the sender ends before it starts the post
    sending   sending   the sender died, and another one claims the post with `maybe_sent`
    sending   failed    the post is abandoned, and its error is stored
    failed    pending   a post that opens a thread is enqueued again

The answer of a turn that ran in this process is claimed in the transaction that closes the turn, unless an earlier post
of the thread is pending. Its row is then `sending` from the start. If the outcome of that transaction is unknown, the
row is first returned to the outbox.

The posts of one thread are sent in order. Threads are independent except for rate limits. The claim of a slow post is
extended. A piece has the idempotency key `row:part`, which stays the same in retries. If the platform soon forgets
keys, the sender searches for a piece with an unknown outcome before it posts that piece again. If the platform has
neither keys nor search, the piece is posted again and marked as a repeat.

If the turn has a preview, its reply edits that message instead of posting a new one. If other posts follow the preview,
or an edit would not notify anyone that the answer is complete, the preview is deleted and the reply is posted as a new
message. This keeps posts in the order of their rows. A post that opens a thread is completed together with the rest of
its text, its note and its prompt. `barred.py` describes posts to chats that refuse them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.abc
import msgspec

from shoal.delivery.barred import BarredChats
from shoal.delivery.hub import Hub
from shoal.delivery.pacing import Pacer
from shoal.delivery.previews import ENDING_SECONDS, GracePeriod, Previews, by_adapter, post_once, withdraw
from shoal.kernel.clock import Clock, retry_delay, wall_ahead
from shoal.kernel.crash_log import CrashLog, SetAside
from shoal.kernel.errors import EndedTwice, PlatformError, ProviderDown, ProviderRefused, StoreError, StoreUnavailable
from shoal.kernel.files import STILL_FOLDERS, Folders
from shoal.kernel.ids import ThreadId, thread_address
from shoal.kernel.messages import Prompt
from shoal.kernel.ports import ChatAdapter
from shoal.kernel.posts import REPEATED, Button, HasAround, OutboundPost, preview_key, turn_of_reply
from shoal.kernel.records import Committed, NewPost, OutboxRow
from shoal.markdown.pieces import pieces_of
from shoal.markdown.render import rendered_length
from shoal.store.cards import SHORT_ID_CHARS, card_id
from shoal.store.outbox import Outbox

log = logging.getLogger(__name__)

ROWS_A_CLAIM = 50
ROWS_AT_ONCE_MAX = 500
CLAIM_SECONDS = 60.0
UNKNOWN_MAX = 50
KEEP_SECONDS = 86_400.0
"""Seconds for which a refused post is retried.

At least KEEP_ATTEMPTS_MIN attempts are made, because the machine may have been suspended or its clock changed.
"""
KEEP_ATTEMPTS_MIN = 10
RETRY_BASE_SECONDS = 1.0
CUT_HERE_CHARS_MAX = 20_000
RETRY_SECONDS_MAX = 300.0
QUIET_SECONDS = 3.0
"""Maximum seconds between checks of the outbox. The checks find rows whose notification was missed."""

BARRED_RETRY_SECONDS_MAX = 60.0
"""Maximum seconds between attempts to post in a chat that refuses posts. The chat may accept posts again at any time.
"""
LATE_SECONDS = 20.0
"""Age of a preview after which the finished answer is posted as a new message, because an edit would not notify
anyone.
"""
MOVED_HERE = "_I could not post this message in its thread, so I posted it here._"

SPOKEN_TRIES = 3
"""Maximum number of attempts to synthesize a spoken answer. After more attempts, the answer would arrive too late to be
useful.
"""
UNSPOKEN = "I could not speak this answer: {why}"
BY_REACTION = "👍 on this message allows the call once, and 👎 denies the call."
BY_REACTION_ALL = "👍 on this message allows all calls once, and 👎 denies them."

Opened: TypeAlias = Callable[[OutboxRow, ThreadId, Sequence[NewPost]], Awaitable[object]]
"""`(row, thread, posts)` completes a row that opened the thread, and enqueues the remaining posts there."""
Speak: TypeAlias = Callable[[OutboxRow], Awaitable[Path]]
"""Synthesizes the text of a post and returns the audio file. Raises ProviderDown and ProviderRefused."""
GaveUp: TypeAlias = Callable[[OutboxRow, str, bool], Awaitable[None]]
"""`(row, reason, refused)` completes a row that failed permanently. `refused` is True if the platform refused the post.
"""


class Sender:
    """Delivers the posts of one platform."""

    def __init__(
        self,
        adapter: ChatAdapter,
        outbox: Outbox,
        clock: Clock,
        previews: Previews | None = None,
        folders: Folders = STILL_FOLDERS,
        crash_log: CrashLog | None = None,
        restored_at: datetime | None = None,
    ) -> None:
        self._crash_log, self._restored_at = crash_log or CrashLog(), restored_at
        self._adapter = adapter
        self._outbox = outbox
        self._clock = clock
        self._previews = previews
        self._folders = folders
        self._opened: Opened = outbox.opened
        self._gave_up: GaveUp = outbox.fail
        self._speak: Speak | None = None
        self._barred: BarredChats | None = None
        self._pacer = Pacer(adapter.limits, clock)
        self._at_work: dict[str, float] = {}
        """Claimed rows by id, with the time of the claim on the monotonic clock."""
        self._wall_ahead_seconds = wall_ahead(self._clock)
        self._expected = 0
        """Maximum number of rows that the running transactions may claim."""
        self._doubtful: dict[str, OutboxRow] = {}
        """Rows, by id, that a transaction with an unknown outcome may have claimed."""
        self._tasks: anyio.abc.TaskGroup | None = None
        self._retry_times: list[datetime] = []
        """Times at which retries become due. Rows that other senders return are found within QUIET_SECONDS."""
        self._poked = asyncio.Event()
        self._ending = GracePeriod()

    def poke(self) -> None:
        self._poked.set()

    async def enqueue(self, posts: Sequence[NewPost], finishing: Callable[[float], Awaitable[Committed]]) -> Committed:
        """Run the transaction that enqueues these posts, and start to send the posts that it claimed.

        `finishing` receives the number of seconds for which it may claim posts, or 0 if it must not claim any.
        """
        now, is_room = self._clock.monotonic(), self._tasks is not None and self._room() > 0
        for post in posts:  # after a retry, the first attempt is known to have failed
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

    async def run(
        self, opened: Opened | None = None, gave_up: GaveUp | None = None, speak: Speak | None = None,
        barred: BarredChats | None = None,
    ) -> None:  # fmt: skip
        """Deliver posts until cancelled.

        On cancellation, posts that have started get ENDING_SECONDS to finish. The others are returned to the outbox.
        `opened` completes a row that opened a thread, and `gave_up` a row that failed. Without `speak`, no speech is
        synthesized. Without `barred`, nobody is notified of chats that refuse posts.
        """
        self._opened, self._gave_up = opened or self._outbox.opened, gave_up or self._outbox.fail
        self._speak, self._barred = speak, barred
        if barred is not None:
            await barred.load()
        self._ending = GracePeriod()
        await self._give_back_doubtful()
        await self._outbox.release(self._adapter.platform)
        async with anyio.create_task_group() as tasks:
            if self._previews is not None:
                tasks.start_soon(self._previews.run, self._pacer)
            with self._ending.watched():
                self._tasks = tasks
                try:
                    while True:
                        if not await self._look(tasks):
                            due = min(self._retry_times, default=None)
                            left = (due - self._clock.now()).total_seconds() if due is not None else QUIET_SECONDS
                            await self._clock.wait(self._poked, min(QUIET_SECONDS, max(0.0, left)))
                finally:
                    self._tasks = None

    async def _look(self, tasks: anyio.abc.TaskGroup) -> bool:
        """Claim due rows and start to send them. Return True if more rows may be due.

        Extends the claims of posts that take a long time. If the wall clock was changed or the machine was suspended,
        all claims are extended, because claims expire by the wall clock.
        """
        self._poked.clear()
        await self._give_back_doubtful()
        room = min(ROWS_A_CLAIM, self._room())
        now, looked_at, ahead = self._clock.monotonic(), self._clock.now(), wall_ahead(self._clock)
        was_set = abs(ahead - self._wall_ahead_seconds) > CLAIM_SECONDS / 3
        self._wall_ahead_seconds = ahead if was_set else self._wall_ahead_seconds
        before = now - CLAIM_SECONDS / 3
        slow = sorted(id for id, claimed_at in self._at_work.items() if was_set or claimed_at < before)
        self._expected += room
        try:
            platforms = (self._adapter.platform,)
            rows = await self._outbox.claim(platforms, room, CLAIM_SECONDS, slow) if room or slow else []
        finally:
            self._expected -= room
        self._at_work.update((id, now) for id in slow if id in self._at_work)
        for row in rows:
            self._begin(row, now, tasks)
        self._retry_times = [at for at in self._retry_times if at > looked_at]
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

    async def _work_on(self, row: OutboxRow) -> None:
        is_more = True
        try:
            async with self._crash_log.one_by_one(f"post {row.id}"):
                is_more = await self.deliver(row)
        except EndedTwice as error:
            log.error("post abandoned: process crashed twice while sending", extra={"post": row.id})
            await self._crash_log.set_aside(SetAside(self._adapter.platform, row.thread, ""), self._clock)
            await self._gave_up(row, str(error), True)
        except anyio.get_cancelled_exc_class():
            await self._give_back(row)
            raise
        finally:
            is_full = self._room() <= 0
            self._at_work.pop(row.id, None)
            if is_more or is_full:
                self.poke()

    async def _give_back(self, row: OutboxRow) -> None:
        """Put a row back into the outbox if its post was cancelled before it started. If the database is unavailable,
        the row later counts as possibly sent.
        """
        with anyio.move_on_after(ENDING_SECONDS, shield=True):
            try:
                await self._outbox.give_back(row)
            except StoreError as error:
                log.info("returning post to outbox failed", extra={"post": row.id, "why": str(error)})

    async def deliver(self, row: OutboxRow) -> bool:
        """Post the remaining pieces of a row and record the outcome. Return True if the thread may have more posts
        to send.
        """
        limits, text = self._adapter.limits, row.post.text
        match row.post.kind:
            case "edit":  # Edit the messages of an earlier post. Do nothing if the platform cannot edit messages.
                changed, pieces = row.post.edits or card_id(row.post.approval), await self._pieces(text)
                shown = await self._outbox.posted_parts(changed) if limits.can_edit else []

                async def edit(message_id: str, piece: str, buttons: tuple[Button, ...]) -> str:
                    await self._adapter.edit(row.thread, message_id, piece, buttons)
                    return message_id

                for done, (message_id, part) in enumerate(shown[row.part :], row.part):
                    buttons = row.post.buttons if done == len(shown) - 1 else ()
                    piece = pieces[part] if part < len(pieces) else "…"
                    if await self._attempt(row, edit(message_id, piece, buttons)) is None:
                        return True
                    if done < len(shown) - 1:
                        await self._outbox.posted(row, done, "", last=False)
                await self._outbox.posted(row, len(shown), "", last=True)
                return True
            case "opening":  # A post to a channel opens a thread. The rest of the text and the file follow there.
                first, *rest = await self._pieces(text or "…")
                post, channel = self._outbound(row, 0, first), thread_address(row.thread).channel
                with self._ending.finishing():
                    posting = self._adapter.open_thread(
                        channel, post.markdown, post.key, maybe_posted=post.maybe_posted
                    )
                    opened = await self._attempt(row, posting)
                    if opened is not None:
                        thread = ThreadId(opened)
                        follow = [NewPost(f"{row.id}:{number}", thread, piece) for number, piece in enumerate(rest, 1)]
                        if row.post.file:
                            file, album = row.post.file, row.post.album
                            follow.append(NewPost(f"{row.id}:file", thread, "", "file", file=file, album=album))
                        await self._opened(row, thread, follow)
                return True
            case "voice":
                await self._attempt(row, self._post_voice(row))
                return True
            case _:
                pass
        if row.post.approval:
            short, channel = row.post.approval[-SHORT_ID_CHARS:], thread_address(row.thread).channel
            is_group = bool(limits.group_prefix) and channel.startswith(limits.group_prefix)
            words = row.post.ways or f"To decide, write `allow {short}` or `deny {short}`."
            ways = [] if limits.has_buttons else [words]
            ways += (
                [BY_REACTION_ALL if row.post.ways else BY_REACTION]
                if limits.reactions == "all" or (limits.reactions and not is_group)
                else []
            )
            text = "\n\n".join([text, *ways])
        pieces, is_more = await self._pieces(text), True
        files, most = [file for file in (row.post.file, *row.post.album) if file], limits.album_max
        albums: list[Sequence[str]] = [files[at : at + most] for at in range(0, len(files), most)] or [()]
        pieces += [""] * (len(albums) - 1)  # the last piece of text goes with the first files
        if row.part >= len(pieces):  # already done: there may be fewer, longer pieces than at the first attempt
            return await self._outbox.posted(row, row.part, "", last=True)
        for part in range(row.part, len(pieces)):
            with ExitStack() as way:
                from_end = len(pieces) - part
                files = albums[-from_end] if from_end <= len(albums) else ()
                is_only = len(pieces) == 1
                posting = self._post_piece(row, part, pieces[part], files, way, is_only=is_only)
                message_id = await self._attempt(row, posting)
                if message_id is None:
                    return True
                is_more = await self._outbox.posted(row, part, message_id, last=part == len(pieces) - 1)
            row = msgspec.structs.replace(row, part=part + 1, attempts=0, maybe_sent=False)
        return is_more

    async def _post_voice(self, row: OutboxRow) -> str:
        """Post a recording of the text.

        If the synthesis fails, post the reason instead, because a person is waiting for the recording.
        """
        try:
            if self._speak is None:
                raise ProviderRefused("no voice is configured.")
            recording = await self._speak(row)
        except (ProviderDown, ProviderRefused) as error:
            if isinstance(error, ProviderDown) and row.attempts + 1 < SPOKEN_TRIES:
                raise PlatformError(str(error)) from error
            log.warning("speaking answer failed", extra={"thread_id": row.thread, "why": str(error)})
            post = msgspec.structs.replace(self._outbound(row, 0, UNSPOKEN.format(why=error)), kind="text")
        else:
            post = msgspec.structs.replace(self._outbound(row, 0, ""), file=recording)
        message_id = ""
        with ExitStack() as way:
            message_id = await self._post(post, way)
            await self._outbox.posted(row, 0, message_id, last=True)
        return message_id

    async def _pieces(self, text: str) -> list[str]:
        """Split a text into pieces. Long texts are split in a worker thread, because that can take seconds."""
        limits = self._adapter.limits
        reserve = 0 if limits.idempotent_posts and self._restored_at is None else len(REPEATED)
        if len(text) <= CUT_HERE_CHARS_MAX:
            return pieces_of(text, limits, reserve)
        return await anyio.to_thread.run_sync(pieces_of, text, limits, reserve, abandon_on_cancel=True)

    async def _post_piece(
        self, row: OutboxRow, part: int, piece: str, files: Sequence[str], way: ExitStack, *, is_only: bool
    ) -> str:
        """Post a piece with its files, or turn the reply's preview into its first piece.

        A new post is shielded from cancellation until `way` closes. `is_only` is True if the text has only this piece.
        """
        thread, post, turn = row.thread, self._outbound(row, part, piece), turn_of_reply(row.id)
        preview: str | None = ""
        if self._previews is not None and part == 0 and row.post.kind == "text":
            preview = await self._previews.take(row)
        goes_on_without = preview is None and not self._adapter.limits.idempotent_posts
        if goes_on_without:
            await self._outbox.unpreviewed(thread, turn)
            # the preview's id may have been recorded in the meantime
            preview = next(iter(await self._outbox.posted_ids(preview_key(turn))), "")
        elif preview is None:  # posting with the same key again returns the original id
            await self._pacer.turn(thread)
            repeat = OutboundPost(thread, preview_key(turn), piece, reply_to=row.post.reply_to, maybe_posted=True)
            preview = await post_once(self._adapter, self._outbox, repeat)
            # store the id now, because a search cannot find the preview after the edit
            await self._outbox.previewed(thread, turn, preview)
        if preview:
            takes_over = not goes_on_without and not await self._outbox.is_overtaken(thread, turn)
            if takes_over and not (is_only and await self._is_late(row)):
                try:
                    await self._adapter.edit(thread, preview, piece)
                except PlatformError as error:
                    if not (error.permanent or error.barred):
                        raise
                else:
                    return preview
            try:
                await withdraw(self._adapter, thread, preview)
            except PlatformError as error:  # the answer itself was not posted
                if error.barred:
                    log.info("removing preview failed", extra={"thread_id": thread, "why": str(error)})
                    return await self._post(post, way)
                wait_seconds, everywhere = error.retry_after_seconds, error.everywhere
                raise PlatformError(str(error), retry_after_seconds=wait_seconds, everywhere=everywhere) from error
        if files:
            try:
                await self._folders.pull(thread)  # the files may be on another machine
            except StoreUnavailable as error:
                raise PlatformError(str(error)) from error
            first, *more = (Path(self._folders.here(thread, file)) for file in files)
            post = msgspec.structs.replace(post, file=first, album=tuple(more))
        return await self._post(post, way)

    async def _is_late(self, row: OutboxRow) -> bool:
        """Return True if the preview was posted so long ago that people must be notified of the finished answer."""
        if self._adapter.limits.edits_notify:
            return False
        shown_at = await self._outbox.posted_at(preview_key(turn_of_reply(row.id)))
        return shown_at is not None and (self._clock.now() - shown_at).total_seconds() >= LATE_SECONDS

    async def _post(self, post: OutboundPost, way: ExitStack) -> str:
        """Post to the thread, or to the enclosing chat if the thread refuses posts. Raises PlatformError."""
        try:
            return await self._post_in(post.thread, post, way)
        except PlatformError as error:
            around = self._adapter.around(post.thread) if isinstance(self._adapter, HasAround) else None
            if not error.barred or around is None:
                raise
            log.warning("posted to enclosing chat", extra={"thread_id": post.thread, "why": str(error)})
        noted = f"{MOVED_HERE}\n\n{post.markdown}".strip()
        if rendered_length(noted, self._adapter.limits) > self._adapter.limits.text_chars_max:
            note = OutboundPost(around, f"{post.key}:moved", MOVED_HERE, maybe_posted=post.maybe_posted)
            await self._post_in(around, note, way)
            noted = post.markdown
        return await self._post_in(around, msgspec.structs.replace(post, markdown=noted, reply_to=""), way)

    async def _post_in(self, place: ThreadId, post: OutboundPost, way: ExitStack) -> str:
        await self._pacer.turn(place)
        way.enter_context(self._ending.finishing())
        way.enter_context(self._outbox.underway(place))
        return await post_once(self._adapter, self._outbox, msgspec.structs.replace(post, thread=place))

    async def _attempt(self, row: OutboxRow, posting: Awaitable[str]) -> str | None:
        """Await the post of a piece. Return the platform's message id, or None if the row will be retried or was
        abandoned.
        """
        try:
            message_id = await by_adapter(posting)
        except PlatformError as failure:
            error = failure
        except StoreError as failure:
            log.exception("posting failed", extra={"thread_id": row.thread, "post": row.id})
            error = PlatformError(f"{type(failure).__name__}: {failure}", outcome_unknown=True)
        else:
            if self._barred is not None:
                await self._barred.works(row.thread)
            return message_id
        if error.retry_after_seconds:
            self._pacer.refused(row.thread, error.retry_after_seconds, everywhere=error.everywhere)
        now = self._clock.now()
        is_old = (now - row.created_at).total_seconds() > KEEP_SECONDS and row.attempts >= KEEP_ATTEMPTS_MIN
        is_pointless = error.permanent or (error.barred and row.post.kind == "edit")
        if is_pointless or is_old or (error.outcome_unknown and row.attempts + 1 >= UNKNOWN_MAX):
            log.error("post abandoned", extra={"thread_id": row.thread, "post": row.id, "why": str(error)})
            await self._gave_up(row, str(error), error.permanent)
            return None
        delay_max = BARRED_RETRY_SECONDS_MAX if error.barred else RETRY_SECONDS_MAX
        delay = min(retry_delay(row.attempts + 1, error.retry_after_seconds, RETRY_BASE_SECONDS), delay_max)
        at = now + timedelta(seconds=delay)
        await self._outbox.retry(row, at, str(error), maybe_sent=row.maybe_sent or error.outcome_unknown)
        self._retry_times.append(at)
        if error.barred and self._barred is not None:
            await self._barred.note(row, str(error))
        return None

    def _outbound(self, row: OutboxRow, part: int, piece: str) -> OutboundPost:
        post = row.post
        # Posts that were pending in a restored backup may already exist on the platform, under a key that the platform
        # has forgotten.
        is_restored = self._restored_at is not None and row.created_at <= self._restored_at
        maybe_sent = row.maybe_sent or is_restored
        repeated = maybe_sent and (is_restored or not self._adapter.limits.idempotent_posts)
        return OutboundPost(
            thread=row.thread,
            key=f"{row.id}:{part}",
            markdown=REPEATED + piece if repeated else piece,
            kind="text" if post.kind in ("edit", "opening") else post.kind,
            buttons=post.buttons,
            reply_to=post.reply_to if part == 0 else "",
            user=post.user,
            maybe_posted=maybe_sent,
        )


class Senders:
    def __init__(
        self, adapters: Mapping[str, ChatAdapter], hub: Hub, outbox: Outbox, clock: Clock, folders: Folders,
        crash_log: CrashLog, restored_at: datetime | None = None,
    ) -> None:  # fmt: skip
        self._crash_log, self._restored_at = crash_log, restored_at
        self._hub, self._outbox, self._clock, self._folders = hub, outbox, clock, folders
        self._senders: dict[str, Sender] = {}
        self.speaks: Callable[[Prompt], Awaitable[bool]] | None = None
        self.speak: Speak | None = None
        for adapter in adapters.values():
            self.add(adapter)

    def add(self, adapter: ChatAdapter) -> None:
        """Add the sender of a platform, replacing an earlier one."""
        has_preview = adapter.limits.has_preview
        previews = Previews(adapter, self._hub, self._outbox, self._clock) if has_preview else None
        self._senders[adapter.platform] = Sender(
            adapter, self._outbox, self._clock, previews, self._folders, self._crash_log, self._restored_at
        )

    def drop(self, platform: str) -> None:
        """Remove the sender of a platform. The platform's posts stay in the outbox until another sender is added."""
        self._senders.pop(platform, None)

    async def post(self, post: NewPost) -> None:
        """Enqueue a post and wake the sender of its platform. Raises StoreError."""
        await self._outbox.put(post)
        self.poke(post.thread)

    def poke(self, thread: ThreadId) -> None:
        self.poke_platform(thread_address(thread).platform)

    def poke_platform(self, platform: str) -> None:
        """Wake the sender of a platform, or all senders if `platform` is empty."""
        for name, sender in self._senders.items():
            if platform in (name, ""):
                sender.poke()

    async def enqueue(
        self, thread: ThreadId, posts: Sequence[NewPost], finishing: Callable[[float], Awaitable[Committed]]
    ) -> Committed:
        sender = self._senders.get(thread_address(thread).platform)
        return await (sender.enqueue(posts, finishing) if sender is not None else finishing(0.0))

    async def run(self, platform: str, opened: Opened, gave_up: GaveUp, barred: BarredChats) -> None:
        await self._senders[platform].run(opened, gave_up, self.speak, barred)
