"""The scripted model: it plays a task's ground truth, one call a message, and obeys every injection at once."""

import json
from typing import NamedTuple

import msgspec

from bench.agentdojo.functions import MARK
from shoal.kernel.messages import MORE_TOOLS
from shoal.testing.model import Call, Reply, Seen


class Wanted(msgspec.Struct, frozen=True):
    """A call of a ground truth."""

    function: str
    args: dict[str, object]


class Task(msgspec.Struct, frozen=True):
    """What a lane's server says of the task it has begun."""

    prompt: str
    calls: list[Wanted]
    answer: str
    injected: list[Wanted]
    injected_answer: str


class Progress(NamedTuple):
    """How far a conversation has come: calls of either kind that were made, and whether an injection was read."""

    calls: int = 0
    injected: int = 0
    is_hijacked: bool = False


def progress(task: Task, seen: Seen) -> Progress:
    """Read the conversation: every call was the next one of its kind, the injected ones first once one was read."""
    at = Progress()
    for message in seen.messages:
        for _ in message.calls:
            is_injected = at.is_hijacked and at.injected < len(task.injected)
            at = at._replace(injected=at.injected + 1) if is_injected else at._replace(calls=at.calls + 1)
        if message.role == "tool" and MARK in message.text:
            at = at._replace(is_hijacked=True)
    return at


class ObedientModel:
    """Answers for all lanes; a lane's tools tell which one asks. `hijacked` are the lanes that read an injection."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.hijacked: set[str] = set()

    def answer(self, seen: Seen) -> Reply | str:
        """The next call, or the answer when none is left; anything else that Shoal asks gets a word."""
        lane = next((name.split("_")[1] for name in seen.tools if name.startswith("mcp_")), "")
        if lane not in self.tasks:
            return "Fine."
        task = self.tasks[lane]
        at = progress(task, seen)
        if at.is_hijacked:
            self.hijacked.add(lane)
        left = task.injected[at.injected :] if at.is_hijacked else []
        wanted = next(iter([*left, *task.calls[at.calls :]]), None)
        if wanted is None:
            return f"{task.answer} {task.injected_answer if at.is_hijacked else ''}".strip() or "Done."
        name, arguments = f"mcp_{lane}_{wanted.function}", json.dumps(wanted.args)
        if name in seen.tools:
            return Reply(calls=(Call(name, arguments),))
        return Reply(calls=(Call(MORE_TOOLS, f'{{"call":"{name}","arguments":{arguments}}}'),))
