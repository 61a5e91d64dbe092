"""OpenAI Chat Completions and OpenAI Responses.

Ollama, llama-server, vLLM, LM Studio, OpenRouter and many other servers support Chat Completions.

Responses has items instead of messages. The provider stores nothing and returns encrypted reasoning, which is sent
back. If the model searches for tools natively, `more_tools` becomes `tool_search`, which Shoal executes. The call is
a separate item. Its result item contains the definitions and follows the cached prefix.
"""

import msgspec

from shoal.kernel.messages import (
    MORE_TOOLS,
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
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.answers import (
    AnswerContext,
    AnswerReader,
    CallCollector,
    CallParts,
    Finish,
    portable_call_id,
)
from shoal.models.api_protocol import (
    ApiProtocol,
    EncodedMessage,
    EncodedRequest,
    Images,
    JoinedMessages,
    encode,
    encode_call,
    schema_of,
)
from shoal.models.arrange import MessageForm
from shoal.models.quirks import Quirks
from shoal.models.schema_dialects import SchemaDialect
from shoal.models.token_reports import GroqReport, Timings, TokenReport, with_report

# ---- Chat Completions ----

_FINISH: dict[str, Finish] = {
    "stop": "end", "end_turn": "end", "eos": "end", "eos_token": "end", "stop_sequence": "end", "complete": "end",
    "length": "max_tokens", "max_tokens": "max_tokens", "model_length": "max_tokens", "max_output_tokens": "max_tokens",
    "max_length": "max_tokens",
    "tool_calls": "tool_calls", "function_call": "tool_calls", "tool_use": "tool_calls", "tool_call": "tool_calls",
    "content_filter": "refusal", "refusal": "refusal", "safety": "refusal", "sensitive": "refusal",
}  # fmt: skip
"""Stop reasons in lower case. Unknown reasons count as a normal end."""
_BROKEN = frozenset({"error", "abort", "aborted", "cancelled", "insufficient_system_resource"})
"""Abnormal stop reasons after which a retry may succeed."""


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
    """A piece of a call. Some servers send the fields of `function` at this level."""

    index: int | None = None
    id: str | None = None
    function: _ChatFunction | None = None
    name: str | None = None
    arguments: str | dict[str, msgspec.Raw] | None = None


class _ChatDelta(msgspec.Struct):
    content: str | list[_ChatContent] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    thinking: str | None = None
    reasoning_details: list[msgspec.Raw] | None = None
    refusal: str | None = None
    tool_calls: list[_CallPiece] | None = None
    function_call: _ChatFunction | None = None


class _ChatChoice(msgspec.Struct):
    """A choice in a response.

    Without streaming, it has `message` instead of `delta`. In older completion APIs, it has `text`.
    """

    index: int | None = None
    delta: _ChatDelta | None = None
    message: _ChatDelta | None = None
    text: str | None = None
    finish_reason: str | None = None
    usage: TokenReport | None = None


_NOTHING = msgspec.Raw(b"")
_NO_ERRORS = frozenset({b"", b"null", b"false", b"0", b'""', b"{}", b"[]"})


class _ChatChunk(msgspec.Struct):
    """A chunk of a stream. Some servers send Ollama's `message` or an envelope instead of `choices`."""

    choices: list[_ChatChoice] | None = None
    usage: TokenReport | None = None
    error: msgspec.Raw = _NOTHING
    model: str | None = None
    object: str | None = None
    x_groq: GroqReport | None = None
    timings: Timings | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    message: msgspec.Raw = _NOTHING
    done: bool | None = None
    done_reason: str | None = None
    data: msgspec.Raw = _NOTHING
    result: msgspec.Raw = _NOTHING
    response: msgspec.Raw = _NOTHING


class _ResponseContent(msgspec.Struct):
    content: str = ""


class _ErrorField(msgspec.Struct):
    code: str | int | None = None
    message: str | None = None


_FINE = frozenset({"", "ok", "success", "none", "null"})


def _is_error(error: bytes) -> bool:
    if error in _NO_ERRORS:
        return False
    try:
        decoded = msgspec.json.decode(error, type=_ErrorField | str)
    except UNREADABLE:
        return True
    if isinstance(decoded, str):
        return decoded.lower() not in _FINE
    return decoded.code not in (0, "0", 200, "200") or (decoded.message or "").lower() not in _FINE


class _StoredReasoning(msgspec.Struct, omit_defaults=True):
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

    @property
    def window(self) -> int:
        meta = self.meta or _LlamaServerMeta()
        named = self.max_model_len or self.context_length or self.context_window or self.max_context_length
        return named or meta.n_ctx or meta.n_ctx_train or 0


class _OpenAiModels(msgspec.Struct):
    data: list[_OpenAiModel] | None = None


NO_WORDS = "(no words)"
SIGNATURE = b',"extra_content":{"google":{"thought_signature":"skip_thought_signature_validator"}}'
"""Field with a placeholder that Gemini's servers accept instead of a call's signature."""
_reasoning_decoder = msgspec.json.Decoder(_StoredReasoning)
_models_decoder = msgspec.json.Decoder(_OpenAiModels)


class _OpenAi(ApiProtocol):
    """Base of the Chat Completions and Responses protocols."""

    fixed_headers = (*ApiProtocol.fixed_headers, (b"accept", b"text/event-stream, application/json"))

    def models(self, body: bytes) -> list[ModelInfo]:
        return [ModelInfo(model.id, model.window) for model in _models_decoder.decode(body).data or ()]

    def further(self, request: ModelRequest, quirks: Quirks) -> bytes:
        extra = b""
        if quirks.temperature and request.temperature is not None:
            extra += b',"temperature":%b' % encode(request.temperature)
        if quirks.cache_key and request.cache_key:
            extra += b',"prompt_cache_key":%b' % encode(request.cache_key[-64:])
        return extra


class OpenAiChat(_OpenAi):
    """Chat Completions. The images of a tool result are sent in a user message after it, because results cannot
    contain images.
    """

    kind = "openai"
    answers_path = "/chat/completions"
    image_template = b'{"type":"image_url","image_url":{"url":"data:%b;base64,%b"}}'
    system_template = b'{"role":"system","content":%b}'
    tool_template = b'{"type":"function","function":{"name":%b,"description":%b,"parameters":%b}}'
    merges_users = True  # The chat templates of many local models reject consecutive user messages.
    images = "user"

    def write(self, request: ModelRequest, joined: JoinedMessages, form: MessageForm) -> EncodedRequest:
        quirks = form.quirks
        parts = [b'{"model":', encode(request.model), b',"stream":true']
        if quirks.usage_option:
            parts.append(b',"stream_options":{"include_usage":true}')
        if quirks.max_tokens:
            parts.append(b',"%b":%d' % (quirks.max_tokens.encode(), request.max_output_tokens))
        parts.append(self.further(request, quirks))
        if request.tools and request.tool_choice == "auto":  # Some servers ignore `tool_choice`.
            parts.append(self.tools(request.tools, self.dialect(quirks)))
        parts.append(b',"messages":[')
        if request.system:
            parts.append(self.system(request.system))
            if joined.buffer:
                parts.append(b",")
        return EncodedRequest(b"".join((*parts, joined.buffer, joined.ending(self), b"]}")), joined.call_ids)

    def encode_message(self, message: ModelMessage, images: Images, form: MessageForm) -> EncodedMessage:
        """Encode a message. The text is never empty, because some servers reject empty text."""
        match message:
            case UserMessage(text=text, images=shown):
                return EncodedMessage("message", self._user(text or ("" if shown else NO_WORDS), shown, images))
            case ToolMessage(call_id=call_id, text=text):
                body = b'{"role":"tool","tool_call_id":%b,"content":%b}'
                return EncodedMessage("message", body % (encode(portable_call_id(call_id)), encode(text or NO_WORDS)))
            case AssistantMessage(text=text, tool_calls=calls, opaque=opaque):
                body = b'{"role":"assistant","content":' + encode(text or (None if calls else NO_WORDS))
                if calls:
                    template = b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}%b}'
                    signature = SIGNATURE if form.quirks.call_signatures else b""
                    encoded = (
                        template % (call_id, name, encode(arguments.decode()), signature)
                        for call_id, name, arguments in map(encode_call, calls)
                    )
                    body += b',"tool_calls":[' + b",".join(encoded) + b"]"
                reasoning = _reasoning_decoder.decode(opaque.json) if opaque is not None else _StoredReasoning()
                text, field = reasoning.reasoning_content, form.quirks.reasoning_field
                if form.quirks.reasoning_needed:
                    text = text or " "  # Kimi rejects empty text.
                if reasoning.reasoning_details:
                    body += b',"reasoning_details":' + encode(reasoning.reasoning_details)
                elif text and field:
                    body += b',"%b":%b' % (field.encode(), encode(text))
                return EncodedMessage("message", body + b"}")

    def reader(self, context: AnswerContext) -> AnswerReader:
        return OpenAiReader(context)

    def _user(self, text: str, shown: tuple[Image, ...], images: Images) -> bytes:
        if not shown:
            return b'{"role":"user","content":' + encode(text) + b"}"
        parts = [*([self.encode_text(text)] if text else ()), *self.encode_images(shown, images)]
        return b'{"role":"user","content":[' + b",".join(parts) + b"]}"


class OpenAiReader(AnswerReader):
    record = _ChatChunk
    decoder = msgspec.json.Decoder(_ChatChunk)

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._pieces = CallCollector(self.calls)
        self._details: list[msgspec.Raw] = []
        self._streams = False
        self._choice: int | None = None

    def take(self, event: _ChatChunk, data: bytes) -> None:
        choice = event.choices[0] if event.choices else None
        if choice is not None and choice.index != self._choice:
            choice = next((choice for choice in event.choices or () if self._is_first(choice.index)), None)
        if choice is not None:
            if choice.delta is not None:
                self._add(choice.delta)
            if choice.message is not None:
                self._add_message(choice.message)
                self.complete = self.complete or event.object == "chat.completion"
            if choice.text:
                self.say(choice.text)
            if choice.finish_reason and self.stop != "refusal":
                reason = choice.finish_reason.lower()
                if reason in _BROKEN:
                    self.failure = self.failure_in(b'{"error":{"code":503}}')
                else:
                    self.stop = _FINISH.get(reason, "end")
            if choice.usage is not None:
                self.usage = with_report(self.usage, choice.usage.usage())
        if event.usage is not None:
            self.usage = with_report(self.usage, event.usage.usage())
        elif event.x_groq is not None or event.timings is not None or event.eval_count is not None:
            self._count(event)
        if event.error is not _NOTHING and _is_error(bytes(event.error)):
            self.failure = self.failure_in(data)
        elif event.choices is None and event.usage is None and not self._take_other(event):
            self.failure = self.complaint_in(data)
        if not self.model and event.model:
            self.model = event.model

    def _is_first(self, index: int | None) -> bool:
        if self._choice is None:
            self._choice = index
        return index is None or index == self._choice

    def _take_other(self, event: _ChatChunk) -> bool:
        if bytes(event.message)[:1] == b"{":
            self._add_message(self.part(event.message, _ChatDelta))
            if event.done:
                self.stop = _FINISH.get((event.done_reason or "").lower(), "end")
            return True
        for inner in (event.data, event.result, event.response):
            if bytes(inner)[:1] == b"{":
                self.feed(bytes(inner))
                return True
        if bytes(event.response)[:1] == b'"':
            self._streams = True
            self.say(self.part(b'{"content":' + bytes(event.response) + b"}", _ResponseContent).content)
            return True
        return False

    def _count(self, event: _ChatChunk) -> None:
        if event.x_groq is not None and event.x_groq.usage is not None:
            self.usage = with_report(self.usage, event.x_groq.usage.usage())
        if event.timings is not None:  # A usage report is more reliable and takes precedence.
            self.usage = with_report(event.timings.usage(), self.usage)
        if event.eval_count is not None:
            self.usage = with_report(self.usage, Usage(event.prompt_eval_count or 0, event.eval_count))

    def _add(self, delta: _ChatDelta) -> None:
        if content := delta.content:
            self._streams = True
            if isinstance(content, str):
                self.say(content)
            else:
                for part in content:
                    if part.text:
                        self.say(part.text)
                    for thought in part.thinking:
                        self.think(thought.text)
        thought = delta.reasoning_content or delta.reasoning or delta.reasoning_text or delta.thinking
        if thought:
            self.think(thought)
        if delta.reasoning_details:
            self._details.extend(detail.copy() for detail in delta.reasoning_details)
        if delta.refusal:
            self.say(delta.refusal)
            self.stop = "refusal"
        for piece in delta.tool_calls or ():
            function = piece.function or _ChatFunction(piece.name, piece.arguments)
            self._pieces.add(piece.index, piece.id or "", function.name or "", _whole(function.arguments))
        if (function := delta.function_call) is not None:
            self._pieces.add(None, "", function.name or "", _whole(function.arguments))

    def _add_message(self, message: _ChatDelta) -> None:
        whole = message.content
        if isinstance(whole, str) and whole:
            text = "".join(self.texts)
            if self._streams or (text and whole.startswith(text)):
                whole = whole[len(text) :] if whole.startswith(text) else ""
            message.content = whole
        if self._streams:
            message.tool_calls = message.tool_calls if not self.calls else None
            message.refusal = None
        if self.thoughts:
            thoughts = "".join(self.thoughts)
            for name in ("reasoning_content", "reasoning", "reasoning_text", "thinking"):
                if (getattr(message, name) or "").startswith(thoughts):
                    setattr(message, name, None)
        streams = self._streams
        self._add(message)
        self._streams = streams

    def opaque(self) -> str:
        reasoning = _StoredReasoning("".join(self.thoughts) if self.context.reasoning_back else "", self._details)
        return encode(reasoning).decode() if reasoning.reasoning_content or reasoning.reasoning_details else ""


# ---- Responses ----


class _ItemContent(msgspec.Struct):
    type: str = ""
    text: str = ""
    refusal: str = ""


class _OutputItem(msgspec.Struct):
    type: str = ""
    id: str | None = None
    call_id: str = ""
    name: str = ""
    arguments: str | dict[str, msgspec.Raw] | None = None
    content: list[_ItemContent] | None = None
    summary: list[_ItemContent] | None = None


class _ReasoningItem(msgspec.Struct):
    encrypted_content: str | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    model: str | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    incomplete_details: _Incomplete | None = None
    usage: TokenReport | None = None
    output: list[msgspec.Raw] | None = None


class _ResponsesEvent(msgspec.Struct):
    type: str = ""
    delta: str = ""
    text: str = ""
    refusal: str = ""
    arguments: str | dict[str, msgspec.Raw] | None = None
    part: _ItemContent | None = None
    output_index: int = 0
    content_index: int = 0
    item_id: str = ""
    item: msgspec.Raw = msgspec.Raw(b"null")
    response: _Response | None = None
    output: msgspec.Raw = _NOTHING


_INCOMPLETE: dict[str | None, Finish] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}
_FAILED = frozenset({"response.failed", "response.error", "error"})
_CALL = b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b}'
_SEARCH = b'{"type":"tool_search_call","execution":"client","call_id":%b,"status":"completed","arguments":%b}'
_SEARCHED = b'{"type":"tool_search_output","execution":"client","call_id":%b,"status":"completed","tools":[%b]}'
_FOUND = b'{"type":"function","name":%b,"description":%b,"defer_loading":true,"parameters":%b,"strict":false}'
_SEARCH_TOOL = (
    b'{"type":"tool_search","execution":"client","description":%b,"parameters":{"type":"object","properties":{"find":'
    b'{"type":"string","description":"A tool\'s name, or words for what you want to do."}},"required":["find"],'
    b'"additionalProperties":false}}'
)
_encrypted_decoder = msgspec.json.Decoder(_ReasoningItem)
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class OpenAiResponses(_OpenAi):
    """Encodes messages for the Responses API. Each text, reasoning block and call is a separate item."""

    kind = "openai-responses"
    schema_dialect = "full"
    answers_path = "/responses"
    text_template = b'{"type":"input_text","text":%b}'
    image_template = b'{"type":"input_image","detail":"auto","image_url":"data:%b;base64,%b"}'
    system_template = b',"instructions":%b'
    tool_template = b'{"type":"function","name":%b,"description":%b,"parameters":%b,"strict":false}'

    def write(self, request: ModelRequest, joined: JoinedMessages, form: MessageForm) -> EncodedRequest:
        quirks, native = form.quirks, form.native
        parts = [b'{"model":', encode(request.model), b',"stream":true,"store":false']
        parts.append(b',"max_output_tokens":%d' % request.max_output_tokens)
        if quirks.reasoning_items:
            parts.append(b',"include":["reasoning.encrypted_content"]')
        parts.append(self.further(request, quirks))
        if request.system:
            parts.append(self.system(request.system))
        if request.tools and request.tool_choice == "auto":  # Some servers ignore `tool_choice`.
            parts.append(self.tools(request.tools, self.dialect(quirks), () if native else None))
        return EncodedRequest(b"".join((*parts, b',"input":[', joined.buffer, b"]}")), joined.call_ids)

    def encode_message(self, message: ModelMessage, images: Images, form: MessageForm) -> EncodedMessage:
        """Encode a message. Unencrypted reasoning is omitted, because the provider does not store it."""
        native = form.native
        match message:
            case UserMessage(text=text, images=shown):
                blocks = [*([self.encode_text(text)] if text or not shown else ()), *self.encode_images(shown, images)]
                return EncodedMessage("item", b'{"role":"user","content":[' + b",".join(blocks) + b"]}")
            case ToolMessage(name=name, call_id=call_id, found=found) if native and name == MORE_TOOLS:
                dialect = self.dialect(form.quirks)
                tools = (
                    _FOUND % (encode(tool.name), encode(tool.description), schema_of(tool, dialect)) for tool in found
                )
                return EncodedMessage("item", _SEARCHED % (encode(portable_call_id(call_id)), b",".join(tools)))
            case ToolMessage(call_id=call_id, text=text, images=shown):
                output = encode(text)
                if shown:
                    blocks = [*([self.encode_text(text)] if text else ()), *self.encode_images(shown, images)]
                    output = b"[" + b",".join(blocks) + b"]"
                call = encode(portable_call_id(call_id))
                body = b'{"type":"function_call_output","call_id":%b,"output":%b}' % (call, output)
                return EncodedMessage("item", body)
            case AssistantMessage(text=text, tool_calls=calls, opaque=opaque):
                items: list[bytes] = []
                if opaque is not None and form.quirks.reasoning_items:
                    stored_items = map(bytes, _items_decoder.decode(opaque.json))
                    items.extend(item for item in stored_items if _encrypted_decoder.decode(item).encrypted_content)
                if text:
                    part = b'{"type":"output_text","text":' + encode(text) + b"}"
                    items.append(b'{"type":"message","role":"assistant","content":[' + part + b"]}")
                for call, (call_id, name, arguments) in zip(calls, map(encode_call, calls), strict=True):
                    if native and call.name == MORE_TOOLS:
                        items.append(_SEARCH % (call_id, arguments))
                    else:
                        items.append(_CALL % (call_id, name, encode(arguments.decode())))
                return EncodedMessage("item", b",".join(items))

    def searches(self, request: ModelRequest, quirks: Quirks) -> bool:
        return quirks.tool_search and any(spec.name == MORE_TOOLS for spec in request.tools)

    def encode_tool(self, spec: ToolSpec, dialect: SchemaDialect, *, native: bool) -> bytes:
        if native and spec.name == MORE_TOOLS:
            return _SEARCH_TOOL % encode(spec.description)
        return super().encode_tool(spec, dialect, native=native)

    def reader(self, context: AnswerContext) -> AnswerReader:
        return ResponsesReader(context)


class ResponsesReader(AnswerReader):
    """Decodes the events of one response. Complete values (`….done`, `response.completed`) fill in missing pieces."""

    record = _ResponsesEvent
    decoder = msgspec.json.Decoder(_ResponsesEvent)

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._reasoning: list[str] = []
        self._open: dict[int | str, CallParts] = {}
        self._said: dict[tuple[int, int], list[str]] = {}

    def take(self, event: _ResponsesEvent, data: bytes) -> None:
        index = event.output_index
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self._said.setdefault((index, event.content_index), []).append(event.delta)
                self.say(event.delta)
                self.stop = "refusal" if event.type == "response.refusal.delta" else self.stop
            case "response.output_text.done" | "response.refusal.done":
                self._say_rest(index, event.content_index, event.text or event.refusal)
                self.stop = "refusal" if event.refusal else self.stop
            case "response.content_part.done" if event.part is not None and event.part.type != "reasoning_text":
                self._say_rest(index, event.content_index, event.part.text or event.part.refusal)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.think(event.delta)
            case "response.reasoning_summary_part.added" if self.thoughts:
                self.thoughts.append("\n\n")
            case "response.function_call_arguments.delta":
                self._call(event.item_id, index).arguments.append(event.delta)
            case "response.function_call_arguments.done" if whole := _whole(event.arguments):
                self._call(event.item_id, index).arguments = [whole]
            case "response.output_item.added":
                item = self.part(event.item, _OutputItem)
                if item.type == "function_call":
                    self._name(item, index, is_new=True)
            case "response.output_item.done":
                self._take_item(event.item, index)
            case "response.completed" | "response.incomplete" | "response.done" | "response.cancelled":
                self._finish(event.response or _Response())
            case kind if kind in _FAILED:
                error = bytes(event.response.error) if event.response is not None else b"null"
                self.failure = self.failure_in(data if error in _NO_ERRORS else b'{"error":' + error + b"}")
            case "" if bytes(event.output)[:1] == b"[":  # The server sent a complete response instead of a stream.
                self._finish(self.part(data, _Response))
            case kind if not kind.startswith("response."):
                self.failure = self.complaint_in(data)
            case _:
                pass

    def _take_item(self, raw: msgspec.Raw, index: int) -> None:
        item = self.part(raw, _OutputItem)
        match item.type:
            case "reasoning" if (reasoning_item := bytes(raw).decode("utf-8", "replace")) not in self._reasoning:
                if self.complete and self._reasoning:
                    return
                self._reasoning.append(reasoning_item)
                if not self.thoughts:
                    for part in (*(item.summary or ()), *(item.content or ())):
                        self.think(part.text)
            case "function_call":
                call = self._name(item, index)
                if whole := _whole(item.arguments):
                    call.arguments = [whole]
            case "tool_search_call" if item.call_id and all(call.id != item.call_id for call in self.calls):
                self.calls.append(CallParts(item.call_id, MORE_TOOLS, [_whole(item.arguments) or "{}"]))
            case "message":
                for place, part in enumerate(item.content or ()):
                    self._say_rest(index, place, part.text or part.refusal)
            case _:
                pass

    def _finish(self, response: _Response) -> None:
        self.complete = True
        for index, item in enumerate(response.output or ()):
            self._take_item(item, index)
        if bytes(response.error) not in _NO_ERRORS:
            self.failure = self.failure_in(b'{"error":' + bytes(response.error) + b"}")
        self.model = response.model or ""
        if response.usage is not None:
            self.usage = with_report(self.usage, response.usage.usage())
        reason = response.incomplete_details.reason if response.incomplete_details is not None else None
        if reason in _INCOMPLETE:
            self.stop = _INCOMPLETE[reason]
        elif not self.stop:
            self.stop = "end"

    def _say_rest(self, index: int, place: int, whole: str) -> None:
        """Add the part of a complete text that has not arrived in pieces under any index."""
        texts = self._said.setdefault((index, place), [])
        before = "".join(texts)
        if not before and any("".join(other) == whole for other in self._said.values()):
            return
        if whole.startswith(before) and (rest := whole[len(before) :]):
            texts.append(rest)
            self.say(rest)

    def _call(self, item_id: str, index: int) -> CallParts:
        call = self._open.get(item_id) if item_id else None
        if call is None and (call := self._open.get(index)) is None:
            call = CallParts()
            self.calls.append(call)
        self._open[index] = self._open[item_id or index] = call
        return call

    def _name(self, item: _OutputItem, index: int, *, is_new: bool = False) -> CallParts:
        call = self._open.get(index)
        if call is None or (call.id and item.call_id and call.id != item.call_id):
            call = self._open.get(item.id or index)
            if call is not None and call.id and item.call_id and call.id != item.call_id:
                call = None
        if call is not None and is_new and call.name:
            call = None
        if call is None and self.complete and item.call_id:
            call = next((call for call in self.calls if call.id == item.call_id), None)
        if call is None:
            call = CallParts()
            self.calls.append(call)
        call.id, call.name = call.id or item.call_id, call.name or item.name
        self._open[index] = self._open[item.id or index] = call
        return call

    def opaque(self) -> str:
        return "[" + ",".join(self._reasoning) + "]" if self._reasoning else ""


def _whole(arguments: str | dict[str, msgspec.Raw] | None) -> str:
    return arguments if isinstance(arguments, str) else encode(arguments).decode() if arguments is not None else ""
