"""`shoal replay`: what models were sent, built again from the journal and compared, without asking any of them."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click
import msgspec

from shoal.domain.errors import NotFound, StoreNewer
from shoal.domain.ids import ThreadId, parse_thread_id
from shoal.surfaces.cli.client import as_usage, get, path_part
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.output import hours_of, json_option, printable
from shoal.surfaces.http.routes_threads import ReplayView, ThreadSummary

PAGE = 500
EXIT_UNREAD = 2
LAST = datetime.max.replace(tzinfo=UTC)


class ThreadReplay(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a thread, a line of `--json`; `error` says why it could not be read."""

    thread: str
    replay: ReplayView | None = None
    error: str = ""


@click.command()
@click.argument("id", required=False)
@click.option("--turn", default="", help="Only this turn of the thread.")
@click.option("--all", "every", is_flag=True, help="Every thread, archived ones too.")
@click.option("--since", help="With --all: active this lately; 12h, 2w. By default 30d.")
@json_option
@click.pass_obj
@as_usage()
def replay(context: CommandContext, id: str | None, turn: str, every: bool, since: str | None, as_json: bool) -> int:
    """Build the requests of past model calls again and say whether they are what was sent. ID is a thread's.

    Exits with 1 where one is not, with 2 where there is no such thread or turn, or a newer Shoal wrote one.
    """
    if every == (id is not None):
        raise click.UsageError("Name a thread, or write --all.")
    if since is not None and not every:
        raise click.UsageError("--since goes with --all.")
    lately = timedelta(hours=hours_of(since or "30d"))
    threads = [parse_thread_id(id)] if id is not None else _active(context, lately)
    calls = identical = unmarked = count = unread = 0
    kinds: Counter[str] = Counter()
    compared = True
    for thread in threads:
        try:
            found = get(context, f"/api/threads/{path_part(thread)}/replay", ReplayView, turn=turn)
        except (NotFound, StoreNewer) as error:
            if id is not None:
                raise
            if isinstance(error, StoreNewer):  # else somebody has deleted it meanwhile
                unread += 1
                line = msgspec.json.encode(ThreadReplay(thread, error=str(error))).decode()
                print(line if as_json else f"{thread}: {error}")
            continue
        compared, count = compared and found.compares_today, count + 1
        calls, identical, unmarked = calls + found.calls, identical + found.identical, unmarked + found.unmarked
        kinds.update(one.kind for one in found.differences)
        if as_json:
            print(msgspec.json.encode(ThreadReplay(thread, found)).decode())
            continue
        firsts = {one.kind: one for one in reversed(found.differences)}
        for one in sorted(firsts.values(), key=lambda one: one.seq):
            print(f"{thread}, event {one.seq}: {printable(one.detail)}")
        if len(found.differences) > len(firsts):
            print(f"  and {counted(len(found.differences) - len(firsts), 'more call')} of this thread")
    if not as_json:
        within = f" in {counted(count, 'thread')}" if id is None else ""
        parts = [f"{identical} identical"]
        if kinds:
            what = ", ".join(f"{number} in {kind}" for kind, number in kinds.most_common())
            parts.append(f"{kinds.total()} other than they were ({what})")
        parts += [f"{unmarked} of an earlier version, which noted nothing to compare with"] if unmarked else []
        print(f"{counted(calls, 'request')}{within}: {', '.join(parts)}.")
        if unread:
            print(f"{unread} {'thread was' if unread == 1 else 'threads were'} written by a newer Shoal and left out.")
        if not compared:
            print("Shoal does not run, so tools, options and instructions of today were not compared.")
    return EXIT_UNREAD if unread else 1 if kinds else 0


def counted(number: int, what: str) -> str:
    """So many of something."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _active(context: CommandContext, span: timedelta) -> Iterator[ThreadId]:
    """Threads that were active this lately: the last active first, then archived ones."""
    oldest = datetime.now(UTC) - span
    for archived in (False, True):
        before: datetime | None = LAST  # given on the first page too, or pinned ones of any age would end it
        while before is not None:
            page = get(
                context, "/api/threads", list[ThreadSummary],
                limit=PAGE, before=before.isoformat(), archived=archived,
            )  # fmt: skip
            recent = [one for one in page if one.updated_at >= oldest]
            yield from (ThreadId(one.thread) for one in recent)
            before = page[-1].updated_at if page and len(recent) == len(page) else None
