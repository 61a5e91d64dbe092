"""`shoal memory`: what the agents remember, as it stands in their prompts."""

import click
import msgspec

from shoal.domain.ids import ThreadId, parse_thread_id
from shoal.domain.memory import MEMORY_SCOPES, memory_path
from shoal.surfaces.cli.output import json_option, print_json, printable
from shoal.surfaces.cli.place import Place

ANY_THREAD = ThreadId("terminal:local:main")


class MemoryView(msgspec.Struct, frozen=True):
    """A memory file."""

    scope: str
    path: str
    text: str


@click.group()
def memory() -> None:
    """What the agents remember: MEMORY.md at three scopes, and daily notes."""


@memory.command()
@click.option("--thread", help="Also the memory of this thread's platform and channel.")
@json_option
@click.pass_obj
def show(place: Place, thread: str | None, as_json: bool) -> None:
    """Print the memory files."""
    found = _files(place, parse_thread_id(thread) if thread else None)
    if as_json:
        print_json(found)
        return
    for view in found:
        print(f"# {view.scope} ({view.path})\n{printable(view.text).strip() or '(no memory yet)'}\n")


def _files(place: Place, thread: ThreadId | None) -> list[MemoryView]:
    home = place.home
    scopes = MEMORY_SCOPES if thread else MEMORY_SCOPES[:1]
    paths = [(str(scope), memory_path(home, scope, thread or ANY_THREAD)) for scope in scopes]
    days = place.config().context.daily_notes_days
    notes = sorted((home.data / "memory").glob("*/*.md"))
    paths += [(f"notes of {path.stem}", path) for path in (notes[-days:] if days else [])]
    return [
        MemoryView(scope, str(path), path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "")
        for scope, path in paths
    ]
