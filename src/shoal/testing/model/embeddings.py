"""The server side of embedding APIs. Texts that share words, in any inflection, have similar vectors.

Short words have little weight, because any two texts share a few of them.
"""

import hashlib
import re

import msgspec

DIMENSIONS = 256
_WORD = re.compile(r"\w+")


class _Part(msgspec.Struct):
    text: str


class _Content(msgspec.Struct):
    parts: list[_Part]


class _Asked(msgspec.Struct):
    content: _Content


class _Request(msgspec.Struct):
    """A request to either API. OpenAI's API uses `input`, and Gemini's uses `requests`."""

    input: list[str] = []
    requests: list[_Asked] = []


def answer(body: bytes) -> bytes:
    """Return the response to a request of either API. Raises msgspec.DecodeError."""
    asked = msgspec.json.decode(body, type=_Request)
    if asked.requests:
        texts = [" ".join(part.text for part in request.content.parts) for request in asked.requests]
        return msgspec.json.encode({"embeddings": [{"values": vector(text)} for text in texts]})
    data = [{"object": "embedding", "index": at, "embedding": vector(text)} for at, text in enumerate(asked.input)]
    return msgspec.json.encode({"object": "list", "data": data, "model": "fake-1"})


def vector(text: str) -> list[float]:
    """Return a vector for the words of a text. Only the first five letters of each word count."""
    vector = [0.01] * DIMENSIONS
    for word in _WORD.findall(text.casefold()):
        digest = hashlib.blake2b(word[:5].encode(), digest_size=9).digest()
        for place, byte in enumerate(digest[:8]):
            vector[byte] += max(len(word) - 2, 0.25) * (1 if digest[8] >> place & 1 else -1)
    return vector
