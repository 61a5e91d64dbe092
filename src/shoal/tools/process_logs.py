"""The log files of processes: bounded, rotated, and read from any place."""

import os
from pathlib import Path

import msgspec

from shoal.domain.agents import Process
from shoal.domain.home import Home

FILE_BYTES_MAX = 2_097_152
FILES_MAX = 5
"""A process keeps this many files of FILE_BYTES_MAX each; the oldest output goes."""
LINES_MAX = 1000
"""Most lines that are read at once."""
FOLDER = "processes"


class LogPiece(msgspec.Struct, frozen=True):
    """Lines of a log: where the next ones begin, how much there was in all, and how much of the beginning is gone.

    Offsets count bytes from the process's start.
    """

    lines: tuple[str, ...]
    next_offset: int
    total_bytes: int
    lost_bytes: int = 0


class ProcessLog:
    """Writes one process's log. Every call blocks for a moment; a disk that fails ends the log, not the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._file = -1
        self._failed = False

    def write(self, data: bytes) -> None:
        """Append output; a full file becomes `.1`, that one `.2`, and so on."""
        if self._failed:
            return
        try:
            while data:
                room = FILE_BYTES_MAX - self._size
                if self._file < 0 or room <= 0:
                    self._turn()
                    room = FILE_BYTES_MAX
                written = os.write(self._file, data[:room])
                self._size += written
                data = data[written:]
        except OSError:
            self._failed = True
            self.close()

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _turn(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._file >= 0:
            self.close()
            (self._path.with_name(f"{self._path.name}.gone")).write_text(str(self._rotate()), "ascii")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._size = 0

    def _rotate(self) -> int:
        """Rename the files; returns how many bytes have gone for good."""
        gone = _gone(self._path)
        last = _numbered(self._path, FILES_MAX - 1)
        if last.exists():
            gone += last.stat().st_size
        for number in range(FILES_MAX - 2, -1, -1):
            older = _numbered(self._path, number)
            if older.exists():
                os.replace(older, _numbered(self._path, number + 1))
        return gone


def log_of(home: Home, process: Process) -> Path:
    """Where a process's log is; rotated files lie beside it."""
    return home.thread(process.spec.thread) / FOLDER / f"{process.id}.log"


def read_log(path: Path, *, offset: int = -1, lines_max: int = 100, contains: str = "") -> LogPiece:
    """The last lines of a log, or those from `offset` on; only those that contain a text, where one is given.

    A log that was not written yet reads as empty. Blocks; raises OSError.
    """
    lost, content = _content(path)
    total = lost + len(content)
    start = 0 if offset < 0 else max(0, min(offset - lost, len(content)))
    found: list[tuple[str, int]] = []
    at = lost + start
    for line in content[start:].splitlines(keepends=True):
        at += len(line)
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if contains in text:
            found.append((text, at))
    shown = found[:lines_max] if offset >= 0 else found[-lines_max:]
    next_offset = shown[-1][1] if offset >= 0 and len(found) > lines_max else total
    return LogPiece(tuple(text for text, _ in shown), next_offset, total, lost if start == 0 else 0)


def tail(path: Path, lines_max: int, chars_max: int) -> str:
    """The end of a log as a text; empty where there is none or it cannot be read."""
    try:
        text = "\n".join(read_log(path, lines_max=lines_max).lines)
    except OSError:
        return ""
    return text if len(text) <= chars_max else f"…{text[1 - chars_max :]}"


def remove_log(path: Path) -> None:
    """Delete all of a log's files."""
    for name in (path, *(_numbered(path, number) for number in range(1, FILES_MAX)), _marker(path)):
        name.unlink(missing_ok=True)


def _content(path: Path) -> tuple[int, bytes]:
    lost = _gone(path)
    pieces: list[bytes] = []
    for number in range(FILES_MAX - 1, -1, -1):
        try:
            pieces.append(_numbered(path, number).read_bytes())
        except FileNotFoundError:
            continue
    return lost, b"".join(pieces)


def _gone(path: Path) -> int:
    try:
        return int(_marker(path).read_text("ascii"))
    except (FileNotFoundError, ValueError):
        return 0


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.gone")


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path
