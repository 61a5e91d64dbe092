"""Sets of staged calls. A set is stored until its card is decided, and then enqueued as the turn that runs the calls.

    state      stored in
    --------   ----------------------------------------
    staged     the journal of the open turn
    asked      `staged_sets` and the pending approvals
    accepted   a message in the mailbox
    running    the journal of the turn that runs the calls

    from       to         when
    --------   --------   ----------------------------------------------------------------------
    staged     asked      the turn ends
    staged     deleted    the turn is stopped or fails
    asked      accepted   all calls on the card are decided, and at least one is accepted
    asked      deleted    all calls on the card were denied or have expired
    accepted   running    the turn that runs the calls opens

A running set starts each call once, and each call gets a result. Each step is one transaction, so after a crash a
set is always in one of these states.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from shoal.kernel.ids import CardId
from shoal.kernel.messages import Prompt
from shoal.kernel.phrases import listed
from shoal.kernel.records import Approval
from shoal.store.driver import Script, dump, query, text
from shoal.store.inbox import enqueue

_prompt = msgspec.json.Decoder(Prompt)


def put_staged(prompt: Prompt, at: datetime) -> Script[None]:
    assert prompt.accepted is not None, "nothing is staged"
    row = {"card": prompt.accepted.card, "thread": prompt.thread, "prompt": dump(prompt)}
    yield from query("staged_set_insert", **row, now=at)


def run_accepted(card: CardId, calls: Sequence[Approval], at: datetime) -> Script[None]:
    """Enqueue the turn that runs a card's accepted calls. Do nothing while a call on the card is undecided."""
    if any(call.state == "pending" for call in calls):
        return
    rows = yield from query("staged_set_take", card=card)
    accepted = {call.id: call for call in calls if call.state == "allow"}
    if not rows or not accepted:
        return
    prompt = _prompt.decode(text(rows[0][0]))
    assert prompt.accepted is not None, "nothing is staged"
    pairs = zip(prompt.accepted.calls, prompt.accepted.approvals, strict=True)
    chosen = [(call, approval) for call, approval in pairs if approval in accepted]
    label = (
        "Do all"
        if len(chosen) == len(calls)
        else f"Do {listed([accepted[approval].item.number for _, approval in chosen])}"
    )
    effects = msgspec.structs.replace(
        prompt.accepted,
        calls=tuple(call for call, _ in chosen),
        approvals=tuple(approval for _, approval in chosen),
        by=accepted[chosen[0][1]].decided_by,
    )
    yield from enqueue(msgspec.structs.replace(prompt, text=label, accepted=effects), at)
