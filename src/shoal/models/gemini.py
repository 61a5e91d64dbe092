"""Gemini's streamGenerateContent. Each function call arrives in one piece, and signatures are sent back."""

from typing import cast
from urllib.parse import quote

import msgspec

from shoal.kernel.messages import (
    AssistantMessage,
    ModelDone,
    ModelFailed,
    ModelInfo,
    ModelMessage,
    ModelRequest,
    ToolMessage,
    Usage,
    UserMessage,
)
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.answers import AnswerContext, AnswerReader, CallParts, Finish, portable_call_id
from shoal.models.api_protocol import (
    ApiProtocol,
    EncodedMessage,
    EncodedRequest,
    Images,
    JoinedMessages,
    encode,
    encode_call,
    portable_call_name,
)
from shoal.models.arrange import MessageForm
from shoal.models.odd_json import raw_json

_NO_CALLS = b',"toolConfig":{"functionCallingConfig":{"mode":"NONE"}}'
NO_SIGNATURE = b'"skip_thought_signature_validator"'
"""Placeholder that Gemini accepts instead of a signature if another model made the call."""
_FINISH: dict[str, Finish] = {
    "STOP": "end", "MAX_TOKENS": "max_tokens", "CONTINUATION": "max_tokens", "SAFETY": "refusal",
    "RECITATION": "refusal", "BLOCKLIST": "refusal", "PROHIBITED_CONTENT": "refusal", "SPII": "refusal",
    "IMAGE_SAFETY": "refusal", "LANGUAGE": "refusal", "MODEL_ARMOR": "refusal", "ESCALATION": "refusal",
    "LENGTH": "max_tokens",
}  # fmt: skip
_UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"
_BROKEN = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE", "OTHER"})
"""Stop reasons after which a retry may succeed."""


class _FunctionCall(msgspec.Struct):
    name: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")
    id: str | None = None


class _GeminiPart(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool = False
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None


class _GeminiContent(msgspec.Struct):
    parts: list[_GeminiPart] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _GeminiContent | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _GeminiUsage(msgspec.Struct, rename="camel"):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None


class _PromptFeedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


_NOTHING = msgspec.Raw(b"")
_NO_ERRORS = frozenset({b"", b"null", b"false", b"0", b'""', b"{}", b"[]"})


class _GeminiChunk(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _GeminiUsage | None = None
    prompt_feedback: _PromptFeedback | None = None
    model_version: str | None = None
    error: msgspec.Raw = _NOTHING


class _StoredSignatures(msgspec.Struct, omit_defaults=True):
    """The signatures of a message's text and of its calls, in order. A missing signature is an empty string."""

    text: str = ""
    calls: list[str] = []


class _GeminiModel(msgspec.Struct, rename="camel"):
    name: str
    input_token_limit: int = 0
    output_token_limit: int = 0
    supported_generation_methods: tuple[str, ...] = ("generateContent",)


class _GeminiModels(msgspec.Struct):
    models: list[_GeminiModel] = []


_signatures_decoder = msgspec.json.Decoder(_StoredSignatures)
_models_decoder = msgspec.json.Decoder(_GeminiModels)


class GeminiContents(ApiProtocol):
    """Encodes requests for streamGenerateContent. Tool results and the user message after them are sent as one
    content.
    """

    kind = "gemini"
    models_path = "/models?pageSize=1000"
    key_header = (b"x-goog-api-key", b"")
    frame = (b'{"role":"%b","parts":[', b"]}")
    text_template = b'{"text":%b}'
    image_template = b'{"inlineData":{"mimeType":"%b","data":"%b"}}'
    system_template = b',"systemInstruction":{"parts":[{"text":%b}]}'
    tool_template = b'{"name":%b,"description":%b,"parametersJsonSchema":%b}'
    tools_template = b',"tools":[{"functionDeclarations":[%b]}]'

    def path(self, model: str) -> str:
        return f"/models/{quote(model.removeprefix('models/'), safe='')}:streamGenerateContent?alt=sse"

    def write(self, request: ModelRequest, joined: JoinedMessages, form: MessageForm) -> EncodedRequest:
        quirks = form.quirks
        parts = [b'{"generationConfig":{"maxOutputTokens":%d' % request.max_output_tokens]
        if quirks.temperature and request.temperature is not None:
            parts.append(b',"temperature":%b' % encode(request.temperature))
        parts.append(b"}")
        if request.system:
            parts.append(self.system(request.system))
        if request.tools:
            parts.append(self.tools(request.tools, self.dialect(quirks)))
            parts.append(_NO_CALLS if request.tool_choice == "none" else b"")
        content = b"".join((*parts, b',"contents":[', joined.buffer, joined.ending(self), b"]}"))
        return EncodedRequest(content, joined.call_ids)

    def encode_message(self, message: ModelMessage, images: Images, form: MessageForm) -> EncodedMessage:
        """Encode a message.

        Images from a tool result are sent after the result. The first call of a message that another model wrote gets a
        placeholder signature.
        """
        match message:
            case UserMessage(text=text, images=shown):
                parts = [self.encode_text(text)] if text or not shown else []
                return EncodedMessage("user", b",".join((*parts, *self.encode_images(shown, images))))
            case ToolMessage(call_id=call_id, text=text, images=shown, is_error=is_error):
                name, kind = portable_call_name(message.written_name), b"error" if is_error else b"output"
                named = encode(portable_call_id(call_id)), encode(name)
                body = b'{"functionResponse":{"id":%b,"name":%b,"response":{"%b":%b}}}' % (*named, kind, encode(text))
                return EncodedMessage("user", body, b",".join(self.encode_images(shown, images)))
            case AssistantMessage(text=text, tool_calls=calls, opaque=opaque):
                is_own = opaque is not None
                signatures = _signatures_decoder.decode(opaque.json) if opaque is not None else _StoredSignatures()
                parts: list[bytes] = []
                if text:
                    parts.append(b'{"text":' + encode(text) + _signature(signatures.text) + b"}")
                for index, call in enumerate(calls):
                    signed = _signature(signatures.calls[index] if index < len(signatures.calls) else "")
                    if not signed and not is_own and index == 0:
                        signed = b',"thoughtSignature":' + NO_SIGNATURE
                    parts.append(b'{"functionCall":{"id":%b,"name":%b,"args":%b}%b}' % (*encode_call(call), signed))
                return EncodedMessage("model", b",".join(parts))

    def reader(self, context: AnswerContext) -> AnswerReader:
        return GeminiReader(context)

    def models(self, body: bytes) -> list[ModelInfo]:
        return [
            ModelInfo(model.name.removeprefix("models/"), model.input_token_limit, model.output_token_limit)
            for model in _models_decoder.decode(body).models
            if "generateContent" in model.supported_generation_methods
        ]


def _signature(signature: str) -> bytes:
    return b',"thoughtSignature":' + encode(signature) if signature else b""


def _is_empty(event: _GeminiChunk) -> bool:
    if event.usage_metadata is not None or event.prompt_feedback is not None or event.error is not _NOTHING:
        return False
    return all(
        candidate.finish_reason is None
        and all(
            part.text is None and part.function_call is None and part.thought_signature is None
            for part in (candidate.content.parts if candidate.content is not None else None) or ()
        )
        for candidate in event.candidates or ()
    )


def _usual_form(data: bytes) -> bytes | None:
    """Unwrap an event and convert protobuf field names to JSON names. Some gateways send these forms.

    Returns None if the event is unreadable or needs no conversion.
    """
    try:
        fields = msgspec.json.decode(data, type=dict[str, object])
    except UNREADABLE:
        return None
    inner = fields.get("response")
    usual = _renamed(cast("object", inner) if isinstance(inner, dict) else fields)
    return raw_json(usual) if usual != fields else None


def _renamed(value: object) -> object:
    if isinstance(value, list):
        return [_renamed(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, object]", value)
    return {_camel(key): item if key == "args" else _renamed(item) for key, item in given.items()}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


class GeminiReader(AnswerReader):
    """Decodes the chunks of one response. The API has no final event: the response ends with the connection."""

    record = _GeminiChunk
    decoder = msgspec.json.Decoder(_GeminiChunk)

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._text_signature = ""
        self._call_signatures: list[str] = []
        self._broken = ""

    def take(self, event: _GeminiChunk, data: bytes) -> None:
        if _is_empty(event) and (other := _usual_form(data)) is not None:
            event, data = self.part(other, _GeminiChunk), other
        if event.candidates is None and event.usage_metadata is None:
            self.failure = self.complaint_in(data)
        if event.candidates:
            candidate = event.candidates[0]
            for part in (candidate.content.parts if candidate.content is not None else None) or ():
                if (call := part.function_call) is not None:
                    arguments = bytes(call.args).decode("utf-8", "replace")
                    self.calls.append(CallParts(call.id or "", call.name, ["{}" if arguments == "null" else arguments]))
                    self._call_signatures.append(part.thought_signature or "")
                    continue
                if part.text and part.thought:
                    self.think(part.text)
                elif part.text:
                    self.say(part.text)
                if part.thought_signature and not part.thought:
                    self._text_signature = part.thought_signature
            if candidate.finish_reason and (reason := candidate.finish_reason.upper()) != _UNSPECIFIED:
                if reason in _BROKEN:
                    self._broken = f"{reason} {candidate.finish_message or ''}".strip()
                self.stop = _FINISH.get(reason, "end")
        if (usage := event.usage_metadata) is not None:
            thoughts = usage.thoughts_token_count or 0  # Reported separately, but billed as output.
            asked = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
            output = (usage.candidates_token_count or 0) + thoughts
            self.usage = Usage(asked, output, usage.cached_content_token_count or 0, 0, thoughts)
        if (feedback := event.prompt_feedback) is not None and feedback.block_reason:
            reason = feedback.block_reason_message or feedback.block_reason
            words = f"{self.context.provider} blocked the prompt under its policy: {reason}."
            self.failure = ModelFailed("content_filter", words)
        if event.error is not _NOTHING and bytes(event.error) not in _NO_ERRORS:
            self.failure = self.failure_in(data)
        if not self.model and event.model_version:
            self.model = event.model_version

    def opaque(self) -> str:
        signed = self._text_signature or any(self._call_signatures)
        signatures = _StoredSignatures(self._text_signature, self._call_signatures)
        return raw_json(msgspec.to_builtins(signatures)).decode() if signed else ""

    def result(self) -> ModelDone | ModelFailed:
        if self._broken and not self.texts and not self.calls and self.failure is None:
            return ModelFailed("dropped", f"{self.context.provider} stopped its response early: {self._broken}.")
        return super().result()
