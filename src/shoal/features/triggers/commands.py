"""/remind: schedule reminders and repeated tasks in a conversation."""

from typing import TYPE_CHECKING

from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.schedules import in_words
from shoal.features.triggers.service import TriggerService
from shoal.kernel.commands import ChatCommand, CommandRequest, CommandSpec
from shoal.kernel.errors import Conflict, NotFound
from shoal.kernel.ids import ThreadId, channel_of
from shoal.kernel.phrases import short_line
from shoal.threads.commands import CommandRouter, moment_text

if TYPE_CHECKING:
    from shoal.services import Services

REMINDERS_MAX = 50
REMIND = CommandSpec(
    "remind",
    "schedule a reminder or a repeated task",
    "[WHEN TEXT|list|cancel ID]",
    number=14,
    needs="place",
)


def chat_commands(services: "Services") -> list[ChatCommand]:
    command = RemindCommand(services[CommandRouter], services[TriggerService])
    return [ChatCommand(REMIND, command.remind, command.remind_in_channel)]


class RemindCommand:
    def __init__(self, commands: CommandRouter, triggers: TriggerService) -> None:
        self._commands = commands
        self._triggers = triggers

    async def remind_in_channel(self, asked: CommandRequest, latest: ThreadId | None) -> str | None:
        """Run /remind outside the threads of a channel. `list` and `cancel` cover all threads of the channel.

        Return None if the command must run in the thread `latest` instead.
        """
        if asked.argument.partition(" ")[0].lower() in ("", "help", "list", "cancel"):
            return await self.remind(asked, channel_of(asked.thread))
        return await self.remind(asked) if latest is None else None

    async def remind(self, asked: CommandRequest, channel: str = "") -> str:
        """Run /remind. With `channel`, `list` and `cancel` cover all threads of the channel.

        Raises InvalidInput, NotFound and Conflict with a message for the person.
        """
        from shoal.features.triggers.when import REMIND_USAGE, parse_reminder  # saves 2 ms at startup

        word, _, rest = asked.argument.partition(" ")
        if word.lower() in ("", "help"):
            return f"Usage: {REMIND_USAGE}"
        own_triggers = [
            trigger
            for trigger in await self._triggers.triggers.all()
            if trigger.spec.thread == asked.thread or (channel and (trigger.spec.thread or "").startswith(channel))
        ]
        scheduled = [trigger for trigger in own_triggers if trigger.state not in ("done", "missed")]
        if word.lower() == "list":
            lines: list[str] = []
            for trigger in scheduled:
                words = f"{in_words(trigger.spec.schedule)}, " if trigger.spec.kind == "periodic" else ""
                due = moment_text(trigger.next_at, trigger.spec.timezone) if trigger.next_at else ""
                state = f"next {due}" if trigger.state == "active" and due else trigger.state
                why = f" ({trigger.error})" if trigger.error else ""
                lines.append(f"- `{trigger.id[-6:]}` {words}{state}: {short_line(trigger.spec.text)}{why}")
            return "\n".join(lines) or "Nothing is scheduled here."
        if word.lower() == "cancel":
            end = rest.strip()
            fitting = [trigger for trigger in scheduled if end and trigger.id.lower().endswith(end.lower())]
            if len(fitting) != 1:
                raise NotFound(f"{end[:80]!r} does not match exactly one reminder. `/remind list` shows the ids.")
            await self._triggers.triggers.remove(fitting[0].id)
            return f"Cancelled: {short_line(fitting[0].spec.text)}"
        wanted = parse_reminder(asked.argument, await self._commands.zone(asked), self._triggers.clock.now())
        if len(scheduled) >= REMINDERS_MAX:
            raise Conflict(
                f"This conversation already has {REMINDERS_MAX} schedules. Cancel some of them first. `/remind "
                "list` shows the ids."
            )
        spec = NewTrigger(
            kind=wanted.when.kind,
            schedule=wanted.when.schedule,
            text=wanted.text,
            author=asked.author,
            tainted_by="",
            thread=asked.thread,
            timezone=wanted.when.timezone,
        )
        added = await self._triggers.add(spec)
        assert added.next_at is not None
        due = moment_text(added.next_at, spec.timezone)
        again = f", then {in_words(spec.schedule)}" if spec.kind == "periodic" else ""
        return f"`{added.id[-6:]}` is due at {due}{again}: {short_line(wanted.text)}"
