"""The front door: every message of every origin enters here, and every thread's actor lives here.

`send` makes a message durable and returns; it never waits for a turn. Callers know nothing of actors: they are made
when the engine advances a thread, and dropped when it has been idle.
"""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from shoal.actors.actor import Actor
from shoal.actors.parts import Parts
from shoal.domain.errors import Forbidden, InvalidInput, NotFound, StoreError
from shoal.domain.events import Cleared, Scope
from shoal.domain.ids import ApprovalId, ThreadId, TurnId
from shoal.domain.messages import Abort, Author, FollowUp, Inbound, Prompt, Receipt, Steer
from shoal.domain.permissions import Asker
from shoal.domain.ports import ChatAdapter, Engine, SignalKind
from shoal.permissions.approvals import may_decide

log = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 5.0
ACTIVE_MAX = 256
"""Threads held in memory; beyond it the longest idle ones are dropped."""


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

    @property
    def running(self) -> int:
        """How many turns advance in this process."""
        return sum(actor.running for actor in self._actors.values())

    @property
    def active(self) -> int:
        """How many threads are held in memory."""
        return len(self._actors)

    def busy(self, agent: str, beside: ThreadId) -> tuple[str, ...]:
        """What the agent's other threads in this process do, a line each."""
        return tuple(
            f"{actor.thread}: {actor.doing}"
            for actor in self._actors.values()
            if actor.running
            and actor.thread != beside
            and actor.session is not None
            and actor.session.agent is not None
            and actor.session.agent.name == agent
        )

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message durably, or say why not. Raises StoreError when it could not be stored."""
        inbox = self._parts.store.inbox
        match message:
            case Prompt():
                receipt = await inbox.accept(message, self._prompts_max)
                if receipt.status == "accepted":
                    self._hurry(message.thread)
                    await self._engine.woken(message.thread)
            case Steer():
                receipt = await inbox.accept_now(message)
                await self._tell(receipt, message.thread, "steer")
            case FollowUp():
                receipt = await inbox.accept_now(message)
            case Abort():
                receipt = await inbox.abort(message)
                await self._tell(receipt, message.thread, "abort")
        return receipt

    async def send_to_channel(
        self, platform: str, channel: str, text: str, author: Author, agent: str = ""
    ) -> ThreadId:
        """Post `text` to a channel, which opens a thread, and let the agent answer there.

        Raises InvalidInput for a platform that is not connected, PlatformError when it refuses the post.
        """
        adapter = self._adapters.get(platform)
        if adapter is None:
            raise InvalidInput(f"Platform {platform!r} is not connected. Connected: {', '.join(self._adapters)}.")
        thread = await adapter.open_thread(channel, text)
        clock = self._parts.clock
        key = clock.new_id()
        await self.send(Prompt(thread, key, text, author, clock.now(), agent=agent, origin="trigger", message_id=key))
        return thread

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Settle an approval: who asked for it, an approver or the owner may.

        Raises NotFound, Forbidden, Conflict when it was decided, Gone when it has expired.
        """
        found = await self._parts.store.approvals.get(approval)
        if found is None:
            raise NotFound(f"There is no approval {approval}.")
        if not may_decide(found, by, self._approvers):
            log.warning("somebody tried to decide what is not theirs", extra={"thread_id": found.thread})
            raise Forbidden("This is for whoever asked for it, an approver or the owner to decide.")
        settlement = await self._parts.store.approvals.settle(approval, "allow" if allow else "deny", scope, by.user)
        self._parts.hub.publish([settlement.event])
        self._parts.poke_sender(settlement.approval.thread)
        await self._engine.woken(settlement.approval.thread)
        return settlement.approval.state

    async def expire_approvals(self) -> None:
        """Settle what nobody answered in time."""
        for settlement in await self._parts.store.approvals.expire():
            self._parts.hub.publish([settlement.event])
            self._parts.poke_sender(settlement.approval.thread)
            await self._engine.woken(settlement.approval.thread)

    async def clear(self, thread: ThreadId, by: str) -> None:
        """Start the model's window anew; the journal keeps everything. Raises NotFound for an unknown thread."""
        self._parts.hub.publish(await self._parts.store.journal.append(thread, [Cleared(by=by)]))

    async def admits(self, message: Prompt) -> bool:
        """Everybody who comes this far; the door stands before this."""
        return True

    async def status(self, thread: ThreadId) -> str:
        """What the thread does, in a line for a person."""
        found = await self._parts.store.journal.thread(thread)
        if found is None:
            return "Nothing was said here yet."
        doing = "A turn is running or waits for a decision" if found.open_turn else "Idle"
        return f"{doing}; {found.queued} waiting. Agent {found.agent}, {found.last_seq} events."

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
        if len(self._actors) <= ACTIVE_MAX:
            return
        idle = [actor for actor in self._actors.values() if not actor.running]
        idle.sort(key=lambda actor: actor.last_used)
        for actor in idle[: max(1, ACTIVE_MAX // 8)]:
            del self._actors[actor.thread]

    def _hurry(self, thread: ThreadId) -> None:
        actor = self._actors.get(thread)
        if actor is not None:
            actor.hurry()

    async def _tell(self, receipt: Receipt, thread: ThreadId, kind: SignalKind) -> None:
        if receipt.delivered:
            await self._engine.signal(thread, kind, TurnId(receipt.turn))
            await self._engine.woken(thread)
