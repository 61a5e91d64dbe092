"""State of a running process on this server."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from shoal.features.processes.hooks import LineMatcher
from shoal.features.processes.logs import ProcessLog
from shoal.features.processes.records import Hook, Process
from shoal.kernel.errors import SandboxError

MATCHES_MAX = 32
"""Maximum number of matches waiting to be sent. Beyond that, the oldest are dropped. Each hook fires only a limited
number of times, so few matches are needed.
"""


class LiveProcess:
    """Implements `kernel.agents.Watch` for a running process.

    `limit`: timeout of the process. Rescheduling it to the current time ends the process.
    `changed`: set when a match is waiting or the process has ended.
    """

    def __init__(
        self,
        process: Process,
        log: ProcessLog,
        identity_of: Callable[[int], str],
        sources: Callable[[], Awaitable[str]],
    ) -> None:
        """Prepare to watch a process. `sources` returns the taint of the content that the process can read now.

        Raises InvalidInput for an invalid pattern.
        """
        self.process = process
        self.sources = sources
        self.identity = ""
        self.killed_by = ""
        self.limit: asyncio.Timeout | None = None
        self.begun = asyncio.Event()
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()
        self.matches: deque[tuple[int, str]] = deque(maxlen=MATCHES_MAX)
        """Hook number and text of each matching line waiting to be sent."""
        self.fired: dict[int, tuple[int, float]] = {}
        """Number of times that each hook has fired, and the time of its last firing, by hook number."""
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
        self._log.write(data)
        if self._matcher is not None:
            self._note(self._matcher.take(data))

    def close(self) -> None:
        """Match the last line and close the log. Call this after the process has ended."""
        if self._matcher is not None:
            self._note(self._matcher.end())
        self._log.close()
        for event in (self.begun, self.ended, self.changed):
            event.set()

    def end(self, by: str) -> None:
        """Kill the process without waiting for it to exit. `killed_by` records the first caller."""
        self.killed_by = self.killed_by or by
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())

    def _note(self, matches: Iterator[tuple[tuple[int, ...], str]]) -> None:
        for pattern, line in matches:
            self.matches.extend((self._numbers[number], line) for number in pattern)
            self.changed.set()
