"""API responses about threads, and the limits of their lists."""

from datetime import datetime

import msgspec

EVENTS_MAX = 5000
THREADS_MAX = 10_000


class Accepted(msgspec.Struct, frozen=True):
    """The message is stored and will be answered."""

    accepted: bool
    message_id: str
    duplicate: bool


class OpenedThread(msgspec.Struct, frozen=True):
    """The thread that was opened."""

    thread: str


class ThreadSummary(msgspec.Struct, frozen=True):
    """A thread.

    open_turn: id of the open turn, or empty.
    queued: number of waiting messages.
    retry_at: time of the next retry if a turn waits for its model, otherwise null.
    model: the model that was chosen for this thread, or empty for the agent's own model.
    """

    thread: str
    agent: str
    title: str
    last_seq: int
    open_turn: str
    queued: int
    parent: str
    created_at: datetime
    updated_at: datetime
    retry_at: datetime | None
    pinned: bool
    archived: bool
    model: str


class ArtifactView(msgspec.Struct, frozen=True):
    """A stored result.

    artifact: id of the result, used in events and in the path of the result.
    name: the tool that produced the result.
    """

    artifact: str
    name: str
    size_bytes: int
    turn: str
    call_id: str
    tainted_by: str
    created_at: datetime
