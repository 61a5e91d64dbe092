"""The store's view of what starts turns by the clock."""

from datetime import datetime
from typing import Protocol

from shoal.domain.records import NewTrigger, Occurrence, Trigger

RETRY_SECONDS = (30.0, 120.0, 600.0)
"""Pauses after which what a trigger wanted is tried again."""
FAILURES_MAX = 5
"""Failures in a row after which a trigger that comes again and again is switched off."""


def title(trigger: Trigger) -> str:
    """How a trigger is called: its name, else the end of its id."""
    return trigger.spec.name or trigger.id[-6:]


def switched_off(trigger: Trigger, problem: str) -> str:
    """What is said of a trigger that has failed for good."""
    return f"The trigger {title(trigger)} was switched off, since it failed: {problem}"


class Triggers(Protocol):
    """What starts turns by the clock."""

    async def add(self, spec: NewTrigger, next_at: datetime) -> Trigger:
        """Store a trigger."""
        ...

    async def all(self) -> list[Trigger]:
        """All of them, the next due first."""
        ...

    async def remove(self, trigger: str) -> bool:
        """Delete it, and give up its post that still waits to open a thread; False when there is none."""
        ...

    async def next_due_at(self) -> datetime | None:
        """When the next one is due."""
        ...

    async def due(self, limit: int = 100) -> list[Trigger]:
        """Active triggers whose time has come."""
        ...

    async def claim(self, trigger: Trigger, next_at: datetime | None, *, missed: bool = False) -> Occurrence | None:
        """Advance it to `next_at` and take the occurrence that was due, once over all workers; None when another did.

        `missed` records it as missed instead."""
        ...

    async def settle(self, trigger: Trigger, *, error: str = "", disable: bool = False) -> None:
        """Note how the occurrence went."""
        ...

    async def pause(self, trigger: str) -> bool:
        """Let it rest until it is resumed; False when it is not active."""
        ...

    async def resume(self, trigger: str, next_at: datetime) -> bool:
        """Let one that rests or was switched off come again, its failures forgotten; False for any other."""
        ...
