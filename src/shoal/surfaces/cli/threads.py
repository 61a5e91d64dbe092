"""`shoal threads`: conversations, their journals, the readable files made from them, and saved conversations."""

import click
import msgspec

from shoal.domain.clock import iso
from shoal.domain.ids import parse_thread_id
from shoal.domain.records import Snapshot
from shoal.surfaces.cli.client import call_api, decode_event, get, path_part
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.output import json_option, print_json, print_records, printable
from shoal.surfaces.http.routes_files import ArtifactView
from shoal.surfaces.http.routes_threads import EVENTS_MAX, THREADS_MAX, ThreadSummary


class ThreadExport(msgspec.Struct, frozen=True):
    """A thread with its events, as `threads show --json` prints it."""

    thread: ThreadSummary
    events: list[msgspec.Raw]


@click.group()
def threads() -> None:
    """Conversations. ID is platform:channel:thread, as `threads list` shows it."""


@threads.command("list")
@click.option("--agent", default="", help="Only those of this agent.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, THREADS_MAX))
@json_option
@click.pass_obj
def list_threads(context: CommandContext, agent: str, limit: int, as_json: bool) -> None:
    """List threads, the last active first."""
    found = get(context, "/api/threads", list[ThreadSummary], limit=limit, agent=agent)
    rows = [(one.thread, one.agent, one.updated_at, one.last_seq, _doing(one), one.title) for one in found]
    head = ("thread", "agent", "active (UTC)", "events", "", "title")
    print_records(found, as_json, head, rows, "There are no threads yet.")


@threads.command()
@click.argument("id")
@json_option
@click.pass_obj
def show(context: CommandContext, id: str, as_json: bool) -> None:
    """Show a conversation: what was said and done, turn by turn."""
    from shoal.surfaces.cli.output import event_lines

    info, events = _whole(context, id)
    if as_json:
        print_json(ThreadExport(info, events))
        return
    agent = f"agent {info.agent}" if info.agent else "the default agent"
    print(f"{info.thread}, {agent}, {len(events)} events, {_doing(info) or 'at rest'}")
    for event in map(decode_event, events):
        for line in event_lines(event):
            print(line)


@threads.command()
@click.argument("id")
@click.option("--after", default=0, help="Only events with a higher number.")
@json_option
@click.pass_obj
def log(context: CommandContext, id: str, after: int, as_json: bool) -> None:
    """Print the journal's events, one a line."""
    _, events = _whole(context, id, after)
    if as_json:
        print_json(events)
        return
    for event in map(decode_event, events):
        data = printable(msgspec.json.encode(event.data).decode())
        print(f"{event.seq:>6}  {iso(event.at)}  {event.type:<18}  {data}")


@threads.command()
@click.argument("id")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write; else standard output.")
@click.pass_obj
def export(context: CommandContext, id: str, output: str | None) -> None:
    """Write the whole journal as JSON lines, one event a line."""
    _, events = _whole(context, id)
    with click.open_file(output or "-", "wb") as file:
        for event in events:
            file.write(bytes(event) + b"\n")
    if output:
        print(f"Wrote {len(events)} events to {output}.")


@threads.command()
@click.argument("id")
@click.pass_obj
def rebuild(context: CommandContext, id: str) -> None:
    """Make log.jsonl and context.jsonl anew from the journal."""
    from shoal.store.projections import Projections

    thread = parse_thread_id(id)
    _, events = _whole(context, id)
    Projections(context.home).rebuild(thread, [*map(decode_event, events)])
    print(f"Wrote log.jsonl and context.jsonl in {context.home.thread(thread)}.")


@threads.command()
@click.argument("id")
@json_option
@click.pass_obj
def artifacts(context: CommandContext, id: str, as_json: bool) -> None:
    """List the results that are stored whole, newest first."""
    found = get(context, f"{_path(id)}/artifacts", list[ArtifactView])
    rows = [(one.artifact, one.name, f"{one.size_bytes:,}", one.created_at) for one in found]
    print_records(found, as_json, ("artifact", "tool", "bytes", "made (UTC)"), rows, "The thread has no artifacts.")


@threads.group()
def snapshot() -> None:
    """Saved conversations. ID is the thread's."""


@snapshot.command("list")
@click.argument("id")
@json_option
@click.pass_obj
def list_snapshots(context: CommandContext, id: str, as_json: bool) -> None:
    """List what was saved in the thread's channel, newest first."""
    found = get(context, f"{_path(id)}/snapshots", list[Snapshot])
    rows = [(one.id, one.created_at, one.messages, one.description) for one in found]
    print_records(found, as_json, ("snapshot", "saved (UTC)", "messages", "about"), rows, "Nothing was saved here yet.")


@snapshot.command()
@click.argument("id")
@click.option("--description", default="", help="What it is about; else the model says, or Shoal plainly.")
@click.pass_obj
def save(context: CommandContext, id: str, description: str) -> None:
    """Save what the model sees now; nothing is cleared."""
    saved = call_api(context, "POST", f"{_path(id)}/snapshots", {"description": description}, into=Snapshot)
    print(f"Saved as {saved.id}: {printable(saved.description)}")


@snapshot.command()
@click.argument("id")
@click.argument("snapshot")
@click.pass_obj
def restore(context: CommandContext, id: str, snapshot: str) -> None:
    """Put a saved conversation in the place of what the model sees."""
    restored = call_api(context, "POST", f"{_path(id)}/snapshots/{path_part(snapshot)}/restore", into=Snapshot)
    print(f"Restored: {printable(restored.description)}")


def _path(id: str) -> str:
    return f"/api/threads/{path_part(parse_thread_id(id))}"


def _doing(info: ThreadSummary) -> str:
    if info.open_turn:
        return "turn open"
    return f"{info.queued} waiting" if info.queued else ""


def _whole(context: CommandContext, id: str, after: int = 0) -> tuple[ThreadSummary, list[msgspec.Raw]]:
    info = get(context, _path(id), ThreadSummary)
    events: list[msgspec.Raw] = []
    while True:
        batch = get(context, f"{_path(id)}/events", list[msgspec.Raw], after=after, limit=EVENTS_MAX)
        events += batch
        if len(batch) < EVENTS_MAX:
            return info, events
        after = decode_event(batch[-1]).seq
