"""What the API answers about approvals."""

from datetime import datetime
from typing import Literal

import msgspec

from shoal.kernel.events import Scope
from shoal.kernel.permissions import CardItem, Coverage


class ApprovalView(msgspec.Struct, frozen=True):
    """A question to a person; `shown` is exactly what will run, `title` and `agent` those of its thread;
    `asked_by_name` may be empty. A list shows only pending ones by default.

    `covers` is the content that it runs: `files` with their sizes (-1: not there) and SHA-256, the number of `others`,
    and why not all of it is covered (`uncovered`); the answer cannot be for the whole thread then. `runs` says it in
    words. `always` says which rule the caller may make of it, or has made where `scope` is "always"; it is empty where
    none can be made. `item` is the call's place on the card that asks for it (`card` is empty where it has one of its
    own), with the model's own sentence and where its values come from; `values` says that in words. `outcome` says how
    it ended.
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
    With "always", it names the new rule. `undo` is the turn whose changed files stay although its card was discarded.
    """

    id: str
    state: str
    message: str = ""
    undo: str = ""


class RuleTakenBack(msgspec.Struct, frozen=True):
    """A sentence that describes the removed rule."""

    message: str
