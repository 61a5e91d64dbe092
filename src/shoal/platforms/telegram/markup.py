"""Telegram's markup: text with entities for bold text, code, links and quotes.

Entities need no escaping. Unlike MarkdownV2, they never cause parse errors (decision 044). Rendered text marks entities
with control characters that are removed from all other text: `OPEN kind SEPARATOR detail BEGIN … CLOSE`.

Sources: core.telegram.org/bots/api#messageentity and #formatting-options, and the Bot API's entity handling in
tdlib/td, td/telegram/MessageEntity.cpp.
"""

import re
from operator import itemgetter
from typing import NamedTuple

from shoal.kernel.markup import Dialect, Wrap, is_link, language_in
from shoal.markdown.dialects import before_lines
from shoal.platforms.http import Json

ENTITIES_MAX = 100
"""Maximum number of entities per message. Telegram ignores further entities."""
OPEN, SEPARATOR, BEGIN, CLOSE = "\x0e", "\x0f", "\x10", "\x11"
URL_CHARS_MAX = 2000

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")
_MARK = re.compile(rf"{OPEN}([a-z_]+){SEPARATOR}([^{OPEN}{BEGIN}]*+){BEGIN}|{CLOSE}")
_CODE = frozenset({"code", "pre"})
_DETAILS = {"pre": "language", "text_link": "url"}


class Styled(NamedTuple):
    text: str
    entities: list[Json]


def _text(text: str) -> str:
    return _CONTROL.sub("", text)


def _entity(kind: str, inner: str, detail: str = "") -> str:
    return f"{OPEN}{kind}{SEPARATOR}{_text(detail)}{BEGIN}{inner}{CLOSE}"


def _wrap(kind: str) -> Wrap:
    return lambda inner: _entity(kind, inner)


def _opens(url: str) -> bool:
    return (is_link(url) or url.startswith("tg://")) and len(url) <= URL_CHARS_MAX


def _link(label: str, url: str) -> str:
    return label if label == url else _entity("text_link", label, url)


def _plain(rendered: str) -> str:
    return _MARK.sub("", rendered)


def styled(rendered: str) -> Styled:
    """Split rendered text into plain text and entities.

    Offsets and lengths count UTF-16 code units. Telegram allows no formatting around code except a quote, so bold text
    around code becomes two entities. In a link, code is shown as plain text.
    """
    out: list[str] = []
    entities: list[tuple[int, int, int, dict[str, Json]]] = []
    opened: list[tuple[str, str, int]] = []
    place = at = 0

    def end(kind: str, detail: str, start: int) -> None:
        if place > start:
            about: dict[str, Json] = {_DETAILS[kind]: detail} if detail else {}
            entities.append(
                (start, start - place, len(opened), {"type": kind, "offset": start, "length": place - start, **about})
            )

    for mark in _MARK.finditer(rendered):
        text = rendered[at : mark.start()]
        out.append(text)
        place, at = place + utf16_length(text), mark.end()
        if mark[1]:
            is_shown = not (mark[1] in _CODE and any(kind == "text_link" for kind, _, _ in opened))
            if mark[1] in _CODE and is_shown:
                for number, (kind, detail, start) in enumerate(opened):
                    if kind not in ("blockquote", "text_link", "none"):
                        end(kind, detail, start)
                        opened[number] = (kind, detail, -1)
            opened.append((mark[1] if is_shown else "none", mark[2], place))
        elif opened:
            kind, detail, start = opened.pop()
            if kind != "none" and start >= 0:
                end(kind, detail, start)
            if kind in _CODE:
                opened = [(tag, about, place if since < 0 else since) for tag, about, since in opened]
    out.append(rendered[at:])
    entities.sort(key=itemgetter(0, 1, 2))  # outer entities first
    return Styled("".join(out), [entity for *_, entity in entities])


def utf16_length(text: str) -> int:
    return len(text) + sum(1 for character in text if character > "\uffff")


def _fence(content: str, info: str) -> str:
    return _entity("pre", _text(content.removesuffix("\n")), language_in(info))


TELEGRAM_MARKUP = Dialect(
    text=_text,
    styles={"strong": _wrap("bold"), "em": _wrap("italic"), "s": _wrap("strikethrough")},
    code=lambda code: _entity("code", _text(code)),
    fence=_fence,
    opens=_opens,
    link=_link,
    heading=lambda text, level: _entity("bold", text),
    quote=_wrap("blockquote"),
    inner_quote=before_lines("> "),
    shown=_plain,
    marks=lambda rendered: len(styled(rendered).entities),
)
