"""Markdown rendered in a platform's own markup: one tree, walked with the platform's dialect.

Pure functions, in the domain so that adapters, which render, and delivery, which measures, share them; dialects live
with their platforms. Nothing is lost: HTML and link definitions stay text, and tables become aligned monospace text
where a platform has none.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias
from unicodedata import category

import msgspec

from shoal.domain.markdown import Node, language_in, parse, plain_text
from shoal.domain.tables import aligned

Wrap: TypeAlias = Callable[[str], str]
Style: TypeAlias = Literal["strong", "em", "s"]

RENDERED_MAX = 64
"""Texts whose markup is kept: whoever sends one has measured it before."""
BOXES = ("☐ ", "☑ ")
"""How what is to be done and what is done begins in a task list."""
LEVELS = 6
"""The lowest level of a heading."""
CODE_LINE = "\x01"
"""Begins a line of code while a text is rendered, so that neither lists nor quotes shift it."""
ZERO_WIDTH_SPACE = "\u200b"

_STYLED: frozenset[str] = frozenset({"strong", "em", "s"})
_RUNS = re.compile(r"`+")
_MARKDOWN = re.compile(r"([\\*_~`|\[\]<])")
_MARKDOWN_START = re.compile(r"^([ \t]*)([>#+=-]|\d{1,9}[.)](?=\s|$))", re.MULTILINE)


# ---- what dialects are made of ----


def around(mark: str, end: str = "") -> Wrap:
    return lambda inner: f"{mark}{inner}{end or mark}"


def before_lines(mark: str) -> Wrap:
    """A mark before each line but those of code."""
    return lambda inner: "\n".join(line if line.startswith(CODE_LINE) else mark + line for line in inner.split("\n"))


def quoted(inner: str) -> str:
    """A quote as Markdown has it, its code too."""
    return "\n".join(f"> {line}" for line in inner.split("\n"))


def indented(text: str, width: int = 2) -> str:
    """The text of an item, its lines below the first set in, but for those of code."""
    first, *rest = text.split("\n")
    return "\n".join((first, *(f"{' ' * width}{line}" if line and line[0] != CODE_LINE else line for line in rest)))


def escaped(special: re.Pattern[str], text: str) -> str:
    """Text with a backslash before each special character, which is the pattern's first group."""
    return special.sub(r"\\\1", text)


def escaped_markdown(text: str) -> str:
    """Text in which a Markdown parser sees no markup."""
    return _MARKDOWN_START.sub(_escape_start, escaped(_MARKDOWN, text))


def _escape_start(found: re.Match[str]) -> str:
    mark = found[2]
    return f"{found[1]}{mark[:-1]}\\{mark[-1]}"


def markdown_code(code: str) -> str:
    """A code span that its content cannot close."""
    runs = {len(run) for run in _RUNS.findall(code)}
    mark = "`" * next(length for length in range(1, len(runs) + 2) if length not in runs)
    padded = (
        code.startswith("`") or code.endswith("`") or (code.startswith(" ") and code.endswith(" ") and code.strip())
    )
    return f"{mark} {code} {mark}" if padded else f"{mark}{code}{mark}"


def short_line(text: str, chars_max: int = 80) -> str:
    """The beginning of a text in one line, without marks of code."""
    line = " ".join(text.split()).replace("`", "'")
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"


def duration_text(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def counted(number: float, noun: str) -> str:
    """`1 file`, `2 files`, `1.5 seconds`."""
    amount = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{amount} {noun}{'' if number == 1 else 's'}"


def fenced(content: str, info: str) -> str:
    """A fence that its content cannot close."""
    longest = max((len(run) for run in _RUNS.findall(content)), default=2)
    mark = "`" * max(3, longest + 1)
    return f"{mark}{language_in(info)}\n{content.removesuffix(chr(10))}\n{mark}"


def bare_fence(content: str, info: str) -> str:
    """A fence where there are neither languages nor longer fences: a zero-width space keeps inner ones apart."""
    kept = content.removesuffix("\n").replace("```", f"``{ZERO_WIDTH_SPACE}`")
    return f"```\n{kept}\n```"


def is_link(url: str) -> bool:
    """Whether platforms may be given this address as a link."""
    return url.startswith(("http://", "https://", "mailto:", "tel:"))


def plain_link(label: str, url: str) -> str:
    return url if label == url else f"{label} ({url})"


def markdown_link(label: str, url: str) -> str:
    """A link for another Markdown parser; parentheses and spaces would end its address."""
    for character, code in (("(", "%28"), (")", "%29"), ("<", "%3C"), (">", "%3E"), (" ", "%20"), ("\\", "%5C")):
        url = url.replace(character, code)
    return f"[{label}]({url})"


def joined(blocks: Sequence[str], tight: bool) -> str:
    return ("\n" if tight else "\n\n").join(block for block in blocks if block)


def _same(text: str) -> str:
    return text


class Dialect(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """How a platform writes each thing; inner text comes rendered, but raw to `text`, `token`, `code` and `fence`."""

    text: Wrap
    token: Wrap | None = None
    """Addresses, paths, mentions and custom emojis; None writes them as text."""
    styles: Mapping[Style, Wrap]
    code: Wrap
    link: Callable[[str, str], str]
    label: Wrap | None = None
    """Where links hold plain text alone: how that is written."""
    heading: Callable[[str, int], str]
    fence: Callable[[str, str], str] = fenced
    quote: Wrap = quoted
    item: Wrap = indented
    bullet: str = "•"
    boxes: tuple[str, str] = BOXES
    continued: Callable[[Node, str, str], str] = lambda item, marker, body: f"  {body}"
    """An item that continues one of the message before, from the item, its marker and its text."""
    rule: str = "———"
    blocks: Callable[[Sequence[str], bool], str] = joined
    table: Callable[[Sequence[Sequence[str]]], str] | None = None
    """Where this is given, tables are written by the platform's own means."""
    html: bool = False
    columns_max: int = 0
    """How wide a table as monospace text may be; 0 is no bound."""
    edges: Literal["any", "apart", "spaced", "flanking"] = "any"
    """Where marks of emphasis count: anywhere; not next to other marks; not next to a letter, unless a zero-width space
    stands between; or as CommonMark has it, so that punctuation at an edge moves out where a letter follows. Where they
    would not count, they are left out, so that none is shown."""
    nests: bool = False
    """Whether code and headings are the same in lists and quotes. Elsewhere lines of code are not set in, since the
    platform would show that, and headings are bold."""
    inner_quote: Wrap | None = None
    """For quotes within quotes and lists, where those need another mark."""
    shown: Wrap = _same
    """What of the rendered text counts for the platform's limit."""
    marks: Callable[[str], int] = lambda rendered: 0
    """How many marks the platform counts in the rendered text, where it counts them."""


SINGLE_MARKS: Mapping[Style, Wrap] = {"strong": around("*"), "em": around("_"), "s": around("~")}
"""As most chats mark text."""
MARKDOWN_MARKS: Mapping[Style, Wrap] = {"strong": around("**"), "em": around("*"), "s": around("~~")}
PLAIN = Dialect(
    text=_same,
    styles={"strong": _same, "em": _same, "s": _same},
    code=_same,
    link=plain_link,
    heading=lambda text, level: text,
    nests=True,
)


# ---- rendering ----


@lru_cache(RENDERED_MAX)
def render_markup(markdown: str, dialect: Dialect | None) -> str:
    """`markdown` in a platform's own markup; as it is without a dialect."""
    return markdown if dialect is None else render_tree(parse(markdown), dialect)


def render_tree(blocks: Sequence[Node], dialect: Dialect) -> str:
    """A parsed text in a platform's own markup."""
    return _Renderer(dialect).document(blocks)


class _Renderer:
    """One walk over a tree."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._open: set[str] = set()
        self._depth = 0

    def document(self, blocks: Sequence[Node]) -> str:
        return self._dialect.blocks([self._block(node) for node in blocks], False).replace(CODE_LINE, "")

    def _block(self, node: Node) -> str:
        dialect = self._dialect
        match node.kind:
            case "heading":
                level = node.number if dialect.nests or not self._depth else LEVELS
                return dialect.heading(self._heading(node), level)
            case "fence":
                return self._fence(node.text, node.info)
            case "quote":
                quote = dialect.inner_quote if self._depth and dialect.inner_quote is not None else dialect.quote
                return quote(self._nested(node, tight=False))
            case "list":
                return self._list(node)
            case "table":
                return self._table(node)
            case "rule":
                return dialect.rule
            case "raw":
                return (dialect.token or dialect.text)(node.text)
            case _:
                return self.spans(node.children)

    def _heading(self, node: Node) -> str:
        """The words of a heading, which is bold itself; where marks cannot stand next to others, it has no more."""
        within: set[str] = {"strong"} if self._dialect.edges == "any" else {"strong", "em", "s"}
        added = within - self._open
        self._open |= added
        written = self.spans(node.children)
        self._open -= added
        return written

    def _fence(self, content: str, info: str) -> str:
        written = self._dialect.fence(content, info)
        return written if self._dialect.nests else _before_code(written)

    def _nested(self, node: Node, *, tight: bool) -> str:
        """The blocks of a quote or of a list's item."""
        self._depth += 1
        inner = self._dialect.blocks([self._block(child) for child in node.children], tight)
        self._depth -= 1
        return inner

    def _list(self, node: Node) -> str:
        dialect = self._dialect
        items: list[str] = []
        for number, item in enumerate(node.children, node.number):
            marker = f"{number}{node.info}" if node.number >= 0 else dialect.bullet or node.info
            body = self._nested(item, tight=node.tight)
            box = dialect.boxes[item.box == "x"] if item.box else ""
            if dialect.html:
                items.append(dialect.item(box + body))
            elif item.continued:
                items.append(dialect.item(dialect.continued(item, marker, body)))
            elif box and dialect.boxes is BOXES:
                items.append(dialect.item(box + body if node.number < 0 else f"{marker} {box}{body}"))
            elif body.startswith(CODE_LINE):
                items.append(dialect.item(f"{marker}\n{body}"))
            else:
                items.append(dialect.item(f"{marker} {box}{body}"))
        if not dialect.html:
            return "\n".join(items)
        opening = f'<ol start="{node.number}">' if node.number >= 0 else "<ul>"
        return f"{opening}{''.join(items)}</{'ol' if node.number >= 0 else 'ul'}>"

    def _table(self, node: Node) -> str:
        if self._dialect.table is not None:
            return self._dialect.table([[self.spans(cell.children) for cell in row.children] for row in node.children])
        plain = _Renderer(PLAIN)
        cells = [[plain.spans(cell.children) for cell in row.children] for row in node.children]
        return self._fence(aligned(cells, self._dialect.columns_max), "")

    def spans(self, nodes: Sequence[Node], before: str = "", after: str = "") -> str:
        """Spans as they are written between these characters."""
        out: list[str] = []
        for at, node in enumerate(nodes):
            if node.kind in _STYLED:
                last = next((piece[-1] for piece in reversed(out) if piece), before)
                following = self._first(nodes[at + 1]) if at + 1 < len(nodes) else after
                out.append(self._emphasis(node, last, following, is_second=at > 0 and nodes[at - 1].kind in _STYLED))
            else:
                out.append(self._plain(node))
        return "".join(out)

    def _plain(self, node: Node) -> str:
        """A span that is not styled."""
        dialect = self._dialect
        match node.kind:
            case "break":
                return "\n"
            case "code":
                return dialect.code(node.text)
            case "link":
                return self._link(node)
            case "token":
                return (dialect.token or dialect.text)(node.text)
            case _:
                return dialect.text(node.text)

    def _first(self, node: Node) -> str:
        """The character with which a span that follows another one begins when it is written."""
        if node.kind not in _STYLED:
            return self._plain(node)[:1]
        return self.spans(node.children)[:1] if self._dialect.edges == "flanking" else "*"

    def _link(self, node: Node) -> str:
        dialect = self._dialect
        if "link" in self._open:
            return self.spans(node.children)
        self._open.add("link")
        label = dialect.label(plain_text(node.children)) if dialect.label is not None else self.spans(node.children)
        self._open.discard("link")
        if node.title:
            label = f"{label} {dialect.text(f'({node.title})')}"
        return dialect.link(label or dialect.text(node.url), node.url)

    def _emphasis(self, node: Node, before: str, after: str, *, is_second: bool) -> str:
        """A styled span; `before` and `after` are the characters next to it, `is_second` says that it directly follows
        another one."""
        dialect, style, children = self._dialect, node.kind, node.children
        assert style in ("strong", "em", "s")
        if style in self._open:
            return self.spans(children, before, after)
        if dialect.edges == "spaced":
            left, right = (ZERO_WIDTH_SPACE if _joins(character) else "" for character in (before, after))
            return f"{left}{self._styled(node, style)}{right}"
        if dialect.edges == "any":
            return self._styled(node, style)
        if is_second:
            return self.spans(children, before, after)
        if dialect.edges == "apart":
            is_run = len(children) > 1 and bool({children[0].kind, children[-1].kind} & _STYLED)
            return self.spans(children) if is_run else self._styled(node, style)
        lead = trail = ""
        if _is_letter(before) and children[0].kind == "text":
            node, lead = _without_edge(node, first=True)
        if _is_letter(after) and node.children[-1].kind == "text":
            node, trail = _without_edge(node, first=False)
        self._open.add(style)
        inner = self.spans(node.children).strip()
        self._open.discard(style)
        is_loose = (_is_letter(before) and not lead and not _is_letter(inner[:1])) or (
            _is_letter(after) and not trail and not _is_letter(inner[-1:])
        )
        if is_loose or not inner:
            return self.spans(children, before, after)
        return f"{dialect.text(lead)}{self._styled(node, style)}{dialect.text(trail)}"

    def _styled(self, node: Node, style: Style) -> str:
        if style in self._open:
            return self.spans(node.children)
        self._open.add(style)
        inner = self.spans(node.children)
        self._open.discard(style)
        content = inner.strip()
        if not content:
            return inner
        lead = len(inner) - len(inner.lstrip())
        return f"{inner[:lead]}{self._dialect.styles[style](content)}{inner[lead + len(content) :]}"


def _before_code(written: str) -> str:
    return "\n".join(CODE_LINE + line for line in written.split("\n"))


def _is_letter(character: str) -> bool:
    """Whether there is a character, and neither white space nor punctuation, for CommonMark."""
    return bool(character) and not character.isspace() and category(character)[0] not in "PS"


def _joins(character: str) -> bool:
    """Whether a mark of emphasis next to this character does not count in Slack."""
    return (
        bool(character)
        and not character.isspace()
        and (not character.isascii() or character.isalnum() or character in "_*~`")
    )


def _without_edge(node: Node, *, first: bool) -> tuple[Node, str]:
    """A styled span without the punctuation at one of its ends, and that punctuation; as it is where all is that."""
    children = list(node.children)
    text = children[0 if first else -1].text
    letters = [at for at, character in enumerate(text) if category(character)[0] not in "PS"]
    if not letters:
        return node, ""
    at = letters[0] if first else letters[-1] + 1
    edge, kept = (text[:at], text[at:]) if first else (text[at:], text[:at])
    children[0 if first else -1] = Node("text", text=kept)
    return msgspec.structs.replace(node, children=children), edge
