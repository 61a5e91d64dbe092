"""Opens the orchestrator of threads, agents, commands and saved conversations."""

from collections.abc import Mapping
from functools import partial

from shoal.accounts import platform_names
from shoal.agents.lifecycle import AgentLifecycle, Checks
from shoal.agents.registry import AgentRegistry
from shoal.agents.versions import AgentVersions
from shoal.assembly.outside import Adapters
from shoal.assembly.overrides import Overrides
from shoal.backend import Backend, Role
from shoal.connections import Connections, Standing
from shoal.delivery.sender import Senders
from shoal.extensions import extension_commands
from shoal.kernel.clock import Clock
from shoal.kernel.crash_log import CrashLog
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import ChatAdapter, LiveHub, Models
from shoal.models.catalog import existing_model, key_lines, model_names
from shoal.net.addresses import Fetcher
from shoal.notices import Notices
from shoal.permissions.access import Links, among
from shoal.permissions.profiles import Profiles
from shoal.running import Runtime
from shoal.services import Services
from shoal.store.store import Store
from shoal.threads.access_gate import AccessGate, OpenInbox
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.actor import ActorServices
from shoal.threads.admissions import Admissions
from shoal.threads.always import AlwaysAllow
from shoal.threads.attachments import Attachments
from shoal.threads.backfill import Backfill
from shoal.threads.commands import AgentCommands, CommandRouter
from shoal.threads.departures import Departures
from shoal.threads.forks import Forks
from shoal.threads.orchestrator import Orchestrator
from shoal.threads.pairing import Pairing
from shoal.threads.presence import Presence
from shoal.threads.readable_files import ReadableFiles
from shoal.threads.scope import Scopes
from shoal.threads.timezones import TimeZones
from shoal.tools.executor import LiveToolServices
from shoal.tools.hooks import HookRunner
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.registry import Registry
from shoal.tools.tainted_files import MarkedFiles
from shoal.turn.compaction import ThreadTitles
from shoal.turn.context import ContextBuilder
from shoal.turn.loop import TurnLoop


def open_threads(services: Services, role: Role) -> None:
    config, home, clock, store = services[LiveConfig].current, services[Home], services[Clock], services[Store]
    hub, agents, folders, backend = services[LiveHub], services[AgentRegistry], services[Folders], services[Backend]
    adapters, admissions, notices = services[Adapters], services[Admissions], services[Notices]
    links, crash_log, prompt_files = services[Links], services[CrashLog], services[PromptFiles]
    presence = services[Presence]
    attachments = Attachments(home, services[Fetcher], config.context, clock, services[MarkedFiles])
    forks = Forks(store, hub.publish, prompt_files, folders)

    async def end_departed() -> None:
        await departures.sweep()

    orchestrator = Orchestrator(
        ActorServices(
            store=store,
            hub=hub,
            clock=clock,
            agents=agents,
            wake=backend.engine.woken,
            context=services[ContextBuilder],
            loop=services[TurnLoop],
            titles=services[ThreadTitles],
            senders=services[Senders],
            attachments=attachments,
            backfill=Backfill(adapters, admissions.judge, clock, config.context),
            presence=presence,
            scopes=services[Scopes],
            links=links,
            folders=folders,
            crash_log=crash_log,
            restored_at=home.restored_at(),
            mailbox=config.mailbox,
            end_departed=end_departed,
            project=ReadableFiles(home, store.journal).project,
            turn_ended=services[HookRunner].turn_ended,
            stopping=services[Runtime].stopping.is_set,
        ),
        backend.engine,
        adapters,
        approvers=services[Standing].approvers,
        forks=forks,
        report_unposted=partial(notices.of_unposted, will_retry=False),
        configured=lambda: platform_names(services[LiveConfig].current),
    )
    tokens = services[AccessTokens]
    departures = Departures(
        store, clock, presence, services[Pairing], tokens, orchestrator.send, notices.notify_owner, hub.publish
    )
    for service in (attachments, forks, orchestrator, AlwaysAllow(orchestrator, store), departures):
        services.add(service)


def open_agents(services: Services, overrides: Overrides, role: Role) -> None:
    live, home, clock, store = services[LiveConfig], services[Home], services[Clock], services[Store]
    config, agents, models, tools = live.current, services[AgentRegistry], services[Models], services[Registry]
    adapters, standing, profiles = services[Adapters], services[Standing], services[Profiles]
    orchestrator, outlets, links = services[Orchestrator], services[LiveToolServices], services[Links]
    prompt_files = services[PromptFiles]
    forks = services[Forks]

    def known_tools() -> list[str]:
        return [*tools.names(), *tools.away()]

    configured: Mapping[str, ChatAdapter | None] = adapters
    if role == "offline":
        configured = dict.fromkeys(platform_names(config))
    may_manage = among(config.agents.managers, standing.approvers)
    checks = Checks(partial(existing_model, models), profiles.check, known_tools)
    send = orchestrator.send if role != "offline" else None  # offline, no turns are running
    lifecycle = AgentLifecycle(home, store, agents, clock, checks, configured, prompt_files, send)
    versions = AgentVersions(store, home.agent, prompt_files)
    commands = CommandRouter(
        orchestrator,
        store,
        agents,
        forks,
        clock,
        links,
        AgentCommands(
            store, agents, lifecycle, versions, links, may_manage=may_manage, check_keys=partial(key_lines, models)
        ),
        services[AlwaysAllow],
        check_model=checks.model,
        known_models=partial(model_names, models),
        activities=services[ContextBuilder].activities,
        timezones=services[TimeZones],
    )
    for command in (*extension_commands(), *overrides.commands):
        commands.add(command)
    inbox = OpenInbox(orchestrator, commands, services[AlwaysAllow])
    admissions, pairing = services[Admissions], services[Pairing]
    connections = Connections(
        adapters,
        configured,
        standing,
        live,
        services[Backend],
        store,
        services[Senders],
        orchestrator,
        services[Notices],
        inbox,
        partial(AccessGate, inbox, admissions, pairing, store, clock, outlets.post, services[Scopes]),
    )
    for service in (lifecycle, versions, commands, inbox, connections):
        services.add(service)
