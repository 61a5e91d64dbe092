"""Calls that chat platforms make to deliver events. The platform's adapter authenticates the caller."""

from starlette.requests import Request
from starlette.responses import Response

from shoal.connections import Connections
from shoal.kernel.errors import NotFound
from shoal.kernel.webhooks import HttpInbound
from shoal.surfaces.http.endpoints import JSON, OPEN, AnyObject, Routes, whole_body
from shoal.surfaces.http.options import WebOptions

routes = Routes()


@routes("POST /platforms/{platform}", OPEN, raw_body=JSON, answer=AnyObject)
async def receive(connections: Connections, options: WebOptions, request: Request, platform: str) -> Response:
    """Receive an event from a chat platform."""
    adapter = connections.adapters.get(platform)
    if not isinstance(adapter, HttpInbound):
        raise NotFound("No platform with this name accepts calls here.")
    body = await whole_body(request, seconds=options.body_seconds)
    headers = {name.lower(): value for name, value in request.headers.items()}
    answer = await adapter.receive(headers, body)
    return Response(answer.body, answer.status, media_type=answer.media_type)


@routes("POST /platforms/{platform}/{account}", OPEN, raw_body=JSON, answer=AnyObject)
async def receive_of_account(
    connections: Connections, options: WebOptions, request: Request, platform: str, account: str
) -> Response:
    """Receive an event from a chat platform for one of several accounts."""
    return await receive(connections, options, request, f"{platform}.{account}")
