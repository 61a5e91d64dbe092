"""Background services that run alongside turns."""

import asyncio
import contextlib
import gc
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from functools import partial

import msgspec

from shoal.agents.folder import read_agent, read_shared
from shoal.config import Config
from shoal.delivery.hub import Hub
from shoal.kernel.clock import SET_BACK_SECONDS, Clock, wall_ahead
from shoal.kernel.crash_log import SET_ASIDE, CrashLog, SetAside
from shoal.kernel.errors import InvalidInput, StoreCorrupt, StoreReadOnly, StoreUnavailable
from shoal.kernel.events import Event, TurnFinished
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.ports import Completion, Models, Settings
from shoal.kernel.records import AuditEntry
from shoal.kernel.settings_platforms import AccountSettings
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.catalog import Catalog, existing_model
from shoal.store.audit import AuditLog, anchor_line
from shoal.store.health import BACKGROUND_CHECK_SECONDS, Health
from shoal.store.store import Store

log = logging.getLogger(__name__)

EXPIRY_CHECK_SECONDS = 30.0
HEALTH_CHECK_SECONDS = 5.0
CLOCK_LOOK_SECONDS = 5.0
TROUBLE_SECONDS = 3600.0
LOOK_THROUGH_AFTER_SECONDS = 900.0
"""Seconds before the first full check of the database, so that pending work runs first."""
DAY_SECONDS = 86_400.0
ANCHOR_SECONDS = 3600.0
TRIM_SECONDS = 60.0
SERVICE_PROBLEMS = "service problems"
"""Settings scope that stores the last failure of each service."""
SET_ASIDE_SECONDS = 60.0
UPKEEP_SECONDS_MIN = 60.0
UPKEEP_DOUBLINGS_MAX = 6
"""Maximum number of times that the restart delay of a failing service is doubled."""
UPKEEP_CALM_SECONDS = 7200.0
"""Uptime in seconds after which a service's restart delay is reset."""
PROBLEM_CHARS_MAX = 300
DISCOVER_AFTER_SECONDS = 3.0
"""Seconds before the providers are asked for their models, so that the first messages are handled first."""
_encode = msgspec.json.Encoder(order="deterministic").encode

GARBAGE_THRESHOLDS = (5_000, 20, 10)
"""Thresholds of the garbage collector.

Between collections, cyclic garbage, such as closed connections, can occupy one or two megabytes.
"""

_M_ARENA_MAX = -8
"""`M_ARENA_MAX` from glibc's malloc.h: the `mallopt` option for the number of heaps."""


def share_one_heap() -> None:
    """Make threads that start later share one heap, if the C library is glibc.

    By default, glibc creates additional heaps for threads that allocate at the same time. Memory that is freed in
    one heap is not available to other threads, so a process with a dozen threads grows by a fifth in 10,000 turns.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


async def return_freed_memory(clock: Clock) -> None:
    """Periodically return freed memory to the system, if the C library is glibc.

    By default, glibc returns only memory at the end of its heap, so each burst of messages would keep a few megabytes.
    """
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await clock.sleep(TRIM_SECONDS)
        trim(0)


def collect_seldom() -> None:
    """Exclude the objects created at startup from garbage collection, and collect new objects less often.

    Startup creates two thousand objects in cycles. Collecting them would take a tenth of the startup time. Turns
    create few cycles. With the default thresholds, the collector would take a tenth of a turn's CPU time.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()


class Upkeep:
    """Supervises services that may fail without stopping turns.

    It stores a failure, reports it to the owner, and restarts the service later. A failure within a day of the previous
    one is not reported again. The engine, the database watcher and the approval service are not supervised, because
    their failure must end the process. Errors caused by a database outage or damage are raised, because they affect all
    services.
    """

    def __init__(self, settings: Settings, clock: Clock, notify: Callable[[str], Awaitable[None]]) -> None:
        self._settings = settings
        self._clock = clock
        self._notify = notify

    def keep(self, name: str, serve: Callable[[], Awaitable[None]]) -> Callable[[], Coroutine[object, object, None]]:
        return partial(self._run, name, serve)

    async def _run(self, name: str, serve: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            began = self._clock.monotonic()
            # Services may raise anything.
            (failure,) = await asyncio.gather(serve(), return_exceptions=True)
            if failure is None:
                return
            if BaseExceptionGroup("", [failure]).subgroup((StoreUnavailable, StoreReadOnly, StoreCorrupt)) is not None:
                raise failure
            failures = failures + 1 if self._clock.monotonic() - began < UPKEEP_CALM_SECONDS else 1
            await self._report(name, failure)
            await self._clock.sleep(UPKEEP_SECONDS_MIN * 2.0 ** min(failures - 1, UPKEEP_DOUBLINGS_MAX))

    async def _report(self, name: str, failure: BaseException) -> None:
        log.error("service failed, restarting later", extra={"service": name}, exc_info=failure)
        now, before = self._clock.now(), await self._settings.get(SERVICE_PROBLEMS, name)
        why = f"{type(failure).__name__}: {' '.join(str(failure).split())}"[:PROBLEM_CHARS_MAX]
        await self._settings.put(SERVICE_PROBLEMS, name, _encode(ServiceProblem(now, why)).decode())
        if before is None or now - service_problem(before).at >= timedelta(seconds=DAY_SECONDS):
            await self._notify(f"The service “{name}” failed. I will restart it. Run `shoal doctor` for details. {why}")


class ServiceProblem(msgspec.Struct, frozen=True):
    """Time and reason of a service's last failure."""

    at: datetime
    why: str


def service_problem(stored: str) -> ServiceProblem:
    return msgspec.json.decode(stored, type=ServiceProblem)


async def watch_set_aside(
    settings: Settings, clock: Clock, notify: Callable[[str], Awaitable[None]], note: Callable[[str], None]
) -> None:
    """Notify the owner once about each event that was set aside, and add it to this process's notes."""
    while True:
        for key, stored in await settings.page(SET_ASIDE):
            aside = msgspec.json.decode(stored, type=SetAside)
            notice = f"I set aside a message from {aside.platform}, because I crashed twice while processing it."
            note(f"{notice} The message is from {aside.lane}. Please report this as a bug.")
            if not aside.told:
                noted = _encode(msgspec.structs.replace(aside, told=True)).decode()
                if await settings.swap(SET_ASIDE, key, stored, noted):
                    await notify(f"{notice} `shoal doctor` lists it. Please report this as a bug.")
        await clock.sleep(SET_ASIDE_SECONDS)


async def watch_crashes(crash_log: CrashLog, clock: Clock) -> None:
    while True:
        await clock.sleep(SET_ASIDE_SECONDS)
        await crash_log.learn()


async def watch_approvals(expire: Callable[[], Awaitable[None]], clock: Clock, ask_expires_seconds: float) -> None:
    """Expire approvals every EXPIRY_CHECK_SECONDS, or more often if they are short-lived."""
    while True:
        await expire()
        await clock.sleep(min(EXPIRY_CHECK_SECONDS, ask_expires_seconds))


async def anchor_audit(audit: AuditLog, clock: Clock) -> None:
    """Log the heads of the audit chains every ANCHOR_SECONDS, to make later changes to a chain detectable."""
    while True:
        await clock.sleep(ANCHOR_SECONDS)
        chains = await audit.chains()
        if chains:
            log.info("%s", anchor_line(clock.now(), chains))


async def watch_health(health: Health, clock: Clock, notify: Callable[[str], Awaitable[None]]) -> None:
    """Detect changes to the database files within HEALTH_CHECK_SECONDS, and notify the owner of damage once.

    A full or read-only disk is reported at most once every TROUBLE_SECONDS.
    """
    told_at = -TROUBLE_SECONDS
    while not health.damage:
        await clock.sleep(HEALTH_CHECK_SECONDS)
        trouble, health.trouble = health.trouble, ""
        if trouble and clock.monotonic() - told_at >= TROUBLE_SECONDS:
            told_at = clock.monotonic()
            await notify(f"I cannot store anything at the moment. {trouble}")
        with contextlib.suppress(StoreCorrupt):
            health.check()
    await notify(f"I have stopped accepting messages and running turns. {health.damage}")


async def watch_clock(clock: Clock, changed: Callable[[], None]) -> None:
    """Call `changed` within CLOCK_LOOK_SECONDS of a change to the wall clock."""
    before = wall_ahead(clock)
    while True:
        await clock.sleep(CLOCK_LOOK_SECONDS)
        ahead = wall_ahead(clock)
        if abs(ahead - before) > SET_BACK_SECONDS:
            changed()
        before = ahead


async def look_through_daily(health: Health, clock: Clock) -> None:
    await clock.sleep(LOOK_THROUGH_AFTER_SECONDS)
    while True:
        await health.look_through(BACKGROUND_CHECK_SECONDS)
        await clock.sleep(DAY_SECONDS)


async def note_settings(config: Config, store: Store, home: Home, agents: Iterable[str]) -> None:
    """Record in the audit log which access settings have changed since the last start."""
    parts = {**_rules(config), **{f"agent {name}": _rules_of(home, name) for name in agents}}
    now = {name: hashlib.sha256(part).hexdigest()[:16] for name, part in parts.items()}
    stored = await store.settings.get("audit", "settings")
    before: dict[str, str] = {}
    with contextlib.suppress(*UNREADABLE):  # an unreadable value must not make every setting look changed
        before = msgspec.json.decode(stored or "{}", type=dict[str, str])
    if now == before or not await store.settings.swap("audit", "settings", stored, msgspec.json.encode(now).decode()):
        return
    what = "changed" if before else "first start"
    entries = [
        AuditEntry("config", f"{name} {what}", user="system", detail=f"{before.get(name, '')} → {now.get(name, '')}")
        for name in sorted({*now, *before})
        if now.get(name) != before.get(name)
    ]
    await store.audit.record("system", entries)


def _rules_of(home: Home, name: str) -> bytes:
    try:
        file = read_agent(home.agent(name), read_shared(home))
    except InvalidInput:
        return b"unreadable"
    return _encode([file.profile, file.tools, file.restrict_to_workspace, file.taint, file.budget])


def _rules(config: Config) -> dict[str, bytes]:
    """Encode all access settings by section, without secrets."""
    rules = {
        "permissions": _encode(config.permissions),
        "access": _encode(config.access),
        "budget": _encode(config.budget),
        "sandbox": _encode(config.sandbox),
        "web.allow": _encode(config.web.allow),
    }
    accounts: dict[str, AccountSettings] = {
        f"webhook {name}": account for name, account in config.platforms.webhook.items()
    }
    for platform, listed in config.platforms.accounts.items():
        accounts |= {f"{platform} {account.account}": account for account in listed}
    for name, account in accounts.items():
        rules[f"platforms.{name}"] = _encode([account.enabled, account.owner, account.allow, account.channels])
    return rules


async def report_completions(hub: Hub, on_complete: Completion) -> None:
    """Await `on_complete` for each turn that finishes in this process. Errors from the callback are only logged."""

    async def notify(thread: ThreadId, turn: TurnId, reply: str) -> None:
        await on_complete(thread, turn, reply)

    with hub.subscribe() as coming:
        async for item in coming:
            if isinstance(item, Event) and isinstance(item.data, TurnFinished):
                post = notify(item.thread, item.turn, item.data.reply)
                # The callback may raise anything.
                (failure,) = await asyncio.gather(post, return_exceptions=True)
                if failure is not None:
                    fields = {"thread_id": item.thread, "turn": item.turn}
                    log.error("completion callback failed", extra=fields, exc_info=failure)
    log.warning("completion callback stopped: callback too slow or app ending")


def missing_model(models: Models, name: str) -> str:
    """Explain why the default model cannot answer. Return an empty string if it can. Sends no request."""
    try:
        existing_model(models, name)
    except InvalidInput as error:
        return f"{error} I cannot answer until you correct model.name. Run `shoal setup model` to set another model."
    return ""


async def discover_models(models: Models, clock: Clock, default: str) -> None:
    """Check the keys and list the models of every provider once, and write available_models.json.

    Failures and an unavailable default model are logged.
    """
    known = missing_model(models, default)
    if isinstance(models, Catalog):
        await models.offer_shipped()
    await clock.sleep(DISCOVER_AFTER_SECONDS)
    if isinstance(models, Catalog):
        await models.refresh()
        lacking = missing_model(models, default)
        if lacking and lacking != known:
            log.warning("%s", lacking)
