"""The door of a platform: every message and click of its people comes through here before anything else sees it.

    somebody            what happens
    ------------------  --------------------------------------------------------------------------------
    the owner           in, trusted; `pair CODE` lets a stranger in
    listed or paired    in, trusted; `allow ID` and `deny ID` answer a question
    let in by `*`       in, not trusted (what they say taints)
    a stranger          dropped; in a direct message they get a pairing code, one at a time, a few an hour in all

A list of paired people that cannot be read closes the door to all but the owner and those of the configuration.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol

import msgspec

from shoal.actors.pairing import Pairing
from shoal.domain.clock import Clock, to_micros
from shoal.domain.commands import Asked
from shoal.domain.errors import Conflict, Forbidden, Gone, InvalidInput, NotFound, StoreError
from shoal.domain.events import Scope
from shoal.domain.ids import ApprovalId, ThreadId, thread_address, unopened
from shoal.domain.messages import Author, Inbound, Prompt, Receipt
from shoal.domain.permissions import Asker, Trust
from shoal.domain.ports import InboxPort
from shoal.domain.records import NewPost, NewTrigger
from shoal.domain.store import ONCE, Store
from shoal.permissions.access import NO_LINKS, STRANGER, AccessRules, Admission, Bucket, People, admit, vouched
from shoal.permissions.approvals import Answer, parse_answer

log = logging.getLogger(__name__)

MESSAGES_BURST = 20
MESSAGE_SECONDS = 2.0
CODES_BURST = 5
CODE_EVERY_SECONDS = 600.0
PEOPLE_MAX = 10_000
OWNER_IN = ("owner", "direct")
"""The setting that holds the direct conversation in which the owner wrote last."""

ASK_FOR_CODE = (
    "I do not know you yet. If you should have access, give this code to my owner, who can let you in with "
    "`shoal pair {code}`. It is good for an hour."
)


class Links(msgspec.Struct, frozen=True):
    """Who is the same person on several platforms, and the rules of each platform that has a door."""

    people: People = NO_LINKS
    rules: Mapping[str, AccessRules] = {}


UNLINKED = Links()


class Voice(Protocol):
    """How the door answers somebody."""

    async def post(self, post: NewPost) -> None:
        """Put a message into the outbox."""
        ...


class Door:
    """Implements `InboxPort` for the people of one platform, in front of the orchestrator."""

    def __init__(
        self,
        inner: InboxPort,
        rules: AccessRules,
        pairing: Pairing,
        store: Store,
        clock: Clock,
        voice: Voice,
        links: Links = UNLINKED,
    ) -> None:
        self._inner = inner
        self._rules = rules
        self._pairing = pairing
        self._store = store
        self._clock = clock
        self._voice = voice
        self._links = links
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._owner_in = ThreadId("")
        self._codes = Bucket(CODES_BURST, CODE_EVERY_SECONDS, clock.monotonic())

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message of somebody who may speak; all others are dropped."""
        address = thread_address(message.thread)
        found = await self._admission(address.platform, message.author, address.channel)
        if not found.allowed:
            await self._turn_away(message, address.platform)
            return Receipt("dropped")
        if not found.owner and not self._may_go_on(message.author.id):
            return Receipt("busy")
        if found.owner and isinstance(message, Prompt) and message.direct and message.thread != self._owner_in:
            await self._store.settings.put(*OWNER_IN, message.thread)
            self._owner_in = message.thread
        author = msgspec.structs.replace(message.author, trusted=found.trusted)
        message = msgspec.structs.replace(message, author=author)
        if isinstance(message, Prompt) and await self._is_answer(message, found.trust):
            return Receipt("accepted", message.message_id)
        return await self._inner.send(message)

    async def admits(self, message: Prompt) -> bool:
        """Whether its author may speak there; a stranger is turned away, with a pairing code where that is due."""
        address = thread_address(message.thread)
        if (await self._admission(address.platform, message.author, address.channel)).allowed:
            return True
        await self._turn_away(message, address.platform)
        return False

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Settle an approval for somebody who may speak. Raises what the orchestrator raises, and Forbidden."""
        found = await self._admission(by.platform, Author(by.user, by.name, by.roles, trusted=False), by.channel)
        if not found.allowed:
            raise Forbidden("You have no access here.")
        return await self._inner.decide(approval, allow, msgspec.structs.replace(by, trust=found.trust), scope)

    async def command(self, asked: Asked) -> str:
        """Do what a slash command asks, for somebody who may speak, once a key. Raises StoreError."""
        address = thread_address(asked.thread)
        found = await self._admission(address.platform, asked.author, address.channel)
        if not found.allowed:
            return "You have no access here."
        if not found.owner and not self._may_go_on(asked.author.id):
            return "That was a lot at once. Try again in a moment."
        author = msgspec.structs.replace(asked.author, trusted=found.trusted)
        once, at = f"command:{address.platform}:{asked.key}", str(to_micros(self._clock.now()))
        if not await self._store.settings.swap(ONCE, once, None, at):
            return ""
        try:
            return await self._inner.command(msgspec.structs.replace(asked, author=author))
        except StoreError:  # the platform delivers it again
            await self._store.settings.drop(ONCE, once, at)
            raise

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """The thread that a message belongs to. Raises StoreError."""
        return await self._inner.thread_of(channel, message_id, key)

    async def judge(self, thread: ThreadId, author: Author) -> Author:
        """Somebody whose words were read in a thread's past, trusted only if the rules trust them there."""
        return msgspec.structs.replace(author, trusted=(await self.admission(thread, author)).trusted)

    async def admission(self, thread: ThreadId, author: Author) -> Admission:
        """What the rules say of somebody in a thread's channel now."""
        address = thread_address(thread)
        return await self._admission(address.platform, author, address.channel)

    async def _admission(self, platform: str, author: Author, channel: str) -> Admission:
        person = self._links.people.find(f"{platform}:{author.id}")
        if person.roles:
            author = msgspec.structs.replace(author, roles=(*author.roles, *person.roles))
        found = admit(self._rules, author, channel)
        if found is STRANGER and author.id and not author.is_bot:
            found = admit(self._rules, author, channel, await self._pairing.people(platform))
        if found.owner or author.is_bot:
            return found
        return await self._vouched(found, person.identities, platform, channel)

    async def _vouched(self, found: Admission, identities: tuple[str, ...], platform: str, channel: str) -> Admission:
        """What the person's other identities add: the owner of one platform is the owner here, a guest is a guest."""
        shut = self._rules.channels and channel not in self._rules.channels
        for identity in identities:
            there, _, user = identity.partition(":")
            rules = self._links.rules.get(there)
            if rules is None or there == platform:
                continue
            admission = vouched(rules, user, await self._pairing.people(there))
            if admission.owner:
                return admission
            if admission.allowed and not shut:
                found = admission
        return found

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
        words = message.text.split()
        if trust == "owner" and len(words) == 2 and words[0].lstrip("/!").lower() == "pair":
            await self._say(message, await self._pair(words[1], message))
            return True
        answer = parse_answer(message.text)
        approval = await self._meant(message, answer) if answer is not None else None
        if answer is None or approval is None:
            return False
        address = thread_address(message.thread)
        author = message.author
        by = Asker(
            trust=trust,
            user=author.id,
            name=author.name,
            roles=author.roles,
            platform=address.platform,
            channel=address.channel,
        )
        try:
            await self._inner.decide(approval, answer.allow, by, answer.scope)
            said = "Allowed." if answer.allow else "Denied."
        except (Conflict, Gone, Forbidden, InvalidInput) as error:
            said = str(error)
        await self._say(message, said)
        return True

    async def _pair(self, code: str, message: Prompt) -> str:
        platform = thread_address(message.thread).platform
        try:
            _, user = await self._pairing.confirm(code, (platform,), f"{platform}:{message.author.id}")
        except (NotFound, InvalidInput, Conflict) as error:
            return str(error)
        return f"{user} may speak with me now."

    async def _meant(self, message: Prompt, answer: Answer) -> ApprovalId | None:
        """The approval an answer names: by its whole id anywhere, by the end of it among the thread's open ones."""
        whole = await self._store.approvals.get(ApprovalId(answer.approval.upper()))
        if whole is not None:
            return whole.id
        pending = await self._store.approvals.search(thread=message.thread)
        ends = [one.id for one in pending if one.id.upper().endswith(answer.approval.upper())]
        return ends[0] if len(ends) == 1 else None

    async def _say(self, message: Prompt, text: str) -> None:
        await self._voice.post(NewPost(f"door:{message.key}", message.thread, text, reply_to=message.message_id))


async def judged(doors: Mapping[str, Door], thread: ThreadId, author: Author) -> Author:
    """Somebody whose words were read in a thread's past, as the platform's door judges them; without one, untrusted."""
    door = doors.get(thread_address(thread).platform)
    return await door.judge(thread, author) if door is not None else msgspec.structs.replace(author, trusted=False)


async def asked_for(doors: Mapping[str, Door], trigger: NewTrigger) -> Author:
    """Who asked for a trigger that was stored without its author, trusted as the present rules trust them there.

    The command line and the API said `owner`, and nobody else is called so where the door lets no such person in.
    """
    thread = trigger.thread or unopened(trigger.platform, trigger.channel)
    author = Author(trigger.created_by or "shoal", trusted=False)
    if trigger.created_by != "owner":
        return await judged(doors, thread, author)
    door = doors.get(thread_address(thread).platform)
    admission = await door.admission(thread, author) if door is not None else STRANGER
    return msgspec.structs.replace(author, trusted=admission.trusted or not admission.allowed)
