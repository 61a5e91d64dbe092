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
import secrets
from collections import OrderedDict
from datetime import datetime, timedelta

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.errors import Conflict, Forbidden, Gone, NotFound, StoreError
from shoal.domain.events import Scope
from shoal.domain.ids import ApprovalId, ThreadId, thread_address
from shoal.domain.messages import Author, Inbound, Prompt, Receipt
from shoal.domain.permissions import Asker
from shoal.domain.ports import InboxPort, ToolServices
from shoal.domain.records import AuditEntry, NewPost
from shoal.domain.store import Store
from shoal.permissions.access import STRANGER, AccessRules, Admission, Bucket, admit, code_digest, is_code, make_code
from shoal.permissions.approvals import Answer, parse_answer

log = logging.getLogger(__name__)

MESSAGES_BURST = 20
MESSAGE_SECONDS = 2.0
CODES_BURST = 5
CODE_EVERY_SECONDS = 600.0
CODE_STANDS_SECONDS = 3600.0
CODES_MAX = 20
PEOPLE_MAX = 10_000
SCOPE = "access"

ASK_FOR_CODE = (
    "I do not know you yet. If you should have access, give this code to my owner, who can let you in with "
    "`shoal pair {code}`. It is good for an hour."
)


class Request(msgspec.Struct, frozen=True):
    """A stranger who waits for the owner; of the code only a digest is kept."""

    user: str
    name: str
    digest: str
    expires_at: datetime


_requests = msgspec.json.Decoder(tuple[Request, ...])
_people = msgspec.json.Decoder(tuple[str, ...])


class Pairing:
    """The people that were let in by code, and those who wait, by platform; kept in the store's settings."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def people(self, platform: str) -> tuple[str, ...]:
        """Who was paired; nobody when that cannot be read."""
        try:
            found = await self._store.settings.get(SCOPE, f"paired:{platform}")
            return _people.decode(found) if found else ()
        except (StoreError, msgspec.DecodeError):
            log.exception("who is paired cannot be read; access is closed", extra={"platform": platform})
            return ()

    async def ask(self, platform: str, author: Author) -> str:
        """A new code for a stranger; empty when one stands already or too many wait."""
        waiting = await self._waiting(platform)
        if len(waiting) >= CODES_MAX or any(one.user == author.id for one in waiting):
            return ""
        code = make_code(secrets.token_bytes(16))
        until = self._clock.now() + timedelta(seconds=CODE_STANDS_SECONDS)
        request = Request(author.id, author.name[:100], code_digest(code), until)
        await self._keep(platform, (*waiting, request))
        return code

    async def confirm(self, code: str, platforms: tuple[str, ...], by: str) -> tuple[str, str]:
        """Let whoever got this code in; returns platform and user. Raises NotFound for a wrong or expired code."""
        for platform in platforms:
            waiting = await self._waiting(platform)
            for request in waiting:
                if is_code(code, request.digest):
                    await self._keep(platform, tuple(one for one in waiting if one is not request))
                    people = dict.fromkeys((*await self.people(platform), request.user))
                    await self._store.settings.put(SCOPE, f"paired:{platform}", _encoded(tuple(people)))
                    entry = AuditEntry("access", f"pair {platform}:{request.user}", "allow", user=by)
                    await self._store.audit.record("access", [entry])
                    return platform, request.user
        raise NotFound("There is no such pairing code, or it has expired. Ask the person to write once more.")

    async def _waiting(self, platform: str) -> tuple[Request, ...]:
        found = await self._store.settings.get(SCOPE, f"waiting:{platform}")
        now = self._clock.now()
        return tuple(one for one in _requests.decode(found) if one.expires_at > now) if found else ()

    async def _keep(self, platform: str, waiting: tuple[Request, ...]) -> None:
        await self._store.settings.put(SCOPE, f"waiting:{platform}", _encoded(waiting))


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


class Door:
    """Implements `InboxPort` for the people of one platform, in front of the orchestrator."""

    def __init__(
        self, inner: InboxPort, rules: AccessRules, pairing: Pairing, store: Store, clock: Clock, services: ToolServices
    ) -> None:
        self._inner = inner
        self._rules = rules
        self._pairing = pairing
        self._store = store
        self._clock = clock
        self._services = services
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
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
        author = msgspec.structs.replace(message.author, trusted=found.trusted)
        message = msgspec.structs.replace(message, author=author)
        if isinstance(message, Prompt) and await self._is_answer(message, owner=found.owner):
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
        found = await self._admission(by.platform, Author(by.user, by.name, by.roles), by.channel)
        if not found.allowed:
            raise Forbidden("You have no access here.")
        return await self._inner.decide(approval, allow, by, scope)

    async def clear(self, thread: ThreadId, by: str) -> None:
        """Start the model's window anew for somebody who may speak. Raises Forbidden and NotFound."""
        address = thread_address(thread)
        if not (await self._admission(address.platform, Author(by), address.channel)).allowed:
            raise Forbidden("You have no access here.")
        await self._inner.clear(thread, by)

    async def status(self, thread: ThreadId) -> str:
        """What the thread does, in a line for a person."""
        return await self._inner.status(thread)

    async def _admission(self, platform: str, author: Author, channel: str) -> Admission:
        linked = self._rules.links.get(author.id)
        if linked and not author.is_bot:
            author = msgspec.structs.replace(author, id=linked)
        found = admit(self._rules, author, channel)
        if found is not STRANGER or author.is_bot or not author.id:
            return found
        return admit(self._rules, author, channel, await self._pairing.people(platform))

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

    async def _is_answer(self, message: Prompt, *, owner: bool) -> bool:
        """Take a decision or a pairing that was written as a message; False when it is neither."""
        words = message.text.split()
        if owner and len(words) == 2 and words[0].lstrip("/!").lower() == "pair":
            await self._say(message, await self._pair(words[1], message))
            return True
        answer = parse_answer(message.text)
        approval = await self._meant(message, answer) if answer is not None else None
        if answer is None or approval is None:
            return False
        address = thread_address(message.thread)
        author = message.author
        by = Asker(author.id, author.name, author.roles, address.platform, address.channel)
        try:
            await self._inner.decide(approval, answer.allow, by, answer.scope)
            said = "Allowed." if answer.allow else "Denied."
        except (Conflict, Gone, Forbidden) as error:
            said = str(error)
        await self._say(message, said)
        return True

    async def _pair(self, code: str, message: Prompt) -> str:
        platform = thread_address(message.thread).platform
        try:
            _, user = await self._pairing.confirm(code, (platform,), message.author.id)
        except NotFound as error:
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
        await self._services.post(NewPost(f"door:{message.key}", message.thread, text, reply_to=message.message_id))
