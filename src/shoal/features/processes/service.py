"""Runs the processes that agents start, fires their hooks, and accounts for those a crash left behind.

what happens                        row                   what starts a turn
---------------------------------   -------------------   --------------------------------------------------------
it is about to start                running               nothing; durable before anything runs
a line matches, time has passed     running               prompts process:ID:match:HOOK:COUNT, …:timeout:HOOK
it ends by itself                   exited, exit_code     a prompt process:ID:exit:HOOK, then `told`
somebody kills it                   killed                nothing: whoever did knows
it runs longer than LIFE_SECONDS    killed                the prompts for its end
the Shoal that runs it stops        lost                  the prompts for its end, at the next start
that one is killed                  lost                  the same; what is left of the process is killed first

A process never outlives the Shoal that runs it: the sandbox ends with it, and what an unsandboxed command left is ended
at the next start. Keys are unique in the mailbox, so a firing that is sent again after a crash is one message.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
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
"""How often whoever runs processes shows that it lives, and looks whether one is to be killed."""
RETRY_SECONDS = 30.0
"""A mailbox that was full for a firing is tried again after this."""
STALE_SECONDS = 60.0
"""Silence after which the processes of another machine count as lost."""
RUNNING_MAX = 8
"""Most processes of one agent at the same time for one channel: no channel is told what others leave of a bound."""
LIFE_SECONDS = 7 * 86_400.0
KEEP_DAYS = 14
"""How long the row and the log of an ended process are kept."""
FORGET_SECONDS = 86_400.0
DEPTH_MAX = 3
LEFT_MAX = 10_000
"""Most running processes that are looked at for people who have no access any more."""
TAIL_LINES, TAIL_CHARS = 20, 3000
STOPPED = "Shoal stopped while it ran"
DIED = "the Shoal that ran it has died"

log = logging.getLogger(__name__)

Send = Callable[[Inbound], Awaitable[Receipt]]
HasLeft = Callable[[ThreadId, Author], Awaitable[bool]]
"""Whether the author of something in a thread has no access any more."""


class ProcessTable(NamedTuple):
    identity_of: Callable[[int], str]
    """What a process is known again by; empty when there is none."""
    is_alive: Callable[[str], bool]
    """Whether the process of an identity still runs."""
    kill_leftovers: Callable[[str], None]
    """Kills what is left of it, and of all commands whose server has died. Blocks for a moment."""


class ProcessSettings(msgspec.Struct, frozen=True):
    """`owner` is this Shoal, `HOST IDENTITY`. `alone`: no other one works on this store."""

    owner: str
    alone: bool = True

    @property
    def host(self) -> str:
        return self.owner.partition(" ")[0]


@dataclass(eq=False)
class ProcessService:
    """The processes of this Shoal, and what is known of those of others."""

    rows: ProcessStore
    home: Home
    clock: Clock
    send: Send
    redact: Callable[[str], str]
    table: ProcessTable
    settings: ProcessSettings

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

    def __post_init__(self) -> None:
        self._live: dict[str, LiveProcess] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._news = asyncio.Event()
        self._is_pending = False
        self._forgets_at = 0.0
        self._seen: dict[str, tuple[datetime, float]] = {}
        """When others' processes were shown last, and since when that has not changed, by the monotonic clock."""

    # ---- what tools and people ask for ----

    async def start(
        self, spec: ProcessSpec, command: Command, sandbox: Sandbox, sources: Callable[[], Awaitable[str]]
    ) -> Process:
        """Start one and return once it runs; `sources` tells what taints what it may read by then. Raises InvalidInput
        for hooks that cannot be, SandboxError, StoreError; ContentChanged when what it runs is not what was allowed any
        more.

        Cancelled before it runs, it is killed.
        """
        if self._tasks is None:
            raise InvalidInput("Processes cannot be started here now: Shoal is starting or stopping.")
        if spec.hooks and spec.depth > DEPTH_MAX:
            raise InvalidInput(f"Hooks lead to hooks at most {DEPTH_MAX} deep; start this one without hooks.")
        now = self.clock.now()
        process = Process(self.clock.new_id(), spec, "running", self.settings.owner, "", now, now)
        live = LiveProcess(process, ProcessLog(log_of(self.home, process)), self.table.identity_of, sources)
        self._live[process.id] = live  # before its row is seen by a look, which would take it for one that was left
        try:
            if not await self.rows.add(process, RUNNING_MAX):
                raise InvalidInput(
                    f"{RUNNING_MAX} processes of this channel run already, which is the most. Kill one first."
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
        """Have it ended, here or on the machine that runs it. Raises NotFound when there is none that runs."""
        if not await self.rows.kill(process, by):
            raise NotFound(f"There is no running process {process[:80]}.")
        live = self._live.get(process)
        if live is not None:
            live.end(by)
        return await self.get(process)

    async def get(self, process: str) -> Process:
        """One. Raises NotFound."""
        row = await self.rows.get(process)
        if row is None:
            raise NotFound(f"There is no process {process[:80]}.")
        return row

    async def read(self, process: Process, *, offset: int = -1, lines_max: int = 100, contains: str = "") -> LogPiece:
        """A piece of its log; empty where this machine does not have it. Raises OSError."""
        path = log_of(self.home, process)
        return await asyncio.to_thread(read_log, path, offset=offset, lines_max=lines_max, contains=contains)

    async def of_agent(self, agent: str, within: str, *, running: bool = False, limit: int = 20) -> list[Process]:
        """Those of an agent for the conversations whose ids begin with `within`, newest first."""
        return await self.rows.search(agent=agent, running=running, limit=limit, within=within)

    def check(self, hooks: tuple[Hook, ...]) -> None:
        """Raises InvalidInput for a pattern that cannot be used."""
        LineMatcher([hook.pattern for hook in hooks if hook.on == "output"])

    # ---- what agents and people are shown ----

    async def for_prompt(self, agent: str, within: str, limit: int) -> list[str]:
        """Those that run on all machines. A name that a tainted turn chose is left out."""
        running, now = await self.of_agent(agent, within, running=True, limit=limit), self.clock.now()
        return [line_of(process, now, is_named=not process.spec.tainted_by) for process in running]

    async def for_people(self, agent: str, within: str) -> list[str]:
        """Those that run on all machines."""
        running, now = await self.of_agent(agent, within, running=True), self.clock.now()
        return [f"process {line_of(process, now)}" for process in running]

    async def end_left(self, has_left: HasLeft, by: str) -> AsyncIterator[tuple[Author, str]]:
        """Kill those of people who have no access any more. Yields who had left each, and its name."""
        for process in await self.rows.search(running=True, limit=LEFT_MAX):
            author = process.spec.author
            if await has_left(process.spec.chat, author):
                with suppress(NotFound):  # it has just ended
                    await self.kill(process.id, by)
                    yield author, f"the process “{short_line(process.spec.title, 60)}”"

    # ---- life ----

    async def run(self) -> None:
        """Serve until cancelled; then all processes are ended. Asleep while there is nothing to look after."""
        try:
            async with anyio.create_task_group() as self._tasks:
                for process in await self.rows.search(running=True, limit=1000):  # what a Shoal that died has left
                    if process.id not in self._live and self._has_died(process):
                        await self._lose(process)
                while True:
                    await self._look()
                    # Until there is news; now and then while something runs here or waits to be told, else only to see
                    # what others run.
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
        """Show that this Shoal lives, end what is to be ended, tell what has ended, and forget what is old."""
        self._is_pending = False
        try:
            mine = {process.id: process for process in await self.rows.beat(self.settings.owner)}
            for id, live in list(self._live.items()):
                stored = mine.get(id) or await self.rows.get(id)  # one that was begun since is not among them
                if stored is not None and stored.state != "running":
                    live.end("somebody who took it for lost")
                elif stored is not None and stored.killed_by:
                    live.end(stored.killed_by)
            if not self.settings.alone:
                # What nobody shows any more ends by our own watch: clocks of machines differ, and are set.
                now, before = self.clock.monotonic(), self._seen
                self._seen = {}
                for process in await self.rows.search(running=True, limit=1000):
                    if process.id in self._live:
                        continue
                    seen_at, since = before.get(process.id, (process.seen_at, now))
                    self._seen[process.id] = (process.seen_at, since if seen_at == process.seen_at else now)
                    if now - self._seen[process.id][1] > STALE_SECONDS or self._has_died(process):
                        await self._lose(process)
            for process in await self.rows.untold():
                fitting = [(number, hook) for number, hook in enumerate(process.spec.hooks) if fits(hook, process)]
                # What one read that was lost with its Shoal is not known; `process_logs` looks for marks.
                output = await asyncio.to_thread(self._tail, process) if fitting and process.state != "lost" else ""
                for number, hook in fitting:
                    prompt = hook_prompt(process, hook, f"exit:{number}", ending_of(process), output, self.clock)
                    if not await self._sent(prompt):  # a full mailbox is tried again with the next look
                        self._is_pending = True
                        break
                else:
                    await self.rows.tell(process.id)
            if self.clock.monotonic() >= self._forgets_at:
                for process in await self.rows.forget(self.clock.now() - timedelta(days=KEEP_DAYS)):
                    try:
                        await anyio.to_thread.run_sync(remove_log, log_of(self.home, process))
                    except OSError as error:  # it goes with its thread
                        log.warning("an old log stays", extra={"process_id": process.id, "why": str(error)})
                self._forgets_at = self.clock.monotonic() + FORGET_SECONDS
        except StoreUnavailable as error:
            log.warning("processes run on while the database takes nothing", extra={"why": str(error)})
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
        log.warning("a process was lost", extra={"process_id": process.id, "agent": process.spec.agent})

    # ---- one process ----

    async def _serve(self, live: LiveProcess, command: Command, sandbox: Sandbox) -> None:
        id, ending = live.process.id, ProcessEnd("lost", reason=STOPPED)
        try:
            async with anyio.create_task_group() as hooks:
                hooks.start_soon(self._tell_matches, live)
                for number, hook in enumerate(live.hooks):
                    if hook.on == "timeout":
                        hooks.start_soon(self._tell_timeout, live, number)
                ending = await self._run_in(live, command, sandbox)
                live.close()
        finally:
            live.close()
            try:
                await self._end(live, ending)
            finally:
                self._live.pop(id, None)
                self._news.set()
            log.info("a process ended", extra={"process_id": id, "state": ending.state, "exit_code": ending.exit_code})

    async def _end(self, live: LiveProcess, ending: ProcessEnd) -> None:
        """Note how it ended, for the next look to tell, however long the database takes nothing. What cannot be noted
        before a stop the next start accounts for."""
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
            return ProcessEnd("killed", reason=f"it ran for {LIFE_SECONDS / 86_400:g} days")
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
        """Send it; False when the mailbox is full. One that can never be taken is logged and dropped."""
        try:
            return (await self.send(prompt)).status != "busy"
        except StoreError:
            raise
        except ShoalError as error:
            log.warning("a hook of a process cannot be told", extra={"key": prompt.key, "why": str(error)})
            return True

    async def _as_tainted(self, live: LiveProcess) -> Process:
        """The process with what taints it by now, which is noted for good."""
        if not live.process.spec.tainted_by and (source := await live.sources()):
            spec = msgspec.structs.replace(live.process.spec, tainted_by=source)
            live.process = msgspec.structs.replace(live.process, spec=spec)
            await self.rows.taint(live.process)
        return live.process

    async def _fire(self, live: LiveProcess, hook: Hook, what: str, said: str, output: str) -> None:
        """Send what happened while a process runs; waits for a full mailbox and a database that is away."""
        while True:
            with suppress(StoreUnavailable):
                process = await self._as_tainted(live)
                if await self._sent(hook_prompt(process, hook, what, said, output, self.clock)):
                    return
            await self.clock.sleep(RETRY_SECONDS)

    async def _tell_timeout(self, live: LiveProcess, number: int) -> None:
        hook = live.hooks[number]
        await self.clock.wait(live.ended, hook.after_seconds)
        reason = f"still runs after {counted(hook.after_seconds, 'second')}"
        output = await asyncio.to_thread(self._tail, live.process)
        if not live.ended.is_set():
            await self._fire(live, hook, f"timeout:{number}", reason, output)

    async def _tell_matches(self, live: LiveProcess) -> None:
        """Tell matches as they come, each hook so many times and not more often than its interval."""
        while not live.ended.is_set():
            await live.changed.wait()
            live.changed.clear()
            while live.matches:
                await self._tell_next(live)

    async def _tell_next(self, live: LiveProcess) -> None:
        number, line = live.matches.popleft()
        hook, now = live.hooks[number], self.clock.monotonic()
        count, fired_at = live.fired.get(number, (0, now - hook.interval_seconds))
        if count >= hook.fires_max or now - fired_at < hook.interval_seconds:
            return
        live.fired[number] = count + 1, now
        reason = f"wrote what {hook.pattern!r} matches"
        await self._fire(live, hook, f"match:{number}:{count}", reason, self.redact(line))

    def _tail(self, process: Process) -> str:
        return self.redact(tail(log_of(self.home, process), TAIL_LINES, TAIL_CHARS))
