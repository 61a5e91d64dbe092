"""Markup of chat platforms: nodes of parsed text, and dialects that render them."""

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
CODE_LINE = "\x01"
"""Marks a line of code during rendering, so lists and quotes do not indent the line."""

_RUNS = lazy_re.compile(r"`+")
_NOT_LANGUAGE = lazy_re.compile(r"[^\w+#.-]")


class Node(msgspec.Struct, eq=False):
    """A block or a span of parsed text."""

    kind: Kind
    children: list["Node"] = []
    text: str = ""
    """Text of a leaf node."""
    info: str = ""
    """Language of a fence or marker of a list. `definition` for a paragraph that contains definitions."""
    url: str = ""
    title: str = ""
    number: int = 0
    """Level of a heading, or number of the first item in a list. -1 for a bulleted list."""
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
    """Renders URLs, paths, mentions and custom emojis. If None, they are rendered as text."""
    styles: Mapping[Style, Wrap]
    code: Wrap
    opens: Callable[[str], bool] = is_link
    """Returns whether a URL can be the target of a link. Other URLs are written after the link's text."""
    link: Callable[[str, str], str] = lambda label, url: url
    label: Wrap | None = None
    """Renders the text of a link, on platforms where links can contain only plain text."""
    opens_links: bool = False
    """Whether `token` also renders URLs in the text of a link. By default, these URLs are plain text, because links
    cannot be nested.
    """
    heading: Callable[[str, int], str]
    fence: Callable[[str, str], str] = fenced
    quote: Wrap = quoted
    item: Wrap = indented
    bullet: str = "•"
    boxes: tuple[str, str] = BOXES
    continued: Callable[[Node, str, str], str] = lambda item, marker, body: f"  {body}"
    """Renders an item that continues from the previous message. The arguments are the item, its marker and its text."""
    rule: str = "———"
    blocks: Callable[[Sequence[str], bool], str] = joined
    counts: bool = False
    """True if the platform numbers list items itself. After an item without a number, the following numbers are escaped
    and written as text.
    """
    table: Callable[[Sequence[Sequence[str]]], str] | None = None
    """Renders tables in the platform's own format. If None, tables are rendered as text."""
    html: bool = False
    columns_max: int = 0
    """Maximum width of a monospace table, in columns. 0 means no limit."""
    edges: Literal["any", "apart", "spaced", "flanking"] = "any"
    """Positions at which the platform accepts emphasis marks. Other marks are omitted, because people would see them.

    `any`: everywhere.
    `apart`: not next to another mark of the same kind.
    `spaced`: next to a letter only if a zero-width space separates them.
    `flanking`: as in CommonMark. Next to a letter, punctuation at the edge of the text is moved outside the marks.
    """
    nests: bool = False
    """True if code and headings look the same inside and outside lists and quotes. Otherwise, code inside them is not
    indented, because people would see the indentation, and headings inside them are bold.
    """
    inner_quote: Wrap | None = None
    """Renders quotes inside quotes and lists. If None, they are rendered like other quotes."""
    shown: Wrap = str
    """Returns the part of the rendered text that counts toward the platform's length limit."""
    marks: Callable[[str], int] = lambda rendered: 0
    """Counts the formatting entities in rendered text, for platforms that limit their number."""
