"""Ports for data that is too large for rows: content by digest, and directories that are synchronized between machines.

Also runs file work in threads, and waits for it even if the caller is cancelled.
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
    """Storage for content by digest. Every method blocks and raises OSError, so call it in a thread."""

    def keep(self, content: bytes) -> str:
        """Store the content durably and return its digest."""
        ...

    def keep_file(self, path: Path) -> str:
        """Store a file of any size durably and return its digest."""
        ...

    def read(self, digest: str) -> bytes:
        """Return the content after checking its digest. Raises FileNotFoundError if it is not stored."""
        ...

    def fetch(self, digest: str, path: Path) -> None:
        """Write content of any size to a file after checking its digest. The file appears complete or not at all."""
        ...

    def has(self, digest: str) -> bool: ...

    def remove(self, digest: str, *, at_once: bool = False) -> bool:
        """Delete the content and return True.

        Unless `at_once` is set, keep content that was stored or requested recently.
        """
        ...

    def below(self, name: str) -> "Files":
        """Return a separate content store. The name must be safe as a file name."""
        ...

    def sweep(self, used: Collection[str], *, at_once: bool = False) -> int:
        """Delete all content except these digests and return the number deleted.

        Unless `at_once` is set, recently stored content is also kept.
        """
        ...


class FollowedFolder(NamedTuple):
    """A directory that is synchronized between machines."""

    name: str
    root: Path
    wanted: Callable[[str], bool]
    """Selects the files at its top by name. All files below its other folders are included."""
    marked: tuple[Path, ...] = ()
    """Folders whose changes include their files' taint."""
    is_silent: bool = False
    """Whether conflicts are only logged, because no turn may learn of other people's files."""


class Folders:
    """The directories that a turn may change: a thread's files and, if an agent is given, its workspace.

    This implementation does nothing, because every machine sees the same files. Notices are sentences for the model.
    """

    def follow(self, folders: Callable[[ThreadId], Iterable[FollowedFolder]]) -> None:
        """Add a feature's directories, for each thread with an agent."""

    async def pull(self, thread: ThreadId, agent: AgentSpec | None = None) -> tuple[str, ...]:
        """Update the directories before work. Returns notices about conflicts with local changes.

        Raises StoreUnavailable if remote changes are not available yet; retry later.
        """
        return ()

    async def push(self, thread: ThreadId, agent: AgentSpec | None = None) -> tuple[str, ...]:
        """Publish local changes. Returns notices about conflicts and about changes that could not be stored yet."""
        return ()

    async def forget(self, thread: ThreadId) -> None:
        """Publish the deletion of a thread's files. Raises OSError."""

    def here(self, thread: ThreadId, path: str) -> str:
        """Return the path of a thread's file on this machine."""
        return path


STILL_FOLDERS = Folders()


def relocated(data: EventData, here: Callable[[str], str]) -> EventData:
    """Return an event's data with this machine's paths. Returns the same object if no path differs."""
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
    """Return the digest of a file's content. Raises OSError."""
    with open(path, "rb", opener=regular_only) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_CHARS]


# ---- work in threads ----

_Result = TypeVar("_Result")


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """Run `work` in a thread and return its result or raise its error.

    A thread cannot be stopped, so a cancellation is raised only after the work ends. A lock held by the caller
    therefore covers all of the work. Use this only for short work, such as reading or writing a file.
    """
    return await to_the_end(asyncio.get_running_loop().run_in_executor(None, work))


async def to_the_end(future: "asyncio.Future[_Result]") -> _Result:
    """Wait for a future even if cancelled, and raise the cancellation afterwards."""
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        import anyio

        with anyio.CancelScope(shield=True):  # Without it, anyio cancels the task in every loop iteration.
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
        raise
    return future.result()
