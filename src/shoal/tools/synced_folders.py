"""Synchronize directories between the machines that run turns. All directories are pulled before a turn.

directory                            synced files                     pushed after
----------------------------------   ------------------------------   ------------------------------------------
a thread's directory                 all except the readable logs     each call, each upload and each posted file
an agent's workspace                 all                              each call
a feature's directory (memory)       the files the feature selects    each call
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from weakref import WeakValueDictionary

from shoal.kernel.agents import AgentSpec
from shoal.kernel.errors import Conflict, InvalidInput, StoreCorrupt, StoreUnavailable
from shoal.kernel.files import Files, Folders, FollowedFolder
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, encode_part
from shoal.kernel.ports import Settings
from shoal.store.projections import CONTEXT, LOG
from shoal.tools.locks import lock_file
from shoal.tools.manifests import Wanted, everything
from shoal.tools.tainted_files import MarkedFiles
from shoal.tools.workspaces import WorkspaceSync

log = logging.getLogger(__name__)

MET = "[{count} changed here and on another machine at the same time. Other versions are stored as NAME.conflict.]"
STAYS = "[Shoal could not send the changes made here to other machines: {why} Shoal will retry after the next call.]"
BEHIND = "[Fetching the changes made on other machines failed: {why}]"
PROJECTED = frozenset({LOG, CONTEXT})
"""Files that are not synchronized, because each machine writes them from its journal."""

_Transfer = Callable[[str, Path, Wanted, tuple[Path, ...]], Awaitable[list[str]]]


class SyncedFolders(Folders):
    """Synchronizes directories between machines. The last common state is stored in `sync/` in the home directory."""

    def __init__(self, files: Files, settings: Settings, home: Home, marks: MarkedFiles) -> None:
        self._states = home.root / "sync"
        self._sync = WorkspaceSync(files, settings, self._states, marks)
        self._home = home
        self._added: list[Callable[[ThreadId], Iterable[FollowedFolder]]] = []
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def follow(self, folders: Callable[[ThreadId], Iterable[FollowedFolder]]) -> None:
        self._added.append(folders)

    async def pull(self, thread: ThreadId, agent: AgentSpec | None = None) -> tuple[str, ...]:
        notices: list[str] = []
        for folder in self._folders(thread, agent):
            try:
                notices += await self._transfer(self._sync.pull, folder)
            except OSError as error:
                raise StoreUnavailable(f"The files of {folder.name} are unavailable: {_why(error)}") from error
            except (StoreCorrupt, InvalidInput) as error:
                log.error("directory update failed", extra={"folder": folder.name, "why": str(error)})
                notices.append(BEHIND.format(why=error))
        return tuple(notices)

    async def push(self, thread: ThreadId, agent: AgentSpec | None = None) -> tuple[str, ...]:
        notices: list[str] = []
        for folder in self._folders(thread, agent):
            try:
                notices += await self._transfer(self._sync.push, folder)
            except (OSError, Conflict, StoreCorrupt, InvalidInput) as error:
                log.warning("directory upload failed", extra={"folder": folder.name, "why": str(error)})
                notices.append(STAYS.format(why=_why(error)))
        return tuple(notices)

    async def forget(self, thread: ThreadId) -> None:
        """Push the deletion of a thread's files, and delete their stored content. Other machines delete their
        copies at the next pull.
        """
        (folder,) = self._folders(thread, None)
        await self._transfer(self._sync.push, folder)
        await self._sync.forget(folder.name)

    def here(self, thread: ThreadId, path: str) -> str:
        root = self._home.thread(thread)
        inside = path.partition(f"/data/{thread.replace(':', '/')}/")[2]
        return str(root / inside) if inside and not path.startswith(f"{root}/") else path

    async def _transfer(self, transfer: _Transfer, folder: FollowedFolder) -> list[str]:
        lock = self._locks.setdefault(folder.name, asyncio.Lock())
        file = self._states / f"{encode_part(folder.name)}.lock"
        # Only one transfer of a folder runs at a time across all processes that share this home directory.
        async with lock, lock_file(file):
            met = len(await transfer(folder.name, folder.root, folder.wanted, folder.marked))
            if met and folder.is_silent:
                log.warning("files changed on two machines at once", extra={"folder": folder.name})
                return []
            count = "A file was" if met == 1 else f"{met} files were"
            # a file name could inject other people's text into a prompt
            return [MET.format(count=count)] if met else []

    def _folders(self, thread: ThreadId, agent: AgentSpec | None) -> Iterator[FollowedFolder]:
        home = self._home
        marked = home.scratch(thread), home.attachments(thread)
        yield FollowedFolder(f"thread {thread}", home.thread(thread), _is_shared, marked)
        if agent is None:
            return
        own = agent.workspace.relative_to(agent.home)  # a channel that unknown people may read has its own workspace
        name = f"agent {agent.name}" if own.parts == ("workspace",) else f"agent {agent.name} {own.as_posix()}"
        yield FollowedFolder(name, agent.workspace, everything, (agent.workspace,))
        for folders in self._added:
            yield from folders(thread)


def _is_shared(name: str) -> bool:
    return name not in PROJECTED


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
