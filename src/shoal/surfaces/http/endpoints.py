"""The table form of the API: one `Endpoint` a call, from which routes and the OpenAPI document are made."""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.surfaces.http.core import Web

Handler: TypeAlias = Callable[[Web, Request], Awaitable[Response]]

JSON = "application/json"
AnyObject = dict[str, msgspec.Raw]
"""The type of an answer that is described elsewhere."""


class Answer(msgspec.Struct, frozen=True):
    """What a call answers when it succeeds: `kind` is the type of the JSON, or None for other content.

    `streams` ones can answer with server-sent events too.
    """

    description: str
    kind: object = None
    status: int = 200
    media_type: str = JSON
    streams: bool = False


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One call. `body` and `query` are the structs it takes; `is_open` ones need no credential."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Answer
    body: object = None
    body_optional: bool = False
    body_media_type: str = JSON
    query: object = None
    is_open: bool = False


def json_answer(value: object, status: int = 200) -> Response:
    """A struct, or a list of them, as a JSON answer."""
    return Response(msgspec.json.encode(value), status, media_type=JSON)


def routes(web: Web, endpoints: Iterable[Endpoint]) -> list[Route]:
    """One route a path, which knows all of the path's methods, so that a wrong one gets a complete Allow."""
    by_path: dict[str, dict[str, Handler]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint.handler
    return [
        Route(path, partial(_dispatch, web, handlers), methods=list(handlers)) for path, handlers in by_path.items()
    ]


async def _dispatch(web: Web, handlers: dict[str, Handler], request: Request) -> Response:
    return await handlers["GET" if request.method == "HEAD" else request.method](web, request)
