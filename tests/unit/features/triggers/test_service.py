"""The trigger service: due times, downtime, exactly-once firing, and failed sends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from shoal.features.triggers.records import NewTrigger, Trigger
from shoal.features.triggers.schedules import next_after
from shoal.features.triggers.service import (
    FAILURES_MAX,
    POLL_SECONDS,
    RETRY_SECONDS,
    TriggerService,
    key_of,
)
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.crash_log import STARTS_MAX, CrashLog
from shoal.kernel.errors import InvalidInput, StoreUnavailable
from shoal.kernel.ids import ThreadId, thread_address
from shoal.kernel.messages import Author, Inbound, Prompt, Receipt
from shoal.kernel.records import DeliveryStatus, NewPost, Opening
from shoal.store.outbox import Outbox
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database

THREAD = ThreadId("web:lobby:a")
START = datetime(2026, 10, 25, tzinfo=UTC)


class Inbox:
    """An inbox that accepts each key once, as the orchestrator does. It raises `fails` if set and reports that it is
    busy while `full` is set.

    Messages that open a thread go through `outbox` to a platform that posts them, rejects them permanently
    (`refuses`) or is unreachable (`away`).
    """

    def __init__(self, clock: ManualClock, outbox: Outbox | None = None) -> None:
        self.clock = clock
        self.outbox = outbox
        self.refuses = ""
        self.away = False
        self.gave_up: list[str] = []
        self.keys: set[str] = set()
        self.prompts: list[Prompt] = []
        self.posts: list[tuple[datetime, str, str, str]] = []
        self.fired: list[tuple[datetime, str]] = []
        self.full = False
        self.fails: Exception | None = None

    async def send(self, message: Inbound) -> Receipt:
        assert isinstance(message, Prompt)
        if self.fails:
            raise self.fails
        if message.key in self.keys:
            return Receipt("duplicate")
        if self.full:
            return Receipt("busy")
        self.keys.add(message.key)
        self.prompts.append(message)
        self.fired.append((self.clock.now(), message.text))
        return Receipt("accepted")

    async def open(self, opening: Opening) -> bool:
        assert self.outbox is not None
        if self.fails:
            raise self.fails
        prompt = opening.prompt
        post = NewPost(prompt.key, prompt.thread, prompt.text, "opening", opening=opening)
        if not await self.outbox.put(post):
            return False
        self.fired.append((self.clock.now(), prompt.text))
        await self.deliver()
        return True

    async def deliver(self) -> None:
        assert self.outbox is not None
        for row in await self.outbox.claim(["slack"], 10, 60):
            opening = row.post.opening
            assert opening is not None
            if self.refuses:
                await self.outbox.fail(row, self.refuses)
                self.gave_up += [opening.trigger] if opening.disables else []
            elif self.away:
                await self.outbox.retry(row, self.clock.now() + timedelta(days=1), "Slack is away.")
            else:
                await self.outbox.opened(row, THREAD, [], replace(opening.prompt, thread=THREAD), 100)
                where = thread_address(row.thread)
                self.posts.append((self.clock.now(), where.platform, where.channel, row.post.text))

    async def fate(self, key: str) -> DeliveryStatus | None:
        assert self.outbox is not None
        return await self.outbox.fate(key)

    async def withdraw(self, key: str) -> str | None:
        assert self.outbox is not None
        return await self.outbox.withdraw(key)


class Stand:
    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(START)
        self.store = Store(SqliteDriver(empty_database(path / "shoal.db"), synchronous="OFF"), self.clock)
        self.triggers = TriggerStore(self.store.driver, self.clock)
        self.store.causes.append(self.triggers)
        self.inbox = Inbox(self.clock, self.store.outbox)
        self.told: list[str] = []

    async def notify(self, trigger: Trigger, text: str) -> None:
        self.told.append(text)

    def service(
        self, *, catch_up_seconds: float = 3600, outage_seconds: float = 86_400, poll_seconds: float = POLL_SECONDS,
        crash_log: CrashLog | None = None,
    ) -> TriggerService:  # fmt: skip
        return TriggerService(
            self.triggers,
            self.inbox,
            self.clock,
            catch_up_seconds=catch_up_seconds,
            outage_seconds=outage_seconds,
            poll_seconds=poll_seconds,
            notify=self.notify,
            crash_log=crash_log or CrashLog(),
        )

    async def add(self, schedule: str, text: str = "go", zone: str = "UTC", *, channel: str = "") -> Trigger:
        kind = "periodic" if " " in schedule else "one-shot"
        where = NewTrigger(kind, schedule, text, timezone=zone, author=Author("owner", trusted=True), tainted_by="")
        spec = replace(where, platform="slack", channel=channel) if channel else replace(where, thread=THREAD)
        at = next_after(spec, self.clock.now())
        assert at is not None
        return await self.triggers.add(spec, at)

    async def one(self) -> Trigger:
        (trigger,) = await self.triggers.all()
        return trigger

    @asynccontextmanager
    async def running(self, service: TriggerService) -> AsyncGenerator[None]:
        task = asyncio.create_task(service.run())
        try:
            await self.clock.sleepers()
            yield
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def let_pass(self, seconds: float, workers: int = 1) -> None:
        """Advance the clock from sleep to sleep. Waits until each worker sleeps again before the next step."""
        end = self.clock.now() + timedelta(seconds=seconds)
        await self.clock.sleepers(workers)
        while (wake_at := self.clock.next_wake_at()) is not None and wake_at <= end:
            await self.clock.advance_to(wake_at)
            await self.clock.sleepers(workers)
        await self.clock.advance_to(end)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    yield stand
    await stand.store.close()


def utc(day: int, hour: int, minute: int = 0, month: int = 10) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


async def test_a_week_of_triggers_follows_the_clock_changes_of_two_zones(stand: Stand) -> None:
    await stand.add("30 2 * * *", "berlin night", "Europe/Berlin")
    await stand.add("30 1 * * *", "new york night", "America/New_York")
    await stand.add("0 9 * * 1-5", "new york morning", "America/New_York")
    await stand.add("0 */12 * * 0", "sundays", "Europe/Berlin")
    await stand.add("2026-10-28T12:00", "once", "Europe/Berlin")
    async with stand.running(stand.service(poll_seconds=6 * 3600)):
        await stand.let_pass(7.5 * 86_400)
    expected = [(utc(25, 0, 30), "berlin night"), *((utc(day, 1, 30), "berlin night") for day in range(26, 32))]
    expected += [(utc(1, 1, 30, 11), "berlin night")]
    expected += [(utc(day, 5, 30), "new york night") for day in range(25, 32)]
    expected += [(utc(1, 5, 30, 11), "new york night")]
    expected += [(utc(day, 13), "new york morning") for day in range(26, 31)]
    expected += [(utc(25, 11), "sundays"), (utc(31, 23), "sundays"), (utc(1, 11, 0, 11), "sundays")]
    expected += [(utc(28, 11), "once")]
    assert sorted(stand.inbox.fired) == sorted(expected)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_corrected_clock_delays_and_repeats_nothing(stand: Stand, *, restarts: bool) -> None:
    await stand.add("0 9 * * *", "daily")
    days = 40 * 86_400
    async with stand.running(stand.service()):
        await stand.let_pass(86_400)
        stand.clock.jump(days)
        await stand.let_pass(120)
        if not restarts:
            stand.clock.jump(-days)
            await stand.let_pass(2 * 86_400)
    if restarts:
        stand.clock.jump(-days)
        async with stand.running(stand.service()):
            await stand.let_pass(2 * 86_400)
    fired = [at for at, _ in stand.inbox.fired]
    right = [at for at in fired if at - fired[0] < timedelta(days=30)]
    assert [at.day for at in right] == [25, 26, 27]


async def test_two_workers_fire_each_occurrence_once(stand: Stand) -> None:
    await stand.add("*/10 * * * *")
    await stand.add("*/10 * * * *", channel="C1")
    async with stand.running(stand.service()), stand.running(stand.service()):
        await stand.let_pass(3600, workers=2)
    assert len(stand.inbox.prompts) == 6
    assert len(stand.inbox.posts) == 6


async def test_an_occurrence_that_crashed_the_process_twice_fails(stand: Stand, tmp_path: Path) -> None:
    trigger = await stand.add("2026-10-25T10:00:00")
    assert trigger.next_at is not None
    for _ in range(STARTS_MAX):
        died = CrashLog(tmp_path / "begun")
        died.open()
        died.begin(key_of(trigger, trigger.next_at))
        del died
    crash_log = CrashLog(tmp_path / "begun")
    crash_log.open()
    await stand.clock.advance((trigger.next_at - stand.clock.now()).total_seconds() + 1)
    await stand.service(crash_log=crash_log).fire_due()
    assert stand.inbox.prompts == []
    assert "crashed twice" in stand.told[0]


async def test_a_trigger_sends_its_message(stand: Stand) -> None:
    spec = NewTrigger(
        "one-shot",
        "2026-10-25T01:00",
        "Look",
        thread=THREAD,
        agent="ops",
        name="watch",
        author=Author("u7", "Uma", ("ops",), trusted=False),
        tainted_by="a page",
    )
    trigger = await stand.triggers.add(spec, utc(25, 1))
    async with stand.running(stand.service()):
        await stand.let_pass(3600)
    (prompt,) = stand.inbox.prompts
    author = Author("u7", "trigger watch by Uma", ("ops",), trusted=False)
    assert prompt == Prompt(
        THREAD, key_of(trigger, utc(25, 1)), "Look", author, utc(25, 1), agent="ops", origin="trigger",
        message_id=prompt.key, tainted_by="a page",
    )  # fmt: skip
    assert (await stand.one()).state == "done"


async def test_a_new_trigger_is_noticed_by_a_poke_and_by_polling(stand: Stand) -> None:
    service = stand.service()
    async with stand.running(service):
        await stand.let_pass(1)
        await stand.add("2026-10-25T00:00:05Z", "poked")
        service.added.set()
        await stand.clock.advance(0)
        await stand.let_pass(5)
        await stand.add("2026-10-25T00:00:10Z", "polled")
        await stand.let_pass(POLL_SECONDS)
    assert [text for _, text in stand.inbox.fired] == ["poked", "polled"]
    assert stand.inbox.fired[0][0] == START + timedelta(seconds=5)


# ---- after downtime ----


@pytest.mark.parametrize(("late_seconds", "state"), [(3599, "done"), (3600, "missed"), (86_400, "missed")])
async def test_a_one_time_trigger_runs_late_only_up_to_the_limit(stand: Stand, late_seconds: int, state: str) -> None:
    await stand.add("2026-10-25T01:00")
    stand.clock.jump(3600 + late_seconds)
    async with stand.running(stand.service()):
        pass
    assert len(stand.inbox.prompts) == (1 if state == "done" else 0)
    assert (await stand.one()).state == state
    assert [text for text in stand.told if "due at 2026-10-25 01:00 UTC" in text] == stand.told
    assert len(stand.told) == (1 if state == "missed" else 0)


async def test_a_late_message_says_so(stand: Stand) -> None:
    await stand.add("2026-10-25T01:00", "Look")
    stand.clock.jump(3600 + 1800)
    async with stand.running(stand.service()):
        pass
    assert stand.inbox.prompts[0].text == "Look\n\n(This message was due at 2026-10-25T01:00:00.000Z and is late.)"


@pytest.mark.parametrize(("schedule", "runs"), [("*/5 * * * *", 1), ("0 1 * * *", 0), ("30 9 * * *", 1)])
async def test_a_cron_line_runs_at_most_one_missed_occurrence(stand: Stand, schedule: str, runs: int) -> None:
    await stand.add(schedule)
    stand.clock.jump(3 * 86_400 + 10 * 3600)
    async with stand.running(stand.service()):
        pass
    assert len(stand.inbox.prompts) == runs
    trigger = await stand.one()
    assert trigger.state == "active"
    assert trigger.next_at is not None
    assert trigger.next_at > stand.clock.now()


async def test_a_trigger_that_is_a_minute_late_still_runs_without_catch_up(stand: Stand) -> None:
    await stand.add("2026-10-25T01:00")
    stand.clock.jump(3600 + 60)
    async with stand.running(stand.service(catch_up_seconds=0)):
        pass
    assert len(stand.inbox.prompts) == 1


async def test_a_claimed_occurrence_is_sent_once_at_the_next_start(stand: Stand) -> None:
    trigger = await stand.add("0 * * * *")
    assert trigger.next_at is not None
    stand.clock.jump(3600)
    assert await stand.triggers.claim(trigger, utc(25, 2))
    for _ in range(3):
        async with stand.running(stand.service()):
            pass
    assert [prompt.key for prompt in stand.inbox.prompts] == [key_of(trigger, utc(25, 1))]
    stand.inbox.keys.clear()
    stand.clock.jump(3599)
    async with stand.running(stand.service(catch_up_seconds=0)):
        pass
    assert len(stand.inbox.prompts) == 1


@pytest.mark.parametrize("posted", [False, True])
async def test_a_claimed_channel_occurrence_is_posted_once_at_the_next_start(stand: Stand, posted: bool) -> None:
    trigger = await stand.add("0 * * * *", channel="C1")
    stand.clock.jump(3600)
    stand.inbox.away = not posted
    assert await stand.triggers.claim(trigger, utc(25, 2))
    for _ in range(3):
        async with stand.running(stand.service()):
            pass
    assert len(stand.inbox.fired) == 1
    assert len(stand.inbox.posts) == posted
    assert await stand.store.outbox.depth() == (not posted)


# ---- failures ----


async def test_a_full_queue_is_retried(stand: Stand) -> None:
    await stand.add("2026-10-25T01:00")
    stand.inbox.full = True
    async with stand.running(stand.service()):
        await stand.let_pass(3600 + RETRY_SECONDS[0])
        stand.inbox.full = False
        await stand.let_pass(RETRY_SECONDS[1])
    assert [at for at, _ in stand.inbox.fired] == [utc(25, 1) + timedelta(seconds=sum(RETRY_SECONDS[:2]))]


async def test_a_one_time_trigger_survives_a_full_queue_and_a_restart_and_runs_once(stand: Stand) -> None:
    await stand.add("2026-10-25T01:00")
    stand.inbox.full = True
    async with stand.running(stand.service()):
        await stand.let_pass(12 * 3600)
        trigger = await stand.one()
        assert (trigger.state, trigger.failures, trigger.error) == ("active", 0, "The conversation's queue is full.")
    stand.inbox.full = False
    async with stand.running(stand.service()):
        await stand.let_pass(86_400)
    assert (await stand.one()).state == "done"
    ((_, text),) = stand.inbox.fired
    assert text == "go\n\n(This message was due at 2026-10-25T01:00:00.000Z and is late.)"


@pytest.mark.parametrize(("outage_seconds", "lasts_seconds"), [(86_400, 86_400), (0, sum(RETRY_SECONDS))])
async def test_a_one_time_trigger_is_given_up_and_reported_after_the_longest_outage(
    stand: Stand, outage_seconds: float, lasts_seconds: float
) -> None:
    await stand.add("2026-10-25T01:00")
    stand.inbox.full = True
    async with stand.running(stand.service(outage_seconds=outage_seconds)):
        await stand.let_pass(3600 + lasts_seconds - 1)
        assert (await stand.one()).state == "active"
        await stand.let_pass(RETRY_SECONDS[-1])
    trigger = await stand.one()
    assert (trigger.state, trigger.error) == ("failed", "The conversation's queue is full.")
    assert len(stand.told) == 1
    assert stand.told[0].endswith("because it failed: The conversation's queue is full.")


async def test_setting_the_clock_back_does_not_delay_a_waiting_one_time_trigger(stand: Stand) -> None:
    await stand.add("2026-10-25T01:00")
    stand.inbox.full = True
    async with stand.running(stand.service()):
        await stand.let_pass(7200)
        stand.clock.jump(-40 * 86_400)
        stand.inbox.full = False
        await stand.let_pass(RETRY_SECONDS[-1] + POLL_SECONDS)
    assert len(stand.inbox.fired) == 1


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_one_time_trigger_skipped_by_a_fast_clock_runs_when_due(stand: Stand, *, restarts: bool) -> None:
    await stand.add("2026-10-28T01:00")
    days = 40 * 86_400
    async with stand.running(stand.service()):
        stand.clock.jump(days)
        await stand.let_pass(120)
        assert (await stand.one()).state == "missed"
        if not restarts:
            stand.clock.jump(-days)
            await stand.let_pass(4 * 86_400)
    if restarts:
        stand.clock.jump(-days)
        async with stand.running(stand.service()):
            await stand.let_pass(4 * 86_400)
    assert stand.inbox.fired == [(utc(28, 1), "go")]
    assert (await stand.one()).state == "done"


async def test_an_unconfigured_platform_fails_a_one_time_trigger_immediately(stand: Stand) -> None:
    await stand.add("2026-10-25T01:00", channel="C1")
    stand.inbox.fails = InvalidInput("Platform 'slack' is not connected.")
    async with stand.running(stand.service()):
        await stand.let_pass(3600)
    assert (await stand.one()).state == "failed"
    assert stand.told[0].endswith("because it failed: Platform 'slack' is not connected.")


async def test_a_refused_one_time_trigger_is_disabled_and_reported(stand: Stand) -> None:
    trigger = await stand.add("2026-10-25T01:00", channel="C1")
    stand.inbox.refuses = "No such channel."
    service = stand.service()
    async with stand.running(service):
        await stand.let_pass(3600)
    assert stand.inbox.gave_up == [trigger.id]
    await service.notify_switched_off(trigger.id)
    assert (await stand.one()).state == "failed"
    assert stand.told[0].endswith("because it failed: No such channel.")


async def test_a_one_time_trigger_waits_for_its_platform(stand: Stand) -> None:
    await stand.add("2026-10-25T01:00", channel="C1")
    stand.inbox.away = True
    async with stand.running(stand.service()):
        await stand.let_pass(7200)
        assert ((await stand.one()).state, stand.inbox.posts) == ("done", [])
        stand.inbox.away = False
        await stand.let_pass(86_400)
        await stand.inbox.deliver()
    assert [at for at, *_ in stand.inbox.posts] == [utc(26, 2)]


async def test_a_failing_cron_line_backs_off_and_is_disabled(stand: Stand) -> None:
    await stand.add("* * * * *", channel="C1")
    stand.inbox.refuses = "No such channel."
    async with stand.running(stand.service()):
        await stand.let_pass(86_400)
    trigger = await stand.one()
    assert (trigger.state, trigger.failures) == ("failed", FAILURES_MAX)
    assert stand.inbox.gave_up == [trigger.id]
    times = [at for at, _ in stand.inbox.fired]
    waits = [(later - at).total_seconds() / 60 for at, later in pairwise(times)]
    assert len(times) == FAILURES_MAX
    assert waits == sorted(waits)
    assert waits[-1] > 8


async def test_a_failed_occurrence_is_not_retried_after_the_next_one(stand: Stand) -> None:
    await stand.add("* * * * *")
    stand.inbox.full = True
    async with stand.running(stand.service()):
        await stand.let_pass(125)
        assert (await stand.one()).failures == 1
        stand.inbox.full = False
        await stand.let_pass(170 - 125)
    seconds = [(at - START).total_seconds() for at, _ in stand.inbox.fired]
    assert seconds == [150], "what came at 60 s was given up when the next was nearer than its third try"


async def test_a_cron_line_survives_a_long_full_queue(stand: Stand) -> None:
    await stand.add("* * * * *")
    stand.inbox.full = True
    async with stand.running(stand.service()):
        await stand.let_pass(6 * 3600)
        trigger = await stand.one()
        assert (trigger.state, trigger.failures) == ("active", FAILURES_MAX - 1)
        stand.inbox.full = False
        began = len(stand.inbox.fired)
        await stand.let_pass(3600)
    assert not stand.told
    assert len(stand.inbox.fired) > began


async def test_only_the_newest_occurrence_waits_for_an_unreachable_platform(stand: Stand) -> None:
    await stand.add("* * * * *", channel="C1")
    stand.inbox.away = True
    async with stand.running(stand.service()):
        await stand.let_pass(240)
        trigger = await stand.one()
        assert (trigger.failures, trigger.error) == (1, "Slack is away.")
        assert (len(stand.inbox.fired), await stand.store.outbox.depth()) == (2, 1)
        await stand.let_pass(86_400)
        trigger = await stand.one()
        assert (trigger.state, trigger.failures) == ("active", FAILURES_MAX - 1)
        (row,) = await stand.store.outbox.claim(["slack"], 10, 60)
        assert row.post.opening is not None
        assert (row.post.opening.disables, row.post.opening.recurs) == (True, True)
        await stand.store.outbox.give_back(row)
        stand.inbox.away = False
        await stand.inbox.deliver()
    assert len(stand.inbox.posts) == 1
    assert not stand.told


async def test_an_unreadable_schedule_is_disabled(stand: Stand) -> None:
    spec = NewTrigger(
        "periodic",
        "0 * * * *",
        "go",
        thread=THREAD,
        timezone="Mars/Olympus",
        author=Author("owner", trusted=True),
        tainted_by="",
    )
    await stand.triggers.add(spec, utc(25, 1))
    async with stand.running(stand.service()):
        await stand.let_pass(3600)
    assert (await stand.one()).state == "failed"
    assert "Mars/Olympus" in stand.told[0]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("schedule", ["2026-10-25T01:00", "0 * * * *"])
async def test_a_claimed_occurrence_runs_after_its_time_zone_disappears(
    stand: Stand, schedule: str, full: bool
) -> None:
    stand.inbox.full = full
    kind = "periodic" if " " in schedule else "one-shot"
    author = Author("owner", trusted=True)
    spec = NewTrigger(kind, schedule, "go", thread=THREAD, timezone="Mars/Olympus", author=author, tainted_by="")
    trigger = await stand.triggers.add(spec, utc(25, 1))
    await stand.clock.advance(3600)
    assert await stand.triggers.claim(trigger, utc(25, 2) if kind == "periodic" else None)
    async with stand.running(stand.service()):
        await stand.let_pass(60)
    assert [text for _, text in stand.inbox.fired] == ([] if full else ["go"])


async def test_a_failing_store_ends_the_service_with_an_error(stand: Stand) -> None:
    await stand.add("2026-10-25T01:00")
    stand.inbox.fails = StoreUnavailable("The database cannot be reached.")
    task = asyncio.create_task(stand.service().run())
    await stand.clock.sleepers()
    await stand.clock.advance(3600)
    with pytest.raises(StoreUnavailable):
        await task
