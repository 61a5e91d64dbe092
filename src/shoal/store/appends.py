"""Scripts that append events, posts and audit entries as part of a larger transaction."""

from collections.abc import Sequence
from datetime import datetime

from shoal.kernel.clock import to_micros
from shoal.kernel.errors import Conflict, NotFound, StoreCorrupt
from shoal.kernel.events import (
    AssistantSaid,
    Cleared,
    Compacted,
    Event,
    EventData,
    Steered,
    ToolFinished,
    UserSaid,
    decode_data,
    encode_data,
)
from shoal.kernel.ids import ThreadId, TurnId, platform_of
from shoal.kernel.records import GENESIS, AuditEntry, Committed, NewPost, canonical_entry, entry_hash
from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.driver import Batch, Query, Row, Script, Value, dump, number, query, text, time

TITLE_CHARS_MAX = 80
SEQ_END = 2**62


def title_of(text_said: str) -> str:
    return " ".join(text_said[: TITLE_CHARS_MAX * 4].replace("\0", "").split())[:TITLE_CHARS_MAX]


def event(thread: ThreadId, row: Row) -> Event:
    """Decode an event from a row of seq, turn, type, at and data.

    Raises StoreCorrupt for an unreadable event and StoreNewer for an unknown event type.
    """
    seq, turn, kind, at, body = row
    try:
        data = decode_data(text(kind), text(body))
    except UNREADABLE as error:
        todo = "Install the version of Shoal that wrote the event, or restore a backup."
        raise StoreCorrupt(f"Event {seq} of thread {thread} is unreadable: {refusal(error)}. {todo}") from error
    return Event(number(seq), thread, TurnId(text(turn)), time(at), data)


def append(
    reserve: str,
    thread: ThreadId,
    turn: TurnId,
    events: Sequence[EventData],
    at: datetime,
    *,
    last: bool = False,
    **where: Value,
) -> Script[Committed | None]:
    """Append events and the rows derived from them. The query `reserve` assigns the event numbers.

    `reserve` also returns whether the open turn must stop. In PostgreSQL it stores the events as well. If `reserve`
    matches no thread, return None. `last` marks the final batch of the calling script.
    """
    now, datas = to_micros(at), [encode_data(data).decode() for data in events]
    for data in events:
        if isinstance(data, ToolFinished) and data.artifact:
            row = {"thread": thread, "turn": turn, "call_id": data.call_id, "tool": data.name}
            artifact_row = {"digest": data.artifact, "size_bytes": data.artifact_bytes, "tainted_by": data.tainted_by}
            yield from query("artifact_insert", **row, **artifact_row, now=now)
    params = {"thread": thread, "count": len(events), "turn": turn, "now": now, "datas": datas, **where}
    windows = any(isinstance(data, Cleared | Compacted) for data in events)
    asked = Query(reserve, {**params, "types": [data.type for data in events]})
    (rows,) = yield Batch((asked,), last=last and not windows)
    if not rows:
        return None
    stored: list[Event] = []
    for seq, (data, body) in enumerate(zip(events, datas, strict=True), number(rows[0][0]) - len(events) + 1):
        yield from query("event_insert", thread=thread, seq=seq, turn=turn, type=data.type, at=now, data=body)
        if isinstance(data, UserSaid | Steered | AssistantSaid) and data.text:
            yield from query("search_insert", thread=thread, seq=seq, said=data.text.replace("\0", " "))
        elif isinstance(data, Cleared | Compacted):
            window = seq if isinstance(data, Cleared) else data.upto_seq
            yield from query("thread_window", thread=thread, seq=window)
        stored.append(Event(seq, thread, turn, at, data))
    return Committed(tuple(stored), aborting=bool(rows[0][1]))


def append_outside(
    thread: ThreadId, turn: TurnId, events: Sequence[EventData], at: datetime
) -> Script[tuple[Event, ...]]:
    """Append events without a lease, for changes made by people and by other threads. Raises NotFound.

    A worker may be running a turn in the thread at the same time.
    """
    stored = yield from append("thread_extend", thread, turn, events, at)
    if stored is None:
        raise NotFound(f"Thread {thread} does not exist.")
    return stored.events


def lock_at_rest(thread: ThreadId, at: datetime) -> Script[int]:
    """Lock an idle thread, invalidate its leases and return the number of its last event.

    Raises NotFound, or Conflict if the thread is active.
    """
    rows = yield from query("thread_rest", thread=thread, now=at)
    if rows:
        return number(rows[0][0])
    if not (yield from query("thread_one", thread=thread)):
        raise NotFound(f"Thread {thread} does not exist.")
    raise Conflict("A turn is still running or waiting here. Wait for its answer or stop the turn, then try again.")


def put_post(post: NewPost, at: datetime) -> Script[bool]:
    """Enqueue a post. Return False if a post with this id already exists."""
    platform = platform_of(post.thread)
    row = {"id": post.id, "platform": platform, "thread": post.thread, "payload": dump(post), "now": at}
    rows = yield from query("outbox_insert", **row)
    if rows:
        yield from query("due", what=platform)
    return bool(rows)


def chain(name: str, entries: Sequence[AuditEntry], at: datetime) -> Script[None]:
    """Append audit entries to the hash chain `name`."""
    if not entries:
        return
    rows = yield from query("chain_ensure", chain=name, genesis=GENESIS)
    count, head = number(rows[0][0]), text(rows[0][1])
    for entry in entries:
        count += 1
        body = canonical_entry(entry)
        digest = entry_hash(head, name, count, to_micros(at), body)
        link = {"chain": name, "number": count, "previous": head, "hash": digest}
        yield from query("audit_insert", **link, entry=body, now=at)
        head = digest
    yield from query("chain_advance", chain=name, number=count, head=head)
