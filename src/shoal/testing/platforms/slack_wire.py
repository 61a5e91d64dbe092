"""Requests, errors and validation of the Slack Web API, for its fake."""

from collections.abc import Mapping
from typing import Literal
from urllib.parse import parse_qs

import msgspec

from shoal.testing.platforms.wire import Called, Given, Json, Refused, ok, query_of

TEXT_CHARS_MAX = 40_000
UPDATE_CHARS_MAX = 4_000
STREAM_CHARS_MAX = 12_000
SECTION_CHARS_MAX = 3_000
BLOCKS_MAX = 50

READS = frozenset(
    {
        "conversations.history", "conversations.replies", "conversations.info", "conversations.list",
        "conversations.members", "users.conversations", "users.info", "users.list", "files.info", "bots.info",
        "team.info", "chat.getPermalink", "files.getUploadURLExternal",
    }
)  # fmt: skip
"""Methods that accept forms and query strings but not JSON."""


def refused(code: str, *, needed: str = "") -> Refused:
    """Return the exception for an error response. Slack sends errors with status 200."""
    about = {"needed": needed, "provided": "chat:write"} if needed else {}
    return Refused(ok({"ok": False, "error": code, **about}))


class Sent(msgspec.Struct):
    """A message in a channel.

    - `only_for`: the only person who sees the message, or empty if everyone does.
    - `streaming`: True while the message is incomplete.
    """

    ts: str
    channel: str
    user: str
    text: str
    thread_ts: str = ""
    blocks: list[Json] = []
    metadata: Json = None
    file_ids: tuple[str, ...] = ()
    only_for: str = ""
    streaming: bool = False
    streamed: bool = False
    bot_id: str = ""
    edits: int = 0
    more: Given = {}

    @property
    def buttons(self) -> tuple[tuple[str, str], ...]:
        blocks = [block.get("elements") for block in self.blocks if isinstance(block, dict)]
        elements_found = [element for elements in blocks if isinstance(elements, list) for element in elements]
        elements = [element for element in elements_found if isinstance(element, dict)]
        return tuple((_inner(element), str(element.get("value", ""))) for element in elements)

    @property
    def source(self) -> str:
        """The mrkdwn that people see. It is the text of the blocks, or the message's text if it has no blocks."""
        texts = [_inner(block) for block in self.blocks if isinstance(block, dict)]
        return "\n".join(text for text in texts if text) if self.blocks else self.text


def _inner(holder: dict[str, Json]) -> str:
    text = holder.get("text")
    return str(text.get("text", "")) if isinstance(text, dict) else ""


class Room(msgspec.Struct):
    id: str
    name: str
    kind: Literal["im", "mpim", "channel", "private"]
    members: list[str]
    is_archived: bool = False


def parameters_of(called: Called, method: str) -> Given:
    """Return the parameters of a call from its query, form or JSON body.

    A JSON body counts only if the method accepts JSON.
    """
    given: Given = {name: _plain(name, value) for name, value in query_of(called).items()}
    kind = called.headers.get("content-type", "")
    if kind.startswith("application/json"):
        decoded: Given = msgspec.json.decode(called.body or b"{}")
        return given if method in READS else given | decoded
    fields = parse_qs(called.body.decode(), keep_blank_values=True)
    return given | {name: _plain(name, values[-1]) for name, values in fields.items()}


def _plain(name: str, value: str) -> Json:
    """Decode the value of a form field if the field contains JSON."""
    if name not in ("blocks", "metadata", "files", "attachments", "prompts", "chunks"):
        return value
    try:
        decoded: Json = msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise refused(f"invalid_{name}") from error
    return decoded


def text_in(given: Mapping[str, Json], name: str) -> str:
    value = given.get(name)
    return "" if value is None else str(value)


def is_true(given: Mapping[str, Json], name: str) -> bool:
    return given.get(name) in (True, "true", "True", "1")


def check_text(given: Mapping[str, Json], chars_max: int, *, has_blocks: bool) -> str:
    text = text_in(given, "text")
    if not text.strip() and not has_blocks:
        raise refused("no_text")
    if len(text) > chars_max:
        raise refused("msg_too_long")
    return text


def check_blocks(value: Json) -> list[Json]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > BLOCKS_MAX:
        raise refused("invalid_blocks")
    for block in value:
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(block, dict) or kind not in ("section", "actions", "divider", "header", "context"):
            raise refused("invalid_blocks")
        if kind == "section" and not 1 <= len(_text_of(block, ("mrkdwn", "plain_text"))) <= SECTION_CHARS_MAX:
            raise refused("invalid_blocks")
        if kind == "actions":
            _check_actions(block)
    return value


def _check_actions(block: dict[str, Json]) -> None:
    elements = block.get("elements")
    if not isinstance(elements, list) or not 1 <= len(elements) <= 25:
        raise refused("invalid_blocks")
    names: set[str] = set()
    for element in elements:
        if not isinstance(element, dict) or element.get("type") != "button":
            raise refused("invalid_blocks")
        name, value = text_in(element, "action_id"), text_in(element, "value")
        if not 1 <= len(_text_of(element, ("plain_text",))) <= 75 or len(value) > 2000 or len(name) > 255:
            raise refused("invalid_blocks")
        if name in names:
            raise refused("invalid_blocks")
        names.add(name)


def _text_of(holder: dict[str, Json], kinds: tuple[str, ...]) -> str:
    text = holder.get("text")
    if not isinstance(text, dict) or text.get("type") not in kinds:
        raise refused("invalid_blocks")
    return str(text.get("text", ""))


def check_metadata(value: Json) -> Json:
    if value is None:
        return None
    if not isinstance(value, dict) or not value.get("event_type") or not isinstance(value.get("event_payload"), dict):
        raise refused("invalid_metadata_format")
    return value
