"""Connections to all enabled MCP servers."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio

from shoal.features.mcp.connection import McpConnection, McpState, log
from shoal.features.mcp.pins import Pins, SendNotice
from shoal.features.mcp.settings import McpServerSettings, servers_of
from shoal.features.mcp.transport import McpServer
from shoal.kernel.clock import Clock
from shoal.kernel.home import Home
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import Enclose
from shoal.notices import Notices
from shoal.running import Runtime
from shoal.sandbox.choose import server_enclosure
from shoal.tools.registry import Registry

if TYPE_CHECKING:
    from shoal.services import Services

START_SECONDS = 5.0
"""Maximum time that startup waits for the first connection attempts of all servers, in seconds."""


class McpServers:
    """Connections to all enabled MCP servers. Creating this object neither imports the MCP client nor starts a
    server.
    """

    def __init__(
        self,
        servers: Mapping[str, McpServerSettings],
        home: Home,
        registry: Registry,
        clock: Clock,
        enclose: Enclose | None,
        pins: Pins | None = None,
        notify: SendNotice | None = None,
    ) -> None:
        self.connections: list[McpConnection] = []
        self._make = partial(McpConnection, registry=registry, clock=clock, enclose=enclose, pins=pins, notify=notify)
        self._folder = home.root / "mcp"
        for name, server in servers.items():
            if server.enabled:
                self.add(name, server)

    @classmethod
    def of(cls, services: "Services") -> "McpServers":
        config, role = services[LiveConfig].current, services[Runtime].role
        servers: Mapping[str, McpServerSettings] = servers_of(config) if role not in ("serve", "offline") else {}
        enclose, notify = server_enclosure(config.sandbox), services[Notices].notify_owner
        return cls(servers, services[Home], services[Registry], services[Clock], enclose, services[Pins], notify)

    def add(self, name: str, server: McpServerSettings) -> McpConnection:
        """Create a connection to another server. The caller must run it."""
        made = self._make(McpServer(name, server, self._folder / name))
        self.connections.append(made)
        return made

    def drop(self, name: str) -> None:
        """Remove the connection to a server. The caller must close the connection first."""
        for connection in [connection for connection in self.connections if connection.server.name == name]:
            self.connections.remove(connection)
            connection.release()

    @property
    def up(self) -> frozenset[str]:
        return frozenset(connection.server.name for connection in self.connections if connection.state.status == "up")

    async def wait_ready(self, seconds: float = START_SECONDS) -> None:
        try:
            async with asyncio.timeout(seconds):
                for connection in self.connections:
                    await connection.has_tried.wait()
        except TimeoutError:
            log.warning("waiting for MCP servers timed out; their tools appear when they are ready")

    async def probe(self) -> list[McpState]:
        """Connect to each server once, list its tools, and disconnect. Without `pins`, nothing is stored."""
        states, level = list[McpState](), log.level
        log.setLevel(logging.CRITICAL)  # the caller reports the results
        try:
            async with anyio.create_task_group() as tasks:
                for connection in self.connections:
                    tasks.start_soon(connection.run)
                for connection in self.connections:
                    await connection.has_tried.wait()
                    states.append(connection.state)
                tasks.cancel_scope.cancel()
        finally:
            log.setLevel(level)
        return states
