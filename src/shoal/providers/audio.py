"""Recordings read, and made to fit what platforms want: known by their bytes, else by PyAV (extra `voice`)."""

import asyncio
import io
from array import array
from importlib import import_module

from shoal.domain.errors import ProviderRefused
from shoal.domain.installation import how_to_add
from shoal.domain.speech import MEDIA_TYPES, AudioFormat

BITS_A_SECOND = 32_000
_CODECS: dict[AudioFormat, tuple[str, int]] = {"ogg": ("libopus", 48_000), "mp3": ("libmp3lame", 44_100)}


async def encoded(audio: bytes, form: AudioFormat) -> tuple[bytes, str]:
    """The recording in `form`, and its media type. One of another known form stays as it is where PyAV is missing.

    Raises ProviderRefused for what is no recording.
    """
    found = _media_type_of(audio)
    if found == MEDIA_TYPES[form] and (form != "ogg" or b"OpusHead" in audio[:4096]):
        return audio, found
    return await asyncio.to_thread(_encode, audio, form, found)


def _media_type_of(audio: bytes) -> str:
    if audio.startswith(b"OggS"):
        return "audio/ogg"
    if audio[:4] == b"RIFF" and audio[8:12] == b"WAVE":
        return "audio/wav"
    if audio.startswith(b"ID3") or (len(audio) > 1 and audio[0] == 0xFF and audio[1] & 0xE0 == 0xE0):
        return "audio/mpeg"
    return "audio/flac" if audio.startswith(b"fLaC") else "audio/mp4" if audio[4:8] == b"ftyp" else ""


def samples_of(audio: bytes, rate: int) -> "array[float]":
    """What a recording sounds like: one channel of samples between -1 and 1. Raises ProviderRefused."""
    try:
        av = import_module("av")
    except ImportError as error:
        raise ProviderRefused(f"The package av is missing. {how_to_add('voice')}") from error
    found = array("f")
    try:
        with av.open(io.BytesIO(audio)) as source:
            resampler = av.AudioResampler("flt", "mono", rate)
            for frame in (*source.decode(audio=0), None):
                for piece in resampler.resample(frame):
                    found.frombytes(bytes(piece.planes[0])[: piece.samples * found.itemsize])
    except (av.FFmpegError, ValueError, IndexError) as error:
        raise ProviderRefused(f"The recording cannot be read: {error}") from error
    return found


def _encode(audio: bytes, form: AudioFormat, found: str) -> tuple[bytes, str]:
    try:
        av = import_module("av")
    except ImportError as error:
        if found:
            return audio, found
        told = f"The speech model answered with audio of an unknown form. {how_to_add('voice')}"
        raise ProviderRefused(told) from error
    (codec, rate), target = _CODECS[form], io.BytesIO()
    try:
        with av.open(io.BytesIO(audio)) as source, av.open(target, "w", format=form) as made:
            stream = made.add_stream(codec, rate=rate, layout="mono")
            stream.bit_rate = BITS_A_SECOND
            resampler = av.AudioResampler(stream.codec_context.format, "mono", rate)
            for frame in (*source.decode(audio=0), None):
                for piece in resampler.resample(frame):
                    made.mux(stream.encode(piece))
            made.mux(stream.encode(None))
    except (av.FFmpegError, ValueError, IndexError) as error:
        raise ProviderRefused(f"The speech model's recording cannot be read: {error}") from error
    return target.getvalue(), MEDIA_TYPES[form]
