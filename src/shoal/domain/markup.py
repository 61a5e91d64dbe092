"""Markdown in a platform's own markup: one syntax tree, and a dialect for each platform.

Pure functions, in the domain so that adapters (which render) and delivery (which measures) share them. Nothing is
lost: HTML and link definitions stay text, tables become aligned monospace text where a platform has none.
"""

import html
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from shoal.domain.posts import ChatLimits, Markup
from shoal.domain.tables import aligned, cells_in

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

NESTING_MAX = 40
"""Deeper text is taken as it stands; nobody writes it, and the tree is walked recursively."""

Wrap: TypeAlias = Callable[[str], str]
Style: TypeAlias = Literal["strong", "em", "s"]


class Dialect(msgspec.Struct, frozen=True):
    """How a platform writes each thing; inner text comes rendered, but raw to `text`, `code` and `fence`."""

    text: Wrap
    styles: dict[Style, Wrap]
    code: Wrap
    fence: Callable[[str, str], str]
    link: Callable[[str, str], str]
    heading: Callable[[str, int], str]
    quote: Wrap
    item: Callable[[str], str]
    rule: str
    blocks: Callable[[Sequence[str], bool], str]
    table: Callable[[Sequence[Sequence[str]]], str] | None = None
    em_separator: str = ""
    inner_quote: Wrap | None = None
    """For quotes within quotes and lists, where those need another mark."""


def render_markup(markdown: str, markup: Markup) -> str:
    """`markdown` in a platform's own markup; itself for `markdown`."""
    if markup == "markdown":
        return markdown
    dialect = _dialects()[markup]
    tokens = parser().parse(markdown)
    if any(token.level >= NESTING_MAX - 1 for token in tokens):
        return dialect.text(markdown)
    from markdown_it.tree import SyntaxTreeNode

    return _Walk(dialect, markdown.split("\n")).blocks(SyntaxTreeNode(tokens).children, tight=False)


def measure(text: str, limits: ChatLimits) -> int:
    """How long `text` is, as the platform counts."""
    match limits.text_unit:
        case "characters":
            return len(text)
        case "utf16":
            return len(text) + sum(1 for character in text if ord(character) > 0xFFFF)
        case "bytes":
            return len(text.encode("utf-8", "replace"))


class _Walk:
    """One walk over a tree."""

    def __init__(self, dialect: Dialect, lines: "Sequence[str]" = ()) -> None:
        self._dialect = dialect
        self._lines = lines
        self._open: set[str] = set()
        self._within = 0

    def blocks(self, nodes: "Sequence[SyntaxTreeNode]", *, tight: bool) -> str:
        return self._dialect.blocks([self._block(node) for node in nodes], tight)

    def _block(self, node: "SyntaxTreeNode") -> str:
        dialect = self._dialect
        match node.type:
            case "heading":
                return dialect.heading(self._styled(node, "strong", mark=False), int(node.tag[1]))
            case "fence" | "code_block":
                info = node.info.strip()
                return (
                    dialect.fence(node.content, info)
                    if _is_plain(info)
                    else dialect.fence(f"{info}\n{node.content}", "")
                )
            case "blockquote":
                quote = dialect.inner_quote if self._within and dialect.inner_quote is not None else dialect.quote
                return quote(self._inside(node, tight=False))
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

    def _inside(self, node: "SyntaxTreeNode", *, tight: bool) -> str:
        """The blocks of a quote or a list's item."""
        self._within += 1
        inner = self.blocks(node.children, tight=tight)
        self._within -= 1
        return inner

    def _list(self, node: "SyntaxTreeNode") -> str:
        ordered = node.type == "ordered_list"
        number = int(node.attrs.get("start", 1)) if ordered else 0
        tight = all(child.hidden for item in node.children for child in item.children if child.type == "paragraph")
        items: list[str] = []
        for place, item in enumerate(node.children):
            marker = self._dialect.text(f"{number + place}.") if ordered else "•"
            body = self._inside(item, tight=tight)
            items.append(self._dialect.item(f"{marker} {body}" if self._dialect.table is None else body))
        if self._dialect.table is None:
            return "\n".join(items)
        opening = f'<ol start="{number}">' if ordered else "<ul>"
        return f"{opening}{''.join(items)}</{'ol' if ordered else 'ul'}>"

    def _table(self, node: "SyntaxTreeNode") -> str:
        rows = [row for part in node.children for row in part.children]
        written = self._lines[node.map[0] : node.map[1]] if node.map else ()
        if any(cells_in(line) > len(rows[0].children) for line in written):  # the parser leaves out what has no header
            return self._dialect.fence("\n".join(written) + "\n", "")
        if self._dialect.table is not None:
            return self._dialect.table([[self._inline(cell.children) for cell in row.children] for row in rows])
        plain = _Walk(_dialects()["plain"])
        return self._dialect.fence(
            aligned([[plain._inline(cell.children) for cell in row.children] for row in rows]), ""
        )

    def _inline(self, nodes: "Sequence[SyntaxTreeNode]") -> str:
        out: list[str] = []
        before = ""
        for node in nodes:
            piece = self._span(node)
            if node.type == before == "em" and piece:
                out.append(self._dialect.em_separator)
            out.append(piece)
            before = node.type
        return "".join(out)

    def _span(self, node: "SyntaxTreeNode") -> str:
        match node.type:
            case "softbreak" | "hardbreak":
                return "\n"
            case "code_inline":
                return self._dialect.code(node.content)
            case "strong" | "em" | "s":
                return self._styled(node, node.type)
            case "link":
                return self._link(node, str(node.attrs.get("href", "")))
            case "image":
                return self._link(node, str(node.attrs.get("src", "")))
            case "inline":
                return self._inline(node.children)
            case _:
                return self._dialect.text(node.content)

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


@cache
def parser() -> "MarkdownIt":
    """Markdown as it is understood here: CommonMark with tables and ~~struck~~ words, without HTML."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": NESTING_MAX})
    return parser.enable(["table", "strikethrough"]).disable(["reference", "html_block", "html_inline"])


# ---- dialects ----

_TELEGRAM = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_TELEGRAM_CODE = re.compile(r"([`\\])")
_TELEGRAM_URL = re.compile(r"([)\\])")
_DISCORD = re.compile(r"([\\*_~`|])")
_DISCORD_START = re.compile(r"^(\s*)([>#-])", re.MULTILINE)
_TEAMS_BREAK = re.compile(r" *\n(?=[^\n])")
_SLACK_NAMED = re.compile(r"&lt;(@[UW][A-Z0-9]{1,40}|#C[A-Z0-9]{1,40})&gt;")
_INFO = re.compile(r"[^\w+#.-]")


def _is_plain(info: str) -> bool:
    """Whether a fence's opening line has a language only; anything else there is text that must not be lost."""
    return info.isascii() and _INFO.search(info) is None


def _around(mark: str, end: str = "") -> Wrap:
    return lambda inner: f"{mark}{inner}{end or mark}"


def _same(text: str) -> str:
    return text


def _quoted(mark: str) -> Wrap:
    return lambda inner: "\n".join(f"{mark}{line}" for line in inner.split("\n"))


def _item(text: str) -> str:
    return text.replace("\n", "\n  ")


def _joined(blocks: Sequence[str], tight: bool) -> str:
    return ("\n" if tight else "\n\n").join(block for block in blocks if block)


def _fenced(content: str, info: str) -> str:
    """A fence that its content cannot close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", content)), default=2)
    mark = "`" * max(3, longest + 1)
    return f"{mark}{_INFO.sub('', info)}\n{content.rstrip(chr(10))}\n{mark}"


def _slack_fence(content: str, info: str) -> str:
    """Slack and Google Chat know no languages and no longer fences: a zero-width space keeps inner ones apart."""
    kept = content.rstrip("\n").replace("```", "``\u200b`")
    return f"```\n{kept}\n```"


def _telegram_fence(content: str, info: str) -> str:
    kept = _escaped(_TELEGRAM_CODE, content.rstrip("\n"))
    return f"```{_INFO.sub('', info)}\n{kept}\n```"


def _escaped(special: re.Pattern[str], text: str) -> str:
    return special.sub(r"\\\1", text)


def _discord_text(text: str) -> str:
    return _DISCORD_START.sub(r"\1\\\2", _escaped(_DISCORD, text))


def _teams_blocks(blocks: Sequence[str], tight: bool) -> str:
    """Teams runs lines together unless two spaces end them; what is in fences it leaves."""
    return _joined([part if "```" in part else _TEAMS_BREAK.sub("  \n", part) for part in blocks], tight)


def _slack_text(text: str) -> str:
    """People and channels may be named by id, as Slack names them to us; nothing calls everybody."""
    return _SLACK_NAMED.sub(r"<\1>", _slack_literal(text))


def _slack_literal(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _is_link(url: str) -> bool:
    return url.startswith(("http://", "https://", "mailto:", "tel:"))


def _plain_link(label: str, url: str) -> str:
    return url if label == url else f"{label} ({url})"


def _telegram_link(label: str, url: str) -> str:
    if not _is_link(url):
        address = _escaped(_TELEGRAM, url)
        return label if label == address else rf"{label} \({address}\)"
    return f"[{label}]({_escaped(_TELEGRAM_URL, url)})"


def _discord_link(label: str, url: str) -> str:
    if not _is_link(url) or ")" in url or label == _discord_text(url):
        return f"{label} (<{url}>)" if _is_link(url) else _plain_link(label, _discord_text(url))
    return f"[{label}]({url})"


def _teams_text(text: str) -> str:
    return _discord_text(html.escape(text, quote=False))


def _teams_heading(text: str, level: int) -> str:
    return f"**{text}**" if text.strip() else text


def _teams_link(label: str, url: str) -> str:
    if not _is_link(url):
        return _plain_link(label, _teams_text(url))
    return f"[{label}]({url})" if ")" not in url else _plain_link(label, html.escape(url))


def _slack_link(label: str, url: str) -> str:
    if not _is_link(url):
        return _plain_link(label, _slack_literal(url))
    return f"<{_slack_literal(url).replace('|', '%7C')}|{label}>"


def _chat_link(label: str, url: str) -> str:
    return f"<{url.replace('|', '%7C')}|{label}>" if _is_link(url) else _plain_link(label, url)


def _matrix_link(label: str, url: str) -> str:
    if not _is_link(url):
        return _plain_link(label, html.escape(url))
    return f'<a href="{html.escape(url)}">{label}</a>'


def _matrix_fence(content: str, info: str) -> str:
    language = f' class="language-{_INFO.sub("", info)}"' if info else ""
    return f"<pre><code{language}>{html.escape(content)}</code></pre>"


def _matrix_table(rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in row) + "</tr>"
        for row, tag in zip(rows, ["th", *["td"] * len(rows)], strict=False)
    ]
    return f"<table>{''.join(lines)}</table>"


def _matrix_blocks(blocks: Sequence[str], tight: bool) -> str:
    block = ("<p>", "<h", "<pre", "<ul", "<ol", "<blockquote", "<table", "<hr")
    return "".join(
        part if tight or part.startswith(block) else f"<p>{part.replace(chr(10), '<br>')}</p>"
        for part in blocks
        if part
    )


@cache
def _dialects() -> dict[Markup, Dialect]:
    bold = _around("*")
    marks: dict[Style, Wrap] = {"strong": bold, "em": _around("_"), "s": _around("~")}
    plain = Dialect(
        _same, {"strong": _same, "em": _same, "s": _same}, _same, _fenced, _plain_link, lambda text, _: text,
        _quoted("> "), _item, "———", _joined,
    )  # fmt: skip
    telegram = Dialect(
        lambda text: _escaped(_TELEGRAM, text), marks,
        lambda code: f"`{_escaped(_TELEGRAM_CODE, code)}`", _telegram_fence, _telegram_link,
        lambda text, _: bold(text) if text.strip() else text, _quoted(">"), _item, "———", _joined, em_separator="**",
        inner_quote=_quoted("\\> "),
    )  # fmt: skip
    slack = Dialect(
        _slack_text, marks, lambda code: f"`{_slack_literal(code)}`",
        lambda content, info: _slack_literal(_slack_fence(content, info)), _slack_link,
        lambda text, _: bold(text), _quoted("> "), _item, "———", _joined,
    )  # fmt: skip
    google_chat = Dialect(
        _same, marks, _around("`"), _slack_fence, _chat_link, lambda text, _: bold(text), _quoted("> "), _item, "———",
        _joined,
    )  # fmt: skip
    discord = Dialect(
        _discord_text, {"strong": _around("**"), "em": _around("*"), "s": _around("~~")},
        lambda code: f"`` {code} ``" if "`" in code else f"`{code}`", _fenced, _discord_link,
        lambda text, level: f"{'#' * level} {text}" if level < 4 else f"**{text}**", _quoted("> "), _item, "———",
        _joined,
    )  # fmt: skip
    teams = msgspec.structs.replace(
        discord, text=_teams_text, link=_teams_link, heading=_teams_heading, blocks=_teams_blocks
    )  # fmt: skip
    matrix = Dialect(
        html.escape,
        {"strong": _around("<strong>", "</strong>"), "em": _around("<em>", "</em>"), "s": _around("<del>", "</del>")},
        lambda code: f"<code>{html.escape(code)}</code>", _matrix_fence, _matrix_link,
        lambda text, level: f"<h{level}>{text}</h{level}>", _around("<blockquote>", "</blockquote>"),
        _around("<li>", "</li>"), "<hr>", _matrix_blocks, table=_matrix_table,
    )  # fmt: skip
    return {
        "plain": plain, "telegram": telegram, "slack": slack, "google_chat": google_chat, "discord": discord,
        "matrix": matrix, "teams": teams,
    }  # fmt: skip
