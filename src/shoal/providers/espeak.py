"""Speech in this machine: espeak-ng, a program that says a text in any of a hundred languages, plainly and at once."""

import asyncio

from shoal.domain.errors import ProviderDown, ProviderRefused
from shoal.domain.speech import AudioFormat, Heard, Spoken
from shoal.providers.audio import encoded

ESPEAK = "espeak-ng"
SECONDS_MAX = 60.0
WORDS_PER_MINUTE = 165


class EspeakSpeech:
    """Implements `Speech`, but hears nothing: recognition needs a model."""

    name = ESPEAK
    usd_per_minute = usd_per_million_chars = 0.0

    def __init__(self, voice: str) -> None:
        self._voice = voice or "en"

    async def hear(self, audio: bytes, media_type: str) -> Heard:
        raise ProviderRefused(f"{ESPEAK} only speaks. Set speech.recognition to PROVIDER/MODEL.")

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        """Kills the program when cancelled."""
        command = (ESPEAK, "-v", self._voice, "-s", str(WORDS_PER_MINUTE), "-b", "1", "--stdin", "--stdout")
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            reason = f"The program {ESPEAK} cannot be run: {error.strerror}. Install the package {ESPEAK}."
            raise ProviderRefused(reason) from error
        try:
            async with asyncio.timeout(SECONDS_MAX):
                audio, said = await process.communicate(text.encode())
        except TimeoutError as error:
            raise ProviderDown(f"{ESPEAK} took longer than {SECONDS_MAX:g} seconds.") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode or not audio:
            reason = said.decode(errors="replace").strip()[:200] or f"it ended with {process.returncode}"
            raise ProviderRefused(f"{ESPEAK} could not speak: {reason}. Check speech.voice, {self._voice!r}.")
        return Spoken(*await encoded(audio, form))

    async def close(self) -> None:
        pass
