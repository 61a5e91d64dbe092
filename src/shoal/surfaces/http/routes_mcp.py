"""Calls about the tools of MCP servers: what the owner allowed of them, and what a server offers instead."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import ADMINS, READERS, Answer, Endpoint, caller, json_answer
from shoal.surfaces.http.parse import path_part, read_json
from shoal.tools.mcp.pins import DIGEST_CHARS, Pin, State


class McpToolView(msgspec.Struct, frozen=True):
    """A tool. `changed` and `new` wait for a decision: `digest` names what is offered, `change` shows it as a diff."""

    name: str
    state: State
    digest: str
    change: str


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


def view_of(pin: Pin) -> McpToolView:
    """A tool as it is shown."""
    definition = pin.offered or pin.allowed
    digest = definition.digest if definition is not None else ""
    return McpToolView(pin.name, pin.state, digest, pin.change if pin.offered is not None else "")


async def _mcp(web: Web, _: Request) -> Response:
    found = await web.core.pins.listed()
    servers = [McpServerView(one.server, one.since, [view_of(pin) for pin in one.tools.values()]) for one in found]
    return json_answer(McpView(servers))


async def _decide_mcp(web: Web, request: Request) -> Response:
    body = await read_json(request, McpDecision, seconds=web.options.body_seconds)
    by = caller(request).person
    pin = await web.core.pins.decide(path_part(request, "name"), body.digest, body.decision == "allow", by)
    return json_answer(view_of(pin))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/api/mcp", handler=_mcp, scopes=READERS,
        summary="The tools of MCP servers: allowed, changed, new or denied.", answer=Answer("Servers.", McpView),
    ),
    Endpoint(
        method="POST", path="/api/mcp/{name}", handler=_decide_mcp, scopes=ADMINS, body=McpDecision,
        summary="Allow or deny what a server offers for a tool; 404 when nothing waits, 409 when it has changed since.",
        answer=Answer("The tool.", McpToolView),
    ),
)  # fmt: skip
