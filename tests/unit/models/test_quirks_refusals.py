"""Rejections quoted from real services, and the lesson that Shoal learns from each."""

import pytest
from tests.unit.models.refusals import TEACH, TEACH_NOTHING

from shoal.models.failures import failure_of
from shoal.models.quirks import Quirks, fault_of, lesson, words_of

SENDING = Quirks(reasoning_field="reasoning_content")
"""Quirks with which every lesson is new."""


@pytest.mark.parametrize(
    ("taught", "status", "body"), [(taught, *one) for taught, several in TEACH.items() for one in several]
)
def test_the_wording_of_a_refusal_decides_which_field_or_fault_is_learned(taught: str, status: int, body: str) -> None:
    field, _, value = taught.partition("=")
    assert failure_of(status, body.encode(), {}, "p").kind == "invalid_request", "so it is not asked again for an hour"
    words = words_of(body.encode())
    if field == "fault":
        assert fault_of(words) == value
        return
    assert fault_of(words) is None
    changes = lesson(SENDING if field == "reasoning_field" else Quirks(), words)
    assert str(changes.get(field)) == value, changes


@pytest.mark.parametrize(("status", "body"), TEACH_NOTHING)
def test_unrelated_refusals_teach_nothing(status: int, body: str) -> None:
    words = words_of(body.encode())
    failed = failure_of(status, body.encode(), {}, "p")
    assert failed.kind != "invalid_request" or (lesson(SENDING, words), fault_of(words)) == ({}, None)


@pytest.mark.parametrize("body", [body for several in TEACH.values() for _, body in several])
def test_a_lesson_is_learned_once(body: str) -> None:
    words, quirks, seen = words_of(body.encode()), SENDING, set[Quirks]()
    while quirks not in seen and len(seen) < 4:
        seen.add(quirks)
        quirks = quirks.changed(lesson(quirks, words))
    assert len(seen) <= 3
    assert lesson(quirks, words) == {}
