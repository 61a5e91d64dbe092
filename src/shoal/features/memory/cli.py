"""`shoal memory`: show, correct and forget what agents remember."""

from urllib.parse import urlencode

import click

from shoal.features.memory.routes import MemoryFile
from shoal.features.memory.store import MemoryChange
from shoal.kernel.errors import NotFound
from shoal.kernel.memory_files import entry_key
from shoal.surfaces.cli.client import call_api, get, path_part
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import echo, print_json, print_records, printable

IN_THREAD = click.option(
    "--thread", default="", help="With --scope platform or channel: a thread on that platform or in that channel."
)
FILE_SCOPE = click.option(
    "--scope", type=click.Choice(["global", "platform", "channel", "note"]), default="global", show_default=True
)
OF_DAY = click.option("--day", default="", help="Day of the note, as YYYY-MM-DD.")

memory = click.Group(
    "memory",
    help="Agents' memory: one MEMORY.md for each of three scopes, and daily notes.",
    epilog="Example: shoal memory show",
)


@command(memory, example="shoal memory show")
@click.option("--thread", default="", help="Also show the memory of this thread's platform and channel.")
@click.option("--day", default="", help="Show only the note of this day, YYYY-MM-DD.")
def show(context: CommandContext, thread: str, day: str, as_json: bool) -> None:
    """Print the memory files."""
    days = context.config().context.daily_notes_days
    files = get(context, "/api/memory", list[MemoryFile], thread=thread, day=day, notes=days)
    if as_json:
        print_json(files)
        return
    for memory_file in files:
        title = f"notes for {memory_file.day}" if memory_file.day else memory_file.scope
        print(f"# {title} ({memory_file.path})\n{printable(memory_file.text).strip() or '(no memory yet)'}\n")


@command(memory, example='shoal memory forget "I am allergic to nuts"')
@FILE_SCOPE
@IN_THREAD
@OF_DAY
def forget(context: CommandContext, entry: str, scope: str, thread: str, day: str) -> None:
    """Forget ENTRY, ignoring case. 'memory undo' restores it."""
    if not entry.strip():
        raise click.UsageError("ENTRY is empty. Specify the text to forget.")
    where = urlencode({"scope": scope, "thread": thread, "day": day, "entry": entry})
    call_api(context, "DELETE", f"/api/memory?{where}")
    echo("The agent forgets the entry on the next turn. `shoal memory undo` restores the entry.")


@command(memory, example='shoal memory amend "likes tea" "likes green tea"')
@FILE_SCOPE
@IN_THREAD
@OF_DAY
def amend(context: CommandContext, entry: str, text: str, scope: str, thread: str, day: str) -> None:
    """Replace ENTRY with TEXT. 'memory undo' restores ENTRY."""
    if not text.strip():
        raise click.UsageError("TEXT is empty. To remove the entry, run `shoal memory forget`.")
    files = get(context, "/api/memory", list[MemoryFile], thread=thread, day=day)
    file = next((memory_file for memory_file in files if memory_file.scope == scope), None)
    if file is None:
        raise click.UsageError(
            "For a platform or channel, add --thread with one of its threads. For a note, add --day."
        )
    lines, wanted = file.text.splitlines(), entry_key(entry)
    places = [at for at, line in enumerate(lines) if entry_key(line.partition("<!-- only ")[0]) == wanted]
    if not places:
        raise NotFound(f"{file.path} has no entry {entry[:200]!r}. `shoal memory show` shows its entries.")
    for at in places:
        lines[at] = f"- {' '.join(text.split())}{''.join(lines[at].partition(' <!-- only ')[1:])}"
    given = {"scope": scope, "thread": thread, "day": day, "text": "\n".join(lines), "digest": file.digest}
    call_api(context, "PUT", "/api/memory", given)
    echo("The correction takes effect on the next turn. `shoal memory undo` restores the old text.")


@command(memory, example="shoal memory changes --limit 5")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000))
def changes(context: CommandContext, limit: int, as_json: bool) -> None:
    """List changes to memory and who made them, newest first."""
    changes = get(context, "/api/memory/changes", list[MemoryChange], limit=limit)
    rows = [
        (
            change.id,
            change.at,
            change.changed_by,
            change.file,
            " / ".join((*(f"-{line}" for line in change.removed), *(f"+{line}" for line in change.added)))[:200],
            "undone" if change.undone else "",
        )
        for change in changes
    ]
    head = ("id", "time (UTC)", "by", "file", "change", "")
    print_records(changes, as_json, head, rows, "Memory has no changes yet.")


@command(memory, example="shoal memory undo")
@click.argument("id", required=False)
def undo(context: CommandContext, id: str | None) -> None:
    """Undo the change with this ID, or the newest one."""
    if id is None:
        changes = get(context, "/api/memory/changes", list[MemoryChange], limit=1000)
        newest = next((change for change in changes if not change.undone), None)
        if newest is None:
            print("Nothing is left to undo.")
            return
        id = newest.id
    change = call_api(context, "POST", f"/api/memory/changes/{path_part(id)}/undo", into=MemoryChange)
    print(f"Undid the change in {change.file}. The undo takes effect on the next turn.")
