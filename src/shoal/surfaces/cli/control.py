"""`shoal approvals`, `triggers`, `processes` and `mcp`: what waits for a person or runs on its own."""

import heapq
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import click
import msgspec

from shoal.kernel.errors import InvalidInput, NotFound
from shoal.kernel.ids import parse_thread_id
from shoal.kernel.order import natural
from shoal.kernel.triggers import BRIEF_ON_PAGE, next_cron
from shoal.kernel.zones import local_time, zone_named
from shoal.surfaces.cli.client import call_api, find_server, get, path_part
from shoal.surfaces.cli.completion import agent_option
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import VERDICTS, print_json, print_records, printable, tell, when
from shoal.surfaces.http.endpoints import Removed
from shoal.surfaces.http.routes_control import ApprovalView, McpToolView, McpView, ProcessView, TriggerView
from shoal.tools.mcp.pins import DIGEST_CHARS
from shoal.tools.process_logs import LogPiece

THREAD = "terminal:local:main"

# ---- approvals ----


approvals = click.Group("approvals", help="Questions that wait for a person: what exactly would run, and your answer.")


@command(approvals, "list")
@click.option("--all", "everything", is_flag=True, help="Those that were decided too.")
@click.option("--thread", default="", help="Only those of this thread.")
def list_approvals(context: CommandContext, everything: bool, thread: str, as_json: bool) -> None:
    """List the questions, the newest first."""
    found = get(context, "/api/approvals", list[ApprovalView], pending=not everything, thread=thread)
    rows = [(one.id, VERDICTS.get(one.state, one.state), one.expires_at, one.thread, one.shown) for one in found]
    head = ("id", "state", "expires", "thread", "what would run")
    print_records(found, as_json, head, rows, "Nothing waits for an answer.")


@command(approvals, "show")
def show_approval(context: CommandContext, id: str, as_json: bool) -> None:
    """Show one question whole: what exactly would run, who asked, and why it is asked."""
    found = get(context, f"/api/approvals/{path_part(id)}", ApprovalView)
    if as_json:
        print_json(found)
        return
    state = VERDICTS.get(found.state, found.state).capitalize()
    print(f"{state}, expires {when(found.expires_at)} UTC, asked by {printable(found.asked_by)} in {found.thread}")
    for said in (found.runs, found.reason):
        if said:
            print(printable(said))
    print(f"\n{printable(found.shown)}")


@command(approvals)
@click.option("--thread", "for_thread", is_flag=True, help="Allow the same for the whole thread.")
def allow(context: CommandContext, id: str, for_thread: bool) -> None:
    """Allow what the question shows, once."""
    _decide(context, id, {"decision": "allow", "scope": "thread" if for_thread else "once"}, "Allowed.")


@command(approvals)
def deny(context: CommandContext, id: str) -> None:
    """Refuse it; the agent is told and continues without it."""
    _decide(context, id, {"decision": "deny"}, "Denied.")


def _decide(context: CommandContext, id: str, body: dict[str, str], done: str) -> None:
    path = f"/api/approvals/{path_part(id)}"
    call_api(context, "POST", path, body)
    if find_server(context) is not None:
        print(f"{done} The turn continues.")
        return
    thread = get(context, path, ApprovalView).thread
    tell(f"{done} Nothing is running here: the turn continues with `shoal run` or `shoal chat --thread {thread}`.")


# ---- triggers ----


class TriggerTime(msgspec.Struct, frozen=True):
    at: datetime
    id: str
    name: str
    text: str


triggers = click.Group("triggers", help="Turns that start by the clock: once, or again and again.")


@command()
@click.argument("at", metavar="AT")
@click.option("--timezone", default="", help="IANA name, such as Europe/Berlin.  [default: yours]")
@click.option("--working-days", is_flag=True, help="From Monday to Friday.")
@click.option("--thread", default="", help="Where it is sent.  [default: where you last wrote to the agent]")
@click.option("--platform", default="", help="With --channel: open a new thread there each time.")
@click.option("--channel", default="")
@click.option("--agent", default="", help="Who sends it; 'brief' is made for it.  [default: the default agent]")
def brief(context: CommandContext, at: str, timezone: str, working_days: bool, **given: str) -> None:
    """Have a brief sent every morning AT an hour such as 8 or 8:30, or off.

    It tells what was done and spent, what waits for you and what is scheduled; nothing comes when there is nothing.
    """
    if at == "off":
        removed = call_api(context, "DELETE", "/api/brief", into=Removed).removed
        print("No brief comes any more." if removed else "There was no brief.")
        return
    days = "working" if working_days else "all"
    for line in send_brief(context, {"at": at, "timezone": timezone, "days": days, **given}):
        tell(line)


def send_brief(context: CommandContext, asked: Mapping[str, str]) -> list[str]:
    """Have a brief sent, by the time zone of whoever asks unless another is named; returns what to say of it.

    Raises what `call_api` does.
    """
    added = call_api(context, "POST", "/api/brief", {**asked}, into=TriggerView)
    where = f"in {added.thread or f'{added.platform}:{added.channel}'}"
    said = [f"A brief comes {where}, first at {_local(added)}."]
    if added.thread == BRIEF_ON_PAGE:
        said = [
            f"A brief comes on the page, first at {_local(added)}.",
            "You have written to no agent in a chat yet; once you have, the same command sends it there.",
        ]
    return said if find_server(context) else [*said, "Triggers fire only while `shoal run` is running."]


@command(triggers, "list")
def list_triggers(context: CommandContext, as_json: bool) -> None:
    """List the triggers, the next due first."""
    found = get(context, "/api/triggers", list[TriggerView])
    rows = [
        (
            one.id,
            one.state,
            one.next_at if one.state == "active" else None,
            f"{one.words} ({one.timezone})" if one.kind == "periodic" else one.schedule,
            one.thread or f"{one.platform}:{one.channel}",
            one.error or one.name or one.text,
        )
        for one in found
    ]
    head = ("id", "state", "next (UTC)", "schedule", "into", "what")
    print_records(found, as_json, head, rows, "There are no triggers. `shoal triggers add WHEN TEXT` makes one.")


@command(triggers)
@click.argument("when_", metavar="WHEN")
@click.option("--thread", help=f"The thread it goes into.  [default: {THREAD}]")
@click.option("--platform", default="", help="With --channel: open a new thread there each time.")
@click.option("--channel", default="")
@click.option("--timezone", default="", help="IANA name, such as Europe/Berlin.  [default: yours]")
@agent_option("Who answers; without it the thread's or channel's agent.")
@click.option("--name", default="", help="A name for lists.")
def add(context: CommandContext, when_: str, text: str, thread: str | None, **given: str) -> None:
    """Have the agent do TEXT at a time.

    WHEN is "in 90 minutes", "tomorrow at 9", "every weekday at 8:30", an ISO time such as 2026-05-04T09:00, or a cron
    line such as "0 9 * * 1-5".
    """
    if bool(given["platform"]) != bool(given["channel"]) or (thread and given["platform"]):
        raise InvalidInput("Give --thread, or --platform and --channel.")
    target = "" if given["platform"] else parse_thread_id(thread or THREAD)
    body = {"schedule": when_, "text": text, "thread": target, **given}
    added = call_api(context, "POST", "/api/triggers", body, into=TriggerView)
    tell(f"Added; it fires first at {_local(added)}. `shoal triggers list` shows it.")
    if find_server(context) is None:
        tell("Triggers fire only while `shoal run` is running.")


@command(triggers)
def remove(context: CommandContext, id: str) -> None:
    """Remove a trigger."""
    call_api(context, "DELETE", f"/api/triggers/{path_part(id)}")
    print("Removed.")


@command(triggers)
def pause(context: CommandContext, id: str) -> None:
    """Pause a trigger until it is resumed."""
    call_api(context, "POST", f"/api/triggers/{path_part(id)}/pause")
    tell("Paused until `shoal triggers resume`.")


@command(triggers)
def resume(context: CommandContext, id: str) -> None:
    """Resume a trigger that is paused or was switched off."""
    found = call_api(context, "POST", f"/api/triggers/{path_part(id)}/resume", into=TriggerView)
    print(f"Resumed; it fires next at {_local(found)}.")


@command(triggers, "next")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000))
def next_times(context: CommandContext, limit: int, as_json: bool) -> None:
    """Show the times that come next, over all triggers."""
    now = datetime.now(UTC)
    found = get(context, "/api/triggers", list[TriggerView])
    streams = [_times(one, now) for one in found if one.state == "active"]
    coming = [one for _, one in zip(range(limit), heapq.merge(*streams, key=lambda one: one.at), strict=False)]
    rows = [(one.at, one.id, one.name or one.text) for one in coming]
    print_records(coming, as_json, ("time (UTC)", "id", "what"), rows, "Nothing is scheduled.")


def _local(trigger: TriggerView) -> str:
    """When it fires next, by its own time zone."""
    return local_time(trigger.next_at.astimezone(zone_named(trigger.timezone))) if trigger.next_at else "no time"


def _times(trigger: TriggerView, now: datetime) -> Iterator[TriggerTime]:
    """When it fires, in order; what is due already first."""
    at = trigger.next_at
    while at is not None:
        yield TriggerTime(at, trigger.id, trigger.name, trigger.text)
        at = next_cron(trigger.schedule, trigger.timezone, max(at, now)) if trigger.kind == "periodic" else None


# ---- processes ----


processes = click.Group("processes", help="Processes that agents have started.")


@command(processes, "list")
@agent_option("Only those of this agent.")
@click.option("--running", is_flag=True, help="Only those that run.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
def list_processes(context: CommandContext, agent: str, running: bool, limit: int, as_json: bool) -> None:
    """List the processes, newest first."""
    found = get(context, "/api/processes", list[ProcessView], agent=agent, running=running, limit=limit)

    def state(one: ProcessView) -> str:
        if one.state == "exited":
            return f"exited {one.exit_code}"
        if one.state == "running":
            return f"running {int((datetime.now(UTC) - one.started_at).total_seconds())} s"
        return one.state

    rows = [(one.id, one.agent, state(one), one.started_at, one.ended_at, one.name) for one in found]
    head = ("id", "agent", "state", "started (UTC)", "ended (UTC)", "what")
    print_records(found, as_json, head, rows, "There are no processes.")


@command(processes)
@click.option(
    "--tail", default=100, show_default=True, type=click.IntRange(1, 1000), help="How many of the last lines."
)
@click.option("--offset", default=-1, help="Lines from this byte on instead.")
@click.option("--grep", default="", help="Only lines that contain this.")
def logs(context: CommandContext, id: str, tail: int, offset: int, grep: str, as_json: bool) -> None:
    """Show what a process has written, here in this home directory."""
    piece = get(context, f"/api/processes/{path_part(id)}/log", LogPiece, tail=tail, offset=offset, grep=grep)
    lines = tuple(map(context.redactor().redact, piece.lines))
    if as_json:
        print_json(msgspec.structs.replace(piece, lines=lines))
        return
    for line in lines:
        print(printable(line))


@command(processes)
def kill(context: CommandContext, id: str) -> None:
    """Kill a process with all its children."""
    call_api(context, "DELETE", f"/api/processes/{path_part(id)}")
    print("It is being killed.")


# ---- tools of MCP servers ----


mcp = click.Group(
    "mcp",
    help="Tools of MCP servers. What a server says of its tools at first is allowed; what it changes waits for you.",
)


@command(mcp, "list")
def list_mcp(context: CommandContext, as_json: bool) -> None:
    """List the tools, what waits first."""
    rows = [
        {
            "server": server.server,
            "name": one.name,
            "state": one.state,
            "digest": one.digest[:DIGEST_CHARS],
            "since": when(server.since),
        }
        for server in get(context, "/api/mcp", McpView).servers
        for one in server.tools
    ]
    waiting_first = sorted(rows, key=lambda row: (row["state"] == "allowed", natural(row["name"])))
    shown = [(row["name"], row["state"], row["digest"], row["since"]) for row in waiting_first]
    head = ("tool", "state", "digest", "pinned (UTC)")
    print_records(rows, as_json, head, shown, "No MCP server was connected yet.")


@command(mcp, "show")
def show_mcp(context: CommandContext, name: str) -> None:
    """Show what a server changed of tool NAME, as a diff, or what is allowed of it."""
    tools: list[McpToolView] = [one for server in get(context, "/api/mcp", McpView).servers for one in server.tools]
    found = next((one for one in tools if one.name == name), None)
    if found is None:
        raise NotFound(f"There is no tool {name[:80]!r} of an MCP server. `shoal mcp list` shows them.")
    if found.state == "allowed":
        print(f"{found.name} is allowed as its server offers it:\n")
        print(printable(found.text))
        return
    print(f"{found.name} is {found.state}; - is what you allowed, + what the server offers:\n")
    print(printable(found.change))
    print(f"\nTo allow it: shoal mcp allow {found.name} {found.digest[:DIGEST_CHARS]}")


@command(mcp, "allow")
def allow_mcp(context: CommandContext, name: str, digest: str) -> None:
    """Let agents use tool NAME as DIGEST says, which list and show name."""
    call_api(context, "POST", f"/api/mcp/{path_part(name)}", {"decision": "allow", "digest": digest})
    print(f"Allowed. Agents are told of {printable(name)} as its server offers it now, within a minute.")


@command(mcp, "deny")
def deny_mcp(context: CommandContext, name: str, digest: str) -> None:
    """Leave tool NAME as it was allowed, or hidden if it is new, and do not be asked for DIGEST again."""
    call_api(context, "POST", f"/api/mcp/{path_part(name)}", {"decision": "deny", "digest": digest})
    print("Denied. Agents go on with what you allowed before.")
