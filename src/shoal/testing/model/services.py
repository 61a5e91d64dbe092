# ruff: noqa: E501 - the services' error texts are quoted literally
"""Model services that reject certain requests, with the status and text of each rejection.

`FakeModel(script=Strict(SERVICES["DeepSeek"]))` rejects the requests that DeepSeek rejects and answers all others. A
comment at each service names the sources: its documentation, the types of its SDK, or public reports that quote its
response.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from shoal.testing.model.script import Refusal, Reply, Script, Seen, Step, follow_directive

Kind: TypeAlias = Literal["openai", "openai-responses", "anthropic", "gemini"]

_NINE = re.compile(r"[A-Za-z0-9]{9}")
_PORTABLE = re.compile(r"[A-Za-z0-9_-]+")
_encode = msgspec.json.Encoder().encode


_NOTHING = msgspec.Raw(b"")


class _Named(msgspec.Struct):
    name: str = ""


class _Call(msgspec.Struct):
    id: str = ""
    function: _Named = msgspec.field(default_factory=_Named)
    extra_content: dict[str, dict[str, str]] | None = None


class _Block(msgspec.Struct):
    """A part of a message in any of the APIs. Similar fields share a name."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str = ""
    tool_use_id: str = ""
    content: "str | list[_Block] | None" = None
    inline_data: msgspec.Raw = msgspec.field(default=_NOTHING, name="inlineData")
    call: msgspec.Raw = msgspec.field(default=_NOTHING, name="functionCall")
    result: msgspec.Raw = msgspec.field(default=_NOTHING, name="functionResponse")
    thought_signature: str = msgspec.field(default="", name="thoughtSignature")

    @property
    def is_image(self) -> bool:
        return self.type in ("image", "image_url", "input_image") or bool(bytes(self.inline_data))


class _Message(msgspec.Struct):
    role: str = ""
    type: str = ""
    content: str | list[_Block] | None = None
    parts: list[_Block] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""
    reasoning_content: str | None = None
    reasoning_details: list[msgspec.Raw] | None = None
    encrypted_content: str | None = None
    output: str | list[_Block] | None = None
    summary: list[_Block] | None = None
    id: str = ""

    @property
    def blocks(self) -> list[_Block]:
        lists = [part for part in (self.content, self.parts, self.output) if isinstance(part, list)]
        parts = [part for several in lists for part in several]
        return [*parts, *(inner for part in parts if isinstance(part.content, list) for inner in part.content)]

    @property
    def is_blank(self) -> bool:
        return not self.content and not self.tool_calls and not self.parts and self.type == ""


class Sent(msgspec.Struct):
    """The parts of a request body that services may reject."""

    messages: list[_Message] = []
    contents: list[_Message] = []
    input: list[_Message] = []
    tools: list[msgspec.Raw] | None = None
    system_instruction: msgspec.Raw = msgspec.field(default=_NOTHING, name="systemInstruction")
    include: list[str] = []

    @property
    def all(self) -> Sequence[_Message]:
        return self.messages or self.contents or self.input

    @property
    def roles(self) -> list[str]:
        return [message.role for message in self.all]


Rule: TypeAlias = Callable[[Sent], Refusal | None]
"""Checks a request. Returns the service's rejection, or None if the service accepts the request."""


def _json(status: int, body: object) -> Refusal:
    return Refusal(status, body=_encode(body))


def _openai(status: int, message: str, code: str | int | None = None, kind: str = "invalid_request_error") -> Refusal:
    return _json(status, {"error": {"message": message, "type": kind, "param": None, "code": code}})


def _anthropic(status: int, message: str) -> Refusal:
    return _json(status, {"type": "error", "error": {"type": "invalid_request_error", "message": message}})


def _google(message: str) -> Refusal:
    return _json(400, {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}})


# ---- rules ----


def _no_images(refusal: Refusal) -> Rule:
    return lambda sent: refusal if any(block.is_image for message in sent.all for block in message.blocks) else None


def _no_images_in_results(refusal: Refusal) -> Rule:
    def rule(sent: Sent) -> Refusal | None:
        results = [block for message in sent.all for block in message.blocks if block.type == "tool_result"]
        inner = [part for block in results if isinstance(block.content, list) for part in block.content]
        outputs = [part for message in sent.all if isinstance(message.output, list) for part in message.output]
        return refusal if any(part.is_image for part in (*inner, *outputs)) else None

    return rule


def _no_tools(refusal: Refusal) -> Rule:
    def rule(sent: Sent) -> Refusal | None:
        asked = sent.tools or any(message.tool_calls or message.role == "tool" for message in sent.all)
        return refusal if asked else None

    return rule


def _no_reasoning(refuse: Callable[[int], Refusal]) -> Rule:
    def rule(sent: Sent) -> Refusal | None:
        places = (index for index, message in enumerate(sent.messages) if message.reasoning_content is not None)
        return next((refuse(place) for place in places), None)

    return rule


def _wants_reasoning(refuse: Callable[[int], Refusal], *, of_calls: bool, blank: bool) -> Rule:
    def rule(sent: Sent) -> Refusal | None:
        for index, message in enumerate(sent.messages):
            is_asked = message.role == "assistant" and (bool(message.tool_calls) or not of_calls)
            if is_asked and (message.reasoning_content is None or (not message.reasoning_content and not blank)):
                return refuse(index)
        return None

    return rule


def _alternates(sent: Sent, *, with_tools: bool) -> bool:
    counted = [
        message.role
        for message in sent.messages
        if message.role != "system" and not (with_tools and (message.role == "tool" or message.tool_calls))
    ]
    return all(role == ("user", "assistant")[index % 2] for index, role in enumerate(counted))


def _template(message: str, *, with_tools: bool, refuse: Callable[[str], Refusal]) -> Rule:
    return lambda sent: None if _alternates(sent, with_tools=with_tools) else refuse(message)


def _nine_char_ids(sent: Sent) -> Refusal | None:
    for message in sent.messages:
        for name in (
            *(call.id for call in message.tool_calls or ()),
            *([message.tool_call_id] if message.tool_call_id else ()),
        ):
            if not _NINE.fullmatch(name):
                words = f"Tool call id was {name} but must be a-z, A-Z, 0-9, with a length of 9."
                return _json(
                    400, {"object": "error", "message": words, "type": "invalid_function_call", "code": "3280"}
                )
    return None


def _user_after_tool(sent: Sent) -> Refusal | None:
    pairs = zip(sent.roles, sent.roles[1:], strict=False)
    if ("tool", "user") not in pairs:
        return None
    words = "Unexpected role 'user' after role 'tool'"
    return _json(400, {"object": "error", "message": words, "type": "invalid_request_message_order", "code": "3230"})


def _extra_forbidden(sent: Sent) -> Refusal | None:
    for index, message in enumerate(sent.messages):
        if message.reasoning_content is not None or message.reasoning_details is not None:
            place = ["body", "messages", index, "assistant", "reasoning_content"]
            detail = {"type": "extra_forbidden", "loc": place, "msg": "Extra inputs are not permitted", "input": "…"}
            return _json(422, {"object": "error", "message": {"detail": [detail]}, "type": "invalid_request_error"})
    return None


def _single_calls(sent: Sent) -> Refusal | None:
    if all(len(message.tool_calls or ()) < 2 for message in sent.messages):
        return None
    return _json(400, {"error": {"message": "This model only supports single tool-calls at once!", "code": 400}})


def _short_ids(sent: Sent) -> Refusal | None:
    for place, message in enumerate(sent.messages):
        for index, call in enumerate(message.tool_calls or ()):
            if len(call.id) > 40:
                return _openai(
                    400,
                    f"Invalid 'messages[{place}].tool_calls[{index}].id': string too long. Expected a string with "
                    f"maximum length 40, but got a string with length {len(call.id)} instead.",
                    "string_above_max_length",
                )
    return None


def _stored_items(sent: Sent) -> Refusal | None:
    for item in sent.input:
        if item.type == "reasoning" and not item.encrypted_content:
            return _openai(
                404,
                f"Item with id '{item.id}' not found. Items are not persisted when `store` is set to false. Try again "
                "with `store` set to true, or remove this item from your input.",
            )
    return None


def _portable_uses(sent: Sent) -> Refusal | None:
    for place, message in enumerate(sent.messages):
        for index, block in enumerate(message.blocks):
            if block.type == "tool_use" and not _PORTABLE.fullmatch(block.id):
                where = f"messages.{place}.content.{index}.tool_use.id"
                return _anthropic(400, f"{where}: String should match pattern '^[a-zA-Z0-9_-]+$'")
            if block.type == "text" and not (block.text or "").strip():
                return _anthropic(400, f"messages.{place}: text content blocks must be non-empty")
    return None


def _tools_for_uses(sent: Sent) -> Refusal | None:
    uses = any(block.type in ("tool_use", "tool_result") for message in sent.messages for block in message.blocks)
    if not uses or sent.tools:
        return None
    return _anthropic(400, "The toolConfig field must be defined when using toolUse and toolResult content blocks.")


def _first_is_signed(sent: Sent) -> Refusal | None:
    for place, content in enumerate(sent.contents):
        calls = [part for part in content.parts or () if bytes(part.call)]
        if calls and not calls[0].thought_signature:
            return _google(
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to work "
                f"correctly, and missing thought_signature may lead to degraded model performance. Position {place}."
            )
    return None


def _chat_is_signed(sent: Sent) -> Refusal | None:
    for message in sent.messages:
        if message.tool_calls and not (message.tool_calls[0].extra_content or {}).get("google", {}).get(
            "thought_signature"
        ):
            name = message.tool_calls[0].function.name
            return _google(
                f"Function call is missing a thought_signature in functionCall parts. Additional data, function call "
                f"`default_api:{name}`, position 2."
            )
    return None


def _turns_of_calls(sent: Sent) -> Refusal | None:
    before = ""
    for content in sent.contents:
        if before == "model" == content.role or not content.parts:
            return _google(
                "Please ensure that function call turn comes immediately after a user turn or after a function response "
                "turn."
            )
        before = content.role
    return None


def _no_system(refusal: Refusal) -> Rule:
    return lambda sent: refusal if bytes(sent.system_instruction) or "system" in sent.roles else None


def _no_blank(sent: Sent) -> Refusal | None:
    for place, message in enumerate(sent.messages):
        if message.role in ("assistant", "user") and message.is_blank:
            return _openai(
                400, f"Invalid request: the message at position {place} with role '{message.role}' must not be empty"
            )
    return None


def _one_type_each(sent: Sent) -> Refusal | None:
    for tool in sent.tools or ():
        if any(word in bytes(tool) for word in (b'"anyOf":', b'"enum":', b'"minimum":', b'"maxItems":')):
            words = "tools.function.parameters is not a valid moonshot flavored json schema, details: <At path 'properties'>"
            return _openai(400, f"Invalid request: {words}")
    return None


def _one_image(sent: Sent) -> Refusal | None:
    if sum(block.is_image for message in sent.all for block in message.blocks) < 2:
        return None
    return _json(
        400,
        {"object": "error", "message": "At most 1 image(s) may be provided in one prompt.", "type": "BadRequestError",
         "param": None, "code": 400},
    )  # fmt: skip


def _strings_only(sent: Sent) -> Refusal | None:
    for place, message in enumerate(sent.messages):
        if isinstance(message.content, list):
            return _openai(400, f"messages[{place}].content must be a string")
    return None


class Service(msgspec.Struct, frozen=True):
    """A model service with its API, a model and its rules.

    `foreign` is the rejection of reasoning from another service. It is None if the service does not check reasoning
    or has a rule for it.
    """

    name: str
    kind: Kind
    model: str
    rules: tuple[Rule, ...] = ()
    foreign: Refusal | None = None


def _jinja(message: str) -> Refusal:
    source = (
        "\n------------\nWhile executing CallExpression at line 189, column 32 in source:\n...== 0) %}↵            "
        "{{- raise_exception('After the optional system message, con...\n                                           ^\n"
    )
    return _json(
        500, {"error": {"code": 500, "message": f"{source}Error: Jinja Exception: {message}", "type": "server_error"}}
    )


def _groq(place: int) -> Refusal:
    words = f"'messages.{place}' : for 'role:assistant' the following must be satisfied[('messages.{place}' : property "
    return _openai(400, f"{words}'reasoning_content' is unsupported)]")


def _cerebras(place: int) -> Refusal:
    where = f"messages.{place}.assistant.reasoning_content"
    words = f"{where}: property '{where}' is unsupported"
    return _json(
        400,
        {"message": words, "type": "invalid_request_error", "param": "validation_error", "code": "wrong_api_format"},
    )


def _kimi(place: int) -> Refusal:
    words = f"thinking is enabled but reasoning_content is missing in assistant tool call message at index {place}"
    return _json(400, {"error": {"message": words, "type": "invalid_request_error"}})


_DEEPSEEK_THINKING = _openai(
    400, "The `reasoning_content` in the thinking mode must be passed back to the API.", "invalid_request_error"
)
_AUTO_TOOLS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
_TEMPLATE = "roles must alternate user and assistant roles except for tool calls and results."

SERVICES = {
    service.name: service
    for service in (
        # platform.openai.com (object reference); ids: vercel/ai and litellm reports of string_above_max_length
        Service("OpenAI Chat", "openai", "gpt-5.1", (_short_ids,)),
        # error texts of Azure, and of OpenAI for o1-mini, for a model that supports neither images nor tools
        Service(
            "Azure, a text model",
            "openai",
            "my-deployment",
            (
                _no_images(_openai(400, "Invalid content type. image_url is only supported by certain models.")),
                _no_tools(
                    _openai(
                        400, "Unsupported parameter: 'tools' is not supported with this model.", "unsupported_parameter"
                    )
                ),
            ),
        ),
        # openai/codex#8119, letta-code#884, pydantic-ai#4608
        Service(
            "OpenAI Responses",
            "openai-responses",
            "gpt-5.1",
            (_stored_items,),
            _openai(
                400,
                "The encrypted content gAAA...c90= could not be verified. Reason: Encrypted content could not be decrypted or "
                "parsed.",
                "invalid_encrypted_content",
            ),
        ),
        # anthropics/claude-code#63284, hermes-agent#24107 (rejected forms)
        Service(
            "Anthropic",
            "anthropic",
            "claude-sonnet-4-5",
            (_portable_uses, _tools_for_uses),
            _anthropic(400, "messages.1.content.0: Invalid `signature` in `thinking` block"),
        ),
        # opencode#49443: Converse behind a gateway, which rejects images only in results
        Service(
            "Bedrock gateway",
            "anthropic",
            "openai.gpt-oss-sol",
            (
                _portable_uses,
                _tools_for_uses,
                _no_images_in_results(
                    _anthropic(
                        400, "This model doesn't support the image field for user messages. Remove image and try again."
                    )
                ),
            ),
            _anthropic(400, "messages.1.content.0: Invalid `signature` in `thinking` block"),
        ),
        # langchain-aws#447
        Service(
            "Bedrock gateway, no tools",
            "anthropic",
            "deepseek.r1-v1:0",
            (
                _no_tools(_json(400, {"message": "This model doesn't support tool use."})),
                _no_images(
                    _json(400, {"message": "This model doesn't support the image content block that you provided."})
                ),
            ),
        ),
        # ai.google.dev (thought signatures), gemini-cli#13467
        Service(
            "Gemini",
            "gemini",
            "gemini-3-pro",
            (_turns_of_calls, _first_is_signed),
            _google("Corrupted thought signature."),
        ),
        # agno#3505, langchain-google#684
        Service(
            "Gemma on the Gemini API",
            "gemini",
            "my-gemma",
            (
                _no_system(_google("Developer instruction is not enabled for models/my-gemma")),
                _no_tools(_google("Function calling is not enabled for models/my-gemma")),
                _no_images(_google("Image input modality is not enabled for models/my-gemma")),
            ),
        ),
        # opensquilla#225, behind Google's OpenAI-compatible address
        Service("Gemini, OpenAI-compatible", "openai", "my-gemini", (_chat_is_signed,)),
        # ironclaw#1241, litellm#6323, crush#1590
        Service("Mistral", "openai", "my-mistral", (_nine_char_ids, _user_after_tool, _extra_forbidden)),
        # api-docs.deepseek.com (thinking mode); kimi-cli#2141, jcode#310
        Service(
            "DeepSeek",
            "openai",
            "my-deepseek",
            (
                _no_images(
                    _openai(
                        400,
                        "Failed to deserialize the JSON body into the target type: messages[1]: unknown variant "
                        "`image_url`, expected `text` at line 1 column 395009",
                        "invalid_request_error",
                    )
                ),
                _wants_reasoning(lambda _: _DEEPSEEK_THINKING, of_calls=False, blank=True),
            ),
        ),
        # new-api#3121, crush#2696 (empty reasoning is rejected)
        Service("Kimi", "openai", "my-kimi", (_wants_reasoning(_kimi, of_calls=True, blank=False), _no_blank)),
        # mastra#23731, CloudBase-AI-Toolkit#626 (tool schemas that Kimi's service rejects)
        Service("Kimi, strict schemas", "openai", "my-moonshot", (_one_type_each,)),
        # vllm (entrypoints/chat_utils.py), --limit-mm-per-prompt
        Service("vLLM, one image", "openai", "my-vision-model", (_one_image,)),
        # ggml-org/llama.cpp#19851: the server's error for a model without a projector
        Service(
            "llama.cpp, Devstral",
            "openai",
            "my-devstral",
            (
                _template(
                    f"After the optional system message, conversation {_TEMPLATE}", with_tools=True, refuse=_jinja
                ),
                _no_images(
                    _json(
                        500,
                        {
                            "error": {
                                "code": 500,
                                "type": "server_error",
                                "message": "image input is not supported - hint: "
                                "if this is unexpected, you may need to provide the mmproj",
                            }
                        },
                    )
                ),
            ),
        ),
        # llama.cpp#21879, sdialog#122
        Service(
            "llama.cpp, Gemma",
            "openai",
            "my-gemma",
            (
                _no_system(_jinja("System role not supported")),
                _template(
                    "Conversation roles must alternate user/assistant/user/assistant/...",
                    with_tools=False,
                    refuse=_jinja,
                ),
            ),
        ),
        # vllm (entrypoints/chat_utils.py and serving_chat.py), nvidia-nim-provider#2
        Service(
            "vLLM, a text model",
            "openai",
            "my-model",
            (
                _no_images(
                    _json(
                        400,
                        {
                            "object": "error",
                            "message": "my-model is not a multimodal model",
                            "type": "BadRequestError",
                            "param": None,
                            "code": 400,
                        },
                    )
                ),
                _no_tools(
                    _json(
                        400, {"error": {"message": _AUTO_TOOLS, "type": "BadRequestError", "param": None, "code": 400}}
                    )
                ),
            ),
        ),
        # ollama#17301, ollama#5793
        Service(
            "Ollama",
            "openai",
            "my-llama",
            (
                _no_images(_json(400, {"error": "this model does not support image input (ref: b8bd630e-4a39-4b57)"})),
                _no_tools(_openai(400, "registry.ollama.ai/library/my-llama does not support tools", kind="api_error")),
            ),
        ),
        # lmstudio-bug-tracker: the server's error for a model that does not accept images
        Service(
            "LM Studio",
            "openai",
            "my-model",
            (_no_images(_json(400, {"error": "Model does not support images. Please use a model that does."})),),
        ),
        # jan#8136, vercel/ai#2837
        Service("Groq", "openai", "my-llama", (_no_reasoning(_groq), _strings_only)),
        # kilocode#10375
        Service("Cerebras", "openai", "zai-glm-4.7", (_no_reasoning(_cerebras),)),
        # mastra#2839, fast-agent#122
        Service(
            "OpenRouter",
            "openai",
            "deepseek/deepseek-r1:free",
            (
                _no_images(
                    _json(404, {"error": {"message": "No endpoints found that support image input", "code": 404}})
                ),
                _no_tools(
                    _json(
                        404,
                        {
                            "error": {
                                "message": "No endpoints found that support tool use. To learn more about provider "
                                "routing, visit: https://openrouter.ai/docs/provider-routing",
                                "code": 404,
                            }
                        },
                    )
                ),
            ),
        ),
        # openclaw-qqbot#111, zai-org/feedback#570
        Service(
            "Volcengine Ark",
            "openai",
            "deepseek-v3-2-251201",
            (
                _no_images(
                    _json(
                        400,
                        {
                            "error": {
                                "code": "InvalidParameter",
                                "message": "Model do not support image input. Request id: 0217726292683",
                            }
                        },
                    )
                ),
            ),
        ),
        # bigmodel.cn (error codes)
        Service(
            "Zhipu GLM",
            "openai",
            "my-glm",
            (
                _no_images(
                    _json(
                        400,
                        {
                            "error": {
                                "code": "1210",
                                "message": "API 调用参数有误，请检查文档。messages.content.type 参数非法，"
                                "取值范围 ['text']",
                            }
                        },
                    )
                ),
            ),
        ),
        # openclaude#1421
        Service(
            "Xiaomi MiMo",
            "openai",
            "mimo-v2.5-pro",
            (
                _no_images(
                    _json(
                        400,
                        {
                            "error": {
                                "code": "400",
                                "message": "Param Incorrect",
                                "param": "`text` is not set",
                                "type": "",
                            }
                        },
                    )
                ),
            ),
        ),
        # livekit#4559
        Service(
            "LiveKit inference",
            "openai",
            "google/gemini-3.5-flash",
            (
                _no_images(
                    _json(
                        503,
                        {
                            "error": {
                                "message": "gemini image input is not enabled: message 5 contains image_url content "
                                "but image (vision) input is currently disabled on this gateway"
                            }
                        },
                    )
                ),
            ),
        ),
        # continuedev/continue and langchain-nvidia reports
        Service("NVIDIA NIM", "openai", "my-nim", (_single_calls,)),
        # a gateway without an error message (agent gateways remove the upstream message: multica#6228)
        Service(
            "a silent gateway",
            "openai",
            "my-model",
            (_no_images(_json(400, {"error": {"message": "Upstream request failed", "type": "upstream_error"}})),),
        ),
        Service("a silent gateway, no tools", "openai", "my-model", (_no_tools(Refusal(400, body=b"Bad Request")),)),
        Service(
            "a silent gateway, Anthropic",
            "anthropic",
            "my-model",
            (_no_images(_anthropic(400, "Error")),),
            _anthropic(400, "Error"),
        ),
    )
}
"""Services by name. To test a quirk that Shoal must learn from a rejection, use a model name from which Shoal does not
know the quirk.
"""


class Strict:
    """A script that rejects the requests that `service` rejects, and passes all others to `script`.

    `refusals` lists the rejections.
    """

    def __init__(self, service: Service, script: Script = follow_directive) -> None:
        self.service = service
        self.refusals: list[Refusal] = []
        self._script = script
        self._thoughts: set[str] = set()

    def __call__(self, seen: Seen) -> Step | str:
        sent = msgspec.json.decode(seen.body, type=Sent)
        for rule in self.service.rules:
            if (refusal := rule(sent)) is not None:
                self.refusals.append(refusal)
                return refusal
        foreign = self.service.foreign
        if foreign is not None and any(thought not in self._thoughts for thought in _thoughts(sent)):
            self.refusals.append(foreign)
            return foreign
        step = self._script(seen)
        if isinstance(step, Reply) and step.thinking:
            self._thoughts.add(step.thinking)
            self._thoughts.update(call.name for call in step.calls)
        return step


def _thoughts(sent: Sent) -> Iterator[str]:
    for message in sent.all:
        if message.type == "reasoning":
            yield "".join(part.text or "" for part in message.summary or ())
        for block in message.blocks:
            if block.type == "thinking":
                yield block.thinking or ""
            elif bytes(block.call) and block.thought_signature not in ("", "skip_thought_signature_validator"):
                yield msgspec.json.decode(block.call, type=_Named).name
