"""Subagents: threads that a tool call starts. They work within the call's limits and report their result to it.

    the call                      the subagent's thread                 its end
    ---------------------------   -----------------------------------   ---------------------------------------------
    starts it, maybe twice        one thread, whose id is derived       journaled in one transaction with its effect
                                  from the turn and the call            on the parent: wake it, note, or prompt
    waits: its turn is parked     advanced by any worker                the woken turn repeats the call, which reads
                                                                        the result from the child's journal
    its turn is stopped           stopped before that is journaled      -

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
    """A task for a subagent. An empty `agent` means the caller's agent; an empty `model` means the agent's model."""

    text: str
    agent: str = ""
    model: str = ""
    mode: Literal["wait", "tell", "wake"] = "wait"


class Children(msgspec.Struct, eq=False):
    """Service that starts, finds and stops the child threads of a thread."""

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
        """Check a task. Raises ToolError for an unknown agent or model, or if subagents are nested too deep."""
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
            raise ToolError("Only a conversation with people can be woken. As a subagent, wait for the result instead.")

    async def begin(self, task: Task, context: ToolContext) -> ThreadId:
        """Start the call's child thread. Idempotent. Raises ToolError if it may not start now."""
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
                f"{most} subagents of this conversation are running, which is the limit. Wait for one to finish."
            )
        if receipt.status == "dropped":
            raise ToolError("The turn is being stopped, so no subagent was started.")
        await self.engine.woken(thread)
        return thread

    async def result(self, thread: ThreadId) -> ToolOutput:
        """Return a child's answer, or pending while it runs."""
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
        """Stop a thread's running child threads in any process. Return their number."""
        working = await self.store.children.working(thread)
        for child in working:
            receipt = await self.store.inbox.abort(Abort(child, Author("shoal", trusted=False), all_queued=True))
            if receipt.delivered:
                await self.engine.signal(child, "abort", TurnId(receipt.turn))
            await self.engine.woken(child)
        return len(working)


def attach(services: "Services") -> None:
    """Stop a turn's child threads when the turn is stopped."""
    services[TurnLoop].stoppers.append(services[Children].stop)
