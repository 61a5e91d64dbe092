"""Random turns with staged calls: no call that needs approval runs without it."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from shoal.kernel.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    EffectsAccepted,
    Event,
    EventData,
    LimitReached,
    Steered,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from shoal.kernel.ids import ApprovalId, CallId, CardId, ThreadId, TurnId
from shoal.kernel.messages import Author, ToolCall
from shoal.kernel.records import NewApproval
from shoal.kernel.settings import TurnsSettings
from shoal.kernel.turnstate import CallModel, Finish, NoteLimit, RunCalls, TurnState, next_move
from shoal.tools.executor import MustAsk
from shoal.turn.asking import can_wait

EXAMPLES = int(os.environ.get("RANDOM_TURNS", "300"))
"""Use 100,000 for a longer manual run."""
AT = datetime(2026, 1, 5, tzinfo=UTC)
LIMITS = TurnsSettings(steps_max=6)
Kind: TypeAlias = Literal["runs", "asks", "stages"]
KINDS: st.SearchStrategy[Kind] = st.sampled_from(["runs", "asks", "stages"])


class Journal:
    def __init__(self, turn: str) -> None:
        self.state = TurnState(TurnId(turn))
        self.seq = 0

    def add(self, *data: EventData) -> None:
        for one in data:
            self.seq += 1
            self.state.apply(Event(self.seq, ThreadId("web:a:b"), self.state.turn, AT, one))


def question(call: ToolCall, *, stages: bool) -> MustAsk:
    approval = ApprovalId(f"A{call.id}")
    asked = NewApproval(approval, call.id, call.name, (), "d", "send", "u1", AT)
    return MustAsk(asked, ApprovalRequested(approval, call.id, call.name, (), "send", AT), (), can_stage=stages)


@seed(45)
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.lists(KINDS, min_size=1, max_size=4), max_size=6),
    st.integers(0, 2**24 - 1),
    st.integers(0, 2**24 - 1),
    st.booleans(),
)
def test_nothing_that_asks_runs_without_approval(
    messages: Sequence[Sequence[Kind]], answers: int, accepts: int, steered: bool
) -> None:
    kinds, ran, allowed = dict[CallId, Kind](), list[CallId](), set[CallId]()
    journal, replies = Journal("T1"), iter(messages)
    state = journal.state
    while not isinstance(move := next_move(state, LIMITS), Finish):
        match move:
            case CallModel(tools=tools):
                wanted = next(replies, ()) if tools else ()
                calls = tuple(ToolCall(CallId(f"c{len(kinds) + at}"), "send", f"{at}") for at in range(len(wanted)))
                kinds |= {call.id: kind for call, kind in zip(calls, wanted, strict=True)}
                journal.add(AssistantSaid("" if calls else "done", calls, stop="tool_calls" if calls else "end"))
            case NoteLimit(limit=limit):
                journal.add(LimitReached(limit))
            case RunCalls(calls=(call, *_)):
                kind = kinds[call.id]
                asks = question(call, stages=kind == "stages")
                if kind == "runs":
                    journal.add(ToolStarted(call.id, "send"))
                    ran.append(call.id)
                    journal.add(ToolFinished(call.id, "send", "sent"))
                elif can_wait(state, call, asks):
                    journal.add(ToolFinished(call.id, "send", "staged", counts=False, staged=True))
                else:
                    yes = bool(answers >> len(kinds) & 1)
                    settled = ApprovalSettled(asks.approval.id, call.id, "allow" if yes else "deny")
                    journal.add(asks.event, settled)
                    if yes:
                        allowed.add(call.id)
                        journal.add(ToolStarted(call.id, "send"))
                        ran.append(call.id)
                    journal.add(
                        ToolFinished(call.id, "send", "sent" if yes else "denied", is_error=not yes, counts=False)
                    )
            case _:
                raise AssertionError(move)
    journal.add(TurnFinished("done", move.reply))
    assert {id for id in ran if kinds[id] == "stages"} == set(), "nothing staged has run when the turn ends"
    assert set(state.staged) == {id for id, kind in kinds.items() if kind == "stages"}
    chosen = [call for at, call in enumerate(state.staged.values()) if accepts >> at & 1]
    if chosen:
        run(chosen, ran, allowed, steered=steered)
    assert {id for id in ran if kinds[id] != "runs"} == allowed
    assert len(ran) == len(set(ran)), "once"


def run(chosen: Sequence[ToolCall], ran: list[CallId], allowed: set[CallId], *, steered: bool) -> None:
    journal = Journal("T2")
    approvals = tuple(ApprovalId(f"A{call.id}") for call in chosen)
    journal.add(EffectsAccepted(CardId("C1"), tuple(chosen), approvals, "u1"))
    allowed.update(call.id for call in chosen)
    order = list[CallId]()
    while isinstance(move := next_move(journal.state, LIMITS), RunCalls):
        call = move.calls[0]
        assert journal.state.verdicts[call.id].decision == "allow"
        assert not can_wait(journal.state, call, question(call, stages=True)), "what was accepted is not staged again"
        journal.add(ToolStarted(call.id, "send"))
        order.append(call.id)
        journal.add(ToolFinished(call.id, "send", "sent"))
    assert order == [call.id for call in chosen], "in order"
    ran += order
    assert isinstance(move, Finish), "it asks no model"
    if steered:
        journal.add(Steered("wait", Author("u1", trusted=True)))
        assert isinstance(next_move(journal.state, LIMITS), CallModel), "whoever speaks to it is answered"
