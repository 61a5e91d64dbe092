"""Check access for each message and click from a platform before it reaches the orchestrator.

    author              what happens
    ------------------  --------------------------------------------------------------------------------
    the owner           admitted and trusted. `pair CODE` admits an unknown person.
    listed or paired    admitted and trusted. `yes` or `no` decides the pending approval. `allow ID` or
                        `deny ID` decides a specific one.
    admitted by `*`     admitted but not trusted, so their messages taint the thread
    any of these        a slash command runs once, and its receipt contains the answer
    an unknown person   the message is dropped. In a direct message they get a pairing code: one at a
                        time, and only a few codes per hour in total.

If the list of paired people is unreadable, only the owner and people in the configuration are admitted.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.kernel.clock import Clock, to_micros
from shoal.kernel.commands import CommandRequest
from shoal.kernel.errors import Conflict, Forbidden, Gone, InvalidInput, NotFound, StoreError
from shoal.kernel.events import AssistantSaid, Scope
from shoal.kernel.ids import ApprovalId, CardId, ThreadId, channel_of, thread_address
from shoal.kernel.messages import (
    UNTOLD,
    Author,
    Deletion,
    Edit,
    Inbound,
    Prompt,
    Reaction,
    Receipt,
    Reference,
    bounded,
    is_instruction,
    judged_files,
)
from shoal.kernel.permissions import Asker, Trust
from shoal.kernel.ports import ONCE, InboxPort
from shoal.kernel.posts import turn_of_preview, turn_of_reply
from shoal.kernel.records import NewPost
from shoal.permissions.access import Bucket
from shoal.store.cards import approval_of
from shoal.store.store import Store
from shoal.threads.admissions import Admissions
from shoal.threads.pairing import Pairing
from shoal.threads.scope import Scopes
from shoal.threads.whereabouts import OWNER_IN, note_latest
from shoal.threads.written_decisions import parse_answer, parse_take_back

if TYPE_CHECKING:
    from shoal.threads.always import AlwaysAllow
    from shoal.threads.commands import CommandRouter
    from shoal.threads.orchestrator import Orchestrator

log = logging.getLogger(__name__)

MESSAGES_BURST = 20
MESSAGE_SECONDS = 2.0
CODES_BURST = 5
CODE_EVERY_SECONDS = 600.0
PEOPLE_MAX = 10_000
OWN_EVENTS_MAX = 500
TOO_MUCH = "You are sending too many messages. Try again in a moment."

ASK_FOR_CODE = (
    "You do not have access yet. To get it, send this code to my owner, who can confirm it with `shoal pair {code}`. "
    "It is valid for an hour."
)


class OpenInbox:
    """Implements `InboxPort` for people who are already admitted: behind an AccessGate, or on platforms without one."""

    def __init__(self, orchestrator: "Orchestrator", commands: "CommandRouter", always: "AlwaysAllow") -> None:
        self.send = orchestrator.send
        self.decide = orchestrator.decide
        self.decide_card = orchestrator.decide_card
        self.choose = orchestrator.choose
        self.always = always.always
        self.take_back = always.take_back
        self.react = always.react
        self.thread_of = orchestrator.thread_of
        self.listens = orchestrator.listens
        self.pause_seconds = orchestrator.mailbox.pause_seconds
        self.commands = commands.table
        self.command = commands.command
        self.undo_files = commands.undo_files
        self.suggestions = commands.suggestions

    async def admits(self, message: Prompt) -> bool:
        return True


class AccessGate:
    """Implements `InboxPort` for one platform: checks access, then calls the orchestrator."""

    def __init__(
        self,
        inner: InboxPort,
        admissions: Admissions,
        pairing: Pairing,
        store: Store,
        clock: Clock,
        post: Callable[[NewPost], Awaitable[None]],
        scopes: Scopes,
    ) -> None:
        self._inner = inner
        self._scopes = scopes
        self.thread_of = inner.thread_of
        self.listens = inner.listens
        self.pause_seconds = inner.pause_seconds
        self.commands = inner.commands
        self._admissions = admissions
        self._pairing = pairing
        self._store = store
        self._clock = clock
        self._post = post
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._owner_in = ThreadId("")
        self._codes = Bucket(CODES_BURST, CODE_EVERY_SECONDS, clock.monotonic())

    async def send(self, message: Inbound) -> Receipt:
        """Accept an admitted person's message, or run their command. Drops messages from other people."""
        if isinstance(message, Deletion) and message.author.id == UNTOLD.id:
            return await self._inner.send(message)
        address = thread_address(message.thread)
        admission = await self._admissions.of(address.platform, message.author, address.channel)
        if not admission.allowed:
            await self._turn_away(message, address.platform)
            return Receipt("dropped")
        if not admission.owner and not self._may_go_on(message.author.id):
            return Receipt("busy", answer=TOO_MUCH)
        trust = admission.trust
        if admission.owner and isinstance(message, Prompt) and message.direct and message.thread != self._owner_in:
            await self._store.settings.put(*OWNER_IN, message.thread)
            self._owner_in = message.thread
        author = msgspec.structs.replace(message.author, trusted=admission.trusted)
        message = msgspec.structs.replace(message, author=author)
        if isinstance(message, Prompt):
            message = msgspec.structs.replace(message, in_chat=True)
            if message.refers_to:
                refers_to = [await self._judged(message.thread, reference) for reference in bounded(message.refers_to)]
                message = msgspec.structs.replace(message, refers_to=tuple(refers_to))
            if message.attachments:
                files = await judged_files(message.thread, message.attachments, self._admissions.judge)
                message = msgspec.structs.replace(message, attachments=files)
            asked = self.commands.request(message)
            if asked is not None:
                return Receipt("answered", message.message_id, answer=await self._obey(asked, trust))
            if await self._is_answer(message, trust):
                return Receipt("accepted", message.message_id)
            message = msgspec.structs.replace(message, scope=await self._scopes.resolve(message, trust))
        receipt = await self._inner.send(message)
        if isinstance(message, Prompt) and receipt.status == "accepted" and not message.direct:
            await note_latest(self._store.settings, message.thread, message.author.id)
        if isinstance(message, Edit) and receipt.answer:  # An edit has no visible receipt, so post the answer.
            notice = NewPost(f"edited:{message.thread}:{message.key}", message.thread, receipt.answer, "ephemeral")
            notice = msgspec.structs.replace(notice, reply_to=message.message_id, user=author.id)
            await self._post(notice)
        return receipt

    async def admits(self, message: Prompt) -> bool:
        """Return True if the author may write in the thread.

        Sends an unknown person a pairing code if one is due.
        """
        address = thread_address(message.thread)
        if (await self._admissions.of(address.platform, message.author, address.channel)).allowed:
            return True
        await self._turn_away(message, thread_address(message.thread).platform)
        return False

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Decide an approval for an admitted person. Raises Forbidden and the errors of `Orchestrator.decide`."""
        return await self._inner.decide(approval, allow, await self._admitted(by), scope)

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        return await self._inner.decide_card(card, allow, await self._admitted(by), numbers, scope)

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        return await self._inner.choose(card, ticked, await self._admitted(by))

    async def always(
        self, asked: ApprovalId | CardId, by: Asker, numbers: Sequence[int] = (), *, or_thread: bool = False
    ) -> str:
        return await self._inner.always(asked, await self._admitted(by), numbers, or_thread=or_thread)

    async def take_back(self, asked: str, by: Asker, thread: str = "") -> str:
        return await self._inner.take_back(asked, await self._admitted(by), thread)

    async def undo_files(self, card: CardId, by: Asker) -> str:
        return await self._inner.undo_files(card, await self._admitted(by))

    async def _admitted(self, by: Asker) -> Asker:
        admission = await self._admissions.of(
            by.platform, Author(by.user, by.name, by.roles, trusted=False), by.channel
        )
        if not admission.allowed:
            raise Forbidden("You do not have access here.")
        return msgspec.structs.replace(by, trust=admission.trust)

    async def react(self, reaction: Reaction) -> str:
        """Process an admitted person's emoji reaction. Ignores reactions from other people.

        Returns an error message for the person who reacted, or an empty string. Raises StoreError.
        """
        address = thread_address(reaction.thread)
        admission = await self._admissions.of(address.platform, reaction.author, address.channel)
        if not admission.allowed:
            return ""
        if not admission.owner and not self._may_go_on(reaction.author.id):
            return TOO_MUCH if is_instruction(reaction.emoji) else ""
        author = msgspec.structs.replace(reaction.author, trusted=admission.trusted)
        return await self._inner.react(msgspec.structs.replace(reaction, author=author, trust=admission.trust))

    async def command(self, asked: CommandRequest) -> str:
        """Run an admitted person's command that arrived without a message, once per key. Raises StoreError."""
        address = thread_address(asked.thread)
        admission = await self._admissions.of(address.platform, asked.author, address.channel)
        if not admission.allowed:
            return "You do not have access here."
        if not admission.owner and not self._may_go_on(asked.author.id):
            return TOO_MUCH
        author = msgspec.structs.replace(asked.author, trusted=admission.trusted)
        return await self._obey(msgspec.structs.replace(asked, author=author), admission.trust)

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        address = thread_address(asked.thread)
        admission = await self._admissions.of(address.platform, asked.author, address.channel)
        return await self._inner.suggestions(asked) if admission.allowed else ()

    async def _obey(self, asked: CommandRequest, trust: Trust) -> str:
        asked = msgspec.structs.replace(asked, by=asked.author.asker(asked.thread, trust))
        platform = thread_address(asked.thread).platform
        once, at = f"command:{platform}:{asked.key}", str(to_micros(self._clock.now()))
        try:
            is_new = await self._store.settings.swap(ONCE, once, None, at)
            return await self._inner.command(asked) if is_new else ""
        except StoreError:  # The platform will redeliver the command.
            await self._store.settings.drop(ONCE, once, at)
            raise

    async def _judged(self, thread: ThreadId, reference: Reference) -> Reference:
        """Return quoted content with the trust of its author.

        Text that the agent wrote is looked up in the journal. It is trusted only if no untrusted content influenced
        it, and removed if it is not found.
        """
        if not reference.own:
            return msgspec.structs.replace(reference, author=await self._admissions.judge(thread, reference.author))
        text, trusted = "", True
        thread_found = await self.thread_of(channel_of(thread), reference.message_id) if reference.message_id else None
        post = await self._store.outbox.post_of(thread_found, reference.message_id) if thread_found is not None else ""
        turn = turn_of_reply(post) or turn_of_preview(post)
        info = await self._store.journal.thread(thread_found) if thread_found is not None and turn else None
        if thread_found is not None and info is not None:
            events = await self._store.journal.events(thread_found, max(0, info.last_seq - OWN_EVENTS_MAX))
            for event in reversed(events):
                if event.turn == turn and isinstance(event.data, AssistantSaid) and event.data.text:
                    text, trusted = reference.text or event.data.text, not event.data.tainted_by
                    break
        return msgspec.structs.replace(
            reference, text=text, author=msgspec.structs.replace(reference.author, trusted=trusted)
        )

    def _may_go_on(self, user: str) -> bool:
        now = self._clock.monotonic()
        bucket = self._buckets.pop(user, None) or Bucket(MESSAGES_BURST, MESSAGE_SECONDS, now)
        self._buckets[user] = bucket
        if len(self._buckets) > PEOPLE_MAX:
            self._buckets.popitem(last=False)
        return bucket.take(now)

    async def _turn_away(self, message: Inbound, platform: str) -> None:
        log.info("dropped message from unknown person", extra={"platform": platform})
        if not isinstance(message, Prompt) or not message.direct or message.author.is_bot or not message.author.id:
            return
        if self._codes.take(self._clock.monotonic()):
            code = await self._pairing.ask(platform, message.author)
            if code:
                await self._say(message, ASK_FOR_CODE.format(code=code))

    async def _is_answer(self, message: Prompt, trust: Trust) -> bool:
        """Process the message if it is a decision or a pairing. Return False if it is neither."""
        if message.attachments:  # Not a decision: a turn must receive the files.
            return False
        address, author, words = thread_address(message.thread), message.author, message.text.split()
        if trust == "owner" and len(words) == 2 and words[0].lstrip("/!").lower() == "pair":
            try:
                by = f"{address.platform}:{author.id}"
                _, user = await self._pairing.confirm(words[1], (address.platform,), by)
                answer_text = f"{user} can now talk to me."
            except (NotFound, InvalidInput, Conflict) as error:
                answer_text = str(error)
            await self._say(message, answer_text)
            return True
        if named := parse_take_back(message.text):
            try:
                answer_text = await self._inner.take_back(named, author.asker(message.thread, trust), message.thread)
            except NotFound:  # No approval matches, so treat it as a message.
                return False
            except (Conflict, Forbidden, InvalidInput) as error:
                answer_text = str(error)
            await self._say(message, answer_text)
            return True
        answer = parse_answer(message.text)
        if answer is None:
            return False
        outbox, named = self._store.outbox, answer.approval
        if not named:
            if await outbox.fate(_notice_id(message)) is not None:  # The platform delivered the message twice.
                return True
            if message.reply_to:
                named = approval_of(await outbox.post_of(message.thread, message.reply_to))
            if not named and any(
                reference.kind in ("reply", "quote") and not reference.own for reference in message.refers_to
            ):
                return False  # It replies to another person.
        approvals, by = await self._store.approvals.matching(message.thread, named), author.asker(message.thread, trust)
        if not named:  # People keep talking while staged calls wait, so a plain "yes" may be for someone else.
            approvals = [approval for approval in approvals if approval.item.staged == answer.of_set]
        cards = {approval.item.card or approval.id for approval in approvals}
        if len(cards) != 1 or (answer.numbers and not approvals[0].item.card):
            return False
        try:
            if answer.scope == "always":
                named = approvals[0].item.card or approvals[0].id
                answer_text = await self._inner.always(named, by, answer.numbers, or_thread=True)
            elif len(approvals) > 1 or answer.numbers or (approvals[0].item.card and approvals[0].item.total == 1):
                card = approvals[0].item.card
                answer_text = await self._inner.decide_card(card, answer.allow, by, answer.numbers, answer.scope)
            else:
                await self._inner.decide(approvals[0].id, answer.allow, by, answer.scope)
                answer_text = "Allowed." if answer.allow else "Denied."
        except (Conflict, Gone, Forbidden, InvalidInput) as error:
            answer_text = str(error)
        await self._say(message, answer_text)
        return True

    async def _say(self, message: Prompt, text: str) -> None:
        await self._post(NewPost(_notice_id(message), message.thread, text, reply_to=message.message_id))


def _notice_id(message: Prompt) -> str:
    return f"door:{message.thread}:{message.key}"
