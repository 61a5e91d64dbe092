"""Subagents on two workers and one PostgreSQL database. The parent runs on one worker and the child on the other,
and one is killed.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.postgres import database
from tests.processes import Entry, Process, process
from tests.scenarios.delegation import cast, delegates
from tests.waiting import until

from shoal.sandbox.processes import identity_of
from shoal.testing.model import Call, FakeModel, Reply

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("postgres")]

PARENT = "web:lobby:sea"


class Cluster:
    """One `shoal serve` and two `shoal worker` processes, each of which runs one turn at a time. Commands record
    their worker.
    """

    def __init__(self, folder: Path, model: FakeModel, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        url = stack.enter_context(database())
        self._settings = {
            "SHOAL_MODEL__NAME": "fake/fake-1",
            "SHOAL_PROVIDERS__FAKE__KIND": "openai",
            "SHOAL_PROVIDERS__FAKE__BASE_URL": f"{model.url}/v1",
            "SHOAL_SANDBOX__KIND": "host",
            "SHOAL_PERMISSIONS__DEFAULT_PROFILE": "open",
            "SHOAL_ENGINE__HEARTBEAT_SECONDS": "0.5",
            "SHOAL_ENGINE__STALLED_SECONDS": "3",
            "SHOAL_ENGINE__CONCURRENCY": "1",
            "DATABASE_URL": "postgresql:///?" + "&".join(url.split()),
        }
        self.serve = self._process("serve", "serve")
        self.workers = {name: self._process("worker", name) for name in ("a", "b")}

    def _process(self, role: str, name: str) -> Process:
        return self._stack.enter_context(process(role, self._folder / name, self._settings))

    def restart(self, name: str) -> None:
        """Start a worker again in the home directory that it had when it was killed."""
        self.workers[name] = self._process("worker", name)

    def at_work(self) -> dict[str, tuple[str, int]]:
        """Return the worker and process id of each started command, by the command's name. Fails if a command ran
        twice.
        """
        lines = [line.split() for line in (self._folder / "marks").read_text().splitlines()]
        assert len({name for name, _, _ in lines}) == len(lines), "no command runs twice"
        return {name: (Path(folder).relative_to(self._folder).parts[0], int(pid)) for name, pid, folder in lines}

    def are_at_work(self, *names: str) -> bool:
        return (self._folder / "marks").exists() and self.at_work().keys() >= set(names)

    def children(self) -> list[str]:
        threads = json.loads(self.serve.ask("/api/threads?limit=100").body)
        rows = threads["threads"] if isinstance(threads, dict) else threads
        return [row["thread"] for row in rows if row["thread"].startswith("agent:")]

    def has_ended(self, thread: str) -> bool:
        return any(event.type == "turn_finished" for event in self.serve.events(thread))


def waits(folder: Path, name: str) -> Reply:
    """Return a call of a command that records its worker and process id and then waits for the file `go`."""
    command = f"echo {name} $$ $PWD >> {folder}/marks; while [ ! -e {folder}/go ]; do sleep 0.1; done"
    return Reply(calls=(Call("bash", json.dumps({"command": command})),))


@asynccontextmanager
async def cluster_of(folder: Path, model: FakeModel) -> AsyncGenerator[Cluster]:
    stack = ExitStack()
    await model.start()
    try:
        cluster = await asyncio.to_thread(Cluster, folder, model, stack)
        await asyncio.to_thread(cluster.serve.says, PARENT, "plan it", "1")
        yield cluster
    finally:
        await asyncio.to_thread(stack.close)
        await model.stop()


async def holds(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, condition)


def ends(events: list[Entry]) -> list[object]:
    return [event.data["outcome"] for event in events if event.type == "turn_finished"]


async def test_a_waiting_parent_is_notified_once_of_a_child_whose_worker_died(tmp_path: Path) -> None:
    model = cast(plan=[delegates("subagent", "dive deep"), "done"], dive=[waits(tmp_path, "child"), "pearls"])
    async with cluster_of(tmp_path, model) as cluster:
        await holds(lambda: cluster.are_at_work("child"))
        worker, pid = cluster.at_work()["child"]
        cluster.workers[worker].kill()
        events = await asyncio.to_thread(cluster.serve.turn_of, PARENT, "1")
        assert ends(events) == ["done"]
        (result,) = [event.data for event in events if event.type == "tool_result"]
        assert "pearls" in str(result["text"])
        (child,) = cluster.children()
        assert ends(cluster.serve.events(child)) == ["done"]
        assert cluster.at_work() == {"child": (worker, pid)}
        await asyncio.to_thread(cluster.restart, worker)
        await holds(lambda: not identity_of(pid))


async def test_a_child_survives_its_parents_worker_and_reports_once(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, both_at_work(tmp_path)) as cluster:
        at_work = await on_both(cluster)
        cluster.workers[at_work["parent"][0]].kill()
        (tmp_path / "go").touch()
        events = await asyncio.to_thread(cluster.serve.turn_of, PARENT, "1")
        (child,) = cluster.children()
        await holds(lambda: cluster.has_ended(child))
        assert ends(events) == ends(cluster.serve.events(child)) == ["done"]
        await holds(lambda: bool(told(cluster.serve.events(PARENT))))
        assert len(told(cluster.serve.events(PARENT))) == 1
        assert cluster.at_work() == at_work


async def test_stop_ends_the_tree_on_both_workers(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, both_at_work(tmp_path)) as cluster:
        at_work = await on_both(cluster)
        stopped = await asyncio.to_thread(cluster.serve.ask, f"/api/threads/{PARENT}/abort", {})
        assert stopped.status == 202
        (child,) = cluster.children()
        await holds(lambda: cluster.has_ended(PARENT) and cluster.has_ended(child))
        assert ends(cluster.serve.events(PARENT)) == ends(cluster.serve.events(child)) == ["aborted"]
        await holds(lambda: not any(identity_of(pid) for _, pid in at_work.values()))


def both_at_work(folder: Path) -> FakeModel:
    return cast(
        plan=[delegates("spawn", "dive deep"), waits(folder, "parent"), "done"],
        dive=[waits(folder, "child"), "pearls"],
        pearls=["done"],  # the parent, if it is notified of the child's end during its own turn
    )


async def on_both(cluster: Cluster) -> dict[str, tuple[str, int]]:
    await holds(lambda: cluster.are_at_work("parent", "child"))
    at_work = cluster.at_work()
    assert {worker for worker, _ in at_work.values()} == {"a", "b"}
    return at_work


def told(events: list[Entry]) -> list[Entry]:
    return [event for event in events if event.type == "user_message" and "pearls" in str(event.data["text"])]
