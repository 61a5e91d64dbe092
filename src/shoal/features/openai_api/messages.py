"""Parse messages from OpenAI clients: text, images, files and recordings, in the formats of both APIs.

A file may be up to 50 MB, which is OpenAI's limit. As base64, that is 67 MB. Files are decoded in pieces directly from
the body, so a call needs little more memory than its body. Unsupported features are rejected by name. Fields that have
no effect are ignored.
"""

import mimetypes
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TypeAlias

import msgspec

from shoal.kernel.errors import InvalidInput
from shoal.kernel.untrusted import UNREADABLE

BODY_BYTES_MAX = 83_886_080
"""Maximum size of a request body. Leaves room for a 50 MB file in base64 and the conversation."""
FILE_BYTES_MAX = 52_428_800
FILES_MAX = 500
_PIECE_CHARS = 262_144
_HEAD_CHARS = 300
_WHITE = b" \t\r\n"
_ESCAPE = re.compile(rb"\\")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_IMAGE_PARTS = ("image_url", "input_image")
_AUDIO_TYPES = {"mp3": "audio/mpeg", "wav": "audio/wav"}
_ROLES = ("user", "assistant", "tool", "function", "system", "developer")


Literal: TypeAlias = "msgspec.Raw | msgspec.UnsetType"
"""A JSON value that has not been parsed."""


class Line(msgspec.Struct, frozen=True, array_like=True):
    role: str
    text: str


class InlineFile(msgspec.Struct, frozen=True):
    """A file in a message. `data` is a view of the file's base64 text in the request body."""

    name: str
    media_type: str
    data: memoryview

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the decoded content in pieces. Raises InvalidInput for invalid base64."""
        rest = b""
        for start in range(0, len(self.data), _PIECE_CHARS):
            text = rest + bytes(self.data[start : start + _PIECE_CHARS]).translate(None, _WHITE)
            length = len(text) // 4 * 4
            yield self._decoded(text[:length])
            rest = text[length:]
        if rest := rest.rstrip(b"="):
            yield self._decoded(rest + b"=" * (-len(rest) % 4))

    def _decoded(self, text: bytes) -> bytes:
        try:
            return b64decode(text, validate=True)
        except (Base64Error, ValueError) as error:
            raise InvalidInput(f"The data of {self.name[:80]!r} is not base64.") from error


class FilePart(msgspec.Struct, frozen=True):
    """A file in a message. `file_data` is a data: URL or base64."""

    file_data: Literal = msgspec.UNSET
    filename: str | None = None
    file_id: str | None = None
    file_url: str | None = None


class AudioPart(msgspec.Struct, frozen=True):
    """A recording in a message: wav or mp3, as base64."""

    data: Literal = msgspec.UNSET
    format: str | None = None


class ImageUrl(msgspec.Struct, frozen=True):
    """An image in a message, as a data: URL."""

    url: msgspec.Raw


class CompatPart(msgspec.Struct, frozen=True):
    """A part of a message: text, an image (`image_url`, `input_image`), a file (`file`, `input_file`) or a recording
    (`input_audio`).

    In the Responses API, the part itself contains the fields of the file.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Literal = msgspec.UNSET
    file: FilePart | None = None
    input_audio: AudioPart | None = None
    file_data: Literal = msgspec.UNSET
    filename: str | None = None
    file_id: str | None = None
    file_url: str | None = None


class CompatMessage(msgspec.Struct, frozen=True):
    """A message, or the result of a tool that the client ran."""

    role: str = ""
    content: str | list[CompatPart | str] | None = None
    type: str = "message"
    output: str | list[CompatPart | str] | None = None

    @property
    def line(self) -> Line:
        is_result = self.type == "function_call_output"
        content = self.output if is_result else self.content
        role = "tool" if is_result or self.role == "function" else self.role
        if isinstance(content, list):
            texts = [part if isinstance(part, str) else part.text or part.refusal or "" for part in content]
            return Line(role, "\n".join(filter(None, texts)))
        return Line(role, content or "")

    def files(self, where: str, *, accepts_audio: bool) -> Iterator[InlineFile]:
        """Yield the files in the message. `accepts_audio` includes recordings, which are otherwise rejected.

        Raises InvalidInput for unsupported parts.
        """
        content = self.content if isinstance(self.content, list) else ()
        for number, part in enumerate(content):
            if isinstance(part, str) or part.type in _TEXT_PARTS:
                continue
            place = f"{where}.content[{number}]"
            if part.type in _IMAGE_PARTS:
                yield _image(part, place)
            elif part.type in ("file", "input_file"):
                own = FilePart(part.file_data, part.filename, part.file_id, part.file_url)
                yield _file(part.file or own, place)
            elif part.type == "input_audio":
                if not accepts_audio:
                    raise InvalidInput(f"{place}: `input_audio` needs speech recognition, which is not configured.")
                yield _recording(part.input_audio or AudioPart(), place)
            else:
                raise InvalidInput(f"{place}: parts of type {part.type[:40]!r} are not supported.")


def spoken(items: Sequence[CompatMessage]) -> list[CompatMessage]:
    """Return the messages and tool results in `items`. Skips reasoning and function calls.

    Raises InvalidInput for other types.
    """
    messages_kept: list[CompatMessage] = []
    for number, item in enumerate(items):
        if item.type in ("reasoning", "function_call"):  # internal steps of another model
            continue
        if item.type not in ("message", "function_call_output"):
            raise InvalidInput(f"input[{number}]: items of type {item.type[:40]!r} are not supported. Send messages.")
        if item.type == "message" and item.role not in _ROLES:
            named = f"an unknown `role` {item.role[:40]!r}" if item.role else "no `role`"
            raise InvalidInput(f"messages[{number}] has {named}. Roles: {', '.join(_ROLES)}.")
        messages_kept.append(item)
    return messages_kept


def _image(part: CompatPart, place: str) -> InlineFile:
    url = part.image_url
    if url and bytes(memoryview(url)[:1]) == b"{":
        url = _struct(url, place).url
    if part.file_id:
        raise InvalidInput(f"{place}: `file_id` is not supported. Send the image as a data: URL.")
    media_type, data = _data_of(url, place)
    if not media_type:
        raise InvalidInput(f"{place}: send images as base64 data: URLs. Shoal does not fetch other URLs here.")
    media_type = media_type if "/" in media_type else "image/png"
    extension = media_type.rpartition("/")[2].partition("+")[0]
    return InlineFile(f"image.{extension}"[:255], media_type, data)


def _struct(raw: msgspec.Raw, place: str) -> ImageUrl:
    try:
        return msgspec.json.decode(raw, type=ImageUrl)
    except UNREADABLE as error:
        raise InvalidInput(f"{place}: `image_url` has no `url`.") from error


def _file(part: FilePart, place: str) -> InlineFile:
    for name, value in (("file_id", part.file_id), ("file_url", part.file_url)):
        if value:
            raise InvalidInput(f"{place}: `{name}` is not supported. Send the file itself as `file_data`.")
    media_type, data = _data_of(part.file_data, place, plain=True)
    guessed = mimetypes.guess_type(part.filename or "", strict=False)[0] or ""
    media_type = media_type if "/" in media_type else guessed or "application/octet-stream"
    name = part.filename or f"file{mimetypes.guess_extension(media_type) or ''}"
    return InlineFile(name[:255], media_type[:127], data)


def _recording(part: AudioPart, place: str) -> InlineFile:
    media_type = _AUDIO_TYPES.get((part.format or "").lower(), "")
    given_type, data = _data_of(part.data, place, plain=True)
    media_type = media_type or (given_type if given_type.startswith("audio/") else "")
    if not media_type:
        raise InvalidInput(f"{place}: `format` must be wav or mp3.")
    return InlineFile(f"audio.{media_type.rpartition('/')[2].replace('mpeg', 'mp3')}", media_type, data)


def _data_of(raw: Literal, place: str, *, plain: bool = False) -> tuple[str, memoryview]:
    """Return the media type and the base64 text of a data: URL. Raises InvalidInput.

    The media type is `-` if the URL has none, and empty for other URLs. `plain` also accepts bare base64.
    """
    literal = memoryview(raw or b"")
    if bytes(literal[:1]) != b'"' or len(literal) < 3:
        raise InvalidInput(f"{place} has no data.")
    inner = literal[1:-1]
    if raw and _ESCAPE.search(inner):
        inner = memoryview(msgspec.json.decode(raw, type=str).encode())
    if len(inner) > FILE_BYTES_MAX * 4 // 3 + _HEAD_CHARS:
        raise InvalidInput(f"{place} is larger than {FILE_BYTES_MAX // 1_048_576} MiB, the maximum for a file.")
    head, comma, _ = bytes(inner[:_HEAD_CHARS]).partition(b",")
    if comma and head[:5].lower() == b"data:" and head.lower().rstrip().endswith(b";base64"):
        media_type = head[5:].split(b";")[0].decode("ascii", "replace").strip().lower()
        return media_type[:127] or "-", inner[len(head) + 1 :]
    if not plain or head[:5].lower() == b"data:" or b":" in head:
        if plain:
            raise InvalidInput(f"{place}: send the data as base64 or as a base64 data: URL.")
        return "", inner
    return "-", inner
