"""The server side of Gemini's generateContent and streamGenerateContent."""

import base64
import hashlib

import msgspec

from shoal.kernel.messages import Usage
from shoal.testing.model.answer import Answer, data_frame, fill, object_json, text_json
from shoal.testing.model.script import Call, Refusal, Seen, SeenMessage

_FINISH = {"end": "STOP", "tool_calls": "STOP", "max_tokens": "MAX_TOKENS", "refusal": "SAFETY"}
_STATUS = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip

SKIP = "skip_thought_signature_validator"
"""Signature that clients send with a call from another model."""


class _FunctionCall(msgspec.Struct):
    name: str
    args: msgspec.Raw = msgspec.Raw(b"{}")
    id: str = ""


class _FunctionResponse(msgspec.Struct):
    name: str
    response: dict[str, msgspec.Raw]
    id: str = ""


class _Blob(msgspec.Struct, rename="camel"):
    mime_type: str
    data: str


class _Part(msgspec.Struct, rename="camel"):
    text: str = ""
    thought: bool = False
    thought_signature: str = ""
    function_call: _FunctionCall | None = None
    function_response: _FunctionResponse | None = None
    inline_data: _Blob | None = None


class _Content(msgspec.Struct):
    parts: list[_Part]
    role: str = "user"


class _Declaration(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct, rename="camel"):
    function_declarations: list[_Declaration] = []


class _Calling(msgspec.Struct, frozen=True):
    mode: str = "AUTO"


class _ToolConfig(msgspec.Struct, frozen=True, rename="camel"):
    function_calling_config: _Calling = _Calling()


class _Request(msgspec.Struct, rename="camel"):
    contents: list[_Content]
    system_instruction: _Content | None = None
    tools: list[_Tool] = []
    tool_config: _ToolConfig = _ToolConfig()


class _RawRequest(msgspec.Struct, rename="camel"):
    contents: list[msgspec.Raw]
    system_instruction: msgspec.Raw = msgspec.Raw(b"null")
    tools: msgspec.Raw = msgspec.Raw(b"[]")


_decoder = msgspec.json.Decoder(_Request)
_raw_decoder = msgspec.json.Decoder(_RawRequest)
_text_decoder = msgspec.json.Decoder(str)


def sign(call: str) -> str:
    return base64.b64encode(hashlib.sha256(call.encode()).digest()[:18]).decode()


def _result_text(response: dict[str, msgspec.Raw]) -> str:
    for value in response.values():
        if bytes(value).startswith(b'"'):
            return _text_decoder.decode(value)
    return ""


def _split(content: _Content) -> list[SeenMessage]:
    text = "".join(part.text for part in content.parts if not part.thought)
    if content.role == "model":
        calls = [part.function_call for part in content.parts if part.function_call]
        return [SeenMessage("assistant", text, tuple(Call(c.name, bytes(c.args).decode(), c.id) for c in calls))]
    results = [
        SeenMessage("tool", _result_text(part.function_response.response), call_id=part.function_response.id)
        for part in content.parts
        if part.function_response
    ]
    images = sum(part.inline_data is not None for part in content.parts)
    if results and images and not text:
        results[-1] = msgspec.structs.replace(results[-1], images=images)
    messages = [SeenMessage("user", text, images=images)] if text or not results else []
    return [*results, *messages]


def _check_signatures(seen: Seen, contents: list[_Content]) -> None:
    for content in contents:
        for part in content.parts:
            call = part.function_call
            if call is None or not part.thought_signature:
                continue
            if part.thought_signature == sign(call.name):
                seen.signed += 1
            elif part.thought_signature != SKIP:
                seen.problem = "Thought signature is not valid."


def usage_json(usage: Usage) -> bytes:
    """Return the `usageMetadata` object. Its `candidatesTokenCount` does not include thoughts."""
    return fill(
        '{"promptTokenCount":~,"candidatesTokenCount":~,"totalTokenCount":~,"cachedContentTokenCount":~,'
        '"thoughtsTokenCount":~}',
        usage.input_tokens,
        usage.output_tokens - usage.reasoning_tokens,
        usage.input_tokens + usage.output_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
    )


class GeminiWire:
    def read(self, body: bytes, path: str) -> Seen:
        """Parse a request. The path contains the name of the model and selects streaming."""
        request = _decoder.decode(body)
        raw = _raw_decoder.decode(body)
        messages: list[SeenMessage] = []
        if request.system_instruction:
            messages.append(SeenMessage("system", "".join(part.text for part in request.system_instruction.parts)))
        for content in request.contents:
            messages.extend(_split(content))
        offered = request.tools if request.tool_config.function_calling_config.mode != "NONE" else []
        names = tuple(function.name for tool in offered for function in tool.function_declarations)
        model = path.rsplit("/", 1)[-1].split(":", 1)[0]
        seen = Seen("gemini", model, tuple(messages), names)
        seen.stream = ":streamGenerateContent" in path
        seen.key = repr((bytes(raw.system_instruction), *(bytes(content) for content in raw.contents[:1])))
        parts = (bytes(content) for content in raw.contents)
        seen.prompt = b"\n".join((bytes(raw.system_instruction), bytes(raw.tools), *parts))
        _check_signatures(seen, request.contents)
        return seen

    def events(self, answer: Answer, seen: Seen) -> list[bytes]:
        parts = self._parts(answer, list(answer.pieces))
        if not parts:
            parts = [b'{"text":""}']
        frames = [data_frame(self._chunk(answer, part, b"")) for part in parts[:-1]]
        finish = b',"finishReason":' + text_json(_FINISH.get(answer.stop, "STOP"))
        return [*frames, data_frame(self._chunk(answer, parts[-1], finish))]

    def _parts(self, answer: Answer, pieces: list[str]) -> list[bytes]:
        parts = [fill('{"text":~,"thought":true}', answer.thinking)] if answer.thinking else []
        parts.extend(fill('{"text":~}', piece) for piece in pieces)
        for index, call in enumerate(answer.calls):
            body = fill('"functionCall":{"id":~,"name":~,"args":~}', call.id, call.name, object_json(call.arguments))
            signed = fill(',"thoughtSignature":~', sign(call.name)) if answer.thinking and index == 0 else b""
            parts.append(b"{" + body + signed + b"}")
        return parts

    def _chunk(self, answer: Answer, parts: bytes, finish: bytes) -> bytes:
        return fill(
            '{"candidates":[{"content":{"parts":[~],"role":"model"}~,"index":0}],"usageMetadata":~,'
            '"modelVersion":~,"responseId":~}',
            parts,
            finish,
            usage_json(answer.usage),
            answer.model,
            answer.id,
        )

    def whole(self, answer: Answer) -> bytes:
        parts = b",".join(self._parts(answer, [answer.text] if answer.pieces else []))
        return self._chunk(answer, parts, b',"finishReason":' + text_json(_FINISH.get(answer.stop, "STOP")))

    def refuse(self, refusal: Refusal) -> bytes:
        """Return an error as JSON. A `retry-after` header becomes Gemini's RetryInfo detail."""
        status = refusal.code or _STATUS.get(refusal.status, "UNKNOWN")
        wait = dict(refusal.headers).get("retry-after", "")
        kind = b'"type.googleapis.com/google.rpc.RetryInfo"'
        details = fill('{"@type":~,"retryDelay":~}', kind, f"{wait}s") if wait else b""
        body = '{"error":{"code":~,"message":~,"status":~,"details":[~]}}'
        return fill(body, refusal.status, refusal.message, status, details)

    def refuse_in_stream(self, refusal: Refusal) -> bytes:
        return data_frame(self.refuse(refusal))
