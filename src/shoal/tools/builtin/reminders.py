"""The tool `remind`: starts a turn in this thread later, once or again and again."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from shoal.domain.clock import iso
from shoal.domain.errors import InvalidInput, ToolError
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.domain.records import NewTrigger
from shoal.domain.schedule import When, parse_when
from shoal.tools.typed import Prepared, TypedTool, canonical

WHEN_FORMS = (
    "an ISO 8601 time (2027-03-01T09:00), a wait (in 10 minutes, in 2 hours, in 3 days) "
    "or a cron line (0 9 * * 1-5 for 9:00 on weekdays)"
)


class RemindArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `remind` takes."""

    when: Annotated[str, Meta(description=f"When: {WHEN_FORMS}.")]
    text: Annotated[
        str, Meta(description="What you are told then, as a message in this conversation.", max_length=4000)
    ]
    timezone: Annotated[
        str, Meta(description="IANA name of the zone of a time without one, or of a cron line; UTC unless given.")
    ] = "UTC"


class RemindTool(TypedTool[RemindArguments]):
    """Adds a trigger for the thread of the call."""

    name: ClassVar[str] = "remind"
    description: ClassVar[str] = (
        "Schedule a message to yourself in this conversation, once or repeatedly; you then act on it and answer."
    )

    def __init__(self) -> None:
        super().__init__(RemindArguments)

    def plan(self, arguments: RemindArguments, context: ToolContext) -> Invocation:
        """Work out the schedule. Raises ToolError when it is none, is past, or the text is empty."""
        reminder = Reminder(arguments.when, arguments.text, arguments.timezone, context)
        return reminder.prepared(self.name, reminder.detail)


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

    def prepared(self, tool: str, detail: str) -> Prepared:
        """As a call of a tool."""
        shown = f"{tool} {self.when} ({self.timezone})\n\n{self.text}"
        thread = self._context.chat
        effect = canonical(tool, when=self.when, timezone=self.timezone, text=self.text, thread=thread)
        return Prepared((Action(f"tool:{tool}:{detail}"),), shown, effect, self._add)

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
