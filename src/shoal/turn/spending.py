"""What model calls may cost: set aside before a call, settled with it, and a friendly stop at the ceiling.

the call                                  what is recorded and settled
---------------------------------------   -----------------------------------------------------------------
answered                                  what the provider reports, in the transaction of the answer's event
failed before it said anything            nothing; what was set aside is given back
cut off: stopped, timed out, dropped      an estimate: the whole request, and what had come of the answer
beside turns: a summary, a description    the same, by themselves
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import anyio
import msgspec

from shoal.domain.agents import AgentBudget
from shoal.domain.clock import Clock
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.messages import ModelDone, ModelEvent, ModelFailed, ModelRequest, TextDelta, ThinkingDelta, Usage
from shoal.domain.permissions import Asker, Audience
from shoal.domain.ports import Models, Route
from shoal.domain.records import (
    BudgetStatus,
    Ceiling,
    NewPost,
    Reservation,
    Reserved,
    Spend,
    UsageRow,
)
from shoal.domain.settings import BudgetSettings
from shoal.store.budget import BudgetStore, Ledger
from shoal.turn.budget import ROUGHLY, Gauge
from shoal.turn.thread import TurnRun

log = logging.getLogger(__name__)

NOTE_SHARE = 0.8
STANDS_SECONDS = 7200.0
"""How long a reservation stands that nobody settles (its worker died, the turn was stopped)."""
NOTED_MAX = 10_000

STOPPED = (
    "I stopped: the budget does not allow another model call.{why} The owner can lift it for today with "
    "`shoal usage lift`, or raise it under [budget] in the configuration."
)
UNPRICED = "The price of {model} is unknown, and budget.unpriced refuses such models while a ceiling in dollars is set."
NOTE = "A note on the budget: {left} is left."


class Charge(msgspec.Struct, frozen=True):
    """A model call and who pays for it. `turn` is empty beside turns; nobody's `asker` pays of no user's ceiling.

    `model` is the name the ledger has; `line` are the turns above one that others called, the root first; `audience`
    may read how much is left.
    """

    id: str
    model: str
    thread: ThreadId
    turn: TurnId
    agent: str
    asker: Asker
    line: tuple[tuple[ThreadId, TurnId], ...] = ()
    audience: Audience = Audience()

    @property
    def chat(self) -> ThreadId:
        """Where people read along."""
        return self.line[0][0] if self.line else self.thread


def step_charge(run: TurnRun, model: str) -> Charge:
    """The open turn's next step."""
    return beside_charge(run, f"{run.view.turn}:{run.view.open.steps + 1}", model)


def beside_charge(run: TurnRun, id: str, model: str = "") -> Charge:
    """A call for a turn, or after it."""
    view, scope = run.view, run.scope
    turn = view.turn if view.state is not None else TurnId("")
    line = scope.caller.line if scope.caller is not None else ()
    model = model or scope.agent.model
    return Charge(id, model, view.thread, turn, scope.agent.name, scope.asker, line, scope.audience)


NO_BUDGET = AgentBudget()
Bound = TypeVar("Bound", int, float)


class Spending:
    """Guards and records model calls. Without any ceiling nothing is reserved."""

    def __init__(
        self,
        budget: BudgetStore,
        ledger: Ledger,
        models: Models,
        clock: Clock,
        ceilings: BudgetSettings,
        post: Callable[[NewPost], Awaitable[None]],
        own: Callable[[str], AgentBudget] = lambda agent: NO_BUDGET,
    ) -> None:
        self._own = own
        self._budget = budget
        self._ledger = ledger
        self._models = models
        self._clock = clock
        self._ceilings = ceilings
        self._post = post
        self._noted: set[str] = set()

    def route(self, name: str) -> Route:
        """Where a model is. Raises InvalidInput."""
        return self._models.route(name)

    async def reserve(self, charge: Charge, route: Route, request: ModelRequest, gauge: Gauge) -> str:
        """Set the call's greatest cost aside; returns why it may not be made, empty when it may."""
        bounds = self._bounds_of(charge)
        if not bounds:
            return ""
        usage = Usage(gauge.request(request), request.max_output_tokens)
        usd = self._models.usd(route, usage)
        if usd is None and self._ceilings.unpriced == "refuse" and any(bound.usd_max for bound in bounds):
            return STOPPED.format(why=f" {UNPRICED.format(model=route.model)}")
        expires_at = self._clock.now() + timedelta(seconds=STANDS_SECONDS)
        tokens = usage.input_tokens + usage.output_tokens
        found = await self._set_aside(charge, Reservation(charge.id, bounds, usd or 0.0, tokens, expires_at))
        if found.blocked is not None:
            log.warning("a budget is used up", extra={"thread_id": charge.thread, "scope": found.blocked.scope})
            left = f" Left is {found.blocked.left}." if may_know(charge.audience, found.blocked.scope) else ""
            return STOPPED.format(why=left)
        return ""

    async def _set_aside(self, charge: Charge, wanted: Reservation) -> Reserved:
        """Not cancelled half-way: the call that follows at once is, and settles it."""
        found = Reserved(())
        with anyio.CancelScope(shield=True):
            found = await self._budget.reserve(wanted)
            if found.blocked is None:
                await self._note(charge, found.standings)
        return found

    async def release(self, charge: Charge) -> None:
        """Give back what was set aside for a call that failed."""
        if self._bounds_of(charge):
            with anyio.CancelScope(shield=True):
                await self._budget.release(charge.id)

    def spend(self, charge: Charge, route: Route, usage: Usage) -> Spend:
        """The record of a call that was answered; it settles what was set aside."""
        usd = self._models.usd(route, usage)
        bounds, user = self._bounds_of(charge), charge.asker.user
        return Spend(charge.id, charge.agent, user, charge.model, usage, usd, charge.id if bounds else "", bounds)

    async def stream(
        self,
        charge: Charge,
        route: Route,
        request: ModelRequest,
        gauge: Gauge,
        see: Callable[[ModelEvent], None] = lambda event: None,
    ) -> tuple[ModelDone | ModelFailed, bool]:
        """Make a reserved call and have `see` look at each event; returns the last one, and whether the answer was cut
        off and is recorded already. Cancelling records what came so far."""
        outcome: ModelDone | ModelFailed = ModelFailed("dropped", "The stream ended without an answer.")
        tokens, ended = 0.0, False
        try:
            async for event in route.provider.stream(request):
                tokens += gauge.text(event.text) if isinstance(event, TextDelta | ThinkingDelta) else 0
                outcome = event if isinstance(event, ModelDone | ModelFailed) else outcome
                see(event)
            ended = True
        finally:
            was_cut_off = not ended or (isinstance(outcome, ModelFailed) and tokens > 0)
            if was_cut_off:
                await self._cut_off(charge, route, Usage(gauge.request(request), round(tokens)))
        return outcome, was_cut_off

    async def ask(
        self, charge: Charge, route: Route, request: ModelRequest, gauge: Gauge = ROUGHLY
    ) -> ModelDone | ModelFailed:
        """Make a call beside the turn's steps, reserved and recorded like theirs; a ceiling in its way fails it."""
        refused = await self.reserve(charge, route, request, gauge)
        if refused:
            return ModelFailed("quota", refused)
        outcome, was_cut_off = await self.stream(charge, route, request, gauge)
        if isinstance(outcome, ModelDone):
            with anyio.CancelScope(shield=True):
                await self._ledger.record(charge.thread, charge.turn, self.spend(charge, route, outcome.usage))
        elif not was_cut_off:
            await self.release(charge)
        return outcome

    async def _cut_off(self, charge: Charge, route: Route, usage: Usage) -> None:
        spent = self.spend(charge, route, usage)
        with anyio.CancelScope(shield=True):
            spent = msgspec.structs.replace(spent, id=f"{charge.id}:cut:{self._clock.new_id()}")
            await self._ledger.record(charge.thread, charge.turn, spent)

    async def left(self, thread: ThreadId, agent: str, asker: Asker, audience: Audience) -> str:
        """What is left where little is, for the model; empty while there is enough, or where others may not know it."""
        bounds = [
            bound
            for bound in self._bounds(TurnId(""), thread, asker, agent, self._own(agent))
            if may_know(audience, bound.scope)
        ]
        if not bounds:
            return ""
        found = await self._budget.standings([(bound.scope, bound.day) for bound in bounds])
        scarce = [one for one in found if one.share >= NOTE_SHARE]
        return max(scarce, key=lambda one: one.share).left if scarce else ""

    async def _note(self, charge: Charge, standings: tuple[BudgetStatus, ...]) -> None:
        for one in standings:
            key = f"budget:{one.scope}:{one.day}"
            if one.share < NOTE_SHARE or key in self._noted or one.scope.startswith("turn:"):
                continue
            if not may_know(charge.audience, one.scope):
                continue
            if len(self._noted) >= NOTED_MAX:
                self._noted.clear()
            self._noted.add(key)
            await self._post(NewPost(key, charge.chat, NOTE.format(left=one.left)))

    def _bounds_of(self, charge: Charge) -> tuple[Ceiling, ...]:
        """The ceilings of the turn and, where others called it, of each turn and thread above."""
        places = ((charge.thread, charge.turn), *charge.line)
        own = self._own(charge.agent)
        found = (
            self._bounds(turn, thread, charge.asker, charge.agent, own, own if turn == charge.turn else NO_BUDGET)
            for thread, turn in places
        )
        return tuple(dict.fromkeys(bound for bounds in found for bound in bounds))

    def _bounds(
        self,
        turn: TurnId,
        thread: ThreadId,
        asker: Asker,
        agent: str,
        own: AgentBudget,
        of_turn: AgentBudget = NO_BUDGET,
    ) -> tuple[Ceiling, ...]:
        """The ceilings of a turn. `own` is the agent's budget, `of_turn` that of the agent whose turn it is."""
        wanted = self._ceilings
        today = self._clock.now().date().isoformat()
        found = (
            Ceiling(
                f"turn:{turn}" if turn else "",
                "",
                _lower(wanted.usd_per_turn, of_turn.usd_per_turn),
                _lower(wanted.tokens_per_turn, of_turn.tokens_per_turn),
            ),
            Ceiling(f"thread:{thread}", today, wanted.usd_per_thread_day, wanted.tokens_per_thread_day),
            Ceiling(
                f"user:{asker.identities[0]}" if asker.user else "",
                today,
                wanted.usd_per_user_day,
                wanted.tokens_per_user_day,
            ),
            Ceiling(
                f"agent:{agent}",
                today,
                _lower(wanted.usd_per_agent_day, own.usd_per_day),
                _lower(wanted.tokens_per_agent_day, own.tokens_per_day),
            ),
            Ceiling("day", today, wanted.usd_per_day, wanted.tokens_per_day),
            Ceiling("total", "", wanted.usd_total, wanted.tokens_total),
        )
        return tuple(bound for bound in found if bound.scope and (bound.usd_max or bound.tokens_max))


def may_know(audience: Audience, scope: str) -> bool:
    """Whether this audience is told how full a ceiling is: where strangers may read, only what the conversation itself
    has spent, since all else tells of what was done elsewhere."""
    return not audience.guest or scope.startswith(("turn:", "thread:"))


def _lower(one: Bound, other: Bound) -> Bound:
    """The stricter of two bounds of which 0 is none."""
    return min(one, other) if one and other else one or other


def spent_today(rows: Sequence[UsageRow], standings: Sequence[BudgetStatus]) -> str:
    """What all models took today and what is left under these ceilings, for people; empty when nothing was asked."""
    if not rows:
        return ""
    tokens = sum(row.usage.input_tokens + row.usage.output_tokens for row in rows)
    priced = [row.usd for row in rows if row.usd is not None]
    money = f", ${sum(priced):.2f}{'' if len(priced) == len(rows) else ' and what has no price'}" if priced else ""
    calls = sum(row.calls for row in rows)
    left = "".join(f" Left: {one.left}." for one in standings if one.usd_max or one.tokens_max)
    return f"Today all together: {calls} model call{'s' if calls != 1 else ''}, {tokens:,} tokens{money}.{left}"
