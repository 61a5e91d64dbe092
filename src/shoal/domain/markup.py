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
HARD_SPACE = "\u00a0"
"""Sets lines in where a parser leaves out plain spaces, or takes them for code."""

_MARK_OF: Mapping[str, str] = {"strong": "*", "em": "*", "s": "~"}
_STYLED: frozenset[str] = frozenset(_MARK_OF)
_RUNS = re.compile(r"`+")
_PAIR = re.compile(r"``(?=`)")
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")
_MARKDOWN = re.compile(r"([\\*_~`|\[\]<]|&(?=#?\w))")
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


def indented(text: str, width: int = 2, space: str = " ") -> str:
    """The text of an item, its lines below the first set in, but for those of code."""
    first, *rest = text.split("\n")
    return "\n".join((first, *(f"{space * width}{line}" if line and line[0] != CODE_LINE else line for line in rest)))


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
    """A fence where there are neither languages nor longer fences."""
    return f"```\n{without_fences(content.removesuffix(chr(10)))}\n```"


def without_fences(content: str) -> str:
    """Code in which no three backticks follow each other: a zero-width space keeps them apart."""
    return _PAIR.sub(f"``{ZERO_WIDTH_SPACE}", content)


def is_link(url: str) -> bool:
    """Whether platforms may be given this address as a link."""
    return url.startswith(("http://", "https://", "mailto:", "tel:"))


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
    opens: Callable[[str], bool] = is_link
    """Whether an address can be a link; of others it is written behind their words."""
    link: Callable[[str, str], str] = lambda label, url: url
    label: Wrap | None = None
    """Where links hold plain text alone: how that is written."""
    opens_links: bool = False
    """Whether `token` is used for addresses within a link's words too. Elsewhere they are text, since links do not
    nest."""
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
    opens=lambda url: False,
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
                words = self._heading(node)
                return dialect.heading(words, level) if words.strip() or dialect.html else words
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
                return _BLANK_LINES.sub("\n", self.spans(node.children))

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
            elif item.continued and body.startswith(CODE_LINE):
                items.append(dialect.item(body))
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
        """Spans as they are written between these: what is written before, and characters that may follow."""
        out: list[str] = []
        for at, node in enumerate(nodes):
            last = next((piece for piece in reversed(out) if piece), before)
            if node.kind in _STYLED:
                out.append(self._emphasis(node, last, self._edge(nodes[at + 1 :], first=True) or after))
            else:
                written = self._plain(node, last, self._edge(nodes[at + 1 :], first=True) or after)
                if (written.startswith("`") and last.endswith("`")) or (written.startswith("[") and last.endswith("!")):
                    out.append(ZERO_WIDTH_SPACE)  # neither a longer mark of code nor a picture
                out.append(written)
        return "".join(out)

    def _plain(self, node: Node, before: str = "", after: str = "") -> str:
        """A span that is not styled."""
        dialect = self._dialect
        match node.kind:
            case "break":
                return "\n"
            case "code":
                return dialect.code(node.text)
            case "link":
                return self._link(node, before, after)
            case "token":
                is_text = dialect.token is None or ("link" in self._open and not dialect.opens_links)
                return dialect.text(node.text) if is_text or dialect.token is None else dialect.token(node.text)
            case _:
                return dialect.text(node.text)

    def _edge(self, nodes: Sequence[Node], *, first: bool) -> str:
        """The characters with which spans may begin or end when they are written: those of a style and, where that is
        left out, those of its words. Empty for spans that say nothing."""
        for node in nodes if first else reversed(nodes):
            if node.kind in _STYLED:
                inner = self._edge(node.children, first=first)
                found = f"{_MARK_OF[node.kind]}{inner}" if inner else ""
            elif node.kind == "link":
                inner = self._edge(node.children, first=first)
                found = (
                    "["
                    if self._dialect.opens(node.url)
                    else inner or self._dialect.text(node.url)[:1]
                    if first
                    else ")"
                )
            elif node.kind == "code":
                found = "`"
            else:
                written = self._plain(node)
                found = written[:1] if first else written[-1:]
            if found:
                return found
        return ""

    def _edge_within(self, node: Node, *, first: bool) -> str:
        """As `_edge` for the words of a style, where marks that go on its own one do not count."""
        edge, inner = self._edge(node.children, first=first), node.children[0 if first else -1]
        return edge[1:] if inner.kind in _STYLED and _MARK_OF[inner.kind] == _MARK_OF[node.kind] else edge

    def _link(self, node: Node, before: str, after: str) -> str:
        dialect = self._dialect
        if "link" in self._open:
            return self.spans(node.children, before, after)
        opens = dialect.opens(node.url)
        if not opens:
            label = self.spans(node.children, before, " ")
        elif dialect.label is not None:
            label = dialect.label(plain_text(node.children))
        else:
            self._open.add("link")
            label = self.spans(node.children, "[", "]")
            self._open.discard("link")
        if node.title:
            label = f"{label} {dialect.text(f'({node.title})')}"
        if not opens:
            address = dialect.text(node.url)
            return f"{label} ({address})" if label not in ("", address) else address
        return dialect.link(label or (dialect.label or dialect.text)(node.url), node.url)

    def _emphasis(self, node: Node, before: str, after: str) -> str:
        """A styled span between what is written before it and the characters that may follow."""
        dialect, style, children = self._dialect, node.kind, node.children
        assert style in ("strong", "em", "s")
        if style in self._open:
            return self.spans(children, before, after)
        if dialect.edges == "spaced":
            left, right = (ZERO_WIDTH_SPACE if _joins(character) else "" for character in (before[-1:], after[:1]))
            return f"{left}{self._styled(node, style)}{right}"
        if dialect.edges == "any":
            return self._styled(node, style)
        mark = _MARK_OF[style]
        if _ends_with(before, mark) or mark in after:
            return self.spans(children, before, after)
        if dialect.edges == "apart":
            return self._styled(node, style, before, after)
        lead = trail = ""
        if _is_letter(before[-1:]) and children[0].kind == "text":
            node, lead = _without_edge(node, first=True)
        if any(map(_is_letter, after)) and node.children[-1].kind == "text":
            node, trail = _without_edge(node, first=False)
        begin, end = (self._edge_within(node, first=first) for first in (True, False))
        is_loose = (_is_letter(before[-1:]) and not lead and not all(map(_is_letter, begin))) or (
            any(map(_is_letter, after)) and not trail and not all(map(_is_letter, end))
        )
        if is_loose or not begin or begin.isspace() or end.isspace():
            return self.spans(children, before, after)
        lead, trail = dialect.text(lead), dialect.text(trail)
        return f"{lead}{self._styled(node, style, lead or before, trail or after)}{trail}"

    def _styled(self, node: Node, style: Style, before: str = "", after: str = "") -> str:
        mark, children = _MARK_OF[style], node.children
        while len(children) == 1 and children[0].kind in self._open | {style}:
            children = children[0].children
        first, last = 0, len(children)
        while first < last and _is_blank(children[first]):
            first += 1
        while first < last and _is_blank(children[last - 1]):
            last -= 1
        lead, trail = self.spans(children[:first]), self.spans(children[last:])
        children = children[first:last]
        is_one_run = len(children) == 1 and children[0].kind in _STYLED and _MARK_OF[children[0].kind] == mark
        self._open.add(style)
        inner = self.spans(children, *((before, after) if is_one_run else (mark, mark)))
        self._open.discard(style)
        content = inner.strip()
        if not content:
            return f"{lead}{inner}{trail}"
        at = len(inner) - len(inner.lstrip())
        written = self._dialect.styles[style](content)
        return f"{lead}{inner[:at]}{written}{inner[at + len(content) :]}{trail}"


def _is_blank(node: Node) -> bool:
    return node.kind == "break" or (node.kind == "text" and node.text.isspace())


def _before_code(written: str) -> str:
    return "\n".join(CODE_LINE + line for line in written.split("\n"))


def _is_letter(character: str) -> bool:
    """Whether there is a character, and neither white space nor punctuation, for CommonMark."""
    return bool(character) and not character.isspace() and category(character)[0] not in "PS"


def _ends_with(written: str, mark: str) -> bool:
    """Whether a text ends with this mark, not escaped."""
    if not written.endswith(mark):
        return False
    rest = written.removesuffix(mark)
    return (len(rest) - len(rest.rstrip("\\"))) % 2 == 0


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
