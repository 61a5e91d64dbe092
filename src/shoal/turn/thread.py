"""A worker's copy of a thread that it advances: the lease, the transcript and the state of the open turn.

The copy can be dropped and read again from the journal at any time. Writes are shielded from cancellation, so it
always matches the journal. An abort during a write takes effect immediately after the write, so nothing starts in a
stopped turn.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import count

import anyio
import anyio.lowlevel
import msgspec

from shoal.kernel.agents import report_of
from shoal.kernel.effect_notes import DROPPED, dropped_text
from shoal.kernel.events import (
    AssistantSaid,
    Cleared,
    Compacted,
    Event,
    EventData,
    Failed,
    LiveData,
    Outcome,
    RetryScheduled,
    Steered,
    ToolFinished,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.files import STILL_FOLDERS, Folders, relocated
from shoal.kernel.ids import OWN_PLATFORMS, ThreadId, TurnId, is_child, thread_address
from shoal.kernel.messages import (
    Caller,
    Prompt,
    Waiting,
)
from shoal.kernel.ports import LiveHub
from shoal.kernel.posts import reply_key, spoken_id
from shoal.kernel.records import Commit, Committed, Lease, NewPost, Spend, Step
from shoal.kernel.speech import SpokenReply
from shoal.kernel.traits import TraitsByName
from shoal.kernel.transcript import Transcript
from shoal.kernel.turnstate import LEFT_OUT, TurnState
from shoal.markdown.dialects import escaped_markdown
from shoal.permissions.addresses import NO_ADDRESSES
from shoal.permissions.taint import Source, TaintState, source_of
from shoal.store.journal import Journal
from shoal.text.shown import strip_controls
from shoal.tools.checkpoints import Checkpoints
from shoal.turn.digests import RequestDigests
from shoal.turn.fitting import Tally
from shoal.turn.links import GrowingLinks, Knows, known_from, with_known_links
from shoal.turn.outage import outage_over, outage_post
from shoal.turn.tokens import ESTIMATES, Meter

MESSAGE_BYTES = 1000
"""Estimated memory for each message, not including its text."""
TOKEN_BYTES = 8
"""Estimated memory for each token: four bytes for the text, and four bytes for its encoded copy in the request."""
LOADED_AT_ONCE_MAX = 500

TRY_AGAIN = "To get a new answer to your message, write `/retry`."
WHY_DROPPED: dict[Outcome, str] = {
    "aborted": "The turn was stopped before you were asked",
    "failed": "The turn failed before you were asked",
}

Finishing = Callable[[float], Awaitable[Committed]]
"""Transaction that enqueues posts. Its argument is the number of seconds for which it claims them, or 0 to claim none.
"""
Enqueue = Callable[[ThreadId, Sequence[NewPost], Finishing], Awaitable[Committed]]
"""Function that enqueues a thread's posts in the given transaction and ensures that they are delivered.

If this process can deliver the posts, the transaction claims them.
"""


def chat_of(thread: ThreadId, caller: Caller | None) -> ThreadId:
    """Return the thread that people read: a subagent's root thread, or the thread itself."""
    return caller.root if caller is not None else thread


class ThreadView:
    """A thread whose turns run in this process. A write in a cancelled turn raises instead of returning.

    - `steered`, `aborting`: set by commits, and by signals from outside the turn's task.
    - `unprojected`: events that are missing from the thread's readable files.
    - `base`, `announced`: digests of the window's prompts (see turn/prompt.py).
    - `notes`: notes that the thread has already received.
    - `tally`: counts the transcript's tokens.
    - `call_numbers`: distinguish model calls for watchers.
    """

    def __init__(
        self,
        journal: Journal,
        hub: LiveHub,
        enqueue: Enqueue,
        lease: Lease,
        traits: TraitsByName,
        folders: Folders = STILL_FOLDERS,
        meter: Meter = ESTIMATES,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.thread = lease.thread
        self.journal = journal
        self._hub = hub
        self._enqueue = enqueue
        self._traits = traits
        self._folders = folders
        self._checkpoints = checkpoints
        self.transcript = Transcript()
        self.tally = Tally(meter)
        self.digests = RequestDigests()
        self.state: TurnState | None = None
        self.base = self.announced = ""
        self.notes: set[str] = set()
        self._window_seq = lease.window_seq
        self._taint = self._turn_taint = TaintState()
        self.given = NO_ADDRESSES
        self._asked_by = ""
        self.unprojected: list[Event] = []
        self.call_numbers = count(1)
        self._scope: anyio.CancelScope | None = None
        self.renew(lease)

    @property
    def open(self) -> TurnState:
        assert self.state is not None, "no turn is open"
        return self.state

    @property
    def turn(self) -> TurnId:
        return self.open.turn

    @property
    def chat(self) -> ThreadId:
        return chat_of(self.thread, self.open.caller)

    @property
    def taint(self) -> TaintState:
        """The taint of the model's input. A turn stays tainted until it ends, even if the content leaves the window."""
        return self._taint if self._taint.active else self._turn_taint

    @property
    def tainted_by(self) -> str:
        """The names of the untrusted sources that may influence the model now. Empty if there are none."""
        return self.taint.shown if self.taint.active else ""

    @property
    def held_bytes(self) -> int:
        return TOKEN_BYTES * self.tally.units() + MESSAGE_BYTES * len(self.transcript.entries)

    # ---- signals and watchers ----

    def abort(self) -> None:
        """Cancel the open turn at its current await."""
        self.aborting = True
        if self._scope is not None:
            self._scope.cancel()

    @contextmanager
    def working(self, deadline: float) -> Generator[None]:
        """Run the open turn's work in the block. An abort or the deadline cancels it."""
        with anyio.CancelScope(deadline=deadline) as scope:
            self._scope = scope
            try:
                yield
            finally:
                self._scope = None

    def show(self, data: LiveData) -> None:
        self._hub.show(self.thread, self.turn, data)

    # ---- reading the journal ----

    def renew(self, lease: Lease) -> None:
        self.lease = lease
        self.steered, self.aborting = lease.steers, lease.aborting
        self.waiting = lease.waiting

    async def load(self) -> None:
        """Read the events that the transcript lacks: the complete window at first, later only new events.

        Keeps only the open turn's events in `unprojected`. The readable files contain earlier events, or can be
        rebuilt.
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
            self._take(events)
            self.unprojected = [event for event in self.unprojected if event.seq >= first]
            after = events[-1].seq

    async def catch_up(self) -> None:
        self._take(await self._read(self.transcript.last_seq))

    async def _read(self, after: int, limit: int = 10_000, *, before: int = 0) -> list[Event]:
        """Read events of the current branch. Converts their file paths to this machine."""
        if after < self.lease.branch_seq:
            events = await self.journal.along(self.thread, self.lease.last_seq, after, limit, before=before)
        else:
            events = await self.journal.events(self.thread, after, limit, before=before)
        here = partial(self._folders.here, self.thread)
        moved = [relocated(event.data, here) for event in events]
        return [
            event if event.data is data else msgspec.structs.replace(event, data=data)
            for event, data in zip(events, moved, strict=True)
        ]

    def _take(self, events: Sequence[Event]) -> None:
        if self.lease.open_turn and (self.state is None or self.state.turn != self.lease.open_turn):
            self.state = TurnState(self.lease.open_turn)
        for event in events:
            data = event.data
            if event.seq > max(self.transcript.last_seq, self._window_seq):
                self.transcript.add(event)
                self._taint = self._taint.after(event)
                self.given = self.given.after(event)
            if self.state is not None:
                self.state.apply(event)
                if event.turn == self.state.turn:
                    tainted_by = source_of(event) or (data.tainted_by if isinstance(data, AssistantSaid) else "")
                    if isinstance(data, UserSaid | Steered) and not data.author.trusted:
                        self._asked_by = tainted_by
                    if tainted_by and not self._turn_taint.active:
                        self._turn_taint = TaintState((Source(event.seq, tainted_by),), active=True)
            if isinstance(data, AssistantSaid):
                self.digests.note(data)
            elif isinstance(data, Failed) and data.kind == LEFT_OUT:
                self.notes.add(data.message)
            elif isinstance(data, TurnStarted):
                self.base, self.announced = data.system, data.told
            elif isinstance(data, Cleared | Compacted):
                self.base = self.announced = ""
        self.unprojected.extend(events)

    async def new_notes(self, notes: Sequence[str]) -> list[str]:
        """Return the notes that this thread has never received, in any window or process."""
        if not self.notes.issuperset(notes):
            failures = await self.journal.failures(self.thread)
            self.notes.update(failed.message for failed in failures if failed.kind == LEFT_OUT)
        return [note for note in notes if note not in self.notes]

    # ---- writing the journal ----

    async def open_turn(self, waiting: Waiting, commit: Commit) -> None:
        """Journal the first events of a turn for the waiting messages. Raises StaleEpoch and QueueChanged."""
        with anyio.CancelScope(shield=True):
            first, *more = waiting.lines
            committed = await self.journal.open_turn(self.lease, first, commit, more)
            self.lease = msgspec.structs.replace(self.lease, open_turn=commit.turn)
            self.state = TurnState(commit.turn)
            await self._absorb(committed)

    async def commit(self, *events: EventData, spend: Spend | None = None, steps: tuple[Step, ...] = ()) -> None:
        """Make events of the open turn durable. Raises StaleEpoch."""
        await self.write(Commit(self.turn, events, spend=spend, steps=steps))

    async def write(self, commit: Commit) -> None:
        """Make a commit of the open turn durable. Raises StaleEpoch.

        After a message from an untrusted person, each tool result carries that person's taint, because the result may
        stay in the window longer than the message.
        """
        if self._asked_by:
            events = (
                msgspec.structs.replace(data, tainted_by=self._asked_by)
                if isinstance(data, ToolFinished) and not data.tainted_by
                else data
                for data in commit.events
            )
            commit = msgspec.structs.replace(commit, events=tuple(events))
        with anyio.CancelScope(shield=True):
            await self._absorb(await self.journal.commit(self.lease, commit))
        await anyio.lowlevel.checkpoint_if_cancelled()

    async def take_steers(self) -> None:
        with anyio.CancelScope(shield=True):
            self.steered = False
            await self._absorb(await self.journal.take_steers(self.lease, self.turn))
        await anyio.lowlevel.checkpoint_if_cancelled()

    async def finish(self, commit: Commit) -> None:
        """Close the turn, unless a steer, follow-up or stop arrived first. In that case, the turn stays open and its
        state includes the new event.

        The end of a subagent's turn also reports to its caller. If a turn was stopped or failed, its staged calls are
        dropped and the chat gets a notice.
        """
        state = self.open
        commit = self._with_dropped(commit)
        if state.origin != "person":  # A trigger's prompt key begins with the trigger's id.
            commit = msgspec.structs.replace(commit, trigger=state.message_id.rpartition("@")[0])
        if state.caller is not None:
            ended = next(data for data in commit.events if isinstance(data, TurnFinished))
            finished = msgspec.structs.replace(ended, tainted_by=self.tainted_by)
            events = tuple(finished if data is ended else data for data in commit.events)
            report = report_of(self.thread, state.agent, state.caller, finished)
            commit = msgspec.structs.replace(commit, events=events, report=report)

        async def finishing(claim_seconds: float) -> Committed:
            return await self.journal.finish_turn(
                self.lease, msgspec.structs.replace(commit, claim_seconds=claim_seconds)
            )

        with anyio.CancelScope(shield=True):
            if self._checkpoints is not None and state.checkpoint is not None:
                changed = await self._checkpoints.after(state.checkpoint)
                commit = msgspec.structs.replace(commit, events=(*commit.events[:-1], *changed, commit.events[-1]))
            committed = await self._enqueue(self.chat, commit.posts, finishing)
            self.waiting = committed.waiting
            self.steered = False
            await self._absorb(committed)
            self._hub.publish(committed.reported)
        if state.finished is None:
            await anyio.lowlevel.checkpoint_if_cancelled()

    def _with_dropped(self, commit: Commit) -> Commit:
        *events, finished = commit.events
        if not isinstance(finished, TurnFinished) or finished.outcome not in WHY_DROPPED or not self.open.staged_shown:
            return commit
        text = dropped_text(WHY_DROPPED[finished.outcome], self.open.staged_shown)
        posts = commit.posts
        # Shoal's own platforms display the journal, which contains the notice.
        if thread_address(self.chat).platform not in OWN_PLATFORMS:
            posts += (NewPost(f"dropped:{self.turn}", self.chat, escaped_markdown(strip_controls(text))),)
        events.append(Failed(DROPPED, text, fatal=False))
        return msgspec.structs.replace(commit, events=(*events, finished), posts=posts)

    def close_turn(self) -> None:
        self.lease = msgspec.structs.replace(self.lease, open_turn=TurnId(""))
        self.state = None
        self.unprojected = []
        self._turn_taint = TaintState()
        self._asked_by = ""
        self.aborting = False

    async def backfill(self, missed: Sequence[Prompt]) -> None:
        """Journal missed messages that are not known yet. Raises StaleEpoch."""
        with anyio.CancelScope(shield=True):
            await self._absorb(await self.journal.backfill(self.lease, missed))

    async def note(self, *events: EventData) -> None:
        """Journal events outside any turn."""
        with anyio.CancelScope(shield=True):
            await self._absorb(Committed(await self.journal.append(self.thread, events)))

    async def _absorb(self, committed: Committed) -> None:
        events = committed.events
        if events and events[0].seq > self.transcript.last_seq + 1:
            self._take(await self._read(self.transcript.last_seq, before=events[0].seq))
        self._take(events)
        self._hub.publish(events)
        if committed.aborting:
            self.abort()

    # ---- posts of the open turn ----

    def with_known_links(self, text: str) -> str:
        return with_known_links(text, self._knows()) if self.tainted_by and text else text

    def growing_links(self) -> GrowingLinks | None:
        """Return the link filter for a streamed answer, or None if the turn is not tainted."""
        return GrowingLinks(self._knows()) if self.tainted_by else None

    def _knows(self) -> Knows:
        return known_from([entry.message for entry in self.transcript.entries], self._traits)

    def answer(self, text: str, outcome: Outcome) -> tuple[NewPost, ...]:
        """Return the posts of the turn's answer, written and spoken. Returns an empty tuple in a subagent's thread.

        The written post also names a fallback model, lists content that the model did not receive, and explains how to
        retry a failed turn.
        """
        if not text or is_child(self.thread):
            return ()
        state, reply_to = self.open, self.open.message_id
        shown = "\n\n".join((text, *(f"_{note}_" for note in (state.instead, *state.left_out) if note)))
        if outcome == "failed":
            shown = f"{shown}\n\n{TRY_AGAIN}"
        reply = NewPost(reply_key(self.turn), self.thread, shown, reply_to=reply_to)
        if not state.speaks:
            return (reply,)
        spoken = SpokenReply(state.agent, state.author, state.direct)
        return reply, NewPost(spoken_id(self.turn), self.thread, text, "voice", reply_to=reply_to, spoken=spoken)

    def outage_begins(self, retry: RetryScheduled, until: datetime) -> tuple[NewPost, ...]:
        """Return the post that explains why the turn waits, once per outage. A subagent posts to its root thread."""
        if self.open.retry is not None:
            return ()
        return (outage_post(self.chat, self.turn, self.open.outages + 1, retry, until),)

    def outage_ends(self, text: str) -> tuple[NewPost, ...]:
        return (outage_over(self.chat, self.turn, self.open.outages, text),) if self.open.retry is not None else ()
