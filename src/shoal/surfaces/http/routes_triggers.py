"""Calls about triggers: list, plan, add, pause and remove them, and the morning brief."""

import re
from datetime import datetime, timedelta
from typing import Annotated, Literal

import anyio.to_thread
import msgspec

from shoal.agents.lifecycle import AgentLifecycle
from shoal.agents.registry import AgentRegistry
from shoal.connections import Connections
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, InvalidInput, NotFound
from shoal.kernel.ids import OWN_PLATFORMS, parse_thread_id
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.triggers import (
    BRIEF,
    BRIEF_AGENT,
    BRIEF_ON_PAGE,
    BRIEF_TEXT,
    NewTrigger,
    Trigger,
    first_time,
    in_words,
    times_by_day,
)
from shoal.kernel.when import parse_schedule, parse_when
from shoal.kernel.zones import zone_named
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import ADMINS, READERS, Removed, Routes, checked_text, view
from shoal.surfaces.http.routes_access import zone_of
from shoal.surfaces.http.routes_threads import check_agent
from shoal.threads.principals import Principal
from shoal.threads.scope import LAST_CHANNEL
from shoal.threads.timezones import TimeZones
from shoal.tools.executor import LiveToolServices

routes = Routes()

DAY_TIMES_MAX = 4
"""How many times of a trigger a calendar lists for each day."""
NAME_CHARS_MAX = 120


class TriggerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that starts a turn at a time: in `thread`, or in a new thread of `platform` and `channel`.

    `schedule` is an ISO 8601 time, a cron line, or words such as "tomorrow at 9" or "every weekday at 8:30"; `kind` may
    say which of the two it has to be. Without `timezone` it is that of whoever asks.
    """

    schedule: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    text: str
    thread: str = ""
    platform: str = ""
    channel: str = ""
    timezone: Annotated[str, msgspec.Meta(max_length=64)] = ""
    agent: str = ""
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    kind: Literal["", "one-shot", "periodic"] = ""


class TriggerView(msgspec.Struct, frozen=True):
    """A trigger; `next_at` is null when it will not come again, and `words` say a cron line as people do. `title` is
    its thread's in the list of all, empty elsewhere."""

    id: str
    name: str
    kind: Literal["one-shot", "periodic"]
    schedule: str
    timezone: str
    text: str
    thread: str
    platform: str
    channel: str
    agent: str
    state: Literal["active", "paused", "done", "missed", "failed"]
    next_at: datetime | None
    last_at: datetime | None
    created_at: datetime
    created_by: str
    failures: int
    error: str
    words: str
    title: str


def _trigger_view(trigger: Trigger, title: str = "") -> TriggerView:
    spec = trigger.spec
    words = in_words(spec.schedule) if spec.kind == "periodic" else "once"
    flat = {
        **msgspec.structs.asdict(spec),
        "thread": spec.thread or "",
        "created_by": spec.author.id,
        "words": words,
        "title": title,
    }
    return view(TriggerView, trigger, **flat)


def _no_trigger(id: str) -> NotFound:
    return NotFound(f"There is no trigger {id[:80]}. `shoal triggers list` shows them.")


async def _known_trigger(store: Store, id: str) -> Trigger:
    found = next((trigger for trigger in await store.triggers.all() if trigger.id == id), None)
    if found is None:
        raise _no_trigger(id)
    return found


@routes("GET /api/triggers", READERS)
async def triggers(store: Store) -> list[TriggerView]:
    """What starts turns by the clock, the next due first."""
    found = await store.triggers.all()
    threads = {one.spec.thread for one in found if one.spec.thread}
    infos = [await store.journal.thread(thread) for thread in threads]
    titles = {info.thread: info.title for info in infos if info is not None}
    return [_trigger_view(one, titles.get(one.spec.thread, "") if one.spec.thread else "") for one in found]


class PlannedTimes(msgspec.Struct, frozen=True):
    """When an active trigger comes in the days that were asked for: the first times of each day, at most 4. With `more`
    it comes more often on some of them."""

    id: str
    name: str
    words: str
    at: list[datetime]
    more: bool


@routes("GET /api/triggers/calendar", READERS)
async def calendar(
    store: Store,
    clock: Clock,
    config: LiveConfig,
    timezones: TimeZones,
    by: Principal,
    *,
    days: Annotated[int, msgspec.Meta(ge=1, le=31)] = 7,
    timezone: Annotated[str, msgspec.Meta(max_length=64)] = "",
) -> list[PlannedTimes]:
    """When triggers come in so many days from now, the first 4 times of each day of `timezone` (by default the
    caller's). Triggers that do not come in these days are left out."""
    now = clock.now()
    until, zone = now + timedelta(days=days), zone_named(timezone or await zone_of(config, timezones, by))
    active = [
        one
        for one in await store.triggers.all()
        if one.state == "active" and one.next_at is not None and one.next_at < until
    ]

    def look() -> list[PlannedTimes]:
        planned: list[PlannedTimes] = []
        known: dict[tuple[str, str], tuple[list[datetime], bool]] = {}  # many triggers share a schedule
        for one in active:
            key = one.spec.schedule, one.spec.timezone
            if key not in known:
                known[key] = times_by_day(one.spec, now, until, zone, DAY_TIMES_MAX)
            times, more = known[key]
            name = one.spec.name or one.spec.text[:NAME_CHARS_MAX]
            words = in_words(one.spec.schedule) if one.spec.kind == "periodic" else "once"
            if times:
                planned.append(PlannedTimes(one.id, name, words, times, more))
        return planned

    return await anyio.to_thread.run_sync(look)


@routes("POST /api/triggers", ADMINS, status=201)
async def add_trigger(
    clock: Clock,
    config: LiveConfig,
    connections: Connections,
    agents: AgentRegistry,
    outlets: LiveToolServices,
    timezones: TimeZones,
    by: Principal,
    body: TriggerRequest,
) -> TriggerView:
    """Schedule a turn."""
    return _trigger_view(
        await outlets.add_trigger(await _wanted(clock, config, connections, agents, timezones, by, body))
    )


async def _wanted(
    clock: Clock,
    config: LiveConfig,
    connections: Connections,
    agents: AgentRegistry,
    timezones: TimeZones,
    by: Principal,
    body: TriggerRequest,
) -> NewTrigger:
    """The trigger that a call asks for. Raises InvalidInput, ApiError."""
    if bool(body.thread) == bool(body.platform and body.channel):
        raise InvalidInput("A trigger goes into `thread`, or into `platform` and `channel`; give one of the two.")
    if body.platform and body.platform not in {*connections.configured, *OWN_PLATFORMS}:
        known = ", ".join(sorted(connections.configured)) or "none"
        raise InvalidInput(f"There is no platform {body.platform[:80]!r} here. Connected are: {known}.")
    timezone, now = body.timezone or await zone_of(config, timezones, by), clock.now()
    if body.kind:
        when = parse_schedule(body.kind, body.schedule, timezone, now)
    else:
        when = parse_when(body.schedule, timezone, now)
    given = {
        **msgspec.structs.asdict(body),
        **msgspec.structs.asdict(when),
        "text": checked_text(body.text),
        "author": by.author,
        "tainted_by": "",
        "thread": parse_thread_id(body.thread) if body.thread else None,
        "agent": check_agent(agents, by, body.agent),
    }
    return msgspec.convert(given, NewTrigger)


class BriefRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A brief at an hour of a time zone (by default that of whoever asks), in `thread`, in a new thread of `platform`
    and `channel`, or without these where the owner last wrote to the agent in a chat, and on the page until then. The
    agent `brief` is made when it is first named."""

    at: Annotated[str, msgspec.Meta(max_length=64, examples=["8:00"])]
    timezone: Annotated[str, msgspec.Meta(max_length=64)] = ""
    days: Literal["all", "working"] = "all"
    thread: str = ""
    platform: str = ""
    channel: str = ""
    agent: str = ""


@routes("POST /api/brief", ADMINS, status=201)
async def set_brief(
    store: Store,
    clock: Clock,
    config: LiveConfig,
    connections: Connections,
    agents: AgentRegistry,
    outlets: LiveToolServices,
    timezones: TimeZones,
    lifecycle: AgentLifecycle,
    by: Principal,
    body: BriefRequest,
) -> TriggerView:
    """Have an agent send a brief every morning, in place of the one there was."""
    agent, thread = body.agent, body.thread
    at = re.fullmatch(r"([01]?\d|2[0-3])(?:[:.]([0-5]\d))?", body.at.strip(), re.ASCII)
    if at is None:
        raise InvalidInput(f"{body.at!r} is no hour. Write it as 8, 8:00 or 20:30.")
    if not thread and not body.platform:
        settings, default = store.settings, agents.defaults.agent
        thread = await settings.get(LAST_CHANNEL, agent or default) or await settings.get(LAST_CHANNEL, default)
        thread = thread or BRIEF_ON_PAGE
    schedule = f"{int(at[2] or 0)} {int(at[1])} * * {'1-5' if body.days == 'working' else '*'}"
    timezone = zone_named(body.timezone or await zone_of(config, timezones, by)).key
    asked = TriggerRequest(
        schedule, BRIEF_TEXT.format(timezone=timezone), thread, body.platform, body.channel, timezone, agent, BRIEF
    )
    if agent == "brief" and agent not in agents.names():  # made only for a brief that can be sent
        first_time(
            await _wanted(clock, config, connections, agents, timezones, by, msgspec.structs.replace(asked, agent="")),
            clock.now(),
        )
        await lifecycle.create(agent, BRIEF_AGENT, by.person)
    before = [one for one in await store.triggers.all() if one.spec.name == BRIEF]
    added = await add_trigger(clock, config, connections, agents, outlets, timezones, by, asked)
    for one in before:
        await store.triggers.remove(one.id)
    return added


@routes("DELETE /api/brief", ADMINS)
async def end_brief(store: Store) -> Removed:
    """Send no brief any more."""
    found = [one for one in await store.triggers.all() if one.spec.name == BRIEF]
    for one in found:
        await store.triggers.remove(one.id)
    return Removed(bool(found))


@routes("DELETE /api/triggers/{id}", ADMINS)
async def remove_trigger(store: Store, id: str) -> Removed:
    """Remove a trigger."""
    if not await store.triggers.remove(id):
        raise _no_trigger(id)
    return Removed(True)


@routes("POST /api/triggers/{id}/pause", ADMINS)
async def pause_trigger(store: Store, id: str) -> TriggerView:
    """Pause a trigger."""
    trigger = await _known_trigger(store, id)
    if not await store.triggers.pause(id):
        raise Conflict(f"Trigger {id} is {trigger.state}: there is nothing to pause.")
    return _trigger_view(await _known_trigger(store, id))


@routes("POST /api/triggers/{id}/resume", ADMINS)
async def resume_trigger(store: Store, clock: Clock, outlets: LiveToolServices, id: str) -> TriggerView:
    """Resume a trigger that is paused or was switched off."""
    trigger = await _known_trigger(store, id)
    if not await store.triggers.resume(id, first_time(trigger.spec, clock.now())):
        raise Conflict(f"Trigger {id} is {trigger.state}: there is nothing to resume.")
    outlets.ring()
    return _trigger_view(await _known_trigger(store, id))
