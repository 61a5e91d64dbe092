"""Server-sent events from bytes as they arrive: cut anywhere, any line ending, comments, data in several lines.

Only `data` is kept: every provider repeats the event's name inside it. Source: the HTML standard's event stream format.
"""

EVENT_BYTES_MAX = 32 * 1024 * 1024
"""Largest single event taken; a stream with a larger one is not a model's answer."""


class EventTooLarge(Exception):
    """An event grew beyond EVENT_BYTES_MAX."""


class EventParser:
    """Feed it what was read; it gives the data of each event that became complete, as bytes."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events completed by this chunk, oldest first. Raises EventTooLarge."""
        buffer = self._rest + chunk if self._rest else chunk
        if b"\r" in buffer:
            buffer, held = _unify(buffer)
        else:
            held = b""
        lines = buffer.split(b"\n")
        self._rest = lines.pop() + held
        if len(self._rest) > EVENT_BYTES_MAX:
            raise EventTooLarge
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and data:
                events.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
        if len(data) > 1 and sum(map(len, data)) > EVENT_BYTES_MAX:
            raise EventTooLarge
        return events

    @property
    def partial_bytes(self) -> int:
        """How much of an event has come that is not complete."""
        return len(self._rest) + sum(map(len, self._data))

    def finish(self) -> list[bytes]:
        """The last event, where the server ended without the empty line that the format asks for."""
        return self.feed(b"\n\n") if self._rest or self._data else []


def _unify(buffer: bytes) -> tuple[bytes, bytes]:
    """Every line ending as a newline; a carriage return at the very end waits, its newline may follow."""
    held = b""
    if buffer.endswith(b"\r"):
        buffer, held = buffer[:-1], b"\r"
    return buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), held
