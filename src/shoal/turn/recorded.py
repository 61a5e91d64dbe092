"""The model calls of a conversation as its journal has them, each with what it was to answer."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from shoal.domain.errors import NotFound
from shoal.domain.events import AssistantSaid, Event, RequestMark, TurnStarted, UserSaid
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.records import ThreadInfo
from shoal.domain.transcript import Transcript, TranscriptEntry
from shoal.store.journal import Journal

READ_AT_ONCE = 2_000


class RecordedStep(NamedTuple):
    """A model call: the `number`th of its turn, answered by event `seq`. `asked` is what the turn's message says.

    `entries` are what it was told of the conversation, valid until the next one is looked at; `system` and `tools` are
    the digests of what stood before that, empty where an earlier version noted none.
    """

    turn: TurnId
    seq: int
    number: int
    agent: str
    asked: str
    started_at: datetime
    said: AssistantSaid
    entries: Sequence[TranscriptEntry]
    system: str
    tools: str


def recorded_steps(events: Sequence[Event]) -> Iterator[RecordedStep]:
    """The calls of one branch from its first event on, oldest first, without those that were cut off."""
    answers: dict[int, tuple[Event, AssistantSaid]] = {}
    previous = 0
    for event in events:
        data = event.data
        if isinstance(data, AssistantSaid) and event.turn and data.stop != "aborted":
            answers[data.asked.after if data.asked is not None else previous] = event, data
        previous = event.seq
    transcript, started, began, tools, asked, number = Transcript(), TurnStarted("", ""), events[:1], "", "", 0
    for event in events:
        transcript.add(event)
        match event.data:
            case TurnStarted() as data:
                started, began, number = data, [event], 0
            case UserSaid(text=text, backfill=False) if event.turn:
                asked = text
            case AssistantSaid(asked=RequestMark(tools=now)):
                tools = now or tools
            case _:
                pass
        if event.seq not in answers:
            continue
        answer, said = answers[event.seq]
        transcript.settle()
        number += 1
        entries = transcript.entries
        if not started.history:
            entries = [entry for entry in entries if entry.turn == answer.turn]
        told = (said.asked.tools if said.asked is not None else "") or tools
        yield RecordedStep(
            answer.turn, answer.seq, number, started.agent, asked, began[0].at, said, entries, started.system, told
        )


async def read_branch(journal: Journal, thread: ThreadId) -> tuple[ThreadInfo, list[Event]]:
    """A thread and its journal on the branch that it is on. Raises NotFound, StoreCorrupt."""
    info = await journal.thread(thread)
    if info is None:
        raise NotFound(f"There is no thread {thread}. `shoal threads list` shows those there are.")
    events: list[Event] = []
    while batch := await journal.along(thread, info.last_seq, events[-1].seq if events else 0, READ_AT_ONCE):
        events += batch
    return info, events
