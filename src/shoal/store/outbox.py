"""The outbox over either dialect, and what of it is on its way to a platform just now."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from shoal.domain.clock import Clock, to_micros
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.messages import Prompt, Receipt
from shoal.domain.posts import preview_key, turn_of_reply
from shoal.domain.records import Fate, NewPost, OutboxRow
from shoal.store import rows as convert
from shoal.store.appends import append_outside, put_post, title_of
from shoal.store.mailbox import accept_prompt
from shoal.store.script import Driver, Script, number, query, text

UNDERWAY_SECONDS = 5.0
"""Longest wait for posts that are at the platform, when somebody names a message that is not known."""
WAIT_SECONDS_MAX = 600.0
"""No post is put off and no claim lasts longer than that from now."""
QUEUE_FULL = "The conversation's queue is full."
BEGUN_PART = 1
"""The part of the empty id that notes a preview which was begun: behind the real one."""
OVERTAKEN_PART = 2
"""The same, once another post of the thread may stand after the preview."""


class OutboxView:
    """Implements `domain.store.Outbox`."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._underway: dict[str, list[asyncio.Event]] = {}

    async def put(self, post: NewPost) -> bool:
        """Enqueue a post and journal its note, unless that waits for an opening; False when its id is known already."""
        return await self._driver.write(_put(post, self._clock.now()))

    async def claim(
        self, platforms: Sequence[str], limit: int, claim_seconds: float, held: Sequence[str] = ()
    ) -> list[OutboxRow]:
        """Mark due rows as sending and return them; claim what is held for longer."""
        now = self._clock.now()
        span = [to_micros(now + timedelta(seconds=seconds)) for seconds in (0, claim_seconds, WAIT_SECONDS_MAX)]
        return await self._driver.write(_claim(platforms, limit, span, held))

    async def release(self, platform: str) -> None:
        """Make the claims of a platform's former sender due at once."""
        await self._driver.write(query("outbox_release", platform=platform, now=to_micros(self._clock.now())))

    async def give_back(self, row: OutboxRow) -> None:
        """It was not begun."""
        now = to_micros(self._clock.now())
        await self._driver.write(query("outbox_give_back", id=row.id, claims=row.claims, now=now))

    async def posted(self, row: OutboxRow, part: int, message_id: str, *, last: bool) -> bool:
        """Piece `part` is on the platform."""
        now = to_micros(self._clock.now())
        return await self._driver.write(_posted(row, part, message_id, "outbox_sent" if last else "outbox_part", now))

    async def opened(
        self,
        row: OutboxRow,
        thread: ThreadId,
        rest: Sequence[NewPost],
        prompt: Prompt | None = None,
        prompts_max: int = 0,
    ) -> Receipt | None:
        """An `opening` has opened this thread, where its prompt is accepted."""
        at = self._clock.now()
        if prompt is None:
            return await self._driver.write(_opened(row, thread, rest, at))
        return await self._driver.write(_arrived(row, rest, prompt, prompts_max, at))

    async def retry(self, row: OutboxRow, at: datetime, error: str, *, maybe_sent: bool = False) -> None:
        """Put it back until `at`."""
        await self._driver.write(
            query(
                "outbox_retry",
                id=row.id,
                claims=row.claims,
                due_at=to_micros(at),
                error=error,
                maybe_sent=int(maybe_sent),
            )
        )

    async def fail(self, row: OutboxRow, error: str) -> None:
        """Give it up."""
        await self._driver.write(_fail(row, error))

    async def withdraw(self, post_id: str) -> str | None:
        """Give up a post that waits to be tried."""
        rows = await self._driver.write(query("outbox_withdraw", id=post_id))
        return text(rows[0][0]) if rows else None

    async def fate(self, post_id: str) -> Fate | None:
        """What has become of a post."""
        rows = await self._driver.read(query("outbox_fate", id=post_id))
        return Fate(text(rows[0][0]), text(rows[0][1])) if rows else None  # pyright: ignore[reportArgumentType]

    async def posted_ids(self, post_id: str) -> list[str]:
        """The platform's message ids of a post."""
        return [text(row[0]) for row in await self._driver.read(query("posted_of", post=post_id))]

    async def begin_preview(self, thread: ThreadId, turn: TurnId) -> bool:
        """A turn's answer is about to be shown; False while posts of the thread are to be made."""
        row = {"platform": _platform(thread), "thread": thread, "post": preview_key(turn)}
        now = to_micros(self._clock.now())
        return bool(await self._driver.write(query("preview_begin", **row, part=BEGUN_PART, now=now)))

    async def previewed(self, thread: ThreadId, turn: TurnId, message_id: str) -> None:
        """A turn's answer is shown in this message."""
        row = {"platform": _platform(thread), "message_id": message_id, "thread": thread}
        now = to_micros(self._clock.now())
        await self._driver.write(query("posted_insert", **row, post=preview_key(turn), part=0, now=now))

    async def is_overtaken(self, thread: ThreadId, turn: TurnId) -> bool:
        """Whether another post may stand after the turn's preview."""
        row = {"platform": _platform(thread), "thread": thread, "post": preview_key(turn)}
        return (OVERTAKEN_PART,) in [tuple(row) for row in await self._driver.read(query("preview_part", **row))]

    async def unpreviewed(self, thread: ThreadId, turn: TurnId) -> None:
        """The preview that was about to be shown does not stand anywhere."""
        await self._driver.write(
            query("posted_nowhere", platform=_platform(thread), thread=thread, post=preview_key(turn))
        )

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
        """The thread of one of our messages, or of a prompt by its key."""
        found = await self._thread_of(channel, message_id, key)
        if found is None and message_id and await self._arrived(channel):
            found = await self._thread_of(channel, message_id, key)
        return found

    async def _thread_of(self, channel: str, message_id: str, key: str) -> ThreadId | None:
        where = {"platform": channel.split(":", 1)[0], "channel": channel}
        rows = await self._driver.read(query("posted_thread", **where, message_id=message_id)) if message_id else []
        if not rows and key:
            rows = await self._driver.read(query("inbox_thread", **where, key=key))
        return ThreadId(text(rows[0][0])) if rows else None

    async def _arrived(self, channel: str) -> bool:
        """Wait for what is underway to a channel now; False when there is nothing."""
        posts = tuple(self._underway.get(channel, ()))
        until = self._clock.monotonic() + UNDERWAY_SECONDS
        for ended in posts:
            await self._clock.wait(ended, max(0.0, until - self._clock.monotonic()))
        return bool(posts)

    async def is_noted(self, platform: str, message_id: str) -> bool:
        """Whether a message of a platform is known as a post's."""
        return bool(await self._driver.read(query("posted_any", platform=platform, message_id=message_id)))

    async def depth(self) -> int:
        """How many posts are on their way."""
        return number((await self._driver.read(query("outbox_depth")))[0][0])


def _put(post: NewPost, at: datetime) -> Script[bool]:
    again = False
    if post.opening is not None and not post.opening.trigger:
        again = bool((yield from query("outbox_again", id=post.id, payload=convert.dump(post), now=to_micros(at))))
    if again:
        yield from query("due", what=_platform(post.thread))
    fresh = again or (yield from put_post(post, to_micros(at)))
    if fresh and post.kind != "opening":
        yield from _note(post, post.thread, at)
    return fresh


def _arrived(
    row: OutboxRow, rest: Sequence[NewPost], prompt: Prompt, prompts_max: int, at: datetime
) -> Script[Receipt]:
    """A thread was opened for a prompt, and the prompt is there with it, or has no room there."""
    receipt = yield from accept_prompt(prompt, prompts_max, at)
    if receipt.status == "busy":
        yield from _fail(row, QUEUE_FULL)
        return receipt
    yield from _opened(row, prompt.thread, rest, at)
    return receipt


def _fail(row: OutboxRow, error: str) -> Script[None]:
    failed = yield from query("outbox_fail", id=row.id, claims=row.claims, error=error)
    opening = row.post.opening
    if failed and opening is not None and opening.trigger:
        yield from query("trigger_settle", id=opening.trigger, error=error, disable=int(opening.disables))


def _opened(row: OutboxRow, thread: ThreadId, rest: Sequence[NewPost], at: datetime) -> Script[None]:
    yield from _note(row.post, thread, at)
    for post in rest:
        yield from put_post(post, to_micros(at))
    yield from query("outbox_sent", id=row.id, part=1)


def _platform(thread: ThreadId) -> str:
    return thread.split(":", 1)[0]


def _note(post: NewPost, thread: ThreadId, at: datetime) -> Script[None]:
    """Have a thread know what was said there, also one that was never had; it is its speaker's then."""
    if post.note is None:
        return
    agent, title = post.note.author.name, title_of(post.text)
    yield from query("thread_ensure", thread=thread, agent=agent, title=title, now=to_micros(at))
    yield from append_outside(thread, TurnId(""), [post.note], at)


def _claim(platforms: Sequence[str], limit: int, span: Sequence[int], held: Sequence[str]) -> Script[list[OutboxRow]]:
    now, until, latest = span
    for post in held:
        yield from query("outbox_extend", id=post, claimed_until=until)
    found: list[OutboxRow] = []
    for platform in platforms:
        rows = yield from query(
            "outbox_claim", platform=platform, now=now, claimed_until=until, latest=latest, limit=limit
        )
        found += [convert.outbox_row(row) for row in sorted(rows, key=lambda row: number(row[0]))]
    for row in found:
        yield from _overtake(row)
    return found


def put_claimed(post: NewPost, at: datetime, claim_seconds: float) -> Script[OutboxRow | None]:
    """Enqueue a post for the sender of this process, which has it at once; None where others have to go first."""
    row = OutboxRow(post.id, post.thread, post, part=0, attempts=0, created_at=at)
    rows = yield from query(
        "outbox_insert_claimed",
        id=post.id,
        platform=_platform(post.thread),
        thread=post.thread,
        payload=convert.dump(post),
        claimed_until=to_micros(at + timedelta(seconds=claim_seconds)),
        now=to_micros(at),
    )
    if not rows:
        return None
    yield from _overtake(row)
    return row


def _overtake(row: OutboxRow) -> Script[None]:
    """Note with the preview that the thread may have that a post follows it."""
    if row.post.kind == "edit":
        return
    where = {"platform": _platform(row.thread), "thread": row.thread}
    own = preview_key(turn_of_reply(row.id))
    yield from query("preview_overtake", **where, own=own, part=OVERTAKEN_PART)


def _posted(row: OutboxRow, part: int, message_id: str, mark: str, now: int) -> Script[bool]:
    platform = _platform(row.thread)
    if message_id:
        yield from query(
            "posted_insert",
            platform=platform,
            message_id=message_id,
            thread=row.thread,
            post=row.id,
            part=part,
            now=now,
        )
    yield from query(mark, id=row.id, part=part + 1)
    return bool((yield from query("outbox_more", thread=row.thread)))
