"""Translates paths between the host and the inside of a sandbox, as text, without touching the disk."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from shoal.domain.errors import SandboxError
from shoal.domain.ports import Mount


def to_inside(path: Path, mounts: Sequence[Mount]) -> str:
    """The inside path of a host path; itself where no mount holds it. The deepest mount wins."""
    plain = os.path.normpath(path)
    deepest, found = -1, str(path)
    for mount in mounts:
        host = str(mount.host).rstrip("/")
        if len(host) > deepest and (plain == host or plain.startswith(f"{host}/")):
            deepest, found = len(host), mount.inside + plain[len(host) :]
    return found


def to_outside(path: str, mounts: Sequence[Mount]) -> Path:
    """The host path of an inside path; unchanged where no mount holds it. `..` is resolved before mounts are asked."""
    plain = PurePosixPath(os.path.normpath(path))
    for mount in sorted(mounts, key=lambda mount: len(mount.inside), reverse=True):
        if plain.is_relative_to(mount.inside):
            return mount.host / plain.relative_to(mount.inside)
    return Path(path)


def require_inside(path: Path, mounts: Sequence[Mount]) -> str:
    """The inside path of a working directory. Raises SandboxError when no mount holds it."""
    inside = to_inside(path, mounts)
    if not any(path.is_relative_to(mount.host) for mount in mounts) or ".." in path.parts:
        raise SandboxError(f"The working directory {path} is in none of the directories that the sandbox shows.")
    return inside
