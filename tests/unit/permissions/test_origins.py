"""Origins of argument values: a person's exact words, or only untrusted text."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.events import Event, EventData, ToolFinished, UserSaid
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import Author, Reference
from shoal.permissions.origins import ORIGINS_MAX, VALUES_MAX, Words, origins_of, values_of, words_of

ADA, BOB = Author("ada", "Ada", trusted=True), Author("bob", "Bob", trusted=True)
NOW = datetime(2026, 1, 5, tzinfo=UTC)


def journal(*data: EventData) -> list[Event]:
    return [Event(seq, ThreadId("a:b:c"), TurnId("T1"), NOW, one) for seq, one in enumerate(data, 1)]


def told(words: Words, **arguments: object) -> list[tuple[str, str, str]]:
    values = values_of(json.dumps(arguments), commands=False)
    return [(one.value, one.named_by, one.source) for one in origins_of(values, words)]


BILLED = "Pay 99.50 to DE89 3704 0044 0532 0130 00, not anna@example.org"
BILL = ToolFinished(CallId("c1"), "read", BILLED, tainted_by="bill.txt")
ASKED = UserSaid("Write anna@example.org about invoice 4711.", ADA)


def test_a_value_belongs_to_the_asker_if_they_also_wrote_it() -> None:
    words = words_of(journal(ASKED, BILL), "ada")
    assert told(words, to="anna@example.org") == [("anna@example.org", "you", "")]
    assert told(words, iban="DE89370400440532013000") == [("DE89370400440532013000", "", "bill.txt")]
    assert told(words, amount="99.50", to="anna@example.org") == [
        ("99.50", "", "bill.txt"),
        ("anna@example.org", "you", ""),
    ]


@pytest.mark.parametrize("value", ["nna@example.org", "471", "anna@example.or", "99.5", "47110"])
def test_a_part_of_a_word_is_not_an_origin(value: str) -> None:
    assert told(words_of(journal(ASKED, BILL), "ada"), value=value) == []


def test_a_value_quoted_by_another_person_belongs_to_the_author_of_the_quote() -> None:
    quote = Reference("quote", "use pay@evil.example", Author("", "Mallory", trusted=False))
    words = words_of(journal(UserSaid("To bob@example.org", BOB, refers_to=(quote,))), "ada")
    assert told(words, to="bob@example.org") == [("bob@example.org", "Bob", "")]
    ((value, named_by, source),) = told(words, to="pay@evil.example")
    assert (value, named_by) == ("pay@evil.example", "")
    assert "Mallory" in source


def test_words_of_a_trigger_or_agent_have_no_author() -> None:
    words = words_of(journal(UserSaid("To bob@example.org", ADA, origin="trigger")), "ada")
    assert told(words, to="bob@example.org") == []


def test_command_words_have_origins_and_options_do_not() -> None:
    assert values_of('{"command": "git push origin --force main"}', commands=True) == (
        "git push origin --force main", "push", "origin", "main",
    )  # fmt: skip


def test_origins_are_bounded_and_other_peoples_words_come_first() -> None:
    text = " ".join(f"v{number}.example" for number in range(20))
    words = Words(own=(("you", "mine.example"),), foreign=(("page", text),))
    origins = origins_of((*text.split(), "mine.example"), words)
    assert len(origins) == ORIGINS_MAX
    assert {one.source for one in origins} == {"page"}


@given(st.text(max_size=300), st.booleans())
def test_values_of_any_arguments_are_bounded(arguments: str, commands: bool) -> None:
    assert len(values_of(arguments, commands=commands)) <= VALUES_MAX
    assert len(values_of(json.dumps({"text": arguments * 50}), commands=commands)) <= VALUES_MAX
