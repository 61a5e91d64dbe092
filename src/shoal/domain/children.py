"""Threads that the calls of other turns begin: their ids, their rows, and how they report back."""

import hashlib
from typing import Literal, Protocol

import msgspec

from shoal.domain.events import Outcome, TurnFinished, UserSaid
from shoal.domain.ids import CallId, ThreadId, TurnId, make_thread_id
from shoal.domain.messages import Author, Caller, Prompt, Receipt
from shoal.domain.permissions import Audience
from shoal.domain.records import Report

PLATFORM = "agent"
"""The platform of such threads. Nobody reads along there: what is for people goes to the root thread's channel."""
ENDED: dict[Outcome, str] = {
    "done": "has finished",
    "limit": "stopped at a limit",
    "failed": "failed",
    "aborted": "was stopped",
}
"""How a subagent's end is told."""


class Child(msgspec.Struct, frozen=True):
    """A child as its parent sees it. `finished` is the end of its first turn; None while it works, or never began."""

    thread: ThreadId
    works: bool
    finished: TurnFinished | None = None


class Purpose(msgspec.Struct, frozen=True):
    """For whom a turn works: the message's author, the untrusted content it has seen, the call of another turn that
    began it; where one speaks whose answer nobody reads (empty: in its own thread); and how far it sees."""

    author: Author
    tainted_by: str
    caller: Caller | None = None
    speaks_in: ThreadId = ThreadId("")
    audience: Audience = Audience()

    @property
    def person(self) -> Author:
        """Who asked for all of it: the author here, or at the root of the calls that led here."""
        return self.author if self.caller is None else self.caller.author


class Task(msgspec.Struct, frozen=True):
    """What a call wants done, by which agent (empty: its own) with which model (empty: that agent's)."""

    text: str
    agent: str = ""
    model: str = ""
    mode: Literal["wait", "tell", "wake"] = "wait"


class ChildStore(Protocol):
    """The threads that have a parent."""

    async def begin(self, prompt: Prompt, running_max: int) -> Receipt:
        """Open the thread that the prompt's caller begins, once: accepted, or duplicate.

        Busy when the parent has `running_max` at work, dropped when the calling turn is not open or is being stopped.
        """
        ...

    async def get(self, thread: ThreadId) -> Child | None:
        """One, or None while it was not begun."""
        ...

    async def working(self, parent: ThreadId) -> list[ThreadId]:
        """A thread's children that are at work or wait for it, oldest first."""
        ...


def child_thread(parent: ThreadId, turn: TurnId, call: CallId) -> ThreadId:
    """The id of the thread that a call begins; the same call always has the same one."""
    beginning = hashlib.sha256(parent.encode()).hexdigest()[:16]
    name = hashlib.sha256(f"{turn}\0{call}".encode()).hexdigest()[:26]
    return make_thread_id(PLATFORM, beginning, name)


def is_child(thread: ThreadId) -> bool:
    """Whether a thread was begun by a call, so that no person writes or reads there."""
    return thread.startswith(f"{PLATFORM}:")


def report_of(thread: ThreadId, agent: str, caller: Caller, finished: TurnFinished) -> Report:
    """What a child's end does to its parent: wake it where it waits, else leave a note or start a turn with it."""
    if caller.mode == "wait":
        return Report(caller.thread)
    said = f"{finished.reply}\n" if finished.reply else ""
    text = f"[The subagent {thread} {ENDED[finished.outcome]}.]\n{said}".rstrip()
    trusted = caller.author.trusted and not finished.tainted_by
    if caller.mode == "tell":
        author = Author(f"{PLATFORM}:{agent}", agent, is_bot=True, trusted=trusted)
        note = UserSaid(text, author, message_id=thread, origin="system", tainted_by=finished.tainted_by)
        return Report(caller.thread, note)
    author = msgspec.structs.replace(caller.author, name=agent, trusted=trusted)
    note = UserSaid(text, author, message_id=thread, origin="agent", tainted_by=finished.tainted_by)
    return Report(caller.thread, note, starts_turn=True)
