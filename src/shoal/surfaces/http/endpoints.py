"""The table form of the API: one `Endpoint` a call, from which routes and the OpenAPI document are made.

Whoever calls is looked at here, once for all calls: the scope has to be one that the endpoint lists, a thread in the
path has to be one that the caller may see, and a confined caller gets no call that neither names a thread nor narrows.
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.actors.door import MESSAGE_SECONDS, MESSAGES_BURST, PEOPLE_MAX
from shoal.domain.ids import parse_thread_id
from shoal.domain.records import AuditEntry
from shoal.domain.tokens import SCOPES, TokenScope
from shoal.permissions.access import Bucket
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.principal import HOME_TOKEN, Principal, may_use, no_such_thread

Handler: TypeAlias = Callable[[Web, Request], Awaitable[Response]]

JSON = "application/json"
AnyObject = dict[str, msgspec.Raw]
"""The type of an answer that is described elsewhere."""

EVERYONE = SCOPES
READERS: tuple[TokenScope, ...] = ("read", "approve", "admin")
TALKERS: tuple[TokenScope, ...] = ("chat", "admin")
DECIDERS: tuple[TokenScope, ...] = ("approve", "admin")
ADMINS: tuple[TokenScope, ...] = ("admin",)
NOBODY: tuple[TokenScope, ...] = ()
"""For calls that need no token, and prove by themselves what has to be proved."""

SAFE_METHODS = frozenset({"GET", "HEAD"})
ACTION_CHARS_MAX = 300
CHAIN = "tokens"
"""The audit chain of what tokens other than the home's changed."""


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
    """One call. `body` and `query` are the structs it takes; `is_open` ones need no credential.

    `scopes` are those of the tokens that may make it. `narrows`: its answer has nothing of a thread or an agent that
    the caller may not see, though its path names no thread.
    """

    method: str
    path: str
    handler: Handler
    scopes: tuple[TokenScope, ...]
    summary: str
    answer: Answer
    body: object = None
    body_optional: bool = False
    body_media_type: str = JSON
    query: object = None
    is_open: bool = False
    narrows: bool = False


def json_answer(value: object, status: int = 200) -> Response:
    """A struct, or a list of them, as a JSON answer."""
    return Response(msgspec.json.encode(value), status, media_type=JSON)


def caller(request: Request) -> Principal:
    """Who makes the call, as the guard found out."""
    found: Principal = request.state.principal
    return found


def routes(web: Web, endpoints: Iterable[Endpoint]) -> list[Route]:
    """One route a path, which knows all of the path's methods, so that a wrong one gets a complete Allow."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [Route(path, partial(_dispatch, web, known), methods=list(known)) for path, known in by_path.items()]


async def _dispatch(web: Web, known: dict[str, Endpoint], request: Request) -> Response:
    endpoint = known["GET" if request.method == "HEAD" else request.method]
    if not endpoint.is_open:
        await _admit(web, endpoint, caller(request), request)
    return await endpoint.handler(web, request)


async def _admit(web: Web, endpoint: Endpoint, by: Principal, request: Request) -> None:
    """Raises ApiError 403 and 429, NotFound for a thread that is not the caller's, InvalidId, StoreError."""
    token = by.token
    if token.scope not in endpoint.scopes:
        wanted = " or ".join(endpoint.scopes)
        message = f"The token {token.name!r} has the scope {token.scope}; this call needs one of scope {wanted}."
        raise ApiError(403, "scope", message)
    if "thread" in request.path_params:
        thread = parse_thread_id(str(request.path_params["thread"]))
        if not await may_use(by, web.core.store.journal, thread):
            raise no_such_thread(thread)
    elif by.is_confined and not endpoint.narrows:
        bound = f"agent {token.agent}" if token.agent else "its own threads"
        message = f"The token {token.name!r} is confined to {bound}, and this call tells of more; it needs another one."
        raise ApiError(403, "confined", message)
    if token is HOME_TOKEN or request.method in SAFE_METHODS:
        return
    if token.scope == "chat":
        bucket = web.buckets.pop(by.person, None) or Bucket(MESSAGES_BURST, MESSAGE_SECONDS, web.core.clock.monotonic())
        web.buckets[by.person] = bucket
        while len(web.buckets) > PEOPLE_MAX:
            web.buckets.popitem(last=False)
        if not bucket.take(web.core.clock.monotonic()):
            message = "That was a lot at once. Try again in a moment."
            raise ApiError(429, "busy", message, {"Retry-After": str(int(MESSAGE_SECONDS))})
        return
    action = f"{request.method} {request.url.path}"[:ACTION_CHARS_MAX]
    entry = AuditEntry("call", action, "allow", user=by.person, token=token.name)
    await web.core.store.audit.record(CHAIN, [entry])
