"""Speech by a provider's own endpoints.

kind                       hears by                                      speaks by
------------------------   -------------------------------------------   ---------------------------------------------
openai, openai-responses   POST /audio/transcriptions: OpenAI, Groq,     POST /audio/speech: OpenAI, Kokoro, speaches,
                           whisper.cpp, speaches, vLLM and others        LocalAI and others
gemini                     generateContent, which takes audio as it is   generateContent with a voice, as samples

Prices are of the services' own lists, by minute and by million characters; [speech] may say others.
"""

import base64
import re
import secrets
from urllib.parse import quote

import msgspec

from shoal.domain.messages import Usage
from shoal.domain.speech import AudioFormat, Heard, Spoken, seconds_of, wav_of
from shoal.domain.untrusted import UNREADABLE
from shoal.providers.audio import encoded
from shoal.providers.model_endpoint import ModelEndpoint

USD_PER_MINUTE = {"whisper-1": 0.006, "gpt-4o-transcribe": 0.006, "gpt-4o-mini-transcribe": 0.003}
USD_PER_MILLION_CHARS = {"tts-1": 15.0, "tts-1-hd": 30.0, "gpt-4o-mini-tts": 15.0}
_EXTENSIONS = {
    "audio/ogg": "ogg", "audio/mpeg": "mp3", "audio/wav": "wav", "audio/x-wav": "wav", "audio/flac": "flac",
    "audio/webm": "webm", "audio/mp4": "m4a", "audio/x-m4a": "m4a", "audio/aac": "aac", "audio/amr": "amr",
}  # fmt: skip
_OPENAI_NAMES: dict[AudioFormat, str] = {"ogg": "opus", "mp3": "mp3"}
_RATE = re.compile(r"rate=(\d{4,6})")
TRANSCRIBE = (
    "Write down word for word what is said in this recording, in the language in which it is said, with punctuation. "
    "Answer with nothing else. Where nothing is said, answer with nothing at all."
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


class OpenAiSpeech:
    """Implements `Speech` by /audio/transcriptions and /audio/speech."""

    def __init__(
        self, endpoint: ModelEndpoint, voice: str, language: str, usd_per_minute: float | None,
        usd_per_million_chars: float | None,
    ) -> None:  # fmt: skip
        self._endpoint = endpoint
        self._voice = voice or "alloy"
        self._language = language
        self.name = endpoint.name
        self.usd_per_minute = usd_per_minute
        self.usd_per_million_chars = usd_per_million_chars

    async def hear(self, audio: bytes, media_type: str) -> Heard:
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
            found = _transcription.decode(content)
        except UNREADABLE as error:
            raise self._endpoint.nonsense("a transcription") from error
        used = found.usage or _TranscriptionUsage()
        seconds = seconds_of(audio) or used.seconds or found.duration
        return Heard(found.text.strip(), seconds, Usage(used.input_tokens, used.output_tokens))

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        asked = {
            "model": self._endpoint.model, "input": text, "voice": self._voice, "response_format": _OPENAI_NAMES[form],
        }  # fmt: skip
        content, media_type = await self._endpoint.post("/audio/speech", msgspec.json.encode(asked))
        if not content or media_type == "application/json" or media_type.startswith("text/"):
            raise self._endpoint.nonsense("a recording")
        return Spoken(*await encoded(content, form))

    async def close(self) -> None:
        await self._endpoint.close()


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


class GeminiSpeech:
    """Implements `Speech` by generateContent: of models that take audio, and of those that give it."""

    def __init__(
        self, endpoint: ModelEndpoint, voice: str, language: str, usd_per_minute: float | None,
        usd_per_million_chars: float | None,
    ) -> None:  # fmt: skip
        self._endpoint = endpoint
        self._voice = voice or "Kore"
        self._language = language
        self.name = endpoint.name
        self.usd_per_minute = usd_per_minute
        self.usd_per_million_chars = usd_per_million_chars

    async def hear(self, audio: bytes, media_type: str) -> Heard:
        wanted = f"{TRANSCRIBE} It is in the language {self._language!r}." if self._language else TRANSCRIBE
        data = base64.b64encode(audio).decode()
        parts = [{"text": wanted}, {"inlineData": {"mimeType": media_type, "data": data}}]
        answer = await self._generate({"contents": [{"role": "user", "parts": parts}]})
        text = "".join(part.text for part in _parts_of(answer) if not part.thought)
        return Heard(text.strip(), seconds_of(audio), _usage_of(answer))

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        voice = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": self._voice}}}
        answer = await self._generate(
            {
                "contents": [{"role": "user", "parts": [{"text": text}]}],
                "generationConfig": {"responseModalities": ["AUDIO"], "speechConfig": voice},
            }
        )
        blobs = [part.inline_data for part in _parts_of(answer) if part.inline_data is not None]
        try:
            content = b"".join(base64.b64decode(blob.data, validate=True) for blob in blobs)
        except ValueError as error:
            raise self._endpoint.nonsense("a recording") from error
        if not content:
            raise self._endpoint.nonsense("a recording")
        if blobs[0].mime_type.lower().startswith(("audio/l16", "audio/pcm")):
            rate = _RATE.search(blobs[0].mime_type)
            content = wav_of(content, int(rate[1]) if rate else 24_000)
        return Spoken(*await encoded(content, form), _usage_of(answer))

    async def close(self) -> None:
        await self._endpoint.close()

    async def _generate(self, body: object) -> _Generated:
        path = f"/models/{quote(self._endpoint.model.removeprefix('models/'), safe='')}:generateContent"
        content, _ = await self._endpoint.post(path, msgspec.json.encode(body))
        try:
            return _generated.decode(content)
        except UNREADABLE as error:
            raise self._endpoint.nonsense("what Gemini answers") from error


def _parts_of(answer: _Generated) -> list[_SpokenPart]:
    return [part for candidate in answer.candidates[:1] for part in candidate.content.parts]


def _usage_of(answer: _Generated) -> Usage:
    used = answer.usage_metadata
    return Usage(used.prompt_token_count, used.candidates_token_count + used.thoughts_token_count)
