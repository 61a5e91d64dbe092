"""The tools `time`, `remind` and `schedule`: what time it is, and what starts turns of a conversation by the clock."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from shoal.domain.clock import iso
from shoal.domain.errors import InvalidInput, ToolError
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.domain.triggers import NewTrigger, Trigger, When, parse_when, zone_named
from shoal.store.triggers import TriggerStore
from shoal.tools.functions import FunctionTool, Prepared, canonical, tool

LIST_MAX = 50
TEXT_SHOWN_MAX = 120
WHEN_FORMS = (
    "an ISO 8601 time (2027-03-01T09:00), a wait (in 10 minutes, in 2 hours, in 3 days) "
    "or a cron line (0 9 * * 1-5 for 9:00 on weekdays)"
)

NextTime = Callable[[NewTrigger, datetime], datetime]
"""When a trigger would come next. Raises InvalidInput when it never does."""


@tool(read_only=True, idempotent=True)
def time(
    context: ToolContext,
    timezone: Annotated[str, Meta(description="IANA name, such as Europe/Berlin; UTC unless given.")] = "UTC",
) -> Invocation:
    """Get the current date, weekday and time in a time zone."""
    try:
        zone = zone_named(timezone)
    except InvalidInput as error:
        raise ToolError(str(error)) from error

    async def work() -> ToolOutput:
        now = context.clock.now().astimezone(zone)
        return ToolOutput(f"{now.isoformat(timespec='seconds')} ({now:%A}, {timezone})")

    return Prepared((Action(f"tool:time:{timezone}"),), f"time {timezone}", canonical("time", zone=zone.key), work)


@tool
def remind(
    context: ToolContext,
    when: Annotated[str, Meta(description=f"When: {WHEN_FORMS}.")],
    text: Annotated[
        str, Meta(description="What you are told then, as a message in this conversation.", max_length=4000)
    ],
    timezone: Annotated[
        str, Meta(description="IANA name of the zone of a time without one, or of a cron line; UTC unless given.")
    ] = "UTC",
) -> Invocation:
    """Schedule a message to yourself in this conversation, once or repeatedly; you then act on it and answer."""
    reminder = Reminder(when, text, timezone, context)
    return reminder.prepared("remind", reminder.detail)


class Reminder:
    """A trigger for the conversation of a call, as the model asks for it. Raises ToolError for one that cannot be."""

    def __init__(self, when: str, text: str, timezone: str, context: ToolContext) -> None:
        self.text = text.strip()
        if not self.text:
            raise ToolError("There is nothing to be reminded of: the text is empty.")
        self.when = " ".join(when.split())
        self.timezone = timezone
        self._context = context
        self._moment()

    @property
    def detail(self) -> str:
        """What it does, in a line."""
        return f"{self.when} {self.timezone} {' '.join(self.text.split())}"

    def prepared(self, name: str, detail: str) -> Prepared:
        """As a call of the tool of this name."""
        shown = f"{name} {self.when} ({self.timezone})\n\n{self.text}"
        thread = self._context.chat
        effect = canonical(name, when=self.when, timezone=self.timezone, text=self.text, thread=thread)
        return Prepared((Action(f"tool:{name}:{detail}"),), shown, effect, self._add)

    async def _add(self) -> ToolOutput:
        context, moment = self._context, self._moment()
        trigger = NewTrigger(
            kind="one-shot" if moment.kind == "one-shot" else "periodic",
            schedule=moment.schedule,
            text=self.text,
            author=context.purpose.person,
            tainted_by=context.purpose.tainted_by,
            thread=context.chat,
            timezone=self.timezone,
            agent=context.agent.name,
        )
        try:
            added = await context.services.add_trigger(trigger)
        except InvalidInput as error:
            raise ToolError(f"That schedule cannot be used: {error}") from error
        next_at = f", next at {iso(added.next_at)}" if added.next_at else ""
        return ToolOutput(f"Reminder {added.id} is set{next_at}: {self.text}")

    def _moment(self) -> When:
        try:
            return parse_when(self.when, self.timezone, self._context.clock.now())
        except InvalidInput as error:
            raise ToolError(str(error)) from error


def schedule_tool(triggers: TriggerStore, next_time: NextTime) -> FunctionTool[Invocation]:
    """`schedule` works on the same rows as `remind`, /remind, the command line, the API and the page."""

    async def own(context: ToolContext) -> list[Trigger]:
        return [trigger for trigger in await triggers.all() if trigger.spec.thread == context.chat]

    async def listed(context: ToolContext) -> ToolOutput:
        found = await own(context)
        lines = [trigger_line(trigger) for trigger in found[:LIST_MAX]]
        if len(found) > LIST_MAX:
            lines.append(f"and {len(found) - LIST_MAX} more")
        source = next((name for trigger in found if (name := _untrusted(trigger.spec))), "")
        return ToolOutput("\n".join(lines) or "Nothing is scheduled in this conversation.", tainted_by=source)

    async def changed(do: str, id: str, context: ToolContext) -> ToolOutput:
        """Cancel, pause or resume the one of this id, or whose id alone ends like that. Raises ToolError."""
        fitting = [trigger for trigger in await own(context) if trigger.id.endswith(id)]
        if len(fitting) != 1:
            raise ToolError(f"There is no {id!r} in this conversation; list tells what there is.")
        trigger = fitting[0]
        if do == "cancel":
            await triggers.remove(trigger.id)
            return ToolOutput(f"Cancelled: {trigger_line(trigger)}", tainted_by=_untrusted(trigger.spec))
        if do == "pause":
            if not await triggers.pause(trigger.id):
                raise ToolError(f"It is {trigger.state}, so there is nothing to pause.")
            return ToolOutput(f"Paused {trigger.id}; resume lets it come again.")
        try:
            at = next_time(trigger.spec, context.clock.now())
        except InvalidInput as error:
            raise ToolError(str(error)) from error
        if not await triggers.resume(trigger.id, at):
            raise ToolError(f"It is {trigger.state}, so there is nothing to resume.")
        return ToolOutput(f"{trigger.id} comes again, next at {iso(at)}.")

    def prepared(detail: str, work: Callable[[], Awaitable[ToolOutput]]) -> Invocation:
        detail = " ".join(detail.split())
        return Prepared((Action(f"tool:schedule:{detail}"),), detail, canonical("schedule", do=detail), work)

    @tool
    def schedule(
        context: ToolContext,
        do: Annotated[Literal["create", "list", "cancel", "pause", "resume"], Meta(description="What to do.")],
        id: Annotated[
            str, Meta(description="cancel, pause, resume: the id that list or create told.", max_length=64)
        ] = "",
        when: Annotated[str, Meta(description=f"create: {WHEN_FORMS}.", max_length=200)] = "",
        text: Annotated[
            str, Meta(description="create: what you are told then, as a message in this conversation.", max_length=4000)
        ] = "",
        timezone: Annotated[
            str,
            Meta(description="create: IANA name of the zone of a time without one, or of a cron line.", max_length=64),
        ] = "UTC",
    ) -> Invocation:
        """Make, list, pause, resume or cancel what starts a turn of yours in this conversation by the clock: reminders
        and recurring tasks. To change one, cancel it and create another."""
        id = id.strip()
        if do == "create":
            reminder = Reminder(when, text, timezone, context)
            return reminder.prepared("schedule", f"create {reminder.detail}")
        if do == "list":
            return prepared("list", lambda: listed(context))
        if not id:
            raise ToolError(f"To {do} something, give its `id`; list tells it.")
        return prepared(f"{do} {id}", lambda: changed(do, id, context))

    return schedule


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
