"""The server side of speech APIs. Recordings are silent, and their text is in metadata tags."""

import base64
import re
import struct
from functools import cache

import msgspec

from shoal.kernel.speech import wav_of

CHARS_A_SECOND = 15
_SILENCE = b"\xf8\xff\xfe"
"""An Opus packet of 20 milliseconds of silence (RFC 6716)."""
_SAMPLES = 960
_MP3_FRAME = b"\xff\xfb\x10\xc4" + bytes(100)
_URL_SAFE = str.maketrans("-_", "+/")
_SPOKEN = re.compile(rb"WORDS=([^\0]*)\0", re.DOTALL)


class _SpeechRequest(msgspec.Struct):
    input: str
    model: str
    voice: str
    response_format: str = "mp3"


def recording(text: str, form: str = "ogg") -> bytes:
    """Return a recording of the text as `ogg` (Opus), `mp3` or `wav`. It lasts one second per CHARS_A_SECOND
    characters.
    """
    words, frames = b"WORDS=" + text.encode() + b"\0", max(1, 50 * len(text) // CHARS_A_SECOND)
    if form == "mp3":
        size = len(words) + 10
        safe = bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))
        return b"ID3\x04\0\0" + safe + b"TXXX" + struct.pack(">I", len(words)) + b"\0\0" + words + _MP3_FRAME * frames
    if form == "wav":
        return wav_of(bytes(640 * frames), 16_000) + words
    head = b"OpusHead\x01\x01" + struct.pack("<HIhB", 0, 48_000, 0, 0)
    tags = b"OpusTags" + struct.pack("<I", 5) + b"shoal" + struct.pack("<II", 1, len(words)) + words
    pages = [_page(0, 0, 2, [head]), _page(1, 0, 0, [tags])]
    for number, first in enumerate(range(0, frames, 50), 2):
        count = min(50, frames - first)
        pages.append(_page(number, (first + count) * _SAMPLES, 4 if first + count == frames else 0, [_SILENCE] * count))
    return b"".join(pages)


def words_in(audio: bytes, unknown: str = "") -> str:
    """Return the text of a recording, or `unknown` if `recording` did not create it."""
    match = _SPOKEN.search(audio)
    return unknown if match is None else match[1].decode()


def transcription(content_type: str, body: bytes, unknown: str) -> bytes:
    """Return the response to POST /audio/transcriptions. Raises ValueError if a real server would reject the
    request.
    """
    fields: dict[str, tuple[bytes, bytes]] = {}
    for part in body.split(b"--" + content_type.partition("boundary=")[2].encode())[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="(\w+)"', head)
        if name is not None:
            fields[name[1].decode()] = head, content.removesuffix(b"\r\n")
    head, audio = fields.get("file", (b"", b""))
    if not audio or "model" not in fields:
        raise ValueError("Specify a file and a model.")
    if not re.search(rb'filename="[^"]+\.(ogg|mp3|wav|flac|webm|m4a|mp4|mpga|mpeg)"', head):
        raise ValueError("Unrecognized file format.")
    usage = {"type": "duration", "seconds": 1}
    return msgspec.json.encode({"text": words_in(audio, unknown), "usage": usage})


def speech(body: bytes) -> tuple[bytes, str]:
    """Return the recording and its media type for POST /audio/speech. Raises msgspec.DecodeError or ValueError."""
    asked = msgspec.json.decode(body, type=_SpeechRequest)
    forms = {"opus": ("ogg", "audio/ogg"), "mp3": ("mp3", "audio/mpeg"), "wav": ("wav", "audio/wav")}
    if asked.response_format not in forms or not 0 < len(asked.input) <= 4096 or not asked.voice:
        raise ValueError(
            "Specify an input of at most 4096 characters, a voice, and opus, mp3 or wav as the response_format."
        )
    form, media_type = forms[asked.response_format]
    return recording(asked.input, form), media_type


class _InlineData(msgspec.Struct):
    """Inline media. Google's own package spells the media type in two ways and uses the URL-safe base64 alphabet."""

    data: str
    mimeType: str = ""  # noqa: N815
    mime_type: str = ""


class _GivenPart(msgspec.Struct, rename="camel"):
    text: str = ""
    inline_data: _InlineData | None = None


class _GivenContent(msgspec.Struct):
    parts: list[_GivenPart]


class _Modalities(msgspec.Struct, rename="camel"):
    response_modalities: list[str] = []


class _GeminiRequest(msgspec.Struct, rename="camel"):
    contents: list[_GivenContent]
    generation_config: _Modalities = msgspec.field(default_factory=_Modalities)


def gemini_answer(body: bytes, unknown: str) -> bytes | None:
    """Return the response of generateContent to a transcription or speech request. Return None for any other
    request.
    """
    asked = msgspec.json.decode(body, type=_GeminiRequest)
    parts = asked.contents[-1].parts
    heard = next((part.inline_data for part in parts if part.inline_data is not None), None)
    if "AUDIO" in asked.generation_config.response_modalities:
        seconds = max(1, len(parts[0].text) // CHARS_A_SECOND)
        data = base64.b64encode(bytes(48_000 * seconds)).decode()
        part: object = {"inlineData": {"mimeType": "audio/L16;codec=pcm;rate=24000", "data": data}}
    elif heard is not None and (heard.mimeType or heard.mime_type).startswith("audio/"):
        part = {"text": words_in(base64.b64decode(heard.data.translate(_URL_SAFE)), unknown)}
    else:
        return None
    usage = {"promptTokenCount": 32, "candidatesTokenCount": 8}
    return msgspec.json.encode(
        {"candidates": [{"content": {"role": "model", "parts": [part]}}], "usageMetadata": usage}
    )


def _page(number: int, samples: int, flags: int, packets: list[bytes]) -> bytes:
    """Return a page of an Ogg stream (RFC 3533)."""
    lengths = b"".join(bytes([255] * (len(packet) // 255) + [len(packet) % 255]) for packet in packets)
    head = b"OggS\0" + bytes([flags]) + struct.pack("<qII", samples, 1, number)
    rest = bytes([len(lengths)]) + lengths + b"".join(packets)
    return head + struct.pack("<I", _crc(head + bytes(4) + rest)) + rest


def _crc(page: bytes) -> int:
    total, table = 0, _crc_table()
    for byte in page:
        total = (total << 8 & 0xFFFFFFFF) ^ table[total >> 24 ^ byte]
    return total


@cache
def _crc_table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = (value << 1 ^ (0x04C11DB7 if value & 0x80000000 else 0)) & 0xFFFFFFFF
        return value

    return tuple(entry(byte << 24) for byte in range(256))
