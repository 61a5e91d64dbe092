"""The tools that give work to other turns: `subagent` and `ask_agent` wait for the answer, `spawn` does not."""

from typing import Annotated, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Meta

from shoal.domain.children import Task
from shoal.domain.errors import ToolError
from shoal.domain.ids import ThreadId
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.tools.typed import Prepared, TypedTool, canonical

TASK_CHARS_MAX = 50_000

Wording = Annotated[
    str,
    Meta(description="All that the other one needs to know: it sees nothing of this conversation.", min_length=1,
         max_length=TASK_CHARS_MAX),
]  # fmt: skip
AgentName = Annotated[str, Meta(description="Name of another agent that shall do it, with its own workspace.")]
ModelName = Annotated[str, Meta(description="Another model for it; leave it out for the usual one.")]


class Delegation(Protocol):
    """What the tools ask of whoever keeps subagents."""

    def check(self, task: Task, context: ToolContext) -> None:
        """Raise ToolError for a task that can never begin."""
        ...

    async def begin(self, task: Task, context: ToolContext) -> ThreadId:
        """Begin it, once however often this is called. Raises ToolError when it may not begin now."""
        ...

    async def result(self, thread: ThreadId) -> ToolOutput:
        """Its result; pending while it works."""
        ...


class SubagentArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `subagent` takes."""

    task: Wording
    agent: AgentName = ""
    model: ModelName = ""


class SpawnArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `spawn` takes."""

    task: Wording
    agent: AgentName = ""
    model: ModelName = ""
    wake: Annotated[
        bool, Meta(description="Whether its result starts a turn of this conversation; else it is only noted here.")
    ] = False


class AskAgentArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `ask_agent` takes."""

    agent: Annotated[str, Meta(description="Name of the agent that is asked.", min_length=1)]
    question: Wording


_Arguments = TypeVar("_Arguments", bound=msgspec.Struct)


class _DelegatingTool(TypedTool[_Arguments]):
    """Begins a thread for the call and, where the task waits, gives that thread's answer."""

    waits: ClassVar[bool] = True

    def __init__(self, arguments: type[_Arguments], delegation: Delegation) -> None:
        super().__init__(arguments)
        self._delegation = delegation

    def prepared(self, task: Task, context: ToolContext) -> Prepared:
        """The call of a checked task. Raises ToolError."""
        if not task.text.strip():
            raise ToolError("There is nothing to do: the text is empty.")
        self._delegation.check(task, context)

        async def work() -> ToolOutput:
            thread = await self._delegation.begin(task, context)
            if task.mode == "wait":
                return await self._delegation.result(thread)
            then = "You are woken when it has finished." if task.mode == "wake" else "Its result will be noted here."
            return ToolOutput(f"Started the subagent {thread}. {then}")

        shown = f"{self.name} {task.agent} {task.model}".rstrip() + f"\n\n{task.text}"
        effect = canonical(self.name, **msgspec.structs.asdict(task))
        return Prepared(self._actions(task, context), shown, effect, work)

    def _actions(self, task: Task, context: ToolContext) -> tuple[Action, ...]:
        """The call itself, and where another agent is asked, that too: its workspace and memory are its own."""
        line = " ".join(task.text.split())
        asked = Action(f"tool:ask_agent:{task.agent} {line}")
        own = Action(f"tool:{self.name}:{f'{task.model} {line}'.strip()}")
        if self.name == "ask_agent":
            return (asked,)
        return (own,) if task.agent in ("", context.agent.name) else (own, asked)


class SubagentTool(_DelegatingTool[SubagentArguments]):
    """Has a task done in a thread of its own and waits for the result."""

    name: ClassVar[str] = "subagent"
    description: ClassVar[str] = (
        "Give a task to a subagent with a fresh context and wait for its answer. Several calls in one message work "
        "side by side. It has your tools and permissions at most, and cannot ask you back."
    )

    def __init__(self, delegation: Delegation) -> None:
        super().__init__(SubagentArguments, delegation)

    def plan(self, arguments: SubagentArguments, context: ToolContext) -> Invocation:
        """Check the agent, the model and the depth."""
        return self.prepared(Task(arguments.task, arguments.agent, arguments.model), context)


class SpawnTool(_DelegatingTool[SpawnArguments]):
    """Has a task done in the background."""

    name: ClassVar[str] = "spawn"
    description: ClassVar[str] = (
        "Start a subagent in the background and go on at once. Nobody reads its answer as it stands: it tells people "
        "what they should know with the tool `message`, and its result is noted in this conversation."
    )

    def __init__(self, delegation: Delegation) -> None:
        super().__init__(SpawnArguments, delegation)

    def plan(self, arguments: SpawnArguments, context: ToolContext) -> Invocation:
        """Check the agent, the model and the depth."""
        mode = "wake" if arguments.wake else "tell"
        return self.prepared(Task(arguments.task, arguments.agent, arguments.model, mode), context)


class AskAgentTool(_DelegatingTool[AskAgentArguments]):
    """Asks another agent something and waits for its answer."""

    name: ClassVar[str] = "ask_agent"
    description: ClassVar[str] = (
        "Ask another agent a question and wait for its answer. It has its own instructions, memory and workspace, but "
        "may do nothing here that you may not."
    )

    def __init__(self, delegation: Delegation) -> None:
        super().__init__(AskAgentArguments, delegation)

    def plan(self, arguments: AskAgentArguments, context: ToolContext) -> Invocation:
        """Check the agent and the depth."""
        return self.prepared(Task(arguments.question, arguments.agent), context)


def subagent_tools(delegation: Delegation) -> tuple[Tool, ...]:
    """All three."""
    return SubagentTool(delegation), SpawnTool(delegation), AskAgentTool(delegation)
