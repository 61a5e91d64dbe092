"""Runs commands for real, with bash and this machine's programs, and records their effects.

The jail is the product's own sandbox with the environment of the `bash` tool, but without the system call filter,
which would forbid tracing. One strace and one small program (`tests.fuzz.inside`) run inside for the life of the
jail and execute one command after another, because creating a sandbox and starting strace takes longer than most
commands. The trace shows each process and its effects.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from posixpath import join, normpath

import msgspec

from shoal.kernel.ports import Command, Mount
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.limits import CommandLimits
from tests.fuzz import inside
from tests.fuzz.target import Missing

BATCH_SECONDS_MAX = 300.0
_TRACED = (
    "execve,execveat,fork,vfork,clone,clone3,chdir,fchdir,connect,open,openat,openat2,creat,truncate,unlink,unlinkat,"
    "rename,renameat,renameat2,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,fchmodat,"
    "setxattr,lsetxattr"
)
_CALL = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?:\((.*?)| resumed>(.*?))(?: <unfinished \.\.\.>|\) += (\S+)(.*))")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FOLDER = re.compile(r"(?:AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>")
_WRITING = re.compile(r"O_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND)")
_HERE = ', ".", O_'
"""The working directory, which find opens in order to return to it."""
_FORKS = frozenset({"fork", "vfork", "clone", "clone3"})


class Execution(msgspec.Struct, frozen=True):
    """A program that ran.

    - callers: the arguments of the programs that its process and the process's ancestors ran before, in order.
    """

    path: str
    argv: tuple[str, ...]
    callers: tuple[tuple[str, ...], ...] = ()


class Ran(msgspec.Struct):
    """The effects of one command. Paths are absolute paths in the sandbox.

    - read, written: each path, with the arguments of the process that accessed it. `written` includes removed and
      renamed paths.
    - is_late: whether the command was killed because it took too long.
    """

    executed: list[Execution] = msgspec.field(default_factory=list)
    read: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    written: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    connected: list[str] = msgspec.field(default_factory=list)
    is_late: bool = False


class JailEnded(Exception):
    """The jail's process ended while it ran a batch."""


class Jail:
    """Runs batches of commands. Create it with `jail`."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._lines = self._trace()

    def run(self, commands: Sequence[str]) -> list[Ran]:
        """Run the commands, each from the same initial state, and return their effects. Raises JailEnded."""
        assert self._process.stdin is not None
        watchdog = threading.Timer(BATCH_SECONDS_MAX, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps(commands).encode() + b"\n")
            self._process.stdin.flush()
            parts = list(self._parts(len(commands)))
            return [_Teller(_calls(lines)).ran for lines in parts]
        except BrokenPipeError as error:
            raise JailEnded from error
        finally:
            watchdog.cancel()

    def _parts(self, count: int) -> Iterator[list[str]]:
        wanted = 0
        current: list[str] | None = None
        for line in self._lines:
            mark = _mark_of(line)
            if mark in (str(wanted), "restore", "end"):
                if current is not None:
                    yield current
                current = None
            if mark == "end":
                assert wanted == count
                return
            if mark == str(wanted):
                current = []
                wanted += 1
            elif current is not None:
                current.append(line)
        raise JailEnded

    def _trace(self) -> Iterator[str]:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            yield line.decode("ascii", errors="replace").rstrip("\n")


def _mark_of(line: str) -> str:
    at = line.find(f'unlink("{inside.MARK}')
    return line[at + 8 + len(inside.MARK) :].split('"', 1)[0] if at >= 0 else ""


class _Call(msgspec.Struct):
    process: str
    name: str
    arguments: str
    result: str = ""
    detail: str = ""


def _calls(lines: Sequence[str]) -> list[_Call]:
    calls: list[_Call] = []
    open_calls: dict[str, _Call] = {}
    for line in lines:
        match = _CALL.fullmatch(line)
        if match is None:
            continue
        process, name, begin, rest, result, detail = match.groups()
        if begin is None:
            call = open_calls.pop(process, None)
            if call is not None:
                call.arguments += rest
                call.result, call.detail = result or "", detail or ""
            continue
        calls.append(_Call(process, name, begin, result or "", detail or ""))
        if result is None:
            open_calls[process] = calls[-1]
    return calls


class _Teller:
    """Follows the processes of one command, with the current program and directory of each."""

    def __init__(self, calls: Sequence[_Call]) -> None:
        forks = [call for call in calls if call.name in _FORKS]
        self._parents = {call.result: call.process for call in forks if call.result.isdigit()}
        self._runner = forks[0].process if forks else ""
        self._images: dict[str, list[tuple[str, ...]]] = {}
        self._folders: dict[str, str] = {}
        self.ran = Ran()
        for call in calls:
            if call.process == self._runner:
                self.ran.is_late = self.ran.is_late or f"{inside.MARK}late" in call.arguments
            elif call.result in ("0", "") or call.result[:1].isdigit() or call.name == "connect":
                self._tell(call, [_text(piece) for piece in _STRING.findall(call.arguments)])

    def _above(self, process: str) -> Iterator[str]:
        while process and process != self._runner:
            yield process
            process = self._parents.get(process, "")

    def _image(self, process: str) -> tuple[str, ...]:
        return next((self._images[one][-1] for one in self._above(process) if one in self._images), ())

    def _folder(self, process: str) -> str:
        return next((self._folders[one] for one in self._above(process) if one in self._folders), inside.WORKSPACE)

    def _tell(self, call: _Call, strings: list[str]) -> None:
        at = self._folder(call.process)
        match call.name:
            case "execve" | "execveat" if call.result == "0":
                argv = tuple(strings[1:])
                callers = [
                    argv for process in self._above(call.process) for argv in reversed(self._images.get(process, []))
                ]
                path = normpath(join(at, strings[0]))
                self.ran.executed.append(Execution(path, argv, tuple(reversed(callers))))
                self._images.setdefault(call.process, []).append(argv)
            case "chdir":
                self._folders[call.process] = normpath(join(at, strings[0]))
            case "fchdir":
                self._folders[call.process] = _text(call.arguments.partition("<")[2].rpartition(">")[0])
            case "connect":
                self.ran.connected.append(call.arguments)
            case "open" | "openat" | "openat2" | "creat":
                self._opened(call, normpath(join(at, strings[0])))
            case name if name not in _FORKS and not name.startswith("exec"):
                bases = _FOLDER.findall(call.arguments) or [at]
                for number, path in enumerate(strings[-1:] if name.startswith("symlink") else strings):
                    base = _text(bases[min(number, len(bases) - 1)])
                    self.ran.written[normpath(join(base, path))] = self._image(call.process)
            case _:
                pass

    def _opened(self, call: _Call, path: str) -> None:
        """Record an opened file, by the kernel's name for it if strace shows that name."""
        path = _text(call.result.partition("<")[2].rpartition(">")[0]) or path
        is_written = call.name == "creat" or _WRITING.search(call.arguments.rpartition('"')[2])
        if is_written:
            self.ran.written[path] = self._image(call.process)
        is_folder = "O_DIRECTORY" in call.arguments or _HERE in call.arguments
        if (not is_written or "O_RDWR" in call.arguments) and not is_folder:
            self.ran.read.setdefault(path, self._image(call.process))


def _without_filter(argv: tuple[str, ...]) -> tuple[str, ...]:
    if "--seccomp" not in argv:
        return argv
    at = argv.index("--seccomp")
    return argv[:at] + argv[at + 2 :]


def _text(quoted: str) -> str:
    if "\\" not in quoted:
        return quoted
    return quoted.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")


@contextmanager
def jail(template: Path, folder: Path, environment: Mapping[str, str], processor: int | None = None) -> Generator[Jail]:
    """Yield a jail whose workspace starts as a copy of `template`. `folder` must be empty.

    The jail uses a single processor, because strace and the traced processes take turns. Raises Missing if this
    machine lacks a required program.
    """
    for program in ("bwrap", "strace", "bash"):
        if shutil.which(program) is None:
            raise Missing(f"{program} is not installed")
    (folder / "workspace").mkdir()
    interpreter = Path(sys.executable).resolve()
    mounts = (
        Mount(folder / "workspace", inside.WORKSPACE, writable=True),
        Mount(template, inside.TEMPLATE),
        Mount(Path(inside.__file__).parent, "/jail/program"),
        Mount(Path(sys.base_prefix), sys.base_prefix),
    )
    text = (
        f"exec strace -o /dev/stderr -f --seccomp-bpf -qq -y -s 4096 -e signal=none -e trace={_TRACED} "
        f"{interpreter} -I -S -B /jail/program/inside.py"
    )
    command = Command(text, folder / "workspace", mounts, env=tuple(environment.items()))
    limits = CommandLimits(cpu_seconds_max=0, processes_max=0, file_bytes_max=10_000_000)
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        sandbox = AsyncExitStack()
        argv = runner.run(sandbox.enter_async_context(BubblewrapSandbox(limits).enclosed(command)))
        stack.callback(lambda: runner.run(sandbox.aclose()))
        argv = _without_filter(argv)
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/"
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        if processor is not None:
            os.sched_setaffinity(process.pid, {processor})
        yield Jail(process)
