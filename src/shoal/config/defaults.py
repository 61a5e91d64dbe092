"""Well-known services as data, and the default model."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shoal.kernel.errors import ConfigError, ProviderDown, ProviderRefused
from shoal.kernel.settings import Config, ProviderSettings

if TYPE_CHECKING:
    from shoal.kernel.clock import Clock
    from shoal.models.catalog import Catalog


class KnownProvider(NamedTuple):
    """A well-known service, its environment variables and its defaults."""

    title: str
    """Label shown in setup."""
    kind: str
    base_url: str = ""
    key: str = ""
    """Environment variable from which the service's own tools read the key."""
    address: str = ""
    """Environment variable from which the service's own tools read the URL."""
    model: str = ""
    """Default model if the configuration contains only the key."""
    key_kind: str = ""
    """Description of the service's keys, such as `an OpenAI key`."""
    key_begins: str = ""


KNOWN_PROVIDERS = {
    "anthropic": KnownProvider(
        "Anthropic, with a key", "anthropic", "", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "claude-sonnet-5-5",
        "an Anthropic key", "sk-ant-",
    ),
    "openai": KnownProvider(
        "OpenAI, with a key", "openai", "", "OPENAI_API_KEY", "OPENAI_BASE_URL", "gpt-5.6-terra",
        "an OpenAI key", "sk-",
    ),
    "gemini": KnownProvider(
        "Google Gemini, with a key", "gemini", "", "GEMINI_API_KEY", "", "gemini-3.8-flash", "a Google key", "AIza"
    ),
    "openrouter": KnownProvider(
        "OpenRouter, with a key", "openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "",
        "anthropic/claude-sonnet-5.5", "an OpenRouter key", "sk-or-",
    ),
    "ollama": KnownProvider("Ollama on this machine", "openai", "http://127.0.0.1:11434/v1"),
    "local": KnownProvider("A model file (GGUF), run by Shoal itself", "local"),
}  # fmt: skip
"""Well-known services, in the order in which Shoal searches for a default model."""

PROVIDER_KINDS = ("anthropic", "openai", "openai-responses", "gemini", "local")
BUILTIN_PROFILES = ("open", "standard", "guarded", "locked")

USUAL_VARIABLES = {
    **{known.key: ("providers", name, "api_key") for name, known in KNOWN_PROVIDERS.items() if known.key},
    **{known.address: ("providers", name, "base_url") for name, known in KNOWN_PROVIDERS.items() if known.address},
    "BRAVE_API_KEY": ("tools", "brave_api_key"),
    "DATABASE_URL": ("database", "url"),
}
"""Common environment variables without Shoal's prefix, and the configuration keys that they set."""

DEMO = "demo"


def default_model(config: Config) -> str:
    """Return the configured model, or a suitable model of the first provider that is set up, or `demo`.

    Does not use the network. If the result is `demo`, the caller may look for a running Ollama.
    """
    if config.model.name:
        return config.model.name
    order = [name for name in KNOWN_PROVIDERS if name in config.providers]
    order += [name for name in config.providers if name not in KNOWN_PROVIDERS]
    for name in order:
        provider, known = config.providers[name], KNOWN_PROVIDERS.get(name)
        try:
            has_key = bool(provider.api_key and provider.api_key.reveal())
        except ConfigError:
            has_key = False
        if provider.models:
            model = provider.models[0]
        elif provider.kind == "local":
            model = PurePath(provider.model_file).stem
        else:
            model = known.model if known and has_key else ""
        if model:
            return f"{name}/{model}"
    return DEMO


def open_catalog(config: Config, environ: Mapping[str, str], clock: "Clock") -> "Catalog":
    """Open the configured providers and those of installed packages. Raises ConfigError."""
    from shoal.extensions import extension_providers
    from shoal.kernel.home import Home
    from shoal.models.catalog import Catalog

    return Catalog(config.providers, home=Home(config.home), clock=clock, environ=environ, extra=extension_providers())


OLLAMA_SECONDS = 0.3
OLLAMA_LIST_SECONDS = 3.0


async def with_ollama(config: Config, environ: Mapping[str, str]) -> Config:
    """Add the Ollama server on this machine if the configuration has no other model and Ollama has at least one.

    Connects to OLLAMA_HOST or the default address. If Ollama is not running, this costs one refused connection.
    """
    import asyncio
    from urllib.parse import urlsplit

    from shoal.kernel.clock import SystemClock

    if default_model(config) != DEMO or config.model.name or "ollama" in config.providers:
        return config
    address = environ.get("OLLAMA_HOST", "").rstrip("/")
    if not address:
        address = KNOWN_PROVIDERS["ollama"].base_url.removesuffix("/v1")
    elif "://" not in address:
        address = f"http://{address}"
    try:
        parts = urlsplit(address)
        async with asyncio.timeout(OLLAMA_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 11434)
    except (OSError, TimeoutError, ValueError):
        return config
    writer.close()
    from shoal.models.catalog import build_provider

    settings = ProviderSettings(kind="openai", base_url=f"{address}/v1")
    provider = build_provider("ollama", settings, SystemClock(), environ)
    try:
        async with asyncio.timeout(OLLAMA_LIST_SECONDS):
            models = tuple(model.id for model in await provider.models())
    except (ProviderDown, ProviderRefused, TimeoutError):
        return config
    finally:
        await provider.close()
    if not models:
        return config
    ollama = msgspec.structs.replace(settings, models=models)
    return msgspec.structs.replace(config, providers={**config.providers, "ollama": ollama})
