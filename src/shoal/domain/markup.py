"""Markdown rendered in a platform's own markup: one syntax tree, walked with the platform's dialect.

Pure functions, in the domain so that adapters, which render, and delivery, which measures, share them; dialects live
with their platforms. Nothing is lost: HTML and link definitions stay text, and tables become aligned monospace text
where a platform has none.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from shoal.domain.tables import aligned, cells_in

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token
    from markdown_it.tree import SyntaxTreeNode

NESTING_MAX = 40
"""Deeper text is taken as it stands; nobody writes it, and the tree is walked recursively."""

Wrap: TypeAlias = Callable[[str], str]
Style: TypeAlias = Literal["strong", "em", "s"]

MATH_LINES_MAX = 100
RENDERED_MAX = 64
"""Texts whose markup is kept: whoever sends one has measured it before."""
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
_MARKDOWN_START = re.compile(r"^([^\S\n]*+)([>#-])", re.MULTILINE)


# ---- what dialects are made of ----


def around(mark: str, end: str = "") -> Wrap:
    return lambda inner: f"{mark}{inner}{end or mark}"


def before_lines(mark: str) -> Wrap:
    return lambda inner: "\n".join(f"{mark}{line}" for line in inner.split("\n"))


def escaped(special: re.Pattern[str], text: str) -> str:
    """Text with a backslash before each special character, which is the pattern's first group."""
    return special.sub(r"\\\1", text)


def escaped_markdown(text: str) -> str:
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
    return url if label == url else f"{label} ({url})"


def joined(blocks: Sequence[str], tight: bool) -> str:
    return ("\n" if tight else "\n\n").join(block for block in blocks if block)


def _same(text: str) -> str:
    return text


class Dialect(msgspec.Struct, frozen=True, kw_only=True, eq=False):
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


@lru_cache(RENDERED_MAX)
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
                case "link" | "image":
                    piece = self._link(node)
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

    def _link(self, node: "SyntaxTreeNode") -> str:
        if "link" in self._open:
            return self._inline(node.children)
        self._open.add("link")
        label = self._inline(node.children)
        self._open.discard("link")
        url, title = (str(node.attrs.get(name, "")) for name in ("src" if node.type == "image" else "href", "title"))
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


# ---- what is still being written ----
#
# Markdown that is still being written, made fit to be shown: what is open is closed, what has just begun left out.
#
#     at the end of the text                               it is shown as
#     --------------------------------------------------   ----------------------------------------------------
#     `Some **bo`, `a ~~b`, `` a `b ``                     closed: `Some **bo**`
#     `Some **`, `a \`, a line of marks alone (`#`, `--`)  without it
#     `see [the tab`, `see [the table](https://exa`        its words: `see the tab`
#     within a code fence                                  closed by a fence of its own
#     an opening fence without its line's end              without it
#
# Nothing that is shown goes away as the text grows: only marks come and go, and what they mean is the parser's word.

ROUNDS_MAX = 100
"""How often an end is looked at anew, at most: brackets within brackets, say."""

_FENCE = re.compile(r"^((?:[ >]|[-+*] |\d{1,9}[.)] )*)(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_MARKS = re.compile(r"(?:^|\n)[\s>]*[-=+*_#>|:~`\\\[\]!.\s]*[-=+*_#>|:~`\\\[!]\s*$")
_IMAGE = re.compile(r"(?<!\\)(?:\\\\)*!$")
_MARK = re.compile(r"[*_~`\[<!\\\n]")
_ADDRESS = re.compile(r"<(?=[a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\s<>]*$)")
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_EMPHASIS = re.compile(r"[*_~]")
_TRAILING = re.compile(r"(?<![*_~])[*_~]++$")


def closed(text: str) -> str:
    """The text as it can be shown now, without white space at its end."""
    text = text.rstrip()
    for _ in range(ROUNDS_MAX):
        fence = _open_fence(text)
        if fence is not None:
            inside = _within_fence(text, fence)
            if inside == text:
                return f"{text}\n{re.sub(r'[^> ]', ' ', fence[1])}{fence[2]}"
            text = inside.rstrip()
            continue
        begun = _MARKS.search(text)
        before, _, last = text.rpartition("\n")
        if begun is not None and not (_FENCE.match(last) and _open_fence(before)):  # the last line ends no fence
            text = text[: begun.start()].rstrip()
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


def settled(text: str) -> str:
    """The beginning of the text in which nothing is open but a code fence: what comes later only adds to it."""
    text = text.rstrip()
    fence = _open_fence(text)
    if fence is not None:
        return _within_fence(text, fence)
    candidates = [found.start() for found in _MARK.finditer(text)][-ROUNDS_MAX:]
    for at in [len(text), *reversed(candidates)]:
        begun = text[:at].rstrip("! \t\n")  # an image may begin
        if closed(begun) == begun:
            return begun
    return text[: _last_block(text)].rstrip()


def marked(text: str, mark: str) -> str:
    """The text with a mark behind it, which ends no fence and no table."""
    last = text.rpartition("\n")[2].lstrip(" >")
    return f"{text}\n\n{mark}" if last.startswith(("```", "~~~", "|")) else text + mark


def _with_marks_closed(block: str) -> str:
    """The block with its open emphasis closed; as it is where the parser does not take that."""
    marks = _open_marks(block) if _EMPHASIS.search(block) else ()
    if not marks:
        return block
    ended = block + "".join(reversed(marks))
    return ended if not _open_marks(ended) and not _loose_end(ended) else block


def _open_fence(text: str) -> "re.Match[str] | None":
    """The opening line of the fence that is open at the end."""
    fence: re.Match[str] | None = None
    for found in _FENCE.finditer(text):
        if fence is None:
            fence = found if found[2][0] == "~" or "`" not in found[3] else None
        elif not found[3].strip() and found[2].startswith(fence[2]):
            fence = None
    return fence


def _within_fence(text: str, fence: "re.Match[str]") -> str:
    """The text without an opening fence that is still being written, or the beginning of a closing one."""
    if "\n" not in text[fence.start() :]:
        return text[: fence.start()].rstrip()
    before, _, last = text.rpartition("\n")
    return before if last.strip(" >") and not last.strip(" >").strip(fence[2][0]) else text


def _last_block(text: str) -> int:
    """Where the last block begins, roughly: after a blank line or a fence."""
    blank = max((found.end() for found in _BLANK_LINE.finditer(text)), default=0)
    fence = max((found.end() + 1 for found in _FENCE.finditer(text)), default=0)
    return min(max(blank, fence), len(text))


def _spans(block: str) -> tuple[str, str]:
    """The block without a link or an escape that is still being written, and what closes code that is."""
    brackets: list[int] = []
    at = 0
    while at < len(block):
        character = block[at]
        if character == "\\":
            if at + 1 == len(block):
                return block[:at], ""
            at += 2
            continue
        if character == "`":
            run = len(block) - at - len(block[at:].lstrip("`"))
            end = re.compile(rf"(?<!`)`{{{run}}}(?!`)").search(block, at + run)
            if end is None:
                body = block[at + run :].rstrip("`")
                return (block[:at], "") if not body.strip() else (block[: at + run] + body.rstrip(), "`" * run)
            at = end.end()
            continue
        at += 1
        if character == "[":
            brackets.append(at - 1)
        elif character == "]" and brackets:
            opened, address = brackets.pop(), at
            at = _address_end(block, address)
            if at < 0:
                return _unlinked(block, opened, address - 1), ""
    if brackets:
        return _unlinked(block, brackets[-1], len(block)), ""
    return _ADDRESS.sub("", block), ""


def _address_end(block: str, at: int) -> int:
    """Where a link's address ends that begins here, if one does; -1 while it is, or may be, being written."""
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
        elif block[at].isspace() and '"' not in block[at:]:
            return at  # no address has spaces
        at += 1
    return at if at < len(block) else -1


def _unlinked(block: str, opened: int, end: int) -> str:
    before = block[:opened]
    is_image = _IMAGE.search(before) is not None
    return before[: opened - is_image] + block[opened + 1 : end]


def _inline(block: str) -> "Token | None":
    tokens = parser().parse("\n".join(line.lstrip(" ") for line in block.split("\n")))
    return next((token for token in reversed(tokens) if token.type == "inline"), None)


def _loose_end(block: str) -> int:
    """How many marks at the end neither close anything nor have anything behind them yet."""
    found = _TRAILING.search(block)
    if found is None:
        return 0
    token = _inline(block)
    if token is None:  # a mark of a list or a quote
        return len(found[0])
    if not token.children or token.children[-1].type != "text":
        return 0
    loose = _TRAILING.search(token.children[-1].content)
    escaped = block[: found.start()].endswith("\\")
    return max(0, min(len(loose[0]), len(found[0])) - escaped) if loose is not None else 0


def _open_marks(block: str) -> "Sequence[str]":
    """The marks of emphasis that are open at the end of the block, in the order in which they were opened."""
    from markdown_it.rules_inline import StateInline

    token = _inline(block)
    if token is None:
        return ()
    inline = parser().inline
    state = StateInline(token.content, parser(), {}, [])
    inline.tokenize(state)
    for rule in inline.ruler2.getRules(""):
        rule(state)
    return ["~~" if chr(one.marker) == "~" else chr(one.marker) for one in state.delimiters if one.open and one.end < 0]
