"""Chats whose event is being taken in, in a file, so that an event that ends the process is known at the next start.

The file is written before an event is looked at and after it, without waiting for the disk: it has to outlive the
process, not the machine. Only a process that dies leaves a chat in it; one that is stopped takes its chats out.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from shoal.domain.untrusted import UNREADABLE

STARTS_MAX = 2
"""An event during which the process has ended so often is set aside at the next start."""
FILE_BYTES_MAX = 65_536
SET_ASIDE = "set aside"
"""The scope of settings that holds the events that were set aside."""


class SetAside(msgspec.Struct, frozen=True):
    """An event that was set aside: the account and the chat it is from, its content, and whether the owner knows."""

    platform: str
    lane: str
    content: str
    told: bool = False


class Begun:
    """How often the process has died in a chat's event, by chat; without a file, never."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._handle = -1
        self._counts: dict[str, int] = {}

    def open(self) -> None:
        """Read what an earlier process has left; one without a file, or with a damaged one, left nothing."""
        if self._file is None or self._handle >= 0:
            return
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._handle = os.open(self._file, flags, 0o600)
            with suppress(*UNREADABLE):
                self._counts = msgspec.json.decode(os.pread(self._handle, FILE_BYTES_MAX, 0), type=dict[str, int])

    def begin(self, lane: str) -> bool:
        """Note that an event of a chat is looked at; False where that has ended the process STARTS_MAX times."""
        if self._counts.get(lane, 0) >= STARTS_MAX:
            return False
        self._counts[lane] = self._counts.get(lane, 0) + 1
        self._write()
        return True

    def end(self, lane: str) -> None:
        """It is over, or the process is stopped in an orderly way."""
        if self._counts.pop(lane, None) is not None:
            self._write()

    def _write(self) -> None:
        if self._handle < 0:
            return
        content = msgspec.json.encode(self._counts)
        with suppress(OSError):  # a full disk must not keep messages out
            os.pwrite(self._handle, content.ljust(os.fstat(self._handle).st_size), 0)
