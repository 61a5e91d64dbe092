"""Start turns when their triggers are due, each occurrence once across all workers.

state of the occurrence                      effect
------------------------------------------   ----------------------------------------------------------------------
due, or late by less than catch_up_seconds   claimed, then sent with the occurrence's key; the limit is at least
                                             120 seconds
a one-time trigger that is later than that   recorded as missed, and its thread gets a notice; it can fire after
                                             all if the clock is set back
due before this home was restored            recorded as missed, because it may have fired after the backup
a recurring trigger with missed times        the latest is sent if it is within the limit, otherwise all are missed
scheduled before the clock was set back      fires at its next time by the current clock, never twice for the same time
claimed, then the process died               sent again at the next start; the key deduplicates the message
the thread's queue is full                   a recurring trigger is retried after 30 s, 2 min and 10 min, unless it
                                             fires again sooner; a one-time trigger is retried after 30 s, 2 min and
                                             then every 10 min, for outage_seconds
a trigger that opens threads in a channel    sent as a post in the outbox, which opens a thread with the prompt; the
                                             outbox records the outcome; if the trigger fires again while the post
                                             waits, the post is withdrawn and counts as a failure
the process died twice while sending it      the occurrence fails permanently
an occurrence failed permanently             a one-time trigger is switched off with a notice; a recurring trigger
                                             fires less often for a while, and is switched off after five failures
                                             in a row; a full queue or an unavailable platform never switches it off
the turn failed                              recorded with the end of the turn, see store.py
"""

import asyncio
import contextlib
import heapq
import logging
from bisect import bisect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import msgspec
from msgspec.structs import replace

from shoal.features.triggers.records import (
    FAILURES_MAX,
    RETRY_SECONDS,
    NewTrigger,
    Occurrence,
    Trigger,
    missed,
    switched_off,
    title,
)
from shoal.features.triggers.schedules import first_time, next_after, single_time
from shoal.features.triggers.settings import TriggersSettings
from shoal.features.triggers.store import TriggerStore, key_of
from shoal.kernel.clock import SET_BACK_SECONDS, Clock, iso, wall_ahead
from shoal.kernel.crash_log import CrashLog
from shoal.kernel.errors import InvalidInput, ShoalError, StoreError
from shoal.kernel.home import Home
from shoal.kernel.ids import unopened
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.messages import Author, Inbound, Prompt, Receipt
from shoal.kernel.phrases import short_line
from shoal.kernel.records import DeliveryStatus, NewPost, Opening
from shoal.kernel.zones import zone_named
from shoal.notices import Notices
from shoal.store.outbox import QUEUE_FULL
from shoal.threads.departures import HasLeft
from shoal.threads.orchestrator import Orchestrator

if TYPE_CHECKING:
    from shoal.services import Services

log = logging.getLogger(__name__)

POLL_SECONDS = 60.0
"""Maximum time between two checks for due triggers. Limits the delay after another process adds a trigger or the
machine was suspended.
"""
LATE_SECONDS_MIN = 120.0
"""Minimum grace period for a late occurrence, in seconds. Applies if catch_up_seconds is shorter."""
LATE_TOLD_SECONDS = 300.0
"""Delay in seconds above which the message says that it is late."""
BACKOFF_SECONDS_MAX = 3600.0
BATCH = 100


class TriggerTarget(Protocol):
    """Receiver of a trigger's messages. The orchestrator implements it."""

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message. The message is durable on return."""
        ...

    async def open(self, opening: Opening) -> bool:
        """Open a thread in a channel with a prompt, once per key. The request is durable on return.

        Return False if the key is already known. Raises InvalidInput if the platform is not connected.
        """
        ...

    async def fate(self, key: str) -> DeliveryStatus | None:
        """Return the delivery state of the prompt that `open` posted with this key, or None if the key is unknown."""
        ...

    async def withdraw(self, key: str) -> str | None:
        """Withdraw the prompt with this key if it is still waiting for its platform.

        Return the reason for the delay, or None if the prompt was not waiting.
        """
        ...


SourceOf = Callable[[Path], Awaitable[str]]
"""Returns the untrusted source that influenced a file, or an empty string."""
SendNotice = Callable[[Trigger, str], Awaitable[None]]
"""Sends a notice about a trigger to its thread or its owner."""


async def _log(trigger: Trigger, text: str) -> None:
    log.warning("trigger needs attention; see `shoal triggers list`", extra={"trigger": trigger.id, "why": text})


def notice_sender(notices: Notices) -> SendNotice:
    """Return a function that sends a notice to the trigger's thread, or to the owner if the trigger opens new
    threads.
    """

    async def notify(trigger: Trigger, text: str) -> None:
        await _log(trigger, text)
        if trigger.spec.thread is None:
            await notices.notify_owner(text)
        else:
            await notices.post(NewPost(f"trigger:{trigger.id}:{notices.clock.new_id()}", trigger.spec.thread, text))

    return notify


class TriggerService(msgspec.Struct, eq=False):
    """Service that runs the timer loop over the stored triggers. Set `added` after a change to wake the loop."""

    triggers: TriggerStore
    target: TriggerTarget
    clock: Clock
    added: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    catch_up_seconds: float = 3600
    outage_seconds: float = 86_400
    poll_seconds: float = POLL_SECONDS
    notify: SendNotice = _log
    crash_log: CrashLog = msgspec.field(default_factory=CrashLog)
    restored_at: datetime | None = None
    _wall_ahead_seconds: float = 0.0
    _retries: list[tuple[float, str, int, Occurrence]] = []
    """Heap of occurrences to retry, ordered by monotonic time."""
    _late_max: timedelta = timedelta()
    _full_max: timedelta = timedelta()

    @classmethod
    def of(cls, services: "Services") -> Self:
        settings = services[LiveConfig].current.section(TriggersSettings)
        return cls(
            services[TriggerStore],
            services[Orchestrator],
            services[Clock],
            catch_up_seconds=settings.catch_up_seconds,
            outage_seconds=settings.outage_seconds,
            notify=notice_sender(services[Notices]),
            crash_log=services[CrashLog],
            restored_at=services[Home].restored_at(),
        )

    def __post_init__(self) -> None:
        self._late_max = timedelta(seconds=max(self.catch_up_seconds, LATE_SECONDS_MIN))
        self._full_max = timedelta(seconds=max(self.outage_seconds, sum(RETRY_SECONDS)))

    async def add(self, spec: NewTrigger) -> Trigger:
        """Store a trigger durably. Raises InvalidInput if it is invalid or never fires."""
        trigger = await self.triggers.add(spec, first_time(spec, self.clock.now()))
        self.added.set()
        return trigger

    async def end_left(self, has_left: HasLeft, by: str) -> AsyncIterator[tuple[Author, str]]:
        """Remove the triggers of people who lost access. Yield the person and a description of each removed trigger."""
        for trigger in await self.triggers.all():
            spec = trigger.spec
            place = spec.thread or unopened(spec.platform, spec.channel)
            if trigger.next_at is not None and await has_left(place, spec.author):
                await self.triggers.remove(trigger.id)
                yield spec.author, f"the schedule “{short_line(spec.name or spec.text, 60)}”"

    async def notify_switched_off(self, id: str) -> None:
        for trigger in await self.triggers.all():
            if trigger.id == id and trigger.state == "failed":
                await self.notify(trigger, switched_off(trigger, trigger.error))

    async def run(self) -> None:
        await self.recover()
        while True:
            ahead, before = wall_ahead(self.clock), self._wall_ahead_seconds
            self._wall_ahead_seconds = ahead
            if before - ahead > SET_BACK_SECONDS:
                await self._come_sooner(await self.triggers.all())
            await self.fire_due()
            seconds = [self.poll_seconds]
            if self._retries:
                seconds.append(self._retries[0][0] - self.clock.monotonic())
            due_at = await self.triggers.next_due_at()
            if due_at is not None:
                seconds.append((due_at - self.clock.now()).total_seconds())
            await self.clock.wait(self.added, max(0.0, min(seconds)))
            self.added.clear()

    async def recover(self) -> None:
        """Resend the occurrences that were claimed shortly before the process ended. The receiver drops duplicates."""
        now, triggers = self.clock.now(), await self.triggers.all()
        self._wall_ahead_seconds = wall_ahead(self.clock)
        await self._come_sooner(triggers)
        for trigger in triggers:
            claimed_at = trigger.last_at
            is_coming = trigger.state == "active" and trigger.spec.kind == "periodic"
            if claimed_at is None or not (is_coming or trigger.state == "done"):
                continue
            key = key_of(trigger, claimed_at)
            if claimed_at > now and await self.triggers.was_missed(
                key
            ):  # recorded as missed by a clock that ran ahead, so it can still fire
                continue
            if now - claimed_at < self._late_max and (self.restored_at is None or claimed_at > self.restored_at):
                await self._deliver(Occurrence(trigger, claimed_at, key), attempt=0)

    async def _come_sooner(self, triggers: Sequence[Trigger]) -> None:
        """Move triggers to earlier times after the clock was set back.

        No trigger fires before it was created, and no occurrence is claimed twice. A one-time trigger that was recorded
        as missed can fire after all.
        """
        now = self.clock.now()
        for trigger in triggers:
            if trigger.state == "missed":
                with contextlib.suppress(InvalidInput):
                    if (at := next_after(trigger.spec, now)) is not None:
                        await self.triggers.again(trigger, at)
            if trigger.state != "active" or trigger.next_at is None:
                continue
            latest: datetime | None = None
            if trigger.spec.kind == "periodic":
                with contextlib.suppress(InvalidInput):  # an invalid schedule is reported when it is due
                    latest = next_after(trigger.spec, max(now + _backoff(trigger), trigger.created_at))
            elif trigger.failures or trigger.error:
                latest = now + timedelta(seconds=RETRY_SECONDS[min(trigger.failures, len(RETRY_SECONDS)) - 1])
            if latest is not None and latest < trigger.next_at:
                await self.triggers.sooner(trigger, latest)

    async def fire_due(self) -> None:
        while self._retries and self._retries[0][0] <= self.clock.monotonic():
            _, _, attempt, occurrence = heapq.heappop(self._retries)
            await self._deliver(occurrence, attempt)
        while due := await self.triggers.due(BATCH):
            for due_trigger in due:
                trigger = due_trigger
                now = self.clock.now()
                if trigger.spec.thread is None and trigger.last_at is not None:
                    blocker = await self.target.withdraw(key_of(trigger, trigger.last_at))
                    if blocker:
                        trigger = await self._slow_down(trigger, blocker)
                try:
                    next_at = next_after(trigger.spec, now + _backoff(trigger))
                    earliest = max(now - self._late_max, self.restored_at or now - self._late_max)
                    is_late = trigger.next_at is not None and trigger.next_at <= earliest
                    # The trigger is not late if a more recent time is within the limit.
                    if is_late and trigger.spec.kind == "periodic":
                        latest = next_after(trigger.spec, earliest)
                        is_late = latest is None or latest > now
                except InvalidInput as error:
                    await self.triggers.record_outcome(trigger, error=str(error), disable=True)
                    await self.notify(trigger, f"I switched off the trigger {title(trigger)}: {error}")
                    continue
                occurrence = await self.triggers.claim(trigger, next_at, missed=is_late)
                if occurrence is not None and is_late:
                    log.warning("trigger missed", extra={"trigger": trigger.id, "due_at": iso(occurrence.due_at)})
                    is_restored = self.restored_at is not None and occurrence.due_at <= self.restored_at
                    if trigger.spec.kind == "one-shot" and not is_restored:  # a restore has its own notice
                        await self.notify(trigger, missed(trigger, occurrence.due_at))
                elif occurrence is not None:
                    await self._deliver(occurrence, attempt=0)

    async def _deliver(self, occurrence: Occurrence, attempt: int) -> None:
        trigger, spec, now, due_at = occurrence.trigger, occurrence.trigger.spec, self.clock.now(), occurrence.due_at
        if spec.kind == "one-shot":  # `due_at` may be the time of a retry
            with contextlib.suppress(InvalidInput):  # the time zone may have been removed
                due_at = single_time(spec.schedule, zone_named(spec.timezone))
        late = now - due_at
        try:
            with self.crash_log.during(occurrence.key):
                author = spec.author
                asked_by = f" by {author.name or author.id}" if author.id != "shoal" else ""
                text = spec.text
                if late > timedelta(seconds=LATE_TOLD_SECONDS):
                    text += f"\n\n(This message was due at {iso(due_at)} and is late.)"
                author = replace(author, name=f"trigger {title(trigger)}{asked_by}")
                prompt = message_of(spec, occurrence.key, text, author, now)
                if spec.thread is None:
                    await self.target.open(Opening(prompt, trigger.id, _is_last(trigger), spec.kind == "periodic"))
                    problem = ""
                else:
                    receipt = await self.target.send(prompt)
                    problem = QUEUE_FULL if receipt.status == "busy" else ""
                is_full = bool(problem)
        except StoreError:
            raise
        except ShoalError as error:
            problem, is_full = str(error), False
        if not problem:
            log.info("trigger sent", extra={"trigger": trigger.id, "due_at": iso(occurrence.due_at)})
            return
        if is_full and spec.kind == "one-shot" and late < self._full_max:
            seconds = RETRY_SECONDS[bisect(list(accumulate(RETRY_SECONDS[:-1])), late.total_seconds())]
            await self.triggers.again(trigger, now + timedelta(seconds=seconds), error=problem)
            return
        if is_full and spec.kind == "periodic":
            now, seconds = self.clock.now(), RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
            coming: datetime | None = None
            with contextlib.suppress(InvalidInput):  # an invalid schedule is reported when it is due
                coming = next_after(spec, now)
            if attempt < len(RETRY_SECONDS) and (coming is None or now + timedelta(seconds=seconds) < coming):
                retry_at = self.clock.monotonic() + seconds
                heapq.heappush(self._retries, (retry_at, occurrence.key, attempt + 1, occurrence))
            else:
                await self._slow_down(trigger, problem)
            return
        gives_up = _is_last(trigger)
        await self.triggers.record_outcome(trigger, error=problem, disable=gives_up)
        if gives_up:
            await self.notify(trigger, switched_off(trigger, problem))

    async def _slow_down(self, trigger: Trigger, problem: str) -> Trigger:
        """Record a failure that makes the trigger fire less often but never switches it off."""
        if _is_last(trigger):
            return trigger
        await self.triggers.record_outcome(trigger, error=problem)
        return replace(trigger, failures=trigger.failures + 1)


def message_of(spec: NewTrigger, key: str, text: str, author: Author, at: datetime) -> Prompt:
    place = spec.thread or unopened(spec.platform, spec.channel)
    return Prompt(
        place, key, text, author, at, agent=spec.agent, origin=spec.origin, message_id=key, tainted_by=spec.tainted_by
    )


def _backoff(trigger: Trigger) -> timedelta:
    return timedelta(seconds=min(60.0 * 2**trigger.failures, BACKOFF_SECONDS_MAX) if trigger.failures else 0.0)


def _is_last(trigger: Trigger) -> bool:
    return trigger.failures + 1 >= FAILURES_MAX or trigger.spec.kind == "one-shot"
