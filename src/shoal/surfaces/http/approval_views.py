"""API responses about approvals."""

from datetime import datetime
from typing import Literal

import msgspec

from shoal.kernel.events import Scope
from shoal.kernel.permissions import CardItem, Coverage


class ApprovalView(msgspec.Struct, frozen=True):
    """An approval request.

    title: title of the thread.
    agent: agent of the thread.
    shown: the exact text that will run.
    runs: description of `covers` in words.
    item: position of the call on its card, the model's own explanation, and the sources of the values. `card` is
    empty for a call with its own card.
    values: description of the sources in words.
    outcome: description of the call's result.
    always: description of the rule that the caller may create, or has created if `scope` is "always". Empty if no
    rule is possible.
    covers: content that the call runs. `files` have a size (-1 for a missing file) and a SHA-256, and `others` is
    the number of other files. If `uncovered` is set, it explains why some content is not covered, and the call
    cannot be allowed for the whole thread.
    asked_by_name: may be empty.
    """

    id: str
    thread: str
    title: str
    agent: str
    turn: str
    tool: str
    actions: tuple[str, ...]
    shown: str
    runs: str
    item: CardItem
    values: str
    outcome: str
    always: str
    covers: Coverage
    reason: str
    asked_by: str
    asked_by_name: str
    state: Literal["pending", "allow", "deny", "expired", "cancelled", "used"]
    scope: Scope | Literal["withdrawn"]
    decided_by: str
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None


class ApprovalDecided(msgspec.Struct, frozen=True, omit_defaults=True):
    """The new state of an approval.

    state: state of the approval. For a card, the decision.
    message: for a card, the outcome of each call. With "always", the new rule.
    undo: the turn whose file changes remain although its card was discarded.
    """

    id: str
    state: str
    message: str = ""
    undo: str = ""


class RuleTakenBack(msgspec.Struct, frozen=True):
    """The removed rule. `message` describes it in a sentence."""

    message: str
