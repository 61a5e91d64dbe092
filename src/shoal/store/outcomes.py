"""Outcomes of approved calls, stored with the approvals and shown on the cards."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from shoal.kernel.effect_notes import DROPPED, dropped_text
from shoal.kernel.events import Event, Failed
from shoal.kernel.ids import ApprovalId, CardId, TurnId
from shoal.kernel.messages import Prompt
from shoal.kernel.permissions import ALONE, NO_COVERAGE, CardItem, Coverage
from shoal.kernel.records import Approval, CallOutcome
from shoal.store.appends import append_outside, put_post
from shoal.store.cards import CARD_CALLS_MAX, card_edit
from shoal.store.driver import Script, query, reader

_covers = msgspec.json.Decoder(Coverage)
_item = msgspec.json.Decoder(CardItem)
_names = msgspec.json.Decoder(tuple[str, ...])
approval_row = reader(
    Approval,
    "id thread turn call_id tool actions digest shown asked_by state created_at expires_at scope decided_by decided_at"
    " reason shown_in call_digest covers decided_trust needs_trust decided_on decided_roles item outcome",
    actions=_names.decode,
    covers=lambda covers: _covers.decode(covers) if covers else NO_COVERAGE,
    decided_trust=lambda trust: trust or None,
    decided_roles=lambda roles: _names.decode(roles) if roles else (),
    item=lambda item: _item.decode(item) if item else ALONE,
)

WHY_DROPPED: dict[CallOutcome, str] = {
    "not_run": "The queue was cleared before the accepted calls ran",
    "no_access": "The person who asked for the accepted calls no longer has access",
}


def calls_of(card: str) -> Script[list[Approval]]:
    rows = yield from query("approvals_card", card=card)
    return by_number([approval_row(row) for row in rows])


def by_number(calls: Iterable[Approval]) -> list[Approval]:
    return sorted(calls, key=lambda call: call.item.number)


def show_outcomes(outcomes: Iterable[tuple[ApprovalId, CallOutcome]], at: datetime) -> Script[None]:
    """Store the outcomes of allowed calls and update their cards.

    Cards with more than CARD_CALLS_MAX calls are not updated here. Call `show_card` for them.
    """
    changed: list[Approval] = []
    for approval, outcome in outcomes:
        yield from query("approval_outcome", id=approval, outcome=outcome)
        changed += [approval_row(row) for row in (yield from query("approval_one", id=approval))]
    yield from change_cards([approval for approval in changed if approval.item.total <= CARD_CALLS_MAX], at)


def show_card(card: CardId, at: datetime) -> Script[None]:
    """Update a card with the outcomes of its calls. For a large card, call this once after all its calls have ended."""
    yield from change_cards((yield from calls_of(card))[:1], at)


def change_cards(changed: Sequence[Approval], at: datetime) -> Script[None]:
    for card, approval in {
        approval_changed.item.card or approval_changed.id: approval_changed for approval_changed in changed
    }.items():
        calls = [approval]
        if approval.item.card:
            calls = yield from calls_of(card)
        yield from put_post(card_edit(approval.asked_in, calls), at)


def drop_accepted(prompts: Iterable[Prompt], outcome: CallOutcome, at: datetime) -> Script[tuple[Event, ...]]:
    """Record on the cards and in the journal that the accepted calls in these dropped messages will never run.

    Return the journaled events.
    """
    notices: tuple[Event, ...] = ()
    for prompt in prompts:
        if (accepted := prompt.accepted) is None:
            continue
        calls = yield from calls_of(accepted.card)
        yield from show_outcomes([(approval, outcome) for approval in accepted.approvals], at)
        yield from show_card(accepted.card, at)
        shown = [call.shown or call.tool for call in calls if call.id in accepted.approvals]
        note = Failed(DROPPED, dropped_text(WHY_DROPPED[outcome], shown), fatal=False)
        notices += yield from append_outside(prompt.thread, TurnId(""), (note,), at)
    return notices
