"""What an undo returns."""

import msgspec


class LeftFile(msgspec.Struct, frozen=True):
    """A file that an undo did not restore, and why."""

    path: str
    why: str


class UndoResult(msgspec.Struct, frozen=True):
    """The result of an undo. It can be undone by its `id`. `files` are the first of the `restored` files, and `left`
    the first of the `not_restored` ones."""

    id: str
    restored: int
    files: tuple[str, ...]
    not_restored: int
    left: tuple[LeftFile, ...]
