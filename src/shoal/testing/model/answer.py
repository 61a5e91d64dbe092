"""An answer in a form that every model API can render, and helpers for JSON and event streams."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from shoal.kernel.messages import StopReason, Usage
from shoal.testing.model.script import Call, Refusal, Seen

ARGUMENT_CHARS = 24
CREATED = 1_700_000_000

_encode = msgspec.json.Encoder().encode


class Answer(msgspec.Struct, frozen=True):
    """An answer to send. The text is the joined `pieces`. Every call has an id."""

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
        """Return the answer as frames of an event stream, with one frame per piece of text."""
        ...

    def whole(self, answer: Answer) -> bytes:
        """Return the answer as one JSON document."""
        ...

    def refuse(self, refusal: Refusal) -> bytes:
        """Return an error as a JSON document."""
        ...

    def refuse_in_stream(self, refusal: Refusal) -> bytes:
        """Return an error as a frame of a stream that started with status 200."""
        ...


def text_json(text: str) -> bytes:
    return _encode(text)


def fill(template: str, *values: str | bytes | int) -> bytes:
    """Replace each `~` of a template with a value as JSON. A value of type bytes is JSON already."""
    parts = template.encode().split(b"~")
    out = [parts[0]]
    for value, part in zip(values, parts[1:], strict=True):
        out.append(value if isinstance(value, bytes) else _encode(value))
        out.append(part)
    return b"".join(out)


def data_frame(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def named_frame(name: str, data: bytes) -> bytes:
    """Return a stream frame with an event name and data."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def fragments(arguments: str) -> Iterable[str]:
    """Split a call's arguments into small pieces, as providers stream them."""
    for start in range(0, len(arguments), ARGUMENT_CHARS):
        yield arguments[start : start + ARGUMENT_CHARS]


def object_json(arguments: str) -> bytes:
    """Return a call's arguments as a JSON object. Text that is not one becomes `{"malformed": text}`."""
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return fill('{"malformed":~}', arguments)
    return arguments.encode()
