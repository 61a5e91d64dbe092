"""Makes each part from its section of the configuration; what depends on what is wired in app.py."""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import cast, get_args
from urllib.parse import urlsplit

import msgspec

from shoal.agents.registry import AgentDefaults
from shoal.chat.terminal import TerminalAdapter
from shoal.chat.web import WebAdapter
from shoal.config import Config, Secret, default_model
from shoal.config.defaults import DEMO, KNOWN_PROVIDERS
from shoal.config.platforms import Account
from shoal.config.records import Provider
from shoal.delivery.hub import Hub
from shoal.delivery.live import NO_PREVIEWS, Previews
from shoal.delivery.sender import Sender
from shoal.domain import ports
from shoal.domain.agents import TurnLimits
from shoal.domain.budget import Ceilings
from shoal.domain.clock import Clock, SystemClock
from shoal.domain.errors import ConfigError, ProviderDown, ProviderRefused
from shoal.domain.home import Home
from shoal.domain.store import Settings, Store
from shoal.permissions.access import AccessRules
from shoal.permissions.rules import Override, Profiles, ProfileSource
from shoal.plugins import extensions, load_extension
from shoal.providers.build import ProviderSettings, build_provider
from shoal.providers.catalog import Catalog
from shoal.providers.http import Timeouts
from shoal.providers.keys import KeySource
from shoal.sandbox.choose import Chosen, SandboxChoice, SandboxKind, choose_sandbox
from shoal.sandbox.limits import Limits
from shoal.turn.budget import BudgetLimits
from shoal.turn.context import Window

OLLAMA_SECONDS = 0.3
"""How long a running Ollama may take to accept a connection."""


def turn_limits(config: Config) -> TurnLimits:
    """[turns]."""
    return msgspec.convert(msgspec.to_builtins(config.turns), TurnLimits)


def window_of(config: Config) -> Window:
    """[context], and the model's window where one is set."""
    wanted = config.context
    budget = BudgetLimits(wanted.reserve_tokens, wanted.keep_recent_tokens, wanted.events_share, wanted.artifacts_share)
    return Window(budget, wanted.window_hours, config.model.context_tokens_max)


PLATFORMS = ("telegram", "discord", "slack", "matrix", "teams", "google_chat")


def accounts_of(config: Config) -> dict[str, Account]:
    """Every enabled account, by the first part of its thread ids."""
    found = dict[str, Account](config.platforms.webhook)
    for platform in PLATFORMS:
        accounts: tuple[Account, ...] = getattr(config.platforms, platform)
        found |= {platform_name(platform, account): account for account in accounts}
    return {name: account for name, account in found.items() if account.enabled}


def access_of(config: Config, platform: str) -> AccessRules:
    """Who may speak on a platform: the owner alone where nothing is said, and nobody where it is not configured."""
    account = accounts_of(config).get(platform)
    if account is None:
        return AccessRules()
    return AccessRules((account.owner,) if account.owner else (), account.allow, account.channels)


def make_adapters(config: Config, home: Home, settings: Settings, clock: Clock) -> list[ports.ChatAdapter]:
    """The page, the API, the terminal, and each account that is configured; the modules of others are not imported."""
    found: list[ports.ChatAdapter] = [
        WebAdapter(home, clock),
        WebAdapter(home, clock, "openai"),
        TerminalAdapter(clock),
    ]
    for account in config.platforms.telegram:
        if account.enabled:
            from shoal.chat.telegram.adapter import TelegramAdapter, TelegramSettings

            name = platform_name("telegram", account)
            wanted = TelegramSettings(
                account=account.account,
                token=account.token.reveal,
                api_base=account.api_base,
                file_base=account.file_base,
                mode=account.mode,
                webhook_secret=account.webhook_secret.reveal,
                webhook_url=f"{config.web.public_url.rstrip('/')}/platforms/{name.replace('.', '/')}",
                agent=account.agent,
            )
            found.append(TelegramAdapter(name, wanted, home, settings, clock))
    return found


def make_sender(adapter: ports.ChatAdapter, store: Store, hub: Hub, clock: Clock) -> Sender:
    """The sender of a platform, with previews where it shows them."""
    previews = Previews(adapter, hub, store.settings, clock) if adapter.limits.has_preview else NO_PREVIEWS
    return Sender(adapter, store.outbox, clock, previews)


def platform_name(platform: str, account: Account) -> str:
    """The first part of an account's thread ids: the platform, and the account's name unless it is `main`."""
    return platform if account.account == "main" else f"{platform}.{account.account}"


def platform_owners(config: Config) -> tuple[str, ...]:
    """The owner's identities, PLATFORM:USER."""
    return tuple(f"{name}:{account.owner}" for name, account in accounts_of(config).items() if account.owner)


def secrets_of(value: object) -> set[str]:
    """Every secret below a part of the configuration that is at hand; those asked of commands are not run for this."""
    if isinstance(value, Secret):
        try:
            return {value.reveal()} if value and value.source != "command" else set()
        except ConfigError:
            return set()
    if isinstance(value, msgspec.Struct):
        return secrets_of([getattr(value, name) for name in value.__struct_fields__])
    if isinstance(value, dict):
        return secrets_of(list(cast("dict[str, object]", value).values()))
    if isinstance(value, list | tuple):
        return {found for one in cast("list[object]", value) for found in secrets_of(one)}
    return set()


def ceilings_of(config: Config) -> Ceilings:
    """[budget]."""
    return msgspec.convert(msgspec.to_builtins(config.budget), Ceilings)


def agent_defaults(config: Config, model: str) -> AgentDefaults:
    """What agents have that say nothing themselves."""
    return AgentDefaults(
        agent=config.agents.default_agent,
        model=model,
        profile=config.permissions.default_profile,
        fallback=config.model.fallback,
        max_output_tokens=config.model.max_output_tokens,
        temperature=None if config.model.temperature == 1.0 else config.model.temperature,
    )


def make_profiles(config: Config) -> Profiles:
    """[permissions]: the profiles and the overrides. Raises ConfigError naming every pattern that is refused."""
    sources = {
        name: msgspec.convert(msgspec.to_builtins(profile), ProfileSource)
        for name, profile in config.permissions.profiles.items()
    }
    overrides = [msgspec.convert(msgspec.to_builtins(one), Override) for one in config.permissions.overrides]
    return Profiles(sources, overrides)


async def with_ollama(config: Config, environ: Mapping[str, str]) -> Config:
    """The configuration, and where it names no model at all, with an Ollama that runs on this machine and has one.

    It is looked for at OLLAMA_HOST, else at its usual address; nothing there costs a refused connection.
    """
    if default_model(config) != DEMO or config.model.name or "ollama" in config.providers:
        return config
    address = _ollama_address(environ)
    if not await _answers(address):
        return config
    found = Provider(kind="openai", base_url=f"{address}/v1")
    settings = ProviderSettings("ollama", found.kind, found.base_url)
    provider = build_provider(settings, SystemClock(), environ)
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


def _ollama_address(environ: Mapping[str, str]) -> str:
    given = environ.get("OLLAMA_HOST", "").rstrip("/")
    if not given:
        return KNOWN_PROVIDERS["ollama"].base_url.removesuffix("/v1")
    return given if "://" in given else f"http://{given}"


async def _answers(address: str) -> bool:
    parts = urlsplit(address)
    try:
        async with asyncio.timeout(OLLAMA_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 11434)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True


def make_catalog(config: Config, home: Home, clock: Clock) -> Catalog:
    """The providers and models of a configuration; nothing is asked of them here. Raises ConfigError."""
    settings = [
        ProviderSettings(
            name=name,
            kind=provider.kind,
            base_url=provider.base_url,
            key=_key(provider.api_key),
            models=provider.models,
            headers=tuple((header, _key(value)) for header, value in provider.headers.items()),
            timeouts=Timeouts(idle_seconds=provider.timeout_seconds),
            model_file=str(home.root / provider.model_file) if provider.model_file else "",
        )
        for name, provider in config.providers.items()
    ]
    return Catalog(
        settings, listings_file=home.models_file, clock=clock, environ=os.environ, extra=_extension_providers()
    )


def _key(secret: Secret) -> KeySource:
    source, detail = secret.parts()
    return KeySource(**{source: detail}) if detail else KeySource()  # pyright: ignore[reportArgumentType]


def extension_tools() -> list[ports.Tool]:
    """What installed packages offer in the group `shoal.tools`. Raises ConfigError for one that cannot be imported."""
    return [cast("ports.Tool", load_extension("shoal.tools", name)) for name in extensions("shoal.tools")]


def _extension_providers() -> list[ports.Provider]:
    """What installed packages offer in the group `shoal.providers`: classes or functions that make a provider."""
    makers = [load_extension("shoal.providers", name) for name in extensions("shoal.providers")]
    return [cast("Callable[[], ports.Provider]", maker)() for maker in makers]


async def make_sandbox(config: Config) -> Chosen:
    """The sandbox of a configuration, tried out, or an extension's by its name. Raises SandboxError, ConfigError."""
    wanted = config.sandbox
    if wanted.kind not in get_args(SandboxKind):
        return Chosen(cast("Callable[[], ports.Sandbox]", load_extension("shoal.sandboxes", wanted.kind))())
    limits = Limits(memory_bytes_max=wanted.memory_bytes_max, processes_max=wanted.processes_max)
    choice = SandboxChoice(
        kind=msgspec.convert(wanted.kind, SandboxKind),
        network=wanted.network,
        limits=limits,
        image=wanted.image,
        container=wanted.container,
    )
    return await choose_sandbox(choice)
