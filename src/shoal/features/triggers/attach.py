"""Register triggers with the core."""

from functools import partial
from typing import TYPE_CHECKING

import anyio

from shoal.agents.registry import AgentRegistry
from shoal.backend import Backend
from shoal.features.triggers.records import Trigger, source_of
from shoal.features.triggers.service import TriggerService
from shoal.features.triggers.settings import TriggersSettings
from shoal.features.triggers.store import WALKS, TriggerStore
from shoal.kernel.clock import Clock
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.maintenance import Upkeep, watch_clock
from shoal.store.store import Store
from shoal.threads.departures import Departures
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.builtin.overview import BRIEF, Agenda, Coming, Plans, short
from shoal.tools.prompt_files import PromptFiles
from shoal.turn.loop import TurnLoop

if TYPE_CHECKING:
    from shoal.services import Services

FILES_AFTER_SECONDS = 1.0
"""Seconds before event files and the heartbeat start, so `shoal ask` does not wait for them."""


def attach(services: "Services") -> None:
    triggers, store, backend = services[TriggerService], services[Store], services[Backend]
    settings = services[LiveConfig].current.section(TriggersSettings)
    store.causes.append(triggers.triggers)
    store.bookkeeping.walks += WALKS
    store.bookkeeping.repeat_seconds = max(store.bookkeeping.repeat_seconds, settings.catch_up_seconds)
    services[Departures].enders.append(triggers.end_left)
    services[Orchestrator].opening_watchers.append(triggers.notify_switched_off)
    services[TurnLoop].outage_seconds_by_origin["trigger"] = settings.outage_seconds
    services[Agenda].append(partial(plans, triggers.triggers))
    if not backend.is_front:
        return

    def became_due(what: str) -> None:  # called after another process made a change; an empty `what` means any change
        if what in ("triggers", ""):
            triggers.added.set()

    upkeep = services[Upkeep]
    backend.on_due(became_due)
    backend.add_service(upkeep.keep("triggers", triggers.run))
    backend.add_service(partial(watch_clock, services[Clock], triggers.added.set))
    watch = partial(_watch_files, services, triggers, settings.heartbeat_minutes)
    backend.add_single("files", upkeep.keep("event files and heartbeat", watch))


async def _watch_files(services: "Services", triggers: TriggerService, minutes: float) -> None:
    await triggers.clock.sleep(FILES_AFTER_SECONDS)
    from shoal.features.triggers.event_files import EventFiles
    from shoal.features.triggers.heartbeat import HEARTBEAT_FILE, Heartbeat

    home, source_of_file = services[Home], services[PromptFiles].source_of
    files = EventFiles(
        home.events,
        triggers.triggers,
        triggers.target,
        triggers.clock,
        triggers.added.set,
        source_of_file,
        services[AgentRegistry].zone_of,
        triggers.crash_log,
    )
    heartbeat = Heartbeat(
        home.data / HEARTBEAT_FILE, triggers.target, services[Store].settings, triggers.clock, source_of_file, minutes
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.run)
        tasks.start_soon(heartbeat.run)


async def plans(triggers: TriggerStore, within: str) -> Plans:
    rows = [trigger for trigger in await triggers.all() if _place(trigger).startswith(within)]
    return Plans(
        [_coming(row) for row in rows if row.state == "active" and row.next_at is not None],
        [_coming(row) for row in rows if row.state in ("failed", "missed") or (row.error and row.failures)],
    )


def _place(trigger: Trigger) -> str:
    return trigger.spec.thread or f"{trigger.spec.platform}:{trigger.spec.channel}:"


def _coming(trigger: Trigger) -> Coming:
    spec = trigger.spec
    is_brief = BRIEF in f"{spec.name} {spec.text}"
    text, error = short(spec.name or spec.text), short(trigger.error)
    return Coming(trigger.id, text, _place(trigger), trigger.next_at, error, source_of(spec), is_brief)
