"""Anthropic Messages: thinking kept and sent back unchanged, and cache marks so that a growing history is read once.

Cache marks stand after the system prompt (which covers the tools before it), after the last message, and where the
previous request ended, since the provider looks back only twenty blocks from a mark. Sampling parameters do not exist
in this version of the interface, so a temperature is not sent.
"""

import msgspec

from shoal.domain.messages import (
    AssistantMessage,
    Image,
    ModelDone,
    ModelFailed,
    ModelInfo,
    ModelMessage,
    ModelRequest,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from shoal.providers.conversation import Conversations, Images, Joined, Part, StableParts, missing_image
from shoal.providers.wire import Asked, CallSlot, Encoded, Finish, Quirks, Reader, arguments_object, encode, wire_id

VERSION = b"2026-10-21"
_MARK = b',"cache_control":{"type":"ephemeral"}}'
_STOPS: dict[str, Finish] = {
    "end_turn": "end", "stop_sequence": "end", "pause_turn": "end", "max_tokens": "max_tokens",
    "tool_use": "tool_calls", "refusal": "refusal", "model_context_window_exceeded": "max_tokens",
}  # fmt: skip


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    partial_json: str = ""
    stop_reason: str | None = None


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str | None = ""
    signature: str | None = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


class _Message(msgspec.Struct):
    model: str = ""
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: _Usage | None = None


class _Kept(msgspec.Struct, omit_defaults=True):
    """A block of an answer with thinking, in order: thinking as it came, text by its length, a call by its place."""

    type: str
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    chars: int = 0


class _Model(msgspec.Struct):
    id: str
    max_input_tokens: int | None = None
    max_tokens: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_event_decoder = msgspec.json.Decoder(_Event)
_kept_decoder = msgspec.json.Decoder(list[_Kept])
_models_decoder = msgspec.json.Decoder(_Models)


class AnthropicForm:
    """Messages as content blocks; results, and the words that follow them, share one user message."""

    def part(self, message: ModelMessage, images: Images) -> Part:
        """See `Form`."""
        match message:
            case UserMessage(text=text, images=shown):
                blocks = [*(_image(image, images) for image in shown), *_text(text)]
                return Part("user", b",".join(blocks) or b'{"type":"text","text":"(an empty message)"}')
            case AssistantMessage():
                return Part("assistant", b",".join(_assistant(message)))
            case ToolMessage(call_id=call_id, text=text, images=shown, is_error=is_error):
                blocks = [*_text(text), *(_image(image, images) for image in shown)]
                content = b',"content":[' + b",".join(blocks) + b"]" if blocks else b""
                failed = b',"is_error":true' if is_error else b""
                head = b'{"type":"tool_result","tool_use_id":' + encode(wire_id(call_id))
                return Part("user", head + content + failed + b"}")

    def open(self, role: str) -> bytes:
        """See `Form`."""
        return b'{"role":"' + role.encode() + b'","content":['

    def close(self, role: str) -> bytes:
        """See `Form`."""
        return b"]}"


def _text(text: str) -> list[bytes]:
    """A text block; none for a blank text, which the provider refuses."""
    return [b'{"type":"text","text":' + encode(text) + b"}"] if text and not text.isspace() else []


def _image(image: Image, images: Images) -> bytes:
    data = images.get(image.path)
    if data is None:
        return b'{"type":"text","text":' + encode(missing_image(image)) + b"}"
    source = b'{"type":"base64","media_type":%b,"data":"%b"}' % (encode(image.media_type), data)
    return b'{"type":"image","source":' + source + b"}"


def _call(call: ToolCall) -> bytes:
    head = b'{"type":"tool_use","id":%b,"name":%b,"input":' % (encode(wire_id(call.id)), encode(call.name))
    return head + arguments_object(call.arguments) + b"}"


def _assistant(message: AssistantMessage) -> list[bytes]:
    if message.opaque is None or not message.opaque.kind.startswith("anthropic:"):
        return [*_text(message.text), *(_call(call) for call in message.tool_calls)]
    blocks: list[bytes] = []
    at, calls = 0, list(message.tool_calls)
    for kept in _kept_decoder.decode(message.opaque.json):
        if kept.type == "text":
            blocks.extend(_text(message.text[at : at + kept.chars]))
            at += kept.chars
        elif kept.type != "tool_use":
            blocks.append(encode(kept))
        elif calls:
            blocks.append(_call(calls.pop(0)))
    return [*blocks, *_text(message.text[at:]), *(_call(call) for call in calls)]


def _tools(specs: tuple[ToolSpec, ...]) -> bytes:
    functions = (
        b'{"name":%b,"description":%b,"input_schema":%b}'
        % (encode(spec.name), encode(spec.description), spec.parameters.encode())
        for spec in specs
    )
    return b',"tools":[' + b",".join(functions) + b"]"


def _system(text: str) -> bytes:
    return b',"system":[{"type":"text","text":' + encode(text) + _MARK + b"]"


def _marked(joined: Joined) -> list[bytes | bytearray]:
    """The messages with a cache mark at their end and where the previous request ended; blocks end with a brace."""
    buffer = memoryview(joined.buffer)
    end = len(buffer)
    if not end:
        return []
    if not 0 < joined.before < end:
        return [bytes(buffer[: end - 1]), _MARK]
    before = joined.before
    return [bytes(buffer[: before - 1]), _MARK, bytes(buffer[before : end - 1]), _MARK]


class AnthropicWire:
    """Messages."""

    kind = "anthropic"
    models_path = "/v1/models?limit=1000"

    def __init__(self) -> None:
        self.conversations = Conversations(AnthropicForm())
        self._stable = StableParts()

    def path(self, model: str) -> str:
        """See `Wire`."""
        return "/v1/messages"

    def headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """See `Wire`."""
        found = [(b"content-type", b"application/json"), (b"anthropic-version", VERSION)]
        return [*found, (b"x-api-key", key.encode())] if key else found

    def encode(self, request: ModelRequest, quirks: Quirks, images: Images) -> Encoded:
        """See `Wire`."""
        joined = self.conversations.join(request, images)
        parts = [b'{"model":', encode(request.model), b',"stream":true,"max_tokens":%d' % request.max_output_tokens]
        if request.tools:
            parts.append(self._stable.tools(request.tools, _tools))
            # They have to be described as long as there are calls among the messages.
            parts.append(b',"tool_choice":{"type":"none"}' if request.tool_choice == "none" else b"")
        if request.system:
            parts.append(self._stable.system(request.system, _system))
        content = b"".join((*parts, b',"messages":[', *_marked(joined), joined.ending(self.conversations.form), b"]}"))
        return Encoded(content, joined.call_ids)

    def reader(self, asked: Asked) -> Reader:
        """See `Wire`."""
        return AnthropicReader(asked)

    def models(self, body: bytes) -> list[ModelInfo]:
        """See `Wire`."""
        return [
            ModelInfo(found.id, found.max_input_tokens or 0, found.max_tokens or 0)
            for found in _models_decoder.decode(body).data
        ]


class AnthropicReader(Reader):
    """One answer's events."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._open: dict[int, CallSlot] = {}
        self._inputs: dict[int, str] = {}
        self._kept: list[_Kept] = []
        self._kept_at: dict[int, _Kept] = {}
        self._overflowed = False

    def feed(self, data: bytes) -> None:
        """See `Reader`."""
        event = _event_decoder.decode(data)
        match event.type:
            case "content_block_delta":
                if event.delta is not None:
                    self._take(event.index, event.delta)
            case "content_block_start":
                if event.content_block is not None:
                    self._start(event.index, event.content_block)
            case "message_start":
                if event.message is not None:
                    self.model = event.message.model
                    self._count(event.message.usage)
            case "message_delta":
                if event.delta is not None and event.delta.stop_reason:
                    self.stop = _STOPS.get(event.delta.stop_reason, "end")
                    self._overflowed = event.delta.stop_reason == "model_context_window_exceeded"
                self._count(event.usage)
            case "message_stop":
                self.complete = True
            case "error":
                self.failure = self.complaint(data)
            case _:
                pass

    def _start(self, index: int, block: _Block) -> None:
        match block.type:
            case "text":
                self._keep(index, _Kept("text"))
                self._say(index, block.text)
            case "thinking":
                self._keep(index, _Kept("thinking", thinking=block.thinking or "", signature=block.signature or ""))
                if block.thinking:
                    self.thoughts.append(block.thinking)
            case "redacted_thinking":
                self._keep(index, _Kept("redacted_thinking", data=block.data))
            case "tool_use":
                self._keep(index, _Kept("tool_use"))
                slot = self._open[index] = CallSlot(block.id, block.name)
                self.calls.append(slot)
                whole = bytes(block.input).decode()
                if whole not in ("{}", "null", ""):
                    slot.arguments.append(whole)
            case _:
                pass

    def _take(self, index: int, delta: _Delta) -> None:
        if delta.text:
            self._say(index, delta.text)
        elif delta.partial_json:
            slot = self._open.get(index)
            if slot is not None:
                slot.arguments.append(delta.partial_json)
        elif delta.thinking:
            self.thoughts.append(delta.thinking)
            kept = self._kept_at.get(index)
            if kept is not None:
                kept.thinking = (kept.thinking or "") + delta.thinking
        elif delta.signature:
            kept = self._kept_at.get(index)
            if kept is not None:
                kept.signature = (kept.signature or "") + delta.signature

    def _say(self, index: int, text: str) -> None:
        if not text:
            return
        self.texts.append(text)
        kept = self._kept_at.get(index)
        if kept is not None:
            kept.chars += len(text)

    def _keep(self, index: int, kept: _Kept) -> None:
        self._kept.append(kept)
        self._kept_at[index] = kept

    def _count(self, usage: _Usage | None) -> None:
        """Counts are cumulative; a later event repeats only some of them."""
        if usage is None:
            return
        old = self.usage
        read = old.cached_tokens if usage.cache_read_input_tokens is None else usage.cache_read_input_tokens
        written = old.cache_write_tokens
        if usage.cache_creation_input_tokens is not None:
            written = usage.cache_creation_input_tokens
        fresh = old.input_tokens - old.cached_tokens - old.cache_write_tokens
        fresh = fresh if usage.input_tokens is None else usage.input_tokens
        output = old.output_tokens if usage.output_tokens is None else usage.output_tokens
        details = usage.output_tokens_details
        thought = details.thinking_tokens if details is not None else None
        self.usage = Usage(
            fresh + read + written, output, read, written, old.reasoning_tokens if thought is None else thought
        )

    def opaque(self) -> str:
        """See `Reader`: the thinking, and where it stood between text and calls."""
        thinks = any(kept.type in ("thinking", "redacted_thinking") for kept in self._kept)
        return encode(self._kept).decode() if thinks else ""

    def result(self) -> ModelDone | ModelFailed:
        """See `Reader`."""
        if self._overflowed and not self.texts and not self.calls:
            return ModelFailed(
                "context_overflow", f"The conversation fills {self.asked.provider}'s whole context window."
            )
        return super().result()
