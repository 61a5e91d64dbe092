"""Show Markdown like a platform with a CommonMark parser of its own. Source: spec.commonmark.org, and `~~`."""

from markdown_it import MarkdownIt
from markdown_it.token import Token


def shown_text(text: str, *, html: bool, break_: str) -> str:
    """Return the text without markup. `break_` replaces a single line break; with `html`, tags are dropped."""
    parser = MarkdownIt("commonmark", {"html": html}).enable("strikethrough")
    if not html:
        parser.disable(["html_block", "html_inline"])
    out: list[str] = []
    numbers: list[
        int
    ] = []  # of the next item of each open list: its first item counts alone (spec.commonmark.org, 5.3)
    for token in parser.parse(text):
        if token.type == "inline":
            out.append("".join(_span(child, break_) for child in token.children or ()) + "\n")
        elif token.type in ("fence", "code_block"):
            out.append(token.content.rstrip("\n") + "\n")
        elif token.type in ("ordered_list_open", "bullet_list_open"):
            start = token.attrGet("start")
            numbers.append(1 if start is None else int(start))
        elif token.type in ("ordered_list_close", "bullet_list_close"):
            numbers.pop()
        elif token.type == "list_item_open":
            out.append(f"{numbers[-1]}{token.markup} " if token.info else "• ")
            numbers[-1] += 1
    return "".join(out).removesuffix("\n")


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
