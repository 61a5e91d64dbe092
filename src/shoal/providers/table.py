"""What is known of models and servers beforehand, as rows of data; what a provider lists itself counts more.

Numbers are tokens. The first row whose pattern matches wins; a pattern is a shell glob over the model's name without
its maker (`maker/name`), in lower case and with dots written as hyphens.
"""

from fnmatch import fnmatchcase
from functools import lru_cache

import msgspec

from shoal.providers.wire import Quirks

UNKNOWN_CONTEXT_TOKENS = 32_768
"""Window assumed of a model nobody knows; a larger one is set by context_tokens_max."""
LOCAL_CONTEXT_TOKENS = 8_192
"""The window a local model is loaded with; memory for it is taken whole."""
UNKNOWN_OUTPUT_TOKENS = 4_096
MODELS_REMEMBERED_MAX = 256
"""Names whose row is remembered: it is looked up at each call of a model."""


class ModelRow(msgspec.Struct, frozen=True):
    """A family of models: whose interface has it natively, its window and its longest answer."""

    pattern: str
    kind: str
    context_tokens: int
    output_tokens: int
    temperature: bool = True


class ServerRow(msgspec.Struct, frozen=True):
    """A server by a part of its address: how it departs from the interface, and a window that it imposes (0: none)."""

    address: str
    quirks: Quirks = Quirks()
    context_tokens: int = 0
    reasoning_back: bool = False


_M = 1_000_000

MODELS = (
    ModelRow("claude-3-7-*", "anthropic", 200_000, 64_000),
    ModelRow("claude-3-5-*", "anthropic", 200_000, 8_192),
    ModelRow("claude-3-*", "anthropic", 200_000, 4_096),
    ModelRow("claude-*-4-[678]*", "anthropic", _M, 64_000),
    ModelRow("claude-*-4-5*", "anthropic", 200_000, 64_000),
    ModelRow("claude-*-4*", "anthropic", 200_000, 32_000),
    ModelRow("claude-*-[5-9]*", "anthropic", _M, 64_000),
    ModelRow("claude-*", "anthropic", 200_000, 8_192),
    ModelRow("gpt-oss-*", "openai", 131_072, 32_768),
    ModelRow("gpt-5-4-mini*", "openai", 400_000, 128_000, temperature=False),
    ModelRow("gpt-5-4-nano*", "openai", 400_000, 128_000, temperature=False),
    ModelRow("gpt-5-[456]*", "openai", _M, 128_000, temperature=False),
    ModelRow("gpt-5-3", "openai", 128_000, 16_384, temperature=False),
    ModelRow("gpt-5*", "openai", 400_000, 128_000, temperature=False),
    ModelRow("gpt-[6-9]*", "openai", _M, 128_000, temperature=False),
    ModelRow("gpt-4-1*", "openai", _M, 32_768),
    ModelRow("gpt-4o*", "openai", 128_000, 16_384),
    ModelRow("chatgpt-4o*", "openai", 128_000, 16_384),
    ModelRow("gpt-4-turbo*", "openai", 128_000, 4_096),
    ModelRow("gpt-4-32k*", "openai", 32_000, 4_096),
    ModelRow("gpt-4*", "openai", 8_192, 4_096),
    ModelRow("gpt-3-5-*", "openai", 16_385, 4_096),
    ModelRow("o1-mini*", "openai", 128_000, 65_536, temperature=False),
    ModelRow("o1-preview*", "openai", 128_000, 32_768, temperature=False),
    ModelRow("o[134]*", "openai", 200_000, 100_000, temperature=False),
    ModelRow("codex-*", "openai", 200_000, 100_000, temperature=False),
    ModelRow("gemini-1-5-*", "gemini", _M, 8_192),
    ModelRow("gemini-2-0-*", "gemini", _M, 8_192),
    ModelRow("gemini-*", "gemini", _M, 65_536),
    ModelRow("gemma-4-*", "gemini", 262_144, 8_192),
    ModelRow("gemma*", "gemini", 32_768, 8_192),
    ModelRow("deepseek-v4*", "openai", _M, 32_768),
    ModelRow("deepseek-v3*", "openai", 128_000, 8_192),
    ModelRow("deepseek-*", "openai", 64_000, 8_192),
    ModelRow("grok-4-*fast*", "openai", 2 * _M, 30_000),
    ModelRow("grok-4*", "openai", 256_000, 30_000),
    ModelRow("grok-*", "openai", 131_072, 16_384),
    ModelRow("mistral-large-4*", "openai", _M, 32_768),
    ModelRow("*stral*", "openai", 131_072, 16_384),
    ModelRow("kimi-*", "openai", 131_072, 16_384),
    ModelRow("glm-*", "openai", 131_072, 16_384),
    ModelRow("qwen*", "openai", 32_768, 8_192),
    ModelRow("llama-3-[123]*", "openai", 131_072, 8_192),
    ModelRow("llama3-[123]*", "openai", 131_072, 8_192),
)

_OFFICIAL = Quirks(max_tokens="max_completion_tokens", cache_key=True)
SERVERS = (
    ServerRow("//api.openai.com", _OFFICIAL),
    ServerRow(".openai.azure.com", _OFFICIAL),
    ServerRow(":11434", context_tokens=8_192),
    ServerRow("api.deepseek.com", reasoning_back=True),
    ServerRow("api.moonshot.", reasoning_back=True),
    ServerRow("api.mistral.ai", Quirks(usage_option=False)),
)
"""Ollama (port 11434) cuts silently what exceeds the window it loaded a model with, which is small by default."""

BASE_URLS = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "openai-responses": "https://api.openai.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta",
}
"""Where each kind's own service is."""

PRICED_AS = {"anthropic": "anthropic", "openai": "openai", "openai-responses": "openai", "gemini": "google"}
"""Whose price list counts for a kind when the address says nothing, e.g. behind a company's proxy."""


@lru_cache(maxsize=MODELS_REMEMBERED_MAX)
def model_row(model: str) -> ModelRow | None:
    """What is known of a model."""
    name = model.rpartition("/")[2].lower().replace(".", "-")
    for row in MODELS:
        begin = row.pattern.partition("*")[0].partition("[")[0]
        if name.startswith(begin) and fnmatchcase(name, row.pattern):  # which compiles each pattern it is given
            return row
    return None


def server_row(base_url: str) -> ServerRow:
    """What is known of a server; a row without departures when nothing is."""
    return next((row for row in SERVERS if row.address in base_url), ServerRow(""))


def quirks_of(base_url: str, model: str) -> Quirks:
    """How to write requests for this model at this address."""
    quirks = server_row(base_url).quirks
    row = model_row(model)
    return msgspec.structs.replace(quirks, temperature=False) if row is not None and not row.temperature else quirks
