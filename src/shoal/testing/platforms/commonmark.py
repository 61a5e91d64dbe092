"""Markdown as a platform with a CommonMark parser of its own shows it. Source: spec.commonmark.org, and `~~`."""

from markdown_it import MarkdownIt
from markdown_it.token import Token


def shown_text(text: str, *, html: bool, break_: str) -> str:
    """The words without markup. A single line break is shown as `break_`; with `html` tags are dropped."""
    parser = MarkdownIt("commonmark", {"html": html}).enable("strikethrough")
    if not html:
        parser.disable(["html_block", "html_inline"])
    return "\n".join(block for token in parser.parse(text) if (block := _block(token, break_)) is not None)


def _block(token: Token, break_: str) -> str | None:
    if token.type == "inline":
        return "".join(_span(child, break_) for child in token.children or ())
    if token.type in ("fence", "code_block"):
        return token.content.rstrip("\n")
    return None


def _span(token: Token, break_: str) -> str:
    match token.type:
        case "softbreak":
            return break_
        case "hardbreak":
            return "\n"
        case "text" | "text_special" | "code_inline":
            return token.content
        case _:
            return ""
