"""What the API protocols share: requests as JSON bytes, grown at the end; answers.py has the way back.

Each thread's encoded messages are kept, so that a request of a long conversation costs a comparison of tuples, one
copy, and its new messages. The messages of a dropped conversation are not kept alive by that. A conversation that
begins anew, after a compaction say, is encoded anew, at some milliseconds a megabyte: keeping the encoded form beside
each message would take as much memory again.
"""

import base64
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeAlias
from weakref import ReferenceType, ref

import msgspec

from shoal.domain.messages import (
    AssistantMessage,
    Image,
    ModelInfo,
    ModelMessage,
    ModelRequest,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from shoal.domain.regular_files import read_regular
from shoal.domain.untrusted import UNREADABLE
from shoal.providers.answers import AnswerContext, AnswerReader, portable_call_id

THREADS_MAX = 256
"""Encoded conversations kept; the least recently used is dropped and encoded anew when it is needed.

One whose messages are gone is of no more use, and is dropped as soon as it is the least recently used.
"""
JOINED_BYTES_MAX = 16 * 1024 * 1024
"""The same bound in bytes, over all threads."""
STABLE_MAX = 64
"""Encoded system prompts and tool lists kept."""
IMAGE_BYTES_MAX = 20 * 1024 * 1024
"""Largest image sent; a larger one is named in words instead."""

Images: TypeAlias = Mapping[str, bytes]
"""Images of new messages by path, base64; a path that is missing here could not be read."""


encode = msgspec.json.Encoder().encode
_arguments_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


# ---- requests ----


class EncodedMessage(NamedTuple):
    """A message as JSON. Messages of the same `role` in a row share a frame; `later` follows the last of them."""

    role: str
    body: bytes
    later: bytes = b""


class EncodedRequest(msgspec.Struct, frozen=True):
    """A request's body, and the call ids that its conversation already has."""

    content: bytes
    call_ids: set[str]


class Quirks(msgspec.Struct, frozen=True):
    """How one model or server departs from its protocol's common form; rows of data, see `model_table.py`.

    `max_tokens` names the field for the limit (empty: none is sent); `cache_key` sends the thread's key for the
    provider's prompt cache; `reasoning_items` asks for encrypted reasoning; `tool_search` tells, in the provider's
    own way, of tools that were looked up.
    """

    max_tokens: str = "max_tokens"
    temperature: bool = True
    usage_option: bool = True
    cache_key: bool = False
    reasoning_items: bool = True
    tool_search: bool = False


class ApiProtocol:
    """One HTTP API of model providers: pure translation of requests to bytes and of stream events to an answer. Holds
    encoded messages between requests, nothing else; does no I/O."""

    kind: ClassVar[str]
    """Its name in the configuration."""
    answers_path: ClassVar[str] = ""
    models_path: ClassVar[str] = "/models"
    """Where requests go, and where models are listed, below the base address."""
    fixed_headers: ClassVar[Sequence[tuple[bytes, bytes]]] = ((b"content-type", b"application/json"),)
    key_header: ClassVar[tuple[bytes, bytes]] = (b"authorization", b"Bearer ")
    """The header that has the key, and what stands before it there."""
    frame: ClassVar[tuple[bytes, bytes]] = (b"", b"")
    """What stands before the first message of a frame, with its role, and after the last."""
    text_template: ClassVar[bytes] = b'{"type":"text","text":%b}'
    image_template: ClassVar[bytes]
    """An image's media type and its content in base64, in this order."""
    system_template: ClassVar[bytes]
    tool_template: ClassVar[bytes]
    """A tool's name, description and JSON schema, in this order."""
    tools_template: ClassVar[bytes] = b',"tools":[%b]'

    def __init__(self) -> None:
        # The system prompt and the tools stay the same from request to request.

        @lru_cache(STABLE_MAX)
        def encode_system(text: str) -> bytes:
            return self.system_template % encode(text)

        @lru_cache(STABLE_MAX)
        def encode_tools(specs: tuple[ToolSpec, ...], found: tuple[ToolSpec, ...] | None = None) -> bytes:
            """With `found`, in the provider's own way of looking tools up; these have been."""
            native = found is not None
            told = [self.encode_tool(spec, native=native) for spec in specs]
            return self.tools_template % b",".join((*told, *self.encode_found(found or ())))

        self.conversations = ConversationCache(self)
        self.system = encode_system
        self.tools = encode_tools

    def path(self, model: str) -> str:
        """Where a request for this model goes, below the base address."""
        return self.answers_path

    def headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """Headers besides host and length."""
        name, before = self.key_header
        return [*self.fixed_headers, *([(name, before + key.encode())] if key else ())]

    def encode(self, request: ModelRequest, quirks: Quirks, images: Images) -> EncodedRequest:
        """The request's body. `images` has what `conversations.new_images` asked for."""
        raise NotImplementedError

    def reader(self, context: AnswerContext) -> AnswerReader:
        raise NotImplementedError

    def models(self, body: bytes) -> list[ModelInfo]:
        """Read a list of models. Raises msgspec.DecodeError."""
        raise NotImplementedError

    def encode_message(self, message: ModelMessage, images: Images, *, native: bool = False) -> EncodedMessage:
        """One message; an empty body leaves it out. `native`: tools are looked up in the provider's own way."""
        raise NotImplementedError

    def searches(self, request: ModelRequest, quirks: Quirks) -> bool:
        """Whether the model of this request looks tools up in the provider's own way."""
        return False

    def encode_tool(self, spec: ToolSpec, *, native: bool) -> bytes:
        """A tool that the model is told of from the start."""
        return self.tool_template % (encode(spec.name), encode(spec.description), spec.parameters.encode())

    def encode_found(self, specs: Iterable[ToolSpec]) -> list[bytes]:
        """What stands among the tools for those that were looked up."""
        return []

    def opening(self, role: str) -> bytes:
        """What stands before the first message of a frame."""
        return self.frame[0] % role.encode() if self.frame[0] else b""

    def encode_text(self, text: str) -> bytes:
        return self.text_template % encode(text)

    def encode_images(self, shown: Iterable[Image], images: Images) -> list[bytes]:
        """Each image; in the place of one that was not loaded, words."""
        limit = f"is larger than {IMAGE_BYTES_MAX >> 20} MiB"
        return [
            self.image_template % (image.media_type.encode(), images[image.path])
            if image.path in images
            else self.encode_text(f"[The image {Path(image.path).name} could not be read, or {limit}.]")
            for image in shown
        ]


class JoinedMessages(msgspec.Struct, eq=False, kw_only=True):
    """A thread's messages so far, as JSON. The last frame is left open, so that a message of its role can join it.
    `before` is the buffer's length at the previous request, `found` the tools that have been looked up."""

    native: bool = False
    found: dict[str, ToolSpec] = {}
    messages: tuple[ReferenceType[ModelMessage], ...] = ()
    buffer: bytearray = msgspec.field(default_factory=bytearray)
    before: int = 0
    role: str = ""
    later: bytes = b""
    call_ids: set[str] = msgspec.field(default_factory=set)

    def add(self, message: EncodedMessage, protocol: ApiProtocol) -> None:
        """Append a message."""
        if message.body:
            if not self.buffer:
                self.buffer += protocol.opening(message.role)
            elif message.role == self.role:
                self.buffer += b","
            else:
                self.buffer += self.ending(protocol) + b"," + protocol.opening(message.role)
                self.later = b""
            self.buffer += message.body
            self.role = message.role
        if message.later:
            self.later += (b"," if self.later else b"") + message.later

    def ending(self, protocol: ApiProtocol) -> bytes:
        """What completes the buffer, which stays as it is."""
        later = b"," + self.later if self.later else b""
        return later + protocol.frame[1] if self.buffer else b""


class ConversationCache:
    """The encoded messages of one provider's conversations, kept between requests."""

    def __init__(self, protocol: ApiProtocol) -> None:
        self._protocol = protocol
        self.kept: OrderedDict[str, JoinedMessages] = OrderedDict()
        """The encoded conversations by thread, the least recently used first."""
        self._bytes = 0

    def new_images(self, request: ModelRequest, *, native: bool = False) -> list[Image]:
        """The images that this request adds, to be loaded before `join`."""
        joined = self.kept.get(request.cache_key)
        return [
            image
            for message in self._new(joined if joined and joined.native == native else None, request.messages)
            if isinstance(message, UserMessage | ToolMessage)
            for image in message.images
        ]

    def join(self, request: ModelRequest, images: Images, *, native: bool = False) -> JoinedMessages:
        """All messages of the request; valid until the next call."""
        joined = self.kept.pop(request.cache_key, None)
        if joined is not None:
            self._bytes -= len(joined.buffer)
            joined = joined if joined.native == native else None
        new = self._new(joined, request.messages)
        if joined is None or len(new) == len(request.messages):
            joined = JoinedMessages(native=native)
        joined.before = len(joined.buffer)
        for message in new:
            joined.add(self._protocol.encode_message(message, images, native=native), self._protocol)
            if isinstance(message, AssistantMessage):
                joined.call_ids.update(portable_call_id(call.id) for call in message.tool_calls)
            elif isinstance(message, ToolMessage):
                joined.found.update((tool.name, tool) for tool in message.found)
        joined.messages += tuple(map(ref, new))
        if request.cache_key:
            self.kept[request.cache_key] = joined
            self._bytes += len(joined.buffer)
        while len(self.kept) > 1:
            oldest = next(iter(self.kept.values()))
            is_held = not oldest.messages or oldest.messages[-1]() is not None
            if is_held and len(self.kept) <= THREADS_MAX and self._bytes <= JOINED_BYTES_MAX:
                break
            self.kept.popitem(last=False)
            self._bytes -= len(oldest.buffer)
        return joined

    def _new(self, joined: JoinedMessages | None, messages: tuple[ModelMessage, ...]) -> tuple[ModelMessage, ...]:
        """The messages that follow those joined; all where the conversation does not begin with those."""
        if joined is None or not joined.messages:
            return messages
        count = len(joined.messages)
        return messages[count:] if tuple(map(ref, messages[:count])) == joined.messages else messages


def load_images(images: Iterable[Image]) -> dict[str, bytes]:
    """Read and encode images; those that cannot be read or are too large are left out. Blocks on the disk."""
    loaded: dict[str, bytes] = {}
    for image in images:
        try:
            data = read_regular(Path(image.path), IMAGE_BYTES_MAX + 1)
        except OSError:
            continue
        if len(data) <= IMAGE_BYTES_MAX:
            loaded[image.path] = base64.b64encode(data)
    return loaded


def portable_call_name(name: str) -> str:
    """The name of a call in the same alphabet: what a model called may be no name of a tool, or none at all."""
    return portable_call_id(name) or "_"


def encode_call(call: ToolCall) -> tuple[bytes, bytes, bytes]:
    """A call's id, name and arguments (an object) as every provider takes them."""
    name = portable_call_name(call.written_name)
    return encode(portable_call_id(call.id)), encode(name), arguments_object(call.written_arguments)


def arguments_object(arguments: str) -> bytes:
    """A call's arguments as a JSON object; what the model wrote malformed goes back as `{"malformed": text}`."""
    try:
        _arguments_decoder.decode(arguments)
    except UNREADABLE:
        return b'{"malformed":' + encode(arguments) + b"}"
    return arguments.encode()


# ---- learning from refusals ----

_NOT_TAKEN = r"(unknown|unsupported|not support|unrecognized|not permitted|deprecated|only the default|extra)"
_LESSONS: tuple[tuple[str, Mapping[str, str | bool]], ...] = (
    (r"max_tokens.{0,80}max_completion_tokens", {"max_tokens": "max_completion_tokens"}),
    (rf"max_completion_tokens.{{0,60}}{_NOT_TAKEN}", {"max_tokens": "max_tokens"}),
    (rf"temperature.{{0,80}}{_NOT_TAKEN}|{_NOT_TAKEN}.{{0,40}}temperature", {"temperature": False}),
    (r"stream_options", {"usage_option": False}),
    (r"prompt_cache_key", {"cache_key": False}),
    (r"reasoning\.encrypted_content|encrypted content is not supported", {"reasoning_items": False}),
    (r"tool_search|tool_reference|defer_loading", {"tool_search": False}),
)
"""Words of a refusal (anywhere, any case), and the fields of `Quirks` that they teach."""


def learn(quirks: Quirks, refusal: str) -> Quirks | None:
    """What a refusal of one field teaches; None when it is about something else, or was known already."""
    for words, changes in _LESSONS:
        if re.search(words, refusal, re.DOTALL | re.IGNORECASE):
            learned = msgspec.structs.replace(quirks, **changes)
            if learned != quirks:
                return learned
    return None
