"""Extensions: platforms, providers, tools and sandboxes that installed packages offer as entry points.

A package names them in its metadata, under a `Group`, e.g. `weather = "pkg:Weather"` in
`[project.entry-points."shoal.tools"]`. Nothing is imported before it is used.
"""

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from shoal.kernel.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from shoal.kernel.ports import Provider, Sandbox, Tool
    from shoal.kernel.settings_platforms import AccountSettings
    from shoal.platforms.account import ChatAccount

Group: TypeAlias = Literal["shoal.platforms", "shoal.providers", "shoal.tools", "shoal.sandboxes"]


def extensions(group: Group) -> dict[str, "EntryPoint"]:
    """What the installed packages offer in a group, by name. Raises ConfigError when two offer the same name."""
    found: dict[str, EntryPoint] = {}
    if not _any_offered(tuple(sys.path)):
        return found
    from importlib.metadata import entry_points

    for entry in entry_points(group=group):
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


def extension_platform(name: str) -> "type[ChatAccount[AccountSettings]]":
    """The adapter of that name in `shoal.platforms`. Raises ConfigError for one that is no subclass of ChatAccount."""
    from shoal.platforms.account import ChatAccount

    found = load_extension("shoal.platforms", name)
    if not (isinstance(found, type) and issubclass(found, ChatAccount)):
        raise ConfigError([f"{name!r} in shoal.platforms is no subclass of shoal.platforms.account.ChatAccount."])
    return cast("type[ChatAccount[AccountSettings]]", found)


def extension_tools() -> "list[Tool]":
    """What the installed packages offer in `shoal.tools`. Raises ConfigError for one that cannot be imported."""
    return [cast("Tool", load_extension("shoal.tools", name)) for name in extensions("shoal.tools")]


def extension_providers() -> "list[Provider]":
    """What they offer in `shoal.providers`: classes or functions that make a provider. Raises ConfigError."""
    makers = [load_extension("shoal.providers", name) for name in extensions("shoal.providers")]
    return [cast("Callable[[], Provider]", maker)() for maker in makers]


def extension_sandbox(name: str) -> "Sandbox":
    """The one of that name in `shoal.sandboxes`. Raises ConfigError."""
    return cast("Callable[[], Sandbox]", load_extension("shoal.sandboxes", name))()


@cache
def _any_offered(path: tuple[str, ...]) -> bool:
    """Whether some installed package may offer an extension. Python's own scan takes ten times as long (10 ms)."""
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
            if file.is_file() and b"[shoal." in file.read_bytes():
                return True
    return False


def _package(entry: "EntryPoint") -> str:
    return entry.dist.name if entry.dist is not None else entry.value
