"""Speech as data: what was said in a recording, a text as a recording, and how long one lasts, by its own bytes."""

import struct
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from shoal.kernel.messages import Author, Usage
from shoal.kernel.section import Section

VoiceMode: TypeAlias = Literal["on", "off", "auto"]
"""Whether answers are spoken: always, never, or where the person spoke."""
VOICE_MODES: tuple[VoiceMode, ...] = ("on", "off", "auto")
VOICE = "voice"
"""The scope of settings that has a channel's VoiceMode, by `PLATFORM:CHANNEL:`."""
AudioFormat: TypeAlias = Literal["ogg", "mp3"]
"""What platforms want a spoken answer in: Ogg with Opus, as voice notes are, or MP3, which players everywhere play."""
MEDIA_TYPES: dict[AudioFormat, str] = {"ogg": "audio/ogg", "mp3": "audio/mpeg"}
_BYTES_A_SECOND_MIN = 50
"""No codec needs less for a second, not even of silence; who tells of more seconds is damaged."""
_OPUS_RATE = 48_000
_PCM_HEAD = struct.Struct("<4sI4s4sIHHIIHH4sI")


class SpeechSettings(Section, frozen=True, kw_only=True):
    """Voice messages: what hears them, and what speaks answers; see docs/voice.md."""

    recognition: Annotated[str, Meta(pattern=r"^$|^moonshine$|^[^/\s]+/\S+$")] = ""
    """What hears voice messages and recordings: a model, PROVIDER/MODEL, or moonshine, in this process and for English
    (extra `voice`); empty: they stay files."""
    speaking: Annotated[str, Meta(pattern=r"^$|^espeak-ng$|^[^/\s]+/\S+$")] = ""
    """What speaks: a model, PROVIDER/MODEL, or espeak-ng, a program on this machine; empty: answers are written."""
    voice: str = ""
    """Which of its voices, by the name that it has there; empty: its usual one."""
    answers: VoiceMode = "auto"
    """Whether answers are spoken, too, where nobody chose with /voice: auto is when the person spoke."""
    language: str = ""
    """The language that is spoken to the agent, such as `de`; empty: whichever it is."""
    seconds_max: Annotated[float, Meta(gt=0)] = 900.0
    """How long a recording may last that is recognised, in seconds."""
    bytes_max: Annotated[int, Meta(ge=1024)] = 25_000_000
    """How large it may be, in bytes; most services take 25 MB."""
    chars_max: Annotated[int, Meta(ge=50, le=4000)] = 2_000
    """How much of an answer is spoken, in characters; all of it stands in the text."""
    usd_per_minute: Annotated[float, Meta(ge=0)] | None = None
    """What recognising a minute costs, where the price of the model is not known; 0 on a machine of one's own."""
    usd_per_million_chars: Annotated[float, Meta(ge=0)] | None = None
    """The same for speaking a million characters."""


class Heard(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was said in a recording, how long that lasted (0 where nobody said), and what recognising it took."""

    text: str
    seconds: float = 0.0
    usage: Usage = Usage()
    usd: float | None = None


class Spoken(msgspec.Struct, frozen=True):
    """A text as a recording, and what making it took."""

    audio: bytes
    media_type: str
    usage: Usage = Usage()


class SpokenReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """For whom a post is spoken, and by which agent: who pays for it."""

    agent: str
    author: Author
    direct: bool = False


def seconds_of(audio: bytes) -> float:
    """How long a recording lasts; 0 where its bytes do not tell that simply, or tell what cannot be. Never raises."""
    seconds = _seconds_told(audio)
    return seconds if seconds <= len(audio) / _BYTES_A_SECOND_MIN + 1 else 0.0


def _seconds_told(audio: bytes) -> float:
    if audio.startswith(b"OggS"):  # by the number of the last sample (RFC 3533)
        last, opus, vorbis = audio.rfind(b"OggS"), audio.find(b"OpusHead", 0, 4096), audio.find(b"\x01vorbis", 0, 4096)
        if len(audio) < max(last + 14, opus + 12, vorbis + 16):
            return 0.0
        (samples,) = struct.unpack_from("<q", audio, last + 6)
        if opus >= 0:  # always 48,000 a second, less the first few (RFC 7845)
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
    """One channel of 16-bit samples as a WAV file."""
    size = len(samples)
    return (
        _PCM_HEAD.pack(b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16, b"data", size) + samples
    )
