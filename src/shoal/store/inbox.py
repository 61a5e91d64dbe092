"""The mailbox of each thread, and the child threads of subagents.

A message stays in the mailbox until a turn accepts it.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from shoal.kernel.agents import Child
from shoal.kernel.events import Event, Revised, TurnFinished, decode_data
from shoal.kernel.ids import ThreadId, TurnId, platform_of
from shoal.kernel.messages import (
    UNTOLD,
    Abort,
    Deletion,
    Edit,
    FollowUp,
    Prompt,
    Receipt,
    Steer,
    Waiting,
    joined,
    turns_of,
)
from shoal.kernel.records import Backlog, Report, Revision
from shoal.store.appends import append_outside, title_of
from shoal.store.driver import (
    Batch,
    Query,
    Row,
    Script,
    StorePart,
    Value,
    asked,
    dump,
    moment,
    number,
    query,
    reads,
    text,
    writes_at,
)
from shoal.store.outcomes import drop_accepted

_inbound = msgspec.json.Decoder(Prompt | Steer | FollowUp)


def inbound(value: Value) -> Prompt | Steer | FollowUp:
    return _inbound.decode(text(value))


def prompt_of(value: Value) -> Prompt:
    """Decode a mailbox payload as a prompt. A steer becomes a prompt of its own if its turn has failed."""
    message = inbound(value)
    if isinstance(message, Prompt):
        return message
    return Prompt(message.thread, message.key, message.text, message.author, message.at)


QUEUE_READ_MAX = 256
"""Maximum number of queued messages that are read at once."""


def waiting_of(rows: Sequence[Row]) -> Waiting | None:
    """Return the prompts that the next turn answers, or None if `rows` is empty.

    `rows` contains the payload and time of each waiting prompt, oldest first.
    """
    if not rows:
        return None
    prompts = [prompt_of(row[0]) for row in rows]
    if len(prompts) == 1:
        return Waiting(prompts[0], (prompts[0],), number(rows[0][1]), number(rows[0][1]))
    first, *others = turns_of(prompts)
    lines, since, until = (
        tuple(prompts[number_of_row] for number_of_row in first),
        number(rows[first[0]][1]),
        number(rows[first[-1]][1]),
    )
    return Waiting(joined(lines), lines, since, until, is_all=not others)


def accept_prompt(prompt: Prompt, prompts_max: int, at: datetime) -> Script[Receipt]:
    thread = prompt.thread
    yield from query("thread_ensure", thread=thread, agent=prompt.answered_by, title=title_of(prompt.text), now=at)
    rows, waiting = yield Batch((_insertion(prompt, "prompt", at), Query("inbox_count", {"thread": thread})))
    if not rows:
        return Receipt("duplicate", prompt.message_id)
    if (count := number(waiting[0][0])) > prompts_max:
        queue = yield from query("inbox_queue", thread=thread, limit=count)
        if len(turns_of([prompt_of(row[0]) for row in queue])) > prompts_max:
            yield from query("inbox_delete", id=rows[0][0])
            return Receipt("busy", prompt.message_id)
    yield from query("wake", thread=thread)
    return Receipt("accepted", prompt.message_id)


class Inbox(StorePart):
    """Messages that no turn has accepted yet."""

    @writes_at
    def accept(self, at: datetime, prompt: Prompt, prompts_max: int) -> Script[Receipt]:
        """Store a prompt once per platform and key, and wake its thread in the same transaction.

        Return accepted, duplicate, or busy if `prompts_max` turns are already waiting.
        """
        return accept_prompt(prompt, prompts_max, at)

    @writes_at
    def accept_now(self, at: datetime, message: Steer | FollowUp) -> Script[Receipt]:
        """Store a message for the running turn. Return delivered, duplicate, or dropped if no turn is open."""
        thread, platform = message.thread, platform_of(message.thread)
        found = yield from query("thread_lock_turn", thread=thread)
        if (yield from query("inbox_known", platform=platform, key=message.key)):
            return Receipt("duplicate")
        turn = text(found[0][0]) if found else ""
        if not turn:
            return Receipt("dropped")
        (rows,) = yield Batch((_insertion(message, "steer" if isinstance(message, Steer) else "follow_up", at),))
        if not rows:
            return Receipt("duplicate")
        yield from query("wake", thread=thread)
        return Receipt("delivered", turn=turn)

    @writes_at
    def abort(self, at: datetime, message: Abort) -> Script[Receipt]:
        """Mark the open turn as aborted. With `all_queued`, also drop all waiting prompts.

        Without `all_queued` and without an open turn, drop this person's messages that the next turn would answer.
        Return delivered, or dropped if nothing was stopped. If a turn was open, the receipt contains its id.
        """
        locked = yield from query("thread_lock_turn", thread=message.thread)
        if message.turn and (not locked or locked[0][0] != message.turn):
            return Receipt("dropped")
        rows = yield from query("thread_abort", thread=message.thread)
        begins_nothing = False
        if message.all_queued:
            dropped = yield from query("inbox_drop_prompts", thread=message.thread)
            begins_nothing = bool(dropped)
            yield from drop_accepted([prompt_of(row[0]) for row in dropped], "not_run", at)
            yield from query("wake_parent", thread=message.thread)
        elif not rows:
            begins_nothing = yield from _drop_next(message)
        if not rows:
            return Receipt("delivered" if begins_nothing else "dropped")
        yield from query("wake", thread=message.thread)
        return Receipt("delivered", turn=text(rows[0][0]))

    @writes_at
    def revise(self, at: datetime, message: Edit | Deletion) -> Script[Revision]:
        """Change or delete a message that was received earlier. Return one of these results:

        - accepted: the message was waiting, and is changed in the mailbox.
        - delivered: a turn has already accepted the message, so the change is journaled.
        - dropped: the message is unknown or has another author. The author UNTOLD may delete any message.
        - duplicate: the change has no effect.
        """
        platform = platform_of(message.thread)
        rows = yield from query("inbox_one", platform=platform, key=message.key)
        if not rows:
            return Revision(Receipt("dropped"))
        yield from query("thread_lock", thread=rows[0][3])
        rows = yield from query("inbox_one", platform=platform, key=message.key)
        if not rows:  # retention deleted it in the meantime
            return Revision(Receipt("dropped"))
        row, state, payload, thread = rows[0]
        said = inbound(payload)
        deleted = isinstance(message, Deletion)
        is_own = said.author.id == message.author.id or (deleted and message.author.id == UNTOLD.id)
        if not is_own or state == "dropped":
            return Revision(Receipt("dropped"))
        passed_on = not deleted and (message.tainted_by or (isinstance(said, Prompt) and said.tainted_by))
        # tainted text may quote other people
        trusted = said.author.trusted and message.author.trusted and not passed_on
        author = msgspec.structs.replace(said.author, trusted=trusted)
        changed = said if deleted else msgspec.structs.replace(said, text=message.text, author=author)
        if isinstance(message, Edit) and isinstance(said, Prompt) and isinstance(changed, Prompt):
            if message.at is not None and said.edited_at is not None and message.at < said.edited_at:
                return Revision(Receipt("duplicate"))  # an older edit that arrived late
            at_last = message.at or said.edited_at  # an edit counts even if it does not change the text
            changed = msgspec.structs.replace(said if changed.text == said.text else changed, edited_at=at_last)
        if deleted or changed != said:
            kept_as = "dropped" if deleted else text(state)
            yield from query("inbox_replace", id=row, payload=dump(changed), state=kept_as)
        if not deleted and changed.text == said.text:
            return Revision(Receipt("duplicate"))
        if state == "pending":
            return Revision(Receipt("accepted", message.message_id))
        change = Revised(author, message.message_id, "" if deleted else changed.text, deleted)
        events = yield from append_outside(ThreadId(text(thread)), TurnId(""), (change,), at)
        return Revision(Receipt("delivered", message.message_id), events)

    async def waiting(self) -> list[ThreadId]:
        """Return the threads that have an open turn or a queued prompt. They must be woken at startup."""
        return [ThreadId(text(row[0])) for row in await self._read("inbox_waiting")]

    @reads
    def queued(self, thread: ThreadId) -> Script[list[Prompt]]:
        """Return a thread's waiting messages as prompts, oldest first, at most QUEUE_READ_MAX."""
        rows = yield from query("inbox_pending", thread=thread, limit=QUEUE_READ_MAX)
        return [prompt_of(row[0]) for row in rows]

    @writes_at
    def drop(self, at: datetime, thread: ThreadId, keys: Sequence[str]) -> Script[tuple[Event, ...]]:
        """Drop waiting messages because their author no longer has access. Return the journaled events."""
        yield from query("thread_lock", thread=thread)
        rows: list[Row] = []
        for key in keys:
            rows += yield from query("inbox_drop_one", platform=platform_of(thread), key=key)
        return (yield from drop_accepted([prompt_of(row[0]) for row in rows], "no_access", at))

    @reads
    def backlog(self) -> Script[Backlog]:
        ((prompts, oldest),) = yield from query("inbox_backlog")
        ((turns,),) = yield from query("turns_open")
        return Backlog(number(prompts), moment(oldest), number(turns))


def _drop_next(stop: Abort) -> Script[bool]:
    rows = yield from query("inbox_queue", thread=stop.thread, limit=QUEUE_READ_MAX)
    prompts = [prompt for prompt in (prompt_of(row[0]) for row in rows) if prompt.origin == "person"]
    own = [turn for turn in turns_of(prompts) if prompts[turn[0]].author.id == stop.author.id][:1]
    keys = [prompts[number].key for turn in own for number in turn]
    for key in keys:
        yield from query("inbox_drop_one", platform=platform_of(stop.thread), key=key)
    return bool(keys)


class ChildStore(StorePart):
    """Threads that have a parent.

    Always lock a child before its parent. Otherwise the start and the end of a child can deadlock.
    """

    @writes_at
    def begin(self, at: datetime, prompt: Prompt, running_max: int) -> Script[Receipt]:
        """Open a child thread with its first prompt, once. Return accepted or duplicate.

        Return busy if the parent already has `running_max` active children, and dropped if the calling turn has
        ended or is being stopped.
        """
        thread, caller = prompt.thread, prompt.caller
        assert caller is not None, "only calls start children"
        yield from query("thread_lock", thread=thread)
        callers = yield from query("child_caller", thread=caller.thread)
        if (yield from query("inbox_known", platform=platform_of(thread), key=prompt.key)):
            return Receipt("duplicate")
        if not callers or callers[0][0] != caller.turn or callers[0][1] == caller.turn:
            return Receipt("dropped")
        if len((yield from query("children_working", parent=caller.thread))) >= running_max:
            return Receipt("busy")
        title = title_of(prompt.text)
        yield from query("child_ensure", thread=thread, agent=prompt.agent, title=title, parent=caller.thread, now=at)
        yield from enqueue(prompt, at)
        return Receipt("accepted")

    async def get(self, thread: ThreadId) -> Child | None:
        rows = await self._read("child_one", thread=thread)
        if not rows:
            return None
        finished = decode_data("turn_finished", text(rows[0][1])) if rows[0][1] is not None else None
        return Child(thread, bool(rows[0][0]), finished if isinstance(finished, TurnFinished) else None)

    async def working(self, parent: ThreadId) -> list[ThreadId]:
        return [ThreadId(text(row[0])) for row in await self._read("children_working", parent=parent)]


def enqueue(prompt: Prompt, at: datetime) -> Script[None]:
    """Store a prompt once, even if the mailbox is full, and wake its thread."""
    yield Batch((_insertion(prompt, "prompt", at),))
    yield from query("wake", thread=prompt.thread)


def _insertion(message: Prompt | Steer | FollowUp, lane: str, at: datetime) -> Query:
    thread = message.thread
    row = {"platform": platform_of(thread), "key": message.key, "thread": thread, "lane": lane}
    return asked("inbox_insert", row | {"payload": dump(message), "now": at})


def report(wanted: Report, at: datetime) -> Script[tuple[Event, ...]]:
    """Update the parent in the transaction that ends its child. Return the journaled events.

    The transaction has already locked the parent. The parent's next lease therefore sees that the child has ended.
    """
    note = wanted.note
    if note is None:
        yield from query("wake", thread=wanted.thread)
        return ()
    if not wanted.starts_turn:
        return (yield from append_outside(wanted.thread, TurnId(""), (note,), at))
    key = f"child:{note.message_id}"
    prompt = Prompt(
        wanted.thread, key, note.text, note.author, at, message_id=key, origin=note.origin, tainted_by=note.tainted_by
    )
    yield from enqueue(prompt, at)
    return ()
