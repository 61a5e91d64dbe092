"""`shoal init`: makes the home directory; what is there is left as it is."""

import os
import stat
from pathlib import Path

import click

from shoal.domain.home import Home
from shoal.surfaces.cli.place import Place

TEMPLATE = Path(__file__).with_name("template")
"""The files a home directory starts with."""

AGENT_FILES = ("agent.toml", "AGENTS.md", "SOUL.md", "USER.md", "IDENTITY.md")
AGENT_FOLDERS = ("docs", "sessions", "workspace")
DATA_FILES = ("IDENTITY.md", "MEMORY.md", "SYSTEM.md", "settings.json", "HEARTBEAT.md")
DATA_FOLDERS = ("events", "skills")


@click.command()
@click.pass_obj
def init(place: Place) -> None:
    """Make the home directory: configuration, token, the agent `main`, memory.

    What is there already is never changed, so that it can be run again at any time.
    """
    made = make_home(place.home)
    if not made:
        print(f"{place.root} is complete already.")
        return
    print(f"Made {place.root}:")
    for path in made:
        print(f"  {path}")
    print("Next: `shoal run` starts everything, `shoal ask TEXT` asks once, `shoal doctor` checks the setup.")


def make_home(home: Home) -> list[str]:
    """Make what is missing of a home directory and return it, as paths below it. Raises OSError.

    The home directory is 0700, the configuration and the token 0600. An existing directory is only closed to others
    when it is empty or was Shoal's before.
    """
    root = home.root
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(root.stat().st_mode) & 0o077 and (home.token_file.exists() or not any(root.iterdir())):
        root.chmod(0o700)
    made: list[str] = []
    _write(home, home.config_file, _template("shoal.toml"), made, mode=0o600)
    if not home.token_file.exists():
        _write(home, home.token_file, _new_token(), made, mode=0o600)
    _make_agent_template(home, made)
    make_agent(home, "main", made)
    home.data.mkdir(exist_ok=True)
    for name in DATA_FILES:
        _write(home, home.data / name, _template(f"data/{name}"), made)
    for name in DATA_FOLDERS:
        _make_folder(home, home.data / name, made)
    return made


def make_agent(home: Home, name: str, made: list[str]) -> None:
    """Make what is missing of `agents/NAME/` from `template/`; the workspace becomes a git repository if git is there.

    What was made is added to `made`. Raises OSError.
    """
    folder = home.agent(name)
    folder.mkdir(parents=True, exist_ok=True)
    for file in AGENT_FILES:
        source = home.template / file
        _write(home, folder / file, source.read_bytes() if source.is_file() else _template(f"agent/{file}"), made)
    is_new = not (folder / "workspace").exists()
    for inner in AGENT_FOLDERS:
        _make_folder(home, folder / inner, made)
    for source in sorted(home.template.glob("docs/**/*")):
        if source.is_file():
            target = folder / source.relative_to(home.template)
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(home, target, source.read_bytes(), made)
    if is_new:
        _start_repository(folder / "workspace")


def _make_agent_template(home: Home, made: list[str]) -> None:
    home.template.mkdir(exist_ok=True)
    for file in AGENT_FILES:
        _write(home, home.template / file, _template(f"agent/{file}"), made)
    _make_folder(home, home.template / "docs", made)


def _template(name: str) -> bytes:
    return (TEMPLATE / name).read_bytes()


def _new_token() -> bytes:
    import secrets

    return f"{secrets.token_urlsafe(32)}\n".encode()


def _write(home: Home, path: Path, content: bytes, made: list[str], mode: int = 0o644) -> None:
    """Write a file that is not there yet; two at once make it once."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    made.append(str(path.relative_to(home.root)))


def _make_folder(home: Home, path: Path, made: list[str]) -> None:
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        made.append(f"{path.relative_to(home.root)}/")


def _start_repository(workspace: Path) -> None:
    import shutil
    import subprocess

    git = shutil.which("git")
    if git is None:
        return
    # Variables such as GIT_DIR of the caller must not turn this to another repository.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(
        [git, "init", "--quiet", "--template=", str(workspace)], env=environ, check=False, capture_output=True
    )
