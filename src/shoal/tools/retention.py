"""What is kept for a time: whole results, checkpoints of workspaces, and the marks of files that are gone."""

import logging
from datetime import timedelta

from shoal.domain.clock import Clock
from shoal.domain.files import STILL_FOLDERS, Files, Folders, in_thread
from shoal.domain.home import Home
from shoal.store.store import Store
from shoal.tools.checkpoints import Checkpoints
from shoal.tools.tainted_files import MarkedFiles

log = logging.getLogger(__name__)

CHECK_SECONDS = 3600.0
CHECKS_A_DAY = 24


class Retention:
    """Forgets artifacts older than `days` (0: never), checkpoints older than `checkpoint_days`, and marks that mark no
    file any more.

    Marks of directories that follow their work stay: what they mark may lie on another machine.
    """

    def __init__(
        self,
        store: Store,
        files: Files,
        folders: Folders,
        checkpoints: Checkpoints,
        home: Home,
        clock: Clock,
        days: float,
        checkpoint_days: float,
    ) -> None:
        self._store = store
        self._files = files
        self._marked = MarkedFiles(store.settings, home) if folders is STILL_FOLDERS else None
        self._clock = clock
        self._days = days
        self._checkpoints = checkpoints
        self._checkpoint_days = checkpoint_days

    async def run(self) -> None:
        """Look for artifacts once an hour and for the rest once a day, for ever."""
        while True:
            if self._marked is not None:
                await self._marked.forget_unused()
            await self.expire_checkpoints()
            for _ in range(CHECKS_A_DAY):
                await self.expire()
                await self._clock.sleep(CHECK_SECONDS)

    async def expire(self) -> int:
        """Forget what is too old now; returns how many files went."""
        if not self._days:
            return 0
        unused = await self._store.artifacts.expire(self._clock.now() - timedelta(days=self._days))
        gone = 0
        for digest in unused:
            try:
                gone += await in_thread(lambda digest=digest: self._files.remove(digest))
            except OSError as error:
                log.warning("an artifact could not be deleted", extra={"digest": digest, "why": str(error)})
        return gone

    async def expire_checkpoints(self) -> int:
        """Forget what is too old now of what turns found and left, with all that nothing names any more, which
        deleted threads leave too; returns how many contents went."""
        rows, gone = self._store.checkpoints, 0
        before = self._clock.now() - timedelta(days=self._checkpoint_days)
        forgotten = {one async for one in rows.forget(before)}
        for workspace in forgotten | await in_thread(self._checkpoints.known):  # those of deleted threads are forgotten
            try:
                gone += await self._checkpoints.sweep(workspace, await rows.trees(workspace))
            except OSError as error:
                log.warning("old checkpoints could not be deleted", extra={"folder": workspace, "why": str(error)})
        return gone
