"""Run the processes that agents start, fire their hooks, and clean up after a crash.

    event                             stored state    key of the prompt that starts a turn
    ------------------------------    ------------    --------------------------------------------------------
    The process is about to start.    running         No prompt. The row is durable before anything runs.
    A line matches a hook.            running         process:ID:match:HOOK:COUNT
    A timeout expires.                running         process:ID:timeout:HOOK
    The process exits by itself.      exited          process:ID:exit:HOOK. Afterwards, the row is marked `told`.
    A person or agent kills it.       killed          No prompt. Hooks do not fire.
    It exceeds LIFE_SECONDS.          killed          process:ID:exit:HOOK
    Shoal stops.                      lost            process:ID:exit:HOOK, at the next start.
    Shoal is killed.                  lost            The same, after the remaining child processes are killed.

A process does not outlive the Shoal process that runs it. Its sandbox ends with Shoal, and the next start kills the
remaining processes of unsandboxed commands. Keys are unique in the mailbox, so a prompt that is sent again after a
crash is delivered once.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from shoal.features.processes.hooks import LineMatcher, fits, hook_prompt
from shoal.features.processes.live import LiveProcess
from shoal.features.processes.logs import LogPiece, ProcessLog, log_of, read_log, remove_log, tail
from shoal.features.processes.records import Hook, Process, ProcessEnd, ProcessSpec
from shoal.features.processes.status import ending_of, line_of
from shoal.features.processes.store import ProcessStore
from shoal.kernel.clock import Clock
from shoal.kernel.errors import (
    FolderFull,
    InvalidInput,
    NotFound,
    SandboxError,
    ShoalError,
    StoreError,
    StoreUnavailable,
)
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author, Inbound, Prompt, Receipt
from shoal.kernel.phrases import counted, short_line
from shoal.kernel.ports import Command, Sandbox
from shoal.store.store import Store

if TYPE_CHECKING:
    from shoal.services import Services

BEAT_SECONDS = 2.0
"""Seconds between two heartbeats of a server. With each heartbeat, the server also looks for processes to kill."""
RETRY_SECONDS = 30.0
"""Seconds before a prompt is sent again to a thread whose mailbox was full."""
STALE_SECONDS = 60.0
"""Seconds without a heartbeat after which another machine's processes count as lost."""
RUNNING_MAX = 8
"""Maximum number of running processes per agent and channel. A limit per agent would reveal one channel's processes to
another."""
LIFE_SECONDS = 7 * 86_400.0
KEEP_DAYS = 14
"""Number of days to keep the rows and logs of ended processes."""
FORGET_SECONDS = 86_400.0
DEPTH_MAX = 3
LEFT_MAX = 10_000
"""Maximum number of running processes that one pass checks for authors who have lost access."""
TAIL_LINES, TAIL_CHARS = 20, 3000
STOPPED = "Shoal stopped while the process was running"
DIED = "the Shoal process that ran it died"

log = logging.getLogger(__name__)

Send = Callable[[Inbound], Awaitable[Receipt]]
HasLeft = Callable[[ThreadId, Author], Awaitable[bool]]
"""Returns whether a person has lost access to a thread."""


class ProcessTable(NamedTuple):
    identity_of: Callable[[int], str]
    """Returns the identity of the process with this id, or an empty string if the process does not exist."""
    is_alive: Callable[[str], bool]
    """Returns whether a process with this identity is running."""
    kill_leftovers: Callable[[str], None]
    """Kills the remaining processes of one command whose server died, and of all other commands whose servers died.
    Blocks briefly.
    """


class ProcessSettings(msgspec.Struct, frozen=True):
    """Identity of this server.

    `owner`: host name and identity of this process.
    `alone`: whether no other Shoal process uses this database.
    """

    owner: str
    alone: bool = True

    @property
    def host(self) -> str:
        return self.owner.partition(" ")[0]


class ProcessService(msgspec.Struct, eq=False):
    """Service that runs processes on this machine. It can also list and kill processes on other machines."""

    rows: ProcessStore
    home: Home
    clock: Clock
    send: Send
    redact: Callable[[str], str]
    table: ProcessTable
    settings: ProcessSettings
    _live: dict[str, LiveProcess] = {}
    _tasks: anyio.abc.TaskGroup | None = None
    _news: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _is_pending: bool = False
    _forgets_at: float = 0.0
    _seen: dict[str, tuple[datetime, float]] = {}
    """Last heartbeat of each process on another server, and the monotonic time at which that heartbeat was first seen.
    """

    @classmethod
    def of(cls, services: "Services") -> "ProcessService":
        from shoal.backend import Backend
        from shoal.sandbox import processes as host_processes
        from shoal.threads.orchestrator import Orchestrator
        from shoal.tools.executor import Executor

        store, clock, owner = services[Store], services[Clock], host_processes.identity_of(os.getpid())
        return cls(
            ProcessStore(store.driver, clock),
            services[Home],
            clock,
            services[Orchestrator].send,
            services[Executor].redactor.redact,
            ProcessTable(host_processes.identity_of, host_processes.is_alive, host_processes.kill_leftovers),
            ProcessSettings(f"{socket.gethostname()} {owner}", services[Backend].recovers),
        )

    # ---- for tools and people ----

    async def start(
        self, spec: ProcessSpec, command: Command, sandbox: Sandbox, sources: Callable[[], Awaitable[str]]
    ) -> Process:
        """Start a process and return once it is running. If the call is cancelled before that, the process is killed.

        `sources` returns the taint of the content that the process can read at the time of the call. Raises
        InvalidInput for invalid hooks or too many processes, SandboxError, StoreError, and ContentChanged if the
        approved content has changed.
        """
        if self._tasks is None:
            raise InvalidInput("Shoal is starting or stopping, so it cannot start processes. Try again shortly.")
        if spec.hooks and spec.depth > DEPTH_MAX:
            raise InvalidInput(f"Hooks can be nested at most {DEPTH_MAX} deep. Start this process without hooks.")
        now = self.clock.now()
        process = Process(self.clock.new_id(), spec, "running", self.settings.owner, "", now, now)
        live = LiveProcess(process, ProcessLog(log_of(self.home, process)), self.table.identity_of, sources)
        self._live[process.id] = live  # register first, otherwise the next pass considers it lost
        try:
            if not await self.rows.add(process, RUNNING_MAX):
                raise InvalidInput(
                    f"{RUNNING_MAX} processes are already running for this channel, which is the limit. Kill one first."
                )
        except BaseException:
            del self._live[process.id]
            raise
        self._tasks.start_soon(self._serve, live, command, sandbox)
        self._news.set()
        try:
            await live.begun.wait()
        except asyncio.CancelledError:
            live.end("a cancelled call")
            raise
        if live.error is not None:
            raise live.error
        await self.rows.identify(process.id, live.identity)
        return msgspec.structs.replace(process, identity=live.identity)

    async def kill(self, process: str, by: str) -> Process:
        """Kill a process, or ask the machine that runs it to kill it. Raises NotFound if the process is not running."""
        if not await self.rows.kill(process, by):
            raise NotFound(
                f"No process {process[:80]} is running. `shoal processes list --running` shows all running processes."
            )
        live = self._live.get(process)
        if live is not None:
            live.end(by)
        return await self.get(process)

    async def get(self, process: str) -> Process:
        """Return a process. Raises NotFound."""
        row = await self.rows.get(process)
        if row is None:
            raise NotFound(f"Process {process[:80]} does not exist. `shoal processes list` shows the processes.")
        return row

    async def read(self, process: Process, *, offset: int = -1, lines_max: int = 100, contains: str = "") -> LogPiece:
        """Read part of a process's log. The log is empty if the process ran on another machine. Raises OSError."""
        path = log_of(self.home, process)
        return await asyncio.to_thread(read_log, path, offset=offset, lines_max=lines_max, contains=contains)

    async def of_agent(self, agent: str, within: str, *, running: bool = False, limit: int = 20) -> list[Process]:
        """Return an agent's processes in threads whose ids start with `within`, newest first."""
        return await self.rows.search(agent=agent, running=running, limit=limit, within=within)

    def check(self, hooks: tuple[Hook, ...]) -> None:
        """Raise InvalidInput for an invalid pattern."""
        LineMatcher([hook.pattern for hook in hooks if hook.on == "output"])

    # ---- lists ----

    async def for_prompt(self, agent: str, within: str, limit: int) -> list[str]:
        """List running processes for a prompt. Omits names that a tainted turn chose."""
        running, now = await self.of_agent(agent, within, running=True, limit=limit), self.clock.now()
        return [line_of(process, now, is_named=not process.spec.tainted_by) for process in running]

    async def for_people(self, agent: str, within: str) -> list[str]:
        running, now = await self.of_agent(agent, within, running=True), self.clock.now()
        return [f"process {line_of(process, now)}" for process in running]

    async def end_left(self, has_left: HasLeft, by: str) -> AsyncIterator[tuple[Author, str]]:
        """Kill the processes of people who lost access. Yield the person and a description of each killed process."""
        for process in await self.rows.search(running=True, limit=LEFT_MAX):
            author = process.spec.author
            if await has_left(process.spec.chat, author):
                with suppress(NotFound):  # the process ended in the meantime
                    await self.kill(process.id, by)
                    yield author, f"the process “{short_line(process.spec.title, 60)}”"

    # ---- main loop ----

    async def run(self) -> None:
        """Run until cancelled, then kill all processes. While no process is running, polls less often, or not at all if
        no other Shoal process uses the database.
        """
        try:
            async with anyio.create_task_group() as self._tasks:
                for process in await self.rows.search(running=True, limit=1000):  # left by a Shoal process that died
                    if process.id not in self._live and self._has_died(process):
                        await self._lose(process)
                while True:
                    await self._look()
                    if self._live or self._is_pending:
                        await self.clock.wait(self._news, BEAT_SECONDS)
                    elif self.settings.alone:
                        await self._news.wait()
                    else:
                        await self.clock.wait(self._news, STALE_SECONDS)
                    self._news.clear()
        finally:
            self._tasks = None

    async def _look(self) -> None:
        """Record a heartbeat, kill processes on request, send prompts for processes that ended, and delete old rows."""
        self._is_pending = False
        try:
            mine = {process.id: process for process in await self.rows.beat(self.settings.owner)}
            for id, live in list(self._live.items()):
                stored = mine.get(id) or await self.rows.get(id)  # `mine` lacks processes that started after the query
                if stored is not None and stored.state != "running":
                    live.end("another server, which lost contact with it")
                elif stored is not None and stored.killed_by:
                    live.end(stored.killed_by)
            if not self.settings.alone:
                # Use the local clock, because clocks of other machines may differ or be adjusted.
                now, before = self.clock.monotonic(), self._seen
                self._seen = {}
                for process in await self.rows.search(running=True, limit=1000):
                    if process.id in self._live:
                        continue
                    seen_at, since = before.get(process.id, (process.seen_at, now))
                    self._seen[process.id] = (process.seen_at, since if seen_at == process.seen_at else now)
                    if now - self._seen[process.id][1] > STALE_SECONDS or self._has_died(process):
                        await self._lose(process)
            for process in await self.rows.unreported():
                fitting = [(number, hook) for number, hook in enumerate(process.spec.hooks) if fits(hook, process)]
                # Omit the output of a lost process, because its taint is unknown. `process_logs` checks taint marks.
                output = await asyncio.to_thread(self._tail, process) if fitting and process.state != "lost" else ""
                for number, hook in fitting:
                    prompt = hook_prompt(process, hook, f"exit:{number}", ending_of(process), output, self.clock)
                    if not await self._sent(prompt):  # mailbox full: retry on the next pass
                        self._is_pending = True
                        break
                else:
                    await self.rows.mark_reported(process.id)
            if self.clock.monotonic() >= self._forgets_at:
                for process in await self.rows.forget(self.clock.now() - timedelta(days=KEEP_DAYS)):
                    try:
                        await anyio.to_thread.run_sync(remove_log, log_of(self.home, process))
                    except OSError as error:  # the log may have been deleted with its thread
                        log.warning(
                            ("deleting old process log failed"), extra={"process_id": process.id, "why": str(error)}
                        )
                self._forgets_at = self.clock.monotonic() + FORGET_SECONDS
        except StoreUnavailable as error:
            log.warning("database unavailable; processes keep running", extra={"why": str(error)})
            self._is_pending = True

    def _has_died(self, process: Process) -> bool:
        host, _, identity = process.owner.partition(" ")
        if process.owner == self.settings.owner or self.settings.alone:
            return True
        return host == self.settings.host and not self.table.is_alive(identity)

    async def _lose(self, process: Process) -> None:
        if process.owner.partition(" ")[0] == self.settings.host:
            await anyio.to_thread.run_sync(self.table.kill_leftovers, process.identity)
        await self.rows.end(process.id, ProcessEnd("lost", reason=DIED))
        log.warning("process lost", extra={"process_id": process.id, "agent": process.spec.agent})

    # ---- one process ----

    async def _serve(self, live: LiveProcess, command: Command, sandbox: Sandbox) -> None:
        id, ending = live.process.id, ProcessEnd("lost", reason=STOPPED)
        try:
            async with anyio.create_task_group() as hooks:
                hooks.start_soon(self._notify_matches, live)
                for number, hook in enumerate(live.hooks):
                    if hook.on == "timeout":
                        hooks.start_soon(self._notify_timeout, live, number)
                ending = await self._run_in(live, command, sandbox)
                live.close()
        finally:
            live.close()
            try:
                await self._end(live, ending)
            finally:
                self._live.pop(id, None)
                self._news.set()
            log.info("process ended", extra={"process_id": id, "state": ending.state, "exit_code": ending.exit_code})

    async def _end(self, live: LiveProcess, ending: ProcessEnd) -> None:
        """Record that a process ended. Retry while the database is unavailable.

        If Shoal stops before this succeeds, the next start records the process as lost.
        """
        while True:
            with anyio.CancelScope(shield=True), suppress(StoreUnavailable):
                await self._as_tainted(live)
                await self.rows.end(live.process.id, ending)
                return
            if ending.reason == STOPPED:
                return
            await asyncio.sleep(BEAT_SECONDS)

    async def _run_in(self, live: LiveProcess, command: Command, sandbox: Sandbox) -> ProcessEnd:
        watched = msgspec.structs.replace(
            command, watch=live, output_bytes_max=0, timeout_seconds=2 * LIFE_SECONDS, see=None
        )
        try:
            async with asyncio.timeout(LIFE_SECONDS) as limit:
                live.limit = limit
                if live.killed_by:
                    live.end(live.killed_by)
                try:
                    result = await sandbox.run(watched)
                finally:
                    live.limit = None
        except TimeoutError:
            if live.killed_by:
                return ProcessEnd("killed", told=True)
            return ProcessEnd("killed", reason=f"it exceeded the limit of {LIFE_SECONDS / 86400:g} days")
        except FolderFull as error:
            return ProcessEnd("killed", reason=str(error))
        except SandboxError as error:
            live.error = error
            return ProcessEnd("failed", reason=str(error), told=True)
        if live.killed_by:
            return ProcessEnd("killed", result.exit_code, told=True)
        return ProcessEnd("exited", result.exit_code)

    # ---- hooks ----

    async def _sent(self, prompt: Prompt) -> bool:
        """Send a prompt. Return False if the mailbox is full. A prompt that is rejected permanently is logged and
        dropped."""
        try:
            return (await self.send(prompt)).status != "busy"
        except StoreError:
            raise
        except ShoalError as error:
            log.warning("delivering process hook failed", extra={"key": prompt.key, "why": str(error)})
            return True

    async def _as_tainted(self, live: LiveProcess) -> Process:
        """Record the taint of the content that the process can read now. Return the updated process."""
        if not live.process.spec.tainted_by and (source := await live.sources()):
            spec = msgspec.structs.replace(live.process.spec, tainted_by=source)
            live.process = msgspec.structs.replace(live.process, spec=spec)
            await self.rows.taint(live.process)
        return live.process

    async def _fire(self, live: LiveProcess, hook: Hook, what: str, reason: str, output: str) -> None:
        """Send a prompt for a running process. Retry while the mailbox is full or the database is unavailable."""
        while True:
            with suppress(StoreUnavailable):
                process = await self._as_tainted(live)
                if await self._sent(hook_prompt(process, hook, what, reason, output, self.clock)):
                    return
            await self.clock.sleep(RETRY_SECONDS)

    async def _notify_timeout(self, live: LiveProcess, number: int) -> None:
        hook = live.hooks[number]
        await self.clock.wait(live.ended, hook.after_seconds)
        reason = f"is still running after {counted(hook.after_seconds, 'second')}"
        output = await asyncio.to_thread(self._tail, live.process)
        if not live.ended.is_set():
            await self._fire(live, hook, f"timeout:{number}", reason, output)

    async def _notify_matches(self, live: LiveProcess) -> None:
        while not live.ended.is_set():
            await live.changed.wait()
            live.changed.clear()
            while live.matches:
                await self._notify_next(live)

    async def _notify_next(self, live: LiveProcess) -> None:
        number, line = live.matches.popleft()
        hook, now = live.hooks[number], self.clock.monotonic()
        count, fired_at = live.fired.get(number, (0, now - hook.interval_seconds))
        if count >= hook.fires_max or now - fired_at < hook.interval_seconds:
            return
        live.fired[number] = count + 1, now
        reason = f"wrote a line that matches {hook.pattern!r}"
        await self._fire(live, hook, f"match:{number}:{count}", reason, self.redact(line))

    def _tail(self, process: Process) -> str:
        return self.redact(tail(log_of(self.home, process), TAIL_LINES, TAIL_CHARS))
