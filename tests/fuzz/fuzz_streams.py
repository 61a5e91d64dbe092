"""Model streams: any split of a stream yields the same events, and a damaged stream yields a reply or an error,
never a crash.
"""

import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from shoal.kernel.messages import ModelDone, ModelFailed, ModelRequest, ToolMessage, UserMessage
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.answers import AnswerContext
from shoal.models.anthropic import AnthropicMessages
from shoal.models.api_protocol import ApiProtocol, Quirks
from shoal.models.gemini import GeminiContents
from shoal.models.http_provider import EventParser
from shoal.models.openai import OpenAiChat, OpenAiResponses
from tests.fuzz.inputs import NESTED, damaged, damaged_json
from tests.fuzz.target import Attempt

STREAMS = Path(__file__).parents[1] / "contracts" / "streams"
PROTOCOLS = {
    "anthropic": AnthropicMessages,
    "gemini": GeminiContents,
    "openai": OpenAiChat,
    "openai-responses": OpenAiResponses,
}
_ENDS = (b"\n", b"\r\n", b"\r")


@contextmanager
def target() -> Generator[Attempt]:
    streams = [(path.name.split(".")[0], path.read_bytes()) for path in sorted(STREAMS.glob("*.sse"))]

    def attempt(source: random.Random) -> None:
        name, stream = source.choice(streams)
        stream = stream.replace(b"\n", source.choice(_ENDS))
        content = damaged(source, stream) if source.random() < 0.4 else stream
        events = _cut_anywhere(source, content)
        if source.random() < 0.7:
            events = [_damaged_event(source, event) if source.random() < 0.3 else event for event in events]
        _answer(PROTOCOLS[name](), events)

    yield attempt


def _cut_anywhere(source: random.Random, content: bytes) -> list[bytes]:
    whole, pieces = EventParser(), EventParser()
    expected = [*whole.feed(content), *whole.finish()]
    events: list[bytes] = []
    at = 0
    while at < len(content):
        size = source.randint(1, 400)
        events += pieces.feed(content[at : at + size])
        at += size
    assert [*events, *pieces.finish()] == expected
    return expected


def _damaged_event(source: random.Random, event: bytes) -> bytes:
    if source.random() < 0.5:
        try:
            return msgspec.json.encode(damaged_json(source, msgspec.json.decode(event)))
        except UNREADABLE:
            pass
    return damaged(source, event) if source.random() < 0.9 else b'{"x":' + b"[" * NESTED


def _answer(protocol: ApiProtocol, events: list[bytes]) -> None:
    """Read the events. If they form a reply, it must be possible to send that reply back to the provider."""
    count = iter(range(1_000_000))
    reader = protocol.reader(AnswerContext("p", f"{protocol.kind}:p", frozenset(), lambda: f"new{next(count)}"))
    for event in events:
        if reader.failure is None:
            reader.feed(event)
        reader.deltas()
    result = reader.result()
    if isinstance(result, ModelFailed):
        return
    assert isinstance(result, ModelDone)
    calls = result.message.tool_calls
    assert len({call.id for call in calls}) == len(calls), calls
    results = tuple(ToolMessage(call.id, call.name, "ok") for call in calls)
    request = ModelRequest("m", "system", (UserMessage("hi"), result.message, *results))
    msgspec.json.decode(protocol.encode(request, Quirks(), {}).content)
