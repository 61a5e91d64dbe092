"""What was allowed and done: a log chained by hashes, and the questions to people, each decided once.

An entry of the log that is edited, removed, reordered or put in later is found.

Each entry's hash covers the hash before it, its chain, its number, its time and its content in canonical form. A
chain's head (length and last hash) is stored apart from the entries, so a cut tail is found too. Anchor lines in the
log file carry heads out of the database: whoever rewrites the database as a whole still disagrees with them.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import cast

import msgspec

from shoal.kernel.clock import iso
from shoal.kernel.errors import Conflict, Gone, InvalidInput, NotFound
from shoal.kernel.events import ApprovalSettled, Scope, Verdict
from shoal.kernel.ids import ApprovalId, ThreadId
from shoal.kernel.permissions import NO_COVERAGE, Coverage, Decision, Trust
from shoal.kernel.records import (
    CASES_CHAIN,
    GENESIS,
    Approval,
    AuditEntry,
    AuditRow,
    BrokenChain,
    PastCheck,
    Settlement,
    Verification,
    entry_hash,
)
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.appends import append_outside, chain, put_post
from shoal.store.cards import CardState, card_edit
from shoal.store.driver import (
    Row,
    Script,
    StorePart,
    dump,
    number,
    query,
    readable,
    reader,
    reads,
    text,
    time,
    writes_at,
)

ACTION_CHARS_MAX = 500
"""How much of what was decided about the row of a decision says; its digest is of all."""
PAGE_ROWS = 2000
"""Entries in memory at once while all of them are read."""

_audit_row = reader(AuditRow, entry=msgspec.json.Decoder(AuditEntry).decode)


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

    async def checks(self, since: datetime, agent: str = "") -> list[PastCheck]:
        """What was checked since then, each action with each decision once; of one agent, if it is named. A call that
        was asked about is checked again before it runs, which counts as one. What a case did in its throw-away
        workspace, by rules of its own, is left out."""
        found: dict[tuple[str, str], PastCheck] = {}
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
                    count = found[key].count + 1 if key in found else 1
                    found[key] = PastCheck(entry.action, cast("Decision", entry.decision), count, row.chain, row.at)
                after = (row.at, row.chain, row.number)
        return list(found.values())

    async def chains(self) -> list[tuple[str, int, str]]:
        """Every chain with its length and head hash; one whose head was removed comes with length 0."""
        rows = await self._read("audit_chains") + await self._read("audit_orphans")
        return [(text(row[0]), number(row[1]), text(row[2])) for row in rows]

    @reads
    def verify(self) -> Script[Verification]:
        """Check every entry of every chain, as they all are at one moment: some 150,000 entries a second."""
        check = ChainCheck((yield from query("audit_chains")))
        after = ("", 0)
        while rows := (yield from query("audit_after", chain=after[0], after=after[1], limit=PAGE_ROWS)):
            for row in rows:
                check.take(row)
            after = (text(rows[-1][0]), number(rows[-1][1]))
        return check.result()


class ChainCheck:
    """Compares the entries of chains, which come by chain and number, with their hashes, and their ends with the heads:
    rows of chain, number and hash. A chain without a head should have no entry."""

    def __init__(self, heads: Iterable[Row]) -> None:
        self._heads = {text(row[0]): (number(row[1]), text(row[2])) for row in heads}
        self._whole: dict[str, tuple[int, str]] = dict.fromkeys(self._heads, (0, GENESIS))
        self._broken: dict[str, BrokenChain] = {}

    def take(self, row: Row) -> None:
        """The next entry: a row of chain, number, at, entry, previous and hash. What is hashed is the stored text, so
        that no change of it passes."""
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
        """What was found, once every entry was taken."""
        for name, head in self._heads.items():
            end = self._whole.get(name, (0, GENESIS))
            if name not in self._broken and end != head:
                self._broken[name] = BrokenChain(name, end[0], "end", head[0])
        entries = sum(count for count, _ in self._whole.values())
        return Verification(len(self._heads), entries, tuple(self._broken.values()))


def anchor_line(at: datetime, heads: Iterable[tuple[str, int, str]]) -> str:
    """One line for the log: the time, how many chains and entries there are, and a hash over all heads (chain, length,
    last hash), which are put in order first."""
    ordered = sorted(heads)
    digest = hashlib.sha256(msgspec.json.encode(["shoal-anchor-1", ordered])).hexdigest()
    entries = sum(length for _, length, _ in ordered)
    return f"audit-anchor at={iso(at)} chains={len(ordered)} entries={entries} sha256={digest}"


def _action(body: str) -> str:
    """What an entry says was done; the entry itself where it cannot be read."""
    try:
        return msgspec.json.decode(body, type=AuditEntry).action
    except UNREADABLE:
        return body


# ---- questions to people ----

GRANTS_MAX = 8
"""Grants of one call in one thread that are looked at, the newest; each holds for other content."""

_DECIDED = {"allow": "allowed", "used": "allowed", "deny": "denied", "cancelled": "cancelled, because the turn went on"}
_covers = msgspec.json.Decoder(Coverage)
_names = msgspec.json.Decoder(tuple[str, ...])
_approval = reader(
    Approval,
    "id thread turn call_id tool actions digest shown asked_by state created_at expires_at scope decided_by decided_at"
    " reason shown_in call_digest covers decided_trust needs_trust decided_on decided_roles",
    actions=_names.decode,
    covers=lambda covers: _covers.decode(covers) if covers else NO_COVERAGE,
    decided_trust=lambda trust: trust or None,
    decided_roles=lambda roles: _names.decode(roles) if roles else (),
)


class Approvals(StorePart):
    """Questions to people."""

    async def get(self, approval: ApprovalId) -> Approval | None:
        return await self._one(_approval, "approval_one", id=approval)

    async def meant(self, thread: ThreadId, named: str) -> list[Approval]:
        """What somebody in a thread means by a whole id, or by the end of one that waits there; all of these by ""."""
        whole = await self.get(ApprovalId(named.upper())) if named else None
        if whole is not None:
            return [whole]
        return [one for one in await self.search(thread=thread) if one.id.upper().endswith(named.upper())]

    async def search(self, *, pending: bool = True, thread: ThreadId | None = None, limit: int = 200) -> list[Approval]:
        """Approvals, newest first."""
        if pending:
            rows = await self._read("approvals_waiting", thread=thread or "", limit=limit)
        elif thread:
            rows = await self._read("approvals_of", thread=thread, limit=limit)
        else:
            rows = await self._read("approvals_recent", limit=limit)
        return readable(_approval, rows)

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
        platform: str = "",
        roles: Sequence[str] = (),
        token: str = "",
    ) -> Script[Settlement]:
        """Decide it, once, and journal it; `by` has that trust, and these roles on the platform; `token` is the
        access token they came with.

        Raises NotFound, Conflict when decided already, Gone when expired, and InvalidInput for the whole thread where
        the approval does not cover all that may run.
        """
        asked = yield from query("approval_one", id=approval)
        if not asked:
            raise NotFound(f"There is no approval {approval}. `shoal approvals list` shows the open ones.")
        if verdict == "allow" and scope == "thread" and (why := _approval(asked[0]).covers.uncovered):
            raise InvalidInput(f"This can only be allowed once, because {why}.")
        yield from query("thread_lock", thread=asked[0][1])
        decision = {"state": verdict, "scope": scope, "decided_by": by, "decided_trust": trust}
        decision |= {"decided_on": platform, "decided_roles": dump(roles) if roles else ""}
        settled = yield from query("approval_settle", id=approval, **decision, now=at)
        rows = yield from query("approval_one", id=approval)
        found = _approval((rows or asked)[0])
        if not settled:
            if found.state in ("pending", "expired"):
                raise Gone("That question has expired, and nothing ran. Ask the agent again.")
            raise Conflict(f"That was decided already: it was {_DECIDED[found.state]}.")
        data = ApprovalSettled(found.id, found.call_id, verdict, scope, by)
        events = yield from append_outside(found.thread, found.turn, (data,), at)
        what = " ".join("; ".join(found.actions or (found.tool,)).split())[:ACTION_CHARS_MAX]
        detail = f"{scope} {found.digest}"
        entry = AuditEntry("approval", what, verdict, user=by, turn=found.turn, detail=detail, token=token)
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
            except (Conflict, *UNREADABLE):  # decided in this very moment, or it cannot be read
                continue
        return found
