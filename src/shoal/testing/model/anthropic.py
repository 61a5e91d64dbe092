"""The server side of Anthropic's Messages API. Like the real API, it rejects changed thinking blocks."""

import hashlib

import msgspec

from shoal.testing.model.answer import Answer, fill, fragments, named_frame, object_json, text_json
from shoal.testing.model.script import Call, Refusal, Seen, SeenMessage
from shoal.testing.model.tokens import MARK

_STOPS = {"end": "end_turn", "tool_calls": "tool_use", "max_tokens": "max_tokens", "refusal": "refusal"}
_ERRORS = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
    504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    tool_use_id: str = ""
    content: "str | list[_Block]" = ""
    tool_name: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Tool(msgspec.Struct):
    name: str
    defer_loading: bool = False
    cache_control: msgspec.Raw = msgspec.Raw(b"null")


class _Metadata(msgspec.Struct, frozen=True):
    user_id: str = ""


class _Choice(msgspec.Struct, frozen=True):
    type: str = "auto"


class _Request(msgspec.Struct):
    model: str
    max_tokens: int
    messages: list[_Message]
    system: str | list[_Block] = ""
    tools: list[_Tool] = []
    tool_choice: _Choice = _Choice()
    stream: bool = False
    metadata: _Metadata = _Metadata()


class _RawRequest(msgspec.Struct):
    messages: list[msgspec.Raw]
    system: msgspec.Raw = msgspec.Raw(b'""')
    tools: msgspec.Raw = msgspec.Raw(b"[]")


_decoder = msgspec.json.Decoder(_Request)
_raw_decoder = msgspec.json.Decoder(_RawRequest)
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_tool_decoder = msgspec.json.Decoder(_Tool)


def sign(thinking: str) -> str:
    return "sig-" + hashlib.sha256(thinking.encode()).hexdigest()[:32]


def _text(content: str | list[_Block]) -> str:
    return content if isinstance(content, str) else "".join(block.text or block.tool_name for block in content)


def _images(content: str | list[_Block]) -> int:
    return 0 if isinstance(content, str) else sum(block.type == "image" for block in content)


def _split(message: _Message) -> list[SeenMessage]:
    if isinstance(message.content, str):
        return [SeenMessage("assistant" if message.role == "assistant" else "user", message.content)]
    if message.role == "assistant":
        calls = tuple(
            Call(block.name, bytes(block.input).decode(), block.id)
            for block in message.content
            if block.type == "tool_use"
        )
        return [SeenMessage("assistant", _text(message.content), calls)]
    results = [
        SeenMessage("tool", _text(block.content), call_id=block.tool_use_id, images=_images(block.content))
        for block in message.content
        if block.type == "tool_result"
    ]
    rest = [block for block in message.content if block.type != "tool_result"]
    return [*results, SeenMessage("user", _text(rest), images=_images(rest))] if rest else list(results)


def _check_references(seen: Seen, request: _Request) -> None:
    known = {tool.name for tool in request.tools}
    blocks = [
        block for message in request.messages if not isinstance(message.content, str) for block in message.content
    ]
    referred = [inner for block in blocks if not isinstance(block.content, str) for inner in block.content]
    names = {block.tool_name for block in referred if block.type == "tool_reference"}
    if unknown := names - known:
        seen.problem = f"Tool reference '{min(unknown)}' not found in available tools"
    if known and all(tool.defer_loading for tool in request.tools):
        seen.problem = "At least one tool must have defer_loading=false."
    if any(tool.defer_loading and bytes(tool.cache_control) != b"null" for tool in request.tools):
        seen.problem = "Tools with defer_loading cannot use prompt caching."
    for block in blocks:
        if not isinstance(block.content, str) and len({inner.type == "tool_reference" for inner in block.content}) > 1:
            seen.problem = "tool_reference blocks cannot be combined with other content"
    seen.tools = tuple(name for name in seen.tools if name in names or name not in _deferred(request))


def _deferred(request: _Request) -> set[str]:
    return {tool.name for tool in request.tools if tool.defer_loading}


def _check_thinking(seen: Seen, messages: list[_Message]) -> None:
    for message in messages:
        for block in [] if isinstance(message.content, str) else message.content:
            if block.type == "thinking" and block.signature != sign(block.thinking):
                seen.problem = "Invalid `signature` in `thinking` block"
            elif block.type == "thinking":
                seen.signed += 1


def _thread_key(raw: _RawRequest) -> str:
    return b"".join((raw.system, *raw.messages[:1])).replace(MARK, b"").decode()


class AnthropicWire:
    def read(self, body: bytes, path: str) -> Seen:
        request = _decoder.decode(body)
        raw = _raw_decoder.decode(body)
        messages = [SeenMessage("system", _text(request.system))]
        for message in request.messages:
            messages.extend(_split(message))
        offered = request.tools if request.tool_choice.type != "none" else []
        seen = Seen("anthropic", request.model, tuple(messages), tuple(tool.name for tool in offered))
        seen.stream = request.stream
        seen.key = request.metadata.user_id or _thread_key(raw)
        loaded = [bytes(tool) for tool in _raws.decode(raw.tools) if not _tool_decoder.decode(tool).defer_loading]
        seen.prompt = b"\n".join((*loaded, bytes(raw.system), *(bytes(message) for message in raw.messages)))
        _check_thinking(seen, request.messages)
        _check_references(seen, request)
        return seen

    def events(self, answer: Answer, seen: Seen) -> list[bytes]:
        frames = [named_frame("message_start", b'{"type":"message_start","message":' + self._message(answer) + b"}")]
        frames.append(named_frame("ping", b'{"type":"ping"}'))
        blocks: list[tuple[bytes, list[bytes]]] = []
        if answer.thinking:
            deltas = [
                fill('{"type":"thinking_delta","thinking":~}', answer.thinking),
                fill('{"type":"signature_delta","signature":~}', sign(answer.thinking)),
            ]
            blocks.append((b'{"type":"thinking","thinking":"","signature":""}', deltas))
        if answer.redacted_thinking:
            blocks.append((fill('{"type":"redacted_thinking","data":~}', answer.redacted_thinking), []))
        if answer.pieces:
            deltas = [fill('{"type":"text_delta","text":~}', piece) for piece in answer.pieces]
            blocks.append((b'{"type":"text","text":""}', deltas))
        for call in answer.calls:
            deltas = [fill('{"type":"input_json_delta","partial_json":~}', part) for part in fragments(call.arguments)]
            start = fill('{"type":"tool_use","id":~,"name":~,"input":{}}', call.id, call.name)
            blocks.append((start, [b'{"type":"input_json_delta","partial_json":""}', *deltas]))
        for index, (start, deltas) in enumerate(blocks):
            frames.extend(self._block(index, start, deltas))
        end = fill(
            '{"type":"message_delta","delta":{"stop_reason":~,"stop_sequence":null},"usage":{"output_tokens":~}}',
            _STOPS.get(answer.stop, "end_turn"),
            answer.usage.output_tokens,
        )
        return [*frames, named_frame("message_delta", end), named_frame("message_stop", b'{"type":"message_stop"}')]

    def _block(self, index: int, start: bytes, deltas: list[bytes]) -> list[bytes]:
        frames = [
            named_frame(
                "content_block_start",
                fill('{"type":"content_block_start","index":~,"content_block":~}', index, start),
            )
        ]
        frames.extend(
            named_frame("content_block_delta", fill('{"type":"content_block_delta","index":~,"delta":~}', index, delta))
            for delta in deltas
        )
        frames.append(named_frame("content_block_stop", fill('{"type":"content_block_stop","index":~}', index)))
        return frames

    def _message(self, answer: Answer, content: bytes = b"", stop: bytes = b"null", output: int = 1) -> bytes:
        usage = answer.usage
        return fill(
            '{"id":~,"type":"message","role":"assistant","model":~,"content":[~],"stop_reason":~,"stop_sequence":null,'
            '"usage":{"input_tokens":~,"cache_creation_input_tokens":~,"cache_read_input_tokens":~,"output_tokens":~}}',
            answer.id,
            answer.model,
            content,
            stop,
            usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
            usage.cache_write_tokens,
            usage.cached_tokens,
            output,
        )

    def whole(self, answer: Answer) -> bytes:
        blocks: list[bytes] = []
        if answer.thinking:
            signature = sign(answer.thinking)
            blocks.append(fill('{"type":"thinking","thinking":~,"signature":~}', answer.thinking, signature))
        if answer.redacted_thinking:
            blocks.append(fill('{"type":"redacted_thinking","data":~}', answer.redacted_thinking))
        if answer.pieces:
            blocks.append(fill('{"type":"text","text":~}', answer.text))
        blocks.extend(
            fill('{"type":"tool_use","id":~,"name":~,"input":~}', call.id, call.name, object_json(call.arguments))
            for call in answer.calls
        )
        stop = text_json(_STOPS.get(answer.stop, "end_turn"))
        return self._message(answer, b",".join(blocks), stop, answer.usage.output_tokens)

    def refuse(self, refusal: Refusal) -> bytes:
        kind = refusal.code or _ERRORS.get(refusal.status, "api_error")
        return fill('{"type":"error","error":{"type":~,"message":~},"request_id":"req_fake"}', kind, refusal.message)

    def refuse_in_stream(self, refusal: Refusal) -> bytes:
        return named_frame("error", self.refuse(refusal))
