"""Which events of a journal make up a branch of its conversation: a pure function of the events that began branches.

A `branched` event goes on from right after the event it names, every other event from the one before it. So the events
of a journal are a tree, and the branch that ends with an event is the way to it from the first one. Along a branch the
numbers only grow.
"""

from collections.abc import Sequence
from typing import NamedTuple

from shoal.domain.events import Branched, Event


class EventRange(NamedTuple):
    """Events that follow one another: the numbers of the first and of the last."""

    first: int
    last: int


Branching = tuple[int, int]
"""The number of a `branched` event, and after which event the conversation goes on with it."""


def spans_to(seq: int, branchings: Sequence[Branching]) -> list[EventRange]:
    """The branch that ends with event `seq`, oldest first. `branchings` are the journal's, oldest first."""
    spans: list[EventRange] = []
    for at, after in reversed(branchings):
        if at <= seq:
            spans.append(EventRange(at, seq))
            seq = after
    spans.append(EventRange(1, seq))
    return [span for span in reversed(spans) if span.last]


def current(events: Sequence[Event]) -> list[Event]:
    """Of a whole journal, the events of the branch that its last event is on."""
    branchings = [(event.seq, event.data.after) for event in events if isinstance(event.data, Branched)]
    if not branchings:
        return list(events)
    spans = spans_to(events[-1].seq, branchings)
    return [event for event in events if any(span.first <= event.seq <= span.last for span in spans)]
