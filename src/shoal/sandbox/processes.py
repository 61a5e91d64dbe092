"""Runs one process with bounded output and a time limit, and leaves nothing of it behind.

How the end of a command is known, without looking through the process table in the usual case:
  the first process ends   its pidfd becomes readable; it is not waited for yet, so its number stays ours
  the rest ends            all its processes inherit the write end of a pipe that carries nothing; when the read end
                           says end-of-file nobody is left, and the command is done
  somebody is left         a short wait (for `> >(tee log)` and its like), then the table is searched and all are killed
  time is up, cancelled    the session is killed, then the table is searched until nobody is left

The child sees only the environment it is given and its mark: never this process's. Where this process dies, the mark
is what the next one finds its commands by.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

import msgspec

from shoal.domain.errors import SandboxError
from shoal.domain.ports import CommandResult
from shoal.domain.processes import OUTPUT_BYTES_PER_SECOND, Watch
from shoal.sandbox.found import new_mark
from shoal.sandbox.tree import MARK, Tree, kill_tree, marking_file

LINGER_SECONDS = 0.25
"""How long children may write after the first process has ended, before they are killed."""

READ_BYTES = 65_536
PAUSE_SECONDS = 0.1
"""How long the output of a watched command is left unread when it comes too fast."""
_Result = TypeVar("_Result")


class Spawn(msgspec.Struct, frozen=True):
    """What to start: the argument vector, its working directory on the host, all of its environment, the numbers of
    open files that it gets besides, and the thread that starts it, if not the caller's. It may not outlive that."""

    argv: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...]
    timeout_seconds: float
    output_bytes_max: int
    watch: Watch | None = None
    files: tuple[int, ...] = ()
    starter: Executor | None = None


async def run_process(spawn: Spawn) -> CommandResult:
    """Run it to its end. Cancelling, like running out of time, kills all that it started before this returns.

    The exit code is 128 + N after signal N, and None when it was killed because time was up.
    Raises SandboxError when it cannot be started.
    """
    running = _Running(spawn)
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


class _Stream:
    """One pipe from the child: keeps the first `bytes_max` bytes and swallows the rest, or hands all to a watch."""

    __slots__ = ("_budget", "_loop", "_room", "_watch", "chunks", "cut", "fd", "open")

    def __init__(self, fd: int, bytes_max: int, loop: asyncio.AbstractEventLoop, watch: Watch | None = None) -> None:
        self.fd = fd
        self.chunks: list[bytes] = []
        self.cut = False
        self.open = True
        self._room = bytes_max
        self._loop = loop
        self._watch = watch
        self._budget = 0.0
        os.set_blocking(fd, False)

    def take(self) -> bool:
        """Read once; returns whether there was anything. At the end of the stream `open` becomes false."""
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
        if len(data) > self._room:
            self.cut = True
            data = data[: self._room]
        if data:
            self._room -= len(data)
            self.chunks.append(data)
        return True

    def rest(self, take: Callable[["_Stream"], None]) -> None:
        """After a read: when a watched command writes too fast, let it wait for a moment, then go on with `take`."""
        now = self._loop.time()
        self._budget = max(self._budget, now) + READ_BYTES / OUTPUT_BYTES_PER_SECOND
        if self._watch is not None and self.open and self._budget - now > PAUSE_SECONDS:
            self._loop.remove_reader(self.fd)
            self._loop.call_later(PAUSE_SECONDS, self._resume, take)

    def _resume(self, take: Callable[["_Stream"], None]) -> None:
        if self.open:
            self._loop.add_reader(self.fd, take, self)

    def stop(self) -> None:
        """Read no more."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self.fd)


class _Running:
    """A started process, its pipes, and the promise to leave nothing of it."""

    def __init__(self, spawn: Spawn) -> None:
        self._loop = asyncio.get_running_loop()
        self._mark = new_mark()
        self._quiet: asyncio.Future[None] = self._loop.create_future()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        with ExitStack() as stack:
            try:
                self._process = self._start(spawn, stack)
            except (OSError, ValueError) as error:
                raise SandboxError(f"{spawn.argv[0]} could not be started: {error}.") from error
            self._closing = stack.pop_all()
        if spawn.watch is not None:
            spawn.watch.started(self._process.pid)
        for stream in self._streams:
            self._loop.add_reader(stream.fd, self._take, stream)

    def _start(self, spawn: Spawn, stack: ExitStack) -> subprocess.Popen[bytes]:
        with ExitStack() as child_ends:
            write_ends: list[int] = []
            self._streams: list[_Stream] = []
            for _ in range(3):
                read_end, write_end = os.pipe()
                stack.callback(os.close, read_end)
                child_ends.callback(os.close, write_end)
                write_ends.append(write_end)
                self._streams.append(_Stream(read_end, spawn.output_bytes_max, self._loop, spawn.watch))
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
            process = start() if spawn.starter is None else spawn.starter.submit(start).result()
        try:
            self._watch_exit(process, stack)
        except OSError:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return process

    def _watch_exit(self, process: subprocess.Popen[bytes], stack: ExitStack) -> None:
        if not hasattr(os, "pidfd_open"):
            waiting = self._loop.run_in_executor(None, process.wait)
            waiting.add_done_callback(lambda _: self._on_exit())
            return
        pidfd = os.pidfd_open(process.pid)
        stack.callback(os.close, pidfd)
        stack.callback(self._loop.remove_reader, pidfd)
        self._loop.add_reader(pidfd, self._on_exit, pidfd)

    def _on_exit(self, pidfd: int = -1) -> None:
        """The first process has ended. Its descriptor stays readable from then on: watched further, the loop would spin
        until the last pipe is closed."""
        if pidfd >= 0:
            self._loop.remove_reader(pidfd)
        if not self._exited.done():
            self._exited.set_result(None)

    def _take(self, stream: _Stream) -> None:
        if stream.take():
            stream.rest(self._take)
        if not self._anybody_left() and not self._quiet.done():
            self._quiet.set_result(None)

    def _anybody_left(self) -> bool:
        return any(stream.open for stream in self._streams)

    async def finished(self) -> None:
        """Wait until the first process has ended and the others had their moment to finish writing."""
        await asyncio.shield(self._exited)
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await asyncio.shield(self._quiet)

    async def close(self) -> None:
        """Kill what is left, read what was written, take the exit status and give every descriptor back."""
        try:
            if self._anybody_left() or not self._exited.done():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                await _to_the_end(self._kill)
        finally:
            for stream in self._streams:
                while stream.open and stream.take():
                    pass
                stream.stop()
            self._process.poll()
            self._closing.close()

    def _kill(self) -> None:
        kill_tree(Tree(self._process.pid, self._mark, os.fstat(self._live.fd).st_ino))
        self._process.wait()

    def ended(self, timed_out: bool) -> CommandResult:
        """The result, once closed."""
        code = self._process.returncode
        return CommandResult(
            stdout=b"".join(self._out.chunks),
            stderr=b"".join(self._err.chunks),
            exit_code=None if timed_out else (128 - code if code < 0 else code),
            timed_out=timed_out,
            stdout_cut=self._out.cut,
            stderr_cut=self._err.cut,
        )


async def _to_the_end(work: Callable[[], _Result]) -> _Result:
    """Run blocking `work` in a thread and wait for it even when cancelled; the cancellation is raised afterwards."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return future.result()
