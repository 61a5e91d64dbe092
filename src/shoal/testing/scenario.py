"""Scenarios: the whole app with a scripted model and an in-memory chat, from the users' perspective.

async with scenario(tmp_path, answers("Hello")) as world:
    await world.ada.says("hi")
    await world.ada.sees("Hello")
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from shoal.agents.registry import AgentRegistry
from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.delivery.hub import Hub
from shoal.kernel.clock import Clock
from shoal.kernel.commands import ChatCommand
from shoal.kernel.events import AssistantSaid, Event
from shoal.kernel.hooks import Hooks
from shoal.kernel.ids import ApprovalId, ThreadId, make_thread_id
from shoal.kernel.messages import Abort, Author, FollowUp, Receipt, Steer, Usage
from shoal.kernel.permissions import Asker
from shoal.kernel.ports import Completion, Models, Route, Sandbox, Tool
from shoal.kernel.records import Approval
from shoal.permissions.access import AccessRules
from shoal.services import Services
from shoal.store.driver import Driver
from shoal.store.store import Store
from shoal.testing.chat import OPEN, FakeChat, Posted
from shoal.testing.database import empty_database
from shoal.testing.faults import WrappedDriver
from shoal.testing.model import FakeModel
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.registry import Registry
from shoal.tools.taint_spans import SYSTEM_FILE_CLOCK, FileClock
from shoal.turn.context import ContextBuilder
from shoal.turn.replay import DifferenceKind, Today, replay_thread

T = TypeVar("T")

PASSES = 25
"""Iterations of the event loop between a database answer and the next request that it causes."""
MOMENT_SECONDS = 0.01
"""Real time without database activity before it is checked again."""
SECONDS_MAX = 60.0
"""Real time that a scenario waits for something before it fails."""


class FakeModels:
    """Maps model names to fakes. Unlisted names go to the first one."""

    def __init__(
        self, model: FakeModel, *, named: Mapping[str, FakeModel] | None = None, context_tokens: int = 200_000
    ) -> None:
        self._default = model
        self._named = dict(named or {})
        self.context_tokens = context_tokens

    def route(self, name: str) -> Route:
        return Route(self._named.get(name, self._default), name, self.context_tokens)

    def usd(self, route: Route, usage: Usage) -> float | None:
        """Return an unknown price."""
        return None


class WatchedDriver(WrappedDriver):
    """Tracks how much of a driver's work is in flight."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.begun = self.ended = 0
        self._moved = asyncio.Event()

    async def rests(self) -> None:
        """Wait until nothing is in flight and no further work follows at once."""
        while True:
            begun = self.begun
            while self.ended != self.begun:
                await self.moves()
            for _ in range(PASSES):
                await asyncio.sleep(0)
            if self.begun == self.ended == begun:
                return

    async def moves(self) -> None:
        """Wait until some work has ended, or briefly, as its cause may be elsewhere."""
        self._moved.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                await self._moved.wait()

    async def around(self, work: Awaitable[T]) -> T:
        """Count a script."""
        self.begun += 1
        try:
            return await work
        finally:
            self.ended += 1
            self._moved.set()


class Person:
    """A person in a thread of the fake platform. With `direct`, only they and the agent read it."""

    def __init__(self, world: "World", name: str, thread: str, channel: str, *, direct: bool) -> None:
        self.name = name
        self.direct = direct
        self.thread: ThreadId = make_thread_id(world.chat.platform, channel, thread)
        self._world = world
        self._channel = channel
        self._where = thread

    async def says(self, text: str, *, message_id: str = "") -> Receipt:
        """Write a message."""
        chat, where = self._world.chat, self._where
        return await chat.says(self._channel, where, text, user=self.name, message_id=message_id, direct=self.direct)

    async def sees(self, part: str) -> Posted:
        """Wait for a message that contains `part`."""
        async with asyncio.timeout(SECONDS_MAX):
            return await self._world.chat.sees(self.thread, part)

    async def asks(self, text: str, *, roles: tuple[str, ...] = ()) -> str:
        """Give a command and return its answer."""
        chat, where = self._world.chat, self._where
        return await chat.asks(self._channel, where, text, user=self.name, roles=roles, direct=self.direct)

    async def steers(self, text: str) -> Receipt:
        """Send a message to the running turn."""
        clock = self._world.app[Clock]
        return await self._world.app[Orchestrator].send(
            Steer(self.thread, clock.new_id(), text, Author(self.name, trusted=True), clock.now())
        )

    async def follows_up(self, text: str) -> Receipt:
        """Send a message for the end of the running turn."""
        clock = self._world.app[Clock]
        return await self._world.app[Orchestrator].send(
            FollowUp(self.thread, clock.new_id(), text, Author(self.name, trusted=True), clock.now())
        )

    async def stops(self, *, everything: bool = False) -> Receipt:
        """/stop, or /stop all."""
        return await self._world.app[Orchestrator].send(Abort(self.thread, Author(self.name, trusted=True), everything))

    async def is_asked(self) -> Approval:
        """Wait until an approval of the thread is open, and return it."""
        await self._world.happens(self.thread, "approval_requested")
        approvals = await self._world.app[Store].approvals.search(thread=self.thread)
        return approvals[0]

    @property
    def asker(self) -> Asker:
        """The person, as the platform knows them."""
        return Asker(trust="trusted", user=self.name, platform=self._world.chat.platform)

    async def decides(self, approval: ApprovalId, *, allow: bool, whole_thread: bool = False) -> str:
        """Click a button of an approval card."""
        scope = "thread" if whole_thread else "once"
        return await self._world.app[Orchestrator].decide(approval, allow, self.asker, scope)


class World:
    """A scenario's running app and its people."""

    def __init__(self, app: Services, chat: FakeChat, model: FakeModel, driver: WatchedDriver | None = None) -> None:
        self.app = app
        self._driver = driver
        self.chat = chat
        self.model = model
        self.ada = self.person("ada", "1")

    def person(self, name: str, thread: str, channel: str = "harbour", *, direct: bool = False) -> Person:
        """Return a person in a thread."""
        return Person(self, name, thread, channel, direct=direct)

    async def journal(self, thread: ThreadId | None = None) -> list[Event]:
        """Return the events of a thread, by default ada's."""
        return await self.app[Store].journal.events(thread or self.ada.thread)

    async def happens(self, thread: ThreadId, kind: str, times: int = 1) -> Event:
        """Wait until the journal has this many events of this type; return the last."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:  # a subscription ends when its reader may have missed something
                with self.app[Hub].subscribe(thread) as coming:
                    events = [event for event in await self.journal(thread) if event.type == kind]
                    if len(events) >= times:
                        return events[times - 1]
                    async for item in coming:
                        if isinstance(item, Event) and item.type == kind:
                            break

    async def rests(self) -> None:
        """Wait until no database request is in flight, and none follows at once."""
        assert self._driver is not None, "only where its driver is watched"
        await self._driver.rests()

    async def is_quiet(self) -> None:
        """Wait until nothing is left to do before time advances; see `quiet`."""
        assert self._driver is not None, "only where its driver is watched"
        async with asyncio.timeout(SECONDS_MAX):
            await quiet(self.app, self._driver)

    async def types(self, thread: ThreadId | None = None) -> list[str]:
        """Return the types of a thread's events."""
        return [event.type for event in await self.journal(thread)]


async def quiet(app: Services, driver: WatchedDriver) -> None:
    """Wait until there is no prompt, turn or post to work on, and no database request. A turn that waits for a
    person counts as work."""
    store = app[Store]
    await driver.rests()
    while await store.inbox.waiting() or await store.registry.at_work(limit=1) or await store.outbox.depth():
        await driver.moves()
        await driver.rests()


async def replays_alike(app: Services, changes: Collection[DifferenceKind] = ()) -> None:
    """Rebuild every request of every thread from its journal, and check that it equals the sent one, except for
    differences of the kinds in `changes`."""
    for info in await app[Store].journal.threads():
        today = Today(app[ContextBuilder], app[Models], app[Registry].every(), app[AgentRegistry].known)
        report = await replay_thread(app[Store].journal, info.thread, app[ContextBuilder].meter, today)
        differences = [difference for difference in report.differences if difference.kind not in changes]
        assert not differences, f"{info.thread}: {differences[0]}"
        events = [event for event in await app[Store].journal.events(info.thread, limit=10_000) if event.turn]
        marked = (event.data.asked for event in events if isinstance(event.data, AssistantSaid))
        assert all(marked), f"{info.thread}: a model call left no mark of its request"


@asynccontextmanager
async def scenario(
    home: Path,
    model: FakeModel,
    *,
    models: Models | None = None,
    profile: str = "open",
    access: AccessRules = OPEN,
    tools: Iterable[Tool] = (),
    commands: Iterable[ChatCommand] = (),
    hooks: Mapping[str, Hooks] | None = None,
    clock: Clock | None = None,
    settings: Mapping[str, object] | None = None,
    on_complete: Completion | None = None,
    sandbox: Sandbox | None = None,
    chat: FakeChat | None = None,
    wrap_driver: Callable[[Driver], Driver] = lambda driver: driver,
    file_clock: FileClock = SYSTEM_FILE_CLOCK,
    replays: bool = True,
    changes: Collection[DifferenceKind] = (),
) -> AsyncGenerator[World]:
    """Open the app on `home`.

    `models` replace `model`. `settings` are configuration sections, e.g. `{"turns": {"steps_max": 3}}`. `access` sets
    who may speak and who is trusted. `wrap_driver` wraps the database driver. `file_clock` sets the times of file
    changes. Further messages are not waited for unless `settings` enable that. Unless `replays` is False, every request
    must be reproduced exactly at the end, except for the kinds of differences in `changes`, such as tools.
    """
    chat = chat or FakeChat(clock=clock)
    overrides: dict[str, object] = {
        "permissions": {"default_profile": profile},
        "sandbox": {"kind": "host"},
        "mailbox": {"pause_seconds": 0},
        "timezone": "UTC",
        **(settings or {}),
    }
    empty_database(home / "shoal.db")
    config = load_config(home, {}, overrides)
    drivers: list[WatchedDriver] = []

    def watch(driver: Driver) -> Driver:
        drivers.append(WatchedDriver(wrap_driver(driver)))
        return drivers[0]

    parts = Overrides(
        clock=clock,
        models=models or FakeModels(model),
        sandbox=sandbox,
        adapters=(chat,),
        access={chat.platform: access},
        tools=tuple(tools),
        commands=tuple(commands),
        hooks=hooks or {},
        on_complete=on_complete,
        wrap_driver=watch,
        file_clock=file_clock,
    )
    async with open_app(config, parts) as app:
        yield World(app, chat, model, drivers[0])
        if replays:
            await replays_alike(app, changes)
