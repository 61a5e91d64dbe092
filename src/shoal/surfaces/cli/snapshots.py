"""`shoal threads snapshot`: saving what the model sees of a conversation, and bringing it back."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from shoal.domain.ids import ThreadId, parse_thread_id
from shoal.domain.records import Snapshot
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable, when
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.agents.snapshots import Snapshots
    from shoal.domain.store import Store

T = TypeVar("T")


@click.group()
def snapshot() -> None:
    """Saved conversations. ID is the thread's."""


@snapshot.command("list")
@click.argument("id")
@json_option
@click.pass_obj
def list_(place: Place, id: str, as_json: bool) -> None:
    """List what was saved in the thread's channel, newest first."""
    thread = parse_thread_id(id)
    found = place.read(lambda store: _snapshots(place, store).history(thread))
    if as_json:
        print_json(found)
        return
    rows = [(one.id, when(one.created_at), str(one.messages), printable(one.description)) for one in found]
    print_table(("snapshot", "saved (UTC)", "messages", "about"), rows, "Nothing was saved here yet.")


@snapshot.command()
@click.argument("id")
@click.option("--description", default="", help="What it is about; else the model says, or Shoal plainly.")
@click.pass_obj
def save(place: Place, id: str, description: str) -> None:
    """Save what the model sees now; nothing is cleared."""
    thread = parse_thread_id(id)
    saved = _do(
        place, thread, "snapshots", {"description": description}, lambda snapshots: snapshots.save(thread, description)
    )
    print(f"Saved as {saved.id}: {printable(saved.description)}")


@snapshot.command()
@click.argument("id")
@click.argument("snapshot")
@click.pass_obj
def restore(place: Place, id: str, snapshot: str) -> None:
    """Put a saved conversation in the place of what the model sees."""
    thread = parse_thread_id(id)
    path = f"snapshots/{snapshot}/restore"
    found = _do(place, thread, path, None, lambda snapshots: snapshots.restore(thread, snapshot, "owner"))
    print(f"Restored: {printable(found.description)}")


def _do(
    place: Place,
    thread: ThreadId,
    path: str,
    body: object,
    work: "Callable[[Snapshots], Awaitable[Snapshot]]",
) -> Snapshot:
    """Through the Shoal that runs here; else in the database."""
    import asyncio

    from shoal.surfaces.cli.remote import find_remote, part

    remote = find_remote(place)
    if remote is None:
        return place.write(lambda store: work(_snapshots(place, store)))
    answer = asyncio.run(remote.call("POST", f"/api/threads/{part(thread)}/{path}", body))
    return msgspec.json.decode(answer, type=Snapshot)


def _snapshots(place: Place, store: "Store") -> "Snapshots":
    from shoal.agents.registry import AgentDefaults, Agents
    from shoal.agents.snapshots import Snapshots
    from shoal.domain.clock import SystemClock
    from shoal.tools.marked import MarkedFiles
    from shoal.tools.prompt_files import PromptFiles

    agents = Agents(place.home, AgentDefaults(agent=place.config().agents.default_agent))
    files = PromptFiles(MarkedFiles(store.settings, place.home), place.home)
    return Snapshots(store, agents, SystemClock(), None, lambda events: None, files)
