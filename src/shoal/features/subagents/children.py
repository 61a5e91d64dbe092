"""Subagents: child threads that a tool call starts. They work within the call's limits and report their result to it.

- Start: the id of the child thread is derived from the turn and the call, so a repeated call does not start another
  child.
- Wait: the call parks its turn. Any worker can advance the child.
- End: the end of the child and its effect on the parent thread are journaled in one transaction. The effect is to wake
  the parked turn, to add a note, or to send a prompt. A woken turn repeats the call, which reads the result from the
  child's journal.
- Stop: if the calling turn is stopped, its children are stopped before the stop is journaled.

The two journals contain all the state. After a crash at any point, the call runs again.
"""

from typing import TYPE_CHECKING, Literal, Self

import msgspec

from shoal.agents.registry import AgentRegistry
from shoal.backend import Backend
from shoal.features.subagents.settings import SubagentsSettings
from shoal.kernel.agents import ENDED, child_thread
from shoal.kernel.clock import Clock
from shoal.kernel.errors import InvalidInput, ToolError
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.messages import Abort, Author, Caller, Prompt
from shoal.kernel.ports import Engine, Models, ToolContext, ToolOutput
from shoal.store.store import Store
from shoal.turn.loop import TurnLoop

if TYPE_CHECKING:
    from shoal.services import Services


class Task(msgspec.Struct, frozen=True):
    """A task for a subagent.

    agent: name of an agent, or empty for the calling agent.
    model: name of a model, or empty for the default model of the agent.
    mode: `wait` parks the calling turn, `tell` notes the result in the calling thread, `wake` starts a turn there.
    """

    text: str
    agent: str = ""
    model: str = ""
    mode: Literal["wait", "tell", "wake"] = "wait"


class Children(msgspec.Struct, eq=False):
    """Service that starts and stops child threads and reads their results."""

    store: Store
    engine: Engine
    agents: AgentRegistry
    models: Models
    clock: Clock
    limits: SubagentsSettings

    @classmethod
    def of(cls, services: "Services") -> Self:
        return cls(
            services[Store],
            services[Backend].engine,
            services[AgentRegistry],
            services[Models],
            services[Clock],
            services[LiveConfig].current.section(SubagentsSettings),
        )

    def check(self, task: Task, context: ToolContext) -> None:
        """Raise ToolError if the agent or model is unknown, subagents are nested too deep, or a subagent uses
        `wake`.
        """
        if task.agent and task.agent not in self.agents.names():
            raise ToolError(f"No agent named {task.agent!r}. Agents: {', '.join(self.agents.names())}.")
        if task.model:
            try:
                self.models.route(task.model)
            except InvalidInput as error:
                raise ToolError(str(error)) from error
        caller = context.purpose.caller
        if (caller.depth if caller is not None else 0) >= self.limits.depth_max:
            raise ToolError(f"Subagents can be nested at most {self.limits.depth_max} deep. Do the task yourself.")
        if caller is not None and task.mode == "wake":
            raise ToolError(
                "A finished subagent can start a turn only in a conversation with people. As a subagent, wait for "
                "the result instead."
            )

    async def begin(self, task: Task, context: ToolContext) -> ThreadId:
        """Start the child thread of a tool call. Idempotent.

        Raises ToolError if too many subagents are running or the calling turn is being stopped.
        """
        thread = child_thread(context.thread, context.turn, context.call_id)
        # The calling turn's limits apply in addition to the child's own.
        agent, purpose, above = context.agent, context.purpose, context.purpose.caller
        own = (agent.profile, agent.name)
        bounds = above.bounds if above is not None else ()
        caller = Caller(
            line=((*above.line,) if above is not None else ()) + ((context.thread, context.turn),),
            call_id=context.call_id,
            mode=task.mode,
            author=purpose.person,
            tainted_by=purpose.tainted_by,
            bounds=bounds if own in bounds else (*bounds, own),
            tools=agent.tools or None,
            steps_max=self.limits.steps_max,
            gates=agent.taint,
            direct=context.asker.kind == "direct",
            audience=purpose.audience,
        )
        prompt = Prompt(
            thread,
            key=thread,
            text=task.text,
            author=msgspec.structs.replace(caller.author, name=""),
            at=self.clock.now(),
            agent=task.agent or context.agent.name,
            model=task.model,
            message_id=thread,
            origin="agent",
            caller=caller,
        )
        receipt = await self.store.children.begin(prompt, self.limits.running_max)
        if receipt.status == "busy":
            most = self.limits.running_max
            raise ToolError(
                f"This conversation already has the maximum number of running subagents ({most}). Wait for one to "
                "finish."
            )
        if receipt.status == "dropped":
            raise ToolError("The turn is being stopped, so Shoal did not start a subagent.")
        await self.engine.woken(thread)
        return thread

    async def result(self, thread: ThreadId) -> ToolOutput:
        child = await self.store.children.get(thread)
        if child is None or child.finished is None:
            if child is not None and child.works:
                return ToolOutput("", is_pending=True)
            return ToolOutput(f"The subagent {thread} was stopped before it started.", is_error=True)
        ended = child.finished
        head = f"[The subagent {thread} {ENDED[ended.outcome]}.]"
        is_error = ended.outcome in ("failed", "aborted")
        return ToolOutput(f"{head}\n{ended.reply}".rstrip(), is_error=is_error, tainted_by=ended.tainted_by)

    async def stop(self, thread: ThreadId) -> int:
        """Stop the running children of a thread, including those in other processes. Return the number of stopped
        children.
        """
        working = await self.store.children.working(thread)
        for child in working:
            receipt = await self.store.inbox.abort(Abort(child, Author("shoal", trusted=False), all_queued=True))
            if receipt.delivered:
                await self.engine.signal(child, "abort", TurnId(receipt.turn))
            await self.engine.woken(child)
        return len(working)


def attach(services: "Services") -> None:
    services[TurnLoop].stoppers.append(services[Children].stop)
