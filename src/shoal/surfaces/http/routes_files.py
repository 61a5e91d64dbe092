"""Calls about a thread's files: uploading attachments, listing, fetching."""

from collections.abc import AsyncIterator
from typing import Annotated, BinaryIO
from urllib.parse import quote

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.domain.errors import StoreUnavailable
from shoal.surfaces.http.attachments import FileView, list_thread_files, open_thread_file, store_upload
from shoal.surfaces.http.core import ATTACHMENT_BYTES_MAX, Web
from shoal.surfaces.http.endpoints import EVERYONE, TALKERS, Answer, Endpoint, caller, json_answer
from shoal.surfaces.http.parse import bounded_body, checked_text, path_part, path_thread, read_query

_PIECE_BYTES = 262_144
_INLINE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"})
"""What a page may show in place; anything else is only ever downloaded."""


class UploadQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's name as people know it."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class Uploaded(msgspec.Struct, frozen=True):
    """A stored file; `file` is what a message's `attachments` refer to."""

    file: str
    name: str
    media_type: str
    size_bytes: int
    digest: str


async def _upload(web: Web, request: Request) -> Response:
    thread = path_thread(request)
    name = checked_text(read_query(request, UploadQuery).name, "name")
    pieces = bounded_body(request, ATTACHMENT_BYTES_MAX, seconds=web.options.upload_seconds)
    stored = await store_upload(web.core, caller(request).author, thread, name, web.core.clock.new_id(), pieces)
    if notices := await web.core.folders.push(thread):
        raise StoreUnavailable(notices[0])
    file = stored.path.rpartition("/")[2]
    return json_answer(Uploaded(file, stored.name, stored.media_type, stored.size_bytes, stored.digest), 201)


async def _list(web: Web, request: Request) -> Response:
    thread = path_thread(request)
    await web.core.folders.pull(thread)
    return json_answer(await anyio.to_thread.run_sync(list_thread_files, web.core.home, thread))


async def _fetch(web: Web, request: Request) -> Response:
    thread, path = path_thread(request), path_part(request, "path")
    await web.core.folders.pull(thread)
    found = await anyio.to_thread.run_sync(open_thread_file, web.core.home, thread, path)
    shown = "inline" if found.media_type in _INLINE else "attachment"
    headers = {
        "Content-Disposition": f"{shown}; filename*=utf-8''{quote(found.name, safe='')}",
        "Content-Length": str(found.size_bytes),
        "Cache-Control": "private, no-cache",
    }
    return StreamingResponse(_pieces(found.content, found.size_bytes), 200, headers, found.media_type)


async def _pieces(content: BinaryIO, size_bytes: int) -> AsyncIterator[bytes]:
    with content:
        left = size_bytes  # a file that grows meanwhile is sent as long as was announced
        while left and (piece := await anyio.to_thread.run_sync(content.read, min(left, _PIECE_BYTES))):
            left -= len(piece)
            yield piece


ENDPOINTS = (
    Endpoint(
        method="POST", path="/api/threads/{thread}/attachments", handler=_upload, scopes=TALKERS, query=UploadQuery,
        body=bytes, body_optional=True, body_media_type="application/octet-stream",
        summary="Store a file, the body as it is, for a message of this thread; at most 25 MiB.",
        answer=Answer("The stored file.", Uploaded, 201),
    ),
    Endpoint(
        method="GET", path="/api/threads/{thread}/files", handler=_list, scopes=EVERYONE,
        summary="The thread's files, the newest first.", answer=Answer("Files.", list[FileView]),
    ),
    Endpoint(
        method="GET", path="/api/threads/{thread}/files/{path:path}", handler=_fetch, scopes=EVERYONE,
        summary="One file of the thread.",
        answer=Answer("The file.", None, 200, "application/octet-stream"),
    ),
)  # fmt: skip
