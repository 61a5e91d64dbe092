"""Reserve the cost of each model call, settle it after the call, and stop the turn at a budget limit.

model call                                what is recorded and settled
---------------------------------------   -----------------------------------------------------------------
answered                                  the usage that the provider reports, in the transaction of the
                                          answer's event. Estimates replace missing or impossible numbers.
failed before any output                  nothing. The reservation is released.
cut off: stopped, timed out or dropped    an estimate of the complete request and of the part of the answer
                                          that arrived
outside turns: a summary, a description   the same, in a separate transaction
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import anyio
import msgspec

from shoal.kernel.agents import AgentBudget
from shoal.kernel.clock import Clock
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import (
    AssistantMessage,
    ModelDone,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from shoal.kernel.permissions import Asker, Audience
from shoal.kernel.phrases import counted
from shoal.kernel.ports import Models, Route
from shoal.kernel.records import BudgetStatus, Ceiling, NewPost, Reservation, Reserved, Spend, UsageRow
from shoal.kernel.settings import BudgetSettings
from shoal.permissions.access import People
from shoal.store.store import Store
from shoal.turn.run import TurnRun
from shoal.turn.tokens import ROUGHLY, Gauge

log = logging.getLogger(__name__)

NOTE_SHARE = 0.8
STANDS_SECONDS = 7200.0
"""Seconds after which a reservation expires if it is not settled, for example because its worker died."""
NOTED_MAX = 10_000

STOPPED = (
    "I stopped: the budget does not allow another model call.{why} The owner can suspend the limits for today with "
    "`shoal usage lift`, or raise them under [budget] in the configuration."
)
UNPRICED_STOPPED = "I cannot answer. {why}"
OWN_STOPPED = "The next call could cost more than the remaining budget: {left}. Raise the limit to continue."
UNPRICED = (
    "The price of {model} is unknown, so Shoal cannot enforce a limit in dollars. Set providers.{provider}.price, in "
    'US dollars per million tokens (0 if it is free), or budget.unpriced = "allow".'
)
NOTE = "The budget is running low: {left} is left."


class Charge(msgspec.Struct, frozen=True):
    """A model call, and the person, agent and threads whose budgets it uses.

    A call outside conversations has no thread and may have its own limit.
    """

    id: str
    model: str
    """Model name that is recorded in the ledger."""
    thread: ThreadId
    turn: TurnId
    """Turn that makes the call. Empty outside turns."""
    agent: str
    asker: Asker
    """Person for whom the call is made. If the person's `user` is empty, no per-person limit applies."""
    line: tuple[tuple[ThreadId, TurnId], ...] = ()
    """Chain of the turns that led to a subagent's turn, from the root turn to the direct caller."""
    audience: Audience = Audience()
    """Readers of the conversation, who determine whether the remaining budget may be shown."""
    ceiling: Ceiling | None = None

    @property
    def chat(self) -> ThreadId:
        return self.line[0][0] if self.line else self.thread


def charge_of(run: TurnRun, model: str, id: str = "") -> Charge:
    """Return the charge of the open turn's next step. For a call outside the steps or after the turn, pass an `id`."""
    view, scope = run.view, run.scope
    turn = view.turn if view.state is not None else TurnId("")
    line = scope.caller.line if scope.caller is not None else ()
    id = id or f"{turn}:{view.open.steps + 1}"
    return Charge(id, model, view.thread, turn, scope.agent.name, scope.asker, line, scope.audience)


NO_BUDGET = AgentBudget()
Bound = TypeVar("Bound", int, float)


class Spending(msgspec.Struct, frozen=True, eq=False):
    """Enforces budgets and records model calls. Reserves nothing if no limit is set.

    `own` returns an agent's own budget. `noted` contains the limits that were already reported as running low.
    """

    store: Store
    models: Models
    clock: Clock
    ceilings: BudgetSettings
    post: Callable[[NewPost], Awaitable[None]]
    own: Callable[[str], AgentBudget]
    people: People
    noted: set[str] = msgspec.field(default_factory=set[str])

    async def reserve(self, charge: Charge, route: Route, request: ModelRequest, gauge: Gauge) -> str:
        """Reserve a call's maximum cost. Return the reason if a limit blocks the call, otherwise an empty string."""
        if not self._ceilings_of(charge):
            return ""
        usage = Usage(gauge.request(request), request.max_output_tokens)
        return await self.set_aside(charge, self.models.usd(route, usage), usage.input_tokens + usage.output_tokens)

    async def set_aside(self, charge: Charge, usd: float | None, tokens: int) -> str:
        """Reserve the given cost of a call, as `reserve` does. `usd` is None if the price is unknown."""
        ceilings = self._ceilings_of(charge)
        if not ceilings:
            return ""
        if usd is None and self.ceilings.unpriced == "refuse" and any(ceiling.usd_max for ceiling in ceilings):
            provider = charge.model.partition("/")[0] if "/" in charge.model else "NAME"
            return UNPRICED_STOPPED.format(why=UNPRICED.format(model=charge.model, provider=provider))
        expires_at = self.clock.now() + timedelta(seconds=STANDS_SECONDS)
        reserved = Reserved(())
        # Shielded: a cancellation then takes effect in the model call, which settles the reservation.
        with anyio.CancelScope(shield=True):
            reserved = await self.store.budget.reserve(Reservation(charge.id, ceilings, usd or 0.0, tokens, expires_at))
            for standing in reserved.standings if reserved.blocked is None and charge.thread else ():
                key = f"budget:{standing.scope}:{standing.day}"
                if standing.share < NOTE_SHARE or key in self.noted or standing.scope.startswith("turn:"):
                    continue
                if not may_know(charge.audience, standing.scope):
                    continue
                if len(self.noted) >= NOTED_MAX:
                    self.noted.clear()
                self.noted.add(key)
                await self.post(NewPost(key, charge.chat, NOTE.format(left=standing.left)))
        if reserved.blocked is None:
            return ""
        if charge.ceiling is not None and charge.ceiling.scope == reserved.blocked.scope:
            return OWN_STOPPED.format(left=reserved.blocked.left)
        log.warning("budget used up", extra={"thread_id": charge.thread, "scope": reserved.blocked.scope})
        left = f" Remaining: {reserved.blocked.left}." if may_know(charge.audience, reserved.blocked.scope) else ""
        return STOPPED.format(why=left)

    async def release(self, charge: Charge) -> None:
        if self._ceilings_of(charge):
            with anyio.CancelScope(shield=True):
                await self.store.budget.release(charge.id)

    async def record(self, charge: Charge, usage: Usage, usd: float | None) -> None:
        """Record a call that is not part of a turn, once per id, and settle its reservation."""
        with anyio.CancelScope(shield=True):
            await self.store.ledger.record(charge.thread, charge.turn, self.spend(charge, usage, usd))

    def spend(self, charge: Charge, usage: Usage, usd: float | None) -> Spend:
        """Build the ledger record of a call. Storing the record settles the call's reservation."""
        ceilings = self._ceilings_of(charge)
        reservation, user = charge.id if ceilings else "", charge.asker.user
        return Spend(
            charge.id, charge.agent, user, charge.model, usage, usd, reservation, ceilings,
            day=self.clock.local().date().isoformat(),
        )  # fmt: skip

    async def stream(
        self,
        charge: Charge,
        route: Route,
        request: ModelRequest,
        gauge: Gauge,
        see: Callable[[ModelEvent], None] = lambda event: None,
    ) -> tuple[ModelDone | ModelFailed, bool]:
        """Run a reserved call and pass each event to `see`.

        Returns the last event, and True if the response was cut off and is already recorded. If cancelled, records
        the part that arrived.
        """
        outcome: ModelDone | ModelFailed = ModelFailed("dropped", "The stream ended without an answer.")
        written, ended = list[str](), False
        try:
            async for event in route.provider.stream(request):
                if isinstance(event, TextDelta | ThinkingDelta):
                    written.append(event.text)
                elif isinstance(event, ModelDone):  # Never trust the numbers that a server reports.
                    outcome = msgspec.structs.replace(event, usage=plausible_usage(event, request, gauge))
                else:
                    outcome = event
                see(event)
            ended = True
        finally:
            was_cut_off = not ended or (isinstance(outcome, ModelFailed) and any(written))
            if was_cut_off:
                usage = Usage(gauge.request(request), round(sum(map(gauge.text, written))), estimated=1)
                spent = self.spend(charge, usage, self.models.usd(route, usage))
                spent = msgspec.structs.replace(spent, id=f"{charge.id}:cut:{self.clock.new_id()}")
                with anyio.CancelScope(shield=True):
                    await self.store.ledger.record(charge.thread, charge.turn, spent)
        return outcome, was_cut_off

    async def ask(
        self, charge: Charge, route: Route, request: ModelRequest, gauge: Gauge = ROUGHLY
    ) -> ModelDone | ModelFailed:
        """Make a call outside the turn's steps, and record its cost. Returns ModelFailed if a limit is reached."""
        refused = await self.reserve(charge, route, request, gauge)
        if refused:
            return ModelFailed("quota", refused)
        return await self.reserved(charge, route, request, gauge)

    async def reserved(
        self, charge: Charge, route: Route, request: ModelRequest, gauge: Gauge
    ) -> ModelDone | ModelFailed:
        """Run a call whose cost is already reserved. Record its cost, or release the reservation."""
        outcome, was_cut_off = await self.stream(charge, route, request, gauge)
        if isinstance(outcome, ModelDone):
            await self.record(charge, outcome.usage, self.models.usd(route, outcome.usage))
        elif not was_cut_off:
            await self.release(charge)
        return outcome

    async def left(self, thread: ThreadId, agent: str, asker: Asker, audience: Audience) -> str:
        """Describe the remaining budget for the prompt. Returns an empty string if enough is left or the audience may
        not see it.
        """
        here = Charge("", "", thread, TurnId(""), agent, asker)
        bounds = [ceiling for ceiling in self._ceilings_of(here) if may_know(audience, ceiling.scope)]
        if not bounds:
            return ""
        standings = await self.store.budget.standings([(bound.scope, bound.day) for bound in bounds])
        scarce = [standing for standing in standings if standing.share >= NOTE_SHARE]
        return max(scarce, key=lambda standing: standing.share).left if scarce else ""

    def _ceilings_of(self, charge: Charge) -> tuple[Ceiling, ...]:
        """Return all limits that apply to the call.

        They include the limits of the call's turn and thread, of its callers' turns and threads, of the person, the
        agent and the day, and the total limit. The stricter of the agent's own budget and the shared limit applies. A
        person's own limit replaces the shared limit.
        """
        set_to, own, day = self.ceilings, self.own(charge.agent), self.clock.local().date().isoformat()
        person = self.people.find(charge.asker.identities[0])
        user = f"user:{charge.asker.identities[0]}" if charge.asker.user else ""
        ceilings: list[tuple[str, str, float, int]] = []
        for thread, turn in ((charge.thread, charge.turn), *charge.line):
            of_turn = own if turn == charge.turn else NO_BUDGET
            usd, tokens = set_to.usd_per_turn, set_to.tokens_per_turn
            usd, tokens = _stricter(usd, of_turn.usd_per_turn), _stricter(tokens, of_turn.tokens_per_turn)
            ceilings.append((f"turn:{turn}" if turn else "", "", usd, tokens))
            scope = f"thread:{thread}" if thread else ""
            ceilings.append((scope, day, set_to.usd_per_thread_day, set_to.tokens_per_thread_day))
        usd = _stricter(set_to.usd_per_agent_day, own.usd_per_day)
        tokens = _stricter(set_to.tokens_per_agent_day, own.tokens_per_day)
        usd_of_user, tokens_of_user = set_to.usd_per_user_day, set_to.tokens_per_user_day
        if is_unlisted(charge.asker) and not person.name:
            usd_of_user = _stricter(usd_of_user, set_to.usd_per_stranger_day)
            tokens_of_user = _stricter(tokens_of_user, set_to.tokens_per_stranger_day)
            ceilings.append(("strangers", day, set_to.usd_strangers_per_day, set_to.tokens_strangers_per_day))
        ceilings += [
            (user, day, person.usd_per_day or usd_of_user, person.tokens_per_day or tokens_of_user),
            (f"agent:{charge.agent}", day, usd, tokens),
            ("day", day, set_to.usd_per_day, set_to.tokens_per_day),
            ("total", "", set_to.usd_total, set_to.tokens_total),
        ]
        if (of_call := charge.ceiling) is not None:
            ceilings.append((of_call.scope, of_call.day, of_call.usd_max, of_call.tokens_max))
        return tuple(dict.fromkeys(Ceiling(*row) for row in ceilings if row[0] and (row[2] or row[3])))


def is_unlisted(asker: Asker) -> bool:
    """Return True if only `*` admits this person: no list names them, and they have no token."""
    return bool(asker.user) and asker.trust == "untrusted" and not asker.token


LOW_SHARE = 1 / 3
"""Share of the estimated tokens below which a usage report is implausible. Real text rarely falls so far below the
estimate.
"""
LOW_TOKENS_MIN = 200
"""Estimated tokens up to which any report is accepted, because small estimates are too inexact."""
WINDOW_TOKENS_MAX = 10_000_000
"""Maximum plausible number of tokens in one call."""


def plausible_usage(done: ModelDone, request: ModelRequest, gauge: Gauge) -> Usage:
    """Return the usage that the provider reports. Estimates replace missing and impossible numbers."""
    usage, message, gauge = done.usage.bounded(), done.message, gauge.cautious()
    answer = (message.text, done.thinking, *(f"{call.name}{call.arguments}" for call in message.tool_calls))
    input_tokens, output_tokens = usage.input_tokens, usage.output_tokens
    if usage.reasoning_tokens > output_tokens:  # Some providers do not include thinking in the output tokens.
        output_tokens += usage.reasoning_tokens
    cached, written, estimated = usage.cached_tokens, usage.cache_write_tokens, 0
    if not _is_plausible(input_tokens, _sent_chars(request)):
        input_tokens, cached, written, estimated = gauge.request(request), 0, 0, 1
    if not _is_plausible(output_tokens, sum(map(len, answer))):
        output_tokens, estimated = round(sum(map(gauge.text, answer))), 1
    return Usage(
        input_tokens,
        output_tokens,
        min(cached, input_tokens),
        min(written, input_tokens),
        min(usage.reasoning_tokens, output_tokens),
        estimated,
    )


def _is_plausible(tokens: int, chars: int) -> bool:
    expected = chars / 4
    is_low = tokens == 0 < chars or (expected > LOW_TOKENS_MIN and tokens < LOW_SHARE * expected)
    return not is_low and tokens <= WINDOW_TOKENS_MAX


def _sent_chars(request: ModelRequest) -> int:
    tools = sum(len(tool.description) + len(tool.parameters) for tool in request.tools)
    return len(request.system) + tools + sum(map(_chars, request.messages))


def _chars(message: ModelMessage) -> int:
    if isinstance(message, AssistantMessage):
        return len(message.text) + sum(len(call.arguments) for call in message.tool_calls)
    return len(message.text)


def may_know(audience: Audience, scope: str) -> bool:
    """Return True if this audience may know how much of a limit is used.

    If untrusted people can read the conversation, the audience may know only the conversation's own limits. Other
    limits reveal other activity.
    """
    return not audience.guest or scope.startswith(("turn:", "thread:"))


def _stricter(bound: Bound, other: Bound) -> Bound:
    """Return the stricter of two limits, where 0 means unlimited."""
    return min(bound, other) if bound and other else bound or other


def spent_today(rows: Sequence[UsageRow], standings: Sequence[BudgetStatus]) -> str:
    if not rows:
        return ""
    tokens = sum(row.usage.input_tokens + row.usage.output_tokens for row in rows)
    priced = [row.usd for row in rows if row.usd is not None]
    money = (
        f", ${sum(priced):.2f}{'' if len(priced) == len(rows) else ' plus calls without a known price'}"
        if priced
        else ""
    )
    calls = sum(row.calls for row in rows)
    left = "".join(f" Left: {standing.left}." for standing in standings if standing.usd_max or standing.tokens_max)
    return f"Today, in all conversations: {counted(calls, 'model call')}, {counted(tokens, 'token')}{money}.{left}"
