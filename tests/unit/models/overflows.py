# ruff: noqa: E501 - messages are quoted verbatim
"""Providers' error messages for conversations that are too long, and similar messages with other causes.

Comments name the sources: a provider's own repository or documentation, or an issue that quotes the message.
"""

OVERFLOWS: dict[str, tuple[str, ...]] = {
    # chathub-dev/chathub #126; cline/cline #5474 (gpt-5); earendil-works/pi (overflow.ts, for the Responses API)
    "openai": (
        "This model's maximum context length is 128000 tokens. However, you requested 130000 tokens.",
        "This model's maximum context length is 4097 tokens. However, your messages resulted in 4294 tokens. Please reduce"
        " the length of the messages.",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 tokens. Please reduce"
        " the length of the messages.",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    # unidentified servers and gateways
    "others": (
        "tokens in request more than max tokens allowed",
        "Total tokens of image and text exceed max message tokens",
        "The total number of tokens (prompt + completion) exceed the limit 32768",
        "Token count (150000) exceeds limit (128000)",
        "Failed to generate: context window full",
        "max_tokens (4096) + prompt length (131000) > max_seq_len 131072",
        "The sequence length exceeds the model limit",
    ),
    # the error code that OpenAI and Azure send with these messages (crewAIInc/crewAI #701)
    "azure": ("context_length_exceeded",),
    # earendil-works/pi #102; RooCodeInc/Roo-Code #3713; Geravant/openclaw; anthropics/claude-code #53607
    "anthropic": (
        "prompt is too long: 219898 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 196395 + 64000 > 204698, decrease input length or"
        " `max_tokens` and try again",
        "Request exceeds the maximum size",
        "Request size exceeds model context window",
        "Extra usage is required for long context requests.",
        "The long context beta is not yet available for this subscription.",
    ),
    # RooCodeInc/Roo-Code #3713, earendil-works/pi (overflow.ts); error patterns in pkdone/paul-genai-test-tools-ts
    "bedrock": (
        "Input is too long for requested model.",
        "The model returned the following errors: input length and `max_tokens` exceed context limit: 1 + 2 > 2",
        "Too many input tokens. Max input tokens: 8192, request input token count: 9135",
    ),
    # google-gemini/gemini-cli #6678, #19727; warpdotdev/warp #15662
    "gemini": (
        "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        "The input token count exceeds the maximum number of tokens allowed 1048576.",
        "Unable to submit request because the input token count is 1251952 but model only supports up to 1048576. Reduce"
        " the input token count and try again.",
    ),
    # earendil-works/pi (packages/ai/src/utils/overflow.ts and its test)
    "mistral": (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        "Prompt contains 300000 tokens and 0 images too large for model with 262144 maximum context length",
    ),
    # thepersonalaicompany/amurex-backend #51
    "groq": ("Please reduce the length of the messages or completion.",),
    # cline/cline #5140
    "cerebras": (
        "Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000",
    ),
    # cline/cline #3120
    "xai": ("This model's maximum prompt length is 131072 but the request contains 136973 tokens.",),
    # same wording as OpenAI's first models (AstrBotDevs/AstrBot #1, vllm-project/vllm #20409)
    "deepseek": (
        "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens (66000 in the messages,"
        " 4000 in the completion). Please reduce the length of the messages or completion.",
    ),
    # QwenLM/qwen-code #98, #2068
    "dashscope": (
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 983616]",
        "Range of input length should be [1, 30720]",
    ),
    # MoonshotAI/kimi-cli #2011, MoonshotAI/MoonshotAI-Cookbook #18
    "moonshot": (
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
        "model max length exceeded, max length:8192",
        "total message size 2306631 exceeds limit 2097152",
    ),
    # MiniMax-AI/MiniMax-M2 #119
    "minimax": ("invalid params, context window exceeds limit (2013)",),
    # zeroclaw-labs/zeroclaw #4124, earendil-works/pi (z.ai prompt-too-long errors)
    "z.ai": ("Prompt exceeds max length", "Prompt too long", "Prompt 超长", "model_context_window_exceeded"),
    # earendil-works/pi (overflow.ts; Poolside through OpenRouter)
    "openrouter": (
        "This endpoint's maximum context length is 262144 tokens. However, you requested about 300000 tokens (298000 of text"
        " input, 2000 in the output). Please reduce the length of either one.",
        "Provider returned error: Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    ),
    # sgl-project/sglang (tokenizer_manager.py), which serves Together's models; stanford-crfm/helm #2079
    "together": (
        "The input (516368 tokens) is longer than the model's context length (262144 tokens).",
        "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of 131206"
        " tokens: 130006 tokens from the input messages and 1200 tokens for the completion.",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 80125 `inputs` tokens and 4096"
        " `max_new_tokens`",
    ),
    # fw-ai/cookbook #134
    "fireworks": ("The prompt is too long: 40177, model maximum context length: 32767",),
    # microsoft/copilot-intellij-feedback #94, microsoft/vscode #289219
    "copilot": ("prompt token count of 138898 exceeds the limit of 64000", "model_max_prompt_tokens_exceeded"),
    # earendil-works/pi (overflow.test.ts), ITSpecialist111/ai_automation_suggester #37, jeastham1993/zettel-system
    "ollama": (
        "prompt too long; exceeded max context length by 100918 tokens",
        "prompt too long; exceeded context length",
        "input exceeds context length",
        "the input length exceeds the context length",
    ),
    # ggml-org/llama.cpp pull request 15780, #19774; abetlen/llama-cpp-python #416
    "llama.cpp": (
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        "request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "Context size has been exceeded.",
        "exceed_context_size_error",
        "Requested tokens (2285) exceed context window of 2048",
    ),
    # earendil-works/pi (overflow.ts); the last two are quoted in OpenClaw issues
    "lm studio": (
        "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of"
        " only 4096 tokens, which is not enough.",
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        "Cannot truncate prompt with n_keep (9000) >= n_ctx (4096)",
    ),
    # vllm-project/vllm #20409, #13209, #20241, #4667
    "vllm": (
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the messages,"
        " 10000 in the completion). Please reduce the length of the messages or completion.",
        "This model's maximum context length is 131072 tokens. However, you requested 128000 output tokens and your prompt"
        " contains at least 3073 input tokens, for a total of at least 131073 tokens. Please reduce the length of the input"
        " prompt or the number of requested output tokens. (parameter=input_tokens, value=3073)",
        "Input prompt (36893 tokens) is too long and exceeds limit of 1000",
        "The decoder prompt (length 18425) is longer than the maximum model length of 12288. Make sure that `max_model_len`"
        " is no smaller than the number of text tokens plus multimodal tokens.",
        "max_tokens must be at least 1, got -186.",
    ),
    # barun-saha/slide-deck-ai #44, stanford-crfm/helm #1820
    "tgi": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 32768. Given: 40000 `inputs` tokens and 1024"
        " `max_new_tokens`",
        "Input validation error: `inputs` must have less than 1024 tokens. Given: 1244",
    ),
    # LiteLLM's exception names; earendil-works/pi (overflow.test.ts, a proxy that responds with 503)
    "litellm": (
        "litellm.BadRequestError: litellm.ContextWindowExceededError: OpenAIException - too long",
        "litellm.ServiceUnavailableError: litellm.MidStreamFallbackError: litellm.APIConnectionError: APIConnectionError:"
        " OpenAIException - Requested token count exceeds the model's maximum context length of 131072 tokens.",
        "Error: 400 Input length (265330) exceeds model's maximum context length (262144).",
    ),
    # cohere-ai/sandbox-topically #4 (the first message; the second counts the prompt alone)
    "cohere": (
        "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - received 6354. Try using a"
        " shorter prompt or a smaller max_tokens value.",
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",
    ),
    # earendil-works/pi (overflow.test.ts)
    "ds4": ("Prompt has 5,958,968 tokens, but the configured context size is 256,000 tokens",),
}

WITHOUT_WINDOW = {
    "tokens in request more than max tokens allowed",
    "Total tokens of image and text exceed max message tokens",
    "Failed to generate: context window full",
    "The sequence length exceeds the model limit",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "context_length_exceeded",
    "Request exceeds the maximum size",
    "Request size exceeds model context window",
    "Extra usage is required for long context requests.",
    "The long context beta is not yet available for this subscription.",
    "Input is too long for requested model.",
    "Please reduce the length of the messages or completion.",
    "total message size 2306631 exceeds limit 2097152",
    "invalid params, context window exceeds limit (2013)",
    "Prompt exceeds max length",
    "Prompt too long",
    "Prompt 超长",
    "model_context_window_exceeded",
    "model_max_prompt_tokens_exceeded",
    "prompt too long; exceeded max context length by 100918 tokens",
    "prompt too long; exceeded context length",
    "input exceeds context length",
    "the input length exceeds the context length",
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    "Context size has been exceeded.",
    "exceed_context_size_error",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "max_tokens must be at least 1, got -186.",
    "litellm.BadRequestError: litellm.ContextWindowExceededError: OpenAIException - too long",
}
"""Messages that state no window."""
WINDOWS = {
    2, 1000, 1024, 2048, 4081, 4096, 4097, 8192, 12288, 16384, 30720, 32767, 32768, 40000, 64000, 65536, 128000, 131040,
    131072, 200000, 204698, 256000, 262144, 272000, 983616, 1048576,
}  # fmt: skip
"""The windows that the other messages state. Their other numbers are not windows."""

RATE_LIMITS = (
    # cline/cline #4971 (Groq)
    "Request too large for model `kimi-k2` in organization `org` service tier `on_demand` on tokens per minute (TPM): Limit"
    " 10000, Requested 15088, please reduce your message size and try again.",
    # OpenAI's documentation of rate limits
    "Rate limit reached for gpt-4o in organization org on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000."
    " Please try again in 2s.",
    # anthropics/claude-code #1466 (Bedrock)
    "Too many tokens, please wait before trying again.",
    "Too many tokens per day, please wait before trying again.",
    # Anthropic's documentation of rate limits
    "This request would exceed your organization's rate limit of 30,000 input tokens per minute.",
    # zimmra/openclaw (tests of non-overflow errors); earendil-works/pi (the last one, from Bedrock)
    "request reached organization TPD rate limit, current: 1506556, limit: 1500000",
    "Throttling error: Too many tokens",
)
"""Answers with status 429: waiting helps, a shorter request does not."""

OTHER_REFUSALS = (
    # limits on the output: RooCodeInc/Roo-Code #5729 (Groq), #248 and charmbracelet/crush #946 (Bedrock)
    "max_tokens must be less than or equal to 16384, the maximum value for max_tokens is less than the context_window for"
    " this model",
    "The maximum tokens you requested exceeds the model limit of 32768",
    "The maximum tokens you requested exceed the model limit of 4096. Try again with a maximum tokens value lower than 4096.",
    # Anthropic's and OpenAI's documentation of errors
    "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens for this model",
    "max_tokens is too large: 32768. This model supports at most 16384 completion tokens",
    "max_tokens must be at least 1, got 0.",
    "Invalid 'messages[1].tool_calls': array too long. Expected an array with maximum length 128",
    "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 200 instead.",
    "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64",
    "image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
    "Number of tools exceeds the limit of 128",
    "Context window too small: minimum is 1000 tokens",
    "messages[3] is malformed",
)
"""Answers with status 400 for which a shorter conversation does not help."""

LOAD = (
    (503, "The server has too many tokens in flight. Please retry."),
    (503, "Service unavailable: too many tokens in flight for model my-model"),
    (503, "Engine is overloaded: the number of tokens waiting cannot exceed 100000, try again later"),
    (503, "Server at capacity: input tokens in the queue exceed the limit"),
    (529, "Too many input tokens are being processed concurrently."),
    (502, "Upstream busy: prompt tokens queued exceed the token limit"),
    (429, "You have exceeded the token limit for your plan."),
    (429, "Token limit exceeded for this organization."),
    (429, "Concurrent token limit exceeded"),
)
"""Answers that mention tokens but mean load or quota: waiting helps, a shorter request does not."""
