"""Comparing another model's answer with the recorded one."""

import pytest

from shoal.features.evals.answers import ModelAnswer, difference
from shoal.kernel.ids import CallId
from shoal.kernel.messages import ToolCall


def calls(*made: tuple[str, str]) -> ModelAnswer:
    return ModelAnswer(calls=tuple(ToolCall(CallId(f"c{at}"), *one) for at, one in enumerate(made)))


NOTES = ("read", '{"path":"notes.md"}')
LIST = ("list", "{}")


@pytest.mark.parametrize(
    ("recorded", "answer", "found"),
    [
        (ModelAnswer("Noon. "), ModelAnswer("Noon."), "same"),
        (ModelAnswer("Noon."), ModelAnswer("Twelve."), "words"),
        (calls(NOTES), calls(("read", '{ "path" : "notes.md" }')), "same"),
        (calls(NOTES), calls(("read", '{"path":"other.md"}')), "arguments"),
        (calls(NOTES, LIST), calls(LIST, NOTES), "same"),
        (calls(NOTES, NOTES), calls(NOTES), "calls"),
        (calls(NOTES), calls(LIST), "calls"),
        (calls(NOTES), ModelAnswer("I would read them."), "calls"),
        (ModelAnswer("Noon."), calls(NOTES), "calls"),
        (ModelAnswer("Noon."), ModelAnswer("", stop="refusal"), "refused"),
        (ModelAnswer("No.", stop="refusal"), ModelAnswer("No.", stop="refusal"), "same"),
        (ModelAnswer("Noon."), ModelAnswer(failed="It is down."), "failed"),
        (calls(("read", "no json")), calls(("read", "no json")), "same"),
    ],
)
def test_the_difference_between_two_answers_is_classified(
    recorded: ModelAnswer, answer: ModelAnswer, found: str
) -> None:
    assert difference(recorded, answer) == found
