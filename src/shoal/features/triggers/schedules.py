"""Compute when triggers fire, from cron lines or single times in a time zone.

If a clock change skips a local time, the trigger fires at the end of the gap. If a local time occurs twice, the trigger
fires only the first time. A cron line whose hour is `*` counts elapsed hours, so it fires in both occurrences of a
repeated hour.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING

from shoal.features.triggers.records import NewTrigger
from shoal.kernel import lazy_re
from shoal.kernel.clock import iso
from shoal.kernel.errors import InvalidId, InvalidInput
from shoal.kernel.ids import unopened
from shoal.kernel.zones import zone_named

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from cronsim import CronSim


TEXT_CHARS_MAX = 20_000

YEARS_MAX = 50
"""Maximum number of years between now and a scheduled time."""

MACROS: Mapping[str, str] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
SCHEDULE_CHARS_MAX = 200
WORDS_KEPT = 2_000
"""Maximum number of cached descriptions of cron lines."""
EXAMPLES = '"in 90 minutes", "tomorrow at 9" or "every weekday at 8:30"'


def next_after(spec: NewTrigger, after: datetime) -> datetime | None:
    """Return the next time after `after`, in UTC, or None if the schedule never fires again.

    Raises InvalidInput for an invalid schedule or time zone.
    """
    zone = zone_named(spec.timezone)
    if spec.kind == "one-shot":
        at = single_time(spec.schedule, zone)
        return at if at > after else None
    return next_cron(spec.schedule, spec.timezone, after)


def times_by_day(
    spec: NewTrigger, after: datetime, until: datetime, zone: "ZoneInfo", day_max: int
) -> tuple[list[datetime], bool]:
    """Return the times between `after` and `until`, at most the first `day_max` of each day in `zone`.

    The second value is True if a day has more times. Raises InvalidInput.
    """
    if spec.kind == "one-shot":
        at = next_after(spec, after)
        return ([at] if at is not None and at < until else []), False
    times: list[datetime] = []
    is_cut = False
    own_zone, start = zone_named(spec.timezone), after
    while start < until:
        day_end, in_day = after, 0
        for at in takewhile(lambda at: at < until, cron_times(spec.schedule, own_zone, start)):
            if at <= start:
                continue
            if at >= day_end:
                day_end, in_day = instant(datetime.combine(at.astimezone(zone) + timedelta(days=1), time()), zone), 0
            in_day += 1
            if in_day > day_max:  # skip the rest of the day
                is_cut, start = True, day_end - timedelta(seconds=1)
                break
            times.append(at)
        else:
            break
    return times, is_cut


def next_cron(schedule: str, timezone: str, after: datetime) -> datetime | None:
    return next((at for at in cron_times(schedule, zone_named(timezone), after) if at > after), None)


def first_time(spec: NewTrigger, now: datetime) -> datetime:
    """Validate a new trigger and return its first time. Raises InvalidInput if the trigger is invalid or never
    fires.
    """
    check(spec)
    at = next_after(spec, now)
    if at is None and spec.kind == "one-shot":
        raise InvalidInput(f"The time {spec.schedule} has passed: it is now {iso(now)}. Specify a later time.")
    if at is None:
        raise InvalidInput(f"The cron line {spec.schedule!r} never fires. Check its day and month.")
    return at


def check(spec: NewTrigger) -> None:
    """Raise InvalidInput for an invalid text, target, time zone or schedule. A time in the past is valid."""
    if not spec.text.strip():
        raise InvalidInput("The trigger's text is empty. Describe what the agent should do.")
    if len(spec.text) > TEXT_CHARS_MAX:
        raise InvalidInput(
            f"A trigger's text may have at most {TEXT_CHARS_MAX} characters, but this one has {len(spec.text)}."
        )
    if (spec.thread is None) != bool(spec.platform and spec.channel):
        raise InvalidInput("Specify either a thread or a channel for the trigger.")
    if spec.thread is None:
        try:
            unopened(spec.platform, spec.channel)
        except InvalidId as error:
            raise InvalidInput(str(error)) from None
    zone = zone_named(spec.timezone)
    if spec.kind == "one-shot":
        single_time(spec.schedule, zone)
    else:
        simulation_of(spec.schedule, datetime(2000, 1, 1))  # noqa: DTZ001 (a wall time; only the line is checked)


def single_time(text: str, zone: "ZoneInfo") -> datetime:
    """Parse an ISO 8601 time and convert it to UTC. A time without an offset is local to `zone`. Raises
    InvalidInput.
    """
    try:
        at = datetime.fromisoformat(text.strip())
        return at.astimezone(UTC) if at.tzinfo is not None else instant(at, zone)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{text[:80]!r} is not a time. Use an ISO 8601 time such as 2026-05-04T09:00.") from None


def cron_times(line: str, zone: "ZoneInfo", after: datetime) -> Iterator[datetime]:
    """Yield the times of a cron line in ascending order. The first times can be at or shortly before `after`."""
    wall = after.astimezone(zone).replace(tzinfo=None)
    simulation = simulation_of(line, wall)
    if simulation.parts[2] == "*":
        return _hourly(simulation, zone, after)
    return (instant(moment, zone) for moment in simulation)


def _hourly(simulation: "CronSim", zone: "ZoneInfo", after: datetime) -> Iterator[datetime]:
    """Yield each minute whose local time matches the cron line, for at most YEARS_MAX years.

    CronSim is not used here, because it can skip a time or go back within a repeated half hour.
    """
    at = after.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    end = after + timedelta(days=366 * YEARS_MAX)
    while at < end:
        local = at.astimezone(zone)
        if local.month in simulation.months and simulation.match_day(local.date()):
            if local.minute in simulation.minutes:
                yield at
            at += timedelta(minutes=1)
        else:
            at = instant(datetime.combine(local.date() + timedelta(days=1), time()), zone)


def simulation_of(line: str, start: datetime) -> "CronSim":
    """Return an iterator over the local times of a cron line or a macro such as `@daily`. Raises InvalidInput."""
    from cronsim import CronSim, CronSimError

    expression = MACROS.get(line.strip().lower(), line)
    if len(line) > SCHEDULE_CHARS_MAX:
        raise InvalidInput(
            f"A cron line may have at most {SCHEDULE_CHARS_MAX} characters, but {line[:40]!r}… has {len(line)}."
        )
    if len(expression.split()) != 5:
        raise InvalidInput(
            f"The cron line {line[:80]!r} needs five fields (minute hour day month weekday) or one of "
            f"{', '.join(MACROS)}."
        )
    try:
        return CronSim(expression, start)
    except (CronSimError, ValueError) as error:  # ValueError for a number with thousands of digits
        reason = str(error).lower().removeprefix("bad ") if isinstance(error, CronSimError) else "number"
        raise InvalidInput(f"The cron line {line[:80]!r} has an invalid {reason}.") from None


_AT = lazy_re.compile(r"At (?P<times>[\d:]++(?:(?:, | and )[\d:]++)*+)(?P<days> .+)")
_ORDINALS = ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
_EVERY = lazy_re.compile(rf"\bevery (?:({'|'.join(_ORDINALS)})|(\d+)\w\w) (minute|hour)\b", re.IGNORECASE)
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_PLAINER = (
    (r"\b0(\d:)", r"\1"),
    (r"^At minute 0 past |(?<=minute|inutes) of every hour$", ""),
    (r"^At minute (\d+) past (every \d+ hours)", r"\2 at minute \1"),
    (r"^Every minute from (\d+) through (\d+) of every hour", r"at minutes \1 to \2 of every hour"),
    (r"(?<=hour|ours) from (\d+) through (\d+)\b", r" from \1:00 to \2:00"),
    (r"(?<=\d:00) through (?=\d\d?:59)", " to "),
    (r"\bon every day of month from (\d+) through (\d+)", r"on days \1 to \2 of every month"),
    (r"\bday of month\b", "day of every month"),
    (r"\bin every month from (\w+) through (\w+)", r"every day from \1 to \2"),
    (rf"(?<!every year )\bon ({_MONTHS}) (\d+)", r"every year on \1 \2"),
    (r"\band on (\w+day)\b", r"and every \1"),
    (r" on Monday through Friday$", " on weekdays"),
    (r" on Saturday and Sunday$", " at weekends"),
    (r"\bon Monday through Friday\b", "every weekday"),
    (r"\bon Saturday and Sunday\b", "every weekend"),
)
"""Replacements that turn phrases of the cron library into everyday English."""


@lru_cache(maxsize=WORDS_KEPT)
def in_words(schedule: str) -> str:
    """Describe a cron line, for example as "every weekday at 9:00". Returns an invalid line unchanged."""
    expression = MACROS.get(schedule.strip().lower(), schedule)
    try:
        text = simulation_of(expression, datetime(2000, 1, 1)).explain()  # noqa: DTZ001 (only the line counts)
    except InvalidInput:
        return schedule
    text = _EVERY.sub(lambda match: f"every {match[2] or _ORDINALS.index(match[1].lower()) + 2} {match[3]}s", text)
    if (at_match := _AT.fullmatch(text)) is not None:
        text = f"{at_match['days'].strip()} at {at_match['times']}"
    for pattern, plainer in _PLAINER:
        text = re.sub(pattern, plainer, text)
    text = re.sub(r"^on (\w+day(?:(?:, and |, | and )\w+day)*)(?= at )", r"every \1", text)
    return text[:1].lower() + text[1:]


def instant(wall: datetime, zone: "ZoneInfo") -> datetime:
    """Convert a local time to UTC. A repeated time is converted to its first occurrence, a skipped time to the end of
    the gap.
    """
    at = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) == wall:
        return at
    # The local time is in a gap. `at` is after the clock change, and `before` precedes it.
    before, offset = wall.replace(tzinfo=zone, fold=1).astimezone(UTC), at.astimezone(zone).utcoffset()
    while at - before > timedelta(seconds=1):  # bisect to find the clock change, to the second
        middle = before + timedelta(seconds=int((at - before).total_seconds()) // 2)
        if middle.astimezone(zone).utcoffset() == offset:
            at = middle
        else:
            before = middle
    return at
