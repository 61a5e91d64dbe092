"""Each platform shows the words of the parsed Markdown and no markup characters."""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote

import msgspec
import pytest
from markdown_it import MarkdownIt
from tests.dialects import DIALECTS
from tests.soup import ADDRESSES, MENTIONS, soup

from shoal.kernel.markup import Node
from shoal.kernel.posts import ChatLimits
from shoal.markdown.parse import parse
from shoal.markdown.pieces import pieces_of
from shoal.markdown.render import render_markup, rendered_length
from shoal.markdown.tables import aligned
from shoal.platforms.telegram.markup import styled
from shoal.testing.platforms import discord_markup, google_chat_wire, matrix_wire, slack_markup, teams_markup
from shoal.testing.platforms.commonmark import Run

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
    """Replace a link that is nested in another link with its text."""
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
def test_the_rendered_text_preserves_the_content(platform: str) -> None:
    for seed in range(SOUPS):
        text = soup(random.Random(seed))
        assert difference(platform, text) is None, f"soup {seed}: {text!r}"


# ---- styles, code and links ----

PLAIN_RUN = frozenset[str]()
EXACT = frozenset({"matrix", "telegram"})
"""Platforms whose markup works anywhere. The others drop styles that they cannot express."""
STYLES = frozenset({"strong", "em", "s"})
_TYPES = {"bold": "strong", "italic": "em", "strikethrough": "s", "code": "code", "pre": "code"}


def telegram_runs(rendered: str) -> list[Run]:
    text, entities = styled(rendered)
    styles = [set[str]() for _ in _units(text)]
    for one in entities:
        assert isinstance(one, Mapping)
        start, length = int(str(one["offset"])), int(str(one["length"]))
        assert 0 <= start < start + length <= len(styles), one
        kind = _TYPES.get(str(one["type"])) or str(one.get("url", ""))
        for at in range(start, start + length) if kind else ():
            styles[at].add(kind)
    return [(unit, frozenset(on)) for unit, on in zip(_units(text), styles, strict=True)]


RUNS: dict[str, Callable[[str], list[Run]]] = {
    "teams": teams_markup.shown_runs,
    "google_chat": google_chat_wire.shown_runs,
    "matrix": matrix_wire.shown_runs,
    "telegram": telegram_runs,
}


def meant(nodes: Sequence[Node], platform: str, styles: frozenset[str] = PLAIN_RUN) -> Iterator[Run]:
    dialect = DIALECTS[platform]
    assert dialect is not None
    for at, node in enumerate(nodes):
        match node.kind:
            case "strong" if "in a heading" in styles:  # headings are already bold
                yield from meant(node.children, platform, styles)
            case "strong" | "em" | "s":
                yield from meant(node.children, platform, styles | {node.kind})
            case "heading":
                within = "in a heading" if platform == "matrix" else "strong"
                yield from meant(node.children, platform, styles | {within})
            case "code" if platform == "telegram" and "in a link" in styles:  # Telegram allows only one of them
                yield node.text, styles
            case "code" | "fence":
                yield node.text, styles | {"code"}
            case "token":
                is_linked = dialect.token is not None and "in a link" not in styles and dialect.opens(node.text)
                yield node.text, styles | {node.text} if is_linked else styles
            case "table" if platform != "matrix":
                yield _said(node, platform), frozenset({"code"})
            case "list":
                for number, item in enumerate(node.children):
                    yield _item(node, number, platform).removesuffix(said(item.children, platform)), styles
                    yield from meant(item.children, platform, styles)
            case "link" if "in a link" in styles:
                yield from meant(node.children, platform, styles)
            case "link":
                label = said([_pictured(one) for one in node.children], platform)
                opens = dialect.opens(node.url) and not (platform == "telegram" and label == node.url)
                within = styles | {node.url, "in a link"} if opens else styles
                yield from meant(node.children, platform, within)
                whole = _link(node, label, platform)
                yield whole.removeprefix(label) if whole.startswith(label) else whole, within
            case _ if node.children:
                yield from meant(node.children, platform, styles)
            case _:
                yield _said(nodes[at], platform), styles


def characters(runs: Iterable[Run]) -> list[Run]:
    return [
        (unit, frozenset(unquote(_PLAIN.normalizeLink(style)) for style in styles - {"in a link", "in a heading"}))
        for text, styles in runs
        for unit in _units(visible(text))
    ]


def _units(text: str) -> Iterator[str]:
    units = text.encode("utf-16-le", "surrogatepass")
    return (units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2))


@pytest.mark.parametrize("platform", RUNS)
def test_the_rendered_text_preserves_styles_code_and_links(platform: str) -> None:
    for seed in range(SOUPS):
        text = soup(random.Random(seed))
        blocks = parse(text)
        if nests_quotes(blocks):
            continue
        wanted = characters(meant(blocks, platform))
        shown = characters(RUNS[platform](render_markup(text, DIALECTS[platform])))
        assert [one for one, _ in shown] == [one for one, _ in wanted], f"soup {seed}: {text!r}"
        for at, ((_, seen), (_, asked)) in enumerate(zip(shown, wanted, strict=True)):
            where = f"soup {seed} at {at}, {''.join(one for one, _ in wanted[max(0, at - 9) : at + 9])!r}: {text!r}"
            assert seen - STYLES == asked - STYLES, where
            if platform in EXACT and "code" not in asked:
                assert seen & STYLES == asked & STYLES, where
            assert seen & STYLES <= asked, where


# ---- comparison with CommonMark ----

ASCII_SOUPS = 3000
OWN_RULES = (*ADDRESSES, *MENTIONS, "|", "$", "~~~", "[1]:", "[x]", "[ ]")
_PLAIN = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").disable(["html_block", "html_inline"])


def shown_by_commonmark(text: str) -> str:
    return "".join(
        child.content
        for token in _PLAIN.parse(text)
        for child in (token.children or [token])
        if child.type in ("text", "text_special", "code_inline", "fence", "code_block", "image")
    )


def ours(nodes: Sequence[Node]) -> str:
    return "".join(node.text or ours(node.children) for node in nodes)


def test_the_parser_shows_what_commonmark_shows() -> None:
    """Shoal's own rules are excluded: tokens, CJK, tables, checkboxes, formulas, definitions, and strikethrough
    only with `~~`.
    """
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


# ---- pieces preserve the text ----

CUT_SOUPS = (*range(60), 282, 301)
_REPEATED = re.compile(r"\]\([^()\s]{0,40}(?:\([a-z]+\))?(?: \"a title\")?\)")
_NO_LETTER = re.compile(r"[\W\d_]+")


def cut_text(seed: int) -> tuple[str, int]:
    """Return a random text and a message length.

    The text has no table headers, link titles or visible addresses, because each piece repeats them after a cut.
    """
    source = random.Random(seed)
    blocks = _REPEATED.sub("](http://x.example)", "\n\n".join(soup(source) for _ in range(4))).split("\n\n")
    return "\n\n".join(block for block in blocks if "| ---" not in block), source.choice((150, 250, 500))


@pytest.mark.parametrize("platform", SHOWN)
def test_rendered_pieces_fit_and_preserve_the_text(platform: str) -> None:
    show, dialect = SHOWN[platform], DIALECTS[platform]
    for seed in CUT_SOUPS:
        text, room = cut_text(seed)
        limits = ChatLimits(text_chars_max=room, markup=dialect)
        pieces = pieces_of(text, limits)
        assert all(rendered_length(piece, limits) <= room for piece in pieces), f"soup {seed}"
        whole, parts = ([show(render_markup(part, dialect)) for part in texts] for texts in ([text], pieces))
        assert _NO_LETTER.sub("", "".join(parts)) == _NO_LETTER.sub("", whole[0]), f"soup {seed}: {text!r}"


@pytest.mark.parametrize("platform", [*SHOWN])
def test_a_nested_list_does_not_shift_numbers(platform: str) -> None:
    assert difference(platform, "1. a\n2. - x\n   - y\n3. b\n4. c") is None
