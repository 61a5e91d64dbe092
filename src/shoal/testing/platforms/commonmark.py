"""Render Markdown as visible text, like a platform with a CommonMark parser.

Sources: spec.commonmark.org, plus `~~` for strikethrough.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from markdown_it import MarkdownIt
from markdown_it.token import Token

Run: TypeAlias = tuple[str, frozenset[str]]
"""Visible text and its styles: `strong`, `em`, `s`, `code`, or the URL of a link."""


def shown_text(text: str, *, html: bool, break_: str) -> str:
    """Return the visible text. `break_` replaces single line breaks. If `html` is set, HTML tags are dropped."""
    return "".join(part for part, _ in shown_runs(text, html=html, break_=break_)).removesuffix("\n")


def shown_runs(text: str, *, html: bool, break_: str) -> list[Run]:
    """Return the visible text as runs, each with one set of styles."""
    parser = MarkdownIt("commonmark", {"html": html}).enable("strikethrough")
    if not html:
        parser.disable(["html_block", "html_inline"])
    plain, out = frozenset[str](), list[Run]()
    # The next number of each open list. A list's first number determines all others (spec.commonmark.org, 5.3).
    numbers: list[int] = []
    for token in parser.parse(text):
        if token.type == "inline":
            out += [*_spans(token.children or (), break_), ("\n", plain)]
        elif token.type in ("fence", "code_block"):
            out += [(token.content.rstrip("\n"), frozenset({"code"})), ("\n", plain)]
        elif token.type in ("ordered_list_open", "bullet_list_open"):
            start = token.attrGet("start")
            numbers.append(1 if start is None else int(start))
        elif token.type in ("ordered_list_close", "bullet_list_close"):
            numbers.pop()
        elif token.type == "list_item_open":
            out.append((f"{numbers[-1]}{token.markup} " if token.info else "• ", plain))
            numbers[-1] += 1
    return out


def _spans(tokens: Sequence[Token], break_: str) -> Iterator[Run]:
    opened: list[str] = []
    for token in tokens:
        match token.type:
            case "softbreak":
                yield break_, frozenset(opened)
            case "hardbreak":
                yield "\n", frozenset(opened)
            case "text" | "text_special":
                yield token.content, frozenset(opened)
            case "code_inline":
                yield token.content, frozenset((*opened, "code"))
            case "link_open":
                opened.append(str(token.attrGet("href")))
            case opening if opening.endswith("_open"):
                opened.append(opening.removesuffix("_open"))
            case closing if closing.endswith("_close"):
                opened.pop()
            case _:
                pass
