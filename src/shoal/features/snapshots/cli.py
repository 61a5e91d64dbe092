"""`shoal threads snapshot`: save, list and restore conversations."""

import click

from shoal.features.snapshots.records import Snapshot
from shoal.kernel.ids import parse_thread_id
from shoal.surfaces.cli.client import call_api, get, path_part
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import print_records, printable

snapshot = click.Group(
    "snapshot",
    help="Save, list and restore conversations. ID is a thread id.",
    epilog="Example: shoal threads snapshot list terminal:local:main",
)


@command(snapshot, "list", example="shoal threads snapshot list terminal:local:main")
def list_snapshots(context: CommandContext, id: str, as_json: bool) -> None:
    """List the conversations saved in the thread's channel, newest first."""
    snapshots = get(context, f"{_path(id)}/snapshots", list[Snapshot])
    rows = [(snapshot.id, snapshot.created_at, snapshot.messages, snapshot.description) for snapshot in snapshots]
    print_records(
        snapshots,
        as_json,
        ("snapshot", "saved (UTC)", "messages", "about"),
        rows,
        ("This channel has no saved conversations."),
    )


@command(snapshot, example="shoal threads snapshot save terminal:local:main")
@click.option("--description", default="", help="A description. [default: written by the model]")
def save(context: CommandContext, id: str, description: str) -> None:
    """Save the conversation as the model sees it, without clearing it."""
    saved = call_api(context, "POST", f"{_path(id)}/snapshots", {"description": description}, into=Snapshot)
    print(f"Saved as {saved.id}: {printable(saved.description)}")


@command(snapshot, example="shoal threads snapshot restore terminal:local:main 3")
def restore(context: CommandContext, id: str, snapshot: str) -> None:
    """Replace the conversation that the model sees with a saved one."""
    restored = call_api(context, "POST", f"{_path(id)}/snapshots/{path_part(snapshot)}/restore", into=Snapshot)
    print(f"Restored: {printable(restored.description)}")


def _path(id: str) -> str:
    return f"/api/threads/{path_part(parse_thread_id(id))}"
