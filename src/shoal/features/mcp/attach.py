"""Register MCP servers with the core."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.backend import Backend
from shoal.features.mcp.settings import any_tool_of, servers_of
from shoal.kernel.live_config import LiveConfig
from shoal.running import Runtime, Status
from shoal.tools.registry import Registry

if TYPE_CHECKING:
    from shoal.features.mcp.servers import McpServers
    from shoal.services import Services


def attach(services: "Services") -> None:
    """Connect to the configured servers. If none are configured, startup does not import the MCP client."""
    live = services[LiveConfig]

    def servers() -> "McpServers":
        from shoal.features.mcp.servers import McpServers

        return services[McpServers]

    def away() -> Iterator[str]:
        configured = servers_of(live.current).items()
        return (any_tool_of(name) for name, server in configured if server.enabled and name not in servers().up)

    services[Registry].away = away
    services[Status].servers = lambda: tuple(connection.state.summary for connection in servers().connections)
    if servers_of(live.current):
        for connection in servers().connections:
            services[Backend].begin(f"mcp {connection.server.name}", connection.run)
        services[Runtime].before_ready.append(servers().wait_ready)
