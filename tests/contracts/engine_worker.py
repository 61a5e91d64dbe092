"""A worker process for tests that kill and freeze it: `python -m tests.contracts.engine_worker URL MODE`.

It prints a line for each step. Modes:

- finish: finish all open turns.
- hang: open a turn, commit one step and wait for a line on standard input. Then try to commit another step, even if
  the turn now belongs to another worker.
"""

import asyncio
import sys

import anyio
import msgspec

from shoal.engine.cluster import Listener
from shoal.engine.postgres import PostgresEngine
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import StaleEpoch
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.ports import SignalKind
from shoal.kernel.records import Lease
from shoal.kernel.settings import EngineSettings
from shoal.store.postgres import PoolSettings, address, open_postgres
from shoal.store.store import Store
from shoal.testing.contracts.steps import answer, ending, opening

SETTINGS = EngineSettings(concurrency=10, heartbeat_seconds=0.2, stalled_seconds=1.5)


def tell(word: str, thread: ThreadId) -> None:
    sys.stdout.write(f"{word} {thread}\n")
    sys.stdout.flush()


class Worker:
    """Runs turns by writing their events to the journal, without a model."""

    def __init__(self, store: Store, mode: str) -> None:
        self._store = store
        self._mode = mode

    async def advance(self, thread: ThreadId) -> None:
        lease = await self._store.journal.lease(thread)
        while lease is not None:
            if not lease.open_turn:
                lease = await self._open(lease)
            await self._store.journal.commit(lease, answer(lease.open_turn, f"step of {self._mode}"))
            tell("step", thread)
            if self._mode == "hang":
                await self._hang(lease)
            commit = ending(lease.open_turn)
            await self._store.journal.finish_turn(lease, msgspec.structs.replace(commit, posts=()))
            tell("finished", thread)
            lease = await self._store.journal.lease(thread)

    async def _open(self, lease: Lease) -> Lease:
        said = lease.prompt
        assert said is not None
        turn = TurnId(f"T-{said.key}")
        await self._store.journal.open_turn(lease, said, opening(turn, said))
        return msgspec.structs.replace(lease, open_turn=turn)

    async def _hang(self, lease: Lease) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(sys.stdin.readline)
                await self._store.journal.commit(lease, answer(lease.open_turn, "step of a zombie"))
        except StaleEpoch:
            tell("stale", lease.thread)
            self._mode = "finish"
            raise

    def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        tell(f"signal-{kind}-{turn}", thread)


async def main(url: str, mode: str) -> None:
    driver = await open_postgres(url, PoolSettings(connections_max=4))
    listener = Listener(address(url))
    engine = PostgresEngine(driver.pool, listener, SETTINGS)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(listener.run())
        tell("ready", ThreadId("-"))
        await engine.run(Worker(Store(driver, SystemClock()), mode))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
