"""A Shoal with triggers of every kind that all become due. It is killed at a chosen durable write.

`python -m tests.scenarios.trigger_life` reads one `Life` per line of standard input, as JSON. It runs each in a
forked child and prints the `Outcome` (see `shoal.testing.crash`).

A person and several programs create the triggers. After the kill, they repeat every request for which they got no
confirmation.
"""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import msgspec
from tests.waiting import until

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.service import TriggerService
from shoal.features.triggers.settings import HookSettings
from shoal.features.triggers.store import TriggerStore
from shoal.features.triggers.webhooks import Webhooks
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.secret import Secret
from shoal.net.connections import default_tls
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.driver import Driver
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.chat import OPEN, FakeChat, Posted
from shoal.testing.clock import ManualClock
from shoal.testing.crash import World, serve_forked
from shoal.testing.faults import KillingDriver, Side
from shoal.testing.model import Call, FakeModel, Reply, Seen
from shoal.testing.scenario import FakeModels, WatchedDriver, quiet
from shoal.threads.orchestrator import Orchestrator

SECONDS_MAX = 60.0
START = datetime(2026, 1, 5, 9, 59, tzinfo=UTC)
HOUR = START + timedelta(minutes=1)
AGAIN = HOUR + timedelta(seconds=10)
"""Time of the restart after the kill. Triggers created after it are due at LATER."""
LATER = HOUR + timedelta(minutes=1)
STARTING_SECONDS = 25.0
"""Work that starts shortly after startup has started by then, and one-time checks are over."""
SECRET = "a secret that both of us know"
OPENING_KINDS = ("opening-cron", "opening-file", "opening-hook")
"""Triggers for a channel, where each one's post opens a thread."""
KINDS = ("cron", "once", "file-now", "file-once", "file-cron", "plan", "hook", "heartbeat", *OPENING_KINDS)


class Life(msgspec.Struct, frozen=True):
    """One run.

    - `at`: the durable write at which the process is killed, or 0 for no kill.
    - `database`: the URL of a PostgreSQL database, or empty for SQLite in the home directory.
    """

    home: str
    world: str
    side: Side = "before"
    at: int = 0
    database: str = ""


def thread_of(kind: str) -> ThreadId:
    return make_thread_id("fake", "harbour", kind)


class Shore:
    """The people and programs around Shoal, and the model."""

    def __init__(self, life: Life) -> None:
        self.world = World(Path(life.world))
        self.clock = ManualClock(AGAIN if self.world.read("begun") else START)
        self.world.note("begun")
        self.at = LATER if self.clock.now() == AGAIN else HOUR

    def answer(self, seen: Seen) -> Reply:
        """Play the model: create the schedule, send a message for the heartbeat, and otherwise repeat the prompt."""
        asked = seen.user_text.split("<context>")[0].strip()
        if "make a plan" in asked:
            return self._planned(seen)
        kind = "heartbeat" if "This is your heartbeat" in asked else asked.partition("it is time: ")[2].split()[0]
        self.world.note("model", what=kind, round=seen.rounds)
        if kind == "heartbeat" and not seen.rounds:
            told = {"to": thread_of(kind), "text": f"did {kind}"}
            return Reply(calls=(Call("message", json.dumps(told)),))
        return Reply("[SILENT]" if kind == "heartbeat" else f"did {kind}")

    def _planned(self, seen: Seen) -> Reply:
        """Create the schedule once. If the result of the call is unknown, list the schedules first."""
        last = seen.messages[-1]
        made = last.role == "tool" and "it is time: plan" in last.text
        if made:
            return Reply("planned")
        if last.role == "tool" and "Nothing is scheduled" not in last.text:
            return Reply(calls=(Call("schedule", '{"do": "list"}'),))
        wanted = {"do": "create", "when": self.at.isoformat(), "text": "it is time: plan"}
        return Reply(calls=(Call("schedule", json.dumps(wanted)),))

    def show(self, posted: Posted) -> None:
        self.world.note("chat", key=posted.post.key, text=posted.markdown)

    async def arrange(self, app: Services, address: str) -> None:
        made = {trigger.spec.text for trigger in await app[TriggerStore].all()}
        self._write_files(app[Home].events, made)
        for kind, schedule in (("cron", f"{self.at.minute} {self.at.hour} * * *"), ("once", self.at.isoformat())):
            if f"it is time: {kind}" not in made:
                how = "one-shot" if kind == "once" else "periodic"
                await app[TriggerService].add(
                    NewTrigger(
                        how,
                        schedule,
                        f"it is time: {kind}",
                        thread=thread_of(kind),
                        author=Author("owner", trusted=True),
                        tainted_by="",
                    )
                )
        if "it is time: opening-cron" not in made:
            daily = f"{self.at.minute} {self.at.hour} * * *"
            spec = NewTrigger(
                "periodic",
                daily,
                "it is time: opening-cron",
                platform="fake",
                channel="harbour",
                author=Author("owner", trusted=True),
                tainted_by="",
            )
            await app[TriggerService].add(spec)
        asked = Prompt(
            thread_of("plan"), "ask", "make a plan", Author("ada", trusted=True), self.clock.now(), message_id="ask"
        )
        await app[Orchestrator].send(asked)
        async with httpx2.AsyncClient(verify=default_tls(), base_url=address, timeout=SECONDS_MAX) as client:
            headers = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": "delivery 1"}
            for name in ("ci", "room"):
                assert (await client.post(f"/hooks/{name}", content=b"{}", headers=headers)).status_code == 202

    def _write_files(self, events: Path, made: set[str]) -> None:
        """Write each event file once, because files survive a kill. Rewrite a periodic one that was due before
        Shoal read it.
        """
        events.mkdir(parents=True, exist_ok=True)
        written = {line["what"] for line in self.world.read("files")}
        cron = f"{self.at.minute} {self.at.hour} * * *"
        for kind, more in (
            ("file-now", {"type": "immediate"}),
            ("opening-file", {"type": "immediate", "threadId": "", "adapterId": "fake", "channelId": "harbour"}),
            ("file-once", {"type": "one-shot", "schedule": self.at.isoformat()}),
            ("file-cron", {"type": "periodic", "schedule": cron}),
        ):
            if kind not in written or (kind == "file-cron" and f"it is time: {kind}" not in made):
                event = {"threadId": thread_of(kind), "text": f"it is time: {kind}", **more}
                events.joinpath(f".{kind}").write_text(json.dumps(event))
                events.joinpath(f".{kind}").rename(events / f"{kind}.json")
                self.world.note("files", what=kind)

    def has_seen(self, *kinds: str) -> Callable[[], bool]:
        return lambda: {f"did {kind}" for kind in kinds} <= {line["text"] for line in self.world.read("chat")}


async def live(life: Life) -> int:
    shore, drivers = Shore(life), list[tuple[KillingDriver, WatchedDriver]]()

    def wrap(driver: Driver) -> Driver:
        killing = KillingDriver(driver, life.side, life.at)
        drivers.append((killing, WatchedDriver(killing)))
        return drivers[0][1]

    chat = FakeChat(on_post=shore.show, clock=shore.clock)
    parts = Overrides(
        clock=shore.clock,
        models=FakeModels(FakeModel(script=shore.answer)),
        sandbox=HostSandbox(),
        adapters=(chat,),
        access={chat.platform: OPEN},
        wrap_driver=wrap,
    )
    overrides: dict[str, object] = {
        "permissions": {"default_profile": "open"},
        "engine": {"drain_seconds": 1.0, "heartbeat_seconds": 0.1, "stalled_seconds": 0.5},
        "triggers": {"heartbeat_minutes": 60},
        "database": {"url": life.database},
    }
    home = Path(life.home)
    home.joinpath("data").mkdir(parents=True, exist_ok=True)
    home.joinpath("data", "HEARTBEAT.md").write_text("- keep watch\n")
    hook = HookSettings(secret=Secret(detail=SECRET), template="it is time: hook", thread=thread_of("hook"))
    room = HookSettings(secret=Secret(detail=SECRET), template="it is time: opening-hook", channel="fake:harbour")
    options = WebOptions(token="t" * 40, port=0)
    async with (
        asyncio.timeout(SECONDS_MAX),
        open_app(load_config(home, {}, overrides), parts) as app,
        serve(app, options) as address,
    ):
        app[Webhooks].update(ci=hook, room=room)
        await shore.arrange(app, address)
        await _come(app, shore, drivers[0][1])
    return drivers[0][0].writes


async def _come(app: Services, shore: Shore, driver: WatchedDriver) -> None:
    await quiet(app, driver)
    await shore.clock.advance(STARTING_SECONDS)
    events = app[Home].events
    await asyncio.to_thread(until, shore.has_seen("file-now", "hook", "opening-file", "opening-hook"))
    events.joinpath(".look").touch()  # every change in the folder triggers an immediate scan
    for name in ("file-now", "opening-file"):
        await asyncio.to_thread(until, (events / "done" / f"{name}.json").exists)
    for at in (HOUR, LATER):
        if at > shore.clock.now():
            await quiet(app, driver)
            await _stored(app, "file-once", "file-cron")
            await shore.clock.jump_to(at)
    await asyncio.to_thread(until, shore.has_seen(*KINDS))
    events.joinpath(".look").touch()
    await asyncio.to_thread(until, (events / "done" / "file-once.json").exists)
    await quiet(app, driver)


async def _stored(app: Services, *kinds: str) -> None:
    wanted = {f"file:{kind}.json" for kind in kinds}
    while not wanted <= {trigger.spec.name for trigger in await app[TriggerStore].all()}:
        pass


if __name__ == "__main__":
    serve_forked(Life, live)
