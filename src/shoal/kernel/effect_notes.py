"""Notes that report the outcomes of staged calls to the model, together with the next message."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from shoal.kernel.events import ApprovalRequested, ApprovalSettled, EffectsAccepted, Failed, ToolFinished, Verdict
from shoal.kernel.ids import ApprovalId, CallId
from shoal.kernel.phrases import counted, short_line
from shoal.kernel.untrusted import untrusted_block

NOTES_MAX = 20
"""Maximum number of calls that a note lists individually. Further calls are only counted by outcome."""
WHAT_CHARS_MAX, RESULT_CHARS_MAX = 160, 1_000
DROPPED = "staged_dropped"
"""`Failed.kind` of a note about staged calls that were dropped because their turn ended or their author lost access."""
NOT_OFFERED = "not_offered"
"""`Failed.kind` of a note about a staged call that could not be shown to a person for approval."""
DROPPED_NAMED_MAX = 5
HEAD = "[Outcome of the calls that you had staged:]"
_REFUSED: dict[Verdict, str] = {
    "deny": "discarded by a person, not done",
    "expired": "expired without an answer, not done",
    "cancelled": "cancelled, not done",
}


def dropped_text(why: str, shown: Sequence[str]) -> str:
    named = "; ".join(short_line(effect, WHAT_CHARS_MAX) for effect in shown[:DROPPED_NAMED_MAX])
    more = f"; and {len(shown) - DROPPED_NAMED_MAX} more" if len(shown) > DROPPED_NAMED_MAX else ""
    return f"{why}. Not done: {named}{more}. Ask again if you still want it."


class EffectNotes(msgspec.Struct):
    """Collects the outcomes of staged calls from the journal, in order."""

    _asked: dict[ApprovalId, str] = {}
    _running: dict[CallId, str] = {}
    _notes: list[str] = []
    _more: Counter[str] = msgspec.field(default_factory=Counter)

    def ask(self, request: ApprovalRequested) -> None:
        if request.item.staged:
            self._asked[request.approval_id] = short_line(request.shown or request.tool, WHAT_CHARS_MAX)

    def decide(self, event: ApprovalSettled) -> None:
        if event.decision != "allow" and (what := self._asked.pop(event.approval_id, "")):
            self._note(_REFUSED[event.decision], what, "")

    def begin(self, accepted: EffectsAccepted) -> None:
        asked = (self._asked.pop(approval, "") for approval in accepted.approvals)
        self._running = {call.id: what or call.name for call, what in zip(accepted.calls, asked, strict=True)}

    def finish(self, result: ToolFinished) -> bool:
        """Record a result. Return False if it does not belong to a running staged call."""
        what = self._running.pop(result.call_id, "")
        if not what:
            return False
        text = result.text if len(result.text) <= RESULT_CHARS_MAX else f"{result.text[:RESULT_CHARS_MAX]}…"
        if result.tainted_by:
            text = untrusted_block(result.tainted_by, text)
        self._note("failed" if result.is_error else "done", what, text)
        return True

    def drop(self, failed: Failed) -> None:
        if failed.kind in (DROPPED, NOT_OFFERED):
            self._note("not done", failed.message, "")

    def take(self) -> list[str]:
        if not self._notes:
            return []
        more = [f"- {counted(count, 'more call')}: {how}" for how, count in self._more.items()]
        text = "\n".join((HEAD, *self._notes, *more))
        self._notes, self._more = [], Counter()
        return [text]

    def _note(self, how: str, what: str, text: str) -> None:
        if len(self._notes) >= NOTES_MAX:
            self._more[how] += 1
        else:
            self._notes.append(f"- {how}: {what}{f'{chr(10)}{text}' if text else ''}")
