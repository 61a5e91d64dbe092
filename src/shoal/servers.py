"""Connects the MCP servers of a configuration."""

import asyncio
import logging
from collections.abc import Sequence

import anyio
import msgspec

from shoal.config import Config
from shoal.domain.clock import Clock, SystemClock
from shoal.domain.home import Home
from shoal.domain.settings import McpServerSettings
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.limits import CommandLimits
from shoal.store.store import Store
from shoal.tools.mcp.connection import McpConnection, McpState
from shoal.tools.mcp.pins import Pins, Tell
from shoal.tools.mcp.transport import McpServer
from shoal.tools.registry import Registry

log = logging.getLogger(__name__)

START_SECONDS = 5.0
"""How long a start waits for the servers' first answers."""


def make_pins(config: Config, home: Home, store: Store, clock: Clock) -> Pins:
    """What the owner allowed of the servers of [mcp] that are enabled."""
    servers = {name: mcp_server(name, server, home).identity for name, server in config.mcp.items() if server.enabled}
    return Pins(store.settings, store.audit, clock, servers)


def make_mcp(
    config: Config, home: Home, tools: Registry, clock: Clock, pins: Pins | None, tell: Tell | None = None
) -> list[McpConnection]:
    """A connection for each enabled server of [mcp]; nothing is imported or started here."""
    enclosure = _enclosure(config) if any(server.sandbox for server in config.mcp.values()) else None
    return [
        McpConnection(
            mcp_server(name, server, home), tools, clock, enclosure and enclosure.enclosed, pins=pins, tell=tell
        )
        for name, server in config.mcp.items()
        if server.enabled
    ]


def mcp_server(name: str, server: McpServerSettings, home: Home) -> McpServer:
    """[mcp.NAME]."""
    return McpServer(
        name=name,
        command=server.command,
        args=server.args,
        env={key: value.reveal for key, value in server.env.items()},
        url=server.url,
        headers={key: value.reveal for key, value in server.headers.items()},
        tools=server.tools,
        timeout_seconds=server.timeout_seconds,
        sandboxed=server.sandbox,
        folder=home.root / "mcp" / name,
    )


def _enclosure(config: Config) -> BubblewrapSandbox | None:
    """What can hold a server for as long as it runs: bubblewrap, without a limit of processor time."""
    wanted = config.sandbox
    if wanted.kind not in ("auto", "bubblewrap"):
        return None
    limits = msgspec.structs.replace(CommandLimits.of(wanted), cpu_seconds_max=0)
    return BubblewrapSandbox(limits, wanted.network)


async def settled(connections: Sequence[McpConnection], seconds: float = START_SECONDS) -> None:
    """Wait until each has had its first attempt, but no longer than this: a server that is slow comes later."""
    try:
        async with asyncio.timeout(seconds):
            for connection in connections:
                await connection.settled.wait()
    except TimeoutError:
        log.warning("MCP servers are slow to start; their tools come when they are there")


async def probe(config: Config, home: Home) -> list[McpState]:
    """Connect each enabled server once, see all that it offers, and let it go again; nothing is pinned by that."""
    logging.getLogger(McpConnection.__module__).setLevel(logging.CRITICAL)  # the caller tells all of it
    connections = make_mcp(config, home, Registry(), SystemClock(), None)
    states: list[McpState] = []
    async with anyio.create_task_group() as tasks:
        for connection in connections:
            tasks.start_soon(connection.run)
        for connection in connections:
            await connection.settled.wait()
            states.append(connection.state)
        tasks.cancel_scope.cancel()
    return states
