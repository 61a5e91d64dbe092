"""Live output of a running command. Viewers receive its latest part, without secrets, a few times a second.

Nothing is stored here, because the result of the command contains the complete output. Output is queued in pieces, and
the oldest pieces are dropped if a command writes too much. The queue is decoded SHOW_SECONDS later, and only if someone
is watching.

A secret may arrive in several pieces. `Redactor.redact_partial` holds back text that could become a secret, separately
for each stream. After dropped pieces, the remaining text may start in the middle of a secret. Shoal then omits at least
as many characters as the longest secret has, and the rest of the line.
"""

import asyncio
import codecs
from collections import defaultdict, deque

from shoal.kernel import lazy_re
from shoal.kernel.clock import Clock
from shoal.kernel.events import OutputShown
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.ports import LiveHub
from shoal.permissions.redact import Redactor
from shoal.tools.output import visible

SHOW_SECONDS = 0.25
QUIET_SHOWS = 20
"""Number of updates without new output after which the latest output is sent again, for people who have just started
watching.
"""
KEEP_BYTES = 131_072
SECRET_CHARS_MAX = 24_576
"""Maximum length of a secret, and of the text that is held back because it may contain the beginning of a secret."""
SHOWN_BYTES_MAX = 3_000
"""Maximum size of the shown output. Encoded as JSON, it fits into one PostgreSQL notification."""

_STYLES = lazy_re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
_WRITTEN_OVER = lazy_re.compile(r"(?<![^\n\r])(?:[^\n\r]++|(?<!\r))\r++(?=[^\n\r])")
"""Matches text that a terminal overwrites, such as every line of a progress bar except the last."""


class LiveOutput:
    """Live output of one call. Pass `take` as the command's `see`."""

    def __init__(
        self, hub: LiveHub, thread: ThreadId, turn: TurnId, call_id: CallId, redactor: Redactor, clock: Clock
    ) -> None:
        self._hub = hub
        self._thread = thread
        self._turn = turn
        self._call_id = call_id
        self._redactor = redactor
        self._clock = clock
        self._began = clock.monotonic()
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._streams: defaultdict[int, StreamText] = defaultdict(StreamText)
        self._final = ""
        self._quiet = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, stream: int, data: bytes) -> None:
        self._pieces.append((stream, data))
        self._size += len(data)
        while self._size > KEEP_BYTES:
            number, lost = self._pieces.popleft()
            self._size -= len(lost)
            self._streams[number].lose(SECRET_CHARS_MAX)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SHOW_SECONDS, self.show)

    def show(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SHOW_SECONDS, self.show)
        self._quiet = 0 if self._pieces else (self._quiet + 1) % QUIET_SHOWS
        if self._quiet or not self._hub.watched(self._thread):
            return
        while self._pieces:
            number, data = self._pieces.popleft()
            self._streams[number].feed(data)
        self._size = 0
        going_on = list[str]()
        for stream in self._streams.values():
            final, unfinished = stream.take_text(self._redactor)
            self._final = _end_of(_WRITTEN_OVER.sub("", self._final + final))
            going_on += filter(None, (unfinished,))
        text = _WRITTEN_OVER.sub("", self._final + "\n".join(going_on)).replace("\r", "")
        seconds = round(self._clock.monotonic() - self._began, 1)
        self._hub.show(self._thread, self._turn, OutputShown(self._call_id, _end_of(visible(text)), seconds))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pieces.clear()


class StreamText:
    """Pending text of one stream, and the number of characters to omit after output was lost."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._lost = 0

    def lose(self, chars: int) -> None:
        """Record that output is missing. At least the next `chars` characters are omitted, up to the end of a line."""
        self._decoder.reset()
        self._pending = ""
        self._lost = chars

    def feed(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        if self._lost:
            end = text.find("\n", self._lost - 1)
            self._lost = 0 if end >= 0 else max(1, self._lost - len(text))
            text = text[end + 1 :] if end >= 0 else ""
        self._pending += text

    def take_text(self, redactor: Redactor) -> tuple[str, str]:
        final, now, self._pending = redactor.redact_partial(_STYLES.sub("", self._pending))
        if len(self._pending) > SECRET_CHARS_MAX:
            self.lose(1)
        return final, now


def _end_of(text: str) -> str:
    if len(text) * 4 <= SHOWN_BYTES_MAX or len(content := text.encode(errors="replace")) <= SHOWN_BYTES_MAX:
        return text
    end = content[-SHOWN_BYTES_MAX:].decode(errors="ignore")
    _, newline, whole = end.partition("\n")
    return whole if newline and whole else end
