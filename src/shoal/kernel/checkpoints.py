"""How a workspace was at some time, as records: trees of entries by digest, and what differs between two of them.

A tree is a folder's entries, kept as content under its digest; a folder's entry names the digest of its own. So a
folder in which nothing changed is stored once, and two trees are compared without reading what they have in common.
"""

from datetime import datetime
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from shoal.kernel.ids import ThreadId
from shoal.kernel.section import Section

Parts: TypeAlias = tuple[bytes, ...]
"""A path below the workspace. Names are what the file system has, which need not be text."""
EntryKind: TypeAlias = Literal["file", "link", "folder", "pipe", "socket", "device"]
Lacks: TypeAlias = Literal["", "large", "full", "closed"]
ChangedSince: TypeAlias = Literal["ask", "keep", "overwrite"]
"""What becomes of files that were changed since by somebody else: nothing is done, they stay, or they are restored."""


class CheckpointsSettings(Section, frozen=True, kw_only=True):
    """What is kept of workspaces so that what a turn did to files can be shown and undone."""

    days: Annotated[float, Meta(ge=0, le=10_000)] = 14.0
    """How long it can be undone, in days; 0 keeps nothing."""
    files_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000
    """Most files and folders of a workspace that are looked at; those nearest to its top come first."""
    bytes_max: Annotated[int, Meta(ge=0)] = 268_435_456
    """Most bytes of one workspace that are kept; beyond it changes are noticed but cannot be undone."""
    file_bytes_max: Annotated[int, Meta(ge=0, le=1_073_741_824)] = 10_485_760
    """Largest file that is kept, in bytes, with the same end."""


class TreeEntry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What has a name in a folder. `value` is the digest of a file's content or of a folder's tree, or a link's target.

    `lacks` says why a content is not kept: it is `large`, was past the bound (`full`), or could not be read (`closed`).
    A folder that lacks was not looked into. `modified` (in nanoseconds) tells changes of what is not kept. `source` is
    the untrusted content that had a hand in it.
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
    """What differs at a path; None where nothing is there. A folder's own entries are changes of their own."""

    path: Parts
    before: TreeEntry | None
    after: TreeEntry | None


def alike(one: TreeEntry | None, other: TreeEntry | None) -> bool:
    """Whether nothing that can be undone differs, but for what is in a folder."""
    if one is None or other is None:
        return one is other
    if (one.kind, one.mode) != (other.kind, other.mode):
        return False
    if one.kind == "file" and (one.lacks or other.lacks):
        return (one.size, one.modified) == (other.size, other.modified)
    return one.kind == "folder" or one.value == other.value


def shown_path(path: Parts) -> str:
    """A path as people and models read it: one line, with what is not printable or not UTF-8 escaped."""
    text = b"/".join(path).decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class CheckpointRow(msgspec.Struct, frozen=True):
    """What a turn, or an undo, found in a workspace before it and left after it, as the digests of trees.

    `turn_seq` is the first event of the turn. An undo has the id of what it undid in `undoes`, and is being done while
    `ended_at` is None: `after` is then what the workspace is to become.
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


# ---- what people are shown ----------------------------------------------------------------------------------------


class FileChange(msgspec.Struct, frozen=True):
    """What became of a file, with its diff where there is one; `note` says why there is none, or no undo of it.

    `since`: it was `changed` afterwards, is `restored` already, or changed while another turn was at work in the same
    workspace (`shared`), so that it may be either's; empty where it is as this turn left it.
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
    "restored": "as before already",
    "shared": "maybe changed by another turn that was at work at the same time",
}


class TurnChanges(msgspec.Struct, frozen=True):
    """What a turn, or an undo, did to the files of its workspace. `changed` counts all; `files` are the first of them.

    `differ` counts those that could be restored and are not as it left them: an undo asks about them.
    `beyond` is what it did that cannot be undone, `notes` what was not kept. `undone_by` is the undo that took it back.
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


class LeftFile(msgspec.Struct, frozen=True):
    """A file that an undo did not restore, and why."""

    path: str
    why: str


class UndoResult(msgspec.Struct, frozen=True):
    """What an undo did. `id` names it, so that it can be undone itself; `files` are the first of the `restored` ones,
    and `left` the first of those that were not, of which there are `not_restored`."""

    id: str
    restored: int
    files: tuple[str, ...]
    not_restored: int
    left: tuple[LeftFile, ...]
