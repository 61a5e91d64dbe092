"""Where no model is configured at all: an Ollama that runs on this machine."""

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from shoal.config.defaults import DEMO, KNOWN_PROVIDERS, default_model
from shoal.domain.clock import SystemClock
from shoal.domain.errors import ProviderDown, ProviderRefused
from shoal.domain.settings import Config, ProviderSettings

OLLAMA_SECONDS = 0.3
"""How long a running Ollama may take to accept a connection."""


async def with_ollama(config: Config, environ: Mapping[str, str]) -> Config:
    """The configuration, and where it names no model at all, with an Ollama that runs on this machine and has one.

    It is looked for at OLLAMA_HOST, else at its usual address; nothing there costs a refused connection.
    """
    if default_model(config) != DEMO or config.model.name or "ollama" in config.providers:
        return config
    address = environ.get("OLLAMA_HOST", "").rstrip("/")
    if not address:
        address = KNOWN_PROVIDERS["ollama"].base_url.removesuffix("/v1")
    elif "://" not in address:
        address = f"http://{address}"
    parts = urlsplit(address)
    try:
        async with asyncio.timeout(OLLAMA_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 11434)
    except (OSError, TimeoutError, ValueError):
        return config
    writer.close()
    from shoal.providers.catalog import build_provider

    found = ProviderSettings(kind="openai", base_url=f"{address}/v1")
    provider = build_provider("ollama", found, SystemClock(), environ)
    try:
        models = tuple(model.id for model in await provider.models())
    except (ProviderDown, ProviderRefused):
        return config
    finally:
        await provider.close()
    if not models:
        return config
    ollama = msgspec.structs.replace(found, models=models)
    return msgspec.structs.replace(config, providers={**config.providers, "ollama": ollama})
