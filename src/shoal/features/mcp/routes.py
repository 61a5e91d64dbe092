"""Calls about the tools of MCP servers: what the owner allowed, and what a server offers instead."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from shoal.surfaces.http.endpoints import ADMINS, READERS, Routes
from shoal.threads.principals import Principal
from shoal.tools.mcp.definitions import DIGEST_CHARS
from shoal.tools.mcp.pins import Pin, Pins, State

routes = Routes()


class McpToolView(msgspec.Struct, frozen=True):
    """A tool. `changed` and `new` wait for a decision: `digest` names what is offered, `change` shows it as a diff.
    `text` is the definition that is allowed."""

    name: str
    state: State
    digest: str
    change: str
    text: str


class McpServerView(msgspec.Struct, frozen=True):
    """A server that was connected before: its tools, and since when they are pinned."""

    server: str
    since: datetime
    tools: list[McpToolView]


class McpView(msgspec.Struct, frozen=True):
    """The servers in use."""

    servers: list[McpServerView]


class McpDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is decided on the definition whose digest begins so."""

    decision: Literal["allow", "deny"]
    digest: Annotated[str, msgspec.Meta(min_length=DIGEST_CHARS, max_length=64)]


def _mcp_view(pin: Pin) -> McpToolView:
    definition = pin.offered or pin.allowed
    digest = definition.digest if definition is not None else ""
    text = pin.allowed.text if pin.allowed is not None else ""
    return McpToolView(pin.name, pin.state, digest, pin.change if pin.offered is not None else "", text)


@routes("GET /api/mcp", READERS)
async def mcp(pins: Pins) -> McpView:
    """The tools of MCP servers: allowed, changed, new or denied."""
    found = await pins.listed()
    return McpView([McpServerView(one.server, one.since, [*map(_mcp_view, one.tools.values())]) for one in found])


@routes("POST /api/mcp/{name}", ADMINS)
async def decide_mcp(pins: Pins, by: Principal, name: str, body: McpDecision) -> McpToolView:
    """Allow or deny what a server offers for a tool; 404 when nothing waits, 409 when it has changed since."""
    return _mcp_view(await pins.decide(name, body.digest, body.decision == "allow", by.person))
