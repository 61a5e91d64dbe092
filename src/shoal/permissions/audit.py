"""The audit log's hash chain: an entry that is edited, removed, reordered or put in later is found.

Each entry's hash covers the hash before it, its chain, its number, its time and its content in canonical form. A
chain's head (length and last hash) is stored apart from the entries, so a cut tail is found too. Anchor lines in the
log file carry heads out of the database: whoever rewrites the database as a whole still disagrees with them.
"""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import msgspec

from shoal.domain.clock import iso
from shoal.domain.records import GENESIS, AuditRow, canonical_entry, entry_hash

__all__ = ["GENESIS", "Break", "anchor_line", "canonical_entry", "entry_hash", "verify_chain"]


class Break(msgspec.Struct, frozen=True):
    """The first place where a chain does not hold."""

    chain: str
    number: int
    reason: Literal["number", "previous", "hash", "missing", "surplus", "head"]

    @property
    def shown(self) -> str:
        """A sentence for a person."""
        texts = {
            "number": "entries are missing, doubled or out of order",
            "previous": "it does not follow from the entry before it",
            "hash": "it was changed after it was written",
            "missing": "entries at the end are gone",
            "surplus": "an entry was put in after the last known one",
            "head": "the last entry is not the one that was written",
        }
        return f"audit chain {self.chain!r}, entry {self.number}: {texts[self.reason]}."


def verify_chain(
    rows: Iterable[AuditRow], head: tuple[int, str] | None = None, *, after: tuple[int, str] = (0, GENESIS)
) -> Break | None:
    """The first break in a chain's entries, given by number ascending, or None when it holds.

    `head` is the chain's length and last hash as stored apart; without it a cut tail cannot be seen. `after` is the
    number and hash of the entry before the first one given, to verify a chain piece by piece.
    """
    number, previous = after
    chain = ""
    for row in rows:
        chain = chain or row.chain
        number += 1
        if row.number != number or row.chain != chain:
            return Break(chain, number, "number")
        if row.previous != previous:
            return Break(chain, number, "previous")
        if row.hash != entry_hash(previous, chain, number, row.at, row.entry):
            return Break(chain, number, "hash")
        if head is not None and number > head[0]:
            return Break(chain, number, "surplus")
        previous = row.hash
    if head is None:
        return None
    if number < head[0]:
        return Break(chain, number + 1, "missing")
    return Break(chain, number, "head") if previous != head[1] else None


def anchor_line(at: datetime, heads: Iterable[tuple[str, int, str]]) -> str:
    """One line for the log: the time, how many chains and entries there are, and a hash over all heads (chain, length,
    last hash), which are put in order first."""
    ordered = sorted(heads)
    digest = hashlib.sha256(msgspec.json.encode(["shoal-anchor-1", ordered])).hexdigest()
    entries = sum(length for _, length, _ in ordered)
    return f"audit-anchor at={iso(at)} chains={len(ordered)} entries={entries} sha256={digest}"
