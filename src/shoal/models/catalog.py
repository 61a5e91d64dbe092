"""Resolve a model name to its provider, context window and price.

A refresh queries all providers for their models concurrently, which also validates the keys. The results are stored
in available_models.json.
"""

import asyncio
import contextlib
import difflib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.kernel.clock import Clock, iso
from shoal.kernel.errors import ConfigError, InvalidInput, ProviderDown, ProviderRefused
from shoal.kernel.home import Home
from shoal.kernel.messages import Usage
from shoal.kernel.phrases import counted
from shoal.kernel.ports import Models, Provider, Route
from shoal.kernel.regular_files import read_regular
from shoal.kernel.settings import Price, ProviderSettings
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.api_protocol import ApiProtocol
from shoal.models.demo import CONTEXT_TOKENS as DEMO_CONTEXT_TOKENS
from shoal.models.demo import DEMO, DemoProvider
from shoal.models.model_table import (
    BASE_URLS,
    LOCAL_CONTEXT_TOKENS,
    PRICED_AS,
    UNKNOWN_OUTPUT_TOKENS,
    configured_usd,
    known_quirks,
    load_prices,
    model_row,
    price_usd,
    server_row,
    shipped_models,
)
from shoal.models.quirks import ProviderQuirks, QuirkMemory, Quirks
from shoal.net.http import make_client

if TYPE_CHECKING:
    from shoal.models.http_provider import ModelEndpoint

log = logging.getLogger(__name__)

DISCOVERY_SECONDS = 10.0
MODELS_MAX = 5_000
NAMES_SHOWN_MAX = 20


# ---- providers ----


def build_provider(
    name: str,
    settings: ProviderSettings,
    clock: Clock,
    environ: Mapping[str, str],
    folder: Path = Path(),
    memory: QuirkMemory | None = None,
) -> Provider:
    """Create a provider without opening connections.

    Relative model files are resolved against `folder`. `memory` stores learned quirks. Raises ConfigError for an
    unknown kind.
    """
    address = address_of(settings)
    protocol: ApiProtocol
    match settings.kind:  # Import only the protocols in use.
        case "openai":
            from shoal.models.openai import OpenAiChat

            protocol = OpenAiChat()
        case "openai-responses":
            from shoal.models.openai import OpenAiResponses

            protocol = OpenAiResponses()
        case "anthropic":
            from shoal.models.anthropic import AnthropicMessages

            protocol = AnthropicMessages()
        case "gemini":
            from shoal.models.gemini import GeminiContents

            protocol = GeminiContents()
        case "local":
            from shoal.models.local import LocalProvider

            return LocalProvider(name, folder / settings.model_file, settings.timeout_seconds, clock)
        case _:
            raise ConfigError(
                [f"providers.{name}.kind must be one of {', '.join(BASE_URLS)}, local, not {settings.kind!r}."]
            )
    from shoal.models.http_provider import ApiKey, HttpProvider

    return HttpProvider(
        name,
        protocol,
        make_client(address, name, settings.timeout_seconds, environ),
        ApiKey(settings.api_key, name, clock),
        clock=clock,
        silence_seconds=settings.timeout_seconds,
        headers=[(header, ApiKey(value, name, clock)) for header, value in settings.headers.items()],
        quirks=ProviderQuirks(name, address, known_quirks, memory or QuirkMemory(None, clock)),
        address=address,
    )


def address_of(settings: ProviderSettings) -> str:
    """Return the base URL, which defaults to the kind's public service. Return an empty string for a local model."""
    address = (settings.base_url or BASE_URLS.get(settings.kind, "")).rstrip("/")
    return address.removesuffix("/v1") if settings.kind == "anthropic" else address


def model_endpoint(
    name: str, model: str, settings: ProviderSettings, clock: Clock, environ: Mapping[str, str]
) -> "ModelEndpoint":
    from shoal.models.http_provider import ApiKey, ModelEndpoint

    return ModelEndpoint(
        name,
        model,
        make_client(address_of(settings), name, settings.timeout_seconds, environ),
        ApiKey(settings.api_key, name, clock),
        clock,
        is_gemini=settings.kind == "gemini",
        headers=[(header, ApiKey(value, name, clock)) for header, value in settings.headers.items()],
    )


# ---- models offered ----


class ModelListing(msgspec.Struct, frozen=True, omit_defaults=True):
    valid: bool
    """Whether the provider accepted the key."""
    models: tuple[str, ...]
    error: str = ""
    """Reason why the last check failed, or an empty string."""
    checked_at: str = ""
    context_tokens: dict[str, int] = {}
    max_output_tokens: dict[str, int] = {}


_listings_decoder = msgspec.json.Decoder(dict[str, ModelListing])


def read_listings(path: Path) -> dict[str, ModelListing]:
    """Read the listings by provider. A missing or damaged file counts as empty, because the next refresh
    replaces it.
    """
    try:
        return _listings_decoder.decode(read_regular(path))
    except FileNotFoundError:
        return {}
    except (OSError, *UNREADABLE) as error:
        log.warning("reading available_models.json failed; run `shoal models refresh`", extra={"error": str(error)})
        return {}


def write_listings(path: Path, listings: Mapping[str, ModelListing]) -> None:
    """Write the listings atomically. Raises OSError."""
    # Other programs expect the key `models` even if it is empty.
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
    providers: Iterable[Provider], before: Mapping[str, ModelListing], clock: Clock, seconds: float = DISCOVERY_SECONDS
) -> dict[str, ModelListing]:
    """Query all providers for their models concurrently, each with a timeout of `seconds`.

    A failure becomes the error of a listing. If a provider is down, its listing keeps the models from `before`.
    """

    async def ask(provider: Provider) -> ModelListing:
        before_it, at = before.get(provider.name), iso(clock.now())
        try:
            async with asyncio.timeout(seconds):
                models = (await provider.models())[:MODELS_MAX]
        except ProviderRefused as error:
            return ModelListing(False, (), str(error), at)
        except (ProviderDown, TimeoutError) as error:
            words = str(error) or f"{provider.name} did not list its models within {seconds:.0f} s."
            if before_it is None:
                return ModelListing(False, (), words, at)
            return msgspec.structs.replace(before_it, error=words)
        windows = {model.id: model.context_tokens for model in models if model.context_tokens}
        outputs = {model.id: model.max_output_tokens for model in models if model.max_output_tokens}
        return ModelListing(True, tuple(model.id for model in models), "", at, windows, outputs)

    asked = tuple(providers)
    listings = await asyncio.gather(*map(ask, asked))
    return {provider.name: listing for provider, listing in zip(asked, listings, strict=True)}


# ---- the catalogue ----


class _ConfiguredProvider(msgspec.Struct, frozen=True):
    provider: Provider
    kind: str
    base_url: str = ""
    context_tokens: int = 0
    models: tuple[str, ...] = ()
    price: Price | None = None
    prices: Mapping[str, Price] = {}


class Catalog:
    """Implements the `Models` port. Only `refresh` sends requests to providers."""

    def __init__(
        self,
        settings: Mapping[str, ProviderSettings],
        *,
        home: Home,
        clock: Clock,
        environ: Mapping[str, str],
        extra: Iterable[Provider] = (),
    ) -> None:
        self._file = home.models_file
        self._clock = clock
        self.memory = QuirkMemory(home.quirks_file, clock)
        self._entries: dict[str, _ConfiguredProvider] = {}
        self._routes: dict[str, Route] = {}
        self._environ = environ
        self._folder = home.root
        self._replaced: list[Provider] = []
        for name, row in settings.items():
            self._put(name, row)
        for provider in extra:
            self._entries[provider.name] = _ConfiguredProvider(provider, "extension")
        if DEMO not in self._entries:
            self._entries[DEMO] = _ConfiguredProvider(
                DemoProvider(clock), DEMO, context_tokens=DEMO_CONTEXT_TOKENS, models=(DEMO,)
            )
        self._listings = read_listings(self._file)

    def _put(self, name: str, row: ProviderSettings) -> None:
        address = address_of(row)
        provider = build_provider(name, row, self._clock, self._environ, self._folder, self.memory)
        window = LOCAL_CONTEXT_TOKENS if row.kind == "local" else server_row(address).context_tokens
        price = 0.0 if row.price is None and (row.kind == "local" or server_row(address).is_free) else row.price
        self._entries[name] = _ConfiguredProvider(provider, row.kind, address, window, row.models, price, row.prices)

    def replace(self, name: str, row: ProviderSettings) -> None:
        """Replace a provider. Calls in flight finish on the old one."""
        if (before := self._entries.get(name)) is not None:
            self._replaced.append(before.provider)
        self._put(name, row)
        self._listings = {other: listing for other, listing in self._listings.items() if other != name}
        self._routes.clear()

    @property
    def providers(self) -> dict[str, Provider]:
        """All providers by name, in the order of the configuration. `demo` is last."""
        return {name: entry.provider for name, entry in self._entries.items()}

    @property
    def listings(self) -> Mapping[str, ModelListing]:
        return {name: listing for name, listing in self._listings.items() if name in self._entries}

    def names(self) -> list[str]:
        return [
            model if name == DEMO else f"{name}/{model}"
            for name, entry in self._entries.items()
            for model in self._models(name, entry)
        ]

    def route(self, name: str) -> Route:
        if name in self._routes:
            return self._routes[name]
        wanted = name.strip()
        first, slash, rest = wanted.partition("/")
        if slash and rest and first in self._entries:
            route = self._route(first, rest)
        elif wanted == DEMO:
            route = self._route(DEMO, DEMO)
        elif wanted and (provider := self._holder(wanted)) is not None:
            route = self._route(provider, wanted)
        else:
            known = ", ".join(self.names()[:NAMES_SHOWN_MAX])
            providers = [provider for provider in self._entries if provider != DEMO]
            others = f"Specify other models of {', '.join(providers)} as PROVIDER/MODEL."
            todo = others if providers else "Run `shoal setup model` to add a provider."
            raise InvalidInput(f"No provider has the model {wanted!r}. Known models: {known}. {todo}")
        self._routes[name] = route
        return route

    def usd(self, route: Route, usage: Usage) -> float | None:
        entry = self._entries.get(route.provider.name)
        if entry is not None and entry.kind == DEMO:
            return 0.0
        price = entry.prices.get(route.model, entry.price) if entry is not None else None
        if price is not None:
            return configured_usd(price, usage)
        if entry is None or entry.kind not in PRICED_AS:
            return None
        return price_usd(entry.kind, entry.base_url, route.model, usage)

    def known_quirks(self, name: str) -> Quirks:
        provider, _, model = name.partition("/")
        entry = self._entries.get(provider)
        return known_quirks(entry.base_url, model) if entry is not None and entry.base_url else Quirks()

    async def offer_shipped(self) -> None:
        """Store the shipped model list for each provider that has never been queried.

        A new installation can then offer models immediately. An invalid key is detected by the first query.
        """
        unknown = [(name, entry) for name, entry in self._entries.items() if name not in self._listings]
        shipped_now = {
            name: await asyncio.to_thread(shipped_models, provider.kind, provider.base_url)
            for name, provider in unknown
        }
        shipped = {name: ModelListing(False, names) for name, names in shipped_now.items() if names}
        if shipped:
            self._listings = {**shipped, **self._listings}
            await self._write()

    async def refresh(self) -> Mapping[str, ModelListing]:
        """Query every provider except `demo` for its models and write the file. Failures are part of the listings."""
        asked = [entry.provider for name, entry in self._entries.items() if name != DEMO]
        listings = await discover(asked, self._listings, self._clock)
        self._listings = {**self._listings, **listings}
        self._routes.clear()
        for name, listing in listings.items():
            if listing.error:
                log.warning("validating provider failed; run `shoal doctor`", extra={"provider": name})
        await self._write()
        if any(entry.base_url.startswith("https:") for entry in self._entries.values()):
            await asyncio.to_thread(load_prices)
        return listings

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(write_listings, self._file, self.listings)
        except OSError as error:
            log.warning("writing available_models.json failed", extra={"error": str(error)})

    async def close(self) -> None:
        for provider in (*self.providers.values(), *self._replaced):
            await provider.close()

    def _models(self, name: str, entry: _ConfiguredProvider) -> list[str]:
        listing = self._listings.get(name)
        listed = listing.models if listing is not None else ()
        return list(dict.fromkeys((*entry.models, *listed)))

    def _holder(self, model: str) -> str | None:
        """Return the provider of a model name that does not include one.

        The candidates in order are the first provider that lists the model, the model's own service, and the only
        configured provider if it has never been queried.
        """
        for name, entry in self._entries.items():
            if model in self._models(name, entry):
                return name
        row = model_row(model) if "/" not in model else None
        for name, entry in self._entries.items():
            if row is not None and entry.kind.startswith(row.kind):
                return name
        real = [name for name in self._entries if name != DEMO]
        return real[0] if len(real) == 1 and not self._was_asked(real[0]) else None

    def _was_asked(self, name: str) -> bool:
        listing = self._listings.get(name)
        return listing is not None and bool(listing.valid or listing.error)

    def _route(self, provider: str, model: str) -> Route:
        entry = self._entries[provider]
        listing = self._listings.get(provider, ModelListing(False, ()))
        row = model_row(model)
        context = (
            listing.context_tokens.get(model) or entry.context_tokens or (row.context_tokens if row is not None else 0)
        )
        output = listing.max_output_tokens.get(model) or (
            row.output_tokens if row is not None else UNKNOWN_OUTPUT_TOKENS
        )
        if entry.kind == "local":  # A small window must keep most of its tokens for input.
            output = min(output, context // 4)
        return Route(entry.provider, model, context, min(output, context or output))


def existing_model(models: Models, name: str) -> None:
    """Raise InvalidInput if no provider offers the model."""
    route = models.route(name)
    if not isinstance(models, Catalog):
        return
    known = model_names(models)
    offered = [name for name in known if name.startswith(f"{route.provider.name}/")]
    listing = models.listings.get(route.provider.name)
    is_listed = listing is not None and listing.valid and bool(listing.models)
    if is_listed and f"{route.provider.name}/{route.model}" not in offered:
        near = difflib.get_close_matches(route.model, [name.partition("/")[2] for name in offered], 3)
        hint = f" Similar names: {', '.join(near)}." if near else " Run `shoal models list` to see its models."
        raise InvalidInput(f"{route.provider.name} does not offer the model {route.model!r}.{hint}")


def model_names(models: Models) -> Sequence[str]:
    return models.names() if isinstance(models, Catalog) else ()


async def key_lines(models: Models) -> Sequence[str]:
    if not isinstance(models, Catalog):
        return ()
    listings = await models.refresh()
    return [
        f"- {name}: {listing.error or 'ok, ' + counted(len(listing.models), 'model')}"
        for name, listing in listings.items()
    ]
