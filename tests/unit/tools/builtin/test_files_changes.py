"""File edits: exact, shown as a complete diff, and explained when they fail."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.kernel.errors import ToolError
from shoal.tools.builtin.files import Change, replace_text

TEXT = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\ntwo again\n"


def change(content: str, old: str, new: str, *, replace_all: bool = False) -> Change:
    return replace_text(content, old, new, replace_all=replace_all, shown="f")


def applied(content: str, diff: str) -> str:
    """Apply a unified diff at its own line numbers and assert that its context lines match."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", content)
    result: list[str] = []
    at = 0
    marked = diff.split("\n")[2:-1]
    for number, line in enumerate(marked):
        if line.startswith("@@"):
            start = int(line.split()[1].split(",")[0][1:]) - 1
            result += lines[at:start]
            at = start
        elif not line.startswith("\\"):
            is_open = number + 1 < len(marked) and marked[number + 1].startswith("\\")
            text = line[1:] + ("" if is_open else "\n")
            if line[0] in " -":
                assert lines[at] == text
                at += 1
            if line[0] in " +":
                result.append(text)
    return "".join(result + lines[at:])


def test_a_unique_text_is_replaced_and_shown() -> None:
    made = change(TEXT, "five", "5\n5b")
    assert made.content == TEXT.replace("five", "5\n5b")
    assert made.diff == "--- f\n+++ f\n@@ -2,7 +2,8 @@\n two\n three\n four\n-five\n+5\n+5b\n six\n seven\n eight\n"
    assert (made.times, "@@" in made.body) == (1, False)


def test_a_missing_text_names_the_nearest_line() -> None:
    with pytest.raises(ToolError, match=r"not in f\. The nearest line is 7: seven"):
        change(TEXT, "sevenn", "7")
    with pytest.raises(ToolError, match=r"first line of old_string matches line 4\. Check white space"):
        change(TEXT, "  four\n  five", "x")
    with pytest.raises(ToolError, match="copy the text exactly"):
        change(TEXT, "nothing like it at all", "x")
    with pytest.raises(ToolError, match="only white space"):
        change(TEXT, "\n\n\n", "x")


def test_a_repeated_text_is_reported_with_its_lines() -> None:
    with pytest.raises(ToolError, match=r"occurs 2 times in f \(lines 2, 11\).*replace_all"):
        change(TEXT, "two", "2")
    assert change(TEXT, "two", "2", replace_all=True).content == TEXT.replace("two", "2")
    with pytest.raises(ToolError, match=r"occurs 20 times in f \(lines 1, 2, 3, 4, 5, 6, 7, 8, …\)"):
        change("x\n" * 20, "x", "y")


def test_an_edit_without_changes_is_an_error() -> None:
    for old, new in (("", "x"), ("one", "one")):
        with pytest.raises(ToolError):
            change(TEXT, old, new)


def test_line_ends_of_a_crlf_file_are_kept() -> None:
    content = "one\r\ntwo\r\nthree\r\n"
    assert change(content, "one\ntwo", "1\n2\n3").content == "1\r\n2\r\n3\r\nthree\r\n"
    assert change(content, "two\r\n", "").content == "one\r\nthree\r\n"


def test_the_last_line_may_lack_a_newline() -> None:
    made = change("one\ntwo", "two", "2")
    assert made.diff.endswith("-two\n\\ No newline at end of file\n+2\n\\ No newline at end of file\n")


def test_replaced_occurrences_do_not_overlap() -> None:
    assert change("aaaa", "aa", "b", replace_all=True).content == "bb"


LINES = st.sampled_from(["a", "b", "target", ""])
WORDS = st.text(alphabet="ab\n", max_size=12)


@given(content=st.text(alphabet="ab\n", min_size=1, max_size=60), new=WORDS, data=st.data())
def test_the_diff_shows_exactly_the_change(content: str, new: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(content) - 1))
    old = content[start : start + data.draw(st.integers(1, 12))]
    assume(old != new)
    made = change(content, old, new, replace_all=True)
    assert made.content == content.replace(old, new)
    assert applied(content, made.diff) == made.content


@given(before=st.lists(LINES, max_size=30), after=st.lists(LINES, max_size=30), new=WORDS)
def test_distant_changes_have_separate_hunks(before: list[str], after: list[str], new: str) -> None:
    content = "\n".join([*before, "target", *after])
    made = change(content, "target", new, replace_all=True)
    assert applied(content, made.diff) == made.content
    assert made.times == content.count("target")
