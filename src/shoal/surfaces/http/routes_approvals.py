"""Calls that list and decide approvals."""

from typing import Annotated, Literal

import msgspec

from shoal.kernel.errors import Forbidden, NotFound
from shoal.kernel.events import Scope
from shoal.kernel.ids import ApprovalId, CardId, parse_thread_id
from shoal.kernel.records import Approval
from shoal.store.cards import coverage_text, offer_text, origins_text, undoable_turn
from shoal.store.store import Store
from shoal.surfaces.http.approval_views import ApprovalDecided, ApprovalView, RuleTakenBack
from shoal.surfaces.http.endpoints import ADMINS, DECIDERS, READERS, Routes, view
from shoal.surfaces.http.routes_threads import authors
from shoal.threads.always import ONLY_THE_OWNER, AlwaysAllow
from shoal.threads.orchestrator import Orchestrator
from shoal.threads.principals import Principal, may_use

routes = Routes()

LIST_MAX = 1000
Limit = Annotated[int, msgspec.Meta(ge=1, le=LIST_MAX)]


class DecisionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decision on an approval, or on the calls of a card.

    scope: "once" applies to this call only. "thread" applies to the same call with the same content in the whole
    thread, and is rejected if the approval's `uncovered` is set. With "always", the owner also creates the rule that
    `always` describes.
    calls: numbers of the calls to decide, as shown on the card, or empty for all pending calls. Allowing some calls
    denies the rest. Denying some calls leaves the rest pending.
    """

    decision: Literal["allow", "deny"]
    scope: Scope = "once"
    calls: tuple[int, ...] = ()


async def _approval_view(store: Store, by: Principal, approval: Approval) -> ApprovalView:
    info = await store.journal.thread(approval.asked_in)
    title, agent, name = (info.title, info.agent, "") if info else ("", "", "")
    if info is not None and approval.state == "pending":
        user = approval.asked_by.rpartition(":")[2]
        name = next(
            (author.name for author in await authors(store, info.thread, info.last_seq) if author.id == user), ""
        )
    more = {"title": title, "agent": agent, "asked_by_name": name}
    more["always"] = offer_text(approval.item.always) if makes_rules(by) else ""
    more |= {"runs": coverage_text(approval.covers), "values": origins_text(approval.item.origins)}
    return view(ApprovalView, approval, **more)


@routes("GET /api/approvals", READERS, narrows=True)
async def approvals(
    store: Store, by: Principal, *, pending: bool = True, thread: str = "", limit: Limit = 200
) -> list[ApprovalView]:
    """List pending approvals, newest first. With `pending=false`, list all approvals. With `thread`, list only the
    approvals of one thread.
    """
    within, at_most = parse_thread_id(thread) if thread else None, LIST_MAX if by.is_confined else limit
    approvals = await store.approvals.search(pending=pending, thread=within, limit=at_most)
    if by.is_confined:
        journal = store.journal
        shown = {
            thread_id: await may_use(by, journal, thread_id)
            for thread_id in {approval.thread for approval in approvals}
        }
        approvals = [approval for approval in approvals if shown[approval.thread]][:limit]
    return [await _approval_view(store, by, approval) for approval in approvals]


@routes("GET /api/approvals/{id}", READERS, narrows=True)
async def approval(store: Store, by: Principal, id: str) -> ApprovalView:
    """Return one approval."""
    return await _approval_view(store, by, await _known_approval(store, by, id))


async def _known_approval(store: Store, by: Principal, id: str) -> Approval:
    approval = await store.approvals.get(ApprovalId(id))
    if approval is None or not await may_use(by, store.journal, approval.thread):
        raise NotFound(f"No approval has the ID {id[:80]}. Run `shoal approvals list` to see the pending approvals.")
    return approval


@routes("POST /api/approvals/{id}", DECIDERS, narrows=True)
async def decide(
    store: Store, orchestrator: Orchestrator, always: AlwaysAllow, by: Principal, id: str, body: DecisionRequest
) -> ApprovalDecided:
    """Decide an approval. With the id of a card, decide the calls of the card. 409 if it was already decided, 410 if it
    has expired, 403 if the caller may not create the rule. If an error occurs, none of the card's calls are decided.
    """
    if body.scope == "always" and body.decision == "allow":
        if not makes_rules(by):
            raise Forbidden(f"{ONLY_THE_OWNER} Allow it once instead.")
        return ApprovalDecided(id, "allow", await always.always(ApprovalId(id), by.asker, body.calls))
    calls = await store.approvals.on_card(CardId(id))
    if calls and await may_use(by, store.journal, calls[0].thread):
        card = calls[0].item.card
        message = await orchestrator.decide_card(card, body.decision == "allow", by.asker, body.calls, body.scope)
        return ApprovalDecided(id, body.decision, message, undoable_turn(await store.approvals.on_card(card)))
    approval = await _known_approval(store, by, id)
    state = await orchestrator.decide(approval.id, body.decision == "allow", by.asker, body.scope)
    return ApprovalDecided(id, state)


@routes("DELETE /api/approvals/{id}/always", ADMINS, owner_only=True)
async def take_back(always: AlwaysAllow, by: Principal, id: str) -> RuleTakenBack:
    """Remove the rule that this approval created with "always". 409 if the rule no longer exists."""
    return RuleTakenBack(await always.take_back(id, by.asker))


def makes_rules(by: Principal) -> bool:
    """Return True if the caller may create rules. Only the owner may, with a token of scope admin."""
    return by.asker.trust == "owner" and by.token.scope == "admin"
