"""The triggers' transactions, and what the end of a turn that one has started does to it.

the turn has      a trigger that comes once                            one that comes again and again
---------------   --------------------------------------------------   ---------------------------------------------
been answered     is done                                              starts anew with counting failures
failed            comes again after each of RETRY_SECONDS, then it     comes at its next time; after FAILURES_MAX in
                  has failed, and its thread is told                   a row it has failed, and its thread is told
been stopped      is done                                              comes at its next time
"""

from datetime import datetime, timedelta

from shoal.domain.clock import Clock, to_micros
from shoal.domain.events import TurnFinished
from shoal.domain.ids import ThreadId
from shoal.domain.records import NewPost, NewTrigger, Occurrence, Trigger
from shoal.domain.triggers import FAILURES_MAX, RETRY_SECONDS, switched_off
from shoal.store import rows as convert
from shoal.store.appends import put_post
from shoal.store.script import Driver, Row, Script, query


class TriggersView:
    """Implements `domain.store.Triggers`."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def add(self, spec: NewTrigger, next_at: datetime) -> Trigger:
        """Store a trigger."""
        made = Trigger(self._clock.new_id(), spec, "active", next_at, self._clock.now())
        await self._driver.write(_add_trigger(made, next_at))
        return made

    async def all(self) -> list[Trigger]:
        """All of them, the next due first."""
        return [convert.trigger(row) for row in await self._driver.read(query("triggers_all"))]

    async def remove(self, trigger: str) -> bool:
        """Delete it, and give up what it said and still waits; False when there is none."""
        return bool(await self._driver.write(_remove(trigger)))

    async def next_due_at(self) -> datetime | None:
        """When the next one is due."""
        return convert.moment((await self._driver.read(query("triggers_next")))[0][0])

    async def due(self, limit: int = 100) -> list[Trigger]:
        """Active triggers whose time has come."""
        rows = await self._driver.read(query("triggers_due", now=to_micros(self._clock.now()), limit=limit))
        return [convert.trigger(row) for row in rows]

    async def claim(self, trigger: Trigger, next_at: datetime | None, *, missed: bool = False) -> Occurrence | None:
        """Advance it and take the occurrence that was due, once over all workers."""
        if trigger.next_at is None:
            return None
        occurrence = Occurrence(trigger, trigger.next_at, f"{trigger.id}@{to_micros(trigger.next_at)}")
        script = _claim_occurrence(occurrence, next_at, "missed" if missed else "claimed", self._clock.now())
        return occurrence if await self._driver.write(script) else None

    async def settle(self, trigger: Trigger, *, error: str = "", disable: bool = False) -> None:
        """Note how the occurrence went."""
        await self._driver.write(query("trigger_settle", id=trigger.id, error=error, disable=int(disable)))

    async def pause(self, trigger: str) -> bool:
        """Let it rest until it is resumed; False when it is not active."""
        return bool(await self._driver.write(query("trigger_pause", id=trigger)))

    async def resume(self, trigger: str, next_at: datetime) -> bool:
        """Let one that rests or was switched off come again; False for any other."""
        return bool(await self._driver.write(_resume(trigger, to_micros(next_at))))


def _add_trigger(made: Trigger, next_at: datetime) -> Script[None]:
    spec, now = convert.dump(made.spec), to_micros(made.created_at)
    yield from query("trigger_insert", id=made.id, spec=spec, next_at=to_micros(next_at), now=now)
    yield from query("due", what="triggers")


def _remove(trigger: str) -> Script[list[Row]]:
    yield from query("trigger_hush", id=trigger)
    return (yield from query("trigger_delete", id=trigger))


def _resume(trigger: str, next_at: int) -> Script[list[Row]]:
    rows = yield from query("trigger_resume", id=trigger, next_at=next_at)
    yield from query("due", what="triggers")
    return rows


def _claim_occurrence(occurrence: Occurrence, next_at: datetime | None, state: str, at: datetime) -> Script[bool]:
    due = to_micros(occurrence.due_at)
    advanced = yield from query(
        "trigger_advance",
        id=occurrence.trigger.id,
        due_at=due,
        ended="missed" if state == "missed" else "done",
        next_at=None if next_at is None else to_micros(next_at),
    )
    if not advanced:
        return False
    taken = yield from query(
        "occurrence_insert",
        key=occurrence.key,
        trigger=occurrence.trigger.id,
        due_at=due,
        state=state,
        now=to_micros(at),
    )
    return bool(taken)


def note_turn(trigger: str, thread: ThreadId, finished: TurnFinished, at: datetime) -> Script[None]:
    """Note with a trigger how the turn went that it has started in this thread."""
    if finished.outcome in ("done", "limit"):
        yield from query("trigger_answered", id=trigger)
        return
    rows = yield from query("trigger_one", id=trigger)
    if finished.outcome != "failed" or not rows:
        return
    found = convert.trigger(rows[0])
    once, count = found.spec.kind == "one-shot", found.failures + 1
    is_over = count > len(RETRY_SECONDS) if once else count >= FAILURES_MAX
    again = at + timedelta(seconds=RETRY_SECONDS[found.failures]) if once and not is_over else found.next_at
    yield from query(
        "trigger_failed",
        id=trigger,
        error=finished.reply,
        next_at=None if again is None else to_micros(again),
        state="failed" if is_over else "active" if once else found.state,
    )
    yield from query("due", what="triggers")
    if is_over:
        told = NewPost(f"trigger:{trigger}:{to_micros(at)}", thread, switched_off(found, finished.reply))
        yield from put_post(told, to_micros(at))
