"""Marks: which files of a folder were changed under the influence of untrusted content, told by when.

While a call works that untrusted content may have steered, whatever changes in its folders is marked. What is kept is
not the files but the spans of time, on the file system's clock: a file is marked while its last change lies in one of
them, so a later change by a call that nothing steered clears it, and nothing has to be searched after a command.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec

SPANS_MAX = 128
"""Spans kept of a folder; beyond it the two with the smallest gap become one, which marks what lies between."""
SLACK_NS = 20_000_000
"""A file system stamps changes by a clock that runs this much behind (a tick of the kernel, at most 10 ms)."""
SOURCE_CHARS_MAX = 160
_OTHERS = " and others"


class FileClock(msgspec.Struct, frozen=True):
    """Tells the time (nanoseconds since 1970); file systems stamp changes by a clock up to `slack_ns` behind it."""

    now_ns: Callable[[], int] = time.time_ns
    slack_ns: int = SLACK_NS


SYSTEM_FILE_CLOCK = FileClock()


class Span(msgspec.Struct, frozen=True, array_like=True):
    """From when to when (nanoseconds since 1970, both ends included) changes were steered, and by what; `person` is
    whose private lines alone were written, empty where anybody may see them."""

    began: int
    ended: int
    source: str
    person: str = ""


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """The spans of a folder, by their beginning."""

    spans: tuple[Span, ...] = ()

    def with_span(self, span: Span) -> "Marks":
        """One more span; past the bound, and never less marked, the closest two become one."""
        spans = sorted((*self.spans, span), key=lambda one: (one.began, one.ended))
        if len(spans) > SPANS_MAX:
            gaps = [(after.began - before.ended, place) for place, (before, after) in enumerate(pairwise(spans))]
            _, place = min(gaps)
            spans[place : place + 2] = [_joined(spans[place], spans[place + 1])]
        return Marks(tuple(spans))

    def ended(self, span: Span, at: int) -> "Marks":
        """The span ended earlier than foreseen; unchanged when it was joined with others meanwhile."""
        sooner = msgspec.structs.replace(span, ended=at)
        return Marks(tuple([sooner if one == span else one for one in self.spans]))

    def within(self, changed: Iterable[int], settled: int) -> "Marks":
        """Only the spans in which one of these changes lies, and those that ended after `settled`."""
        times = sorted(changed)
        return Marks(tuple([span for span in self.spans if span.ended > settled or _holds(span, times)]))

    def source_of(self, changed: Iterable[int], person: str | None = None) -> str:
        """What steered the last change of any of these times, in what `person` may see (None: in anything); empty when
        nothing did."""
        found = self.sources_of(changed)
        return next((source for whose, source in found.items() if person is None or whose in ("", person)), "")

    def sources_of(self, changed: Iterable[int]) -> dict[str, str]:
        """What steered the last change of any of these times, by the person whose private lines alone were written."""
        found: dict[str, str] = {}
        for at in changed:
            for span in self.spans:
                if span.began <= at <= span.ended:
                    found.setdefault(span.person, span.source)
        return found


def planned_span(began: int, seconds: float, source: str, person: str = "", slack_ns: int = SLACK_NS) -> Span:
    """What is noted before a call that may take this long, so that a crash in it leaves nothing unmarked."""
    return Span(began - slack_ns, began + int(seconds * 1e9), source[:SOURCE_CHARS_MAX], person)


def encode_marks(marks: Marks) -> str:
    """As JSON."""
    return msgspec.json.encode(marks).decode()


def decode_marks(text: str) -> Marks:
    """Invert `encode_marks`. Raises msgspec.DecodeError and msgspec.ValidationError."""
    return msgspec.json.decode(text, type=Marks)


def _holds(span: Span, times: Sequence[int]) -> bool:
    place = bisect_left(times, span.began)
    return place < len(times) and times[place] <= span.ended


def _joined(first: Span, second: Span) -> Span:
    same = first.source.removesuffix(_OTHERS) == second.source.removesuffix(_OTHERS)
    source = first.source if same else first.source.removesuffix(_OTHERS) + _OTHERS
    person = first.person if first.person == second.person else ""
    return Span(first.began, max(first.ended, second.ended), source, person)
