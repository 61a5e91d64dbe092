"""Requests, errors and validation of the Matrix client-server API, for its fake."""

from html.parser import HTMLParser

import msgspec

from shoal.testing.platforms.commonmark import Run
from shoal.testing.platforms.wire import Given, Refused, ok

EVENT_BYTES_MAX = 65_536
_TAGS = """
del h1 h2 h3 h4 h5 h6 blockquote p a ul ol sup sub li b i u strong em s code hr br div table thead tbody tr th td
caption pre span img details summary
"""
TAGS = frozenset(_TAGS.split())
"""HTML elements that the Matrix specification permits in messages."""
_BLOCKS = frozenset(["p", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "hr"])
_STATUS = {
    "M_FORBIDDEN": 403, "M_NOT_FOUND": 404, "M_UNRECOGNIZED": 404, "M_TOO_LARGE": 413, "M_BAD_JSON": 400,
    "M_UNKNOWN_TOKEN": 401, "M_MISSING_TOKEN": 401, "M_LIMIT_EXCEEDED": 429, "M_INVALID_PARAM": 400,
}  # fmt: skip


class Refusal(Refused):
    """Raised to reject a call with a Matrix error code."""

    def __init__(self, code: str, reason: str, retry_after_ms: int | None = None) -> None:
        content: Given = {"errcode": code, "error": reason}
        headers: tuple[tuple[str, str], ...] = ()
        if retry_after_ms is not None:
            content["retry_after_ms"] = retry_after_ms
            headers = (("retry-after", str(-(-retry_after_ms // 1000))),)
        super().__init__(ok(content, _STATUS[code], headers))


class Happened(msgspec.Struct):
    """An event in a room, with its position in the stream of all events."""

    position: int
    event_id: str
    room: str
    sender: str
    type: str
    content: Given
    at_ms: int
    state_key: str | None = None
    redacts: str = ""

    def told(self) -> Given:
        event: Given = {
            "type": self.type, "event_id": self.event_id, "room_id": self.room, "sender": self.sender,
            "origin_server_ts": self.at_ms, "content": self.content, "unsigned": {"age": 1},
        }  # fmt: skip
        if self.state_key is not None:
            event["state_key"] = self.state_key
        if self.redacts:
            event["redacts"] = self.redacts
        return event

    @property
    def relation(self) -> Given:
        """The event's relation to another event, or {} if it has none."""
        relation = self.content.get("m.relates_to")
        return relation if isinstance(relation, dict) else {}


class Written(msgspec.Struct):
    """A message of the bot in its current state."""

    id: str
    room: str
    text: str
    html: str
    thread: str = ""
    reply_to: str = ""
    file: tuple[str, bytes] | None = None
    kind: str = ""
    edits: int = 0


_STYLED = {"strong": "strong", "em": "em", "del": "s", "code": "code", "a": ""}


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.runs: list[Run] = []
        self.opened: list[str] = []
        self.unknown: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _STYLED:
            self.opened.append(dict(attrs).get("href") or _STYLED[tag])
        if tag not in TAGS:
            self.unknown.add(tag)
        if tag in ("br", "hr", "pre"):
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _STYLED:
            self.opened.pop()
        self.parts.append("\n" if tag in _BLOCKS else " " if tag in ("td", "th") else "")

    def handle_data(self, data: str) -> None:
        self.parts.append(data)
        self.runs.append((data, frozenset(self.opened)))


def shown_text(html: str) -> str:
    """Return the visible text of HTML.

    Raises Refusal for elements that clients need not render. A real homeserver would accept them.
    """
    reader = _Text()
    reader.feed(html)
    reader.close()
    if reader.unknown:
        raise Refusal("M_BAD_JSON", f"clients need not render {sorted(reader.unknown)}")
    return "".join(reader.parts).strip()


def shown_runs(html: str) -> list[Run]:
    reader = _Text()
    reader.feed(html)
    reader.close()
    return reader.runs


def text_in(content: Given, name: str) -> str:
    value = content.get(name)
    return value if isinstance(value, str) else ""


def part_of(content: Given, name: str) -> Given:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def check_message(content: Given) -> None:
    if len(msgspec.json.encode(content)) > EVENT_BYTES_MAX:
        raise Refusal("M_TOO_LARGE", "event too large")
    for part in (content, part_of(content, "m.new_content")):
        if part and not (text_in(part, "msgtype") and isinstance(part.get("body"), str)):
            raise Refusal("M_BAD_JSON", "a message needs msgtype and body")
        if "formatted_body" in part and part.get("format") != "org.matrix.custom.html":
            raise Refusal("M_BAD_JSON", "formatted_body needs its format")
        shown_text(text_in(part, "formatted_body"))
