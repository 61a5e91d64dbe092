"""What is too large for rows: content kept once by its digest, directories that follow the work; and file work in
threads, which never goes on behind a cancelled caller.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from shoal.kernel.agents import AgentSpec
from shoal.kernel.events import EventData, ToolFinished, UserSaid
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Image
from shoal.kernel.regular_files import regular_only

DIGEST_CHARS = 32
"""How much of the SHA-256 names a content: 128 bits."""


class Files(Protocol):
    """Content by digest. Every method blocks and raises OSError; call it in a thread."""

    def keep(self, content: bytes) -> str:
        """Store the content once and return its digest; durable on return."""
        ...

    def keep_file(self, path: Path) -> str:
        """The same for a file, of any size."""
        ...

    def read(self, digest: str) -> bytes:
        """The content, checked against its digest. Raises FileNotFoundError when it is not there."""
        ...

    def fetch(self, digest: str, path: Path) -> None:
        """The same into a file, of any size; the file appears whole or not at all."""
        ...

    def has(self, digest: str) -> bool: ...

    def remove(self, digest: str, *, at_once: bool = False) -> bool:
        """Delete it unless it was stored or asked for lately and need not go `at_once`; False when it stays."""
        ...

    def below(self, name: str) -> "Files":
        """Content that is kept apart from all other, under a name that is safe as a file's."""
        ...

    def sweep(self, used: Collection[str], *, at_once: bool = False) -> int:
        """Delete everything but these digests and, unless it is to go `at_once`, what was stored lately; returns how
        many went."""
        ...


class Folders:
    """The directories that work changes: a thread's files, and the workspace of the agent where one is given.

    Here every machine sees the same files, and nothing is done. The notices are sentences for the model.
    """

    async def pull(self, thread: ThreadId, agent: AgentSpec | None = None) -> tuple[str, ...]:
        """Bring them up to date before work; returns notices about what met changes made here.

        Raises StoreUnavailable when what others did cannot be had now; trying again is right.
        """
        return ()

    async def push(self, thread: ThreadId, agent: AgentSpec | None = None) -> tuple[str, ...]:
        """Give others what changed; returns notices about what met theirs, or could not be stored this time."""
        return ()

    async def forget(self, thread: ThreadId) -> None:
        """Have others delete a thread's files, which were deleted here. Raises OSError."""

    def here(self, thread: ThreadId, path: str) -> str:
        """A file of the thread, wherever it was stored, as a path of this machine."""
        return path


STILL_FOLDERS = Folders()


def relocated(data: EventData, here: Callable[[str], str]) -> EventData:
    """An event's data with the paths of this machine; the same object where it names none that differ."""
    match data:
        case UserSaid(attachments=attachments) if attachments:
            moved = tuple(
                msgspec.structs.replace(one, path=here(one.path), shown=here(one.shown)) for one in attachments
            )
            return data if moved == attachments else msgspec.structs.replace(data, attachments=moved)
        case ToolFinished(images=images) if images:
            shown = tuple(Image(here(one.path), one.media_type) for one in images)
            return data if shown == images else msgspec.structs.replace(data, images=shown)
        case _:
            return data


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_CHARS]


def digest_of_file(path: Path) -> str:
    """The name of a file's content. Raises OSError."""
    with open(path, "rb", opener=regular_only) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_CHARS]


# ---- work in threads ----

_Result = TypeVar("_Result")


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """Run `work` in a thread and return its result or raise its error.

    Cancelling waits for the end of what runs, since a thread cannot be stopped, and is raised then: so a lock that the
    caller holds covers all of the work. For work that is bounded by itself, such as reading or writing a file.
    """
    return await to_the_end(asyncio.get_running_loop().run_in_executor(None, work))


async def to_the_end(future: "asyncio.Future[_Result]") -> _Result:
    """Wait for it even when cancelled meanwhile; the cancellation is raised afterwards."""
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        import anyio

        with anyio.CancelScope(shield=True):  # a scope of anyio's cancels at every step of the loop who has no shield
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
        raise
    return future.result()
