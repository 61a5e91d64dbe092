"""Requests, errors and validation of the Discord API, for its fake."""

import re
from typing import Literal

import msgspec

from shoal.testing.platforms.wire import Called, Given, Json, Part, Refused, form_of, ok

CONTENT_MAX = 2000
FILES_MAX = 10
NONCE_MAX = 25
CUSTOM_ID_MAX = 100
LABEL_MAX = 80
EMBEDS_MAX = 10
EMBEDS_CHARS_MAX = 6000
FILE_BYTES_MAX = 10_485_760
COMMANDS_MAX = 100
EPOCH_MS = 1_420_070_400_000

_COMMAND = re.compile(r"[a-z0-9_-]{1,32}")
_REASONS = {
    10003: (404, "Unknown Channel"),
    10004: (404, "Unknown Guild"),
    10007: (404, "Unknown Member"),
    10008: (404, "Unknown Message"),
    10015: (404, "Unknown Webhook"),
    10062: (404, "Unknown interaction"),
    40004: (403, "Send messages has been temporarily disabled"),
    40058: (400, "Cannot message this channel until a thread is started"),
    40005: (413, "Request entity too large"),
    40060: (400, "Interaction has already been acknowledged."),
    50001: (403, "Missing Access"),
    50005: (403, "Cannot edit a message authored by another user"),
    50006: (400, "Cannot send an empty message"),
    50007: (403, "Cannot send messages to this user"),
    50008: (400, "Cannot send messages in a non-text channel"),
    50013: (403, "Missing Permissions"),
    50024: (400, "Cannot execute action on this channel type"),
    50035: (400, "Invalid Form Body"),
    50055: (400, "Invalid Guild"),
    50083: (400, "Thread is archived"),
    50095: (403, "This server is not available in your location"),
    160002: (403, "Cannot reply without permission to read message history"),
    160009: (403, "Cannot reference a message without permission to read message history"),
    160010: (400, "NSFW channel message reference not allowed"),
    160005: (400, "Thread is locked"),
    160004: (400, "A thread has already been created for this message"),
}


class Refusal(Refused):
    """Raised to reject a call with one of Discord's error codes. `field` names the invalid field for code 50035."""

    def __init__(self, code: int, field: str = "", message: str = "") -> None:
        status, reason = _REASONS[code]
        content: Given = {"message": reason, "code": code}
        if field:
            content["errors"] = {field: {"_errors": [{"code": "INVALID", "message": message}]}}
        super().__init__(ok(content, status))


class Sent(msgspec.Struct):
    """A message as people see it. `raw` is its source text. A `hidden` message is visible only to the person who
    ran the command.
    """

    id: str
    channel: str
    user: str
    text: str
    raw: str = ""
    reply_to: str = ""
    buttons: tuple[tuple[str, str], ...] = ()
    file: tuple[str, bytes] | None = None
    kind: str = ""
    album: tuple[tuple[str, bytes], ...] = ()
    nonce: str = ""
    edits: int = 0
    hidden: bool = False
    at: float = 0.0
    more: Given = {}


class Room(msgspec.Struct):
    """A channel. `type` is 0 for a server channel, 1 for a direct channel, and 11 for a thread in the channel
    `parent`.
    """

    id: str
    type: int = 0
    guild: str = ""
    parent: str = ""
    name: str = ""
    user: str = ""
    locked: bool = False
    last: str = ""


class Heard(msgspec.Struct):
    """A person's command, click or typing, with the bot's answer so far."""

    id: str
    token: str
    channel: str
    user: str
    state: Literal["new", "deferred", "answered"] = "new"
    message: Sent | None = None
    choices: list[str] | None = None


def refused(field: str, message: str) -> Refusal:
    """Return the error for an invalid field (code 50035)."""
    return Refusal(50035, field, message)


def body_of(called: Called) -> tuple[Json, tuple[Part, ...]]:
    if called.headers.get("content-type", "").startswith("multipart/"):
        fields = form_of(called.headers, called.body)
        payload: Json = msgspec.json.decode(fields["payload_json"].content) if "payload_json" in fields else {}
        return payload, tuple(part for name, part in fields.items() if name.startswith("files["))
    if not called.body:
        return {}, ()
    return msgspec.json.decode(called.body), ()


def checked_message(given: Given, files: tuple[Part, ...], *, new: bool) -> None:
    content = given.get("content")
    if content is not None and not isinstance(content, str):
        raise refused("content", "Could not interpret as string.")
    if len(content or "") > CONTENT_MAX:
        raise refused("content", "Must be 2000 or fewer in length.")
    embeds = given.get("embeds") or []
    assert isinstance(embeds, list)
    if len(embeds) > EMBEDS_MAX or sum(_chars(embed) for embed in embeds) > EMBEDS_CHARS_MAX:
        raise refused("embeds", "Embed size exceeds maximum size of 6000")
    nonce = given.get("nonce")
    if nonce is not None and len(str(nonce)) > NONCE_MAX:
        raise refused("nonce", "Must be 25 or fewer in length.")
    if any(len(part.content) > FILE_BYTES_MAX for part in files):
        raise Refusal(40005)
    if len(files) > FILES_MAX:
        raise refused("attachments", "Must be 10 or fewer in length.")
    if new and not (content or "").strip() and not files and not embeds:
        raise Refusal(50006)
    if is_voice(given):
        attached = given.get("attachments")
        described = attached[0] if isinstance(attached, list) and len(attached) == 1 else None
        if content or embeds or len(files) != 1 or not isinstance(described, dict):
            raise refused("flags", "Voice messages must have a single audio attachment and nothing else.")
        if not (described.get("duration_secs") and isinstance(described.get("waveform"), str)):
            raise refused("attachments", "Voice messages must have a duration and a waveform.")
    buttons_of(given)


def is_voice(given: Given) -> bool:
    flags = given.get("flags")
    return isinstance(flags, int) and bool(flags & 1 << 13)


def _chars(embed: Json) -> int:
    if isinstance(embed, str):
        return len(embed)
    values = embed.values() if isinstance(embed, dict) else embed if isinstance(embed, list) else ()
    return sum(_chars(value) for value in values)


def buttons_of(given: Given) -> tuple[tuple[str, str], ...]:
    rows = given.get("components") or []
    if not isinstance(rows, list) or len(rows) > 5:
        raise refused("components", "Must be 5 or fewer in length.")
    buttons: list[tuple[str, str]] = []
    for row in rows:
        if not isinstance(row, dict) or row.get("type") != 1:
            raise refused("components", "The specified component type is invalid in this context")
        inner = row.get("components")
        if not isinstance(inner, list) or not 1 <= len(inner) <= 5:
            raise refused("components", "Must be between 1 and 5 in length.")
        buttons += [_button(button) for button in inner]
    if len({value for _, value in buttons}) != len(buttons):
        raise refused("components", "Component custom id cannot be duplicated")
    return tuple(buttons)


def _button(button: Json) -> tuple[str, str]:
    if not isinstance(button, dict) or button.get("type") != 2 or button.get("style") not in (1, 2, 3, 4):
        raise refused("components", "The specified component type is invalid in this context")
    label, value = str(button.get("label", "")), str(button.get("custom_id", ""))
    if not 1 <= len(value) <= CUSTOM_ID_MAX:
        raise refused("components", "Must be between 1 and 100 in length.")
    if not 1 <= len(label) <= LABEL_MAX:
        raise refused("components", "Must be between 1 and 80 in length.")
    return label, value


def checked_commands(given: Json) -> list[Given]:
    if not isinstance(given, list) or len(given) > COMMANDS_MAX:
        raise refused("commands", "Must be 100 or fewer in length.")
    commands: list[Given] = []
    for command in given:
        if not isinstance(command, dict) or not _COMMAND.fullmatch(str(command.get("name", ""))):
            raise refused("name", "Command name is invalid")
        for option in (command, *_options(command)):
            if not 1 <= len(str(option.get("description", ""))) <= 100:
                raise refused("description", "Must be between 1 and 100 in length.")
        commands.append(command)
    if len({str(command["name"]) for command in commands}) != len(commands):
        raise refused("name", "Application command names must be unique")
    return commands


def checked_choices(data: Given) -> list[str]:
    choices = data.get("choices")
    if not isinstance(choices, list) or len(choices) > 25:
        raise refused("data.choices", "Must be 25 or fewer in length.")
    values = [str(choice.get("value", "")) for choice in choices if isinstance(choice, dict)]
    if any(not 1 <= len(value) <= 100 for value in values):
        raise refused("data.choices", "Must be between 1 and 100 in length.")
    return values


def _options(command: Given) -> list[Given]:
    options = command.get("options") or []
    assert isinstance(options, list)
    rows = [option for option in options if isinstance(option, dict)]
    if any(not _COMMAND.fullmatch(str(option.get("name", ""))) or option.get("type") != 3 for option in rows):
        raise refused("options", "Option is invalid")
    return rows


def user_json(user: str, name: str, *, bot: bool) -> Given:
    return {
        "id": user, "username": name.lower(), "global_name": name, "discriminator": "0", "avatar": None, "bot": bot,
        "public_flags": 0, "flags": 0, "primary_guild": None,
    }  # fmt: skip
