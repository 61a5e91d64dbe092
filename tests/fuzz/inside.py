"""Runs commands in the jail one after another, each in the same workspace. `tests.fuzz.jail` starts this program under
strace.

It reads one JSON list of commands per line. Before each command and after the last one, it removes a nonexistent
file whose name marks the start of a command in the trace. After each command, it kills the command's processes and
reverts the changes below `/workspace` and in `/tmp`, which inotify reports. After each list, it also compares all
files, to find writes through mapped memory. It imports nothing from Shoal, because the jail does not contain Shoal.
"""

import ctypes
import json
import os
import shutil
import signal
import struct
import sys
from collections.abc import Sequence

MARK = "/=/"
WORKSPACE = "/workspace"
TEMPLATE = "/jail/template"
TEMPORARY = "/tmp"
OUTPUT = "/tmp/output"
RUN_SECONDS_MAX = 1.0
_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)
_CHANGES = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""inotify events: modified, attributes changed, moved from and to, created, deleted, itself deleted or moved."""
_NO_LINKS = 0x02000000 | 0x01000000
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_EVENT = struct.Struct("iIII")

Look = tuple[int, ...]


def _mark(name: str) -> None:
    try:
        os.unlink(MARK + name)
    except OSError:
        return


def _look(path: str) -> Look:
    try:
        seen = os.lstat(path)
    except OSError:
        return ()
    return (seen.st_ino, seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


class _Watch:
    """Records changes in folders between calls. The changes are unknown if the kernel has no inotify watches left."""

    def __init__(self) -> None:
        self._file = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._knows = self._file >= 0
        self._folders: dict[int, str] = {}

    def add(self, folder: str) -> None:
        watch = _LIBC.inotify_add_watch(self._file, os.fsencode(folder), _CHANGES | _NO_LINKS)
        self._knows = self._knows and watch >= 0
        self._folders[watch] = folder

    def changed(self) -> set[str] | None:
        """Return the folders and paths that changed since the last call, or None if the kernel lost track of them."""
        paths = set[str]()
        while self._knows:
            try:
                events = os.read(self._file, 1 << 16)
            except BlockingIOError:
                return paths
            at = 0
            while at < len(events):
                watch, kind, _, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size + length
                if kind & _OVERFLOW:
                    return None
                folder = self._folders.get(watch)
                if folder is not None and not kind & _IGNORED:
                    name = os.fsdecode(events[at - length : at].rstrip(b"\0"))
                    paths |= {folder, f"{folder}/{name}"} if name else {folder}
        return None


class _Workspace:
    """The workspace and the original metadata of each of its files."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        for folder, folders, files in os.walk(TEMPLATE):
            self._names[WORKSPACE + folder.removeprefix(TEMPLATE)] = [*folders, *files]
        self._watch = _Watch()
        self._paths = [WORKSPACE] + [f"{folder}/{name}" for folder, names in self._names.items() for name in names]
        self._looks: dict[str, Look] = {}
        for path in self._paths:
            if path != WORKSPACE:
                self._copy(path)
        self._watch.add(WORKSPACE)
        self._watch.add(TEMPORARY)
        self._watch.changed()
        self._looks = {path: _look(path) for path in self._paths}

    def restore(self, *, thoroughly: bool = False) -> None:
        """Revert all changes that the kernel reported.

        If a path is new, it may be a hard link to a known file. In that case, or if `thoroughly`, compare the
        metadata of all files.
        """
        changed = self._watch.changed()
        if changed is not None:
            changed -= {TEMPORARY, OUTPUT}
        if not thoroughly and not changed and changed is not None:
            return
        _mark("restore")
        for name in os.listdir(TEMPORARY):
            if f"{TEMPORARY}/{name}" != OUTPUT:
                _remove(f"{TEMPORARY}/{name}")
        if thoroughly or changed is None or not self._looks.keys() >= changed:
            changed = {path for path, look in self._looks.items() if _look(path) != look}
            thoroughly = bool(changed)
        for path in sorted(changed):
            self._put_back(path)
        self._watch.changed()
        self._looks |= {path: _look(path) for path in (self._paths if thoroughly else changed)}

    def _put_back(self, path: str) -> None:
        if path in self._names and os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o755)
            for name in set(os.listdir(path)) - set(self._names[path]):
                _remove(f"{path}/{name}")
            for name in self._names[path]:
                if not os.path.lexists(f"{path}/{name}"):
                    self._copy(f"{path}/{name}")
        elif path != WORKSPACE:
            _remove(path)
            self._copy(path)

    def _copy(self, path: str) -> None:
        source = TEMPLATE + path.removeprefix(WORKSPACE)
        if os.path.isdir(source) and not os.path.islink(source):
            os.makedirs(path, exist_ok=True)
            self._watch.add(path)
            for name in self._names[path]:
                self._copy(f"{path}/{name}")
        elif not os.path.lexists(path):
            shutil.copy2(source, path, follow_symlinks=False)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o755)
        for name in os.listdir(path):
            _remove(f"{path}/{name}")
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


class _Late(Exception):
    pass


def _ring(_number: int, _frame: object) -> None:
    raise _Late


def _run(command: str, keep: Sequence[int], empty: int, output: int) -> None:
    signal.setitimer(signal.ITIMER_REAL, RUN_SECONDS_MAX)
    try:
        os.posix_spawn(
            "/bin/bash",
            ["bash", "-c", command],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, empty, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGALRM],
        )
        while True:
            os.wait()
    except ChildProcessError:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return
    except _Late:
        _mark("late")
    while left := _processes() - set(keep):
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, os.WNOHANG)
            except OSError:
                continue
        os.sched_yield()


def main() -> None:
    _LIBC.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGALRM, _ring)
    keep = sorted(_processes())
    empty, output = os.open("/dev/null", os.O_RDONLY), os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    workspace = _Workspace()
    os.chdir(WORKSPACE)
    # The C locale, and the shell variable that saves bash a user lookup, reduce the number of opened files.
    os.environ.update(X="factor", LC_ALL="C", SHELL="/bin/bash")
    for line in sys.stdin:
        for number, command in enumerate(json.loads(line)):
            _mark(str(number))
            _run(command, keep, empty, output)
            os.ftruncate(output, 0)
            workspace.restore()
        workspace.restore(thoroughly=True)
        _mark("end")


if __name__ == "__main__":
    main()
