"""Split a long text into pieces that fit a platform's limit.

Markup that is open at a cut is closed in one piece and reopened in the next. A continued list keeps its numbers, and a
continued table repeats its header. URLs, mentions, emojis and accented letters are cut only if they are longer than a
message.

Pieces are Markdown, with escapes for text that looks like markup. A text that fits is unchanged.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias
from unicodedata import category, combining

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.markup import Dialect, Node, fenced, indented, markdown_code
from shoal.kernel.posts import ChatLimits
from shoal.markdown.dialects import MARKDOWN_MARKS, ZERO_WIDTH_SPACE, escaped_markdown
from shoal.markdown.parse import CONTINUED, parse, plain_text, tokens_in
from shoal.markdown.render import render_markup, render_tree

CHARS_MIN = 64
TAIL_SHARE = 8
"""Divisor of the message limit. The quotient is the minimum size of the last piece, which prevents messages of two
letters.
"""
SHARES = (8, 7, 4, 2)
"""Piece sizes to try in this order, in eighths of the message limit."""
CLUSTER_CHARS_MAX = 64
"""Maximum length of a sequence that counts as one visible character. Longer sequences are cut like any other text."""
_BOUNDARIES = ("\n\n", "\n", ". ", "! ", "? ", "。", "！", "？", " ")
_ATOMS = frozenset({"token", "code", "link"})
_STYLES = frozenset({"strong", "em", "s"})
_BARE = lazy_re.compile(r"[()\s\\]|^$")
"""Matches a URL that needs angle brackets in a link: a URL with a parenthesis, white space or a backslash, or an empty
one.
"""
_PIPE = lazy_re.compile(r"(?<!\\)\|")
_DRIVE = lazy_re.compile(r"([A-Za-z]:)(?=\\)")
"""Matches the drive of a path in which backslashes are not escapes."""
_FORMULA_MARK = lazy_re.compile(r"[\[\]$]")
_ZWJ = "\u200d"

Fits: TypeAlias = Callable[[list[Node]], bool]


def _continued(item: Node, marker: str, body: str) -> str:
    first = item.children[0].kind if item.children else "paragraph"
    if first == "list":
        return f"{marker} {body}"
    return f"{marker} {CONTINUED}{body}" if first == "paragraph" else f"{marker} {CONTINUED}\n\n{body}"


def _written_link(label: str, url: str) -> str:
    if label == escaped_markdown(url) and "://" in url:
        return f"<{url}>"
    return f"[{label}](<{url}>)" if _BARE.search(url) is not None else f"[{label}]({url})"


def _written_table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(_PIPE.sub(r"\\|", cell.replace("\n", "<br>")) for cell in row) + " |" for row in rows]
    return "\n".join((lines[0], "|" + "---|" * len(rows[0]), *lines[1:]))


MARKDOWN = Dialect(
    text=escaped_markdown,
    token=lambda token: token,
    styles=MARKDOWN_MARKS,
    code=markdown_code,
    opens=lambda url: True,
    link=_written_link,
    heading=lambda text, level: f"{'#' * level} {text}".replace("\n", " "),
    fence=fenced,
    item=lambda text: indented(text, text.find(" ") + 1),
    bullet="",
    boxes=("[ ] ", "[x] "),
    continued=_continued,
    rule="***",
    table=_written_table,
    nests=True,
)
"""Dialect that renders a tree as Markdown that parses into the same tree."""


def _text_apart(text: str) -> str:
    return _DRIVE.sub(rf"\1{ZERO_WIDTH_SPACE}", escaped_markdown(text))


def _token_apart(token: str) -> str:
    return token if token[0] == "<" else f"{ZERO_WIDTH_SPACE}{token}{ZERO_WIDTH_SPACE}"


APART = msgspec.structs.replace(MARKDOWN, text=_text_apart, token=_token_apart)
"""Like `MARKDOWN`, but with zero-width spaces that separate URLs and paths from adjacent text."""


def _text_without_formulas(text: str) -> str:
    escaped = _text_apart(text).replace("\\[", "[").replace("\\]", "]")
    return _FORMULA_MARK.sub(lambda mark: f"&#{ord(mark[0])};", escaped)


NO_FORMULAS = msgspec.structs.replace(APART, text=_text_without_formulas)
r"""Like `APART`, with brackets and dollar signs as entities, because `\[` and `\]` would enclose a formula."""


class FirstPiece(NamedTuple):
    piece: str
    is_more: bool


def pieces_of(text: str, limits: ChatLimits, reserve: int = 0) -> list[str]:
    """Split Markdown into pieces. Each rendered piece has at most `limits.text_chars_max` minus `reserve` characters.

    Returns at least one piece, even for an empty text. All words are kept. The result depends only on the arguments, so
    a resend produces the same pieces.
    """
    cutter = _Cutter(limits, reserve)
    if cutter.takes(text):
        return [text]
    pieces: list[str] = []
    blocks = parse(text)
    while blocks or not pieces:
        piece, blocks = cutter.cut(blocks)
        pieces.append(piece)
    return pieces


def first_piece_of(text: str, limits: ChatLimits, reserve: int = 0) -> FirstPiece:
    """Return the first piece of a text and whether more text follows."""
    cutter = _Cutter(limits, reserve)
    if cutter.takes(text):
        return FirstPiece(text, False)
    piece, rest = cutter.cut(parse(text))
    return FirstPiece(piece, bool(rest))


class _Cutter:
    def __init__(self, limits: ChatLimits, reserve: int) -> None:
        self._limits = limits
        self._room = max(CHARS_MIN, limits.text_chars_max - reserve)
        self._dialect = limits.markup or MARKDOWN

    def takes(self, text: str) -> bool:
        if len(text) > self._room * 100:
            return False
        return self._is_short(render_markup(text, self._limits.markup), self._room)

    def cut(self, blocks: list[Node]) -> tuple[str, list[Node]]:
        written, rest = "", list[Node]()
        for share in SHARES:  # The written Markdown may parse differently and be longer than the tree.
            room = self._room * share // SHARES[0]
            piece, rest = self._split(blocks, lambda blocks: self._fits(blocks, room), is_first=True)  # noqa: B023
            written = self._written(piece) if piece else ""
            if self.takes(written):
                break
        return written, rest

    def _is_short(self, rendered: str, room: int) -> bool:
        limits = self._limits
        if limits.markup is None:
            return limits.length(rendered) <= room
        return limits.length(limits.markup.shown(rendered)) <= room and (
            not limits.marks_max or limits.markup.marks(rendered) <= limits.marks_max
        )

    def _fits(self, blocks: list[Node], room: int) -> bool:
        return not _is_longer(blocks, room) and self._is_short(render_tree(blocks, self._dialect), room)

    def _written(self, blocks: list[Node]) -> str:
        """Write blocks as Markdown that parses into the same blocks. If necessary, add zero-width spaces or remove
        emphasis.
        """
        plain = _unstyled(blocks)
        written: list[str] = []
        for nodes in (blocks, plain):
            wanted = self._words(nodes)
            for dialect in (MARKDOWN, APART, NO_FORMULAS):
                text = render_tree(nodes, dialect)
                if self._words(parse(text)) == wanted and self.takes(text):
                    return text
                written.append(text)
        return next((text for text in (*written[3:], *written[:3]) if self.takes(text)), written[-1])

    def _words(self, blocks: list[Node]) -> list[str]:
        return render_tree(blocks, self._dialect).replace(ZERO_WIDTH_SPACE, "").split()

    # ---- blocks ----

    def _split(self, blocks: list[Node], fits: Fits, *, is_first: bool) -> tuple[list[Node], list[Node]]:
        """Split blocks into those that fit and the rest.

        If `is_first` is false, the message already has content, so the first part may be empty.
        """
        count = _count(len(blocks), lambda number: fits(blocks[:number]))
        if count == len(blocks):
            return blocks, []
        whole, block = blocks[:count], blocks[count]
        if not count or not self._is_half(whole):
            left, right = self._split_block(block, lambda part: fits([*whole, part]), is_first=is_first and not count)
            if left is not None:
                return [*whole, left], [*([right] if right is not None else []), *blocks[count + 1 :]]
        if count > 1 and whole[-1].kind == "heading":  # Keep a heading with the text below it.
            count -= 1
        return blocks[:count], blocks[count:]

    def _is_half(self, blocks: list[Node]) -> bool:
        return _is_longer(blocks, self._room // 2)

    def _split_block(
        self, block: Node, fits: Callable[[Node], bool], *, is_first: bool
    ) -> tuple[Node | None, Node | None]:
        def part(children: list[Node], **changed: object) -> Node:
            return msgspec.structs.replace(block, children=children, **changed)

        match block.kind:
            case "paragraph" | "heading":
                left, right = self._split_spans(block.children, lambda spans: fits(part(spans)), is_first=is_first)
                kind = "paragraph" if left else block.kind
                return part(left) if left else None, part(right, kind=kind) if right else None
            case "fence":
                return self._split_fence(block, fits, is_first=is_first)
            case "quote":
                left, right = self._split(block.children, lambda blocks: fits(part(blocks)), is_first=is_first)
                return part(left) if left else None, part(right) if right else None
            case "list":
                return self._split_list(block, fits, is_first=is_first)
            case "table":
                return self._split_table(block, fits, is_first=is_first)
            case "raw":
                text = Node("paragraph", [Node("text", text=block.text)])
                return self._split_block(text, fits, is_first=is_first)
            case _:
                return (block, None) if is_first else (None, block)

    def _split_list(
        self, block: Node, fits: Callable[[Node], bool], *, is_first: bool
    ) -> tuple[Node | None, Node | None]:
        items = block.children

        def listed(items: list[Node], skipped: int = 0) -> Node:
            number = block.number + skipped if block.number >= 0 else -1
            return msgspec.structs.replace(block, children=items, number=number)

        count = _count(len(items), lambda number: fits(listed(items[:number])))
        if count == len(items):
            return block, None
        if not count or not self._is_half([listed(items[:count])]):
            item = items[count]

            def with_part(blocks: list[Node]) -> Node:
                return listed([*items[:count], msgspec.structs.replace(item, children=blocks)])

            left, right = self._split(
                item.children, lambda blocks: fits(with_part(blocks)), is_first=is_first and not count
            )
            if left:
                rest = [msgspec.structs.replace(item, children=right, box="", continued=True)] if right else []
                skipped = count + (not right)
                rest += items[count + 1 :]
                return with_part(left), listed(rest, skipped) if rest else None
        if not count:
            return (listed(items[:1]), listed(items[1:], 1)) if is_first else (None, block)
        return listed(items[:count]), listed(items[count:], count)

    def _split_table(
        self, block: Node, fits: Callable[[Node], bool], *, is_first: bool
    ) -> tuple[Node | None, Node | None]:
        head, *rows = block.children

        def table(rows: list[Node]) -> Node:
            return msgspec.structs.replace(block, children=[head, *rows])

        count = _count(len(rows), lambda number: fits(table(rows[:number])))
        if count:
            return table(rows[:count]), table(rows[count:]) if rows[count:] else None
        if not is_first:
            return None, block

        def halves(length: int) -> tuple[Node, Node]:
            parts = [_take(cell.children, min(length, len(plain_text(cell.children)))) for cell in rows[0].children]
            first, second = ([Node("cell", part[side]) for part in parts] for side in (0, 1))
            return Node("row", first), Node("row", second)

        if not rows or _is_longer([head], self._room // 2) or not fits(table([halves(1)[0]])):
            lines = (" | ".join(plain_text(cell.children) for cell in row.children) for row in block.children)
            return self._split_fence(Node("fence", text="\n".join(lines) + "\n"), fits, is_first=True)
        longest = max(len(plain_text(cell.children)) for cell in rows[0].children)
        length = max(1, _count(longest, lambda number: fits(table([halves(number)[0]]))))
        cells = [_take(cell.children, _end_in_cell(cell.children, length)) for cell in rows[0].children]
        first, second = (Node("row", [Node("cell", cell[side]) for cell in cells]) for side in (0, 1))
        rest = [second, *rows[1:]] if plain_text(second.children) else rows[1:]
        return table([first]), table(rest) if rest else None

    def _split_fence(
        self, block: Node, fits: Callable[[Node], bool], *, is_first: bool
    ) -> tuple[Node | None, Node | None]:
        lines = block.text.removesuffix("\n").split("\n")

        def fence(text: str) -> Node:
            return msgspec.structs.replace(block, text=f"{text}\n")

        count = _count(len(lines), lambda number: fits(fence("\n".join(lines[:number]))))
        if count == len(lines):
            return block, None
        if count:
            return fence("\n".join(lines[:count])), fence("\n".join(lines[count:]))
        if not is_first:
            return None, block
        line = lines[0]
        length = max(1, _count(min(len(line), self._room), lambda number: fits(fence(line[:number]))))
        length = _whole_clusters(line, length)
        return fence(line[:length]), fence("\n".join((line[length:], *lines[1:])))

    # ---- spans ----

    def _split_spans(self, spans: list[Node], fits: Fits, *, is_first: bool) -> tuple[list[Node], list[Node]]:
        text = plain_text(spans)
        most = _count(min(len(text), self._room), lambda number: fits(_take(spans, number)[0]))
        if most >= len(text):
            return spans, []
        if len(text) <= 2 * most:  # Avoid a tiny last piece.
            most = max(len(text) - most, min(most, len(text) - self._room // TAIL_SHARE))
        atoms = list(_atoms(spans, 0))
        at = _boundary(text, most // 2, most, atoms)
        if not at:
            atom = next((atom for atom in atoms if atom[0] < most < atom[1]), None)
            if atom is None or (atom[0] == 0 and is_first):
                at = _boundary(text, most // 2, most, ()) if atom is not None else 0
                at = at or _whole_clusters(text, most)
            else:
                at = atom[0]
        if not at:
            if not is_first:
                return [], spans
            at = max(1, most)
        if not is_first and at < self._room // TAIL_SHARE and most < len(text) // 2:
            return [], spans
        left, right = _take(spans, at)
        while len(left) > 1 and left[-1].kind == "break":
            left = left[:-1]
        return left, _without_break(right)


def _unstyled(nodes: Sequence[Node]) -> list[Node]:
    plain: list[Node] = []
    for node in nodes:
        children = _unstyled(node.children)
        plain += children if node.kind in _STYLES else [msgspec.structs.replace(node, children=children)]
    return plain


def _count(most: int, is_fitting: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` that fits. If a number fits, all smaller ones must fit too.

    Never tries a number greater than twice the result.
    """
    low, step = 0, 1
    while low + step <= most and is_fitting(low + step):
        low += step
        step *= 2
    high = min(most, low + step - 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_fitting(middle) else (low, middle - 1)
    return low


def _is_longer(nodes: Sequence[Node], chars: int) -> bool:
    waiting, size = list(reversed(nodes)), 0
    while waiting and size <= chars:
        node = waiting.pop()
        size += len(node.text.rstrip("\n")) if node.kind != "break" else 1
        waiting += reversed(node.children)
    return size > chars


def _take(spans: Sequence[Node], length: int) -> tuple[list[Node], list[Node]]:
    left: list[Node] = []
    for number, node in enumerate(spans):
        size = len(node.text) if not node.children else len(plain_text(node.children))
        if size <= length:
            left.append(node)
            length -= size
            continue
        if not length:
            return left, list(spans[number:])
        if node.children:
            first, second = _take(node.children, length)
            parts = [msgspec.structs.replace(node, children=first), msgspec.structs.replace(node, children=second)]
        elif node.kind == "token":
            first, second = _reparsed(node.text[:length]), _reparsed(node.text[length:])
            return [*left, *first], [*second, *spans[number + 1 :]]
        else:
            kind = "code" if node.kind == "code" else "text"
            parts = [Node(kind, text=node.text[:length]), Node(kind, text=node.text[length:])]
        return [*left, parts[0]], [parts[1], *spans[number + 1 :]]
    return left, []


def _reparsed(part: str) -> list[Node]:
    """Split part of a token into text and tokens. The start of a URL is also a URL, and some platforms write a URL
    twice, as label and as target. Each part can then be measured as it is posted.
    """
    nodes: list[Node] = []
    at = 0
    for span in tokens_in(part):
        nodes += [Node("text", text=part[at : span.start])] if span.start > at else []
        nodes.append(Node("token", text=part[span.start : span.end]))
        at = span.end
    return [*nodes, Node("text", text=part[at:])] if at < len(part) else nodes


def _without_break(spans: list[Node]) -> list[Node]:
    while spans and spans[0].kind == "break":
        spans = spans[1:]
    return spans


def _atoms(spans: Sequence[Node], at: int) -> "Sequence[tuple[int, int]]":
    atoms: list[tuple[int, int]] = []
    for node in spans:
        size = len(node.text) if not node.children else len(plain_text(node.children))
        if node.kind in _ATOMS:
            atoms.append((at, at + size))
        else:
            atoms += _atoms(node.children, at)
        at += size
    return atoms


def _boundary(text: str, least: int, most: int, atoms: Sequence[tuple[int, int]]) -> int:
    for boundary in _BOUNDARIES:
        end = most + (0 if boundary.strip() else len(boundary))
        while (at := text.rfind(boundary, least, end)) >= 0:
            cut = min(at + len(boundary), most)
            atom = next((atom for atom in atoms if atom[0] < cut < atom[1]), None)
            if atom is None:
                return cut
            end = min(end - 1, atom[0] + len(boundary) - 1)
    return 0


def _end_in_cell(spans: Sequence[Node], most: int) -> int:
    """Return the position at which to cut a cell that is too long for a message. Keeps at least one character unless
    the cell is empty.
    """
    text = plain_text(spans)
    if len(text) <= most:
        return len(text)
    atoms = _atoms(spans, 0)
    atom = next((atom for atom in atoms if atom[0] < most < atom[1]), None)
    return (
        _boundary(text, most // 2, most, atoms)
        or (atom[0] if atom is not None else 0)
        or _boundary(text, most // 2, most, ())
        or _whole_clusters(text, most)
    )


def _whole_clusters(text: str, most: int) -> int:
    for at in range(most, max(0, most - CLUSTER_CHARS_MAX), -1):
        if _is_between_clusters(text, at):
            return at
    return most


def _is_between_clusters(text: str, at: int) -> bool:
    """Return True if the position is between two visible characters. Source: Unicode annex 29, rules GB3 to GB13."""
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if (
        category(after)[0] == "M"
        or after in (_ZWJ, "\u200c", "\u0e33", "\u0eb3")
        or "\U0001f3fb" <= after <= "\U0001f3ff"
    ):
        return False
    if "\U000e0020" <= after <= "\U000e007f" or before == _ZWJ or (before == "\r" and after == "\n"):
        return False
    if combining(before) == 9 and category(after) == "Lo":  # a conjunct in an Indic script
        return False
    if _is_flag(before) and _is_flag(after):
        first = at - 1
        while first > 0 and _is_flag(text[first - 1]):
            first -= 1
        return (at - first) % 2 == 0
    return (_jamo(before), _jamo(after)) not in {
        ("L", "L"),
        ("L", "V"),
        ("L", "S"),
        ("V", "V"),
        ("V", "T"),
        ("T", "T"),
        ("S", "V"),
        ("S", "T"),
    }


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _jamo(character: str) -> str:
    """Classify a Korean character: L (leading), V (vowel), T (trailing), S (complete syllable), or empty for any
    other.
    """
    point = ord(character)
    if 0x1100 <= point <= 0x115F or 0xA960 <= point <= 0xA97C:
        return "L"
    if 0x1160 <= point <= 0x11A7 or 0xD7B0 <= point <= 0xD7C6:
        return "V"
    if 0x11A8 <= point <= 0x11FF or 0xD7CB <= point <= 0xD7FB:
        return "T"
    return "S" if 0xAC00 <= point <= 0xD7A3 else ""
