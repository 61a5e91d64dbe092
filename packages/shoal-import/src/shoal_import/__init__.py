"""`shoal import`: imports agents, memory, skills, schedules, channels, models and conversations from another product.

A reader (`openclaw`, `hermes`, `nanobot`, `openwebui`) creates a `Found`, and `shoal.importing` writes its contents to
a Shoal home.
"""

from pathlib import Path

import click

from shoal.importing import bring_into
from shoal.kernel.errors import InvalidInput
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import echo, print_json
from shoal_import import hermes, nanobot, openclaw, openwebui

READERS = {"openclaw": openclaw.read, "hermes": hermes.read, "nanobot": nanobot.read, "openwebui": openwebui.read}
TITLES = {"openclaw": "OpenClaw", "hermes": "Hermes Agent", "nanobot": "nanobot", "openwebui": "Open WebUI"}
HOMES = {
    "openclaw": ("~/.openclaw", "~/.clawdbot", "~/.moltbot"),
    "hermes": ("~/.hermes",),
    "nanobot": ("~/.nanobot",),
    "openwebui": ("~/.open-webui", "./data"),
}
"""Default home directories of each product."""
WORDS = ("came", "off", "there", "left")


@command(name="import", example="shoal import openclaw --dry-run")
@click.argument("product", type=click.Choice(list(HOMES)))
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--dry-run", "dry", is_flag=True, help="Write nothing. List what would be imported.")
@click.option("--keys", is_flag=True, help="Also import keys and tokens, into secrets/.")
@click.option(
    "--trust", is_flag=True, help="Do not mark imported content as untrusted. Read it before you use this option."
)
def import_home(context: CommandContext, product: str, path: Path | None, dry: bool, keys: bool, trust: bool,
                as_json: bool) -> None:  # fmt: skip
    """Import agents, memory, skills, schedules, channels, models and conversations from another product.

    PATH is the home directory of the other product, by default its usual location. For Open WebUI, PATH is the folder
    with webui.db, or a file of exported chats. The import does not change the other product. Running it again imports
    only new items. Imported schedules are paused, imported skills and channels are disabled, and all imported text is
    untrusted.
    """
    places = [Path(place).expanduser() for place in HOMES[product]]
    root = path or next((place for place in places if place.exists()), places[0])
    if not root.exists():
        raise InvalidInput(f"{root} does not exist. Run `shoal import {product} PATH` with {product}'s home directory.")
    found = READERS[product](root.absolute())
    found.title = TITLES[product]
    lines = bring_into(context, found, dry=dry, keys=keys, trust=trust)
    if as_json:
        print_json(lines)
        return
    print(f"{root}{' (nothing is written)' if dry else ''}")
    for line in lines:
        echo(context.redactor().redact(f"{line.became:<6} {line.what}: {line.detail}"))
    imported, off, there, left = (sum(line.became == became for line in lines) for became in WORDS)
    print(f"{imported} imported, {off} imported but switched off, {there} already present, {left} skipped.")
    if not trust:
        echo("Imported files count as untrusted until you read and save (or touch) them. See `shoal docs import`.")
    name = found.agents[0].name
    print(f'Next: set agents.default_agent = "{name}" in shoal.toml to make {name} the default agent.')
