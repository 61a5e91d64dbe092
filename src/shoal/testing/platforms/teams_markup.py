"""What people in Teams read of a text: Markdown as Teams takes it, without tables, and with no HTML but mentions."""

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

_MENTION = re.compile(r"<at>(.*?)</at>")


def shown_text(text: str) -> str:
    """The words without markup. A single line break is a space; HTML is dropped."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("strikethrough").parse(_MENTION.sub(r"@\1", text))
    return "\n".join(block for token in tokens if (block := _block(token)) is not None)


def _block(token: Token) -> str | None:
    if token.type == "inline":
        return "".join(_span(child) for child in token.children or ())
    if token.type in ("fence", "code_block"):
        return token.content.rstrip("\n")
    return None


def _span(token: Token) -> str:
    match token.type:
        case "softbreak":
            return " "
        case "hardbreak":
            return "\n"
        case "text" | "text_special" | "code_inline":
            return token.content
        case _:
            return ""
