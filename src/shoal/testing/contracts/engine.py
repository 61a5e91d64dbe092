"""The contract of `shoal.kernel.ports.Engine`, for a single process and for many workers.

class TestMyEngine(EngineContract):
    @pytest.fixture
    async def cluster(self): ...  # yields a new Cluster and stops it after the test
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from shoal.kernel.ids import ThreadId, TurnId, make_thread_id
from shoal.kernel.ports import Engine, SignalKind, ThreadHandler

WAIT_SECONDS = 20.0
"""Timeout for waits that must succeed. No result depends on it."""
DRAIN_SECONDS = 10.0


class Cluster(Protocol):
    """Engines that share one backend. Each acts as a separate process. `workers_max` is the maximum number of
    engines.
    """

    workers_max: int

    async def start(self, handler: ThreadHandler, *, concurrency: int = 100) -> Engine:
        """Start an engine with this handler. It runs in the background until it is drained or the test ends."""
        ...


def named(name: str) -> ThreadId:
    return make_thread_id("web", "lobby", name)


class Recorder:
    """A thread handler that records its calls. A test can hold threads and release them."""

    def __init__(self) -> None:
        self.starts: list[ThreadId] = []
        self.ends: list[ThreadId] = []
        self.cancelled: list[ThreadId] = []
        self.signals: list[tuple[ThreadId, SignalKind, TurnId]] = []
        self.running: Counter[ThreadId] = Counter()
        self.most_at_once: Counter[ThreadId] = Counter()
        self.most_running = 0
        self._held: dict[ThreadId, asyncio.Event] = {}
        self._changed = asyncio.Condition()

    def hold(self, held: ThreadId) -> None:
        """Make advances of this thread wait until `let_go` is called."""
        self._held[held] = asyncio.Event()

    def let_go(self, held: ThreadId) -> None:
        """Release a held thread."""
        self._held.pop(held).set()

    async def advance(self, thread: ThreadId) -> None:
        """Record an advance, and wait while the thread is held."""
        self.starts.append(thread)
        self.running[thread] += 1
        self.most_at_once[thread] = max(self.most_at_once[thread], self.running[thread])
        self.most_running = max(self.most_running, self.running.total())
        await self._tell()
        try:
            if thread in self._held:
                await self._held[thread].wait()
            self.ends.append(thread)
        except asyncio.CancelledError:
            self.cancelled.append(thread)
            raise
        finally:
            self.running[thread] -= 1
            await self._tell()

    def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        self.signals.append((thread, kind, turn))
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._tell()))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds` returns True. It is evaluated after each recorded call. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(holds)

    async def started(self, asked: ThreadId, times: int = 1) -> None:
        """Wait until the thread has started to advance `times` times."""
        await self.until(lambda: self.starts.count(asked) >= times)

    async def ended(self, asked: ThreadId, times: int = 1) -> None:
        """Wait until the thread has finished advancing `times` times."""
        await self.until(lambda: self.ends.count(asked) >= times)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def quiet(engine: Engine, recorder: Recorder, name: str = "probe") -> None:
    """Wait until all earlier wakes are processed.

    The engine processes wakes in order, so this function wakes another thread and waits for it.
    """
    await engine.wake(named(name))
    await recorder.ended(named(name))
    await recorder.until(lambda: recorder.running.total() == 0)


class EngineContract:
    """Contract suite for an engine. Subclass it and provide a `cluster` fixture."""

    async def test_a_wake_advances_the_thread_once(self, cluster: Cluster) -> None:
        recorder = Recorder()
        engine = await cluster.start(recorder)
        await engine.wake(named("a"))
        await recorder.ended(named("a"))
        await quiet(engine, recorder)
        assert recorder.starts == [named("a"), named("probe")]

    async def test_several_wakes_of_a_waiting_thread_are_one_run(self, cluster: Cluster) -> None:
        recorder = Recorder()
        recorder.hold(named("a"))
        engine = await cluster.start(recorder, concurrency=1)
        await engine.wake(named("a"))
        await recorder.started(named("a"))
        for _ in range(5):
            await engine.wake(named("b"))
        recorder.let_go(named("a"))
        await quiet(engine, recorder)
        assert recorder.starts.count(named("b")) == 1

    async def test_wakes_of_a_running_thread_make_it_run_once_more(self, cluster: Cluster) -> None:
        """A message may arrive after the first run has read the mailbox."""
        recorder = Recorder()
        recorder.hold(named("a"))
        engine = await cluster.start(recorder)
        await engine.wake(named("a"))
        await recorder.started(named("a"))
        for _ in range(5):
            await engine.wake(named("a"))
        recorder.let_go(named("a"))
        await recorder.ended(named("a"), 2)
        await quiet(engine, recorder)
        assert recorder.starts.count(named("a")) == 2
        assert recorder.most_at_once[named("a")] == 1

    async def test_a_thread_never_runs_twice_at_the_same_time(self, cluster: Cluster) -> None:
        recorder = Recorder()
        engines = [await cluster.start(recorder) for _ in range(cluster.workers_max)]
        names = [named(f"t{number}") for number in range(5)]
        for _ in range(10):
            await asyncio.gather(*(engine.wake(name) for engine in engines for name in names))
        await quiet(engines[0], recorder)
        assert max(recorder.most_at_once.values()) == 1
        assert set(recorder.ends) >= set(names)

    async def test_threads_run_concurrently(self, cluster: Cluster) -> None:
        recorder = Recorder()
        engine = await cluster.start(recorder)
        names = [named(f"t{number}") for number in range(20)]
        for name in names:
            recorder.hold(name)
            await engine.wake(name)
        await recorder.until(lambda: recorder.running.total() == len(names))
        for name in names:
            recorder.let_go(name)
        await quiet(engine, recorder)

    async def test_concurrency_is_limited_to_the_slots(self, cluster: Cluster) -> None:
        recorder = Recorder()
        engine = await cluster.start(recorder, concurrency=3)
        names = [named(f"t{number}") for number in range(10)]
        for name in names:
            recorder.hold(name)
            await engine.wake(name)
        await recorder.until(lambda: recorder.running.total() == 3)
        for name in names:
            recorder.let_go(name)
        await quiet(engine, recorder)
        assert recorder.most_running == 3
        assert set(recorder.ends) >= set(names)

    async def test_a_signal_reaches_the_running_thread(self, cluster: Cluster) -> None:
        recorder = Recorder()
        recorder.hold(named("a"))
        engines = [await cluster.start(recorder) for _ in range(cluster.workers_max)]
        await engines[0].wake(named("a"))
        await recorder.started(named("a"))
        for number, engine in enumerate(engines):
            expected = (named("a"), "abort", TurnId(f"T{number}"))
            await engine.signal(*expected)
            await recorder.until(lambda expected=expected: expected in recorder.signals)
        recorder.let_go(named("a"))
        await quiet(engines[0], recorder)

    async def test_a_signal_needs_no_slot(self, cluster: Cluster) -> None:
        """Steers, aborts and decisions never wait for running turns."""
        recorder = Recorder()
        recorder.hold(named("a"))
        engine = await cluster.start(recorder, concurrency=1)
        await engine.wake(named("a"))
        await engine.wake(named("b"))
        await recorder.started(named("a"))
        await engine.signal(named("a"), "steer", TurnId("T1"))
        await recorder.until(lambda: bool(recorder.signals))
        recorder.let_go(named("a"))
        await quiet(engine, recorder)

    async def test_an_engine_is_ready_until_it_drains(self, cluster: Cluster) -> None:
        recorder = Recorder()
        engine = await cluster.start(recorder)
        await engine.started()
        assert engine.is_ready
        await engine.drain(0)
        assert not engine.is_ready

    async def test_a_running_thread_can_be_confirmed(self, cluster: Cluster) -> None:
        recorder = Recorder()
        recorder.hold(named("a"))
        engine = await cluster.start(recorder)
        await engine.wake(named("a"))
        await recorder.started(named("a"))
        await engine.confirm(named("a"))
        assert engine.running == 1
        recorder.let_go(named("a"))
        await quiet(engine, recorder)

    async def test_draining_lets_running_threads_finish(self, cluster: Cluster) -> None:
        recorder = Recorder()
        recorder.hold(named("a"))
        engine = await cluster.start(recorder)
        await engine.wake(named("a"))
        await recorder.started(named("a"))
        draining = asyncio.gather(engine.drain(DRAIN_SECONDS))
        await asyncio.sleep(0)
        await engine.wake(named("b"))
        recorder.let_go(named("a"))
        await draining
        assert recorder.ends == [named("a")]
        assert recorder.starts == [named("a")]

    async def test_draining_cancels_threads_that_do_not_finish(self, cluster: Cluster) -> None:
        recorder = Recorder()
        recorder.hold(named("a"))
        engine = await cluster.start(recorder)
        await engine.wake(named("a"))
        await recorder.started(named("a"))
        await engine.drain(0)
        assert recorder.cancelled == [named("a")]
        assert recorder.running.total() == 0
