"""All configured providers and their models: from a name to the provider that runs it, its window and its price."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.errors import InvalidInput
from shoal.domain.messages import Usage
from shoal.domain.ports import Provider, Route
from shoal.providers import prices
from shoal.providers.build import ProviderSettings, build_provider
from shoal.providers.demo import DEMO, DemoProvider
from shoal.providers.discovery import Listing, discover, read_listings, write_listings
from shoal.providers.table import (
    LOCAL_CONTEXT_TOKENS,
    UNKNOWN_CONTEXT_TOKENS,
    UNKNOWN_OUTPUT_TOKENS,
    model_row,
    server_row,
)

log = logging.getLogger(__name__)

NAMES_SHOWN_MAX = 20


class _Entry(msgspec.Struct, frozen=True):
    provider: Provider
    kind: str
    base_url: str = ""
    context_tokens: int = 0
    models: tuple[str, ...] = ()


class Catalog:
    """The port `Models`. `listings_file` is available_models.json; nothing is asked of a provider but by `refresh`."""

    def __init__(
        self,
        settings: Sequence[ProviderSettings],
        *,
        listings_file: Path,
        clock: Clock,
        environ: Mapping[str, str],
        extra: Iterable[Provider] = (),
    ) -> None:
        self._file = listings_file
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._routes: dict[str, Route] = {}
        for row in settings:
            window = LOCAL_CONTEXT_TOKENS if row.kind == "local" else server_row(row.address).context_tokens
            provider = build_provider(row, clock, environ)
            self._entries[row.name] = _Entry(provider, row.kind, row.address, window, row.models)
        for provider in extra:
            self._entries[provider.name] = _Entry(provider, "extension")
        if DEMO not in self._entries:
            self._entries[DEMO] = _Entry(DemoProvider(clock), DEMO, models=(DEMO,))
        self._listings = read_listings(listings_file)

    @property
    def providers(self) -> dict[str, Provider]:
        """Every provider by name, in the order of the configuration; `demo` is always there, last."""
        return {name: entry.provider for name, entry in self._entries.items()}

    @property
    def listings(self) -> Mapping[str, Listing]:
        """What is known of each provider's models, from the file or the last refresh."""
        return {name: listing for name, listing in self._listings.items() if name in self._entries}

    def names(self) -> list[str]:
        """Every known model as `PROVIDER/MODEL`, provider by provider."""
        return [
            model if name == DEMO else f"{name}/{model}"
            for name, entry in self._entries.items()
            for model in self._models(name, entry)
        ]

    def route(self, name: str) -> Route:
        """See the port."""
        found = self._routes.get(name)
        if found is None:
            found = self._routes[name] = self._find(name.strip())
        return found

    def usd(self, route: Route, usage: Usage) -> float | None:
        """See the port."""
        entry = self._entries.get(route.provider.name)
        if entry is not None and entry.kind == DEMO:
            return 0.0
        if entry is None or entry.kind not in prices.PRICED_AS:
            return None
        return prices.usd(entry.kind, entry.base_url, route.model, usage)

    async def refresh(self) -> Mapping[str, Listing]:
        """Ask every provider but `demo` what it offers and write the file; failures are told in the listings."""
        asked = [entry.provider for name, entry in self._entries.items() if name != DEMO]
        found = await discover(asked, self._listings, self._clock)
        self._listings = {**self._listings, **found}
        self._routes.clear()
        for name, listing in found.items():
            if listing.error:
                log.warning("provider could not be validated; see `shoal doctor`", extra={"provider": name})
        try:
            await asyncio.to_thread(write_listings, self._file, self.listings)
        except OSError as error:
            log.warning("available_models.json cannot be written", extra={"error": str(error)})
        if any(entry.base_url.startswith("https:") for entry in self._entries.values()):
            await asyncio.to_thread(prices.load)
        return found

    async def close(self) -> None:
        """Close every provider."""
        for entry in self._entries.values():
            await entry.provider.close()

    def _models(self, name: str, entry: _Entry) -> list[str]:
        listing = self._listings.get(name)
        listed = listing.models if listing is not None else ()
        return list(dict.fromkeys((*entry.models, *listed)))

    def _find(self, name: str) -> Route:
        first, slash, rest = name.partition("/")
        if slash and rest and first in self._entries:
            return self._route(first, rest)
        if name == DEMO:
            return self._route(DEMO, DEMO)
        offering = (key for key, entry in self._entries.items() if name in self._models(key, entry))
        holders: tuple[Callable[[], str | None], ...] = (
            lambda: next(offering, None),
            lambda: self._native_to(name),
            self._only_one,
        )
        for holder in holders if name else ():
            provider = holder()
            if provider is not None:
                return self._route(provider, name)
        known = ", ".join(self.names()[:NAMES_SHOWN_MAX])
        configured = ", ".join(self._entries)
        raise InvalidInput(
            f"No provider has the model {name!r}. Configured are {configured}; write PROVIDER/MODEL, such as: {known}."
        )

    def _native_to(self, model: str) -> str | None:
        row = model_row(model) if "/" not in model else None
        if row is None:
            return None
        return next((name for name, entry in self._entries.items() if entry.kind.startswith(row.kind)), None)

    def _only_one(self) -> str | None:
        real = [name for name in self._entries if name != DEMO]
        return real[0] if len(real) == 1 and not self._listings.get(real[0]) else None

    def _route(self, provider: str, model: str) -> Route:
        entry = self._entries[provider]
        listing = self._listings.get(provider, Listing(False, ()))
        row = model_row(model)
        context = (
            listing.context_tokens.get(model)
            or entry.context_tokens
            or (row.context_tokens if row is not None else UNKNOWN_CONTEXT_TOKENS)
        )
        output = listing.max_output_tokens.get(model) or (
            row.output_tokens if row is not None else UNKNOWN_OUTPUT_TOKENS
        )
        return Route(entry.provider, model, context, min(output, context))
