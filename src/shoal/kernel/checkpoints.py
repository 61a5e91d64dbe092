"""Snapshots of a workspace as trees of entries by digest, and the differences between snapshots.

A tree lists a folder's entries and is stored under its digest. A subfolder's entry contains the digest of its tree.
Unchanged folders are stored once, and a comparison skips the trees that both snapshots share.
"""

from datetime import datetime
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from shoal.kernel.ids import ThreadId
from shoal.kernel.section import Section

Parts: TypeAlias = tuple[bytes, ...]
"""A path below the workspace, as bytes because file names need not be valid text."""
EntryKind: TypeAlias = Literal["file", "link", "folder", "pipe", "socket", "device"]
Lacks: TypeAlias = Literal["", "large", "full", "closed"]
ChangedSince: TypeAlias = Literal["ask", "keep", "overwrite"]
"""Handling of files that were changed later: refuse, keep or overwrite them."""


class CheckpointsSettings(Section, frozen=True, kw_only=True):
    """Settings for the snapshots that show and undo a turn's changes to files."""

    days: Annotated[float, Meta(ge=0, le=10_000)] = 14.0
    """How long changes can be undone, in days. 0 stores nothing."""
    files_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000
    """Maximum number of files and folders in a snapshot, starting at the top of the workspace."""
    bytes_max: Annotated[int, Meta(ge=0)] = 268_435_456
    """Maximum bytes stored for one workspace. Beyond it, changes are detected but cannot be undone."""
    file_bytes_max: Annotated[int, Meta(ge=0, le=1_073_741_824)] = 10_485_760
    """Largest file stored, in bytes. Changes to larger files are detected but cannot be undone."""


class TreeEntry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """An entry in a folder. `value` is the digest of a file's content or a folder's tree, or a link's target.

    `lacks` is the reason for missing content: the file is `large`, the limit was reached (`full`), or it is unreadable
    (`closed`). A folder with a reason was not read. `modified` (in nanoseconds) detects changes of missing content.
    `source` is the untrusted content that influenced the file.
    """

    name: bytes
    kind: EntryKind
    mode: int = 0
    value: bytes = b""
    size: int = 0
    modified: int = 0
    lacks: Lacks = ""
    source: str = ""


class TreeChange(NamedTuple):
    """A difference at a path. None means that nothing exists there. The entries of a folder are separate changes."""

    path: Parts
    before: TreeEntry | None
    after: TreeEntry | None


def alike(one: TreeEntry | None, other: TreeEntry | None) -> bool:
    """Return whether two entries are equal in everything an undo can restore. The contents of folders are not
    compared."""
    if one is None or other is None:
        return one is other
    if (one.kind, one.mode) != (other.kind, other.mode):
        return False
    if one.kind == "file" and (one.lacks or other.lacks):
        return (one.size, one.modified) == (other.size, other.modified)
    return one.kind == "folder" or one.value == other.value


def shown_path(path: Parts) -> str:
    """Format a path on one line for people and models. Unprintable and invalid UTF-8 characters are escaped."""
    text = b"/".join(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class CheckpointRow(msgspec.Struct, frozen=True):
    """Snapshots of a workspace before and after a turn or an undo, as tree digests.

    `turn_seq` is the first event of the turn. `undoes` is the id of the row that an undo reverts. While `ended_at` is
    None, the undo is running, and `after` is its target.
    """

    id: str
    thread: ThreadId
    workspace: str
    author: str
    turn_seq: int
    before: str
    after: str
    began_at: datetime
    ended_at: datetime | None
    undoes: str
    undone_by: str


# ---- for people ----


class FileChange(msgspec.Struct, frozen=True):
    """A changed file and its diff. `note` explains why the diff is missing or the change cannot be undone.

    `since` is `changed` if the file was changed later, `restored` if it has already been restored, or `shared` if
    another turn ran in the same workspace at the time. It is empty if the file is unchanged since this turn.
    """

    path: str
    change: Literal["added", "changed", "removed", "mode"]
    added: int = 0
    removed: int = 0
    diff: str = ""
    note: str = ""
    since: Literal["", "changed", "restored", "shared"] = ""


SINCE = {
    "changed": "changed since",
    "restored": "already restored",
    "shared": "possibly changed by another turn at the same time",
}


class TurnChanges(msgspec.Struct, frozen=True):
    """Changes of a turn or an undo to its workspace.

    `changed` counts all files, and `files` are the first ones. `differ` counts files that can be restored but were
    changed later; an undo asks about them. `beyond` lists effects that cannot be undone. `notes` lists missing content.
    `undone_by` is the undo that reverted the changes.
    """

    thread: ThreadId
    turn: str
    state: Literal["running", "done", "undone"]
    undone_by: str
    undoes: str
    changed: int
    differ: int
    files: tuple[FileChange, ...]
    notes: tuple[str, ...]
    beyond: tuple[str, ...]
