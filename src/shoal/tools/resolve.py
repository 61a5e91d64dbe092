"""Where a path of a command really leads, links followed as the command follows them, and the file opened there.

In a sandbox that maps its folders, an absolute link starts at the sandbox's root: `/scratch/x` is the thread's scratch
folder wherever that lies on the host. Elsewhere it is the host's path. What was resolved is opened without following
any link, so a link put in the way meanwhile makes the opening fail.
"""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import msgspec

from shoal.domain.ports import Mount
from shoal.tools.beneath import best_opener

LINKS_MAX = 40
"""Links followed for one path, as many as the kernel follows."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt")
_DEVICES = frozenset({"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"})
_HOST = "host:"
_ROOT = Mount(Path("/"), "/")


class Resolved(msgspec.Struct, frozen=True):
    """A path without links: the mount that holds it (None: none does) and the names below that."""

    shown: str
    mount: Mount | None
    parts: tuple[str, ...]

    @property
    def host(self) -> Path | None:
        """The path on the host; None for one of the sandbox's own file system."""
        return self.mount.host.joinpath(*self.parts) if self.mount is not None else None

    def open(self) -> int:
        """A descriptor of what is there now. Raises OSError, also where a link was put in the way."""
        if self.mount is None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        with self.parent() as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(self.parts[-1] if self.parts else ".", flags, dir_fd=folder)

    @contextmanager
    def parent(self) -> Generator[int]:
        """A descriptor of the folder it is in. Raises OSError."""
        assert self.mount is not None
        with best_opener().directory(self.mount.host, self.parts[:-1]) as folder:
            yield folder


def resolve(path: str, mounts: Sequence[Mount], *, mapped: bool) -> Resolved | None:
    """Where an absolute path, as actions name it, leads; what is missing is kept as written. None for a circle of
    links, and where commands do not know the host's path that it is."""
    if mapped and path.startswith(_HOST):
        return None
    if not mapped:
        named = _below(path, mounts)
        host = named.host if named is not None and named.host is not None else Path(path.removeprefix(_HOST))
        real = os.path.realpath(host)
        held = _held(Path(real), mounts)
        return held or Resolved(real, _ROOT, Path(real).parts[1:])
    left = list(reversed(PurePosixPath(path).parts[1:]))
    at, links = PurePosixPath("/"), 0
    while left:
        name = left.pop()
        at = at.parent if name == ".." else at / name
        held = _below(str(at), mounts)
        if name == ".." or held is None or held.host is None:
            continue
        try:
            target = os.readlink(held.host)
        except (OSError, ValueError):  # no link
            continue
        links += 1
        if links > LINKS_MAX:
            return None
        at = PurePosixPath("/") if target.startswith("/") else at.parent
        left.extend(name for name in reversed(PurePosixPath(target).parts) if name != "/")
    return _below(str(at), mounts) or Resolved(str(at), None, ())


def is_systems(path: str) -> bool:
    """Whether a path is of what a sandbox brings along and no command in it can change."""
    return path in _DEVICES or any(PurePosixPath(path).is_relative_to(folder) for folder in _SYSTEM)


def _below(path: str, mounts: Sequence[Mount]) -> Resolved | None:
    """The path by the deepest mount whose inside name holds it."""
    plain = PurePosixPath(os.path.normpath(path))
    for mount in sorted(mounts, key=lambda mount: -len(mount.inside)):
        if plain.is_relative_to(mount.inside):
            return Resolved(str(plain), mount, plain.relative_to(mount.inside).parts)
    return None


def _held(path: Path, mounts: Sequence[Mount]) -> Resolved | None:
    """The host path by the deepest mount that holds it."""
    for mount in sorted(mounts, key=lambda mount: -len(mount.host.parts)):
        if path.is_relative_to(mount.host):
            parts = path.relative_to(mount.host).parts
            return Resolved(str(PurePosixPath(mount.inside, *parts)), mount, parts)
    return None
