"""Checkpoints: how a workspace was before a turn's first call that may change files, and how it was at its end.

What a turn did to files is what differs between the two. Whoever else changed files of the same workspace in between
has a hand in that; `features/undo/undo.py` finds other turns that did. A turn without such a call costs nothing here.
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
"""How long what was read of a workspace spares reading it again; then all of it is stored anew where it is gone."""
SEEN_WORKSPACES_MAX = 32
SEEN_FOLDERS_MAX = 20_000
"""Of how many workspaces, and of how many folders together, that is held in memory."""


class _Seen(NamedTuple):
    at: float
    folders: dict[Names, SeenFolder]


class Checkpoints:
    """Takes and keeps checkpoints, those of a workspace apart from all others."""

    def __init__(self, files: Files, home: Home, marked: MarkedFiles, settings: CheckpointsSettings) -> None:
        self._files = files
        self._home = home
        self._marked = marked
        self._settings = settings
        self._seen: dict[str, _Seen] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def name_of(self, workspace: Path) -> str:
        """By what name a workspace is known on every machine: its place in the home directory, where it lies there."""
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
        """The checkpoint before calls that are about to start; nothing where none of them may change files."""
        if not self._settings.days or not any(may_write(one.traits, one.invocation.actions) for one in started):
            return ()
        name = self.name_of(workspace)
        try:
            async with self.alone(name):
                taken = await self.take(name)
        except OSError as error:
            why = f"The workspace could not be read or kept ({system_words(error)}), so this cannot be undone."
            return (Checkpointed(name, "", author, (why,)),)
        return (Checkpointed(name, taken.tree, author, taken.notes),)

    async def after(self, before: Checkpointed | None) -> tuple[FilesChanged, ...]:
        """How the workspace is at the end of a turn that was checkpointed."""
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
            return (FilesChanged("", 0, (f"The workspace could not be read at the end ({system_words(error)}).",)),)
        return (FilesChanged(taken.tree, changed, tuple(dict.fromkeys((*before.notes, *taken.notes)))),)

    async def take(self, workspace: str) -> Scan:
        """Store how a workspace is now, for whoever has it alone. Raises OSError, StoreError."""
        path, now = self.path_of(workspace), time.monotonic()
        marks, trees = await self._marked.marks(path), self.trees(workspace)
        seen = self._seen.pop(workspace, None)
        if seen is None or seen.at + SEEN_SECONDS < now:
            seen = _Seen(now, {})
        scan = await in_thread(lambda: trees.scan(path, self._settings, marks, seen.folders))
        self._seen[workspace] = _Seen(seen.at, scan.seen)
        while len(self._seen) > SEEN_WORKSPACES_MAX or (
            len(self._seen) > 1 and sum(len(one.folders) for one in self._seen.values()) > SEEN_FOLDERS_MAX
        ):
            del self._seen[next(iter(self._seen))]  # the one that was used longest ago
        return scan

    async def gap(self, workspace: Path) -> str:
        """What of a workspace could not be undone, in a sentence; empty when a checkpoint covers all of it."""
        if not self._settings.days:
            return "Checkpoints are switched off."
        name = self.name_of(workspace)
        try:
            async with self.alone(name):
                return " ".join((await self.take(name)).notes)
        except OSError as error:
            return f"The workspace could not be read or kept ({system_words(error)})."

    def marking(self, workspace: str, source: str, seconds_max: float) -> AbstractAsyncContextManager[None]:
        """While the block runs, at most so long, what changes in a workspace is marked; nothing without a source."""
        return self._marked.during([self.path_of(workspace)], source, seconds_max)

    def known(self) -> set[str]:
        """The workspaces of agents of which checkpoints were taken on this machine."""
        names = map(self.name_of, self._home.root.glob("agents/*/workspace"))
        return {name for name in names if is_text(name) and self._lock(name).exists()}

    def _lock(self, workspace: str) -> Path:
        return self._home.data / "checkpoints" / f"{digest_of(workspace.encode())}.lock"

    async def sweep(self, workspace: str, roots: Collection[str]) -> int:
        """Delete what none of these trees of a workspace names; returns how many contents went."""
        async with self.alone(workspace):
            self._seen.pop(workspace, None)
            trees = self.trees(workspace)
            return await in_thread(lambda: trees.sweep(list(roots)))


def may_write(traits: Traits, actions: Sequence[Action]) -> bool:
    """Whether a call may change files of the workspace."""
    if traits.read_only or traits.changes in ("nothing", "home"):
        return False
    return not (traits.runs_commands and all(map(is_look, actions)))


def files_of(changes: Sequence[TreeChange]) -> list[TreeChange]:
    """Changes without those of folders that come or go with what is in them."""
    found: list[TreeChange] = []
    for change, following in zip(changes, [*changes[1:], None], strict=False):
        one = change.before or change.after
        comes_or_goes = one is not None and one.kind == "folder" and None in (change.before, change.after)
        if not (comes_or_goes and following is not None and following.path[: len(change.path)] == change.path):
            found.append(change)
    return found
