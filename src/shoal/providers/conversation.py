"""A conversation's messages as JSON bytes, grown at the end: what a request adds is encoded, the rest is copied.

Each thread's joined messages are kept, so that a request of a long conversation costs a comparison of tuples, one copy,
and its new messages. That does not keep the messages of a conversation that was dropped. One that begins anew, after a
compaction say, is encoded anew, at some milliseconds a megabyte: kept beside each message, its form would take as much
memory again.
"""

import base64
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import ReferenceType, ref

from shoal.domain.messages import Image, ModelMessage, ModelRequest, ToolMessage, ToolSpec, UserMessage

THREADS_MAX = 256
"""Joined conversations kept; the least recently used is dropped and joined anew when it is needed.

One whose messages are gone is of no use any more, and is dropped as soon as it is the least recently used.
"""
JOINED_BYTES_MAX = 16 * 1024 * 1024
"""The same bound in bytes, over all threads."""
STABLE_MAX = 64
"""Encoded system prompts and tool lists kept."""
IMAGE_BYTES_MAX = 20 * 1024 * 1024
"""Largest image sent; a larger one is named in words instead."""

_T = TypeVar("_T")
Encode: TypeAlias = Callable[[_T], bytes]
Images: TypeAlias = Mapping[str, bytes]
"""Images of new messages by path, base64; a path that is missing here could not be read."""


class Part(NamedTuple):
    """A message in a wire's form. Parts of the same `role` in a row share a frame; `later` follows the last of them."""

    role: str
    body: bytes
    later: bytes = b""


class Form(Protocol):
    """How a wire writes messages."""

    def part(self, message: ModelMessage, images: Images) -> Part:
        """One message; an empty body leaves it out."""
        ...

    def open(self, role: str) -> bytes:
        """What stands before the first part of a frame."""
        ...

    def close(self, role: str) -> bytes:
        """What stands after the last part of a frame."""
        ...


class Joined:
    """A thread's messages so far. The last frame is left open, so that a part of the same role can join it.

    `before` is the buffer's length at the previous request.
    """

    __slots__ = ("before", "buffer", "call_ids", "later", "messages", "role")

    def __init__(self) -> None:
        self.messages: tuple[ReferenceType[ModelMessage], ...] = ()
        self.buffer = bytearray()
        self.before = 0
        self.role: str = ""
        self.later = b""
        self.call_ids: set[str] = set()

    def add(self, part: Part, form: Form) -> None:
        """Append a part."""
        if part.body:
            if not self.buffer:
                self.buffer += form.open(part.role)
            elif part.role == self.role:
                self.buffer += b","
            else:
                self._end_frame(form)
                self.buffer += b"," + form.open(part.role)
            self.buffer += part.body
            self.role = part.role
        if part.later:
            self.later += (b"," if self.later else b"") + part.later

    def _end_frame(self, form: Form) -> None:
        if self.later:
            self.buffer += b"," + self.later
            self.later = b""
        self.buffer += form.close(self.role)

    @property
    def is_held(self) -> bool:
        """Whether the conversation is still there."""
        return not self.messages or self.messages[-1]() is not None

    def ending(self, form: Form) -> bytes:
        """What completes the buffer without changing it."""
        later = b"," + self.later if self.later else b""
        return later + form.close(self.role) if self.buffer else b""


class Conversations:
    """The wire forms of one provider's messages, kept between requests."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self._threads: OrderedDict[str, Joined] = OrderedDict()
        self._bytes = 0

    @property
    def kept(self) -> Mapping[str, Joined]:
        """The joined conversations by thread, the least recently used first."""
        return self._threads

    def new_images(self, request: ModelRequest) -> list[Image]:
        """The images that this request adds, to be loaded before `join`."""
        return [
            image
            for message in self._new(self._threads.get(request.cache_key), request.messages)
            if isinstance(message, UserMessage | ToolMessage)
            for image in message.images
        ]

    def join(self, request: ModelRequest, images: Images) -> Joined:
        """All messages of the request; valid until the next call."""
        joined = self._threads.pop(request.cache_key, None)
        if joined is not None:
            self._bytes -= len(joined.buffer)
        new = self._new(joined, request.messages)
        if joined is None or len(new) == len(request.messages):
            joined = Joined()
        joined.before = len(joined.buffer)
        for message in new:
            joined.add(self.form.part(message, images), self.form)
            for call in () if isinstance(message, UserMessage | ToolMessage) else message.tool_calls:
                joined.call_ids.add(call.id)
        joined.messages += tuple(map(ref, new))
        if request.cache_key:
            self._keep(request.cache_key, joined)
        return joined

    def _new(self, joined: Joined | None, messages: tuple[ModelMessage, ...]) -> tuple[ModelMessage, ...]:
        if joined is None or not joined.messages:
            return messages
        count = len(joined.messages)
        return messages[count:] if tuple(map(ref, messages[:count])) == joined.messages else messages

    def _keep(self, key: str, joined: Joined) -> None:
        self._threads[key] = joined
        self._bytes += len(joined.buffer)
        while len(self._threads) > 1:
            oldest = next(iter(self._threads.values()))
            if oldest.is_held and len(self._threads) <= THREADS_MAX and self._bytes <= JOINED_BYTES_MAX:
                return
            self._threads.popitem(last=False)
            self._bytes -= len(oldest.buffer)


class StableParts:
    """Encoded system prompts and tool lists, which stay the same from request to request."""

    def __init__(self) -> None:
        self._systems: OrderedDict[str, bytes] = OrderedDict()
        self._tools: OrderedDict[int, tuple[tuple[ToolSpec, ...], bytes]] = OrderedDict()

    def system(self, text: str, encode: Encode[str]) -> bytes:
        """The system prompt, encoded once."""
        found = self._systems.get(text)
        if found is None:
            found = self._systems[text] = encode(text)
            if len(self._systems) > STABLE_MAX:
                self._systems.popitem(last=False)
        return found

    def tools(self, specs: tuple[ToolSpec, ...], encode: Encode[tuple[ToolSpec, ...]]) -> bytes:
        """The tools, encoded once for each tuple."""
        found = self._tools.get(id(specs))
        if found is None or found[0] is not specs:
            found = self._tools[id(specs)] = (specs, encode(specs))
            if len(self._tools) > STABLE_MAX:
                self._tools.popitem(last=False)
        return found[1]


def load_images(images: Iterable[Image]) -> dict[str, bytes]:
    """Read and encode images; those that cannot be read or are too large are left out. Blocks on the disk."""
    loaded: dict[str, bytes] = {}
    for image in images:
        try:
            with Path(image.path).open("rb") as file:
                data = file.read(IMAGE_BYTES_MAX + 1)
        except OSError:
            continue
        if len(data) <= IMAGE_BYTES_MAX:
            loaded[image.path] = base64.b64encode(data)
    return loaded


def missing_image(image: Image) -> str:
    """What stands for an image that was not loaded."""
    return f"[The image {Path(image.path).name} could not be read, or is larger than {IMAGE_BYTES_MAX >> 20} MiB.]"
