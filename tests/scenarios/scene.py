"""The complete app on one platform, with ada and bob. The manual clock advances while a test waits."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from tests.scenarios.kit import in_time
from tests.scenarios.stands import FakeStand, File, Seen, Stand

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.connections import Connections
from shoal.kernel.clock import SystemClock
from shoal.kernel.events import Event
from shoal.kernel.ids import ThreadId
from shoal.kernel.ports import Tool
from shoal.permissions.access import AccessRules
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.database import empty_database
from shoal.testing.model import FakeModel
from shoal.testing.scenario import FakeModels
from shoal.tools.registry import Registry

T = TypeVar("T")

SECONDS_MAX = 60.0
"""Time limit for each wait, in real seconds."""
STEP_SECONDS = 0.5
PAUSE_SECONDS = 0.001
"""Clock step, small and slow enough for heartbeats and loopback answers to keep up."""


class Someone:
    """A person on the platform, who writes in their own conversation by default."""

    def __init__(self, scene: "Scene", user: str, channel: str) -> None:
        self.user = user
        self.channel = channel
        self.thread = scene.stand.thread(channel)
        self._scene = scene

    async def says(self, text: str, *, to: Seen | None = None, where: str = "", file: File | None = None) -> None:
        channel = to.channel if to is not None else where or self.channel
        await self._scene.stand.says(text, channel, self.user, to, file)

    async def sees(self, part: str, *, where: str = "") -> Seen:
        """Wait for a message that contains `part`. Previews do not count."""
        channel = where or self.channel

        def look() -> Seen | None:
            said = self._scene.stand.said()
            return next((seen for seen in said if seen.channel == channel and part in seen.text), None)

        return await self._scene.until(look)

    async def asks(self, line: str, *, where: str = "") -> str:
        return await self._scene.until(await self._scene.stand.asks(line, where or self.channel, self.user))

    async def clicks(self, part: str, label: str) -> None:
        seen = await self.sees(part)
        await self._scene.stand.clicks(seen, label, self.user)


class Scene:
    def __init__(self, app: Services, stand: Stand, model: FakeModel) -> None:
        self.app = app
        self.stand = stand
        self.model = model
        self.ada = self.person(stand.ada, stand.direct)
        self.bob = self.person(stand.bob, stand.harbour)

    def person(self, user: str, channel: str) -> Someone:
        return Someone(self, user, channel)

    async def until(self, look: Callable[[], T | None]) -> T:
        """Advance the clock until `look` returns a value."""

        async def looked() -> T | None:
            return look()

        return await self.comes(looked)

    async def comes(self, look: Callable[[], Coroutine[object, object, T | None]]) -> T:
        async with asyncio.timeout(SECONDS_MAX):
            while not (found := await in_time(self.stand.clock, look(), STEP_SECONDS)):
                await SystemClock().sleep(PAUSE_SECONDS)
        return found

    async def journal(self, thread: ThreadId | None = None) -> list[Event]:
        return await self.app[Store].journal.events(thread or self.ada.thread)

    async def happens(self, thread: ThreadId, kind: str, times: int = 1) -> Event:
        """Wait until the journal has `times` events of a type and return the last of them."""

        async def look() -> Event | None:
            found = [event for event in await self.journal(thread) if event.type == kind]
            return found[times - 1] if len(found) >= times else None

        return await self.comes(look)

    async def thread_of(self, seen: Seen) -> ThreadId:
        """Return the thread of a bot message. Waits until Shoal has recorded the message, because a test is faster
        than people.
        """
        prefix = self.stand.thread(seen.channel).rpartition(":")[0]
        return await self.comes(lambda: self.app[Store].outbox.thread_of(f"{prefix}:", seen.id))

    def texts(self, channel: str = "") -> list[str]:
        return [seen.text for seen in self.stand.said() if seen.channel == (channel or self.ada.channel)]


@asynccontextmanager
async def playing(
    stand: Stand,
    home: Path,
    model: FakeModel,
    *,
    profile: str = "open",
    tools: Iterable[Tool] = (),
    settings: Mapping[str, Mapping[str, object]] | None = None,
    strangers: bool = False,
    accounts: Sequence[Mapping[str, object]] = ({},),
) -> AsyncGenerator[Scene]:
    """Open the app on `home` with ada as its owner, and wait until it is connected.

    - `settings`: values that replace those of the default sections.
    - `strangers`: let everyone write, but trust only ada.
    - `accounts`: additional settings, one mapping per account.
    """
    owner = f"{stand.platform}:{stand.ada}"
    overrides: dict[str, dict[str, object]] = {
        "permissions": {"default_profile": profile, "approvers": [owner]},
        "sandbox": {"kind": "host"},
        "agents": {"managers": [owner]},
    }
    for section, values in (*stand.settings.items(), *(settings or {}).items()):
        overrides[section] = {**overrides.get(section, {}), **values}
    account = stand.account()
    if account:
        overrides["platforms"] = {
            stand.platform: [
                {**account, "owner": stand.ada, "allow": ["*" if strangers else stand.bob], **more} for more in accounts
            ]
        }
    access = stand.access() if isinstance(stand, FakeStand) else {}
    if strangers:
        access = {name: AccessRules(rules.owners, ("*",)) for name, rules in access.items()}
    parts = Overrides(
        clock=stand.clock, models=FakeModels(model), sandbox=HostSandbox(), adapters=stand.adapters, access=access
    )
    empty_database(home / "shoal.db")
    async with open_app(load_config(home, {}, overrides), parts) as app:
        for tool in tools:
            app[Registry].add(tool)
        scene = Scene(app, stand, model)
        await scene.until(lambda: stand.hears(app[Connections].adapters[stand.platform]))
        yield scene
