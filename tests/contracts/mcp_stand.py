"""Runs a connection to an MCP server for a test that observes it."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.features.mcp.connection import McpConnection, McpState, Status
from shoal.features.mcp.pins import Pins
from shoal.features.mcp.settings import McpServerSettings
from shoal.features.mcp.transport import McpServer
from shoal.kernel.ports import Enclose, ToolContext, ToolOutput
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.tool import tool_context
from shoal.tools.registry import Registry

ODD = str(Path(__file__).with_name("mcp_odd_server.py"))
SECONDS_MAX = 60.0


def configured(name: str, command: str = "", *args: str, folder: Path = Path(), **settings: object) -> McpServer:
    return McpServer(name, McpServerSettings(command=command, args=args, **settings), folder)  # pyrefly: ignore[bad-argument-type]


def odd(folder: Path, *args: str, **settings: object) -> McpServer:
    return configured("odd", sys.executable, ODD, *args, folder=folder / "mcp" / "odd", **settings)


class Stand:
    """A connection with the states that it went through and the registry that it fills."""

    def __init__(self, folder: Path, server: McpServer, enclosure: Enclose | None, pins: Pins | None = None) -> None:
        self.clock = ManualClock()
        self.told: list[str] = []
        self.asked: list[str] = []
        self.registry = Registry()
        self.states: asyncio.Queue[McpState] = asyncio.Queue()
        self.context: ToolContext = tool_context(folder)
        self.connection = McpConnection(
            server,
            self.registry,
            self.clock,
            enclosure,
            pins=pins,
            notify=self.notify,
            on_change=self.states.put_nowait,
        )

    async def notify(self, text: str) -> None:
        """Record a notice to the owner. Confirmation requests are stored in `asked`."""
        (self.asked if "/mcp confirm" in text else self.told).append(text)

    def describe(self, name: str) -> str:
        tool = self.registry.get(name)
        return "" if tool is None else f"{tool.spec.description} {tool.spec.parameters}"

    async def becomes(self, status: Status) -> McpState:
        async with asyncio.timeout(SECONDS_MAX):
            state = await self.states.get()
        assert state.status == status, state
        return state

    async def call(self, name: str, arguments: str = "{}") -> ToolOutput:
        tool = self.registry.get(name)
        assert tool is not None, self.registry.names()
        async with asyncio.timeout(SECONDS_MAX):
            return await tool.prepare(arguments, self.context).run()


@asynccontextmanager
async def connected(
    folder: Path, server: McpServer, enclosure: Enclose | None = None, pins: Pins | None = None
) -> AsyncGenerator[Stand]:
    stand = Stand(folder, server, enclosure, pins)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stand.connection.run())
        yield stand
        running.cancel()
