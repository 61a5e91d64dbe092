"""Marks: which files of a folder were changed under the influence of untrusted content, told by when.

While a call works that untrusted content may have steered, whatever changes in its folders is marked. What is kept is
not the files but the spans of time, on the file system's clock: a file is marked while its last change lies in one of
them, so a later change by a call that nothing steered clears it, and nothing has to be searched after a command.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

SPANS_MAX = 128
"""Spans kept of a folder; beyond it the two with the smallest gap become one, which marks what lies between."""
SLACK_NS = 20_000_000
"""A file system stamps changes by a clock that runs this much behind (a tick of the kernel, at most 10 ms)."""
SOURCE_CHARS_MAX = 160
_OTHERS = " and others"


class Span(msgspec.Struct, frozen=True, array_like=True):
    """From when to when (nanoseconds since 1970, both ends included) changes were steered, and by what."""

    began: int
    ended: int
    source: str


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

    def source_of(self, changed: Iterable[int]) -> str:
        """What steered the last change of any of these times; empty when nothing did."""
        for at in changed:
            for span in self.spans:
                if span.began <= at <= span.ended:
                    return span.source
        return ""


def planned_span(began: int, seconds: float, source: str) -> Span:
    """What is noted before a call that may take this long, so that a crash in it leaves nothing unmarked."""
    return Span(began - SLACK_NS, began + int(seconds * 1e9), source[:SOURCE_CHARS_MAX])


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
    return Span(first.began, max(first.ended, second.ended), source)
