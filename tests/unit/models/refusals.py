# ruff: noqa: E501 - messages are quoted verbatim
"""Errors with which services reject a part of a conversation, and similar errors with other causes.

Each entry has its HTTP status. Comments name the sources: documentation, source code, or an issue that quotes the
error.
"""

from typing import TypeAlias

Words: TypeAlias = tuple[tuple[int, str], ...]

TEACH: dict[str, Words] = {
    "images=none": (
        (501, '{"error":{"message":"Image input is not implemented for this backend."}}'),
        (403, '{"error":{"message":"Image inputs are not allowed for this model."}}'),
        (400, '{"error":{"message":"model \\"claude-sonnet-4.6\\" not supported for vision"}}'),  # opencode#20700
        (400, '{"code":"Client specified an invalid argument","error":"The model does not support image input but some images are present in the request."}'),  # open-webui#10592
        (400, '{"error":"this model does not support image input (ref: b8bd630e)"}'),  # ollama#17301
        (400, '{"error":{"code":"InvalidParameter","message":"Model do not support image input. Request id: 02177"}}'),  # openclaw-qqbot#111
        (400, '{"error":{"message":"Failed to deserialize the JSON body into the target type: messages[7]: unknown variant `image_url`, expected `text` at line 1 column 114708"}}'),  # jcode#310
        (400, '{"error":{"message":"messages[0].content must be a string","type":"invalid_request_error"}}'),  # vercel/ai#2837
        (404, '{"error":{"message":"No endpoints found that support image input","code":404}}'),  # OpenRouter
        (503, '{"error":{"message":"gemini image input is not enabled: message 5 contains image_url content but image (vision) input is currently disabled on this gateway"}}'),  # livekit#4559
        (500, '{"error":{"code":500,"message":"image input is not supported - hint: if this is unexpected, you may need to provide the mmproj","type":"server_error"}}'),  # llama.cpp
        (400, '{"message":"This model doesn\'t support the image content block that you provided. Remove the image content block and try again."}'),  # Bedrock Converse
        (400, '{"message":"This model doesn\'t support the image field for user messages. Remove image and try again."}'),  # opencode#49443
        (400, '{"error":{"code":400,"message":"Image input modality is not enabled for models/gemma-3-1b-it","status":"INVALID_ARGUMENT"}}'),  # langchain-google#684
        (400, '{"object":"error","message":"my-model is not a multimodal model","type":"BadRequestError","code":400}'),  # vllm
        (400, '{"object":"error","message":"At most 0 image(s) may be provided in one prompt.","type":"BadRequestError"}'),  # vllm
        (400, '{"error":{"message":"Invalid content type. image_url is only supported by certain models."}}'),  # OpenAI
        (500, '{"error":"this model is missing data required for image input"}'),  # ollama
        (400, '{"error":{"code":"1210","message":"messages.content.type 参数非法，取值范围 [\'text\']"}}'),  # Zhipu
        (400, '{"error":{"code":"400","message":"Param Incorrect","param":"`text` is not set"}}'),  # openclaude#1421
        (400, '{"error":"Model does not support images. Please use a model that does."}'),  # LM Studio
        (400, '{"error":{"message":"Image inputs are not supported by this model."}}'),  # xAI
        (400, '{"error":{"message":"This model does not support vision"}}'),
        (422, '{"detail":[{"type":"string_type","loc":["body","messages",1,"content"],"msg":"Input should be a valid string"}]}'),
        (400, '{"error":{"message":"该模型不支持图片输入"}}'),
        (500, '{"error":{"message":"Image input detected, but the loaded model is not configured with a mmproj module."}}'),  # llama-cpp-python#165
        (400, '{"error":{"message":"Multimodal data provided, but model does not support multimodal requests."}}'),  # mlx
    ),
    "tools=False": (
        (501, '{"error":{"message":"tool use is not implemented"}}'),
        (403, '{"error":{"message":"tool calling is not available for this model"}}'),
        (400, '{"error":{"message":"registry.ollama.ai/library/llama3 does not support tools","type":"api_error"}}'),  # ollama#5793
        (404, '{"error":{"message":"No endpoints found that support tool use. To learn more about provider routing, visit: x","code":404}}'),  # fast-agent#122
        (400, '{"error":{"message":"\\"auto\\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set","code":400}}'),  # nvidia-nim-provider#2
        (400, '{"error":{"code":400,"message":"Function calling is not enabled for models/gemma-3-12b-it","status":"INVALID_ARGUMENT"}}'),  # agno#3505
        (400, '{"message":"This model doesn\'t support tool use."}'),  # langchain-aws#447
        (400, '{"error":{"message":"Unsupported parameter: \'tools\' is not supported with this model."}}'),  # OpenAI, o1-mini
        (400, '{"error":{"message":"`tool calling` is not supported with this model"}}'),  # Groq
        (500, '{"error":{"code":500,"message":"tools param requires --jinja flag","type":"server_error"}}'),  # llama.cpp
        (400, '{"error":{"message":"Unrecognized request argument supplied: tools"}}'),
        (400, '{"error":{"message":"deepseek-reasoner does not support Function Calling"}}'),
        (400, '{"error":{"message":"当前模型不支持工具调用"}}'),
        (500, '{"error":{"code":500,"message":"Error: Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/..."}}'),  # sdialog#122
    ),
    "reasoning_needed=True": (
        (400, '{"error":{"message":"The `reasoning_content` in the thinking mode must be passed back to the API."}}'),  # kimi-cli#2141
        (400, '{"error":{"message":"Missing `reasoning_content` field in the assistant message at message index 2."}}'),  # GitNexus#43
        (400, '{"error":{"message":"thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"}}'),  # mastra#12592
        (400, '{"code":20015,"message":"thinking is enabled but reasoning_content is missing in assistant tool call message at index 32","data":null}'),  # QwenPaw#433
        (400, '{"error":{"message":"Error from provider: Provider returned error","code":400,"metadata":{"raw":"{\\"error\\":{\\"message\\":\\"thinking is enabled but reasoning_content is missing in assistant tool call message at index 3\\"}}"}}}'),  # opencode-go-copilot#1
        (400, '{"error":{"message":"The `content[].thinking` in the thinking mode must be passed back to the API."}}'),
    ),
    "reasoning_field=": (
        (400, '{"error":{"message":"\'messages.2\' : for \'role:assistant\' the following must be satisfied[(\'messages.2\' : property \'reasoning_content\' is unsupported)]"}}'),  # jan#8136
        (400, '{"message":"messages.2.assistant.reasoning_content: property \'messages.2.assistant.reasoning_content\' is unsupported","code":"wrong_api_format"}'),  # kilocode#10375
        (422, '{"detail":[{"type":"extra_forbidden","loc":["body","messages",31,"assistant","reasoning_content"],"msg":"Extra inputs are not permitted"}]}'),  # crush#1590
    ),
    "nine_char_ids=True": (
        (400, '{"object":"error","message":"Tool call id was turn1_0 but must be a-z, A-Z, 0-9, with a length of 9.","code":"3280"}'),  # ironclaw#1241
        (500, '{"error":"Tool call id was call_49c89af0 but must be a-z, A-Z, 0-9, with a length of 9"}'),  # omlx#1997
        (400, '{"error":{"message":"Invalid \'messages[1].tool_calls[0].id\': string too long. Expected a string with maximum length 40, but got a string with length 64 instead."}}'),
        (400, '{"error":{"message":"messages.1.content.0.tool_use.id: String should match pattern \'^[a-zA-Z0-9_-]+$\'"}}'),
    ),
    "user_after_tool=False": (
        (400, '{"object":"error","message":"Unexpected role \'user\' after role \'tool\'","code":"3230"}'),  # litellm#6323
        (500, '{"error":{"code":500,"message":"\\n------------\\nWhile executing CallExpression at line 189, column 32 in source:\\n...== 0) %}↵ {{- raise_exception(\'After the optional system message, con...\\n ^\\nError: Jinja Exception: After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results."}}'),  # llama.cpp#19851
    ),
    "system_role=False": (
        (400, '{"error":{"code":400,"message":"Developer instruction is not enabled for models/gemma-3-27b-it","status":"INVALID_ARGUMENT"}}'),
        (500, '{"error":{"code":500,"message":"Error: Jinja Exception: System role not supported"}}'),
        (400, '{"error":{"message":"Unsupported value: \'messages[0].role\' does not support \'system\' with this model."}}'),  # OpenAI, o1
        (500, '{"error":{"message":"Only user, assistant and tool roles are supported, got system"}}'),  # opencode#5034
    ),
    "parallel_calls=False": (
        (400, '{"error":{"message":"This model only supports single tool-calls at once!"}}'),  # NVIDIA NIM
    ),
    "call_signatures=True": (
        (400, '{"error":{"code":400,"message":"Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly.","status":"INVALID_ARGUMENT"}}'),  # opensquilla#225
    ),
    "thinking=False": (
        (400, '{"error":{"message":"Unrecognized request argument supplied: reasoning_details"}}'),
        (422, '{"detail":[{"type":"extra_forbidden","loc":["body","messages",2,"assistant","reasoning"],"msg":"Extra inputs are not permitted"}]}'),
    ),
    "fault=thinking": (
        (400, '{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block"}}'),  # claude-code
        (400, '{"error":{"message":"messages.3.content.8: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response."}}'),  # claude-code#63284
        (400, '{"error":{"message":"The encrypted content gAAA...c90= could not be verified.","code":"invalid_encrypted_content"}}'),  # codex#8119
        (400, '{"error":{"message":"The encrypted content for item rs_0a18 could not be verified. Reason: Encrypted content organization_id did not match the target organization."}}'),  # letta-code#884
        (400, '{"error":{"code":400,"message":"Corrupted thought signature.","status":"INVALID_ARGUMENT"}}'),  # gemini-cli#13467
        (400, '{"error":{"code":400,"message":"Invalid thought signature.","status":"INVALID_ARGUMENT"}}'),  # Antigravity-Manager#3342
        (400, '{"error":{"message":"Item \'rs_68a\' of type \'reasoning\' was provided without its required following item."}}'),
        (404, '{"error":{"message":"Item with id \'rs_68a\' not found. Items are not persisted when `store` is set to false."}}'),
    ),
    "fault=images": (
        (400, '{"error":{"message":"messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"}}'),
        (400, '{"error":{"message":"Could not process image"}}'),
        (400, '{"error":{"message":"messages.1.content.0.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels"}}'),
        (400, '{"error":{"message":"You uploaded an unsupported image. Please make sure your image has of one the following formats: [\'png\', \'jpeg\', \'gif\', \'webp\']."}}'),
        (400, '{"error":{"code":400,"message":"Unable to process input image. Please retry or report","status":"INVALID_ARGUMENT"}}'),
        (500, '{"error":"Failed to load image or audio file"}'),  # llama.cpp
        (400, '{"error":{"message":"Invalid image data"}}'),
        (400, '{"object":"error","message":"cannot identify image file <_io.BytesIO object at 0x7f>"}'),  # vllm
    ),
}  # fmt: skip
"""The lesson from each refusal, as FIELD=VALUE of a quirk, or the conversation's fault."""

TEACH_NOTHING: Words = (
    (401, '{"error":{"message":"Incorrect API key provided. Tools are not available for invalid keys."}}'),
    (429, '{"error":{"message":"Rate limit reached for images: this model does not allow more image requests per min"}}'),
    (400, '{"error":{"message":"This model\'s maximum context length is 4097 tokens. However, your messages resulted in 4294 tokens."}}'),
    (400, '{"error":{"message":"The response was filtered due to the prompt triggering content management policy."}}'),
    (400, '{"error":{"message":"tools.3.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12"}}'),
    (400, '{"error":{"message":"Invalid schema for function \'x\': schema must be a JSON Schema of \'type: \\"object\\"\', got \'type: \\"None\\"\'."}}'),
    (400, '{"error":{"code":400,"message":"* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties[a]: unknown format"}}'),
    (404, '{"error":{"message":"The model `gpt-9` does not exist or you do not have access to it.","code":"model_not_found"}}'),
    (402, '{"error":{"message":"Insufficient credits. Image input is not available on the free plan."}}'),
    (529, '{"error":{"type":"overloaded_error","message":"Overloaded"}}'),
    (503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'),
    (500, '{"error":{"message":"The server had an error while processing your request. Sorry about that!"}}'),
    (500, "Internal Server Error"),
    (400, '{"error":{"message":"Bad Request"}}'),
    (400, ""),
)  # fmt: skip
"""Refusals with other causes: a key, a quota, one tool's schema, an outage, or an unknown problem."""
