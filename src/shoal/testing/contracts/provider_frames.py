"""Streams in the format of each model API, and equivalent variations of them."""

from collections.abc import Sequence

import msgspec

from shoal.kernel.messages import Usage
from shoal.testing.model.answer import Answer, Wire
from shoal.testing.model.anthropic import AnthropicWire
from shoal.testing.model.gemini import GeminiWire
from shoal.testing.model.openai import OpenAiWire
from shoal.testing.model.responses import ResponsesWire
from shoal.testing.model.script import Call, Reply, Seen, pieces_of

_WIRES: dict[str, Wire] = {
    "openai": OpenAiWire(),
    "openai-responses": ResponsesWire(),
    "anthropic": AnthropicWire(),
    "gemini": GeminiWire(),
}


def frames_of(kind: str, reply: Reply) -> list[bytes]:
    """Return the frames of a stream that contains this reply, in the format of the API `kind`."""
    calls = tuple(
        call if call.id else Call(call.name, call.arguments, f"call_{index}") for index, call in enumerate(reply.calls)
    )
    stop = reply.stop or ("tool_calls" if calls else "end")
    usage = reply.usage or Usage(100, 20, 60, 0, 5)
    pieces = tuple(pieces_of(reply.text, 0))
    answer = Answer("answer_1", "model-1", pieces, calls, reply.thinking, reply.redacted_thinking, stop, usage)
    return _WIRES[kind].events(answer, Seen("openai", "model-1", (), ()))


def damage(frames: Sequence[bytes], how: str) -> tuple[bytes, ...]:
    """Return an equivalent variation of a stream.

    `how` selects the variation:

    - `bytes`: chunks of one byte.
    - `crlf`, `cr`: other line endings.
    - `comments`: additional comments and events.
    - `lines`: data over several lines.
    - any other value: no empty line at the end.
    """
    whole = b"".join(frames)
    match how:
        case "bytes":
            return tuple(whole[at : at + 1] for at in range(len(whole)))
        case "crlf":
            text = whole.replace(b"\n", b"\r\n")
            return tuple(text[at : at + 7] for at in range(0, len(text), 7))
        case "cr":
            return (whole.replace(b"\n", b"\r"),)
        case "comments":
            return tuple(b": ping\n\nid: 7\nretry: 10\n" + frame + b"event: ping\n\n" for frame in frames)
        case "lines":
            return tuple(_in_lines(frame) for frame in frames)
        case _:
            return (whole.rstrip(b"\n"),)


def _in_lines(frame: bytes) -> bytes:
    head, _, data = frame.rstrip(b"\n").rpartition(b"data: ")
    if data == b"[DONE]":
        return frame
    lines = msgspec.json.format(data, indent=1).split(b"\n")
    return head + b"".join(b"data:" + line + b"\n" for line in lines) + b"\n"
