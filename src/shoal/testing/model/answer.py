"""An answer ready to be written in any wire form, and the small JSON pieces that every form is made of."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from shoal.kernel.messages import StopReason, Usage
from shoal.testing.model.script import Call, Refusal, Seen

ARGUMENT_CHARS = 24
CREATED = 1_700_000_000

_encode = msgspec.json.Encoder().encode


class Answer(msgspec.Struct, frozen=True):
    """What to send: `pieces` joined are the text, calls have their ids."""

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
        """The whole text."""
        return "".join(self.pieces)


class Wire(Protocol):
    """A provider's interface from the server's side."""

    def read(self, body: bytes, path: str) -> Seen:
        """Understand a request. Raises msgspec.DecodeError or msgspec.ValidationError."""
        ...

    def events(self, answer: Answer, seen: Seen) -> list[bytes]:
        """The answer as frames of a stream, one a piece."""
        ...

    def whole(self, answer: Answer) -> bytes:
        """The answer as one JSON document."""
        ...

    def refuse(self, refusal: Refusal) -> bytes:
        """An error document."""
        ...

    def refuse_in_stream(self, refusal: Refusal) -> bytes:
        """An error as a frame of a stream that began with status 200."""
        ...


def text_json(text: str) -> bytes:
    """A JSON string."""
    return _encode(text)


def fill(template: str, *values: str | bytes | int) -> bytes:
    """Put JSON-encoded values in place of the `~`s of a template; bytes are JSON already."""
    parts = template.encode().split(b"~")
    out = [parts[0]]
    for value, part in zip(values, parts[1:], strict=True):
        out.append(value if isinstance(value, bytes) else _encode(value))
        out.append(part)
    return b"".join(out)


def data_frame(data: bytes) -> bytes:
    """A frame with data alone."""
    return b"data: " + data + b"\n\n"


def named_frame(name: str, data: bytes) -> bytes:
    """A frame with an event name."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def fragments(arguments: str) -> Iterable[str]:
    """Arguments in the small pieces in which providers stream them."""
    for start in range(0, len(arguments), ARGUMENT_CHARS):
        yield arguments[start : start + ARGUMENT_CHARS]


def object_json(arguments: str) -> bytes:
    """Arguments where the form demands a JSON object; text that is none becomes `{"malformed": text}`."""
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return fill('{"malformed":~}', arguments)
    return arguments.encode()
