"""The command /remind: people make, list and cancel what starts turns in their conversation by the clock."""

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from shoal.domain.clock import Clock, iso
from shoal.domain.commands import Asked
from shoal.domain.errors import Conflict, InvalidInput, NotFound
from shoal.domain.records import NewTrigger, Trigger
from shoal.domain.schedule import MACROS, parse_when, zone_named
from shoal.domain.triggers import Triggers

REMINDERS_MAX = 50
"""Most triggers of a conversation that /remind adds to."""
USAGE = (
    "`/remind WHEN TEXT`, `/remind list`, `/remind cancel ID`. WHEN is `in 10 minutes`, `2026-05-04T09:00` or "
    "`0 9 * * 1-5`; a time zone such as `Europe/Berlin` may stand after it."
)
TEXT_SHOWN_MAX = 80

_WAIT = re.compile(r"(in\s+(?:\d{1,6}|an?)\s*(?:s|sec|second|m|min|minute|h|hour|d|day|w|week)s?)\s+(.+)", re.I | re.S)
_CRON = re.compile(r"((?:[\w*/,#?-]*[\d*/][\w*/,#?-]*\s+){3}(?:[\w*/,#?-]+\s+)(?:[\w*/,#?-]+))\s+(.+)", re.S)
_MOMENT = re.compile(r"(\d{4}-\S+|@\w+)\s+(.+)", re.S)
_ZONE = re.compile(r"(UTC|[A-Z][A-Za-z_]+(?:/[A-Za-z_+-]+)+)\s+(.+)", re.S)

AddTrigger = Callable[[NewTrigger], Awaitable[Trigger]]


class Reminded(NamedTuple):
    """What somebody wants: when, in which time zone, and what."""

    when: str
    timezone: str
    text: str


class RemindCommand:
    """What /remind does, in the thread where it is asked."""

    def __init__(self, triggers: Triggers, add: AddTrigger, clock: Clock) -> None:
        self._triggers = triggers
        self._add = add
        self._clock = clock

    async def remind(self, asked: Asked) -> str:
        """/remind. Raises InvalidInput, NotFound and Conflict with what to tell."""
        word, _, rest = asked.argument.partition(" ")
        match word.lower():
            case "" | "help":
                return f"There are: {USAGE}"
            case "list":
                lines = [_line(trigger) for trigger in await self._own(asked)]
                return "\n".join(lines) or "Nothing is scheduled here."
            case "cancel":
                return await self._cancel(asked, rest.strip())
            case _:
                return await self._make(asked)

    async def _make(self, asked: Asked) -> str:
        wanted = taken_apart(asked.argument)
        if len(await self._own(asked)) >= REMINDERS_MAX:
            raise Conflict(
                f"{REMINDERS_MAX} things are scheduled here already. `/remind list` shows them; cancel some."
            )
        moment = parse_when(wanted.when, wanted.timezone, self._clock.now())
        spec = NewTrigger(
            kind="one-shot" if moment.kind == "one-shot" else "periodic",
            schedule=moment.schedule,
            text=wanted.text,
            author=asked.author,
            tainted_by="",
            thread=asked.thread,
            timezone=wanted.timezone,
        )
        added = await self._add(spec)
        assert added.next_at is not None
        return f"`{added.id[-6:]}` comes first at {iso(added.next_at)}: {_short(wanted.text)}"

    async def _cancel(self, asked: Asked, id: str) -> str:
        fitting = [trigger for trigger in await self._own(asked) if id and trigger.id.lower().endswith(id.lower())]
        if len(fitting) != 1:
            raise NotFound(f"There is no {id[:80] or 'such thing'!r} here. `/remind list` shows what there is.")
        await self._triggers.remove(fitting[0].id)
        return f"Cancelled: {_short(fitting[0].spec.text)}"

    async def _own(self, asked: Asked) -> list[Trigger]:
        over = ("done", "missed")
        found = await self._triggers.all()
        return [trigger for trigger in found if trigger.spec.thread == asked.thread and trigger.state not in over]


def taken_apart(argument: str) -> Reminded:
    """WHEN, a time zone maybe, and TEXT. Raises InvalidInput with the forms."""
    text = argument.strip()
    found = _WAIT.fullmatch(text) or _CRON.fullmatch(text)
    if found is None:
        found = _MOMENT.fullmatch(text)
        if found is None or (found[1].startswith("@") and found[1] not in MACROS):
            raise InvalidInput(f"Write when, and then what: {USAGE}")
    zoned = _ZONE.fullmatch(found[2])
    if zoned is None:
        return Reminded(found[1], "UTC", found[2].strip())
    zone_named(zoned[1])
    return Reminded(found[1], zoned[1], zoned[2].strip())


def _line(trigger: Trigger) -> str:
    spec = trigger.spec
    zone = f" {spec.timezone}" if spec.kind == "periodic" else ""
    state = f"next {iso(trigger.next_at)}" if trigger.state == "active" and trigger.next_at else trigger.state
    why = f" ({trigger.error})" if trigger.error else ""
    return f"- `{trigger.id[-6:]}` `{spec.schedule}`{zone}, {state}: {_short(spec.text)}{why}"


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("`", "'")
    return line if len(line) <= TEXT_SHOWN_MAX else f"{line[: TEXT_SHOWN_MAX - 1]}…"
