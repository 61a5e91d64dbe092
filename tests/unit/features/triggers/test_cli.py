"""`shoal triggers`: schedules in plain words, for a thread or a channel."""

import json

import pytest
from tests.unit.surfaces.cli.conftest import Shoal


@pytest.fixture(autouse=True)
def made(shoal: Shoal) -> None:
    shoal("init")


def listed(shoal: Shoal) -> list[dict[str, dict[str, object]]]:
    return json.loads(shoal("triggers", "list", "--json").out)


def test_a_trigger_is_added_listed_and_removed(shoal: Shoal) -> None:
    ran = shoal("triggers", "add", "0 9 * * 1-5", "good morning", "--timezone", "Europe/Berlin", "--name", "morning")
    assert ran.code == 0
    assert "Triggers fire only while 'shoal run' is running." in ran.out
    (trigger,) = listed(shoal)
    spec = trigger
    assert (spec["kind"], spec["schedule"], spec["timezone"], spec["thread"], spec["name"]) == (
        "periodic", "0 9 * * 1-5", "Europe/Berlin", "terminal:local:main", "morning",
    )  # fmt: skip
    assert "morning" in shoal("triggers", "list").out
    assert shoal("triggers", "remove", str(trigger["id"])).code == 0
    assert listed(shoal) == []
    assert shoal("triggers", "remove", str(trigger["id"])).code == 1


def test_a_trigger_may_open_threads_in_a_channel(shoal: Shoal) -> None:
    assert shoal("triggers", "add", "in 2 hours", "hi", "--platform", "web", "--channel", "42").code == 0
    spec = listed(shoal)[0]
    assert (spec["kind"], spec["platform"], spec["channel"], spec["thread"]) == ("one-shot", "web", "42", "")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("whenever", "hi"), "I found no time in 'whenever'. Use a time such as"),
        (("2001-01-01T00:00", "hi"), "has passed"),
        (("0 9 * * *", " "), "'text' is empty"),
        (("0 9 * * *", "hi", "--timezone", "Mars"), "The time zone 'Mars' is not known."),
        (("0 9 * * *", "hi", "--platform", "discord"), "Pass --thread, or --platform and --channel."),
        (("0 9 * * *", "hi", "--platform", "discord", "--channel", "42"), "Platform 'discord' is not connected."),
        (("0 9 * * *", "hi", "--thread", "x"), "must have three parts"),
    ],
)
def test_invalid_schedules_are_refused(shoal: Shoal, words: tuple[str, ...], problem: str) -> None:
    ran = shoal("triggers", "add", *words)
    assert (ran.code, ran.out) == (1, "")
    assert problem in ran.err
    assert listed(shoal) == []


def test_upcoming_times_are_ordered_over_all_triggers(shoal: Shoal) -> None:
    shoal("triggers", "add", "0 * * * *", "hourly")
    shoal("triggers", "add", "30 * * * *", "half past")
    coming = json.loads(shoal("triggers", "next", "--json", "--limit", "6").out)
    assert [one["at"] for one in coming] == sorted(one["at"] for one in coming)
    assert sorted(one["text"] for one in coming) == ["half past"] * 3 + ["hourly"] * 3
