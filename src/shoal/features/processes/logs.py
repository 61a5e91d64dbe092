"""Log files of processes: bounded, rotated and readable from any offset."""

import os
from contextlib import suppress
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import msgspec

from shoal.features.processes.records import Process
from shoal.kernel.home import Home
from shoal.kernel.regular_files import read_regular
from shoal.tools.terminal import last_state

FILE_BYTES_MAX = 2_097_152
FILES_MAX = 5
"""Maximum number of log files per process, each of up to FILE_BYTES_MAX bytes. The oldest file is deleted first."""
FOLDER = "processes"


class LogPiece(msgspec.Struct, frozen=True):
    """Part of a log. Offsets count bytes from the start of the process's output.

    `next_offset`: offset at which to continue.
    `lost_bytes`: number of deleted bytes before the first line.
    """

    lines: tuple[str, ...]
    next_offset: int
    total_bytes: int
    lost_bytes: int = 0


class ProcessLog:
    """Writes the log of a process. Calls block briefly. A disk error stops the log but not the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._file = -1
        self._failed = False

    def write(self, data: bytes) -> None:
        """Append output. A full file is renamed to `.1`, the previous `.1` to `.2`, and so on."""
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
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _turn(self) -> None:
        """Rotate the files and record the number of deleted bytes."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._file >= 0:
            self.close()
            files, gone = _files(self._path), _dropped_bytes(self._path)
            if files[-1].exists():
                gone += files[-1].stat().st_size
            for newer, older in reversed(list(pairwise(files))):
                if newer.exists():
                    os.replace(newer, older)
            _marker(self._path).write_text(str(gone), "ascii")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._size = 0


def log_of(home: Home, process: Process) -> Path:
    """Return the path of a process's current log. Rotated files have this name with a number appended."""
    return home.thread(process.spec.thread) / FOLDER / f"{process.id}.log"


def read_log(path: Path, *, offset: int = -1, lines_max: int = 100, contains: str = "") -> LogPiece:
    """Read the last `lines_max` lines, or the first `lines_max` lines from byte `offset`. `contains` filters lines.

    A missing log is empty. Blocking. Raises OSError.
    """
    lost, content = _dropped_bytes(path), b""
    for file in reversed(_files(path)):
        with suppress(FileNotFoundError):
            content += read_regular(file)
    total = lost + len(content)
    start = 0 if offset < 0 else max(0, min(offset - lost, len(content)))
    parts: list[tuple[str, int]] = []
    at = lost + start
    for line in BytesIO(content[start:]):
        at += len(line)
        text = last_state(line.decode("utf-8", "replace").rstrip("\r\n"))
        if contains in text:
            parts.append((text, at))
    shown = parts[:lines_max] if offset >= 0 else parts[-lines_max:]
    next_offset = shown[-1][1] if offset >= 0 and len(parts) > lines_max else total
    return LogPiece(tuple(text for text, _ in shown), next_offset, total, lost if start == 0 else 0)


def tail(path: Path, lines_max: int, chars_max: int) -> str:
    """Return the end of a log as text, or an empty string if the log is missing or unreadable."""
    try:
        text = "\n".join(read_log(path, lines_max=lines_max).lines)
    except OSError:
        return ""
    return text if len(text) <= chars_max else f"…{text[1 - chars_max :]}"


def remove_log(path: Path) -> None:
    for file in (*_files(path), _marker(path)):
        file.unlink(missing_ok=True)


def _dropped_bytes(path: Path) -> int:
    try:
        return int(read_regular(_marker(path)))
    except (FileNotFoundError, ValueError):
        return 0


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.gone")


def _files(path: Path) -> list[Path]:
    """Return the paths of a log's files, newest first. The files may not exist."""
    return [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, FILES_MAX))]
