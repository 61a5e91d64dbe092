"""The hash chain of the audit log: the canonical form of an entry and the hash that binds it to all before it."""

import hashlib
from datetime import datetime

import msgspec

from shoal.domain.clock import to_micros
from shoal.domain.records import AuditEntry

GENESIS = "0" * 64
"""The `previous` of a chain's first entry."""

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_entry(entry: AuditEntry) -> bytes:
    """The entry as JSON with sorted keys and without defaults; equal entries have equal bytes."""
    return _encoder.encode(entry)


def entry_hash(previous: str, chain: str, number: int, at: datetime, entry: AuditEntry) -> str:
    """SHA-256 (hex) over the previous hash, the chain's name, the entry's number from 1, its time and its content."""
    head = f"{previous}\n{chain}\n{number}\n{to_micros(at)}\n".encode()
    return hashlib.sha256(head + canonical_entry(entry)).hexdigest()
