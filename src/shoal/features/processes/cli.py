"""`shoal processes`: list, read and kill processes that agents have started."""

from datetime import UTC, datetime

import click
import msgspec

from shoal.features.processes.logs import LogPiece
from shoal.features.processes.routes import ProcessView
from shoal.surfaces.cli.client import call_api, get, path_part
from shoal.surfaces.cli.completion import agent_option
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import print_json, print_records, printable

processes = click.Group(
    "processes",
    help="List, read and kill processes that agents have started.",
    epilog="Example: shoal processes list --running",
)


@command(processes, "list", example="shoal processes list --running")
@agent_option("Only this agent's processes.")
@click.option("--running", is_flag=True, help="Only running processes.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
def list_processes(context: CommandContext, agent: str, running: bool, limit: int, as_json: bool) -> None:
    """List processes, newest first."""
    processes = get(context, "/api/processes", list[ProcessView], agent=agent, running=running, limit=limit)

    def state(process: ProcessView) -> str:
        if process.state == "exited":
            return f"exited {process.exit_code}"
        if process.state == "running":
            return f"running {int((datetime.now(UTC) - process.started_at).total_seconds())} s"
        return process.state

    rows = [
        (process.id, process.agent, state(process), process.started_at, process.ended_at, process.name)
        for process in processes
    ]
    head = ("id", "agent", "state", "started (UTC)", "ended (UTC)", "what")
    print_records(processes, as_json, head, rows, "No processes.")


@command(processes, example="shoal processes logs 7 --tail 20")
@click.option(
    "--tail", default=100, show_default=True, type=click.IntRange(1, 1000), help="Number of lines from the end."
)
@click.option("--offset", default=-1, help="Start at this byte of the output instead of counting lines from the end.")
@click.option("--grep", default="", help="Only lines that contain this text.")
def logs(context: CommandContext, id: str, tail: int, offset: int, grep: str, as_json: bool) -> None:
    """Print the output of a process."""
    piece = get(context, f"/api/processes/{path_part(id)}/log", LogPiece, tail=tail, offset=offset, grep=grep)
    lines = tuple(map(context.redactor().redact, piece.lines))
    if as_json:
        print_json(msgspec.structs.replace(piece, lines=lines))
        return
    for line in lines:
        print(printable(line))


@command(processes, example="shoal processes kill 7")
def kill(context: CommandContext, id: str) -> None:
    """Kill a process and all its children."""
    call_api(context, "DELETE", f"/api/processes/{path_part(id)}")
    print("Killing the process.")
