"""OpenAI Chat Completions, and the many servers that speak it: Ollama, llama-server, vLLM, LM Studio, OpenRouter…"""

import msgspec

from shoal.domain.messages import (
    AssistantMessage,
    Image,
    ModelInfo,
    ModelMessage,
    ModelRequest,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from shoal.providers.conversation import Conversations, Images, Part, StableParts, missing_image
from shoal.providers.wire import Asked, CallSlot, Encoded, Finish, Quirks, Reader, arguments_object, encode, wire_id

_FINISH: dict[str, Finish] = {
    "stop": "end", "end_turn": "end", "eos": "end", "eos_token": "end", "stop_sequence": "end", "complete": "end",
    "length": "max_tokens", "max_tokens": "max_tokens", "model_length": "max_tokens",
    "tool_calls": "tool_calls", "function_call": "tool_calls", "tool_use": "tool_calls",
    "content_filter": "refusal", "refusal": "refusal",
}  # fmt: skip


class _Text(msgspec.Struct):
    text: str = ""


class _ContentPart(msgspec.Struct):
    type: str = "text"
    text: str = ""
    thinking: list[_Text] = []


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, msgspec.Raw] | None = None


class _CallPiece(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | list[_ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[msgspec.Raw] | None = None
    refusal: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None


_NOTHING = msgspec.Raw(b"")


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = _NOTHING
    model: str | None = None


class _Kept(msgspec.Struct, omit_defaults=True):
    reasoning_content: str = ""
    reasoning_details: list[msgspec.Raw] = []


class _Meta(msgspec.Struct):
    n_ctx: int | None = None
    n_ctx_train: int | None = None


class _Model(msgspec.Struct):
    id: str
    context_length: int | None = None
    context_window: int | None = None
    max_model_len: int | None = None
    max_context_length: int | None = None
    meta: _Meta | None = None


class _Models(msgspec.Struct):
    data: list[_Model] | None = None


_chunk_decoder = msgspec.json.Decoder(_Chunk)
_kept_decoder = msgspec.json.Decoder(_Kept)
_models_decoder = msgspec.json.Decoder(_Models)


class OpenAiForm:
    """Messages one by one; images of tool results follow as a user message, the one place this interface has."""

    def part(self, message: ModelMessage, images: Images) -> Part:
        """See `Form`."""
        match message:
            case UserMessage(text=text, images=shown):
                return Part("message", _user(text, shown, images))
            case AssistantMessage():
                return Part("message", self._assistant(message))
            case ToolMessage(call_id=call_id, text=text, images=shown, name=name):
                body = b'{"role":"tool","tool_call_id":' + encode(wire_id(call_id))
                body += b',"content":' + encode(text) + b"}"
                return Part("tool", body, _user(f"[Images from {name}]", shown, images) if shown else b"")

    def open(self, role: str) -> bytes:
        """See `Form`."""
        return b""

    def close(self, role: str) -> bytes:
        """See `Form`."""
        return b""

    def _assistant(self, message: AssistantMessage) -> bytes:
        body = b'{"role":"assistant","content":' + encode(message.text or (None if message.tool_calls else ""))
        if message.tool_calls:
            calls = b",".join(
                b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}'
                % (
                    encode(wire_id(call.id)),
                    encode(call.name),
                    encode(arguments_object(call.arguments).decode()),
                )
                for call in message.tool_calls
            )
            body += b',"tool_calls":[' + calls + b"]"
        if message.opaque is not None and message.opaque.kind.startswith("openai:"):
            kept = _kept_decoder.decode(message.opaque.json)
            if kept.reasoning_details:
                body += b',"reasoning_details":' + encode(kept.reasoning_details)
            elif kept.reasoning_content:
                body += b',"reasoning_content":' + encode(kept.reasoning_content)
        return body + b"}"


def _user(text: str, shown: tuple[Image, ...], images: Images) -> bytes:
    if not shown:
        return b'{"role":"user","content":' + encode(text) + b"}"
    parts = [b'{"type":"text","text":' + encode(text) + b"}"] if text else []
    for image in shown:
        data = images.get(image.path)
        if data is None:
            parts.append(b'{"type":"text","text":' + encode(missing_image(image)) + b"}")
        else:
            address = b'"data:' + image.media_type.encode() + b";base64," + data + b'"'
            parts.append(b'{"type":"image_url","image_url":{"url":' + address + b"}}")
    return b'{"role":"user","content":[' + b",".join(parts) + b"]}"


def _tools(specs: tuple[ToolSpec, ...]) -> bytes:
    functions = (
        b'{"type":"function","function":{"name":%b,"description":%b,"parameters":%b}}'
        % (encode(spec.name), encode(spec.description), spec.parameters.encode())
        for spec in specs
    )
    return b',"tools":[' + b",".join(functions) + b"]"


def _system(text: str) -> bytes:
    return b'{"role":"system","content":' + encode(text) + b"}"


class OpenAiWire:
    """Chat Completions."""

    kind = "openai"
    models_path = "/models"

    def __init__(self, *, reasoning_back: bool = False) -> None:
        self.conversations = Conversations(OpenAiForm())
        self._stable = StableParts()
        self._reasoning_back = reasoning_back

    def path(self, model: str) -> str:
        """See `Wire`."""
        return "/chat/completions"

    def headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """See `Wire`."""
        found = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream, application/json")]
        return [*found, (b"authorization", b"Bearer " + key.encode())] if key else found

    def encode(self, request: ModelRequest, quirks: Quirks, images: Images) -> Encoded:
        """See `Wire`."""
        joined = self.conversations.join(request, images)
        parts = [b'{"model":', encode(request.model), b',"stream":true']
        if quirks.usage_option:
            parts.append(b',"stream_options":{"include_usage":true}')
        if quirks.max_tokens:
            parts.append(b',"%b":%d' % (quirks.max_tokens.encode(), request.max_output_tokens))
        if quirks.temperature and request.temperature is not None:
            parts.append(b',"temperature":%b' % encode(request.temperature))
        if quirks.cache_key and request.cache_key:
            parts.append(b',"prompt_cache_key":%b' % encode(request.cache_key[-64:]))
        if request.tools and request.tool_choice == "auto":  # not every server heeds a tool_choice
            parts.append(self._stable.tools(request.tools, _tools))
        parts.append(b',"messages":[')
        if request.system:
            parts.append(self._stable.system(request.system, _system))
            if joined.buffer:
                parts.append(b",")
        content = b"".join((*parts, joined.buffer, joined.ending(self.conversations.form), b"]}"))
        return Encoded(content, joined.call_ids)

    def reader(self, asked: Asked) -> Reader:
        """See `Wire`."""
        return OpenAiReader(asked, reasoning_back=self._reasoning_back)

    def models(self, body: bytes) -> list[ModelInfo]:
        """See `Wire`. Window sizes in whichever field the server has."""
        return [
            ModelInfo(
                found.id,
                found.max_model_len
                or found.context_length
                or found.context_window
                or found.max_context_length
                or (found.meta.n_ctx or found.meta.n_ctx_train if found.meta is not None else 0)
                or 0,
            )
            for found in _models_decoder.decode(body).data or ()
        ]


class OpenAiReader(Reader):
    """One answer's chunks."""

    def __init__(self, asked: Asked, *, reasoning_back: bool) -> None:
        super().__init__(asked)
        self._reasoning_back = reasoning_back
        self._open: dict[int, CallSlot] = {}
        self._details: list[msgspec.Raw] = []

    def feed(self, data: bytes) -> None:
        """See `Reader`."""
        if data == b"[DONE]":
            self.complete = True
            return
        chunk = _chunk_decoder.decode(data)
        if chunk.choices:
            choice = chunk.choices[0]
            if choice.delta is not None:
                self._take(choice.delta)
            if choice.finish_reason:
                self._finish(choice.finish_reason)
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        if chunk.error is not _NOTHING and bytes(chunk.error) != b"null":
            self.failure = self.complaint(data)
        if not self.model and chunk.model:
            self.model = chunk.model

    def _take(self, delta: _Delta) -> None:
        content = delta.content
        if content:
            if isinstance(content, str):
                self.texts.append(content)
            else:
                self._take_parts(content)
        thought = delta.reasoning_content or delta.reasoning
        if thought:
            self.thoughts.append(thought)
        if delta.reasoning_details:
            self._details.extend(detail.copy() for detail in delta.reasoning_details)
        if delta.refusal:
            self.texts.append(delta.refusal)
            self.stop = "refusal"
        for piece in delta.tool_calls or ():
            self._take_call(piece)

    def _take_parts(self, parts: list[_ContentPart]) -> None:
        for part in parts:
            if part.text:
                self.texts.append(part.text)
            self.thoughts.extend(thought.text for thought in part.thinking)

    def _take_call(self, piece: _CallPiece) -> None:
        function = piece.function
        slot = self._slot(piece, function.name if function is not None and function.name else "")
        if function is not None and function.arguments:
            given = function.arguments
            slot.arguments.append(given if isinstance(given, str) else encode(given).decode())

    def _slot(self, piece: _CallPiece, name: str) -> CallSlot:
        """The call a piece belongs to: by index, but a new name under another id opens a new call all the same."""
        if piece.index is None:
            last = self.calls[-1] if self.calls else None
            index = len(self.calls) - 1 if last is not None and not name else len(self.calls)
        else:
            index = piece.index
        slot = self._open.get(index)
        other = slot is not None and bool(name and piece.id and slot.id and piece.id != slot.id)
        if slot is None or other:
            slot = self._open[index] = CallSlot(piece.id or "", name)
            self.calls.append(slot)
            return slot
        slot.id = slot.id or piece.id or ""
        slot.name = slot.name or name
        return slot

    def _finish(self, reason: str) -> None:
        if self.stop == "refusal":
            return
        if reason in ("error", "insufficient_system_resource"):
            self.failure = self.complaint(b'{"error":{"code":503}}')
            return
        self.stop = _FINISH.get(reason, "end")

    def opaque(self) -> str:
        """Reasoning that some servers want back with the message it led to."""
        kept = _Kept("".join(self.thoughts) if self._reasoning_back else "", self._details)
        return encode(kept).decode() if kept.reasoning_content or kept.reasoning_details else ""


def _usage(usage: _Usage) -> Usage:
    prompt = usage.prompt_tokens_details
    completion = usage.completion_tokens_details
    return Usage(
        usage.prompt_tokens or 0,
        usage.completion_tokens or 0,
        (prompt.cached_tokens if prompt and prompt.cached_tokens else usage.prompt_cache_hit_tokens) or 0,
        (prompt.cache_write_tokens if prompt else 0) or 0,
        (completion.reasoning_tokens if completion else 0) or 0,
    )
