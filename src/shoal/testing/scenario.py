"""Scenarios: the complete app with a scripted model and an in-memory chat, used the way people use it.

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
"""Number of event loop iterations to wait, after a database result, for the app's next request."""
MOMENT_SECONDS = 0.01
"""Maximum real time to wait for database activity before the next check."""
SECONDS_MAX = 60.0
"""Timeout for waits in a scenario, in real time."""


class FakeModels:
    """A `Models` that maps model names to fakes. A name that is missing from `named` uses `model`."""

    def __init__(
        self, model: FakeModel, *, named: Mapping[str, FakeModel] | None = None, context_tokens: int = 200_000
    ) -> None:
        self._default = model
        self._named = dict(named or {})
        self.context_tokens = context_tokens

    def route(self, name: str) -> Route:
        return Route(self._named.get(name, self._default), name, self.context_tokens)

    def usd(self, route: Route, usage: Usage) -> float | None:
        return None


class WatchedDriver(WrappedDriver):
    """A `Driver` that counts the scripts in flight. Tests use the counts to detect that the app is idle."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.begun = self.ended = 0
        self._moved = asyncio.Event()

    async def rests(self) -> None:
        """Wait until no script is in flight and no other script follows."""
        while True:
            begun = self.begun
            while self.ended != self.begun:
                await self.moves()
            for _ in range(PASSES):
                await asyncio.sleep(0)
            if self.begun == self.ended == begun:
                return

    async def moves(self) -> None:
        """Wait until a script ends, but at most MOMENT_SECONDS, because work may also start outside the database."""
        self._moved.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                await self._moved.wait()

    async def around(self, work: Awaitable[T]) -> T:
        self.begun += 1
        try:
            return await work
        finally:
            self.ended += 1
            self._moved.set()


class Person:
    """A person who writes in one thread of the fake platform. If `direct` is set, the thread is a private chat."""

    def __init__(self, world: "World", name: str, thread: str, channel: str, *, direct: bool) -> None:
        self.name = name
        self.direct = direct
        self.thread: ThreadId = make_thread_id(world.chat.platform, channel, thread)
        self._world = world
        self._channel = channel
        self._where = thread

    async def says(self, text: str, *, message_id: str = "") -> Receipt:
        chat, where = self._world.chat, self._where
        return await chat.says(self._channel, where, text, user=self.name, message_id=message_id, direct=self.direct)

    async def sees(self, part: str) -> Posted:
        """Wait for a message that contains `part`, and return it. Raises TimeoutError."""
        async with asyncio.timeout(SECONDS_MAX):
            return await self._world.chat.sees(self.thread, part)

    async def asks(self, text: str, *, roles: tuple[str, ...] = ()) -> str:
        chat, where = self._world.chat, self._where
        return await chat.asks(self._channel, where, text, user=self.name, roles=roles, direct=self.direct)

    async def steers(self, text: str) -> Receipt:
        clock = self._world.app[Clock]
        return await self._world.app[Orchestrator].send(
            Steer(self.thread, clock.new_id(), text, Author(self.name, trusted=True), clock.now())
        )

    async def follows_up(self, text: str) -> Receipt:
        """Queue a follow-up for the end of the running turn."""
        clock = self._world.app[Clock]
        return await self._world.app[Orchestrator].send(
            FollowUp(self.thread, clock.new_id(), text, Author(self.name, trusted=True), clock.now())
        )

    async def stops(self, *, everything: bool = False) -> Receipt:
        """Abort the running turn, like /stop. If `everything` is set, also empty the queue, like /stop all."""
        return await self._world.app[Orchestrator].send(Abort(self.thread, Author(self.name, trusted=True), everything))

    async def is_asked(self) -> Approval:
        """Wait until the thread has a pending approval, and return it."""
        await self._world.happens(self.thread, "approval_requested")
        approvals = await self._world.app[Store].approvals.search(thread=self.thread)
        return approvals[0]

    @property
    def asker(self) -> Asker:
        return Asker(trust="trusted", user=self.name, platform=self._world.chat.platform)

    async def decides(self, approval: ApprovalId, *, allow: bool, whole_thread: bool = False) -> str:
        """Click a button on an approval message. `whole_thread` also allows the same call later in the thread."""
        scope = "thread" if whole_thread else "once"
        return await self._world.app[Orchestrator].decide(approval, allow, self.asker, scope)


class World:
    """A running app with its fake chat, its model and its people. `ada` is a person in thread 1."""

    def __init__(self, app: Services, chat: FakeChat, model: FakeModel, driver: WatchedDriver | None = None) -> None:
        self.app = app
        self._driver = driver
        self.chat = chat
        self.model = model
        self.ada = self.person("ada", "1")

    def person(self, name: str, thread: str, channel: str = "harbour", *, direct: bool = False) -> Person:
        return Person(self, name, thread, channel, direct=direct)

    async def journal(self, thread: ThreadId | None = None) -> list[Event]:
        """Return the events of a thread, by default ada's."""
        return await self.app[Store].journal.events(thread or self.ada.thread)

    async def happens(self, thread: ThreadId, kind: str, times: int = 1) -> Event:
        """Wait until the journal contains `times` events of type `kind`, and return the last of them."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:  # a subscription ends when its reader may have missed an event
                with self.app[Hub].subscribe(thread) as coming:
                    events = [event for event in await self.journal(thread) if event.type == kind]
                    if len(events) >= times:
                        return events[times - 1]
                    async for item in coming:
                        if isinstance(item, Event) and item.type == kind:
                            break

    async def rests(self) -> None:
        """Wait until no database request is in flight and no other request follows."""
        assert self._driver is not None, "World.rests and World.is_quiet need a WatchedDriver"
        await self._driver.rests()

    async def is_quiet(self) -> None:
        """Wait until the app has no work left to do at the current time. See `quiet`."""
        assert self._driver is not None, "World.rests and World.is_quiet need a WatchedDriver"
        async with asyncio.timeout(SECONDS_MAX):
            await quiet(self.app, self._driver)

    async def types(self, thread: ThreadId | None = None) -> list[str]:
        """Return the types of the events in a thread, by default ada's."""
        return [event.type for event in await self.journal(thread)]


async def quiet(app: Services, driver: WatchedDriver) -> None:
    """Wait until no prompt, turn, post or database request is pending. A turn that waits for a person counts as
    pending."""
    store = app[Store]
    await driver.rests()
    while await store.inbox.waiting() or await store.registry.at_work(limit=1) or await store.outbox.depth():
        await driver.moves()
        await driver.rests()


async def replays_alike(app: Services, changes: Collection[DifferenceKind] = ()) -> None:
    """Rebuild every model request from the journals and assert that it equals the recorded request.

    `changes` lists the kinds of differences to ignore.
    """
    for info in await app[Store].journal.threads():
        today = Today(app[ContextBuilder], app[Models], app[Registry].every(), app[AgentRegistry].known)
        report = await replay_thread(app[Store].journal, info.thread, app[ContextBuilder].meter, today)
        differences = [difference for difference in report.differences if difference.kind not in changes]
        assert not differences, f"{info.thread}: {differences[0]}"
        events = [event for event in await app[Store].journal.events(info.thread, limit=10_000) if event.turn]
        marked = (event.data.asked for event in events if isinstance(event.data, AssistantSaid))
        assert all(marked), f"{info.thread}: a model call has no record of its request"


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
    """Open the app on `home` with a scripted model and an in-memory chat.

    - `models`: replaces `model`.
    - `access`: decides who may write and who is trusted.
    - `settings`: configuration sections, such as `{"turns": {"steps_max": 3}}`.
    - `wrap_driver`: wraps the database driver.
    - `file_clock`: sets the modification times of files.
    - `replays`: at the end, rebuild every model request from the journal and compare it with the recorded request.
    - `changes`: kinds of differences that this comparison ignores.

    Turns start without the usual pause for further messages, unless `settings` sets `mailbox.pause_seconds`.
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
