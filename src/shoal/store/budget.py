"""The budget's transactions: rows are locked in one order everywhere, so that workers never wait for each other."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from shoal.domain.budget import Ceiling, Reservation, Reserved, Standing
from shoal.domain.clock import Clock, to_micros
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.records import Spend
from shoal.store.rows import dump
from shoal.store.script import Driver, Row, Script, number, query, text

LAPSED_MAX = 20
"""How many lapsed reservations one call gives back."""

_keys = msgspec.json.Decoder(tuple[tuple[str, str], ...])
Key = tuple[str, str]


class BudgetView:
    """Implements `domain.store.Budget`."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def reserve(self, wanted: Reservation) -> Reserved:
        """Set the call's cost aside, or say which ceiling it would break."""
        return await self._driver.write(_reserve(wanted, self._clock.now()))

    async def release(self, reservation: str) -> None:
        """Give a reservation back, unused."""
        await self._driver.write(settle(reservation, 0.0, 0))

    async def standings(self, keys: Sequence[Key] = ()) -> list[Standing]:
        """The given ceilings, or all of today and those that no day ends but turns'."""
        rows = await self._driver.read(query("budget_all", day=_today(self._clock)))
        found = [_standing(row) for row in rows]
        return [one for one in found if not keys or (one.scope, one.day) in keys]

    async def lift(self) -> str:
        """Let nothing be held up for the rest of the day (UTC), which is returned."""
        today = _today(self._clock)
        await self._driver.write(query("setting_put", scope="budget", key="lifted", value=today))
        return today


def _today(clock: Clock) -> str:
    return clock.now().date().isoformat()


def _standing(row: Row) -> Standing:
    scope, day, usd, tokens, usd_max, tokens_max = row
    return Standing(
        text(scope), text(day), float(usd or 0.0), number(tokens), float(usd_max or 0.0), number(tokens_max)
    )


def _reserve(wanted: Reservation, at: datetime) -> Script[Reserved]:
    own = yield from query("reservation_take", id=wanted.id)
    lapsed = yield from query("reservations_lapsed", now=to_micros(at), limit=LAPSED_MAX)
    given: dict[Key, tuple[float, int]] = {}
    for row in (*own, *lapsed):
        for key in _keys.decode(text(row[0])):
            usd, tokens = given.get(key, (0.0, 0))
            given[key] = (usd - float(row[1] or 0.0), tokens - number(row[2]))
    ceilings = {(one.scope, one.day): one for one in wanted.ceilings}
    standings: list[Standing] = []
    for key in sorted({*given, *ceilings}):
        usd, tokens = given.get(key, (0.0, 0))
        standing = yield from _locked(key, usd, tokens, ceilings.get(key))
        if key in ceilings:
            standings.append(standing)
    lifted = yield from query("setting_get", scope="budget", key="lifted")
    blocked = next((one for one in standings if _breaks(one, wanted)), None)
    if blocked is not None and not (lifted and lifted[0][0] == at.date().isoformat()):
        return Reserved(tuple(standings), blocked)
    after: dict[Key, Standing] = {}
    for key in sorted(ceilings):
        after[key] = yield from _locked(key, wanted.usd, wanted.tokens, None)
    yield from query(
        "reservation_insert",
        id=wanted.id,
        keys=dump(sorted(ceilings)),
        usd=wanted.usd,
        tokens=wanted.tokens,
        expires_at=to_micros(wanted.expires_at),
    )
    return Reserved(tuple(after.values()))


def _locked(key: Key, usd: float, tokens: int, ceiling: Ceiling | None) -> Script[Standing]:
    """Add to a ceiling's row, making it if it is new; the row stays locked until the transaction ends."""
    rows = yield from query(
        "budget_add",
        scope=key[0],
        day=key[1],
        usd=usd,
        tokens=tokens,
        usd_max=None if ceiling is None else ceiling.usd_max,
        tokens_max=None if ceiling is None else ceiling.tokens_max,
    )
    return _standing(rows[0])


def _breaks(standing: Standing, wanted: Reservation) -> bool:
    too_dear = 0 < standing.usd_max < standing.usd + wanted.usd - 1e-9
    return too_dear or 0 < standing.tokens_max < standing.tokens + wanted.tokens


def settle(reservation: str, usd: float, tokens: int, ceilings: Sequence[Ceiling] = ()) -> Script[None]:
    """Put what a call really used in the place of its reservation, or under these if that has lapsed."""
    found = yield from query("reservation_take", id=reservation)
    for one in () if found else sorted(ceilings):
        yield from _locked((one.scope, one.day), usd, tokens, one)
    for row in found:
        for key in sorted(_keys.decode(text(row[0]))):
            yield from _locked(key, usd - float(row[1] or 0.0), tokens - number(row[2]), None)


def spend(thread: ThreadId, turn: TurnId, spent: Spend, at: datetime) -> Script[None]:
    """Record the use of a model call, once by its id, and settle its reservation."""
    usage = spent.usage
    call = {
        "day": at.date().isoformat(),
        "agent": spent.agent,
        "model": spent.model,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "usd": spent.usd,
    }
    where = {"id": spent.id, "thread": thread, "turn": turn, "user_id": spent.user, "now": to_micros(at)}
    is_new = yield from query("spend_insert", **where, **call)
    if is_new:
        yield from query("spend_add", **call)
    if spent.reservation:
        tokens = usage.input_tokens + usage.output_tokens
        yield from settle(spent.reservation, spent.usd or 0.0, tokens, spent.ceilings if is_new else ())
