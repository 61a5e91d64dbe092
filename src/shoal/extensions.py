"""Extensions: what installed packages offer as entry points.

A package names them in its metadata, under a `Group`, e.g. `weather = "pkg:Weather"` in
`[project.entry-points."shoal.tools"]`. Nothing is imported before it is used.
"""

import os
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import msgspec

from shoal.kernel.commands import ChatCommand, CommandRequest
from shoal.kernel.errors import ConfigError
from shoal.kernel.hooks import Hooks
from shoal.platforms.record import BUILT_IN, Platform, built_in
from shoal.tools.hooks import call_extension

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from shoal.kernel.ports import Provider, Sandbox, Tool

COMMAND_SECONDS = 60.0
"""Longest that a command of a package may take."""

Group: TypeAlias = Literal[
    "shoal.platforms", "shoal.providers", "shoal.tools", "shoal.sandboxes", "shoal.commands", "shoal.hooks", "shoal.cli"
]


def extensions(group: Group) -> dict[str, "EntryPoint"]:
    """What the installed packages offer in a group, by name. Raises ConfigError when two offer the same name."""
    found: dict[str, EntryPoint] = {}
    for entry in _offered(tuple(sys.path), group == "shoal.cli"):
        if entry.group != group:
            continue
        other = found.get(entry.name)
        if other is not None and other.value != entry.value:
            raise ConfigError(
                [
                    f"Two packages offer {entry.name!r} in {group}: {_package(other)} and {_package(entry)}. "
                    "Uninstall one of them."
                ]
            )
        found[entry.name] = entry
    return found


def load_extension(group: Group, name: str) -> object:
    """Import what a package offers under a name. Raises ConfigError when nothing does or it cannot be imported."""
    found = extensions(group)
    entry = found.get(name)
    if entry is None:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigError([f"No installed package offers {name!r} in {group}; offered: {known}."])
    try:
        loaded: object = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError([f"{name!r} of the package {_package(entry)} cannot be imported: {error}."]) from error
    return loaded


def has_platform(name: str) -> bool:
    """Whether a platform of that name is built in or offered by a package; nothing is imported."""
    return name in BUILT_IN or name in extensions("shoal.platforms")


def platform_named(name: str) -> Platform:
    """The record of a platform, built in or in `shoal.platforms`. Raises ConfigError."""
    if name in BUILT_IN:
        return built_in(name)
    record = load_extension("shoal.platforms", name)
    if not isinstance(record, Platform):
        raise ConfigError([f"{name!r} in shoal.platforms is no shoal.platforms.record.Platform."])
    return record


def extension_tools() -> "list[Tool]":
    """What the installed packages offer in `shoal.tools`. Raises ConfigError for one that cannot be imported."""
    return [cast("Tool", load_extension("shoal.tools", name)) for name in extensions("shoal.tools")]


def extension_commands() -> list[ChatCommand]:
    """The chat commands of `shoal.commands`. Raises ConfigError for one that is no `chat_command`."""
    commands: list[ChatCommand] = []
    for name in sorted(extensions("shoal.commands")):
        command = load_extension("shoal.commands", name)
        if not isinstance(command, ChatCommand):
            raise ConfigError([f"{name!r} in shoal.commands is no function under @shoal.chat_command."])
        commands.append(msgspec.structs.replace(command, answer=partial(_answer, command)))
    return commands


async def _answer(command: ChatCommand, asked: CommandRequest) -> str:
    return await call_extension(f"/{command.spec.name}", COMMAND_SECONDS, command.answer(asked))


def extension_hooks() -> dict[str, Hooks]:
    """The hooks of `shoal.hooks`, by name. Raises ConfigError for what is no `Hooks`."""
    hooks: dict[str, Hooks] = {}
    for name in sorted(extensions("shoal.hooks")):
        loaded = load_extension("shoal.hooks", name)
        if not isinstance(loaded, Hooks):
            raise ConfigError([f"{name!r} in shoal.hooks is no shoal.Hooks."])
        hooks[name] = loaded
    return hooks


def extension_providers() -> "list[Provider]":
    """What they offer in `shoal.providers`: classes or functions that make a provider. Raises ConfigError."""
    makers = [load_extension("shoal.providers", name) for name in extensions("shoal.providers")]
    return [cast("Callable[[], Provider]", maker)() for maker in makers]


def extension_sandbox(name: str) -> "Sandbox":
    """The one of that name in `shoal.sandboxes`. Raises ConfigError."""
    return cast("Callable[[], Sandbox]", load_extension("shoal.sandboxes", name))()


@cache
def _offered(path: tuple[str, ...], for_cli: bool) -> "tuple[EntryPoint, ...]":
    """Return everything that installed packages offer to Shoal; () if there is no command for its command line, or
    nothing else."""
    if not _any_offered(path, for_cli):
        return ()
    from importlib.metadata import distributions

    offered: dict[str, list[EntryPoint]] = {}
    for package in distributions():
        entries = [entry for entry in package.entry_points if entry.group.startswith("shoal.")]
        if entries:  # of a package that is there twice the first on the path counts
            offered.setdefault(package.name, entries)
    return tuple(entry for entries in offered.values() for entry in entries)


def _any_offered(path: tuple[str, ...], for_cli: bool) -> bool:
    """Whether some installed package may offer an extension. Python's own scan takes ten times as long (10 ms), and
    shoal-import alone, which offers a command, must not start it."""
    for folder in path:
        try:
            with os.scandir(folder or ".") as entries:
                packages = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
        except FileNotFoundError:
            continue
        except NotADirectoryError:  # an archive: only Python's own scan looks into it
            return True
        for package in packages:
            file = Path(package, "entry_points.txt")
            if file.is_file():
                text = file.read_bytes()
                commands = text.count(b"[shoal.cli]")
                if commands if for_cli else text.count(b"[shoal.") > commands:
                    return True
    return False


def _package(entry: "EntryPoint") -> str:
    return entry.dist.name if entry.dist is not None else entry.value
