"""Questions to people, decided once."""

from datetime import datetime

import msgspec

from shoal.domain.cards import CardState, card_edit
from shoal.domain.errors import Conflict, Gone, InvalidInput, NotFound
from shoal.domain.events import ApprovalSettled, Scope, Verdict
from shoal.domain.ids import ApprovalId, ThreadId
from shoal.domain.permissions import NO_COVERAGE, Coverage, Trust
from shoal.domain.records import (
    Approval,
    AuditEntry,
    Settlement,
)
from shoal.store.appends import append_outside, chain, put_post
from shoal.store.driver import Script, StorePart, query, reader, text, writes_at

GRANTS_MAX = 8
"""Grants of one call in one thread that are looked at, the newest; each holds for other content."""

_DECIDED = {"allow": "allowed", "used": "allowed", "deny": "denied", "cancelled": "cancelled, because the turn went on"}
_covers = msgspec.json.Decoder(Coverage)
_approval = reader(
    Approval,
    "id thread turn call_id tool actions digest shown asked_by state created_at expires_at scope decided_by decided_at"
    " reason shown_in call_digest covers decided_trust needs_trust",
    actions=msgspec.json.Decoder(tuple[str, ...]).decode,
    covers=lambda covers: _covers.decode(covers) if covers else NO_COVERAGE,
    decided_trust=lambda trust: trust or None,
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
            raise NotFound(f"There is no approval {approval}. `shoal approvals list` shows the open ones.")
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
                raise Gone("That question has expired, and nothing ran. Ask the agent again.")
            raise Conflict(f"That was decided already: it was {_DECIDED[found.state]}.")
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
