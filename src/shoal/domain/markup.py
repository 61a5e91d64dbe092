"""Markdown rendered in a platform's own markup: one syntax tree, walked with the platform's dialect.

Pure functions, in the domain so that adapters, which render, and delivery, which measures, share them; dialects live
with their platforms. Nothing is lost: HTML and link definitions stay text, and tables become aligned monospace text
where a platform has none.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from shoal.domain.tables import aligned, cells_in

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.tree import SyntaxTreeNode

NESTING_MAX = 40
"""Deeper text is taken as it stands; nobody writes it, and the tree is walked recursively."""

Wrap: TypeAlias = Callable[[str], str]
Style: TypeAlias = Literal["strong", "em", "s"]

MATH_LINES_MAX = 100
BOXES = ("☐ ", "☑ ")
"""How what is to be done and what is done begins in a task list."""

_MATH = re.compile(
    r"\$\$[^\n]{1,2000}?\$\$"
    r"|\$(?![\s$])(?:\\.|[^\\$\n]){1,1000}?(?<!\s)\$(?!\w)"  # what is not so is money
    r"|\\\([^\n]{1,1000}?\\\)"
)
_MATH_BLOCK = re.compile(r" {0,3}(\$\$[\s\S]{1,4000}?\$\$|\\\[[\s\S]{1,4000}?\\\])[ \t]*(?:\n|$)")
_BOX = re.compile(r"^\[([ xX])\] ")
_NOTE = re.compile(r"^\[\^([^\]\s]{1,40})\]:", re.MULTILINE)
_NOTE_MARK = re.compile(r"\[\^([^\]\s]{1,40})\]")
_NOT_LANGUAGE = re.compile(r"[^\w+#.-]")
_MARKDOWN = re.compile(r"([\\*_~`|])")
_MARKDOWN_START = re.compile(r"^(\s*)([>#-])", re.MULTILINE)


# ---- what dialects are made of ----


def around(mark: str, end: str = "") -> Wrap:
    """Text between two marks."""
    return lambda inner: f"{mark}{inner}{end or mark}"


def before_lines(mark: str) -> Wrap:
    """Text with a mark before each line."""
    return lambda inner: "\n".join(f"{mark}{line}" for line in inner.split("\n"))


def escaped(special: re.Pattern[str], text: str) -> str:
    """Text with a backslash before each special character, which is the pattern's first group."""
    return special.sub(r"\\\1", text)


def escaped_markdown(text: str) -> str:
    """Text that Markdown shows as it is written."""
    return _MARKDOWN_START.sub(r"\1\\\2", escaped(_MARKDOWN, text))


def markdown_code(code: str) -> str:
    """A code span that its content cannot close."""
    return f"`` {code} ``" if "`" in code else f"`{code}`"


def language_in(info: str) -> str:
    """The language that a fence's opening line names, without what could end the fence."""
    return _NOT_LANGUAGE.sub("", info)


def short_line(text: str, chars_max: int = 80) -> str:
    """The beginning of a text in one line, without marks of code."""
    line = " ".join(text.split()).replace("`", "'")
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"


def duration_text(milliseconds: int) -> str:
    """How long something took, for people."""
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def counted(number: float, noun: str) -> str:
    """`1 file`, `2 files`, `1.5 seconds`."""
    amount = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{amount} {noun}{'' if number == 1 else 's'}"


def fenced(content: str, info: str) -> str:
    """A fence that its content cannot close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", content)), default=2)
    mark = "`" * max(3, longest + 1)
    return f"{mark}{language_in(info)}\n{content.rstrip(chr(10))}\n{mark}"


def bare_fence(content: str, info: str) -> str:
    """A fence where there are neither languages nor longer fences: a zero-width space keeps inner ones apart."""
    kept = content.rstrip("\n").replace("```", "``\u200b`")
    return f"```\n{kept}\n```"


def is_link(url: str) -> bool:
    """Whether platforms may be given this address as a link."""
    return url.startswith(("http://", "https://", "mailto:", "tel:"))


def plain_link(label: str, url: str) -> str:
    """A link as text."""
    return url if label == url else f"{label} ({url})"


def joined(blocks: Sequence[str], tight: bool) -> str:
    """Blocks below one another."""
    return ("\n" if tight else "\n\n").join(block for block in blocks if block)


def _same(text: str) -> str:
    return text


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a platform writes each thing; inner text comes rendered, but raw to `text`, `code` and `fence`."""

    text: Wrap
    styles: Mapping[Style, Wrap]
    code: Wrap
    link: Callable[[str, str], str]
    heading: Callable[[str, int], str]
    fence: Callable[[str, str], str] = fenced
    quote: Wrap = before_lines("> ")
    item: Wrap = lambda text: text.replace("\n", "\n  ")
    rule: str = "———"
    blocks: Callable[[Sequence[str], bool], str] = joined
    table: Callable[[Sequence[Sequence[str]]], str] | None = None
    """Where this is given, lists are HTML's too."""
    columns_max: int = 0
    """How wide a table as monospace text may be; 0 is no bound."""
    em_separator: str = ""
    inner_quote: Wrap | None = None
    """For quotes within quotes and lists, where those need another mark."""


SINGLE_MARKS: Mapping[Style, Wrap] = {"strong": around("*"), "em": around("_"), "s": around("~")}
"""As most chats mark text."""
MARKDOWN_MARKS: Mapping[Style, Wrap] = {"strong": around("**"), "em": around("*"), "s": around("~~")}
PLAIN = Dialect(
    text=_same,
    styles={"strong": _same, "em": _same, "s": _same},
    code=_same,
    link=plain_link,
    heading=lambda text, level: text,
)
"""Text without any marks."""


# ---- rendering ----


@cache
def parser() -> "MarkdownIt":
    """Markdown as it is understood here: CommonMark with tables, ~~struck~~ words, and formulas, without HTML."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": NESTING_MAX})
    parser.block.ruler.before("fence", "math", _math_block, {"alt": ["paragraph", "blockquote", "list"]})
    parser.inline.ruler.before("escape", "math", _math)
    return parser.enable(["table", "strikethrough"]).disable(["reference", "html_block", "html_inline"])


def _math(state: "StateInline", silent: bool) -> bool:
    """A formula is text as it is written; no mark within it counts."""
    found = _MATH.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        state.push("math", "", 0).content = found[0]
    state.pos = found.end()
    return True


def _math_block(state: "StateBlock", start: int, end: int, silent: bool) -> bool:
    """A formula on lines of its own."""
    if state.is_code_block(start) or not state.src.startswith(("$$", "\\["), state.bMarks[start] + state.tShift[start]):
        return False
    end = min(end, start + MATH_LINES_MAX)
    found = _MATH_BLOCK.match(state.getLines(start, end, state.blkIndent, False))
    if found is None:
        return False
    after = start + found[1].count("\n") + 1
    if any(state.sCount[line] < state.blkIndent and not state.isEmpty(line) for line in range(start, after)):
        return False  # the list that it is in ends within it
    if not silent:
        token = state.push("math_block", "", 0)
        token.content, token.map = found[1], [start, after]
        state.line = after
    return True


def render_markup(markdown: str, dialect: Dialect | None) -> str:
    """`markdown` in a platform's own markup; as it is without a dialect."""
    if dialect is None:
        return markdown
    tokens = parser().parse(markdown)
    if any(token.level >= NESTING_MAX - 1 for token in tokens):
        return dialect.text(markdown)
    from markdown_it.tree import SyntaxTreeNode

    renderer = _Renderer(dialect, markdown)
    return dialect.blocks([renderer.block(node) for node in SyntaxTreeNode(tokens).children], False)


class _Renderer:
    """One walk over a tree."""

    def __init__(self, dialect: Dialect, markdown: str = "") -> None:
        self._dialect = dialect
        self._lines = markdown.split("\n")
        self._notes = set(_NOTE.findall(markdown))
        self._open: set[str] = set()
        self._depth = 0

    def block(self, node: "SyntaxTreeNode") -> str:
        dialect = self._dialect
        match node.type:
            case "heading":
                return dialect.heading(self._styled(node, "strong", mark=False), int(node.tag[1]))
            case "fence" | "code_block":
                info = node.info.strip()
                if info.isascii() and _NOT_LANGUAGE.search(info) is None:
                    return dialect.fence(node.content, info)
                return dialect.fence(f"{info}\n{node.content}", "")  # words behind the language must not be lost
            case "blockquote":
                quote = dialect.inner_quote if self._depth and dialect.inner_quote is not None else dialect.quote
                return quote(self._nested(node, tight=False))
            case "bullet_list" | "ordered_list":
                return self._list(node)
            case "table":
                return self._table(node)
            case "hr":
                return dialect.rule
            case "paragraph" | "inline":
                return self._inline(node.children)
            case _:
                return dialect.text(node.content)

    def _nested(self, node: "SyntaxTreeNode", *, tight: bool) -> str:
        """The blocks of a quote or of a list's item."""
        self._depth += 1
        inner = self._dialect.blocks([self.block(child) for child in node.children], tight)
        self._depth -= 1
        return inner

    def _list(self, node: "SyntaxTreeNode") -> str:
        ordered = node.type == "ordered_list"
        start = int(node.attrs.get("start", 1)) if ordered else 0
        tight = all(child.hidden for item in node.children for child in item.children if child.type == "paragraph")
        items: list[str] = []
        for number, item in enumerate(node.children, start):
            marker = self._dialect.text(f"{number}.") if ordered else "•"
            first = list(islice(item.walk(include_self=False), 3))
            if not ordered and [node.type for node in first] == ["paragraph", "inline", "text"]:
                text = first[-1].token
                assert text is not None, "text is of one token"
                text.content = _BOX.sub(lambda box: BOXES[box[1] != " "], text.content)
            body = self._nested(item, tight=tight)
            has_mark = self._dialect.table is not None or (not ordered and body.startswith(BOXES))
            items.append(self._dialect.item(body if has_mark else f"{marker} {body}"))
        if self._dialect.table is None:
            return "\n".join(items)
        opening = f'<ol start="{start}">' if ordered else "<ul>"
        return f"{opening}{''.join(items)}</{'ol' if ordered else 'ul'}>"

    def _table(self, node: "SyntaxTreeNode") -> str:
        rows = [row for part in node.children for row in part.children]
        written = self._lines[node.map[0] : node.map[1]] if node.map else ()
        if any(cells_in(line) > len(rows[0].children) for line in written):  # the parser leaves out what has no header
            return self._dialect.fence("\n".join(written) + "\n", "")
        if self._dialect.table is not None:
            return self._dialect.table([[self._inline(cell.children) for cell in row.children] for row in rows])
        plain = _Renderer(PLAIN)
        cells = [[plain._inline(cell.children) for cell in row.children] for row in rows]
        return self._dialect.fence(aligned(cells, self._dialect.columns_max), "")

    def _inline(self, nodes: "Sequence[SyntaxTreeNode]") -> str:
        dialect = self._dialect
        out: list[str] = []
        before = ""
        for node in nodes:
            match node.type:
                case "softbreak" | "hardbreak":
                    piece = "\n"
                case "code_inline":
                    piece = dialect.code(node.content)
                case "strong" | "em" | "s":
                    piece = self._styled(node, node.type)
                case "link":
                    piece = self._link(node, str(node.attrs.get("href", "")))
                case "image":
                    piece = self._link(node, str(node.attrs.get("src", "")))
                case "inline":
                    piece = self._inline(node.children)
                case _:
                    content = node.content
                    if "[^" in content and node.type == "text":  # a number stands for a note that may be still to come
                        content = _NOTE_MARK.sub(
                            lambda mark: f"[{mark[1]}]" if mark[1].isdigit() or mark[1] in self._notes else mark[0],
                            content,
                        )
                    piece = dialect.text(content)
            if node.type == before == "em" and piece:
                out.append(dialect.em_separator)
            out.append(piece)
            before = node.type
        return "".join(out)

    def _link(self, node: "SyntaxTreeNode", url: str) -> str:
        if "link" in self._open:
            return self._inline(node.children)
        self._open.add("link")
        label = self._inline(node.children)
        self._open.discard("link")
        title = str(node.attrs.get("title", ""))
        if title:
            label = f"{label} {self._dialect.text(f'({title})')}"
        return self._dialect.link(label or self._dialect.text(url), url)

    def _styled(self, node: "SyntaxTreeNode", style: Style, *, mark: bool = True) -> str:
        if style in self._open:
            return self._inline(node.children)
        self._open.add(style)
        inner = self._inline(node.children)
        self._open.discard(style)
        return self._dialect.styles[style](inner) if mark and inner.strip() else inner
