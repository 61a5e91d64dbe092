"""Trigger times across clock changes, compared with a minute-by-minute evaluation of cron lines."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.schedules import (
    check,
    cron_times,
    first_time,
    in_words,
    next_after,
    single_time,
    times_by_day,
)
from shoal.kernel.errors import InvalidInput
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author

OWNER = Author("owner", trusted=True)
NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
THREAD = ThreadId("web:lobby:a")

# Clock changes of an hour, of half an hour, at midnight and in the southern hemisphere, and a zone without any. Each
# date is the UTC day of the change.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 3, 8, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 11, 1, tzinfo=UTC)),
    ("Pacific/Chatham", datetime(2026, 9, 26, tzinfo=UTC)),
    ("America/St_Johns", datetime(2026, 11, 1, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 5, 1, tzinfo=UTC)),
    ("UTC", datetime(2026, 2, 28, tzinfo=UTC)),
]

NUMBERS = st.sampled_from(["0", "15", "30", "45", "5,35", "*/20", "*", "10-12", "59"])
HOURS = st.sampled_from(["*", "0", "1", "2", "3", "1,2", "0-3", "*/2", "23"])
DAYS = st.sampled_from(["*", "*/2", "29", "1-15"])
WEEKDAYS = st.sampled_from(["*", "0", "1-5", "SUN"])
LINES = st.builds(" ".join, st.tuples(NUMBERS, HOURS, DAYS, st.just("*"), WEEKDAYS))


def periodic(line: str, zone: str = "UTC") -> NewTrigger:
    return NewTrigger(
        "periodic", line, "do it", thread=THREAD, timezone=zone, author=Author("owner", trusted=True), tainted_by=""
    )


def one_shot(at: str, zone: str = "UTC") -> NewTrigger:
    return NewTrigger(
        "one-shot", at, "do it", thread=THREAD, timezone=zone, author=Author("owner", trusted=True), tainted_by=""
    )


def values(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.replace("SUN", "0").split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        bounds = (low, high) if span == "*" else (int(first), int(last or first))
        found.update(range(bounds[0], bounds[1] + 1, int(step or 1)))
    return found


def matches(line: str, wall: datetime) -> bool:
    minute, hour, day, _, weekday = line.split()
    by_day = wall.day in values(day, 1, 31)
    by_weekday = wall.isoweekday() % 7 in values(weekday, 0, 6)
    either = not (day.startswith("*") or weekday.startswith("*"))
    return (
        wall.minute in values(minute, 0, 59)
        and wall.hour in values(hour, 0, 23)
        and ((by_day or by_weekday) if either else (by_day and by_weekday))
    )


def read_minute_by_minute(line: str, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """Return every matching instant in (start, end] by checking each minute of local time."""
    found: set[datetime] = set()
    at, wall_before = start, start.astimezone(zone).replace(tzinfo=None)
    while at < end:
        at += timedelta(minutes=1)
        local = at.astimezone(zone)
        wall = local.replace(tzinfo=None)
        every_hour = line.split()[1] == "*"
        if matches(line, wall) and (every_hour or local.fold == 0):
            found.add(at)
        skipped = wall_before + timedelta(minutes=1)
        while not every_hour and skipped < wall:
            if matches(line, skipped):
                found.add(at)
            skipped += timedelta(minutes=1)
        wall_before = wall
    return sorted(found)


@settings(max_examples=120, deadline=None)
@given(LINES, st.sampled_from(CHANGES), st.integers(-30 * 60, 30 * 60))
def test_cron_times_match_a_minute_by_minute_search(line: str, change: tuple[str, datetime], minutes: int) -> None:
    name, day = change
    start = day + timedelta(minutes=minutes)
    end = start + timedelta(hours=40)
    spec, at, found = periodic(line, name), start, list[datetime]()
    while (later := next_after(spec, at)) is not None and later <= end:
        assert later > at
        found.append(later)
        at = later
    assert found == read_minute_by_minute(line, ZoneInfo(name), start, end)


@settings(max_examples=100, deadline=None)
@given(LINES, st.sampled_from(CHANGES), st.integers(-100_000, 100_000))
def test_the_next_time_does_not_depend_on_when_it_is_asked(
    line: str, change: tuple[str, datetime], seconds: int
) -> None:
    spec = periodic(line, change[0])
    asked = change[1] + timedelta(seconds=seconds)
    at = next_after(spec, asked)
    assert at is not None
    assert next_after(spec, at - timedelta(seconds=1)) == at
    assert next_after(spec, asked + (at - asked) / 2) == at


@pytest.mark.parametrize(
    ("line", "zone", "after", "expected"),
    [
        # 2:30 does not exist on this day: fires at 3:00
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", "2026-03-29T01:00Z"),
        # 1:30 occurs twice: fires the first time
        ("30 1 * * *", "America/New_York", "2026-11-01T04:00Z", "2026-11-01T05:30Z"),
        # computed during the repeated hour
        ("30 1 * * *", "America/New_York", "2026-11-01T06:10Z", "2026-11-02T06:30Z"),
        ("30 1 * * *", "America/New_York", "2026-11-01T05:30Z", "2026-11-02T06:30Z"),
        ("30 * * * *", "America/New_York", "2026-11-01T05:30Z", "2026-11-01T06:30Z"),  # fires in the repeated hour too
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00Z", "2026-10-03T15:30Z"),  # the clock skips half an hour
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00Z", "2026-04-04T14:45Z"),
        ("0 0 * * *", "America/Havana", "2026-03-07T12:00Z", "2026-03-08T05:00Z"),  # midnight does not exist
        ("0 9 * * 1-5", "Asia/Kathmandu", "2026-05-01T12:00Z", "2026-05-04T03:15Z"),
        ("@daily", "UTC", "2026-05-01T00:00Z", "2026-05-02T00:00Z"),
        ("0 0 29 2 *", "UTC", "2026-05-01T00:00Z", "2028-02-29T00:00Z"),
    ],
)
def test_cron_times_follow_clock_changes(line: str, zone: str, after: str, expected: str) -> None:
    assert next_after(periodic(line, zone), datetime.fromisoformat(after)) == datetime.fromisoformat(expected)


def test_a_rare_cron_line_has_a_next_time_and_an_impossible_one_is_refused() -> None:
    assert next_after(periodic("0 0 * 2 MON#5"), datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2044, 2, 29, tzinfo=UTC)
    with pytest.raises(InvalidInput, match=r"has an invalid day-of-month"):
        check(periodic("0 0 30 2 *"))


# ---- single times ----


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-05-04T09:00", "Europe/Berlin", "2026-05-04T07:00Z"),
        ("2026-05-04T09:00+05:30", "Europe/Berlin", "2026-05-04T03:30Z"),
        ("2026-05-04T09:00:00Z", "Europe/Berlin", "2026-05-04T09:00Z"),
        ("2026-05-04", "UTC", "2026-05-04T00:00Z"),
        ("2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:00Z"),
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30Z"),
        ("2026-10-04T02:10", "Australia/Lord_Howe", "2026-10-03T15:30Z"),
    ],
)
def test_one_time_schedules_are_parsed(text: str, zone: str, expected: str) -> None:
    assert single_time(text, ZoneInfo(zone)) == datetime.fromisoformat(expected)


def test_a_one_time_trigger_runs_once() -> None:
    spec = one_shot("2026-05-04T09:00")
    at = next_after(spec, NOW)
    assert at is not None
    assert at == datetime(2026, 5, 4, 9, tzinfo=UTC)
    assert next_after(spec, at) is None


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (
            NewTrigger(
                "periodic", "* * * * *", " ", thread=THREAD, author=Author("owner", trusted=True), tainted_by=""
            ),
            "text is empty",
        ),
        (
            NewTrigger(
                "periodic",
                "* * * * *",
                "x" * 20_001,
                thread=THREAD,
                author=Author("owner", trusted=True),
                tainted_by="",
            ),
            "at most 20000",
        ),
        (
            NewTrigger("periodic", "* * * * *", "x", author=Author("owner", trusted=True), tainted_by=""),
            "Specify either",
        ),
        (
            NewTrigger(
                "periodic",
                "* * * * *",
                "x",
                thread=THREAD,
                platform="slack",
                channel="C",
                author=Author("owner", trusted=True),
                tainted_by="",
            ),
            "Specify either",
        ),
        (
            NewTrigger(
                "periodic", "* * * * *", "x", platform="slack", author=Author("owner", trusted=True), tainted_by=""
            ),
            "Specify either",
        ),
        (
            NewTrigger("periodic", "* * * *", "x", thread=THREAD, author=Author("owner", trusted=True), tainted_by=""),
            "needs five fields",
        ),
        (
            NewTrigger(
                "periodic", "0 * * * * *", "x", thread=THREAD, author=Author("owner", trusted=True), tainted_by=""
            ),
            "needs five fields",
        ),
        (
            NewTrigger("one-shot", "soon", "x", thread=THREAD, author=Author("owner", trusted=True), tainted_by=""),
            "is not a time",
        ),
        (one_shot("2026-01-05T09:00"), "has passed"),
        (one_shot("2027-01-01", "Europe/Berln"), "not known. Did you mean Europe/Berlin"),
        (one_shot("2027-01-01", "../../etc/passwd"), "not known"),
    ],
)
def test_invalid_triggers_are_refused(spec: NewTrigger, what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        first_time(spec, NOW)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 9 * * 1-5", "every weekday at 9:00"),
        ("0 9 * * *", "every day at 9:00"),
        ("@daily", "every day at 0:00"),
        ("30 18 * * 6,0", "every weekend at 18:30"),
        ("0 10 * * 1,3,5", "every Monday, Wednesday, and Friday at 10:00"),
        ("0 9 1 * *", "on the first day of every month at 9:00"),
        ("0 9 * * 1#2", "on the second Monday of the month at 9:00"),
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/20 * * * *", "every 20 minutes"),
        ("0 */2 * * *", "every 2 hours"),
        ("30 */4 * * *", "every 4 hours at minute 30"),
        ("*/15 9-17 * * 1-5", "every 15 minutes from 9:00 to 17:59 on weekdays"),
        ("0 9-17 * * *", "every hour from 9:00 to 17:00"),
        ("0 9-17/2 * * 6,0", "every 2 hours from 9:00 to 17:00 at weekends"),
        ("5 * * * *", "at minute 5 of every hour"),
        ("5-10 * * * *", "at minutes 5 to 10 of every hour"),
        ("@hourly", "at the start of every hour"),
        ("0 9,18 * * *", "every day at 9:00 and 18:00"),
        ("0 9 * * 1", "every Monday at 9:00"),
        ("0 9 1,15 * *", "on the first and the 15th day of every month at 9:00"),
        ("0 6 */2 * *", "on every second day of every month at 6:00"),
        ("0 6 1-7 * *", "on days 1 to 7 of every month at 6:00"),
        ("0 9 L * *", "on the last day of every month at 9:00"),
        ("0 9 13 * 5", "on the 13th day of every month and every Friday at 9:00"),
        ("0 9 * 6-8 *", "every day from June to August at 9:00"),
        ("0 9 * 1,7 *", "every day in January and July at 9:00"),
        ("59 23 31 12 *", "every year on December 31 at 23:59"),
        ("0 9 1 1,4,7,10 *", "on the first day of January, April, July, and October at 9:00"),
        ("no cron line", "no cron line"),
    ],
)
def test_a_cron_line_is_described_in_plain_words(line: str, words: str) -> None:
    assert in_words(line) == words


def test_a_calendar_lists_the_first_times_of_each_day() -> None:
    until, zone = NOW + timedelta(days=7), ZoneInfo("Europe/Berlin")

    def times(cron: str) -> tuple[list[datetime], bool]:
        spec = NewTrigger("periodic", cron, "x", thread=THREAD, author=OWNER, tainted_by="", timezone="Europe/Berlin")
        return times_by_day(spec, NOW, until, zone, 4)

    weekdays, is_cut = times("0 9 * * 1-5")
    assert [at.strftime("%a %H:%M") for at in weekdays] == [
        f"{day} 08:00" for day in ("Tue", "Wed", "Thu", "Fri", "Mon")
    ]
    assert not is_cut
    assert times_by_day(one_shot("2026-01-06T09:00"), NOW, until, zone, 4) == ([NOW + timedelta(days=1)], False)
    assert times_by_day(one_shot("2026-02-06T09:00"), NOW, until, zone, 4) == ([], False)


@given(
    st.sampled_from(
        ("* * * * *", "*/20 * * * *", "*/7 9-17 * * 1-5", "0 */3 * * *", "30 2 * * *", "5 0,1,2,3,23 * * *")
    ),
    st.sampled_from(("Europe/Berlin", "UTC", "Pacific/Auckland", "Asia/Kolkata")),
    st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001
    st.integers(1, 5),
)
def test_a_calendar_has_every_time_of_the_cron_line(cron: str, name: str, after: datetime, day_max: int) -> None:
    spec = NewTrigger("periodic", cron, "x", thread=THREAD, author=OWNER, tainted_by="", timezone="Europe/Berlin")
    zone, until = ZoneInfo(name), after + timedelta(days=3)
    each: dict[date, list[datetime]] = {}
    for at in cron_times(cron, ZoneInfo("Europe/Berlin"), after):
        if at >= until:
            break
        if at > after:
            each.setdefault(at.astimezone(zone).date(), []).append(at)
    first = [at for times in each.values() for at in times[:day_max]]
    is_cut = any(len(times) > day_max for times in each.values())
    assert times_by_day(spec, after, until, zone, day_max) == (first, is_cut)
