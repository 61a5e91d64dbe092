"""Recorded model calls that are asked of another model: what is wanted, what was answered, and how the two differ."""

from collections import Counter
from datetime import datetime
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import StopReason, ToolCall, Usage
from shoal.kernel.untrusted import UNREADABLE

RUNS_MAX = 20
LAST_MAX = 500
STEPS_MAX = 2_000
"""Most model calls of one comparison; of more, the newest are taken."""
SYSTEM_CHARS_MAX = 200_000

Difference: TypeAlias = Literal["same", "words", "arguments", "calls", "refused", "failed"]
DIFFERENCES: tuple[Difference, ...] = ("same", "words", "arguments", "calls", "refused", "failed")
"""From least to most: nothing differs; the answer has other words; the same tools have other arguments; other tools are
called, or an answer stands where a call was; the model declined; there is no answer."""


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to ask of `model`: the calls of a `thread`, of the `last` so many turns, or of the threads whose title has
    the `tag` as #TAG. `profile`: with the tools that it leaves; `system`: with these instructions. Each call is asked
    `runs` times."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]
    thread: Annotated[str, Meta(max_length=400)] = ""
    last: Annotated[int, Meta(ge=0, le=LAST_MAX)] = 0
    tag: Annotated[
        str, Meta(max_length=64, pattern=r"^[\w-]*$", description="letters, digits, - and _, at most 64")
    ] = ""
    profile: Annotated[str, Meta(max_length=200)] = ""
    system: Annotated[str, Meta(max_length=SYSTEM_CHARS_MAX)] = ""
    runs: Annotated[int, Meta(ge=1, le=RUNS_MAX)] = 1

    @property
    def selection(self) -> str:
        """Which calls are asked, in words."""
        return self.thread or (f"the last {self.last} turns" if self.last else f"#{self.tag}")


class StepPlace(msgspec.Struct, frozen=True):
    """A recorded model call: event `seq` is its answer. Nothing that was said stands here: it goes with the thread."""

    thread: ThreadId
    turn: TurnId
    seq: int
    agent: str


class ModelAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model answered; `failed` says why it did not. `usd` is None where the price is unknown, `seconds` where
    nobody took the time."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop: StopReason = "end"
    usage: Usage = Usage()
    usd: float | None = None
    seconds: float | None = None
    failed: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """One that was begun, with the calls that were chosen, oldest first, and the most it may cost (0: no bound)."""

    id: str
    created_at: datetime
    wanted: Wanted
    usd_max: float
    steps: tuple[StepPlace, ...]


def difference(recorded: ModelAnswer, answer: ModelAnswer) -> Difference:
    """How an answer differs from the recorded one; the order of calls does not count."""
    if answer.failed:
        return "failed"
    if answer.stop == "refusal" and recorded.stop != "refusal":
        return "refused"
    if Counter(call.name for call in recorded.calls) != Counter(call.name for call in answer.calls):
        return "calls"
    if recorded.calls:
        was, now = (Counter((call.name, plain(call.arguments)) for call in side.calls) for side in (recorded, answer))
        return "same" if was == now else "arguments"
    return "same" if recorded.text.strip() == answer.text.strip() else "words"


def plain(arguments: str) -> str:
    """Arguments in one spelling, whatever the order of their keys and their spaces; what is no JSON as it stands."""
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments or "{}"), order="sorted").decode()
    except UNREADABLE:
        return arguments
