"""What model calls may cost: set aside before a call, settled with it, and a friendly stop at the ceiling."""

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from shoal.domain.budget import Ceiling, Ceilings, Reservation, Standing
from shoal.domain.clock import Clock
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.messages import ModelRequest, Usage
from shoal.domain.permissions import Asker
from shoal.domain.ports import Models, Route
from shoal.domain.records import NewPost
from shoal.domain.store import Budget
from shoal.turn.session import METER, Session

log = logging.getLogger(__name__)

NOTE_SHARE = 0.8
STANDS_SECONDS = 7200.0
"""How long a reservation stands that nobody settles (its worker died, the turn was stopped)."""
NOTED_MAX = 10_000

STOPPED = (
    "I stopped: the budget does not allow another model call. {why} The owner can lift it for today with "
    "`shoal usage lift`, or raise it under [budget] in the configuration."
)
UNPRICED = "The price of {model} is unknown, and budget.unpriced refuses such models while a ceiling in dollars is set."
NOTE = "A note on the budget: {left} is left."


class Spending:
    """Guards model calls. Without any ceiling it does nothing and writes nothing."""

    def __init__(
        self,
        budget: Budget,
        models: Models,
        clock: Clock,
        ceilings: Ceilings,
        post: Callable[[NewPost], Awaitable[None]],
    ) -> None:
        self._budget = budget
        self._models = models
        self._clock = clock
        self._ceilings = ceilings
        self._post = post
        self._noted: set[str] = set()

    async def reserve(self, session: Session, route: Route, request: ModelRequest, factor: float) -> str:
        """Set the call's greatest cost aside; returns why it may not be made, empty when it may."""
        bounds = self._bounds(session.turn, session.thread, session.who.name, session.asker)
        if not bounds:
            return ""
        units = METER.prefix(request.system, request.tools) + sum(METER.message(one) for one in request.messages)
        usage = Usage(round(units * factor), request.max_output_tokens)
        usd = self._models.usd(route, usage)
        if usd is None and self._ceilings.unpriced == "refuse" and any(bound.usd_max for bound in bounds):
            return STOPPED.format(why=UNPRICED.format(model=route.model))
        expires_at = self._clock.now() + timedelta(seconds=STANDS_SECONDS)
        tokens = usage.input_tokens + usage.output_tokens
        found = await self._budget.reserve(Reservation(_id(session), bounds, usd or 0.0, tokens, expires_at))
        if found.blocked is not None:
            log.warning("a budget is used up", extra={"thread_id": session.thread, "scope": found.blocked.scope})
            return STOPPED.format(why=f"Left is {found.blocked.left}.")
        await self._note(session.thread, found.standings)
        return ""

    def reservation(self, session: Session) -> str:
        """The id under which the next call's cost is set aside; empty without ceilings."""
        return _id(session) if self._bounds(session.turn, session.thread, session.who.name, session.asker) else ""

    async def release(self, session: Session) -> None:
        """Give back what was set aside for a call that failed."""
        if self.reservation(session):
            await self._budget.release(_id(session))

    async def left(self, thread: ThreadId, agent: str, asker: Asker) -> str:
        """What is left where little is, for the model; empty while there is enough."""
        bounds = self._bounds(TurnId(""), thread, agent, asker)
        if not bounds:
            return ""
        found = await self._budget.standings([(bound.scope, bound.day) for bound in bounds])
        scarce = [one for one in found if one.share >= NOTE_SHARE]
        return max(scarce, key=lambda one: one.share).left if scarce else ""

    async def _note(self, thread: ThreadId, standings: tuple[Standing, ...]) -> None:
        for one in standings:
            key = f"budget:{one.scope}:{one.day}"
            if one.share < NOTE_SHARE or key in self._noted or one.scope.startswith("turn:"):
                continue
            if len(self._noted) >= NOTED_MAX:
                self._noted.clear()
            self._noted.add(key)
            await self._post(NewPost(key, thread, NOTE.format(left=one.left)))

    def _bounds(self, turn: TurnId, thread: ThreadId, agent: str, asker: Asker) -> tuple[Ceiling, ...]:
        wanted = self._ceilings
        today = self._clock.now().date().isoformat()
        person = f"{thread.split(':', 1)[0]}:{asker.user}"
        found = (
            Ceiling(f"turn:{turn}", "", wanted.usd_per_turn, wanted.tokens_per_turn),
            Ceiling(f"thread:{thread}", today, wanted.usd_per_thread_day, wanted.tokens_per_thread_day),
            Ceiling(f"user:{person}", today, wanted.usd_per_user_day, wanted.tokens_per_user_day),
            Ceiling(f"agent:{agent}", today, wanted.usd_per_agent_day, wanted.tokens_per_agent_day),
            Ceiling("day", today, wanted.usd_per_day, wanted.tokens_per_day),
            Ceiling("total", "", wanted.usd_total, wanted.tokens_total),
        )
        return tuple(bound for bound in found if bound.usd_max or bound.tokens_max)


def _id(session: Session) -> str:
    return f"{session.turn}:{session.open.steps + 1}"
