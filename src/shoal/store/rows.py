"""Between rows and records."""

from datetime import datetime

import msgspec

from shoal.domain.clock import from_micros
from shoal.domain.errors import StoreCorrupt
from shoal.domain.events import Event, decode_data
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import ApprovalId, CallId, ThreadId, TurnId
from shoal.domain.messages import FollowUp, Prompt, Steer
from shoal.domain.permissions import NO_COVERAGE, Coverage
from shoal.domain.records import (
    Approval,
    AuditEntry,
    AuditRow,
    NewPost,
    NewTrigger,
    OutboxRow,
    ThreadInfo,
    Trigger,
)
from shoal.domain.stored import decode_stored, decode_trigger
from shoal.store.script import Row, Value, number, text

encoder = msgspec.json.Encoder()
_inbound = msgspec.json.Decoder(Prompt | Steer | FollowUp)
_post = msgspec.json.Decoder(NewPost)
_trigger = msgspec.json.Decoder(NewTrigger)
_audit = msgspec.json.Decoder(AuditEntry)
_actions = msgspec.json.Decoder(tuple[str, ...])
_covers = msgspec.json.Decoder(Coverage)


def dump(record: object) -> str:
    """A record as JSON text."""
    return encoder.encode(record).decode()


def moment(value: Value) -> datetime | None:
    """A nullable time column."""
    return None if value is None else from_micros(number(value))


def inbound(value: Value) -> Prompt | Steer | FollowUp:
    """A mailbox payload."""
    return decode_stored(_inbound, text(value))


def prompt(value: Value) -> Prompt:
    """A mailbox payload as a prompt; a steer whose turn failed starts a turn of its own."""
    message = inbound(value)
    if isinstance(message, Prompt):
        return message
    return Prompt(message.thread, message.key, message.text, message.author, message.at)


def event(thread: ThreadId, row: Row) -> Event:
    """`seq, turn, type, at, data`. Raises StoreCorrupt for one that cannot be read."""
    seq, turn, kind, at, body = row
    try:
        data = decode_data(text(kind), text(body))
    except (*UNREADABLE, KeyError) as error:
        raise StoreCorrupt(f"Event {seq} of thread {thread} cannot be read: {error}. Restore a backup.") from error
    return Event(number(seq), thread, TurnId(text(turn)), from_micros(number(at)), data)


def thread_info(row: Row) -> ThreadInfo:
    """`thread, agent, last_seq, created_at, updated_at, title, open_turn, queued, parent, retry_at`."""
    return ThreadInfo(
        thread=ThreadId(text(row[0])),
        agent=text(row[1]),
        last_seq=number(row[2]),
        created_at=from_micros(number(row[3])),
        updated_at=from_micros(number(row[4])),
        title=text(row[5]),
        open_turn=TurnId(text(row[6])),
        queued=number(row[7]),
        parent=text(row[8]),
        retry_at=moment(row[9]),
    )


def outbox_row(row: Row) -> OutboxRow:
    """`number, id, thread, payload, part, attempts, created_at, maybe_sent, claims`."""
    return OutboxRow(
        id=text(row[1]),
        thread=ThreadId(text(row[2])),
        post=decode_stored(_post, text(row[3])),
        part=number(row[4]),
        attempts=number(row[5]),
        created_at=from_micros(number(row[6])),
        maybe_sent=bool(row[7]),
        claims=number(row[8]),
    )


def approval(row: Row) -> Approval:
    """The columns of `approval_one`."""
    return Approval(
        id=ApprovalId(text(row[0])),
        thread=ThreadId(text(row[1])),
        turn=TurnId(text(row[2])),
        call_id=CallId(text(row[3])),
        tool=text(row[4]),
        actions=_actions.decode(text(row[5])),
        digest=text(row[6]),
        shown=text(row[7]),
        asked_by=text(row[8]),
        state=text(row[9]),  # pyright: ignore[reportArgumentType]  the column holds only these words
        created_at=from_micros(number(row[10])),
        expires_at=from_micros(number(row[11])),
        scope=text(row[12]),  # pyright: ignore[reportArgumentType]
        decided_by=text(row[13]),
        decided_at=moment(row[14]),
        reason=text(row[15]),
        shown_in=ThreadId(text(row[16])),
        call_digest=text(row[17]),
        covers=_covers.decode(text(row[18])) if row[18] else NO_COVERAGE,
        decided_trust=text(row[19]) or None,  # pyright: ignore[reportArgumentType]
        needs_trust=bool(row[20]),
    )


def audit_row(row: Row) -> AuditRow:
    """`chain, number, at, entry, previous, hash`."""
    return AuditRow(
        chain=text(row[0]),
        number=number(row[1]),
        at=from_micros(number(row[2])),
        entry=_audit.decode(text(row[3])),
        previous=text(row[4]),
        hash=text(row[5]),
    )


def trigger(row: Row) -> Trigger:
    """`id, spec, state, next_at, created_at, last_at, failures, error`."""
    return Trigger(
        id=text(row[0]),
        spec=decode_trigger(_trigger, text(row[1])),
        state=text(row[2]),  # pyright: ignore[reportArgumentType]
        next_at=moment(row[3]),
        created_at=from_micros(number(row[4])),
        last_at=moment(row[5]),
        failures=number(row[6]),
        error=text(row[7]),
    )
