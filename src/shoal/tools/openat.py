"""Open directories below a root. Uses Linux's openat2 if it works, and otherwise opens one path component at a time.

`real_parts` follows links and rejects a path that leads out of the root. `directory` opens the real path without
following any link.
"""

import errno
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_OPENAT2 = 437  # the same number on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_AT_FDCWD = -100
_TRIES = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def closing_file(file: int) -> Generator[int]:
    try:
        yield file
    finally:
        os.close(file)


class WalkingOpener:
    """Opens directories on every system, one path component at a time and without following links."""

    def real_parts(self, root: Path, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Follow links and return the names of the real path below the root. Names that do not exist yet are kept.

        Raises OSError (EXDEV) if the path leads out of the root.
        """
        base = os.path.realpath(root)
        return _below(os.path.realpath(os.path.join(base, *parts)), base)

    @contextmanager
    def directory(self, root: Path, parts: tuple[str, ...], *, make: bool = False) -> Generator[int]:
        """Yield the descriptor of a directory below the root. `make` creates missing directories.

        Raises OSError, with ENOTDIR or ELOOP for a link.
        """
        with closing_file(walked(root, parts, make=True) if make else self._open(root, parts)) as folder:
            yield folder

    def _open(self, root: Path, parts: tuple[str, ...]) -> int:
        return walked(root, parts)


class KernelOpener(WalkingOpener):
    """Resolves and opens a path in one system call (openat2, since Linux 5.6)."""

    def real_parts(self, root: Path, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Let the kernel follow links below the root. An absolute link counts as leading out of the root. Raises
        OSError, with ELOOP for a loop of links.
        """
        with closing_file(os.open(root, _DIRECTORY)) as folder:
            base = os.readlink(f"/proc/self/fd/{folder}")
            for count in range(len(parts), 0, -1):
                try:
                    real = _name_of(folder, "/".join(parts[:count]))
                except FileNotFoundError:
                    continue
                return (*_below(real, base), *parts[count:])
            return parts

    def _open(self, root: Path, parts: tuple[str, ...]) -> int:
        if not parts:
            return os.open(root, _DIRECTORY)
        with closing_file(os.open(root, _DIRECTORY)) as folder:
            return openat2(folder, "/".join(parts), _DIRECTORY, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)


def walked(root: Path, parts: tuple[str, ...], *, make: bool = False) -> int:
    folder = os.open(root, _DIRECTORY)
    for name in parts:
        try:
            try:
                below = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            except FileNotFoundError:
                if not make:
                    raise
                below = _made(folder, name)
        finally:
            os.close(folder)
        folder = below
    return folder


def _made(folder: int, name: str) -> int:
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    made = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        give_to(os.fstat(folder), made)
    except OSError:
        os.close(made)
        raise
    return made


def _name_of(folder: int, path: str) -> str:
    for _ in range(_TRIES):
        with closing_file(openat2(folder, path, os.O_PATH | os.O_CLOEXEC, _BENEATH | _NO_MAGICLINKS)) as descriptor:
            name = os.readlink(f"/proc/self/fd/{descriptor}")  # the name of a replaced file ends with " (deleted)"
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(name, follow_symlinks=False), os.fstat(descriptor)):
                    return name
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _below(real: str, base: str) -> tuple[str, ...]:
    if not Path(real).is_relative_to(base):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return Path(real).relative_to(base).parts


@cache
def best_opener() -> WalkingOpener:
    if sys.platform == "linux" and os.path.exists("/proc/self/fd"):
        with suppress(OSError):
            os.close(openat2(_AT_FDCWD, ".", os.O_PATH | os.O_CLOEXEC, 0))
            return KernelOpener()
    return WalkingOpener()


def openat2(folder: int, path: str, flags: int, resolve: int) -> int:
    """Open `path` relative to `folder` with the given RESOLVE_ flags (man 2 openat2). Raises OSError."""
    import ctypes

    how = (ctypes.c_uint64 * 3)(flags, 0, resolve)
    code = 0
    for _ in range(_TRIES):
        result = _syscall()(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if result >= 0:
            return int(result)
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):  # EAGAIN means a concurrent rename
            break
    raise OSError(code, os.strerror(code))


@cache
def _syscall():
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    return call


def give_to(owner: os.stat_result, file: int) -> None:
    """Set a file's owner to `owner` if running as root. Files in a workspace then belong to the workspace's user."""
    if os.geteuid() == 0:
        os.fchown(file, owner.st_uid, owner.st_gid)
