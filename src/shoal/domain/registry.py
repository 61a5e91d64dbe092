"""Which agents there are, which channels they are bound to, and what their threads do: the store's view of them."""

from datetime import datetime
from typing import Literal, NamedTuple, Protocol

import msgspec

from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.processes import Process


class AgentRow(msgspec.Struct, frozen=True):
    """An agent as the database knows it. `digest` is that of its agent.toml when it was last looked at."""

    name: str
    state: Literal["active", "destroyed"]
    digest: str
    created_at: datetime
    changed_at: datetime


class Binding(msgspec.Struct, frozen=True):
    """A channel and the agent that answers in it. `made`: the channel was made for the agent. `bound_by` is a person,
    PLATFORM:USER."""

    platform: str
    channel: str
    agent: str
    bound_by: str
    created_at: datetime
    made: bool = False

    @property
    def place(self) -> str:
        """PLATFORM:CHANNEL."""
        return f"{self.platform}:{self.channel}"


class Work(msgspec.Struct, frozen=True):
    """A thread with something to do, on whichever machine: its open turn and since when, or an empty one while its
    prompts wait. `asked` is what the turn answers, `trusted` where that has no words of anybody who is not trusted;
    `questions` to people are open; `queued` prompts wait behind."""

    thread: ThreadId
    agent: str
    turn: TurnId
    parent: str
    asked: str
    since: datetime | None
    steps: int
    questions: int
    queued: int
    trusted: bool


class Around(NamedTuple):
    """What an agent does now, on all machines: its threads with something to do and its running processes."""

    works: list[Work]
    processes: list[Process]


def servers_scope(platform: str) -> str:
    """The scope of the settings that hold the server of each channel of a platform's account."""
    return f"server:{platform}"


class Registry(Protocol):
    """The agents, their bindings and their work."""

    async def put(self, name: str, digest: str) -> bool:
        """Note that an agent is there, with this configuration; True when it was unknown or destroyed before."""
        ...

    async def retire(self, name: str) -> list[Binding]:
        """Note that an agent is destroyed and remove its bindings, which are returned, in one transaction."""
        ...

    async def all(self) -> list[AgentRow]:
        """Every agent there ever was, by name."""
        ...

    async def bind(self, binding: Binding) -> None:
        """Bind a channel; an earlier binding of it is replaced."""
        ...

    async def unbind(self, platform: str, channel: str) -> bool:
        """Remove a channel's binding; False when there is none."""
        ...

    async def bindings(self, limit: int = 10_000) -> list[Binding]:
        """The bindings, by platform and channel."""
        ...

    async def at_work(self, agent: str = "", limit: int = 100, *, within: str = "") -> list[Work]:
        """The agent's threads (empty: everybody's) that have something to do, the longest at work first.

        Only those whose ids begin with `within`, and the subagents that these called.
        """
        ...

    async def around(self, agent: str, limit: int, *, within: str = "") -> Around:
        """What the agent does, at most `limit` of each: its threads as by `at_work`, its processes newest first."""
        ...

    async def choices(self) -> dict[str, str]:
        """What was chosen for places (PLATFORM, PLATFORM@SERVER or PLATFORM:CHANNEL), as JSON; at most 10,000."""
        ...

    async def server_of(self, platform: str, channel: str) -> str:
        """The server that a channel belongs to, as its adapter noted it; empty for none."""
        ...

    async def choose(self, place: str, value: str) -> None:
        """Set a place's choices; an empty value forgets them."""
        ...
