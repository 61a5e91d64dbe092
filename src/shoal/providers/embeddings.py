"""Vectors of texts, by which recall finds what means the same: from a provider's own endpoint, or a GGUF file here.

kind                         asked
--------------------------   --------------------------------------------------------------------
openai, openai-responses     POST /embeddings, as OpenAI, Ollama, llama.cpp, vLLM and others have it
gemini                       POST /models/MODEL:batchEmbedContents
local                        the same as openai, of a server of this process (providers/local.py)
"""

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.errors import ProviderDown, ProviderRefused
from shoal.domain.untrusted import UNREADABLE
from shoal.providers.http import HttpClient, HttpFailed, read_whole
from shoal.providers.http_provider import ApiKey

TEXT_CHARS_MAX = 4_000
"""Of a longer text the beginning counts; models read less themselves, mostly 256 to 8,192 tokens."""


class _OpenAiVector(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _OpenAiVectors(msgspec.Struct):
    data: list[_OpenAiVector]


class _GeminiVector(msgspec.Struct):
    values: list[float]


class _GeminiVectors(msgspec.Struct):
    embeddings: list[_GeminiVector]


_openai_decoder = msgspec.json.Decoder(_OpenAiVectors)
_gemini_decoder = msgspec.json.Decoder(_GeminiVectors)


class HttpEmbeddings:
    """Asks an endpoint; opens nothing before its first call."""

    def __init__(
        self,
        provider: str,
        model: str,
        http: HttpClient,
        key: ApiKey,
        *,
        clock: Clock,
        is_gemini: bool = False,
        headers: Sequence[tuple[str, ApiKey]] = (),
    ) -> None:
        self._provider = provider
        self._model = model
        self._http = http
        self._key = key
        self._clock = clock
        self._is_gemini = is_gemini
        self._further_headers = headers

    @property
    def name(self) -> str:
        return f"{self._provider}/{self._model}"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        cut = [text[:TEXT_CHARS_MAX] or " " for text in texts]
        if self._is_gemini:
            name = self._model.removeprefix("models/")
            path = f"/models/{quote(name, safe='')}:batchEmbedContents"
            asked = [{"model": f"models/{name}", "content": {"parts": [{"text": text}]}} for text in cut]
            body = msgspec.json.encode({"requests": asked})
        else:
            path = "/embeddings"
            body = msgspec.json.encode({"model": self._model, "input": cut, "encoding_format": "float"})
        content = await self._post(path, body)
        try:
            if self._is_gemini:
                found = [one.values for one in _gemini_decoder.decode(content).embeddings]
            else:
                found = [
                    one.embedding for one in sorted(_openai_decoder.decode(content).data, key=lambda one: one.index)
                ]
        except UNREADABLE as error:
            raise ProviderDown(f"{self._provider} did not answer with embeddings. Check base_url.") from error
        if len(found) != len(texts) or not all(found) or len({len(vector) for vector in found}) > 1:
            raise ProviderDown(f"{self._provider} answered {len(texts)} texts with {len(found)} embeddings.")
        return found

    async def close(self) -> None:
        await self._http.close()

    async def _post(self, path: str, body: bytes) -> bytes:
        key = await self._key.get()
        named = (b"x-goog-api-key", key.encode()) if self._is_gemini else (b"authorization", b"Bearer " + key.encode())
        headers = [(b"content-type", b"application/json"), *([named] if key else [])]
        headers += [(name.lower().encode(), (await value.get()).encode()) for name, value in self._further_headers]
        try:
            response = await self._http.request("POST", path, headers, body)
            try:
                content = await read_whole(response)
            finally:
                await response.close()
        except HttpFailed as error:
            raise ProviderDown(str(error)) from error
        if response.status != 200:
            from shoal.providers.failures import failure_of

            if response.status == 401 and self._key.refreshable:
                self._key.forget()
            failed = failure_of(response.status, content, response.headers, self._provider, (key,), self._clock)
            raise (ProviderRefused if failed.kind in ("auth", "quota") else ProviderDown)(failed.message)
        return content
