"""Results of an undo."""

import msgspec


class LeftFile(msgspec.Struct, frozen=True):
    """A file that an undo did not restore, and why."""

    path: str
    why: str


class UndoResult(msgspec.Struct, frozen=True):
    """Result of an undo. Its `id` can be passed to another undo, which reverses this one.

    `files` lists the first of the `restored` files, and `left` the first of the `not_restored` files.
    """

    id: str
    restored: int
    files: tuple[str, ...]
    not_restored: int
    left: tuple[LeftFile, ...]
