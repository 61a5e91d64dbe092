"""Change a workspace on disk from one tree to another. Every function blocks.

A path is changed only if it matches one of the two trees. Concurrent changes are therefore preserved, and an
interrupted restoration can run again. Content that is not stored is never removed or overwritten. Each file is replaced
atomically. Folders are opened below the workspace without following links, so nothing outside the workspace is written.
"""

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from shoal.kernel.checkpoints import Parts, TreeChange, TreeEntry, alike
from shoal.kernel.files import digest_of
from shoal.tools.openat import best_opener, closing_file, give_to
from shoal.tools.trees import Trees, entry_of, read_file

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHANGEABLE = 0o300
"""Permission bits that a folder must have while its entries are changed."""


def restore(root: Path, trees: Trees, now: str, then: str, undo: str) -> dict[Parts, str]:
    """Change the workspace from the tree `now` to the tree `then`. Return the paths that could not be changed, with
    reasons.

    `undo` is the id of this restoration. A repeated run with the same id removes temporary files of the first run.
    Raises OSError if a tree is missing.
    """
    changes, left = list(trees.changes(now, then)), dict[Parts, str]()

    def attempt(step: Callable[[_ChangeLocation, TreeChange], None], change: TreeChange) -> None:
        try:
            with _locate(root, trees, change, undo) as location:
                step(location, change)
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)  # its folder was removed too
            if change.after is not None or not is_missing:
                left[change.path] = f"{(error.strerror or str(error)).rstrip('.')}."

    for change in reversed(changes):  # delete contents before their folder
        turns = change.before is not None and _is_folder(change.before) != _is_folder(change.after)
        if turns or change.after is None:
            attempt(_remove, change)
    for change in changes:
        if change.after is not None and change.path not in left:
            attempt(_put, change)
    for change in reversed(changes):  # last, because the new permissions may revoke our own access
        if change.after is not None and _is_folder(change.after) and change.path not in left:
            attempt(_set_rights, change)
    return left


class _ChangeLocation(NamedTuple):
    """Location of a change. `folder` is an open file descriptor, and `found` is the current entry."""

    trees: Trees
    folder: int
    name: str
    found: TreeEntry | None
    temporary: str


@contextmanager
def _locate(root: Path, trees: Trees, change: TreeChange, undo: str) -> Generator[_ChangeLocation]:
    """Open the location of a change. Its folder is writable until the block ends.

    Raises OSError if another process changed the entry.
    """
    *above, name = map(os.fsdecode, change.path)
    temporary = f".undo-{hashlib.sha256(f'{undo} {name!r}'.encode()).hexdigest()[:16]}"
    with best_opener().directory(root, tuple(above)) as folder:
        mode = stat.S_IMODE(os.fstat(folder).st_mode)
        is_closed = mode & _CHANGEABLE != _CHANGEABLE and os.geteuid() != 0
        if is_closed:
            os.fchmod(folder, mode | stat.S_IRWXU)
        try:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            entry = None
            with suppress(FileNotFoundError):
                entry = entry_of(name, os.stat(name, dir_fd=folder, follow_symlinks=False))
            if entry is not None and entry.kind == "link":
                entry = replace(entry, value=os.readlink(os.fsencode(name), dir_fd=folder))
            known = {version.size for version in (change.before, change.after) if version is not None and version.value}
            if entry is not None and entry.kind == "file" and entry.size in known:
                entry = replace(entry, value=digest_of(read_file(folder, name, entry.size)).encode())
            was, will = _is_folder(change.before), _is_folder(change.after)
            is_cut = entry is None and change.before is not None and was != will  # the old entry was already removed
            is_ours = is_cut or (_is_folder(entry) and (was or will))
            if not (is_ours or alike(entry, change.before) or alike(entry, change.after)):
                raise OSError("Another process changed it.")
            yield _ChangeLocation(trees, folder, name, entry, temporary)
        finally:
            if is_closed:
                os.fchmod(folder, mode)


def _is_folder(entry: TreeEntry | None) -> bool:
    return entry is not None and entry.kind == "folder"


def _remove(location: _ChangeLocation, change: TreeChange) -> None:
    if location.found is None or (_is_folder(location.found) and _is_folder(change.after)):
        return
    if _is_folder(location.found):
        os.rmdir(location.name, dir_fd=location.folder)
    elif not alike(location.found, change.after):
        _check_stored(location, change)
        os.unlink(location.name, dir_fd=location.folder)


def _check_stored(location: _ChangeLocation, change: TreeChange) -> None:
    if location.found is not None and change.before is not None and change.before.lacks:
        raise OSError("The content to restore is not stored, so Shoal kept the current file.")


def _put(location: _ChangeLocation, change: TreeChange) -> None:
    folder, name, temporary, after = location.folder, location.name, location.temporary, change.after
    if after is None or alike(location.found, after) or (_is_folder(location.found) and _is_folder(after)):
        return
    owner = os.fstat(folder)
    if after.kind == "folder":
        os.mkdir(name, stat.S_IRWXU, dir_fd=folder)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing_file(os.open(name, flags, dir_fd=folder)) as made:
            give_to(owner, made)
        return
    if location.found is not None and alike(replace(location.found, mode=after.mode), after):
        _chmod(folder, name, after.mode)
        return
    _check_stored(location, change)
    if after.kind == "file" and not after.lacks:
        content = location.trees.content(after)
        with open(os.open(temporary, _CREATE, 0o600, dir_fd=folder), "wb") as stream:
            stream.write(content)
            stream.flush()
            give_to(owner, stream.fileno())
            os.fchmod(stream.fileno(), after.mode)  # last, because changing the owner clears setuid
    elif after.kind == "link":
        os.symlink(after.value, os.fsencode(temporary), dir_fd=folder)
    elif after.kind == "pipe":
        os.mkfifo(temporary, dir_fd=folder)
        _chmod(folder, temporary, after.mode)
    else:
        raise OSError("The content to restore is not stored.")
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _set_rights(location: _ChangeLocation, change: TreeChange) -> None:
    if location.found is not None and change.after is not None and location.found.mode != change.after.mode:
        _chmod(location.folder, location.name, change.after.mode)


def _chmod(folder: int, name: str, mode: int) -> None:
    """Change permissions, including those of a file that cannot be opened. Never follows a link."""
    if sys.platform != "linux":
        os.chmod(name, mode, dir_fd=folder, follow_symlinks=False)
        return
    with closing_file(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as descriptor:
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise OSError("A link has replaced the file.")
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
