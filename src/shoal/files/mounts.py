"""Where paths lie in mounts: by the name that commands know them by, or by that of the host."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.ports import Mount

LINKS_MAX = 40
"""Links followed for one path, as many as the kernel follows."""
_OF_A_PROCESS = lazy_re.compile(r"/proc(?:/.*)?|/dev/(?:fd(?:/.*)?|stdin|stdout|stderr|tty)", re.DOTALL)


class MountedPath(msgspec.Struct, frozen=True):
    """A path in a mount; what it names need not exist. `shown` is how commands, the model and permissions know it."""

    shown: str
    mount: Mount
    parts: tuple[str, ...]

    @property
    def host(self) -> Path:
        """The path on the host, for messages and as a key."""
        return self.mount.host.joinpath(*self.parts)


def from_inside(path: str, mounts: Sequence[Mount]) -> MountedPath | None:
    """The path, `..` taken as text, in the mount whose inside name holds it most closely; None where none does."""
    plain = PurePosixPath(os.path.normpath(path))
    held = [mount for mount in mounts if plain.is_relative_to(mount.inside)]
    if not held:
        return None
    mount = max(held, key=lambda mount: len(mount.inside))
    return MountedPath(str(plain), mount, plain.relative_to(mount.inside).parts)


def from_host(path: Path, mounts: Sequence[Mount]) -> MountedPath | None:
    """The host's path, `..` taken as text, in the deepest mount that holds it; None where none does."""
    plain = os.path.normpath(path).replace("//", "/", 1)  # POSIX lets two slashes at the start stand
    held = [mount for mount in mounts if _holds(str(mount.host), plain)]
    if not held:
        return None
    mount = max(held, key=lambda mount: len(str(mount.host)))
    parts = PurePosixPath(plain).relative_to(mount.host).parts
    return MountedPath(str(PurePosixPath(mount.inside, *parts)), mount, parts)


def _holds(folder: str, path: str) -> bool:
    """As `is_relative_to`, of plain absolute paths: every turn asks it dozens of times."""
    return path == folder or path.startswith(folder if folder.endswith("/") else f"{folder}/")


def follow_links(path: str, to_host: Callable[[str], str | None]) -> str | None:
    """An absolute path with its links followed; what is missing is kept as written. `to_host` says where the host has a
    path, None for one that is no link. None is returned for a circle of links, and for a text that is no path."""
    left, done, links = list(reversed(path.split("/"))), "", 0
    while left:
        part = left.pop()
        if part == "..":
            done = done[: done.rfind("/")] if done else ""
        if part in ("", ".", ".."):
            continue
        here = f"{done}/{part}"
        try:
            target = os.readlink(to_host(here) or "")
        except OSError:
            done = here
            continue
        except ValueError:
            return None
        links += 1
        if links > LINKS_MAX:
            return None
        left.extend(reversed(target.split("/")))
        done = "" if target.startswith("/") else done
    return done or "/"


def alike_everywhere(path: str) -> str | None:
    """A path of the host, for `follow_links`, which leads each process to the same file; None for what is below `/proc`
    and for descriptors: a command finds its own there, and following them here would find those of this process."""
    return None if _OF_A_PROCESS.fullmatch(path) else path
