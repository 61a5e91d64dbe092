"""Questions to people, decided once, and the hash-chained log of what was allowed and done."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from shoal.domain.cards import CardState, card_edit
from shoal.domain.errors import Conflict, Gone, InvalidInput, NotFound
from shoal.domain.events import ApprovalSettled, Scope, Verdict
from shoal.domain.ids import ApprovalId, ThreadId
from shoal.domain.permissions import NO_COVERAGE, Coverage, Trust
from shoal.domain.records import (
    GENESIS,
    Approval,
    AuditEntry,
    AuditRow,
    BrokenChain,
    Settlement,
    Verification,
    entry_hash,
)
from shoal.store.appends import append_outside, chain, put_post
from shoal.store.driver import Script, StorePart, number, query, reader, reads, text, writes_at

VERIFIED_ROWS = 2000
"""Entries of the audit log in memory at once while it is verified."""
GRANTS_MAX = 8
"""Grants of one call in one thread that are looked at, the newest; each holds for other content."""

_covers = msgspec.json.Decoder(Coverage)
_approval = reader(
    Approval,
    "id thread turn call_id tool actions digest shown asked_by state created_at expires_at scope decided_by decided_at"
    " reason shown_in call_digest covers decided_trust needs_trust",
    actions=msgspec.json.Decoder(tuple[str, ...]).decode,
    covers=lambda covers: _covers.decode(covers) if covers else NO_COVERAGE,
    decided_trust=lambda trust: trust or None,
)
_audit_row = reader(AuditRow, "chain number at entry previous hash", entry=msgspec.json.Decoder(AuditEntry).decode)


class Approvals(StorePart):
    """Questions to people."""

    async def get(self, approval: ApprovalId) -> Approval | None:
        return await self._one(_approval, "approval_one", id=approval)

    async def search(self, *, pending: bool = True, thread: ThreadId | None = None, limit: int = 200) -> list[Approval]:
        """Approvals, newest first."""
        if pending:
            rows = await self._read("approvals_waiting", thread=thread or "", limit=limit)
        elif thread:
            rows = await self._read("approvals_of", thread=thread, limit=limit)
        else:
            rows = await self._read("approvals_recent", limit=limit)
        return [_approval(row) for row in rows]

    @writes_at
    def settle(
        self,
        at: datetime,
        approval: ApprovalId,
        verdict: Verdict,
        scope: Scope,
        by: str,
        trust: Trust,
        *,
        token: str = "",
    ) -> Script[Settlement]:
        """Decide it, once, and journal it; `trust` is how far `by` is trusted, `token` the access token they came with.

        Raises NotFound, Conflict when decided already, Gone when expired, and InvalidInput for the whole thread where
        the approval does not cover all that may run.
        """
        asked = yield from query("approval_one", id=approval)
        if not asked:
            raise NotFound(f"There is no approval {approval}.")
        if verdict == "allow" and scope == "thread" and (why := _approval(asked[0]).covers.uncovered):
            raise InvalidInput(f"This can only be allowed once, because {why}.")
        yield from query("thread_lock", thread=asked[0][1])
        settled = yield from query(
            "approval_settle",
            id=approval,
            state=verdict,
            scope=scope,
            decided_by=by,
            decided_trust=trust,
            now=at,
        )
        rows = yield from query("approval_one", id=approval)
        found = _approval((rows or asked)[0])
        if not settled:
            if found.state in ("pending", "expired"):
                raise Gone(f"Approval {approval} has expired. Ask the agent again.")
            raise Conflict(f"Approval {approval} was decided already: {found.state}.")
        data = ApprovalSettled(found.id, found.call_id, verdict, scope, by)
        events = yield from append_outside(found.thread, found.turn, (data,), at)
        entry = AuditEntry(
            "approval", f"{found.tool} {found.digest}", verdict, user=by, turn=found.turn, detail=scope, token=token
        )
        yield from chain(found.thread, (entry,), at)
        state: CardState = "thread" if verdict == "allow" and scope == "thread" else verdict
        person = by if verdict in ("allow", "deny") else ""
        yield from put_post(card_edit(found.asked_in, found.id, found.shown, state, person), at)
        yield from query("wake", thread=found.thread)
        return Settlement(found, verdict, events[0])

    async def grants(self, thread: ThreadId, call_digest: str) -> list[Approval]:
        """The approvals by which people allowed this call for the whole thread, newest first, at most GRANTS_MAX."""
        rows = await self._read("approval_grants", thread=thread, call_digest=call_digest, limit=GRANTS_MAX)
        return [_approval(row) for row in rows]

    async def expire(self) -> list[Settlement]:
        """Settle every pending approval whose time is up."""
        found: list[Settlement] = []
        for row in await self._read("approvals_expired", now=self._clock.now()):
            try:
                found.append(await self.settle(ApprovalId(text(row[0])), "expired", "once", "clock", "untrusted"))
            except Conflict:  # decided in this very moment
                continue
        return found


class AuditLog(StorePart):
    """The hash-chained log; entries that belong to a turn come in with its commits, chained by thread."""

    @writes_at
    def record(self, at: datetime, chain_name: str, entries: Sequence[AuditEntry]) -> Script[None]:
        return chain(chain_name, entries, at)

    async def tail(self, limit: int = 100, *, chain_name: str = "") -> list[AuditRow]:
        """The newest entries, oldest of them first."""
        of = {"chain": chain_name} if chain_name else {}
        rows = await self._read("audit_tail_of" if of else "audit_tail", **of, limit=limit)
        return [_audit_row(row) for row in reversed(rows)]

    async def chains(self) -> list[tuple[str, int, str]]:
        """Every chain with its length and head hash; one whose head was removed comes with length 0."""
        rows = await self._read("audit_chains") + await self._read("audit_orphans")
        return [(text(row[0]), number(row[1]), text(row[2])) for row in rows]

    async def rows(self, chain_name: str, after: int = 0, limit: int = 1000) -> list[AuditRow]:
        return [_audit_row(row) for row in await self._read("audit_rows", chain=chain_name, after=after, limit=limit)]

    @reads
    def verify(self) -> Script[Verification]:
        """Check every entry of every chain, as they all are at one moment."""
        known = (yield from query("audit_chains")) + (yield from query("audit_orphans"))
        heads = {text(row[0]): (number(row[1]), text(row[2])) for row in known}
        whole: dict[str, tuple[int, str]] = dict.fromkeys(heads, (0, GENESIS))
        broken: dict[str, BrokenChain] = {}
        after = ("", 0)
        while rows := (yield from query("audit_after", chain=after[0], after=after[1], limit=VERIFIED_ROWS)):
            for row in map(_audit_row, rows):
                (count, previous), length = whole[row.chain], heads[row.chain][0]
                if row.chain in broken:
                    continue
                digest = entry_hash(previous, row.chain, row.number, row.at, row.entry)
                if row.number != count + 1:
                    broken[row.chain] = BrokenChain(row.chain, count + 1, "missing", length)
                elif (row.previous, row.hash) != (previous, digest):
                    broken[row.chain] = BrokenChain(row.chain, row.number, "changed", length, row)
                else:
                    whole[row.chain] = (row.number, row.hash)
            after = (text(rows[-1][0]), number(rows[-1][1]))
        for chain_name, head in heads.items():
            if chain_name not in broken and whole[chain_name] != head:
                broken[chain_name] = BrokenChain(chain_name, whole[chain_name][0], "end", head[0])
        return Verification(len(heads), sum(count for count, _ in whole.values()), tuple(broken.values()))
