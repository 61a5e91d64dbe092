r"""Prepare unfinished Markdown for display. Open markup is closed, and markup that has just begun is omitted.

    end of the text                                       result
    ---------------------------------------------------   --------------------------------------
    `Some **bo`, `a ~~b`, `` a `b ``                      the markup is closed: `Some **bo**`
    `Some **`, `a \`, a line of marks such as `#`, `--`   the marks are omitted
    `see [the tab`, `see [the table](https://exa`         only the label is shown: `see the tab`
    text in a code fence                                  the fence is closed
    an opening fence whose line is unfinished             the fence is omitted

As the text grows, visible text never disappears. Only marks appear and disappear. The Markdown parser decides which
characters are marks.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.kernel import lazy_re
from shoal.markdown.parse import parser

if TYPE_CHECKING:
    from markdown_it.token import Token

ROUNDS_MAX = 100
"""Maximum number of passes that close the markup at an unfinished end. Nested brackets need several passes."""

_FENCE = lazy_re.compile(r"^((?:[ >]|[-+*] |\d{1,9}[.)] )*)(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_MARKS = "-=+*_#>|:~`\\[!"
"""Characters that may begin markup. A last line that contains only these characters, periods and white space has no
visible content yet.
"""
_OPENING = lazy_re.compile(r"`+|[\\\[\]]")
_MARK = lazy_re.compile(r"[*_~`\[<!\\\n]")
_ADDRESS = lazy_re.compile(r"<(?=[a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\s<>]*$)")
_BLANK_LINE = lazy_re.compile(r"\n[ \t]*\n")
_EMPHASIS = lazy_re.compile(r"[*_~]")


def closed(text: str) -> str:
    """Return unfinished Markdown with open markup closed and without trailing white space."""
    text = text.rstrip()
    for _ in range(ROUNDS_MAX):
        fence = _open_fence(text)
        if fence is not None:
            inside = _within_fence(text, fence)
            if inside == text:
                return f"{text}\n{re.sub(r'[^> ]', ' ', fence[1])}{fence[2]}"
            text = inside.rstrip()
            continue
        begun = _marks_alone(text)
        before, _, last = text.rpartition("\n")
        if begun >= 0 and not (_FENCE.match(last) and _open_fence(before)):  # the last line does not close a fence
            text = text[:begun].rstrip()
            continue
        start = _last_block(text)
        block, code = _spans(text[start:])
        loose = 0 if code else _loose_end(block)
        block = block[: len(block) - loose]
        if block == text[start:]:
            return text[:start] + _with_marks_closed(block + code)
        text = (text[:start] + block).rstrip()
        if code:
            return text[:start] + _with_marks_closed(text[start:] + code)
    return text


def finished_part(text: str) -> str:
    """Return the part of the text that has no open markup except a code fence. Appending text does not change this
    part.
    """
    text = text.rstrip()
    fence = _open_fence(text)
    if fence is not None:
        return _within_fence(text, fence)
    candidates = [match.start() for match in _MARK.finditer(text)][-ROUNDS_MAX:]
    for at in [len(text), *reversed(candidates)]:
        begun = text[:at].rstrip("! \t\n")  # also drop the `!` of an image whose link was cut off
        if closed(begun) == begun:
            return begun
    return text[: _last_block(text)].rstrip()


def marked(text: str, mark: str) -> str:
    """Append a mark, on a new line if it would change a code fence or a table."""
    last = text.rpartition("\n")[2].lstrip(" >")
    return f"{text}\n\n{mark}" if last.startswith(("```", "~~~", "|")) else text + mark


def _marks_alone(text: str) -> int:
    if not text.endswith(tuple(_MARKS)):
        return -1
    rest = text.rstrip(f"{_MARKS}]. \t\r\n\v\f")
    return text.find("\n", len(rest)) if rest else 0


def _loose_marks(text: str) -> int:
    return len(text) - len(text.rstrip("*_~"))


def _with_marks_closed(block: str) -> str:
    """Close the block's open emphasis. Returns the block unchanged if the closed version does not parse as expected."""
    marks = _open_marks(block) if _EMPHASIS.search(block) else ()
    if not marks:
        return block
    ended = block + "".join(reversed(marks))
    return ended if not _open_marks(ended) and not _loose_end(ended) else block


def _open_fence(text: str) -> "re.Match[str] | None":
    fence: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if fence is None:
            fence = match if match[2][0] == "~" or "`" not in match[3] else None
        elif not match[3].strip() and match[2].startswith(fence[2]):
            fence = None
    return fence


def _within_fence(text: str, fence: "re.Match[str]") -> str:
    if "\n" not in text[fence.start() :]:
        return text[: fence.start()].rstrip()
    before, _, last = text.rpartition("\n")
    return before if last.strip(" >") and not last.strip(" >").strip(fence[2][0]) else text


def _last_block(text: str) -> int:
    blank = max((match.end() for match in _BLANK_LINE.finditer(text)), default=0)
    fence = max((match.end() + 1 for match in _FENCE.finditer(text)), default=0)
    return min(max(blank, fence), len(text))


def _spans(block: str) -> tuple[str, str]:
    """Remove unfinished links and escapes from a block. Also returns the mark that closes open code, or an empty
    string.
    """
    brackets: list[int] = []
    at, last_quote = 0, block.rfind('"')
    while (match := _OPENING.search(block, at)) is not None:
        at = match.start()
        character = block[at]
        if character == "\\":
            if at + 1 == len(block):
                return block[:at], ""
            at += 2
            continue
        if character == "`":
            run = len(match[0])
            end = re.compile(rf"(?<!`)`{{{run}}}(?!`)").search(block, at + run)
            if end is None:
                body = block[at + run :].rstrip("`")
                return (block[:at], "") if not body.strip() else (block[: at + run] + body.rstrip(), "`" * run)
            at = end.end()
            continue
        at += 1
        if character == "[":
            brackets.append(at - 1)
        elif brackets:
            opened, address = brackets.pop(), at
            at = _address_end(block, address, last_quote)
            if at < 0:
                return _unlinked(block, [opened], address - 1), ""
    if brackets:
        return _unlinked(block, brackets, len(block)), ""
    return _ADDRESS.sub("", block), ""


def _address_end(block: str, at: int, last_quote: int) -> int:
    """Return the end of the link target that starts at `at`, or -1 if it may be unfinished.

    `last_quote` is the position of the last quotation mark in the block, which may end a link title.
    """
    if at < len(block) and block[at] != "(":
        return at
    depth = 0
    while at < len(block) and block[at] != "\n":
        if block[at] == "\\":
            at += 1
        elif block[at] == "(":
            depth += 1
        elif block[at] == ")":
            depth -= 1
            if not depth:
                return at + 1
        elif block[at].isspace() and last_quote < at:
            return at  # link targets contain no spaces
        at += 1
    return at if at < len(block) else -1


def _unlinked(block: str, opened: Sequence[int], end: int) -> str:
    parts: list[str] = []
    at = 0
    for bracket in opened:
        before = block[at:bracket]
        is_image = before.endswith("!") and (len(before) - len(before[:-1].rstrip("\\"))) % 2 == 1
        parts.append(before[:-1] if is_image else before)
        at = bracket + 1
    return "".join((*parts, block[at:end]))


def _inline(block: str) -> "Token | None":
    tokens = parser().parse("\n".join(line.lstrip(" ") for line in block.split("\n")))
    return next((token for token in reversed(tokens) if token.type == "inline"), None)


def _loose_end(block: str) -> int:
    """Return the number of marks at the end of the block that close nothing and have no text after them."""
    written = _loose_marks(block)
    if not written:
        return 0
    token = _inline(block)
    if token is None:  # the mark starts a list or a quote
        return written
    if not token.children or token.children[-1].type != "text":
        return 0
    escaped = block[: len(block) - written].endswith("\\")
    return max(0, min(_loose_marks(token.children[-1].content), written) - escaped)


def _open_marks(block: str) -> "Sequence[str]":
    from markdown_it.rules_inline import StateInline

    token = _inline(block)
    if token is None:
        return ()
    inline = parser().inline
    state = StateInline(token.content, parser(), {}, [])
    inline.tokenize(state)
    for rule in inline.ruler2.getRules(""):
        rule(state)
    return [
        "~~" if chr(delimiter.marker) == "~" else chr(delimiter.marker)
        for delimiter in state.delimiters
        if delimiter.open and delimiter.end < 0
    ]
