"""The rows of processes that agents started."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from shoal.domain.clock import Clock, from_micros, to_micros
from shoal.domain.events import UserSaid, decode_data
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import ThreadId, TurnId, channel_of
from shoal.domain.processes import ORIGIN, Ending, Process, ProcessSpec
from shoal.domain.stored import decode_process
from shoal.store.rows import dump, moment
from shoal.store.script import Driver, Row, Script, number, query, text
from shoal.store.search import first_after

_spec = msgspec.json.Decoder(ProcessSpec)


class ProcessesView:
    """Implements `domain.processes.Processes` over either dialect."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def add(self, process: Process, running_max: int) -> bool:
        """Store one that is about to start; False when its agent has `running_max` running for its channel."""
        return await self._driver.write(_add(process, running_max))

    async def identify(self, process: str, identity: str) -> None:
        """Note which process of its machine it is."""
        await self._driver.write(query("process_identify", id=process, identity=identity))

    async def taint(self, process: Process) -> None:
        """Note what taints it, as its spec says."""
        await self._driver.write(query("process_taint", id=process.id, spec=dump(process.spec)))

    async def end(self, process: str, ending: Ending) -> Process | None:
        """Note how it ended, once; None when it was not running any more."""
        rows = await self._driver.write(
            query(
                "process_end",
                id=process,
                state=ending.state,
                exit_code=ending.exit_code,
                reason=ending.reason,
                told=int(ending.told),
                now=to_micros(self._clock.now()),
            )
        )
        return process_of(rows[0]) if rows else None

    async def kill(self, process: str, by: str) -> bool:
        """Ask whoever runs it to end it; False when it does not run."""
        return bool(await self._driver.write(query("process_kill", id=process, by=by)))

    async def beat(self, owner: str) -> list[Process]:
        """Note that `owner` lives, and return what it is taken to run."""
        script = query("processes_beat", owner=owner, now=to_micros(self._clock.now()))
        return [process_of(row) for row in await self._driver.write(script)]

    async def tell(self, process: str) -> None:
        """Note that its hooks know of its end."""
        await self._driver.write(query("process_tell", id=process))

    async def untold(self, limit: int = 100) -> list[Process]:
        """Those that ended and whose hooks do not know it yet, oldest first."""
        return [process_of(row) for row in await self._driver.read(query("processes_untold", limit=limit))]

    async def get(self, process: str) -> Process | None:
        """One, or None."""
        rows = await self._driver.read(query("process_one", id=process))
        return process_of(rows[0]) if rows else None

    async def search(
        self, *, agent: str = "", running: bool = False, limit: int = 100, within: str = ""
    ) -> list[Process]:
        """Those of an agent (empty: all), newest first."""
        low, high = within, first_after(within)
        which = "processes_running" if running else "processes_recent"
        script = query(which, agent=agent, limit=limit, low=low, high=high)
        return [process_of(row) for row in await self._driver.read(script)]

    async def depth(self, thread: ThreadId, turn: TurnId) -> int:
        """How many hooks led to a turn: 0 unless a process started it."""
        return await self._driver.read(_depth(thread, turn))

    async def forget(self, before: datetime) -> Sequence[Process]:
        """Drop the rows of those that ended before, and return them."""
        rows = await self._driver.write(query("processes_forget", before=to_micros(before)))
        return [process_of(row) for row in rows]


def _add(process: Process, running_max: int) -> Script[bool]:
    spec = process.spec
    yield from query("agent_lock", agent=spec.agent)
    within = channel_of(spec.chat)
    found = yield from query("processes_count", agent=spec.agent, low=within, high=first_after(within))
    if number(found[0][0]) >= running_max:
        return False
    yield from query(
        "process_insert",
        id=process.id,
        agent=spec.agent,
        thread=spec.chat,
        spec=dump(spec),
        owner=process.owner,
        now=to_micros(process.started_at),
    )
    return True


def _depth(thread: ThreadId, turn: TurnId) -> Script[int]:
    found = yield from query("process_cause", thread=thread, turn=turn)
    try:
        cause = decode_data(UserSaid.type, text(found[0][0])) if found else None
    except (*UNREADABLE, KeyError):
        cause = None
    if not isinstance(cause, UserSaid) or cause.origin != "trigger" or not cause.message_id.startswith(ORIGIN):
        return 0
    rows = yield from query("process_one", id=cause.message_id.split(":")[1])
    return process_of(rows[0]).spec.depth + 1 if rows else 1


def process_of(row: Row) -> Process:
    """The columns of `process_one`."""
    return Process(
        id=text(row[0]),
        spec=decode_process(_spec, text(row[1])),
        state=text(row[2]),  # pyright: ignore[reportArgumentType]  the column holds only these words
        owner=text(row[3]),
        identity=text(row[4]),
        started_at=from_micros(number(row[5])),
        seen_at=from_micros(number(row[6])),
        ended_at=moment(row[7]),
        exit_code=None if row[8] is None else number(row[8]),
        reason=text(row[9]),
        killed_by=text(row[10]),
        told=bool(row[11]),
    )
