"""An agent's directory `agents/NAME/`: creation from the template, settings in agent.toml, and removal."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, cast

import msgspec

from shoal.files.deep_folders import remove_tree
from shoal.kernel import lazy_re
from shoal.kernel.agents import AgentBudget
from shoal.kernel.errors import InvalidInput
from shoal.kernel.home import Home
from shoal.kernel.regular_files import decode_settings, read_regular, read_regular_text, unusable
from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import BAD_TOML, UNREADABLE, decode_toml
from shoal.kernel.zones import zone_named
from shoal.text.toml_edit import CannotEdit, Value, with_value, without_key

NAME = lazy_re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
FILE = "agent.toml"
SHARED = "settings.json"
FILES = (FILE, "AGENTS.md", "SOUL.md", "USER.md", "IDENTITY.md")
FOLDERS = ("docs", "sessions", "workspace")
FILE_BYTES_MAX = 65_536
GIT_SECONDS_MAX = 30.0
SHIPPED = Path(__file__).with_name("template")
"""Directory with default files for an agent. They replace files that are missing from template/ in the home directory.
"""
_COMMIT = (
    *("-c", "user.name=Shoal", "-c", "user.email=shoal@localhost", "-c", "commit.gpgSign=false"),
    *("-c", "core.hooksPath=/dev/null", "commit", "--quiet", "--allow-empty", "--message", "An empty workspace"),
)


class AgentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `agent.toml`. The configuration supplies missing values."""

    model: str = ""
    profile: str = ""
    system_prompt: str = ""
    tools: tuple[str, ...] = ()
    fallback: tuple[str, ...] | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    restrict_to_workspace: bool = True
    taint: bool = True
    idle_minutes: float = 0.0
    budget: AgentBudget = AgentBudget()
    timezone: str = ""


KEYS = (
    *(name for name in AgentFile.__struct_fields__ if name != "budget"),
    *(f"budget.{name}" for name in AgentBudget.__struct_fields__),
)
"""Keys of agent.toml that people can set one by one."""


def checked_name(name: str) -> str:
    """Return the name unchanged if it is valid for an agent. Raises InvalidInput otherwise."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a valid agent name. Use at most 64 lowercase letters, digits, - and _."
        )
    return name


def read_shared(home: Home) -> dict[str, object]:
    """Read the defaults for all agents from `data/settings.json`, which has the keys of agent.toml.

    Returns an empty dict if the file does not exist. Raises InvalidInput if the file is invalid or unreadable.
    """
    try:
        body = decode_settings(_settings(home.data / SHARED))
        msgspec.json.decode(body, type=AgentFile)
        return msgspec.json.decode(body, type=dict[str, object])
    except FileNotFoundError:
        return {}
    except UNREADABLE as error:
        keys = ", ".join(AgentFile.__struct_fields__)
        raise InvalidInput(
            f"data/{SHARED}: {refusal(error, AgentFile)}. Correct the file. The change takes effect immediately. "
            f"Valid keys: {keys}."
        ) from error


def read_agent(folder: Path, shared: Mapping[str, object] = MappingProxyType({})) -> AgentFile:
    """Read an agent's settings. The `shared` defaults supply missing values.

    Raises InvalidInput if the file is invalid or unreadable.
    """
    try:
        own = decode_toml(decode_settings(_settings(folder / FILE)))
        budgets = shared.get("budget"), own.get("budget")
        if all(isinstance(budget, dict) for budget in budgets):
            ceilings, its_own = cast("tuple[dict[str, object], dict[str, object]]", budgets)
            own["budget"] = {**ceilings, **its_own}
        return _checked(msgspec.convert({**shared, **own}, AgentFile), folder)
    except FileNotFoundError:
        return msgspec.convert(dict(shared), AgentFile)
    except (*BAD_TOML, *UNREADABLE) as error:
        why = refusal(error, AgentFile, table="a table")
        raise InvalidInput(
            f"{folder.name}/{FILE}: {why}. Correct the file. The change takes effect immediately."
        ) from error


def _checked(file: AgentFile, folder: Path) -> AgentFile:
    try:
        zone_named(file.timezone or "UTC")
    except InvalidInput as error:
        raise InvalidInput(f"{folder.name}/{FILE}: `timezone`: {error}") from error
    return file


def _settings(file: Path) -> bytes:
    try:
        return read_regular(file, FILE_BYTES_MAX)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unusable(file, error) from error


def digest_of(folder: Path) -> str:
    """Return a digest of agent.toml, or an empty string if the file is missing or unreadable."""
    try:
        return hashlib.sha256(_settings(folder / FILE)).hexdigest()
    except (OSError, InvalidInput):
        return ""


def make_folder(home: Home, name: str) -> list[str]:
    """Create the missing files of `agents/NAME/` from `template/`. Return their paths relative to the home.

    If git is installed, a new workspace becomes a git repository with a first commit. Blocks. Raises OSError.
    """
    folder, made = home.agent(name), list[str]()
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        source = home.template / file
        write_new(home, folder / file, (source if source.is_file() else SHIPPED / file).read_bytes(), made)
    is_new = not (folder / "workspace").exists()
    for inner in FOLDERS:
        make_directory(home, folder / inner, made)
    for source in template_files(home)[len(FILES) :]:
        target = folder / source.relative_to(home.template)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_new(home, target, source.read_bytes(), made)
    git = shutil.which("git") if is_new else None
    if git is not None:
        # An inherited GIT_DIR or similar variable must not redirect this to another repository.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        for words in (("init", "--quiet", "--template=", "--initial-branch=main"), _COMMIT):
            subprocess.run(
                [git, "-C", str(folder / "workspace"), *words],
                env=environ, check=False, capture_output=True, timeout=GIT_SECONDS_MAX, stdin=subprocess.DEVNULL,
            )  # fmt: skip
    return made


def template_files(home: Home) -> list[Path]:
    """Return the template files for a new agent: those of `FILES`, which may be missing, then the documents."""
    docs = [path for path in sorted(home.template.glob("docs/**/*")) if path.is_file()]
    return [*(home.template / file for file in FILES), *docs]


def make_template(home: Home) -> list[str]:
    """Create the missing files of `template/` and return their paths. Raises OSError."""
    made = list[str]()
    home.template.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        write_new(home, home.template / file, (SHIPPED / file).read_bytes(), made)
    make_directory(home, home.template / "docs", made)
    return made


def make_directory(home: Home, path: Path, made: list[str]) -> None:
    """Create a missing directory and add its path to `made`. Raises OSError."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        made.append(f"{path.relative_to(home.root)}/")


def write_new(home: Home, path: Path, content: bytes, made: list[str], mode: int = 0o644) -> None:
    """Create a missing file durably and add its path to `made`. Safe to call concurrently.

    Removes a file that could not be written completely. Raises OSError.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    made.append(str(path.relative_to(home.root)))


def remove_folder(home: Home, name: str, at: datetime, *, keep: bool) -> Path:
    """Move `agents/NAME/` to `removed/` atomically and return its new path. Without `keep`, also delete it there.

    Blocks. Raises OSError.
    """
    target = home.root / "removed" / f"{name}-{at:%Y%m%d-%H%M%S-%f}"
    target.parent.mkdir(exist_ok=True)
    home.agent(name).rename(target)
    if not keep:
        remove_tree(target)
    return target


def set_key(folder: Path, key: str, value: str) -> None:
    """Set a key of agent.toml and preserve the comments. An empty value removes the key. Blocks.

    Raises InvalidInput if the key is unknown or the value is invalid. The file is then unchanged.
    """
    if key not in KEYS:
        raise InvalidInput(f"{key[:80]!r} is not an agent setting. Available: {', '.join(KEYS)}.")
    file = folder / FILE
    content = read_regular_text(file) if file.exists() else ""
    path = tuple(key.split("."))
    try:
        if value:
            content = with_value(content, path, _value(key, value))
        else:
            with suppress(CannotEdit):  # The file may not have the key.
                content = without_key(content, path)
                if len(path) > 1 and not decode_toml(content).get(path[0]):
                    content = without_key(content, path[:1])
        _checked(msgspec.convert(decode_toml(content), AgentFile), folder)
    except CannotEdit as error:
        raise InvalidInput(f"{error} Edit {file} yourself.") from error
    except (*BAD_TOML, *UNREADABLE) as error:
        why = refusal(error, AgentFile, table="a table")
        raise InvalidInput(f"Cannot set {key} to {value[:200]!r}: {why}.") from error
    temporary = file.with_suffix(".new")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(file)


def _value(key: str, value: str) -> Value:
    """Parse the text as a TOML value. If the result is invalid for the key, return the text itself."""
    try:
        parsed: object = decode_toml(f"{key} = {value}")
        msgspec.convert(parsed, AgentFile)
    except (*BAD_TOML, *UNREADABLE):
        return value
    *table, last = key.split(".")
    for name in table:
        parsed = cast("dict[str, object]", parsed)[name]
    content = cast("dict[str, Value]", parsed)
    return content[last] if set(content) == {last} else value
