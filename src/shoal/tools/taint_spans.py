"""Time spans in which untrusted content influenced changes to files. They are merged if a folder has too many."""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec

from shoal.kernel.untrusted import UNREADABLE, short_source

SPANS_MAX = 128
"""Maximum number of spans per folder and person.

If there are more, the two spans with the smallest gap are merged. This also taints changes within the gap. Only spans
of the same person are merged, so the result does not reveal how much other people wrote in private.
"""
SLACK_NS = 20_000_000
"""Maximum lag of file timestamps behind the clock: one kernel tick, which is at most 10 ms, and a margin."""
_OTHERS = " and others"


class FileClock(msgspec.Struct, frozen=True):
    """A clock in nanoseconds since 1970. File timestamps may be up to `slack_ns` behind it."""

    now_ns: Callable[[], int] = time.time_ns
    slack_ns: int = SLACK_NS


SYSTEM_FILE_CLOCK = FileClock()


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A time span in which `source` influenced changes to files.

    began, ended: nanoseconds since 1970, both inclusive.
    person: if set, only private lines of this person were written. If empty, anyone may see the lines.
    """

    began: int
    ended: int
    source: str
    person: str = ""


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """The spans of a folder, sorted by start."""

    spans: tuple[Span, ...] = ()

    def with_span(self, span: Span) -> "Marks":
        """Add a span. Above SPANS_MAX, the two closest spans of the same person are merged, which never removes
        taint.
        """
        spans = sorted((*self.spans, span), key=lambda span: (span.began, span.ended))
        own = [place for place, other in enumerate(spans) if other.person == span.person]
        if len(own) > SPANS_MAX:
            gaps = [(spans[after].began - spans[before].ended, before, after) for before, after in pairwise(own)]
            _, before, after = min(gaps)
            first, second = spans[before], spans.pop(after)
            named = first.source.removesuffix(_OTHERS)
            source = first.source if named == second.source.removesuffix(_OTHERS) else f"{named}{_OTHERS}"
            spans[before] = Span(first.began, max(first.ended, second.ended), source, span.person)
        return Marks(tuple(spans))

    def ended(self, span: Span, at: int) -> "Marks":
        sooner = msgspec.structs.replace(span, ended=at)
        return Marks(tuple([sooner if each == span else each for each in self.spans]))

    def within(self, changed: Iterable[int], stable_since: int) -> "Marks":
        """Keep only spans that contain one of these changes, and spans that ended after `stable_since`."""
        times = sorted(changed)

        def holds(span: Span) -> bool:
            return bisect_left(times, span.began) < bisect_right(times, span.ended)

        return Marks(tuple([span for span in self.spans if span.ended > stable_since or holds(span)]))

    def source_of(self, changed: Iterable[int], person: str | None = None) -> str:
        """Return a source of these changes that `person` may see, or an empty string. If `person` is None, any
        source counts.
        """
        sources = self.sources_of(changed)
        return next((source for whose, source in sources.items() if person is None or whose in ("", person)), "")

    def sources_of(self, changed: Iterable[int]) -> dict[str, str]:
        """Return the sources of changes at these times, by the person whose private lines were written. The key is
        an empty string for lines that everyone may see.
        """
        by_name: dict[str, str] = {}
        for at in changed:
            for span in self.spans:
                if span.began <= at <= span.ended:
                    by_name.setdefault(span.person, span.source)
        return by_name


def planned_span(began: int, seconds: float, source: str, person: str = "", slack_ns: int = SLACK_NS) -> Span:
    """Return the span to store before a call that may take `seconds`. The span covers the call's changes even if the
    process crashes.
    """
    return Span(began - slack_ns, began + int(seconds * 1e9), short_source(source), person)


def encode_marks(marks: Marks) -> str:
    return msgspec.json.encode(marks).decode()


def decode_marks(text: str | None) -> Marks:
    """Decode a result of `encode_marks`. No text means no spans. An unreadable text becomes a span that covers all
    times.
    """
    try:
        return msgspec.json.decode(text, type=Marks) if text else Marks()
    except UNREADABLE:
        return Marks((Span(0, 2**63 - 1, "unreadable taint marks"),))
