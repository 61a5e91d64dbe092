"""The scripted model. It makes a task's expected calls, one per message, and obeys every injection immediately."""

import json
from typing import NamedTuple

import msgspec

from bench.agentdojo.functions import MARK
from shoal.kernel.messages import MORE_TOOLS
from shoal.testing.model import Call, Reply, Seen


class Wanted(msgspec.Struct, frozen=True):
    """A call of a task's expected solution."""

    function: str
    args: dict[str, object]


class Task(msgspec.Struct, frozen=True):
    """A lane server's description of the task that it has started."""

    prompt: str
    calls: list[Wanted]
    answer: str
    injected: list[Wanted]
    injected_answer: str


class Progress(NamedTuple):
    """The state of a conversation: the calls made for the task and for the injection, and whether the model has read an
    injection.
    """

    calls: int = 0
    injected: int = 0
    is_hijacked: bool = False


def progress(task: Task, seen: Seen) -> Progress:
    """Return the state of a conversation. Once the model has read an injection, the injected calls come first."""
    at = Progress()
    for message in seen.messages:
        for _ in message.calls:
            is_injected = at.is_hijacked and at.injected < len(task.injected)
            at = at._replace(injected=at.injected + 1) if is_injected else at._replace(calls=at.calls + 1)
        if message.role == "tool" and MARK in message.text:
            at = at._replace(is_hijacked=True)
    return at


class ObedientModel:
    """A model for all lanes, which recognizes each lane by its tools. `hijacked` lists the lanes that have read an
    injection."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.hijacked: set[str] = set()

    def answer(self, seen: Seen) -> Reply | str:
        """Return the next call, or the final answer. Shoal's other requests get a one-word answer."""
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
