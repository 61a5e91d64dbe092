"""Time spans in which untrusted content influenced changes to files, merged and limited for each folder."""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec

from shoal.kernel.untrusted import UNREADABLE, short_source

SPANS_MAX = 128
"""Maximum number of spans for each folder and person. Above it, the two with the smallest gap are merged, which also
marks changes within the gap. Merging never depends on other people's spans, so it does not reveal how much they wrote
in private."""
SLACK_NS = 20_000_000
"""Maximum lag of the clock for file timestamps: a tick of the kernel, at most 10 ms, with a margin."""
_OTHERS = " and others"


class FileClock(msgspec.Struct, frozen=True):
    """Clock in nanoseconds since 1970. The clock for file timestamps may be up to `slack_ns` behind it."""

    now_ns: Callable[[], int] = time.time_ns
    slack_ns: int = SLACK_NS


SYSTEM_FILE_CLOCK = FileClock()


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A time span (nanoseconds since 1970, both ends included), and the source that influenced changes in it. If
    `person` is set, only private lines of that person were written. If it is empty, anyone may see them."""

    began: int
    ended: int
    source: str
    person: str = ""


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """Spans of a folder, sorted by their beginning."""

    spans: tuple[Span, ...] = ()

    def with_span(self, span: Span) -> "Marks":
        """Add a span. Above the limit, the two closest spans of the same person are merged, which never marks less."""
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
        """Shorten a span that ended early. Has no effect if the span was merged with others."""
        sooner = msgspec.structs.replace(span, ended=at)
        return Marks(tuple([sooner if each == span else each for each in self.spans]))

    def within(self, changed: Iterable[int], stable_since: int) -> "Marks":
        """Return only spans that contain one of these changes and spans that ended after `stable_since`."""
        times = sorted(changed)

        def holds(span: Span) -> bool:
            return bisect_left(times, span.began) < bisect_right(times, span.ended)

        return Marks(tuple([span for span in self.spans if span.ended > stable_since or holds(span)]))

    def source_of(self, changed: Iterable[int], person: str | None = None) -> str:
        """Return a source of these changes that `person` may see, or an empty string. None means any source."""
        sources = self.sources_of(changed)
        return next((source for whose, source in sources.items() if person is None or whose in ("", person)), "")

    def sources_of(self, changed: Iterable[int]) -> dict[str, str]:
        """Return the sources of changes at these times, by the person whose private lines were written (empty for
        everyone)."""
        by_name: dict[str, str] = {}
        for at in changed:
            for span in self.spans:
                if span.began <= at <= span.ended:
                    by_name.setdefault(span.person, span.source)
        return by_name


def planned_span(began: int, seconds: float, source: str, person: str = "", slack_ns: int = SLACK_NS) -> Span:
    """Return the span to store before a call that may take `seconds`. It covers all changes even after a crash."""
    return Span(began - slack_ns, began + int(seconds * 1e9), short_source(source), person)


def encode_marks(marks: Marks) -> str:
    return msgspec.json.encode(marks).decode()


def decode_marks(text: str | None) -> Marks:
    """Decode the text from `encode_marks`. Returns no marks if nothing is stored. Unreadable marks cover everything."""
    try:
        return msgspec.json.decode(text, type=Marks) if text else Marks()
    except UNREADABLE:
        return Marks((Span(0, 2**63 - 1, "marks that cannot be read"),))
