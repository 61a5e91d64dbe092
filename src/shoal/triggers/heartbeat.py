"""The heartbeat: every so often the agent reads `data/HEARTBEAT.md` and does what stands there, without any history.

An empty file (or one with nothing but headings and comments) costs no model call.
"""

import re
from pathlib import Path

from shoal.domain.clock import Clock
from shoal.domain.ids import ThreadId
from shoal.domain.messages import Author, Prompt
from shoal.triggers.service import LATE_SECONDS_MIN, SourceOf, Target

HEARTBEAT_FILE = "HEARTBEAT.md"
TEXT_BYTES_MAX = 16_384
"""Of a longer file, only the beginning is read."""

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_ASK = (
    "This is your heartbeat, not a message of a person. Below is your list of standing tasks. Do what is due now. "
    "Nobody reads your answer here: tell people with the tools you have for that. If nothing is to be done, answer "
    "[SILENT].\n\n"
)


class Heartbeat:
    """Beats into one thread. Beats stand on a fixed grid of times, so that several processes send each one once."""

    def __init__(
        self,
        file: Path,
        thread: ThreadId,
        target: Target,
        clock: Clock,
        source_of: SourceOf,
        *,
        minutes: float,
        agent: str = "",
    ) -> None:
        self._file = file
        self._thread = thread
        self._target = target
        self._clock = clock
        self._seconds = minutes * 60
        self._agent = agent
        self._source_of = source_of

    async def run(self) -> None:
        """Beat until cancelled; ends at once when `minutes` is 0.

        A beat whose time was a moment ago is sent first: it may have been cut off. If it was sent, its key drops it.
        """
        if self._seconds <= 0:
            return
        if self._clock.now().timestamp() % self._seconds < min(LATE_SECONDS_MIN, self._seconds / 2):
            await self.beat()
        while True:
            await self._clock.sleep(self._seconds - self._clock.now().timestamp() % self._seconds)
            await self.beat()

    async def beat(self) -> bool:
        """Send the file's tasks; False when it has none. Raises StoreError."""
        text = tasks(self._file)
        if not text:
            return False
        now = self._clock.now()
        key = f"heartbeat:{self._agent}@{round(now.timestamp() / self._seconds)}"
        author = Author("shoal", "heartbeat", trusted=True)  # its file is the owner's, unless it is marked
        source = await self._source_of(self._file)
        await self._target.send(
            Prompt(
                self._thread,
                key,
                _ASK + text,
                author,
                now,
                agent=self._agent,
                message_id=key,
                origin="trigger",
                history=False,
                tainted_by=f"{HEARTBEAT_FILE}, written after {source}" if source else "",
            )
        )
        return True


def tasks(file: Path) -> str:
    """What a heartbeat file asks for; empty when it is missing or has only headings, comments and empty boxes."""
    try:
        with file.open("rb") as opened:
            text = opened.read(TEXT_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""
    text = _COMMENT.sub("", text).strip()
    has_task = any(line.strip(" \t-*+[]") and not line.lstrip().startswith("#") for line in text.splitlines())
    return text if has_task else ""
