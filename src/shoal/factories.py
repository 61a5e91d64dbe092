"""Makes each part from its section of the configuration; what depends on what is wired in app.py."""

import os
from collections.abc import Callable
from typing import cast, get_args

import msgspec

from shoal.agents.registry import AgentDefaults
from shoal.config import Config, Secret
from shoal.domain.agents import TurnLimits
from shoal.domain.clock import Clock
from shoal.domain.home import Home
from shoal.domain.ports import Provider, Sandbox, Tool
from shoal.permissions.rules import Override, Profiles, ProfileSource
from shoal.plugins import extensions, load_extension
from shoal.providers.build import ProviderSettings
from shoal.providers.catalog import Catalog
from shoal.providers.http import Timeouts
from shoal.providers.keys import KeySource
from shoal.sandbox.choose import Chosen, SandboxChoice, SandboxKind, choose_sandbox
from shoal.sandbox.limits import Limits
from shoal.turn.budget import BudgetLimits
from shoal.turn.context import Window


def turn_limits(config: Config) -> TurnLimits:
    """[turns]."""
    return msgspec.convert(msgspec.to_builtins(config.turns), TurnLimits)


def window_of(config: Config) -> Window:
    """[context], and the model's window where one is set."""
    wanted = config.context
    budget = BudgetLimits(wanted.reserve_tokens, wanted.keep_recent_tokens, wanted.events_share, wanted.artifacts_share)
    return Window(budget, wanted.window_hours, config.model.context_tokens_max)


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


def extension_tools() -> list[Tool]:
    """What installed packages offer in the group `shoal.tools`. Raises ConfigError for one that cannot be imported."""
    return [cast("Tool", load_extension("shoal.tools", name)) for name in extensions("shoal.tools")]


def _extension_providers() -> list[Provider]:
    """What installed packages offer in the group `shoal.providers`: classes or functions that make a provider."""
    makers = [load_extension("shoal.providers", name) for name in extensions("shoal.providers")]
    return [cast("Callable[[], Provider]", maker)() for maker in makers]


async def make_sandbox(config: Config) -> Chosen:
    """The sandbox of a configuration, tried out, or an extension's by its name. Raises SandboxError, ConfigError."""
    wanted = config.sandbox
    if wanted.kind not in get_args(SandboxKind):
        return Chosen(cast("Callable[[], Sandbox]", load_extension("shoal.sandboxes", wanted.kind))())
    limits = Limits(memory_bytes_max=wanted.memory_bytes_max, processes_max=wanted.processes_max)
    choice = SandboxChoice(
        kind=msgspec.convert(wanted.kind, SandboxKind),
        network=wanted.network,
        limits=limits,
        image=wanted.image,
        container=wanted.container,
    )
    return await choose_sandbox(choice)
