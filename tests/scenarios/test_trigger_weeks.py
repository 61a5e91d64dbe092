"""Weeks of triggers through the complete app, with clock changes in two time zones, restarts, and hours of downtime.

The expected result is written by hand: every time (UTC) at which a trigger fires, with its reply. No other trigger
may fire. The clock advances hour by hour, and stops one second before and after each of these times.
"""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.waiting import until

from shoal.features.triggers.store import TriggerStore
from shoal.kernel.home import Home
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply, Seen
from shoal.testing.scenario import SECONDS_MAX, World, scenario

SETTINGS: dict[str, object] = {"triggers": {"heartbeat_minutes": 1440}}
STARTING_SECONDS = 30.0
"""Work that starts shortly after startup has started by then."""
LATE = "and is late"


class Week(NamedTuple):
    """A week and the triggers that are created at its start.

    - `reminders`: arguments for `/remind`.
    - `plans`: arguments for the tool `schedule`.
    - `files`: event files by name.
    - `restart`: the time at which Shoal restarts.
    - `away`: the start and end of the downtime.
    """

    begin: str
    end: str
    restart: str
    away: tuple[str, str]
    reminders: tuple[str, ...]
    plans: tuple[dict[str, str], ...]
    files: dict[str, dict[str, str]]
    comes: str


SPRING_IN_AMERICA = Week(
    begin="03-06 00:10",
    end="03-13 00:00",
    restart="03-09 12:00",
    away=("03-11 05:00", "03-11 11:20"),
    reminders=(
        "30 2 * * * America/New_York night rounds",
        "2026-03-08T02:15 America/New_York quarter past two",
        "2026-03-11T07:30Z too late",
        "2026-03-11T10:50Z half an hour late",
    ),
    plans=(
        {"when": "0 9 * * 1-5", "timezone": "Europe/Berlin", "text": "stand up"},
        {"when": "30 9,10 * * 3", "timezone": "UTC", "text": "midweek"},
    ),
    files={
        "noon.json": {"type": "periodic", "schedule": "0 12 * * 6,0", "timezone": "America/New_York", "text": "noon"},
        "six.json": {
            "type": "one-shot",
            "schedule": "2026-03-10T18:00",
            "timezone": "America/New_York",
            "text": "six o'clock",
        },
        "never.json": {"type": "one-shot", "schedule": "2026-03-11T09:00Z", "text": "never"},
    },
    comes="""
        03-06 07:30 night rounds
        03-06 08:00 stand up
        03-07 00:00 heartbeat
        03-07 07:30 night rounds
        03-07 17:00 noon
        03-08 00:00 heartbeat
        03-08 07:00 night rounds
        03-08 07:00 quarter past two
        03-08 16:00 noon
        03-09 00:00 heartbeat
        03-09 06:30 night rounds
        03-09 08:00 stand up
        03-10 00:00 heartbeat
        03-10 06:30 night rounds
        03-10 08:00 stand up
        03-10 22:00 six o'clock
        03-11 00:00 heartbeat
        03-11 11:20 half an hour late, due 03-11 10:50
        03-11 11:20 midweek, due 03-11 09:30
        03-12 00:00 heartbeat
        03-12 06:30 night rounds
        03-12 08:00 stand up
        03-13 00:00 heartbeat
    """,
)

SPRING_IN_EUROPE = Week(
    begin="03-27 00:10",
    end="04-03 00:00",
    restart="03-29 00:40",
    away=("04-01 00:10", "04-01 13:40"),
    reminders=(
        "30 2 * * * Europe/Berlin night rounds",
        "2026-03-29T02:15 Europe/Berlin quarter past two",
        "2026-04-01T12:20Z too late",
        "2026-04-01T13:00Z late",
    ),
    plans=(
        {"when": "0 9 * * 1-5", "timezone": "America/New_York", "text": "stand up"},
        {"when": "30 9,10 * * 3", "timezone": "UTC", "text": "midweek"},
    ),
    files={
        "noon.json": {"type": "periodic", "schedule": "0 12 * * 6,0", "timezone": "Europe/Berlin", "text": "noon"},
        "six.json": {
            "type": "one-shot",
            "schedule": "2026-03-31T18:00",
            "timezone": "Europe/Berlin",
            "text": "six o'clock",
        },
        "never.json": {"type": "one-shot", "schedule": "2026-04-01T09:00Z", "text": "never"},
    },
    comes="""
        03-27 01:30 night rounds
        03-27 13:00 stand up
        03-28 00:00 heartbeat
        03-28 01:30 night rounds
        03-28 11:00 noon
        03-29 00:00 heartbeat
        03-29 01:00 night rounds
        03-29 01:00 quarter past two
        03-29 10:00 noon
        03-30 00:00 heartbeat
        03-30 00:30 night rounds
        03-30 13:00 stand up
        03-31 00:00 heartbeat
        03-31 00:30 night rounds
        03-31 13:00 stand up
        03-31 16:00 six o'clock
        04-01 00:00 heartbeat
        04-01 13:40 late, due 04-01 13:00
        04-01 13:40 stand up, due 04-01 13:00
        04-02 00:00 heartbeat
        04-02 00:30 night rounds
        04-02 13:00 stand up
        04-03 00:00 heartbeat
    """,
)

AUTUMN_IN_BOTH = Week(
    begin="10-24 00:10",
    end="11-01 18:00",
    restart="10-25 00:45",
    away=("10-28 01:00", "10-28 06:10"),
    reminders=(
        "30 2 * * * Europe/Berlin night rounds",
        "2026-10-25T02:15 Europe/Berlin quarter past two",
        "2026-10-28T03:00Z too late",
        "2026-10-28T05:40Z late",
    ),
    plans=({"when": "30 1 * * *", "timezone": "America/New_York", "text": "small hours"},),
    files={
        "noon.json": {"type": "periodic", "schedule": "0 12 * * 6,0", "timezone": "America/New_York", "text": "noon"},
        "six.json": {
            "type": "one-shot",
            "schedule": "2026-10-27T18:00",
            "timezone": "Europe/Berlin",
            "text": "six o'clock",
        },
        "never.json": {"type": "one-shot", "schedule": "2026-10-28T02:00Z", "text": "never"},
    },
    comes="""
        10-24 00:30 night rounds
        10-24 05:30 small hours
        10-24 16:00 noon
        10-25 00:00 heartbeat
        10-25 00:15 quarter past two
        10-25 00:30 night rounds
        10-25 05:30 small hours
        10-25 16:00 noon
        10-26 00:00 heartbeat
        10-26 01:30 night rounds
        10-26 05:30 small hours
        10-27 00:00 heartbeat
        10-27 01:30 night rounds
        10-27 05:30 small hours
        10-27 17:00 six o'clock
        10-28 00:00 heartbeat
        10-28 06:10 late, due 10-28 05:40
        10-28 06:10 small hours, due 10-28 05:30
        10-29 00:00 heartbeat
        10-29 01:30 night rounds
        10-29 05:30 small hours
        10-30 00:00 heartbeat
        10-30 01:30 night rounds
        10-30 05:30 small hours
        10-31 00:00 heartbeat
        10-31 01:30 night rounds
        10-31 05:30 small hours
        10-31 16:00 noon
        11-01 00:00 heartbeat
        11-01 01:30 night rounds
        11-01 05:30 small hours
        11-01 17:00 noon
    """,
)


def instant(text: str) -> datetime:
    """Parse MM-DD HH:MM as UTC in the year of the weeks."""
    return datetime.strptime(f"2026-{text}", "%Y-%m-%d %H:%M").replace(tzinfo=UTC)


class Diary:
    """Shoal during a week, with an agent that records each turn and repeats its prompt."""

    def __init__(self, home: Path, week: Week) -> None:
        self.home = home
        self.week = week
        self.clock = ManualClock(instant(week.begin))
        self.lines: list[str] = []
        self.posted: list[str] = []
        self.missed: set[str] = set()
        self.model = FakeModel(script=self._answer)
        self._coming = sorted({instant(line.strip()[:11]) for line in week.comes.strip().splitlines()})

    def _answer(self, seen: Seen) -> Reply | str:
        asked = seen.user_text.split("<context>")[0].strip().partition("] ")[2]
        if asked.startswith("plan "):
            return Reply(calls=(Call("schedule", asked.removeprefix("plan ")),)) if not seen.rounds else "planned"
        if "This is your heartbeat" in asked:
            if seen.rounds:
                return "[SILENT]"
            self._write("heartbeat")
            return Reply(calls=(Call("message", json.dumps({"to": "fake:harbour:1", "text": "heartbeat"})),))
        text, _, late = asked.partition("\n\n(This message was due at ")
        what = f"{text}, due {datetime.fromisoformat(late[:16]):%m-%d %H:%M}" if LATE in late else text
        self._write(what)
        return what

    def _write(self, what: str) -> None:
        self.lines.append(f"{self.clock.now():%m-%d %H:%M} {what}")

    async def live(self, begin: str, end: str, *, first: bool = False) -> None:
        self.clock = ManualClock(instant(begin))
        async with scenario(self.home, self.model, clock=self.clock, settings=SETTINGS) as world:
            if first:
                await self._plan(world)
            await world.is_quiet()
            await self.clock.advance(STARTING_SECONDS)
            await world.is_quiet()
            for at in self._stops(instant(end)):
                async with asyncio.timeout(SECONDS_MAX):
                    await self.clock.jump_to(at)
                await world.is_quiet()
            await self._put_away(world)
            self.posted += [text for text in world.chat.texts(world.ada.thread) if text != "planned"]

    async def _put_away(self, world: World) -> None:
        """Check that due event files are moved to their final folder. The folder is scanned in real time."""
        triggers = await world.app[TriggerStore].all()
        stored = {trigger.spec.name or trigger.spec.text: trigger.state for trigger in triggers}
        self.missed |= {name for name, state in stored.items() if state == "missed"}
        for name, state in stored.items():
            folder = {"done": "done", "missed": "failed"}.get(state)
            if name.startswith("file:") and folder is not None:
                file = world.app[Home].events / folder / name.removeprefix("file:")
                await asyncio.to_thread(until, file.exists)

    def _stops(self, end: datetime) -> list[datetime]:
        now, second = self.clock.now(), timedelta(seconds=1)
        hours = [self.clock.now() + timedelta(hours=count) for count in range(1, 24 * 9)]
        wanted = {*hours, *self._coming, *(at - second for at in self._coming), end}
        return sorted(at for at in wanted if now < at <= end)

    async def _plan(self, world: World) -> None:
        world.app[Home].data.joinpath("HEARTBEAT.md").write_text("- [ ] keep watch\n")
        for reminder in self.week.reminders:
            assert "is due at" in await world.ada.asks(f"/remind {reminder}")
        for plan in self.week.plans:
            await world.ada.says(f"plan {json.dumps({'do': 'create', **plan})}")
            await world.is_quiet()
        events = world.app[Home].events
        for name, event in self.week.files.items():
            (events / name).write_text(json.dumps({"threadId": world.ada.thread, **event}))


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


@pytest.mark.slow
@pytest.mark.parametrize(
    "week",
    [
        pytest.param(SPRING_IN_AMERICA, id="spring in America"),
        pytest.param(SPRING_IN_EUROPE, id="spring in Europe"),
        pytest.param(AUTUMN_IN_BOTH, id="autumn in both"),
    ],
)
async def test_a_week_fires_exactly_the_expected_triggers(tmp_path: Path, week: Week) -> None:
    diary = Diary(tmp_path, week)
    gone, back = week.away
    await diary.live(week.begin, week.restart, first=True)
    await diary.live(week.restart, gone)
    await diary.live(back, week.end)
    wanted = [line.strip() for line in week.comes.strip().splitlines()]
    assert sorted(diary.lines) == wanted
    missed = {text for text in diary.posted if text.startswith("I missed ")}
    assert {text.split("”")[0] for text in missed} == {"I missed “too late", "I missed “file:never.json"}
    answers = Counter(text for text in diary.posted if text not in missed)
    assert answers == Counter(line[12:] for line in wanted), "each is answered in the chat, once"
    events = tmp_path / "data" / "events"
    assert files_in(events) == ["noon.json"]
    assert files_in(events / "done") == ["six.json"]
    assert files_in(events / "failed") == ["never.json", "never.json.reason.txt"]
    assert diary.missed == {"too late", "file:never.json"}
