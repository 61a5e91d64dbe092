"""`shoal threads changes` and `shoal threads undo`: show how turns changed files, and restore the files."""

from collections.abc import Iterator

import click

from shoal.features.undo.records import UndoResult
from shoal.kernel.checkpoints import SINCE, TurnChanges
from shoal.kernel.ids import parse_thread_id
from shoal.kernel.phrases import counted
from shoal.surfaces.cli.client import as_usage, call_app, path_part
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import echo, print_json, printable


def _path(id: str) -> str:
    return f"/api/threads/{path_part(parse_thread_id(id))}"


@command(example="shoal threads changes terminal:local:main")
@click.argument("turn", default="last")
@as_usage()
def changes(context: CommandContext, id: str, turn: str, as_json: bool) -> None:
    """Show how a turn or an undo changed files.

    By default, show the last turn that can be undone. TURN is an ID or a number: 2 is the turn before the last.
    """
    turn_changes = call_app(context, "GET", f"{_path(id)}/turns/{path_part(turn)}/changes", into=TurnChanges)
    if as_json:
        print_json(turn_changes)
        return
    print("\n".join(_changes_lines(turn_changes)))


@command(example="shoal threads undo terminal:local:main")
@click.argument("turn", default="last")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--keep", "since", flag_value="keep", help="Keep files changed since the turn.")
@click.option("--overwrite", "since", flag_value="overwrite", help="Also restore files changed since the turn.")
@as_usage()
def undo(context: CommandContext, id: str, turn: str, yes: bool, since: str | None) -> None:
    """Restore the files that a turn changed, after showing the changes. By default, restore the last turn.

    TURN is an ID or a number: 2 is the turn before the last. The ID of an undo reverses that undo, and 'back' reverses
    the last undo. Shoal asks about files that have changed since the turn.
    """
    turn_changes = call_app(context, "GET", f"{_path(id)}/turns/{path_part(turn)}/changes", into=TurnChanges)
    if not yes:
        print("\n".join(_changes_lines(turn_changes)))
        click.confirm("Restore these files?", abort=True)
    if turn_changes.differ and not since:
        named = [
            printable(changed_file.path)
            for changed_file in turn_changes.files
            if changed_file.since in ("changed", "shared")
        ]
        named += ["…"] if turn_changes.differ > len(named) else []
        have = "file has" if turn_changes.differ == 1 else "files have"
        differ = f"{turn_changes.differ} {have} other changes too: {', '.join(named)}."
        if yes:
            raise click.UsageError(f"{differ} Add --keep or --overwrite.")
        print(differ)
        since = (
            "overwrite"
            if click.confirm("Overwrite the other changes? Otherwise, Shoal keeps those changes.")
            else "keep"
        )
    at = f"{_path(id)}/turns/{path_part(turn_changes.turn)}/undo"
    done = call_app(context, "POST", at, {"since": since or "ask"}, into=UndoResult)
    print(f"Restored {counted(done.restored, 'file')}.")
    for entry in done.left:
        print(f"Not restored: {printable(entry.path)}. {entry.why}")
    if done.not_restored > len(done.left):
        print(f"Not restored: {counted(done.not_restored - len(done.left), 'more file')}.")
    echo(f"`shoal threads undo {id} back` reverses this undo.")


def _changes_lines(turn: TurnChanges) -> Iterator[str]:
    yield f"Turn {turn.turn}, {turn.state}{f' by {turn.undone_by}' if turn.undone_by else ''}:"
    for file in turn.files:
        counts = f" +{file.added} -{file.removed}" if file.added or file.removed else ""
        yield f"\n{file.change:<8} {printable(file.path)}{counts}{f' ({SINCE[file.since]})' if file.since else ''}"
        yield from (f"  {printable(line)}" for line in (*([file.note] if file.note else []), *file.diff.splitlines()))
    if turn.changed > len(turn.files):
        yield f"\nMore files: {turn.changed - len(turn.files)}"
    yield from turn.notes
    if turn.beyond:
        yield "\nCannot be undone:"
        yield from (f"  {printable(line)}" for line in turn.beyond)
