"""Opens models, the sandbox, platforms and access control."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack

from shoal.accounts import account_agents, links_of, make_adapters, platform_names
from shoal.agents.registry import AgentDefaults, AgentRegistry, ChannelBindings
from shoal.assembly.overrides import Overrides
from shoal.backend import Role
from shoal.config import default_model, open_catalog
from shoal.connections import Standing, approvers_of
from shoal.extensions import extension_sandbox
from shoal.kernel.clock import Clock
from shoal.kernel.home import Home
from shoal.kernel.ids import OWN_PLATFORMS
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import ChatAdapter, Models, Sandbox
from shoal.kernel.settings import Config
from shoal.permissions.access import AccessRules
from shoal.sandbox import processes as host_processes
from shoal.sandbox.choose import open_sandbox
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.store import Store
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.admissions import Admissions
from shoal.threads.departures import Departures
from shoal.threads.pairing import Pairing
from shoal.threads.presence import Presence
from shoal.threads.scope import Scopes
from shoal.threads.timezones import TimeZones


class Adapters(dict[str, ChatAdapter]):
    """The connected accounts, by the first part of their threads' ids."""


async def open_outside(services: Services, overrides: Overrides, role: Role, stack: AsyncExitStack) -> list[str]:
    """Open platform adapters, models and the sandbox. Return notes about the sandbox for the operator.

    If `role` is `offline`, no adapter is created and no sandbox is tested. Raises SandboxError and ConfigError.
    """
    config, home, clock, store = services[LiveConfig].current, services[Home], services[Clock], services[Store]
    if role == "offline":
        adapters, sandbox, notes = Adapters(), overrides.sandbox or HostSandbox(), list[str]()
    else:
        orphans = asyncio.to_thread(host_processes.kill_orphans)
        (sandbox, notes), _ = await asyncio.gather(_try_sandbox(config, overrides), orphans)
        made = (*make_adapters(config, home, store.settings, clock), *overrides.adapters)
        adapters = Adapters({adapter.platform: adapter for adapter in made})
    stack.push_async_callback(sandbox.close)
    models = overrides.models
    if models is None:
        models = catalog = open_catalog(config, os.environ, clock)
        stack.push_async_callback(catalog.close)
    services.add(adapters)
    services.add(models, Models)
    services.add(sandbox, Sandbox)
    return notes


async def _try_sandbox(config: Config, overrides: Overrides) -> tuple[Sandbox, list[str]]:
    if overrides.sandbox is not None:
        return overrides.sandbox, []
    chosen = await open_sandbox(config.sandbox, extension_sandbox)
    return chosen.sandbox, [chosen.note] if chosen.note else []


def open_people(services: Services, access: Mapping[str, AccessRules]) -> None:
    def sweep_soon() -> None:  # `Departures` is added to the services later
        services[Departures].sweep_soon()

    config, clock, store = services[LiveConfig].current, services[Clock], services[Store]
    adapters, home = services[Adapters], services[Home]
    links = links_of(config, adapters or platform_names(config), access)
    gated = set(adapters.keys() - OWN_PLATFORMS)
    pairing = Pairing(store, clock, sweep_soon)
    accounts = account_agents(config)
    agents = AgentRegistry(
        home, AgentDefaults.of(config, default_model(config)), ChannelBindings(store.registry, clock, accounts)
    )
    timezones = TimeZones(store.settings, links.people, clock)
    tokens = AccessTokens(store, clock, pairing, links, agents.names)
    admissions, approvers = Admissions(links, pairing, gated), approvers_of(config)
    for service in (
        links,
        pairing,
        Standing(access, links, gated, approvers, accounts),
        admissions,
        agents,
        tokens,
        Presence(admissions, tokens, adapters, approvers),
        timezones,
        Scopes(links, agents, store.settings, timezones),
    ):
        services.add(service)
