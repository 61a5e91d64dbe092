"""Ceilings of what models may cost: what is reserved before a call, and what stands spent."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec


class Ceilings(msgspec.Struct, frozen=True):
    """The bounds of [budget], in US dollars and tokens; 0 is none. Days are UTC. `unpriced` is refuse or allow."""

    usd_per_turn: float = 0.0
    usd_per_thread_day: float = 0.0
    usd_per_user_day: float = 0.0
    usd_per_agent_day: float = 0.0
    usd_per_day: float = 0.0
    usd_total: float = 0.0
    tokens_per_turn: int = 0
    tokens_per_thread_day: int = 0
    tokens_per_user_day: int = 0
    tokens_per_agent_day: int = 0
    tokens_per_day: int = 0
    tokens_total: int = 0
    unpriced: str = "refuse"


class Ceiling(msgspec.Struct, frozen=True, order=True):
    """A bound that a call counts against: `scope` is e.g. `user:fake:ada`, `day` is empty where none ends it."""

    scope: str
    day: str
    usd_max: float = 0.0
    tokens_max: int = 0


class Reservation(msgspec.Struct, frozen=True):
    """What a model call may cost at most. One with the same id replaces it; it lapses at `expires_at`."""

    id: str
    ceilings: tuple[Ceiling, ...]
    usd: float
    tokens: int
    expires_at: datetime


class Standing(msgspec.Struct, frozen=True):
    """How much of a ceiling is spent or reserved."""

    scope: str
    day: str
    usd: float
    tokens: int
    usd_max: float
    tokens_max: int

    @property
    def share(self) -> float:
        """The part of the ceiling that is used, the greater of the two."""
        usd = self.usd / self.usd_max if self.usd_max else 0.0
        return max(usd, self.tokens / self.tokens_max if self.tokens_max else 0.0)

    @property
    def left(self) -> str:
        """What is left, for people."""
        parts: list[str] = []
        if self.usd_max:
            parts.append(f"${max(0.0, self.usd_max - self.usd):.2f} of ${self.usd_max:.2f}")
        if self.tokens_max:
            parts.append(f"{max(0, self.tokens_max - self.tokens):,} of {self.tokens_max:,} tokens")
        return f"{' and '.join(parts)} ({self.what})"

    @property
    def what(self) -> str:
        """Whose ceiling it is, for people."""
        kind = self.scope.partition(":")[0]
        return {"day": "all together today", "total": "in all"}.get(kind, f"this {kind}{' today' if self.day else ''}")


class Reserved(msgspec.Struct, frozen=True):
    """The answer: `blocked` is the ceiling that the call would break; then nothing is reserved."""

    standings: tuple[Standing, ...]
    blocked: Standing | None = None


class Budget(Protocol):
    """What stands spent under the ceilings, over all workers."""

    async def reserve(self, wanted: Reservation) -> Reserved:
        """Set a call's cost aside under all its ceilings, or under none when one would break, in one transaction."""
        ...

    async def release(self, reservation: str) -> None:
        """Give a reservation back, unused; one that does not stand changes nothing."""
        ...

    async def standings(self, keys: Sequence[tuple[str, str]] = ()) -> list[Standing]:
        """Today's ceilings (and the total), or those of these (scope, day)."""
        ...

    async def lift(self) -> str:
        """Hold nothing up for the rest of the day (UTC), which is returned."""
        ...
