"""Run one process with limited output and time, and kill all of its children at the end.

How the end of a command is detected, usually without reading the process table:

- When the first process ends, its pidfd becomes readable. The process is not reaped yet, so its id is not reused.
- All processes inherit the write end of an unused pipe. When the read end reports end-of-file, all have ended.
- If some remain after a short wait (for `> >(tee log)` and similar), they are found in the process table and killed.
- On timeout or cancellation, the session is killed. Then the table is searched until no process is left.

The child sees only the given environment and its mark, never this process's environment. If this process dies, the next
Shoal process finds its commands by their marks.

A process belongs to a command if it meets one of these conditions:

- It is the first process or a descendant of it.
- It is in the session or the process group of the command.
- The command's mark is in its environment, or is the name of one of its open files.
- It has the inherited pipe open.

The marks and the pipe survive `setsid` and a double fork. On the host, a hostile program can remove all of them. In an
isolating sandbox, it cannot leave its process namespace.
"""

import asyncio
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.kernel.agents import OUTPUT_BYTES_PER_SECOND, Watch
from shoal.kernel.errors import SandboxError
from shoal.kernel.files import to_the_end
from shoal.kernel.ports import CommandResult, SeeOutput

LINGER_SECONDS = 0.25
READ_BYTES = 65_536
PID_DIGITS_MAX = 10
PAUSE_SECONDS = 0.1
"""Seconds for which reading pauses if a watched command writes too fast."""
MARK = "SHOAL_COMMAND"
"""Environment variable that identifies a command's processes. The name of the in-memory file that also identifies them
begins with the same text.
"""
ROUNDS_MAX = 200
ROUND_SECONDS = 0.005
_DEAD = ("Z", "X")
_WRITE_ONLY = 0o300  # mode that /proc shows for a write-only descriptor. This process has the read end
_numbers = itertools.count(1)

# ---- running a process ----


class Spawn(msgspec.Struct, frozen=True):
    """A process to start. It must not outlive the `starter` thread.

    cwd: working directory on the host.
    env: complete environment.
    files: open files to pass on.
    starter: thread that starts the process. By default, this is the caller's thread.
    """

    argv: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...]
    timeout_seconds: float
    output_bytes_max: int
    watch: Watch | None = None
    files: tuple[int, ...] = ()
    starter: Executor | None = None
    see: SeeOutput | None = None


async def run_process(spawn: Spawn) -> CommandResult:
    """Run a process to its end. On cancellation or timeout, all its processes are killed before this returns.

    The exit code is 128 + N after signal N, or None after a timeout. Raises SandboxError if the process cannot start.
    """
    running = _RunningProcess(spawn)
    timed_out = False
    limit = asyncio.timeout(spawn.timeout_seconds)
    try:
        async with limit:
            await running.finished()
    except TimeoutError:
        if not limit.expired():
            raise
        timed_out = True
    finally:
        await running.close()
    return running.ended(timed_out)


class _OutputPipe:
    """A pipe from the child. Stores the first `output_bytes_max` bytes, or passes all output to a watch."""

    def __init__(self, number: int, fd: int, spawn: Spawn, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        self.fd = fd
        self.chunks: list[bytes] = []
        self.cut = False
        self.open = True
        self._room = spawn.output_bytes_max
        self._loop = loop
        self._watch = spawn.watch
        self._see = spawn.see
        self._budget = 0.0
        os.set_blocking(fd, False)

    def take(self) -> bool:
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.stop()
            return False
        if self._watch is not None:
            self._watch.output(data)
            return True
        if self._see is not None:
            self._see(self._number, data)
        if len(data) > self._room:
            self.cut = True
            data = data[: self._room]
        if data:
            self._room -= len(data)
            self.chunks.append(data)
        return True

    def rest(self, take: Callable[["_OutputPipe"], None]) -> None:
        now = self._loop.time()
        self._budget = max(self._budget, now) + READ_BYTES / OUTPUT_BYTES_PER_SECOND
        if self._watch is not None and self.open and self._budget - now > PAUSE_SECONDS:
            self._loop.remove_reader(self.fd)

            def resume() -> None:
                if self.open:
                    self._loop.add_reader(self.fd, take, self)

            self._loop.call_later(PAUSE_SECONDS, resume)

    def stop(self) -> None:
        if self.open:
            self.open = False
            self._loop.remove_reader(self.fd)


class _RunningProcess:
    """A started process and its pipes. `close` kills the process and closes the pipes."""

    def __init__(self, spawn: Spawn) -> None:
        self._loop = asyncio.get_running_loop()
        self._mark = new_mark()
        self._quiet: asyncio.Future[None] = self._loop.create_future()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        with ExitStack() as stack:
            try:
                with ExitStack() as child_ends:
                    write_ends: list[int] = []
                    self._streams: list[_OutputPipe] = []
                    for number in range(1, 4):
                        read_end, write_end = os.pipe()
                        stack.callback(os.close, read_end)
                        child_ends.callback(os.close, write_end)
                        write_ends.append(write_end)
                        self._streams.append(_OutputPipe(number, read_end, spawn, self._loop))
                    self._out, self._err, self._live = self._streams
                    if (marking := marking_file(self._mark)) is not None:
                        child_ends.callback(os.close, marking)
                        write_ends.append(marking)
                    start = partial(
                        subprocess.Popen[bytes],
                        spawn.argv,
                        cwd=spawn.cwd,
                        env={**dict(spawn.env), MARK: self._mark},
                        stdin=subprocess.DEVNULL,
                        stdout=write_ends[0],
                        stderr=write_ends[1],
                        pass_fds=(*write_ends[2:], *spawn.files),
                        start_new_session=True,
                    )
                    self._process = start() if spawn.starter is None else spawn.starter.submit(start).result()
                if not hasattr(os, "pidfd_open"):
                    self._loop.run_in_executor(None, self._process.wait).add_done_callback(lambda _: self._on_exit())
                else:
                    try:
                        pidfd = os.pidfd_open(self._process.pid)
                        stack.callback(os.close, pidfd)
                        stack.callback(self._loop.remove_reader, pidfd)
                        self._loop.add_reader(pidfd, self._on_exit, pidfd)
                    except OSError:
                        os.killpg(self._process.pid, signal.SIGKILL)
                        self._process.wait()
                        raise
            except (OSError, ValueError) as error:
                raise SandboxError(f"Failed to start {spawn.argv[0]}: {error}.") from error
            self._closing = stack.pop_all()
        if spawn.watch is not None:
            spawn.watch.started(self._process.pid)
        for stream in self._streams:
            self._loop.add_reader(stream.fd, self._take, stream)

    def _on_exit(self, pidfd: int = -1) -> None:
        """Stop watching the descriptor of the first process, which stays readable and would keep the loop spinning."""
        if pidfd >= 0:
            self._loop.remove_reader(pidfd)
        if not self._exited.done():
            self._exited.set_result(None)

    def _take(self, stream: _OutputPipe) -> None:
        if stream.take():
            stream.rest(self._take)
        if not self._anybody_left() and not self._quiet.done():
            self._quiet.set_result(None)

    def _anybody_left(self) -> bool:
        return any(stream.open for stream in self._streams)

    async def finished(self) -> None:
        """Wait until the first process has ended, and up to LINGER_SECONDS longer for its children to finish
        writing.
        """
        await asyncio.shield(self._exited)
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await asyncio.shield(self._quiet)

    async def close(self) -> None:
        try:
            if self._anybody_left() or not self._exited.done():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                await to_the_end(self._loop.run_in_executor(None, self._kill))
        finally:
            for stream in self._streams:
                while stream.open and stream.take():
                    pass
                stream.stop()
            self._process.poll()
            self._closing.close()

    def _kill(self) -> None:
        kill_tree(self._process.pid, self._mark, os.fstat(self._live.fd).st_ino)
        self._process.wait()

    def ended(self, timed_out: bool) -> CommandResult:
        code = self._process.returncode
        return CommandResult(
            stdout=b"".join(self._out.chunks),
            stderr=b"".join(self._err.chunks),
            exit_code=None if timed_out else (128 - code if code < 0 else code),
            timed_out=timed_out,
            stdout_cut=self._out.cut,
            stderr_cut=self._err.cut,
        )


# ---- finding and killing processes ----


class ProcessEntry(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    state: str


def kill_tree(root: int, mark: str, pipe: int) -> None:
    """Kill every process of a command. `root` is the first process, and `pipe` is the inode of the inherited pipe.

    Do not wait for `root` before this call, because its process id could be reused. Blocks for a few milliseconds,
    at most about ROUNDS_MAX times ROUND_SECONDS.
    """
    me = os.getpid()
    for _ in range(ROUNDS_MAX):
        table, members, known = list(_table()), {root}, {root}
        while known:
            members = _descendants(members | known, table)
            others = [entry.pid for entry in table if entry.pid not in members | {me} and entry.state not in _DEAD]
            known = {pid for pid in others if mark in _marks(pid)}
            known |= {pid for pid in others if f"pipe:[{pipe}]" in _files(pid, only_written=True)}
        victims = members & _living(table)
        if not victims:
            return
        _kill(victims)
        time.sleep(ROUND_SECONDS)


def kill_marked(is_wanted: Callable[[str], bool]) -> int:
    """Kill all processes that have a wanted mark, and their descendants. Returns the number of killed processes.

    Never kills this process, and ignores marks that this process also has. Reads the process table at least once.
    """
    killed, me = set[int](), os.getpid()
    spared = _marks(me)
    for _ in range(ROUNDS_MAX):
        table = list(_table())
        marked = {pid for pid in _living(table) - {me} if any(map(is_wanted, _marks(pid) - spared))}
        victims = _descendants(marked, table) & _living(table) - {me}
        if not victims:
            break
        _kill(victims)
        killed |= victims
        time.sleep(ROUND_SECONDS)
    return len(killed)


def marking_file(mark: str) -> int | None:
    """Create an empty in-memory file, named after the mark, which the processes of a command inherit.

    The file remains even if the processes clear their environment. Returns None if the system has no in-memory files.
    """
    if not hasattr(os, "memfd_create"):
        return None
    import fcntl

    file = os.memfd_create(f"{MARK}={mark}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    return file


def _descendants(roots: set[int], table: Sequence[ProcessEntry]) -> set[int]:
    """Return these processes, their descendants, and the members of each session or process group that one of them
    leads.
    """
    members = set(roots)
    while more := {entry.pid for entry in table if {entry.parent, entry.group, entry.session} & members} - members:
        members |= more
    return members


def _living(table: Sequence[ProcessEntry]) -> set[int]:
    return {entry.pid for entry in table if entry.state not in _DEAD}


def _kill(pids: Iterable[int]) -> None:
    """Stop all processes before killing any of them. Otherwise, a process that waits for another could continue when
    the other one is killed.
    """
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _table() -> Iterator[ProcessEntry]:
    if not Path("/proc/self/stat").exists():
        import psutil

        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                state = "Z" if process.status() == psutil.STATUS_ZOMBIE else "R"
                group, session = os.getpgid(process.pid), os.getsid(process.pid)
                yield ProcessEntry(process.pid, process.ppid(), group, session, state)
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and (line := _read(f"/proc/{name}/stat")):
            fields = line[line.rindex(b")") + 2 :].split(maxsplit=4)
            yield ProcessEntry(int(name), int(fields[1]), int(fields[2]), int(fields[3]), fields[0].decode())


def _marks(pid: int) -> set[str]:
    if not os.path.exists("/proc/self/environ"):
        import psutil

        try:
            return {psutil.Process(pid).environ()[MARK]}
        except (psutil.Error, OSError, KeyError):
            return set()
    name = f"{MARK}="
    variable, file_name = name.encode(), f"/memfd:{name}"
    words = _read(f"/proc/{pid}/environ").split(b"\0")
    marks = {os.fsdecode(word.removeprefix(variable)) for word in words if word.startswith(variable)}
    files = [file for file in _files(pid) if file.startswith(file_name)]
    return marks | {file.removeprefix(file_name).removesuffix(" (deleted)") for file in files}


def _files(pid: int, *, only_written: bool = False) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            if not only_written or os.lstat(f"{folder}/{name}").st_mode & 0o700 == _WRITE_ONLY:
                yield os.readlink(f"{folder}/{name}")
    except OSError:
        return  # The process has ended or belongs to another user, or the system has no /proc.


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""  # The process has ended, or belongs to another user.


# ---- identifying processes ----


def identity_of(pid: int) -> str:
    """Return `PID START BOOT`, which identifies a running process even if its id is reused. Returns an empty string if
    the process does not exist.

    `BOOT` is `-` if `START` is not relative to the boot.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
        import psutil

        try:
            process = psutil.Process(pid)
            return "" if process.status() == psutil.STATUS_ZOMBIE else f"{pid} {process.create_time():.3f} -"
        except psutil.Error:
            return ""
    return "" if fields[0] in (b"Z", b"X") else f"{pid} {fields[19].decode()} {boot}"


def is_alive(identity: str) -> bool:
    pid = identity.partition(" ")[0]  # The identity may be from a mark, which any program can set.
    return pid.isascii() and pid.isdigit() and len(pid) <= PID_DIGITS_MAX and identity_of(int(pid)) == identity


def kill_leftovers(identity: str) -> None:
    """Kill the remaining processes of a command whose server died: its session, and all processes with a dead server's
    mark.

    Blocks while reading the process table once.
    """
    if is_alive(identity):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(int(identity.partition(" ")[0]), signal.SIGKILL)
    kill_orphans()


def new_mark() -> str:
    """Return a new mark for a command of this process: `NAMESPACE PID START BOOT/NUMBER`."""
    return f"{_namespace()} {_own_identity(os.getpid())}/{next(_numbers)}"


def is_orphaned(mark: str) -> bool:
    """Return True if the process that started a command with this mark has died.

    Returns False for other process namespaces, whose ids are meaningless here.
    """
    namespace, _, identity = mark.partition("/")[0].partition(" ")
    return bool(identity) and namespace == _namespace() and not is_alive(identity)


def kill_orphans() -> int:
    """Kill all processes that commands of dead servers left behind. Returns the number of killed processes.

    Blocks while reading the process table.
    """
    return kill_marked(is_orphaned)


_own_identity = cache(identity_of)  # cached by process id, because a fork has a different identity


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-"
