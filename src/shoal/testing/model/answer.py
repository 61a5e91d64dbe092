"""The form of an answer that every model API can render, and helpers for JSON and event streams."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from shoal.kernel.messages import StopReason, Usage
from shoal.testing.model.script import Call, Refusal, Seen

ARGUMENT_CHARS = 24
CREATED = 1_700_000_000

_encode = msgspec.json.Encoder().encode


class Answer(msgspec.Struct, frozen=True):
    """An answer to send. Its text consists of the `pieces`. Every call has an id."""

    id: str
    model: str
    pieces: tuple[str, ...]
    calls: tuple[Call, ...]
    thinking: str
    redacted_thinking: str
    stop: StopReason
    usage: Usage

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Wire(Protocol):
    """The server side of a model API."""

    def read(self, body: bytes, path: str) -> Seen:
        """Parse a request. Raises msgspec.DecodeError or msgspec.ValidationError."""
        ...

    def events(self, answer: Answer, seen: Seen) -> list[bytes]:
        """Return the answer as the frames of an event stream, with one frame for each piece of text."""
        ...

    def whole(self, answer: Answer) -> bytes:
        """Return the answer as one JSON document."""
        ...

    def refuse(self, refusal: Refusal) -> bytes:
        """Return an error as a JSON document."""
        ...

    def refuse_in_stream(self, refusal: Refusal) -> bytes:
        """Return an error as the frame of a stream that already started with status 200."""
        ...


def text_json(text: str) -> bytes:
    return _encode(text)


def fill(template: str, *values: str | bytes | int) -> bytes:
    """Replace each `~` in a template with a value encoded as JSON. Values of type bytes are inserted unchanged."""
    parts = template.encode().split(b"~")
    out = [parts[0]]
    for value, part in zip(values, parts[1:], strict=True):
        out.append(value if isinstance(value, bytes) else _encode(value))
        out.append(part)
    return b"".join(out)


def data_frame(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def named_frame(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def fragments(arguments: str) -> Iterable[str]:
    for start in range(0, len(arguments), ARGUMENT_CHARS):
        yield arguments[start : start + ARGUMENT_CHARS]


def object_json(arguments: str) -> bytes:
    """Return the arguments of a call as a JSON object. Text that is not a JSON object becomes `{"malformed": text}`."""
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return fill('{"malformed":~}', arguments)
    return arguments.encode()
