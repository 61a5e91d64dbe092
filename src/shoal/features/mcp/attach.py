"""Connects MCP servers while Shoal runs, and tells the core of their tools."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.backend import Backend
from shoal.features.mcp.servers import McpServers
from shoal.features.mcp.settings import any_tool_of, servers_of
from shoal.kernel.live_config import LiveConfig
from shoal.running import Runtime, Status
from shoal.tools.registry import Registry

if TYPE_CHECKING:
    from shoal.services import Services


def attach(services: "Services") -> None:
    """Connect the servers, wait for their first answers at the start, and list them and the tools of those away."""
    servers, backend, live = services[McpServers], services[Backend], services[LiveConfig]
    for one in servers.connections:
        backend.begin(f"mcp {one.server.name}", one.run)
    services[Runtime].before_ready.append(servers.wait_ready)
    services[Status].servers = lambda: tuple(one.state.told for one in servers.connections)

    def away() -> Iterator[str]:
        configured = servers_of(live.current).items()
        return (any_tool_of(name) for name, one in configured if one.enabled and name not in servers.up)

    services[Registry].away = away
