"""The tool `remind`: starts a turn in this thread later, once or again and again."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from shoal.domain.clock import iso
from shoal.domain.errors import InvalidInput, ToolError
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.domain.records import NewTrigger
from shoal.tools.builtin.clock import find_zone
from shoal.tools.typed import Prepared, TypedTool, canonical

_IN = re.compile(r"in\s+(\d{1,6}|an?)\s*(s|sec|second|m|min|minute|h|hour|d|day|w|week)s?", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_CRON_FIELD = re.compile(r"[\w*/,#?-]+")
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
        find_zone(timezone)
        self.when = " ".join(when.split())
        self.timezone = timezone
        self._context = context
        self._is_cron = _is_cron(self.when)
        if not self._is_cron:
            schedule_of(self.when, timezone, context.clock.now())

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
        context = self._context
        trigger = NewTrigger(
            kind="periodic" if self._is_cron else "one-shot",
            schedule=self.when if self._is_cron else schedule_of(self.when, self.timezone, context.clock.now()),
            text=self.text,
            thread=context.chat,
            timezone=self.timezone,
            agent=context.agent.name,
            created_by=context.asker.user,
        )
        try:
            added = await context.services.add_trigger(trigger)
        except InvalidInput as error:
            raise ToolError(f"That schedule cannot be used: {error}") from error
        next_at = f", next at {iso(added.next_at)}" if added.next_at else ""
        return ToolOutput(f"Reminder {added.id} is set{next_at}: {self.text}")


def _is_cron(when: str) -> bool:
    fields = when.split(" ")
    return len(fields) == 5 and all(_CRON_FIELD.fullmatch(field) for field in fields)


def schedule_of(when: str, timezone: str, now: datetime) -> str:
    """The ISO time, UTC, of a one-time schedule. Raises ToolError when it is none of the forms, or past."""
    waited = _IN.fullmatch(when)
    if waited:
        count = 1 if waited[1].lower().startswith("a") else int(waited[1])
        return iso(now + timedelta(seconds=count * _SECONDS[waited[2][0].lower()]))
    try:
        at = datetime.fromisoformat(when)
    except ValueError as error:
        raise ToolError(f"{when!r} is no time. Give {WHEN_FORMS}.") from error
    at = at.replace(tzinfo=find_zone(timezone)) if at.tzinfo is None else at
    try:
        at = at.astimezone(UTC)
    except OverflowError as error:
        raise ToolError(f"{when!r} is too far away.") from error
    if at <= now:
        raise ToolError(f"{when} is past: it is {iso(now)} now.")
    return iso(at)
