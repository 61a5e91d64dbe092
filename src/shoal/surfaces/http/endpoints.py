"""Endpoints: typed functions with their routes.

    @routes("POST /api/approvals/{id}", DECIDERS, narrows=True)
    async def decide(orchestrator: Orchestrator, by: Principal, id: str, body: DecisionRequest) -> Decided:

The annotations define the call. Keyword-only parameters are query parameters, and `body` is a struct. A parameter with
the name of a path placeholder receives its value. A parameter whose type is a service class receives that service
(`shoal.services`). The return value is sent as JSON in the shape of its annotation. If the route has an `answer` type,
only the fields of that type are sent. Validation, errors and the OpenAPI document are derived from the annotations.

Except for open endpoints, the caller's token is checked here. It must have one of the endpoint's scopes, and access to
the thread in the path. A confined token can make only calls whose path names a thread, and calls that filter their
response (`narrows`).
"""

import inspect
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, TypeVar, cast

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.kernel import lazy_re
from shoal.kernel.clock import Clock
from shoal.kernel.errors import InvalidInput
from shoal.kernel.ids import ThreadId, parse_thread_id
from shoal.kernel.permissions import TOKEN_SCOPES, TokenScope
from shoal.kernel.records import AuditEntry
from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import UNREADABLE
from shoal.permissions.access import Bucket
from shoal.services import Services
from shoal.store.store import Store
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.streams import ALLOWED_SECONDS, Allowed, cancel_when_refused
from shoal.threads.access_gate import MESSAGE_SECONDS, MESSAGES_BURST, PEOPLE_MAX
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.principals import HOME_TOKEN, Principal, may_use, no_such_thread

StructT = TypeVar("StructT", bound=msgspec.Struct)
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[object]])

BODY_BYTES_MAX = 1_048_576
PARSED_HERE_BYTES_MAX = 262_144
"""Request bodies larger than this are parsed in a worker thread."""
PATH_PART = lazy_re.compile(r"{(\w+)")
ACTION_CHARS_MAX = 300
CHAIN = "tokens"
"""Audit chain for changes made with tokens other than the home's own."""
JSON = "application/json"
Text64 = Annotated[str, msgspec.Meta(max_length=64)]
Text200 = Annotated[str, msgspec.Meta(max_length=200)]
AnyObject = dict[str, msgspec.Raw]
"""Type of a JSON object that is described elsewhere."""

EVERYONE = TOKEN_SCOPES
READERS: tuple[TokenScope, ...] = ("read", "approve", "admin")
TALKERS: tuple[TokenScope, ...] = ("chat", "admin")
DECIDERS: tuple[TokenScope, ...] = ("approve", "admin")
ADMINS: tuple[TokenScope, ...] = ("admin",)
OPEN: tuple[TokenScope, ...] = ()
"""Scopes of endpoints that require no token. Their handlers check other credentials."""


@cache
def segments_of(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split("/"))


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the API.

    scopes: the caller's token must have one of these.
    parameters: the handler's request parameters with their types, except query parameters.
    services: classes of the services that the handler takes.
    answer: type of the JSON response, or None.
    raw_body: media type of a body that the handler reads itself.
    streams: the call can also respond with server-sent events.
    narrows: the path names no thread, and the response omits threads and agents that the caller may not see.
    owner_only: the token must also act as the owner.
    """

    method: str
    path: str
    scopes: tuple[TokenScope, ...]
    handler: Callable[..., Awaitable[object]]
    parameters: Mapping[str, object]
    services: Mapping[str, type]
    query: type[msgspec.Struct] | None
    answer: object
    status: int
    media_type: str
    raw_body: str
    body_optional: bool
    body_bytes_max: int
    streams: bool
    narrows: bool
    owner_only: bool

    @property
    def is_open(self) -> bool:
        """True if the endpoint needs no token."""
        return self.scopes == OPEN

    @property
    def is_file(self) -> bool:
        """True if the endpoint returns a file instead of JSON."""
        return self.method == "GET" and self.media_type != JSON

    def parts_of(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Match the segments of a path. Return the named parts, or None if this endpoint does not serve the path.

        `{name}` matches one segment that is not empty. A final `{name:path}` matches the rest of the path.
        """
        pattern = segments_of(self.path)
        has_rest = pattern[-1].endswith(":path}")
        if len(segments) != len(pattern) and not (has_rest and len(segments) > len(pattern)):
            return None
        parts: dict[str, str] = {}
        for place, wanted in enumerate(pattern):
            segment = segments[place]
            if wanted.startswith("{") and segment and not wanted.endswith(":path}"):
                parts[wanted[1:-1]] = segment
            elif wanted.endswith(":path}"):
                parts[wanted[1 : -len(":path}")]] = "/".join(segments[place:])
            elif wanted != segment:
                return None
        return parts

    def bind(self, services: Services) -> "BoundEndpoint":
        """Return the endpoint with its services. Raises a LookupError that lists the missing services."""
        lacking = [f"{name}: {kind.__name__}" for name, kind in self.services.items() if kind not in services]
        if lacking:
            raise LookupError(
                f"{self.method} {self.path} requires {', '.join(lacking)}, which no service provides. "
                "Rename the parameter to a part of the path or to `body`, or add the service with "
                "Services.add when Shoal opens."
            )
        taken: dict[str, object] = {name: services[kind] for name, kind in self.services.items()}
        return BoundEndpoint(self, taken, services[Callers], services[WebOptions])


class BoundEndpoint(msgspec.Struct, frozen=True, eq=False):
    """An endpoint with the services that its handler takes."""

    endpoint: Endpoint
    services: Mapping[str, object]
    callers: "Callers"
    options: WebOptions

    async def respond(self, request: Request) -> ASGIApp:
        """Check the caller, validate the input, run the call and return the response.

        Raises errors that the handlers in `errors` convert to responses.
        """
        endpoint = self.endpoint
        request.state.allowed = None
        if not endpoint.is_open:
            await self.callers.admit(endpoint, caller(request), request)
            thread = request.path_params.get("thread")
            request.state.allowed = self.callers.access_check(
                caller(request), parse_thread_id(thread) if thread else None
            )
        given = dict(self.services)
        for name, kind in endpoint.parameters.items():
            if kind is Request:
                given[name] = request
            elif kind is Principal:
                given[name] = caller(request)
            elif kind is ThreadId:
                given[name] = parse_thread_id(str(request.path_params[name]))
            elif name == "body":
                given[name] = await self._body(request, kind)
            else:
                given[name] = str(request.path_params[name])
        if endpoint.query is not None:
            pairs = request.query_params.multi_items()
            if len(values := dict(pairs)) != len(pairs):
                raise InvalidInput("A query parameter occurs twice. Send each parameter once.")
            try:
                given |= msgspec.structs.asdict(msgspec.convert(values, endpoint.query, strict=False))
            except msgspec.ValidationError as error:
                message = (
                    f"The query is not valid for this call: {refusal(error, endpoint.query)}. See /openapi.json for "
                    "the valid parameters."
                )
                raise InvalidInput(message) from error
        if endpoint.owner_only and caller(request).asker.trust != "owner":
            raise ApiError(
                403, "owner", "Only the owner can do this. Use the token in the `token` file in Shoal's home directory."
            )
        call = endpoint.handler(**given)
        given.clear()  # free a large body before building the response
        value = await call
        if isinstance(value, StreamingResponse) and request.state.allowed is not None:
            return EndedWithToken(value, request.state.allowed)
        if isinstance(value, Response):
            return value
        # This drops fields that the API does not show.
        shown = msgspec.convert(value, cast("type[object]", endpoint.answer), from_attributes=True)
        return json_answer(shown, endpoint.status)

    async def _body(self, request: Request, kind: object) -> object:
        """Read and decode the body. A large body is decoded in a worker thread. `Raw` fields are views of the body.

        The content type needs no check, because cross-site requests fail earlier. Calls with the page's cookie must
        send the page's key, and browsers never send a token by themselves.
        """
        endpoint, options = self.endpoint, self.options
        is_large = endpoint.body_bytes_max > BODY_BYTES_MAX
        seconds = options.upload_seconds if is_large else options.body_seconds
        content = bytearray()
        async for piece in bounded_body(request, endpoint.body_bytes_max, seconds=seconds):
            content += piece
        if not content and endpoint.body_optional:
            content += b"{}"
        decode = partial(msgspec.json.decode, content, type=cast("type[object]", kind))
        try:
            return await anyio.to_thread.run_sync(decode) if len(content) > PARSED_HERE_BYTES_MAX else decode()
        except UNREADABLE as error:
            message = (
                f"The body is not valid for this call: {refusal(error, kind)}. See /openapi.json for the valid fields."
            )
            raise InvalidInput(message) from error


class Routes(list[Endpoint]):
    def __call__(
        self,
        call: str,
        scopes: tuple[TokenScope, ...],
        *,
        answer: object = None,
        status: int = 200,
        media_type: str = JSON,
        raw_body: str = "",
        body_optional: bool = False,
        body_bytes_max: int = BODY_BYTES_MAX,
        streams: bool = False,
        narrows: bool = False,
        owner_only: bool = False,
    ) -> Callable[[HandlerT], HandlerT]:
        """Register the decorated function as an endpoint. `call` is METHOD PATH."""
        method, path = call.split()

        def add(handler: HandlerT) -> HandlerT:
            signature = inspect.signature(handler, eval_str=True)
            taken, returned = signature.parameters.values(), signature.return_annotation
            fields = [
                (parameter.name, parameter.annotation)
                if parameter.default is parameter.empty
                else (parameter.name, parameter.annotation, parameter.default)
                for parameter in taken
                if parameter.kind is parameter.KEYWORD_ONLY
            ]
            positional = {
                parameter.name: parameter.annotation
                for parameter in taken
                if parameter.kind is not parameter.KEYWORD_ONLY
            }
            of_request = {"body", *PATH_PART.findall(path)}
            services = {
                name: kind
                for name, kind in positional.items()
                if name not in of_request and kind not in (Request, Principal)
            }
            query = msgspec.defstruct(
                handler.__name__, fields, module=handler.__module__, frozen=True, forbid_unknown_fields=True
            )
            self.append(
                Endpoint(
                    method=method,
                    path=path,
                    scopes=scopes,
                    handler=handler,
                    parameters={name: kind for name, kind in positional.items() if name not in services},
                    services=services,
                    query=query if fields else None,
                    answer=returned if answer is None and returned is not Response else answer,
                    status=status,
                    media_type=media_type,
                    raw_body=raw_body,
                    body_optional=body_optional,
                    body_bytes_max=body_bytes_max,
                    streams=streams,
                    narrows=narrows,
                    owner_only=owner_only,
                )
            )
            return handler

        return add


def caller(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


class Callers:
    """Checks which calls a token may make, limits the rate of messages, and records changes in the audit log."""

    def __init__(self, store: Store, tokens: AccessTokens, clock: Clock) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    async def admit(self, endpoint: Endpoint, by: Principal, request: Request) -> None:
        """Check that the caller may make a call. A change with a token other than the home's is recorded in the audit
        log.

        Raises ApiError 403 and 429, NotFound for a thread that the caller may not see, InvalidId and StoreError.
        """
        token = by.token
        if token.scope not in endpoint.scopes:
            wanted = " or ".join(endpoint.scopes)
            message = (
                f"The token {token.name!r} has the scope {token.scope}. Use a token with the scope {wanted} for "
                "this call."
            )
            raise ApiError(403, "scope", message)
        if "thread" in request.path_params:
            thread = parse_thread_id(str(request.path_params["thread"]))
            if not await may_use(by, self._store.journal, thread):
                raise no_such_thread(thread)
        elif by.is_confined and not endpoint.narrows:
            bound = f"agent {token.agent}" if token.agent else "its own threads"
            message = (
                f"The token {token.name!r} is limited to {bound}, but this call covers more. Use a different token."
            )
            raise ApiError(403, "confined", message)
        if token is HOME_TOKEN or request.method in ("GET", "HEAD"):
            return
        if token.scope == "chat":
            bucket = self._buckets.pop(by.person, None) or Bucket(
                MESSAGES_BURST, MESSAGE_SECONDS, self._clock.monotonic()
            )
            self._buckets[by.person] = bucket
            while len(self._buckets) > PEOPLE_MAX:
                self._buckets.popitem(last=False)
            if not bucket.take(self._clock.monotonic()):
                message = "Too many requests. Try again in a moment."
                raise ApiError(429, "busy", message, {"Retry-After": str(int(MESSAGE_SECONDS))})
            return
        action = f"{request.method} {request.url.path}"[:ACTION_CHARS_MAX]
        entry = AuditEntry("call", action, "allow", user=by.person, token=token.name)
        await self._store.audit.record(CHAIN, [entry])

    def access_check(self, by: Principal, thread: ThreadId | None = None) -> Allowed | None:
        """Return a function that returns True while the caller still has access, or None for the home's token,
        which needs no check.
        """
        if by.token is HOME_TOKEN:
            return None

        async def allowed() -> bool:
            is_good = await self._tokens.is_valid(by.token)
            return is_good and (thread is None or await may_use(by, self._store.journal, thread))

        return allowed


class EndedWithToken:
    """A streamed response that ends soon after the caller's token is revoked."""

    def __init__(self, response: StreamingResponse, allowed: Allowed) -> None:
        self._response = response
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_when_refused, self._allowed, group.cancel_scope)
            await self._response(scope, receive, send)
            group.cancel_scope.cancel()


# ---- responses ----


def view(kind: type[StructT], record: object, /, **fields: object) -> StructT:
    """Convert a record to the struct `kind` of the API. `fields` replace or supplement the record's fields."""
    names = [name for name in kind.__struct_fields__ if name not in fields]
    taken = {name: getattr(record, name) for name in names if hasattr(record, name)}
    return msgspec.convert({**taken, **fields}, kind, from_attributes=True)


def json_answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=JSON)


class Removed(msgspec.Struct, frozen=True):
    """The resource is deleted."""

    removed: bool


# ---- request bodies ----


async def whole_body(request: Request, bytes_max: int = BODY_BYTES_MAX, *, seconds: float) -> bytes:
    """Read a body of at most `bytes_max` bytes. Raises the errors of `bounded_body`."""
    return b"".join([piece async for piece in bounded_body(request, bytes_max, seconds=seconds)])


async def bounded_body(request: Request, bytes_max: int, *, seconds: float) -> AsyncIterator[bytes]:
    """Yield the body in chunks.

    Raises ApiError 413 as soon as the body is known to be too large, 408 if it arrives too slowly, 400 if the
    connection ends early, and 401 if the caller's token is revoked during the transfer.
    """
    message = f"The body is larger than {bytes_max // 1048576} MiB, the limit for this call. Send a smaller body."
    too_large = ApiError(413, "too_large", message)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > bytes_max:
        raise too_large
    total = 0
    deadline = anyio.current_time() + seconds
    allowed: Allowed | None = getattr(request.state, "allowed", None)
    checked_at = anyio.current_time()
    stream = request.stream()
    while True:
        try:
            with anyio.fail_after(deadline - anyio.current_time()):
                piece = await anext(stream, None)
        except TimeoutError as error:
            raise ApiError(408, "slow_body", "The body did not arrive in time. Send it again.") from error
        except ClientDisconnect as error:
            raise ApiError(400, "incomplete_body", "The connection ended before the body was complete.") from error
        if allowed is not None and (piece is None or anyio.current_time() - checked_at >= ALLOWED_SECONDS):
            if not await allowed():
                raise ApiError(
                    401,
                    "unauthorized",
                    "The token expired or was revoked before the body was complete. Use a new token.",
                )
            checked_at = anyio.current_time()
        if piece is None:
            return
        total += len(piece)
        if total > bytes_max:
            raise too_large
        yield piece


def checked_text(text: str, field: str = "text") -> str:
    """Return the text unchanged. Raises InvalidInput if it is blank or contains a NUL, which some databases and
    platforms reject.
    """
    if "\0" in text:
        raise InvalidInput(f"`{field}` contains a NUL character. Remove it.")
    if not text.strip():
        raise InvalidInput(f"`{field}` is empty. Enter some text.")
    return text


def wants_event_stream(request: Request) -> bool:
    return request.method == "GET" and "text/event-stream" in request.headers.get("accept", "").lower()
