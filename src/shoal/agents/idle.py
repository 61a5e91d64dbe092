"""Idle agents: when nothing happened in any thread of a channel for a while, its conversations are saved and cleared.

What an agent does in other channels does not count: nobody's window tells whether somebody else writes elsewhere.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Protocol

from shoal.agents.snapshots import Snapshots
from shoal.domain.agents import AgentSpec
from shoal.domain.children import is_child
from shoal.domain.clock import Clock
from shoal.domain.errors import Conflict, InvalidInput, NotFound
from shoal.domain.ids import channel_of
from shoal.domain.records import NewPost, Stretch
from shoal.domain.store import Store

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
SAVED = (
    "It has been quiet here for {minutes:g} minutes, so I saved our conversation and start afresh: {description}\n"
    "`/context restore {id}` brings it back."
)


class Names(Protocol):
    """The agents there are."""

    def names(self) -> Sequence[str]:
        """All of them."""
        ...

    def spec(self, name: str) -> AgentSpec:
        """One; raises InvalidInput for a broken file."""
        ...


class IdleWatch:
    """Watches the agents that set `idle_minutes`. `default` answers in threads that name no agent."""

    def __init__(
        self,
        store: Store,
        agents: Names,
        snapshots: Snapshots,
        clock: Clock,
        post: Callable[[NewPost], Awaitable[None]],
        default: str,
    ) -> None:
        self._store = store
        self._agents = agents
        self._snapshots = snapshots
        self._clock = clock
        self._post = post
        self._default = default

    async def run(self) -> None:
        """Look every minute, for ever."""
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            await self.check()

    async def check(self) -> int:
        """Save and clear what is idle now; returns how many threads."""
        count = 0
        for name in self._agents.names():
            try:
                minutes = self._agents.spec(name).idle_minutes
            except InvalidInput:  # a broken agent.toml is told where it is used
                continue
            if minutes > 0:
                count += await self._check_agent(name, minutes)
        return count

    async def _check_agent(self, name: str, minutes: float) -> int:
        threads = await self._store.snapshots.stretches([name, ""] if name == self._default else [name])
        since = self._clock.now() - timedelta(minutes=minutes)
        in_use = {channel_of(one.thread) for one in threads if one.busy or one.updated_at > since}
        idle = [one for one in threads if channel_of(one.thread) not in in_use and not is_child(one.thread)]
        return sum([await self._save(one, minutes) for one in idle])

    async def _save(self, stretch: Stretch, minutes: float) -> bool:
        try:
            saved = await self._snapshots.begin_anew(stretch.thread, "idle")
        except (Conflict, NotFound) as error:
            log.info("a thread is not idle after all", extra={"thread_id": stretch.thread, "why": str(error)})
            return False
        except OSError as error:
            log.warning("an idle conversation was not saved", extra={"thread_id": stretch.thread, "why": str(error)})
            return False
        if saved is None:
            return False
        text = SAVED.format(minutes=minutes, description=saved.description, id=saved.id)
        await self._post(NewPost(f"{saved.id}:idle", stretch.thread, text))
        return True
