"""OpenAI Chat Completions, and the many servers that speak it: Ollama, llama-server, vLLM, LM Studio, OpenRouter…"""

import msgspec

from shoal.domain.messages import (
    AssistantMessage,
    Image,
    ModelInfo,
    ModelMessage,
    ModelRequest,
    ToolMessage,
    Usage,
    UserMessage,
)
from shoal.providers.api_protocol import (
    AnswerContext,
    AnswerReader,
    ApiProtocol,
    CallParts,
    EncodedMessage,
    EncodedRequest,
    Finish,
    Images,
    Quirks,
    encode,
    encode_call,
    portable_call_id,
    read_event,
)

_FINISH: dict[str, Finish] = {
    "stop": "end", "end_turn": "end", "eos": "end", "eos_token": "end", "stop_sequence": "end", "complete": "end",
    "length": "max_tokens", "max_tokens": "max_tokens", "model_length": "max_tokens",
    "tool_calls": "tool_calls", "function_call": "tool_calls", "tool_use": "tool_calls",
    "content_filter": "refusal", "refusal": "refusal",
}  # fmt: skip


_BROKEN = frozenset({"error", "abort", "aborted", "cancelled", "insufficient_system_resource"})
"""Ends that the model did not choose; trying again may help."""


class _ThinkingText(msgspec.Struct):
    text: str = ""


class _ChatContent(msgspec.Struct):
    type: str = "text"
    text: str = ""
    thinking: list[_ThinkingText] = []


class _ChatFunction(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, msgspec.Raw] | None = None


class _CallPiece(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _ChatFunction | None = None


class _ChatDelta(msgspec.Struct):
    content: str | list[_ChatContent] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[msgspec.Raw] | None = None
    refusal: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _ChatChoice(msgspec.Struct):
    delta: _ChatDelta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None


_NOTHING = msgspec.Raw(b"")


class _ChatChunk(msgspec.Struct):
    choices: list[_ChatChoice] | None = None
    usage: _ChatUsage | None = None
    error: msgspec.Raw = _NOTHING
    model: str | None = None


class _KeptReasoning(msgspec.Struct, omit_defaults=True):
    reasoning_content: str = ""
    reasoning_details: list[msgspec.Raw] = []


class _LlamaServerMeta(msgspec.Struct):
    n_ctx: int | None = None
    n_ctx_train: int | None = None


class _OpenAiModel(msgspec.Struct):
    id: str
    context_length: int | None = None
    context_window: int | None = None
    max_model_len: int | None = None
    max_context_length: int | None = None
    meta: _LlamaServerMeta | None = None


class _OpenAiModels(msgspec.Struct):
    data: list[_OpenAiModel] | None = None


_chunk_decoder = msgspec.json.Decoder(_ChatChunk)
_reasoning_decoder = msgspec.json.Decoder(_KeptReasoning)
_models_decoder = msgspec.json.Decoder(_OpenAiModels)


class OpenAiChat(ApiProtocol):
    """Chat Completions. Images of tool results follow as a user message, the one place this protocol has for them."""

    kind = "openai"
    answers_path = "/chat/completions"
    fixed_headers = (*ApiProtocol.fixed_headers, (b"accept", b"text/event-stream, application/json"))
    image_template = b'{"type":"image_url","image_url":{"url":"data:%b;base64,%b"}}'
    system_template = b'{"role":"system","content":%b}'
    tool_template = b'{"type":"function","function":{"name":%b,"description":%b,"parameters":%b}}'

    def __init__(self, *, reasoning_back: bool = False) -> None:
        super().__init__()
        self._reasoning_back = reasoning_back

    def encode(self, request: ModelRequest, quirks: Quirks, images: Images) -> EncodedRequest:
        """The fields that servers differ in are sent as `quirks` says."""
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
            parts.append(self.tools(request.tools))
        parts.append(b',"messages":[')
        if request.system:
            parts.append(self.system(request.system))
            if joined.buffer:
                parts.append(b",")
        return EncodedRequest(b"".join((*parts, joined.buffer, joined.ending(self), b"]}")), joined.call_ids)

    def encode_message(self, message: ModelMessage, images: Images, *, native: bool = False) -> EncodedMessage:
        """Calls and results as this API pairs them; reasoning goes back only to the server it came from."""
        match message:
            case UserMessage(text=text, images=shown):
                return EncodedMessage("message", self._user(text, shown, images))
            case ToolMessage(call_id=call_id, text=text, images=shown, name=name):
                body = b'{"role":"tool","tool_call_id":%b,"content":%b}' % (
                    encode(portable_call_id(call_id)),
                    encode(text),
                )
                later = self._user(f"[Images from {name}]", shown, images) if shown else b""
                return EncodedMessage("tool", body, later)
            case AssistantMessage(text=text, tool_calls=calls, opaque=opaque):
                body = b'{"role":"assistant","content":' + encode(text or (None if calls else ""))
                if calls:
                    template = b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}'
                    encoded = (
                        template % (call_id, name, encode(arguments.decode()))
                        for call_id, name, arguments in map(encode_call, calls)
                    )
                    body += b',"tool_calls":[' + b",".join(encoded) + b"]"
                if opaque is not None and opaque.kind.startswith("openai:"):
                    kept = _reasoning_decoder.decode(opaque.json)
                    if kept.reasoning_details:
                        body += b',"reasoning_details":' + encode(kept.reasoning_details)
                    elif kept.reasoning_content:
                        body += b',"reasoning_content":' + encode(kept.reasoning_content)
                return EncodedMessage("message", body + b"}")

    def reader(self, context: AnswerContext) -> AnswerReader:
        return OpenAiReader(context, reasoning_back=self._reasoning_back)

    def models(self, body: bytes) -> list[ModelInfo]:
        return openai_models(body)

    def _user(self, text: str, shown: tuple[Image, ...], images: Images) -> bytes:
        if not shown:
            return b'{"role":"user","content":' + encode(text) + b"}"
        parts = [*([self.encode_text(text)] if text else ()), *self.encode_images(shown, images)]
        return b'{"role":"user","content":[' + b",".join(parts) + b"]}"


def openai_models(body: bytes) -> list[ModelInfo]:
    """Read a list of models; the window is in whichever field the server has. Raises msgspec.DecodeError."""
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


class OpenAiReader(AnswerReader):
    """One answer's chunks."""

    def __init__(self, context: AnswerContext, *, reasoning_back: bool) -> None:
        super().__init__(context)
        self._reasoning_back = reasoning_back
        self._open: dict[int, CallParts] = {}
        self._details: list[msgspec.Raw] = []

    def feed(self, data: bytes) -> None:
        """Take in a chunk: text, thoughts, pieces of calls, the reason of the end, and the usage in whichever comes."""
        if data.strip() == b"[DONE]":
            self.complete = True
            return
        chunk = read_event(_chunk_decoder, data, "usage")
        if chunk.choices:
            choice = chunk.choices[0]
            if choice.delta is not None:
                self._add(choice.delta)
            reason = choice.finish_reason
            if reason and self.stop != "refusal":
                if reason in _BROKEN:
                    self.failure = self.failure_in(b'{"error":{"code":503}}')
                else:
                    self.stop = _FINISH.get(reason, "end")
        if (usage := chunk.usage) is not None:
            prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
            self.usage = Usage(
                usage.prompt_tokens or 0,
                usage.completion_tokens or 0,
                (prompt.cached_tokens if prompt and prompt.cached_tokens else usage.prompt_cache_hit_tokens) or 0,
                (prompt.cache_write_tokens if prompt else 0) or 0,
                (completion.reasoning_tokens if completion else 0) or 0,
            )
        if chunk.error is not _NOTHING and bytes(chunk.error) != b"null":
            self.failure = self.failure_in(data)
        elif chunk.choices is None and chunk.usage is None:
            self.failure = self.complaint_in(data)
        if not self.model and chunk.model:
            self.model = chunk.model

    def _add(self, delta: _ChatDelta) -> None:
        if delta.content:
            if isinstance(delta.content, str):
                self.texts.append(delta.content)
            else:
                for part in delta.content:
                    if part.text:
                        self.texts.append(part.text)
                    self.thoughts.extend(thought.text for thought in part.thinking)
        thought = delta.reasoning_content or delta.reasoning
        if thought:
            self.thoughts.append(thought)
        if delta.reasoning_details:
            self._details.extend(detail.copy() for detail in delta.reasoning_details)
        if delta.refusal:
            self.texts.append(delta.refusal)
            self.stop = "refusal"
        for piece in delta.tool_calls or ():
            function = piece.function or _ChatFunction()
            # By index, but a new name under another id opens a new call all the same.
            name = function.name or ""
            if piece.index is None:
                last = self.calls[-1] if self.calls else None
                index = len(self.calls) - 1 if last is not None and not name else len(self.calls)
            else:
                index = piece.index
            call = self._open.get(index)
            is_other = call is not None and bool(name and piece.id and call.id and piece.id != call.id)
            if call is None or is_other:
                call = self._open[index] = CallParts(piece.id or "", name)
                self.calls.append(call)
            else:
                call.id = call.id or piece.id or ""
                call.name = call.name or name
            if given := function.arguments:
                call.arguments.append(given if isinstance(given, str) else encode(given).decode())

    def opaque(self) -> str:
        """Reasoning that some servers want back with the message it led to."""
        kept = _KeptReasoning("".join(self.thoughts) if self._reasoning_back else "", self._details)
        return encode(kept).decode() if kept.reasoning_content or kept.reasoning_details else ""
