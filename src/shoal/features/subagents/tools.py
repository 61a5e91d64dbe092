"""Tools that delegate work. `subagent` and `ask_agent` wait for the result, but `spawn` does not."""

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from shoal.features.subagents.children import Children, Task
from shoal.kernel.errors import ToolError
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.kernel.traits import Traits
from shoal.tools.functions import Prepared, canonical, tool

if TYPE_CHECKING:
    from shoal.services import Services

TASK_CHARS_MAX = 50_000

Wording = Annotated[
    str,
    "Everything the subagent needs to know. It does not see this conversation.",
    Meta(min_length=1, max_length=TASK_CHARS_MAX),
]
AgentName = Annotated[str, "Name of another agent, which does the task in its own workspace."]
ModelName = Annotated[str, "A different model. Omit for the default."]


_TASK = Traits(
    group="agents",
    offered="deferred",
    effect="contained",
    waits=True,
    origin="mixed",
    harm="none",
    changes="workspace",
)
SUBAGENT = tool(_TASK, name="subagent", example={"task": "count the boats"})
SPAWN = tool(replace(_TASK, origin="own"), name="spawn", example={"task": "count the boats"})
ASK_AGENT = tool(
    replace(
        _TASK,
        effect="outward",
        harm="outside",
        changes="nothing",
    ),
    name="ask_agent",
    example={"agent": "harbour", "question": "how many boats"},
)


def subagent_tools(services: "Services") -> tuple[Tool, ...]:
    children = services[Children]

    def prepared(name: str, task: Task, context: ToolContext) -> Prepared:
        if not task.text.strip():
            raise ToolError("The task is empty. Describe what to do.")
        children.check(task, context)

        async def work() -> ToolOutput:
            thread = await children.begin(task, context)
            if task.mode == "wait":
                return await children.result(thread)
            then = (
                "A turn starts when the subagent finishes."
                if task.mode == "wake"
                else ("The subagent's result will appear in this conversation.")
            )
            return ToolOutput(f"Started the subagent {thread}. {then}")

        # Asking another agent needs a second permission, because its workspace and memory are separate.
        line = " ".join(task.text.split())
        actions = (Action(f"tool:{name}:{f'{task.model} {line}'.strip()}"),) if name != "ask_agent" else ()
        if name == "ask_agent" or task.agent not in ("", context.agent.name):
            actions += (Action(f"tool:ask_agent:{task.agent} {line}"),)
        shown = f"{name} {task.agent} {task.model}".rstrip() + f"\n\n{task.text}"
        return Prepared(actions, shown, canonical(name, **msgspec.structs.asdict(task)), work)

    @SUBAGENT
    def subagent(context: ToolContext, task: Wording, agent: AgentName = "", model: ModelName = "") -> Invocation:
        """Give a task to a subagent with a fresh context and wait for its answer. Several calls in one message run in
        parallel. The subagent has at most your tools and permissions, and cannot ask you questions.
        """
        return prepared("subagent", Task(task, agent, model), context)

    @SPAWN
    def spawn(
        context: ToolContext,
        task: Wording,
        agent: AgentName = "",
        model: ModelName = "",
        wake: Annotated[
            bool,
            (
                "Whether the subagent's result starts a turn in this conversation. Otherwise the result is "
                "only recorded here."
            ),
        ] = False,
    ) -> Invocation:
        """Start a subagent in the background and continue immediately. Its answer is not sent to people. The subagent
        can reach people with the tool `message`. Its result is recorded in this conversation.
        """
        return prepared("spawn", Task(task, agent, model, "wake" if wake else "tell"), context)

    @ASK_AGENT
    def ask_agent(
        context: ToolContext,
        agent: Annotated[str, Meta(description="Name of the agent to ask.", min_length=1)],
        question: Wording,
    ) -> Invocation:
        """Ask another agent a question and wait for its answer. The other agent has its own instructions, memory and
        workspace, but at most your permissions here.
        """
        return prepared("ask_agent", Task(question, agent), context)

    return subagent, spawn, ask_agent
