"""The mailbox's transactions: accept, steer, abort."""

from datetime import datetime

import msgspec

from shoal.domain.clock import Clock, to_micros
from shoal.domain.events import Revised
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.messages import Abort, Deletion, Edit, FollowUp, Prompt, Receipt, Steer
from shoal.domain.records import Backlog, Revision
from shoal.store.appends import append_outside, title_of
from shoal.store.rows import dump, inbound, moment
from shoal.store.script import Batch, Driver, Query, Script, number, query, text


class MailboxView:
    """Implements `domain.store.Inbox` over either dialect."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def accept(self, prompt: Prompt, prompts_max: int) -> Receipt:
        """Store a prompt once, waking the engine in the same transaction."""
        return await self._driver.write(accept_prompt(prompt, prompts_max, self._clock.now()))

    async def accept_now(self, message: Steer | FollowUp) -> Receipt:
        """Store it for the running turn, if there is one."""
        return await self._driver.write(_accept_now(message, self._clock.now()))

    async def abort(self, message: Abort) -> Receipt:
        """Mark the open turn as stopped."""
        return await self._driver.write(_abort(message))

    async def revise(self, message: Edit | Deletion) -> Revision:
        """Change or drop what still waits, else journal the change."""
        return await self._driver.write(_revise(message, self._clock.now()))

    async def waiting(self) -> list[ThreadId]:
        """Threads with an open turn or a queued prompt."""
        rows = await self._driver.read(query("inbox_waiting"))
        return [ThreadId(text(row[0])) for row in rows]

    async def backlog(self) -> Backlog:
        """How much waits in all mailboxes."""
        prompts, oldest = (await self._driver.read(query("inbox_backlog")))[0]
        turns = (await self._driver.read(query("turns_open")))[0][0]
        return Backlog(number(prompts), moment(oldest), number(turns))


def _platform(thread: ThreadId) -> str:
    return thread.split(":", 1)[0]


def accept_prompt(prompt: Prompt, prompts_max: int, at: datetime) -> Script[Receipt]:
    """Store a prompt once and wake its thread, unless `prompts_max` wait there already."""
    now, thread = to_micros(at), prompt.thread
    yield from query("thread_ensure", thread=thread, agent=prompt.agent, title=title_of(prompt.text), now=now)
    where = {"thread": thread}
    row = {"platform": _platform(thread), "key": prompt.key, "lane": "prompt", "payload": dump(prompt), "now": now}
    rows, waiting = yield Batch((Query("inbox_insert", where | row), Query("inbox_count", where)))
    if not rows:
        return Receipt("duplicate", prompt.message_id)
    if number(waiting[0][0]) > prompts_max:
        yield from query("inbox_delete", id=rows[0][0])
        return Receipt("busy", prompt.message_id)
    yield from query("wake", thread=thread)
    return Receipt("accepted", prompt.message_id)


def _accept_now(message: Steer | FollowUp, at: datetime) -> Script[Receipt]:
    now, thread, platform = to_micros(at), message.thread, _platform(message.thread)
    found = yield from query("thread_lock_turn", thread=thread)
    if (yield from query("inbox_known", platform=platform, key=message.key)):
        return Receipt("duplicate")
    turn = text(found[0][0]) if found else ""
    if not turn:
        return Receipt("dropped")
    lane = "steer" if isinstance(message, Steer) else "follow_up"
    rows = yield from query(
        "inbox_insert", platform=platform, key=message.key, thread=thread, lane=lane, payload=dump(message), now=now
    )
    if not rows:
        return Receipt("duplicate")
    yield from query("wake", thread=thread)
    return Receipt("delivered", turn=turn)


def _abort(message: Abort) -> Script[Receipt]:
    locked = yield from query("thread_lock_turn", thread=message.thread)
    if message.turn and (not locked or locked[0][0] != message.turn):
        return Receipt("dropped")
    found = yield from query("thread_abort", thread=message.thread)
    if message.all_queued:
        yield from query("inbox_drop_prompts", thread=message.thread)
        yield from query("wake_parent", thread=message.thread)
    if not found:
        return Receipt("dropped")
    yield from query("wake", thread=message.thread)
    return Receipt("delivered", turn=text(found[0][0]))


def _revise(message: Edit | Deletion, at: datetime) -> Script[Revision]:
    rows = yield from query("inbox_one", platform=_platform(message.thread), key=message.key)
    if not rows:
        return Revision(Receipt("dropped"))
    yield from query("thread_lock", thread=rows[0][3])
    rows = yield from query("inbox_one", platform=_platform(message.thread), key=message.key)
    if not rows:  # it was old, and has just been forgotten
        return Revision(Receipt("dropped"))
    row, state, payload, thread = rows[0]
    said = inbound(payload)
    if said.author.id != message.author.id or state == "dropped":
        return Revision(Receipt("dropped"))
    deleted = isinstance(message, Deletion)
    passed_on = not deleted and (message.tainted_by or (isinstance(said, Prompt) and said.tainted_by))
    trusted = said.author.trusted and message.author.trusted and not passed_on  # others' words, in anybody's mouth
    author = msgspec.structs.replace(said.author, trusted=trusted)
    changed = said if deleted else msgspec.structs.replace(said, text=message.text, author=author)
    if not deleted and changed.text == said.text:
        return Revision(Receipt("duplicate"))
    left: str = "dropped" if deleted else text(state)
    yield from query("inbox_replace", id=row, payload=dump(changed), state=left)
    if state == "pending":
        return Revision(Receipt("accepted", message.message_id))
    told = Revised(author, message.message_id, "" if deleted else changed.text, deleted)
    events = yield from append_outside(ThreadId(text(thread)), TurnId(""), (told,), at)
    return Revision(Receipt("delivered", message.message_id), events)
