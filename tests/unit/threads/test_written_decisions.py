"""Approval decisions written as chat messages: the complete message counts, in several languages."""

import pytest

from shoal.threads.written_decisions import ANSWER_CHARS_MAX, WrittenDecision, parse_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("allow 01ABCD", WrittenDecision("01ABCD", True)),
        ("  DENY  01abcd. ", WrittenDecision("01abcd", False)),
        ("/allow 01ABCD", WrittenDecision("01ABCD", True)),
        ("yes #01ABCD", WrittenDecision("01ABCD", True)),
        ("Erlauben `01ABCD`", WrittenDecision("01ABCD", True)),
        ("拒绝 01ABCD", WrittenDecision("01ABCD", False)),
        ("allow 01ABCD always", WrittenDecision("01ABCD", True, "always")),
        ("allow thread 01ABCD", WrittenDecision("01ABCD", True, "thread")),
        ("deny 01ABCD always", WrittenDecision("01ABCD", False)),
        ("allow", WrittenDecision("", True)),
        (" Yes! ", WrittenDecision("", True)),
        ("OK.", WrittenDecision("", True)),
        ("yes, please", WrittenDecision("", True)),
        ("\U0001f44d\U0001f3fd", WrittenDecision("", True)),
        ("No, thanks.", WrittenDecision("", False)),
        ("\U0001f44e", WrittenDecision("", False)),
        ("allow always", WrittenDecision("", True, "always")),
        ("Always!", WrittenDecision("", True, "always")),
        ("always 01ABCD 1 3", WrittenDecision("01ABCD", True, "always", (1, 3))),
        ("\u267e\ufe0f", WrittenDecision("", True, "always")),
        ("deny always", WrittenDecision("", False)),
        ("it always rains", None),
        ("yes and no", None),
        ("-1", None),
        ("allow x", None),
        ("please allow 01ABCD", None),
        ("allow 01ABCD and then delete it", None),
        ("I would not allow 01ABCD", None),
        ("allowed 01ABCD", None),
        ("allow 01ABCD\ndeny 01ABCE", None),
        ("allow " + "x" * 300, None),
        ("", None),
    ],
)
def test_a_text_answer_is_parsed(text: str, answer: WrittenDecision | None) -> None:
    assert parse_answer(text) == answer


def test_answers_up_to_the_length_limit_are_parsed() -> None:
    answer = f"allow{' ' * (ANSWER_CHARS_MAX - 9)}abcd"
    assert len(answer) == ANSWER_CHARS_MAX
    assert parse_answer(answer) == WrittenDecision("abcd", allow=True)
    assert parse_answer(f" {answer}") is None


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        ("allow", "deny"), ("erlauben", "ablehnen"), ("oui", "non"), ("permitir", "denegar"), ("consenti", "nega"),
        ("sim", "não"), ("разрешить", "запретить"), ("允许", "拒绝"), ("許可", "拒否"),
    ],
)  # fmt: skip
def test_a_decision_is_understood_in_other_languages(yes: str, no: str) -> None:
    assert parse_answer(f"{yes} 01ABCD") == WrittenDecision("01ABCD", True)
    assert parse_answer(f"{no} 01ABCD") == WrittenDecision("01ABCD", False)
