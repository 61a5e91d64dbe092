"""API endpoints for triggers, the morning brief and webhooks."""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Literal

import anyio.to_thread
import msgspec
from starlette.requests import Request

from shoal.agents.lifecycle import AgentLifecycle
from shoal.agents.registry import AgentRegistry
from shoal.connections import Connections
from shoal.features.triggers.records import NewTrigger, Trigger
from shoal.features.triggers.schedules import first_time, in_words, times_by_day
from shoal.features.triggers.service import TriggerService
from shoal.features.triggers.store import TriggerStore
from shoal.features.triggers.webhooks import Webhooks, render
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, InvalidInput, NotFound
from shoal.kernel.ids import OWN_PLATFORMS, make_thread_id, parse_thread_id, unopened
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.records import Opening
from shoal.kernel.webhooks import first_delivery, proofs
from shoal.kernel.zones import zone_named
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import ADMINS, JSON, OPEN, READERS, Removed, Routes, checked_text, view, whole_body
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.routes_access import zone_of
from shoal.surfaces.http.routes_threads import check_agent
from shoal.threads.orchestrator import Orchestrator
from shoal.threads.principals import Principal
from shoal.threads.timezones import TimeZones
from shoal.threads.whereabouts import OWNER_IN
from shoal.tools.builtin.overview import BRIEF

routes = Routes()

DAY_TIMES_MAX = 4
NAME_CHARS_MAX = 120
BRIEF_TEXT = (
    "Follow the “Each morning” section of the skill daily-brief, in the time zone {timezone}. If there is nothing to "
    "report, answer [SILENT]."
)
BRIEF_AGENT: Mapping[str, str] = {
    "system_prompt": "You send one person a short brief every morning, following the skill daily-brief. You only "
    "read; you change nothing.",
    "profile": "locked",
    "tools": "overview, read, list, search_history, time",
}
BRIEF_ON_PAGE = make_thread_id("web", "lobby", "brief")
"""Thread for the brief if the owner has not yet written to an agent in a direct chat."""


class TriggerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn to start at scheduled times, in `thread` or in a new thread of `platform` and `channel`.

    schedule: an ISO 8601 time, a cron line, or a phrase such as "tomorrow at 9" or "every weekday at 8:30".
    kind: required kind of the schedule, or empty to accept both kinds.
    timezone: an IANA name, by default the caller's time zone.
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
    """A trigger.

    next_at: null if the trigger will not fire again.
    words: the cron line in words, or `once`.
    title: the title of the thread. Set only in the list of all triggers.
    """

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
    return NotFound(f"Trigger {id[:80]} does not exist. `shoal triggers list` shows all triggers.")


async def _known_trigger(triggers: TriggerStore, id: str) -> Trigger:
    trigger_row = next((trigger for trigger in await triggers.all() if trigger.id == id), None)
    if trigger_row is None:
        raise _no_trigger(id)
    return trigger_row


@routes("GET /api/triggers", READERS)
async def list_triggers(store: Store, triggers: TriggerStore) -> list[TriggerView]:
    """List triggers, next due first."""
    rows = await triggers.all()
    threads = {row.spec.thread for row in rows if row.spec.thread}
    infos = [await store.journal.thread(thread) for thread in threads]
    titles = {info.thread: info.title for info in infos if info is not None}
    return [_trigger_view(row, titles.get(row.spec.thread, "") if row.spec.thread else "") for row in rows]


class PlannedTimes(msgspec.Struct, frozen=True):
    """Upcoming times of an active trigger, at most the first 4 of each day. `more` is true if a day has more than 4."""

    id: str
    name: str
    words: str
    at: list[datetime]
    more: bool


@routes("GET /api/triggers/calendar", READERS)
async def calendar(
    triggers: TriggerStore,
    clock: Clock,
    config: LiveConfig,
    timezones: TimeZones,
    by: Principal,
    *,
    days: Annotated[int, msgspec.Meta(ge=1, le=31)] = 7,
    timezone: Annotated[str, msgspec.Meta(max_length=64)] = "",
) -> list[PlannedTimes]:
    """List the times at which active triggers fire in the next `days` days, at most 4 per trigger and day. Days start
    at midnight in `timezone`, by default the caller's time zone.
    """
    now = clock.now()
    until, zone = now + timedelta(days=days), zone_named(timezone or await zone_of(config, timezones, by))
    active = [
        trigger
        for trigger in await triggers.all()
        if trigger.state == "active" and trigger.next_at is not None and trigger.next_at < until
    ]

    def look() -> list[PlannedTimes]:
        planned: list[PlannedTimes] = []
        known: dict[tuple[str, str], tuple[list[datetime], bool]] = {}  # many triggers have the same schedule
        for trigger in active:
            key = trigger.spec.schedule, trigger.spec.timezone
            if key not in known:
                known[key] = times_by_day(trigger.spec, now, until, zone, DAY_TIMES_MAX)
            times, more = known[key]
            name = trigger.spec.name or trigger.spec.text[:NAME_CHARS_MAX]
            words = in_words(trigger.spec.schedule) if trigger.spec.kind == "periodic" else "once"
            if times:
                planned.append(PlannedTimes(trigger.id, name, words, times, more))
        return planned

    return await anyio.to_thread.run_sync(look)


@routes("POST /api/triggers", ADMINS, status=201)
async def add_trigger(
    clock: Clock,
    config: LiveConfig,
    connections: Connections,
    agents: AgentRegistry,
    service: TriggerService,
    timezones: TimeZones,
    by: Principal,
    body: TriggerRequest,
) -> TriggerView:
    """Schedule a turn in a `thread`, or in a new thread of a `platform` and `channel`. `schedule` is an ISO 8601 time,
    a cron line or a phrase such as "tomorrow at 9".
    """
    return _trigger_view(await service.add(await _wanted(clock, config, connections, agents, timezones, by, body)))


async def _wanted(
    clock: Clock,
    config: LiveConfig,
    connections: Connections,
    agents: AgentRegistry,
    timezones: TimeZones,
    by: Principal,
    body: TriggerRequest,
) -> NewTrigger:
    if bool(body.thread) == bool(body.platform and body.channel):
        raise InvalidInput("Specify either `thread`, or `platform` and `channel`.")
    if body.platform and body.platform not in {*connections.configured, *OWN_PLATFORMS}:
        known = ", ".join(sorted(connections.configured)) or "none"
        raise InvalidInput(f"Platform {body.platform[:80]!r} is not connected. Connected platforms: {known}.")
    from shoal.features.triggers.when import parse_schedule, parse_when

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
    """A daily brief at the time `at` in `timezone`, by default the caller's time zone.

    The brief is sent to `thread` or to a new thread of `platform` and `channel`. By default it is sent to the owner's
    latest direct conversation, or to the page if the owner has not written in a chat yet. If `agent` is `brief` and no
    agent has this name, the agent is created.
    """

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
    triggers: TriggerStore,
    clock: Clock,
    config: LiveConfig,
    connections: Connections,
    agents: AgentRegistry,
    service: TriggerService,
    timezones: TimeZones,
    lifecycle: AgentLifecycle,
    by: Principal,
    body: BriefRequest,
) -> TriggerView:
    """Schedule the daily brief, replacing the current one."""
    agent, thread = body.agent, body.thread
    at = re.fullmatch(r"([01]?\d|2[0-3])(?:[:.]([0-5]\d))?", body.at.strip(), re.ASCII)
    if at is None:
        raise InvalidInput(f"{body.at!r} is not a time of day. Use a time such as 8, 8:00 or 20:30.")
    if not thread and not body.platform:
        thread = await store.settings.get(*OWNER_IN) or BRIEF_ON_PAGE
    schedule = f"{int(at[2] or 0)} {int(at[1])} * * {'1-5' if body.days == 'working' else '*'}"
    timezone = zone_named(body.timezone or await zone_of(config, timezones, by)).key
    asked = TriggerRequest(
        schedule, BRIEF_TEXT.format(timezone=timezone), thread, body.platform, body.channel, timezone, agent, BRIEF
    )
    if agent == "brief" and agent not in agents.names():  # validate the brief before creating the agent
        first_time(
            await _wanted(clock, config, connections, agents, timezones, by, msgspec.structs.replace(asked, agent="")),
            clock.now(),
        )
        await lifecycle.create(agent, BRIEF_AGENT, by.person)
    before = [trigger for trigger in await triggers.all() if trigger.spec.name == BRIEF]
    added = await add_trigger(clock, config, connections, agents, service, timezones, by, asked)
    for trigger in before:
        await triggers.remove(trigger.id)
    return added


@routes("DELETE /api/brief", ADMINS)
async def end_brief(triggers: TriggerStore) -> Removed:
    """Remove the daily brief."""
    briefs = [trigger for trigger in await triggers.all() if trigger.spec.name == BRIEF]
    for brief_trigger in briefs:
        await triggers.remove(brief_trigger.id)
    return Removed(bool(briefs))


@routes("DELETE /api/triggers/{id}", ADMINS)
async def remove_trigger(triggers: TriggerStore, id: str) -> Removed:
    """Remove a trigger."""
    if not await triggers.remove(id):
        raise _no_trigger(id)
    return Removed(True)


@routes("POST /api/triggers/{id}/pause", ADMINS)
async def pause_trigger(triggers: TriggerStore, id: str) -> TriggerView:
    """Pause a trigger."""
    trigger = await _known_trigger(triggers, id)
    if not await triggers.pause(id):
        raise Conflict(f"You cannot pause trigger {id}, because it is {trigger.state}.")
    return _trigger_view(await _known_trigger(triggers, id))


@routes("POST /api/triggers/{id}/resume", ADMINS)
async def resume_trigger(service: TriggerService, triggers: TriggerStore, clock: Clock, id: str) -> TriggerView:
    """Resume a trigger that was paused or switched off."""
    trigger = await _known_trigger(triggers, id)
    if not await triggers.resume(id, first_time(trigger.spec, clock.now())):
        raise Conflict(f"You cannot resume trigger {id}, because it is {trigger.state}.")
    service.added.set()
    return _trigger_view(await _known_trigger(triggers, id))


# ---- webhooks ----


class HookAnswer(msgspec.Struct, frozen=True):
    """Response to a webhook call.

    duplicate: true if the same call was accepted before.
    thread: id of the thread, or empty if the call opens a new thread in a channel.
    """

    accepted: bool
    duplicate: bool
    thread: str


@routes("POST /hooks/{name}", OPEN, status=202, raw_body=JSON)
async def take_hook(
    store: Store,
    clock: Clock,
    orchestrator: Orchestrator,
    hooks: Webhooks,
    options: WebOptions,
    request: Request,
    name: str,
) -> HookAnswer:
    """Start a turn from a webhook call. The call must be signed with the webhook's secret, or contain it as a bearer
    token. A repeated signed call does not start a second turn.
    """
    hook = hooks.get(name)
    if hook is None:
        raise NotFound("No webhook has this name. Add [triggers.webhooks.NAME] to shoal.toml.")
    body = await whole_body(request, seconds=options.body_seconds)
    headers = {key.lower(): value for key, value in request.headers.items()}
    now = clock.now()
    proved = proofs(headers, body, hook.secret.reveal(), now)
    if not proved:
        raise ApiError(401, "unauthorized", "The call's signature or secret does not match this webhook's secret.")
    text = render(hook.template, name, body)
    delivery = await first_delivery(store.settings, proved, f"hook:{name}", now, hook.repeat_seconds)
    if delivery is None:
        return HookAnswer(True, True, hook.thread)
    prompt = Prompt(
        parse_thread_id(hook.thread) if hook.thread else unopened(*hook.channel.split(":", 1)),
        delivery.key,
        text,
        Author("shoal", f"webhook {name}", trusted=True),
        clock.now(),
        agent=hook.agent,
        message_id=delivery.key,
        origin="trigger",
        tainted_by=f"webhook {name}",
    )
    if not hook.thread:
        fresh = await orchestrator.open(Opening(prompt))
        return HookAnswer(True, not fresh, "")
    receipt = await orchestrator.send(prompt)
    if receipt.status == "busy":
        raise ApiError(
            429, "busy", "The conversation's queue is full. Send the call again later.", {"Retry-After": "30"}
        )
    return HookAnswer(True, receipt.status == "duplicate", prompt.thread)
