"""What people write after /remind: when, maybe a time zone, and what."""

import pytest

from shoal.domain.errors import InvalidInput
from shoal.domain.triggers import ParsedReminder, parse_reminder


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("in 10 minutes stretch", ParsedReminder("in 10 minutes", "UTC", "stretch")),
        ("in an hour call Bob\nand Ann", ParsedReminder("in an hour", "UTC", "call Bob\nand Ann")),
        ("2026-05-04T09:00 stand up", ParsedReminder("2026-05-04T09:00", "UTC", "stand up")),
        ("2026-05-04T09:00 Europe/Berlin stand up", ParsedReminder("2026-05-04T09:00", "Europe/Berlin", "stand up")),
        ("0 9 * * 1-5 stand up", ParsedReminder("0 9 * * 1-5", "UTC", "stand up")),
        ("*/5 * * * * America/New_York look", ParsedReminder("*/5 * * * *", "America/New_York", "look")),
        ("0 9 * * MON#2 UTC meet", ParsedReminder("0 9 * * MON#2", "UTC", "meet")),
        ("@daily look", ParsedReminder("@daily", "UTC", "look")),
    ],
)
def test_when_and_what_are_told_apart(argument: str, expected: ParsedReminder) -> None:
    assert parse_reminder(argument) == expected


@pytest.mark.parametrize("argument", ["soon stretch", "stretch", "in 10 minutes", "@sometimes look", "0 9 * * 1-5"])
def test_what_says_no_time_or_no_text_is_refused(argument: str) -> None:
    with pytest.raises(InvalidInput):
        parse_reminder(argument)


def test_an_unknown_zone_is_named() -> None:
    with pytest.raises(InvalidInput, match="Europe/Atlantis"):
        parse_reminder("@daily Europe/Atlantis look")
