"""Reader of SQLite's -wal index, which is in -shm. The format is documented at sqlite.org/walformat.html.

The index survives a killed process and needs no extra write per commit. It shows how many frames the -wal must have,
and whether SQLite itself may have copied frames into the database.
"""

import struct
from pathlib import Path
from typing import NamedTuple

WAL_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
INDEX = struct.Struct("=14xHI12x8s56xI")
"""Layout of the fields at the start of -shm: page size, last frame, salts, and the number of frames copied into the
database.
"""


class WalIndex(NamedTuple):
    """The header of the -wal index, as SQLite last wrote it."""

    page_bytes: int
    last_frame: int
    salts: bytes
    frames_copied: int

    @property
    def frames_needed(self) -> int:
        """Return the number of frames that the -wal must have, or 0 if the database contains all of them."""
        return self.last_frame if self.frames_copied < self.last_frame else 0

    @property
    def bytes_needed(self) -> int:
        """Return the minimum length of the -wal in bytes while SQLite may read from it."""
        page_bytes = 65_536 if self.page_bytes == 1 else self.page_bytes
        return WAL_HEADER_BYTES + self.last_frame * (page_bytes + FRAME_HEADER_BYTES) if self.last_frame else 0

    def may_have_copied(self, before: "WalIndex") -> bool:
        """Return True if SQLite itself may have written to the database since `before`.

        After it has copied the complete -wal, SQLite restarts the -wal and increments its first salt.
        """
        if self.salts == before.salts:
            return self.frames_copied != before.frames_copied
        rounds = int.from_bytes(self.salts[:4]) - int.from_bytes(before.salts[:4])
        return rounds != 1 or self.frames_copied > 0 or before.frames_copied < before.last_frame


def read_index(shm: Path) -> WalIndex | None:
    try:
        with shm.open("rb") as file:
            return parse_index(file.read(INDEX.size))
    except OSError:
        return None


def parse_index(start: bytes) -> WalIndex | None:
    return WalIndex(*INDEX.unpack(start)) if len(start) == INDEX.size else None


def salts_of(wal: Path) -> bytes:
    """Return the salts of a -wal, which change whenever SQLite restarts it. Empty if the header is damaged or
    missing.
    """
    try:
        with wal.open("rb") as file:
            header = file.read(WAL_HEADER_BYTES)
    except OSError:
        return b""
    if len(header) < WAL_HEADER_BYTES:
        return b""
    order = ">" if header[3] & 1 else "<"
    first = second = 0
    for low, high in struct.iter_unpack(f"{order}II", header[:24]):
        first = (first + low + second) & 0xFFFFFFFF
        second = (second + high + first) & 0xFFFFFFFF
    return header[16:24] if header[24:] == struct.pack(">II", first, second) else b""
