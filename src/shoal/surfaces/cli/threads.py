"""`shoal threads`: conversations, their journals, the readable files made from them, and saved conversations."""

from typing import TYPE_CHECKING

import click
import msgspec

from shoal.domain.clock import iso
from shoal.domain.errors import NotFound
from shoal.domain.events import Event, encode_event
from shoal.domain.ids import ThreadId, parse_thread_id
from shoal.domain.records import Snapshot, ThreadInfo
from shoal.surfaces.cli.client import call_api, path_part
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.output import json_option, print_json, print_records, printable, when

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.store.store import Store

EVENTS_A_READ = 5000


class ThreadExport(msgspec.Struct, frozen=True):
    """A thread with its events, as `threads show --json` prints it."""

    thread: ThreadInfo
    events: list[msgspec.Raw]


@click.group()
def threads() -> None:
    """Conversations. ID is platform:channel:thread, as `threads list` shows it."""


@threads.command("list")
@click.option("--agent", default="", help="Only those of this agent.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@json_option
@click.pass_obj
def list_threads(context: CommandContext, agent: str, limit: int, as_json: bool) -> None:
    """List threads, the last active first."""
    found = context.read(lambda store: store.journal.threads(limit, agent=agent))
    rows = [
        (info.thread, info.agent, when(info.updated_at), str(info.last_seq), _doing(info), printable(info.title))
        for info in found
    ]
    print_records(
        found, as_json, ("thread", "agent", "active (UTC)", "events", "", "title"), rows, "There are no threads yet."
    )


@threads.command()
@click.argument("id")
@json_option
@click.pass_obj
def show(context: CommandContext, id: str, as_json: bool) -> None:
    """Show a conversation: what was said and done, turn by turn."""
    from shoal.surfaces.cli.output import event_lines

    info, events = context.read(lambda store: _whole(store, parse_thread_id(id)))
    if as_json:
        print_json(ThreadExport(info, [msgspec.Raw(encode_event(event)) for event in events]))
        return
    agent = f"agent {info.agent}" if info.agent else "the default agent"
    print(f"{info.thread}, {agent}, {len(events)} events, {_doing(info) or 'at rest'}")
    for event in events:
        for line in event_lines(event):
            print(line)


@threads.command()
@click.argument("id")
@click.option("--after", default=0, help="Only events with a higher number.")
@json_option
@click.pass_obj
def log(context: CommandContext, id: str, after: int, as_json: bool) -> None:
    """Print the journal's events, one a line."""
    thread = parse_thread_id(id)
    _, events = context.read(lambda store: _whole(store, thread, after))
    if as_json:
        print_json([msgspec.Raw(encode_event(event)) for event in events])
        return
    for event in events:
        data = printable(msgspec.json.encode(event.data).decode())
        print(f"{event.seq:>6}  {iso(event.at)}  {event.type:<18}  {data}")


@threads.command()
@click.argument("id")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write; else standard output.")
@click.pass_obj
def export(context: CommandContext, id: str, output: str | None) -> None:
    """Write the whole journal as JSON lines, one event a line."""
    _, events = context.read(lambda store: _whole(store, parse_thread_id(id)))
    with click.open_file(output or "-", "wb") as file:
        for event in events:
            file.write(encode_event(event) + b"\n")
    if output:
        print(f"Wrote {len(events)} events to {output}.")


@threads.command()
@click.argument("id")
@click.pass_obj
def rebuild(context: CommandContext, id: str) -> None:
    """Make log.jsonl and context.jsonl anew from the journal."""
    from shoal.store.projections import Projections

    thread = parse_thread_id(id)
    _, events = context.read(lambda store: _whole(store, thread))
    Projections(context.home).rebuild(thread, events)
    folder: Path = context.home.thread(thread)
    print(f"Wrote log.jsonl and context.jsonl in {folder}.")


@threads.command()
@click.argument("id")
@json_option
@click.pass_obj
def artifacts(context: CommandContext, id: str, as_json: bool) -> None:
    """List the results that are stored whole, newest first."""
    thread = parse_thread_id(id)
    found = context.read(lambda store: store.artifacts.of_thread(thread))
    rows = [(one.digest, printable(one.name), f"{one.size_bytes:,}", when(one.created_at)) for one in found]
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
    from shoal.surfaces.cli.offline import OfflineApp

    thread, config = parse_thread_id(id), context.config()
    found = context.read(lambda store: OfflineApp(config, store).snapshots.history(thread))
    rows = [(one.id, when(one.created_at), str(one.messages), printable(one.description)) for one in found]
    print_records(found, as_json, ("snapshot", "saved (UTC)", "messages", "about"), rows, "Nothing was saved here yet.")


@snapshot.command()
@click.argument("id")
@click.option("--description", default="", help="What it is about; else the model says, or Shoal plainly.")
@click.pass_obj
def save(context: CommandContext, id: str, description: str) -> None:
    """Save what the model sees now; nothing is cleared."""
    path = f"/api/threads/{path_part(parse_thread_id(id))}/snapshots"
    saved = call_api(context, "POST", path, {"description": description}, into=Snapshot)
    print(f"Saved as {saved.id}: {printable(saved.description)}")


@snapshot.command()
@click.argument("id")
@click.argument("snapshot")
@click.pass_obj
def restore(context: CommandContext, id: str, snapshot: str) -> None:
    """Put a saved conversation in the place of what the model sees."""
    path = f"/api/threads/{path_part(parse_thread_id(id))}/snapshots/{path_part(snapshot)}/restore"
    print(f"Restored: {printable(call_api(context, 'POST', path, into=Snapshot).description)}")


def _doing(info: ThreadInfo) -> str:
    if info.open_turn:
        return "turn open"
    return f"{info.queued} waiting" if info.queued else ""


async def _whole(store: "Store", thread: ThreadId, after: int = 0) -> tuple[ThreadInfo, list[Event]]:
    info = await store.journal.thread(thread)
    if info is None:
        raise NotFound(f"There is no thread {thread}. `shoal threads list` shows them.")
    events: list[Event] = []
    while batch := await store.journal.events(thread, events[-1].seq if events else after, EVENTS_A_READ):
        events += batch
    return info, events
