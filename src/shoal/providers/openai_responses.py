"""OpenAI Responses: items instead of messages, nothing stored at the provider, encrypted reasoning sent back."""

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
    Usage,
    UserMessage,
)
from shoal.providers.conversation import Conversations, Images, Part, StableParts, missing_image
from shoal.providers.openai import OpenAiWire
from shoal.providers.wire import Asked, CallSlot, Encoded, Quirks, Reader, arguments_object, encode, wire_id


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""
    refusal: str = ""


class _Item(msgspec.Struct):
    type: str
    id: str | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    model: str | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str
    delta: str = ""
    output_index: int = 0
    item: msgspec.Raw = msgspec.Raw(b"null")
    response: _Response | None = None


class _DeltaOnly(msgspec.Struct):
    type: str
    output_index: int = 0


_event_decoder = msgspec.json.Decoder(_Event)
_other_decoder = msgspec.json.Decoder(_DeltaOnly)
_item_decoder = msgspec.json.Decoder(_Item)
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class ResponsesForm:
    """Messages as items: one each for reasoning, text and every call."""

    def part(self, message: ModelMessage, images: Images) -> Part:
        """See `Form`."""
        match message:
            case UserMessage(text=text, images=shown):
                blocks = [b'{"type":"input_text","text":' + encode(text) + b"}"] if text or not shown else []
                blocks.extend(_image(image, images) for image in shown)
                return Part("item", b'{"role":"user","content":[' + b",".join(blocks) + b"]}")
            case AssistantMessage():
                return Part("item", b",".join(_assistant(message)))
            case ToolMessage(call_id=call_id, text=text, images=shown):
                head = b'{"type":"function_call_output","call_id":' + encode(wire_id(call_id)) + b',"output":'
                if not shown:
                    return Part("item", head + encode(text) + b"}")
                blocks = [b'{"type":"input_text","text":' + encode(text) + b"}"] if text else []
                blocks.extend(_image(image, images) for image in shown)
                return Part("item", head + b"[" + b",".join(blocks) + b"]}")

    def open(self, role: str) -> bytes:
        """See `Form`."""
        return b""

    def close(self, role: str) -> bytes:
        """See `Form`."""
        return b""


def _image(image: Image, images: Images) -> bytes:
    data = images.get(image.path)
    if data is None:
        return b'{"type":"input_text","text":' + encode(missing_image(image)) + b"}"
    address = b'"data:' + image.media_type.encode() + b";base64," + data + b'"'
    return b'{"type":"input_image","detail":"auto","image_url":' + address + b"}"


def _assistant(message: AssistantMessage) -> list[bytes]:
    items: list[bytes] = []
    if message.opaque is not None and message.opaque.kind.startswith("openai-responses:"):
        items.extend(bytes(item) for item in _items_decoder.decode(message.opaque.json))
    if message.text:
        part = b'{"type":"output_text","text":' + encode(message.text) + b"}"
        items.append(b'{"type":"message","role":"assistant","content":[' + part + b"]}")
    items.extend(_call(call) for call in message.tool_calls)
    return items


def _call(call: ToolCall) -> bytes:
    return b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b}' % (
        encode(wire_id(call.id)),
        encode(call.name),
        encode(arguments_object(call.arguments).decode()),
    )


def _tools(specs: tuple[ToolSpec, ...]) -> bytes:
    functions = (
        b'{"type":"function","name":%b,"description":%b,"parameters":%b,"strict":false}'
        % (encode(spec.name), encode(spec.description), spec.parameters.encode())
        for spec in specs
    )
    return b',"tools":[' + b",".join(functions) + b"]"


def _instructions(text: str) -> bytes:
    return b',"instructions":' + encode(text)


class ResponsesWire:
    """Responses."""

    kind = "openai-responses"
    models_path = "/models"

    def __init__(self) -> None:
        self.conversations = Conversations(ResponsesForm())
        self._stable = StableParts()
        self._chat = OpenAiWire()

    def path(self, model: str) -> str:
        """See `Wire`."""
        return "/responses"

    def headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """See `Wire`."""
        return self._chat.headers(key)

    def encode(self, request: ModelRequest, quirks: Quirks, images: Images) -> Encoded:
        """See `Wire`."""
        joined = self.conversations.join(request, images)
        parts = [b'{"model":', encode(request.model), b',"stream":true,"store":false']
        parts.append(b',"max_output_tokens":%d' % request.max_output_tokens)
        if quirks.reasoning_items:
            parts.append(b',"include":["reasoning.encrypted_content"]')
        if quirks.temperature and request.temperature is not None:
            parts.append(b',"temperature":%b' % encode(request.temperature))
        if quirks.cache_key and request.cache_key:
            parts.append(b',"prompt_cache_key":%b' % encode(request.cache_key[-64:]))
        if request.system:
            parts.append(self._stable.system(request.system, _instructions))
        if request.tools and request.tool_choice == "auto":  # not every server heeds a tool_choice
            parts.append(self._stable.tools(request.tools, _tools))
        return Encoded(b"".join((*parts, b',"input":[', joined.buffer, b"]}")), joined.call_ids)

    def reader(self, asked: Asked) -> Reader:
        """See `Wire`."""
        return ResponsesReader(asked)

    def models(self, body: bytes) -> list[ModelInfo]:
        """See `Wire`."""
        return self._chat.models(body)


class ResponsesReader(Reader):
    """One answer's events."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._reasoning: list[str] = []
        self._slots: dict[int, CallSlot] = {}
        self._spoken: set[int] = set()

    def feed(self, data: bytes) -> None:
        """See `Reader`."""
        try:
            event = _event_decoder.decode(data)
        except msgspec.ValidationError:
            _other_decoder.decode(data)
            return
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self._spoken.add(event.output_index)
                self.texts.append(event.delta)
                self.stop = "refusal" if event.type == "response.refusal.delta" else self.stop
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.thoughts.append(event.delta)
            case "response.reasoning_summary_part.added" if self.thoughts:
                self.thoughts.append("\n\n")
            case "response.function_call_arguments.delta":
                self._slots.setdefault(event.output_index, CallSlot()).arguments.append(event.delta)
            case "response.output_item.added":
                self._added(event.output_index, _item_decoder.decode(event.item))
            case "response.output_item.done":
                self._finished(event.output_index, event.item)
            case "response.completed" | "response.incomplete" | "response.done":
                self._end(event.response or _Response())
            case "response.failed" | "error":
                self.failure = self.complaint(_error(event, data))
            case _:
                pass

    def _added(self, index: int, item: _Item) -> None:
        if item.type == "function_call":
            slot = self._slots[index] = CallSlot(item.call_id, item.name)
            self.calls.append(slot)

    def _finished(self, index: int, raw: msgspec.Raw) -> None:
        item = _item_decoder.decode(raw)
        match item.type:
            case "reasoning":
                self._reasoning.append(bytes(raw).decode())
            case "function_call":
                slot = self._slots.get(index)
                if slot is None:
                    slot = CallSlot(item.call_id, item.name)
                    self.calls.append(slot)
                slot.arguments = [item.arguments] if item.arguments else slot.arguments
            case "message" if index not in self._spoken:
                self.texts.extend(part.text or part.refusal for part in item.content or ())
            case _:
                pass

    def _end(self, response: _Response) -> None:
        self.complete = True
        self.model = response.model or ""
        if response.usage is not None:
            self.usage = _usage(response.usage)
        reason = response.incomplete_details.reason if response.incomplete_details is not None else None
        if reason == "max_output_tokens":
            self.stop = "max_tokens"
        elif reason == "content_filter":
            self.stop = "refusal"
        elif not self.stop:
            self.stop = "end"

    def opaque(self) -> str:
        """See `Reader`: the reasoning items as they came."""
        return "[" + ",".join(self._reasoning) + "]" if self._reasoning else ""


def _error(event: _Event, data: bytes) -> bytes:
    if event.response is None or bytes(event.response.error) == b"null":
        return data
    return b'{"error":' + bytes(event.response.error) + b"}"


def _usage(usage: _Usage) -> Usage:
    inputs, outputs = usage.input_tokens_details, usage.output_tokens_details
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        (inputs.cached_tokens if inputs else 0) or 0,
        (inputs.cache_write_tokens if inputs else 0) or 0,
        (outputs.reasoning_tokens if outputs else 0) or 0,
    )
