"""The rows of threads that the calls of other turns begin.

Whatever locks a child and its parent locks the child first, so that beginning and ending cannot deadlock.
"""

from datetime import datetime

from shoal.domain.children import Child
from shoal.domain.clock import Clock, to_micros
from shoal.domain.events import Event, TurnFinished, decode_data
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.messages import Prompt, Receipt
from shoal.domain.records import Report
from shoal.store.appends import append_outside
from shoal.store.rows import dump
from shoal.store.script import Driver, Script, query, text

TITLE_CHARS_MAX = 80


class ChildrenView:
    """Implements `domain.children.ChildStore` over either dialect."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def begin(self, prompt: Prompt, running_max: int) -> Receipt:
        """Open the thread that the prompt's caller begins, once."""
        return await self._driver.write(_begin(prompt, running_max, to_micros(self._clock.now())))

    async def get(self, thread: ThreadId) -> Child | None:
        """One, or None."""
        rows = await self._driver.read(query("child_one", thread=thread))
        if not rows:
            return None
        finished = decode_data("turn_finished", text(rows[0][1])) if rows[0][1] is not None else None
        return Child(thread, bool(rows[0][0]), finished if isinstance(finished, TurnFinished) else None)

    async def working(self, parent: ThreadId) -> list[ThreadId]:
        """A thread's children that are at work."""
        return [ThreadId(text(row[0])) for row in await self._driver.read(query("children_working", parent=parent))]


def _begin(prompt: Prompt, running_max: int, now: int) -> Script[Receipt]:
    thread, caller = prompt.thread, prompt.caller
    assert caller is not None, "only calls begin children"
    yield from query("thread_lock", thread=thread)
    found = yield from query("child_caller", thread=caller.thread)
    if (yield from query("inbox_known", platform=thread.split(":", 1)[0], key=prompt.key)):
        return Receipt("duplicate")
    if not found or found[0][0] != caller.turn or found[0][1] == caller.turn:
        return Receipt("dropped")
    if len((yield from query("children_working", parent=caller.thread))) >= running_max:
        return Receipt("busy")
    title = " ".join(prompt.text[: TITLE_CHARS_MAX * 4].replace("\0", "").split())[:TITLE_CHARS_MAX]
    yield from query("child_ensure", thread=thread, agent=prompt.agent, title=title, parent=caller.thread, now=now)
    yield from _enqueue(prompt, now)
    return Receipt("accepted")


def _enqueue(prompt: Prompt, now: int) -> Script[None]:
    """Put a prompt into its mailbox, full or not; again is nothing."""
    yield from query(
        "inbox_insert",
        platform=prompt.thread.split(":", 1)[0],
        key=prompt.key,
        thread=prompt.thread,
        lane="prompt",
        payload=dump(prompt),
        now=now,
    )
    yield from query("wake", thread=prompt.thread)


def report(wanted: Report, at: datetime) -> Script[tuple[Event, ...]]:
    """Do to the parent what its child's end asks for, in the transaction of that end; returns what was journaled.

    That transaction has locked the parent, so that the parent's next lease sees the end.
    """
    note, now = wanted.note, to_micros(at)
    if note is None:
        yield from query("wake", thread=wanted.thread)
        return ()
    if not wanted.starts_turn:
        return (yield from append_outside(wanted.thread, TurnId(""), (note,), at))
    key = f"child:{note.message_id}"
    prompt = Prompt(
        wanted.thread, key, note.text, note.author, at, message_id=key, origin=note.origin, tainted_by=note.tainted_by
    )
    yield from _enqueue(prompt, now)
    return ()
