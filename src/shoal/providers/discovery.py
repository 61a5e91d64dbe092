"""Which keys are valid and which models are offered: asked of all providers at once, kept in available_models.json."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from shoal.domain.clock import Clock, iso
from shoal.domain.errors import ProviderDown, ProviderRefused
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ports import Provider

log = logging.getLogger(__name__)

DISCOVERY_SECONDS = 10.0
"""How long one provider may take to list its models."""
MODELS_MAX = 5_000
"""Models kept of one provider."""


class Listing(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a provider offers. `valid`: the key is accepted; `error` says in a sentence what was wrong at `checked_at`.

    `context_tokens` and `max_output_tokens` have the numbers that the provider told, by model.
    """

    valid: bool
    models: tuple[str, ...]
    error: str = ""
    checked_at: str = ""
    context_tokens: dict[str, int] = {}
    max_output_tokens: dict[str, int] = {}


_decoder = msgspec.json.Decoder(dict[str, Listing])


def read_listings(path: Path) -> dict[str, Listing]:
    """The file's listings by provider; empty when there is none, or when it is damaged (the next refresh mends it)."""
    try:
        return _decoder.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, *UNREADABLE) as error:
        log.warning("available_models.json cannot be used; run `shoal models refresh`", extra={"error": str(error)})
        return {}


def write_listings(path: Path, listings: Mapping[str, Listing]) -> None:
    """Replace the file whole: a reader sees the old or the new one. Raises OSError."""
    # `models` stays in the file when it is empty: others read it.
    rows = {
        name: {"valid": row.valid, "models": row.models} | msgspec.to_builtins(row) for name, row in listings.items()
    }
    data = msgspec.json.format(msgspec.json.encode(rows), indent=2)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


async def discover(
    providers: Iterable[Provider], before: Mapping[str, Listing], clock: Clock, seconds: float = DISCOVERY_SECONDS
) -> dict[str, Listing]:
    """Ask every provider for its models, all at once, each for at most `seconds`. Failures become listings too."""
    asked = tuple(providers)
    found = await asyncio.gather(
        *(_ask(provider, before.get(provider.name), iso(clock.now()), seconds) for provider in asked)
    )
    return {provider.name: listing for provider, listing in zip(asked, found, strict=True)}


async def _ask(provider: Provider, before: Listing | None, at: str, seconds: float) -> Listing:
    try:
        async with asyncio.timeout(seconds):
            models = (await provider.models())[:MODELS_MAX]
    except ProviderRefused as error:
        return Listing(False, (), str(error), at)
    except (ProviderDown, TimeoutError) as error:
        words = str(error) or f"{provider.name} did not list its models within {seconds:.0f} s."
        if before is None:
            return Listing(False, (), words, at)
        return msgspec.structs.replace(before, error=words)
    return Listing(
        True,
        tuple(model.id for model in models),
        "",
        at,
        {model.id: model.context_tokens for model in models if model.context_tokens},
        {model.id: model.max_output_tokens for model in models if model.max_output_tokens},
    )
