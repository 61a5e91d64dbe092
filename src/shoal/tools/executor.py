"""Admit and run tool calls. Every tool call goes through this module.

    arguments ─ prepare (validate, resolve) ─► actions ─ decide (profile, taint) ─► allow ─► run ─► result
                     │ invalid                                 │ deny     │ ask
                     ▼                                         ▼          ▼
                  Refused                                   Refused     MustAsk (an approval bound to the digest)

Hooks of installed packages run after the rules and the taint check. They can only make the decision stricter.

The same object, the Invocation, is checked, shown for approval and run. An approval is bound to two digests: one of
the call, and one of the call with the content that it runs (`tools.coverage`).

    approval answered            Refused if the call differs. MustAsk if only the content differs, or if earlier calls
                                 on the same approval card changed the call.
    allowed for the thread       The call runs if the content is the same, the turn is untainted, and the asking person
                                 has at least the trust of the person who allowed it. Otherwise MustAsk.
    just before the start        The content is compared again, the last time by the sandbox. If it differs, the call
                                 does not run: MustAsk.

Only CancelledError and errors of the store are raised. Any other failure becomes the result of the call.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
from msgspec.structs import replace

from shoal.kernel.agents import AgentSpec, Purpose
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ContentChanged, SandboxError, ToolError, system_words
from shoal.kernel.events import ASK_INSTEAD, ASK_OR_LOOK, ApprovalRequested, ToolFinished, ToolStarted, Verdict
from shoal.kernel.files import Files, in_thread
from shoal.kernel.home import Home
from shoal.kernel.hooks import PlannedCall
from shoal.kernel.ids import ApprovalId, ThreadId, TurnId
from shoal.kernel.messages import MORE_TOOLS, ToolCall
from shoal.kernel.permissions import NO_RULE, STRICTNESS, TRUST_ORDER, Action, Asker, CardItem, Decision, StandingRule
from shoal.kernel.phrases import counted
from shoal.kernel.ports import Invocation, LiveHub, Mount, Sandbox, ToolContext, ToolOutput, ToolServices, VirtualFolder
from shoal.kernel.records import Approval, AuditEntry, NewApproval, NewPost
from shoal.kernel.settings import Config
from shoal.kernel.traits import Traits
from shoal.kernel.untrusted import written_after
from shoal.permissions.access import approval_digest
from shoal.permissions.addresses import NO_ADDRESSES, NO_READS, GivenAddresses, WebReads, asked_address
from shoal.permissions.effects import Situation, can_stage, only_reads
from shoal.permissions.fetching import fetched_by
from shoal.permissions.profiles import Profile, decide_all, hidden_by
from shoal.permissions.redact import Redactor
from shoal.permissions.standing import standing_rule, with_past
from shoal.permissions.taint import Source, TaintState, gate, trusted
from shoal.store.cards import CARD_CALLS_MAX
from shoal.store.store import Store
from shoal.text.shown import strip_controls
from shoal.tools.coverage import NOTHING, Content, ContentReader, coverage_key, swapped_of
from shoal.tools.functions import Prepared, PreparedCommand
from shoal.tools.hooks import HookRunner
from shoal.tools.live_output import LiveOutput
from shoal.tools.output import BoundedOutput, OutputBounds, bound_output, bound_piece, excerpt
from shoal.tools.prompt_files import PromptFiles, may_change
from shoal.tools.read_files import secret_below
from shoal.tools.registry import Registry
from shoal.tools.shown_artifacts import INSIDE, ShownArtifacts, names_artifacts

log = logging.getLogger(__name__)

DENIED = "Permission denied: {action} is not allowed here{rule}." + ASK_OR_LOOK
HOOK_DENIED = "Permission denied by the hook {hook!r}: {reason}" + ASK_OR_LOOK
UNKNOWN_TOOL = "No tool is named {name!r}. Tools: {names}."
STEERED = TaintState(active=True)
VERDICTS: dict[Verdict, str] = {
    "deny": "A person denied this call." + ASK_INSTEAD,
    "expired": "Nobody answered the approval request in time, so this call did not run.",
    "cancelled": "The approval request was cancelled, so this call did not run.",
}
PRIVATE = "untrusted content in a private conversation"
MOVED_ON = "The earlier calls have changed what this call would do."
CHANGED = "The approved call would now do something different, because something it depends on has changed. Ask again."
CALL_SECONDS_MAX = 900.0
TURNS_KEPT_MAX = 256
"""Maximum number of turns whose checkpoint gaps are cached and whose automatic page reads are counted."""
_LOOKERS = frozenset(
    "true false echo printf pwd cd ls cat head tail grep rg wc cut tr nl find stat file du df date diff test [".split()  # noqa: SIM905
)
"""Programs that do not change files if the permission rules classify the command as harmless."""
NOT_UPHELD = "The person who approved this call can no longer approve it."
SINCE_ASKED = "you were asked"
SINCE_ALLOWED = "it was allowed"
SWAPPED = "{name} was replaced while the command ran, so the command may have run content that was not approved."


class CallContext(msgspec.Struct, frozen=True):
    """The context in which a turn's calls run. In addition to `profile`, every profile in `bounds` must allow a
    call.
    """

    thread: ThreadId
    turn: TurnId
    asker: Asker
    agent: AgentSpec
    mounts: tuple[Mount, ...]
    profile: Profile
    taint: TaintState
    purpose: Purpose
    bounds: tuple[Profile, ...] = ()
    timezone: str = "UTC"
    given: GivenAddresses = NO_ADDRESSES


class Refused(msgspec.Struct, frozen=True):
    """The decision not to run a call. The model receives `result`."""

    result: ToolFinished
    audit: tuple[AuditEntry, ...] = ()


class MustAsk(msgspec.Struct, frozen=True):
    """The decision to ask a person. It voids an earlier request for the same call.

    `advice` returns more information for the person. It is awaited once, before the request is sent. If `can_stage`
    is true, the request may wait until the end of the turn.
    """

    approval: NewApproval
    event: ApprovalRequested
    audit: tuple[AuditEntry, ...]
    advice: Callable[[], Awaitable[str]] | None = None
    can_stage: bool = False

    def on_card(self, item: CardItem) -> Self:
        """Return a copy with its position on an approval card.

        The card offers no standing rule if only untrusted text asked for its calls, or if it has more than
        CARD_CALLS_MAX calls.
        """
        has_rule = not item.foreign and item.total <= CARD_CALLS_MAX
        item = replace(item, always=self.approval.item.always if has_rule else NO_RULE)
        approval, event = replace(self.approval, item=item), replace(self.event, item=item)
        return replace(self, approval=approval, event=event)

    def with_reason(self, more: str) -> Self:
        reason = " ".join(f"{self.approval.reason} {strip_controls(more)}".split())
        approval, event = replace(self.approval, reason=reason), replace(self.event, reason=reason)
        return replace(self, approval=approval, event=event)


class Admitted(msgspec.Struct, frozen=True):
    """The decision to run a call as soon as `started` is durable.

    `content` is the content that a person allowed. It is compared again before the call starts. `by_person` is true
    if a person approved this particular call.
    """

    call: ToolCall
    traits: Traits
    invocation: Invocation
    started: ToolStarted
    audit: tuple[AuditEntry, ...]
    use_approval: ApprovalId
    content: Content = NOTHING
    by_person: bool = False


class Executor:
    def __init__(
        self,
        registry: Registry,
        sandbox: Sandbox,
        store: Store,
        services: ToolServices,
        home: Home,
        clock: Clock,
        prompt_files: PromptFiles,
        config: Config,
        hub: LiveHub,
        hooks: HookRunner,
        upholds: Callable[[Approval], Awaitable[bool]],
        gap: Callable[[Path], Awaitable[str]],
    ) -> None:
        """Create an executor. `upholds` returns whether the person who approved a call could approve it now. `gap`
        describes the part of a workspace that no checkpoint restores, or returns an empty string.
        """
        self.registry = registry
        self.sandbox = sandbox
        self.is_sealed = sandbox.isolated and config.sandbox.network == "off"
        """True if commands run in an isolating sandbox without network access."""
        self._asks_for_commands = not sandbox.isolated and config.sandbox.kind == "auto"
        self._ask_expires_seconds = config.permissions.ask_expires_seconds
        self._approvals = store.approvals
        self._upholds = upholds
        self._marked = prompt_files.marks
        self._prompt_files = prompt_files
        self._content = ContentReader(config.permissions.covered_files_max, config.permissions.covered_bytes_max)
        self._bounds = OutputBounds(config.context.artifact_chars_min, config.context.artifact_excerpt_chars)
        self._services = services
        self._shown = ShownArtifacts(store.artifacts, services.artifacts, prompt_files.marks)
        self._home = home
        self._clock = clock
        self._gap = gap
        self._gaps: dict[TurnId, str] = {}
        self._reads: dict[TurnId, WebReads] = {}
        self._past: tuple[TurnId, list[Approval]] = TurnId(""), []
        self._hub = hub
        self._hooks = hooks
        self.page = config.web.public_url.rstrip("/")
        self.redactor = Redactor(())

    async def admit(
        self, call: ToolCall, context: CallContext, request: ApprovalRequested | None, *, asks_anyway: bool = False
    ) -> Refused | MustAsk | Admitted:
        """Decide whether a call may run.

        `request` is the answered approval request for the call. If `asks_anyway` is true, a person is asked even if
        the rules allow the call.
        """
        tool, agent, profiles = self.registry.get(call.name), context.agent, (context.profile, *context.bounds)
        if tool is None or (agent.tools and call.name not in (*agent.tools, MORE_TOOLS)):
            names = ", ".join(spec.name for spec in self.registry.offer(agent.tools, hidden_by(profiles)).listed)
            return _refuse(call, UNKNOWN_TOOL.format(name=call.name, names=names))
        await self._show_artifacts(call, context)
        try:
            invocation = tool.prepare(call.arguments, self._tool_context(call, context))
        except ToolError as error:
            return _refuse(call, str(error), tainted_by=await self._behind(error, context))
        actions = invocation.actions
        gap = await self._gap_of(tool.traits, actions, context)
        situation = self._situation(context, context.taint, covered=not gap)
        # The strictest profile decides. Among equally strict profiles, the first one decides.
        by_profiles = [decide_all(profile, actions, situation) for profile in profiles]
        decision, rulings = max(by_profiles, key=lambda decided: STRICTNESS[decided[0]])
        user, name, turn = context.asker.user, agent.name, context.turn
        audit = tuple(
            self.redactor.entry(
                AuditEntry("check", ruling.action, ruling.decision, ruling.rule, user, name, turn, call.id)
            )
            for ruling in rulings
        )
        if decision == "deny":
            worst = next(ruling for ruling in rulings if ruling.decision == "deny")
            rule = f" (rule {worst.rule})" if worst.rule else ""
            return _refuse(call, DENIED.format(action=strip_controls(worst.action), rule=rule), audit)
        asks, taint = decision == "ask", context.taint
        if not taint.active and self._gated(decision, actions, context, STEERED, situation)[0] != decision:
            # Tainted files are looked up only if they could change the decision.
            taint = await self._marked_taint(actions, context) or taint
        decision, reason = self._gated(
            decision, actions, context, taint, self._situation(context, taint, covered=not gap)
        )
        if gap and asks and not reason:
            reason = f"This call may make changes that cannot be undone: {gap}"
        if decision == "allow" and taint.active and agent.taint:
            mapped, traits = self._maps(context.mounts), self.registry.traits
            held = [action for action in actions if not all(trusted(profile, action) for profile in profiles)]
            if secret := await in_thread(lambda: secret_below(held, context.mounts, traits, mapped=mapped)):
                why = f"this would access something that looks like a secret ({secret})"
                decision = "ask"
                reason = f"{taint.cause}, and {why}."
        raised = decision == "ask" and not asks
        isolated = self.sandbox.isolated
        looks = all(action.whole or only_reads(action, isolated=isolated) for action in actions)
        if decision == "allow" and tool.traits.runs_commands and self._asks_for_commands and not looks:
            decision, reason = "ask", "No sandbox isolates commands on this machine."
        ruled = None
        if self._hooks.asks_before_calls:
            ruled = await self._hooks.before_call(_planned(call, context, invocation, decision, taint))
            if ruled is not None:
                hook, ruling = ruled
                entry = AuditEntry("hook", actions[0].text, ruling.decision, hook, user, name, turn, call.id)
                audit = (*audit, self.redactor.entry(entry))
                if ruling.decision == "deny":
                    denied = HOOK_DENIED.format(hook=hook, reason=strip_controls(ruling.reason))
                    return _refuse(call, self.redactor.redact(denied), audit)
                decision, reason = "ask", f"{reason} {ruling.reason}".strip()
        started = ToolStarted(call.id, call.name, self._named(invocation))
        if decision == "allow" and not asks_anyway:
            if taint.active:
                self._count_reads(actions, context)
            return Admitted(call, tool.traits, invocation, started, audit, ApprovalId(""))
        content = await self._read_content(actions, context)
        asking = _Asking(call, context, invocation, content, reason, audit, needs_trust=raised)
        if request is not None:
            approval = await self._approvals.get(request.approval_id)
            if approval is not None and approval.call_digest != asking.call_digest and approval.item.number > 1:
                return self._ask(asking, MOVED_ON)
            if approval is None or approval.call_digest != asking.call_digest or approval.state != "allow":
                return _refuse(call, CHANGED, audit)
            if not await self._upholds(approval):
                return self._ask(asking, NOT_UPHELD)
            if approval.digest != asking.digest:
                return self._ask(asking, self._content.changes(approval.covers, content.coverage, SINCE_ASKED))
            return Admitted(call, tool.traits, invocation, started, audit, approval.id, content, by_person=True)
        why_not = "" if asks_anyway else await self._why_not_granted(asking, taint)
        if why_not is None:
            return Admitted(call, tool.traits, invocation, started, audit, ApprovalId(""), content)
        has_reason = bool(why_not or reason or raised or ruled or taint.active or (gap and tool.traits.runs_commands))
        if decision == "ask" and not has_reason and await self._marked_taint(actions, context) is None:
            asking = asking._replace(always=await self._standing_rule(asking, situation))
        return self._ask(asking, why_not)

    async def _standing_rule(self, asking: "_Asking", situation: Situation) -> StandingRule:
        context, actions = asking.context, asking.invocation.actions
        traits, asker = self.registry.traits.of(asking.call.name), context.asker
        stays_asked = traits.runs_commands and self._asks_for_commands
        if stays_asked or context.bounds or asker.trust != "owner" or not asker.user:
            return NO_RULE
        covers, agent = asking.content.coverage, context.agent.name
        rule = standing_rule(actions, covers, context.profile, situation, asker, agent)
        if not rule.allow or any(self.redactor.redact(pattern) != pattern for pattern in rule.allow):
            return NO_RULE
        if self._past[0] != context.turn:
            self._past = context.turn, await self._approvals.search(pending=False)
        return with_past(rule, self._named(asking.invocation), self._past[1])

    async def _why_not_granted(self, asking: "_Asking", taint: TaintState) -> str | None:
        """Return why a thread-wide approval does not cover the call. Returns None if it
        does, and an empty string if there is no such approval.
        """
        context, why = asking.context, ""
        for grant in await self._approvals.grants(context.thread, asking.call_digest):
            giver = grant.decided_trust
            if context.agent.taint and not taint.active:
                taint = await self._marked_taint(asking.invocation.actions, context) or taint
            if context.agent.taint and taint.active:
                return f"This call is allowed in this thread, but not after untrusted content was read ({taint.shown})."
            if giver is None or TRUST_ORDER[context.asker.trust] < TRUST_ORDER[giver]:
                why = why or (
                    "The person who allowed this call in this thread is more trusted than the person asking now."
                )
            elif not await self._upholds(grant):
                why = why or NOT_UPHELD
            elif grant.digest == asking.digest and not asking.content.coverage.uncovered:
                return None
            else:
                why = why or self._content.changes(grant.covers, asking.content.coverage, SINCE_ALLOWED)
        return why

    async def again(
        self, call: ToolCall, context: CallContext, request: ApprovalRequested | None
    ) -> Refused | Admitted:
        """Admit a call that started earlier and may run again. The earlier decision still applies, but content
        that a person approved must be unchanged.
        """
        tool = self.registry.get(call.name)
        if tool is None:
            return _refuse(call, UNKNOWN_TOOL.format(name=call.name, names=", ".join(self.registry.names())))
        await self._show_artifacts(call, context)
        try:
            invocation = tool.prepare(call.arguments, self._tool_context(call, context))
        except ToolError as error:
            return _refuse(call, str(error), tainted_by=await self._behind(error, context))
        if request is not None:
            asking = _Asking(call, context, invocation, await self._read_content(invocation.actions, context))
            approval = await self._approvals.get(request.approval_id)
            if approval is None or approval.digest != asking.digest:
                return _refuse(call, CHANGED)
        started = ToolStarted(call.id, call.name, self._named(invocation))
        return Admitted(call, tool.traits, invocation, started, (), ApprovalId(""), by_person=request is not None)

    async def run(self, admitted: Admitted, context: CallContext) -> ToolFinished | MustAsk | None:
        """Run a call and shorten a long result. Returns None while the result is pending.

        A failure is returned as a result. Cancelling stops the call. If the content to run differs from the approved
        content, the call does not run and a person is asked again.
        """
        began = self._clock.monotonic()
        actions, allowed = admitted.invocation.actions, admitted.content
        try:
            if allowed != NOTHING and await self._read_content(actions, context) != allowed:
                raise ContentChanged
            output = await self._watched(admitted, context)
        except ContentChanged:
            now = await self._read_content(actions, context)
            why = self._content.changes(allowed.coverage, now.coverage, SINCE_ALLOWED)
            asking = _Asking(admitted.call, context, admitted.invocation, now, needs_trust=context.taint.active)
            return self._ask(asking, why or "A file that this call runs has just changed.")
        if output.is_pending:
            return None
        if len(output.text) <= self._bounds.stored_chars_min:
            bounded = self._bound(output, context.mounts)
        else:  # in a thread, to keep other turns from waiting
            bounded = await asyncio.to_thread(self._bound, output, context.mounts)
        return ToolFinished(
            call_id=admitted.call.id,
            name=admitted.call.name,
            text=bounded.text,
            is_error=output.is_error,
            artifact=bounded.artifact,
            artifact_bytes=bounded.size_bytes,
            images=output.images,
            duration_ms=round((self._clock.monotonic() - began) * 1000),
            tainted_by=output.tainted_by or (context.taint.shown if bounded.artifact and context.taint.active else ""),
            answers=output.answers,
            found=output.found,
            exit_code=output.exit_code,
            links=None if admitted.by_person or admitted.traits.names not in ("address", "query") else output.links,
        )

    async def source_of(self, actions: Sequence[Action], mounts: Sequence[Mount]) -> str:
        """Return the source that taints the output of a call: a tainted file that the call reads, or content that
        it fetches. Returns an empty string if the output is untainted. Raises StoreError.
        """
        marked, traits, real = self._marked, self.registry.traits, self._of_real_files(actions)
        return self._fetched(actions) or await marked.source_of(real, mounts, traits, mapped=self._maps(mounts))

    def _virtual_folder(self, action: Action) -> VirtualFolder | None:
        if not self.registry.traits.of(action.tool).shows_file:
            return None
        return next((folder for folder in self._services.virtual_folders if folder.has(action.detail)), None)

    def _of_real_files(self, actions: Sequence[Action]) -> list[Action]:
        return [action for action in actions if self._virtual_folder(action) is None]

    def _virtual_files(self, actions: Sequence[Action], context: ToolContext) -> list[Path]:
        files: list[Path] = []
        for action in actions:
            if (folder := self._virtual_folder(action)) is not None:
                with suppress(ToolError):  # raised for the folder itself and for a missing file
                    files.append(folder.open(context, action.detail).path)
        return files

    def _maps(self, mounts: Sequence[Mount]) -> bool:
        """Return True if commands see the mounts under their sandbox names and not under their host names."""
        return self.sandbox.inside(mounts[0].host, mounts) == mounts[0].inside

    def _fetched(self, actions: Sequence[Action]) -> str:
        return "" if self.is_sealed else fetched_by(actions, self.registry.traits)

    async def _read_content(self, actions: Sequence[Action], context: CallContext) -> Content:
        if not any(action.runs or action.runs_more for action in actions):
            return NOTHING
        mapped, fetched = self._maps(context.mounts), self._fetched(actions)
        return await in_thread(lambda: self._content.read(actions, context.mounts, mapped=mapped, fetched=fetched))

    async def _watched(self, admitted: Admitted, context: CallContext) -> ToolOutput:
        """Run a call and track taint. Raises ContentChanged.

        Tainted files that the call reads, and content that it fetches, taint the result. Files that a tainted call
        changes become tainted. A tainted file stays tainted if its content did not change.
        """
        invocation, actions, runs = admitted.invocation, admitted.invocation.actions, admitted.content.runs
        is_command = isinstance(invocation, PreparedCommand)
        # A command that only reads deletes nothing, so the files that it read can be checked afterward.
        only_looks = is_command and all(map(is_look, actions))
        read = "" if only_looks else await self.source_of(actions, context.mounts)
        tool_context = self._tool_context(admitted.call, context)
        if files := self._virtual_files(actions, tool_context):
            source_of = await self._prompt_files.sources(context.purpose.audience.person)
            read = read or next((source for file in files if (source := source_of(file))), "")
        steered_by = read or (context.taint.shown if context.taint.active else "")
        live = LiveOutput(self._hub, context.thread, context.turn, admitted.call.id, self.redactor, self._clock)
        if isinstance(invocation, PreparedCommand):
            invocation = invocation.bound(runs, read, live.take)
        began_ns = self._marked.clock.now_ns()
        name, traits = admitted.call.name, admitted.traits
        changing = [mount.host for mount in context.mounts if mount.writable and not traits.read_only]
        changes_home = may_change(name, traits, actions, isolated=self.sandbox.isolated)
        may_touch = is_command and not only_looks and not steered_by
        touched = [*changing, *([self._home.root] if changes_home else ())]
        marked = await self._marked.below(touched) if may_touch else {}
        async with AsyncExitStack() as stack:
            stack.callback(live.close)
            await stack.enter_async_context(self._marked.during(changing, steered_by, CALL_SECONDS_MAX))
            if changes_home:
                retained_text = self._prompt_files.retained_text(actions, tool_context, self.registry.traits)
                audience_person = context.purpose.audience.person
                person = audience_person if retained_text.person is None and traits.for_person else retained_text.person
                # The source appears in other people's prompts, so it must not reveal a private conversation.
                source = PRIVATE if steered_by and audience_person and person is None else steered_by
                amending = self._prompt_files.amending(retained_text.files, source, CALL_SECONDS_MAX, person or "")
                await stack.enter_async_context(amending)
            try:
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    output = await invocation.run()
            except ContentChanged:
                raise
            except ToolError as error:
                output = ToolOutput(str(error), is_error=True, tainted_by=error.tainted_by, quotes=error.quotes)
            except SandboxError as error:
                output = ToolOutput(str(error), is_error=True)
            except TimeoutError:
                ended = (
                    f"Shoal stopped the call after {counted(CALL_SECONDS_MAX, 'second')}, the time limit for a call."
                )
                output = ToolOutput(ended, is_error=True)
            except Exception as error:
                log.exception("tool %s failed", admitted.call.name)
                output = ToolOutput(f"The tool failed: {type(error).__name__}: {error}", is_error=True)
        output = replace(output, tainted_by=await self._behind(output, context))
        if traits.origin == "foreign" and not output.is_pending:
            output = replace(output, tainted_by=output.tainted_by or f"the tool {name}")
        await self._marked.keep(marked, touched)
        if is_command and not read:  # files may have become tainted while the command ran
            read = await self.source_of(actions, context.mounts)
        if swapped := swapped_of(runs):
            output = replace(output, text=f"{output.text}\n[{SWAPPED.format(name=swapped)}]")
            read = read or f"{swapped}, which was replaced while it ran"
        if (output.tainted_by or read) and not steered_by:
            await self._marked.since(touched, began_ns, output.tainted_by or read)
        return replace(output, tainted_by=output.tainted_by or read)

    async def _behind(self, outcome: ToolOutput | ToolError, context: CallContext) -> str:
        """Return the taint of a result or an error: its own source, or the source of a tainted file that it quotes."""
        if outcome.tainted_by or not outcome.quotes:
            return outcome.tainted_by
        person = context.purpose.audience.person
        in_mounts = await self._marked.sources([mount.host for mount in context.mounts], person)
        in_home = await self._prompt_files.sources(person)
        quotes = ((path.name, in_mounts(path) or in_home(path)) for path in outcome.quotes)
        return next((written_after(name, source) for name, source in quotes if source), "")

    async def _show_artifacts(self, call: ToolCall, context: CallContext) -> None:
        """Write stored results to files if the call names them. The decision reads these files, so this must
        happen first.
        """
        folder = next((mount.host for mount in context.mounts if mount.inside == INSIDE), None)
        if folder is None or not names_artifacts(call, self.registry.traits.of(call.name)):
            return
        try:
            await self._shown.show(context.thread, folder)
        except OSError as error:
            log.warning("writing artifacts to conversation folder failed", extra={"why": str(error)})

    def _bound(self, output: ToolOutput, mounts: Sequence[Mount]) -> BoundedOutput:
        text, bounds = self.redactor.redact(output.text), self._bounds
        if output.is_piece:
            return bound_piece(text, bounds)
        shown = next((self.sandbox.inside(mount.host, mounts) for mount in mounts if mount.inside == INSIDE), "")
        raw = self.redactor.redact(output.raw)
        try:
            return bound_output(text, bounds, self._services.artifacts.keep, raw, shown)
        except OSError as error:
            log.warning("storing artifact failed", extra={"why": str(error)})
            why = f"[Storing the rest of the output failed: {system_words(error)}]"
            return BoundedOutput(f"{excerpt(text, bounds.excerpt_chars_max)}\n{why}")

    async def _marked_taint(self, actions: Sequence[Action], context: CallContext) -> TaintState | None:
        mapped = self._maps(context.mounts)
        real = self._of_real_files(actions)
        source = await self._marked.steers(real, context.mounts, self.registry.traits, mapped=mapped)
        return TaintState((Source(0, source),), active=True) if source else None

    def _gated(
        self,
        decision: Decision,
        actions: Sequence[Action],
        context: CallContext,
        taint: TaintState,
        situation: Situation,
    ) -> tuple[Decision, str]:
        reason = ""
        reads = self._reads.get(context.turn, NO_READS)

        def is_given(address: str) -> bool:
            return context.given.gives(address, reads)

        if context.agent.taint:
            for profile in (context.profile, *context.bounds):
                decision, why = gate(decision, actions, taint, profile, situation, is_given)
                reason = reason or why
        return decision, reason

    def _count_reads(self, actions: Sequence[Action], context: CallContext) -> None:
        for action in actions:
            if address := asked_address(self.registry.traits.of(action.tool), action.detail):
                reads = self._reads.pop(context.turn, NO_READS)
                while len(self._reads) >= TURNS_KEPT_MAX:
                    del self._reads[next(iter(self._reads))]
                self._reads[context.turn] = context.given.counted(address, reads)

    @property
    def situation(self) -> Situation:
        return Situation(isolated=self.sandbox.isolated, sealed=self.is_sealed, covered=True, trusted=True)

    def _situation(self, context: CallContext, taint: TaintState, *, covered: bool) -> Situation:
        tainted = taint.active and context.agent.taint
        trusted = context.asker.trust != "untrusted" and not (tainted and taint.by_people)
        return replace(self.situation, covered=covered, trusted=trusted, tainted=tainted)

    async def _gap_of(self, traits: Traits, actions: Sequence[Action], context: CallContext) -> str:
        """Describe what the turn's checkpoint would not restore after a command. Returns an empty string if it would
        restore everything.

        Computed once per turn, and only for commands in a sealed sandbox that do more than read.
        """
        if not (traits.takes_commands and self.is_sealed):
            return ""
        if all(action.whole or only_reads(action, isolated=True) for action in actions):
            return ""
        if context.turn not in self._gaps:
            while len(self._gaps) >= TURNS_KEPT_MAX:
                del self._gaps[next(iter(self._gaps))]
            self._gaps[context.turn] = await self._gap(context.agent.workspace)
        return self._gaps[context.turn]

    def _ask(self, asking: "_Asking", why: str) -> MustAsk:
        call, context, coverage = asking.call, asking.context, asking.content.coverage
        reason = strip_controls(self.redactor.redact(" ".join(f"{why} {asking.reason}".split())))
        approval = NewApproval(
            id=ApprovalId(self._clock.new_id()),
            call_id=call.id,
            tool=call.name,
            actions=self._named(asking.invocation),
            digest=asking.digest,
            shown=strip_controls(self.redactor.redact(asking.invocation.shown)),
            asked_by=context.asker.identity,
            expires_at=self._clock.now() + timedelta(seconds=self._ask_expires_seconds),
            reason=reason,
            shown_in=context.purpose.caller.root if context.purpose.caller is not None else ThreadId(""),
            call_digest=asking.call_digest,
            covers=coverage,
            needs_trust=asking.needs_trust,
            item=CardItem(always=asking.always),
        )
        event = ApprovalRequested(
            approval.id, call.id, call.name, approval.actions, approval.shown, approval.expires_at, reason, coverage
        )
        invocation, stages = asking.invocation, all(profile.stages for profile in (context.profile, *context.bounds))
        can_wait = can_stage(invocation.actions, self.registry.traits, isolated=self.sandbox.isolated)
        advice = invocation.advice if isinstance(invocation, Prepared) else None
        return MustAsk(approval, event, asking.audit, advice, stages and can_wait)

    def _named(self, invocation: Invocation) -> tuple[str, ...]:
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
            timezone=context.timezone,
            tools=lambda: self.registry.offer(context.agent.tools, hidden_by((context.profile, *context.bounds))).all,
        )


class _Asking(NamedTuple):
    """A call that only a person can allow. Its approval is bound to `call_digest` and `digest`."""

    call: ToolCall
    context: CallContext
    invocation: Invocation
    content: Content
    reason: str = ""
    audit: tuple[AuditEntry, ...] = ()
    needs_trust: bool = False
    always: StandingRule = NO_RULE

    @property
    def call_digest(self) -> str:
        return approval_digest(self.call.name, self.invocation.canonical, self.context.agent.name)

    @property
    def digest(self) -> str:
        return approval_digest(self.call_digest, coverage_key(self.content.coverage))


def is_look(action: Action) -> bool:
    """Return True if a part of a command changes neither file content nor modification times."""
    program = action.text.split(":", 2)[-1].partition(" ")[0]
    return action.whole or (action.harmless and not action.also and program in _LOOKERS)


def _planned(
    call: ToolCall, context: CallContext, invocation: Invocation, decision: Decision, taint: TaintState
) -> PlannedCall:
    return PlannedCall(
        thread=context.thread,
        turn=context.turn,
        agent=context.agent.name,
        asked_by=context.asker.identity,
        trust=context.asker.trust,
        tool=call.name,
        arguments=invocation.canonical,
        shown=invocation.shown,
        actions=tuple(action.text for action in invocation.actions),
        decision="allow" if decision == "allow" else "ask",
        tainted_by=taint.shown if taint.active else "",
    )


def _refuse(call: ToolCall, text: str, audit: tuple[AuditEntry, ...] = (), tainted_by: str = "") -> Refused:
    return Refused(ToolFinished(call.id, call.name, text, is_error=True, tainted_by=tainted_by), audit)


class LiveToolServices(msgspec.Struct, eq=False):
    """Implements `kernel.ports.ToolServices`."""

    artifacts: Files
    send: Callable[[NewPost], Awaitable[None]]
    virtual_folders: list[VirtualFolder] = msgspec.field(default_factory=list[VirtualFolder])

    async def post(self, post: NewPost) -> None:
        await self.send(post)
