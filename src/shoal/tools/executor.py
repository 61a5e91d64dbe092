"""The one choke point: every tool call of every path is admitted and run here, and nowhere else.

    arguments ─ prepare (validate, resolve) ─► actions ─ decide (profile, taint) ─► allow ─► run ─► result
                     │ wrong                                   │ deny     │ ask
                     ▼                                         ▼          ▼
                  Refused                                   Refused     Waits (an approval bound to the digest)

What is decided on, shown and run is one object, the Invocation. An approval names the digest of everything that
determines the effect; a call whose digest differs when it comes back is refused, one that agrees runs unasked.
Nothing here raises but CancelledError and the store's errors.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec

from shoal.domain.agents import AgentSpec
from shoal.domain.children import Purpose
from shoal.domain.clock import Clock
from shoal.domain.errors import SandboxError, ToolError
from shoal.domain.events import ApprovalRequested, ToolFinished, ToolStarted, Verdict
from shoal.domain.home import Home
from shoal.domain.ids import ApprovalId, ThreadId, TurnId
from shoal.domain.messages import ToolCall, ToolSpec
from shoal.domain.permissions import STRICTNESS, Action, Asker, Decision, Ruling
from shoal.domain.ports import Invocation, Mount, Sandbox, ToolContext, ToolOutput, ToolServices
from shoal.domain.records import AuditEntry, NewApproval
from shoal.domain.store import Store
from shoal.permissions.approvals import approval_digest, strip_controls
from shoal.permissions.engine import decide_all, hidden
from shoal.permissions.redact import Redactor
from shoal.permissions.rules import Profile
from shoal.permissions.taint import TaintState, fetched_by, gate
from shoal.tools.marked import MarkedFiles
from shoal.tools.output import BoundedOutput, OutputBounds, bound_output, bound_piece, excerpt
from shoal.tools.registry import Registry

log = logging.getLogger(__name__)

DENIED = "Permission denied: {action} is not allowed here{rule}. Find another way or ask the person."
UNKNOWN_TOOL = "There is no tool named {name!r}. The tools are: {names}."
VERDICTS: dict[Verdict, str] = {
    "deny": "A person denied this call. Do not try it again; ask what to do instead.",
    "expired": "Nobody answered the request for this call in time, so it did not run.",
    "cancelled": "The request for this call was cancelled, so it did not run.",
}
CHANGED = "What was approved is not what would run now, because something it depends on has changed. Ask again."


class CallContext(msgspec.Struct, frozen=True):
    """For whom and where the calls of a turn run. No call may do more than each of `bounds` lets it."""

    thread: ThreadId
    turn: TurnId
    asker: Asker
    agent: AgentSpec
    mounts: tuple[Mount, ...]
    profile: Profile
    taint: TaintState
    bounds: tuple[Profile, ...] = ()
    purpose: Purpose = Purpose()


class Refused(msgspec.Struct, frozen=True):
    """The call does not run; the model gets this result."""

    result: ToolFinished
    audit: tuple[AuditEntry, ...] = ()


class Waits(msgspec.Struct, frozen=True):
    """The call waits for a person."""

    approval: NewApproval
    event: ApprovalRequested
    audit: tuple[AuditEntry, ...]


class Admitted(msgspec.Struct, frozen=True):
    """The call may run, once `started` is durable."""

    call: ToolCall
    spec: ToolSpec
    invocation: Invocation
    started: ToolStarted
    audit: tuple[AuditEntry, ...]
    use_approval: ApprovalId


class ExecutorSettings(msgspec.Struct, frozen=True):
    """Bounds of calls. `ask_commands`: no sandbox isolates commands here, so each is asked for.
    `commands_fetch`: they reach the network. `page`: its address."""

    ask_expires_seconds: float = 3600.0
    call_seconds_max: float = 900.0
    ask_commands: bool = False
    commands_fetch: bool = False
    page: str = ""
    bounds: OutputBounds = OutputBounds()


class Executor:
    """Admits and runs calls."""

    def __init__(
        self,
        registry: Registry,
        sandbox: Sandbox,
        store: Store,
        services: ToolServices,
        home: Home,
        clock: Clock,
        settings: ExecutorSettings,
    ) -> None:
        self.registry = registry
        self.sandbox = sandbox
        self._approvals = store.approvals
        self._marked = MarkedFiles(store.settings, home)
        self._services = services
        self._home = home
        self._clock = clock
        self._settings = settings
        self.page = settings.page
        self.redactor = Redactor(())

    def specs(self, agent: AgentSpec, *profiles: Profile) -> tuple[ToolSpec, ...]:
        """The tools the agent has and no profile wholly denies; the same object while unchanged."""
        return self.registry.specs(agent.tools, _hidden_by(profiles))

    async def admit(
        self, call: ToolCall, context: CallContext, request: ApprovalRequested | None
    ) -> Refused | Waits | Admitted:
        """Decide on a call. `request` is its allowed approval when it comes back from one."""
        tool = self.registry.get(call.name)
        if tool is None or not _has(context.agent, call.name):
            names = ", ".join(spec.name for spec in self.specs(context.agent, context.profile, *context.bounds))
            return _refuse(call, UNKNOWN_TOOL.format(name=call.name, names=names))
        try:
            invocation = tool.prepare(call.arguments, self._tool_context(call, context))
        except ToolError as error:
            return _refuse(call, str(error))
        decision, rulings, reason = self._decide(tool.spec, invocation, context)
        audit = tuple(self.redactor.entry(_audited(call, context, ruling)) for ruling in rulings)
        if decision == "deny":
            worst = next(ruling for ruling in rulings if ruling.decision == "deny")
            rule = f" (rule {worst.rule})" if worst.rule else ""
            return _refuse(call, DENIED.format(action=strip_controls(worst.action), rule=rule), audit)
        digest = approval_digest(call.name, invocation.canonical, context.agent.name)
        use = ApprovalId("")
        if decision == "ask" and not await self._approvals.granted(context.thread, digest):
            if request is None:
                return self._ask(call, context, invocation, digest, reason, audit)
            found = await self._approvals.get(request.approval_id)
            if found is None or found.digest != digest or found.state != "allow":
                return _refuse(call, CHANGED, audit)
            use = found.id
        started = ToolStarted(call.id, call.name, self._named(invocation))
        return Admitted(call, tool.spec, invocation, started, audit, use)

    async def again(
        self, call: ToolCall, context: CallContext, request: ApprovalRequested | None
    ) -> Refused | Admitted:
        """A call that was admitted and started before, and may be run again: nothing is decided a second time.

        What a person allowed still has to be what would run now.
        """
        tool = self.registry.get(call.name)
        if tool is None:
            return _refuse(call, UNKNOWN_TOOL.format(name=call.name, names=", ".join(self.registry.names())))
        try:
            invocation = tool.prepare(call.arguments, self._tool_context(call, context))
        except ToolError as error:
            return _refuse(call, str(error))
        if request is not None:
            found = await self._approvals.get(request.approval_id)
            if found is None or found.digest != approval_digest(call.name, invocation.canonical, context.agent.name):
                return _refuse(call, CHANGED)
        started = ToolStarted(call.id, call.name, self._named(invocation))
        return Admitted(call, tool.spec, invocation, started, (), ApprovalId(""))

    async def run(self, admitted: Admitted, context: CallContext) -> ToolFinished | None:
        """Run it and bound what it returns; None while the result is not there yet.

        A failure is a result; cancelling ends what runs.
        """
        began = self._clock.monotonic()
        output = await self._watched(admitted, context)
        if output.is_pending:
            return None
        if len(output.text) <= self._settings.bounds.stored_chars_min:
            bounded = self._bound(output)
        else:  # in a thread, so that no other turn waits for it
            bounded = await asyncio.to_thread(self._bound, output)
        return ToolFinished(
            call_id=admitted.call.id,
            name=admitted.call.name,
            text=bounded.text,
            is_error=output.is_error,
            artifact=bounded.artifact,
            artifact_bytes=bounded.size_bytes,
            images=output.images,
            duration_ms=round((self._clock.monotonic() - began) * 1000),
            tainted_by=output.tainted_by,
            answers=output.answers,
        )

    def fetched(self, actions: Sequence[Action]) -> str:
        """What a call with these actions brings in by a command; empty where commands have no network."""
        return fetched_by(actions) if self._settings.commands_fetch else ""

    async def _watched(self, admitted: Admitted, context: CallContext) -> ToolOutput:
        """Run it; a marked file that it reads and what it fetches taint its result, and what it changes is marked."""
        actions = admitted.invocation.actions
        read = await self._marked.source_of(actions, context.mounts) or self.fetched(actions)
        steered_by = read or (context.taint.shown if context.taint.active else "")
        began_ns = time.time_ns()
        changing = [mount.host for mount in context.mounts if mount.writable and not admitted.spec.read_only]
        async with self._marked.during(changing, steered_by, self._settings.call_seconds_max):
            output = await self._attempt(admitted)
        if output.tainted_by and not steered_by:
            await self._marked.since(changing, began_ns, output.tainted_by)
        return msgspec.structs.replace(output, tainted_by=output.tainted_by or read)

    def _bound(self, output: ToolOutput) -> BoundedOutput:
        text, bounds = self.redactor.redact(output.text), self._settings.bounds
        if output.is_piece:
            return bound_piece(text, bounds)
        try:
            return bound_output(text, bounds, self._services.artifacts.keep)
        except OSError as error:
            log.warning("a result could not be stored", extra={"why": str(error)})
            why = f"[The rest of the output could not be stored: {error.strerror or error}]"
            return BoundedOutput(f"{excerpt(text, bounds.excerpt_chars_max)}\n{why}")

    async def _attempt(self, admitted: Admitted) -> ToolOutput:
        try:
            async with asyncio.timeout(self._settings.call_seconds_max):
                return await admitted.invocation.run()
        except (ToolError, SandboxError) as error:
            return ToolOutput(str(error), is_error=True)
        except TimeoutError:
            limit = self._settings.call_seconds_max
            return ToolOutput(
                f"The call was ended after {limit:g} seconds, the longest a call may take.", is_error=True
            )
        except Exception as error:
            log.exception("tool %s failed", admitted.call.name)
            return ToolOutput(f"The tool failed: {type(error).__name__}: {error}", is_error=True)

    def _decide(
        self, spec: ToolSpec, invocation: Invocation, context: CallContext
    ) -> tuple[Decision, tuple[Ruling, ...], str]:
        decision, rulings = decide_all(context.profile, invocation.actions)
        for bound in context.bounds:
            stricter, others = decide_all(bound, invocation.actions)
            if STRICTNESS[stricter] > STRICTNESS[decision]:
                decision, rulings = stricter, others
        reason = ""
        if context.agent.taint:
            for profile in (context.profile, *context.bounds):
                decision, why = gate(decision, invocation.actions, context.taint, profile)
                reason = reason or why
        if decision == "allow" and spec.runs_commands and self._settings.ask_commands:
            return "ask", rulings, "No sandbox isolates commands on this machine."
        return decision, rulings, reason

    def _ask(
        self,
        call: ToolCall,
        context: CallContext,
        invocation: Invocation,
        digest: str,
        reason: str,
        audit: tuple[AuditEntry, ...],
    ) -> Waits:
        reason = strip_controls(" ".join(reason.split()))
        approval = NewApproval(
            id=ApprovalId(self._clock.new_id()),
            call_id=call.id,
            tool=call.name,
            actions=self._named(invocation),
            digest=digest,
            shown=strip_controls(self.redactor.redact(invocation.shown)),
            asked_by=context.asker.identity,
            expires_at=self._clock.now() + timedelta(seconds=self._settings.ask_expires_seconds),
            reason=reason,
            shown_in=context.purpose.caller.root if context.purpose.caller is not None else ThreadId(""),
        )
        event = ApprovalRequested(
            approval.id, call.id, call.name, approval.actions, approval.shown, approval.expires_at, reason
        )
        return Waits(approval, event, audit)

    def _named(self, invocation: Invocation) -> tuple[str, ...]:
        """The actions as journal and cards name them, without secrets."""
        return tuple(dict.fromkeys(self.redactor.redact(action.text) for action in invocation.actions))

    def _tool_context(self, call: ToolCall, context: CallContext) -> ToolContext:
        return ToolContext(
            thread=context.thread,
            turn=context.turn,
            call_id=call.id,
            asker=context.asker,
            agent=context.agent,
            home=self._home,
            mounts=context.mounts,
            sandbox=self.sandbox,
            clock=self._clock,
            services=self._services,
            purpose=context.purpose,
        )


def _hidden_by(profiles: Sequence[Profile]) -> Callable[[str], bool]:
    return lambda name: any(hidden(profile, name) for profile in profiles)


def _has(agent: AgentSpec, name: str) -> bool:
    """Whether the agent has the tool; one that names none has all."""
    return not agent.tools or name in agent.tools


def _refuse(call: ToolCall, text: str, audit: tuple[AuditEntry, ...] = ()) -> Refused:
    return Refused(ToolFinished(call.id, call.name, text, is_error=True), audit)


def _audited(call: ToolCall, context: CallContext, ruling: Ruling) -> AuditEntry:
    return AuditEntry(
        "check",
        ruling.action,
        ruling.decision,
        ruling.rule,
        context.asker.user,
        context.agent.name,
        context.turn,
        call.id,
    )
