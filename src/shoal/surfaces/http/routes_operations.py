"""Calls for the operator: health, metrics, the API's description, usage, budget and audit log."""

import asyncio
from datetime import datetime
from typing import Annotated, Literal, Self

import msgspec
from starlette.responses import Response

from shoal.backend import Backend
from shoal.delivery.hub import Hub
from shoal.kernel.clock import Clock
from shoal.kernel.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from shoal.kernel.events import AssistantSaid, Event, ToolFinished, TurnFinished
from shoal.kernel.home import Home
from shoal.kernel.records import AuditEntry, AuditRow, Backlog, BudgetStatus, ThreadUsage
from shoal.permissions.taint import taint_of
from shoal.running import Runtime
from shoal.services import Services
from shoal.store.budget import NEVER_LIFTED
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import (
    ADMINS,
    EVERYONE,
    JSON,
    OPEN,
    READERS,
    AnyObject,
    Routes,
    json_answer,
    view,
)
from shoal.surfaces.http.openapi import ApiDocument
from shoal.threads.principals import Principal
from shoal.tools.builtin.overview import Agenda, Overview, look

routes = Routes()

PROBE_SECONDS_MAX = 2.0
PROBE_SECONDS = 1.0
"""Lifetime of a probe result in seconds. It keeps frequent callers from causing frequent writes."""

THREADS_SHOWN_MAX = 20
Days = Annotated[int, msgspec.Meta(ge=1, le=3660)]

# ---- overview ----


@routes("GET /api/overview", READERS)
async def overview(
    store: Store, clock: Clock, agenda: Agenda, *, hours: Annotated[float, msgspec.Meta(ge=1, le=168)] = 24
) -> Overview:
    """Return activity and cost in the last `hours`, pending approvals, and upcoming or failing work."""
    return await look(store, agenda, taint_of, clock.now(), hours)


# ---- health ----


class Alive(msgspec.Struct, frozen=True):
    """The process is running."""

    status: Literal["ok"]


STORE_TROUBLES: tuple[tuple[type[Exception], str], ...] = (
    (StoreFull, "The database's disk is full or failing. Free some space. Shoal then continues automatically."),
    (
        StoreReadOnly,
        (
            "The database is read-only. Run `shoal doctor` to find the affected file. Make that file writable, then "
            "restart Shoal."
        ),
    ),
    (StoreUnavailable, "The database is unreachable or locked by another program. Run `shoal doctor` for the reason."),
    (StoreError, "The database rejects all changes. Run `shoal doctor` for the reason."),
    (
        TimeoutError,
        f"The database has not responded for {PROBE_SECONDS_MAX:g} seconds. Check its disk, load and server. Shoal "
        "continues automatically when it responds.",
    ),
)
"""Messages of `/readyz`. They contain no paths and no addresses, because anyone may call this endpoint."""


class Readiness(msgspec.Struct, frozen=True):
    """Whether Shoal accepts and answers messages.

    store: `ok`, or the problem and its remedy.
    engine: `ok`, or the state that prevents turns.
    """

    ready: bool
    store: str
    engine: str


class StoreProbe:
    """Tests whether the database accepts writes. A result is reused for PROBE_SECONDS."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._probed: tuple[float, str] | None = None
        self._probing = asyncio.Lock()

    @classmethod
    def of(cls, services: Services) -> Self:
        return cls(services[Store], services[Clock])

    async def state(self) -> str:
        """Return `ok`, or a sentence with the problem and its remedy."""
        async with self._probing:
            now = self._clock.monotonic()
            if self._probed is None or now - self._probed[0] >= PROBE_SECONDS:
                state = "ok"
                try:
                    async with asyncio.timeout(PROBE_SECONDS_MAX):
                        await self._store.settings.put("http", "probe", self._clock.now().isoformat())
                except (StoreError, TimeoutError) as error:
                    state = next(text for kind, text in STORE_TROUBLES if isinstance(error, kind))
                self._probed = (now, state)
            return self._probed[1]


@routes("GET /healthz", OPEN)
async def healthz() -> Alive:
    """Report that the process is running."""
    return Alive("ok")


@routes("GET /readyz", OPEN, answer=Readiness)
async def readyz(home: Home, backend: Backend, runtime: Runtime, probe: StoreProbe) -> Response:
    """Report whether Shoal accepts and answers messages. 503 if it does not."""
    state = await probe.state()
    store = backend.health.damage.replace(f"{home.root}/", "") or state
    engine = runtime.state
    if engine == "running":  # `unregistered`: heartbeats of this worker do not reach the database
        engine = "ok" if backend.engine.is_ready else "unregistered"
    ready = store == engine == "ok"
    return json_answer(Readiness(ready, store, engine), 200 if ready else 503)


class Counters:
    """Prometheus counters of journal events. They restart at zero with the process."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = dict.fromkeys(("done", "aborted", "failed", "limit"), 0)
        self._tool_calls: dict[str, int] = dict.fromkeys(("done", "error"), 0)
        self._tokens: dict[str, int] = dict.fromkeys(("input", "cached", "output"), 0)
        self._model_calls = 0

    @classmethod
    def of(cls, services: Services) -> Self:
        counters = cls()
        services[Hub].tap(counters.count)
        return counters

    def count(self, event: Event) -> None:
        match event.data:
            case TurnFinished(outcome=outcome):
                self._turns[outcome] += 1
            case ToolFinished(is_error=is_error):
                self._tool_calls["error" if is_error else "done"] += 1
            case AssistantSaid(usage=usage):
                self._model_calls += 1
                self._tokens["input"] += usage.input_tokens
                self._tokens["cached"] += usage.cached_tokens
                self._tokens["output"] += usage.output_tokens
            case _:
                pass

    def render(self, backlog: Backlog, outbox_depth: int, advancing: int, now: datetime) -> str:
        """Return all metrics as text. `advancing` is the number of threads that this process is handling. `backlog` and
        `outbox_depth` cover all processes.
        """
        age = max((now - backlog.oldest_at).total_seconds(), 0.0) if backlog.oldest_at else 0.0
        return "".join(
            (
                _labelled("shoal_turns_total", "Finished turns, by outcome.", "outcome", self._turns),
                _labelled("shoal_tool_calls_total", "Finished tool calls, by result.", "result", self._tool_calls),
                _plain("shoal_model_calls_total", "counter", "Finished model calls.", self._model_calls),
                _labelled("shoal_tokens_total", "Tokens used; input includes cached.", "kind", self._tokens),
                _plain("shoal_outbox_depth", "gauge", "Posts waiting for platforms.", outbox_depth),
                _plain("shoal_prompts_queued", "gauge", "Messages waiting for a turn.", backlog.prompts),
                _plain("shoal_turns_running", "gauge", "Open turns, including waiting ones.", backlog.turns),
                _plain("shoal_threads_advancing", "gauge", "Threads currently handled by this process.", advancing),
                _plain("shoal_oldest_prompt_seconds", "gauge", "Age of the oldest waiting message.", age),
            )
        )


def _plain(name: str, kind: str, text: str, value: float) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value:.15g}\n"


def _labelled(name: str, text: str, label: str, values: dict[str, int]) -> str:
    lines = "".join(f'{name}{{{label}="{key}"}} {value}\n' for key, value in values.items())
    return f"# HELP {name} {text}\n# TYPE {name} counter\n{lines}"


@routes("GET /metrics", READERS, media_type="text/plain")
async def metrics(store: Store, clock: Clock, backend: Backend, counters: Counters) -> Response:
    """Return metrics for Prometheus."""
    backlog = await store.inbox.backlog()
    depth = await store.outbox.depth()
    text = counters.render(backlog, depth, backend.engine.running, clock.now())
    return Response(text, media_type="text/plain; version=0.0.4")


@routes("GET /openapi.json", EVERYONE, narrows=True, answer=AnyObject)
async def openapi(document: ApiDocument) -> Response:
    """Return the OpenAPI 3.1 description of this API."""
    return Response(document.content, media_type=JSON)


# ---- usage and budget ----


class TokensView(msgspec.Struct, frozen=True):
    """Used tokens. `input_tokens` includes cached tokens."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    estimated: int = 0


class UsageView(msgspec.Struct, frozen=True):
    """Usage of a model by an agent on a day.

    usage: tokens. `estimated` is the number of calls whose tokens are estimates, because the provider reported no
    usable numbers.
    usd: cost in US dollars, or null if the price is unknown.
    """

    day: str
    agent: str
    model: str
    calls: int
    usage: TokensView
    usd: float | None


class ThreadUsageView(ThreadUsage, frozen=True, kw_only=True):
    """Usage of a thread. `usd` is null if no call had a known price."""

    title: str


class CeilingView(BudgetStatus, frozen=True, kw_only=True):
    """A budget limit and the amount spent. `is_suspended` is true if the limit does not apply for the rest of today."""

    is_suspended: bool


class BudgetLifted(msgspec.Struct, frozen=True):
    """The day for which the budget limits are suspended, in the time zone of shoal.toml."""

    day: str


@routes("GET /api/usage", READERS, answer=list[UsageView])
async def usage(store: Store, *, days: Days = 30) -> object:
    """Return the model usage of the last `days`, including today, by day, agent and model."""
    return await store.ledger.usage(days)


@routes("GET /api/usage/threads", READERS)
async def usage_by_thread(store: Store, *, days: Days = 30) -> list[ThreadUsageView]:
    """Return up to 20 of the most expensive threads of the last `days`, including today."""
    rows = (await store.ledger.by_thread(days))[:THREADS_SHOWN_MAX]
    infos = [await store.journal.thread(row.thread) for row in rows]
    return [view(ThreadUsageView, row, title=info.title if info else "") for row, info in zip(rows, infos, strict=True)]


@routes("GET /api/usage/ceilings", READERS)
async def ceilings(store: Store) -> list[CeilingView]:
    """Return today's budget limits and the amounts spent."""
    is_lifted = await store.budget.is_lifted()
    return [
        view(CeilingView, status, is_suspended=is_lifted and not status.scope.startswith(NEVER_LIFTED))
        for status in await store.budget.standings()
    ]


@routes("POST /api/usage/lift", ADMINS)
async def lift(store: Store, by: Principal) -> BudgetLifted:
    """Suspend the budget limits until midnight in the time zone of shoal.toml."""
    day = await store.budget.lift()
    entry = AuditEntry("budget", "lift", "allow", user=by.author.id, detail=day, token=by.token.name)
    await store.audit.record("owner", [entry])
    return BudgetLifted(day)


# ---- audit log ----


@routes("GET /api/audit", READERS)
async def audit(
    store: Store,
    *,
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100,
    chain: Annotated[str, msgspec.Meta(max_length=600)] = "",
) -> list[AuditRow]:
    """Return the newest audit log entries of one chain or of all chains, in chronological order."""
    return await store.audit.tail(limit, chain_name=chain)


class AuditState(msgspec.Struct, frozen=True):
    """The result of verifying the audit log.

    chains: number of chains.
    entries: number of valid entries.
    broken: a sentence for each broken chain.
    """

    chains: int
    entries: int
    broken: list[str]


@routes("GET /api/audit/verify", ADMINS)
async def verify_audit(store: Store) -> AuditState:
    """Verify every entry of every chain in the audit log."""
    report = await store.audit.verify()
    return AuditState(report.chains, report.entries, [chain.shown for chain in report.broken])
