"""The tool `schedule`: makes, lists, pauses and cancels what starts turns of this conversation by the clock."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from shoal.domain.clock import iso
from shoal.domain.errors import InvalidInput, ToolError
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.domain.records import NewTrigger, Trigger
from shoal.domain.triggers import Triggers
from shoal.tools.builtin.reminders import WHEN_FORMS, Reminder
from shoal.tools.typed import Prepared, TypedTool, canonical

LIST_MAX = 50
TEXT_SHOWN_MAX = 120

NextTime = Callable[[NewTrigger, datetime], datetime]
"""When a trigger would come next. Raises InvalidInput when it never does."""


class ScheduleArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `schedule` takes."""

    do: Annotated[Literal["create", "list", "cancel", "pause", "resume"], Meta(description="What to do.")]
    id: Annotated[str, Meta(description="cancel, pause, resume: the id that list or create told.", max_length=64)] = ""
    when: Annotated[str, Meta(description=f"create: {WHEN_FORMS}.", max_length=200)] = ""
    text: Annotated[
        str, Meta(description="create: what you are told then, as a message in this conversation.", max_length=4000)
    ] = ""
    timezone: Annotated[
        str, Meta(description="create: IANA name of the zone of a time without one, or of a cron line.", max_length=64)
    ] = "UTC"


class ScheduleTool(TypedTool[ScheduleArguments]):
    """Works on the same rows as `remind`, /remind, the command line, the API and the page."""

    name: ClassVar[str] = "schedule"
    description: ClassVar[str] = (
        "Make, list, pause, resume or cancel what starts a turn of yours in this conversation by the clock: reminders "
        "and recurring tasks. To change one, cancel it and create another."
    )

    def __init__(self, triggers: Triggers, next_time: NextTime) -> None:
        super().__init__(ScheduleArguments)
        self._triggers = triggers
        self._next_time = next_time

    def plan(self, arguments: ScheduleArguments, context: ToolContext) -> Invocation:
        """Raises ToolError for a schedule that cannot be, and where what is to be done needs an id."""
        id = arguments.id.strip()
        match arguments.do:
            case "create":
                reminder = Reminder(arguments.when, arguments.text, arguments.timezone, context)
                return reminder.prepared(self.name, f"create {reminder.detail}")
            case "list":
                return self._prepared("list", lambda: self._list(context))
            case _ if not id:
                raise ToolError(f"To {arguments.do} something, give its `id`; list tells it.")
            case "cancel":
                return self._prepared(f"cancel {id}", lambda: self._cancel(id, context))
            case "pause":
                return self._prepared(f"pause {id}", lambda: self._pause(id, context))
            case "resume":
                return self._prepared(f"resume {id}", lambda: self._resume(id, context))

    def _prepared(self, detail: str, work: Callable[[], Awaitable[ToolOutput]]) -> Invocation:
        detail = " ".join(detail.split())
        return Prepared((Action(f"tool:{self.name}:{detail}"),), detail, canonical(self.name, do=detail), work)

    async def _list(self, context: ToolContext) -> ToolOutput:
        found = await self._own(context)
        lines = [trigger_line(trigger) for trigger in found[:LIST_MAX]]
        if len(found) > LIST_MAX:
            lines.append(f"and {len(found) - LIST_MAX} more")
        source = next((name for trigger in found if (name := _untrusted(trigger.spec))), "")
        return ToolOutput("\n".join(lines) or "Nothing is scheduled in this conversation.", tainted_by=source)

    async def _cancel(self, id: str, context: ToolContext) -> ToolOutput:
        trigger = await self._find(id, context)
        await self._triggers.remove(trigger.id)
        return ToolOutput(f"Cancelled: {trigger_line(trigger)}", tainted_by=_untrusted(trigger.spec))

    async def _pause(self, id: str, context: ToolContext) -> ToolOutput:
        trigger = await self._find(id, context)
        if not await self._triggers.pause(trigger.id):
            raise ToolError(f"It is {trigger.state}, so there is nothing to pause.")
        return ToolOutput(f"Paused {trigger.id}; resume lets it come again.")

    async def _resume(self, id: str, context: ToolContext) -> ToolOutput:
        trigger = await self._find(id, context)
        try:
            at = self._next_time(trigger.spec, context.clock.now())
        except InvalidInput as error:
            raise ToolError(str(error)) from error
        if not await self._triggers.resume(trigger.id, at):
            raise ToolError(f"It is {trigger.state}, so there is nothing to resume.")
        return ToolOutput(f"{trigger.id} comes again, next at {iso(at)}.")

    async def _own(self, context: ToolContext) -> list[Trigger]:
        return [trigger for trigger in await self._triggers.all() if trigger.spec.thread == context.chat]

    async def _find(self, id: str, context: ToolContext) -> Trigger:
        """By the whole id, or by its end where that names one. Raises ToolError."""
        fitting = [trigger for trigger in await self._own(context) if trigger.id.endswith(id)]
        if len(fitting) != 1:
            raise ToolError(f"There is no {id!r} in this conversation; list tells what there is.")
        return fitting[0]


def _untrusted(spec: NewTrigger) -> str:
    """Who had a hand in what it says and is not trusted, empty when nobody did."""
    if spec.tainted_by or (spec.author is not None and spec.author.trusted):
        return spec.tainted_by
    return f"a schedule of {spec.created_by or 'somebody unknown'}"


def trigger_line(trigger: Trigger) -> str:
    """A trigger in a line: id, state, when, what, and what is wrong with it."""
    spec = trigger.spec
    text = " ".join(spec.text.split())
    text = text if len(text) <= TEXT_SHOWN_MAX else f"{text[: TEXT_SHOWN_MAX - 1]}…"
    zone = f" {spec.timezone}" if spec.kind == "periodic" else ""
    coming = f"next {iso(trigger.next_at)}" if trigger.next_at is not None and trigger.state == "active" else ""
    parts = [trigger.state, f"{spec.schedule}{zone}", coming, text, trigger.error]
    return f"{trigger.id}: {', '.join(part for part in parts if part)}"
