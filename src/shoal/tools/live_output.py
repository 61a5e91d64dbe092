"""What a running command has written so far, for whoever watches: its end, without secrets, a few times a second.

The command's result stores all of it; nothing is stored here. A piece of output is only put aside, and of a command
that writes more the oldest pieces are let go. Text is made of them SHOW_SECONDS later, and only where somebody watches.

A secret may be written in several pieces, so that what could yet become one is held back (`Redactor.redact_begun`), in
each of the two streams by itself. Where pieces were let go the middle of a secret may come first: as much as the
longest secret takes is left out then, up to the next line.
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
"""How often output is shown, at most."""
QUIET_SHOWS = 20
"""After so many times without anything new the same is shown again, to who has come meanwhile."""
KEEP_BYTES = 131_072
"""Output that waits to be shown."""
SECRET_CHARS_MAX = 24_576
"""As long as a secret can be, and text that is held back."""
SHOWN_BYTES_MAX = 3_000
"""Of the end that is shown; as JSON it fits into one notification of PostgreSQL, whatever it is."""

_STYLES = lazy_re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
_WRITTEN_OVER = lazy_re.compile(r"(?<![^\n\r])(?:[^\n\r]++|(?<!\r))\r++(?=[^\n\r])")
"""What a terminal shows no more, as all but the last of a progress."""


class LiveOutput:
    """One call's. `take` is its command's `see`."""

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
        self._settled = ""
        self._quiet = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, stream: int, data: bytes) -> None:
        """Put a piece aside, to be shown soon."""
        self._pieces.append((stream, data))
        self._size += len(data)
        while self._size > KEEP_BYTES:
            number, lost = self._pieces.popleft()
            self._size -= len(lost)
            self._streams[number].lose(SECRET_CHARS_MAX)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SHOW_SECONDS, self.show)

    def show(self) -> None:
        """Show the end of what there is, where somebody watches; and soon again."""
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
            settled, unfinished = stream.take_text(self._redactor)
            self._settled = _end_of(_WRITTEN_OVER.sub("", self._settled + settled))
            going_on += filter(None, (unfinished,))
        text = _WRITTEN_OVER.sub("", self._settled + "\n".join(going_on)).replace("\r", "")
        seconds = round(self._clock.monotonic() - self._began, 1)
        self._hub.show(self._thread, self._turn, OutputShown(self._call_id, _end_of(visible(text)), seconds))

    def close(self) -> None:
        """The call has ended: its result says the rest."""
        if self._timer is not None:
            self._timer.cancel()
        self._pieces.clear()


class StreamText:
    """One stream's text that is not settled yet, and how much is still to be left out, with the line it ends in."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._lost = 0

    def lose(self, chars: int) -> None:
        """Something of it is missing: leave out what comes next."""
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
        """What is settled by now, and what can be shown besides, without secrets."""
        settled, now, self._pending = redactor.redact_begun(_STYLES.sub("", self._pending))
        if len(self._pending) > SECRET_CHARS_MAX:
            self.lose(1)
        return settled, now


def _end_of(text: str) -> str:
    """As much of the end as is shown, from the beginning of a line where there is one."""
    if len(text) * 4 <= SHOWN_BYTES_MAX or len(content := text.encode(errors="replace")) <= SHOWN_BYTES_MAX:
        return text
    end = content[-SHOWN_BYTES_MAX:].decode(errors="ignore")
    _, newline, whole = end.partition("\n")
    return whole if newline and whole else end
