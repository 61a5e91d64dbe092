"""`shoal threads`: conversations, their journals, and the readable files made from them."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click
import msgspec

from shoal.domain.clock import iso
from shoal.domain.errors import NotFound
from shoal.domain.events import Event, encode_event
from shoal.domain.ids import ThreadId, parse_thread_id
from shoal.domain.records import ThreadInfo
from shoal.domain.store import Store
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable, when
from shoal.surfaces.cli.place import Place
from shoal.surfaces.cli.snapshots import snapshot

if TYPE_CHECKING:
    from pathlib import Path

EVENTS_A_READ = 5000


class Journal(msgspec.Struct, frozen=True):
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
def list_(place: Place, agent: str, limit: int, as_json: bool) -> None:
    """List threads, the last active first."""
    found = place.read(lambda store: store.journal.threads(limit, agent=agent))
    if as_json:
        print_json(found)
        return
    rows = [
        (info.thread, info.agent, when(info.updated_at), str(info.last_seq), _doing(info), printable(info.title))
        for info in found
    ]
    print_table(("thread", "agent", "active (UTC)", "events", "", "title"), rows, "There are no threads yet.")


@threads.command()
@click.argument("id")
@json_option
@click.pass_obj
def show(place: Place, id: str, as_json: bool) -> None:
    """Show a conversation: what was said and done, turn by turn."""
    from shoal.surfaces.cli.transcript import event_lines

    info, events = place.read(lambda store: _whole(store, parse_thread_id(id)))
    if as_json:
        print_json(Journal(info, [msgspec.Raw(encode_event(event)) for event in events]))
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
def log(place: Place, id: str, after: int, as_json: bool) -> None:
    """Print the journal's events, one a line."""
    thread = parse_thread_id(id)
    _, events = place.read(lambda store: _whole(store, thread, after))
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
def export(place: Place, id: str, output: str | None) -> None:
    """Write the whole journal as JSON lines, one event a line."""
    _, events = place.read(lambda store: _whole(store, parse_thread_id(id)))
    with click.open_file(output or "-", "wb") as file:
        for event in events:
            file.write(encode_event(event) + b"\n")
    if output:
        print(f"Wrote {len(events)} events to {output}.")


@threads.command()
@click.argument("id")
@click.pass_obj
def rebuild(place: Place, id: str) -> None:
    """Make log.jsonl and context.jsonl anew from the journal."""
    from shoal.store.projections import Projections

    thread = parse_thread_id(id)
    _, events = place.read(lambda store: _whole(store, thread))
    Projections(place.home).rebuild(thread, events)
    folder: Path = place.home.thread(thread)
    print(f"Wrote log.jsonl and context.jsonl in {folder}.")


@threads.command()
@click.argument("id")
@json_option
@click.pass_obj
def artifacts(place: Place, id: str, as_json: bool) -> None:
    """List the results that are stored whole, newest first."""
    thread = parse_thread_id(id)
    found = place.read(lambda store: store.artifacts.of_thread(thread))
    if as_json:
        print_json(found)
        return
    rows = [(one.digest, printable(one.name), f"{one.size_bytes:,}", when(one.created_at)) for one in found]
    print_table(("artifact", "tool", "bytes", "made (UTC)"), rows, "The thread has no artifacts.")


threads.add_command(snapshot)


def _doing(info: ThreadInfo) -> str:
    if info.open_turn:
        return "turn open"
    return f"{info.queued} waiting" if info.queued else ""


async def _whole(store: Store, thread: ThreadId, after: int = 0) -> tuple[ThreadInfo, list[Event]]:
    info = await store.journal.thread(thread)
    if info is None:
        raise NotFound(f"There is no thread {thread}. `shoal threads list` shows them.")
    return info, [event async for event in _events(store, thread, after)]


async def _events(store: Store, thread: ThreadId, after: int) -> AsyncIterator[Event]:
    while batch := await store.journal.events(thread, after, EVENTS_A_READ):
        for event in batch:
            yield event
        after = batch[-1].seq
