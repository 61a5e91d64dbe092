"""What a worker holds in memory of a thread while it advances it: the lease, the transcript and the open turn's state.

Writes are shielded: an abort takes effect before or after one, never between the journal and what memory knows of it.
After one it takes effect at once, so that nothing begins in a turn whose stop was accepted while it was written.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

import anyio
import anyio.lowlevel
import msgspec

from shoal.domain.agents import AgentSpec
from shoal.domain.children import Purpose, is_child, report_of
from shoal.domain.events import (
    AssistantSaid,
    Cleared,
    Compacted,
    Event,
    EventData,
    LiveData,
    RetryScheduled,
    Steered,
    ToolFinished,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.domain.files import STILL_FOLDERS, Folders, relocated
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.messages import Caller, Prompt, ToolSpec
from shoal.domain.outage import outage_over, outage_post
from shoal.domain.permissions import Asker, Audience
from shoal.domain.ports import LiveHub
from shoal.domain.records import Commit, Committed, Lease, NewPost, Spend, Step
from shoal.domain.store import Journal
from shoal.domain.transcript import Transcript
from shoal.domain.turnstate import TurnState
from shoal.permissions.taint import Source, TaintState, source_of
from shoal.turn.budget import Tally
from shoal.turn.sections import SystemPrompt
from shoal.turn.tokens import ESTIMATES, Meter

MESSAGE_BYTES = 1000
"""What a message takes in memory besides its text."""
TOKEN_BYTES = 8
"""What a token of text takes: its four bytes as they are, and once more as they are sent."""
LOADED_AT_ONCE_MAX = 500
"""Events read at a time when a conversation is read from the journal."""


class Projector(Protocol):
    """Takes the events of a finished turn for the thread's readable files."""

    async def project(self, thread: ThreadId, events: list[Event]) -> None:
        """Write them down; a failure is the projector's own affair, the journal has the truth."""
        ...


Finishing = Callable[[float], Awaitable[Committed]]
"""A transaction that enqueues posts and claims them for so many seconds, or for 0 does not."""


class Courier(Protocol):
    """Carries what a thread posts."""

    async def enqueue(self, thread: ThreadId, posts: Sequence[NewPost], finishing: Finishing) -> Committed:
        """Run the transaction that enqueues these, with the claim that this process can honour, and see to it that
        they are posted."""
        ...


class Session:
    """One active thread. Everything in it can be dropped and read again from the journal.

    `steered` and `aborting` are set by signals from outside the turn's task, and by what a commit met; `scope` is what
    an abort cancels: the turn's work. A write that ends in a cancelled turn does not return. `streamed` is the text of
    the model call under way, so that an abort can keep it; `calls_made` tells live watchers one model call from the
    next; `base` and `told` are the digests of the window's prompts (turn/sections.py); `tally` has the running sums for
    the budget.
    """

    __slots__ = (
        "_asked_by",
        "_courier",
        "_folders",
        "_taint",
        "_turn_taint",
        "_window_seq",
        "aborting",
        "agent",
        "asker",
        "audience",
        "base",
        "caller",
        "calls_made",
        "compacted_in",
        "hub",
        "journal",
        "lease",
        "next_prompt",
        "overflowed",
        "request_units",
        "scope",
        "speaks_in",
        "squeezed_to",
        "state",
        "steered",
        "streamed",
        "system",
        "tally",
        "told",
        "tools",
        "transcript",
        "unprojected",
    )

    def __init__(
        self,
        journal: Journal,
        hub: LiveHub,
        courier: Courier,
        lease: Lease,
        folders: Folders = STILL_FOLDERS,
        meter: Meter = ESTIMATES,
    ) -> None:
        self._courier = courier
        self._folders = folders
        self.journal = journal
        self.hub = hub
        self.lease = lease
        self.transcript = Transcript()
        self._window_seq = lease.window_seq
        self.state: TurnState | None = None
        self.agent: AgentSpec | None = None
        self.asker = Asker(trust="untrusted")
        self.audience = Audience()
        self.caller: Caller | None = None
        self.speaks_in = ThreadId("")
        self.system: SystemPrompt | None = None
        self.tools: tuple[ToolSpec, ...] | None = None
        self.base = self.told = ""
        self._taint = self._turn_taint = TaintState()
        self._asked_by = ""
        self.unprojected: list[Event] = []
        self.streamed: list[str] = []
        self.calls_made = 0
        self.steered = lease.steers
        self.aborting = lease.aborting
        self.scope: anyio.CancelScope | None = None
        self.overflowed = False
        self.squeezed_to = 0
        self.compacted_in = TurnId("")
        self.request_units = 0
        self.tally = Tally(meter)
        self.next_prompt: Prompt | None = lease.prompt

    @property
    def thread(self) -> ThreadId:
        """The thread's id."""
        return self.lease.thread

    @property
    def turn(self) -> TurnId:
        """The open turn's id."""
        return self.open.turn

    @property
    def open(self) -> TurnState:
        """The open turn's state."""
        assert self.state is not None, "no turn is open"
        return self.state

    @property
    def who(self) -> AgentSpec:
        """The agent that answers."""
        assert self.agent is not None, "no agent is set"
        return self.agent

    @property
    def chat(self) -> ThreadId:
        """Where people read along: the thread itself, or the one at the root of a child's."""
        return self.caller.root if self.caller is not None else self.thread

    @property
    def line(self) -> tuple[tuple[ThreadId, TurnId], ...]:
        """The turns above one that others called, the root first."""
        return self.caller.line if self.caller is not None else ()

    @property
    def taint(self) -> TaintState:
        """What untrusted content may steer the model. An open turn that met any stays tainted until it ends, whatever
        leaves the window meanwhile."""
        return self._taint if self._taint.active else self._turn_taint

    @property
    def held_bytes(self) -> int:
        """About what the conversation takes in memory."""
        return TOKEN_BYTES * self.tally.units() + MESSAGE_BYTES * len(self.transcript.entries)

    @property
    def tainted_by(self) -> str:
        """The untrusted content that may steer the model now; empty when there is none."""
        return self.taint.shown if self.taint.active else ""

    @property
    def purpose(self) -> Purpose:
        """For whom the open turn works."""
        return Purpose(self.open.author, self.tainted_by, self.caller, self.speaks_in, self.audience)

    def show(self, data: LiveData) -> None:
        """Show watchers what the open turn does."""
        self.hub.show(self.thread, self.turn, data)

    def renew(self, lease: Lease) -> None:
        """Go on under a newer lease."""
        self.lease = lease
        self.steered, self.aborting = lease.steers, lease.aborting
        self.next_prompt = lease.prompt

    def abort(self) -> None:
        """A person stopped the open turn: end its work, at whatever await it stands."""
        self.aborting = True
        if self.scope is not None:
            self.scope.cancel()

    async def start(self, prompt: Prompt, commit: Commit) -> None:
        """Open a turn in the journal with its first events. Raises StaleEpoch."""
        with anyio.CancelScope(shield=True):
            committed = await self.journal.open_turn(self.lease, prompt, commit)
            self.lease = msgspec.structs.replace(self.lease, open_turn=commit.turn)
            self.state = TurnState(commit.turn)
            await self._absorb(committed)

    async def finish(self, commit: Commit) -> None:
        """Close the turn, unless a steer, follow-up or stop came in between: then the turn's state says so."""
        if self.open.origin != "person":  # the key of a trigger's prompt begins with its id
            commit = msgspec.structs.replace(commit, trigger=self.open.message_id.rpartition("@")[0])
        commit = self._reported(commit)

        async def finishing(claim_seconds: float) -> Committed:
            return await self.journal.finish_turn(
                self.lease, msgspec.structs.replace(commit, claim_seconds=claim_seconds)
            )

        with anyio.CancelScope(shield=True):
            committed = await self._courier.enqueue(self.chat, commit.posts, finishing)
            self.next_prompt = committed.prompt
            self.steered = False
            self.streamed.clear()
            await self._absorb(committed)
            self.hub.publish(committed.told)
        if self.open.finished is None:
            await anyio.lowlevel.checkpoint_if_cancelled()

    def _reported(self, commit: Commit) -> Commit:
        """The end of a child's turn, with what it does to its parent."""
        if self.caller is None:
            return commit
        ended = next(data for data in commit.events if isinstance(data, TurnFinished))
        finished = msgspec.structs.replace(ended, tainted_by=self.tainted_by)
        events = tuple(finished if data is ended else data for data in commit.events)
        report = report_of(self.thread, self.open.agent, self.caller, finished)
        return msgspec.structs.replace(commit, events=events, report=report)

    def answer(self, text: str) -> tuple[NewPost, ...]:
        """The post of the turn's answer, which says where a fallback model gave it; none where nobody reads along."""
        if not text or is_child(self.thread):
            return ()
        said = f"{text}\n\n_{self.open.instead}_" if self.open.instead else text
        return (NewPost(f"{self.turn}:reply", self.thread, said, reply_to=self.open.message_id),)

    def outage_begins(self, retry: RetryScheduled, until: datetime) -> tuple[NewPost, ...]:
        """The post that says, once an outage, what the open turn waits for; for a child it is its root's chat."""
        if self.open.retry is not None:
            return ()
        return (outage_post(self.chat, self.turn, self.open.outages + 1, retry, until),)

    def outage_ends(self, text: str) -> tuple[NewPost, ...]:
        """The change of that post once the wait is over; none when the turn does not wait."""
        return (outage_over(self.chat, self.turn, self.open.outages, text),) if self.open.retry is not None else ()

    async def take_steers(self) -> None:
        """Journal the messages that wait for this turn."""
        with anyio.CancelScope(shield=True):
            self.steered = False
            await self._absorb(await self.journal.take_steers(self.lease, self.turn))
        await anyio.lowlevel.checkpoint_if_cancelled()

    async def backfill(self, missed: Sequence[Prompt]) -> None:
        """Journal messages that were missed, those that are not known yet. Raises StaleEpoch."""
        with anyio.CancelScope(shield=True):
            await self._absorb(await self.journal.backfill(self.lease, missed))

    async def note(self, *events: EventData) -> None:
        """Journal something outside of any turn."""
        with anyio.CancelScope(shield=True):
            await self._absorb(Committed(await self.journal.append(self.thread, events)))

    def close_turn(self) -> None:
        """The turn has finished and is written down."""
        self.lease = msgspec.structs.replace(self.lease, open_turn=TurnId(""))
        self.state = None
        self._turn_taint = TaintState()
        self._asked_by = ""
        self.aborting = False

    async def load(self) -> None:
        """Read what the journal has and the transcript lacks: all of the window at first, later only what is new.

        The readable files have what came before the open turn, or the projector reads it.
        """
        lease = self.lease
        after = self.transcript.last_seq or self._window_seq
        if lease.open_turn and self.state is None:
            after = min(after, lease.turn_seq - 1)
        first = lease.turn_seq if lease.open_turn else lease.last_seq + 1
        while after < lease.last_seq:
            events = await self._read(after, LOADED_AT_ONCE_MAX)
            if not events:
                return
            self.take(events, fresh=False)
            self.unprojected = [event for event in self.unprojected if event.seq >= first]
            after = events[-1].seq

    async def catch_up(self) -> None:
        """Take in what others have journaled meanwhile."""
        self.take(await self._read(self.transcript.last_seq), fresh=False)

    def take(self, events: list[Event] | tuple[Event, ...], *, fresh: bool = True) -> None:
        """Take journaled events into memory; `fresh` ones are shown to watchers too."""
        if self.lease.open_turn and (self.state is None or self.state.turn != self.lease.open_turn):
            self.state = TurnState(self.lease.open_turn)
        for event in events:
            if event.seq > max(self.transcript.last_seq, self._window_seq):
                self.transcript.add(event)
                self._taint = self._taint.after(event)
            if self.state is not None:
                self.state.apply(event)
                self._taint_turn(self.state.turn, event)
            self._note_prompts(event)
        self.unprojected.extend(events)
        if fresh:
            self.hub.publish(events)

    def _taint_turn(self, turn: TurnId, event: Event) -> None:
        written_under = event.data.tainted_by if isinstance(event.data, AssistantSaid) else ""
        name = source_of(event) or written_under
        if event.turn == turn and isinstance(event.data, UserSaid | Steered) and not event.data.author.trusted:
            self._asked_by = name
        if event.turn == turn and name and not self._turn_taint.active:
            self._turn_taint = TaintState((Source(event.seq, name),), active=True)

    async def _read(self, after: int, limit: int = 10_000, *, before: int = 0) -> list[Event]:
        """Events of the journal, with the paths of this machine."""
        events = await self.journal.events(self.thread, after, limit, before=before)
        here = partial(self._folders.here, self.thread)
        moved = [relocated(event.data, here) for event in events]
        return [
            event if event.data is data else msgspec.structs.replace(event, data=data)
            for event, data in zip(events, moved, strict=True)
        ]

    def _note_prompts(self, event: Event) -> None:
        if isinstance(event.data, TurnStarted):
            self.base, self.told = event.data.system, event.data.told
        elif isinstance(event.data, Cleared | Compacted):
            self.base = self.told = ""

    async def commit(self, *events: EventData, spend: Spend | None = None, steps: tuple[Step, ...] = ()) -> None:
        """Make events of the open turn durable. Raises StaleEpoch."""
        await self.write(Commit(self.turn, events, spend=spend, steps=steps))

    async def write(self, commit: Commit) -> None:
        """Make events of the open turn durable, with all that belongs to them. Raises StaleEpoch.

        A result says which stranger it was for, so that it does without the message that asked for it.
        """
        commit = msgspec.structs.replace(commit, events=tuple(map(self._owned, commit.events)))
        with anyio.CancelScope(shield=True):
            await self._absorb(await self.journal.commit(self.lease, commit))
        await anyio.lowlevel.checkpoint_if_cancelled()

    def _owned(self, data: EventData) -> EventData:
        if not isinstance(data, ToolFinished) or data.tainted_by or not self._asked_by:
            return data
        return msgspec.structs.replace(data, tainted_by=self._asked_by)

    async def _absorb(self, committed: Committed) -> None:
        events = committed.events
        if events and events[0].seq > self.transcript.last_seq + 1:
            self.take(await self._read(self.transcript.last_seq, before=events[0].seq), fresh=False)
        self.take(events)
        if committed.aborting:
            self.abort()
