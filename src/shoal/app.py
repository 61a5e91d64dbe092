"""The wiring: `open_app` builds the running system from a configuration. Start reading here.

    config ─► database, engine ─► platforms, models, sandbox ─► delivery ─► tools ─► turn loop ─► orchestrator
                                                                                  └─► agents, commands, gates, features

Each step is a function of `shoal.assembly`. It uses services from the registry and adds the services that it creates.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from shoal.agents.lifecycle import AgentLifecycle
from shoal.agents.registry import AgentRegistry
from shoal.assembly.delivery import open_delivery
from shoal.assembly.features import open_features
from shoal.assembly.outside import open_outside, open_people
from shoal.assembly.overrides import NO_OVERRIDES, Overrides
from shoal.assembly.threads import open_agents, open_threads
from shoal.assembly.turn import open_tools, open_turn
from shoal.assembly.upkeep import add_upkeep
from shoal.backend import Backend, Role, open_backend, unwrapped
from shoal.config import Config, with_ollama
from shoal.delivery.hub import Hub
from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import LiveHub
from shoal.maintenance import note_settings, report_completions
from shoal.notices import Notices
from shoal.running import Runtime, State, Status
from shoal.services import Services
from shoal.store.store import Store
from shoal.threads.forks import Forks
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.registry import Registry


@asynccontextmanager
async def open_app(config: Config, overrides: Overrides = NO_OVERRIDES, role: Role = "all") -> AsyncGenerator[Services]:
    """Open the home directory and run the app until the block ends, then drain it. Yield the registry of services.

    In the role `offline`, the app runs no engine, platforms or triggers, and calls no model. Changes made in this role
    take effect at the next start. The role uses the database of `overrides.driver`.

    Raises HomeLocked, ConfigError and StoreError. Each error message says what to do next.
    """
    if overrides.models is None and role != "offline":
        config = await with_ollama(config, os.environ)
    home = Home(config.home)
    if role != "offline":
        home.make_folders()
    clock = overrides.clock or SystemClock(config.zone)
    async with unwrapped(), AsyncExitStack() as stack:
        opening = open_backend(config, home, role, overrides.wrap_driver, overrides.driver)
        backend = await stack.enter_async_context(opening)
        store, hub = Store(backend.driver, clock), Hub()
        state: State = "stopped" if role == "offline" else "starting"
        runtime = Runtime(backend.engine, config.engine.drain_seconds, state, role=role)
        services = Services(LiveConfig(config), home, store, hub, runtime)
        services.add(backend, Backend)
        services.add(clock, Clock)
        services.add(backend.hub(hub, store.journal, clock.new_id()), LiveHub)
        notes = await open_outside(services, overrides, role, stack)
        open_people(services, overrides.access)
        await open_delivery(services, role, overrides.file_clock, notes)
        open_tools(services, overrides, role)
        await open_turn(services)
        open_threads(services, role)
        open_agents(services, overrides, role)
        for tool in overrides.tools:
            services[Registry].add(tool)
        services.add(Status(services))
        await open_features(services, stack)
        if role == "offline":
            yield services
            return
        await _note_start(services, role)
        add_upkeep(services, role)
        if overrides.on_complete is not None:
            backend.add_service(partial(report_completions, hub, overrides.on_complete))
        async with _running(services, role):
            yield services


async def _note_start(services: Services, role: Role) -> None:
    notices, restored_at = services[Notices], services[Home].restored_at()
    notices.notes += await services[AgentLifecycle].reconcile()
    if restored_at is not None and role != "worker":
        await notices.of_restored(restored_at)


@asynccontextmanager
async def _running(services: Services, role: Role) -> AsyncGenerator[None]:
    backend, runtime, orchestrator = services[Backend], services[Runtime], services[Orchestrator]
    async with asyncio.TaskGroup() as tasks:
        lasting = (backend.engine.run(orchestrator), *backend.services())
        engine, *others = [tasks.create_task(service) for service in lasting]
        await backend.engine.started()
        if role != "worker":
            config, agents = services[LiveConfig].current, services[AgentRegistry].names()
            await note_settings(config, services[Store], services[Home], agents)
        for resume in runtime.before_turns:
            await resume()
        await services[Forks].end_forks()
        if backend.recovers:
            await orchestrator.recover()
        for wait in runtime.before_ready:
            await wait()
        runtime.state = "running"
        try:
            yield
        finally:
            await runtime.drain()
            for service in others:
                service.cancel()
            await engine
            services[Hub].close()
            runtime.state = "stopped"
