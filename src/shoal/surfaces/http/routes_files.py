"""A thread's files: attachments, scratch files, and stored results.

Each part of a path is opened relative to its open parent directory, and links are not followed. Paths therefore never
leave the thread's directory, even if its files are replaced during the call.
"""

import contextlib
import errno
import hashlib
import heapq
import mimetypes
import os
import secrets
import stat
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Annotated, BinaryIO
from urllib.parse import quote

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.agents.registry import AgentRegistry
from shoal.files.deep_folders import walk
from shoal.kernel.agents import as_guest
from shoal.kernel.clock import Clock
from shoal.kernel.errors import InvalidInput, NotFound, StoreFull, StoreReadOnly, StoreUnavailable, ToolError
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, encode_part
from shoal.kernel.messages import Attachment, Author
from shoal.kernel.untrusted import is_text
from shoal.permissions.access import Links
from shoal.permissions.profiles import Profiles, decide_all
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import EVERYONE, TALKERS, Routes, bounded_body, checked_text, view
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.thread_views import ArtifactView
from shoal.threads.commands import agent_here
from shoal.threads.principals import Principal
from shoal.tools.attachments import media_type_of as type_of_content
from shoal.tools.executor import LiveToolServices
from shoal.tools.jail import FILE_BYTES_MAX, Jail
from shoal.tools.openat import best_opener
from shoal.tools.tainted_files import MarkedFiles
from shoal.turn.context import ContextBuilder

routes = Routes()

ATTACHMENT_BYTES_MAX = 26_214_400
NAME_BYTES_MAX = 120
"""Maximum length of a stored file name, without its id prefix."""
FILES_MAX = 1000
READABLE = ("attachments", "scratch")
"""Directories of a thread whose files can be fetched."""
READABLE_FILES = ("log.jsonl", "context.jsonl")
"""Files at the top of a thread's directory that can be fetched."""

_DEFAULT_TYPE = "application/octet-stream"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_PIECE_BYTES = 262_144
_INLINE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"})
"""Media types that a page may display. Files of other types are only downloaded."""


class AttachmentRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file for a message: either `file` from the upload response, or base64 `data` for a small file."""

    name: Annotated[str, msgspec.Meta(max_length=255)] = ""
    media_type: Annotated[str, msgspec.Meta(max_length=127)] = ""
    file: Annotated[str, msgspec.Meta(max_length=255)] = ""
    data: str = ""
    mine: Annotated[
        bool, msgspec.Meta(description="True if the sender wrote the file. Otherwise, the file taints the turn.")
    ] = False


class FileView(msgspec.Struct, frozen=True):
    """A file of a thread. `path` completes the URL /api/threads/{thread}/files/{path}, which returns the file."""

    path: str
    media_type: str
    size_bytes: int
    modified_at: datetime


class OpenFile(msgspec.Struct, frozen=True):
    name: str
    media_type: str
    size_bytes: int
    content: BufferedReader


def media_type_of(name: str) -> str:
    return mimetypes.guess_type(name, strict=False)[0] or _DEFAULT_TYPE


def stored_name(fresh_id: str, name: str) -> str:
    safe = encode_part(name.strip().lstrip(".") or "file").encode("utf-8", "replace")
    while len(safe) > NAME_BYTES_MAX:
        safe = safe[-NAME_BYTES_MAX:].decode("utf-8", "ignore").encode()
    return f"{fresh_id}-{safe.decode('utf-8', 'ignore')}"


class UploadedFile(msgspec.Struct, frozen=True):
    """A stored file. To attach it to a message, pass `file` in the message's `attachments`."""

    file: str
    name: str
    media_type: str
    size_bytes: int
    digest: str


# ---- calls ----


@routes("POST /api/threads/{thread}/attachments", TALKERS, status=201, raw_body=_DEFAULT_TYPE)
async def upload(
    clock: Clock,
    home: Home,
    folders: Folders,
    tainted_files: MarkedFiles,
    options: WebOptions,
    request: Request,
    by: Principal,
    thread: ThreadId,
    *,
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=255)],
    mine: bool = False,
) -> UploadedFile:
    """Store the body, at most 25 MiB, as a file for a message in this thread. Reading the file taints the turn,
    unless `mine` says that the sender wrote it.
    """
    name = checked_text(name, "name")
    pieces = bounded_body(request, ATTACHMENT_BYTES_MAX, seconds=options.upload_seconds)
    stored = await store_upload(home, tainted_files, by.author, thread, name, clock.new_id(), pieces, mine=mine)
    if notices := await folders.push(thread):
        raise StoreUnavailable(notices[0])
    file = stored.path.rpartition("/")[2]
    return UploadedFile(file, stored.name, stored.media_type, stored.size_bytes, stored.digest)


@routes("GET /api/threads/{thread}/files", EVERYONE)
async def list_files(home: Home, folders: Folders, thread: ThreadId) -> list[FileView]:
    """List the thread's files, newest first."""
    await folders.pull(thread)
    return await anyio.to_thread.run_sync(list_thread_files, home, thread)


@routes("GET /api/threads/{thread}/files/{path:path}", EVERYONE, media_type=_DEFAULT_TYPE)
async def fetch_file(home: Home, folders: Folders, thread: ThreadId, path: str) -> Response:
    """Return one file of the thread."""
    await folders.pull(thread)
    opened = await anyio.to_thread.run_sync(open_thread_file, home, thread, path)
    shown = "inline" if opened.media_type in _INLINE else "attachment"
    headers = {
        "Content-Disposition": f"{shown}; filename*=utf-8''{quote(opened.name, safe='')}",
        "Content-Length": str(opened.size_bytes),
        "Cache-Control": "private, no-cache",
    }

    return StreamingResponse(_pieces(opened.content, opened.size_bytes), 200, headers, opened.media_type)


@routes("GET /api/threads/{thread}/picture", EVERYONE, media_type="image/png")
async def picture(
    store: Store,
    home: Home,
    agents: AgentRegistry,
    profiles: Profiles,
    folders: Folders,
    context: ContextBuilder,
    links: Links,
    by: Principal,
    thread: ThreadId,
    *,
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)],
) -> Response:
    """Return a picture that an answer shows: a file of the thread, or a file that the thread's agent may read without
    asking.

    `path` is the path in the answer: relative to the workspace, or absolute, as commands use it. The content must be
    PNG, JPEG, GIF, WebP or AVIF, at most 25 MiB.
    """
    from shoal.permissions.actions import action_of  # a slow import

    await folders.pull(thread)
    agent = await agent_here(store, agents, thread)
    guest = as_guest(agent, thread)
    workers = (guest,) if links.audience(by.asker, by.author, thread).guest else (agent, guest)
    profile = profiles.of_agent(agent, by.asker)

    def read() -> tuple[bytes, str]:
        own = path.removeprefix(".").removeprefix("/")
        with contextlib.suppress(NotFound), open_thread_file(home, thread, own).content as file:
            content = file.read(FILE_BYTES_MAX)
            return content, type_of_content(content)
        for worker in workers:
            jail = Jail(context.mounts(worker, thread))
            with contextlib.suppress(ToolError):
                place = jail.resolve(path)
                if decide_all(profile, (action_of(f"tool:read:{place.shown}"),))[0] == "allow":
                    content = jail.read(place)
                    return content, type_of_content(content)
        return b"", ""

    content, media_type = await anyio.to_thread.run_sync(read)
    if media_type not in _INLINE:
        raise NotFound(f"{path[:200]!r} is not a picture that this thread's agent may read.")
    return Response(content, media_type=media_type, headers={"Cache-Control": "private, no-cache"})


async def _pieces(content: BinaryIO, size_bytes: int) -> AsyncIterator[bytes]:
    with content:
        left = size_bytes  # a file that grows during the call is sent with the announced length
        while left and (piece := await anyio.to_thread.run_sync(content.read, min(left, _PIECE_BYTES))):
            left -= len(piece)
            yield piece


@routes("GET /api/threads/{thread}/artifacts", EVERYONE)
async def artifacts(store: Store, thread: ThreadId) -> list[ArtifactView]:
    """List the stored results of the thread, newest first."""
    return [view(ArtifactView, row, artifact=row.digest) for row in await store.artifacts.of_thread(thread)]


@routes("GET /api/threads/{thread}/artifacts/{artifact}", EVERYONE, media_type="text/plain")
async def artifact(store: Store, outlets: LiveToolServices, thread: ThreadId, artifact: str) -> Response:
    """Return one stored result as text."""
    row = await store.artifacts.find(thread, artifact)
    if row is None:
        raise NotFound("This thread has no artifact with this ID.")
    try:
        content = await anyio.to_thread.run_sync(outlets.artifacts.read, row.digest)
    except FileNotFoundError as error:
        raise NotFound(f"Artifact {row.digest} was deleted after its retention time.") from error
    return Response(content, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "private, no-cache"})


# ---- storing and opening ----


async def store_upload(
    home: Home,
    tainted_files: MarkedFiles,
    by: Author,
    thread: ThreadId,
    name: str,
    fresh_id: str,
    pieces: AsyncIterator[bytes],
    *,
    mine: bool,
) -> Attachment:
    """Write an attachment to the thread's directory, atomically and durably. The file is untrusted unless it is a
    recording, or a trusted sender wrote it (`mine`).

    Raises StoreFull if the disk is full, and StoreReadOnly if the directory is not writable.
    """
    path = home.attachments(thread) / stored_name(fresh_id, name)
    digest, size = hashlib.sha256(), 0
    try:
        part = await anyio.to_thread.run_sync(_Part, path)
        try:
            async for piece in pieces:
                digest.update(piece)
                size += len(piece)
                await anyio.to_thread.run_sync(part.write, piece)
            await anyio.to_thread.run_sync(part.keep)
        finally:
            part.close()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull("The disk is full. Free some space, then send the file again.") from error
        reason = (
            f"Shoal cannot store files in {path.parent}: {error.strerror}. Check that it is a directory that you own."
        )
        raise StoreReadOnly(reason) from error
    stored = Attachment(name, media_type_of(name), size, path=str(path), digest=digest.hexdigest())
    stored = stored.sent_by(by, mine=mine)
    if source := stored.tainted_by if by.trusted else f"a file from {by.name or by.id}":
        await tainted_files.note(path.parent, [path], source)
    return stored


class _Part:
    """A file that is written under a temporary name and then renamed. Its directory must not be a link."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._name = path.name
        self._part = f".{secrets.token_hex(8)}.part"
        self._folder = os.open(path.parent, _FOLDER)
        try:
            self._file = os.fdopen(os.open(self._part, _NEW, 0o600, dir_fd=self._folder), "wb")
        except OSError:
            os.close(self._folder)
            raise

        self.write = self._file.write

    def keep(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):  # after `keep`, the file has already been renamed
            os.unlink(self._part, dir_fd=self._folder)
        os.close(self._folder)


async def take_attachments(
    home: Home,
    folders: Folders,
    tainted_files: MarkedFiles,
    by: Author,
    thread: ThreadId,
    refs: Sequence[AttachmentRef],
    message_id: str,
) -> tuple[Attachment, ...]:
    """Store and return the attachments of a message. Raises InvalidInput if an attachment is missing or malformed."""
    if any(ref.file for ref in refs):  # another process may have stored the file
        await folders.pull(thread)
    stem = hashlib.sha256(message_id.encode()).hexdigest()[:20]
    taken: list[Attachment] = []
    for number, ref in enumerate(refs):
        if bool(ref.file) == bool(ref.data):
            raise InvalidInput("An attachment needs either `file`, from an upload's response, or `data`, in base64.")
        if ref.file:
            try:
                opened = await anyio.to_thread.run_sync(open_thread_file, home, thread, f"attachments/{ref.file}")
            except NotFound as error:
                message = f"This thread has no uploaded file {ref.file[:80]!r}. Upload it first."
                raise InvalidInput(message) from error
            with opened.content as content:
                digest = await anyio.to_thread.run_sync(hashlib.file_digest, content, "sha256")
            path, name = home.attachments(thread) / ref.file, ref.name or ref.file.partition("-")[2] or ref.file
            media_type = ref.media_type or opened.media_type
            file = Attachment(name, media_type, opened.size_bytes, "", str(path), digest.hexdigest())
            taken.append(file.sent_by(by, mine=ref.mine))
            continue
        try:
            data = b64decode(ref.data, validate=True)
        except (Base64Error, ValueError) as error:
            raise InvalidInput("An attachment's `data` is not base64.") from error
        stored = await store_upload(
            home,
            tainted_files,
            by,
            thread,
            ref.name or "file",
            f"{stem}.{number}",
            _pieces(BytesIO(data), len(data)),
            mine=ref.mine,
        )
        taken.append(msgspec.structs.replace(stored, media_type=ref.media_type) if ref.media_type else stored)
    return tuple(taken)


def open_thread_file(home: Home, thread: ThreadId, path: str) -> OpenFile:
    """Open a file in the thread's directory. Raises NotFound for anything that is not a regular file or may not be
    fetched. This call blocks.
    """
    root, parts = home.thread(thread), path.split("/")
    none = NotFound(f"The thread has no file {path[:200]!r}.")
    allowed = parts[0] in READABLE if len(parts) > 1 else parts[0] in READABLE_FILES
    if not allowed or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise none
    try:
        with best_opener().directory(root.parent, (root.name, *parts[:-1])) as folder:
            handle = os.open(parts[-1], _FILE, dir_fd=folder)
    except OSError as error:
        raise none from error
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise none
    return OpenFile(parts[-1], media_type_of(parts[-1]), status.st_size, os.fdopen(handle, "rb"))


def list_thread_files(home: Home, thread: ThreadId) -> list[FileView]:
    """List at most FILES_MAX files of a thread that can be fetched, newest first. This call blocks."""
    root = home.thread(thread)

    def found() -> Iterator[FileView]:
        for folder in (name for name in READABLE if not (root / name).is_symlink()):
            for where, folders, names in walk(root / folder):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for path in (where / name for name in names if not name.startswith(".")):
                    if not is_text(str(path)):  # a URL can only refer to files whose names are valid text
                        continue
                    try:
                        status = path.lstat()
                    except OSError:
                        continue
                    if stat.S_ISREG(status.st_mode):
                        modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
                        name = path.relative_to(root).as_posix()
                        yield FileView(name, media_type_of(path.name), status.st_size, modified_at)

    return heapq.nlargest(FILES_MAX, found(), key=lambda file: file.modified_at)
