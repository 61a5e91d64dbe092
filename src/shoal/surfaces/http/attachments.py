"""Files that come with messages, and reading a thread's files: every path stays below the thread's directory.

Paths are walked one part at a time from an open directory and no link is followed, so that nothing outside can be
reached, whatever is swapped meanwhile.
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
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Protocol

import anyio.to_thread
import msgspec

from shoal.domain.errors import InvalidInput, NotFound, StoreFull, StoreReadOnly
from shoal.domain.files import Folders
from shoal.domain.foreign import is_text
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, encode_part
from shoal.domain.messages import Attachment, Author
from shoal.tools.marked import MarkedFiles

NAME_BYTES_MAX = 120
"""Longest stored name without the id before it."""
FILES_MAX = 1000
"""How many files a listing shows."""
READABLE = ("attachments", "scratch")
"""The thread's directories whose files can be fetched."""
READABLE_FILES = ("log.jsonl", "context.jsonl")
"""The thread's own files that can be fetched."""

_DEFAULT_TYPE = "application/octet-stream"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class AttachmentRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file for a message: one that was uploaded (`file` as the upload answered), or a small one as base64."""

    name: Annotated[str, msgspec.Meta(max_length=255)] = ""
    media_type: Annotated[str, msgspec.Meta(max_length=127)] = ""
    file: Annotated[str, msgspec.Meta(max_length=255)] = ""
    data: str = ""


class FileView(msgspec.Struct, frozen=True):
    """A file of a thread; `path` is what GET /api/threads/{thread}/files/{path} takes."""

    path: str
    media_type: str
    size_bytes: int
    modified_at: datetime


class OpenFile(msgspec.Struct, frozen=True):
    """A file that was opened below its thread's directory."""

    name: str
    media_type: str
    size_bytes: int
    content: BinaryIO


def media_type_of(name: str) -> str:
    """The media type by the name's extension."""
    return mimetypes.guess_type(name, strict=False)[0] or _DEFAULT_TYPE


def stored_name(fresh_id: str, name: str) -> str:
    """The name under which an attachment is kept: unique by its id, safe as a file name, the extension kept."""
    safe = encode_part(name.strip().lstrip(".") or "file").encode("utf-8", "replace")
    while len(safe) > NAME_BYTES_MAX:
        safe = safe[-NAME_BYTES_MAX:].decode("utf-8", "ignore").encode()
    return f"{fresh_id}-{safe.decode('utf-8', 'ignore')}"


class Place(Protocol):
    """Where files are stored, and how they come from other machines."""

    @property
    def home(self) -> Home: ...

    @property
    def folders(self) -> Folders: ...

    @property
    def marked(self) -> MarkedFiles: ...


async def store_upload(
    place: Place, by: Author, thread: ThreadId, name: str, fresh_id: str, pieces: AsyncIterator[bytes]
) -> Attachment:
    """Write a file below the thread's attachments; it appears whole or not at all. A stranger's is marked as such.

    Raises StoreFull or StoreReadOnly when the directory does not take it.
    """
    path = place.home.attachments(thread) / stored_name(fresh_id, name)
    digest, size = hashlib.sha256(), 0
    with _translated(path.parent):
        part = await anyio.to_thread.run_sync(_Part, path)
    try:
        async for piece in pieces:
            digest.update(piece)
            size += len(piece)
            with _translated(path.parent):
                await anyio.to_thread.run_sync(part.write, piece)
        with _translated(path.parent):
            await anyio.to_thread.run_sync(part.keep)
    finally:
        part.close()
    if not by.trusted:
        await place.marked.note(path.parent, [path], f"a file of {by.name or by.id}")
    return Attachment(name, media_type_of(name), size, path=str(path), digest=digest.hexdigest())


@contextlib.contextmanager
def _translated(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull("The disk is full; make room, then send the file again.") from error
        reason = f"Files cannot be stored in {folder}: {error.strerror}. Check that it is a directory and yours."
        raise StoreReadOnly(reason) from error


class _Part:
    """A file that is being written beside its final name, in a directory that is not followed if it is a link."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._name = path.name
        self._part = f".{secrets.token_hex(8)}.part"
        self._kept = False
        self._folder = os.open(path.parent, _FOLDER)
        try:
            self._file = os.fdopen(os.open(self._part, _NEW, 0o600, dir_fd=self._folder), "wb")
        except OSError:
            os.close(self._folder)
            raise

    def write(self, piece: bytes) -> None:
        self._file.write(piece)

    def keep(self) -> None:
        self._file.close()
        os.replace(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._kept = True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._kept:
            with contextlib.suppress(OSError):
                os.unlink(self._part, dir_fd=self._folder)
        os.close(self._folder)


async def take_attachments(
    place: Place, by: Author, thread: ThreadId, refs: Sequence[AttachmentRef], message_id: str
) -> tuple[Attachment, ...]:
    """The files of a message, stored below the thread. Raises InvalidInput when one is missing or malformed."""
    if any(ref.file for ref in refs):  # it may have been uploaded to another process
        await place.folders.pull(thread)
    stem = hashlib.sha256(message_id.encode()).hexdigest()[:20]
    return tuple([await _take_one(place, by, thread, ref, f"{stem}.{number}") for number, ref in enumerate(refs)])


async def _take_one(place: Place, by: Author, thread: ThreadId, ref: AttachmentRef, fresh_id: str) -> Attachment:
    if bool(ref.file) == bool(ref.data):
        raise InvalidInput("An attachment has either `file`, as an upload answered it, or `data`, base64.")
    if ref.data:
        return await _take_data(place, by, thread, ref, fresh_id)
    try:
        found = await anyio.to_thread.run_sync(open_thread_file, place.home, thread, f"attachments/{ref.file}")
    except NotFound as error:
        raise InvalidInput(f"There is no uploaded file {ref.file[:80]!r} in this thread; upload it first.") from error
    with found.content as content:
        digest = await anyio.to_thread.run_sync(_digest, content)
    path = place.home.attachments(thread) / ref.file
    name = ref.name or ref.file.partition("-")[2] or ref.file
    return Attachment(name, ref.media_type or found.media_type, found.size_bytes, "", str(path), digest)


async def _take_data(place: Place, by: Author, thread: ThreadId, ref: AttachmentRef, fresh_id: str) -> Attachment:
    try:
        content = b64decode(ref.data, validate=True)
    except (Base64Error, ValueError) as error:
        raise InvalidInput("An attachment's `data` is not base64.") from error
    name = ref.name or "file"
    stored = await store_upload(place, by, thread, name, fresh_id, _once(content))
    return msgspec.structs.replace(stored, media_type=ref.media_type) if ref.media_type else stored


def _digest(content: BinaryIO) -> str:
    digest = hashlib.sha256()
    while piece := content.read(1_048_576):
        digest.update(piece)
    return digest.hexdigest()


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def open_thread_file(home: Home, thread: ThreadId, path: str) -> OpenFile:
    """Open a file below the thread's directory. Blocking. Raises NotFound for anything that is not such a file."""
    parts = path.split("/")
    allowed = parts[0] in READABLE if len(parts) > 1 else parts[0] in READABLE_FILES
    if not allowed or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise _no_file(path)
    try:
        handle = _open_below(home.thread(thread), parts)
    except OSError as error:
        raise _no_file(path) from error
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise _no_file(path)
    return OpenFile(parts[-1], media_type_of(parts[-1]), found.st_size, os.fdopen(handle, "rb"))


def _open_below(root: Path, parts: Sequence[str]) -> int:
    with contextlib.ExitStack() as opened:
        folder = os.open(root, _FOLDER)
        opened.callback(os.close, folder)
        for part in parts[:-1]:
            folder = os.open(part, _FOLDER, dir_fd=folder)
            opened.callback(os.close, folder)
        return os.open(parts[-1], _FILE, dir_fd=folder)


def _no_file(path: str) -> NotFound:
    return NotFound(f"The thread has no file {path[:200]!r}. GET /api/threads/{{thread}}/files lists those it has.")


def list_thread_files(home: Home, thread: ThreadId) -> list[FileView]:
    """The files of a thread that can be fetched, the newest first, at most FILES_MAX. Blocking."""
    return heapq.nlargest(FILES_MAX, _thread_files(home.thread(thread)), key=lambda view: view.modified_at)


def _thread_files(root: Path) -> Iterator[FileView]:
    for folder in (name for name in READABLE if not (root / name).is_symlink()):
        for where, folders, names in os.walk(root / folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from filter(None, (_file_view(root, Path(where) / name) for name in names))


def _file_view(root: Path, path: Path) -> FileView | None:
    if path.name.startswith(".") or not is_text(str(path)):  # what is no text cannot be named in a call either
        return None
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    modified_at = datetime.fromtimestamp(found.st_mtime, UTC)
    return FileView(path.relative_to(root).as_posix(), media_type_of(path.name), found.st_size, modified_at)
