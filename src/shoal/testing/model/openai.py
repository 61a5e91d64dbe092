"""The server side of OpenAI's Chat Completions API."""

import msgspec

from shoal.kernel.messages import Usage
from shoal.testing.model.answer import CREATED, Answer, data_frame, fill, fragments, text_json
from shoal.testing.model.script import Call, Refusal, Seen, SeenMessage

_FINISH = {"end": "stop", "tool_calls": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = "{}"


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""


class _Tool(msgspec.Struct):
    function: _Function


class _Options(msgspec.Struct):
    include_usage: bool = False


class _Request(msgspec.Struct):
    model: str
    messages: list[_Message]
    tools: list[_Tool] = []
    stream: bool = False
    stream_options: _Options | None = None
    prompt_cache_key: str = ""
    user: str = ""


class _Raw(msgspec.Struct):
    messages: list[msgspec.Raw]
    tools: msgspec.Raw = msgspec.Raw(b"[]")


_decoder = msgspec.json.Decoder(_Request)
_raw_decoder = msgspec.json.Decoder(_Raw)


def _seen(message: _Message) -> SeenMessage:
    text, images = "", 0
    if isinstance(message.content, str):
        text = message.content
    elif message.content:
        text = "".join(part.text for part in message.content)
        images = sum(part.type == "image_url" for part in message.content)
    calls = tuple(Call(call.function.name, call.function.arguments, call.id) for call in message.tool_calls or ())
    role = _ROLES.get(message.role, "user")
    return SeenMessage(role, text, calls, message.tool_call_id, images)  # pyright: ignore[reportArgumentType]


def usage_json(usage: Usage) -> bytes:
    return fill(
        '{"prompt_tokens":~,"completion_tokens":~,"total_tokens":~,'
        '"prompt_tokens_details":{"cached_tokens":~},"completion_tokens_details":{"reasoning_tokens":~}}',
        usage.input_tokens,
        usage.output_tokens,
        usage.input_tokens + usage.output_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
    )


class OpenAiWire:
    def read(self, body: bytes, path: str) -> Seen:
        request = _decoder.decode(body)
        raw = _raw_decoder.decode(body)
        seen = Seen(
            "openai",
            request.model,
            tuple(_seen(message) for message in request.messages),
            tuple(tool.function.name for tool in request.tools),
        )
        seen.stream = request.stream
        parts = [bytes(message) for message in raw.messages]
        seen.key = request.prompt_cache_key or request.user or repr(parts[:2])
        seen.prompt = b"\n".join((bytes(raw.tools), *parts))
        seen.wants_usage = request.stream_options is not None and request.stream_options.include_usage
        return seen

    def events(self, answer: Answer, seen: Seen) -> list[bytes]:
        head = fill('{"id":~,"object":"chat.completion.chunk","created":~,"model":~,', answer.id, CREATED, answer.model)

        def chunk(delta: bytes, finish: bytes = b"null") -> bytes:
            body = b'"choices":[{"index":0,"delta":' + delta + b',"logprobs":null,"finish_reason":' + finish + b"}]}"
            return data_frame(head + body)

        frames = [chunk(b'{"role":"assistant","content":""}')]
        if answer.thinking:
            frames.append(chunk(b'{"reasoning_content":' + text_json(answer.thinking) + b"}"))
        frames.extend(chunk(b'{"content":' + text_json(piece) + b"}") for piece in answer.pieces)
        for index, call in enumerate(answer.calls):
            opening = '{"tool_calls":[{"index":~,"id":~,"type":"function","function":{"name":~,"arguments":""}}]}'
            frames.append(chunk(fill(opening, index, call.id, call.name)))
            frames.extend(
                chunk(fill('{"tool_calls":[{"index":~,"function":{"arguments":~}}]}', index, part))
                for part in fragments(call.arguments)
            )
        frames.append(chunk(b"{}", text_json(_FINISH.get(answer.stop, "stop"))))
        if seen.wants_usage:
            frames.append(data_frame(head + b'"choices":[],"usage":' + usage_json(answer.usage) + b"}"))
        frames.append(b"data: [DONE]\n\n")
        return frames

    def whole(self, answer: Answer) -> bytes:
        calls = b",".join(
            fill('{"id":~,"type":"function","function":{"name":~,"arguments":~}}', call.id, call.name, call.arguments)
            for call in answer.calls
        )
        message = fill('{"role":"assistant","content":~,"refusal":null', answer.text)
        message += b',"tool_calls":[' + calls + b"]}" if calls else b"}"
        return fill(
            '{"id":~,"object":"chat.completion","created":~,"model":~,'
            '"choices":[{"index":0,"message":~,"logprobs":null,"finish_reason":~}],"usage":~}',
            answer.id,
            CREATED,
            answer.model,
            message,
            _FINISH.get(answer.stop, "stop"),
            usage_json(answer.usage),
        )

    def refuse(self, refusal: Refusal) -> bytes:
        kind = "invalid_request_error" if refusal.status < 500 else "server_error"
        code = text_json(refusal.code) if refusal.code else b"null"
        return fill('{"error":{"message":~,"type":~,"param":null,"code":~}}', refusal.message, kind, code)

    def refuse_in_stream(self, refusal: Refusal) -> bytes:
        return data_frame(self.refuse(refusal))
