"""Case files: round trips, and errors that name the key and the line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.features.evals.cases import Case, CaseCall, CaseMessage, CaseResult, Expectation, parse_case, write_case
from shoal.kernel.errors import InvalidInput
from shoal.kernel.ids import CallId
from shoal.kernel.messages import ToolCall

GOOD = """about = "Looks first."

[[messages]]
role = "user"
text = "Shall I sail?"

[[results]]
tool = "forecast"
text = "Storm."

[[expect]]
calls = "forecast"

[[expect]]
contains = "storm"
"""
ROLES = '"user", "assistant" or "tool"'
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
JSON = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def wrong(before: str, after: str) -> str:
    assert before in GOOD
    with pytest.raises(InvalidInput) as found:
        parse_case(GOOD.replace(before, after), "cases/x.toml")
    return str(found.value)


@given(
    about=TEXTS,
    said=TEXTS,
    arguments=TEXTS,
    result=TEXTS,
    wanted=st.dictionaries(TEXTS, JSON, max_size=3),
    files=st.dictionaries(st.text("abc.-", min_size=1).filter(lambda name: ".." not in name), TEXTS, max_size=2),
)
def test_a_case_round_trips(
    about: str, said: str, arguments: str, result: str, wanted: dict[str, object], files: dict[str, str]
) -> None:
    case = Case(
        messages=(
            CaseMessage("user", said),
            CaseMessage("assistant", said, (CaseCall("c1", "read", arguments), CaseCall("c2", "list"))),
            CaseMessage("tool", result, (), "c1", "read", is_error=True),
            CaseMessage("tool", "", (), "c2", "list"),
            CaseMessage("user", said),
        ),
        expect=(Expectation(calls="read", arguments=wanted), Expectation(lacks=said or "x")),
        about=about,
        tools="sandbox" if files else "recorded",
        results=(CaseResult("read", arguments, result),),
        files=files,
    )
    assert parse_case(write_case(case), "cases/x.toml") == case


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('calls = "forecast"', 'cals = "forecast"', "line 12: unknown key 'cals'. Did you mean 'calls'?"),
        ("about =", "abuot =", "line 1: unknown key 'abuot'. Did you mean 'about'?"),
        ('tool = "forecast"', 'tol = "forecast"', "line 8: unknown key 'tol'. Did you mean 'tool'?"),
        ('contains = "storm"', "contains = 5", "line 15: `expect[1].contains` must be text"),
        (
            'role = "user"',
            'role = "person"',
            f"line 4: `messages[0].role` must be {ROLES}, not 'person'.",
        ),
        ("about", 'tools = "sandbx"\nabout', """line 1: `tools` must be "recorded" or "sandbox", not 'sandbx'."""),
        ('role = "user"\n', "", "line 3: `role` in `messages[0]` is missing"),
        ('role = "user"', 'role = "assistant"', "line 3: the last message must have the role user"),
        ('role = "user"', 'role = "tool"', "line 3: no earlier call has the id ''"),
        (
            'contains = "storm"',
            'contains = "storm"\nlacks = "calm"',
            "line 14: an [[expect]] table must have exactly one of",
        ),
        ('contains = "storm"', 'contains = "storm"\narguments = {a = 1}', "line 14: `arguments` is valid only with"),
        ('contains = "storm"', 'contains = "storm', "line 15"),
        (
            "[[expect]]\ncalls",
            "[files]\n\"../x\" = 'y'\n\n[[expect]]\ncalls",
            "'../x' is not a path below the workspace",
        ),
    ],
)
def test_errors_are_reported_with_their_line(before: str, after: str, said: str) -> None:
    message = wrong(before, after)
    assert message.startswith("cases/x.toml")
    assert said in message


def test_a_call_without_a_result_is_refused() -> None:
    calls = '[[messages]]\nrole = "assistant"\n[[messages.calls]]\nid = "c"\ntool = "t"\n\n[[messages]]\nrole = "user"'
    assert "line 9: the earlier call 'c' has no result" in wrong('[[messages]]\nrole = "user"', calls)


@pytest.mark.parametrize(
    ("made", "holds"),
    [('{"path": "a", "all": true}', True), ('{"path": "b"}', False), ('{"all": true}', False), ("no json", False)],
)
def test_named_arguments_must_match(made: str, holds: bool) -> None:
    wanted = Expectation(calls="read", arguments={"path": "a"})
    assert wanted.fits(ToolCall(CallId("c"), "read", made)) == holds
    assert not wanted.fits(ToolCall(CallId("c"), "list", made))
