"""Answers of the API about approvals."""

from datetime import datetime
from typing import Literal

import msgspec

from shoal.kernel.events import Scope
from shoal.kernel.permissions import CardItem, Coverage


class ApprovalView(msgspec.Struct, frozen=True):
    """An approval request. `shown` is the exact text that will run. `title` and `agent` belong to its thread.
    `asked_by_name` may be empty.

    `covers` is the content that the call runs: `files` with their size (-1 for a missing file) and SHA-256, and the
    number of `others`. If `uncovered` is set, it explains why some content is not covered, and the call cannot be
    allowed for the whole thread. `runs` describes the content in words. `always` describes the rule that the caller may
    create, or has created if `scope` is "always". It is empty if no rule is possible. `item` is the call's position on
    its card, with the model's own sentence and the sources of its values. `card` is empty for a call with its own card.
    `values` describes the sources in words. `outcome` describes the result of the call.
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
    """The approval's new state. On a card, `state` is the decision and `message` describes the outcome of each call.
    With "always", `message` names the new rule. `undo` is the turn whose file changes remain although its card was
    discarded.
    """

    id: str
    state: str
    message: str = ""
    undo: str = ""


class RuleTakenBack(msgspec.Struct, frozen=True):
    """A sentence that describes the removed rule."""

    message: str
