"""API endpoints for MCP servers, their tools, and decisions about the tools."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from shoal.features.mcp.definitions import DIGEST_CHARS
from shoal.features.mcp.kinds import Kind
from shoal.features.mcp.pins import Pin, Pins, ServerPins, State
from shoal.features.mcp.servers import McpServers
from shoal.features.mcp.setup import McpServerState, McpSetup, NewMcpServer
from shoal.surfaces.http.endpoints import ADMINS, READERS, Removed, Routes
from shoal.threads.principals import Principal

routes = Routes()
Digest = Annotated[str, msgspec.Meta(min_length=DIGEST_CHARS, max_length=64)]


class McpToolView(msgspec.Struct, frozen=True):
    """An MCP tool. Tools in the state `changed` or `new` wait for a decision.

    `digest`: digest of the current definition.
    `change`: diff between the allowed and the offered definition.
    `text`: allowed definition.
    `kind`: kind that the owner confirmed, or null.
    `proposed`: confirmed kind, or the kind that the tool's annotations suggest.
    """

    name: str
    state: State
    digest: str
    change: str
    text: str
    kind: Kind | None
    proposed: Kind | None


class McpServerView(msgspec.Struct, frozen=True):
    """A server that has connected at least once.

    `since`: time at which its tools were pinned.
    `offer`: summary of the tools by kind.
    `unconfirmed`: number of tools whose kind is not confirmed.
    `digest`: digest that a confirmation must include.
    `in_use`: whether this process is connected to the server. If so, a confirmation takes effect immediately.
    """

    server: str
    since: datetime
    tools: list[McpToolView]
    offer: str
    unconfirmed: int
    digest: str
    in_use: bool


class McpView(msgspec.Struct, frozen=True):
    """Enabled servers that have connected at least once."""

    servers: list[McpServerView]


class McpDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decision on the definition whose digest begins with `digest`.

    If the owner allows the definition, the decision also confirms `kind`, or the proposed kind if `kind` is null.
    """

    decision: Literal["allow", "deny"]
    digest: Digest
    kind: Kind | None = None


class McpConfirmation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Confirmation of the kinds of a server's tools. `digest` is the digest of the server view that the owner saw.
    `kinds` overrides kinds by tool name.
    """

    digest: Digest
    kinds: dict[str, Kind] = {}


class McpSwitch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to enable the server."""

    enabled: bool


def _tool_view(pin: Pin) -> McpToolView:
    definition = pin.offered or pin.allowed
    digest = definition.digest if definition is not None else ""
    text = pin.allowed.text if pin.allowed is not None else ""
    change = pin.change if pin.offered is not None else ""
    return McpToolView(pin.name, pin.state, digest, change, text, pin.kind, pin.proposed)


def _server_view(pins: ServerPins, servers: McpServers) -> McpServerView:
    tools, in_use = [*map(_tool_view, pins.tools.values())], pins.server in servers.up
    return McpServerView(pins.server, pins.since, tools, pins.offer, len(pins.unconfirmed), pins.digest, in_use)


@routes("GET /api/mcp", READERS)
async def mcp(pins: Pins, servers: McpServers) -> McpView:
    """List the tools of MCP servers with their kind and state: allowed, changed, new or denied."""
    return McpView([_server_view(server, servers) for server in await pins.listed()])


@routes("POST /api/mcp/{name}", ADMINS)
async def decide_mcp(pins: Pins, by: Principal, name: str, body: McpDecision) -> McpToolView:
    """Allow or deny a tool's new definition. Returns 404 if no change is pending and 409 if the server has changed the
    definition since.
    """
    is_owner = by.asker.trust == "owner"
    allow = body.decision == "allow"
    return _tool_view(await pins.decide(name, body.digest, allow, by.person, body.kind, confirms=is_owner))


@routes("POST /api/mcp-servers/{name}/confirm", ADMINS, owner_only=True)
async def confirm_mcp(
    pins: Pins, servers: McpServers, by: Principal, name: str, body: McpConfirmation
) -> McpServerView:
    """Confirm the kinds of a server's tools. If this process is connected to the server, the kinds take effect before
    the call returns. Returns 404 for a server that has not connected yet or a tool with a pending change, and 409 if
    the tools have changed since.
    """
    return _server_view(await pins.confirm(name, body.digest, body.kinds, by.person), servers)


@routes("GET /api/mcp-servers", READERS)
async def mcp_servers(setup: McpSetup, by: Principal) -> tuple[McpServerState, ...]:
    """List the configured MCP servers with their status and tools. The owner also gets the servers' arguments, without
    secrets.
    """
    return setup.servers(for_owner=by.asker.trust == "owner")


@routes("POST /api/mcp-servers", ADMINS, status=201, owner_only=True)
async def add_mcp_server(setup: McpSetup, by: Principal, body: NewMcpServer) -> McpServerState:
    """Add an MCP server after a successful connection. Returns 400 with the reason if the connection fails and 409 if
    the name is taken.
    """
    return await setup.add(body, by.person)


@routes("PATCH /api/mcp-servers/{name}", ADMINS, owner_only=True)
async def switch_mcp_server(setup: McpSetup, by: Principal, name: str, body: McpSwitch) -> McpServerState:
    """Enable or disable an MCP server."""
    return await setup.switch(name, body.enabled, by.person)


@routes("DELETE /api/mcp-servers/{name}", ADMINS, owner_only=True)
async def remove_mcp_server(setup: McpSetup, by: Principal, name: str) -> Removed:
    """Remove an MCP server from the configuration."""
    await setup.remove(name, by.person)
    return Removed(True)
