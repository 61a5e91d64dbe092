"""Anthropic Messages API. Thinking is sent back unchanged.

Cache breakpoints are placed after the system prompt (which covers the tools before it), after the last message, and
where the previous request ended. The third one is needed because the provider looks back only 20 blocks from a
breakpoint. This version of the API has no sampling parameters, so no temperature is sent.

A tool that a search found is sent with `defer_loading`, outside the cached prefix. The search result refers to the
tool, and the provider inserts the definition there.
"""

from collections.abc import Iterable

import msgspec

from shoal.kernel.messages import (
    AssistantMessage,
    ModelDone,
    ModelFailed,
    ModelInfo,
    ModelMessage,
    ModelRequest,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from shoal.models.answers import AnswerContext, AnswerReader, CallParts, Finish, portable_call_id
from shoal.models.api_protocol import (
    ApiProtocol,
    EncodedMessage,
    EncodedRequest,
    Images,
    JoinedMessages,
    encode,
    encode_call,
)
from shoal.models.arrange import MessageForm
from shoal.models.odd_json import raw_json
from shoal.models.quirks import Quirks
from shoal.models.schema_dialects import SchemaDialect

VERSION = b"2026-10-21"
_MARK = b',"cache_control":{"type":"ephemeral"}}'
_STOPS: dict[str, Finish] = {
    "end_turn": "end", "stop_sequence": "end", "pause_turn": "end", "max_tokens": "max_tokens",
    "tool_use": "tool_calls", "refusal": "refusal", "model_context_window_exceeded": "max_tokens",
    "length": "max_tokens", "tool_calls": "tool_calls", "content_filter": "refusal",
}  # fmt: skip


class _BlockDelta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    partial_json: str = ""
    stop_reason: str | None = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str | None = ""
    signature: str | None = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class _AnthropicUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Message(msgspec.Struct):
    model: str = ""
    usage: _AnthropicUsage | None = None
    content: list[_Block] = []
    stop_reason: str | None = None


class _AnthropicEvent(msgspec.Struct):
    type: str = ""
    index: int | None = None
    delta: _BlockDelta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: _AnthropicUsage | None = None


class _StoredBlock(msgspec.Struct, omit_defaults=True):
    """A block of an assistant message that contains thinking.

    Thinking is stored unchanged. For text, only the length is stored. A call is stored as a placeholder for the next
    call of the message.
    """

    type: str
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    chars: int = 0


class _AnthropicModel(msgspec.Struct):
    id: str
    max_input_tokens: int | None = None
    max_tokens: int | None = None


class _AnthropicModels(msgspec.Struct):
    data: list[_AnthropicModel]


_blocks_decoder = msgspec.json.Decoder(list[_StoredBlock])
_models_decoder = msgspec.json.Decoder(_AnthropicModels)


class AnthropicMessages(ApiProtocol):
    """Encodes messages as content blocks. Tool results and the user message after them are sent as one message."""

    kind = "anthropic"
    schema_dialect = "full"
    answers_path = "/v1/messages"
    models_path = "/v1/models?limit=1000"
    fixed_headers = (*ApiProtocol.fixed_headers, (b"anthropic-version", VERSION))
    key_header = (b"x-api-key", b"")
    frame = (b'{"role":"%b","content":[', b"]}")
    image_template = b'{"type":"image","source":{"type":"base64","media_type":"%b","data":"%b"}}'
    system_template = b',"system":[{"type":"text","text":%b' + _MARK
    tool_template = b'{"name":%b,"description":%b,"input_schema":%b}'

    def write(self, request: ModelRequest, joined: JoinedMessages, form: MessageForm) -> EncodedRequest:
        native = form.native
        parts = [b'{"model":', encode(request.model), b',"stream":true,"max_tokens":%d' % request.max_output_tokens]
        if request.tools:
            offered = {spec.name for spec in request.tools}
            searched = tuple(spec for name, spec in joined.found.items() if name not in offered) if native else None
            parts.append(self.tools(request.tools, self.dialect(form.quirks), searched))
            # The API requires `tools` if any message contains a call.
            parts.append(b',"tool_choice":{"type":"none"}' if request.tool_choice == "none" else b"")
        if request.system:
            shared = request.shared_chars or len(request.system)
            parts.append(self.system(request.system[:shared]))
            own = request.system[shared:]
            parts.append(b',{"type":"text","text":%b}]' % encode(own) if own.strip() else b"]")
        content = b"".join((*parts, b',"messages":[', *_with_cache_marks(joined), joined.ending(self), b"]}"))
        return EncodedRequest(content, joined.call_ids)

    def encode_message(self, message: ModelMessage, images: Images, form: MessageForm) -> EncodedMessage:
        """Encode a message. Blank texts and unsigned thinking are omitted, because the provider rejects them."""
        native = form.native
        match message:
            case UserMessage(text=text, images=shown):
                blocks = [*self.encode_images(shown, images), *self._text(text)]
                return EncodedMessage("user", b",".join(blocks) or b'{"type":"text","text":"(an empty message)"}')
            case AssistantMessage(text=text, tool_calls=made, opaque=opaque):
                call_template, at, blocks = b'{"type":"tool_use","id":%b,"name":%b,"input":%b}', 0, list[bytes]()
                calls = [call_template % encode_call(call) for call in made]
                needs_all = form.quirks.reasoning_needed
                for block in _blocks_decoder.decode(opaque.json) if opaque is not None else ():
                    if block.type == "text":
                        blocks.extend(self._text(text[at : at + block.chars]))
                        at += block.chars
                    elif block.type != "tool_use":
                        blocks.extend([encode(block)] if block.signature or block.data or needs_all else ())
                    elif calls:
                        blocks.append(calls.pop(0))
                return EncodedMessage("assistant", b",".join((*blocks, *self._text(text[at:]), *calls)))
            case ToolMessage(call_id=call_id, text=text, images=shown, is_error=is_error):
                blocks = [*self._text(text), *self.encode_images(shown, images)]
                if native and message.found:  # The API requires these blocks to be alone in their message.
                    blocks = [b'{"type":"tool_reference","tool_name":%b}' % encode(tool.name) for tool in message.found]
                content = b',"content":[' + b",".join(blocks) + b"]" if blocks else b""
                failed = b',"is_error":true' if is_error else b""
                head = b'{"type":"tool_result","tool_use_id":' + encode(portable_call_id(call_id))
                return EncodedMessage("user", head + content + failed + b"}")

    def searches(self, request: ModelRequest, quirks: Quirks) -> bool:
        return quirks.tool_search and bool(request.tools)

    def encode_found(self, specs: Iterable[ToolSpec], dialect: SchemaDialect) -> list[bytes]:
        return [self.encode_tool(spec, dialect, native=True)[:-1] + b',"defer_loading":true}' for spec in specs]

    def reader(self, context: AnswerContext) -> AnswerReader:
        return AnthropicReader(context)

    def models(self, body: bytes) -> list[ModelInfo]:
        return [
            ModelInfo(model.id, model.max_input_tokens or 0, model.max_tokens or 0)
            for model in _models_decoder.decode(body).data
        ]

    def _text(self, text: str) -> list[bytes]:
        return [self.encode_text(text)] if text and not text.isspace() else []


def _with_cache_marks(joined: JoinedMessages) -> list[bytes | bytearray]:
    """Add cache breakpoints to the last message and where the previous request ended.

    Each breakpoint replaces the closing brace of a block.
    """
    buffer = memoryview(joined.buffer)
    end = len(buffer)
    if not end:
        return []
    if not 0 < joined.before < end:
        return [bytes(buffer[: end - 1]), _MARK]
    before = joined.before
    return [bytes(buffer[: before - 1]), _MARK, bytes(buffer[before : end - 1]), _MARK]


class AnthropicReader(AnswerReader):
    """Decodes the events of one response, or a complete response sent instead of a stream."""

    record = _AnthropicEvent
    decoder = msgspec.json.Decoder(_AnthropicEvent)

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._open: dict[int, CallParts] = {}
        self._kept: list[_StoredBlock] = []
        self._kept_at: dict[int, _StoredBlock] = {}
        self._last = 0
        self._overflowed = False

    def take(self, event: _AnthropicEvent, data: bytes) -> None:
        if not event.type and (failure := self.complaint_in(data)) is not None:
            self.failure = failure
            return
        match event.type or _kind_of(event):
            case "content_block_delta" if event.delta is not None:
                self._add(self._last if event.index is None else event.index, event.delta)
            case "content_block_start" if event.content_block is not None:
                self._begin(self._last + 1 if event.index is None else event.index, event.content_block)
            case "message_start" if event.message is not None:
                self._take_message(event.message)
            case "message_delta":
                if event.delta is not None:
                    self._stop(event.delta.stop_reason)
                self._count(event.usage)
            case "message_stop":
                self.complete = True
            case "message":  # The server sent a complete response instead of a stream.
                self._take_message(self.part(data, _Message))
                self.complete = True
            case "error":
                self.failure = self.failure_in(data)
            case "ping":
                pass
            case _:
                self.failure = self.complaint_in(data)

    def _take_message(self, message: _Message) -> None:
        self.model = message.model
        self._count(message.usage)
        for index, block in enumerate(message.content):
            self._begin(index, block)
        self._stop(message.stop_reason)

    def _begin(self, index: int, block: _Block) -> None:
        self._last = index
        match block.type:
            case "thinking":
                stored_block = _StoredBlock("thinking", thinking=block.thinking or "", signature=block.signature or "")
                self._keep(index, stored_block)
                if block.thinking:
                    self.think(block.thinking)
            case "redacted_thinking":
                self._keep(index, _StoredBlock("redacted_thinking", data=block.data))
            case "tool_use":
                self._keep(index, _StoredBlock("tool_use"))
                before = self._open.get(index)
                early = before.arguments if before is not None and not before.name else []
                call = self._open[index] = CallParts(block.id, block.name, list(early))
                self.calls.append(call)
                whole = bytes(block.input).decode("utf-8", "replace")
                if whole not in ("{}", "null", "", '""'):
                    call.arguments.append(whole)
            case "text":
                self._keep(index, _StoredBlock("text"))
                self._say(index, block.text)
            case _:
                self._say(index, block.text)

    def _add(self, index: int, delta: _BlockDelta) -> None:
        stored_block = self._kept_at.get(index)
        if delta.text:
            self._say(index, delta.text)
        elif delta.partial_json:
            self._open.setdefault(index, CallParts()).arguments.append(delta.partial_json)
        elif delta.thinking:
            self.think(delta.thinking)
            if stored_block is not None:
                stored_block.thinking = (stored_block.thinking or "") + delta.thinking
        elif delta.signature and stored_block is not None:
            stored_block.signature = (stored_block.signature or "") + delta.signature

    def _stop(self, reason: str | None) -> None:
        if reason:
            self.stop = _STOPS.get(reason.lower(), "end")
            self._overflowed = reason == "model_context_window_exceeded"

    def _say(self, index: int, text: str) -> None:
        if not text:
            return
        self.say(text)
        stored_block = self._kept_at.get(index)
        if stored_block is not None:
            stored_block.chars += len(text)

    def _keep(self, index: int, block: _StoredBlock) -> None:
        self._kept.append(block)
        self._kept_at[index] = block

    def _count(self, usage: _AnthropicUsage | None) -> None:
        """Update the usage. Counts are cumulative, but later events may omit some counts or report zero."""
        if usage is None:
            return
        if usage.input_tokens is None and usage.output_tokens is None and usage.completion_tokens is not None:
            asked = (usage.prompt_tokens or 0) or self.usage.input_tokens  # The gateway uses OpenAI's field names.
            self.usage = msgspec.structs.replace(self.usage, input_tokens=asked, output_tokens=usage.completion_tokens)
            return
        old = self.usage
        read = usage.cache_read_input_tokens or old.cached_tokens
        written = usage.cache_creation_input_tokens or old.cache_write_tokens
        fresh = old.input_tokens - old.cached_tokens - old.cache_write_tokens
        fresh = usage.input_tokens or fresh
        output = usage.output_tokens
        if output is None or (not output and self.pieces):
            output = old.output_tokens
        details = usage.output_tokens_details
        thought = details.thinking_tokens if details is not None else None
        self.usage = Usage(
            fresh + read + written, output, read, written, old.reasoning_tokens if thought is None else thought
        )

    def opaque(self) -> str:
        thinks = any(stored_block.type in ("thinking", "redacted_thinking") for stored_block in self._kept)
        return raw_json(msgspec.to_builtins(self._kept)).decode() if thinks else ""

    def result(self) -> ModelDone | ModelFailed:
        if self._overflowed and not self.texts and not self.calls:
            return ModelFailed("context_overflow", f"The conversation fills {self.context.provider}'s context window.")
        return super().result()


def _kind_of(event: _AnthropicEvent) -> str:
    if event.content_block is not None:
        return "content_block_start"
    if event.message is not None:
        return "message_start"
    if event.delta is None:
        return ""
    return "message_delta" if event.delta.stop_reason else "content_block_delta"
