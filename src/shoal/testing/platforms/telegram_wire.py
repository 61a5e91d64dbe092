"""Requests and responses of the fake Telegram Bot API."""

from collections.abc import Mapping

import msgspec

from shoal.testing.platforms.wire import Called, Given, Json, Part, Refused, form_of, ok

BUTTON_BYTES_MAX = 64


class Sent(msgspec.Struct):
    """A message as people see it. `raw` is the text before markup is parsed, and `edits` counts the bot's edits."""

    id: int
    chat: int
    topic: int
    user: int
    text: str
    raw: str = ""
    reply_to: int = 0
    buttons: tuple[tuple[str, str], ...] = ()
    file: tuple[str, bytes] | None = None
    edits: int = 0
    kind: str = ""
    album: tuple[tuple[str, bytes], ...] = ()


def parameters_of(called: Called) -> tuple[Given, dict[str, Part]]:
    if called.headers.get("content-type", "").startswith("multipart/"):
        fields = form_of(called.headers, called.body)
        given: Given = {}
        for name, part in fields.items():
            if not part.filename:
                given[name] = _plain_field(name, part.content.decode())
        return given, {name: part for name, part in fields.items() if part.filename}
    decoded: Given = msgspec.json.decode(called.body or b"{}")
    return decoded, {}


def buttons_of(given: Given) -> tuple[tuple[str, str], ...]:
    markup = given.get("reply_markup")
    if not isinstance(markup, dict):
        return ()
    buttons: list[tuple[str, str]] = []
    rows = markup.get("inline_keyboard")
    for row in rows if isinstance(rows, list) else []:
        for button in row if isinstance(row, list) else []:
            assert isinstance(button, dict)
            value = str(button.get("callback_data", ""))
            if not 1 <= len(value.encode()) <= BUTTON_BYTES_MAX:
                raise refused(400, "Bad Request: BUTTON_DATA_INVALID")
            buttons.append((str(button["text"]), value))
    return tuple(buttons)


def entities_of(text: str) -> list[Json]:
    rows: list[Json] = []
    at = 0
    for word in text.split(" "):
        kind = {"@": "mention", "/": "bot_command"}.get(word[:1])
        if kind is not None and len(word) > 1:
            rows.append({"type": kind, "offset": len(text[:at].encode("utf-16-le")) // 2, "length": len(word)})
        at += len(word) + 1
    return rows


def check_media(kind: str, content: bytes) -> None:
    """Reject photos that are not JPEG, PNG or WebP, and voice messages that are not Opus in Ogg, MP3 or M4A."""
    if kind == "photo" and not content.startswith((b"\xff\xd8\xff", b"\x89PNG", b"RIFF")):
        raise refused(400, "Bad Request: IMAGE_PROCESS_FAILED")
    is_opus = content.startswith(b"OggS") and b"OpusHead" in content[:4096]
    if kind == "voice" and not (is_opus or content.startswith((b"ID3", b"\xff\xfb")) or content[4:8] == b"ftyp"):
        raise refused(400, "Bad Request: wrong file type")


def user_of(user: int, *, is_bot: bool = False) -> dict[str, Json]:
    return {"id": user, "is_bot": is_bot, "first_name": "Ada" if user == 7 else f"User {user}"}


def int_of(given: Mapping[str, Json], name: str) -> int:
    value = given.get(name)
    return int(value) if isinstance(value, (int, str)) and str(value).lstrip("-").isdecimal() else 0


def refused(code: int, description: str, **parameters: Json) -> Refused:
    content: Given = {"ok": False, "error_code": code, "description": description}
    return Refused(ok(content | {"parameters": parameters} if parameters else content, code))


def _plain_field(name: str, text: str) -> Json:
    if name in ("caption", "text", "parse_mode"):
        return text
    try:
        decoded: Json = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return decoded
