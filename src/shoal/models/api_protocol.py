"""Encode requests as JSON bytes. This module contains the code that all API protocols share. answers.py decodes the
responses.

Encoded messages are cached per thread. A request in a long conversation then costs one comparison of tuples, one copy,
and the encoding of its new messages. The cache does not keep dropped conversations alive. If a conversation restarts,
for example after a compaction, it is encoded again, which takes a few milliseconds per megabyte. Caching the encoded
form with each message would double the memory.
"""

import base64
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, TypeAlias
from weakref import ReferenceType, WeakSet, ref

import msgspec

from shoal.files.images import image_head
from shoal.kernel.messages import (
    AssistantMessage,
    Image,
    ModelInfo,
    ModelMessage,
    ModelRequest,
    ToolCall,
    ToolMessage,
    ToolSpec,
)
from shoal.kernel.regular_files import read_regular
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.answers import AnswerContext, AnswerReader, portable_call_id
from shoal.models.arrange import MessageForm, arranged, images_of
from shoal.models.quirks import Quirks
from shoal.models.schema_dialects import SchemaDialect, narrowed

THREADS_MAX = 256
"""Maximum number of cached conversations. The least recently used conversation is evicted first, and is encoded again
when needed.
"""
JOINED_BYTES_MAX = 16 * 1024 * 1024
STABLE_MAX = 64
IMAGE_BYTES_MAX = 5 * 1024 * 1024 * 3 // 4
"""Maximum size of an image before it is encoded. In base64, this is 5 MiB, the limit of Anthropic and Bedrock.

A larger image is replaced by text. New images are resized on arrival (`tools/attachments.py`), so this affects only
images in older conversations.
"""
IMAGE_SIDE_MAX = 8000

Images: TypeAlias = Mapping[str, bytes]
"""Base64 content of the images that a request adds, by path. Images that cannot be read are omitted."""

_UNSAFE_ID = re.compile(r"[^A-Za-z0-9_-]")
_CALL_NAME_CHARS_MAX = 64

encode = msgspec.json.Encoder().encode
_arguments_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


# ---- requests ----


class EncodedMessage(NamedTuple):
    """A message as JSON. Consecutive messages with the same `role` share one frame, and `later` is added after the
    last one.
    """

    role: str
    body: bytes
    later: bytes = b""


class EncodedRequest(msgspec.Struct, frozen=True):
    content: bytes
    call_ids: set[str]


class ApiProtocol:
    """The HTTP API of a family of model providers.

    Encodes requests and creates readers for responses, without I/O. The cache of encoded messages is the only state.
    """

    kind: ClassVar[str]
    """Value of a provider's `kind` in the configuration."""
    answers_path: ClassVar[str] = ""
    models_path: ClassVar[str] = "/models"
    fixed_headers: ClassVar[Sequence[tuple[bytes, bytes]]] = ((b"content-type", b"application/json"),)
    key_header: ClassVar[tuple[bytes, bytes]] = (b"authorization", b"Bearer ")
    """Name of the authentication header, and the prefix of its value."""
    frame: ClassVar[tuple[bytes, bytes]] = (b"", b"")
    """Bytes that open a frame, with a placeholder for the role, and bytes that close it."""
    text_template: ClassVar[bytes] = b'{"type":"text","text":%b}'
    image_template: ClassVar[bytes]
    """Template for an image. Placeholders: media type, base64 content."""
    system_template: ClassVar[bytes]
    tool_template: ClassVar[bytes]
    """Template for a tool. Placeholders: name, description, JSON schema."""
    tools_template: ClassVar[bytes] = b',"tools":[%b]'
    merges_users: ClassVar[bool] = False
    """Whether consecutive user messages are joined before they are encoded."""
    images: ClassVar[Literal["all", "user"]] = "all"
    """`all`: any message may contain images. `user`: only user messages may contain images."""
    schema_dialect: ClassVar[SchemaDialect] = "common"

    def __init__(self) -> None:
        # Encoded once: the system prompt and the tools rarely change between requests.

        @lru_cache(STABLE_MAX)
        def encode_system(text: str) -> bytes:
            return self.system_template % encode(text)

        @lru_cache(STABLE_MAX)
        def encode_tools(
            specs: tuple[ToolSpec, ...], dialect: SchemaDialect, found: tuple[ToolSpec, ...] | None = None
        ) -> bytes:
            native = found is not None
            encoded = [self.encode_tool(spec, dialect, native=native) for spec in specs]
            return self.tools_template % b",".join((*encoded, *self.encode_found(found or (), dialect)))

        self.conversations = ConversationCache(self)
        self.system = encode_system
        self.tools = encode_tools

    def path(self, model: str) -> str:
        return self.answers_path

    def headers(self, key: str) -> list[tuple[bytes, bytes]]:
        name, before = self.key_header
        return [*self.fixed_headers, *([(name, before + key.encode())] if key else ())]

    def form(self, request: ModelRequest, quirks: Quirks, origin: str, left_out: int = 0) -> MessageForm:
        """Choose how to encode the messages of this request.

        Only reasoning from `origin` (provider, server and model) is sent back. The `left_out` oldest images are
        omitted.
        """
        if quirks.images == "all" != self.images:
            quirks = quirks.changed({"images": self.images})
        system = "" if quirks.system_role else request.system
        return MessageForm(quirks, origin, self.searches(request, quirks), system, left_out)

    def encode(
        self, request: ModelRequest, quirks: Quirks, images: Images, origin: str = "", left_out: int = 0
    ) -> EncodedRequest:
        """Encode a request. `images` must contain the images that `conversations.new_images` lists."""
        if not quirks.tools and request.tools:
            request = msgspec.structs.replace(request, tools=(), further=())
        form = self.form(request, quirks, origin, left_out)
        if form.system:
            request = msgspec.structs.replace(request, system="")
        return self.write(request, self.conversations.join(request, images, form), form)

    def write(self, request: ModelRequest, joined: "JoinedMessages", form: MessageForm) -> EncodedRequest:
        raise NotImplementedError

    def reader(self, context: AnswerContext) -> AnswerReader:
        raise NotImplementedError

    def models(self, body: bytes) -> list[ModelInfo]:
        """Decode a list of models. Raises msgspec.DecodeError."""
        raise NotImplementedError

    def encode_message(self, message: ModelMessage, images: Images, form: MessageForm) -> EncodedMessage:
        """Encode one message. A message with an empty result is not sent."""
        raise NotImplementedError

    def searches(self, request: ModelRequest, quirks: Quirks) -> bool:
        return False

    def dialect(self, quirks: Quirks) -> SchemaDialect:
        return quirks.schema_dialect or self.schema_dialect

    def encode_tool(self, spec: ToolSpec, dialect: SchemaDialect, *, native: bool) -> bytes:
        return self.tool_template % (encode(spec.name), encode(spec.description), schema_of(spec, dialect))

    def encode_found(self, specs: Iterable[ToolSpec], dialect: SchemaDialect) -> list[bytes]:
        return []

    def opening(self, role: str) -> bytes:
        return self.frame[0] % role.encode() if self.frame[0] else b""

    def encode_text(self, text: str) -> bytes:
        return self.text_template % encode(text)

    def encode_images(self, shown: Iterable[Image], images: Images) -> list[bytes]:
        limit = "is damaged or too large"
        return [
            self.image_template % (image.media_type.encode(), images[image.path])
            if image.path in images
            else self.encode_text(f"[The image {Path(image.path).name} could not be read, or {limit}.]")
            for image in shown
        ]


class JoinedMessages(msgspec.Struct, eq=False, kw_only=True):
    """The encoded messages of a thread.

    The last frame stays open for further messages with the same role.
    """

    form: MessageForm = MessageForm()
    found: dict[str, ToolSpec] = {}
    """Tools that the model found with tool search in this conversation, by name."""
    messages: tuple[ReferenceType[ModelMessage], ...] = ()
    buffer: bytearray = msgspec.field(default_factory=bytearray)
    before: int = 0
    """Length of the buffer before the last request added its messages."""
    closed: int = 0
    """Number of messages up to and including the last assistant message. Their JSON is `closed_at` bytes long."""
    closed_at: int = 0
    role: str = ""
    later: bytes = b""
    call_ids: set[str] = msgspec.field(default_factory=set)

    def add(self, message: EncodedMessage, protocol: ApiProtocol) -> None:
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
        later = b"," + self.later if self.later else b""
        return later + protocol.frame[1] if self.buffer else b""


class ConversationCache:
    def __init__(self, protocol: ApiProtocol) -> None:
        self._protocol = protocol
        self.kept: OrderedDict[str, JoinedMessages] = OrderedDict()
        """Encoded conversations by thread, least recently used first."""
        self.refused: WeakSet[ModelMessage] = WeakSet()
        """Messages that are sent without images and reasoning, because the provider rejected these."""
        self._bytes = 0

    def refuse(self, thread: str, messages: Iterable[ModelMessage]) -> None:
        """Send these messages without images and reasoning from now on."""
        self.refused.update(messages)
        if (dropped := self.kept.pop(thread, None)) is not None:
            self._bytes -= len(dropped.buffer)

    def new_images(self, request: ModelRequest, form: MessageForm) -> list[Image]:
        """Return the images that this request adds. They must be loaded before `join`."""
        if form.quirks.images == "none":
            return []
        start = self._start(self.kept.get(request.cache_key), request.messages, form)
        left_out = form.left_out - _image_count(request.messages[:start]) if form.left_out else 0
        images = list[Image]()
        for message in images_of(request.messages[start:]):
            if message not in self.refused:
                images.extend(message.images[max(0, left_out) :])
            left_out -= len(message.images)
        return images

    def join(self, request: ModelRequest, images: Images, form: MessageForm) -> JoinedMessages:
        """Encode the new messages of a request and return all of its messages. The result is valid until the
        next call.
        """
        joined, messages = self.kept.pop(request.cache_key, None), request.messages
        if joined is not None:
            self._bytes -= len(joined.buffer)
        start = self._start(joined, messages, form)
        if joined is None or not start:
            joined = JoinedMessages(form=form)
        elif start < len(joined.messages):
            del joined.buffer[joined.closed_at :]
        joined.before = len(joined.buffer)
        for message in messages[start:]:
            if isinstance(message, AssistantMessage):
                joined.call_ids.update(portable_call_id(call.id) for call in message.tool_calls)
            elif isinstance(message, ToolMessage):
                joined.found.update((tool.name, tool) for tool in message.found)
        while start < len(messages):
            end = start + 1
            if is_answer := isinstance(messages[start], AssistantMessage):
                joined.closed = end
            else:
                while end < len(messages) and not isinstance(messages[end], AssistantMessage):
                    end += 1
            after, merges = messages[start - 1] if start else None, self._protocol.merges_users
            left_out = max(0, form.left_out - _image_count(messages[:start])) if form.left_out else 0
            for message in arranged(messages[start:end], after, form, self.refused, left_out, merges=merges):
                joined.add(self._protocol.encode_message(message, images, form), self._protocol)
            joined.closed_at = len(joined.buffer) if is_answer else joined.closed_at
            start = end
        joined.messages = tuple(map(ref, messages))
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

    def _start(self, joined: JoinedMessages | None, messages: tuple[ModelMessage, ...], form: MessageForm) -> int:
        """Return the index of the first message to encode.

        The index is 0 if the conversation does not begin with the cached messages. If consecutive user messages are
        merged, a new user message is encoded together with those before it.
        """
        if joined is None or joined.form != form:
            return 0
        count = len(joined.messages)
        if tuple(map(ref, messages[:count])) != joined.messages:
            return 0
        grows = (
            self._protocol.merges_users and count < len(messages) and not isinstance(messages[count], AssistantMessage)
        )
        return joined.closed if grows else count


def _image_count(messages: Sequence[ModelMessage]) -> int:
    return sum(len(message.images) for message in images_of(messages))


def encoded_sizes(paths: Iterable[str]) -> dict[str, int]:
    """Return the base64 size of each image in bytes. The size is 0 if the image is unreadable or too large. Blocks
    on disk I/O.
    """
    sizes: dict[str, int] = {}
    for path in paths:
        try:
            size = os.stat(path).st_size
        except OSError:
            size = 0
        sizes[path] = (size + 2) // 3 * 4 if size <= IMAGE_BYTES_MAX else 0
    return sizes


def load_images(images: Iterable[Image]) -> dict[str, bytes]:
    """Load images as base64. Unreadable and oversized images are omitted. Blocks on disk I/O."""
    loaded: dict[str, bytes] = {}
    for image in images:
        try:
            data = read_regular(Path(image.path), IMAGE_BYTES_MAX + 1)
        except OSError:
            continue
        head = image_head(data)
        fits = head is None or (head.is_whole and max(head.width, head.height) <= IMAGE_SIDE_MAX)
        if fits and len(data) <= IMAGE_BYTES_MAX:
            loaded[image.path] = base64.b64encode(data)
    return loaded


def schema_of(spec: ToolSpec, dialect: SchemaDialect) -> bytes:
    return narrowed(spec.parameters, dialect).encode()


def portable_call_name(name: str) -> str:
    """Replace the characters that providers reject in a tool name.

    The model may have called a tool with an invalid or empty name.
    """
    return _UNSAFE_ID.sub("_", name)[:_CALL_NAME_CHARS_MAX] or "_"


def encode_call(call: ToolCall) -> tuple[bytes, bytes, bytes]:
    name = portable_call_name(call.written_name)
    return encode(portable_call_id(call.id)), encode(name), arguments_object(call.written_arguments)


def arguments_object(arguments: str) -> bytes:
    """Return a call's arguments as a JSON object. Malformed arguments become `{"malformed": text}`."""
    try:
        _arguments_decoder.decode(arguments)
    except UNREADABLE:
        return b'{"malformed":' + encode(arguments) + b"}"
    return arguments.encode()
