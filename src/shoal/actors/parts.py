"""What every actor is given: the ports and the machinery of turns, wired once by the app."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from shoal.domain.agents import AgentSpec, TurnLimits
from shoal.domain.clock import Clock
from shoal.domain.files import STILL_FOLDERS, Folders
from shoal.domain.ids import ThreadId
from shoal.domain.messages import Caller, Prompt
from shoal.domain.ports import LiveHub
from shoal.domain.store import Store
from shoal.permissions.access import NO_LINKS, Audiences, People
from shoal.turn.context import ContextBuilder
from shoal.turn.loop import TurnLoop
from shoal.turn.session import Courier, Projector, Session


class AgentSource(Protocol):
    """Finds who answers."""

    async def resolve(self, name: str, thread: ThreadId) -> AgentSpec:
        """The named agent, or the one that the thread's channel is bound to, or the default one."""
        ...

    async def meant(self, thread: ThreadId, name: str) -> str:
        """Whom a message is for that names this agent or none; empty for the thread's own. Raises StoreError."""
        ...

    def with_model(self, agent: AgentSpec, model: str) -> AgentSpec:
        """The agent with another model for one turn; the same object when nothing differs."""
        ...


class Family(Protocol):
    """The threads that the calls of others begin."""

    async def stop(self, thread: ThreadId) -> int:
        """Stop a thread's children that are at work; returns how many. Each of them stops its own."""
        ...

    async def ended(self, caller: Caller) -> None:
        """Told after the end of a child's turn is durable."""
        ...


class Parts(msgspec.Struct, frozen=True):
    """Shared by all actors.

    `poke_sender` tells delivery that the outbox has something for a thread, `courier` takes the end of a turn there.
    Once `stopping`, no further turn is opened. `settle` tidies a thread up that has nothing to do; it may be cancelled
    at any await. `backfill` journals what was said before a prompt and not seen; `take_files` puts the prompt's
    attachments in place, `expect_files` begins that. `audiences` tells who reads along; `folders` brings directories to
    this machine and from it.
    """

    store: Store
    hub: LiveHub
    clock: Clock
    agents: AgentSource
    context: ContextBuilder
    loop: TurnLoop
    limits: TurnLimits
    projector: Projector
    poke_sender: Callable[[ThreadId], None]
    courier: Courier
    stopping: Callable[[], bool]
    settle: Callable[[Session], Awaitable[None]]
    backfill: Callable[[Session, Prompt], Awaitable[None]]
    take_files: Callable[[Prompt], Awaitable[Prompt]]
    expect_files: Callable[[Prompt], None]
    children: Family
    audiences: Audiences
    people: People = NO_LINKS
    folders: Folders = STILL_FOLDERS
