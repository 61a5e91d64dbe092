"""API endpoints for replays, comparisons and test cases."""

from collections.abc import AsyncGenerator
from typing import Annotated

import anyio.to_thread
import msgspec
from starlette.responses import Response

from shoal.agents.lifecycle import AgentLifecycle
from shoal.agents.registry import AgentRegistry
from shoal.features.evals.answers import DIFFERENCES, Wanted
from shoal.features.evals.cases import Case, Expectation
from shoal.features.evals.checks import CaseChecks, read_cases, save_case
from shoal.features.evals.comparisons import ComparedStep, Comparisons, ComparisonState
from shoal.features.evals.settings import CASES
from shoal.kernel.agents import AgentSpec
from shoal.kernel.errors import InvalidInput, NotFound
from shoal.kernel.ids import ThreadId
from shoal.kernel.ports import Models
from shoal.models.catalog import existing_model
from shoal.permissions.redact import Redactor
from shoal.running import Runtime
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import ADMINS, EVERYONE, Callers, Removed, Routes, Text64, Text200
from shoal.surfaces.http.routes_threads import known_thread
from shoal.surfaces.http.streams import OPENING, EventStream, LiveStreams
from shoal.threads.commands import agent_here
from shoal.threads.principals import Principal
from shoal.tools.registry import Registry
from shoal.turn.context import ContextBuilder
from shoal.turn.replay import Difference, Today, replay_thread

routes = Routes()

Usd = Annotated[float, msgspec.Meta(ge=0)]


class ReplayView(msgspec.Struct, frozen=True):
    """Result of replaying a thread's model calls.

    `calls`: number of replayed calls.
    `identical`: number of requests that equal the recorded ones.
    `differences`: first difference in each request that is not identical.
    `compares_today`: whether current tools, options and instructions were also compared. This requires a running Shoal.
    """

    calls: int
    identical: int
    differences: tuple[Difference, ...]
    compares_today: bool


class NewComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A comparison to create. `usd_max` is its cost limit in US dollars. 0 means that only the limits of [budget]
    apply.
    """

    wanted: Wanted
    usd_max: Usd = 1.0


class ComparisonView(msgspec.Struct, frozen=True):
    """A comparison with its calls. `differences` lists every possible kind of difference, smallest first."""

    state: ComparisonState
    steps: list[ComparedStep]
    differences: tuple[str, ...] = DIFFERENCES


class NewCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn to save as a case, with its expectations.

    `turn`: id of the turn. Empty means the last turn.
    `sandbox`: whether tools run in a temporary workspace instead of returning recorded results.
    """

    name: Text64
    expect: Annotated[list[Expectation], msgspec.Meta(min_length=1, max_length=50)]
    turn: Annotated[str, msgspec.Meta(max_length=100)] = ""
    about: Annotated[str, msgspec.Meta(max_length=2_000)] = ""
    sandbox: bool = False


class CaseView(msgspec.Struct, frozen=True):
    """An agent's test case. `expects` describes each expectation in one line, and `messages` is the number of
    messages.
    """

    agent: str
    name: str
    file: str
    about: str
    expects: tuple[str, ...]
    messages: int


class CheckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cases to run.

    `cases`: names of the cases. Empty means all.
    `model`: model to use. Empty means the agent's model.
    `usd_max`: cost limit in US dollars. 0 means no limit for this check.
    """

    cases: Annotated[list[str], msgspec.Meta(max_length=200)] = []
    model: Text200 = ""
    usd_max: Usd = 1.0


class CheckStart(msgspec.Struct, frozen=True):
    """First event of a check. `cases` is the number of cases."""

    agent: str
    model: str
    cases: int


def known_agent(agents: AgentRegistry, name: str) -> AgentSpec:
    """Return an agent by name. Raises NotFound."""
    if not agents.exists(name):
        raise NotFound(f"No agent named {name[:80]!r}. Agents: {', '.join(agents.names())}.")
    return agents.spec(name)


def needs_running(runtime: Runtime) -> None:
    """Raise InvalidInput if Shoal is not running, because only a running Shoal can call models."""
    if runtime.state == "stopped":
        raise InvalidInput("Shoal is not running, so it cannot ask a model. Start it with `shoal run`, then try again.")


async def frames(items: AsyncGenerator[msgspec.Struct]) -> AsyncGenerator[bytes]:
    yield OPENING
    async for item in items:
        yield b"data: %s\n\n" % msgspec.json.encode(item)


# ---- replay ----


@routes("GET /api/threads/{thread}/replay", EVERYONE)
async def replay(
    store: Store,
    agents: AgentRegistry,
    models: Models,
    tools: Registry,
    context: ContextBuilder,
    runtime: Runtime,
    thread: ThreadId,
    *,
    turn: str = "",
) -> ReplayView:
    """Rebuild a thread's model requests from the journal and compare them with the requests that were sent. `turn`
    selects a single turn.
    """
    info = await known_thread(store, thread)
    today = None
    if runtime.state != "stopped":
        today = Today(context, models, tools.every(), agents.known)
    result = await replay_thread(store.journal, info.thread, context.meter, today, turn)
    if turn and not result.calls:
        raise NotFound(f"{thread} has no turn {turn[:80]} that called a model.")
    return ReplayView(result.calls, result.identical, result.differences, today is not None)


# ---- comparisons ----


@routes("POST /api/comparisons", ADMINS, status=201)
async def begin_comparison(
    models: Models, comparisons: Comparisons, runtime: Runtime, body: NewComparison
) -> ComparisonState:
    """Plan a comparison. Selects recorded model calls and returns the estimated cost of sending them to another model.
    Does not call the model. The same request returns the same comparison.
    """
    needs_running(runtime)
    existing_model(models, body.wanted.model)
    return await comparisons.begin(body.wanted, body.usd_max)


@routes("POST /api/comparisons/{id}/run", ADMINS, media_type="text/event-stream")
async def run_comparison(
    comparisons: Comparisons, runtime: Runtime, streams: LiveStreams, callers: Callers, by: Principal, id: str
) -> Response:
    """Send the unanswered calls to the model and stream an event for each answer. Stops when the client disconnects."""
    needs_running(runtime)
    items = comparisons.run(await comparisons.get(id), by.asker)
    return EventStream(frames(items), streams, streams.admit(), allowed=callers.access_check(by), beats=True)


@routes("GET /api/comparisons", ADMINS)
async def comparisons(comparisons: Comparisons) -> list[ComparisonState]:
    """List the comparisons, newest first."""
    return [await comparisons.state(row) for row in await comparisons.rows.newest()]


@routes("GET /api/comparisons/{id}", ADMINS)
async def comparison(comparisons: Comparisons, id: str) -> ComparisonView:
    """Return a comparison with the recorded answers and the other model's answers."""
    row = await comparisons.get(id)
    return ComparisonView(await comparisons.state(row), await comparisons.detail(row))


@routes("DELETE /api/comparisons/{id}", ADMINS)
async def remove_comparison(comparisons: Comparisons, id: str) -> Removed:
    """Delete a comparison and its answers."""
    await comparisons.get(id)
    return Removed(await comparisons.rows.remove(id))


# ---- cases ----


@routes("POST /api/threads/{thread}/cases", ADMINS, status=201)
async def save_turn_as_case(
    store: Store, agents: AgentRegistry, lifecycle: AgentLifecycle, redactor: Redactor, thread: ThreadId, body: NewCase
) -> CaseView:
    """Save a turn as a test case for its agent, with the preceding conversation, the tool results and the
    expectations.
    """
    agent = await agent_here(store, agents, thread)
    case = await save_case(
        store.journal, thread, body.turn, tuple(body.expect), about=body.about, sandbox=body.sandbox,
        clean=redactor.redact, check_tool=lifecycle.checks.tool, folder=agent.home, name=body.name,
    )  # fmt: skip
    return _case_view(agent.name, body.name, case)


@routes("GET /api/agents/{name}/cases", ADMINS)
async def cases(agents: AgentRegistry, name: str) -> list[CaseView]:
    """List an agent's cases. Returns 400 with the file and line if a case is invalid."""
    agent = known_agent(agents, name)
    cases = await anyio.to_thread.run_sync(read_cases, agent.home)
    return [_case_view(agent.name, name, case) for name, case in cases.items()]


def _case_view(agent: str, name: str, case: Case) -> CaseView:
    expects = tuple(expectation.words for expectation in case.expect)
    return CaseView(agent, name, f"{CASES}/{name}.toml", case.about, expects, len(case.messages))


@routes("POST /api/agents/{name}/check", ADMINS, media_type="text/event-stream", body_optional=True)
async def check_agent_cases(
    agents: AgentRegistry,
    models: Models,
    checks: CaseChecks,
    runtime: Runtime,
    streams: LiveStreams,
    callers: Callers,
    by: Principal,
    name: str,
    body: CheckRequest,
) -> Response:
    """Run an agent's cases and stream the outcome of each. Stops when the client disconnects."""
    needs_running(runtime)
    agent = known_agent(agents, name)
    if body.model:
        existing_model(models, body.model)
        agent = msgspec.structs.replace(agent, model=body.model)
    results = await anyio.to_thread.run_sync(read_cases, agent.home, body.cases, checks.check_tool)
    ceiling = checks.ceiling(agent.model, body.usd_max)
    if results and body.usd_max and ceiling is None:
        raise InvalidInput(
            f"The price of {agent.model} is unknown, so Shoal cannot enforce a cost limit. "
            "Use --usd-max 0 for no limit."
        )

    async def items() -> AsyncGenerator[msgspec.Struct]:
        yield CheckStart(agent.name, agent.model, len(results))
        async for outcome in checks.run(agent, results, by.asker, ceiling):
            yield outcome

    return EventStream(frames(items()), streams, streams.admit(), allowed=callers.access_check(by), beats=True)
