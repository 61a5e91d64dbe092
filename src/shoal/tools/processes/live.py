"""One process while it runs here: its log, its end, and what its hooks want to fire."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from shoal.domain.errors import SandboxError
from shoal.domain.processes import Hook, Process
from shoal.tools.processes.logs import ProcessLog
from shoal.tools.processes.matching import LineMatcher

MATCHES_MAX = 32
"""Most matches that wait to be told; further ones are dropped, as each hook fires only so often."""


class Match:
    """A line that a hook waits for."""

    __slots__ = ("hook", "line")

    def __init__(self, hook: int, line: str) -> None:
        self.hook = hook
        self.line = line


class LiveProcess:
    """Implements `domain.processes.Watch`. `limit` is what ends it; `changed` is set whenever there is news,
    `telling` is held while what a hook has to say is sent."""

    def __init__(
        self,
        process: Process,
        log: ProcessLog,
        identity_of: Callable[[int], str],
        sources: Callable[[], Awaitable[str]],
    ) -> None:
        """`sources` tells what taints what it may read now. Raises InvalidInput for a hook's pattern that cannot be
        used."""
        self.process = process
        self.sources = sources
        self.identity = ""
        self.killed_by = ""
        self.limit: asyncio.Timeout | None = None
        self.begun = asyncio.Event()
        self.changed = asyncio.Event()
        self.telling = asyncio.Lock()
        self.matches: deque[Match] = deque(maxlen=MATCHES_MAX)
        self.fired: dict[int, int] = {}
        self.fired_at: dict[int, float] = {}
        self.error: SandboxError | None = None
        self._log = log
        self._identity_of = identity_of
        self._numbers = [number for number, hook in enumerate(self.hooks) if hook.on == "output"]
        patterns = [self.hooks[number].pattern for number in self._numbers]
        self._matcher = LineMatcher(patterns) if patterns else None

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """When it starts a turn."""
        return self.process.spec.hooks

    def started(self, pid: int) -> None:
        """It runs."""
        self.identity = self._identity_of(pid) if pid else ""
        self.begun.set()

    def output(self, data: bytes) -> None:
        """Log it, and look for what the hooks wait for."""
        self._log.write(data)
        if self._matcher is not None:
            for found, line in self._matcher.take(data):
                self._note(found, line)

    def close(self) -> None:
        """It has ended: look at the last line too, and close the log."""
        if self._matcher is not None:
            for found, line in self._matcher.end():
                self._note(found, line)
        self._log.close()
        self.begun.set()

    @contextmanager
    def ended_by(self, limit: asyncio.Timeout) -> Generator[None]:
        """While the block runs, `end` ends it by this."""
        self.limit = limit
        if self.killed_by:
            self.end(self.killed_by)
        try:
            yield
        finally:
            self.limit = None

    def end(self, by: str) -> None:
        """Have it killed, once; never waits."""
        self.killed_by = self.killed_by or by
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())

    def _note(self, found: tuple[int, ...], line: str) -> None:
        for number in found:
            self.matches.append(Match(self._numbers[number], line))
        self.changed.set()
