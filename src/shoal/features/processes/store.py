"""Database access for processes that agents started."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from shoal.features.processes.records import PROCESS_KEY, Process, ProcessEnd, ProcessSpec
from shoal.kernel.ids import ThreadId, TurnId, channel_of
from shoal.store.agents import first_message
from shoal.store.driver import Script, StorePart, dump, first_after, number, query, readable, reader, reads, writes

_process = reader(Process, spec=msgspec.json.Decoder(ProcessSpec).decode)


class ProcessStore(StorePart):
    @writes
    def add(self, process: Process, running_max: int) -> Script[bool]:
        """Store a process that is about to start.

        Return False if its agent already has `running_max` running processes in the channel.
        """
        spec = process.spec
        yield from query("agent_lock", agent=spec.agent)
        within = channel_of(spec.chat)
        rows = yield from query("processes_count", agent=spec.agent, low=within, high=first_after(within))
        if number(rows[0][0]) >= running_max:
            return False
        row = {"id": process.id, "agent": spec.agent, "thread": spec.chat, "spec": dump(spec), "owner": process.owner}
        yield from query("process_insert", **row, now=process.started_at)
        return True

    async def identify(self, process: str, identity: str) -> None:
        await self._write("process_identify", id=process, identity=identity)

    async def taint(self, process: Process) -> None:
        await self._write("process_taint", id=process.id, spec=dump(process.spec))

    async def end(self, process: str, ending: ProcessEnd) -> Process | None:
        """Record that a process ended. Return None if it was not running."""
        ended = msgspec.structs.asdict(ending)
        rows = await self._write("process_end", id=process, **ended, now=self._clock.now())
        return _process(rows[0]) if rows else None

    async def kill(self, process: str, by: str) -> bool:
        """Ask the server that runs a process to kill it. Return False if the process is not running."""
        return bool(await self._write("process_kill", id=process, by=by))

    async def beat(self, owner: str) -> list[Process]:
        """Record that `owner` is alive. Return the processes that are recorded as running on it."""
        return readable(_process, await self._write("processes_beat", owner=owner, now=self._clock.now()))

    async def mark_reported(self, process: str) -> None:
        await self._write("process_tell", id=process)

    async def unreported(self, limit: int = 100) -> list[Process]:
        """Return ended processes whose hooks have not reported the end, oldest first."""
        return readable(_process, await self._read("processes_untold", limit=limit))

    async def get(self, process: str) -> Process | None:
        return await self._one(_process, "process_one", id=process)

    async def search(
        self, *, agent: str = "", running: bool = False, limit: int = 100, within: str = ""
    ) -> list[Process]:
        """Return processes, newest first. An empty `agent` matches all agents. `within` is a prefix of thread ids."""
        which = "processes_running" if running else "processes_recent"
        rows = await self._read(which, agent=agent, limit=limit, low=within, high=first_after(within))
        return readable(_process, rows)

    @reads
    def depth(self, thread: ThreadId, turn: TurnId) -> Script[int]:
        """Return the number of hooks that led to a turn, or 0 if no process started it."""
        causes = yield from query("process_cause", thread=thread, turn=turn)
        cause = first_message(causes[0][0]) if causes else None
        if cause is None or cause.origin != "trigger" or not cause.message_id.startswith(PROCESS_KEY):
            return 0
        rows = yield from query("process_one", id=cause.message_id.split(":")[1])
        return _process(rows[0]).spec.depth + 1 if rows else 1

    async def forget(self, before: datetime) -> Sequence[Process]:
        """Delete the rows of processes that ended before this time. Return the deleted processes."""
        return readable(_process, await self._write("processes_forget", before=before))
