"""Lifecycle of the process, and the status of its parts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import msgspec

from shoal.agents.registry import AgentRegistry, RuntimeInfo
from shoal.backend import Role
from shoal.connections import Connections
from shoal.kernel.ids import make_thread_id
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import Engine, Models, Sandbox
from shoal.models.catalog import model_names
from shoal.notices import Notices
from shoal.permissions.effects import in_words
from shoal.services import Services
from shoal.tools.executor import Executor
from shoal.tools.registry import Registry
from shoal.turn.context import ContextBuilder

State = Literal["starting", "running", "draining", "stopped"]
Work: TypeAlias = Callable[[], Awaitable[None]]


class Runtime(msgspec.Struct, eq=False):
    """State of the process during startup and shutdown. In the role `offline`, the state is always `stopped`.

    - `before_turns`: functions to await after the engine has started and before turns continue.
    - `before_ready`: functions to await before Shoal counts as running.
    """

    engine: Engine
    drain_seconds: float
    state: State = "starting"
    stopping: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    before_turns: list[Work] = msgspec.field(default_factory=list[Work])
    before_ready: list[Work] = msgspec.field(default_factory=list[Work])
    role: Role = "all"

    async def drain(self) -> None:
        """Stop accepting messages, and let running turns continue for up to `engine.drain_seconds`.

        Turns that are unfinished after that time continue at the next start.
        """
        self.state = "draining"
        self.stopping.set()
        await self.engine.drain(self.drain_seconds)


class Status(msgspec.Struct, eq=False):
    """Reports the status of all services. `servers` returns a description of each connected tool server."""

    services: Services
    servers: Callable[[], tuple[str, ...]] = tuple

    def info(self) -> RuntimeInfo:
        services = self.services
        agents, sandbox = services[AgentRegistry], services[Sandbox]
        default, lobby = agents.default(), make_thread_id("web", "lobby", "info")
        prompts = services[ContextBuilder].prompts
        skills = prompts.skills(default, lobby).found if default is not None else ()
        return RuntimeInfo(
            agents=tuple(agents.names()),
            tools=services[Registry].names(),
            skills=tuple(skill.name for skill in skills),
            model=agents.defaults.model,
            providers=tuple(services[LiveConfig].current.providers),
            models=len(model_names(services[Models])),
            platforms=tuple(services[Connections].adapters),
            sandbox=sandbox.name,
            isolated=sandbox.isolated,
            notes=tuple(services[Notices].notes),
            mcp=self.servers(),
            asks=in_words(services[Executor].situation),
        )
