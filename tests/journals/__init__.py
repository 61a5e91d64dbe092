"""Journals of past conversations, by the version that wrote them: `replay` has to build their requests as they were."""

import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from shoal.domain.events import Event, decode_data
from shoal.domain.ids import ThreadId, TurnId
from shoal.turn.prompt import PromptSection

FOLDER = Path(__file__).parent
BASE = Path(tempfile.gettempdir(), "shoal-journals")
"""Where scenarios are played: the same each time, since it stands in system texts."""


class KeptThread(msgspec.Struct, frozen=True):
    """A thread on a line of a file: its events as the API shows them, and the prompts that they name."""

    thread: ThreadId
    prompts: dict[str, tuple[PromptSection, ...]]
    events: tuple[msgspec.Raw, ...]


class KeptEvent(msgspec.Struct, frozen=True):
    """An event of one."""

    seq: int
    thread: ThreadId
    turn: TurnId
    type: str
    at: datetime
    data: msgspec.Raw


_threads = msgspec.json.Decoder(KeptThread)
_events = msgspec.json.Decoder(KeptEvent)


def read_threads(file: Path) -> list[KeptThread]:
    """What a file has."""
    return [_threads.decode(line) for line in file.read_bytes().splitlines()]


def read_events(thread: KeptThread) -> Sequence[Event]:
    """A thread's journal, read as the database's rows are."""
    kept = map(_events.decode, thread.events)
    return [Event(one.seq, one.thread, one.turn, one.at, decode_data(one.type, bytes(one.data))) for one in kept]
