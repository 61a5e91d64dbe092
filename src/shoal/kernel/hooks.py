"""Hooks: code in installed packages that Shoal calls before a tool call and after a turn."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from shoal.kernel.events import Outcome
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Usage
from shoal.kernel.permissions import Trust


class PlannedCall(msgspec.Struct, frozen=True):
    """A tool call that the permissions did not deny, before it runs.

    A call that waits for approval is planned again after the decision.
    """

    thread: ThreadId
    turn: TurnId
    agent: str
    asked_by: str
    """PLATFORM:USER of the person who asked."""
    trust: Trust
    tool: str
    arguments: str
    """Resolved arguments as canonical JSON."""
    shown: str
    """Text of the call as shown for approval."""
    actions: tuple[str, ...]
    """Actions that the permission rules match, such as `tool:bash:git push`."""
    decision: Literal["allow", "ask"]
    tainted_by: str = ""
    """Names of the untrusted content that the turn has read, or empty."""


class HookRuling(msgspec.Struct, frozen=True):
    """A hook's stricter decision on a planned call: ask a person, or deny. `reason` is one sentence."""

    decision: Literal["ask", "deny"]
    reason: str


class TurnSummary(msgspec.Struct, frozen=True):
    """A turn that has ended. `reply` is its answer. `tainted_by` has the same meaning as in `PlannedCall`."""

    thread: ThreadId
    turn: TurnId
    agent: str
    outcome: Outcome
    reply: str
    steps: int
    usage: Usage
    tainted_by: str = ""


BeforeCall: TypeAlias = Callable[[PlannedCall], Awaitable[HookRuling | None]]
AfterTurn: TypeAlias = Callable[[TurnSummary], Awaitable[None]]


class Hooks(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The hooks of a package. Each hook call may take up to `seconds_max`.

    `before_call`: can make a decision stricter, never looser. If it returns None, the decision is unchanged. If it
    fails or takes too long, the call is denied.
    `after_turn`: receives each turn that this process finished, at most once. Its failures are logged.
    """

    before_call: BeforeCall | None = None
    after_turn: AfterTurn | None = None
    seconds_max: Annotated[float, Meta(gt=0, le=60)] = 5.0
