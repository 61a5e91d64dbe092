"""A process that runs in this Shoal."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from shoal.features.processes.hooks import LineMatcher
from shoal.features.processes.logs import ProcessLog
from shoal.features.processes.records import Hook, Process
from shoal.kernel.errors import SandboxError

MATCHES_MAX = 32
"""Most matches that wait to be told; further ones are dropped, as each hook fires only so often."""


class LiveProcess:
    """Implements `kernel.agents.Watch`. `limit` is what ends it; `changed` is set whenever there is news."""

    def __init__(
        self,
        process: Process,
        log: ProcessLog,
        identity_of: Callable[[int], str],
        sources: Callable[[], Awaitable[str]],
    ) -> None:
        """`sources` tells what taints what it may read now. Raises InvalidInput for a pattern that cannot be used."""
        self.process = process
        self.sources = sources
        self.identity = ""
        self.killed_by = ""
        self.limit: asyncio.Timeout | None = None
        self.begun = asyncio.Event()
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()
        self.matches: deque[tuple[int, str]] = deque(maxlen=MATCHES_MAX)
        """The hooks, by number, that a line was written for, and the line."""
        self.fired: dict[int, tuple[int, float]] = {}
        """How often each hook has fired, and when last."""
        self.error: SandboxError | None = None
        self._log = log
        self._identity_of = identity_of
        self._numbers = [number for number, hook in enumerate(self.hooks) if hook.on == "output"]
        patterns = [self.hooks[number].pattern for number in self._numbers]
        self._matcher = LineMatcher(patterns) if patterns else None

    @property
    def hooks(self) -> tuple[Hook, ...]:
        return self.process.spec.hooks

    def started(self, pid: int) -> None:
        self.identity = self._identity_of(pid) if pid else ""
        self.begun.set()

    def output(self, data: bytes) -> None:
        """Log it, and look for what the hooks wait for."""
        self._log.write(data)
        if self._matcher is not None:
            self._note(self._matcher.take(data))

    def close(self) -> None:
        """It has ended: look at the last line too, and close the log."""
        if self._matcher is not None:
            self._note(self._matcher.end())
        self._log.close()
        for event in (self.begun, self.ended, self.changed):
            event.set()

    def end(self, by: str) -> None:
        """Have it killed, once; never waits."""
        self.killed_by = self.killed_by or by
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())

    def _note(self, matches: Iterator[tuple[tuple[int, ...], str]]) -> None:
        for pattern, line in matches:
            self.matches.extend((self._numbers[number], line) for number in pattern)
            self.changed.set()
