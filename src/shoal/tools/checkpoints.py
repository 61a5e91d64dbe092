"""Checkpoints store the state of a workspace before a turn's first call that may change files, and again at the end of
the turn.

The difference between the two states counts as the turn's work, even if other turns changed the workspace in the
meantime. `features/undo/undo.py` finds those turns. A turn whose calls cannot change files has no checkpoint.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from shoal.kernel.checkpoints import CheckpointsSettings, TreeChange
from shoal.kernel.errors import system_words
from shoal.kernel.events import Checkpointed, FilesChanged
from shoal.kernel.files import Files, digest_of, in_thread
from shoal.kernel.home import Home
from shoal.kernel.permissions import Action
from shoal.kernel.traits import Traits
from shoal.kernel.untrusted import is_text
from shoal.tools.executor import Admitted, is_look
from shoal.tools.locks import lock_file
from shoal.tools.tainted_files import MarkedFiles
from shoal.tools.trees import Names, Scan, SeenFolder, Trees

SEEN_SECONDS = 21_600.0
"""Maximum age of a scan that is reused. Only a new scan detects content that is missing from the store, and stores it
again.
"""
SEEN_WORKSPACES_MAX = 32
SEEN_FOLDERS_MAX = 20_000


class _Seen(NamedTuple):
    at: float
    folders: dict[Names, SeenFolder]


class Checkpoints:
    def __init__(self, files: Files, home: Home, marked: MarkedFiles, settings: CheckpointsSettings) -> None:
        self._files = files
        self._home = home
        self._marked = marked
        self._settings = settings
        self._seen: dict[str, _Seen] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def name_of(self, workspace: Path) -> str:
        """Return a name that is the same on every machine: the path relative to the home directory. For a workspace
        outside the home directory, return its absolute path.
        """
        home = self._home.root
        return str(workspace.relative_to(home) if workspace.is_relative_to(home) else workspace)

    def path_of(self, workspace: str) -> Path:
        return self._home.root / workspace

    def trees(self, workspace: str) -> Trees:
        return Trees(self._files.below(digest_of(workspace.encode())))

    @asynccontextmanager
    async def alone(self, workspace: str) -> AsyncGenerator[None]:
        lock = self._locks.setdefault(workspace, asyncio.Lock())
        async with lock, lock_file(self._lock(workspace)):
            yield

    async def before(self, started: Sequence[Admitted], workspace: Path, author: str) -> tuple[Checkpointed, ...]:
        """Take a checkpoint if one of these calls may change files. Otherwise returns an empty tuple.

        An OSError is recorded in the notes of the checkpoint, which then has no tree.
        """
        if not self._settings.days or not any(may_write(call.traits, call.invocation.actions) for call in started):
            return ()
        name = self.name_of(workspace)
        try:
            async with self.alone(name):
                taken = await self.take(name)
        except OSError as error:
            why = (
                f"Shoal could not read or store the workspace ({system_words(error)}), so changes to it cannot be "
                "undone."
            )
            return (Checkpointed(name, "", author, (why,)),)
        return (Checkpointed(name, taken.tree, author, taken.notes),)

    async def after(self, before: Checkpointed | None) -> tuple[FilesChanged, ...]:
        if before is None:
            return ()
        if not before.tree:
            return (FilesChanged("", 0, before.notes),)
        try:
            async with self.alone(before.workspace):
                taken = await self.take(before.workspace)
            trees = self.trees(before.workspace)
            changed = await in_thread(lambda: len(files_of(list(trees.changes(before.tree, taken.tree)))))
        except OSError as error:
            return (
                FilesChanged(
                    "", 0, ((f"Shoal could not read the workspace at the end of the turn ({system_words(error)})."),)
                ),
            )
        return (FilesChanged(taken.tree, changed, tuple(dict.fromkeys((*before.notes, *taken.notes)))),)

    async def take(self, workspace: str) -> Scan:
        """Store the current state of a workspace. The caller must hold its lock (`alone`). Raises OSError and
        StoreError.
        """
        path, now = self.path_of(workspace), time.monotonic()
        marks, trees = await self._marked.marks(path), self.trees(workspace)
        seen = self._seen.pop(workspace, None)
        if seen is None or seen.at + SEEN_SECONDS < now:
            seen = _Seen(now, {})
        scan = await in_thread(lambda: trees.scan(path, self._settings, marks, seen.folders))
        self._seen[workspace] = _Seen(seen.at, scan.seen)
        while len(self._seen) > SEEN_WORKSPACES_MAX or (
            len(self._seen) > 1 and sum(len(seen.folders) for seen in self._seen.values()) > SEEN_FOLDERS_MAX
        ):
            del self._seen[next(iter(self._seen))]  # evict the least recently used
        return scan

    async def gap(self, workspace: Path) -> str:
        if not self._settings.days:
            return "Checkpoints are switched off."
        name = self.name_of(workspace)
        try:
            async with self.alone(name):
                return " ".join((await self.take(name)).notes)
        except OSError as error:
            return f"Shoal could not read or store the workspace ({system_words(error)})."

    def marking(self, workspace: str, source: str, seconds_max: float) -> AbstractAsyncContextManager[None]:
        """Taint changes in the workspace while the block runs, for at most `seconds_max`. Does nothing if `source`
        is empty.
        """
        return self._marked.during([self.path_of(workspace)], source, seconds_max)

    def known(self) -> set[str]:
        names = map(self.name_of, self._home.root.glob("agents/*/workspace"))
        return {name for name in names if is_text(name) and self._lock(name).exists()}

    def _lock(self, workspace: str) -> Path:
        return self._home.data / "checkpoints" / f"{digest_of(workspace.encode())}.lock"

    async def sweep(self, workspace: str, roots: Collection[str]) -> int:
        async with self.alone(workspace):
            self._seen.pop(workspace, None)
            trees = self.trees(workspace)
            return await in_thread(lambda: trees.sweep(list(roots)))


def may_write(traits: Traits, actions: Sequence[Action]) -> bool:
    if traits.read_only or traits.changes in ("nothing", "home"):
        return False
    return not (traits.runs_commands and all(map(is_look, actions)))


def files_of(changes: Sequence[TreeChange]) -> list[TreeChange]:
    """Omit folders that appear or disappear together with their content."""
    found: list[TreeChange] = []
    for change, following in zip(changes, [*changes[1:], None], strict=False):
        entry = change.before or change.after
        comes_or_goes = entry is not None and entry.kind == "folder" and None in (change.before, change.after)
        if not (comes_or_goes and following is not None and following.path[: len(change.path)] == change.path):
            found.append(change)
    return found
