"""The log on stderr: one line an event, for people or as JSON, with the fields a message carries."""

import logging
import sys
from typing import TextIO, cast

import msgspec

from shoal.domain.clock import from_micros, iso

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


OTHERS = ("uvicorn", "httpx2", "httpcore2", "asyncio")
"""Packages whose logs are of interest only when they warn."""


DRIVERS = ("psycopg", "procrastinate")
"""Packages that warn of each connection an outage costs; what it means is said by those who use them."""


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what sys.stderr is now, so that a terminal chat can move it out of the way of its prompt."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where lines go."""
        return sys.stderr


class TextFormatter(logging.Formatter):
    """`TIME LEVEL logger: message key=value…`"""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback if there is one."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname.lower():<7} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the message's fields, and `trace` for an error."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def start_logging(level: str, *, as_json: bool = False) -> None:
    """Send the log of this process to stderr."""
    handler = _StandardError()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in OTHERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in DRIVERS:
        logging.getLogger(name).setLevel(logging.ERROR)


def _time(record: logging.LogRecord) -> str:
    return iso(from_micros(int(record.created * 1_000_000)))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = cast("dict[str, object]", vars(record))
    return {name: value for name, value in found.items() if name not in _STANDARD}
