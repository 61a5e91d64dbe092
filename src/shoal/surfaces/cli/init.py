"""`shoal init`: create the home directory. Existing files are not changed."""

import os
import stat
from pathlib import Path

from shoal.agents.folder import make_directory, make_folder, make_template, write_new
from shoal.kernel.errors import InvalidInput
from shoal.kernel.home import Home
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import echo

TEMPLATE = Path(__file__).with_name("template")

DATA_FILES = ("IDENTITY.md", "MEMORY.md", "SYSTEM.md", "settings.json", "HEARTBEAT.md")
DATA_FOLDERS = ("events", "skills")


OF_OTHERS = {
    "openclaw.json": "openclaw", "clawdbot.json": "openclaw", "hermes_state.db": "hermes", "state.db": "hermes",
    "SOUL.md": "hermes", "webui.db": "openwebui", "config.json": "nanobot",
}  # fmt: skip
"""Other products, by the name of a file that identifies their home directory."""


@command(example="shoal --home ~/other-shoal init")
def init(context: CommandContext) -> None:
    """Create the home directory with its configuration, token, main agent and memory files.

    Existing files are never changed, so you can run it again at any time.
    """
    made = make_home(context.home)
    if not made:
        print(f"The home directory {context.root} is already complete.")
        return
    print(f"Created {context.root}:")
    for path in made:
        print(f"  {path}")
    echo("Next: run `shoal setup` to connect a model and a chat, or `shoal run` to start without them.")


def another_products(root: Path) -> str:
    """Return an error message if a directory contains another product's files, otherwise an empty string."""
    names = set(os.listdir(root)) if root.is_dir() else set[str]()
    other = next((product for name, product in OF_OTHERS.items() if name in names), "")
    if not other or {"shoal.db", "agents"} <= names:
        return ""
    todo = f"Choose another directory. Then run `shoal import {other} {root}` to import this content."
    return f"{root} belongs to another product ({other}). {todo}"


def make_home(home: Home) -> list[str]:
    """Create the missing parts of a home directory. Return their paths, relative to the home directory.

    The home directory gets mode 0700, and the configuration and the token get mode 0600. An existing directory
    becomes private only if it is empty or already belongs to Shoal.

    Raises OSError, and InvalidInput if the directory belongs to another product.
    """
    root = home.root
    if problem := another_products(root):
        raise InvalidInput(problem)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InvalidInput(f"{root} is not a directory. Choose another with --home DIR or SHOAL_HOME.") from None
    if stat.S_IMODE(root.stat().st_mode) & 0o077 and (home.token_file.exists() or not any(root.iterdir())):
        root.chmod(0o700)
    made: list[str] = []
    write_new(home, home.config_file, _template("shoal.toml"), made, mode=0o600)
    if home.token_file.is_file() and home.token_file.stat().st_size == 0:  # a system crash left it empty
        home.token_file.unlink()
    if not home.token_file.exists():
        import secrets

        write_new(home, home.token_file, f"{secrets.token_urlsafe(32)}\n".encode(), made, mode=0o600)
    made += [*make_template(home), *make_folder(home, "main")]
    home.data.mkdir(exist_ok=True)
    for name in DATA_FILES:
        write_new(home, home.data / name, _template(f"data/{name}"), made)
    for name in DATA_FOLDERS:
        make_directory(home, home.data / name, made)
    return made


def _template(name: str) -> bytes:
    return (TEMPLATE / name).read_bytes()
