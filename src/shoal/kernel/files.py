"""Ports for large data: content that is stored by digest, and directories that are synchronized between machines.

Also runs blocking file work in threads.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from shoal.kernel.agents import AgentSpec
from shoal.kernel.events import EventData, ToolFinished, UserSaid
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Image
from shoal.kernel.regular_files import regular_only

DIGEST_CHARS = 32
"""Length of a content digest in hex digits: the first 128 bits of its SHA-256."""


class Files(Protocol):
    """Stores content by digest. Every method blocks and may raise OSError, so call it in a thread."""

    def keep(self, content: bytes) -> str:
        """Store the content durably and return its digest."""
        ...

    def keep_file(self, path: Path) -> str:
        """Store a file of any size durably and return its digest."""
        ...

    def read(self, digest: str) -> bytes:
        """Return the content after verifying its digest. Raises FileNotFoundError if it is not stored."""
        ...

    def fetch(self, digest: str, path: Path) -> None:
        """Write content of any size to `path` after verifying its digest. The file appears complete or not at all."""
        ...

    def has(self, digest: str) -> bool: ...

    def remove(self, digest: str, *, at_once: bool = False) -> bool:
        """Delete the content. Return False if it was kept.

        Content that was stored or requested recently is kept unless `at_once` is set.
        """
        ...

    def below(self, name: str) -> "Files":
        """Return a separate store inside this one. The name must be safe as a file name."""
        ...

    def sweep(self, used: Collection[str], *, at_once: bool = False) -> int:
        """Delete all content except the digests in `used`. Return the number of deleted items.

        Recently stored content is kept unless `at_once` is set.
        """
        ...


class FollowedFolder(NamedTuple):
    """A directory that is synchronized between machines."""

    name: str
    root: Path
    wanted: Callable[[str], bool]
    """Returns whether a name at the top of the directory is synchronized. Selected folders are synchronized with all
    their content.
    """
    marked: tuple[Path, ...] = ()
    """Directories whose taint marks are synchronized together with the files."""
    is_silent: bool = False
    """True if conflicts are only logged, because turns must not learn about other people's files."""


class Folders:
    """Synchronizes the directories that a turn may change: a thread's files and, if an agent is given, its workspace.

    This implementation does nothing. It is used if every machine sees the same files. The returned notices are
    sentences for the model.
    """

    def follow(self, folders: Callable[[ThreadId], Iterable[FollowedFolder]]) -> None:
        """Add the directories of a feature. `folders` returns them for a thread."""

    async def pull(self, thread: ThreadId, agent: AgentSpec | None = None) -> tuple[str, ...]:
        """Update the local directories before work. Return notices about conflicts with local changes.

        Raises StoreUnavailable if remote changes are not available. Retry later.
        """
        return ()

    async def push(self, thread: ThreadId, agent: AgentSpec | None = None) -> tuple[str, ...]:
        """Publish local changes. Return notices about conflicts and about changes that could not be stored."""
        return ()

    async def forget(self, thread: ThreadId) -> None:
        """Publish the deletion of a thread's files. Raises OSError."""

    def here(self, thread: ThreadId, path: str) -> str:
        """Return the path that a thread's file has on this machine."""
        return path


STILL_FOLDERS = Folders()


def relocated(data: EventData, here: Callable[[str], str]) -> EventData:
    """Replace the file paths in an event's data with the paths on this machine. Return the same object if no path
    differs.
    """
    match data:
        case UserSaid(attachments=attachments) if attachments:
            moved = tuple(
                msgspec.structs.replace(attachment, path=here(attachment.path), shown=here(attachment.shown))
                for attachment in attachments
            )
            return data if moved == attachments else msgspec.structs.replace(data, attachments=moved)
        case ToolFinished(images=images) if images:
            shown = tuple(Image(here(image.path), image.media_type) for image in images)
            return data if shown == images else msgspec.structs.replace(data, images=shown)
        case _:
            return data


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_CHARS]


def digest_of_file(path: Path) -> str:
    with open(path, "rb", opener=regular_only) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_CHARS]


# ---- work in threads ----

_Result = TypeVar("_Result")


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """Run `work` in a thread and return its result or raise its error.

    A thread cannot be stopped, so a cancellation is raised only after the work ends. A lock that the caller holds
    therefore covers all of the work. Use this only for short work, such as reading a file.
    """
    return await to_the_end(asyncio.get_running_loop().run_in_executor(None, work))


async def to_the_end(future: "asyncio.Future[_Result]") -> _Result:
    """Wait until a future is done, even if this task is cancelled. The cancellation is raised afterwards."""
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        import anyio

        with anyio.CancelScope(shield=True):  # Without the shield, anyio cancels the task in every loop iteration.
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
        raise
    return future.result()
