"""`shoal processes`: what agents have started that outlives their turns."""

import asyncio
from datetime import UTC, datetime

import click
import msgspec

from shoal.domain.errors import NotFound
from shoal.domain.processes import Process
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable, when
from shoal.surfaces.cli.place import Place


@click.group()
def processes() -> None:
    """Processes that agents have started."""


@processes.command("list")
@click.option("--agent", default="", help="Only those of this agent.")
@click.option("--running", is_flag=True, help="Only those that run.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@json_option
@click.pass_obj
def list_(place: Place, agent: str, running: bool, limit: int, as_json: bool) -> None:
    """List the processes, newest first."""
    found = place.read(lambda store: store.processes.search(agent=agent, running=running, limit=limit))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            process.id,
            process.spec.agent,
            _state(process),
            when(process.started_at),
            when(process.ended_at),
            printable(process.spec.title),
        )
        for process in found
    ]
    print_table(("id", "agent", "state", "started (UTC)", "ended (UTC)", "what"), rows, "There are no processes.")


@processes.command()
@click.argument("id")
@click.option(
    "--tail", default=100, show_default=True, type=click.IntRange(1, 1000), help="How many of the last lines."
)
@click.option("--offset", default=-1, help="Lines from this byte on instead.")
@click.option("--grep", default="", help="Only lines that contain this.")
@json_option
@click.pass_obj
def logs(place: Place, id: str, tail: int, offset: int, grep: str, as_json: bool) -> None:
    """Show what a process has written, here in this home directory."""
    from shoal.tools.processes.logs import log_of, read_log

    process = _found(place, id)
    piece = read_log(log_of(place.home, process), offset=offset, lines_max=tail, contains=grep)
    redactor = place.redactor()
    lines = tuple(redactor.redact(line) for line in piece.lines)
    if as_json:
        print_json(msgspec.structs.replace(piece, lines=lines))
        return
    for line in lines:
        print(printable(line))


@processes.command()
@click.argument("id")
@click.pass_obj
def kill(place: Place, id: str) -> None:
    """Kill a process with all its children."""
    from shoal.surfaces.cli.remote import find_remote, part

    remote = find_remote(place)
    if remote is not None:
        asyncio.run(remote.call("DELETE", f"/api/processes/{part(id)}"))
    elif _found(place, id).state != "running" or not place.write(lambda store: store.processes.kill(id, "owner")):
        raise NotFound(f"Process {id} does not run.")
    print(f"Killing {id}.")


def _found(place: Place, id: str) -> Process:
    found = place.read(lambda store: store.processes.get(id))
    if found is None:
        raise NotFound(f"There is no process {id}. `shoal processes list` shows them.")
    return found


def _state(process: Process) -> str:
    if process.state == "exited":
        return f"exited {process.exit_code}"
    if process.state == "running":
        return f"running {int((datetime.now(UTC) - process.started_at).total_seconds())} s"
    return process.state
