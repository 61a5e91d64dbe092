"""Accept messages from any source, and own the actors of all threads.

`send` makes a message durable and returns without waiting for a turn. The orchestrator creates an actor when the engine
advances its thread, and drops it after an idle period.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from shoal.kernel.agents import UNBOUND, Listen
from shoal.kernel.errors import (
    Conflict,
    Forbidden,
    Gone,
    InvalidInput,
    NotFound,
    ShoalError,
    StoreCorrupt,
    StoreError,
    StoreNewer,
    StoreUnavailable,
    UnderWay,
    system_words,
)
from shoal.kernel.events import Cleared, Event, RetryRequested, Revised, Scope, UserSaid
from shoal.kernel.ids import OWN_PLATFORMS, ApprovalId, CardId, ThreadId, TurnId, is_child, thread_address, unopened
from shoal.kernel.messages import (
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
    bounded,
    verdict_of,
)
from shoal.kernel.permissions import Asker
from shoal.kernel.phrases import counted
from shoal.kernel.ports import ChatAdapter, Engine, SignalKind
from shoal.kernel.posts import CHOOSING, PREVIEW
from shoal.kernel.records import Approval, AuditEntry, CopyOf, DeliveryStatus, NewPost, Opening, OutboxRow, Settlement
from shoal.kernel.transcript import revision_text
from shoal.permissions.access import may_decide
from shoal.store.approvals import card_verdicts, verdicts_text
from shoal.store.cards import SHORT_ID_CHARS, approval_of, card_id
from shoal.threads.actor import Actor, ActorServices
from shoal.threads.forks import Forks

log = logging.getLogger(__name__)

COPIED = "This thread continues a copy of our conversation."
NOT_COPIED = "I could not copy our conversation. {why}"
SPOKE_BEFORE = "Someone wrote in this thread before the copy was ready. Use `/fork` to make another copy."
CHANGED_AFTERWARDS = "I have already answered this message. `/retry` answers the edited version."
GONE = "This approval is no longer available. `shoal approvals list` shows the pending approvals."
AWAY = (
    "{platform} is not connected, so nobody there would see what happens. "
    "Connect the account with `shoal setup`, or deny the request."
)
THEIRS = "Only the author of a message, or my owner, can retry it."
TURN_EVENTS_MAX = 10_000
OPENING_EVENTS_MAX = 3
CHOOSES_NO_MODEL = "Only people listed by name in the access rules can choose a model."
STORE_RETRY_SECONDS = 5.0
UNDER_WAY_SECONDS = 1.0
"""Seconds before retrying a copy that another process is making."""
RETRY_CHECK_SECONDS = 2.0
RETRY_AGAIN_SECONDS = 60.0
"""Seconds before a turn is woken again if its model retry is still overdue."""
ACTIVE_MAX = 256
"""Maximum number of threads in memory. Threads that have been idle longest are dropped first."""
HELD_BYTES_MAX = 12_000_000
"""Maximum total size of conversations in memory. Threads that have been idle longest are dropped first."""


class Orchestrator:
    """Routes messages to threads. Implements `ThreadHandler` for the engine.

    - `report_unposted`: reports a post that could not be delivered.
    - `configured`: returns the platforms of all configured accounts, including those that other processes connect.
    - `opening_watchers`: called with the trigger's id when the last attempt to open a thread for it has failed.
    """

    def __init__(
        self,
        services: ActorServices,
        engine: Engine,
        adapters: Mapping[str, ChatAdapter],
        *,
        approvers: Sequence[str],
        report_unposted: Callable[[OutboxRow, str], Awaitable[None]],
        forks: Forks,
        configured: Callable[[], Collection[str]],
    ) -> None:
        self.services = services
        self._store = services.store
        self._engine = engine
        self._adapters = adapters
        self._approvers = approvers
        self._configured = configured
        self.opening_watchers: list[Callable[[str], Awaitable[None]]] = []
        self._report_unposted = report_unposted
        self._forks = forks
        self._actors: dict[ThreadId, Actor] = {}
        self._held_bytes = 0
        self.mailbox = services.mailbox

    @property
    def running(self) -> int:
        return sum(actor.running for actor in self._actors.values())

    @property
    def active(self) -> int:
        return len(self._actors)

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message durably. If it is not accepted, the receipt gives the reason.

        Raises InvalidInput for a subagent's thread, and StoreError if the message could not be stored.
        """
        inbox = self._store.inbox
        match message:
            case Prompt() as prompt:
                if is_child(prompt.thread):
                    raise InvalidInput("This thread belongs to a subagent. Write to the thread that started it.")
                # Another machine may answer, so synchronize the files first.
                if any(attachment.path for attachment in prompt.attachments):
                    notices = await self.services.folders.push(prompt.thread)
                    if notices:
                        raise StoreUnavailable(notices[0])
                scope = prompt.scope or await self.services.scopes.resolve(prompt)
                in_chat = prompt.in_chat and self.mailbox.pause_seconds > 0
                prompt = msgspec.structs.replace(prompt, scope=scope, in_chat=in_chat)
                refers_to = bounded(prompt.refers_to) if prompt.refers_to else ()
                is_plain = not (prompt.attachments or prompt.tainted_by) and all(
                    reference.own for reference in refers_to
                )
                if prompt.joins and is_plain:  # Steer the turn if one is running.
                    steer = Steer(prompt.thread, prompt.key, prompt.text, prompt.author, prompt.at)
                    receipt = await self.send(steer)
                    if receipt.status != "dropped":
                        return receipt
                if prompt.attachments:
                    prompt = with_origins(prompt)
                # Quotes and files from untrusted people taint the thread, like fetched content.
                if refers_to or prompt.attachments:
                    files, unknown = prompt.attachments, Author("", prompt.tainted_by, trusted=False)
                    if prompt.tainted_by:  # The authors of the individual words and files are unknown.
                        files = tuple(
                            msgspec.structs.replace(attachment, author=attachment.author or unknown)
                            for attachment in files
                        )
                    read = next((item.tainted_by for item in (*refers_to, *files) if item.tainted_by), "")
                    prompt = msgspec.structs.replace(
                        prompt, refers_to=refers_to, attachments=files, tainted_by=prompt.tainted_by or read
                    )
                receipt = await inbox.accept(prompt, self.mailbox.prompts_max)
                if receipt.status == "accepted":
                    await self._begin(prompt)
                return receipt
            case Edit() | Deletion():
                revision = await inbox.revise(message)
                self.services.hub.publish(revision.events)
                if isinstance(message, Edit) and revision.events and await self._was_answered(revision.events[0]):
                    return msgspec.structs.replace(revision.receipt, answer=CHANGED_AFTERWARDS)
                return revision.receipt
            case Steer():
                receipt = await inbox.accept_now(message)
                await self._signal(receipt, message.thread, "steer")
                return receipt
            case FollowUp():
                return await inbox.accept_now(message)
            case Abort():
                receipt = await inbox.abort(message)
                await self._signal(receipt, message.thread, "abort")
                if is_child(message.thread):
                    info = await self._store.journal.thread(message.thread)
                    if info is not None and info.parent:
                        await self._engine.woken(ThreadId(info.parent))
                stopped = await self.services.loop.stop_background(message.thread)
                return Receipt("delivered") if stopped and not receipt.delivered else receipt
            case Retry():  # Wake a turn that waits for its model.
                if message.model and not message.author.trusted:
                    raise Forbidden(CHOOSES_NO_MODEL)
                if message.model:  # An unknown model would end the turn.
                    self.services.loop.models.route(message.model)
                request = RetryRequested(message.author.id, message.model)
                events = await self._store.journal.retry(message.thread, TurnId(message.turn), request)
                if not events:
                    return Receipt("dropped")
                self.services.hub.publish(events)
                await self._engine.woken(message.thread)
                return Receipt("delivered", turn=events[0].turn)

    # ---- branches ----

    async def try_again(self, thread: ThreadId, asker: Asker, seq: int = 0, model: str = "", key: str = "") -> Event:
        """Answer a message again on a new branch, once per `key`.

        Answers the message of the turn that contains event `seq`, or of the last turn. The message keeps its author and
        the trust that the author had when writing it. Returns the event of the message. Raises NotFound, Forbidden,
        Conflict while a turn runs or a message waits, and InvalidInput if no message was answered.
        """
        opening, data, message = await self._answered(thread, seq)
        if asker.trust != "owner" and asker.user != data.author.id:
            raise Forbidden(THEIRS)
        if model and asker.trust == "untrusted":
            raise Forbidden(CHOOSES_NO_MODEL)
        clock = self.services.clock
        prompt = Prompt(
            thread=thread,
            key=key or clock.new_id(),
            text=data.text,
            author=data.author,
            at=clock.now(),
            attachments=data.attachments,
            model=model,
            message_id=data.message_id,
            origin=data.origin,
            reply_to=data.reply_to,
            tainted_by=data.tainted_by,
            direct=data.direct,
            refers_to=data.refers_to,
        )
        await self._branch(prompt, opening - 1, asker.user)
        return message

    async def say_instead(self, prompt: Prompt, seq: int) -> Event:
        """Replace the author's own message in the turn that contains event `seq`, keeping its files.

        The old message and everything after it stay on another branch. Returns the event of the old message. Raises
        the errors of `try_again`.
        """
        opening, data, message = await self._answered(prompt.thread, seq)
        if data.author.id != prompt.author.id or data.origin == "trigger":
            raise Forbidden("You can only rewrite your own messages.")
        prompt = msgspec.structs.replace(prompt, attachments=data.attachments + prompt.attachments)
        await self._branch(prompt, opening - 1, prompt.author.id)
        return message

    async def go_to(self, thread: ThreadId, after: int, by: str) -> None:
        """Continue a conversation after event `after`, on a new branch. Raises the errors of `BranchStore.branch`."""
        self.services.hub.publish(await self._store.branches.branch(thread, after, by))

    async def _branch(self, prompt: Prompt, after: int, by: str) -> None:
        prompt = msgspec.structs.replace(prompt, scope=await self.services.scopes.resolve(prompt))
        self.services.hub.publish(await self._store.branches.branch(prompt.thread, after, by, prompt))
        await self._begin(prompt)

    async def _was_answered(self, change: Event) -> bool:
        info = await self._store.journal.thread(change.thread)
        if info is None or info.open_turn or info.queued or not isinstance(change.data, Revised):
            return False
        try:
            _, data, _ = await self._answered(change.thread, 0)
        except InvalidInput:
            return False
        return change.data.message_id in (data.message_id, *data.joined)

    async def _answered(self, thread: ThreadId, seq: int) -> tuple[int, UserSaid, Event]:
        """Return the number of the turn's first event, the latest wording of its message, and the message's event.

        Raises InvalidInput if the message does not exist or its author has deleted it.
        """
        if is_child(thread):
            raise InvalidInput("This thread belongs to a subagent. Write to the thread that started it.")
        journal = self._store.journal
        info = await journal.thread(thread)
        if info is None:
            raise NotFound(f"Thread {thread} does not exist.")
        if seq > info.last_seq:
            raise InvalidInput(f"{thread} has only {counted(info.last_seq, 'event')}; event {seq} does not exist.")
        tip = seq or info.last_seq
        events = await journal.along(thread, tip, max(0, tip - TURN_EVENTS_MAX))
        turn = events[-1].turn if seq else next((event.turn for event in reversed(events) if event.turn), "")
        if seq:  # The event that opens a turn precedes the turn's message.
            events += await journal.events(thread, tip, OPENING_EVENTS_MAX)
        of_turn = [event for event in events if turn and event.turn == turn]
        for event in of_turn:
            if isinstance(event.data, UserSaid):
                if not seq and any(
                    later_event.seq > event.seq and isinstance(later_event.data, Cleared) for later_event in events
                ):
                    raise InvalidInput(
                        "I have not answered a message since the conversation was cleared. Write a new message."
                    )
                data, ids = event.data, (event.data.message_id, *event.data.joined)
                since = max(event.seq, info.last_seq - TURN_EVENTS_MAX)
                later = [event.data for event in await journal.along(thread, info.last_seq, since)]
                revised = {
                    data.message_id: data for data in later if isinstance(data, Revised) and data.message_id in ids
                }
                for change in revised.values():
                    if change.deleted and not data.joined:
                        raise InvalidInput("The author of that message has deleted it.")
                    # A revision does not say which of the joined messages it replaces, so append it.
                    text = f"{data.text}\n\n{revision_text(change)}" if data.joined else change.text
                    data = msgspec.structs.replace(data, text=text, author=change.author)
                return of_turn[0].seq, data, event
        raise InvalidInput("I have not answered a message here yet. Write a message first.")

    async def react(self, reaction: Reaction) -> str:
        """Process an emoji reaction to a post.

        A reaction to a card decides the approval. A stop sign on a preview stops the turn. Returns an error message for
        the person who reacted, or an empty string.
        """
        thread, verdict, is_stop = reaction.thread, verdict_of(reaction.emoji), reaction.emoji in STOP_SIGNS
        post = await self._store.outbox.post_of(thread, reaction.message_id) if is_stop or verdict is not None else ""
        approval = approval_of(post)
        if approval and verdict is not None:
            by = reaction.author.asker(thread, reaction.trust)
            try:
                if calls := await self._store.approvals.on_card(CardId(approval)):
                    approval = calls[0].id
                    await self.decide_card(calls[0].item.card, verdict, by)
                else:
                    await self.decide(approval, verdict, by)
            except (NotFound, Gone, Forbidden) as error:
                return str(error)
            except Conflict as error:
                row = await self._store.approvals.get(approval)
                is_theirs = row is not None and row.decided_by == reaction.author.id
                is_again = is_theirs and row is not None and (row.state != "deny") == verdict
                return "" if is_again else str(error)
        elif is_stop and post.startswith(PREVIEW):
            await self.send(Abort(thread, reaction.author, turn=post.removeprefix(PREVIEW)))
        return ""

    async def _begin(self, prompt: Prompt) -> None:
        self.services.attachments.expect(prompt)
        actor = self._actors.get(prompt.thread)
        if actor is not None:
            actor.cancel_maintenance()
        await self._engine.woken(prompt.thread)

    async def _signal(self, receipt: Receipt, thread: ThreadId, kind: SignalKind) -> None:
        if receipt.delivered:
            await self._engine.signal(thread, kind, TurnId(receipt.turn))
            await self._engine.woken(thread)

    async def send_to_channel(
        self, platform: str, channel: str, text: str, author: Author, agent: str = ""
    ) -> ThreadId:
        """Post `text` to a channel, which opens a thread, and start a turn there.

        Raises InvalidInput if the platform is not connected, and PlatformError if it rejects the post.
        """
        thread = await self._connected(platform).open_thread(channel, text)
        clock = self.services.clock
        key = clock.new_id()
        prompt = Prompt(thread, key, text, author, clock.now(), agent=agent, origin="trigger", message_id=key)
        await self.send(prompt)
        return thread

    def opens_threads(self, thread: ThreadId, *, direct: bool) -> bool:
        """Return True if another thread can be opened in the same channel."""
        platform = thread_address(thread).platform
        return self._connected(platform).limits.opens_threads and (not direct or platform in OWN_PLATFORMS)

    async def open_copy(self, source: ThreadId, key: str, by: str) -> None:
        """Open a thread in the channel of `source` as a copy of it, once per key.

        The copy is queued durably on return. Raises NotFound.
        """
        info, address = await self._store.journal.thread(source), thread_address(source)
        if info is None:
            raise NotFound(f"Thread {source} does not exist.")
        place = unopened(address.platform, address.channel)
        post = NewPost(key, place, COPIED, "opening", copies=CopyOf(source, info.last_seq, by))
        await self.services.senders.post(post)

    def _connected(self, platform: str) -> ChatAdapter:
        adapter = self._adapters.get(platform)
        if adapter is None:
            raise InvalidInput(f"Platform {platform!r} is not connected. Connected: {', '.join(self._adapters)}.")
        return adapter

    async def open(self, opening: Opening) -> bool:
        """Post a prompt to its channel and start a thread there, once per key.

        The post is queued durably on return. Returns False if it was already queued. Raises InvalidInput if the
        platform is not connected.
        """
        prompt = opening.prompt
        self._connected(thread_address(prompt.thread).platform)
        post = NewPost(prompt.key, prompt.thread, prompt.text, "opening", opening=opening)
        fresh = await self._store.outbox.put(post)
        self.services.senders.poke(prompt.thread)
        return fresh

    async def fate(self, key: str) -> DeliveryStatus | None:
        return await self._store.outbox.fate(key)

    async def withdraw(self, key: str) -> str | None:
        """Cancel a waiting post created by `open`. Return the reason for its delay, or None if it is not waiting."""
        return await self._store.outbox.withdraw(key)

    async def opened(self, row: OutboxRow, thread: ThreadId, rest: Sequence[NewPost]) -> None:
        """Begin the thread that a post has opened. Called by the sender.

        Accepts the post's prompt in the thread, or makes the thread a copy.
        """
        outbox, opening, copies = self._store.outbox, row.post.opening, row.post.copies
        if copies is not None:
            try:
                await self._forks.fork(copies.source, thread, copies.by, copies.after, opened_by=row.id)
            except StoreUnavailable:
                raise
            except UnderWay as error:
                at = self.services.clock.now() + timedelta(seconds=UNDER_WAY_SECONDS)
                await outbox.retry(row, at, str(error), maybe_sent=True)
            except (ShoalError, OSError) as error:
                words = system_words(error) if isinstance(error, OSError) else ""
                why = f"Shoal could not write the files: {words}." if words else str(error)
                if isinstance(error, Conflict):
                    if (fate := await outbox.fate(row.id)) and fate.state == "sent":
                        return  # Another process has already made the copy.
                    why = SPOKE_BEFORE
                await self.services.senders.post(NewPost(f"{row.id}:failed", thread, NOT_COPIED.format(why=why)))
                await outbox.fail(row, why)
            return
        if opening is None:
            await outbox.opened(row, thread, rest)
            return
        prompt = msgspec.structs.replace(opening.prompt, thread=thread)
        prompt = msgspec.structs.replace(prompt, scope=await self.services.scopes.resolve(prompt))
        receipt = await outbox.opened(row, thread, rest, prompt, self.mailbox.prompts_max)
        if receipt is not None and receipt.status == "accepted":
            await self._begin(prompt)
        elif receipt is not None and receipt.status == "busy":
            await self._opening_failed(opening)

    async def gave_up(self, row: OutboxRow, error: str, refused: bool) -> None:
        """Record that a post failed permanently. Called by the sender."""
        post = row.post
        if post.copies is not None:
            await self.services.senders.post(
                NewPost(f"{row.id}:failed", post.copies.source, NOT_COPIED.format(why=error))
            )
        await self._store.outbox.fail(row, error, refused)
        if post.opening is not None:
            await self._opening_failed(post.opening)
        if post.kind not in ("edit", "ephemeral"):
            await self._report_unposted(row, error)

    async def _opening_failed(self, opening: Opening) -> None:
        if opening.disables:
            for watch in self.opening_watchers:
                await watch(opening.trigger)

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Decide an approval. Only the person who asked, an approver or the owner may do this.

        Raises NotFound, Forbidden, Conflict if it was already decided, Gone if it has expired, and InvalidInput if
        an approval for the thread would not cover everything that may run.
        """
        row = await self._store.approvals.get(approval)
        if row is None:
            raise NotFound(f"Approval {approval} does not exist. `shoal approvals list` shows the pending approvals.")
        roles, by = by.roles, self.services.links.people.asker(by)
        if not may_decide(row, by, self._approvers, allow=allow):
            log.warning("approval rejected: not an approver", extra={"thread_id": row.thread})
            await self._refused(row, by, "not an approver")
            if may_decide(row, by, self._approvers, allow=False):
                raise Forbidden("Untrusted content led to this request, so an approver or the owner must allow it.")
            raise Forbidden("Only the person who asked, an approver or the owner can decide on this request.")
        if allow and row.state == "pending":
            self._check_is_reachable(row.asked_in)
        verdict = "allow" if allow else "deny"
        try:
            settlement = await self._store.approvals.record_decision(
                approval, verdict, scope, by.user, by.trust, platform=by.platform, roles=roles, token=by.token
            )
        except (Conflict, Gone, InvalidInput) as error:
            await self._refused(row, by, str(error) if isinstance(error, InvalidInput) else f"too late to {verdict}")
            raise
        await self._announce(settlement)
        return settlement.approval.state

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        """Decide a card's pending calls in one transaction (see `card_verdicts`). Raises the errors of `decide`."""
        calls = await self._store.approvals.on_card(card)
        if not calls:
            raise NotFound(GONE)
        roles, by = by.roles, self.services.links.people.asker(by)
        verdicts = card_verdicts(calls, allow, numbers)
        for call in calls:
            verdict = verdicts.get(call.id)
            if verdict is not None and not may_decide(call, by, self._approvers, allow=verdict == "allow"):
                await self._refused(call, by, "not an approver")
                if may_decide(call, by, self._approvers, allow=False):
                    what = f"Untrusted content led to call {call.item.number}"
                    raise Forbidden(f"{what}, so an approver or the owner must allow it.")
                raise Forbidden("Only the person who asked, an approver or the owner can decide on this request.")
        if allow:
            self._check_is_reachable(calls[0].asked_in)
        settlements = await self._store.approvals.record_decisions(
            verdicts, scope, by.user, by.trust, platform=by.platform, roles=roles, token=by.token
        )
        for settlement in settlements:
            await self._announce(settlement)
        return verdicts_text(calls, verdicts)

    def _check_is_reachable(self, thread: ThreadId) -> None:
        platform = thread_address(thread).platform
        if is_child(thread) or platform in OWN_PLATFORMS:
            return
        if platform not in self._adapters and platform not in self._configured():
            raise InvalidInput(AWAY.format(platform=platform))

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        """Show a check box for each pending call on a card. If the platform cannot show them, return an explanation.

        Raises NotFound, Forbidden, Conflict and Gone.
        """
        calls = await self._store.approvals.on_card(card)
        if not calls:
            raise NotFound(GONE)
        by = self.services.links.people.asker(by)
        if not all(may_decide(call, by, self._approvers, allow=False) for call in calls):
            raise Forbidden("Only the person who asked, an approver or the owner can decide on this request.")
        place = calls[0].asked_in
        adapter, waiting = (
            self._adapters.get(thread_address(place).platform),
            [c for c in calls if c.state == "pending"],
        )
        if adapter is None or not adapter.limits.can_edit or len(waiting) + 2 > adapter.limits.buttons_max:
            short = card[-SHORT_ID_CHARS:]
            do, refuse = ("do", "discard") if calls[0].item.staged else ("allow", "deny")
            return f"Write `{do} {short} 1 {len(calls)}` to {do} calls 1 and {len(calls)} and {refuse} the rest."
        page, post = self.services.loop.executor.page, f"{card_id(card)}:{self.services.clock.new_id()}"
        await self._store.approvals.choose(card, ticked, post, page)
        self.services.senders.poke(place)
        return CHOOSING

    async def _refused(self, approval: Approval, by: Asker, why: str) -> None:
        action = f"{approval.tool} {approval.digest}"
        entry = AuditEntry(
            "approval", action, "refused", user=by.identity, turn=approval.turn, detail=why, token=by.token
        )
        await self._store.audit.record(approval.thread, [entry])

    async def expire_approvals(self) -> None:
        for settlement in await self._store.approvals.expire():
            await self._announce(settlement)

    async def _announce(self, settlement: Settlement) -> None:
        self.services.hub.publish([settlement.event])
        self.services.senders.poke(settlement.approval.asked_in)
        await self._engine.woken(settlement.approval.thread)

    async def retry_due(self) -> datetime | None:
        """Wake turns whose model retry is due. Return the time of the next retry."""
        journal = self._store.journal
        for thread in await journal.take_retries(RETRY_AGAIN_SECONDS):
            await self._engine.woken(thread)
        return await journal.next_retry_at()

    async def watch_retries(self) -> None:
        """Until cancelled, wake turns whose model retry is due. Each is woken at most RETRY_CHECK_SECONDS late."""
        while True:
            next_at, seconds = await self.retry_due(), RETRY_CHECK_SECONDS
            if next_at is not None:
                seconds = min(seconds, max(0.0, (next_at - self.services.clock.now()).total_seconds()))
            await self.services.clock.sleep(seconds)

    async def clear(self, thread: ThreadId, by: str) -> None:
        """Clear the model's window. The journal keeps everything. Raises NotFound for an unknown thread."""
        self.services.hub.publish(await self._store.journal.append(thread, [Cleared(by=by)]))

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        return await self._store.outbox.thread_of(channel, message_id, key)

    async def listens(self, thread: ThreadId) -> Listen:
        bindings = self.services.agents.bindings
        return UNBOUND if bindings is None else await bindings.listens(thread)

    async def recover(self) -> int:
        """Wake every thread with unfinished work, and return how many there are."""
        waiting = await self._store.inbox.waiting()
        for thread in waiting:
            await self._engine.wake(thread)
        return len(waiting)

    async def advance(self, thread: ThreadId) -> None:
        actor = self._actors.get(thread)
        if actor is None:
            actor = self._actors[thread] = Actor(thread, self.services)
        before = actor.held_bytes
        try:
            await actor.advance()
        except (StoreCorrupt, StoreNewer) as error:  # Retrying cannot help. The next start wakes the thread.
            log.error("reading journal failed, thread blocked", extra={"thread_id": thread, "why": str(error)})
        except (StoreError, msgspec.MsgspecError) as error:
            log.error("database failed, retrying thread", extra={"thread_id": thread, "why": str(error)})
            await self.services.clock.sleep(STORE_RETRY_SECONDS)
            await self._engine.wake(thread)
        finally:  # Over a limit, drop idle actors until an eighth of the limit is free.
            self._held_bytes += actor.held_bytes - before
            full = len(self._actors) > ACTIVE_MAX or self._held_bytes > HELD_BYTES_MAX
            idle = [actor for actor in self._actors.values() if not actor.running] if full else []
            for actor in sorted(idle, key=lambda actor: actor.last_used):
                if len(self._actors) > ACTIVE_MAX * 7 // 8 or self._held_bytes > HELD_BYTES_MAX * 7 // 8:
                    self._drop(actor)

    def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        actor = self._actors.get(thread)
        if actor is not None:
            actor.signal(kind, turn)

    async def deactivate_idle(self) -> None:
        """Drop actors that have been idle for `idle_seconds`, until cancelled."""
        while True:
            await self.services.clock.sleep(self.mailbox.idle_seconds / 4)
            oldest = self.services.clock.monotonic() - self.mailbox.idle_seconds
            for actor in [actor for actor in self._actors.values() if not actor.running and actor.last_used <= oldest]:
                self._drop(actor)

    def _drop(self, actor: Actor) -> None:
        del self._actors[actor.thread]
        self._held_bytes -= actor.held_bytes


MINE = "mine:"
"""Message prefix that people use to state that they wrote the attached files themselves."""


def with_origins(prompt: Prompt) -> Prompt:
    """Set the origin of each file. Remove the prefix `MINE` from a trusted author's text."""
    text = prompt.text.lstrip()
    mine = text[: len(MINE)].lower() == MINE
    files = tuple(file.sent_by(prompt.author, mine=mine) for file in prompt.attachments)
    text = text[len(MINE) :].lstrip() if mine and prompt.author.trusted else prompt.text
    return msgspec.structs.replace(prompt, attachments=files, text=text)
