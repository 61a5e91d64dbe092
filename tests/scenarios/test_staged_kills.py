"""An accepted set of calls in a real process that is killed repeatedly while they run.

Each call reports to an outside service when it starts and when it acts, and waits for the response. The service
kills the process at one of these points, or after it has responded to the second report. Its own records survive the
kills.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import pytest
from tests import processes
from tests.postgres import empty
from tests.processes import Entry, Process, process

from shoal.kernel.crash_log import ENDED_TWICE
from shoal.kernel.events import INTERRUPTED
from shoal.testing.model import Call, FakeModel, Reply, Seen

pytestmark = pytest.mark.slow

Point: TypeAlias = Literal["begins", "acts", "answered"]
POINTS: tuple[Point, ...] = ("begins", "acts", "answered")
"""Before the effect, after it but before the call knows, and after the call knows."""
KILLS = 25
CALLS = [f"call-{number:02}" for number in range(1, KILLS + 3)]
THREAD = "web:lobby:harbour"
TOOL = '''
import asyncio
import os

from shoal import Traits, tool


@tool(Traits(effect="outward", can_stage=True, origin="own", changes="nothing", harm="message"))
async def send(to: str) -> str:
    """Send something to somebody."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["OUTSIDE_PORT"]))
    for point in ("begins", "acts"):
        writer.write(f"{point} {to}\\n".encode())
        await reader.readexactly(1)
    writer.close()
    return f"delivered to {to}"
'''


class Outside:
    """An outside service. It records each delivery and kills the process at the points in `kills`, in order."""

    def __init__(self, *kills: tuple[str, Point]) -> None:
        self.acted: list[str] = []
        self.killed: list[tuple[str, Point]] = []
        self.process: Process | None = None
        self._kills = list(kills)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                point, to = line.decode().split()
                if point == "acts":
                    self.acted.append(to)
                if self._kill(to, point):
                    break
                writer.write(b".")
                await writer.drain()
                if point == "acts" and self._kill(to, "answered"):
                    break
        writer.close()

    def _kill(self, to: str, point: str) -> bool:
        if (to, point) not in self._kills[:1]:
            return False
        assert self.process is not None
        self.process.popen.kill()
        self.killed.append(self._kills.pop(0))
        return True


class Ended(msgspec.Struct, frozen=True):
    """The state of a thread after its accepted calls have finished.

    - `events`: the journal.
    - `asked`: the approvals in order.
    - `starts`: the number of times that the process was started.
    """

    events: list[Entry]
    asked: list["Asked"]
    starts: int

    @property
    def results(self) -> list[str]:
        (effects,) = (event.turn for event in self.events if event.type == "effects_accepted")
        return [str(one.data["text"]) for one in self.events if (one.turn, one.type) == (effects, "tool_result")]


def script(seen: Seen) -> Reply | str:
    if any("Staged" in message.text for message in seen.messages):
        return "prepared"
    return Reply(calls=tuple(Call("send", f'{{"to": "{to}"}}') for to in CALLS))


def install(folder: Path, traits: str = "") -> None:
    """Install a package with the tool `send`. `traits` is source code for additional traits."""
    record = folder / "outside-1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1\n")
    (record / "entry_points.txt").write_text("[shoal.tools]\nsend = outside:send\n")
    (folder / "outside.py").write_text(TOOL.replace("can_stage", f"{traits}can_stage"))


class Asked(msgspec.Struct, frozen=True):
    state: str
    outcome: str
    item: Mapping[str, object]


def finished(life: Process) -> list[Entry]:
    return [event for event in life.events(THREAD) if event.type == "turn_finished"]


def asked(life: Process) -> list[Asked]:
    found = life.ask(f"/api/approvals?thread={THREAD}&pending=false&limit=1000")
    return sorted(msgspec.json.decode(found.body, type=list[Asked]), key=lambda one: int(str(one.item["number"])))


def begin(life: Process) -> None:
    life.says(THREAD, "write to everybody", "m1")
    processes.until(lambda: len(finished(life)) == 1)
    card = asked(life)[0].item["card"]
    assert life.ask(f"/api/approvals/{card}", {"decision": "allow"}).status == 200


def has_ended(life: Process) -> bool:
    """Wait until the accepted calls have finished or the process has exited. Return True if they have finished."""

    def is_settled() -> bool:
        with suppress(msgspec.DecodeError, HTTPException):  # the process may be killed while it sends a response
            return life.popen.poll() is not None or len(finished(life)) == 2
        return False

    processes.until(is_settled, 120)
    return life.popen.poll() is None


async def lived(folder: Path, outside: Outside, model: FakeModel, **more: str) -> Ended:
    """Run Shoal repeatedly, with `more` as additional settings, until the accepted calls have finished."""
    async with model.serve() as url, outside.listening() as port:
        settings = {
            "PYTHONPATH": str(folder / "packages"),
            "OUTSIDE_PORT": str(port),
            "SHOAL_MODEL__NAME": "fake/fake-1",
            "SHOAL_PROVIDERS__FAKE__KIND": "openai",
            "SHOAL_PROVIDERS__FAKE__BASE_URL": f"{url}/v1",
            "SHOAL_SANDBOX__KIND": "host",
            **more,
        }
        for starts in count(1):
            life = await asyncio.to_thread((running := process("run", folder / "home", settings)).__enter__)
            try:
                outside.process = life
                if starts == 1:
                    await asyncio.to_thread(begin, life)
                if await asyncio.to_thread(has_ended, life):
                    return Ended(life.events(THREAD), asked(life), starts)
            finally:
                await asyncio.to_thread(running.__exit__, None, None, None)
    raise AssertionError("not reached")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))])
def database(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings for each database. On PostgreSQL, the next process waits until the lease of the killed one expires."""
    if request.param == "sqlite":
        return {}
    url: str = request.getfixturevalue("postgres_database")
    empty(url)
    return {
        "DATABASE_URL": f"postgresql:///?{'&'.join(url.split())}",
        "SHOAL_ENGINE__HEARTBEAT_SECONDS": "0.2",
        "SHOAL_ENGINE__STALLED_SECONDS": "1",
    }


@pytest.mark.timeout(900)
async def test_an_accepted_set_survives_many_kills_of_a_real_process(tmp_path: Path, database: dict[str, str]) -> None:
    install(tmp_path / "packages")
    outside = Outside(*((to, POINTS[number % 3]) for number, to in enumerate(CALLS[1 : KILLS + 1])))
    model = FakeModel(script=script)
    ended = await lived(tmp_path, outside, model, **database)
    assert len(outside.killed) == KILLS
    assert ended.starts == KILLS + 1
    lost = {to for to, point in outside.killed if point == "begins"}
    assert outside.acted == [to for to in CALLS if to not in lost], "each at most once and in order; the others act"
    assert len(ended.results) == len(CALLS), "each has one result"
    results = dict(zip(CALLS, ended.results, strict=True))
    unknown = {to for to, result in results.items() if result == INTERRUPTED}
    cut_off = {to for to, point in outside.killed if point != "answered"}
    assert cut_off <= unknown <= {to for to, _ in outside.killed}
    assert all(result == f"delivered to {to}" for to, result in results.items() if to not in unknown)
    assert [call.outcome for call in ended.asked] == ["interrupted" if to in unknown else "ran" for to in CALLS]
    assert model.calls == 2, "no model is asked for the accepted calls"


@pytest.mark.timeout(300)
async def test_a_call_that_crashes_every_process_ends_the_set(tmp_path: Path) -> None:
    install(tmp_path / "packages", "idempotent=True, ")
    first, second, *rest = CALLS
    outside = Outside((second, "begins"), (second, "begins"), (second, "acts"))
    ended = await lived(tmp_path, outside, FakeModel(script=script))
    assert ended.starts == 4
    assert outside.acted == [first, second]
    assert [call.outcome for call in ended.asked] == ["ran", "stopped", *("not_run" for _ in rest)]
    assert ended.events[-1].data["reply"] == ENDED_TWICE
