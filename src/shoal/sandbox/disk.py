"""How much the folders of commands hold, and whether they may grow: what bounds files in number and in sum.

A folder is walked seldom. `statvfs`, a few microseconds, tells by how much a whole disk has filled up since the last
walk, and a folder cannot have grown by more than that:

    a command begins       walked only when the disk has filled up by as much as the folder had room
    while it runs          looked at every LOOK_SECONDS: walked at the first look, and whenever the disk has filled up
                           by half of the room that was left (so closer and closer to the limit)
    the disk is nearly     no walk is needed to know that nothing may grow
    full

What other programs free meanwhile hides growth for at most WALK_SECONDS_MAX.
"""

import errno
import os
import stat
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.domain.ports import Mount

MEBIBYTE = 1_048_576
WALK_SECONDS_MAX = 30.0
"""A folder on a disk that changes is walked at least this often while a command runs in it."""
STEP_BYTES, STEP_FILES = MEBIBYTE, 64
"""Less growth than this is nothing to walk for."""
UNSEEN_BYTES, UNSEEN_FILES = 64 * MEBIBYTE, 4096
"""What short commands may add to a folder that was never walked before it is."""
FOLDERS_MAX = 1024
"""Folders whose size is remembered; the one that was looked at longest ago is forgotten."""
FILES_COUNTED_MAX = 2_000_000
"""A folder with more files counts as having this many."""


class DiskLimits(msgspec.Struct, frozen=True):
    """What each folder that commands may write can hold, and how much of its disk has to stay free; 0 sets no limit.

    Bytes are those taken on the disk: holes of sparse files take none, a file with several names is counted once.
    Files are all entries, folders too.
    """

    bytes_max: int = 2 * 1024 * MEBIBYTE
    files_max: int = 200_000
    free_bytes_min: int = 512 * MEBIBYTE


class Held(NamedTuple):
    """What a folder holds. `hidden` is a folder in it that could not be looked into though it is this user's."""

    size_bytes: int
    files: int
    hidden: str = ""


class Filled(NamedTuple):
    """What a whole disk holds, and what is free for this user."""

    size_bytes: int
    files: int
    free_bytes: int


class _Folder:
    """What is remembered of a folder: the last walk, how full the disk was then, and how long it took."""

    __slots__ = ("filled", "held", "lock", "walk_seconds", "walked_at")

    def __init__(self, filled: Filled) -> None:
        self.held: Held | None = None
        self.filled = filled
        self.walked_at = 0.0
        self.walk_seconds = 0.0
        self.lock = threading.Lock()


class Ceiling(NamedTuple):
    """What a folder may hold while a command runs: its limits, or what it held at the beginning where that is more."""

    size_bytes: float
    files: float
    may_hide: bool = False


class Room:
    """Knows which folders are full. Its methods that walk block, and may be called in several threads."""

    def __init__(self, limits: DiskLimits) -> None:
        self.limits = limits
        self._most = Ceiling(limits.bytes_max or float("inf"), limits.files_max or float("inf"))
        self._files_counted_max = 2 * limits.files_max or FILES_COUNTED_MAX
        self._folders: dict[Path, _Folder] = {}
        self._lock = threading.Lock()

    def is_doubtful(self, mount: Mount) -> bool:
        """Whether the folder may have reached a limit since it was walked. Never walks, and takes microseconds."""
        filled, folder = self._look(mount.host)
        if filled is None or folder is None:
            return False
        return filled.free_bytes < self.limits.free_bytes_min or self._is_grown(folder, filled, 1.0)

    def problem(self, mount: Mount) -> str:
        """Why the folder may not grow now, empty when it may. Walks it."""
        filled, folder = self._look(mount.host)
        if filled is None or folder is None:
            return ""
        if filled.free_bytes < self.limits.free_bytes_min:
            return self._disk_full(filled)
        self._walk(mount.host, folder, filled)
        return self._too_much(mount, folder, self._most)

    def is_overdue(self, mount: Mount) -> bool:
        """Whether its last walk is so long ago that the next should not wait. Never walks."""
        filled, folder = self._look(mount.host)
        return filled is not None and folder is not None and folder.held is not None and self._is_due(folder, filled)

    def ceilings(self, mounts: Sequence[Mount]) -> tuple[Ceiling, ...]:
        """What each of the folders may hold from now on, none of them less than it was last seen to hold."""
        return tuple(self._ceiling(mount) for mount in mounts)

    def _ceiling(self, mount: Mount) -> Ceiling:
        folder = self._folders.get(mount.host)
        held = (folder and folder.held) or Held(0, 0)
        return Ceiling(
            max(self._most.size_bytes, held.size_bytes), max(self._most.files, held.files), bool(held.hidden)
        )

    def outgrown(self, mounts: Sequence[Mount], ceilings: Sequence[Ceiling], with_floor: bool) -> str:
        """What a command that runs has outgrown, empty when nothing. Walks where that is due."""
        for mount, ceiling in zip(mounts, ceilings, strict=True):
            filled, folder = self._look(mount.host)
            if filled is None or folder is None:
                continue
            if with_floor and filled.free_bytes < self.limits.free_bytes_min:
                return self._disk_full(filled)
            if self._is_due(folder, filled):
                self._walk(mount.host, folder, filled)
            if problem := self._too_much(mount, folder, ceiling):
                return problem
        return ""

    def _look(self, host: Path) -> tuple[Filled | None, _Folder | None]:
        try:
            found = os.statvfs(host)
        except OSError:  # it is gone, and the command's own failure tells
            return None, None
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        filled = Filled(used, found.f_files - found.f_ffree, found.f_bavail * found.f_frsize)
        with self._lock:
            folder = self._folders.pop(host, None) or _Folder(filled)
            self._folders[host] = folder  # the newest is the last
            if len(self._folders) > FOLDERS_MAX:
                del self._folders[next(iter(self._folders))]
        return filled, folder

    def _is_grown(self, folder: _Folder, filled: Filled, share: float) -> bool:
        """Whether the disk has filled up by this share of the folder's room since it was walked."""
        room_bytes, room_files = float(UNSEEN_BYTES), float(UNSEEN_FILES)
        if folder.held is not None:
            room_bytes = self._most.size_bytes - folder.held.size_bytes
            room_files = self._most.files - folder.held.files
        if (folder.held is not None and folder.held.hidden) or min(room_bytes, room_files) < 0:
            return True
        grown_bytes = filled.size_bytes - folder.filled.size_bytes
        grown_files = filled.files - folder.filled.files
        return grown_bytes >= max(share * room_bytes, STEP_BYTES) or grown_files >= max(share * room_files, STEP_FILES)

    def _is_due(self, folder: _Folder, filled: Filled) -> bool:
        if folder.held is None:
            return True
        waited = time.monotonic() - folder.walked_at
        if waited < 2 * folder.walk_seconds:
            return False
        return self._is_grown(folder, filled, 0.5) or (waited > WALK_SECONDS_MAX and filled[:2] != folder.filled[:2])

    def _walk(self, host: Path, folder: _Folder, filled: Filled) -> None:
        """Walk it, unless somebody does so already: then what is known is old by one look."""
        if not folder.lock.acquire(blocking=False):
            return
        try:
            began = time.monotonic()
            with suppress(FileNotFoundError):
                folder.held = held_in(host, self._files_counted_max)
            folder.filled = filled
            folder.walked_at = time.monotonic()
            folder.walk_seconds = folder.walked_at - began
        finally:
            folder.lock.release()

    def _too_much(self, mount: Mount, folder: _Folder, ceiling: Ceiling) -> str:
        held = folder.held
        if held is None:
            return ""
        if held.hidden and not ceiling.may_hide:
            return f"{mount.inside} has a folder that cannot be looked into: {held.hidden!r}. chmod it, or remove it."
        if held.size_bytes > ceiling.size_bytes:
            most = shown_bytes(self.limits.bytes_max)
            return f"{mount.inside} holds {shown_bytes(held.size_bytes)}; at most {most} are allowed. Remove files."
        if held.files > ceiling.files:
            most = f"{self.limits.files_max:,}"
            return f"{mount.inside} holds {held.files:,} files and folders; at most {most} are allowed. Remove some."
        return ""

    def _disk_full(self, filled: Filled) -> str:
        free, least = shown_bytes(filled.free_bytes), shown_bytes(self.limits.free_bytes_min)
        return f"The disk has {free} left; {least} have to stay free. Remove files, or tell the owner."


def held_in(root: Path, files_max: int) -> Held:
    """Walk a folder: bytes on the disk and entries, links not followed, other disks left out. Blocks.

    It ends early at `files_max` entries. What changes meanwhile may be counted or not.
    """
    count = _Count(os.lstat(root).st_dev, files_max)
    folders, hidden = [str(root)], ""
    while folders and count.files < files_max:
        here = folders.pop()
        try:
            with os.scandir(here) as found:
                folders += count.add(found)
        except OSError as error:
            hidden = hidden or _hidden(here, root, error)
    return Held(count.size_bytes, count.files, hidden)


class _Count:
    """Adds up entries of one disk."""

    def __init__(self, device: int, files_max: int) -> None:
        self.size_bytes = 0
        self.files = 0
        self._device = device
        self._files_max = files_max
        self._linked: set[int] = set()

    def add(self, found: Iterable["os.DirEntry[str]"]) -> list[str]:
        """Count the entries of a folder; returns the folders among them. Raises OSError."""
        folders: list[str] = []
        for entry in found:
            with suppress(FileNotFoundError):  # gone meanwhile
                info = entry.stat(follow_symlinks=False)
                self._add_one(info)
                if stat.S_ISDIR(info.st_mode) and info.st_dev == self._device:
                    folders.append(entry.path)
            if self.files >= self._files_max:
                break
        return folders

    def _add_one(self, info: os.stat_result) -> None:
        self.files += 1
        if info.st_dev != self._device or info.st_ino in self._linked:
            return
        self.size_bytes += info.st_blocks * 512
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            self._linked.add(info.st_ino)


def _hidden(folder: str, root: Path, error: OSError) -> str:
    """The folder's name where its content hides: its path is too long, or its owner's rights were taken away."""
    name = os.path.relpath(folder, root)
    if error.errno == errno.ENAMETOOLONG:
        return f"{name[:60]}…"
    try:
        is_ours = os.lstat(folder).st_uid == os.geteuid()
    except OSError:
        return ""
    return name if error.errno == errno.EACCES and is_ours else ""


def shown_bytes(size: int) -> str:
    """A size for people, such as 2.1 GiB; below one MiB in KiB."""
    for unit, bytes_each in (("GiB", 1024 * MEBIBYTE), ("MiB", MEBIBYTE)):
        if size >= bytes_each:
            return f"{size / bytes_each:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size // 1024} KiB"
