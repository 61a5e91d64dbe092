"""Markup of chat platforms: nodes of a parsed text, and dialects that render them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel import lazy_re

Wrap: TypeAlias = Callable[[str], str]
Style: TypeAlias = Literal["strong", "em", "s"]
Kind: TypeAlias = Literal[
    "paragraph", "heading", "fence", "quote", "list", "item", "table", "row", "cell", "rule", "raw",
    "text", "break", "code", "token", "strong", "em", "s", "link",
]  # fmt: skip

BOXES = ("☐ ", "☑ ")
"""Symbols of open and completed items in a task list."""
CODE_LINE = "\x01"
"""Marker of a code line during rendering. It keeps lists and quotes from indenting the line."""

_RUNS = lazy_re.compile(r"`+")
_NOT_LANGUAGE = lazy_re.compile(r"[^\w+#.-]")


class Node(msgspec.Struct, eq=False):
    """A block or a span of a parsed text."""

    kind: Kind
    children: list["Node"] = []
    text: str = ""
    """A leaf's text."""
    info: str = ""
    """A fence's language, a list's marker, or `definition` for a paragraph of definitions."""
    url: str = ""
    """A link's target."""
    title: str = ""
    number: int = 0
    """A heading's level or a list's first number, or -1 for bullets."""
    tight: bool = False
    box: Literal["", " ", "x"] = ""
    continued: bool = False


def is_link(url: str) -> bool:
    return url.startswith(("http://", "https://", "mailto:", "tel:"))


def quoted(inner: str) -> str:
    return "\n".join(f"> {line}" for line in inner.split("\n"))


def indented(text: str, width: int = 2, space: str = " ") -> str:
    first, *rest = text.split("\n")
    return "\n".join((first, *(f"{space * width}{line}" if line and line[0] != CODE_LINE else line for line in rest)))


def joined(blocks: Sequence[str], tight: bool) -> str:
    return ("\n" if tight else "\n\n").join(block for block in blocks if block)


def markdown_code(code: str) -> str:
    """Return an inline code span that `code` cannot close."""
    runs = {len(run) for run in _RUNS.findall(code)}
    mark = "`" * next(length for length in range(1, len(runs) + 2) if length not in runs)
    padded = (
        code.startswith("`") or code.endswith("`") or (code.startswith(" ") and code.endswith(" ") and code.strip())
    )
    return f"{mark} {code} {mark}" if padded else f"{mark}{code}{mark}"


def fenced(content: str, info: str) -> str:
    """Return a code fence that `content` cannot close."""
    longest = max((len(run) for run in _RUNS.findall(content)), default=2)
    mark = "`" * max(3, longest + 1)
    return f"{mark}{language_in(info)}\n{content.removesuffix(chr(10))}\n{mark}"


def language_in(info: str) -> str:
    return _NOT_LANGUAGE.sub("", info)


class Dialect(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Markup of one platform.

    `text`, `token`, `code` and `fence` receive raw text. The other functions receive rendered text.
    """

    text: Wrap
    token: Wrap | None = None
    """Renders URLs, paths, mentions and custom emojis. None renders them as text."""
    styles: Mapping[Style, Wrap]
    code: Wrap
    opens: Callable[[str], bool] = is_link
    """Whether a URL can be a link. Other URLs are written after the link's text."""
    link: Callable[[str, str], str] = lambda label, url: url
    label: Wrap | None = None
    """Renders a link's text as plain text, if links cannot contain anything else."""
    opens_links: bool = False
    """Whether `token` also applies to URLs in a link's text. By default they are text, because links do not nest."""
    heading: Callable[[str, int], str]
    fence: Callable[[str, str], str] = fenced
    quote: Wrap = quoted
    item: Wrap = indented
    bullet: str = "•"
    boxes: tuple[str, str] = BOXES
    continued: Callable[[Node, str, str], str] = lambda item, marker, body: f"  {body}"
    """Renders an item that continues an item of the previous message. Receives the item, its marker and its text."""
    rule: str = "———"
    blocks: Callable[[Sequence[str], bool], str] = joined
    counts: bool = False
    """Whether the platform numbers items itself. Numbers after an unnumbered item are then written as text."""
    table: Callable[[Sequence[Sequence[str]]], str] | None = None
    """Renders tables natively, if set."""
    html: bool = False
    columns_max: int = 0
    """Maximum width of a monospace table, in columns. 0 means no limit."""
    edges: Literal["any", "apart", "spaced", "flanking"] = "any"
    """Positions where the platform accepts emphasis marks. Marks elsewhere are omitted, because people would see them.

        any        everywhere
        apart      not next to other marks
        spaced     next to a letter only with a zero-width space between
        flanking   as in CommonMark; before a letter, punctuation at an edge moves outside the marks
    """
    nests: bool = False
    """Whether code and headings look the same inside lists and quotes. Otherwise code is not indented, because the
    platform would show the indent, and headings are bold."""
    inner_quote: Wrap | None = None
    """Renders quotes inside quotes and lists, if they differ from other quotes."""
    shown: Wrap = str
    """Returns the rendered text as the platform counts it towards its limit."""
    marks: Callable[[str], int] = lambda rendered: 0
    """Counts the formatting entities in the rendered text, for platforms that limit them."""
