"""What models cost, and what stands under the ceilings of that.

Rows are locked in one order everywhere, so that workers never wait for each other.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from shoal.kernel.ids import ThreadId, TurnId, format_ulid
from shoal.kernel.messages import Usage
from shoal.kernel.records import BudgetStatus, Ceiling, Reservation, Reserved, Spend, ThreadUsage, UsageRow
from shoal.store.driver import Script, StorePart, dump, number, query, reader, real, text, writes, writes_at

LAPSED_MAX = 20
"""How many lapsed reservations one call gives back."""
NEVER_LIFTED = ("comparison:", "check:")
"""Scopes whose ceilings whoever asked has named themselves: lifting the owner's lifts none of these."""
NEWEST_MAX = 20_000
"""How many calls are summed by thread at most."""
BESIDE_TURNS = ("summary:", "title:", "snapshot:")
"""What ids of calls beside a turn's steps begin with; a ULID follows."""

_keys = msgspec.json.Decoder(tuple[tuple[str, str], ...])
BudgetKey = tuple[str, str]
_standing = reader(BudgetStatus)


class BudgetStore(StorePart):
    """What stands spent under the ceilings, over all workers."""

    @writes_at
    def reserve(self, at: datetime, wanted: Reservation) -> Script[Reserved]:
        """Set a call's cost aside under all its ceilings, or under none when one would break, in one transaction."""
        own = yield from query("reservation_take", id=wanted.id)
        latest = wanted.expires_at + (wanted.expires_at - at)  # clocks of machines differ by less
        lapsed = yield from query("reservations_lapsed", now=at, latest=latest, limit=LAPSED_MAX)
        given: dict[BudgetKey, tuple[float, int]] = {}
        for row in (*own, *lapsed):
            for key in _keys.decode(text(row[0])):
                usd, tokens = given.get(key, (0.0, 0))
                given[key] = (usd - real(row[1]), tokens - number(row[2]))
        ceilings = {(one.scope, one.day): one for one in wanted.ceilings}
        standings: list[BudgetStatus] = []
        for key in sorted({*given, *ceilings}):
            usd, tokens = given.get(key, (0.0, 0))
            standing = yield from _add(key, usd, tokens, ceilings.get(key))
            if key in ceilings:
                standings.append(standing)
        lifted = yield from query("setting_get", scope="budget", key="lifted")
        is_lifted = bool(lifted) and lifted[0][0] == self._clock.local().date().isoformat()
        blocked = next(
            (
                one
                for one in standings
                if (not is_lifted or one.scope.startswith(NEVER_LIFTED))
                and (0 < one.usd_max < one.usd + wanted.usd - 1e-9 or 0 < one.tokens_max < one.tokens + wanted.tokens)
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
        """Give a reservation back, unused; one that does not stand changes nothing."""
        return _settle(reservation, 0.0, 0)

    async def standings(self, keys: Sequence[BudgetKey] = ()) -> list[BudgetStatus]:
        """Today's ceilings (and the total), or those of these (scope, day)."""
        found = [_standing(row) for row in await self._read("budget_all", day=self._clock.local().date().isoformat())]
        return [one for one in found if not keys or (one.scope, one.day) in keys]

    async def lift(self) -> str:
        """Hold nothing up for the rest of the day, which is returned."""
        today = self._clock.local().date().isoformat()
        await self._write("setting_put", scope="budget", key="lifted", value=today)
        return today


class Ledger(StorePart):
    """What models cost."""

    @writes_at
    def record(self, at: datetime, thread: ThreadId, turn: TurnId, spent: Spend) -> Script[None]:
        """Record a call by itself and settle its reservation: one of no turn, or one whose answer was cut off."""
        return spend(thread, turn, spent, at)

    async def usage(self, days: int = 30) -> list[UsageRow]:
        """Use of the last `days` days, today among them, by day, agent and model, newest first.

        `usd` is None when no call of the row had a price.
        """
        since = (self._clock.local().date() - timedelta(days=days - 1)).isoformat()
        found: list[UsageRow] = []
        for day, agent, model, calls, *used, usd, priced in await self._read("spend_by_day", since=since):
            sums = number(calls), Usage(*map(number, used)), real(usd) if number(priced) else None
            found.append(UsageRow(text(day), text(agent), text(model), *sums))
        return found

    async def by_thread(self, days: int = 30) -> list[ThreadUsage]:
        """Use of the last `days` days by thread, the dearest first: of at most NEWEST_MAX calls of each kind."""
        begin = int((self._clock.now() - timedelta(days=days)).timestamp() * 1000)
        low = format_ulid(begin, bytes(10))
        sums: dict[str, list[float]] = {}
        for kind in ("", *BESIDE_TURNS):
            high = f"{kind.removesuffix(':')};" if kind else ":"
            for row in await self._read("spend_newest", low=f"{kind}{low}", high=high, limit=NEWEST_MAX):
                one = sums.setdefault(text(row[0]), [0, 0, 0, 0, 0, 0.0])
                priced, usd = (0, 0.0) if row[4] is None else (1, real(row[4]))
                used = (1, number(row[1]) + number(row[2]), number(row[3]), number(row[5]), priced, usd)
                one[:] = [before + more for before, more in zip(one, used, strict=True)]
        found = [
            ThreadUsage(ThreadId(thread), int(calls), int(tokens), int(cached), usd if priced else None, int(estimated))
            for thread, (calls, tokens, cached, estimated, priced, usd) in sums.items()
        ]
        return sorted(found, key=lambda one: (one.usd or 0.0, one.tokens), reverse=True)


def spend(thread: ThreadId, turn: TurnId, spent: Spend, at: datetime) -> Script[None]:
    """Record the use of a model call, once by its id, and settle its reservation."""
    usage = spent.usage
    call = {"day": spent.day or at.date().isoformat(), "agent": spent.agent, "model": spent.model, "usd": spent.usd}
    call |= msgspec.structs.asdict(usage)
    where = {"id": spent.id, "thread": thread, "turn": turn, "user_id": spent.user, "now": at}
    is_new = yield from query("spend_insert", **where, **call)
    if is_new:
        yield from query("spend_add", **call)
    if spent.reservation:
        tokens = usage.input_tokens + usage.output_tokens
        yield from _settle(spent.reservation, spent.usd or 0.0, tokens, spent.ceilings if is_new else ())


def _settle(reservation: str, usd: float, tokens: int, ceilings: Sequence[Ceiling] = ()) -> Script[None]:
    """Put what a call really used in the place of its reservation, or under these if that has lapsed."""
    found = yield from query("reservation_take", id=reservation)
    for one in () if found else sorted(ceilings):
        yield from _add((one.scope, one.day), usd, tokens, one)
    for row in found:
        for key in sorted(_keys.decode(text(row[0]))):
            yield from _add(key, usd - real(row[1]), tokens - number(row[2]))


def _add(key: BudgetKey, usd: float, tokens: int, ceiling: Ceiling | None = None) -> Script[BudgetStatus]:
    """Add to a ceiling's row, making it if it is new; the row stays locked until the transaction ends."""
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
