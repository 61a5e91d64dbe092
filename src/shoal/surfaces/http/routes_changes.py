"""A stream that reports which of a page's lists have changed."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.kernel.errors import StoreError
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import EVERYONE, Callers, Routes, wants_event_stream
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.routes_approvals import approvals
from shoal.surfaces.http.routes_threads import threads
from shoal.surfaces.http.streams import OPENING, EventStream, LiveStreams
from shoal.threads.principals import Principal

logger = logging.getLogger(__name__)

routes = Routes()

UNANNOUNCED_SECONDS = 4.0
"""Maximum time in seconds between comparisons of the lists. New titles, pins and deletions cause no event, so lists are
also compared without one.
"""
PAUSE_SECONDS = 0.25


@routes("GET /api/changes", EVERYONE, narrows=True, media_type="text/event-stream")
async def follow_changes(
    store: Store, streams: LiveStreams, callers: Callers, request: Request, by: Principal
) -> Response:
    """Stream the names of the caller's lists that have changed: `{"changed": ["threads", "approvals"]}`. The first
    event names every list.
    """
    if not wants_event_stream(request):
        raise ApiError(
            406, "not_acceptable", ("This call returns only a live stream. Send the header Accept: text/event-stream.")
        )

    async def read_threads() -> object:
        return await threads(store, by)

    async def read_approvals() -> object:
        return await approvals(store, by)

    reads = {"threads": read_threads} | ({} if by.token.scope == "chat" else {"approvals": read_approvals})
    frames = change_frames(streams, reads)
    return EventStream(frames, streams, streams.admit(), allowed=callers.access_check(by), beats=True)


async def change_frames(
    streams: LiveStreams, reads: Mapping[str, Callable[[], Awaitable[object]]]
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events with the names of the lists that have changed.

    Compares only lists that the caller may read, which keeps changes to other lists private. The stream ends if the
    database fails.
    """
    yield OPENING
    seen: dict[str, int] = {}
    while not streams.closing:
        with streams.hub.subscribe() as subscription:  # subscribe before reading so that no event is missed
            try:
                now = {name: hash(msgspec.json.encode(await read())) for name, read in reads.items()}
            except StoreError as error:
                logger.warning("change stream ended: list read failed", extra={"why": str(error)})
                return
            changed = [name for name in now if now[name] != seen.get(name)]
            seen = now
            if changed:
                yield b"data: %s\n\n" % msgspec.json.encode({"changed": changed})
            await streams.list_event(subscription, UNANNOUNCED_SECONDS)
        await anyio.sleep(PAUSE_SECONDS)
