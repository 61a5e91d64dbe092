"""The audit log: hash chains of actions that were checked, allowed or executed.

Verification detects entries that were edited, removed, reordered or inserted.

Each hash covers the previous hash, the chain's name, and the entry's number, time and content in canonical form. The
length and last hash of each chain are stored in a separate table, which reveals a truncated chain. Anchor lines in the
log file record these values outside the database, which reveals even a rewrite of the entire database.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import cast

import msgspec

from shoal.kernel.clock import iso
from shoal.kernel.permissions import Decision
from shoal.kernel.records import (
    CASES_CHAIN,
    GENESIS,
    AuditEntry,
    AuditRow,
    BrokenChain,
    PastCheck,
    Verification,
    entry_hash,
)
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.appends import chain
from shoal.store.driver import (
    Row,
    Script,
    StorePart,
    number,
    query,
    reader,
    reads,
    text,
    time,
    writes_at,
)

PAGE_ROWS = 2000

_audit_row = reader(AuditRow, entry=msgspec.json.Decoder(AuditEntry).decode)


class AuditLog(StorePart):
    """The hash-chained audit log. Each thread has a chain, to which its turns append in the same transaction as
    their events.
    """

    @writes_at
    def record(self, at: datetime, chain_name: str, entries: Sequence[AuditEntry]) -> Script[None]:
        return chain(chain_name, entries, at)

    async def tail(self, limit: int = 100, *, chain_name: str = "") -> list[AuditRow]:
        """Return the newest entries, oldest first."""
        of = {"chain": chain_name} if chain_name else {}
        rows = await self._read("audit_tail_of" if of else "audit_tail", **of, limit=limit)
        return [_audit_row(row) for row in reversed(rows)]

    async def checks(self, since: datetime, agent: str = "") -> list[PastCheck]:
        """Return the permission checks since a time, grouped by action and decision. An empty `agent` means all agents.

        A call that needs approval is checked again before it runs. Both checks count as one. Checks in evaluation
        cases are excluded, because the cases run in temporary workspaces with their own rules.
        """
        checks: dict[tuple[str, str], PastCheck] = {}
        asked = set[tuple[str, str, str, str]]()
        after: tuple[datetime, str, int] = (since, "", 0)
        while rows := await self._read("audit_since", since=after[0], chain=after[1], number=after[2], limit=PAGE_ROWS):
            for row in map(_audit_row, rows):
                entry, key = row.entry, (row.entry.action, row.entry.decision)
                call = (row.chain, entry.turn, entry.detail, entry.action)
                is_check = entry.kind == "check" and row.chain != CASES_CHAIN and agent in ("", entry.agent)
                if is_check and call not in asked:
                    if entry.decision == "ask":
                        asked.add(call)
                    count = checks[key].count + 1 if key in checks else 1
                    checks[key] = PastCheck(entry.action, cast("Decision", entry.decision), count, row.chain, row.at)
                after = (row.at, row.chain, row.number)
        return list(checks.values())

    async def chains(self) -> list[tuple[str, int, str]]:
        """Return the name, length and head hash of each chain. If a chain's head is missing, its length is 0."""
        rows = await self._read("audit_chains") + await self._read("audit_orphans")
        return [(text(row[0]), number(row[1]), text(row[2])) for row in rows]

    @reads
    def verify(self) -> Script[Verification]:
        """Verify all entries on one snapshot. Takes about one second per 150,000 entries."""
        check = ChainCheck((yield from query("audit_chains")))
        after = ("", 0)
        while rows := (yield from query("audit_after", chain=after[0], after=after[1], limit=PAGE_ROWS)):
            for row in rows:
                check.take(row)
            after = (text(rows[-1][0]), number(rows[-1][1]))
        return check.result()


class ChainCheck:
    """Verifies hash chains entry by entry.

    Create it with the heads, which are rows of chain, number and hash. Then pass all entries to `take`, ordered by
    chain and number, and call `result`. A chain that has entries but no head is reported as broken.
    """

    def __init__(self, heads: Iterable[Row]) -> None:
        self._heads = {text(row[0]): (number(row[1]), text(row[2])) for row in heads}
        self._whole: dict[str, tuple[int, str]] = dict.fromkeys(self._heads, (0, GENESIS))
        self._broken: dict[str, BrokenChain] = {}

    def take(self, row: Row) -> None:
        """Check the next entry, a row of chain, number, at, entry, previous and hash.

        The hash is computed from the stored text. A changed text is detected even if it decodes to the same entry.
        """
        name, count, body, link = text(row[0]), number(row[1]), text(row[3]), (text(row[4]), text(row[5]))
        if name in self._broken:
            return
        length = self._heads.setdefault(name, (0, ""))[0]
        last, previous = self._whole.get(name, (0, GENESIS))
        digest = entry_hash(previous, name, count, number(row[2]), body)
        if count != last + 1:
            self._broken[name] = BrokenChain(name, last + 1, "missing", length)
        elif link != (previous, digest):
            self._broken[name] = BrokenChain(name, count, "changed", length, time(row[2]), _action(body))
        else:
            self._whole[name] = (count, digest)

    def result(self) -> Verification:
        for name, head in self._heads.items():
            end = self._whole.get(name, (0, GENESIS))
            if name not in self._broken and end != head:
                self._broken[name] = BrokenChain(name, end[0], "end", head[0])
        entries = sum(count for count, _ in self._whole.values())
        return Verification(len(self._heads), entries, tuple(self._broken.values()))


def anchor_line(at: datetime, heads: Iterable[tuple[str, int, str]]) -> str:
    """Return a line for the log file that records the state of all chains.

    The line contains the time, the number of chains, the number of entries, and a hash of all heads. A head consists
    of a chain's name, length and last hash.
    """
    ordered = sorted(heads)
    digest = hashlib.sha256(msgspec.json.encode(["shoal-anchor-1", ordered])).hexdigest()
    entries = sum(length for _, length, _ in ordered)
    return f"audit-anchor at={iso(at)} chains={len(ordered)} entries={entries} sha256={digest}"


def _action(body: str) -> str:
    try:
        return msgspec.json.decode(body, type=AuditEntry).action
    except UNREADABLE:
        return body
