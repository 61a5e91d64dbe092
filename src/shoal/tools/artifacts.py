"""How long results are kept whole."""

import logging
from datetime import timedelta

from shoal.domain.clock import Clock
from shoal.domain.files import Files
from shoal.domain.store import Artifacts
from shoal.tools.threads import in_thread

log = logging.getLogger(__name__)

CHECK_SECONDS = 3600.0


class ArtifactRetention:
    """Forgets artifacts older than `days` (0: never)."""

    def __init__(self, artifacts: Artifacts, files: Files, clock: Clock, days: float) -> None:
        self._artifacts = artifacts
        self._files = files
        self._clock = clock
        self._days = days

    async def run(self) -> None:
        """Look once an hour, for ever."""
        while True:
            await self.expire()
            await self._clock.sleep(CHECK_SECONDS)

    async def expire(self) -> int:
        """Forget what is too old now; returns how many files went."""
        if not self._days:
            return 0
        unused = await self._artifacts.expire(self._clock.now() - timedelta(days=self._days))
        gone = 0
        for digest in unused:
            try:
                gone += await in_thread(lambda digest=digest: self._files.remove(digest))
            except OSError as error:
                log.warning("an artifact could not be deleted", extra={"digest": digest, "why": str(error)})
        return gone
