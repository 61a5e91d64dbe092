"""The outbox of posts to platforms, the ids of posted messages, and the posts that this process is sending."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec

from shoal.kernel.clock import Clock, from_micros
from shoal.kernel.ids import ThreadId, TurnId, platform_of
from shoal.kernel.messages import Prompt, Receipt
from shoal.kernel.posts import preview_key, reply_key, turn_of_reply
from shoal.kernel.records import DeliveryStatus, NewPost, OutboxRow
from shoal.store.appends import append_outside, put_post, title_of
from shoal.store.causes import Cause
from shoal.store.driver import Driver, Script, StorePart, dump, number, query, readable, reader, text, writes, writes_at
from shoal.store.inbox import accept_prompt

UNDERWAY_SECONDS = 30.0
"""Maximum time to wait for a post in flight. A busy disk can delay the post's record for several seconds."""
WAIT_SECONDS_MAX = 600.0
"""Maximum delay of a retry, and maximum duration of a claim. A due time further in the future means that the clock was
set back.
"""
QUEUE_FULL = "The conversation's queue is full."
CANNOT_BE_READ = "The stored post is unreadable."
BEGUN_PART = 1
"""Part number of the row that records a started preview. The row has an empty message id and sorts after part 0, which
is the posted preview.
"""
OVERTAKEN_PART = 2
"""Part number that replaces BEGUN_PART when another post of the thread is claimed after the preview started."""

_outbox_row = reader(OutboxRow, post=msgspec.json.Decoder(NewPost).decode)


class Outbox(StorePart):
    """Posts to platforms. Each row is pending, sending, sent or failed."""

    def __init__(self, driver: Driver, clock: Clock, causes: Sequence[Cause] = ()) -> None:
        super().__init__(driver, clock)
        self._causes = causes
        self._underway: dict[str, list[asyncio.Event]] = {}

    @writes_at
    def put(self, at: datetime, post: NewPost) -> Script[bool]:
        """Enqueue a post and journal its note. Return False if the id is known.

        The note of an opening is journaled later, when the opening has created its thread. A failed opening without
        a trigger is enqueued again.
        """
        again = False
        if post.opening is not None and not post.opening.trigger:
            again = bool((yield from query("outbox_again", id=post.id, payload=dump(post), now=at)))
        if again:
            yield from query("due", what=platform_of(post.thread))
        fresh = again or (yield from put_post(post, at))
        if fresh and post.kind != "opening":
            yield from _note(post, post.thread, at)
        return fresh

    @writes_at
    def claim(
        self, at: datetime, platforms: Sequence[str], limit: int, claim_seconds: float, held: Sequence[str] = ()
    ) -> Script[list[OutboxRow]]:
        """Claim due posts, oldest first, at most `limit` per platform and one per thread.

        Posts whose earlier claim has expired are returned with `maybe_sent`. The caller is still sending the posts
        in `held`, whose claims are extended to `claim_seconds` from now. Unreadable posts are marked as failed.
        Cancellation is safe: either all posts are claimed, or none.
        """
        until, latest = at + timedelta(seconds=claim_seconds), at + timedelta(seconds=WAIT_SECONDS_MAX)
        for post in held:
            yield from query("outbox_extend", id=post, claimed_until=until)
        claimed: list[OutboxRow] = []
        for platform in platforms:
            rows = yield from query(
                "outbox_claim", platform=platform, now=at, claimed_until=until, latest=latest, limit=limit
            )
            posts = readable(_outbox_row, [row[1:] for row in sorted(rows, key=lambda row: number(row[0]))])
            for id, claims in {(row[1], row[-1]) for row in rows} - {(post.id, post.claims) for post in posts}:
                yield from query("outbox_fail", id=id, claims=claims, error=CANNOT_BE_READ)
            claimed += posts
        for row in claimed:
            yield from _overtake(row)
        return claimed

    async def release(self, platform: str) -> None:
        """Release the posts that an earlier sender of the platform had claimed. They are due immediately.

        `claim` returns them with `maybe_sent`. Call this only when the platform's only sender starts.
        """
        await self._write("outbox_release", platform=platform, now=self._clock.now())

    async def give_back(self, row: OutboxRow) -> None:
        """Return a claimed post to the outbox before it is started. The post is due immediately, without `maybe_sent`.

        Does nothing if the post was claimed again or sent.
        """
        await self._write("outbox_give_back", id=row.id, claims=row.claims, now=self._clock.now())

    @writes_at
    def posted(self, at: datetime, row: OutboxRow, part: int, message_id: str, *, last: bool) -> Script[bool]:
        """Record that the platform stored piece `part` as message `message_id`. `last` completes the post.

        Return True if the thread has more posts to send.
        """
        if message_id:
            where = {"platform": platform_of(row.thread), "message_id": message_id, "thread": row.thread}
            yield from query("posted_insert", **where, post=row.id, part=part, now=at)
        yield from query("outbox_sent" if last else "outbox_part", id=row.id, part=part + 1)
        return bool((yield from query("outbox_more", thread=row.thread)))

    @writes_at
    def opened(
        self,
        at: datetime,
        row: OutboxRow,
        thread: ThreadId,
        rest: Sequence[NewPost],
        prompt: Prompt | None = None,
        prompts_max: int = 0,
    ) -> Script[Receipt | None]:
        """Record that an `opening` has opened a thread. Journal the opening's note, enqueue `rest` in the new thread
        and complete the row.

        The prompt is also accepted in the new thread (see `Inbox.accept`). If the mailbox is full, the row fails
        instead.
        """
        receipt = None
        if prompt is not None:
            receipt = yield from accept_prompt(prompt, prompts_max, at)
            if receipt.status == "busy":
                yield from self._fail(row, QUEUE_FULL, refused=False)
                return receipt
            thread = prompt.thread
        yield from _note(row.post, thread, at)
        for post in rest:
            yield from put_post(post, at)
        yield from query("outbox_sent", id=row.id, part=1)
        return receipt

    async def retry(self, row: OutboxRow, at: datetime, error: str, *, maybe_sent: bool = False) -> None:
        """Postpone a post until `at`. Does nothing if the post was claimed again or sent."""
        where = {"id": row.id, "claims": row.claims}
        await self._write("outbox_retry", **where, due_at=at, error=error, maybe_sent=maybe_sent)

    @writes
    def fail(self, row: OutboxRow, error: str, refused: bool = True) -> Script[None]:
        """Mark a post as failed, and keep it with its error. Does nothing if the post was claimed again or sent.

        The trigger of a failed opening is notified once. `refused` is False if the platform is unavailable.
        """
        return self._fail(row, error, refused=refused)

    def _fail(self, row: OutboxRow, error: str, *, refused: bool) -> Script[None]:
        failed = yield from query("outbox_fail", id=row.id, claims=row.claims, error=error)
        opening = row.post.opening
        if failed and opening is not None and opening.trigger:
            for_good = opening.disables and (refused or not opening.recurs)
            for cause in self._causes:
                yield from cause.opening_failed(opening.trigger, error, for_good=for_good)

    async def withdraw(self, post_id: str) -> str | None:
        """Mark a pending post as failed. Return its last error, or None if the post is not pending."""
        rows = await self._write("outbox_withdraw", id=post_id)
        return text(rows[0][0]) if rows else None

    async def fate(self, post_id: str) -> DeliveryStatus | None:
        rows = await self._read("outbox_fate", id=post_id)
        return DeliveryStatus(text(rows[0][0]), text(rows[0][1])) if rows else None  # pyright: ignore[reportArgumentType]

    async def posted_ids(self, post_id: str) -> list[str]:
        """Return the platform's ids of a post's messages, in the order of the post's parts."""
        return [text(row[0]) for row in await self._read("posted_of", post=post_id)]

    async def posted_at(self, post_id: str) -> datetime | None:
        rows = await self._read("posted_at", post=post_id)
        return from_micros(number(rows[0][0])) if rows else None

    async def posted_parts(self, post_id: str) -> list[tuple[str, int]]:
        """Return the message id and the part of each message of a post.

        A part has several messages if two processes posted it.
        """
        return [(text(row[0]), number(row[1])) for row in await self._read("posted_of", post=post_id)]

    async def post_of(self, thread: ThreadId, message_id: str) -> str:
        """Return the id of the post that a message of the bot belongs to, or an empty string.

        If the message is unknown, wait up to UNDERWAY_SECONDS for posts in flight: a person can react to a message
        before the platform has confirmed it.
        """
        where = {"platform": platform_of(thread), "message_id": message_id, "thread": thread}
        rows = await self._read("posted_one", **where)
        if not rows and await self._until_noted(_channel(thread)):
            rows = await self._read("posted_one", **where)
        return text(rows[0][0]) if rows else ""

    async def begin_preview(self, thread: ThreadId, turn: TurnId) -> bool:
        """Record the post `preview:TURN`, with an empty message id, before a turn's answer is previewed.

        Return False and record nothing in two cases:

        - A post of the thread is unsent, and the preview would appear above it.
        - The turn's answer is already in the outbox.
        """
        row = {**_preview(thread, turn), "reply": reply_key(turn)}
        return bool(await self._write("preview_begin", **row, part=BEGUN_PART, now=self._clock.now()))

    async def previewed(self, thread: ThreadId, turn: TurnId, message_id: str) -> bool:
        """Record the message id of a turn's preview, so the answer can replace the preview.

        Return False and record nothing if the answer was already posted without the preview.
        """
        row = _preview(thread, turn)
        return bool(await self._write("preview_noted", **row, message_id=message_id, now=self._clock.now()))

    async def is_overtaken(self, thread: ThreadId, turn: TurnId) -> bool:
        """Return True if another post was claimed after the turn's preview began. The turn's answer does not count."""
        return (OVERTAKEN_PART,) in [tuple(row) for row in await self._read("preview_part", **_preview(thread, turn))]

    async def unpreviewed(self, thread: ThreadId, turn: TurnId) -> None:
        """Delete the record of a preview that was never shown, or that the answer does not replace."""
        await self._write("posted_nowhere", **_preview(thread, turn))

    @contextmanager
    def underway(self, thread: ThreadId) -> Generator[None]:
        """Mark a post to the thread as in flight until the block ends.

        `thread_of` and `post_of` wait for posts in flight.
        """
        channel, ended = _channel(thread), asyncio.Event()
        posts = self._underway.setdefault(channel, [])
        posts.append(ended)
        try:
            yield
        finally:
            ended.set()
            posts.remove(ended)
            if not posts:
                del self._underway[channel]

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """Return the thread of a message that the bot posted in a channel (`PLATFORM:CHANNEL:`), or of the prompt with
        this key.

        If the message is unknown, wait up to UNDERWAY_SECONDS for posts in flight.
        """
        thread = await self._thread_of(channel, message_id, key)
        if thread is None and message_id and await self._until_noted(channel):
            thread = await self._thread_of(channel, message_id, key)
        return thread

    async def _until_noted(self, channel: str) -> bool:
        """Wait for the posts in flight to a channel. Return False if there are none."""
        posts = tuple(self._underway.get(channel, ()))
        until = self._clock.monotonic() + UNDERWAY_SECONDS
        for ended in posts:
            await self._clock.wait(ended, max(0.0, until - self._clock.monotonic()))
        return bool(posts)

    async def _thread_of(self, channel: str, message_id: str, key: str) -> ThreadId | None:
        where = {"platform": platform_of(channel), "channel": channel}
        rows = await self._read("posted_thread", **where, message_id=message_id) if message_id else []
        if not rows and key:
            rows = await self._read("inbox_thread", **where, key=key)
        return ThreadId(text(rows[0][0])) if rows else None

    async def is_noted(self, platform: str, message_id: str) -> bool:
        return bool(await self._read("posted_any", platform=platform, message_id=message_id))

    async def depth(self) -> int:
        return number((await self._read("outbox_depth"))[0][0])


def _channel(thread: ThreadId) -> str:
    """Return the part `PLATFORM:CHANNEL:` of a thread's id."""
    return f"{thread.rpartition(':')[0]}:"


def put_claimed(post: NewPost, at: datetime, claim_seconds: float) -> Script[OutboxRow | None]:
    """Enqueue a post and claim it for this process. Return None if other posts of the thread must be sent first."""
    row = OutboxRow(post.id, post.thread, post, part=0, attempts=0, created_at=at)
    where, until = {"platform": platform_of(post.thread), "thread": post.thread}, at + timedelta(seconds=claim_seconds)
    new = {"id": post.id, "payload": dump(post), "claimed_until": until, "now": at}
    if not (yield from query("outbox_insert_claimed", **where, **new)):
        return None
    yield from _overtake(row)
    return row


def _note(post: NewPost, thread: ThreadId, at: datetime) -> Script[None]:
    """Journal a post's note in a thread. If the thread is new, assign it to the agent that wrote the note."""
    if post.note is None:
        return
    agent, title = post.note.author.name, title_of(post.text)
    yield from query("thread_ensure", thread=thread, agent=agent, title=title, now=at)
    yield from append_outside(thread, TurnId(""), [post.note], at)


def _overtake(row: OutboxRow) -> Script[None]:
    if row.post.kind != "edit":
        where = {"platform": platform_of(row.thread), "thread": row.thread}
        own = preview_key(turn_of_reply(row.id))
        yield from query("preview_overtake", **where, own=own, part=OVERTAKEN_PART)


def _preview(thread: ThreadId, turn: TurnId) -> dict[str, str]:
    return {"platform": platform_of(thread), "thread": thread, "post": preview_key(turn)}
