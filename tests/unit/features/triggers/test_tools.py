"""The tool `remind`."""

import json
from pathlib import Path

import pytest

from shoal.features.triggers.records import NewTrigger, Trigger
from shoal.features.triggers.tools import remind_tool
from shoal.kernel.errors import InvalidInput, ToolError
from shoal.kernel.messages import Author
from shoal.kernel.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.testing.contracts.tool import THREAD, tool_context


class Reminders:
    """The tool, with a record of the reminders it added. Schedules in `never` never fire."""

    def __init__(self, context: ToolContext) -> None:
        self.added: list[NewTrigger] = []
        self.never: tuple[str, ...] = ()
        self.tool = remind_tool(self._add)
        self._clock = context.clock

    async def _add(self, spec: NewTrigger) -> Trigger:
        if spec.schedule in self.never:
            raise InvalidInput(f"{spec.schedule} never fires")
        self.added.append(spec)
        return Trigger(f"t{len(self.added)}", spec, "active", None, self._clock.now())


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    """A tool context in an empty home on Monday, 5 January 2026, 9:00 UTC."""
    return tool_context(tmp_path)


@pytest.fixture
def reminders(context: ToolContext) -> Reminders:
    return Reminders(context)


def prepared(tool: Tool, context: ToolContext, **arguments: object) -> Invocation:
    return tool.prepare(json.dumps(arguments), context)


async def run(tool: Tool, context: ToolContext, **arguments: object) -> ToolOutput:
    return await prepared(tool, context, **arguments).run()


async def test_a_reminder_is_a_trigger_for_the_thread(context: ToolContext, reminders: Reminders) -> None:
    output = await run(reminders.tool, context, when="in 10 minutes", text=" tea ", timezone="Europe/Berlin")
    assert reminders.added == [
        NewTrigger(
            kind="one-shot",
            schedule="2026-01-05T09:10:00.000Z",
            text="tea",
            thread=THREAD,
            timezone="Europe/Berlin",
            agent="main",
            author=Author("u1", trusted=True),
            tainted_by="",
        )
    ]
    assert output.text == "Reminder t1 is set: tea"


async def test_a_cron_line_repeats(context: ToolContext, reminders: Reminders) -> None:
    await run(reminders.tool, context, when="0 9 * * 1-5", text="stand up", timezone="Europe/Berlin")
    trigger = reminders.added[0]
    assert (trigger.kind, trigger.schedule, trigger.timezone) == ("periodic", "0 9 * * 1-5", "Europe/Berlin")


@pytest.mark.parametrize(
    ("when", "timezone", "schedule"),
    [
        ("2026-01-06T10:00", "Europe/Berlin", "2026-01-06T09:00:00.000Z"),
        ("2026-01-06T10:00:00+05:00", "Europe/Berlin", "2026-01-06T05:00:00.000Z"),
        ("2026-01-06T10:00:00Z", "UTC", "2026-01-06T10:00:00.000Z"),
        ("2026-07-01", "Europe/Berlin", "2026-06-30T22:00:00.000Z"),
        ("in 90 seconds", "UTC", "2026-01-05T09:01:30.000Z"),
        ("In an hour", "UTC", "2026-01-05T10:00:00.000Z"),
        ("in 2 weeks", "UTC", "2026-01-19T09:00:00.000Z"),
        ("in 5 min", "UTC", "2026-01-05T09:05:00.000Z"),
        ("2026-03-08T02:15", "America/New_York", "2026-03-08T07:00:00.000Z"),
        ("2026-10-25T02:15", "Europe/Berlin", "2026-10-25T00:15:00.000Z"),
        ("@daily", "UTC", "@daily"),
    ],
)
async def test_times_accept_every_schedule_form(
    context: ToolContext, reminders: Reminders, when: str, timezone: str, schedule: str
) -> None:
    await run(reminders.tool, context, when=when, text="x", timezone=timezone)
    assert reminders.added[0].schedule == schedule


@pytest.mark.parametrize(
    "when",
    ["", "soon", "tomorrow", "2026-13-01", "in 5", "0 9 * *", "9999-99-99", "0001-01-01T00:00+10:00"],
)
def test_an_invalid_time_is_refused_with_the_valid_forms(context: ToolContext, reminders: Reminders, when: str) -> None:
    with pytest.raises(ToolError, match=r"Use a time such as|Add a time|five fields|Use an ISO 8601 time"):
        prepared(reminders.tool, context, when=when, text="x")


def test_the_past_and_an_empty_text_are_refused(context: ToolContext, reminders: Reminders) -> None:
    with pytest.raises(ToolError, match="has passed: it is now 2026-01-05T09:00:00"):
        prepared(reminders.tool, context, when="2026-01-05T08:59", text="x")
    with pytest.raises(ToolError, match="text is empty"):
        prepared(reminders.tool, context, when="in 5 minutes", text=" ")
    with pytest.raises(ToolError, match="too far in the future"):
        prepared(reminders.tool, context, when="in 999999 weeks", text="x")


async def test_a_schedule_without_a_next_time_is_reported(context: ToolContext, reminders: Reminders) -> None:
    reminders.never = ("0 0 29 2 *",)
    with pytest.raises(ToolError, match=r"0 0 29 2 \* never fires"):
        await run(reminders.tool, context, when="0 0 29 2 *", text="x")
