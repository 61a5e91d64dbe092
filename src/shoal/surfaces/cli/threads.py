"""`shoal threads` and `context`: conversations, journals and exports, and the size of a thread's next model request."""

import click
import msgspec

from shoal.kernel.clock import iso
from shoal.kernel.events import current
from shoal.kernel.ids import parse_thread_id
from shoal.kernel.phrases import counted
from shoal.kernel.records import DeletedThread
from shoal.store.projections import Projections
from shoal.surfaces.cli.client import as_usage, call_api, call_app, get, path_part
from shoal.surfaces.cli.completion import agent_option
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.init import make_home
from shoal.surfaces.cli.output import event_lines, print_json, print_records, print_table, printable
from shoal.surfaces.cli.thread_client import decode_event
from shoal.surfaces.export import WRITERS
from shoal.surfaces.http.thread_views import (
    EVENTS_MAX,
    THREADS_MAX,
    Accepted,
    ArtifactView,
    OpenedThread,
    ThreadSummary,
)

NEW_THREAD = "web:lobby:new"
"""Placeholder thread for a conversation without messages."""


class ThreadExport(msgspec.Struct, frozen=True):
    """A thread with its events, as `threads show --json` prints it."""

    thread: ThreadSummary
    events: list[msgspec.Raw]


threads = click.Group(
    "threads",
    help="Manage conversation threads. An ID has the form platform:channel:thread. 'threads list' prints all IDs.",
    epilog="Example: shoal threads list",
)


@command(threads, "list", example="shoal threads list --limit 10")
@agent_option("List only this agent's threads.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, THREADS_MAX))
@click.option("--archived", is_flag=True, help="List only archived threads.")
def list_threads(context: CommandContext, agent: str, limit: int, archived: bool, as_json: bool) -> None:
    """List threads, most recently active first. Pinned threads are always listed."""
    threads = get(context, "/api/threads", list[ThreadSummary], limit=limit, agent=agent, archived=archived)
    rows = [
        (summary.thread, summary.agent, summary.updated_at, summary.last_seq, _doing(summary), summary.title)
        for summary in threads
    ]
    head = ("thread", "agent", "last active (UTC)", "events", "", "title")
    print_records(threads, as_json, head, rows, "No threads yet.")


@command(threads, example="shoal threads show terminal:local:main")
def show(context: CommandContext, id: str, as_json: bool) -> None:
    """Show a conversation turn by turn."""
    info, events = _whole(context, id)
    if as_json:
        print_json(ThreadExport(info, events))
        return
    agent = f"agent {info.agent}" if info.agent else "the default agent"
    print(f"{info.thread}, {agent}, {counted(len(events), 'event')}, {_doing(info) or 'idle'}")
    for event in map(decode_event, events):
        for line in event_lines(event):
            print(line)


@command(threads, example="shoal threads log terminal:local:main --after 40")
@click.option("--after", default=0, help="Print only events with numbers above this one.")
def log(context: CommandContext, id: str, after: int, as_json: bool) -> None:
    """Print the journal's events, one per line."""
    _, events = _whole(context, id, after)
    if as_json:
        print_json(events)
        return
    for event in map(decode_event, events):
        data = printable(msgspec.json.encode(event.data).decode())
        print(f"{event.seq:>6}  {iso(event.at)}  {event.type:<18}  {data}")


@command(threads, example="shoal threads export terminal:local:main --format html -o chat.html")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write. [default: standard output]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "json", "markdown", "html"]),
    default="jsonl",
    show_default=True,
    help="jsonl: one event per line. json: the journal and the thread. markdown, html: a readable document.",
)
def export(context: CommandContext, id: str, output: str | None, form: str) -> None:
    """Export a conversation to a file or to standard output."""
    info, events = _whole(context, id)
    with click.open_file(output or "-", "wb") as file:
        if form == "jsonl":
            file.writelines(bytes(event) + b"\n" for event in events)
        elif form == "json":
            file.write(msgspec.json.encode(ThreadExport(info, events)) + b"\n")
        else:
            writer = WRITERS[form](parse_thread_id(id), info.title)
            file.write(writer.head().encode())
            file.writelines(writer.event(event).encode() for event in current([*map(decode_event, events)]))
            file.write(writer.tail().encode())
    if output:
        print(f"Wrote {counted(len(events), 'event')} to {output}.")


@command(threads, example='shoal threads rename terminal:local:main "Holiday plans"')
def rename(context: CommandContext, id: str, title: str) -> None:
    """Change a thread's title."""
    changed = call_api(context, "PATCH", _path(id), {"title": title}, into=ThreadSummary)
    print(f"Renamed {changed.thread} to {printable(changed.title)!r}.")


@command(threads, example="shoal threads pin terminal:local:main")
@click.option("--off", is_flag=True, help="Unpin the thread.")
def pin(context: CommandContext, id: str, off: bool) -> None:
    """Pin a thread. The page lists pinned threads first."""
    call_api(context, "PATCH", _path(id), {"pinned": not off})
    print(f"{id} is no longer pinned." if off else f"{id} is pinned.")


@command(threads, example="shoal threads archive terminal:local:main")
@click.option("--off", is_flag=True, help="Unarchive the thread.")
def archive(context: CommandContext, id: str, off: bool) -> None:
    """Archive a thread. Nothing is deleted, and new messages are still answered."""
    call_api(context, "PATCH", _path(id), {"archived": not off})
    print(f"{id} is no longer archived." if off else f"{id} is archived.")


@command(threads, example="shoal threads delete terminal:local:main")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(context: CommandContext, id: str, yes: bool) -> None:
    """Delete a thread permanently, with its journal, files, results and saved conversations, and the threads of its
    subagents.

    The audit log keeps the checks, the decisions and a digest of the journal. Fails if the thread is running or has
    queued messages.
    """
    info = get(context, _path(id), ThreadSummary)
    if not yes:
        named = f" ({printable(info.title)})" if info.title else ""
        click.confirm(f"Delete {info.thread}{named} with {counted(info.last_seq, 'event')} permanently?", abort=True)
    gone = call_api(context, "DELETE", _path(id), into=DeletedThread)
    others = f" and its subagents' threads ({gone.threads - 1})" if gone.threads > 1 else ""
    print(f"Deleted {id}{others}. {counted(gone.events, 'event')} deleted, digest {gone.digest}.")


@command(threads, example="shoal threads rebuild terminal:local:main")
def rebuild(context: CommandContext, id: str) -> None:
    """Rebuild log.jsonl and context.jsonl from the journal."""
    from shoal.threads.readable_files import system_texts  # a slow import

    thread = parse_thread_id(id)
    events = [*map(decode_event, _whole(context, id)[1])]
    systems = context.read(lambda store: system_texts(store.journal, events))
    Projections(context.home).rebuild(thread, events, systems)
    print(f"Wrote log.jsonl and context.jsonl in {context.home.thread(thread)}.")


@command(threads, example="shoal threads fork terminal:local:main --after 40")
@click.option("--after", default=0, type=click.IntRange(0), help="Copy up to this event. [default: everything]")
@click.option("--as", "name", default="", help="The copy's ID, beginning with web: or terminal:.")
@as_usage()
def fork(context: CommandContext, id: str, after: int, name: str) -> None:
    """Start a new conversation as a copy of another one, either complete or up to an event."""
    made = call_api(context, "POST", f"{_path(id)}/fork", {"after": after, "thread": name}, into=OpenedThread)
    print(made.thread)


@command(threads, example="shoal threads again terminal:local:main --model openai/gpt-5.5")
@click.option(
    "--at",
    "seq",
    default=0,
    type=click.IntRange(0),
    help="An event in the turn to answer again. [default: the last turn]",
)
@click.option("--model", default="", help="Use this model instead of the agent's.")
@as_usage()
def again(context: CommandContext, id: str, seq: int, model: str) -> None:
    """Answer a message again. The current answer stays on another branch."""
    call_api(context, "POST", f"{_path(id)}/again", {"seq": seq, "model": model}, into=Accepted)
    print("Answering the message again.")


@command(threads, example="shoal threads branch terminal:local:main 40")
@click.argument("after", type=click.IntRange(0))
@as_usage()
def branch(context: CommandContext, id: str, after: int) -> None:
    """Continue a conversation after event AFTER, which can be the end of another branch."""
    call_api(context, "POST", f"{_path(id)}/branch", {"after": after}, into=ThreadSummary)
    print(f"{id} continues after event {after}.")


@command(threads, example="shoal threads artifacts terminal:local:main")
def artifacts(context: CommandContext, id: str, as_json: bool) -> None:
    """List the stored results of a thread, newest first."""
    artifacts = get(context, f"{_path(id)}/artifacts", list[ArtifactView])
    rows = [
        (artifact.artifact, artifact.name, f"{artifact.size_bytes:,}", artifact.created_at) for artifact in artifacts
    ]
    print_records(
        artifacts, as_json, ("artifact", "tool", "bytes", "created (UTC)"), rows, "This thread has no artifacts."
    )


def _path(id: str) -> str:
    return f"/api/threads/{path_part(parse_thread_id(id))}"


def _doing(info: ThreadSummary) -> str:
    if info.open_turn:
        return "turn open"
    return f"{info.queued} waiting" if info.queued else "pinned" if info.pinned else ""


def _whole(context: CommandContext, id: str, after: int = 0) -> tuple[ThreadSummary, list[msgspec.Raw]]:
    info = get(context, _path(id), ThreadSummary)
    events: list[msgspec.Raw] = []
    while True:
        batch = get(context, f"{_path(id)}/events", list[msgspec.Raw], after=after, limit=EVENTS_MAX)
        events += batch
        if len(batch) < EVENTS_MAX:
            return info, events
        after = decode_event(batch[-1]).seq


# ---- the next request ----


context = click.Group(
    "context", help="Content of model requests.", epilog="Example: shoal context show terminal:local:main"
)


@command(context, "show", example="shoal context show terminal:local:main")
@click.argument("id", default=NEW_THREAD)
def show_costs(context: CommandContext, id: str, as_json: bool) -> None:
    """Show the size of each part of a thread's next request, in bytes and tokens.

    Without ID, show the first request of a new conversation.
    """
    from shoal.turn.context import ContextCosts  # a slow import

    path = f"{_path(id)}/context"
    make_home(context.home)
    costs = call_app(context, "GET", path, into=ContextCosts)
    if as_json:
        print_json(costs)
        return
    share = costs.tokens * 100 // costs.window_tokens
    print(f"{costs.model} for {costs.agent}: {costs.tokens} of {costs.window_tokens} tokens ({share}%).")
    print(f"Reserved for the answer: {costs.output_tokens} tokens.")
    print_table(("part", "bytes", "tokens"), [(part.name, part.bytes, part.tokens) for part in costs.parts], "")
    if costs.found_tools:
        print(f"Tools available on demand: {costs.found_tools}.")
    if costs.left_out:
        print(f"Older messages omitted: {costs.left_out}.")
    if costs.fitted:
        print("Instructions and tool descriptions are shortened to fit the context window.")
