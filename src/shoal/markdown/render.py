"""Render Markdown in a platform's markup. A dialect describes the markup.

All text is kept. HTML and unused link definitions are shown as text. Platforms without tables show them as aligned
monospace text.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from unicodedata import category

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.markup import BOXES, CODE_LINE, Dialect, Node, Style
from shoal.kernel.posts import ChatLimits
from shoal.markdown.dialects import PLAIN, ZERO_WIDTH_SPACE
from shoal.markdown.parse import parse, plain_text
from shoal.markdown.tables import aligned

RENDERED_MAX = 64
"""Maximum number of cached rendered texts. Senders measure each text before they send it, and the cache avoids
rendering it twice.
"""
LEVELS = 6
"""Number of heading levels."""

_MARK_OF: Mapping[str, str] = {"strong": "*", "em": "*", "s": "~"}
_STYLED: frozenset[str] = frozenset(_MARK_OF)
_BLANK_LINES = lazy_re.compile(r"\n(?:[ \t]*\n)+")


@lru_cache(RENDERED_MAX)
def render_markup(markdown: str, dialect: Dialect | None) -> str:
    """Render Markdown in a platform's markup. Without a dialect, return it unchanged."""
    return markdown if dialect is None else render_tree(parse(markdown), dialect)


def rendered_length(markdown: str, limits: ChatLimits) -> int:
    """Return the length of the rendered text in the platform's unit."""
    rendered = render_markup(markdown, limits.markup)
    return limits.length(rendered if limits.markup is None else limits.markup.shown(rendered))


def render_tree(blocks: Sequence[Node], dialect: Dialect) -> str:
    return _Renderer(dialect).document(blocks)


class _Renderer:
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
        """Render a heading's text. The heading is bold, so marks that cannot be next to bold marks are omitted."""
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
        self._depth += 1
        inner = self._dialect.blocks([self._block(child) for child in node.children], tight)
        self._depth -= 1
        return inner

    def _list(self, node: Node) -> str:
        dialect, escape = self._dialect, ""
        items: list[str] = []
        for number, item in enumerate(node.children, node.number):
            marker = f"{number}{escape}{node.info}" if node.number >= 0 else dialect.bullet or node.info
            escape = "\\" if dialect.counts and item.continued and items else escape
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
        """Render inline nodes. `before` is the text already written, and `after` contains the characters that may
        follow.
        """
        out: list[str] = []
        for at, node in enumerate(nodes):
            last = next((piece for piece in reversed(out) if piece), before)
            if node.kind in _STYLED:
                out.append(self._emphasis(node, last, self._edge(nodes[at + 1 :], first=True) or after))
            else:
                written = self._plain(node, last, self._edge(nodes[at + 1 :], first=True) or after)
                if (written.startswith("`") and last.endswith("`")) or (written.startswith("[") and last.endswith("!")):
                    # Without the space, two code spans would merge, or `!` would turn the link into an image.
                    out.append(ZERO_WIDTH_SPACE)
                out.append(written)
        return "".join(out)

    def _plain(self, node: Node, before: str = "", after: str = "") -> str:
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
        """Return the possible first or last characters of the rendered nodes, or an empty string if they render no
        text.

        For a styled node, this includes the first character of its text, because the marks may be omitted.
        """
        for node in nodes if first else reversed(nodes):
            if node.kind in _STYLED:
                inner = self._edge(node.children, first=first)
                edge = f"{_MARK_OF[node.kind]}{inner}" if inner else ""
            elif node.kind == "link":
                inner = self._edge(node.children, first=first)
                edge = (
                    "["
                    if self._dialect.opens(node.url)
                    else inner or self._dialect.text(node.url)[:1]
                    if first
                    else ")"
                )
            elif node.kind == "code":
                edge = "`"
            else:
                written = self._plain(node)
                edge = written[:1] if first else written[-1:]
            if edge:
                return edge
        return ""

    def _edge_within(self, node: Node, *, first: bool) -> str:
        """Like `_edge`, for the text of a styled node. Ignores an inner mark that cannot be next to the node's own
        mark.
        """
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
    return bool(character) and not character.isspace() and category(character)[0] not in "PS"


def _ends_with(written: str, mark: str) -> bool:
    if not written.endswith(mark):
        return False
    rest = written.removesuffix(mark)
    return (len(rest) - len(rest.rstrip("\\"))) % 2 == 0


def _joins(character: str) -> bool:
    return (
        bool(character)
        and not character.isspace()
        and (not character.isascii() or character.isalnum() or character in "_*~`")
    )


def _without_edge(node: Node, *, first: bool) -> tuple[Node, str]:
    """Split punctuation from the start or the end of a styled node. A node that contains only punctuation stays
    unchanged.
    """
    children = list(node.children)
    text = children[0 if first else -1].text
    letters = [at for at, character in enumerate(text) if category(character)[0] not in "PS"]
    if not letters:
        return node, ""
    at = letters[0] if first else letters[-1] + 1
    edge, rest = (text[:at], text[at:]) if first else (text[at:], text[:at])
    children[0 if first else -1] = Node("text", text=rest)
    return msgspec.structs.replace(node, children=children), edge
