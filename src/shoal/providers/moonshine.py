"""Speech heard in this process: Moonshine (extra `voice`), whose package has a small model of English in it.

Loading waits for the first recording. One recording is heard at a time, in a thread.
"""

import asyncio
from array import array
from collections.abc import Iterator
from importlib import import_module

from shoal.domain.errors import ProviderRefused
from shoal.domain.installation import how_to_add
from shoal.domain.speech import AudioFormat, Heard, Spoken
from shoal.providers.audio import samples_of

MOONSHINE = "moonshine"
RATE = 16_000
PIECE_SECONDS = 60


class MoonshineSpeech:
    """Implements `Speech`, but says nothing."""

    name = MOONSHINE
    usd_per_minute = usd_per_million_chars = 0.0

    def __init__(self) -> None:
        self._hearing = asyncio.Lock()
        self._model: object = None

    async def hear(self, audio: bytes, media_type: str) -> Heard:
        async with self._hearing:
            return await asyncio.to_thread(self._hear, audio)

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        raise ProviderRefused(f"{MOONSHINE} only hears. Set speech.speaking to espeak-ng or PROVIDER/MODEL.")

    async def close(self) -> None:
        self._model = None

    def _hear(self, audio: bytes) -> Heard:
        try:
            moonshine = import_module("moonshine_voice")
        except ImportError as error:
            raise ProviderRefused(f"The package moonshine-voice is missing. {how_to_add('voice')}") from error
        samples = samples_of(audio, RATE)
        try:
            if self._model is None:
                self._model = moonshine.Transcriber(moonshine.get_model_path("tiny-en"), moonshine.ModelArch.TINY)
            said: list[str] = []
            for piece in pieces_of(samples):
                heard = moonshine.Transcriber.transcribe_without_streaming(self._model, piece, RATE)
                said += [line.text.strip() for line in heard.lines]
        except moonshine.MoonshineError as error:
            raise ProviderRefused(f"{MOONSHINE} could not hear it: {error}") from error
        return Heard(" ".join(said).strip(), len(samples) / RATE)


def pieces_of(samples: "array[float]") -> "Iterator[array[float]]":
    """The recording in pieces of PIECE_SECONDS at most, cut where it is quietest: the library copies what it is given
    into thirty times the memory."""
    longest, moment, at = PIECE_SECONDS * RATE, RATE // 10, 0
    while len(samples) - at > longest:
        ends = range(at + longest - 50 * moment, at + longest, moment)
        end = min(ends, key=lambda end: sum(map(abs, samples[end : end + moment]))) + moment // 2
        yield samples[at:end]
        at = end
    yield samples[at:]
