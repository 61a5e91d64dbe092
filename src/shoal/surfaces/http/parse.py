"""From a request to typed values: bounded bodies, JSON, query, path parameters."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, TypeVar

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request

from shoal.domain.errors import InvalidInput
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import ThreadId, parse_thread_id
from shoal.surfaces.http.core import BODY_BYTES_MAX
from shoal.surfaces.http.errors import ApiError

T = TypeVar("T")


async def read_json(request: Request, kind: type[T], *, seconds: float, optional: bool = False) -> T:
    """Read a JSON body of at most BODY_BYTES_MAX bytes; with `optional` no body at all counts as `{}`.

    The content type is not looked at: who calls by cookie has shown a JSON type or X-Shoal at the gate already, and a
    token is no ambient credential. Raises ApiError 413, 408 and InvalidInput naming the wrong field.
    """
    content = b"".join([piece async for piece in bounded_body(request, BODY_BYTES_MAX, seconds=seconds)])
    try:
        return msgspec.json.decode(content or b"{}" if optional else content, type=kind)
    except UNREADABLE as error:
        raise InvalidInput(f"The body is not what this call takes: {error}. See GET /openapi.json.") from error


async def bounded_body(request: Request, bytes_max: int, *, seconds: float) -> AsyncIterator[bytes]:
    """The body, piece by piece. Raises ApiError 413 as soon as it is known to be too large, and 408 when slow."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > bytes_max:
        raise _too_large(bytes_max)
    total = 0
    deadline = anyio.current_time() + seconds
    stream = request.stream()
    while True:
        piece = await _next_piece(stream, deadline)
        if piece is None:
            return
        total += len(piece)
        if total > bytes_max:
            raise _too_large(bytes_max)
        yield piece


async def _next_piece(stream: AsyncIterator[bytes], deadline: float) -> bytes | None:
    try:
        with anyio.fail_after(deadline - anyio.current_time()):
            return await anext(stream, None)
    except TimeoutError as error:
        raise ApiError(408, "slow_body", "The body did not arrive in time; send it again.") from error
    except ClientDisconnect as error:
        raise ApiError(400, "incomplete_body", "The connection ended inside the body.") from error


def _too_large(bytes_max: int) -> ApiError:
    size = f"{bytes_max // 1_048_576} MiB"
    return ApiError(413, "too_large", f"The body is larger than {size}, the most this call takes; send less.")


def read_query(request: Request, kind: type[T]) -> T:
    """The query as a struct; values are converted from text. Raises InvalidInput naming the parameter."""
    pairs = request.query_params.multi_items()
    values = dict(pairs)
    if len(values) != len(pairs):
        raise InvalidInput("A query parameter stands twice; give each one once.")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"The query is not what this call takes: {error}. See GET /openapi.json.") from error


def path_part(request: Request, name: str) -> str:
    """A parameter of the path."""
    return str(request.path_params[name])


def path_thread(request: Request) -> ThreadId:
    """The thread id of the path. Raises InvalidId."""
    return parse_thread_id(path_part(request, "thread"))


def checked_text(text: str, field: str = "text") -> str:
    """A text that any database and platform takes. Raises InvalidInput when it is blank or has a NUL."""
    if "\0" in text:
        raise InvalidInput(f"`{field}` contains a NUL character; leave it out.")
    if not text.strip():
        raise InvalidInput(f"`{field}` is empty; write what the agent should read.")
    return text


def parse_moment(text: str, field: str) -> datetime:
    """An ISO 8601 time with its offset. Raises InvalidInput."""
    try:
        return msgspec.convert(text, Annotated[datetime, msgspec.Meta(tz=True)])
    except msgspec.ValidationError as error:
        raise InvalidInput(f"`{field}` must be a time like 2026-01-31T09:00:00Z.") from error


def wants_event_stream(request: Request) -> bool:
    """Whether the client asks for server-sent events."""
    return request.method == "GET" and "text/event-stream" in request.headers.get("accept", "").lower()
