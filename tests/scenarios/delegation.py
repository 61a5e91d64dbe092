"""Scripted models for scenarios with subagents. A word in each task selects the script."""

import json
from collections.abc import Sequence

from tests.scenarios.scene import Scene

from shoal.kernel.events import ToolFinished
from shoal.kernel.ids import ThreadId
from shoal.store.store import Store
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.model.script import Seen
from shoal.testing.scenario import World


def delegates(tool: str, *tasks: str, **more: object) -> Reply:
    word = "question" if tool == "ask_agent" else "task"
    return Reply(calls=tuple(Call(tool, json.dumps({word: task, **more})) for task in tasks))


def cast(**roles: Sequence[Reply | str]) -> FakeModel:
    """Return a model with one script per role. The last user message names the role.

    The model plays one step per round and repeats the last step.
    """

    def play(seen: Seen) -> Reply | str:
        asked = seen.user_text.split("<context>")[0]
        steps = next(steps for name, steps in roles.items() if name in asked)
        return steps[min(seen.rounds, len(steps) - 1)]

    return FakeModel(script=play)


async def children_of(world: World | Scene, parent: ThreadId | None = None) -> list[ThreadId]:
    """Return the subagent threads of `parent`, by default ada's thread, oldest first."""
    wanted = parent or world.ada.thread
    found = [info for info in await world.app[Store].journal.threads() if info.parent == wanted]
    return [info.thread for info in sorted(found, key=lambda info: info.created_at)]


async def results(world: World | Scene, thread: ThreadId | None = None) -> list[ToolFinished]:
    return [event.data for event in await world.journal(thread) if isinstance(event.data, ToolFinished)]
