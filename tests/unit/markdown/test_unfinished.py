"""Unfinished Markdown: no stray markup, and text that was already shown never disappears."""

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.dialects import DIALECTS

from shoal.markdown.render import render_markup
from shoal.markdown.unfinished import closed, finished_part, marked
from shoal.platforms.telegram.markup import styled

MARKUPS = ("telegram", "slack", "discord", "matrix", "teams", "google_chat", "plain")


@pytest.mark.parametrize(
    ("text", "shown", "kept"),
    [
        ("Some **bo", "Some **bo**", "Some"),
        ("Some **", "Some", "Some"),
        ("Some *", "Some", "Some"),
        ("**bold*", "**bold**", ""),
        ("***bi**", "***bi***", ""),
        ("~~st~", "~~st~~", ""),
        ("**a *b", "**a *b***", ""),
        ("a `co", "a `co`", "a"),
        ("a ``co`", "a ``co``", "a"),
        ("a `", "a", "a"),
        ("text **`co", "text **`co`**", "text"),
        ("see [the tab", "see the tab", "see"),
        ("see [the table]", "see the table", "see"),
        ("see [the table](https://exa", "see the table", "see"),
        ("see ![the map](https://exa", "see the map", "see"),
        ("see **![the", "see **the**", "see"),
        ("**![", "", ""),
        ("low![the map", "lowthe map", "low"),
        ("low\\![the map", "low\\!the map", "low"),
        ("!", "", ""),
        ("a <https://exa", "a https://exa", "a"),
        ("**[lin](htt", "**lin**", ""),
        ("a \\", "a", "a"),
        ("a\\*", "a\\*", "a\\*"),
        ("Title\n--", "Title", "Title"),
        ("# ", "", ""),
        ("1. *", "1.", "1."),
        ("- a\n    - **b", "- a\n    - **b**", "- a"),
        ("> **quo", "> **quo**", ""),
        ("x\n\n```py", "x", "x"),
        ("x\n\n```py\nab", "x\n\n```py\nab\n```", "x\n\n```py\nab"),
        ("x\n```py\nab\n``", "x\n```py\nab\n```", "x\n```py\nab"),
        ("- ```py\n  x", "- ```py\n  x\n  ```", "- ```py\n  x"),
        ("> ```\n> x", "> ```\n> x\n> ```", "> ```\n> x"),
        ("```\na\n```", "```\na\n```", "```\na\n```"),
        ("5 * 3 ", "5 * 3", "5 * 3"),
        ("snake_ca", "snake_ca", "snake_ca"),
        ("Hello!", "Hello!", "Hello"),
        ("1984.", "1984.", "1984."),
        ("**a\n\nb **c", "**a\n\nb **c**", "**a\n\nb"),
    ],
)
def test_open_markup_is_closed_and_started_markup_left_out(text: str, shown: str, kept: str) -> None:
    assert closed(text) == shown
    assert finished_part(text) == kept


word = st.sampled_from(["low", "tide", "pier", "潮", "Meer", "gulls", "at"])
words = st.lists(word, min_size=1, max_size=3).map(" ".join)
address = st.sampled_from(["https://example.org/a", "https://example.org/b?c=d"])
leaf = st.one_of(
    words,
    words.map(lambda inner: f"`{inner}`"),
    words.map(lambda inner: f"``{inner}``"),
    st.builds("[{}]({})".format, words, address),
    st.builds("![{}]({})".format, words, address),
)
span = st.one_of(
    leaf,
    leaf.map(lambda inner: f"**{inner}**"),
    leaf.map(lambda inner: f"*{inner}*"),
    leaf.map(lambda inner: f"~~{inner}~~"),
    st.builds("**{} *{}* {}**".format, words, words, words),
)
line = st.lists(span, min_size=1, max_size=4).map(" ".join)
block = st.one_of(
    line,
    st.builds("{}\n{}".format, line, line),
    st.builds("{} {}".format, st.sampled_from(["#", "###"]), line),
    st.lists(line, min_size=1, max_size=3).map(lambda items: "\n".join(f"- {item}" for item in items)),
    st.builds("- {}\n  - {}".format, line, line),
    st.lists(line, min_size=1, max_size=3).map(lambda items: "\n".join(f"> {item}" for item in items)),
    st.builds("{}{}\n{}\n{}\n```".format, st.just("```"), st.sampled_from(["", "python"]), words, words),
    st.builds("| {} | {} |\n|---|---|\n| {} | {} |".format, words, words, words, words),
)
document = st.lists(block, min_size=1, max_size=3).map("\n\n".join)


def letters(markdown: str) -> str:
    return "".join(filter(str.isalpha, render_markup(markdown, DIALECTS["plain"])))


@settings(max_examples=5)
@given(document)
def test_a_growing_text_only_gains_words_and_shows_no_marks(text: str) -> None:
    whole, before, kept = letters(text), "", ""
    for end in range(1, len(text) + 1):
        shown = closed(text[:end])
        read = letters(shown)
        assert whole.startswith(read), (text[:end], shown)
        assert read.startswith(before), (text[:end], shown)
        before = read
        rendered = render_markup(shown, DIALECTS["plain"])
        assert not set(rendered) & set("*~[]"), (text[:end], rendered)
        assert "!" not in rendered or text[end - 1] == "!", (text[:end], rendered)
        assert rendered.count("```") % 2 == 0
        assert rendered.replace("```", "").count("`") == 0, (text[:end], rendered)
        begun = finished_part(text[:end])
        assert begun.startswith(kept), (text[:end], kept, begun)
        kept = begun
    assert before == whole


@settings(max_examples=50)
@given(document, st.data())
def test_every_platform_accepts_the_shown_text(text: str, data: st.DataObject) -> None:
    shown = marked(closed(text[: data.draw(st.integers(0, len(text)))]), " …")
    for markup in MARKUPS:
        rendered = render_markup(shown, DIALECTS[markup])
        assert "".join(filter(str.isalpha, rendered)) or not shown.strip(" …")
    assert "*" not in styled(render_markup(shown, DIALECTS["telegram"])).text


@settings(max_examples=100)
@given(st.text(alphabet="ab 漢*_~`[]()\\#>|-+=.!<\n1:", max_size=60))
@example("[" * 60)
@example("*_" * 30)
@example("`" * 59 + "a")
def test_any_text_can_be_shown(text: str) -> None:
    shown = closed(text)
    assert closed(shown) is not None
    assert text.startswith(finished_part(text))


@settings(max_examples=100)
@given(st.text(alphabet="ab 漢*_~`#>-\n.", max_size=60))
def test_text_without_fences_keeps_every_letter(text: str) -> None:
    assume("```" not in text and "~~~" not in text)
    assert sorted(filter(str.isalpha, closed(text))) == sorted(filter(str.isalpha, text))


def test_a_mark_ends_no_fence_and_no_table() -> None:
    assert marked("low", " …") == "low …"
    assert marked("```\nlow\n```", " …") == "```\nlow\n```\n\n …"
    assert marked("| a |\n|---|\n| b |", " …") == "| a |\n|---|\n| b |\n\n …"
