"""Random journals: turns with steps, calls, steers and failures, and unrelated events between them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec
from hypothesis import strategies as st

from shoal.kernel.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Cleared,
    Compacted,
    Event,
    EventData,
    Failed,
    LimitReached,
    Outcome,
    Steered,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import ApprovalId, CallId, ThreadId, TurnId
from shoal.kernel.messages import Attachment, Author, Reference, ToolCall

THREAD = ThreadId("web:lobby:made-up")
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)

texts = st.text(max_size=40)
references = st.lists(
    st.builds(
        Reference, st.sampled_from(["before", "reply"]), texts, st.just(Author("u2", "Bo", trusted=False)),
        st.just("m0"), own=st.booleans(),
    ),
    max_size=2,
).map(tuple)  # fmt: skip
authors = st.builds(Author, id=st.just("u1"), name=st.sampled_from(["", "Nobody in particular"]), trusted=st.booleans())


class Piece(msgspec.Struct, frozen=True):
    """Consecutive events. `turn` is empty for events outside a turn."""

    turn: str
    events: tuple[EventData, ...]


@st.composite
def steps(draw: st.DrawFn, number: int) -> list[EventData]:
    """Draw a model call with its tool calls. Some calls have no result, as after a crash."""
    calls = tuple(ToolCall(CallId(f"c{number}-{n}"), "bash", "{}") for n in range(draw(st.integers(0, 3))))
    said: list[EventData] = [AssistantSaid(draw(texts), calls, draw(st.sampled_from(["end", "max_tokens"])))]
    for call in calls:
        said.append(ToolStarted(call.id, call.name, ("tool:bash:ls",)))
        if draw(st.booleans()):
            said.append(ToolFinished(call.id, call.name, draw(texts), is_error=draw(st.booleans())))
    return said


@st.composite
def happenings(draw: st.DrawFn) -> EventData:
    return draw(
        st.one_of(
            st.builds(Steered, texts, authors, st.just("m9")),
            st.builds(Failed, st.just("provider"), texts),
            st.builds(LimitReached, st.just("steps")),
            st.builds(ApprovalRequested, st.just(ApprovalId("a")), st.just(CallId("c")), st.just("bash"),
                      st.just(("tool:bash:rm",)), texts, st.just(START)),
            st.builds(ApprovalSettled, st.just(ApprovalId("a")), st.just(CallId("c")), st.just("allow")),
        )
    )  # fmt: skip


@st.composite
def between(draw: st.DrawFn) -> EventData:
    """Draw an event that belongs to no turn but may occur while one is open."""
    attachments = st.lists(st.builds(Attachment, st.just("a.txt"), path=st.sampled_from(["", "x/a.txt"])), max_size=2)
    return draw(
        st.one_of(
            st.builds(Cleared, st.just("u1"), texts),
            st.builds(Compacted, st.integers(0, 100), texts),  # a percentage, which `_placed` replaces
            st.builds(
                UserSaid, texts, authors, st.sampled_from(["", "m3"]), backfill=st.just(True),
                attachments=attachments.map(tuple), refers_to=references,
            ),
        )
    )  # fmt: skip


@st.composite
def turns(draw: st.DrawFn, number: int, *, finished: bool) -> list[Piece]:
    name = f"T{number}"
    system = draw(st.sampled_from(["", "aa", "aa", "bb", "unknown"]))
    pieces = [
        Piece(
            name, (TurnStarted("main", "demo", draw(texts), system=system), UserSaid(draw(texts), draw(authors), "m1"))
        )
    ]
    for step in range(draw(st.integers(0, 3))):
        pieces.append(Piece(name, tuple(draw(steps(step)))))
        if draw(st.booleans()):
            pieces.append(Piece(name, (draw(happenings()),)))
        if draw(st.integers(0, 5)) == 0:
            pieces.append(Piece("", (draw(between()),)))
    if finished:
        outcome = cast(Outcome, draw(st.sampled_from(["done", "aborted", "failed", "limit"])))
        pieces.append(Piece(name, (TurnFinished(outcome, draw(texts)),)))
    return pieces


@st.composite
def journals(draw: st.DrawFn) -> list[Event]:
    pieces: list[Piece] = []
    count = draw(st.integers(0, 5))
    for number in range(count):
        finished = number + 1 < count or draw(st.booleans())
        pieces += draw(turns(number, finished=finished))
        if finished and draw(st.booleans()):
            pieces.append(Piece("", (draw(between()),)))
    return [_placed(event) for event in number_events(pieces)]


def _placed(event: Event) -> Event:
    """Replace the percentage in a compaction with the number of an earlier event."""
    if not isinstance(event.data, Compacted):
        return event
    upto = event.data.upto_seq * (event.seq - 1) // 100
    return msgspec.structs.replace(event, data=msgspec.structs.replace(event.data, upto_seq=upto))


def number_events(pieces: Sequence[Piece]) -> list[Event]:
    flat = [(TurnId(piece.turn), data) for piece in pieces for data in piece.events]
    return [
        Event(seq, THREAD, TurnId(turn), START + timedelta(seconds=seq), data)
        for seq, (turn, data) in enumerate(flat, 1)
    ]
