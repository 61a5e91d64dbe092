"""Traversal and removal of folders of any depth, without recursion.

In some supported Python versions, `os.walk` and `shutil.rmtree` recurse once per level. A single command of an agent
(`mkdir -p` with a thousand levels) breaks them. They also fail for paths that are longer than the system allows.
"""

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path


def walk(
    top: Path, unread: Callable[[OSError], object] = lambda _: None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder with the names of its subfolders and of its other entries, parents first.

    The caller can remove names from the first list to skip these subfolders. Links are not followed. A folder that
    is unreadable or whose path is too long is skipped, and `unread` is called with the error.
    """
    left = [top]
    while left:
        folder = left.pop()
        folders, others = list[str](), list[str]()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        is_folder = entry.is_dir(follow_symlinks=False)
                    except OSError:
                        is_folder = False
                    (folders if is_folder else others).append(entry.name)
        except OSError as error:
            unread(error)
            continue
        yield folder, folders, others
        left += (folder / name for name in reversed(folders))


def remove_tree(top: Path) -> None:
    """Remove a folder of any depth with its contents, including folders without permissions. Blocks.

    Each inner folder is moved up before it is read, which keeps paths short. After an interrupted call, the next
    call removes the rest. Does nothing if `top` does not exist. Raises OSError if an entry cannot be removed.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(top.lstat().st_mode):
            raise NotADirectoryError(f"{top} is not a folder.")
        _open_to_owner(top)
        numbers = itertools.count()
        left = [top]
        while left:
            folder = left.pop()
            with os.scandir(folder) as entries:
                children = list(entries)
            for entry in children:
                path = Path(entry.path)
                if not entry.is_dir(follow_symlinks=False):
                    path.unlink(missing_ok=True)
                    continue
                _open_to_owner(path)
                if folder != top:
                    path = _moved(path, top, numbers)
                left.append(path)
            if folder != top:
                folder.rmdir()
        top.rmdir()


def _moved(path: Path, top: Path, numbers: Iterator[int]) -> Path:
    for number in numbers:
        target = top / f".removed-{number}"
        if not os.path.lexists(target):
            path.rename(target)
            return target
    raise AssertionError("unreachable: the loop has no end")


def _open_to_owner(folder: Path) -> None:
    mode = stat.S_IMODE(folder.lstat().st_mode)
    if mode & 0o700 != 0o700:
        with suppress(OSError):
            folder.chmod(mode | 0o700)
