"""Connections to MCP servers, their tools, and the owner's confirmation of those tools."""

from shoal.feature import CliCommand, Feature

FEATURE = Feature(
    name="mcp",
    settings={"mcp": "settings:SERVERS"},
    attach="attach:attach",
    expects="settings:tool_patterns",
    routes="routes:routes",
    paths=("/api/mcp", "/api/mcp-servers"),
    chat_commands="commands:chat_commands",
    cli=(
        CliCommand(
            "mcp",
            "List, show, confirm, allow and deny MCP tools.",
            "cli:mcp",
            job="Decide who may do what",
        ),
    ),
    doctor="doctor:look_at_servers",
)
