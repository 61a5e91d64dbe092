"""The tools `remind` and `schedule`, which schedule turns in the current conversation."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from shoal.features.triggers.records import NewTrigger, Trigger, source_of, title
from shoal.features.triggers.schedules import first_time
from shoal.features.triggers.service import TriggerService
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.errors import InvalidInput, ToolError
from shoal.kernel.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.kernel.traits import KEEPS, Traits
from shoal.kernel.zones import local_time, zone_named
from shoal.store.outbox import QUEUE_FULL
from shoal.tools.builtin.clock import ZONE
from shoal.tools.functions import FunctionTool, as_tool_error, planned, tool

if TYPE_CHECKING:
    from shoal.features.triggers.when import When
    from shoal.services import Services

LIST_MAX = 50
TEXT_SHOWN_MAX = 120
WHEN_FORMS = (
    "an ISO 8601 time (2027-03-01T09:00), a wait (in 90 minutes, in 3 days), a time in words (tomorrow at 9, every "
    "weekday at 8:30) or a cron line (0 9 * * 1-5)"
)

AddTrigger = Callable[[NewTrigger], Awaitable[Trigger]]
"""Stores a trigger. Raises InvalidInput if its schedule never fires."""


_REMINDER = Traits(
    group="reminders",
    offered="deferred",
    effect="lasting",
    origin="own",
    harm="lasting",
    changes="nothing",
    treatments=KEEPS,
)
SCHEDULE = tool(
    replace(_REMINDER, offered="always", rank=7, origin="mixed", harmless=("list",)),
    name="schedule",
    example={"do": "create", "when": "0 9 * * 1-5", "text": "tea", "timezone": "Europe/Berlin"},
)
REMIND = tool(
    _REMINDER,
    name="remind",
    example={"when": "in 10 minutes", "text": "tea", "timezone": "Europe/Berlin"},
)


def trigger_tools(services: "Services") -> list[Tool]:
    service = services[TriggerService]
    return [remind_tool(service.add), schedule_tool(service.triggers, service.add)]


def remind_tool(add_trigger: AddTrigger) -> FunctionTool[Invocation]:
    @REMIND
    def remind(
        context: ToolContext,
        when: Annotated[str, f"When: {WHEN_FORMS}."],
        text: Annotated[str, "Message that you will receive in this conversation.", Meta(max_length=4000)],
        timezone: Annotated[str, ZONE] = "",
    ) -> Invocation:
        """Schedule a message to yourself in this conversation, once or repeatedly. You then act on it and answer."""
        return _reminder(add_trigger, "remind", "", when, text, timezone, context)

    return remind


def _reminder(
    add_trigger: AddTrigger, name: str, does: str, when: str, text: str, timezone: str, context: ToolContext
) -> Invocation:
    text, when, timezone = text.strip(), " ".join(when.split()), timezone or context.timezone
    if not text:
        raise ToolError("The text is empty. Specify the reminder's text.")

    def moment() -> "When":
        from shoal.features.triggers.when import parse_when

        with as_tool_error(InvalidInput):
            return parse_when(when, timezone, context.clock.now())

    async def add() -> ToolOutput:
        parsed = moment()
        trigger = NewTrigger(
            kind=parsed.kind,
            schedule=parsed.schedule,
            text=text,
            author=context.purpose.person,
            tainted_by=context.purpose.tainted_by,
            thread=context.chat,
            timezone=parsed.timezone,
            agent=context.agent.name,
        )
        try:
            added = await add_trigger(trigger)
        except InvalidInput as error:
            raise ToolError(f"The schedule is not valid: {error}") from error
        next_at = f", next at {_local(added.next_at, parsed.timezone)}" if added.next_at else ""
        return ToolOutput(f"Reminder {added.id} is set{next_at}: {text}")

    moment()
    detail, shown = f"{does}{when} {timezone} {' '.join(text.split())}", f"{name} {when} ({timezone})\n\n{text}"
    return planned(name, detail, add, shown, when=when, timezone=timezone, text=text, thread=context.chat)


def schedule_tool(triggers: TriggerStore, add_trigger: AddTrigger) -> FunctionTool[Invocation]:
    async def own(context: ToolContext) -> list[Trigger]:
        return [trigger for trigger in await triggers.all() if trigger.spec.thread == context.chat]

    async def listed(context: ToolContext) -> ToolOutput:
        trigger = await own(context)
        lines = [trigger_line(trigger) for trigger in trigger[:LIST_MAX]]
        if len(trigger) > LIST_MAX:
            lines.append(f"and {len(trigger) - LIST_MAX} more")
        source = next((name for trigger in trigger[:LIST_MAX] if (name := line_source(trigger))), "")
        return ToolOutput("\n".join(lines) or "Nothing is scheduled in this conversation.", tainted_by=source)

    async def changed(do: str, id: str, context: ToolContext) -> ToolOutput:
        fitting = [trigger for trigger in await own(context) if trigger.id.endswith(id)]
        if len(fitting) != 1:
            raise ToolError(
                f"{id!r} does not match exactly one schedule in this conversation. Use list to see the ids."
            )
        trigger = fitting[0]
        if do == "cancel":
            await triggers.remove(trigger.id)
            return ToolOutput(f"Cancelled: {trigger_line(trigger)}", tainted_by=line_source(trigger))
        if do == "pause":
            if not await triggers.pause(trigger.id):
                raise ToolError(f"You cannot pause the schedule, because it is {trigger.state}.")
            return ToolOutput(f"Paused {trigger.id}. Use resume to continue it.")
        with as_tool_error(InvalidInput):
            at = first_time(trigger.spec, context.clock.now())
        if not await triggers.resume(trigger.id, at):
            raise ToolError(f"You cannot resume the schedule, because it is {trigger.state}.")
        return ToolOutput(f"Resumed {trigger.id}, next at {_local(at, context.timezone)}.")

    @SCHEDULE
    def schedule(
        context: ToolContext,
        do: Annotated[Literal["create", "list", "cancel", "pause", "resume"], "What to do."],
        id: Annotated[str, "cancel, pause, resume: the id from list or create.", Meta(max_length=64)] = "",
        when: Annotated[str, Meta(description=f"create: {WHEN_FORMS}.", max_length=200)] = "",
        text: Annotated[
            str, Meta(description="create: the message you receive at that time in this conversation.", max_length=4000)
        ] = "",
        timezone: Annotated[str, Meta(description=f"create: {ZONE}", max_length=64)] = "",
    ) -> Invocation:
        """Create, list, pause, resume or cancel reminders and recurring tasks in this conversation. Each starts a turn
        when it is due. To change one, cancel it and create another.
        """
        id = id.strip()
        if do == "create":
            return _reminder(add_trigger, "schedule", "create ", when, text, timezone, context)
        if do == "list":
            return planned("schedule", do, lambda: listed(context), do, do=do)
        if not id:
            raise ToolError(f"To {do} a schedule, pass its `id`. Use list to see the ids.")
        detail = " ".join(f"{do} {id}".split())
        return planned("schedule", detail, lambda: changed(do, id, context), detail, do=detail)

    return schedule


def _local(at: datetime, timezone: str) -> str:
    return local_time(at.astimezone(zone_named(timezone)))


def line_source(trigger: Trigger) -> str:
    """Return the untrusted source that influenced the trigger's line in the list, or an empty string.

    The trigger's text can be untrusted, and so can its last error, which comes from a platform or a model.
    """
    error = f"an error from the schedule {title(trigger)}" if trigger.error not in ("", QUEUE_FULL) else ""
    return source_of(trigger.spec) or error


def trigger_line(trigger: Trigger) -> str:
    spec = trigger.spec
    text = " ".join(spec.text.split())
    text = text if len(text) <= TEXT_SHOWN_MAX else f"{text[: TEXT_SHOWN_MAX - 1]}…"
    zone = f" {spec.timezone}" if spec.kind == "periodic" else ""
    coming = (
        f"next {_local(trigger.next_at, spec.timezone)}"
        if trigger.next_at is not None and trigger.state == "active"
        else ""
    )
    parts = [trigger.state, f"{spec.schedule}{zone}", coming, text, trigger.error]
    return f"{trigger.id}: {', '.join(part for part in parts if part)}"
