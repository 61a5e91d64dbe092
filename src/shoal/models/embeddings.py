"""Text embeddings for recall, from a provider's endpoint or a local GGUF file.

kind                         endpoint
--------------------------   --------------------------------------------------------------------
openai, openai-responses     POST /embeddings, supported by OpenAI, Ollama, llama.cpp, vLLM and others
gemini                       POST /models/MODEL:batchEmbedContents
local                        POST /embeddings on a server in this process (models/local.py)
"""

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from shoal.kernel.errors import ProviderDown
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.http_provider import ModelEndpoint

TEXT_CHARS_MAX = 4_000
"""Maximum number of characters per text. Longer texts are truncated. Most models read only 256 to 8,192 tokens."""


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
    def __init__(self, endpoint: ModelEndpoint) -> None:
        self._endpoint = endpoint
        self.name = endpoint.name

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        cut, asks = [text[:TEXT_CHARS_MAX] or " " for text in texts], self._endpoint
        if asks.is_gemini:
            name = asks.model.removeprefix("models/")
            path = f"/models/{quote(name, safe='')}:batchEmbedContents"
            asked = [{"model": f"models/{name}", "content": {"parts": [{"text": text}]}} for text in cut]
            body = msgspec.json.encode({"requests": asked})
        else:
            path = "/embeddings"
            body = msgspec.json.encode({"model": asks.model, "input": cut, "encoding_format": "float"})
        content, _ = await asks.post(path, body)
        try:
            if asks.is_gemini:
                vectors = [embedding.values for embedding in _gemini_decoder.decode(content).embeddings]
            else:
                vectors = [
                    item.embedding for item in sorted(_openai_decoder.decode(content).data, key=lambda item: item.index)
                ]
        except UNREADABLE as error:
            raise asks.nonsense("embeddings") from error
        if len(vectors) != len(texts) or not all(vectors) or len({len(vector) for vector in vectors}) > 1:
            raise ProviderDown(
                f"{asks.provider} returned the wrong number of embeddings ({len(vectors)} instead of {len(texts)})."
            )
        return vectors

    async def close(self) -> None:
        await self._endpoint.close()
