"""Parse Markdown into a tree. Supports CommonMark, tables, ~~strikethrough~~ and formulas, but no HTML except `<br>` in
tables.

Differences from CommonMark:
- URLs, paths and platform tokens are recognized before emphasis, so none of their characters count as markup.
- Emphasis works without spaces next to Chinese, Japanese and Korean characters. Source:
  github.com/tats-u/markdown-cjk-friendly, specification.md.
- A link definition must be on one line. It is shown as text if no link refers to it.

`surfaces/console/static/tokens.js` implements the first two rules for the page.

Parsing takes linear time. One scan of each paragraph replaces the repeated searches of CommonMark.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category, east_asian_width

from shoal.kernel import lazy_re
from shoal.kernel.markup import Node, language_in
from shoal.markdown.tables import cells_in

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

NESTING_MAX = 40
"""Maximum nesting depth. Deeper markup stays plain text, because the tree is walked recursively."""
MATH_LINES_MAX = 100
INLINE_MATH_CHARS_MAX = 2000
URL_CHARS_MAX = 4000
WORD_CHARS_MAX = 512
CONTINUED = "\u2060"
"""Character at the start of a list item that continues an item from the previous message. Such an item is shown without
a bullet.
"""

# ---- addresses, paths and tokens ----

_NATIVE = (
    r"<(?:@[!&]?[0-9]{1,20}|@[UW][A-Z0-9]{1,40}(?:\|[^<>|\n]{1,80})?"
    r"|\#[0-9]{1,20}|\#[CG][A-Z0-9]{1,40}(?:\|[^<>|\n]{0,80})?"
    r"|a?:[A-Za-z0-9_]{1,64}:[0-9]{1,20}|/[^<>:\n]{1,100}:[0-9]{1,20}|t:-?[0-9]{1,17}(?::[A-Za-z])?"
    r"|id:[a-z]{1,20}|![a-z]{1,20}(?:\^[^<>\n]{1,300})?(?:\|[^<>\n]{1,200})?|users/[^<>\s]{1,100})>"
)
_URL = (
    r"(?:https?://|(?<![A-Za-z0-9])"
    r"(?:[A-Za-z][A-Za-z0-9+.\-]{1,31}://|(?:mailto|matrix|magnet|tel|xmpp|sip):(?=[A-Za-z0-9+?@])))"
    r"""(?:\\[!-/:-@\[-`{-~]|[^\s<>"`\\\u200b\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65])"""
    rf"{{1,{URL_CHARS_MAX}}}"
)
_EMAIL = r"(?<![\w.+\-])[A-Za-z0-9][A-Za-z0-9._%+\-]{0,63}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){1,8}(?!\w|://)"
_MENTION = (
    r"(?<![\w/])[@!#][A-Za-z0-9_.=\-]{1,64}:[A-Za-z0-9.\-]{1,120}(?!\w)|(?<!\w)@[A-Za-z0-9_]{1,64}(?![A-Za-z0-9_]|://)"
)
_SHORTCODE = r"(?<![\w:]):[a-z0-9_+\-]{2,64}:(?![\w:]|//)"
_WORD = (
    r"""[^\s<>"'`|()\[\]{},;!?\u200b\u2018-\u201f\u2060\u2e80-\uffff]"""
    rf"{{2,{WORD_CHARS_MAX}}}"
)
TOKENS = lazy_re.compile(f"({_NATIVE})|({_URL})|({_EMAIL})|({_MENTION})|({_SHORTCODE})|({_WORD})")
"""Matches one token: a platform token, URL, e-mail address, mention, shortcode, or any other word, which `_inner`
searches for a path. No alternative matches a text in two ways, so a scan takes linear time.
"""
_TRAILING = "?!.,:;'*_~)]}"
_OPENING = {")": "(", "]": "[", "}": "{"}
_ESCAPE = lazy_re.compile(r"\\([!-/:-@\[-`{-~])")
_DRIVE = lazy_re.compile(r"[A-Za-z]:\\")
_GLOB = lazy_re.compile(r"\*+")
_DOTTED = lazy_re.compile(r"\w\.\w")


class TokenSpan(NamedTuple):
    start: int
    end: int
    text: str


def tokens_in(text: str) -> Iterator[TokenSpan]:
    """Yield the URLs, e-mail addresses, mentions, paths and platform tokens of a paragraph in order."""
    at = 0
    marks_seen = ""
    looked_at = 0
    while (match := TOKENS.search(text, at)) is not None:
        start, end = match.span()
        for mark in "*_~":
            if mark not in marks_seen and text.find(mark, looked_at, start) >= 0:
                marks_seen += mark
        looked_at = start
        at = end
        match match.lastindex:
            case 2:
                end = _url_end(text, start, end, marks_seen)
                at = end
                if not text[start:end].endswith(("://", ":")):
                    yield TokenSpan(start, end, _unescaped(text[start:end]))
            case 6:
                inner = _inner(text, start, end)
                if inner is None:
                    at = _next_word(text, start, end)
                else:
                    at = inner[1]
                    yield TokenSpan(*inner, text[inner[0] : inner[1]])
            case _:
                yield TokenSpan(start, end, match[0])


def _next_word(text: str, start: int, end: int) -> int:
    """Return the position at which to continue after a word that is not a path. A token may start inside the word or
    after its first marks.
    """
    for sign, others in (("://", "+.-"), ("@", "+.-_%")):
        at = text.find(sign, start, end + len(sign))
        if at > start:
            if sign == "://" and text.endswith(("http", "https"), start, at):
                return max(start + 1, at - (5 if text[at - 1] == "s" else 4))
            head = at
            while head > start and text[head - 1].isascii() and (text[head - 1].isalnum() or text[head - 1] in others):
                head -= 1
            if start < head < at:
                return head
    marks = end - start - len(text[start:end].lstrip("*~_"))
    return start + marks if 0 < marks < end - start else end


def _url_end(text: str, start: int, end: int, marks_seen: str) -> int:
    """Return the end of a URL. The URL does not include sentence punctuation or closing emphasis marks."""
    opener = text[start - 1] if start else ""
    if opener and opener in "*~":
        run = opener * 2 if start > 1 and text[start - 2] == opener else opener
        closing = text.find(run, start, end)
        end = closing if closing > 0 else end
    depth = {"(": 0, "[": 0, "{": 0}
    for at in range(start, end):
        character = text[at]
        if character in depth:
            depth[character] += 1
        elif character in _OPENING:
            depth[_OPENING[character]] -= 1
            if depth[_OPENING[character]] < 0:
                end = at
                break
    while end > start and text[end - 1] in _TRAILING:
        last = text[end - 1]
        if last in "*_~" and last not in marks_seen:
            break
        if last in _OPENING:  # The brackets are balanced, because the URL ends before an unbalanced one.
            break
        end -= 1
    return end


def _inner(text: str, start: int, end: int) -> tuple[int, int] | None:
    word = text[start:end]
    if "://" in text[start : end + 3] or not any(mark in word for mark in "*_~\\"):
        return None
    stripped = word.strip("*~")
    start += len(word) - len(word.lstrip("*~"))
    is_called = text[end : end + 1] == "("
    run = "__" if stripped.startswith("__") else "_" if stripped.startswith("_") else ""
    if run and run not in stripped.strip("_").rstrip("_.:") and not is_called:
        start += len(stripped) - len(stripped.lstrip("_"))
        stripped = stripped.strip("_")
    end = start + len(stripped.rstrip(".:"))
    word = text[start:end]
    if _DRIVE.match(word):
        return (start, end)
    if "\\" in word or "~~" in word:
        return None
    is_path = "/" in word and all(
        (match.start() == 0 or word[match.start() - 1] == "/")
        and (match.end() == len(word) or word[match.end()] in "/.")
        for match in _GLOB.finditer(word)
    )
    is_name = _DOTTED.search(word) is not None or (is_called and bool(word.strip("_")))
    is_dunder = "__" in word and "*" not in word and is_name
    return (start, end) if is_path or is_dunder else None


def _unescaped(address: str) -> str:
    """Remove the escapes and entities that models add to URLs."""
    return _ESCAPE.sub(r"\1", address).replace("&amp;", "&")


# ---- CJK ----


def is_cjk(character: str) -> bool:
    """Return True if a character is Chinese, Japanese or Korean. Punctuation counts, but emojis do not."""
    point = ord(character)
    if point < 0x1100:
        return False
    if point <= 0x11FF or 0x3130 <= point <= 0x318F or 0xA960 <= point <= 0xA97F or 0xD7B0 <= point <= 0xD7FF:
        return True
    if east_asian_width(character) not in "WFH":
        return False
    return category(character) not in ("So", "Sk") or 0x2E80 <= point <= 0x33FF or point >= 0xFF00 > point - 0x100


@lru_cache(4096)
def _class_of(character: str) -> tuple[bool, bool, bool]:
    from markdown_it.common.utils import isMdAsciiPunct, isPunctChar, isWhiteSpace

    point = ord(character)
    return isWhiteSpace(point), isMdAsciiPunct(point) or isPunctChar(character), is_cjk(character)


def _flanks(state: "StateInline", start: int, end: int, *, within_words: bool) -> tuple[bool, bool]:
    before = state.src[start - 1] if start else " "
    if start > 1 and ("\ufe00" <= before <= "\ufe0e" or "\U000e0100" <= before <= "\U000e01ef"):
        before = state.src[start - 2]  # A variation selector modifies the previous character.
    space_before, punctuation_before, cjk_before = _class_of(before)
    space_after, punctuation_after, cjk_after = _class_of(state.src[end] if end < state.posMax else " ")
    if space_before or space_after:
        return not space_after, not space_before
    if not within_words:
        return punctuation_before, punctuation_after
    by_cjk = cjk_before or cjk_after
    return (
        punctuation_before or by_cjk or not punctuation_after,
        punctuation_after or by_cjk or not punctuation_before,
    )


# ---- the parser ----

# All other dollar signs are treated as currency.
_MATH = lazy_re.compile(r"\$(?![\s$])(?:\\.|[^\\$\n]){1,1000}?(?<!\s)\$(?!\w)")
_MATH_BLOCK_START = lazy_re.compile(r" {0,3}(\$\$|\\\[)")
_BOX = lazy_re.compile(r"^\[([ xX])\] ")
_NOTE = lazy_re.compile(r"^\[\^([^\]\s]{1,40})\]:", re.MULTILINE)
_NOTE_MARK = lazy_re.compile(r"\[\^([^\]\s]{1,40})\]")
_LINE_END = lazy_re.compile(r"\r\n?|\n")
_SPECIAL = lazy_re.compile(r"[\n\\`*_~!\[<&$]")
_BRACKETS = lazy_re.compile(r"\\.|`+|<[^<>\s]{1,2000}>|[\[\]]", re.DOTALL)
_LABEL = lazy_re.compile(r"\[((?:\\.|[^\[\]\\]){0,999})\]", re.DOTALL)
_LINE_BREAK = lazy_re.compile(r"<br[ \t]{0,9}/?>", re.IGNORECASE)


class _Link(NamedTuple):
    label_end: int
    end: int
    url: str
    title: str


class LabelledLink(NamedTuple):
    url: str
    title: str
    line: int


class _Scan(NamedTuple):
    """The tokens of one paragraph by start position, and its links by the position of the opening bracket."""

    tokens: dict[int, TokenSpan]
    starts: list[int]
    links: dict[int, _Link]


CELLS_ADDED_MAX = 4_096
"""Maximum total number of cells that are added to short table rows. Without a limit, a message of 1,400 characters
could add 40,000 cells.
"""


@cache
def parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    vars(import_module("markdown_it.rules_block.table"))["MAX_AUTOCOMPLETED_CELLS"] = CELLS_ADDED_MAX
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": NESTING_MAX})
    read_formulas(parser)
    inline = parser.inline.ruler
    inline.before("text", "token", _token)
    inline.at("text", _text)
    inline.before("autolink", "line_break", _line_break)
    parser.block.ruler.at("reference", _define)
    parser.enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])
    inline.at("link", _link)
    inline.at("image", _link)
    inline.at("emphasis", _emphasis)
    inline.at("strikethrough", _strikethrough)
    return parser


def read_formulas(parser: "MarkdownIt") -> None:
    """Add formulas to a parser, as tokens `math` and `math_block` that include the delimiters."""
    parser.block.ruler.before("fence", "math", _math_block, {"alt": ["paragraph", "blockquote", "list"]})
    parser.inline.ruler.before("escape", "math", _math)


def _scan_of(state: "StateInline") -> _Scan:
    scans = state.env.setdefault("scans", {})
    scan = scans.get(state.src)
    if scan is None:
        tokens = {span.start: span for span in tokens_in(state.src)}
        scan = scans[state.src] = _Scan(tokens, list(tokens), _links(state, tokens))
    return scan


def _links(state: "StateInline", tokens: dict[int, TokenSpan]) -> dict[int, _Link]:
    """Return the links and images of a paragraph. As in CommonMark, if links are nested, only the inner one is a
    link.
    """
    src = state.src
    definitions: dict[str, LabelledLink] = state.env.get("definitions", {})
    if "](" not in src and not definitions:
        return {}
    runs: dict[int, list[int]] = {}
    for match in re.finditer(r"`+", src):
        runs.setdefault(len(match[0]), []).append(match.start())
    links: dict[int, _Link] = {}
    opened: list[int] = []
    pictures = set[int]()
    inactive = 0
    escaped_at = -1
    at = 0
    while (match := _BRACKETS.search(src, at)) is not None:
        at = match.end()
        if match[0][0] == "\\":
            escaped_at = at - 1
        elif match[0][0] == "`":
            ends = runs.get(len(match[0]), ())  # After an escaped backtick, the run is shorter than any opening run.
            following = bisect_left(ends, at)
            at = ends[following] + len(match[0]) if following < len(ends) else at
        elif match[0] == "[":
            opened.append(match.start())
            if src[max(0, match.start() - 1)] == "!" and match.start() - 1 not in (-1, escaped_at):
                pictures.add(match.start())
        elif match[0] == "]" and opened:
            start = opened.pop()
            is_image = start in pictures
            is_active = is_image or len(opened) >= inactive
            inactive = min(inactive, len(opened))
            link = _destination(state, at) if is_active and src.startswith("(", at) else None
            if link is None and is_active and definitions:
                link = _reference(state, definitions, start, at)
            if link is not None:
                links[start] = link
                at = link.end
                if not is_image:
                    inactive = len(opened)
    return links


def _destination(state: "StateInline", at: int) -> _Link | None:
    helpers, src, last = state.md.helpers, state.src, len(state.src)
    label_end, at = at - 1, _skip_blank(src, at + 1)
    if at >= last:
        return None
    destination = helpers.parseLinkDestination(src, at, last)
    url = title = ""
    if destination.ok:
        url = state.md.normalizeLink(destination.str)
        url, at = (url, destination.pos) if state.md.validateLink(url) else ("", at)
        behind = _skip_blank(src, at)
        quoted = (
            helpers.parseLinkTitle(src, behind, last) if behind != at and src[behind : behind + 1] in "\"'(" else None
        )
        if quoted is not None and quoted.ok:
            title, behind = quoted.str, _skip_blank(src, quoted.pos)
        at = behind
    return _Link(label_end, at + 1, url, title) if src.startswith(")", at) else None


def _reference(state: "StateInline", definitions: dict[str, LabelledLink], start: int, at: int) -> _Link | None:
    """Return the link for a label in `[text][label]`, `[label][]` or `[label]`. The first bracket closes before
    `at`.
    """
    from markdown_it.common.utils import normalizeReference

    own, label = _LABEL.match(state.src, start, at), _LABEL.match(state.src, at)
    if label is not None and (label[1] and not label[1].strip()):
        label = None
    name = label[1] if label is not None and label[1] else own[1] if own is not None and own.end() == at else ""
    key = normalizeReference(name) if name.strip() else ""
    if key not in definitions:
        return None
    state.env.setdefault("referred", set()).add(key)
    url, title, _ = definitions[key]
    return _Link(at - 1, label.end() if label is not None else at, url, title)


def _define(state: "StateBlock", start: int, end: int, silent: bool) -> bool:
    """Parse a link definition on one line: `[label]: url "title"`."""
    from markdown_it.common.utils import normalizeReference

    src, first, last = state.src, state.bMarks[start] + state.tShift[start], state.eMarks[start]
    match = None if silent or state.is_code_block(start) else _LABEL.match(src, first, last)
    if match is None or match[1].startswith("^") or not match[1].strip() or not src.startswith(":", match.end()):
        return False
    helpers, at = state.md.helpers, _skip_blank(src, match.end() + 1)
    address = helpers.parseLinkDestination(src, at, last) if at < last else None
    if address is None or not address.ok or not address.str:
        return False
    url, title, behind = state.md.normalizeLink(address.str), "", _skip_blank(src, address.pos)
    if behind < last:
        quoted = helpers.parseLinkTitle(src, behind, last) if behind > address.pos else None
        if quoted is None or not quoted.ok or src[quoted.pos : last].strip():
            return False
        title = quoted.str
    if not state.md.validateLink(url):
        return False
    key = normalizeReference(match[1])
    state.env.setdefault("definitions", {}).setdefault(key, LabelledLink(url, title, start))
    token = state.push("definition", "", 0)
    token.content = src[first:last]
    token.map, token.meta = [start, start + 1], {"label": key}
    state.line = start + 1
    return True


def _line_break(state: "StateInline", silent: bool) -> bool:
    match = _LINE_BREAK.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.push("line_break", "", 0).content = match[0]
    state.pos = match.end()
    return True


def _skip_blank(src: str, at: int) -> int:
    while at < len(src) and src[at] in " \t\n":
        at += 1
    return at


def _token(state: "StateInline", silent: bool) -> bool:
    span = _scan_of(state).tokens.get(state.pos)
    if span is None or span.end > state.posMax:
        return False
    if not silent:
        state.push("token", "", 0).content = span.text
    state.pos = span.end
    return True


def _text(state: "StateInline", silent: bool) -> bool:
    src, scan = state.src, _scan_of(state)
    following = bisect_left(scan.starts, state.pos + 1)
    last = min(scan.starts[following], state.posMax) if following < len(scan.starts) else state.posMax
    end = state.pos
    while (match := _SPECIAL.search(src, end, last)) is not None:
        end = match.start()
        if src[end] not in "![" or end + src.startswith("![", end) in scan.links:
            break
        end += 1
    else:
        end = last
    if end == state.pos:
        return False
    if not silent:
        state.append_pending(state.src[state.pos : end])
    state.pos = end
    return True


def _link(state: "StateInline", silent: bool) -> bool:
    at = state.pos + state.src.startswith("![", state.pos)
    link = _scan_of(state).links.get(at) if state.src.startswith("[", at) else None
    if link is None or link.end > state.posMax:
        return False
    if not silent:
        opening = state.push("link_open", "a", 1)
        opening.attrs = {"href": link.url, "title": link.title}
        last, state.pos, state.posMax = state.posMax, at + 1, link.label_end
        state.md.inline.tokenize(state)
        state.posMax = last
        state.push("link_close", "a", -1)
    state.pos = link.end
    return True


def _emphasis(state: "StateInline", silent: bool) -> bool:
    mark = state.src[state.pos]
    if silent or mark not in "*_":
        return False
    end = state.pos
    while end < state.posMax and state.src[end] == mark:
        end += 1
    _delimit(state, end, mark, within_words=mark == "*")
    return True


def _strikethrough(state: "StateInline", silent: bool) -> bool:
    """Parse `~~`. As on GitHub, a longer run is plain text."""
    if silent or state.src[state.pos] != "~":
        return False
    end = state.pos
    while end < state.posMax and state.src[end] == "~":
        end += 1
    if end - state.pos == 2:
        _delimit(state, end, "~~", within_words=True)
    else:
        state.append_pending(state.src[state.pos : end])
        state.pos = end
    return True


def _delimit(state: "StateInline", end: int, mark: str, *, within_words: bool) -> None:
    from markdown_it.rules_inline.state_inline import Delimiter

    can_open, can_close = _flanks(state, state.pos, end, within_words=within_words)
    length = end - state.pos
    for _ in range(length // len(mark)):
        state.push("text", "", 0).content = mark
        state.delimiters.append(
            Delimiter(ord(mark[0]), 0 if mark == "~~" else length, len(state.tokens) - 1, -1, can_open, can_close)
        )
    state.pos = end


def _math(state: "StateInline", silent: bool) -> bool:
    end = math_end(state.src, state.pos, state.posMax)
    if not end:
        return False
    if not silent:
        state.push("math", "", 0).content = state.src[state.pos : end]
    state.pos = end
    return True


def math_end(src: str, at: int, last: int) -> int:
    """Return the end of a formula that starts at `at`, or 0."""
    for opening, closing in (("$$", "$$"), ("\\(", "\\)")):
        if src.startswith(opening, at):
            end = src.find(closing, at + 3, min(last, at + INLINE_MATH_CHARS_MAX))
            if end >= 0 and src.find("\n", at, end) < 0:
                return end + 2
    match = _MATH.match(src, at, last) if src.startswith("$", at) else None
    return match.end() if match is not None else 0


def _math_block(state: "StateBlock", start: int, end: int, silent: bool) -> bool:
    first = state.bMarks[start] + state.tShift[start]
    if state.is_code_block(start) or not state.src.startswith(("$$", "\\["), first):
        return False
    closing = "$$" if state.src.startswith("$$", first) else "\\]"
    for line in range(start, min(end, start + MATH_LINES_MAX)):
        if state.sCount[line] < state.blkIndent and not state.isEmpty(line):
            return False  # The enclosing list ends inside the formula.
        at = first + 2 if line == start else state.bMarks[line] + state.tShift[line]
        closed_at = state.src.find(closing, at, state.eMarks[line])
        if closed_at < 0:
            continue
        if state.src[closed_at + 2 : state.eMarks[line]].strip(" \t"):
            return False
        if not silent:
            token = state.push("math_block", "", 0)
            token.content = state.getLines(start, line + 1, state.blkIndent, False).strip()
            token.map = [start, line + 1]
            state.line = line + 1
        return True
    return False


# ---- the tree ----


def parse(markdown: str) -> list[Node]:
    """Parse Markdown into blocks. A text that is nested too deeply becomes one paragraph of plain text."""
    definitions: dict[str, LabelledLink] = {}
    referred = set[str]()
    tokens = parser().parse(markdown, {"definitions": definitions, "referred": referred})
    if any(token.level >= NESTING_MAX - 1 for token in tokens):
        return [Node("paragraph", [Node("text", text=markdown)])]
    return _Tree(markdown, {definitions[label].line for label in referred}).blocks(iter(tokens), "")


def block_starts(markdown: str) -> list[int]:
    """Return the start offset of each block. Appending text can change only the last block."""
    lines = [
        token.map[0]
        for token in parser().parse(markdown)
        if token.level == 0 and token.nesting >= 0 and token.map is not None
    ]
    offsets = [0, *(end.end() for end in _LINE_END.finditer(markdown))]
    return [offsets[line] for line in lines]


class _Tree:
    """Converts tokens to nodes, once. `used` contains the lines of the link definitions that links refer to."""

    def __init__(self, markdown: str, used: Set[int]) -> None:
        self._lines = markdown.split("\n")
        self._used = used
        self._is_in_table = False
        self._notes = set(_NOTE.findall(markdown)) if "[^" in markdown else set[str]()

    def blocks(self, tokens: "Iterator[Token]", until: str) -> list[Node]:
        nodes: list[Node] = []
        for token in tokens:
            match token.type:
                case closing if closing == until:
                    break
                case "paragraph_open" | "heading_open" as opening:
                    inline = next(tokens)
                    next(tokens)
                    if opening == "heading_open":
                        nodes.append(Node("heading", self.spans(inline), number=int(token.tag[1])))
                    else:
                        nodes.append(Node("paragraph", self.spans(inline), tight=token.hidden))
                case "fence" | "code_block":
                    nodes.append(_fence(token))
                case "blockquote_open":
                    nodes.append(Node("quote", self.blocks(tokens, "blockquote_close")))
                case "bullet_list_open":
                    nodes.append(_list(self.blocks(tokens, "bullet_list_close"), -1, token.markup))
                case "ordered_list_open":
                    number = int(token.attrs.get("start", 1))
                    nodes.append(_list(self.blocks(tokens, "ordered_list_close"), number, token.markup))
                case "list_item_open":
                    nodes.append(_item(self.blocks(tokens, "list_item_close")))
                case "table_open":
                    nodes.append(self._table(tokens, token))
                case "hr":
                    nodes.append(Node("rule"))
                case "definition":
                    if token.map is None or token.map[0] not in self._used:
                        self._append_definition(nodes, token.content)
                case _:
                    nodes.append(Node("raw", text=token.content))
        return nodes

    def _append_definition(self, nodes: list[Node], line: str) -> None:
        """Show an unused link definition as text. Adjacent definitions form one paragraph."""
        spans: list[Node] = []
        at = 0
        for start, end, text in tokens_in(line):
            spans += [Node("text", text=line[at:start]), Node("token", text=text)]
            at = end
        spans += [Node("text", text=line[at:])] if at < len(line) else []
        if nodes and nodes[-1].kind == "paragraph" and nodes[-1].info == "definition":
            nodes[-1].children += [Node("break", text="\n"), *spans]
        else:
            nodes.append(Node("paragraph", spans, info="definition", tight=True))

    def _table(self, tokens: "Iterator[Token]", table: "Token") -> Node:
        rows: list[Node] = []
        for token in tokens:
            match token.type:
                case "table_close":
                    break
                case "tr_open":
                    rows.append(Node("row"))
                    rows[-1].children = []
                case "inline":
                    self._is_in_table = True
                    rows[-1].children.append(Node("cell", self.spans(token)))
                    self._is_in_table = False
                case _:
                    pass
        lines = self._lines[table.map[0] : table.map[1]] if table.map else []
        written = [line.lstrip(" \t>") for line in lines]
        # The parser drops cells without a header, so show the source.
        if any(cells_in(line) > len(rows[0].children) for line in written):
            return Node("fence", text="\n".join(written) + "\n")
        return Node("table", rows)

    def spans(self, inline: "Token") -> list[Node]:
        """Return the inline nodes of a paragraph. Text that is nested too deeply becomes plain text."""
        depth = deepest = 0
        for token in inline.children or ():
            depth += token.nesting
            deepest = max(deepest, depth)
        if deepest >= NESTING_MAX:
            return [Node("text", text=inline.content)]
        return self._spans(iter(inline.children or ()), "")

    def _spans(self, tokens: "Iterator[Token]", until: str) -> list[Node]:
        nodes: list[Node] = []
        for token in tokens:
            match token.type:
                case closing if closing == until:
                    break
                case "softbreak" | "hardbreak":
                    nodes.append(Node("break", text="\n"))
                case "line_break" if self._is_in_table:
                    nodes.append(Node("break", text="\n"))
                case "code_inline":
                    nodes.append(Node("code", text=token.content))
                case "token" | "math":
                    nodes.append(Node("token", text=token.content))
                case "strong_open" | "em_open" | "s_open" as opening:
                    kind = opening.removesuffix("_open")
                    assert kind in ("strong", "em", "s")
                    nodes.append(Node(kind, self._spans(tokens, f"{kind}_close")))
                case "link_open":
                    url, title = str(token.attrs.get("href", "")), str(token.attrs.get("title", ""))
                    nodes.append(Node("link", self._spans(tokens, "link_close"), url=url, title=title))
                case _:
                    text = self._numbered(token.content)
                    if nodes and nodes[-1].kind == "text":
                        nodes[-1].text += text
                    elif text:
                        nodes.append(Node("text", text=text))
        return nodes

    def _numbered(self, text: str) -> str:
        """Replace `[^1]` with `[1]`, because the footnote may follow in a later message."""
        if "[^" not in text:
            return text
        return _NOTE_MARK.sub(
            lambda mark: f"[{mark[1]}]" if mark[1].isdigit() or mark[1] in self._notes else mark[0], text
        )


def _fence(token: "Token") -> Node:
    info = token.info.strip()
    if info.isascii() and language_in(info) == info:
        return Node("fence", text=token.content, info=info)
    return Node("fence", text=f"{info}\n{token.content}")  # The info string contains more than a language, so keep it.


def _list(items: list[Node], number: int, mark: str) -> Node:
    tight = all(child.tight for item in items for child in item.children if child.kind == "paragraph")
    return Node("list", items, number=number, info=mark, tight=tight)


def _item(blocks: list[Node]) -> Node:
    item = Node("item", blocks)
    first = blocks[0] if blocks and blocks[0].kind == "paragraph" else None
    text = first.children[0] if first is not None and first.children and first.children[0].kind == "text" else None
    if first is None or text is None:
        item.continued = bool(blocks) and blocks[0].kind == "list"
        return item
    if text.text.startswith(CONTINUED):
        item.continued, text.text = True, text.text.removeprefix(CONTINUED).removeprefix("\n")
        if not text.text:
            del first.children[0]
        if first.children and first.children[0].kind == "break":
            del first.children[0]
        if not first.children:
            del blocks[0]
    elif (box := _BOX.match(text.text)) is not None:
        item.box, text.text = " " if box[1] == " " else "x", text.text[box.end() :]
        if not text.text and len(first.children) > 1:
            del first.children[: 2 if first.children[1].kind == "break" else 1]
    return item


def plain_text(nodes: Sequence[Node]) -> str:
    return "".join(node.text or plain_text(node.children) for node in nodes)
