"""Opens the parts of a turn: tools, context, spending, and the loop."""

import asyncio
from functools import partial

from shoal.agents.registry import AgentRegistry
from shoal.assembly.outside import Adapters
from shoal.assembly.overrides import Overrides
from shoal.backend import Backend, Role
from shoal.config.secrets import watch_secrets
from shoal.extensions import extension_hooks, extension_tools
from shoal.kernel.clock import Clock
from shoal.kernel.files import Files, Folders
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import LiveHub, Models, Sandbox
from shoal.models.catalog import model_names
from shoal.net.addresses import Fetcher
from shoal.net.fetch import GuardedFetcher
from shoal.notices import Notices
from shoal.permissions.access import Links
from shoal.permissions.profiles import Profiles
from shoal.services import Services
from shoal.store.store import Store
from shoal.threads.admissions import Admissions
from shoal.threads.presence import Presence
from shoal.tools.builtin.overview import Agenda
from shoal.tools.checkpoints import Checkpoints
from shoal.tools.documents import DocumentStates
from shoal.tools.executor import Executor, LiveToolServices
from shoal.tools.hooks import HookRunner
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.registry import Registry, lookup_tools, standard_tools
from shoal.tools.storage import open_checkpoints
from shoal.tools.tainted_files import MarkedFiles
from shoal.turn.compaction import Compactor, ThreadTitles
from shoal.turn.context import ContextBuilder
from shoal.turn.loop import TurnLoop
from shoal.turn.spending import Spending
from shoal.turn.tokens import meter_as_set


def open_tools(services: Services, overrides: Overrides, role: Role) -> None:
    config, home, clock, store = services[LiveConfig].current, services[Home], services[Clock], services[Store]
    outlets, prompt_files = services[LiveToolServices], services[PromptFiles]
    tools, agenda, fetcher = Registry(), Agenda(), overrides.fetcher or GuardedFetcher()
    for tool in (
        *standard_tools(config.sandbox, config.tools, fetcher),
        *lookup_tools(store, outlets.artifacts, services[Adapters], services[Admissions].judge, agenda),
        *extension_tools(config.tools),
    ):
        tools.add(tool)
    hooks, hub = HookRunner({**extension_hooks(), **overrides.hooks}), services[LiveHub]
    sandbox = services[Sandbox]
    checkpoints = open_checkpoints(config.checkpoints, services[Files], home, services[MarkedFiles])
    executor = Executor(
        tools,
        sandbox,
        store,
        outlets,
        home,
        clock,
        prompt_files,
        config,
        hub,
        hooks,
        services[Presence].upholds,
        checkpoints.gap,
    )
    watch_secrets(config, executor.redactor.learn)
    profiles = Profiles(tools.traits, config.permissions.profiles, config.permissions.overrides)
    services.add(fetcher, Fetcher)
    for service in (
        tools,
        agenda,
        DocumentStates(),
        hooks,
        checkpoints,
        executor,
        executor.redactor,
        profiles,
    ):
        services.add(service)


async def open_turn(services: Services) -> None:
    config, home, clock, store = services[LiveConfig].current, services[Home], services[Clock], services[Store]
    agents, models, executor = services[AgentRegistry], services[Models], services[Executor]
    profiles, engine, folders = services[Profiles], services[Backend].engine, services[Folders]
    post, people = services[LiveToolServices].post, services[Links].people
    spending = Spending(store, models, clock, config.budget, post, agents.budget, people)
    meter = await asyncio.to_thread(meter_as_set, config.context.tokenizer, config.model.name)
    context = ContextBuilder(
        home,
        store,
        executor,
        clock,
        config,
        meter,
        profile_of=profiles.of_agent,
        spend_left=spending.left,
        tainted_files=services[PromptFiles].sources,
    )
    loop = TurnLoop(
        models,
        executor,
        context,
        Compactor(context, spending, clock),
        spending,
        clock,
        config.turns,
        confirm=engine.confirm,
        push=folders.push,
        checkpoints=services[Checkpoints],
        known_models=partial(model_names, models),
        warn_unknown_window=services[Notices].of_window,
        outage_seconds=config.model.outage_seconds,
    )
    titles = ThreadTitles(store.threads, spending, clock, config.threads)
    for service in (spending, context, loop, titles):
        services.add(service)
