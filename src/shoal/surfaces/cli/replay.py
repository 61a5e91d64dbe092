"""`shoal replay`: what models were sent, built again from the journal and compared, without asking any of them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click
import msgspec

from shoal.domain.clock import iso
from shoal.domain.ids import ThreadId, parse_thread_id
from shoal.surfaces.cli.client import as_usage, get, path_part
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.output import hours_of, json_option, print_json, printable
from shoal.surfaces.http.routes_threads import ReplayView, ThreadSummary

PAGE = 500


class ThreadReplay(msgspec.Struct, frozen=True):
    """What came of a thread, as `--json` prints it."""

    thread: str
    replay: ReplayView


@click.command()
@click.argument("id", required=False)
@click.option("--turn", default="", help="Only this turn of the thread.")
@click.option("--all", "every", is_flag=True, help="Every thread.")
@click.option("--since", default="30d", show_default=True, help="With --all: active this lately; 12h, 2w.")
@json_option
@click.pass_obj
@as_usage()
def replay(context: CommandContext, id: str | None, turn: str, every: bool, since: str, as_json: bool) -> int:
    """Build the requests of past model calls again and say whether they are what was sent. ID is a thread's.

    Exits with 1 where one is not, with 2 where there is no such thread or turn.
    """
    if every == (id is not None):
        raise click.UsageError("Name a thread, or write --all.")
    threads = [parse_thread_id(id)] if id is not None else _active(context, timedelta(hours=hours_of(since)))
    calls = identical = unmarked = count = differ = 0
    compared = True
    for thread in threads:
        found = get(context, f"/api/threads/{path_part(thread)}/replay", ReplayView, turn=turn)
        compared, count = compared and found.compares_tools, count + 1
        calls, identical, unmarked = calls + found.calls, identical + found.identical, unmarked + found.unmarked
        differ += len(found.differences)
        if as_json:
            print_json(ThreadReplay(thread, found))
            continue
        for one in found.differences[:1]:
            print(f"{thread}, event {one.seq}: {printable(one.detail)}")
        if len(found.differences) > 1:
            print(f"  and {len(found.differences) - 1} more calls of this thread")
    if not as_json:
        within = f" in {count} threads" if id is None else ""
        parts = [f"{identical} identical", *([f"{differ} other than they were"] if differ else [])]
        parts += [f"{unmarked} of an earlier version, which noted nothing to compare with"] if unmarked else []
        print(f"{calls} requests{within}: {', '.join(parts)}.")
        if not compared:
            print("Shoal does not run, so the tools that are offered were not compared.")
    return 1 if differ else 0


def _active(context: CommandContext, span: timedelta) -> Iterator[ThreadId]:
    """Threads that were active this lately, the last active first."""
    oldest, before = datetime.now(UTC) - span, ""
    while page := get(context, "/api/threads", list[ThreadSummary], limit=PAGE, before=before):
        for one in page:
            if one.updated_at < oldest:
                return
            yield ThreadId(one.thread)
        before = iso(page[-1].updated_at)
