"""`shoal triggers` and `shoal brief`: schedule turns."""

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime

import click
import msgspec

from shoal.features.triggers.routes import BRIEF_ON_PAGE, TriggerView
from shoal.features.triggers.schedules import next_cron
from shoal.kernel.errors import InvalidInput
from shoal.kernel.ids import parse_thread_id
from shoal.kernel.zones import local_time, zone_named
from shoal.surfaces.cli.client import call_api, find_server, get, path_part
from shoal.surfaces.cli.completion import agent_option
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import echo, print_records
from shoal.surfaces.http.endpoints import Removed

THREAD = "terminal:local:main"


class TriggerTime(msgspec.Struct, frozen=True):
    at: datetime
    id: str
    name: str
    text: str


triggers = click.Group(
    "triggers", help="Turns that start on a schedule, once or repeatedly.", epilog="Example: shoal triggers next"
)


@command(example="shoal brief 8:30 --working-days")
@click.argument("at", metavar="AT")
@click.option(
    "--timezone", default="", help="Time zone, as an IANA name such as Europe/Berlin.  [default: your time zone]"
)
@click.option("--working-days", is_flag=True, help="Send the brief only from Monday to Friday.")
@click.option("--thread", default="", help="Thread that receives the brief.  [default: your own chat with the agent]")
@click.option("--platform", default="", help="Platform of --channel. Each brief opens a new thread in that channel.")
@click.option("--channel", default="")
@click.option(
    "--agent",
    default="",
    help="Agent that sends the brief. You can create one from the 'brief' template.  [default: the default agent]",
)
def brief(context: CommandContext, at: str, timezone: str, working_days: bool, **given: str) -> None:
    """Get a brief every morning. AT is a time such as 8 or 8:30, or 'off' to turn the brief off. The brief lists
    finished work, spending, pending approvals and upcoming schedules. Nothing is sent on a day without news.
    """
    if at == "off":
        removed = call_api(context, "DELETE", "/api/brief", into=Removed).removed
        print("The brief is now off." if removed else "The brief was already off.")
        return
    days = "working" if working_days else "all"
    body = {"at": at, "timezone": timezone, "days": days, **given}
    added = call_api(context, "POST", "/api/brief", body, into=TriggerView)
    if added.thread == BRIEF_ON_PAGE:
        echo(f"Your brief will appear on the page. The first one is due at {_local(added)}.")
        echo(
            "To get the brief in a chat, write to the agent there from the owner's account, then run this "
            "command again."
        )
    else:
        where = added.thread or f"{added.platform}:{added.channel}"
        echo(f"You will get a brief in {where}. The first one is due at {_local(added)}.")
    if find_server(context) is None:
        echo("Triggers fire only while `shoal run` is running.")


@command(triggers, "list", example="shoal triggers list")
def list_triggers(context: CommandContext, as_json: bool) -> None:
    """List triggers, next due first."""
    triggers = get(context, "/api/triggers", list[TriggerView])
    rows = [
        (
            trigger.id,
            trigger.state,
            trigger.next_at if trigger.state == "active" else None,
            f"{trigger.words} ({trigger.timezone})" if trigger.kind == "periodic" else trigger.schedule,
            trigger.thread or f"{trigger.platform}:{trigger.channel}",
            trigger.error or trigger.name or trigger.text,
        )
        for trigger in triggers
    ]
    head = ("id", "state", "next (UTC)", "schedule", "into", "what")
    print_records(triggers, as_json, head, rows, "No triggers. `shoal triggers add WHEN TEXT` adds one.")


@command(triggers, example='shoal triggers add "every weekday at 8:30" "List my open tasks."')
@click.argument("when_", metavar="WHEN")
@click.option("--thread", help=f"Thread for the trigger's turns. [default: {THREAD}]")
@click.option(
    "--platform", default="", help="Platform of --channel. The trigger opens a new thread in that channel each time."
)
@click.option("--channel", default="")
@click.option(
    "--timezone", default="", help="Time zone, as an IANA name such as Europe/Berlin.  [default: your time zone]"
)
@agent_option("Agent that answers. [default: the thread's or channel's agent]")
@click.option("--name", default="", help="Name to show in lists.")
def add(context: CommandContext, when_: str, text: str, thread: str | None, **given: str) -> None:
    """Schedule TEXT as a task for the agent.

    WHEN is "in 90 minutes", "tomorrow at 9", "every weekday at 8:30", an ISO time such as 2026-05-04T09:00, or a cron
    line such as "0 9 * * 1-5".
    """
    if bool(given["platform"]) != bool(given["channel"]) or (thread and given["platform"]):
        raise InvalidInput("Pass --thread, or --platform and --channel.")
    target = "" if given["platform"] else parse_thread_id(thread or THREAD)
    body = {"schedule": when_, "text": text, "thread": target, **given}
    added = call_api(context, "POST", "/api/triggers", body, into=TriggerView)
    echo(f"Added a trigger that first fires at {_local(added)}. `shoal triggers list` shows all triggers.")
    if find_server(context) is None:
        echo("Triggers fire only while `shoal run` is running.")


@command(triggers, example="shoal triggers remove 12")
def remove(context: CommandContext, id: str) -> None:
    """Remove a trigger."""
    call_api(context, "DELETE", f"/api/triggers/{path_part(id)}")
    print("Removed.")


@command(triggers, example="shoal triggers pause 12")
def pause(context: CommandContext, id: str) -> None:
    """Pause a trigger until it is resumed."""
    call_api(context, "POST", f"/api/triggers/{path_part(id)}/pause")
    echo("Paused the trigger. `shoal triggers resume` resumes it.")


@command(triggers, example="shoal triggers resume 12")
def resume(context: CommandContext, id: str) -> None:
    """Resume a trigger that was paused or switched off."""
    trigger = call_api(context, "POST", f"/api/triggers/{path_part(id)}/resume", into=TriggerView)
    print(f"Resumed the trigger. It fires next at {_local(trigger)}.")


@command(triggers, "next", example="shoal triggers next --limit 5")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000))
def next_times(context: CommandContext, limit: int, as_json: bool) -> None:
    """Show when the triggers fire next."""
    now = datetime.now(UTC)
    triggers = get(context, "/api/triggers", list[TriggerView])
    streams = [_times(trigger, now) for trigger in triggers if trigger.state == "active"]
    coming = [
        stream for _, stream in zip(range(limit), heapq.merge(*streams, key=lambda stream: stream.at), strict=False)
    ]
    rows = [(occurrence.at, occurrence.id, occurrence.name or occurrence.text) for occurrence in coming]
    print_records(coming, as_json, ("time (UTC)", "id", "what"), rows, "Nothing is scheduled.")


def _local(trigger: TriggerView) -> str:
    return (
        local_time(trigger.next_at.astimezone(zone_named(trigger.timezone))) if trigger.next_at else ("an unknown time")
    )


def _times(trigger: TriggerView, now: datetime) -> Iterator[TriggerTime]:
    at = trigger.next_at
    while at is not None:
        yield TriggerTime(at, trigger.id, trigger.name, trigger.text)
        at = next_cron(trigger.schedule, trigger.timezone, max(at, now)) if trigger.kind == "periodic" else None
