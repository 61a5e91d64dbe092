"""Records of recognized and synthesized speech, and the duration of recordings."""

import struct
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.messages import Author, Usage

AudioFormat: TypeAlias = Literal["ogg", "mp3"]
"""Formats of spoken answers.

`ogg`: Ogg with Opus, for voice notes.
`mp3`: MP3, for all players.
"""
MEDIA_TYPES: dict[AudioFormat, str] = {"ogg": "audio/ogg", "mp3": "audio/mpeg"}
_BYTES_A_SECOND_MIN = 50
"""Minimum number of bytes per second in any codec. If a recording claims a longer duration than this rate allows, the
claim is ignored.
"""
_OPUS_RATE = 48_000
_PCM_HEAD = struct.Struct("<4sI4s4sIHHIIHH4sI")


class Heard(msgspec.Struct, frozen=True, omit_defaults=True):
    """The transcript of a recording. `seconds` is the duration of the recording, or 0 if unknown."""

    text: str
    seconds: float = 0.0
    usage: Usage = Usage()
    usd: float | None = None


class Spoken(msgspec.Struct, frozen=True):
    audio: bytes
    media_type: str
    usage: Usage = Usage()


class SpokenReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The person and the agent whose budgets pay for a spoken post."""

    agent: str
    author: Author
    direct: bool = False


def seconds_of(audio: bytes) -> float:
    """Return the duration of a recording in seconds, or 0 if it is unknown or implausible. Never raises."""
    seconds = _seconds_told(audio)
    return seconds if seconds <= len(audio) / _BYTES_A_SECOND_MIN + 1 else 0.0


def _seconds_told(audio: bytes) -> float:
    if audio.startswith(b"OggS"):  # The position in the last page gives the duration (RFC 3533).
        last, opus, vorbis = audio.rfind(b"OggS"), audio.find(b"OpusHead", 0, 4096), audio.find(b"\x01vorbis", 0, 4096)
        if len(audio) < max(last + 14, opus + 12, vorbis + 16):
            return 0.0
        (samples,) = struct.unpack_from("<q", audio, last + 6)
        if opus >= 0:  # Opus counts 48,000 samples per second, after the pre-skip (RFC 7845).
            (skipped,) = struct.unpack_from("<H", audio, opus + 10)
            return max(0, samples - skipped) / _OPUS_RATE
        (rate,) = struct.unpack_from("<I", audio, vorbis + 12) if vorbis >= 0 else (0,)
        return max(0, samples) / rate if rate else 0.0
    if audio[:4] == b"RIFF" and audio[8:12] == b"WAVE":
        at = audio.find(b"fmt ", 12, 4096)
        data = audio.find(b"data", 12, 65_536)
        if at < 0 or data < 0 or len(audio) < at + 20:
            return 0.0
        (bytes_a_second,) = struct.unpack_from("<I", audio, at + 16)
        return (len(audio) - data - 8) / bytes_a_second if bytes_a_second else 0.0
    at = audio.find(b"mvhd")
    if audio[4:8] == b"ftyp" and 0 <= at <= len(audio) - 32:
        is_long = audio[at + 4] == 1
        scale, length = struct.unpack_from(">IQ" if is_long else ">II", audio, at + (24 if is_long else 16))
        return length / scale if scale else 0.0
    return 0.0


def wav_of(samples: bytes, rate: int) -> bytes:
    """Encode 16-bit mono samples as a WAV file. `rate` is in samples per second."""
    size = len(samples)
    return (
        _PCM_HEAD.pack(b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16, b"data", size) + samples
    )
