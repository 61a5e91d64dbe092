"""Times in plain words: accepted forms, rejected forms, and no error other than InvalidInput for any text."""

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.features.triggers.schedules import next_cron
from shoal.features.triggers.when import When, parse_reminder, parse_schedule, parse_when
from shoal.kernel.errors import InvalidInput

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 1, 5, 9, 20, tzinfo=UTC)
"""A Monday; 10:20 in Berlin."""


def said(text: str, now: datetime = NOW) -> str:
    found = parse_when(text, "Europe/Berlin", now)
    if found.kind == "periodic":
        return found.schedule
    return f"{datetime.fromisoformat(found.schedule).astimezone(BERLIN):%a %d %b %Y %H:%M}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in 1h30m", "Mon 05 Jan 2026 11:50"),
        ("in 90 minutes", "Mon 05 Jan 2026 11:50"),
        ("in an hour and a half", "Mon 05 Jan 2026 11:50"),
        ("in 1 hour and 30 minutes", "Mon 05 Jan 2026 11:50"),
        ("In  two hours", "Mon 05 Jan 2026 12:20"),
        ("in half an hour", "Mon 05 Jan 2026 10:50"),
        ("in a minute", "Mon 05 Jan 2026 10:21"),
        ("10 minutes from now", "Mon 05 Jan 2026 10:30"),
        ("10m", "Mon 05 Jan 2026 10:30"),
        ("in 3 days at 9", "Thu 08 Jan 2026 09:00"),
        ("in 1 month", "Thu 05 Feb 2026 10:20"),
        ("in a fortnight", "Mon 19 Jan 2026 10:20"),
        ("in 10 Minuten", "Mon 05 Jan 2026 10:30"),
        ("at 9", "Tue 06 Jan 2026 09:00"),
        ("at 17:00", "Mon 05 Jan 2026 17:00"),
        ("9 Uhr", "Tue 06 Jan 2026 09:00"),
        ("12 a.m.", "Tue 06 Jan 2026 00:00"),
        ("12 p.m.", "Mon 05 Jan 2026 12:00"),
        ("noon", "Mon 05 Jan 2026 12:00"),
        ("midnight", "Tue 06 Jan 2026 00:00"),
        ("at half past 3 in the afternoon", "Mon 05 Jan 2026 15:30"),
        ("tonight at 8", "Mon 05 Jan 2026 20:00"),
        ("8 tonight", "Mon 05 Jan 2026 20:00"),
        ("tonight at 1", "Tue 06 Jan 2026 01:00"),
        ("tomorrow at 9", "Tue 06 Jan 2026 09:00"),
        ("9am tomorrow", "Tue 06 Jan 2026 09:00"),
        ("tomorrow evening at 7", "Tue 06 Jan 2026 19:00"),
        ("the day after tomorrow at noon", "Wed 07 Jan 2026 12:00"),
        ("morgen um 9 Uhr", "Tue 06 Jan 2026 09:00"),
        ("monday at 9", "Mon 12 Jan 2026 09:00"),
        ("monday 11am", "Mon 05 Jan 2026 11:00"),
        ("next monday at 11", "Mon 12 Jan 2026 11:00"),
        ("next friday 10:00", "Fri 09 Jan 2026 10:00"),
        ("on 24 December at 18:00", "Thu 24 Dec 2026 18:00"),
        ("December 24, 2026 at 6pm", "Thu 24 Dec 2026 18:00"),
        ("24.12. um 18 Uhr", "Thu 24 Dec 2026 18:00"),
        ("3 january at 9", "Sun 03 Jan 2027 09:00"),
        ("29 february at 9", "Tue 29 Feb 2028 09:00"),
        ("the 31st at 9", "Sat 31 Jan 2026 09:00"),
        ("2026-12-24 18:00", "Thu 24 Dec 2026 18:00"),
        ("2026-12-24 at 6pm", "Thu 24 Dec 2026 18:00"),
        ("2026-12-24T18:00Z", "Thu 24 Dec 2026 19:00"),
        ("tomorrow at 9 UTC", "Tue 06 Jan 2026 10:00"),
        ("tomorrow at 9 america/new_york", "Tue 06 Jan 2026 15:00"),
        ("@midnight", "@midnight"),
        ("@annually", "@annually"),
        ("every day at 9", "0 9 * * *"),
        ("daily at noon", "0 12 * * *"),
        ("9am daily", "0 9 * * *"),
        ("every day at 9 and 5pm", "0 9,17 * * *"),
        ("every evening at 8", "0 20 * * *"),
        ("every weekday at 8:30", "30 8 * * 1-5"),
        ("weekdays 7pm", "0 19 * * 1-5"),
        ("every weekend at 10", "0 10 * * 6,0"),
        ("every monday at 9am", "0 9 * * 1"),
        ("mondays and fridays at 9", "0 9 * * 1,5"),
        ("mon-fri 9:00", "0 9 * * 1-5"),
        ("every 2 hours", "0 */2 * * *"),
        ("every 15 min", "*/15 * * * *"),
        ("every half hour on weekdays", "*/30 * * * 1-5"),
        ("hourly", "0 * * * *"),
        ("monthly on the 15th at 10:00", "0 10 15 * *"),
        ("first monday of every month at 9", "0 9 * * 1#1"),
        ("the last day of every month at 17:00", "0 17 L * *"),
        ("every year on 24 december at 18:00", "0 18 24 12 *"),
        ("jeden Montag um 9", "0 9 * * 1"),
        ("0 9 * * 1-5", "0 9 * * 1-5"),
    ],
)
def test_the_usual_forms_are_parsed(text: str, expected: str) -> None:
    assert said(text) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "found no time"),
        ("soon", '"in 90 minutes", "tomorrow at 9" or "every weekday at 8:30"'),
        ("in a few minutes", "found no time"),
        ("12/24/2026 18:00", "found no time"),
        ("at 25:00", "found no time"),
        ("at 13pm", "found no time"),
        ("tomorrow morning at 15:00", "Add a time|found no time"),
        ("30 february at 9", "found no time"),
        ("2026-02-30 09:00", "found no time"),
        ("tomorrow", "Add a time to 'tomorrow'"),
        ("every day", "Add a time to 'every day'"),
        ("weekly", "Add a day and a time"),
        ("every 7 minutes", "does not divide an hour or a day evenly"),
        ("every 2 days at 9", "does not divide an hour or a day evenly"),
        ("every day at 9:00 and 17:30", "same minute of the hour"),
        ("today at 9", "has passed"),
        ("2026-01-05T08:00Z", "has passed"),
        ("in 0 minutes", "has passed"),
        ("in 999999 years", "too far in the future"),
        ("tomorrow at 9 PST", "Did you mean America/Los_Angeles"),
        ("@reboot", "unknown. Allowed: @hourly"),
        ("* * * *", "needs five fields"),
        ("61 * * * *", "invalid minute"),
        ("9" * 5_000 + " * * * *", "needs five fields"),
        ("at 9 " * 30, "found no time"),
    ],
)
def test_an_unknown_form_is_refused_with_examples(text: str, what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        parse_when(text, "Europe/Berlin", NOW)


@pytest.mark.parametrize(
    ("argument", "when", "text"),
    [
        ("in 10 minutes stretch", "2026-01-05T09:30:00.000Z", "stretch"),
        ("me in an hour call Bob\nand Ann", "2026-01-05T10:20:00.000Z", "call Bob\nand Ann"),
        ("in 5 minutes a second look", "2026-01-05T09:25:00.000Z", "a second look"),
        ("tomorrow at 9 9 people come", "2026-01-06T08:00:00.000Z", "9 people come"),
        ("2026-05-04T09:00 Europe/London stand up", "2026-05-04T08:00:00.000Z", "stand up"),
        ("every monday at 9 take 2 pills", "0 9 * * 1", "take 2 pills"),
        ("0 9 * * MON#2 UTC meet", "0 9 * * MON#2", "meet"),
        ("@daily  look", "@daily", "look"),
        ("at 18:00 work/life balance", "2026-01-05T17:00:00.000Z", "work/life balance"),
    ],
)
def test_the_time_and_the_text_are_separated(argument: str, when: str, text: str) -> None:
    found = parse_reminder(argument, "Europe/Berlin", NOW)
    assert (found.when.schedule, found.text) == (when, text)


@pytest.mark.parametrize(
    "argument", ["soon stretch", "in 10 minutes", "@sometimes look", "0 9 * * 1-5", "@daily Europe/Atlantis look"]
)
def test_a_missing_time_or_text_is_refused(argument: str) -> None:
    with pytest.raises(InvalidInput):
        parse_reminder(argument, "UTC", NOW)


def test_times_skipped_or_repeated_by_clock_changes_are_resolved() -> None:
    """In Berlin, the hour from 2:00 to 3:00 is skipped in spring and repeated in autumn."""
    assert said("tomorrow at 2:30", datetime(2026, 3, 28, 12, tzinfo=UTC)) == "Sun 29 Mar 2026 03:00"
    autumn = parse_when("tomorrow at 2:30", "Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert autumn.schedule == "2026-10-25T00:30:00.000Z"
    assert said("in 1 day", datetime(2026, 3, 28, 12, tzinfo=UTC)) == "Sun 29 Mar 2026 13:00"
    assert said("in 24 hours", datetime(2026, 3, 28, 12, tzinfo=UTC)) == "Sun 29 Mar 2026 14:00"


def test_a_schedule_must_match_its_kind() -> None:
    assert parse_schedule("one-shot", "2020-01-01", "UTC", NOW) == When("one-shot", "2020-01-01", "UTC")
    assert parse_schedule("periodic", "every day at 9", "UTC", NOW).schedule == "0 9 * * *"
    with pytest.raises(InvalidInput, match="one-shot schedule, but this trigger is periodic"):
        parse_schedule("periodic", "tomorrow at 9", "UTC", NOW)


ZONES = st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "UTC"])
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 23), st.integers(0, 59), ZONES, MOMENTS)
def test_a_time_without_a_date_means_its_next_occurrence(hour: int, minute: int, zone: str, now: datetime) -> None:
    at = datetime.fromisoformat(parse_when(f"at {hour}:{minute:02d}", zone, now).schedule)
    assert now < at <= now + timedelta(hours=26)
    line = next_cron(f"{minute} {hour} * * *", zone, now)
    assert line is not None
    assert at == line


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 500), st.sampled_from([("minutes", 60), ("m", 60), ("hours", 3600), ("h", 3600), ("s", 1)]))
def test_a_wait_has_the_stated_length(count: int, unit: tuple[str, int]) -> None:
    word, seconds = unit
    space = "" if len(word) == 1 else " "
    found = parse_when(f"in {count}{space}{word}", "Europe/Berlin", NOW)
    assert datetime.fromisoformat(found.schedule) == NOW + timedelta(seconds=count * seconds)


WORDS = st.sampled_from([
    "in", "at", "on", "every", "day", "days", "9", "9am", "24", "12:30", "tomorrow", "monday", "mon-fri", "and",
    "half", "an", "hour", "hours", "the", "1st", "of", "month", "last", "next", "tonight", "noon", "to", "-",
    "1h30m", "*", "*/5", "@daily", "@", "2026-12-24", "2026", "december", "24.12.", "UTC", "Europe/Berlin", "week",
    "weekly", "from", "now", ",", "٣", "²", "0", "99999999", "feb", "29", "5", "evening", "morning", "past",
    "quarter",
])  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=250), st.lists(WORDS, max_size=12).map(" ".join)))
def test_any_text_is_parsed_or_raises_invalid_input(text: str) -> None:
    errors: list[str] = []
    for read in (parse_when, parse_reminder):
        try:
            read(text, "Europe/Berlin", NOW)
        except InvalidInput as error:
            errors.append(str(error))
    assert all(len(error) < 700 for error in errors)


def test_long_texts_are_parsed_in_linear_time() -> None:
    took: list[float] = []
    for text in ("in 1 " * 20, "0 " * 2_000_000, "every " * 1_000_000, "at 9 and " * 1_000_000, "1" * 5_000_000):
        began = time.process_time()
        for read in (parse_when, parse_reminder):
            with suppress(InvalidInput):
                read(text, "UTC", NOW)
        took.append(time.process_time() - began)
    assert max(took) < 1.0
