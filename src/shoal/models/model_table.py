"""Built-in facts about models and servers, including prices. A provider's own listing takes precedence.

Numbers are tokens. The first model or family with a matching pattern wins. A pattern is a shell glob for the model's
name without its maker (`maker/name`), in lower case and with hyphens instead of dots.
"""

from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib import import_module

import msgspec

from shoal.kernel.messages import Usage
from shoal.kernel.settings import Price
from shoal.models.quirks import Changes, Quirks

LOCAL_CONTEXT_TOKENS = 8_192
"""Context window of a local model. Memory for the entire window is allocated when the model is loaded."""
UNKNOWN_OUTPUT_TOKENS = 4_096
MODELS_REMEMBERED_MAX = 256


class ModelRow(msgspec.Struct, frozen=True):
    """A model family.

    `kind` is the provider kind of the maker's own service. `tool_search` is set if the family uses its provider's
    native tool search.
    """

    pattern: str
    kind: str
    context_tokens: int
    output_tokens: int
    temperature: bool = True
    tool_search: bool = False


class ServerRow(msgspec.Struct, frozen=True):
    """A server, identified by a part of its address."""

    address: str
    quirks: Changes = {}
    context_tokens: int = 0
    """Maximum context window on this server. 0 means no limit."""
    pattern: str = "*"
    """Pattern for the models to which the quirks apply."""
    is_free: bool = False
    """True if calls are free. Servers without this flag may forward calls to a paid service, so they need a configured
    price.
    """


class FamilyRow(msgspec.Struct, frozen=True):
    """The quirks of a model family on any server."""

    pattern: str
    quirks: Changes


_M = 1_000_000

MODELS = (
    ModelRow("claude-3-7-*", "anthropic", 200_000, 64_000),
    ModelRow("claude-3-5-*", "anthropic", 200_000, 8_192),
    ModelRow("claude-3-*", "anthropic", 200_000, 4_096),
    ModelRow("claude-*-4-[678]*", "anthropic", _M, 64_000, tool_search=True),
    ModelRow("claude-*-4-5*", "anthropic", 200_000, 64_000, tool_search=True),
    ModelRow("claude-*-4*", "anthropic", 200_000, 32_000),
    ModelRow("claude-*-[5-9]*", "anthropic", _M, 64_000, tool_search=True),
    ModelRow("claude-*", "anthropic", 200_000, 8_192),
    ModelRow("gpt-oss-*", "openai", 131_072, 32_768),
    ModelRow("gpt-5-4-mini*", "openai", 400_000, 128_000, temperature=False, tool_search=True),
    ModelRow("gpt-5-4-nano*", "openai", 400_000, 128_000, temperature=False, tool_search=True),
    ModelRow("gpt-5-[456]*", "openai", _M, 128_000, temperature=False, tool_search=True),
    ModelRow("gpt-5-3", "openai", 128_000, 16_384, temperature=False),
    ModelRow("gpt-5*", "openai", 400_000, 128_000, temperature=False),
    ModelRow("gpt-[6-9]*", "openai", _M, 128_000, temperature=False, tool_search=True),
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

_TEXT: Changes = {"images": "none"}
_WANTS_REASONING: Changes = {"reasoning_field": "reasoning_content", "reasoning_needed": True}
_OPENS: Changes = {"opens_thinking": True}
_MISTRAL: Changes = {"nine_char_ids": True, "user_after_tool": False}

FAMILIES = (
    FamilyRow("deepseek-vl*", {}),
    FamilyRow("deepseek-ocr*", {}),
    FamilyRow("deepseek-r1*", {**_TEXT, **_OPENS}),
    FamilyRow("qwq*", _OPENS),
    FamilyRow("qwen3*thinking*", _OPENS),
    FamilyRow("glm-z1*", _OPENS),
    FamilyRow("deepseek*", {**_TEXT, **_WANTS_REASONING}),
    FamilyRow("kimi-k2-[0t]*", {**_TEXT, **_WANTS_REASONING}),
    FamilyRow("kimi-k2-instruct*", _TEXT),
    FamilyRow("kimi-*", _WANTS_REASONING),
    FamilyRow("k2p[5-9]*", _WANTS_REASONING),
    FamilyRow("*stral*", _MISTRAL),
    FamilyRow("gpt-oss*", _TEXT),
    FamilyRow("gpt-3-5*", _TEXT),
    FamilyRow("o1-mini*", {**_TEXT, "system_role": False, "tools": False}),
    FamilyRow("o1-preview*", {**_TEXT, "system_role": False, "tools": False}),
    FamilyRow("o3-mini*", _TEXT),
    FamilyRow("glm-4-[567]", _TEXT),
    FamilyRow("glm-4-[567]-*", _TEXT),
    FamilyRow("llama-3-[13]*", _TEXT),
    FamilyRow("llama3-[13]*", _TEXT),
    FamilyRow("minimax-m1*", _TEXT),
    FamilyRow("minimax-m2*", {**_TEXT, **_OPENS}),
)
"""Sources: api-docs.deepseek.com (thinking mode), kimi-cli#2141, crush#2696, new-api#3121 (Kimi), mistral-common (ids),
litellm#6323 (Mistral's order of roles), the chat templates of families with `opens_thinking`, and the providers' own
model lists.
"""

_OFFICIAL: Changes = {"max_tokens": "max_completion_tokens", "cache_key": True, "tool_search": True,
                      "schema_dialect": "full"}  # fmt: skip
_NO_REASONING: Changes = {"reasoning_field": "", "reasoning_needed": False}
SERVERS = (
    ServerRow("//api.anthropic.com", {"tool_search": True, "images_max": 100, "image_bytes_max": 24_000_000}),
    ServerRow("//api.openai.com", _OFFICIAL),
    ServerRow(".openai.azure.com", _OFFICIAL),
    ServerRow(":11434", context_tokens=8_192, is_free=True),
    ServerRow("api.deepseek.com", {**_TEXT, **_WANTS_REASONING}),
    ServerRow("api.moonshot.", _WANTS_REASONING),
    ServerRow("api.kimi.com", _WANTS_REASONING),
    ServerRow("api.mistral.ai", {**_MISTRAL, "usage_option": False, "images_max": 8}),
    ServerRow("api.groq.com", {**_NO_REASONING, "images_max": 5}),
    ServerRow("api.cerebras.ai", _NO_REASONING),
    ServerRow("generativelanguage.googleapis.com/v1beta/openai", {"call_signatures": True}),
    ServerRow("generativelanguage.googleapis.com", {"tools": False, "system_role": False}, pattern="gemma-3*"),
)
"""Known servers.

Ollama (port 11434) loads models with a small window by default, and silently truncates requests that exceed it.
"""

BASE_URLS = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "openai-responses": "https://api.openai.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta",
}
"""Default base URL of each provider kind."""

PRICED_AS = {"anthropic": "anthropic", "openai": "openai", "openai-responses": "openai", "gemini": "google"}
"""Price list for each provider kind, used if the URL is unknown, such as the URL of a company's proxy."""


@lru_cache(maxsize=MODELS_REMEMBERED_MAX)
def model_row(model: str) -> ModelRow | None:
    name = _plain(model)
    return next((row for row in MODELS if _matches(name, row.pattern)), None)


def server_row(base_url: str) -> ServerRow:
    return next((row for row in SERVERS if row.address in base_url and row.pattern == "*"), ServerRow(""))


@lru_cache(maxsize=MODELS_REMEMBERED_MAX)
def known_quirks(base_url: str, model: str) -> Quirks:
    """Return the built-in quirks of a model at this URL. A server's quirks override those of the family."""
    name, quirks = _plain(model), Quirks()
    family = next((row for row in FAMILIES if _matches(name, row.pattern)), None)
    if family is not None:
        quirks = quirks.changed(family.quirks)
    for row in SERVERS:
        if row.address in base_url and _matches(name, row.pattern):
            quirks = quirks.changed(row.quirks)
    known = model_row(model)
    return quirks.changed(
        {
            "tool_search": quirks.tool_search and known is not None and known.tool_search,
            "temperature": quirks.temperature and (known is None or known.temperature),
        }
    )


def _matches(name: str, pattern: str) -> bool:
    begin = pattern.partition("*")[0].partition("[")[0]
    # Compare the beginning first, because fnmatch compiles each pattern.
    return name.startswith(begin) and fnmatchcase(name, pattern)


def _plain(model: str) -> str:
    return model.rpartition("/")[2].lower().replace(".", "-")


def configured_usd(price: Price, usage: Usage) -> float:
    if not isinstance(price, dict):
        return (usage.input_tokens + usage.output_tokens) * price / 1e6
    fresh = price.get("input", 0.0)
    cached, written = price.get("cached", fresh), price.get("cache_write", fresh)
    plain = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
    sums = (plain * fresh, usage.cached_tokens * cached, usage.cache_write_tokens * written)
    return (sum(sums) + usage.output_tokens * price.get("output", fresh)) / 1e6


def price_usd(kind: str, base_url: str, model: str, usage: Usage) -> float | None:
    """Return the cost in US dollars, or None if the price is unknown. An unknown price never counts as 0."""
    is_public = base_url.startswith("https:")
    if (not is_public and model_row(model) is None) or not load_prices():
        return None
    import genai_prices

    tokens = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    with suppress(LookupError):
        if is_public:
            return float(genai_prices.calc_price(tokens, model, provider_api_url=base_url).total_price)
    with suppress(LookupError):
        return float(genai_prices.calc_price(tokens, model, provider_id=PRICED_AS[kind]).total_price)
    return None


@cache
def load_prices() -> bool:
    """Import the price lists of genai-prices (extra `prices`), which takes 0.1 s. Returns False if the package is
    missing.
    """
    try:
        import_module("genai_prices")
    except ImportError:
        return False
    return True


def shipped_models(kind: str, base_url: str) -> tuple[str, ...]:
    if not base_url.startswith("https:") or not load_prices():
        return ()
    from genai_prices.data_snapshot import get_snapshot

    try:
        provider = get_snapshot().find_provider(None, None, base_url)
    except LookupError:
        return ()
    # A service may list other companies' models that only its cloud offers.
    is_own = base_url == BASE_URLS.get(kind, "").rstrip("/")
    rows = [(model.id, model_row(model.id)) for model in provider.models if ":" not in model.id and "~" not in model.id]
    return tuple(name for name, row in rows if row is not None and (not is_own or kind.startswith(row.kind)))
