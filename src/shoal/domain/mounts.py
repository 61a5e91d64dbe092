"""Where paths lie in mounts: by the name that commands know them by, or by that of the host."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from shoal.domain.ports import Mount


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
