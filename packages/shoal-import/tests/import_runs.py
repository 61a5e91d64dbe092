"""Types that the import tests share, and functions that create home directories of other products."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import peers

MAKERS: dict[str, Callable[[Path], Path]] = {
    "openclaw": peers.openclaw, "hermes": peers.hermes, "nanobot": peers.nanobot, "openwebui": peers.openwebui,
}  # fmt: skip


class Ran(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


Shoal = Callable[..., Ran]


class Line(NamedTuple):
    """A line of the import report."""

    became: str
    what: str
    detail: str


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
