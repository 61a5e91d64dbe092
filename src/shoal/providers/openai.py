"""OpenAI Chat Completions, and the many servers that speak it: Ollama, llama-server, vLLM, LM Studio, OpenRouter…

And OpenAI Responses: items instead of messages, nothing stored at the provider, encrypted reasoning sent back. Where
the model searches for tools itself, `more_tools` is its `tool_search`, carried out here: a call is an item of its own,
and the definitions stand in the item of its result, behind all that is cached.
"""

import msgspec

from shoal.domain.messages import (
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
from shoal.domain.untrusted import decode_known
from shoal.providers.api_protocol import (
    AnswerContext,
    AnswerReader,
    ApiProtocol,
    CallParts,
    EncodedMessage,
    EncodedRequest,
    Finish,
    Images,
    JoinedMessages,
    encode,
    encode_call,
    portable_call_id,
    read_event,
)
from shoal.providers.arrange import MessageForm
from shoal.providers.quirks import Quirks

# ---- Chat Completions ----

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


class _InputTokens(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputTokens(msgspec.Struct):
    reasoning_tokens: int | None = None


class _ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputTokens | None = None
    completion_tokens_details: _OutputTokens | None = None
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

    @property
    def window(self) -> int:
        """It is in whichever field the server has."""
        meta = self.meta or _LlamaServerMeta()
        named = self.max_model_len or self.context_length or self.context_window or self.max_context_length
        return named or meta.n_ctx or meta.n_ctx_train or 0


class _OpenAiModels(msgspec.Struct):
    data: list[_OpenAiModel] | None = None


NO_WORDS = "(no words)"
SIGNATURE = b',"extra_content":{"google":{"thought_signature":"skip_thought_signature_validator"}}'
"""What Gemini's servers take in the place of a call's signature, behind this API."""
_chunk_decoder = msgspec.json.Decoder(_ChatChunk)
_reasoning_decoder = msgspec.json.Decoder(_KeptReasoning)
_models_decoder = msgspec.json.Decoder(_OpenAiModels)


class _OpenAi(ApiProtocol):
    """What both have in common."""

    fixed_headers = (*ApiProtocol.fixed_headers, (b"accept", b"text/event-stream, application/json"))

    def models(self, body: bytes) -> list[ModelInfo]:
        return [ModelInfo(found.id, found.window) for found in _models_decoder.decode(body).data or ()]

    def further(self, request: ModelRequest, quirks: Quirks) -> bytes:
        """Fields of a request that not every server takes."""
        found = b""
        if quirks.temperature and request.temperature is not None:
            found += b',"temperature":%b' % encode(request.temperature)
        if quirks.cache_key and request.cache_key:
            found += b',"prompt_cache_key":%b' % encode(request.cache_key[-64:])
        return found


class OpenAiChat(_OpenAi):
    """Chat Completions. Images of tool results follow as a user message, the one place this protocol has for them."""

    kind = "openai"
    answers_path = "/chat/completions"
    image_template = b'{"type":"image_url","image_url":{"url":"data:%b;base64,%b"}}'
    system_template = b'{"role":"system","content":%b}'
    tool_template = b'{"type":"function","function":{"name":%b,"description":%b,"parameters":%b}}'
    merges_users = True  # the templates of many local models refuse two in a row
    images = "user"

    def write(self, request: ModelRequest, joined: JoinedMessages, form: MessageForm) -> EncodedRequest:
        """The fields that servers differ in are sent as the quirks say."""
        quirks = form.quirks
        parts = [b'{"model":', encode(request.model), b',"stream":true']
        if quirks.usage_option:
            parts.append(b',"stream_options":{"include_usage":true}')
        if quirks.max_tokens:
            parts.append(b',"%b":%d' % (quirks.max_tokens.encode(), request.max_output_tokens))
        parts.append(self.further(request, quirks))
        if request.tools and request.tool_choice == "auto":  # not every server heeds a tool_choice
            parts.append(self.tools(request.tools))
        parts.append(b',"messages":[')
        if request.system:
            parts.append(self.system(request.system))
            if joined.buffer:
                parts.append(b",")
        return EncodedRequest(b"".join((*parts, joined.buffer, joined.ending(self), b"]}")), joined.call_ids)

    def encode_message(self, message: ModelMessage, images: Images, form: MessageForm) -> EncodedMessage:
        """Calls and results as this API pairs them, and reasoning as the server wants it back. No text is empty, which
        some refuse."""
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
                kept = _reasoning_decoder.decode(opaque.json) if opaque is not None else _KeptReasoning()
                text, field = kept.reasoning_content, form.quirks.reasoning_field
                if form.quirks.reasoning_needed:
                    text = text or " "  # Kimi refuses an empty one
                if kept.reasoning_details:
                    body += b',"reasoning_details":' + encode(kept.reasoning_details)
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
    """One answer's chunks."""

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
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
            inputs = usage.prompt_tokens_details or _InputTokens()
            outputs = usage.completion_tokens_details or _OutputTokens()
            asked, said = usage.prompt_tokens or 0, usage.completion_tokens or 0
            cached = inputs.cached_tokens or usage.prompt_cache_hit_tokens or 0
            self.usage = Usage(asked, said, cached, inputs.cache_write_tokens or 0, outputs.reasoning_tokens or 0)
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
        kept = _KeptReasoning("".join(self.thoughts) if self.context.reasoning_back else "", self._details)
        return encode(kept).decode() if kept.reasoning_content or kept.reasoning_details else ""


# ---- Responses ----


class _ItemContent(msgspec.Struct):
    type: str = ""
    text: str = ""
    refusal: str = ""


class _OutputItem(msgspec.Struct):
    type: str
    id: str | None = None
    call_id: str = ""
    name: str = ""
    arguments: str | dict[str, msgspec.Raw] | None = None
    content: list[_ItemContent] | None = None
    summary: list[_ItemContent] | None = None


class _KeptItem(msgspec.Struct):
    encrypted_content: str | None = None


class _ResponsesUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _InputTokens | None = None
    output_tokens_details: _OutputTokens | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    model: str | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    incomplete_details: _Incomplete | None = None
    usage: _ResponsesUsage | None = None


class _ResponsesEvent(msgspec.Struct):
    type: str
    delta: str = ""
    output_index: int = 0
    item: msgspec.Raw = msgspec.Raw(b"null")
    response: _Response | None = None


class _OtherEvent(msgspec.Struct):
    type: str
    output_index: int = 0


_INCOMPLETE: dict[str | None, Finish] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}
_FAILED = frozenset({"response.failed", "error"})
_SAYS = frozenset(
    {
        "response.output_text.delta", "response.refusal.delta", "response.function_call_arguments.delta",
        "response.output_item.added", "response.output_item.done", "response.completed", "response.incomplete",
        "response.done",
    }
)  # fmt: skip
"""Events without which an answer would not be whole."""
_CALL = b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b}'
_SEARCH = b'{"type":"tool_search_call","execution":"client","call_id":%b,"status":"completed","arguments":%b}'
_SEARCHED = b'{"type":"tool_search_output","execution":"client","call_id":%b,"status":"completed","tools":[%b]}'
_FOUND = b'{"type":"function","name":%b,"description":%b,"defer_loading":true,"parameters":%b,"strict":false}'
_SEARCH_TOOL = (
    b'{"type":"tool_search","execution":"client","description":%b,"parameters":{"type":"object","properties":{"find":'
    b'{"type":"string","description":"A tool\'s name, or words for what you want to do."}},"required":["find"],'
    b'"additionalProperties":false}}'
)
_event_decoder = msgspec.json.Decoder(_ResponsesEvent)
_other_decoder = msgspec.json.Decoder(_OtherEvent)
_encrypted_decoder = msgspec.json.Decoder(_KeptItem)
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class OpenAiResponses(_OpenAi):
    """Responses: an item each for reasoning, text and every call."""

    kind = "openai-responses"
    schema_dialect = "full"
    answers_path = "/responses"
    text_template = b'{"type":"input_text","text":%b}'
    image_template = b'{"type":"input_image","detail":"auto","image_url":"data:%b;base64,%b"}'
    system_template = b',"instructions":%b'
    tool_template = b'{"type":"function","name":%b,"description":%b,"parameters":%b,"strict":false}'

    def write(self, request: ModelRequest, joined: JoinedMessages, form: MessageForm) -> EncodedRequest:
        """Nothing is stored at the provider; reasoning comes encrypted, to be sent back."""
        quirks, native = form.quirks, form.native
        parts = [b'{"model":', encode(request.model), b',"stream":true,"store":false']
        parts.append(b',"max_output_tokens":%d' % request.max_output_tokens)
        if quirks.reasoning_items:
            parts.append(b',"include":["reasoning.encrypted_content"]')
        parts.append(self.further(request, quirks))
        if request.system:
            parts.append(self.system(request.system))
        if request.tools and request.tool_choice == "auto":  # not every server heeds a tool_choice
            parts.append(self.tools(request.tools, () if native else None))
        return EncodedRequest(b"".join((*parts, b',"input":[', joined.buffer, b"]}")), joined.call_ids)

    def encode_message(self, message: ModelMessage, images: Images, form: MessageForm) -> EncodedMessage:
        """Reasoning that is not encrypted is left out: the provider would look for it, and has not stored it."""
        native = form.native
        match message:
            case UserMessage(text=text, images=shown):
                blocks = [*([self.encode_text(text)] if text or not shown else ()), *self.encode_images(shown, images)]
                return EncodedMessage("item", b'{"role":"user","content":[' + b",".join(blocks) + b"]}")
            case ToolMessage(name=name, call_id=call_id, found=found) if native and name == MORE_TOOLS:
                tools = (_FOUND % (encode(one.name), encode(one.description), one.parameters.encode()) for one in found)
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
                    kept = map(bytes, _items_decoder.decode(opaque.json))
                    items.extend(item for item in kept if _encrypted_decoder.decode(item).encrypted_content)
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

    def encode_tool(self, spec: ToolSpec, *, native: bool) -> bytes:
        """A function; or the search, where the model makes it in its own way."""
        if native and spec.name == MORE_TOOLS:
            return _SEARCH_TOOL % encode(spec.description)
        return super().encode_tool(spec, native=native)

    def reader(self, context: AnswerContext) -> AnswerReader:
        return ResponsesReader(context)


def _read_item(data: msgspec.Raw) -> _OutputItem:
    """An item. Of kinds that say nothing here, other fields may have any form. Raises UNREADABLE."""
    item, odd = decode_known(data, _OutputItem)
    if odd and item.type in ("function_call", "message"):
        raise msgspec.ValidationError(f"an item of another form: {', '.join(odd)}")
    return item


class ResponsesReader(AnswerReader):
    """One answer's events."""

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._reasoning: list[str] = []
        self._open: dict[int, CallParts] = {}
        self._spoken: set[int] = set()

    def feed(self, data: bytes) -> None:
        """Take in an event. A kind that is not known here, of whatever shape, says nothing."""
        try:
            event = read_event(_event_decoder, data, "response.usage")
        except msgspec.ValidationError:
            kind = _other_decoder.decode(data).type
            if kind in _FAILED:
                self.failure = self.failure_in(data)
            elif kind in _SAYS:  # of an answer nothing may be missing
                raise
            return
        index = event.output_index
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self._spoken.add(index)
                self.texts.append(event.delta)
                self.stop = "refusal" if event.type == "response.refusal.delta" else self.stop
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.thoughts.append(event.delta)
            case "response.reasoning_summary_part.added" if self.thoughts:
                self.thoughts.append("\n\n")
            case "response.function_call_arguments.delta":
                self._open.setdefault(index, CallParts()).arguments.append(event.delta)
            case "response.output_item.added":
                item = _read_item(event.item)
                if item.type == "function_call":
                    call = self._open[index] = CallParts(item.call_id, item.name)
                    self.calls.append(call)
            case "response.output_item.done":
                item = _read_item(event.item)
                match item.type:
                    case "reasoning":
                        self._reasoning.append(bytes(event.item).decode())
                    case "function_call":
                        call = self._open.get(index)
                        if call is None:
                            call = CallParts(item.call_id, item.name)
                            self.calls.append(call)
                        call.arguments = (
                            [item.arguments] if isinstance(item.arguments, str) and item.arguments else call.arguments
                        )
                    case "tool_search_call" if item.call_id:
                        asked = item.arguments if isinstance(item.arguments, str) else encode(item.arguments).decode()
                        self.calls.append(CallParts(item.call_id, MORE_TOOLS, [asked]))
                    case "message" if index not in self._spoken:
                        self.texts.extend(part.text or part.refusal for part in item.content or ())
                    case _:
                        pass
            case "response.completed" | "response.incomplete" | "response.done":
                response = event.response or _Response()
                self.complete = True
                self.model = response.model or ""
                if (usage := response.usage) is not None:
                    inputs = usage.input_tokens_details or _InputTokens()
                    outputs = usage.output_tokens_details or _OutputTokens()
                    cached, written = inputs.cached_tokens or 0, inputs.cache_write_tokens or 0
                    thought = outputs.reasoning_tokens or 0
                    self.usage = Usage(usage.input_tokens, usage.output_tokens, cached, written, thought)
                reason = response.incomplete_details.reason if response.incomplete_details is not None else None
                if reason in _INCOMPLETE:
                    self.stop = _INCOMPLETE[reason]
                elif not self.stop:
                    self.stop = "end"
            case kind if kind in _FAILED:
                error = bytes(event.response.error) if event.response is not None else b"null"
                self.failure = self.failure_in(data if error == b"null" else b'{"error":' + error + b"}")
            case kind if not kind.startswith("response."):
                self.failure = self.complaint_in(data)
            case _:
                pass

    def opaque(self) -> str:
        """The reasoning items as they came."""
        return "[" + ",".join(self._reasoning) + "]" if self._reasoning else ""
