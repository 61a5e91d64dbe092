"""The front door: every message of every origin enters here, and every thread's actor lives here.

`send` makes a message durable and returns; it never waits for a turn. Callers know nothing of actors: they are made
when the engine advances a thread, and dropped when it has been idle.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from shoal.actors.actor import Actor
from shoal.actors.parts import Parts
from shoal.domain.children import is_child
from shoal.domain.commands import Asked
from shoal.domain.errors import (
    Conflict,
    Forbidden,
    Gone,
    InvalidInput,
    NotFound,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from shoal.domain.events import Cleared, RetryRequested, Scope
from shoal.domain.ids import ApprovalId, ThreadId, TurnId, thread_address
from shoal.domain.messages import (
    STOP_SIGNS,
    Abort,
    Author,
    Deletion,
    Edit,
    FollowUp,
    Inbound,
    Prompt,
    Reaction,
    Receipt,
    Retry,
    Steer,
)
from shoal.domain.permissions import Asker, Audience
from shoal.domain.ports import ChatAdapter, CommandDesk, Engine, SignalKind
from shoal.domain.records import Approval, AuditEntry, Fate, NewPost, Opening, OutboxRow
from shoal.permissions.approvals import may_decide
from shoal.turn.spending import spent_today

log = logging.getLogger(__name__)

CHOOSES_NO_MODEL = "Only people whom my owner has let in by name may choose a model."
STORE_RETRY_SECONDS = 5.0
RETRY_AGAIN_SECONDS = 60.0
"""When a turn is woken once more that was to ask its model again, and of which nothing was heard."""
ACTIVE_MAX = 256
"""Threads held in memory; beyond it the longest idle ones are dropped."""
HELD_BYTES_MAX = 12_000_000
"""What the conversations of these threads may take together; beyond it the longest idle ones are dropped too."""


class Failing(Protocol):
    """What tells people of triggers that were switched off."""

    async def gave_up(self, trigger: str) -> None:
        """The last try of a trigger has failed, and is noted with it."""
        ...


class Orchestrator:
    """Routes messages to threads; implements `ThreadHandler` for the engine and `InboxPort` for adapters."""

    def __init__(
        self,
        parts: Parts,
        engine: Engine,
        adapters: Mapping[str, ChatAdapter],
        *,
        prompts_max: int,
        idle_seconds: float,
        approvers: Sequence[str] = (),
    ) -> None:
        self._parts = parts
        self._engine = engine
        self._adapters = adapters
        self._prompts_max = prompts_max
        self._idle_seconds = idle_seconds
        self._approvers = tuple(approvers)
        self._actors: dict[ThreadId, Actor] = {}
        self.desk: CommandDesk | None = None
        self.triggers: Failing | None = None

    @property
    def running(self) -> int:
        """How many turns advance in this process."""
        return sum(actor.running for actor in self._actors.values())

    @property
    def active(self) -> int:
        """How many threads are held in memory."""
        return len(self._actors)

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message durably, or say why not. Raises StoreError when it could not be stored."""
        inbox = self._parts.store.inbox
        match message:
            case Prompt():
                if is_child(message.thread):
                    raise InvalidInput("This thread belongs to a subagent. Write to the thread that started it.")
                await self._share_files(message)
                message = await self._addressed(message)
                receipt = await self._join(message) if message.joins else None
                receipt = receipt or await inbox.accept(message, self._prompts_max)
                if receipt.status == "accepted":
                    self._parts.expect_files(message)
                    self._hurry(message.thread)
                    await self._engine.woken(message.thread)
            case Edit() | Deletion():
                revision = await inbox.revise(message)
                self._parts.hub.publish(revision.events)
                receipt = revision.receipt
            case Reaction():
                receipt = await self._react(message)
            case Steer():
                receipt = await inbox.accept_now(message)
                await self._tell(receipt, message.thread, "steer")
            case FollowUp():
                receipt = await inbox.accept_now(message)
            case Abort():
                receipt = await self._abort(message)
            case Retry():
                receipt = await self._retry(message)
        return receipt

    async def _retry(self, message: Retry) -> Receipt:
        """Have a turn that waits for its model ask again now. Raises Forbidden where the author may choose no model."""
        if message.model and not message.author.trusted:
            raise Forbidden(CHOOSES_NO_MODEL)
        request = RetryRequested(message.author.id, message.model)
        events = await self._parts.store.journal.retry(message.thread, TurnId(message.turn), request)
        if not events:
            return Receipt("dropped")
        self._parts.hub.publish(events)
        await self._engine.woken(message.thread)
        return Receipt("delivered", turn=events[0].turn)

    async def _abort(self, message: Abort) -> Receipt:
        """Stop the running turn, and the subagents that work for the thread."""
        receipt = await self._parts.store.inbox.abort(message)
        await self._tell(receipt, message.thread, "abort")
        if is_child(message.thread):
            info = await self._parts.store.journal.thread(message.thread)
            if info is not None and info.parent:
                await self._engine.woken(ThreadId(info.parent))
        stopped = await self._parts.children.stop(message.thread)
        return Receipt("delivered") if stopped and not receipt.delivered else receipt

    async def _addressed(self, prompt: Prompt) -> Prompt:
        """The prompt with the agent that it is for: the one it names, or its channel's."""
        agent = await self._parts.agents.meant(prompt.thread, prompt.agent)
        return prompt if agent == prompt.agent else msgspec.structs.replace(prompt, agent=agent)

    async def _join(self, prompt: Prompt) -> Receipt | None:
        """Take a prompt to a running turn as a steer; None when there is none, or it brings files or others' words."""
        if prompt.attachments or prompt.tainted_by:
            return None
        steer = Steer(prompt.thread, prompt.key, prompt.text, prompt.author, prompt.at)
        receipt = await self.send(steer)
        return None if receipt.status == "dropped" else receipt

    async def _react(self, reaction: Reaction) -> Receipt:
        """A stop sign on what the running turn has shown ends it; all else means nothing."""
        info = await self._parts.store.journal.thread(reaction.thread) if reaction.emoji in STOP_SIGNS else None
        if info is None or not info.open_turn:
            return Receipt("dropped")
        shown = await self._parts.store.outbox.posted_ids(f"preview:{info.open_turn}")
        if reaction.message_id not in shown:
            return Receipt("dropped")
        return await self.send(Abort(reaction.thread, reaction.author))

    async def send_to_channel(
        self, platform: str, channel: str, text: str, author: Author, agent: str = ""
    ) -> ThreadId:
        """Post `text` to a channel, which opens a thread, and let the agent answer there.

        Raises InvalidInput for a platform that is not connected, PlatformError when it refuses the post.
        """
        thread = await self._connected(platform).open_thread(channel, text)
        clock = self._parts.clock
        key = clock.new_id()
        prompt = Prompt(thread, key, text, author, clock.now(), agent=agent, origin="trigger", message_id=key)
        await self.send(prompt)
        return thread

    def _connected(self, platform: str) -> ChatAdapter:
        adapter = self._adapters.get(platform)
        if adapter is None:
            raise InvalidInput(f"Platform {platform!r} is not connected. Connected: {', '.join(self._adapters)}.")
        return adapter

    async def open(self, opening: Opening) -> bool:
        """Have a prompt posted to the channel of its `unopened` thread and begin a thread there, once for its key.

        Durable on return; False when that was so already. Raises InvalidInput for a platform that is not connected.
        """
        prompt = opening.prompt
        self._connected(thread_address(prompt.thread).platform)
        post = NewPost(prompt.key, prompt.thread, prompt.text, "opening", opening=opening)
        fresh = await self._parts.store.outbox.put(post)
        self._parts.poke_sender(prompt.thread)
        return fresh

    async def fate(self, key: str) -> Fate | None:
        """What has become of what `open` was to post; None when there is none."""
        return await self._parts.store.outbox.fate(key)

    async def withdraw(self, key: str) -> str | None:
        """Give up what `open` was to post, if it waits; what has kept it from it, None if it does not wait."""
        return await self._parts.store.outbox.withdraw(key)

    async def opened(self, row: OutboxRow, thread: ThreadId, rest: Sequence[NewPost]) -> None:
        """Called by the sender: a post has opened this thread, and its prompt is accepted there."""
        outbox, opening = self._parts.store.outbox, row.post.opening
        if opening is None:
            await outbox.opened(row, thread, rest)
            return
        prompt = await self._addressed(msgspec.structs.replace(opening.prompt, thread=thread))
        receipt = await outbox.opened(row, thread, rest, prompt, self._prompts_max)
        if receipt is not None and receipt.status == "accepted":
            self._hurry(thread)
            await self._engine.woken(thread)
        elif receipt is not None and receipt.status == "busy":
            await self._tell_trigger(opening)

    async def gave_up(self, row: OutboxRow, error: str) -> None:
        """Called by the sender: a post has failed for good."""
        await self._parts.store.outbox.fail(row, error)
        if row.post.opening is not None:
            await self._tell_trigger(row.post.opening)

    async def _tell_trigger(self, opening: Opening) -> None:
        if opening.disables and self.triggers is not None:
            await self.triggers.gave_up(opening.trigger)

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Settle an approval: who asked for it, an approver or the owner may.

        Raises NotFound, Forbidden, Conflict when it was decided, Gone when it has expired, and InvalidInput for the
        whole thread where it does not cover all that may run.
        """
        found = await self._parts.store.approvals.get(approval)
        if found is None:
            raise NotFound(f"There is no approval {approval}.")
        by = self._parts.people.asker(by)
        if not may_decide(found, by, self._approvers, allow=allow):
            log.warning("somebody tried to decide what is not theirs", extra={"thread_id": found.thread})
            await self._refused(found, by, "not theirs to decide")
            if may_decide(found, by, self._approvers, allow=False):
                raise Forbidden("Untrusted content led to this, so an approver or the owner has to allow it.")
            raise Forbidden("This is for whoever asked for it, an approver or the owner to decide.")
        verdict = "allow" if allow else "deny"
        try:
            settlement = await self._parts.store.approvals.settle(
                approval, verdict, scope, by.user, by.trust, token=by.token
            )
        except (Conflict, Gone):
            await self._refused(found, by, f"too late to {verdict}")
            raise
        except InvalidInput as error:
            await self._refused(found, by, str(error))
            raise
        self._parts.hub.publish([settlement.event])
        self._parts.poke_sender(settlement.approval.asked_in)
        await self._engine.woken(settlement.approval.thread)
        return settlement.approval.state

    async def _refused(self, found: Approval, by: Asker, why: str) -> None:
        """Have the thread's audit chain tell of a decision that does not count."""
        action = f"{found.tool} {found.digest}"
        entry = AuditEntry("approval", action, "refused", user=by.identity, turn=found.turn, detail=why, token=by.token)
        await self._parts.store.audit.record(found.thread, [entry])

    async def expire_approvals(self) -> None:
        """Settle what nobody answered in time."""
        for settlement in await self._parts.store.approvals.expire():
            self._parts.hub.publish([settlement.event])
            self._parts.poke_sender(settlement.approval.asked_in)
            await self._engine.woken(settlement.approval.thread)

    async def retry_due(self) -> datetime | None:
        """Wake the turns that are to ask their model again now; when the next one is due."""
        journal = self._parts.store.journal
        for thread in await journal.take_retries(RETRY_AGAIN_SECONDS):
            await self._engine.woken(thread)
        return await journal.next_retry_at()

    async def clear(self, thread: ThreadId, by: str) -> None:
        """Start the model's window anew; the journal keeps everything. Raises NotFound for an unknown thread."""
        self._parts.hub.publish(await self._parts.store.journal.append(thread, [Cleared(by=by)]))

    async def admits(self, message: Prompt) -> bool:
        """Everybody who comes this far; the door stands before this."""
        return True

    async def command(self, asked: Asked) -> str:
        """Do what a slash command asks, at the desk. Raises StoreError."""
        assert self.desk is not None, "the app puts the desk up"
        return await self.desk.command(asked)

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """The thread that a message belongs to. Raises StoreError."""
        return await self._parts.store.outbox.thread_of(channel, message_id, key)

    async def status(self, thread: ThreadId, audience: Audience) -> str:
        """What the thread does, and what models took today as far as it is for this audience, for a person."""
        found = await self._parts.store.journal.thread(thread)
        if found is None:
            return "Nothing was said here yet."
        doing = "A turn is running or waits for a decision" if found.open_turn else "Idle"
        line = f"{doing}; {found.queued} waiting. Agent {found.agent or 'not chosen yet'}, {found.last_seq} events."
        if audience.guest:
            own = [one for one in await self._parts.store.budget.standings() if one.scope == f"thread:{thread}"]
            return "\n".join([line, *(f"Left here today: {one.left}." for one in own if one.usd_max or one.tokens_max)])
        scopes = {f"thread:{thread}", f"agent:{found.agent}", "day", "total"}
        standings = [one for one in await self._parts.store.budget.standings() if one.scope in scopes]
        spent = spent_today(await self._parts.store.ledger.usage(0), standings)
        return f"{line}\n{spent}" if spent else line

    async def recover(self) -> int:
        """Wake every thread that was left with something to do; returns how many."""
        waiting = await self._parts.store.inbox.waiting()
        for thread in waiting:
            await self._engine.wake(thread)
        return len(waiting)

    async def advance(self, thread: ThreadId) -> None:
        """Called by the engine."""
        actor = self._actors.get(thread)
        if actor is None:
            actor = self._actors[thread] = Actor(thread, self._parts)
        try:
            await actor.advance()
        except StoreCorrupt as error:  # no try will help; the next start wakes it
            log.error("the database is damaged; the thread stands", extra={"thread_id": thread, "why": str(error)})
        except (StoreError, msgspec.MsgspecError) as error:
            log.error("the database failed; the thread is tried again", extra={"thread_id": thread, "why": str(error)})
            await self._parts.clock.sleep(STORE_RETRY_SECONDS)
            await self._engine.wake(thread)
        finally:
            self._bound()

    def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Called by the engine."""
        actor = self._actors.get(thread)
        if actor is not None:
            actor.signal(kind, turn)

    async def deactivate_idle(self) -> None:
        """Drop threads that were idle for idle_seconds, for ever; owned by the app."""
        while True:
            await self._parts.clock.sleep(self._idle_seconds / 4)
            oldest = self._parts.clock.monotonic() - self._idle_seconds
            for thread in [t for t, actor in self._actors.items() if not actor.running and actor.last_used <= oldest]:
                del self._actors[thread]

    def _bound(self) -> None:
        """Make room for an eighth more when too much is held."""
        threads, held = len(self._actors), sum(actor.held_bytes for actor in self._actors.values())
        if threads <= ACTIVE_MAX and held <= HELD_BYTES_MAX:
            return
        idle = [actor for actor in self._actors.values() if not actor.running]
        for actor in sorted(idle, key=lambda actor: actor.last_used):
            if threads <= ACTIVE_MAX * 7 // 8 and held <= HELD_BYTES_MAX * 7 // 8:
                return
            threads, held = threads - 1, held - actor.held_bytes
            del self._actors[actor.thread]

    async def _share_files(self, message: Prompt) -> None:
        """Give the files that came with it to the machine that will answer."""
        if any(one.path for one in message.attachments):
            notices = await self._parts.folders.push(message.thread)
            if notices:
                raise StoreUnavailable(notices[0])

    def _hurry(self, thread: ThreadId) -> None:
        actor = self._actors.get(thread)
        if actor is not None:
            actor.hurry()

    async def _tell(self, receipt: Receipt, thread: ThreadId, kind: SignalKind) -> None:
        if receipt.delivered:
            await self._engine.signal(thread, kind, TurnId(receipt.turn))
            await self._engine.woken(thread)
