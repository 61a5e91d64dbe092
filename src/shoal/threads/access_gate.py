"""Pairing: strangers who wait with a code, and the people that were let in with one; a list a platform.

Each list is one value of the store's settings and every change of it a compare-and-swap, so that no process loses what
another has written. Of a code only a digest is kept.

The gate of a platform: every message and click of its people comes through here before anything else sees it.

    somebody            what happens
    ------------------  --------------------------------------------------------------------------------
    the owner           in, trusted; `pair CODE` lets a stranger in
    listed or paired    in, trusted; `yes` or `no` answers the question that waits, `allow ID` and `deny ID` that one
    let in by `*`       in, not trusted (what they say taints)
    any of these        a message that is a slash command is obeyed, once, and its receipt has the answer
    a stranger          dropped; in a direct message they get a pairing code, one at a time, a few an hour in all

A list of paired people that cannot be read closes the gate to all but the owner and those of the configuration.
"""

import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from shoal.kernel.clock import Clock, to_micros
from shoal.kernel.commands import CommandRequest
from shoal.kernel.errors import Conflict, Forbidden, Gone, InvalidInput, NotFound, StoreCorrupt, StoreError
from shoal.kernel.events import AssistantSaid, Scope
from shoal.kernel.ids import ApprovalId, ThreadId, channel_of, thread_address
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
    judged_files,
)
from shoal.kernel.moved import ids_of
from shoal.kernel.permissions import Asker, Trust
from shoal.kernel.ports import ONCE, InboxPort
from shoal.kernel.posts import turn_of_preview, turn_of_reply
from shoal.kernel.records import AuditEntry, NewPost
from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import UNREADABLE
from shoal.permissions.access import (
    CODE_LENGTH,
    STRANGER,
    Admission,
    Bucket,
    Links,
    admit,
    code_digest,
    is_code,
    make_code,
    parse_answer,
    vouched,
)
from shoal.store.cards import approval_of
from shoal.store.store import Store
from shoal.threads.whereabouts import note_latest

if TYPE_CHECKING:
    from shoal.threads.commands import CommandRouter
    from shoal.threads.orchestrator import Orchestrator

log = logging.getLogger(__name__)

CODE_STANDS_SECONDS = 3600.0
WAITING_MAX = 20
"""Strangers of one platform that wait at once; more get no code until one is let in or a code has expired."""
PAIRED_MAX = 1000
"""People of one platform that can be let in by code; whoever has more names a role in the platform's `allow`."""
SWAPS_MAX = 50
NAME_CHARS_MAX = 100
SCOPE = "access"
CHAIN = "access"
"""The audit chain of who was let in and shut out."""


class PairingRequest(msgspec.Struct, frozen=True):
    """A stranger who has a code until `expires_at`."""

    user: str
    name: str
    digest: str
    expires_at: datetime


class PairedPerson(msgspec.Struct, frozen=True):
    """Somebody who was let in: when, and by whom."""

    user: str
    name: str = ""
    by: str = ""
    at: datetime | None = None


class PairingList(msgspec.Struct, frozen=True):
    """The people of a platform."""

    paired: tuple[PairedPerson, ...] = ()
    waiting: tuple[PairingRequest, ...] = ()


_rosters = msgspec.json.Decoder(PairingList)


def _nobody_looks() -> None:
    """Where nothing runs that somebody could have left."""


class Pairing(msgspec.Struct, frozen=True, eq=False):
    """The lists of all platforms, over any number of processes. `removed` is called after somebody was shut out."""

    store: Store
    clock: Clock
    removed: Callable[[], None] = _nobody_looks

    async def people(self, platform: str) -> tuple[str, ...]:
        """The user ids that were paired; nobody when that cannot be read."""
        try:
            return tuple(one.user for one in (await self.roster(platform)).paired)
        except StoreError:
            log.exception("who is paired cannot be read; access is closed", extra={"platform": platform})
            return ()

    async def roster(self, platform: str) -> PairingList:
        """Who is paired, and who waits with a code that still stands. Raises StoreError."""
        return (await self._read(platform))[1]

    async def ask(self, platform: str, author: Author) -> str:
        """A new code for a stranger; empty when they have one that stands, or WAITING_MAX wait. Raises StoreError."""
        code = make_code(secrets.token_bytes(16))
        until = self.clock.now() + timedelta(seconds=CODE_STANDS_SECONDS)
        request = PairingRequest(author.id, author.name[:NAME_CHARS_MAX], code_digest(code), until)

        def wait(found: PairingList) -> PairingList | None:
            if len(found.waiting) >= WAITING_MAX or any(one.user == author.id for one in found.waiting):
                return None
            return PairingList(found.paired, (*found.waiting, request))

        try:
            return code if await self._change(platform, wait) else ""
        except Conflict:
            return ""

    async def confirm(self, code: str, platforms: Sequence[str], by: str) -> tuple[str, str]:
        """Let whoever got this code in, once; returns platform and user.

        Raises InvalidInput for what cannot be a code, NotFound for a wrong or expired one, Conflict when PAIRED_MAX
        people are in or others change the list all the time, StoreError.
        """
        if sum(char.isalnum() for char in code) != CODE_LENGTH:
            raise InvalidInput(f"A pairing code has {CODE_LENGTH} letters and digits; copy it from the person's chat.")
        user = ""

        def let_in(found: PairingList) -> PairingList | None:
            nonlocal user
            request = next((one for one in found.waiting if is_code(code, one.digest)), None)
            if request is None:
                return None
            user = request.user
            others = tuple(one for one in found.paired if one.user != user)
            if len(others) >= PAIRED_MAX:
                raise Conflict(f"{PAIRED_MAX} people are let in by code already. Name a role in `allow` instead.")
            person = PairedPerson(user, request.name, by, self.clock.now())
            return PairingList((*others, person), tuple(one for one in found.waiting if one.user != user))

        for platform in platforms:
            if await self._change(platform, let_in):
                await self._note("pair", platform, user, by)
                return platform, user
        raise NotFound("There is no such pairing code, or it has expired. Ask the person to write once more.")

    async def remove(self, platform: str, user: str, by: str) -> None:
        """Shut somebody out who was let in by code. Raises NotFound, Conflict, StoreError."""

        def shut_out(found: PairingList) -> PairingList | None:
            left = tuple(one for one in found.paired if one.user != user)
            return PairingList(left, found.waiting) if len(left) < len(found.paired) else None

        if not await self._change(platform, shut_out):
            raise NotFound(f"{platform}:{user} was not let in by a code; `shoal pair list` shows who was.")
        await self._note("unpair", platform, user, by)
        self.removed()

    async def _change(self, platform: str, change: Callable[[PairingList], PairingList | None]) -> bool:
        """Change the list, anew while others do so too; False when `change` wants it as it is. Raises Conflict."""
        for _ in range(SWAPS_MAX):
            raw, found = await self._read(platform)
            changed = change(found)
            if changed is None:
                return False
            value = msgspec.json.encode(changed).decode()
            if await self.store.settings.swap(SCOPE, f"people:{platform}", raw, value):
                return True
        raise Conflict("Others keep changing the list of people. Try again.")

    async def _read(self, platform: str) -> tuple[str | None, PairingList]:
        """The value as it is stored, and what it says now."""
        raw = await self.store.settings.get(SCOPE, f"people:{platform}")
        try:
            found = _rosters.decode(raw) if raw else PairingList()
        except UNREADABLE as error:
            raise StoreCorrupt(
                f"The list of people let in on {platform} is damaged: {refusal(error, PairingList)}."
            ) from error
        now = self.clock.now()
        latest = now + timedelta(seconds=2 * CODE_STANDS_SECONDS)  # beyond that it is of a clock that ran ahead
        return raw, PairingList(found.paired, tuple(one for one in found.waiting if now < one.expires_at <= latest))

    async def _note(self, what: str, platform: str, user: str, by: str) -> None:
        entry = AuditEntry("access", f"{what} {platform}:{user}", "allow" if what == "pair" else "deny", user=by)
        await self.store.audit.record(CHAIN, [entry])


MESSAGES_BURST = 20
MESSAGE_SECONDS = 2.0
CODES_BURST = 5
CODE_EVERY_SECONDS = 600.0
PEOPLE_MAX = 10_000
OWN_EVENTS_MAX = 500
"""How far back an answer of the agent's is looked for that somebody refers to."""
TOO_MUCH = "That was a lot at once. Try again in a moment."
OWNER_IN = ("owner", "direct")
"""The setting that holds the direct conversation in which the owner wrote last."""

ASK_FOR_CODE = (
    "I do not know you yet. If you should have access, give this code to my owner, who can let you in with "
    "`shoal pair {code}`. It is good for an hour."
)


class OpenInbox:
    """Implements `InboxPort` for people who are let in already: behind the gates, and for platforms without one."""

    def __init__(self, orchestrator: "Orchestrator", commands: "CommandRouter") -> None:
        self.send = orchestrator.send
        self.decide = orchestrator.decide
        self.react = orchestrator.react
        self.thread_of = orchestrator.thread_of
        self.listens = orchestrator.listens
        self.pause_seconds = orchestrator.pause_seconds
        self.commands = commands.table
        self.command = commands.command
        self.suggestions = commands.suggestions

    async def admits(self, message: Prompt) -> bool:
        """Everybody who comes this far."""
        return True


class Admissions(msgspec.Struct, frozen=True, eq=False):
    """What the rules and the pairings say of people, on the platforms that have a gate (`gated`)."""

    links: Links
    pairing: Pairing
    gated: Collection[str]

    async def of(self, platform: str, author: Author, channel: str) -> Admission:
        """What the rules say of somebody in a channel now."""
        rules = self.links.rules[platform]
        if rules.channels and channel not in rules.channels:  # they may name a later id of it
            ids = await ids_of(self.pairing.store.settings, platform, channel)
            if not set(rules.channels).isdisjoint(ids):
                rules = msgspec.structs.replace(rules, channels=(*rules.channels, channel))
                self.links.rules[platform] = rules
        person = self.links.people.find(f"{platform}:{author.id}")
        if person.roles:
            author = msgspec.structs.replace(author, roles=(*author.roles, *person.roles))
        found = admit(rules, author, channel)
        if found is STRANGER and author.id and not author.is_bot:
            found = admit(rules, author, channel, await self.pairing.people(platform))
        if found is STRANGER and author.id and not author.is_bot:  # a chat that speaks may have moved as well
            for later in (await ids_of(self.pairing.store.settings, platform, author.id))[1:]:
                as_later = admit(rules, msgspec.structs.replace(author, id=later), channel)
                found = as_later if as_later.allowed else found
        if found.owner or author.is_bot:
            return found
        # What the person's other identities add: the owner of one platform is the owner here, a guest is a guest.
        shut = rules.channels and channel not in rules.channels
        for identity in person.identities:
            there, _, user = identity.partition(":")
            rules_there = self.links.rules.get(there)
            if rules_there is None or there == platform:
                continue
            admission = vouched(rules_there, user, await self.pairing.people(there))
            if admission.owner:
                return admission
            if admission.allowed and not shut:
                found = admission
        return found

    async def judge(self, thread: ThreadId, author: Author) -> Author:
        """Somebody whose words were read in a thread's past, trusted only if a gate trusts them there."""
        address = thread_address(thread)
        trusted = address.platform in self.gated and (await self.of(address.platform, author, address.channel)).trusted
        return msgspec.structs.replace(author, trusted=trusted)


class AccessGate:
    """Implements `InboxPort` for the people of one platform, in front of the orchestrator."""

    def __init__(
        self,
        inner: InboxPort,
        admissions: Admissions,
        pairing: Pairing,
        store: Store,
        clock: Clock,
        post: Callable[[NewPost], Awaitable[None]],
    ) -> None:
        self._inner = inner
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
        """Accept a message of somebody who may speak, or do what it commands; all others are dropped."""
        if isinstance(message, Deletion) and message.author.id == UNTOLD.id:
            return await self._inner.send(message)
        address = thread_address(message.thread)
        found = await self._admissions.of(address.platform, message.author, address.channel)
        if not found.allowed:
            await self._turn_away(message, address.platform)
            return Receipt("dropped")
        if not found.owner and not self._may_go_on(message.author.id):
            return Receipt("busy", answer=TOO_MUCH)
        if found.owner and isinstance(message, Prompt) and message.direct and message.thread != self._owner_in:
            await self._store.settings.put(*OWNER_IN, message.thread)
            self._owner_in = message.thread
        author = msgspec.structs.replace(message.author, trusted=found.trusted)
        message = msgspec.structs.replace(message, author=author)
        if isinstance(message, Prompt):
            message = msgspec.structs.replace(message, in_chat=True)
            if message.refers_to:
                refers_to = [await self._judged(message.thread, one) for one in bounded(message.refers_to)]
                message = msgspec.structs.replace(message, refers_to=tuple(refers_to))
            if message.attachments:
                files = await judged_files(message.thread, message.attachments, self._admissions.judge)
                message = msgspec.structs.replace(message, attachments=files)
            asked = self.commands.request(message)
            if asked is not None:
                return Receipt("answered", message.message_id, answer=await self._obey(asked, found.trust))
            if await self._is_answer(message, found.trust):
                return Receipt("accepted", message.message_id)
        receipt = await self._inner.send(message)
        if isinstance(message, Prompt) and receipt.status == "accepted" and not message.direct:
            await note_latest(self._store.settings, message.thread, message.author.id)
        if isinstance(message, Edit) and receipt.answer:  # nobody waits for what became of a change
            told = NewPost(f"edited:{message.thread}:{message.key}", message.thread, receipt.answer, "ephemeral")
            told = msgspec.structs.replace(told, reply_to=message.message_id, user=author.id)
            await self._post(told)
        return receipt

    async def admits(self, message: Prompt) -> bool:
        """Whether its author may speak there; a stranger is turned away, with a pairing code where that is due."""
        address = thread_address(message.thread)
        if (await self._admissions.of(address.platform, message.author, address.channel)).allowed:
            return True
        await self._turn_away(message, thread_address(message.thread).platform)
        return False

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Settle an approval for somebody who may speak. Raises what the orchestrator raises, and Forbidden."""
        found = await self._admissions.of(by.platform, Author(by.user, by.name, by.roles, trusted=False), by.channel)
        if not found.allowed:
            raise Forbidden("You have no access here.")
        return await self._inner.decide(approval, allow, msgspec.structs.replace(by, trust=found.trust), scope)

    async def react(self, reaction: Reaction) -> str:
        """Do what an emoji says, for somebody who may speak; others' mean nothing. Raises StoreError."""
        address = thread_address(reaction.thread)
        found = await self._admissions.of(address.platform, reaction.author, address.channel)
        if not found.allowed or not (found.owner or self._may_go_on(reaction.author.id)):
            return ""
        author = msgspec.structs.replace(reaction.author, trusted=found.trusted)
        return await self._inner.react(msgspec.structs.replace(reaction, author=author, trust=found.trust))

    async def command(self, asked: CommandRequest) -> str:
        """Do what a command asks that came as no message, for somebody who may speak, once a key. Raises StoreError."""
        address = thread_address(asked.thread)
        found = await self._admissions.of(address.platform, asked.author, address.channel)
        if not found.allowed:
            return "You have no access here."
        if not found.owner and not self._may_go_on(asked.author.id):
            return TOO_MUCH
        author = msgspec.structs.replace(asked.author, trusted=found.trusted)
        return await self._obey(msgspec.structs.replace(asked, author=author), found.trust)

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        address = thread_address(asked.thread)
        found = await self._admissions.of(address.platform, asked.author, address.channel)
        return await self._inner.suggestions(asked) if found.allowed else ()

    async def _obey(self, asked: CommandRequest, trust: Trust) -> str:
        """Do what a command of somebody with access asks, once a key. Raises StoreError."""
        asked = msgspec.structs.replace(asked, by=asked.author.asker(asked.thread, trust))
        platform = thread_address(asked.thread).platform
        once, at = f"command:{platform}:{asked.key}", str(to_micros(self._clock.now()))
        try:
            is_new = await self._store.settings.swap(ONCE, once, None, at)
            return await self._inner.command(asked) if is_new else ""
        except StoreError:  # the platform delivers it again
            await self._store.settings.drop(ONCE, once, at)
            raise

    async def _judged(self, thread: ThreadId, one: Reference) -> Reference:
        """What somebody refers to, trusted as its author is. An answer of the agent's is as the journal has it: told
        where it was given without untrusted content in mind, untrusted where it was not, and else left out."""
        if not one.own:
            return msgspec.structs.replace(one, author=await self._admissions.judge(thread, one.author))
        text, trusted = "", True
        found = await self.thread_of(channel_of(thread), one.message_id) if one.message_id else None
        post = await self._store.outbox.post_of(found, one.message_id) if found is not None else ""
        turn = turn_of_reply(post) or turn_of_preview(post)
        info = await self._store.journal.thread(found) if found is not None and turn else None
        if found is not None and info is not None:
            events = await self._store.journal.events(found, max(0, info.last_seq - OWN_EVENTS_MAX))
            for event in reversed(events):
                if event.turn == turn and isinstance(event.data, AssistantSaid) and event.data.text:
                    text, trusted = one.text or event.data.text, not event.data.tainted_by
                    break
        return msgspec.structs.replace(one, text=text, author=msgspec.structs.replace(one.author, trusted=trusted))

    def _may_go_on(self, user: str) -> bool:
        now = self._clock.monotonic()
        bucket = self._buckets.pop(user, None) or Bucket(MESSAGES_BURST, MESSAGE_SECONDS, now)
        self._buckets[user] = bucket
        if len(self._buckets) > PEOPLE_MAX:
            self._buckets.popitem(last=False)
        return bucket.take(now)

    async def _turn_away(self, message: Inbound, platform: str) -> None:
        log.info("a stranger was turned away", extra={"platform": platform})
        if not isinstance(message, Prompt) or not message.direct or message.author.is_bot or not message.author.id:
            return
        if self._codes.take(self._clock.monotonic()):
            code = await self._pairing.ask(platform, message.author)
            if code:
                await self._say(message, ASK_FOR_CODE.format(code=code))

    async def _is_answer(self, message: Prompt, trust: Trust) -> bool:
        """Take a decision or a pairing that was written as a message; False when it is neither."""
        if message.attachments:  # somebody sends files, which a turn has to take
            return False
        address, author, words = thread_address(message.thread), message.author, message.text.split()
        if trust == "owner" and len(words) == 2 and words[0].lstrip("/!").lower() == "pair":
            try:
                by = f"{address.platform}:{author.id}"
                _, user = await self._pairing.confirm(words[1], (address.platform,), by)
                said = f"{user} may speak with me now."
            except (NotFound, InvalidInput, Conflict) as error:
                said = str(error)
            await self._say(message, said)
            return True
        answer = parse_answer(message.text)
        if answer is None:
            return False
        outbox, named = self._store.outbox, answer.approval
        if not named:
            if await outbox.fate(_told(message)) is not None:  # it was delivered twice
                return True
            if message.reply_to:
                named = approval_of(await outbox.post_of(message.thread, message.reply_to))
            if not named and any(one.kind in ("reply", "quote") and not one.own for one in message.refers_to):
                return False  # it answers another person
        meant = await self._store.approvals.meant(message.thread, named)
        if len(meant) != 1:
            return False
        try:
            await self._inner.decide(meant[0].id, answer.allow, author.asker(message.thread, trust), answer.scope)
            said = "Allowed." if answer.allow else "Denied."
        except (Conflict, Gone, Forbidden, InvalidInput) as error:
            said = str(error)
        await self._say(message, said)
        return True

    async def _say(self, message: Prompt, text: str) -> None:
        await self._post(NewPost(_told(message), message.thread, text, reply_to=message.message_id))


def _told(message: Prompt) -> str:
    """The id of the post that tells its author what became of a message."""
    return f"door:{message.thread}:{message.key}"
