"""Where chat platforms call: an adapter checks by itself who calls, since platforms do not know the page's token."""

from starlette.requests import Request
from starlette.responses import Response

from shoal.domain.calls import HttpInbound
from shoal.domain.errors import NotFound
from shoal.surfaces.http.core import BODY_BYTES_MAX, Web
from shoal.surfaces.http.endpoints import NOBODY, Answer, AnyObject, Endpoint
from shoal.surfaces.http.parse import bounded_body

PREFIX = "/platforms/"


async def receive(web: Web, request: Request) -> Response:
    """POST /platforms/{platform}."""
    platform = str(request.path_params["platform"])
    account = str(request.path_params.get("account", ""))
    adapter = web.core.adapters.get(f"{platform}.{account}" if account else platform)
    if not isinstance(adapter, HttpInbound):
        raise NotFound("No platform of this name takes calls here.")
    body = b"".join([piece async for piece in bounded_body(request, BODY_BYTES_MAX, seconds=web.options.body_seconds)])
    headers = {name.lower(): value for name, value in request.headers.items()}
    answer = await adapter.receive(headers, body)
    return Response(answer.body, answer.status, media_type=answer.media_type)


async def receive_of_account(web: Web, request: Request) -> Response:
    """POST /platforms/{platform}/{account}."""
    return await receive(web, request)


ENDPOINTS = tuple(
    Endpoint(
        method="POST",
        path=path,
        handler=handler,
        scopes=NOBODY,
        summary="A chat platform delivers an event",
        answer=Answer("Taken in", AnyObject),
        body=AnyObject,
        is_open=True,
    )
    for path, handler in (
        ("/platforms/{platform}", receive),
        ("/platforms/{platform}/{account}", receive_of_account),
    )
)
