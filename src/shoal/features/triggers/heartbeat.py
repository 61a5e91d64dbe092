"""Heartbeat: the agent regularly does the tasks in `data/HEARTBEAT.md`, each time without conversation history.

No model is called if the file is empty or contains only headings and comments.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from shoal.features.triggers.service import LATE_SECONDS_MIN, SourceOf, TriggerTarget
from shoal.kernel.clock import Clock
from shoal.kernel.ids import HEARTBEAT_THREAD
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.ports import Settings
from shoal.kernel.regular_files import read_regular

HEARTBEAT_FILE = "HEARTBEAT.md"
TEXT_BYTES_MAX = 16_384
"""Maximum number of bytes read from HEARTBEAT.md. The rest of a longer file is ignored."""

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_ASK = (
    "This is your heartbeat, not a message from a person. Below is your list of standing tasks. Do what is due now. "
    "Nobody reads your answer here: use your tools to reach people. If nothing is due, answer [SILENT].\n\n"
)


@dataclass(eq=False, repr=False)
class Heartbeat:
    """Sends heartbeats to one thread.

    Heartbeats are due at multiples of the interval, so several processes together send each heartbeat only once. The
    key of a heartbeat contains a stored counter. After the clock is set back, keys therefore remain unique and no
    heartbeat is dropped as a duplicate.
    """

    file: Path
    target: TriggerTarget
    settings: Settings
    clock: Clock
    source_of: SourceOf
    minutes: float

    async def run(self) -> None:
        """Send heartbeats until cancelled. Returns immediately if `minutes` is 0.

        A heartbeat that was due shortly before the start is sent first, because the previous process may not have sent
        it.
        """
        seconds = self.minutes * 60
        if seconds <= 0:
            return
        if self.clock.now().timestamp() % seconds < min(LATE_SECONDS_MIN, seconds / 2):
            await self.beat()
        while True:
            await self.clock.sleep(seconds - self.clock.now().timestamp() % seconds)
            await self.beat()

    async def beat(self) -> bool:
        """Send the tasks in the file. Return False if the file has no tasks or this heartbeat was already sent.

        Raises StoreError.
        """
        text = tasks(self.file)
        if not text:
            return False
        now = self.clock.now()
        time = str(round(now.timestamp() / (self.minutes * 60)))
        last = await self.settings.get("heartbeat", "")
        number, _, last_time = (last or "0").partition(" ")
        if last_time == time:
            return False
        number = (int(number) if number.isdecimal() else 0) + 1
        key = f"heartbeat:@{time}.{number}"
        author = Author("shoal", "heartbeat", trusted=True)  # the owner wrote the file, unless it is tainted
        source = await self.source_of(self.file)
        await self.target.send(
            Prompt(
                HEARTBEAT_THREAD,
                key,
                _ASK + text,
                author,
                now,
                message_id=key,
                origin="trigger",
                history=False,
                tainted_by=f"{HEARTBEAT_FILE}, written after {source}" if source else "",
            )
        )
        await self.settings.swap("heartbeat", "", last, f"{number} {time}")
        return True


def tasks(file: Path) -> str:
    """Return the text of a heartbeat file without comments, or an empty string if the file contains no task.

    Headings and empty checkboxes are not tasks.
    """
    try:
        text = read_regular(file, TEXT_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""
    text = _COMMENT.sub("", text).strip()
    has_task = any(line.strip(" \t-*+[]") and not line.lstrip().startswith("#") for line in text.splitlines())
    return text if has_task else ""
