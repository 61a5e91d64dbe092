"""Registers the background services."""

from functools import partial

from shoal.agents.lifecycle import AgentLifecycle
from shoal.backend import Backend, Role
from shoal.connections import Connections
from shoal.delivery.sender import Senders
from shoal.kernel.clock import Clock
from shoal.kernel.crash_log import CrashLog
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.maintenance import (
    Upkeep,
    anchor_audit,
    look_through_daily,
    watch_approvals,
    watch_crashes,
    watch_health,
    watch_set_aside,
)
from shoal.notices import Notices
from shoal.services import Services
from shoal.store.retention import bookkeeping_days
from shoal.store.store import Store
from shoal.threads.attachments import Attachments
from shoal.threads.departures import Departures
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.executor import LiveToolServices
from shoal.tools.hooks import HookRunner
from shoal.tools.storage import Retention


def add_upkeep(services: Services, role: Role) -> None:
    config, clock, store, backend = services[LiveConfig].current, services[Clock], services[Store], services[Backend]
    notices, orchestrator = services[Notices], services[Orchestrator]
    upkeep = services[Upkeep]
    backend.add_service(upkeep.keep("idle threads", orchestrator.deactivate_idle))
    backend.add_service(upkeep.keep("attachments", services[Attachments].run))
    backend.add_single("departures", upkeep.keep("departures", services[Departures].run))
    backend.add_service(partial(watch_health, backend.health, clock, notices.past_outbox))
    expires_seconds = config.permissions.ask_expires_seconds
    backend.add_service(partial(watch_approvals, orchestrator.expire_approvals, clock, expires_seconds))
    look_through = partial(look_through_daily, backend.health, clock)
    backend.add_single("database check", upkeep.keep("database check", look_through))
    retention = partial(store.bookkeeping.run, bookkeeping_days(config, store.bookkeeping.repeat_seconds))
    backend.add_single("row retention", upkeep.keep("row retention", retention))
    backend.add_service(upkeep.keep("messages that crash Shoal", partial(watch_crashes, services[CrashLog], clock)))
    if services[HookRunner].runs_after_turns:
        backend.add_service(services[HookRunner].run)
    if role != "serve":
        backend.add_service(orchestrator.watch_retries)
    if role != "worker":
        _add_front(services, upkeep)


def _add_front(services: Services, upkeep: Upkeep) -> None:
    """Add the services that need platforms. Worker processes have no platforms."""
    config, clock, store, backend = services[LiveConfig].current, services[Clock], services[Store], services[Backend]
    notices, orchestrator = services[Notices], services[Orchestrator]
    home, outlets = services[Home], services[LiveToolServices]
    backend.on_due(services[Senders].poke_platform)
    backend.add_service(upkeep.keep("audit anchors", partial(anchor_audit, store.audit, clock)))
    set_aside = partial(watch_set_aside, store.settings, clock, notices.notify_owner, notices.note)
    backend.add_single("messages set aside", upkeep.keep("messages set aside", set_aside))
    days = config.context.artifact_days, config.checkpoints.days
    checkpoints = orchestrator.services.loop.checkpoints
    retention = Retention(store, outlets.artifacts, services[Folders], checkpoints, home, clock, *days)
    backend.add_single("retention", upkeep.keep("retention", retention.run))
    watch = partial(notices.watch_channels, services[AgentLifecycle])
    backend.add_single("bound channels", upkeep.keep("bound channels", watch))
    connections = services[Connections]
    for adapter in connections.adapters.values():
        connections.serve(adapter)
