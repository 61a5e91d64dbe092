"""The outbox over either database, and what of it is on its way to a platform just now."""

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

UNDERWAY_SECONDS = 5.0
"""Longest wait for posts that are at the platform, when somebody names a message that is not known."""
WAIT_SECONDS_MAX = 600.0
"""No post is put off and no claim lasts longer than that from now."""
QUEUE_FULL = "The conversation's queue is full."
CANNOT_BE_READ = "What is stored of it cannot be read."
BEGUN_PART = 1
"""The part of the empty id that notes a preview which was begun: behind the real one."""
OVERTAKEN_PART = 2
"""The same, once another post of the thread may stand after the preview."""

_outbox_row = reader(OutboxRow, post=msgspec.json.Decoder(NewPost).decode)


class Outbox(StorePart):
    """Posts on their way to platforms; a row is pending, sending, sent or failed."""

    def __init__(self, driver: Driver, clock: Clock, causes: Sequence[Cause] = ()) -> None:
        super().__init__(driver, clock)
        self._causes = causes
        self._underway: dict[str, list[asyncio.Event]] = {}

    @writes_at
    def put(self, at: datetime, post: NewPost) -> Script[bool]:
        """Enqueue a post and journal its note, unless that waits for an opening; False when its id is known already.

        An opening of no trigger that was given up is enqueued anew.
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
        """Mark up to `limit` due rows as sending, oldest first and one a thread at a time, and return them.

        Rows claimed longer than `claim_seconds` ago come back with `maybe_sent`, save those `held`: the caller is still
        at work on them, and their claims last `claim_seconds` from now. One that cannot be read is given up. Safe to
        cancel: all or none.
        """
        until, latest = at + timedelta(seconds=claim_seconds), at + timedelta(seconds=WAIT_SECONDS_MAX)
        for post in held:
            yield from query("outbox_extend", id=post, claimed_until=until)
        found: list[OutboxRow] = []
        for platform in platforms:
            rows = yield from query(
                "outbox_claim", platform=platform, now=at, claimed_until=until, latest=latest, limit=limit
            )
            posts = readable(_outbox_row, [row[1:] for row in sorted(rows, key=lambda row: number(row[0]))])
            for id, claims in {(row[1], row[-1]) for row in rows} - {(one.id, one.claims) for one in posts}:
                yield from query("outbox_fail", id=id, claims=claims, error=CANNOT_BE_READ)
            found += posts
        for row in found:
            yield from _overtake(row)
        return found

    async def release(self, platform: str) -> None:
        """Make the claims of a platform's former sender due at once; they come back with `maybe_sent`.

        For a sender that starts, and only while it is the one sender of the platform.
        """
        await self._write("outbox_release", platform=platform, now=self._clock.now())

    async def give_back(self, row: OutboxRow) -> None:
        """A claimed post was not begun: it is due at once, and no repeat. Nothing when it was claimed anew or sent."""
        await self._write("outbox_give_back", id=row.id, claims=row.claims, now=self._clock.now())

    @writes_at
    def posted(self, at: datetime, row: OutboxRow, part: int, message_id: str, *, last: bool) -> Script[bool]:
        """Piece `part` is on the platform as `message_id`; `last` ends the row. Whether its thread has more to post."""
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
        """An `opening` has opened this thread: its note is journaled there, `rest` goes there. Ends the row.

        So does its prompt, as it is to be accepted there; see `Inbox.accept`. A full mailbox fails the row instead. The
        opening's trigger learns either.
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
        """Put it back until `at`; nothing when it was claimed anew or sent meanwhile."""
        where = {"id": row.id, "claims": row.claims}
        await self._write("outbox_retry", **where, due_at=at, error=error, maybe_sent=maybe_sent)

    @writes
    def fail(self, row: OutboxRow, error: str, refused: bool = True) -> Script[None]:
        """Give it up; it stays visible with its error. Nothing when it was claimed anew or sent meanwhile.

        The trigger of an opening learns it, once; it was not `refused` where its platform is away.
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
        """Give up a post that waits to be tried (again); its last error, or None when it is not waiting."""
        rows = await self._write("outbox_withdraw", id=post_id)
        return text(rows[0][0]) if rows else None

    async def fate(self, post_id: str) -> DeliveryStatus | None:
        """What has become of a post; None for an unknown one."""
        rows = await self._read("outbox_fate", id=post_id)
        return DeliveryStatus(text(rows[0][0]), text(rows[0][1])) if rows else None  # pyright: ignore[reportArgumentType]

    async def posted_ids(self, post_id: str) -> list[str]:
        """The platform's message ids of a post, part by part."""
        return [text(row[0]) for row in await self._read("posted_of", post=post_id)]

    async def posted_at(self, post_id: str) -> datetime | None:
        """When the first message of a post was noted; None without one."""
        rows = await self._read("posted_at", post=post_id)
        return from_micros(number(rows[0][0])) if rows else None

    async def posted_parts(self, post_id: str) -> list[tuple[str, int]]:
        """The same, each with its part: several show one where two processes have posted it."""
        return [(text(row[0]), number(row[1])) for row in await self._read("posted_of", post=post_id)]

    async def post_of(self, thread: ThreadId, message_id: str) -> str:
        """The id of the post that a message of ours shows; empty when it is none."""
        where = {"platform": platform_of(thread), "message_id": message_id, "thread": thread}
        rows = await self._read("posted_one", **where)
        return text(rows[0][0]) if rows else ""

    async def begin_preview(self, thread: ThreadId, turn: TurnId) -> bool:
        """A turn's answer is about to be shown, as the post `preview:TURN`, whose `posted_ids` have an empty one.

        False, and nothing is noted, while a post of the thread is pending or sending: the preview would stand above it;
        and where the answer is there already, of which another machine's word came late.
        """
        row = {**_preview(thread, turn), "reply": reply_key(turn)}
        return bool(await self._write("preview_begin", **row, part=BEGUN_PART, now=self._clock.now()))

    async def previewed(self, thread: ThreadId, turn: TurnId, message_id: str) -> bool:
        """A turn's answer is being shown in this message; kept as the post `preview:TURN` until the answer takes it.

        False, and nothing is kept, where the preview is not awaited any more: another process has posted the answer.
        """
        row = _preview(thread, turn)
        return bool(await self._write("preview_noted", **row, message_id=message_id, now=self._clock.now()))

    async def is_overtaken(self, thread: ThreadId, turn: TurnId) -> bool:
        """Whether a post of the thread but the turn's answer was claimed since the turn's preview was begun."""
        return (OVERTAKEN_PART,) in [tuple(row) for row in await self._read("preview_part", **_preview(thread, turn))]

    async def unpreviewed(self, thread: ThreadId, turn: TurnId) -> None:
        """The preview that was begun does not stand anywhere, or the answer goes on without it."""
        await self._write("posted_nowhere", **_preview(thread, turn))

    @contextmanager
    def underway(self, thread: ThreadId) -> Generator[None]:
        """While the block lasts, a message of the thread goes to the platform and its id is noted."""
        channel, ended = f"{thread.rpartition(':')[0]}:", asyncio.Event()
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
        """The thread, in a channel (`PLATFORM:CHANNEL:`), of one of our messages or of a prompt by its key.

        A message that is not known may be one that is on its way just now: its end is awaited, some seconds at most.
        """
        found = await self._thread_of(channel, message_id, key)
        posts = tuple(self._underway.get(channel, ()))
        if found is not None or not message_id or not posts:
            return found
        until = self._clock.monotonic() + UNDERWAY_SECONDS
        for ended in posts:
            await self._clock.wait(ended, max(0.0, until - self._clock.monotonic()))
        return await self._thread_of(channel, message_id, key)

    async def _thread_of(self, channel: str, message_id: str, key: str) -> ThreadId | None:
        where = {"platform": platform_of(channel), "channel": channel}
        rows = await self._read("posted_thread", **where, message_id=message_id) if message_id else []
        if not rows and key:
            rows = await self._read("inbox_thread", **where, key=key)
        return ThreadId(text(rows[0][0])) if rows else None

    async def is_noted(self, platform: str, message_id: str) -> bool:
        """Whether a message of a platform is known as a post's."""
        return bool(await self._read("posted_any", platform=platform, message_id=message_id))

    async def depth(self) -> int:
        return number((await self._read("outbox_depth"))[0][0])


def put_claimed(post: NewPost, at: datetime, claim_seconds: float) -> Script[OutboxRow | None]:
    """Enqueue a post for the sender of this process, which has it at once; None where others have to go first."""
    row = OutboxRow(post.id, post.thread, post, part=0, attempts=0, created_at=at)
    where, until = {"platform": platform_of(post.thread), "thread": post.thread}, at + timedelta(seconds=claim_seconds)
    new = {"id": post.id, "payload": dump(post), "claimed_until": until, "now": at}
    if not (yield from query("outbox_insert_claimed", **where, **new)):
        return None
    yield from _overtake(row)
    return row


def _note(post: NewPost, thread: ThreadId, at: datetime) -> Script[None]:
    """Have a thread know what was said there, also one that was never had; it is its speaker's then."""
    if post.note is None:
        return
    agent, title = post.note.author.name, title_of(post.text)
    yield from query("thread_ensure", thread=thread, agent=agent, title=title, now=at)
    yield from append_outside(thread, TurnId(""), [post.note], at)


def _overtake(row: OutboxRow) -> Script[None]:
    """Note with the preview that the thread may have that a post follows it."""
    if row.post.kind != "edit":
        where = {"platform": platform_of(row.thread), "thread": row.thread}
        own = preview_key(turn_of_reply(row.id))
        yield from query("preview_overtake", **where, own=own, part=OVERTAKEN_PART)


def _preview(thread: ThreadId, turn: TurnId) -> dict[str, str]:
    return {"platform": platform_of(thread), "thread": thread, "post": preview_key(turn)}
