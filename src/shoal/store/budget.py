"""Costs of model calls, and budget limits.

Transactions lock budget rows in sorted order to prevent deadlocks.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from shoal.kernel.ids import ThreadId, TurnId, format_ulid
from shoal.kernel.messages import Usage
from shoal.kernel.records import BudgetStatus, Ceiling, Reservation, Reserved, Spend, ThreadUsage, UsageRow
from shoal.store.driver import Script, StorePart, dump, number, query, reader, real, text, writes, writes_at

LAPSED_MAX = 20
NEVER_LIFTED = ("comparison:", "check:")
"""Prefixes of budget scopes whose limits the caller set. Suspending the owner's limits does not affect these scopes."""
NEWEST_MAX = 20_000
BESIDE_TURNS = ("summary:", "probe:", "title:", "snapshot:")
"""Id prefixes of model calls that are not steps of a turn. The rest of the id is a ULID."""

_keys = msgspec.json.Decoder(tuple[tuple[str, str], ...])
BudgetKey = tuple[str, str]
_standing = reader(BudgetStatus)
_LIFTED = {"scope": "budget", "key": "lifted"}


class BudgetStore(StorePart):
    """Amounts spent and reserved under each budget limit. All workers share them."""

    @writes_at
    def reserve(self, at: datetime, wanted: Reservation) -> Script[Reserved]:
        """Reserve a call's cost under all its limits. Reserve nothing if this would exceed one of them.

        First releases any earlier reservation with the same id and up to LAPSED_MAX expired ones.
        """
        own = yield from query("reservation_take", id=wanted.id)
        # twice the lifetime, because the workers' clocks may differ
        latest = wanted.expires_at + (wanted.expires_at - at)
        lapsed = yield from query("reservations_lapsed", now=at, latest=latest, limit=LAPSED_MAX)
        given: dict[BudgetKey, tuple[float, int]] = {}
        for row in (*own, *lapsed):
            for key in _keys.decode(text(row[0])):
                usd, tokens = given.get(key, (0.0, 0))
                given[key] = (usd - real(row[1]), tokens - number(row[2]))
        ceilings = {(ceiling.scope, ceiling.day): ceiling for ceiling in wanted.ceilings}
        standings: list[BudgetStatus] = []
        for key in sorted({*given, *ceilings}):
            usd, tokens = given.get(key, (0.0, 0))
            standing = yield from _add(key, usd, tokens, ceilings.get(key))
            if key in ceilings:
                standings.append(standing)
        is_lifted = self._is_today((yield from query("setting_get", **_LIFTED)))
        blocked = next(
            (
                standing
                for standing in standings
                if (not is_lifted or standing.scope.startswith(NEVER_LIFTED))
                and (
                    0 < standing.usd_max < standing.usd + wanted.usd - 1e-9
                    or 0 < standing.tokens_max < standing.tokens + wanted.tokens
                )
            ),
            None,
        )
        if blocked is not None:
            return Reserved(tuple(standings), blocked)
        after: list[BudgetStatus] = []
        for key in sorted(ceilings):
            standing = yield from _add(key, wanted.usd, wanted.tokens)
            after.append(standing)
        row = {"id": wanted.id, "keys": dump(sorted(ceilings)), "usd": wanted.usd, "tokens": wanted.tokens}
        yield from query("reservation_insert", **row, expires_at=wanted.expires_at)
        return Reserved(tuple(after))

    @writes
    def release(self, reservation: str) -> Script[None]:
        return _replace_reservation(reservation, 0.0, 0)

    async def standings(self, keys: Sequence[BudgetKey] = ()) -> list[BudgetStatus]:
        """Return the amounts under today's limits and the total limit. `keys` restricts the result to these scopes and
        days.
        """
        standings = [
            _standing(row) for row in await self._read("budget_all", day=self._clock.local().date().isoformat())
        ]
        return [standing for standing in standings if not keys or (standing.scope, standing.day) in keys]

    async def lift(self) -> str:
        """Suspend the owner's budget limits for the rest of the day. Return the day as an ISO date."""
        today = self._clock.local().date().isoformat()
        await self._write("setting_put", **_LIFTED, value=today)
        return today

    async def is_lifted(self) -> bool:
        """Return True if the owner's budget limits are suspended today."""
        return self._is_today(await self._read("setting_get", **_LIFTED))

    def _is_today(self, lifted: Sequence[Sequence[object]]) -> bool:
        return bool(lifted) and lifted[0][0] == self._clock.local().date().isoformat()


class Ledger(StorePart):
    @writes_at
    def record(self, at: datetime, thread: ThreadId, turn: TurnId, spent: Spend) -> Script[None]:
        """Record the cost of a call outside a turn or of a call whose response was cut off.

        The cost replaces the call's reservation.
        """
        return spend(thread, turn, spent, at)

    async def usage(self, days: int = 30) -> list[UsageRow]:
        """Return usage by day, agent and model for the last `days` days including today, newest first.

        `usd` is None if none of the calls had a known price.
        """
        since = (self._clock.local().date() - timedelta(days=days - 1)).isoformat()
        rows: list[UsageRow] = []
        for day, agent, model, calls, *used, usd, priced in await self._read("spend_by_day", since=since):
            sums = number(calls), Usage(*map(number, used)), real(usd) if number(priced) else None
            rows.append(UsageRow(text(day), text(agent), text(model), *sums))
        return rows

    async def by_thread(self, days: int = 30) -> list[ThreadUsage]:
        """Return usage by thread for the last `days` days, most expensive first.

        Reads at most NEWEST_MAX calls of each kind: turn steps, summaries, checks of summaries, titles and snapshots.
        """
        begin = int((self._clock.now() - timedelta(days=days)).timestamp() * 1000)
        low = format_ulid(begin, bytes(10))
        sums: dict[str, list[float]] = {}
        for kind in ("", *BESIDE_TURNS):
            high = f"{kind.removesuffix(':')};" if kind else ":"
            for row in await self._read("spend_newest", low=f"{kind}{low}", high=high, limit=NEWEST_MAX):
                sums_of_key = sums.setdefault(text(row[0]), [0, 0, 0, 0, 0, 0.0])
                priced, usd = (0, 0.0) if row[4] is None else (1, real(row[4]))
                used = (1, number(row[1]) + number(row[2]), number(row[3]), number(row[5]), priced, usd)
                sums_of_key[:] = [before + more for before, more in zip(sums_of_key, used, strict=True)]
        rows_found = [
            ThreadUsage(ThreadId(thread), int(calls), int(tokens), int(cached), usd if priced else None, int(estimated))
            for thread, (calls, tokens, cached, estimated, priced, usd) in sums.items()
        ]
        return sorted(rows_found, key=lambda row_found: (row_found.usd or 0.0, row_found.tokens), reverse=True)


def spend(thread: ThreadId, turn: TurnId, spent: Spend, at: datetime) -> Script[None]:
    """Record a model call's usage, once per id. The cost replaces the call's reservation."""
    usage = spent.usage
    call = {"day": spent.day or at.date().isoformat(), "agent": spent.agent, "model": spent.model, "usd": spent.usd}
    call |= msgspec.structs.asdict(usage)
    where = {"id": spent.id, "thread": thread, "turn": turn, "user_id": spent.user, "now": at}
    is_new = yield from query("spend_insert", **where, **call)
    if is_new:
        yield from query("spend_add", **call)
    if spent.reservation:
        tokens = usage.input_tokens + usage.output_tokens
        yield from _replace_reservation(spent.reservation, spent.usd or 0.0, tokens, spent.ceilings if is_new else ())


def _replace_reservation(reservation: str, usd: float, tokens: int, ceilings: Sequence[Ceiling] = ()) -> Script[None]:
    """Replace a call's reservation with the actual cost.

    If the reservation has expired, add the cost to the limits in `ceilings`.
    """
    rows = yield from query("reservation_take", id=reservation)
    for ceiling in () if rows else sorted(ceilings):
        yield from _add((ceiling.scope, ceiling.day), usd, tokens, ceiling)
    for row in rows:
        for key in sorted(_keys.decode(text(row[0]))):
            yield from _add(key, usd - real(row[1]), tokens - number(row[2]))


def _add(key: BudgetKey, usd: float, tokens: int, ceiling: Ceiling | None = None) -> Script[BudgetStatus]:
    """Add amounts to a limit's row, creating the row if needed. The row stays locked until the transaction ends."""
    rows = yield from query(
        "budget_add",
        scope=key[0],
        day=key[1],
        usd=usd,
        tokens=tokens,
        usd_max=ceiling and ceiling.usd_max,
        tokens_max=ceiling and ceiling.tokens_max,
    )
    return _standing(rows[0])
