"""Transactions of triggers, and the effect of a turn's end on the trigger that started it.

the turn         a one-time trigger                                   a recurring trigger
--------------   --------------------------------------------------   ---------------------------------------------
succeeded        is done                                              its failure count is reset
failed           fires again after each delay in RETRY_SECONDS, then  fires at its next time; after FAILURES_MAX in
                 is switched off with a notice to its thread          a row it is switched off with a notice
was stopped      is done                                              fires at its next time
"""

import logging
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self

import msgspec

from shoal.features.triggers.records import (
    FAILURES_MAX,
    RETRY_SECONDS,
    NewTrigger,
    Occurrence,
    Trigger,
    switched_off,
)
from shoal.kernel.clock import Clock, to_micros
from shoal.kernel.events import TurnFinished
from shoal.kernel.ids import ThreadId
from shoal.kernel.records import NewPost
from shoal.store.appends import put_post
from shoal.store.causes import Cause
from shoal.store.driver import Script, StorePart, dump, moment, query, readable, reader, text, writes, writes_at
from shoal.store.retention import Walk
from shoal.store.store import Store

if TYPE_CHECKING:
    from shoal.services import Services

log = logging.getLogger(__name__)

_trigger = reader(Trigger, spec=msgspec.json.Decoder(NewTrigger).decode)


def key_of(trigger: Trigger, due_at: datetime) -> str:
    return f"{trigger.id}@{to_micros(due_at)}"


WALKS = (Walk("occurrences", ("",), False), Walk("triggers", ("",), True))
"""Bookkeeping jobs that delete old rows: all occurrences, and triggers that have posted their message and will not fire
again.
"""


class TriggerStore(StorePart, Cause):
    """Database access for triggers and their occurrences."""

    @classmethod
    def of(cls, services: "Services") -> Self:
        return cls(services[Store].driver, services[Clock])

    @writes_at
    def add(self, at: datetime, spec: NewTrigger, next_at: datetime, *, rests: bool = False) -> Script[Trigger]:
        """Store a trigger. With `rests`, the trigger is paused and fires only after it is resumed."""
        identity = self._clock.new_id()
        yield from query("trigger_insert", id=identity, spec=dump(spec), next_at=next_at, now=at)
        if rests:
            yield from query("trigger_pause", id=identity)
            return Trigger(identity, spec, "paused", next_at, at)
        yield from query("due", what="triggers")
        return Trigger(identity, spec, "active", next_at, at)

    async def all(self) -> list[Trigger]:
        """Return all triggers, next due first. Skips unreadable rows."""
        return readable(_trigger, await self._read("triggers_all"))

    @writes
    def remove(self, trigger: str) -> Script[bool]:
        """Delete a trigger and withdraw its waiting post. Return False if the trigger does not exist."""
        yield from query("trigger_hush", id=trigger)
        return bool((yield from query("trigger_delete", id=trigger)))

    async def next_due_at(self) -> datetime | None:
        return moment((await self._read("triggers_next"))[0][0])

    async def due(self, limit: int = 100) -> list[Trigger]:
        """Return the triggers that are due. Switches off triggers with unreadable rows."""
        rows = await self._read("triggers_due", now=self._clock.now(), limit=limit)
        triggers = readable(_trigger, rows)
        for id in {text(row[0]) for row in rows} - {trigger.id for trigger in triggers}:
            await self._write("trigger_settle", id=id, error="The stored trigger is unreadable.", disable=True)
            log.error("unreadable trigger switched off", extra={"trigger": id})
        return triggers

    @writes_at
    def claim(
        self, at: datetime, trigger: Trigger, next_at: datetime | None, *, missed: bool = False
    ) -> Script[Occurrence | None]:
        """Advance a trigger to `next_at` and claim its due occurrence, once across all workers.

        With `missed`, record the occurrence as missed instead. Return None if another worker claimed it.
        """
        if trigger.next_at is None:
            return None
        due_at = trigger.next_at
        occurrence = Occurrence(trigger, due_at, key_of(trigger, due_at))
        ended, state = ("missed", "missed") if missed else ("done", "claimed")
        if not (yield from query("trigger_advance", id=trigger.id, due_at=due_at, ended=ended, next_at=next_at)):
            return None
        row = {"key": occurrence.key, "trigger": trigger.id, "due_at": due_at, "state": state, "now": at}
        return occurrence if (yield from query("occurrence_insert", **row)) else None

    async def was_missed(self, key: str) -> bool:
        return bool(await self._read("occurrence_missed", key=key))

    async def sooner(self, trigger: Trigger, next_at: datetime) -> None:
        """Set an earlier `next_at`, unless another worker has changed it."""
        await self._write("trigger_sooner", id=trigger.id, next_at=next_at, before=trigger.next_at)

    async def again(self, trigger: Trigger, next_at: datetime, *, error: str = "") -> None:
        """Schedule a claimed or missed one-time trigger to fire again, unless it was removed."""
        await self._write("trigger_again", id=trigger.id, next_at=next_at, error=error)

    async def record_outcome(self, trigger: Trigger, *, error: str = "", disable: bool = False) -> None:
        await self._write("trigger_settle", id=trigger.id, error=error, disable=disable)

    async def pause(self, trigger: str) -> bool:
        """Pause a trigger. Return False if it is not active."""
        return bool(await self._write("trigger_pause", id=trigger))

    @writes
    def resume(self, trigger: str, next_at: datetime) -> Script[bool]:
        """Resume a trigger that was paused or switched off, and reset its failures. Return False if it is in another
        state.
        """
        rows = yield from query("trigger_resume", id=trigger, next_at=next_at)
        yield from query("due", what="triggers")
        return bool(rows)

    def turn_ended(self, id: str, thread: ThreadId, finished: TurnFinished, at: datetime) -> Script[None]:
        """Reset a trigger's failures after a successful turn. After a failed turn, schedule a retry or switch the
        trigger off.
        """
        if finished.outcome in ("done", "limit"):
            yield from query("trigger_answered", id=id)
            return
        rows = yield from query("trigger_one", id=id)
        if finished.outcome != "failed" or not rows:
            return
        trigger = _trigger(rows[0])
        once, count = trigger.spec.kind == "one-shot", trigger.failures + 1
        is_over = count > len(RETRY_SECONDS) if once else count >= FAILURES_MAX
        again = at + timedelta(seconds=RETRY_SECONDS[trigger.failures]) if once and not is_over else trigger.next_at
        state = "failed" if is_over else "active" if once else trigger.state
        yield from query("trigger_failed", id=id, error=finished.reply, next_at=again, state=state)
        yield from query("due", what="triggers")
        if is_over:
            notice = NewPost(f"trigger:{id}:{to_micros(at)}", thread, switched_off(trigger, finished.reply))
            yield from put_post(notice, at)

    def opening_failed(self, id: str, error: str, *, for_good: bool) -> Script[None]:
        yield from query("trigger_settle", id=id, error=error, disable=for_good)
