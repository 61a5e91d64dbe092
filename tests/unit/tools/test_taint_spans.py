"""Taint spans: their number is bounded, joining them removes no taint, and a call's span ends with the call."""

import random

from hypothesis import given
from hypothesis import strategies as st

from shoal.tools.taint_spans import SLACK_NS, SPANS_MAX, Marks, Span, decode_marks, encode_marks, planned_span

SPANS = st.builds(
    lambda began, length, source: Span(began, began + length, source),
    st.integers(0, 10_000),
    st.integers(0, 50),
    st.sampled_from(["a page", "a search", "Eve"]),
)


def marked(*spans: Span) -> Marks:
    found = Marks()
    for span in spans:
        found = found.with_span(span)
    return found


def test_a_span_includes_both_ends_and_nothing_more() -> None:
    marks = marked(Span(10, 20, "a page"))
    assert [marks.source_of([at]) for at in (9, 10, 20, 21)] == ["", "a page", "a page", ""]


def test_any_of_several_times_matches() -> None:
    marks = marked(Span(10, 20, "a page"))
    assert marks.source_of([1, 2, 15]) == "a page"
    assert marks.source_of([]) == ""


def test_a_finished_call_stops_marking_expected_files() -> None:
    span = planned_span(1_000_000_000, 900.0, "a page")
    marks = marked(span).ended(span, 2_000_000_000)
    assert marks.source_of([1_000_000_000 - SLACK_NS]) == "a page"
    assert marks.source_of([2_000_000_001]) == ""


def test_a_concurrent_call_keeps_its_span() -> None:
    first, second = Span(10, 900, "a page"), Span(10, 800, "Eve")
    marks = marked(first, second).ended(first, 20)
    assert marks.source_of([500]) == "Eve"
    assert marks.source_of([850]) == ""


def test_the_closest_spans_are_joined_past_the_bound() -> None:
    spans = [Span(number * 1000, number * 1000 + 1, "a page") for number in range(SPANS_MAX)]
    marks = marked(*spans, Span(1100, 1101, "Eve"))
    assert len(marks.spans) == SPANS_MAX
    assert marks.source_of([1050]) == "a page and others"
    assert marks.source_of([2500]) == ""


@given(st.lists(SPANS, max_size=SPANS_MAX * 2))
def test_joining_spans_removes_no_mark(spans: list[Span]) -> None:
    marks = marked(*spans)
    assert len(marks.spans) <= SPANS_MAX
    for span in spans:
        assert marks.source_of([span.began])
        assert marks.source_of([span.ended])


@given(st.integers(0, SPANS_MAX * 3), st.integers(0, SPANS_MAX * 3), st.randoms(use_true_random=False))
def test_private_sources_do_not_appear_in_other_peoples_marks(public: int, private: int, drawn: random.Random) -> None:
    every = [Span(at, at + 5, f"page {at % 7}") for at in drawn.choices(range(10_000), k=public)]
    hers = [Span(at, at + 5, f"her page {at % 7}", "ada") for at in drawn.choices(range(10_000), k=private)]
    mixed = [*every]
    for span in hers:
        mixed.insert(drawn.randint(0, len(mixed)), span)
    order = [span for span in mixed if not span.person]
    with_hers, without = marked(*mixed), marked(*order)
    assert [span for span in with_hers.spans if not span.person] == [*without.spans]
    for at in range(0, 10_010, 97):
        assert with_hers.source_of([at], "ben") == without.source_of([at], "ben")
        assert not hers or with_hers.source_of([hers[0].began], "ada")


@given(st.lists(SPANS, max_size=20))
def test_stored_spans_round_trip(spans: list[Span]) -> None:
    marks = marked(*spans)
    assert decode_marks(encode_marks(marks)) == marks


@given(st.lists(SPANS, max_size=20), st.lists(st.integers(0, 10_050), max_size=20), st.integers(0, 10_050))
def test_forgetting_unused_spans_changes_no_mark(spans: list[Span], changed: list[int], settled: int) -> None:
    marks = marked(*spans)
    kept = marks.within(changed, settled)
    for at in changed:
        assert bool(kept.source_of([at])) == bool(marks.source_of([at]))
    for span in marks.spans:
        used = span.ended > settled or any(span.began <= at <= span.ended for at in changed)
        assert (span in kept.spans) == used
