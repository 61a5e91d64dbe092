"""Journals: after any events in any order, a model request has a result for each call, and an open turn has a next
step.
"""

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce

import msgspec

from shoal.kernel.clock import to_micros
from shoal.kernel.errors import StoreCorrupt, StoreNewer
from shoal.kernel.events import (
    EVENT_CLASSES,
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Branched,
    Checkpointed,
    Cleared,
    Compacted,
    EffectsAccepted,
    Event,
    EventData,
    Failed,
    FilesChanged,
    FilesRestored,
    Forked,
    LimitReached,
    RetryRequested,
    RetryScheduled,
    Revised,
    Steered,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
    decode_data,
    encode_data,
)
from shoal.kernel.ids import ApprovalId, CallId, CardId, ThreadId, TurnId
from shoal.kernel.messages import AssistantMessage, Author, ModelMessage, ToolCall, ToolMessage
from shoal.kernel.settings import TurnsSettings
from shoal.kernel.transcript import Transcript
from shoal.kernel.turnstate import next_move
from shoal.permissions.taint import TaintState
from shoal.store.appends import event as stored_event
from tests.fuzz.inputs import any_text, damaged, damaged_json
from tests.fuzz.target import Attempt
from tests.unit.kernel.journals import messages_of, state_after

THREAD = ThreadId("web:lobby:fuzz")
AT = datetime(2026, 1, 5, tzinfo=UTC)
LIMITS = TurnsSettings(steps_max=3, tool_errors_in_a_row_max=2)
EVENTS_MAX = 25
_CALLS = [CallId(name) for name in "abc"]

_MAKERS: dict[type[EventData], Callable[[random.Random], EventData]] = {
    UserSaid: lambda r: UserSaid(any_text(r, 2), _author(r), backfill=r.random() < 0.2),
    TurnStarted: lambda r: TurnStarted("main", "m", context=r.choice(["", "<context>now</context>"])),
    AssistantSaid: lambda r: AssistantSaid(any_text(r, 2), _calls(r), r.choice(["end", "tool_calls", "max_tokens"])),
    ToolStarted: lambda r: ToolStarted(r.choice(_CALLS), "bash"),
    ToolFinished: lambda r: ToolFinished(
        r.choice(_CALLS), "bash", any_text(r, 2), r.random() < 0.4, tainted_by=r.choice(["", "a page"])
    ),
    Steered: lambda r: Steered(any_text(r, 2), _author(r)),
    Revised: lambda r: Revised(_author(r), "m1", any_text(r, 2), deleted=r.random() < 0.5),
    ApprovalRequested: lambda r: ApprovalRequested(
        ApprovalId("p"), r.choice(_CALLS), "bash", ("tool:bash:x",), "x", AT
    ),
    ApprovalSettled: lambda r: ApprovalSettled(ApprovalId("p"), r.choice(_CALLS), r.choice(["allow", "deny"])),
    EffectsAccepted: lambda r: _accepted(r),  # noqa: PLW0108 (the function is defined below)
    Compacted: lambda r: Compacted(r.randint(0, EVENTS_MAX), any_text(r, 1)),
    Cleared: lambda r: Cleared(),
    Branched: lambda r: Branched(r.randint(0, EVENTS_MAX), any_text(r, 1)),
    Checkpointed: lambda r: Checkpointed("agents/main/workspace", r.choice(["", "0" * 32]), any_text(r, 1)),
    FilesChanged: lambda r: FilesChanged("0" * 32, r.randint(0, 9)),
    FilesRestored: lambda r: FilesRestored(
        "u1", "t1", any_text(r, 1), r.randint(1, 3), (any_text(r, 1),), tainted_by=r.choice(["", "a page"])
    ),
    Forked: lambda r: Forked(THREAD, r.randint(1, EVENTS_MAX), any_text(r, 1)),
    LimitReached: lambda r: LimitReached(r.choice(["steps", "tool_errors", "budget", "time"])),
    Failed: lambda r: Failed("internal", any_text(r, 1), fatal=r.random() < 0.5),
    RetryScheduled: lambda r: RetryScheduled("overloaded", any_text(r, 1), AT, AT, r.randint(1, 9)),
    RetryRequested: lambda r: RetryRequested(any_text(r, 1), any_text(r, 1)),
    TurnFinished: lambda r: TurnFinished(r.choice(["done", "aborted", "failed"]), any_text(r, 1)),
}


def _author(source: random.Random) -> Author:
    return Author(any_text(source, 1), any_text(source, 1), trusted=source.random() < 0.6)


def _calls(source: random.Random) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(source.choice(_CALLS), "bash", any_text(source, 1)) for _ in range(source.randint(0, 3)))


def _accepted(source: random.Random) -> EffectsAccepted:
    calls = _calls(source)
    return EffectsAccepted(
        CardId("c"), calls, tuple(ApprovalId(f"p{n}") for n, _ in enumerate(calls)), any_text(source, 1)
    )


@contextmanager
def target() -> Generator[Attempt]:
    assert set(_MAKERS) == set(EVENT_CLASSES.values()), "an event type has no maker"
    yield attempt


def attempt(source: random.Random) -> None:
    transcript = Transcript()
    events: list[Event] = []
    for seq in range(1, source.randint(1, EVENTS_MAX) + 1):
        data = _MAKERS[source.choice(list(_MAKERS))](source)
        assert decode_data(data.type, encode_data(data)) == data
        turn = TurnId(source.choice(["t1", "t1", "t2", ""]))
        events.append(Event(seq, THREAD, turn, AT + timedelta(seconds=seq), data))
        transcript.add(events[-1])
        _check_pairs(messages_of(transcript))
        transcript.expired(AT + timedelta(seconds=source.randint(0, EVENTS_MAX)))
        state = state_after(TurnId("t1"), events)
        assert (next_move(state, LIMITS) is None) == (state.finished is not None)
    reduce(TaintState.after, events, TaintState())  # must not raise for any journal
    _check_row(source, events[-1])


def _check_pairs(messages: tuple[ModelMessage, ...]) -> None:
    waiting: list[CallId] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert waiting, "a result without a call"
            assert message.call_id == waiting.pop(0), "results out of call order"
            continue
        assert not waiting, "a call without a result"
        waiting = [call.id for call in message.tool_calls] if isinstance(message, AssistantMessage) else []
    assert not waiting, "the last calls have no results"


def _check_row(source: random.Random, event: Event) -> None:
    body = encode_data(event.data)
    if source.random() < 0.5:
        body = msgspec.json.encode(damaged_json(source, msgspec.json.decode(body)))
    text = damaged(source, body).decode(errors="replace")
    kind = source.choice([event.type, event.type, source.choice(list(EVENT_CLASSES)), "unknown"])
    try:
        stored_event(THREAD, (event.seq, event.turn, kind, to_micros(event.at), text))
    except (StoreCorrupt, StoreNewer):
        return
