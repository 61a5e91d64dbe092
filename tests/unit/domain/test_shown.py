"""People see what the Markdown says: each platform shows the words of the parsed text, and no mark."""

import random
import re
from collections.abc import Callable, Sequence

import msgspec
import pytest
from markdown_it import MarkdownIt
from tests.dialects import DIALECTS
from tests.soup import ADDRESSES, MENTIONS, soup

from shoal.chat.telegram.markup import styled
from shoal.domain.markdown import Node, parse
from shoal.domain.markup import render_markup
from shoal.domain.pieces import pieces_of
from shoal.domain.posts import ChatLimits
from shoal.domain.tables import aligned
from shoal.testing.platforms import discord_markup, google_chat_wire, matrix_wire, slack_markup, teams_markup

SOUPS = 300
SHOWN: dict[str, Callable[[str], str]] = {
    "discord": discord_markup.shown_text,
    "slack": slack_markup.shown_text,
    "teams": teams_markup.shown_text,
    "google_chat": google_chat_wire.shown_text,
    "matrix": matrix_wire.shown_text,
    "telegram": lambda rendered: styled(rendered).text,
}
_INVISIBLE = re.compile(r"[\s\u200b\u00ad\u2060]+")


def said(nodes: Sequence[Node], platform: str) -> str:
    """What blocks or spans say on a platform, with the marks of lists."""
    return "".join(_said(node, platform) for node in nodes)


def _said(node: Node, platform: str) -> str:
    dialect = DIALECTS[platform]
    is_within = node.kind == "link" and dialect is not None and dialect.opens(node.url)
    children = [_pictured(child) for child in node.children] if is_within else node.children
    inner = said(children, platform)
    match node.kind:
        case "list":
            return "".join(_item(node, at, platform) for at in range(len(node.children)))
        case "table" if platform != "matrix":
            return aligned([[_cell(cell) for cell in row.children] for row in node.children])
        case "rule":
            return "" if platform == "matrix" else "———"
        case "link":
            return _link(node, inner, platform)
        case _:
            return node.text or inner


def _link(node: Node, label: str, platform: str) -> str:
    if node.title:
        label += f" ({node.title})"
    if not label or (label == node.url and node.children[0].kind != "code"):
        return node.url
    dialect = DIALECTS[platform]
    assert dialect is not None
    opens = dialect.opens(node.url)
    if platform == "discord" and ("://" in label or set("[]") & set(_codes(node.children))):
        opens = False
    return label if opens else f"{label} ({node.url})"


def _codes(nodes: Sequence[Node]) -> str:
    return "".join(node.text if node.kind == "code" else _codes(node.children) for node in nodes)


def _pictured(node: Node) -> Node:
    """A link as it is within another: its words alone."""
    return msgspec.structs.replace(node, kind="paragraph") if node.kind == "link" else node


def _cell(cell: Node) -> str:
    return said(cell.children, "plain").replace("\n", " ")


def _item(node: Node, at: int, platform: str) -> str:
    item = node.children[at]
    box = "☐☑"[item.box == "x"] if item.box else ""
    marker = f"{node.number + at}{node.info}" if node.number >= 0 else "" if box else "•"
    return ("" if platform == "matrix" or item.continued else marker) + box + said(item.children, platform)


def visible(text: str) -> str:
    return _INVISIBLE.sub("", text).replace("\u02cb", "`")


def nests_quotes(nodes: Sequence[Node], *, within: bool = False) -> bool:
    return any(
        (within and node.kind == "quote")
        or nests_quotes(node.children, within=within or node.kind in ("quote", "list"))
        for node in nodes
    )


def difference(platform: str, text: str) -> tuple[str, str] | None:
    blocks = parse(text)
    wanted, shown = visible(said(blocks, platform)), visible(SHOWN[platform](render_markup(text, DIALECTS[platform])))
    if nests_quotes(blocks):
        wanted, shown = wanted.replace(">", ""), shown.replace(">", "")
    return None if wanted == shown else (wanted, shown)


@pytest.mark.parametrize("platform", SHOWN)
def test_people_see_what_the_text_says(platform: str) -> None:
    for seed in range(SOUPS):
        text = soup(random.Random(seed))
        assert difference(platform, text) is None, f"soup {seed}: {text!r}"


# ---- the parsed text is what CommonMark says ----

ASCII_SOUPS = 3000
OWN_RULES = (*ADDRESSES, *MENTIONS, "|", "$", "~~~", "[1]:", "[x]", "[ ]")
_PLAIN = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").disable(["html_block", "html_inline"])


def shown_by_commonmark(text: str) -> str:
    """The words that a plain CommonMark parser shows."""
    return "".join(
        child.content
        for token in _PLAIN.parse(text)
        for child in (token.children or [token])
        if child.type in ("text", "text_special", "code_inline", "fence", "code_block", "image")
    )


def ours(nodes: Sequence[Node]) -> str:
    return "".join(node.text or ours(node.children) for node in nodes)


def test_the_parser_shows_what_commonmark_shows() -> None:
    """But for its own rules: tokens, CJK, tables, boxes, formulas, definitions, no strikethrough by longer runs."""
    compared = 0
    for seed in range(ASCII_SOUPS):
        text = soup(random.Random(seed))
        if not text.isascii() or any(
            token in text for token in (*ADDRESSES, *MENTIONS, "|", "$", "~~~", "[1]:", "[x]", "[ ]")
        ):
            continue
        compared += 1
        assert visible(ours(parse(text))) == visible(shown_by_commonmark(text)), f"soup {seed}: {text!r}"
    assert compared > ASCII_SOUPS / 50


# ---- pieces say what the text says ----

CUT_SOUPS = (*range(60), 282, 301)
_REPEATED = re.compile(r"\]\([^()\s]{0,40}(?:\([a-z]+\))?(?: \"a title\")?\)")
_NO_LETTER = re.compile(r"[\W\d_]+")


def cut_text(seed: int) -> tuple[str, int]:
    """A text of several soups, and the length of a message; without what is repeated behind a cut: headers of tables,
    titles of links, and addresses that are shown."""
    source = random.Random(seed)
    blocks = _REPEATED.sub("](http://x.example)", "\n\n".join(soup(source) for _ in range(4))).split("\n\n")
    return "\n\n".join(block for block in blocks if "| ---" not in block), source.choice((150, 250, 500))


@pytest.mark.parametrize("platform", SHOWN)
def test_pieces_fit_and_say_what_the_text_says(platform: str) -> None:
    show, dialect = SHOWN[platform], DIALECTS[platform]
    for seed in CUT_SOUPS:
        text, room = cut_text(seed)
        limits = ChatLimits(text_chars_max=room, markup=dialect)
        pieces = pieces_of(text, limits)
        assert all(limits.rendered_length(piece) <= room for piece in pieces), f"soup {seed}"
        whole, parts = ([show(render_markup(part, dialect)) for part in texts] for texts in ([text], pieces))
        assert _NO_LETTER.sub("", "".join(parts)) == _NO_LETTER.sub("", whole[0]), f"soup {seed}: {text!r}"
