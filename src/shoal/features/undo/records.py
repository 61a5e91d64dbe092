"""Results of an undo."""

import msgspec


class LeftFile(msgspec.Struct, frozen=True):
    """A file that an undo did not restore, and why."""

    path: str
    why: str


class UndoResult(msgspec.Struct, frozen=True):
    """Result of an undo.

    id: id of this undo. Another undo with this id reverses it.
    restored: number of restored files.
    files: names of the first restored files.
    not_restored: number of files that were not restored.
    left: the first files that were not restored, with reasons.
    """

    id: str
    restored: int
    files: tuple[str, ...]
    not_restored: int
    left: tuple[LeftFile, ...]
