"""Convert between directories on disk and manifests.

A manifest stores only the executable bit of a file's mode, and neither owner nor times. Links remain links. Writes
never follow a link and never leave the directory.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.errors import InvalidInput
from shoal.kernel.files import digest_of_file
from shoal.kernel.regular_files import regular_only
from shoal.kernel.untrusted import is_text

ENTRIES_MAX = 20_000
BYTES_MAX = 2_147_483_648
SETTLED_NANOSECONDS = 2_000_000_000
"""Granularity of file timestamps. A file that changed within this time before it was read may change again without a
new modification time.
"""


Wanted: TypeAlias = Callable[[str], bool]
"""Function that returns whether to include a name at the top level of the directory."""


class ManifestEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file, link or folder.

    value: digest of a file, or target of a link.
    mode: 0o755 for an executable file, 0o644 for any other file.
    """

    kind: Literal["file", "link", "folder"]
    value: str = ""
    mode: int = 0


Entries = Mapping[str, ManifestEntry]


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """The state of a file when its digest was computed, at the time `at`. Times are in nanoseconds since 1970."""

    digest: str
    size_bytes: int
    modified: int
    at: int


class DirectoryTree(msgspec.Struct):
    """The entries of a directory by path. `seen` caches digests, to avoid reading unchanged files again."""

    entries: dict[str, ManifestEntry]
    seen: dict[str, Seen]


def everything(name: str) -> bool:
    return True


def scan(root: Path, seen: Mapping[str, Seen], now: int, wanted: Wanted = everything) -> DirectoryTree:
    """Read a directory. `wanted` selects names at its top level. Sockets, pipes and names that are not UTF-8 are
    skipped.

    Raises OSError. Raises InvalidInput if the directory has more than ENTRIES_MAX entries or BYTES_MAX bytes.
    """
    tree = DirectoryTree({}, {})
    size = 0
    for path, status in _walk(root, "", wanted):
        info = status.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            tree.entries[path] = ManifestEntry("folder")
        elif stat.S_ISLNK(info.st_mode):
            tree.entries[path] = ManifestEntry("link", os.readlink(status.path))
        elif stat.S_ISREG(info.st_mode):
            size += info.st_size
            before = seen.get(path)
            if (
                before is not None
                and (before.size_bytes, before.modified) == (info.st_size, info.st_mtime_ns)
                and before.modified + SETTLED_NANOSECONDS < before.at
            ):
                digest = before.digest
            else:
                digest = digest_of_file(Path(status.path))
            tree.seen[path] = Seen(digest, info.st_size, info.st_mtime_ns, now)
            tree.entries[path] = ManifestEntry("file", digest, 0o755 if info.st_mode & stat.S_IXUSR else 0o644)
        if len(tree.entries) > ENTRIES_MAX or size > BYTES_MAX:
            raise InvalidInput(
                f"{root} is too large to sync to other machines: the limit is {ENTRIES_MAX} entries and {BYTES_MAX} "
                "bytes. Remove files, or put it on a shared volume."
            )
    return tree


def _walk(root: Path, inside: str, wanted: Wanted) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    left = [inside]
    while left:
        inside, folders = left.pop(), list[str]()
        with suppress(FileNotFoundError), os.scandir(root / inside) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                path = f"{inside}/{entry.name}" if inside else entry.name
                if not is_text(entry.name) or not wanted(entry.name):
                    continue
                yield path, entry
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
        left += reversed(folders)
        wanted = everything


def check_path(path: str) -> tuple[str, ...]:
    """Split the path of a manifest entry into its parts. Raises InvalidInput if it leads out of the directory."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\0" in path or any(part in ("..", ".") for part in parts):
        raise InvalidInput(f"A manifest contains the path {path[:200]!r}, which is outside its directory.")
    return parts


def remove(root: Path, path: str) -> None:
    """Delete a file, a link or an empty folder. Does nothing if the path is missing or a folder with content."""
    *parents, name = check_path(path)
    with suppress(FileNotFoundError, NotADirectoryError), _folder(root, parents, enter=_open) as folder:
        try:
            os.unlink(name, dir_fd=folder)
        except (IsADirectoryError, PermissionError):  # unlink raises one of these for a folder, depending on the system
            with suppress(OSError):
                os.rmdir(name, dir_fd=folder)


def keep_beside(root: Path, path: str) -> None:
    """Rename an existing entry to NAME.conflict."""
    *parents, name = check_path(path)
    with suppress(FileNotFoundError, NotADirectoryError), _folder(root, parents, enter=_open) as folder:
        _put_aside(folder, name)


def make(root: Path, path: str, entry: ManifestEntry, content: Path | None) -> None:
    """Create an entry, replacing any existing one. A file's content is copied from `content`."""
    *parents, name = check_path(path)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _folder(root, parents, enter=_make) as folder:
        if entry.kind == "folder":
            os.close(_make(folder, name))
            return
        fresh = f".{secrets.token_hex(8)}"
        if entry.kind == "link":
            os.symlink(entry.value, fresh, dir_fd=folder)
        else:
            assert content is not None, "a file needs its content"
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            with open(content, "rb", opener=regular_only) as source, open(file, "wb") as target:
                shutil.copyfileobj(source, target)
                os.fchmod(target.fileno(), entry.mode & 0o777)
        try:
            os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:  # the folder contains entries that other machines do not have
                _put_aside(folder, name)
            os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _folder(root: Path, parents: list[str], *, enter: Callable[[int, str], int]) -> Generator[int]:
    """Open an entry's parent directory one component at a time, so no link below the root is followed."""
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parents:
            below = enter(here, part)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _open(folder: int, name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:  # some systems report a link this way
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from error
        raise


def _make(folder: int, name: str) -> int:
    try:
        return _open(folder, name)
    except NotADirectoryError:
        _put_aside(folder, name)
    except FileNotFoundError:
        pass
    os.mkdir(name, 0o700, dir_fd=folder)
    return _open(folder, name)


def _put_aside(folder: int, name: str) -> None:
    aside = f"{name}.conflict"
    try:
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            raise
        os.rename(name, f"{aside}.{secrets.token_hex(4)}", src_dir_fd=folder, dst_dir_fd=folder)
