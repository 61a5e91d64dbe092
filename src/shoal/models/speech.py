"""Speech recognition and synthesis through a provider's endpoints, or locally with espeak-ng (synthesis) and Moonshine
(recognition).

kind                       recognition                                   synthesis
------------------------   -------------------------------------------   ---------------------------------------------
openai, openai-responses   POST /audio/transcriptions: OpenAI, Groq,     POST /audio/speech: OpenAI, Kokoro, speaches,
                           whisper.cpp, speaches, vLLM and others        LocalAI and others
gemini                     generateContent with the unchanged audio      generateContent, which returns raw samples

The built-in prices come from the services' own lists, per minute and per million characters. [speech] overrides them.
"""

import asyncio
import base64
import io
import re
import secrets
from array import array
from collections.abc import Iterator
from importlib import import_module
from typing import ClassVar
from urllib.parse import quote

import msgspec

from shoal.installation import how_to_add
from shoal.kernel.errors import ProviderDown, ProviderRefused
from shoal.kernel.messages import Usage
from shoal.kernel.speech import MEDIA_TYPES, AudioFormat, Heard, Spoken, seconds_of, wav_of
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.http_provider import ModelEndpoint

USD_PER_MINUTE = {"whisper-1": 0.006, "gpt-4o-transcribe": 0.006, "gpt-4o-mini-transcribe": 0.003}
USD_PER_MILLION_CHARS = {"tts-1": 15.0, "tts-1-hd": 30.0, "gpt-4o-mini-tts": 15.0}
_EXTENSIONS = {
    "audio/ogg": "ogg", "audio/mpeg": "mp3", "audio/wav": "wav", "audio/x-wav": "wav", "audio/flac": "flac",
    "audio/webm": "webm", "audio/mp4": "m4a", "audio/x-m4a": "m4a", "audio/aac": "aac", "audio/amr": "amr",
}  # fmt: skip
_OPENAI_NAMES: dict[AudioFormat, str] = {"ogg": "opus", "mp3": "mp3"}
_RATE = re.compile(r"rate=(\d{4,6})")
TRANSCRIBE = (
    "Transcribe this recording word for word, in its language, with punctuation. "
    "Answer with nothing else. If it contains no speech, answer with nothing at all."
)


class _TranscriptionUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0


class _Transcription(msgspec.Struct):
    text: str
    duration: float = 0.0
    usage: _TranscriptionUsage | None = None


_transcription = msgspec.json.Decoder(_Transcription, strict=False)


class _EndpointSpeech:
    usual_voice: ClassVar[str]

    def __init__(
        self, endpoint: ModelEndpoint, voice: str, language: str, usd_per_minute: float | None,
        usd_per_million_chars: float | None,
    ) -> None:  # fmt: skip
        self._endpoint = endpoint
        self._voice = voice or self.usual_voice
        self._language = language
        self.name = endpoint.name
        self.usd_per_minute = usd_per_minute
        self.usd_per_million_chars = usd_per_million_chars

    async def close(self) -> None:
        await self._endpoint.close()


class OpenAiSpeech(_EndpointSpeech):
    """Implements `Speech` with /audio/transcriptions and /audio/speech."""

    usual_voice = "alloy"

    async def transcribe(self, audio: bytes, media_type: str) -> Heard:
        fields = {"model": self._endpoint.model, "response_format": "json"}
        if self._language:
            fields["language"] = self._language
        file_name = f"speech.{_EXTENSIONS.get(media_type, 'ogg')}"
        boundary = secrets.token_hex(16)
        parts = [
            f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
            for name, value in fields.items()
        ]
        head = f'content-disposition: form-data; name="file"; filename="{file_name}"\r\ncontent-type: {media_type}'
        parts += [f"--{boundary}\r\n{head}\r\n\r\n".encode(), audio, f"\r\n--{boundary}--\r\n".encode()]
        content_type = f"multipart/form-data; boundary={boundary}"
        content, _ = await self._endpoint.post("/audio/transcriptions", b"".join(parts), content_type)
        try:
            transcription = _transcription.decode(content)
        except UNREADABLE as error:
            raise self._endpoint.nonsense("a transcription") from error
        used = transcription.usage or _TranscriptionUsage()
        seconds = seconds_of(audio) or used.seconds or transcription.duration
        return Heard(transcription.text.strip(), seconds, Usage(used.input_tokens, used.output_tokens))

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        asked = {
            "model": self._endpoint.model, "input": text, "voice": self._voice, "response_format": _OPENAI_NAMES[form],
        }  # fmt: skip
        content, media_type = await self._endpoint.post("/audio/speech", msgspec.json.encode(asked))
        if not content or media_type == "application/json" or media_type.startswith("text/"):
            raise self._endpoint.nonsense("a recording")
        return Spoken(*await encoded(content, form))


class _SpokenBlob(msgspec.Struct, rename="camel"):
    mime_type: str = ""
    data: str = ""


class _SpokenPart(msgspec.Struct, rename="camel"):
    text: str = ""
    thought: bool = False
    inline_data: _SpokenBlob | None = None


class _SpokenContent(msgspec.Struct):
    parts: list[_SpokenPart] = []


class _SpokenCandidate(msgspec.Struct):
    content: _SpokenContent = msgspec.field(default_factory=_SpokenContent)


class _SpeechTokens(msgspec.Struct, rename="camel"):
    prompt_token_count: int = 0
    candidates_token_count: int = 0
    thoughts_token_count: int = 0


class _Generated(msgspec.Struct, rename="camel"):
    candidates: list[_SpokenCandidate] = []
    usage_metadata: _SpeechTokens = msgspec.field(default_factory=_SpeechTokens)


_generated = msgspec.json.Decoder(_Generated)


class GeminiSpeech(_EndpointSpeech):
    """Implements `Speech` with generateContent, for models with audio input or output."""

    usual_voice = "Kore"

    async def transcribe(self, audio: bytes, media_type: str) -> Heard:
        wanted = f"{TRANSCRIBE} It is in the language {self._language!r}." if self._language else TRANSCRIBE
        data = base64.b64encode(audio).decode()
        parts = [{"text": wanted}, {"inlineData": {"mimeType": media_type, "data": data}}]
        transcript, usage = await self._generate({"contents": [{"role": "user", "parts": parts}]})
        text = "".join(part.text for part in transcript if not part.thought)
        return Heard(text.strip(), seconds_of(audio), usage)

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        voice = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": self._voice}}}
        parts, usage = await self._generate(
            {
                "contents": [{"role": "user", "parts": [{"text": text}]}],
                "generationConfig": {"responseModalities": ["AUDIO"], "speechConfig": voice},
            }
        )
        blobs = [part.inline_data for part in parts if part.inline_data is not None]
        try:
            content = b"".join(base64.b64decode(blob.data, validate=True) for blob in blobs)
        except ValueError as error:
            raise self._endpoint.nonsense("a recording") from error
        if not content:
            raise self._endpoint.nonsense("a recording")
        if blobs[0].mime_type.lower().startswith(("audio/l16", "audio/pcm")):
            rate = _RATE.search(blobs[0].mime_type)
            content = wav_of(content, int(rate[1]) if rate else 24_000)
        return Spoken(*await encoded(content, form), usage)

    async def _generate(self, body: object) -> tuple[list[_SpokenPart], Usage]:
        path = f"/models/{quote(self._endpoint.model.removeprefix('models/'), safe='')}:generateContent"
        content, _ = await self._endpoint.post(path, msgspec.json.encode(body))
        try:
            answer = _generated.decode(content)
        except UNREADABLE as error:
            raise self._endpoint.nonsense("a Gemini response") from error
        used = answer.usage_metadata
        usage = Usage(used.prompt_token_count, used.candidates_token_count + used.thoughts_token_count)
        return [part for candidate in answer.candidates[:1] for part in candidate.content.parts], usage


# ---- recordings ----

BITS_A_SECOND = 32_000
_CODECS: dict[AudioFormat, tuple[str, int]] = {"ogg": ("libopus", 48_000), "mp3": ("libmp3lame", 44_100)}


async def encoded(audio: bytes, form: AudioFormat) -> tuple[bytes, str]:
    """Convert a recording to `form`. Returns the data and its media type.

    Without PyAV, a recording in another known format is returned unchanged. Raises ProviderRefused if the data is
    not a recording.
    """
    media_type = _media_type_of(audio)
    if media_type == MEDIA_TYPES[form] and (form != "ogg" or b"OpusHead" in audio[:4096]):
        return audio, media_type
    return await asyncio.to_thread(_encode, audio, form, media_type)


def _media_type_of(audio: bytes) -> str:
    if audio.startswith(b"OggS"):
        return "audio/ogg"
    if audio[:4] == b"RIFF" and audio[8:12] == b"WAVE":
        return "audio/wav"
    if audio.startswith(b"ID3") or (len(audio) > 1 and audio[0] == 0xFF and audio[1] & 0xE0 == 0xE0):
        return "audio/mpeg"
    return "audio/flac" if audio.startswith(b"fLaC") else "audio/mp4" if audio[4:8] == b"ftyp" else ""


def samples_of(audio: bytes, rate: int) -> "array[float]":
    """Decode a recording to one channel of samples between -1 and 1, at `rate` Hz. Raises ProviderRefused."""
    try:
        av = import_module("av")
    except ImportError as error:
        raise ProviderRefused(f"The av package is missing. {how_to_add('voice')}") from error
    samples = array("f")
    try:
        with av.open(io.BytesIO(audio)) as source:
            resampler = av.AudioResampler("flt", "mono", rate)
            for frame in (*source.decode(audio=0), None):
                for piece in resampler.resample(frame):
                    samples.frombytes(bytes(piece.planes[0])[: piece.samples * samples.itemsize])
    except (av.FFmpegError, ValueError, IndexError) as error:
        raise ProviderRefused(f"Failed to read the recording: {error}") from error
    return samples


def _encode(audio: bytes, form: AudioFormat, media_type: str) -> tuple[bytes, str]:
    try:
        av = import_module("av")
    except ImportError as error:
        if media_type:
            return audio, media_type
        message = f"The speech model returned audio in an unknown format. {how_to_add('voice')}"
        raise ProviderRefused(message) from error
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
        raise ProviderRefused(f"Failed to decode the audio from the speech model: {error}") from error
    return target.getvalue(), MEDIA_TYPES[form]


# ---- local models ----

ESPEAK = "espeak-ng"
SECONDS_MAX = 60.0
WORDS_PER_MINUTE = 165


class EspeakSpeech:
    """Synthesizes speech with espeak-ng. Does not recognize speech."""

    name = ESPEAK
    usd_per_minute = usd_per_million_chars = 0.0

    def __init__(self, voice: str) -> None:
        self._voice = voice or "en"

    async def transcribe(self, audio: bytes, media_type: str) -> Heard:
        raise ProviderRefused(f"{ESPEAK} cannot recognize speech. Set speech.recognition to PROVIDER/MODEL.")

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        """Synthesize text. Cancellation kills the program."""
        command = (ESPEAK, "-v", self._voice, "-s", str(WORDS_PER_MINUTE), "-b", "1", "--stdin", "--stdout")
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            reason = f"Failed to run {ESPEAK}: {error.strerror}. Install the {ESPEAK} package."
            raise ProviderRefused(reason) from error
        try:
            async with asyncio.timeout(SECONDS_MAX):
                audio, error_text = await process.communicate(text.encode())
        except TimeoutError as error:
            raise ProviderDown(f"{ESPEAK} took longer than {SECONDS_MAX:g} seconds.") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode or not audio:
            reason = error_text.decode(errors="replace").strip()[:200] or f"exit code {process.returncode}"
            raise ProviderRefused(
                f"{ESPEAK} failed to synthesize speech: {reason}. Check speech.voice (now {self._voice!r})."
            )
        return Spoken(*await encoded(audio, form))

    async def close(self) -> None:
        pass


MOONSHINE = "moonshine"
RATE = 16_000
PIECE_SECONDS = 60


class MoonshineSpeech:
    """Recognizes speech with Moonshine. Does not synthesize speech."""

    name = MOONSHINE
    usd_per_minute = usd_per_million_chars = 0.0

    def __init__(self) -> None:
        self._hearing = asyncio.Lock()
        self._model: object = None

    async def transcribe(self, audio: bytes, media_type: str) -> Heard:
        async with self._hearing:
            return await asyncio.to_thread(self._transcribe, audio)

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        raise ProviderRefused(
            f"{MOONSHINE} cannot synthesize speech. Set speech.speaking to espeak-ng or PROVIDER/MODEL."
        )

    async def close(self) -> None:
        self._model = None

    def _transcribe(self, audio: bytes) -> Heard:
        try:
            moonshine = import_module("moonshine_voice")
        except ImportError as error:
            raise ProviderRefused(f"The moonshine-voice package is missing. {how_to_add('voice')}") from error
        samples = samples_of(audio, RATE)
        try:
            if self._model is None:
                self._model = moonshine.Transcriber(moonshine.get_model_path("tiny-en"), moonshine.ModelArch.TINY)
            sentences: list[str] = []
            for piece in pieces_of(samples):
                heard = moonshine.Transcriber.transcribe_without_streaming(self._model, piece, RATE)
                sentences += [line.text.strip() for line in heard.lines]
        except moonshine.MoonshineError as error:
            raise ProviderRefused(f"{MOONSHINE} failed to recognize the speech: {error}") from error
        return Heard(" ".join(sentences).strip(), len(samples) / RATE)


def pieces_of(samples: "array[float]") -> "Iterator[array[float]]":
    """Split a recording into pieces of at most PIECE_SECONDS, at quiet points.

    The library needs thirty times as much memory as the piece itself.
    """
    longest, moment, at = PIECE_SECONDS * RATE, RATE // 10, 0
    while len(samples) - at > longest:
        ends = range(at + longest - 50 * moment, at + longest, moment)
        end = min(ends, key=lambda end: sum(map(abs, samples[end : end + moment]))) + moment // 2
        yield samples[at:end]
        at = end
    yield samples[at:]
