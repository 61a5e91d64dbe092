"""Extensions, which are entry points of installed packages.

A package declares an extension in its metadata under a `Group`, for example `weather = "pkg:Weather"` in
`[project.entry-points."shoal.tools"]`. Extensions are imported on first use.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, get_args

import msgspec

from shoal.installation import how_to_add_package
from shoal.kernel.commands import ChatCommand, CommandRequest
from shoal.kernel.errors import ConfigError
from shoal.kernel.hooks import Hooks
from shoal.kernel.settings import ToolsSettings
from shoal.platforms.record import BUILT_IN, Platform, built_in
from shoal.tools.hooks import call_extension

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from shoal.kernel.ports import Provider, Sandbox, Tool

COMMAND_SECONDS = 60.0

Group: TypeAlias = Literal[
    "shoal.platforms",
    "shoal.providers",
    "shoal.tools",
    "shoal.tools.hardware",
    "shoal.sandboxes",
    "shoal.commands",
    "shoal.hooks",
    "shoal.cli",
]
HARDWARE: Literal["shoal.tools.hardware"] = "shoal.tools.hardware"
"""Entry point group of tools that require the setting `tools.hardware`."""


def extensions(group: Group) -> dict[str, "EntryPoint"]:
    """Return the entry points of a group by name. Raises ConfigError if two packages declare the same name."""
    entry_points: dict[str, EntryPoint] = {}
    path = tuple(sys.path)
    for entry in _offered(path) if group in _groups(path) else ():
        if entry.group != group:
            continue
        other = entry_points.get(entry.name)
        if other is not None and other.value != entry.value:
            raise ConfigError(
                [
                    f"Two packages provide {entry.name!r} in {group}: {_package(other)} and {_package(entry)}. "
                    "Uninstall one of them."
                ]
            )
        entry_points[entry.name] = entry
    return entry_points


def load_extension(group: Group, name: str) -> object:
    """Import the entry point with this name. Raises ConfigError if it does not exist or cannot be imported."""
    entry_points = extensions(group)
    entry = entry_points.get(name)
    if entry is None:
        known = ", ".join(sorted(entry_points)) or "none"
        raise ConfigError([f"No installed package provides {name!r} in {group} (available: {known})."])
    try:
        loaded: object = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError([f"Shoal cannot import {name!r} from the package {_package(entry)}: {error}."]) from error
    return loaded


def has_platform(name: str) -> bool:
    """Return True if a platform is built in or provided by a package. The platform is not imported."""
    return name in BUILT_IN or name in extensions("shoal.platforms")


def platform_named(name: str) -> Platform:
    """Return a built-in platform, or a platform from `shoal.platforms`. Raises ConfigError."""
    if name in BUILT_IN:
        return built_in(name)
    record = load_extension("shoal.platforms", name)
    if not isinstance(record, Platform):
        raise ConfigError([f"{name!r} in shoal.platforms is not a shoal.platforms.record.Platform."])
    return record


def extension_tools(settings: ToolsSettings) -> "list[Tool]":
    """Load the tools of `shoal.tools`. If `tools.hardware` is set, also load the tools of `shoal.tools.hardware`.

    Raises ConfigError if a tool cannot be imported, or if hardware is enabled but its package is missing.
    """
    if settings.hardware and not extensions(HARDWARE):
        raise ConfigError([f"tools.hardware is on, but its package is missing. {how_to_add_package('shoal-hardware')}"])
    groups: tuple[Group, ...] = ("shoal.tools", *((HARDWARE,) if settings.hardware else ()))
    return [cast("Tool", load_extension(group, name)) for group in groups for name in extensions(group)]


def extension_commands() -> list[ChatCommand]:
    """Load the chat commands of `shoal.commands`. Raises ConfigError if an object is not a `chat_command`."""
    commands: list[ChatCommand] = []
    for name in sorted(extensions("shoal.commands")):
        command = load_extension("shoal.commands", name)
        if not isinstance(command, ChatCommand):
            raise ConfigError([f"{name!r} in shoal.commands is not a function decorated with @shoal.chat_command."])
        commands.append(msgspec.structs.replace(command, answer=partial(_answer, command)))
    return commands


async def _answer(command: ChatCommand, asked: CommandRequest) -> str:
    return await call_extension(f"/{command.spec.name}", COMMAND_SECONDS, command.answer(asked))


def extension_hooks() -> dict[str, Hooks]:
    """Load the hooks of `shoal.hooks` by name. Raises ConfigError if an object is not of type `Hooks`."""
    hooks: dict[str, Hooks] = {}
    for name in sorted(extensions("shoal.hooks")):
        loaded = load_extension("shoal.hooks", name)
        if not isinstance(loaded, Hooks):
            raise ConfigError([f"{name!r} in shoal.hooks is not a shoal.Hooks."])
        hooks[name] = loaded
    return hooks


def extension_providers() -> "list[Provider]":
    makers = [load_extension("shoal.providers", name) for name in extensions("shoal.providers")]
    return [cast("Callable[[], Provider]", maker)() for maker in makers]


def extension_sandbox(name: str) -> "Sandbox":
    return cast("Callable[[], Sandbox]", load_extension("shoal.sandboxes", name))()


@cache
def _offered(path: tuple[str, ...]) -> "tuple[EntryPoint, ...]":
    from importlib.metadata import distributions

    offered: dict[str, list[EntryPoint]] = {}
    for package in distributions():
        entries = [entry for entry in package.entry_points if entry.group.startswith("shoal.")]
        if entries:  # the first copy of a package on the path takes precedence
            offered.setdefault(package.name, entries)
    return tuple(entry for entries in offered.values() for entry in entries)


@cache
def _groups(path: tuple[str, ...]) -> frozenset[str]:
    """Return the groups that have entry points, or all groups if a package is in an archive.

    Python's own scan takes 15 ms. Listing the folders takes a tenth of that, so most starts avoid the scan.
    """
    groups: set[str] = set()
    for folder in path:
        try:
            with os.scandir(folder or ".") as entries:
                packages = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
        except FileNotFoundError:
            continue
        except NotADirectoryError:  # the path is an archive
            return frozenset(get_args(Group))
        for package in packages:
            with suppress(FileNotFoundError, NotADirectoryError), open(f"{package}/entry_points.txt", "rb") as file:
                groups |= {line.strip(b"[] \r\n").decode() for line in file if line.startswith(b"[shoal.")}
    return frozenset(groups)


def _package(entry: "EntryPoint") -> str:
    return entry.dist.name if entry.dist is not None else entry.value
