"""`shoal mcp`: tools of MCP servers."""

import click

from shoal.features.mcp.routes import McpToolView, McpView
from shoal.kernel.errors import NotFound
from shoal.surfaces.cli.client import call_api, get, path_part
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import print_records, printable, when
from shoal.text.order import natural
from shoal.tools.mcp.definitions import DIGEST_CHARS

mcp = click.Group(
    "mcp",
    help="Tools of MCP servers. The first description of a tool is allowed; a later change waits for you.",
    epilog="Example: shoal mcp list",
)


@command(mcp, "list", example="shoal mcp list")
def list_mcp(context: CommandContext, as_json: bool) -> None:
    """List the tools, those that wait for you first."""
    rows = [
        {
            "server": server.server,
            "name": one.name,
            "state": one.state,
            "digest": one.digest[:DIGEST_CHARS],
            "since": when(server.since),
        }
        for server in get(context, "/api/mcp", McpView).servers
        for one in server.tools
    ]
    waiting_first = sorted(rows, key=lambda row: (row["state"] == "allowed", natural(row["name"])))
    shown = [(row["name"], row["state"], row["digest"], row["since"]) for row in waiting_first]
    head = ("tool", "state", "digest", "pinned (UTC)")
    print_records(rows, as_json, head, shown, "No MCP server was connected yet.")


@command(mcp, "show", example="shoal mcp show mcp_home_GetLiveContext")
def show_mcp(context: CommandContext, name: str) -> None:
    """Show what a server changed about tool NAME, as a diff, or what is allowed."""
    tools: list[McpToolView] = [one for server in get(context, "/api/mcp", McpView).servers for one in server.tools]
    found = next((one for one in tools if one.name == name), None)
    if found is None:
        raise NotFound(f"There is no tool {name[:80]!r} of an MCP server. `shoal mcp list` shows them.")
    if found.state == "allowed":
        print(f"{found.name} is allowed as its server offers it:\n")
        print(printable(found.text))
        return
    print(f"{found.name} is {found.state}; - is what you allowed, + what the server offers:\n")
    print(printable(found.change))
    print(f"\nTo allow it: shoal mcp allow {found.name} {found.digest[:DIGEST_CHARS]}")


@command(mcp, "allow", example="shoal mcp allow mcp_home_GetLiveContext 5f2c9a")
def allow_mcp(context: CommandContext, name: str, digest: str) -> None:
    """Let agents use tool NAME as DIGEST describes it. 'mcp list' and 'mcp show' print the digest."""
    call_api(context, "POST", f"/api/mcp/{path_part(name)}", {"decision": "allow", "digest": digest})
    print(f"Allowed. Agents are told of {printable(name)} as its server offers it now, within a minute.")


@command(mcp, "deny", example="shoal mcp deny mcp_home_GetLiveContext 5f2c9a")
def deny_mcp(context: CommandContext, name: str, digest: str) -> None:
    """Keep tool NAME as it was allowed, or hidden if it is new, and do not ask about DIGEST again."""
    call_api(context, "POST", f"/api/mcp/{path_part(name)}", {"decision": "deny", "digest": digest})
    print("Denied. Agents go on with what you allowed before.")
