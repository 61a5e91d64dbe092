"""Save and clear the conversations of idle channels.

Each channel is checked separately. Otherwise a saved conversation would reveal whether people write in other channels.
Heartbeats do not count as activity and are never saved.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from shoal.agents.registry import AgentRegistry
from shoal.backend import Backend
from shoal.features.snapshots.records import Snapshot
from shoal.features.snapshots.service import ConversationSnapshots
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, InvalidInput, NotFound
from shoal.kernel.ids import HEARTBEAT_THREAD, channel_of, is_child
from shoal.kernel.records import ContextWindow, NewPost
from shoal.maintenance import Upkeep
from shoal.tools.executor import LiveToolServices

if TYPE_CHECKING:
    from shoal.services import Services

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
SAVED = (
    "After {minutes:g} min of inactivity, I saved and cleared {what}: {description}\n`/context restore {id}` "
    "restores it."
)


def attach(services: "Services") -> None:
    backend, agents = services[Backend], services[AgentRegistry]
    if backend.is_front:
        post = services[LiveToolServices].post
        idle = IdleWatch(agents, services[ConversationSnapshots], services[Clock], post)
        backend.add_single("idle agents", services[Upkeep].keep("idle agents", idle.run))


class IdleWatch(msgspec.Struct, eq=False):
    """Service that saves and clears idle conversations of agents that set `idle_minutes`."""

    agents: AgentRegistry
    snapshots: ConversationSnapshots
    clock: Clock
    post: Callable[[NewPost], Awaitable[None]]

    async def run(self) -> None:
        while True:
            await self.check()
            await self.clock.sleep(CHECK_SECONDS)

    async def check(self) -> int:
        """Save and clear the threads of idle channels. Return the number of saved threads."""
        count = 0
        for name in self.agents.names():
            try:
                minutes = self.agents.spec(name).idle_minutes
            except InvalidInput:  # a broken agent.toml is reported where it is used
                continue
            if minutes <= 0:
                continue
            windows = await self.snapshots.rows.windows([name, ""] if name == self.agents.defaults.agent else [name])
            threads = [window for window in windows if window.thread != HEARTBEAT_THREAD]
            since = self.clock.now() - timedelta(minutes=minutes)
            in_use = {channel_of(thread.thread) for thread in threads if thread.busy or thread.updated_at > since}
            idle = [
                thread for thread in threads if channel_of(thread.thread) not in in_use and not is_child(thread.thread)
            ]
            for channel in dict.fromkeys(channel_of(window.thread) for window in idle):
                count += await self._save([window for window in idle if channel_of(window.thread) == channel], minutes)
        return count

    async def _save(self, windows: Sequence[ContextWindow], minutes: float) -> int:
        saved_windows = [
            (window.thread, saved) for window in windows if (saved := await self._start_over(window)) is not None
        ]
        if saved_windows:
            thread, newest = saved_windows[0]
            what = "our conversation" if len(saved_windows) == 1 else f"{len(saved_windows)} conversations"
            others = "" if len(saved_windows) == 1 else " `/context history` lists the others."
            text = SAVED.format(minutes=minutes, what=what, description=newest.description, id=newest.id[-6:])
            await self.post(NewPost(f"{newest.id}:idle", thread, f"{text}{others}"))
        return len(saved_windows)

    async def _start_over(self, window: ContextWindow) -> Snapshot | None:
        extra = {"thread_id": window.thread}
        try:
            return await self.snapshots.start_over(window.thread, "idle")
        except (Conflict, NotFound) as error:
            log.info("thread no longer idle", extra={**extra, "why": str(error)})
        except OSError as error:
            log.warning("saving idle conversation failed", extra={**extra, "why": str(error)})
        return None
