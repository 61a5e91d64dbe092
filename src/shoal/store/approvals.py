"""Approval requests. Each request is decided once, alone or together with the other calls on its card.

    from      to          when
    -------   ---------   -----------------------------------------------------
    pending   allow       a person allows the call
    pending   deny        a person denies the call
    pending   expired     nobody decides in time
    pending   cancelled   the turn continues or ends without the call
    allow     used        the call starts (`outcome` is set when the call ends)

An allowed call may run once, or at any time in the thread if `scope` says so. If the turn ends before the call
starts, the state remains `allow`.

A card asks for approval of all calls in a message that need it. The card only groups them: each call has its own
row, bound to its own digests. A decision on a card stores all its verdicts in one transaction. Each change to a call
also updates the card that people see.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from shoal.kernel.errors import Conflict, Gone, InvalidInput, NotFound
from shoal.kernel.events import ApprovalSettled, EventData, Scope, Verdict
from shoal.kernel.ids import ApprovalId, CardId, ThreadId, TurnId
from shoal.kernel.permissions import ALONE, NO_COVERAGE, Trust
from shoal.kernel.phrases import listed
from shoal.kernel.records import Approval, AuditEntry, NewApproval, Settlement
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.appends import append_outside, chain, put_post
from shoal.store.cards import SHORT_ID_CHARS, card_choice, undo_text
from shoal.store.driver import Script, StorePart, dump, query, readable, text, writes_at
from shoal.store.outcomes import approval_row, by_number, calls_of, change_cards
from shoal.store.staged import run_accepted

ACTION_CHARS_MAX = 500
"""Maximum length of the text in a decision's audit row. The row also contains a digest of the full text."""
GRANTS_MAX = 8
"""Maximum number of grants checked for one call in one thread, newest first. The same call can have several grants,
because each grant covers different content.
"""

_DECIDED = {
    "allow": "allowed",
    "used": "allowed",
    "deny": "denied",
    "cancelled": "cancelled, because the turn continued",
}
ALREADY = "This approval was already decided: it was {how}. To change the decision, ask the agent again."
EXPIRED = "This approval expired, and nothing ran. Ask the agent again."


class Approvals(StorePart):
    async def get(self, approval: ApprovalId) -> Approval | None:
        return await self._one(approval_row, "approval_one", id=approval)

    async def on_card(self, card: CardId) -> list[Approval]:
        return by_number(readable(approval_row, await self._read("approvals_card", card=card)))

    async def matching(self, thread: ThreadId, named: str) -> list[Approval]:
        """Find the approvals that a person refers to by id.

        `named` is the complete id of a call or card in any thread, or the last characters of an id in this thread.
        Decided approvals match only if no pending one does and `named` has at least SHORT_ID_CHARS characters. An
        empty `named` matches all pending approvals of the thread.
        """
        name = named.upper()
        if name:
            whole = await self.get(ApprovalId(name))
            if whole is not None:
                return [whole]
            if calls := await self.on_card(CardId(name)):
                return calls
        pending = _ending(await self.search(thread=thread), name)
        if pending or len(name) < SHORT_ID_CHARS:
            return pending
        return _ending(await self.search(pending=False, thread=thread), name)

    async def search(self, *, pending: bool = True, thread: ThreadId | None = None, limit: int = 200) -> list[Approval]:
        """Return approvals, newest first. If `pending` is False, include decided ones."""
        if pending:
            rows = await self._read("approvals_waiting", thread=thread or "", limit=limit)
        elif thread:
            rows = await self._read("approvals_of", thread=thread, limit=limit)
        else:
            rows = await self._read("approvals_recent", limit=limit)
        return readable(approval_row, rows)

    async def record_decision(
        self,
        approval: ApprovalId,
        verdict: Verdict,
        scope: Scope,
        by: str,
        trust: Trust,
        *,
        platform: str = "",
        roles: Sequence[str] = (),
        token: str = "",
    ) -> Settlement:
        given: dict[ApprovalId, Verdict] = {approval: verdict}
        return (await self.record_decisions(given, scope, by, trust, platform=platform, roles=roles, token=token))[0]

    @writes_at
    def record_decisions(
        self,
        at: datetime,
        verdicts: Mapping[ApprovalId, Verdict],
        scope: Scope,
        by: str,
        trust: Trust,
        *,
        platform: str = "",
        roles: Sequence[str] = (),
        token: str = "",
    ) -> Script[list[Settlement]]:
        """Decide calls, and journal and audit the decisions. Either all decisions are stored, or none.

        `trust` and `roles` are those of `by` on the platform. `token` is the access token with which `by`
        authenticated.

        Raises NotFound, Conflict if a call is already decided, Gone if an approval has expired, and InvalidInput if
        `scope` is `thread` but a call can only be allowed once.
        """
        settlements: list[Settlement] = []
        for approval, verdict in verdicts.items():
            asked = yield from query("approval_one", id=approval)
            if not asked:
                raise NotFound(
                    f"No approval has the ID {approval}. Run `shoal approvals list` to see the pending ones."
                )
            if verdict == "allow" and scope == "thread" and (why := approval_row(asked[0]).covers.uncovered):
                raise InvalidInput(f"This call can only be allowed once, because {why}.")
            yield from query("thread_lock", thread=asked[0][1])
            decision = {"state": verdict, "scope": scope, "decided_by": by, "decided_trust": trust}
            decision |= {"decided_on": platform, "decided_roles": dump(roles) if roles else ""}
            updated = yield from query("approval_settle", id=approval, **decision, now=at)
            rows = yield from query("approval_one", id=approval)
            decided = approval_row((rows or asked)[0])
            if not updated:
                if decided.state in ("pending", "expired"):
                    raise Gone(EXPIRED)
                raise Conflict(ALREADY.format(how=_DECIDED[decided.state]))
            data = ApprovalSettled(decided.id, decided.call_id, verdict, scope, by)
            events = yield from append_outside(decided.thread, decided.turn, (data,), at)
            what = " ".join("; ".join(decided.actions or (decided.tool,)).split())[:ACTION_CHARS_MAX]
            detail = f"{scope} {decided.digest}"
            entry = AuditEntry("approval", what, verdict, user=by, turn=decided.turn, detail=detail, token=token)
            yield from chain(decided.thread, (entry,), at)
            settlements.append(Settlement(decided, verdict, events[0]))
        yield from change_cards([settlement.approval for settlement in settlements], at)
        for card in dict.fromkeys(
            settlement.approval.item.card for settlement in settlements if settlement.approval.item.staged
        ):
            yield from run_accepted(card, (yield from calls_of(card)), at)
        for thread in dict.fromkeys(settlement.approval.thread for settlement in settlements):
            yield from query("wake", thread=thread)
        return settlements

    @writes_at
    def choose(self, at: datetime, card: CardId, ticked: Sequence[int], post: str, page: str) -> Script[None]:
        """Update a card to show a check box for each pending call, checked for the calls in `ticked`.

        `post` is the id of the post that updates the card. Raises NotFound, and Conflict or Gone if no call is pending.
        """
        calls = yield from calls_of(card)
        if not calls:
            raise NotFound("This approval is no longer available. `shoal approvals list` shows the pending approvals.")
        yield from query("thread_lock", thread=calls[0].thread)
        calls = yield from calls_of(card)
        refuse_decided(calls)
        yield from put_post(card_choice(calls[0].asked_in, calls, ticked, post, page), at)

    @writes_at
    def withdraw(self, at: datetime, approvals: Sequence[ApprovalId]) -> Script[None]:
        """Record that the permission rules created from these calls were removed, and update the calls' card."""
        changed: list[Approval] = []
        for approval in approvals:
            if (yield from query("approval_withdraw", id=approval)):
                changed += [approval_row(row) for row in (yield from query("approval_one", id=approval))]
        yield from change_cards(changed, at)

    async def grants(self, thread: ThreadId, call_digest: str) -> list[Approval]:
        """Return the approvals that allow this call for the rest of the thread, newest first, at most GRANTS_MAX."""
        rows = await self._read("approval_grants", thread=thread, call_digest=call_digest, limit=GRANTS_MAX)
        return [approval_row(row) for row in rows]

    async def expire(self) -> list[Settlement]:
        """Expire up to 100 overdue approvals, in one transaction per card."""
        due: dict[str, dict[ApprovalId, Verdict]] = {}
        for row in await self._read("approvals_expired", now=self._clock.now()):
            approval = ApprovalId(text(row[0]))
            due.setdefault(text(row[1]) or approval, {})[approval] = "expired"
        settlements: list[Settlement] = []
        for verdicts in due.values():
            try:
                settlements += await self.record_decisions(verdicts, "once", "clock", "untrusted")
            except (Conflict, Gone, NotFound, *UNREADABLE):  # decided, expired or deleted concurrently, or unreadable
                continue
        return settlements


def _ending(approvals: Sequence[Approval], name: str) -> list[Approval]:
    return [
        approval
        for approval in approvals
        if approval.id.upper().endswith(name) or approval.item.card.upper().endswith(name)
    ]


def card_verdicts(calls: Sequence[Approval], allow: bool, numbers: Sequence[int] = ()) -> dict[ApprovalId, Verdict]:
    """Return the verdicts that follow from a decision on a card.

    The decision applies to the calls in `numbers`, or to all pending calls if `numbers` is empty. Allowing some
    calls denies the other pending calls. Denying some leaves the others pending. Raises Conflict, Gone, or
    InvalidInput for an unknown number.
    """
    refuse_decided(calls)
    by_number = {call.item.number: call for call in calls}
    for number in numbers:
        if number not in by_number:
            raise InvalidInput(f"This card has no call {number}. Its calls are numbered 1 to {calls[0].item.total}.")
        if (state := by_number[number].state) != "pending":
            raise Conflict(f"Call {number} was already decided: it was {_DECIDED.get(state, 'left to expire')}.")
    verdicts: dict[ApprovalId, Verdict] = {}
    for number, call in by_number.items():
        if call.state != "pending":
            continue
        if not numbers or number in numbers:
            verdicts[call.id] = "allow" if allow else "deny"
        elif allow:
            verdicts[call.id] = "deny"
    return verdicts


def verdicts_text(calls: Sequence[Approval], verdicts: Mapping[ApprovalId, Verdict]) -> str:
    waiting = [call for call in calls if call.state == "pending"]
    allowed = [call.item.number for call in waiting if verdicts.get(call.id) == "allow"]
    denied = [call.item.number for call in waiting if verdicts.get(call.id) == "deny"]
    left = [call.item.number for call in waiting if call.id not in verdicts]
    yes, no = ("Accepted", "Discarded") if calls[0].item.staged else ("Allowed", "Denied")
    if not left and not (allowed and denied):
        decided = [msgspec.structs.replace(call, state=verdicts.get(call.id, call.state)) for call in calls]
        return f"{yes}." if allowed else f"{no}. {undo_text(decided)}".rstrip()
    sentences = [f"{yes} {listed(allowed)}."] if allowed else []
    sentences += [f"{no} {listed(denied)}."] if denied else []
    sentences += [f"{listed(left)} still {'waits' if len(left) == 1 else 'wait'}."] if left else []
    return " ".join(sentences)


def refuse_decided(calls: Sequence[Approval]) -> None:
    """Raise Conflict if no call on the card is pending, or Gone if all calls have expired."""
    states = {call.state for call in calls}
    if "pending" in states:
        return
    if states == {"expired"}:
        raise Gone(EXPIRED)
    outcomes = " and ".join(dict.fromkeys(_DECIDED.get(call.state, "left to expire") for call in calls))
    raise Conflict(ALREADY.format(how=outcomes))


def insert_approval(thread: ThreadId, turn: TurnId, approval: NewApproval, at: datetime) -> Script[None]:
    row = msgspec.structs.asdict(approval) | {"thread": thread, "turn": turn, "now": at, "card": approval.item.card}
    row["actions"] = dump(approval.actions)
    row["covers"] = dump(approval.covers) if approval.covers != NO_COVERAGE else ""
    row["item"] = dump(approval.item) if approval.item != ALONE else ""
    yield from query("approval_insert", **row)


def cancel_approvals(thread: ThreadId, turn: TurnId, at: datetime) -> Script[list[EventData]]:
    """Cancel a turn's pending approvals. Return the events that the caller must journal."""
    cancelled: list[Approval] = []
    for row in (yield from query("approvals_cancel", thread=thread, turn=turn, now=at)):
        cancelled += [approval_row(row) for row in (yield from query("approval_one", id=text(row[0])))]
    yield from change_cards(cancelled, at)
    return [ApprovalSettled(approval.id, approval.call_id, "cancelled") for approval in cancelled]
