"""Parse times as people and models write them.

Examples are "in 90 minutes", "tomorrow at 9", "every weekday at 8:30", a cron line and an ISO time. A phrase is parsed
from left to right with a lookahead of a few words, which takes linear time. A phrase has at most WORDS_MAX words.

| phrase                       | meaning                                                                             |
|------------------------------|-------------------------------------------------------------------------------------|
| in 90 minutes                | 90 minutes from now; days and longer units follow the calendar of the time zone     |
| at 9                         | the next 9:00, today or tomorrow                                                    |
| friday at 9, next friday at 9| the next Friday on which 9:00 is still ahead; with "next", never today              |
| 24 December at 18:00         | this year, or next year if that date has passed                                     |
| today at 9, 2026-12-24 18:00 | only that day; rejected if the time has passed                                      |
| every 15 minutes             | at :00, :15, :30 and :45 of each hour                                               |

A phrase may end with a time zone. `schedules.instant` converts local times that a clock change skips or repeats.
"""

import unicodedata
from calendar import monthrange
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import msgspec

from shoal.features.triggers.schedules import (
    EXAMPLES,
    MACROS,
    SCHEDULE_CHARS_MAX,
    YEARS_MAX,
    cron_times,
    instant,
    single_time,
)
from shoal.kernel.clock import iso
from shoal.kernel.errors import InvalidInput
from shoal.kernel.zones import ABBREVIATIONS, zone_named

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Found = TypeVar("Found")
Day = TypeVar("Day", "_Days", "_Dates")

WORDS_MAX = 40
REMIND_USAGE = (
    "`/remind WHEN TEXT`, `/remind list`, `/remind cancel ID`. WHEN can be, for example, `in 90 minutes`, "
    "`tomorrow at 9`, `every weekday at 8:30`, `24 December at 18:00`, `2026-05-04T09:00` or `0 9 * * "
    "1-5`. A time zone such as `Europe/Berlin` can follow WHEN."
)

Unit = Literal["second", "minute", "hour", "day", "week", "month", "year"]
_UNIT_WORDS: Mapping[Unit, str] = {
    "second": "s sec secs second seconds sekunde sekunden",
    "minute": "m min mins minute minutes minuten",
    "hour": "h hr hrs hour hours std stunde stunden",
    "day": "d day days tag tage tagen",
    "week": "w wk wks week weeks woche wochen",
    "month": "mo month months monat monate monaten",
    "year": "y yr yrs year years jahr jahre jahren",
}
_UNITS: Mapping[str, Unit] = {word: unit for unit, words in _UNIT_WORDS.items() for word in words.split()}
_SECONDS: Mapping[Unit, int] = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
_NUMBERS: Mapping[str, float] = {
    **{word: float(number) for number, word in enumerate(_NUMBER_WORDS)},
    **dict.fromkeys(("a", "an", "ein", "eine", "einer", "einem", "einen"), 1.0),
    "thirty": 30.0, "forty": 40.0, "forty-five": 45.0, "fifty": 50.0, "sixty": 60.0, "ninety": 90.0,
}  # fmt: skip
_DAY_WORDS = (
    "sunday sun sonntag so",
    "monday mon montag mo",
    "tuesday tue tues dienstag di",
    "wednesday wed mittwoch mi",
    "thursday thu thur thurs donnerstag do",
    "friday fri freitag fr",
    "saturday sat samstag sa",
)
_SHORT_GERMAN = {"so", "mo", "di", "mi", "do", "fr", "sa"}
"""Weekday abbreviations that are recognized only in a range such as Mo-Fr, because some of them are words in other
languages.
"""
_WEEKDAYS: Mapping[str, int] = {word: number for number, words in enumerate(_DAY_WORDS) for word in words.split()}
_MONTH_WORDS = (
    "january jan januar", "february feb februar", "march mar märz", "april apr", "may mai", "june jun juni",
    "july jul juli", "august aug", "september sep sept", "october oct oktober okt", "november nov",
    "december dec dezember dez",
)  # fmt: skip
_MONTHS: Mapping[str, int] = {word: number for number, words in enumerate(_MONTH_WORDS, 1) for word in words.split()}
_ORDINALS: Mapping[str, int] = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5}

Part = Literal["", "morning", "afternoon", "evening", "night"]
"""A part of the day, which decides whether 8 o'clock is in the morning or in the evening."""
_PARTS: Mapping[str, Part] = {"morning": "morning", "afternoon": "afternoon", "evening": "evening", "night": "night"}
_NO_PART: Part = ""
_TIME_WORDS = {"noon": 12, "midday": 12, "mittag": 12, "mittags": 12, "midnight": 0, "mitternacht": 0}
_EVERY = ("every", "each", "jeden", "jede", "jedes", "alle")
_ON = ("on", "am")


class When(msgspec.Struct, frozen=True):
    """A parsed schedule in the format of NewTrigger."""

    kind: Literal["one-shot", "periodic"]
    schedule: str
    timezone: str


class Reminder(NamedTuple):
    when: When
    text: str


def parse_when(text: str, timezone: str, now: datetime) -> When:
    """Parse a complete phrase. A time zone at its end overrides `timezone`.

    Raises InvalidInput if the phrase is not understood, or if its time is in the past or too far in the future.
    """
    words = text.split(None, WORDS_MAX)
    phrase = None
    if len(text) <= SCHEDULE_CHARS_MAX and len(words) <= WORDS_MAX:
        phrase = _PhraseReader(words, timezone, now).read()
    if phrase is None or phrase[1] < len(words):
        if words and "*" in text and all(set(word.lower()) <= _CRON_CHARS for word in words):
            raise InvalidInput(f"The cron line {text[:80]!r} needs five fields: minute hour day month weekday.")
        raise InvalidInput(_not_understood(" ".join(words)))
    return phrase[0]


def parse_schedule(kind: Literal["one-shot", "periodic"], text: str, timezone: str, now: datetime) -> When:
    """Parse the schedule of a trigger of this kind. An ISO time is stored as written and may be in the past.

    Raises InvalidInput for an invalid schedule or a schedule of the other kind.
    """
    if kind == "one-shot":
        with suppress(InvalidInput):
            single_time(text, zone_named(timezone))
            return When(kind, text.strip(), zone_named(timezone).key)
    phrase = parse_when(text, timezone, now)
    if phrase.kind != kind:
        raise InvalidInput(f"{text[:80]!r} is a {phrase.kind} schedule, but this trigger is {kind}.")
    return phrase


def parse_reminder(argument: str, timezone: str, now: datetime) -> Reminder:
    """Parse WHEN, an optional time zone, and TEXT. WHEN is the longest prefix that is a time. Raises InvalidInput."""
    words, starts, at = list[str](), list[int](), 0
    argument = argument.strip()
    head = argument[:SCHEDULE_CHARS_MAX]
    for word in head.split()[:WORDS_MAX]:
        at = head.index(word, at)
        starts.append(at)
        words.append(word)
        at += len(word)
    skipped = 1 if words[:1] and words[0].lower() == "me" else 0
    phrase = _PhraseReader(words[skipped:], timezone, now).read()
    if phrase is None:
        raise InvalidInput(f"{_not_understood(' '.join(words))} Write the time first, then the text.")
    end = phrase[1] + skipped
    text = argument[starts[end] :].strip() if end < len(words) else argument[at:].strip()
    if not text:
        raise InvalidInput(f"Write the time first, then the text: {REMIND_USAGE}")
    return Reminder(phrase[0], text)


def _not_understood(text: str) -> str:
    return f"I found no time in {text[:80]!r}. Use a time such as {EXAMPLES}."


class _Clock(NamedTuple):
    """A time of day. `days` is 1 if the time is on the following day, as in "tonight at 1"."""

    hour: int
    minute: int
    days: int = 0


class _Days(NamedTuple):
    """The days of a recurrence as the last three fields of a cron line."""

    fields: str
    part: Part = ""


@dataclass(frozen=True)
class _Dates:
    """The candidate days of a phrase. `of` returns them relative to today's date, earliest first."""

    of: Callable[[date], Sequence[date]]
    part: Part = ""


class _PhraseReader:
    """Recursive-descent parser of one phrase. If a method returns None, `_try` restores the position."""

    def __init__(self, words: Sequence[str], timezone: str, now: datetime) -> None:
        self._written = words
        self._words = [_plain(word) for word in words]
        self._at: int = 0
        self._timezone = timezone
        self._now = now
        zone_named(timezone)

    def read(self) -> tuple[When, int] | None:
        """Parse the time at the start of the phrase. Return the time and the number of words it consists of."""
        after_cron = self._cron_words()
        if after_cron:
            line = " ".join(self._written[:after_cron])
            self._at = after_cron
            return self._periodic(line)
        for form in (self._iso, self._recurrence, self._wait, self._moment):
            result = self._try(form)
            if result is not None:
                return result
        return None

    # ---- words ----

    def _word(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._words[at] if at < len(self._words) else ""

    def _take(self, *options: str) -> str:
        word = self._word()
        if not word or word not in options:
            return ""
        self._at += 1
        return word

    def _take_all(self, phrase: str) -> bool:
        parts = phrase.split()
        if self._words[self._at : self._at + len(parts)] != parts:
            return False
        self._at += len(parts)
        return True

    def _try(self, form: Callable[[], Found | None]) -> Found | None:
        start = self._at
        result = form()
        if result is None:
            self._at = start
        return result

    # ---- results ----

    def _zone(self) -> str:
        written = self._written[self._at].strip(",()") if self._at < len(self._written) else ""
        is_name = written.partition("/")[0].lower() in _REGIONS and "/" in written
        is_offset = written[:4].upper() in ("UTC+", "UTC-", "GMT+", "GMT-")
        if not (is_name or is_offset or written in _ZONE_WORDS):
            return self._timezone
        self._at += 1
        return zone_named(written).key

    def _periodic(self, line: str) -> tuple[When, int]:
        timezone = self._zone()
        if next(cron_times(line, zone_named(timezone), self._now), None) is None:
            raise InvalidInput(f"The cron line {line!r} never fires. Check its day and month.")
        return When("periodic", line, timezone), self._at

    def _single(self, at_in: "Callable[[ZoneInfo], datetime]") -> tuple[When, int]:
        start, timezone = self._at, self._zone()
        try:
            at = at_in(zone_named(timezone))
            too_far = at - self._now > timedelta(days=366 * YEARS_MAX)
        except (OverflowError, ValueError):
            too_far = True
        else:
            if at <= self._now:
                written = " ".join(self._written[:start])
                raise InvalidInput(f"The time {written} has passed: it is now {iso(self._now)}. Specify a later time.")
            if not too_far:
                return When("one-shot", iso(at), timezone), self._at
        written = " ".join(self._written[:start])
        raise InvalidInput(f"{written} is too far in the future. The limit is {YEARS_MAX} years.")

    # ---- cron lines and ISO times ----

    def _cron_words(self) -> int:
        first = self._word()
        if first in MACROS:
            return 1
        if first.startswith("@") and first[1:2].isalpha() and first != "@every":
            raise InvalidInput(f"{first[:40]!r} is unknown. Allowed: {', '.join(MACROS)}.")
        fields = self._words[:5]
        if len(fields) < 5 or not all(set(field) <= _CRON_CHARS for field in fields):
            return 0
        return 5 if all("*" in field or any(map(str.isdecimal, field)) for field in fields[:3]) else 0

    def _iso(self) -> tuple[When, int] | None:
        written = self._written[self._at].rstrip(",") if self._written else ""
        if not (written[:4].isdecimal() and (written[4:5] == "-" or written[8:9] == "T")):
            return None
        try:
            datetime.fromisoformat(written)
        except ValueError:
            if len(written) == 10:
                return None
            raise InvalidInput(_not_understood(written)) from None
        self._at += 1
        if len(written) > 10:
            return self._single(lambda zone: single_time(written, zone))
        clock = self._try(lambda: self._clock("", bare=True))
        if clock is None:
            second = self._word()
            if second[:2].isdecimal() and ":" in second:  # seconds or an offset: 18:00:30, 18:00+01:00
                whole = f"{written}T{second.upper()}"
                self._at += 1
                return self._single(lambda zone: single_time(whole, zone))
        wall = datetime.combine(date.fromisoformat(written), _time(clock) if clock else time())
        return self._single(lambda zone: instant(wall, zone))

    # ---- delays ----

    def _wait(self) -> tuple[When, int] | None:
        """Parse a delay: in 10 minutes, in 1h30m, in an hour and a half, in 3 days at 9, 10 minutes from now, 10m."""
        is_compact = _amounts(self._word()) is not None
        has_in = bool(self._take("in", "after"))
        lengths = self._lengths()
        if lengths is None:
            return None
        has_from = self._take_all("from now") or bool(self._take("later"))
        if not (has_in or has_from or is_compact):
            return None
        months = sum(round(count * (12 if unit == "year" else 1)) for count, unit in lengths if unit not in _SECONDS)
        days = sum(int(count) * (7 if unit == "week" else 1) for count, unit in lengths if unit in ("day", "week"))
        by_calendar = all(count == int(count) for count, unit in lengths if unit not in ("second", "minute", "hour"))
        if not by_calendar:
            days = 0
        seconds = sum(
            count * _SECONDS.get(unit, 0)
            for count, unit in lengths
            if unit in ("second", "minute", "hour") or not by_calendar
        )
        if months > YEARS_MAX * 12 or days > YEARS_MAX * 366 or seconds > YEARS_MAX * 366 * 86_400:
            raise InvalidInput(
                f"{' '.join(self._written[: self._at])} is too far in the future. The limit is {YEARS_MAX} years."
            )
        has_days = bool(months or days)
        clock = self._try(lambda: self._clock("", bare=False)) if has_days and not seconds else None

        def due(zone: "ZoneInfo") -> datetime:
            if not has_days:
                return self._now + timedelta(seconds=seconds)
            wall = self._now.astimezone(zone).replace(tzinfo=None)
            on = _months_later(wall.date(), months) + timedelta(days=days)
            at = instant(datetime.combine(on, _time(clock) if clock else wall.time()), zone)
            return at + timedelta(seconds=seconds)

        return self._single(due)

    def _lengths(self) -> list[tuple[float, Unit]] | None:
        """Parse amounts with units: 1 hour and 30 minutes, 1h30m, an hour and a half, half an hour."""
        amounts: list[tuple[float, Unit]] = []
        while len(amounts) < 6:
            start = self._at
            is_joined = bool(amounts and (self._take("and", "und", "&") or self._written[start - 1].endswith(",")))
            compact = _amounts(self._word())
            if compact is not None:
                self._at += 1
                amounts += compact
                continue
            # In "in 5 minutes a second look", "a second" belongs to the text.
            if amounts and not is_joined and not self._word()[:1].isdecimal():
                break
            amount = self._amount()
            unit = _UNITS.get(self._word()) if amount is not None else None
            if amounts and unit is None and self._words[start : start + 3] == ["and", "a", "half"]:
                self._at = start + 3
                amounts.append((amounts[-1][0] and 0.5, amounts[-1][1]))
                break
            if amount is None or unit is None:
                if amount is not None and self._word() == "fortnight":
                    unit, amount = "week", amount * 2
                else:
                    self._at = start
                    break
            self._at += 1
            amounts.append((amount, unit))
        return amounts or None

    def _amount(self) -> float | None:
        for phrase, value in _FRACTIONS:
            if self._take_all(phrase):
                return value
        word = self._word()
        if word in _NUMBERS:
            self._at += 1
            if self._take_all("and a half"):
                return _NUMBERS[word] + 0.5
            return _NUMBERS[word]
        number = _decimal(word)
        if number is not None:
            self._at += 1
        return number

    # ---- times of a day ----

    def _clock(self, part: Part, *, bare: bool) -> _Clock | None:
        """Parse a time of day: at 9, 9am, 8:30 p.m., 9 Uhr, half past 8, noon.

        A bare number counts as a time only after "at", at the end of the phrase, or if `bare` is set.
        """
        has_at = bool(self._take("at", "um", "@", "gegen"))
        if (word := self._word()) in _TIME_WORDS:
            self._at += 1
            return _Clock(_TIME_WORDS[word], 0, 1 if part == "night" and word in ("midnight", "mitternacht") else 0)
        shift = next((minutes for phrase, minutes in _PAST if self._take_all(phrase)), None)
        clock = _clock_word(word.removeprefix("@") if not has_at else word) if shift is None else None
        if shift is not None:
            clock = _clock_word(self._word())
        if clock is None:
            return None
        self._at += 1
        hour, minute, half = clock
        if shift is not None:
            if minute is not None:
                return None
            hour, minute = (hour, shift) if shift > 0 else (hour - 1, 60 + shift)
        if hour == 12 and minute is None and (noon := self._take("noon", "midnight")):
            return _Clock(_TIME_WORDS[noon], 0)
        marked = has_at or minute is not None or bool(half) or word.startswith("@") or bare
        if not half:
            half = self._take("am", "pm", "uhr", "o'clock", "oclock", "h")
            marked = marked or bool(half)
            if half not in ("am", "pm"):
                half = self._take("am", "pm") if half == "o'clock" else ""
        said_part = self._try(self._part_after)
        part = said_part or part
        is_last = self._at >= len(self._words)
        if not (marked or said_part or is_last):
            return None
        return _hour_of(hour, minute or 0, half, part)

    def _part_after(self) -> Part | None:
        if self._take_all("at night"):
            return "night"
        return _PARTS.get(self._take(*_PARTS)) if self._take_all("in the") else None

    # ---- days ----

    def _moment(self) -> tuple[When, int] | None:
        dates = self._try(self._dates)
        before = self._try(lambda: self._times_before(self._dates)) if dates is None else None
        if before is not None:
            (clock, *_), dates = before
        else:
            clock = self._try(lambda: self._clock(dates.part if dates else "", bare=False))
        if clock is None:
            if dates is not None:
                written = " ".join(self._written[: self._at])
                raise InvalidInput(f"Add a time to {written!r}, for example {EXAMPLES}.")
            return None
        days_of = dates.of if dates is not None else _today_or_tomorrow

        def due(zone: "ZoneInfo") -> datetime:
            days = days_of(self._now.astimezone(zone).date())
            walls = (datetime.combine(day + timedelta(days=clock.days), _time(clock)) for day in days)
            instants = [instant(wall, zone) for wall in walls]
            return next((at for at in instants if at > self._now), instants[-1])

        return self._single(due)

    def _times_before(self, form: Callable[[], Day | None]) -> tuple[list[_Clock], Day] | None:
        """Parse times that precede their day, as in "at 8 tomorrow evening".

        If the day includes a part of the day, such as "evening", the times are parsed again for that part.
        """
        start, part = self._at, _NO_PART
        while True:
            self._at = start
            times = self._times(part, bare=True)
            days = self._try(form) if times else None
            if days is None:
                return None
            if days.part == part:
                return times, days
            part = days.part

    def _dates(self) -> _Dates | None:
        if self._take("today", "heute"):
            return _in_days(0, self._take_part() or ("evening" if self._take("abend") else ""))
        if self._take("tonight"):
            return _in_days(0, "night")
        if self._take("this") and (part := self._take_part()):
            return _in_days(0, part)
        if self._take("tomorrow", "morgen", "tmrw", "tmr"):
            return _in_days(1, self._take_part())
        if self._take_all("the day after tomorrow") or self._take_all("day after tomorrow") or self._take("übermorgen"):
            return _in_days(2, self._take_part())
        self._take(*_ON)
        is_next = self._take("next", "nächsten", "coming", "kommenden") == "next"
        weekday = _WEEKDAYS.get(self._word()) if self._word() not in _SHORT_GERMAN else None
        if weekday is not None:
            self._at += 1
            return _Dates(lambda today: _next_weekdays(today, weekday, is_next=is_next), self._take_part())
        self._take("the", "den")
        return self._calendar_day()

    def _take_part(self) -> Part:
        return _PARTS.get(self._take(*_PARTS), "")

    def _calendar_day(self) -> _Dates | None:
        """Parse a date: 24 December [2026], December 24[, 2026], 24.12.[2026], the 24th."""
        month_day = self._try(self._day_and_month)
        if month_day is not None:
            day, month, year = month_day
            if _date(year or 2000, month, day) is None:
                return None
            return _Dates(lambda today: _valid(_date(year, month, day) for year in _years(year, today)))
        number = _ordinal(self._word())
        if number is None:
            return None
        self._at += 1
        return _Dates(lambda today: _valid(_date(*month, number) for month in _months_from(today)))

    def _day_and_month(self) -> tuple[int, int, int] | None:
        first, second = self._word(), self._word(1)
        dotted = first.rstrip(".").split(".")
        if (
            len(dotted) in (2, 3)
            and all(part.isdecimal() and len(part) <= 4 for part in dotted)
            and first.count(".") > 1
        ):
            self._at += 1
            numbers = [int(part) for part in dotted]
            return numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 0
        if second == "of" and self._word(2) in _MONTHS:
            day, month = _day_number(first), _MONTHS[self._word(2)]
            self._at += 3
        elif second in _MONTHS:
            day, month = _day_number(first), _MONTHS[second]
            self._at += 2
        elif first in _MONTHS:
            day, month = _day_number(second), _MONTHS[first]
            self._at += 2
        else:
            return None
        if day is None:
            return None
        year = self._word()
        if len(year) == 4 and year.isdecimal() and year.startswith(("19", "20", "21")):
            self._at += 1
            return day, month, int(year)
        return day, month, 0

    # ---- recurrences ----

    def _recurrence(self) -> tuple[When, int] | None:
        interval = self._try(self._interval)
        if interval is not None:
            days = self._try(self._days)
            return self._periodic(f"{interval} {days.fields if days else '* * *'}")
        days = self._try(self._days)
        if days is None:
            before = self._try(lambda: self._times_before(self._days))
            if before is None:
                return None
            times, days = before
        elif not (times := self._times(days.part, bare=False)):
            written = " ".join(self._written[: self._at])
            raise InvalidInput(f"Add a time to {written!r}, for example {EXAMPLES}.")
        if len({clock.minute for clock in times}) > 1:
            raise InvalidInput(
                "All times in a schedule must be at the same minute of the hour. Add a separate schedule "
                "for each of these times."
            )
        hours = ",".join(str(hour) for hour in sorted({clock.hour for clock in times}))
        return self._periodic(f"{times[0].minute} {hours} {days.fields}")

    def _times(self, part: Part, *, bare: bool) -> list[_Clock]:
        clocks: list[_Clock] = []
        while len(clocks) < 24:
            start = self._at
            if clocks and not (self._take("and", "und", "&") or self._written[start - 1].endswith(",")):
                break
            clock = self._try(lambda: self._clock(part, bare=bare))
            if clock is None:
                self._at = start
                break
            clocks.append(clock)
        return clocks

    def _interval(self) -> str | None:
        """Parse an interval: every 15 minutes, every hour, hourly, every half hour. Return the minute and hour of a
        cron line.
        """
        if self._take("hourly", "stündlich"):
            return "0 *"
        if not self._take(*_EVERY, "@every"):
            return None
        if self._words[self._at : self._at + 2] == ["other", "minute"] or self._take_all("second minute"):
            self._take_all("other minute")
            return "*/2 *"
        if self._take_all("other hour") or self._take_all("second hour"):
            return "0 */2"
        compact = _amounts(self._word())
        if compact is not None:
            self._at += 1
            lengths: list[tuple[float, Unit]] = compact
        elif (amount := self._amount()) is not None and (unit := _UNITS.get(self._word())) is not None:
            self._at += 1
            lengths = [(amount, unit)]
        elif (unit := _UNITS.get(self._word())) in ("minute", "hour", "second"):
            self._at += 1
            lengths = [(1.0, unit)]
        else:
            return None
        written = " ".join(self._written[: self._at])
        if any(unit in ("month", "year") for _, unit in lengths):
            raise InvalidInput(_not_an_interval(written))
        seconds = sum(count * _SECONDS.get(unit, 0) for count, unit in lengths)
        minutes = int(seconds // 60)
        if minutes * 60 == seconds and 1 <= minutes <= 59 and 60 % minutes == 0:
            return f"*/{minutes} *" if minutes > 1 else "* *"
        hours = minutes // 60
        if hours * 3600 == seconds and 1 <= hours <= 23 and 24 % hours == 0:
            return f"0 */{hours}" if hours > 1 else "0 *"
        raise InvalidInput(_not_an_interval(written))

    def _days(self) -> _Days | None:
        """Parse recurring days: every day, weekdays, mondays, mon-fri, monthly on the 1st."""
        self._take(*_ON)
        every = bool(self._take(*_EVERY))
        if self._take("daily", "everyday", "täglich") or (every and self._take("day", "tag")):
            return _Days("* * *")
        if self._take("nightly"):
            return _Days("* * *", "night")
        if every and (part := self._take_part()):
            return _Days("* * *", part)
        if self._take("weekdays", "workdays", "werktags", "wochentags") or (
            every and (self._take("weekday", "workday", "werktag") or self._business_day())
        ):
            return _Days("* * 1-5", self._take_part())
        if self._take("weekends") or (every and self._take("weekend")):
            return _Days("* * 6,0", self._take_part())
        if self._take("weekly", "wöchentlich") or (every and self._take("week", "woche")):
            self._take(*_ON)
            weekdays = self._weekdays(every=True)
            return _Days(f"* * {weekdays}", self._take_part()) if weekdays else self._needs("weekly on monday at 9")
        if self._take("monthly", "monatlich") or (every and self._take("month", "monat")):
            self._take(*_ON)
            return self._month_day() or self._needs("monthly on the 1st at 9")
        if self._take("yearly", "annually", "jährlich") or (every and self._take("year", "jahr")):
            return self._year_day() or self._needs("yearly on 24 December at 18:00")
        if every and (month_day := self._try(self._year_day)) is not None:
            return month_day
        if (month_day := self._try(self._month_day_of_every_month)) is not None:
            return month_day
        weekdays = self._weekdays(every=every)
        return _Days(f"* * {weekdays}", self._take_part()) if weekdays else None

    def _needs(self, example: str) -> _Days:
        written = " ".join(self._written[: self._at])
        raise InvalidInput(f'Add a day and a time to {written!r}, for example "{example}".')

    def _business_day(self) -> bool:
        return any(self._take_all(f"{kind} day") for kind in ("working", "business", "week", "work"))

    def _weekdays(self, *, every: bool) -> str:
        """Parse weekdays. Return a field of a cron line, or an empty string. A single weekday needs "every" or a
        plural.
        """
        first = self._weekday(plural=not every)
        if first is None:
            return self._weekday_range(self._word())
        if self._take("to", "through", "thru", "until", "bis", "-", "–"):
            last = self._weekday(plural=False)
            return _weekday_field(range(first, last + 1 if last >= first else last + 8)) if last is not None else ""
        days = [first]
        while len(days) < 7:
            start = self._at
            self._take("and", "und", "&")
            following = self._weekday(plural=False)
            if following is None:
                self._at = start
                break
            days.append(following)
        return _weekday_field(days)

    def _weekday(self, *, plural: bool) -> int | None:
        word = self._word()
        singular = word.removesuffix("s") if word not in _WEEKDAYS else word
        if singular not in _WEEKDAYS or singular in _SHORT_GERMAN:
            return None
        if plural and singular == word and not self._is_range_ahead():
            return None
        self._at += 1
        return _WEEKDAYS[singular]

    def _is_range_ahead(self) -> bool:
        return self._word(1) in ("to", "through", "thru", "bis", "-", "–") and self._word(2) in _WEEKDAYS

    def _weekday_range(self, word: str) -> str:
        begin, dash, end = word.replace("–", "-").partition("-")
        if not dash or begin not in _WEEKDAYS or end not in _WEEKDAYS:
            return ""
        self._at += 1
        first, last = _WEEKDAYS[begin], _WEEKDAYS[end]
        return _weekday_field(range(first, last + 1 if last >= first else last + 8))

    def _month_day_of_every_month(self) -> _Days | None:
        """Parse a monthly day: the 1st of every month, every 15th, every first monday of the month."""
        month_day = self._month_day()
        if month_day is None:
            return None
        if self._take("of", "in") and self._take(*_EVERY, "the") and self._take("month"):
            return month_day
        return month_day if self._words[0] in _EVERY else None

    def _month_day(self) -> _Days | None:
        self._take("the", "den")
        if self._take_all("last day"):
            return _Days("L * *")
        if self._take("last") and (weekday := self._weekday(plural=False)) is not None:
            return _Days(f"* * {weekday}L")
        self._take("day")
        word = self._word()
        number = _ORDINALS.get(word) or _day_number(word)
        if number is None or not 1 <= number <= 31:
            return None
        self._at += 1
        if number <= 5 and (word in _ORDINALS or not word.isdecimal()):
            weekday = self._weekday(plural=False)
            if weekday is not None:
                return _Days(f"* * {weekday}#{number}")
        self._take("day")
        return _Days(f"{number} * *")

    def _year_day(self) -> _Days | None:
        self._take(*_ON)
        self._take("the", "den")
        year_day = self._day_and_month()
        if year_day is None or year_day[2] or _date(2000, year_day[1], year_day[0]) is None:
            return None
        return _Days(f"{year_day[0]} {year_day[1]} *")


# ---- vocabulary and parsers of single words ----

_CRON_CHARS = frozenset("0123456789abcdefghijklmnopqrstuvwxyz*/,#?-")
_REGIONS = frozenset({
    "africa", "america", "antarctica", "arctic", "asia", "atlantic", "australia", "brazil", "canada", "chile", "etc",
    "europe", "indian", "mexico", "pacific", "us",
})  # fmt: skip
_ZONE_WORDS = frozenset({"UTC", "GMT", "CET", "EET", "WET", "EST", "MST", *ABBREVIATIONS} - {"IST"})
_FRACTIONS = (
    ("half an", 0.5), ("half a", 0.5), ("a half", 0.5), ("half", 0.5), ("einer halben", 0.5), ("eine halbe", 0.5),
    ("a quarter of an", 0.25), ("quarter of an", 0.25), ("a quarter", 0.25), ("quarter", 0.25),
    ("three quarters of an", 0.75), ("a couple of", 2.0), ("couple of", 2.0),
)  # fmt: skip
_PAST = (("half past", 30), ("quarter past", 15), ("a quarter past", 15), ("quarter to", -15), ("a quarter to", -15))


def _plain(word: str) -> str:
    folded = unicodedata.normalize("NFKC", word[:64]).lower().replace("’", "'")
    return folded.rstrip(",;").replace("a.m.", "am").replace("p.m.", "pm").replace("a.m", "am").replace("p.m", "pm")


def _digits(text: str, start: int) -> int:
    end = start
    while end < len(text) and text[end] in "0123456789":
        end += 1
    return end


def _decimal(word: str) -> float | None:
    whole, _, part = word.replace(",", ".").partition(".")
    if not (whole.isdecimal() and whole.isascii() and len(whole) <= 6) or not (
        part == "" or (part.isdecimal() and len(part) < 4)
    ):
        return None
    return float(f"{whole}.{part or '0'}")


def _amounts(word: str) -> list[tuple[float, Unit]] | None:
    """Parse numbers with units in one word: 1h30m, 90min, 1h30, 2d."""
    amounts: list[tuple[float, Unit]] = []
    at = 0
    while at < len(word) and len(amounts) < 6:
        end = _digits(word, at)
        if end < len(word) and word[end] in ".," and _digits(word, end + 1) > end + 1:
            end = _digits(word, end + 1)
        amount = _decimal(word[at:end])
        after = end
        while after < len(word) and word[after].isalpha():
            after += 1
        unit = _UNITS.get(word[end:after])
        if amount is not None and amounts and end == len(word) and amounts[-1][1] == "hour" and amount < 60:
            return [*amounts, (amount, "minute")]
        if amount is None or unit is None:
            return None
        amounts.append((amount, unit))
        at = after
    return amounts if amounts and at >= len(word) else None


def _clock_word(word: str) -> tuple[int, int | None, str] | None:
    """Parse hour, minute, and am or pm: 9, 9am, 8:30, 8.30pm, 18h30, 18h."""
    end = _digits(word, 0)
    if not 1 <= end <= 2:
        return None
    hour, minute, half = int(word[:end]), None, word[end:]
    if half[:1] in (":", ".", "h") and _digits(half, 1) == 3:
        minute, half = int(half[1:3]), half[3:]
    elif half == "h":
        minute, half = 0, ""
    if half == "uhr":
        minute, half = minute or 0, ""
    return (hour, minute, half) if half in ("", "am", "pm") else None


def _hour_of(hour: int, minute: int, half: str, part: Part) -> _Clock | None:
    """Convert to a 24-hour time. Return None if the hour contradicts `half` (am or pm) or the part of the day."""
    if minute > 59 or hour > 23 or hour < 0:
        return None
    if half:
        return _Clock(hour % 12 + (12 if half == "pm" else 0), minute) if 1 <= hour <= 12 else None
    if not part or hour > 12 or (hour == 0 and part != "morning"):
        is_odd = (part == "morning" and hour > 12) or (part == "afternoon" and (hour > 18 or hour == 0))
        return None if is_odd else _Clock(hour, minute)
    if part == "morning":
        return _Clock(hour, minute) if hour < 12 else None
    if part == "night" and (hour == 12 or hour < 6):
        return _Clock(hour % 12, minute, 1)
    return _Clock(12 if hour == 12 else hour + 12, minute)


def _time(clock: _Clock) -> time:
    return time(clock.hour, clock.minute)


def _ordinal(word: str) -> int | None:
    end = _digits(word, 0)
    is_ordinal = 1 <= end <= 2 and word[end:] in ("st", "nd", "rd", "th", ".")
    return int(word[:end]) if is_ordinal and 1 <= int(word[:end]) <= 31 else None


def _day_number(word: str) -> int | None:
    if word.isdecimal() and word.isascii() and len(word) <= 2:
        return int(word)
    return _ordinal(word)


def _date(year: int, month: int, day: int) -> date | None:
    is_date = 1 <= month <= 12 and 1 <= year <= 9998 and 1 <= day <= monthrange(year, month)[1]
    return date(year, month, day) if is_date else None


def _in_days(days: int, part: Part) -> _Dates:
    return _Dates(lambda today: (today + timedelta(days=days),), part)


def _today_or_tomorrow(today: date) -> Sequence[date]:
    return today, today + timedelta(days=1)


def _next_weekdays(today: date, weekday: int, *, is_next: bool) -> Sequence[date]:
    ahead = (weekday - today.isoweekday()) % 7
    first = today + timedelta(days=7 if is_next and not ahead else ahead)
    return first, first + timedelta(days=7)


def _years(year: int, today: date) -> Iterable[int]:
    """Return the given year. If it is 0, return enough years to include a 29 February."""
    return (year,) if year else range(today.year, today.year + 9)


def _months_from(today: date) -> Iterable[tuple[int, int]]:
    return ((month.year, month.month) for month in (_months_later(today, ahead) for ahead in range(13)))


def _valid(dates: Iterable[date | None]) -> Sequence[date]:
    return [date for date in dates if date is not None]


def _months_later(day: date, months: int) -> date:
    number = day.year * 12 + day.month - 1 + months
    year, month = divmod(number, 12)
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))


def _weekday_field(days: Iterable[int]) -> str:
    numbers = sorted({day % 7 for day in days}, key=lambda day: (day == 0, day))
    if numbers == [1, 2, 3, 4, 5]:
        return "1-5"
    return ",".join(map(str, numbers)) if len(numbers) < 7 else "*"


def _not_an_interval(written: str) -> str:
    return (
        f'{written!r} does not divide an hour or a day evenly. Use an interval such as "every 15 minutes", "every 2 '
        'hours" or "every day at 9".'
    )
