"""Gemini's streamGenerateContent: whole function calls instead of fragments, and signatures that go back with them."""

from urllib.parse import quote

import msgspec

from shoal.domain.messages import (
    AssistantMessage,
    Image,
    ModelDone,
    ModelFailed,
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
from shoal.providers.wire import Asked, CallSlot, Encoded, Finish, Quirks, Reader, arguments_object, encode, wire_id

_NO_CALLS = b',"toolConfig":{"functionCallingConfig":{"mode":"NONE"}}'
NO_SIGNATURE = b'"skip_thought_signature_validator"'
"""What Gemini takes in place of the signature of a call that another model made."""
_FINISH: dict[str, Finish] = {
    "STOP": "end", "MAX_TOKENS": "max_tokens", "CONTINUATION": "max_tokens", "SAFETY": "refusal",
    "RECITATION": "refusal", "BLOCKLIST": "refusal", "PROHIBITED_CONTENT": "refusal", "SPII": "refusal",
    "IMAGE_SAFETY": "refusal", "LANGUAGE": "refusal", "MODEL_ARMOR": "refusal", "ESCALATION": "refusal",
}  # fmt: skip
_BROKEN = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE", "OTHER"})
"""Ends for which trying again may help."""


class _FunctionCall(msgspec.Struct):
    name: str
    args: msgspec.Raw = msgspec.Raw(b"{}")
    id: str | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool = False
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Usage(msgspec.Struct, rename="camel"):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


_NOTHING = msgspec.Raw(b"")


class _Chunk(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _Usage | None = None
    prompt_feedback: _Feedback | None = None
    model_version: str | None = None
    error: msgspec.Raw = _NOTHING


class _Kept(msgspec.Struct, omit_defaults=True):
    """Signatures of an answer: of its text, and of each call by its place (empty: it had none)."""

    text: str = ""
    calls: list[str] = []


class _Model(msgspec.Struct, rename="camel"):
    name: str
    input_token_limit: int = 0
    output_token_limit: int = 0
    supported_generation_methods: tuple[str, ...] = ("generateContent",)


class _Models(msgspec.Struct):
    models: list[_Model] = []


_chunk_decoder = msgspec.json.Decoder(_Chunk)
_kept_decoder = msgspec.json.Decoder(_Kept)
_models_decoder = msgspec.json.Decoder(_Models)


class GeminiForm:
    """Messages as contents with parts; results, and the words that follow them, share one user content."""

    def part(self, message: ModelMessage, images: Images) -> Part:
        """See `Form`."""
        match message:
            case UserMessage(text=text, images=shown):
                parts = [b'{"text":' + encode(text) + b"}"] if text or not shown else []
                return Part("user", b",".join((*parts, *(_image(image, images) for image in shown))))
            case AssistantMessage():
                return Part("model", b",".join(_assistant(message)))
            case ToolMessage(call_id=call_id, name=name, text=text, images=shown, is_error=is_error):
                key = b"error" if is_error else b"output"
                body = b'{"functionResponse":{"id":%b,"name":%b,"response":{"%b":%b}}}' % (
                    encode(wire_id(call_id)),
                    encode(name),
                    key,
                    encode(text),
                )
                return Part("user", body, b",".join(_image(image, images) for image in shown))

    def open(self, role: str) -> bytes:
        """See `Form`."""
        return b'{"role":"' + role.encode() + b'","parts":['

    def close(self, role: str) -> bytes:
        """See `Form`."""
        return b"]}"


def _image(image: Image, images: Images) -> bytes:
    data = images.get(image.path)
    if data is None:
        return b'{"text":' + encode(missing_image(image)) + b"}"
    return b'{"inlineData":{"mimeType":%b,"data":"%b"}}' % (encode(image.media_type), data)


def _assistant(message: AssistantMessage) -> list[bytes]:
    own = message.opaque is not None and message.opaque.kind.startswith("gemini:")
    kept = _kept_decoder.decode(message.opaque.json) if message.opaque is not None and own else _Kept()
    parts: list[bytes] = []
    if message.text:
        parts.append(b'{"text":' + encode(message.text) + _signature(kept.text) + b"}")
    for index, call in enumerate(message.tool_calls):
        signature = kept.calls[index] if index < len(kept.calls) else ""
        signed = _signature(signature)
        if not signed and not own and index == 0:
            signed = b',"thoughtSignature":' + NO_SIGNATURE
        parts.append(b'{"functionCall":' + _call(call) + signed + b"}")
    return parts


def _call(call: ToolCall) -> bytes:
    head = b'{"id":%b,"name":%b,"args":' % (encode(wire_id(call.id)), encode(call.name))
    return head + arguments_object(call.arguments) + b"}"


def _signature(signature: str) -> bytes:
    return b',"thoughtSignature":' + encode(signature) if signature else b""


def _tools(specs: tuple[ToolSpec, ...]) -> bytes:
    functions = (
        b'{"name":%b,"description":%b,"parametersJsonSchema":%b}'
        % (encode(spec.name), encode(spec.description), spec.parameters.encode())
        for spec in specs
    )
    return b',"tools":[{"functionDeclarations":[' + b",".join(functions) + b"]}]"


def _system(text: str) -> bytes:
    return b',"systemInstruction":{"parts":[{"text":' + encode(text) + b"}]}"


class GeminiWire:
    """streamGenerateContent."""

    kind = "gemini"
    models_path = "/models?pageSize=1000"

    def __init__(self) -> None:
        self.conversations = Conversations(GeminiForm())
        self._stable = StableParts()

    def path(self, model: str) -> str:
        """See `Wire`."""
        return f"/models/{quote(model.removeprefix('models/'), safe='')}:streamGenerateContent?alt=sse"

    def headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """See `Wire`."""
        found = [(b"content-type", b"application/json")]
        return [*found, (b"x-goog-api-key", key.encode())] if key else found

    def encode(self, request: ModelRequest, quirks: Quirks, images: Images) -> Encoded:
        """See `Wire`."""
        joined = self.conversations.join(request, images)
        parts = [b'{"generationConfig":{"maxOutputTokens":%d' % request.max_output_tokens]
        if quirks.temperature and request.temperature is not None:
            parts.append(b',"temperature":%b' % encode(request.temperature))
        parts.append(b"}")
        if request.system:
            parts.append(self._stable.system(request.system, _system))
        if request.tools:
            parts.append(self._stable.tools(request.tools, _tools))
            parts.append(_NO_CALLS if request.tool_choice == "none" else b"")
        ending = joined.ending(self.conversations.form)
        return Encoded(b"".join((*parts, b',"contents":[', joined.buffer, ending, b"]}")), joined.call_ids)

    def reader(self, asked: Asked) -> Reader:
        """See `Wire`."""
        return GeminiReader(asked)

    def models(self, body: bytes) -> list[ModelInfo]:
        """See `Wire`. Models that do not generate content are left out."""
        return [
            ModelInfo(found.name.removeprefix("models/"), found.input_token_limit, found.output_token_limit)
            for found in _models_decoder.decode(body).models
            if "generateContent" in found.supported_generation_methods
        ]


class GeminiReader(Reader):
    """One answer's chunks."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._text_signature = ""
        self._call_signatures: list[str] = []
        self._broken = ""

    def feed(self, data: bytes) -> None:
        """See `Reader`. There is no event that ends a stream here; the connection's end does."""
        chunk = _chunk_decoder.decode(data)
        if chunk.error is not _NOTHING and bytes(chunk.error) != b"null":
            self.failure = self.complaint(data)
            return
        if chunk.candidates:
            candidate = chunk.candidates[0]
            for part in (candidate.content.parts if candidate.content is not None else None) or ():
                self._take(part)
            if candidate.finish_reason:
                self._finish(candidate.finish_reason, candidate.finish_message or "")
        if chunk.usage_metadata is not None:
            self.usage = _usage(chunk.usage_metadata)
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason:
            reason = chunk.prompt_feedback.block_reason_message or chunk.prompt_feedback.block_reason
            who = self.asked.provider
            self.failure = ModelFailed("content_filter", f"{who} blocked the prompt under its policy: {reason}.")
        if not self.model and chunk.model_version:
            self.model = chunk.model_version

    def _take(self, part: _Part) -> None:
        call = part.function_call
        if call is not None:
            arguments = bytes(call.args).decode()
            self.calls.append(CallSlot(call.id or "", call.name, "{}" if arguments == "null" else arguments))
            self._call_signatures.append(part.thought_signature or "")
            return
        if part.text:
            (self.thoughts if part.thought else self.texts).append(part.text)
        if part.thought_signature and not part.thought:
            self._text_signature = part.thought_signature

    def _finish(self, reason: str, message: str) -> None:
        if reason in _BROKEN:
            self._broken = f"{reason} {message}".strip()
        self.stop = _FINISH.get(reason, "end")

    def opaque(self) -> str:
        """See `Reader`."""
        signed = self._text_signature or any(self._call_signatures)
        return encode(_Kept(self._text_signature, self._call_signatures)).decode() if signed else ""

    def result(self) -> ModelDone | ModelFailed:
        """See `Reader`. An answer that is nothing but a broken call is a failure that may pass."""
        if self._broken and not self.texts and not self.calls and self.failure is None:
            return ModelFailed("dropped", f"{self.asked.provider} broke off its answer: {self._broken}.")
        return super().result()


def _usage(usage: _Usage) -> Usage:
    """Thoughts are counted beside the answer there, and are output all the same."""
    thoughts = usage.thoughts_token_count or 0
    return Usage(
        (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        (usage.candidates_token_count or 0) + thoughts,
        usage.cached_content_token_count or 0,
        0,
        thoughts,
    )
