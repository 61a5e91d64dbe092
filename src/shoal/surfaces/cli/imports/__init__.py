"""`shoal import`: agents, memory, skills, schedules, channels, models and conversations of another product.

A reader (`openclaw`, `hermes`, `nanobot`, `openwebui`) only reads: what a home holds, as one record, and all that has
no place here, with the reason. `bring` puts what was found into a home of Shoal.
"""

import tempfile
from pathlib import Path

import click

from shoal.kernel.errors import InvalidInput
from shoal.store.store import Store
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.imports import hermes, nanobot, openclaw, openwebui
from shoal.surfaces.cli.imports.bring import Bringing, ImportLine
from shoal.surfaces.cli.init import make_home
from shoal.surfaces.cli.output import print_json, tell

READERS = {"openclaw": openclaw.read, "hermes": hermes.read, "nanobot": nanobot.read, "openwebui": openwebui.read}
HOMES = {
    "openclaw": ("~/.openclaw", "~/.clawdbot", "~/.moltbot"),
    "hermes": ("~/.hermes",),
    "nanobot": ("~/.nanobot",),
    "openwebui": ("~/.open-webui", "./data"),
}
"""Where each product keeps its things unless it was told otherwise."""
WORDS = ("came", "off", "there", "left")


@command(name="import")
@click.argument("product", type=click.Choice(list(HOMES)))
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--dry-run", "dry", is_flag=True, help="Write nothing; say what would come.")
@click.option("--keys", is_flag=True, help="Bring keys and tokens too, into secrets/.")
@click.option("--trust", is_flag=True, help="You have read what comes: it counts as yours, not as untrusted.")
def import_home(context: CommandContext, product: str, path: Path | None, dry: bool, keys: bool, trust: bool,
                as_json: bool) -> None:  # fmt: skip
    """Bring agents, memory, skills, schedules, channels, models and conversations of another product over.

    PATH is its home directory, by default where it keeps it; of Open WebUI the folder with webui.db, or a file of
    exported chats. Nothing there is changed. Doing it again brings only what is new. Nothing that comes acts by itself:
    schedules rest, skills and channels are switched off, and what was written there counts as untrusted.
    """
    places = [Path(one).expanduser() for one in HOMES[product]]
    root = path or next((one for one in places if one.exists()), places[0])
    if not root.exists():
        raise InvalidInput(f"There is no {root}. Name the home of {product}: `shoal import {product} PATH`.")
    found = READERS[product](root.absolute())
    if not dry:
        make_home(context.home)

    async def bring(store: Store) -> list[ImportLine]:
        config = context.config()
        return await Bringing(found, context.home, store, config, dry=dry, keys=keys, trust=trust).run()

    if not dry:
        lines = context.write(bring)
    elif context.root.is_dir():
        lines = context.read(bring)
    else:
        with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
            lines = CommandContext(Path(folder)).read(bring)
    if as_json:
        print_json(lines)
        return
    print(f"{root}{' (nothing is written)' if dry else ''}")
    for line in lines:
        tell(context.redactor().redact(f"{line.became:<6} {line.what}: {line.detail}"))
    came, off, there, left = (sum(line.became == became for line in lines) for became in WORDS)
    print(f"{came} came, {off} came switched off, {there} were there already, {left} were left.")
    if not trust:
        tell("What came counts as untrusted until you have read and saved (or touched) it: `shoal docs import`.")
    name = found.agents[0].name
    print(f'Next: agents.default_agent = "{name}" in shoal.toml lets {name} answer by default.')
