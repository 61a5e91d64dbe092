"""OpenAI Responses: items instead of messages, nothing stored at the provider, encrypted reasoning sent back.

Where the model searches for tools itself, `more_tools` is its `tool_search`, carried out here: a call is an item of its
own, and the definitions stand in the item of its result, behind all that is cached.
"""

import msgspec

from shoal.domain.messages import (
    MORE_TOOLS,
    AssistantMessage,
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
    Quirks,
    encode,
    encode_call,
    portable_call_id,
    read_event,
)
from shoal.providers.openai import OpenAiChat, openai_models


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


class _InputTokens(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputTokens(msgspec.Struct):
    reasoning_tokens: int | None = None


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
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class OpenAiResponses(ApiProtocol):
    """Responses: an item each for reasoning, text and every call."""

    kind = "openai-responses"
    answers_path = "/responses"
    fixed_headers = OpenAiChat.fixed_headers
    text_template = b'{"type":"input_text","text":%b}'
    image_template = b'{"type":"input_image","detail":"auto","image_url":"data:%b;base64,%b"}'
    system_template = b',"instructions":%b'
    tool_template = b'{"type":"function","name":%b,"description":%b,"parameters":%b,"strict":false}'

    def encode(self, request: ModelRequest, quirks: Quirks, images: Images) -> EncodedRequest:
        """Nothing is stored at the provider; reasoning comes encrypted, to be sent back."""
        native = self.searches(request, quirks)
        joined = self.conversations.join(request, images, native=native)
        parts = [b'{"model":', encode(request.model), b',"stream":true,"store":false']
        parts.append(b',"max_output_tokens":%d' % request.max_output_tokens)
        if quirks.reasoning_items:
            parts.append(b',"include":["reasoning.encrypted_content"]')
        if quirks.temperature and request.temperature is not None:
            parts.append(b',"temperature":%b' % encode(request.temperature))
        if quirks.cache_key and request.cache_key:
            parts.append(b',"prompt_cache_key":%b' % encode(request.cache_key[-64:]))
        if request.system:
            parts.append(self.system(request.system))
        if request.tools and request.tool_choice == "auto":  # not every server heeds a tool_choice
            parts.append(self.tools(request.tools, () if native else None))
        return EncodedRequest(b"".join((*parts, b',"input":[', joined.buffer, b"]}")), joined.call_ids)

    def encode_message(self, message: ModelMessage, images: Images, *, native: bool = False) -> EncodedMessage:
        """Reasoning goes back only to the provider it came from."""
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
                if opaque is not None and opaque.kind.startswith("openai-responses:"):
                    items.extend(bytes(item) for item in _items_decoder.decode(opaque.json))
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

    def models(self, body: bytes) -> list[ModelInfo]:
        return openai_models(body)


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
                        self.calls.append(CallParts(item.call_id, MORE_TOOLS, asked))
                    case "message" if index not in self._spoken:
                        self.texts.extend(part.text or part.refusal for part in item.content or ())
                    case _:
                        pass
            case "response.completed" | "response.incomplete" | "response.done":
                response = event.response or _Response()
                self.complete = True
                self.model = response.model or ""
                if (usage := response.usage) is not None:
                    inputs, outputs = usage.input_tokens_details, usage.output_tokens_details
                    self.usage = Usage(
                        usage.input_tokens,
                        usage.output_tokens,
                        (inputs.cached_tokens if inputs else 0) or 0,
                        (inputs.cache_write_tokens if inputs else 0) or 0,
                        (outputs.reasoning_tokens if outputs else 0) or 0,
                    )
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
