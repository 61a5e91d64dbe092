"""`shoal mcp`: list, show, confirm, allow and deny tools of MCP servers."""

import click

from shoal.features.mcp.connection import CHECK_SECONDS
from shoal.features.mcp.definitions import DIGEST_CHARS
from shoal.features.mcp.kinds import KINDS, WORDS, Kind
from shoal.features.mcp.routes import McpServerView, McpToolView, McpView
from shoal.kernel.errors import InvalidInput, NotFound
from shoal.surfaces.cli.client import call_api, get, path_part
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import echo, print_records, printable, when
from shoal.text.order import natural

mcp = click.Group(
    "mcp",
    help=(
        "Review MCP tools. Confirm once per server which tools read and which write, then allow or deny later changes."
    ),
    epilog="Example: shoal mcp confirm mail",
)


@command(mcp, "list", example="shoal mcp list")
def list_mcp(context: CommandContext, as_json: bool) -> None:
    """List MCP tools. Tools that need your decision are listed first."""
    rows = [
        {
            "server": server.server,
            "name": tool.name,
            "state": tool.state,
            "kind": tool.kind or "",
            "digest": tool.digest[:DIGEST_CHARS],
            "since": when(server.since),
        }
        for server in _servers(context)
        for tool in server.tools
    ]
    waiting_first = sorted(
        rows, key=lambda row: (row["state"] == "allowed", bool(row["kind"]), natural(str(row["name"])))
    )
    shown = [
        (row["name"], row["state"], row["kind"] or "not confirmed", row["digest"], row["since"])
        for row in waiting_first
    ]
    head = ("tool", "state", "kind", "digest", "pinned (UTC)")
    print_records(rows, as_json, head, shown, "Shoal has not connected to an MCP server yet.")


@command(mcp, "show", example="shoal mcp show mcp_home_GetLiveContext")
def show_mcp(context: CommandContext, name: str) -> None:
    """Show the pending change to tool NAME as a diff. If no change is pending, show the allowed definition."""
    tool = next((one for server in _servers(context) for one in server.tools if one.name == name), None)
    if tool is None:
        raise NotFound(f"No MCP tool named {name[:80]!r}. Run `shoal mcp list` to see the servers and their tools.")
    if tool.state == "allowed":
        print(f"{tool.name} is allowed with this definition:\n")
        print(printable(tool.text))
        return
    print(
        f"{tool.name} is {tool.state}. Lines with - are from the allowed definition, lines with + from the server's "
        "current definition:\n"
    )
    print(printable(tool.change))
    print(f"\nTo allow the current definition: shoal mcp allow {tool.name} {tool.digest[:DIGEST_CHARS]}")
    if tool.proposed is not None:
        print(f"Proposed kind, from the tool's annotations: {WORDS[tool.proposed]}. Use --kind to choose another kind.")


@command(mcp, "confirm", example="shoal mcp confirm mail --write archive")
@click.option("--read", multiple=True, metavar="TOOL", help="A tool that only reads the server's own data.")
@click.option("--read-outside", multiple=True, metavar="TOOL", help="A tool that reads data outside this machine.")
@click.option("--write", multiple=True, metavar="TOOL", help="A tool that changes something.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def confirm_mcp(
    context: CommandContext,
    server: str,
    read: tuple[str, ...],
    read_outside: tuple[str, ...],
    write: tuple[str, ...],
    yes: bool,
) -> None:
    """Confirm which tools of SERVER read and which write. After that, read-only tools run without asking."""
    known = next((server_view for server_view in _servers(context) if server_view.server == server), None)
    if known is None:
        raise NotFound(
            f"Shoal has not connected to an MCP server named {server[:80]!r} yet. Run `shoal mcp list` to see the "
            "servers and their tools."
        )
    chosen: dict[str, Kind] = {}
    options: tuple[tuple[Kind, tuple[str, ...]], ...] = (
        ("read", read),
        ("read_outside", read_outside),
        ("write", write),
    )
    for kind, names in options:
        for name in names:
            if chosen.setdefault(name, kind) != kind:
                raise InvalidInput(f"{name[:80]!r} is passed to more than one option. Pass each tool only once.")
    _print_kinds(known, chosen)
    if not yes and not click.confirm("Confirm?"):
        echo("Nothing was changed.")
        return
    body = {"digest": known.digest, "kinds": chosen}
    confirmed = call_api(context, "POST", f"/api/mcp-servers/{path_part(server)}/confirm", body, into=McpServerView)
    later = f"The confirmation takes effect within {CHECK_SECONDS:.0f} seconds if the server is connected."
    print(f"Confirmed. {'It is in force now.' if confirmed.in_use else later}")


@command(mcp, "allow", example="shoal mcp allow mcp_home_GetLiveContext 5f2c9a")
@click.option("--kind", type=click.Choice(KINDS), help="The tool's kind, if its annotations are wrong.")
def allow_mcp(context: CommandContext, name: str, digest: str, kind: str | None) -> None:
    """Allow agents to use tool NAME with the definition DIGEST. 'mcp list' and 'mcp show' print the digest."""
    call_api(context, "POST", f"/api/mcp/{path_part(name)}", {"decision": "allow", "digest": digest, "kind": kind})
    print(f"Allowed. Agents see the new definition of {printable(name)} within a minute.")


@command(mcp, "deny", example="shoal mcp deny mcp_home_GetLiveContext 5f2c9a")
def deny_mcp(context: CommandContext, name: str, digest: str) -> None:
    """Deny the definition DIGEST of tool NAME. A changed tool keeps its allowed definition, and a new tool stays
    hidden. Shoal does not ask about DIGEST again.
    """
    call_api(context, "POST", f"/api/mcp/{path_part(name)}", {"decision": "deny", "digest": digest})
    print("Denied. A changed tool keeps its allowed definition, and a new tool stays hidden.")


def _servers(context: CommandContext) -> list[McpServerView]:
    return get(context, "/api/mcp", McpView).servers


def _print_kinds(server: McpServerView, chosen: dict[str, Kind]) -> None:
    prefix = f"mcp_{server.server}_"
    by_kind: dict[Kind, list[McpToolView]] = {kind: [] for kind in KINDS}
    for tool in server.tools:
        kind: Kind | None = chosen.get(tool.name) or chosen.get(tool.name.removeprefix(prefix)) or tool.proposed
        if tool.state == "allowed" and kind is not None:
            by_kind[kind].append(tool)
    print(f"Tools of the MCP server {server.server} by kind:\n")
    for kind, tools in by_kind.items():
        if tools:
            names = ", ".join(sorted((tool.name.removeprefix(prefix) for tool in tools), key=natural))
            print(f"{len(tools)} {WORDS[kind]}: {printable(names)}")
    print()
