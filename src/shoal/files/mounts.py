"""Resolution of paths in mounts. A path is given either as commands see it, or as a path on the host."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.ports import Mount

LINKS_MAX = 40
"""Maximum number of links that are followed for one path. The operating system has the same limit."""
_OF_A_PROCESS = lazy_re.compile(r"/proc(?:/.*)?|/dev/(?:fd(?:/.*)?|stdin|stdout|stderr|tty)", re.DOTALL)


class MountedPath(msgspec.Struct, frozen=True):
    """A path in a mount, which need not exist. `shown` is the path that commands, the model and permissions use."""

    shown: str
    mount: Mount
    parts: tuple[str, ...]

    @property
    def host(self) -> Path:
        """Path on the host, for messages and as a key."""
        return self.mount.host.joinpath(*self.parts)


def from_inside(path: str, mounts: Sequence[Mount]) -> MountedPath | None:
    """Find the mount for a path as commands see it. If several match, the longest `inside` wins.

    Return None if no mount contains the path. `..` is resolved textually.
    """
    plain = PurePosixPath(os.path.normpath(path))
    held = [mount for mount in mounts if plain.is_relative_to(mount.inside)]
    if not held:
        return None
    mount = max(held, key=lambda mount: len(mount.inside))
    return MountedPath(str(plain), mount, plain.relative_to(mount.inside).parts)


def from_host(path: Path, mounts: Sequence[Mount]) -> MountedPath | None:
    """Find the mount for a path on the host. If several match, the deepest one wins.

    Return None if no mount contains the path. `..` is resolved textually.
    """
    plain = os.path.normpath(path).replace("//", "/", 1)  # normpath keeps two leading slashes
    held = [mount for mount in mounts if _holds(str(mount.host), plain)]
    if not held:
        return None
    mount = max(held, key=lambda mount: len(str(mount.host)))
    parts = PurePosixPath(plain).relative_to(mount.host).parts
    return MountedPath(str(PurePosixPath(mount.inside, *parts)), mount, parts)


def _holds(folder: str, path: str) -> bool:
    """Like `is_relative_to` for absolute paths, but faster, because each turn calls it dozens of times."""
    return path == folder or path.startswith(folder if folder.endswith("/") else f"{folder}/")


def follow_links(path: str, to_host: Callable[[str], str | None]) -> str | None:
    """Resolve the links in an absolute path. Parts that do not exist are unchanged.

    `to_host` maps a path to the host, or to None if the path is not a link. Return None for a cycle of links and for
    an invalid path.
    """
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
    """Map a path to itself, for use as `to_host` in `follow_links`.

    Return None for paths below `/proc` and for descriptors, which differ in each process.
    """
    return None if _OF_A_PROCESS.fullmatch(path) else path
