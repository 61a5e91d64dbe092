"""Records of comparisons: the selected model calls, the answers, and how the answers differ."""

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
"""Maximum number of model calls in a comparison. If more match, the newest are used."""
SYSTEM_CHARS_MAX = 200_000

Difference: TypeAlias = Literal["same", "words", "arguments", "calls", "refused", "failed"]
DIFFERENCES: tuple[Difference, ...] = ("same", "words", "arguments", "calls", "refused", "failed")
"""Kinds of difference between two answers, from smallest to largest.

`same`: none.
`words`: different text.
`arguments`: the same tools with different arguments.
`calls`: different tools, or text instead of a call.
`refused`: a refusal.
`failed`: no answer.
"""


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Recorded calls to repeat with another `model`. Exactly one of `thread`, `last` and `tag` selects them.

    `last`: number of recent turns.
    `tag`: tag that the titles of the threads contain as #TAG.
    `profile`: permission profile that limits the tools.
    `system`: instructions that replace the recorded ones.
    `runs`: number of times to repeat each call.
    """

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
        return self.thread or (f"the last {self.last} turns" if self.last else f"#{self.tag}")


class StepLocation(msgspec.Struct, frozen=True):
    """Position of a recorded model call. `seq` is the number of the event that contains the recorded answer.

    Message text is not stored here, because deleting a thread must delete its text.
    """

    thread: ThreadId
    turn: TurnId
    seq: int
    agent: str


class ModelAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model's answer to a call.

    `usd`: cost, or null if the price is unknown.
    `seconds`: duration, or null if it was not measured.
    `failed`: reason why there is no answer, otherwise empty.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop: StopReason = "end"
    usage: Usage = Usage()
    usd: float | None = None
    seconds: float | None = None
    failed: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """A comparison of a model's answers with recorded answers.

    `usd_max`: cost limit in US dollars. 0 means no limit.
    `steps`: recorded calls, oldest first.
    """

    id: str
    created_at: datetime
    wanted: Wanted
    usd_max: float
    steps: tuple[StepLocation, ...]


def difference(recorded: ModelAnswer, answer: ModelAnswer) -> Difference:
    """Classify how an answer differs from the recorded one. The order of tool calls does not matter."""
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
    """Normalize JSON by sorting keys and removing whitespace. Return invalid JSON unchanged."""
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments or "{}"), order="sorted").decode()
    except UNREADABLE:
        return arguments
