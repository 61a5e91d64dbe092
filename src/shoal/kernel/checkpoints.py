"""Snapshots of a workspace, and the differences between them.

A snapshot is a tree: the list of a folder's entries, stored under the digest of that list. The entry of a subfolder
contains the digest of the subfolder's tree. Unchanged folders are therefore stored once, and a comparison skips the
trees that two snapshots share.
"""

from datetime import datetime
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from shoal.kernel.ids import ThreadId
from shoal.kernel.section import Section

Parts: TypeAlias = tuple[bytes, ...]
"""Components of a path relative to the workspace. They are bytes because file names may not be valid UTF-8."""
EntryKind: TypeAlias = Literal["file", "link", "folder", "pipe", "socket", "device"]
Lacks: TypeAlias = Literal["", "large", "full", "closed"]
ChangedSince: TypeAlias = Literal["ask", "keep", "overwrite"]
"""How an undo handles files that changed after the turn.

`ask`: raises FilesDiffer.
`keep`: does not restore these files.
`overwrite`: restores them anyway.
"""


class CheckpointsSettings(Section, frozen=True, kw_only=True):
    """Snapshots of the workspace, which are used to show and undo the file changes of a turn."""

    days: Annotated[float, Meta(ge=0, le=10_000)] = 14.0
    """Number of days for which changes can be undone. 0 stores nothing."""
    files_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000
    """Maximum number of files and folders in a snapshot. If the workspace has more, the deepest ones are skipped."""
    bytes_max: Annotated[int, Meta(ge=0)] = 268_435_456
    """Maximum number of bytes stored per workspace. Beyond that, changes are detected but cannot be undone."""
    file_bytes_max: Annotated[int, Meta(ge=0, le=1_073_741_824)] = 10_485_760
    """Maximum size of a stored file, in bytes. Changes to larger files are detected but cannot be undone."""


class TreeEntry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """An entry of a folder: a file, a link, a subfolder or a special file."""

    name: bytes
    kind: EntryKind
    mode: int = 0
    value: bytes = b""
    """Digest of a file's content or of a folder's tree. For a link, its target."""
    size: int = 0
    modified: int = 0
    """Modification time in nanoseconds. Shows whether a file without stored content has changed."""
    lacks: Lacks = ""
    """Why the content is not stored. If a folder has a reason, its entries were not read.

    `large`: the file exceeds `file_bytes_max`.
    `full`: the snapshot exceeds `files_max` or `bytes_max`.
    `closed`: the file or folder is unreadable.
    """
    source: str = ""
    """Name of the untrusted content that influenced the file, or empty."""


class TreeChange(NamedTuple):
    """A difference between two snapshots at one path.

    `before` or `after` is None if the path does not exist in that snapshot. Each entry of a folder is a separate
    change.
    """

    path: Parts
    before: TreeEntry | None
    after: TreeEntry | None


def alike(one: TreeEntry | None, other: TreeEntry | None) -> bool:
    """Return True if an undo treats two entries as equal.

    Ignores the contents of folders. Compares a file without stored content by size and modification time.
    """
    if one is None or other is None:
        return one is other
    if (one.kind, one.mode) != (other.kind, other.mode):
        return False
    if one.kind == "file" and (one.lacks or other.lacks):
        return (one.size, one.modified) == (other.size, other.modified)
    return one.kind == "folder" or one.value == other.value


def shown_path(path: Parts) -> str:
    """Format a path on one line. Escapes unprintable characters and bytes that are not valid UTF-8."""
    text = b"/".join(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class CheckpointRow(msgspec.Struct, frozen=True):
    """Snapshots of a workspace before and after a turn or an undo. `before` and `after` are digests of trees."""

    id: str
    thread: ThreadId
    workspace: str
    author: str
    turn_seq: int
    """Sequence number of the turn's first event."""
    before: str
    after: str
    began_at: datetime
    ended_at: datetime | None
    """None while an undo is running. `after` is then the tree that the undo restores."""
    undoes: str
    """Id of the row that this undo reverts. Empty for a turn."""
    undone_by: str


# ---- changes shown to people ----


class FileChange(msgspec.Struct, frozen=True):
    """A file that a turn or an undo changed, and its diff."""

    path: str
    change: Literal["added", "changed", "removed", "mode"]
    added: int = 0
    removed: int = 0
    diff: str = ""
    note: str = ""
    """Reason why the diff is missing or the change cannot be undone."""
    since: Literal["", "changed", "restored", "shared"] = ""
    """State of the file since this turn. Empty if the file has not changed.

    `changed`: the file was changed later.
    `restored`: the file has already been restored.
    `shared`: another turn in the same workspace changed the file at the same time.
    """


SINCE = {
    "changed": "changed since",
    "restored": "already restored",
    "shared": "possibly changed by another turn at the same time",
}


class TurnChanges(msgspec.Struct, frozen=True):
    """File changes that a turn or an undo made in its workspace."""

    thread: ThreadId
    turn: str
    state: Literal["running", "done", "undone"]
    undone_by: str
    """Id of the undo that reverted the changes. Empty if they were not reverted."""
    undoes: str
    changed: int
    """Total number of changed files. `files` contains only the first ones."""
    differ: int
    """Number of files that can be restored but also have other changes. An undo asks how to handle these files."""
    files: tuple[FileChange, ...]
    notes: tuple[str, ...]
    """Sentences that explain missing content or a failed snapshot."""
    beyond: tuple[str, ...]
    """Sentences about effects that the undo does not reverse."""
