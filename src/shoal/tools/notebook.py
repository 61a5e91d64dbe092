"""Adds entries to memory files so that writers at the same time, in any number of processes, lose no line."""

import fcntl
import os
from pathlib import Path

from shoal.domain.errors import InvalidInput
from shoal.domain.memory import FILE_BYTES_MAX, MEMORY_BYTES_MAX, is_known, only_for, shown_to

_REOPENS_MAX = 20


def append_entry(path: Path, line: str, *, once: bool = True, person: str = "") -> bool:
    """Append `line` to the file, making it and its directories; False when `once` and the file has the entry already.

    It is for `person` alone (empty: for all), who is told nothing of what the file holds for others.

    Durable (synced) on return. Blocks while another writer holds the file's lock, for the time of its write: call it in
    a thread. Raises InvalidInput when the file is full, OSError when it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _open_locked(path)
    try:
        size = os.fstat(file).st_size
        existing = os.pread(file, size, 0).decode("utf-8", "replace")
        shown = shown_to(existing, person)
        if len(shown.encode()) + len(line) > MEMORY_BYTES_MAX or size > FILE_BYTES_MAX:
            raise InvalidInput(f"{path.name} is full. Remove what is out of date from it first.")
        if once and is_known(shown, line):
            return False
        start = "" if not existing or existing.endswith("\n") else "\n"
        _write_all(file, f"{start}{only_for(line, person)}\n".encode())
        os.fsync(file)
        return True
    finally:
        os.close(file)


def _open_locked(path: Path) -> int:
    """Open for appending and lock; again when an editor put another file in its place meanwhile."""
    for _ in range(_REOPENS_MAX):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_still(path, file):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
    raise InvalidInput(f"{path.name} is being replaced over and over by another program. Try again later.")


def _is_still(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
