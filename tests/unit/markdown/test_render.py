"""Rendering answers in a platform's markup, complete and within the platform's limits."""

import re
from collections import Counter
from typing import Literal
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects import DIALECTS

from shoal.kernel.posts import ChatLimits
from shoal.markdown.pieces import pieces_of
from shoal.markdown.render import render_markup, rendered_length
from shoal.markdown.tables import aligned
from shoal.platforms.telegram.markup import styled
from shoal.testing.platforms.telegram_markup import checked_entities
from shoal.testing.platforms.wire import Json

MARKUPS = tuple(DIALECTS)
line = st.one_of(
    st.text(alphabet="ab 漢🦈.!`~*_[]()#>|-\\<&", max_size=80),
    st.sampled_from(["```python", "```", "~~~", "| a | b |", "|---|---|", "", "- item", "1. one", "> so", "# T"]),
)
markdown = st.lists(line, max_size=30).map("\n".join)


def answer() -> str:
    parts: list[str] = []
    number = 0
    while sum(map(len, parts)) < 10_000:
        number += 1
        parts.append(
            f"## Part p{number}\n\nSome **bold b{number}** and _slanted s{number}_, see [link l{number}]"
            f"(https://example.com/u{number}?a=1&b=2). 潮汐表第c{number}行。\n\n"
            f"```python\nprint('f{number}')  # <&>\n```\n\n"
            f"| tide | at |\n|---|---|\n| high h{number} | 潮 t{number} |\n\n"
            f"- item i{number}\n  - inner n{number}\n"
        )
    return "\n".join(parts)


@pytest.mark.parametrize("markup", MARKUPS)
@pytest.mark.parametrize("unit", ["characters", "utf16", "bytes"])
def test_a_long_answer_arrives_complete(markup: str, unit: Literal["characters", "utf16", "bytes"]) -> None:
    limits = ChatLimits(text_chars_max=2000, markup=DIALECTS[markup], text_unit=unit)
    text = answer()
    pieces = pieces_of(text, limits)
    rendered = [render_markup(piece, DIALECTS[markup]) for piece in pieces]
    assert len(rendered) >= 4
    assert all(rendered_length(piece, limits) <= 2000 for piece in pieces)
    wanted, found = (Counter(re.findall(r"[a-z]\d+", whole)) for whole in (text, "\n".join(rendered)))
    assert not wanted - found
    assert "\n".join(rendered).count("潮汐表第") == text.count("潮汐表第")


@pytest.mark.parametrize("markup", MARKUPS)
def test_text_that_grows_when_rendered_makes_no_small_pieces(markup: str) -> None:
    limits = ChatLimits(text_chars_max=2000, markup=DIALECTS[markup])
    text = "Low water (at the pier) is 0.4 m. " * 500
    lengths = [rendered_length(piece, limits) for piece in pieces_of(text, limits)]
    assert all(1000 < length <= 2000 for length in lengths[:-1])
    assert lengths[-1] > 100


@pytest.mark.parametrize("markup", MARKUPS)
@given(markdown)
def test_no_letter_is_lost(markup: str, text: str) -> None:
    rendered = render_markup(text, DIALECTS[markup])
    for character in "漢🦈":
        assert unquote(rendered).count(character) == unquote(text).count(character)  # addresses are percent-encoded


@given(markdown)
def test_telegram_accepts_any_rendered_text(text: str) -> None:
    shown, entities = styled(render_markup(text, DIALECTS["telegram"]))
    assert unquote(shown).count("漢") == text.count("漢")
    assert len(checked_entities(shown, as_sent(entities))) == len(entities)


@pytest.mark.parametrize("markup", MARKUPS)
def test_a_bare_address_that_is_not_linked_is_shown_once(markup: str) -> None:
    assert unquote(render_markup("[](漢_a)", DIALECTS[markup])).count("漢") == 1


@pytest.mark.parametrize(
    ("markup", "rendered"),
    [
        ("slack", "*a* _b_ ~c~ `d*` <https://x.y/)|e.> 1."),
        ("discord", "**a** *b* ~~c~~ `d*` [e.](https://x.y/%29) 1."),
        (
            "matrix",
            '<p><strong>a</strong> <em>b</em> <del>c</del> <code>d*</code> <a href="https://x.y/)">e.</a> 1.</p>',
        ),
        ("google_chat", "**a** *b* ~~c~~ `d*` [e.](https://x.y/%29) 1\\."),
        ("teams", "**a** *b* ~~c~~ `d*` [e.](https://x.y/%29) 1\\."),
        ("plain", "a b c d* e. (https://x.y/)) 1."),
    ],
)
def test_spans_use_the_platforms_markup(markup: str, rendered: str) -> None:
    assert render_markup("**a** _b_ ~~c~~ `d*` [e.](<https://x.y/)>) 1.", DIALECTS[markup]) == rendered


@pytest.mark.parametrize("markup", ["telegram", "slack", "matrix", "google_chat"])
def test_html_stays_text(markup: str) -> None:
    assert "<script>" not in render_markup("<script>x</script>", DIALECTS["matrix"])
    assert "script" in render_markup("<script>x</script>", DIALECTS[markup])


def test_teams_gets_no_html_and_separate_lines() -> None:
    shown = render_markup("# One <b>\n\ntwo\nthree [x](https://x.y)\n\n```\na\nb\n```", DIALECTS["teams"])
    assert shown == "**One &lt;b&gt;**\n\ntwo  \nthree [x](https://x.y)\n\n```\na\nb\n```"


def test_script_links_are_not_links() -> None:
    assert "<a" not in render_markup("[x](data:text/html,1)", DIALECTS["matrix"])


@pytest.mark.parametrize("markup", MARKUPS)
def test_words_next_to_a_fence_are_kept(markup: str) -> None:
    assert "a 潮 note" in render_markup("```python a 潮 note\nx\n```", DIALECTS[markup])


def test_a_table_is_aligned_with_wide_characters() -> None:
    assert aligned([["潮", "b"], ["a", "cc"]]) == "潮 | b\n---+---\na  | cc\n"


def test_excessive_nesting_stays_text() -> None:
    text = "> " * 60 + "deep"
    assert "deep" in render_markup(text, DIALECTS["matrix"])


def as_sent(entities: object) -> Json:
    sent: Json = msgspec.json.decode(msgspec.json.encode(entities))
    return sent


def telegram(markdown: str) -> tuple[str, list[tuple[str, str]]]:
    text, entities = styled(render_markup(markdown, DIALECTS["telegram"]))
    return text, [(entity.kind, entity.text) for entity in checked_entities(text, as_sent(entities))]


@pytest.mark.parametrize(
    ("markdown", "text", "entities"),
    [
        ("**a** _b_ ~~c~~ `d*`", "a b c d*", [("bold", "a"), ("italic", "b"), ("strikethrough", "c"), ("code", "d*")]),
        ("🦈 **e**.", "🦈 e.", [("bold", "e")]),
        ("> ```py\n> x = 1\n> ```", "x = 1", [("blockquote", "x = 1"), ("pre", "x = 1")]),
        (
            "> a\n>\n> | b | c |\n> |---|---|",
            "a\n\nb | c\n--+--",
            [("blockquote", "a\n\nb | c\n--+--"), ("pre", "b | c\n--+--")],
        ),
        ("1. a\n   ```py\n   if x:\n     y\n   ```", "1. a\nif x:\n  y", [("pre", "if x:\n  y")]),
        ("> > a", "> a", [("blockquote", "> a")]),
        ("1. > a", "1. > a", []),
        ("**see `x` now**", "see x now", [("bold", "see "), ("code", "x"), ("bold", " now")]),
        ("[see `x`](https://x.y/)", "see x", [("text_link", "see x")]),
        ("[me](tg://user?id=7)", "me", [("text_link", "me")]),
        ("a *\n**", "a *\n**", []),
    ],
)
def test_telegram_gets_text_and_entities(markdown: str, text: str, entities: list[tuple[str, str]]) -> None:
    assert telegram(markdown) == (text, entities)
