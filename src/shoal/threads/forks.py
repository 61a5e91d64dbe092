"""Fork conversations: a new thread begins as a copy of another thread and its files."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from shoal.files.deep_folders import remove_tree
from shoal.kernel.errors import Conflict, InvalidInput, NotFound, ShoalError, UnderWay
from shoal.kernel.events import Event, EventData, Forked, UserSaid
from shoal.kernel.files import Folders, relocated
from shoal.kernel.ids import ThreadId, is_child
from shoal.store.store import Store
from shoal.tools.locks import FileLock
from shoal.tools.prompt_files import PromptFiles

COPYING = ".copying-"
"""Prefix of the folder that contains a fork's files until the fork's thread exists."""
SINCE_FORK_MAX = 1_000
"""Maximum number of events that a fork may have before its files are moved to their final folder."""


class Forks(msgspec.Struct, eq=False):
    """Copies threads with their files. `end_forks` completes or removes interrupted copies."""

    store: Store
    publish: Callable[[Sequence[Event]], None]
    files: PromptFiles
    folders: Folders

    async def fork(self, source: ThreadId, thread: ThreadId, by: str, after: int = 0, *, opened_by: str = "") -> None:
        """Make `thread` a copy of `source` up to event `after` (0: all events).

        The copy includes complete results, the files that these events name, and their taint, but no grants. The
        same transaction completes the post `opened_by`, which opened the thread.

        Raises NotFound, Conflict if `thread` exists, UnderWay while another process makes the copy, InvalidInput for
        an unknown event or a subagent's thread, StoreNewer and OSError.
        """
        if is_child(source):
            raise InvalidInput("This thread belongs to a subagent. Fork the conversation that started it.")
        info = await self.store.journal.thread(source)
        if info is None:
            raise NotFound(f"Thread {source} does not exist.")
        home, upto, seq = self.files.home, after or info.last_seq, 0
        there, here = home.thread(source), home.thread(thread)
        if await self.store.journal.thread(thread) is not None or (here / "attachments").exists():
            raise Conflict(f"The thread {thread} or a folder for it already exists. Choose another id.")
        if upto > info.last_seq:
            raise InvalidInput(f"{source} ends with event {info.last_seq}, so event {upto} does not exist.")
        await self.folders.pull(source)
        moved, files = dict[int, EventData](), set[Path]()
        theirs, ours = (f"/data/{thread_id.replace(':', '/')}/" for thread_id in (source, thread))

        def copied(path: str) -> str:
            file = Path(path.partition(theirs)[2])  # Works for any location of the home directory.
            if not file.parts or ".." in file.parts:
                return path
            files.add(file)
            return str(here / file)

        while events := await self.store.journal.events(source, seq, before=upto + 1):
            seq = events[-1].seq
            for event in events:
                data = relocated(event.data, copied)
                if isinstance(data, UserSaid) and data is not event.data:
                    known = [(attachment, attachment.inside.replace(theirs, ours)) for attachment in data.attachments]
                    files_told = tuple(
                        msgspec.structs.replace(known_file, inside=inside) for known_file, inside in known
                    )
                    data = msgspec.structs.replace(data, attachments=files_told)
                if data is not event.data:
                    moved[event.seq] = data
        folder = here.with_name(f"{COPYING}{here.name}")
        source_of = await self.files.marks.sources([home.attachments(source)])
        lock = FileLock(folder)
        if folder.is_dir() and lock.take():  # The process that created it has ended.
            await self._end_fork(folder)
            lock.release()
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError as error:
            raise UnderWay(f"Another process is creating {thread}. Try again.") from error
        if not lock.take():
            raise UnderWay(f"Another process is creating {thread}. Try again.")
        try:
            for file in files:
                await asyncio.to_thread(_copy, there / file, folder / file)
                if marked := source_of(there / file):
                    await self.files.marks.note(home.attachments(thread), [folder / file], marked)
            self.publish(await self.store.branches.fork(source, thread, upto, by, moved, opened_by))
        except (ShoalError, OSError):
            with contextlib.suppress(OSError):
                await asyncio.to_thread(remove_tree, folder)
            raise
        finally:
            await self._end_fork(folder)
            lock.release()

    async def end_forks(self) -> None:
        """Complete the files of interrupted forks. Delete the files of forks whose thread does not exist."""
        for folder in await asyncio.to_thread(lambda: [*self.files.home.data.glob(f"*/*/{COPYING}*")]):
            lock = FileLock(folder)
            if lock.take():  # Otherwise another process is working on the fork.
                await self._end_fork(folder)
                lock.release()

    async def _end_fork(self, folder: Path) -> None:
        here = folder.with_name(folder.name.removeprefix(COPYING))
        thread, journal = ThreadId(":".join(here.parts[-3:])), self.store.journal
        info = await journal.thread(thread) if folder.is_dir() else None
        events = await journal.events(thread, max(0, info.last_seq - SINCE_FORK_MAX)) if info is not None else []
        if any(isinstance(event.data, Forked) for event in events):
            here.mkdir(parents=True, exist_ok=True)
            for part in folder.iterdir():  # Move complete folders, because a file that is moved alone loses its taint.
                part.rename(here / part.name)
            await self.folders.push(thread)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(remove_tree, folder)


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(file, target, follow_symlinks=False)
