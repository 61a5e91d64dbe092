"""Webhook platform: connects any program through JSON requests. See docs/platforms/webhook.md."""

import asyncio
import base64
import hashlib
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Literal, TypeAlias
from urllib.parse import quote

import msgspec

from shoal.kernel.clock import Clock, retry_after, to_micros
from shoal.kernel.errors import InvalidId, PlatformError, StoreError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.messages import Attachment, Author, Deletion, Edit, Prompt, Reaction, Reference
from shoal.kernel.ports import ONCE, InboxPort, Settings
from shoal.kernel.posts import Button, ChatLimits, OutboundPost
from shoal.kernel.schema import refusal
from shoal.kernel.settings_platforms import WebhookSettings
from shoal.kernel.untrusted import UNREADABLE
from shoal.kernel.webhooks import SECRET_CHARS_MIN, HttpAnswer, Proof, first_delivery, proof, proofs
from shoal.platforms.account import NOT_READY, NOT_STORED, ChatAccount, IncomingFile
from shoal.platforms.http import PlatformHttp
from shoal.platforms.inbox import press, read_file
from shoal.platforms.record import Platform

log = logging.getLogger(__name__)

MAIN_THREAD = "main"
"""Value of the thread part of a thread id for calls without a thread."""
THREAD_CHARS = 26
FILE_BYTES_MAX = 10_485_760
KEY_HEADER_CHARS_MAX = 255
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))


# ---- incoming ----


class WebhookPerson(msgspec.Struct, frozen=True):
    """A person, as identified by the calling program."""

    id: str
    name: str = ""
    roles: tuple[str, ...] = ()
    is_bot: bool = False


class WebhookFile(msgspec.Struct, frozen=True):
    """A file of a message.

    - `data`: the content in Base64.
    - `url`: a public URL, used if `data` is empty.
    - `author`: set if someone other than the sender wrote the file.
    """

    name: str
    media_type: str = "application/octet-stream"
    data: str = ""
    url: str = ""
    author: WebhookPerson | None = None


class WebhookReference(msgspec.Struct, frozen=True):
    """A message that another message replies to, quotes, forwards or follows. `own` is true if Shoal posted the
    message. `id` is then the id of that post.
    """

    text: str = ""
    kind: Literal["reply", "quote", "forward", "opening", "before"] = "reply"
    id: str = ""
    author: WebhookPerson = WebhookPerson("")
    own: bool = False


class WebhookCall(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every incoming request: the conversation and the person."""

    channel: str
    thread: str = MAIN_THREAD
    author: WebhookPerson


class MessageCall(WebhookCall, frozen=True, kw_only=True, tag="message", tag_field="type"):
    """A new message.

    - `id`: unique within the platform. A repeated id identifies the same message.
    - `named`: whether the message mentions the agent or is meant only for the agent.
    """

    id: str
    text: str = ""
    at: datetime | None = None
    direct: bool = False
    named: bool = True
    reply_to: str = ""
    refers_to: tuple[WebhookReference, ...] = ()
    files: tuple[WebhookFile, ...] = ()


class EditCall(WebhookCall, frozen=True, kw_only=True, tag="edit", tag_field="type"):
    """An edit of the message `id`. The edit with the latest `at` applies. Without `at`, the last edit received
    applies.
    """

    id: str
    text: str
    at: datetime | None = None


class DeletionCall(WebhookCall, frozen=True, kw_only=True, tag="deletion", tag_field="type"):
    """A deletion of the message `id`."""

    id: str


class ReactionCall(WebhookCall, frozen=True, kw_only=True, tag="reaction", tag_field="type"):
    """A reaction to the message `id` with an emoji."""

    id: str
    emoji: str


class ClickCall(WebhookCall, frozen=True, kw_only=True, tag="click", tag_field="type"):
    """A click on a button. `value` is the button's value."""

    value: str


Call: TypeAlias = MessageCall | EditCall | DeletionCall | ReactionCall | ClickCall


def place_of(platform: str, call: Call) -> ThreadId:
    return make_thread_id(platform, call.channel, call.thread)


def author_of(person: WebhookPerson) -> Author:
    return Author(person.id, person.name, person.roles, person.is_bot, trusted=False)


def prompt_of(platform: str, call: MessageCall, now: datetime, *, joins: bool) -> Prompt:
    """Convert a message to a prompt without its files. Raises InvalidId."""
    at = call.at if call.at is not None and call.at.tzinfo is not None else now
    return Prompt(
        thread=place_of(platform, call), key=call.id, text=call.text, author=author_of(call.author), at=at,
        reply_to=call.reply_to, message_id=call.id, direct=call.direct, joins=joins,
        refers_to=tuple(
            Reference(about.kind, about.text, author_of(about.author), about.id, own=about.own)
            for about in call.refers_to
        ),
    )  # fmt: skip


def revision_of(platform: str, call: EditCall | DeletionCall | ReactionCall) -> Edit | Deletion | Reaction:
    """Convert a request that edits, deletes or reacts to a message. Raises InvalidId."""
    thread, author = place_of(platform, call), author_of(call.author)
    match call:
        case EditCall():
            at = call.at if call.at is not None and call.at.tzinfo is not None else None
            return Edit(thread, call.id, call.text, author, call.id, at=at)
        case DeletionCall():
            return Deletion(thread, call.id, author, call.id)
        case ReactionCall():
            return Reaction(thread, call.emoji, author, call.id)


# ---- outgoing calls ----


class _FileOut(msgspec.Struct, frozen=True):
    name: str
    data: str


class WebhookPost(msgspec.Struct, frozen=True, omit_defaults=True):
    """An outgoing request.

    - `type`: `post` for a new message, `edit` for a change to the message `id`, or `typing` for a status in `text`. An
      empty status ends the typing indicator.
    - `key`: the idempotency key of a post. It is also the message's id, unless the response contains another id.
    """

    type: Literal["post", "edit", "typing"]
    channel: str
    thread: str
    key: str = ""
    id: str = ""
    kind: str = "text"
    text: str = ""
    buttons: tuple[Button, ...] = ()
    file: _FileOut | None = None
    reply_to: str = ""
    user: str = ""


class _PostedId(msgspec.Struct, frozen=True):
    id: str = ""


def key_header(key: str) -> str:
    """Encode a key as a header value. All characters except visible ASCII are percent-encoded. A long key is replaced
    by its SHA-256.
    """
    visible = quote(key, safe=_VISIBLE, errors="surrogatepass")
    return visible if len(visible) <= KEY_HEADER_CHARS_MAX else hashlib.sha256(visible.encode()).hexdigest()


class WebhookAdapter(ChatAccount[WebhookSettings]):
    """Implements `ChatAdapter` and `HttpInbound` for a platform that the configuration names."""

    limits = ChatLimits(
        text_chars_max=100_000,
        idempotent_posts=True,
        can_edit=True,
        can_upload=True,
        voice="mp3",
        has_preview=True,
        has_buttons=True,
        buttons_max=100,
    )

    def __init__(
        self, platform: str, settings: WebhookSettings, home: Home, store: Settings, clock: Clock, inbound_url: str = ""
    ) -> None:
        super().__init__(platform, settings, home, store, clock, inbound_url)
        self._http = PlatformHttp(platform)

    async def close(self) -> None:
        await self._http.close()

    # ---- in ----

    async def _connect(self, inbox: InboxPort) -> None:
        if len(self._settings.secret.reveal()) < SECRET_CHARS_MIN:
            log.warning(
                "rejecting webhook calls: platforms.webhook.%s.secret needs at least %d characters",
                self.platform, SECRET_CHARS_MIN,
            )  # fmt: skip
        self._inbox = inbox
        self.connected.set()
        await asyncio.Event().wait()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Process an incoming request. Returns 200 with the reply to the person.

        Returns 401 if the request is not signed, 400 if it is invalid, and 503 if it should be sent again.
        """
        now = self._clock.now()
        proved = proofs(headers, body, self._settings.secret.reveal(), now)
        if not proved:
            return _refusal(401, "unauthorized", "The signature is missing, wrong or too old.")
        try:
            call = msgspec.json.decode(body, type=Call)
            place_of(self.platform, call)
        except UNREADABLE as error:
            return _refusal(400, "bad_request", f"The call is invalid: {refusal(error, Call)}.")
        except InvalidId as error:
            return _refusal(400, "bad_request", str(error))
        if self._inbox is None:
            return NOT_READY
        try:
            answer = await self._take_once(call, proved, now, self._inbox)
        except StoreError:
            return NOT_STORED
        return HttpAnswer(200, msgspec.json.encode({"answer": answer}))

    async def _take_once(self, call: Call, proved: Sequence[Proof], now: datetime, inbox: InboxPort) -> str:
        """Process a request, unless it was already accepted.

        A repeated message is detected by its id, and other repeated requests by their signature. Requests with a bearer
        secret have no signature, so they are processed every time.
        """
        if not isinstance(call, MessageCall) and proved[0].kind == "bearer":
            return await self._take(call, inbox)
        delivery = await first_delivery(self._store, proved, f"platform:{self.platform}", now)
        if delivery is None:
            return ""
        if isinstance(call, MessageCall):
            return await self._take(call, inbox)
        once, at = f"call:{delivery.key}", str(to_micros(now))
        if not await self._store.swap(ONCE, once, None, at):
            return ""
        try:
            return await self._take(call, inbox)
        except StoreError:  # the sender will retry
            await self._store.drop(ONCE, once, at)
            raise

    async def _take(self, call: Call, inbox: InboxPort) -> str:
        if call.author.is_bot:
            self._left_out("message from a bot")
            return ""
        if isinstance(call, ClickCall):
            return await press(call.value, place_of(self.platform, call), author_of(call.author), inbox)
        if not isinstance(call, MessageCall):
            change = revision_of(self.platform, call)
            if isinstance(change, Reaction):
                return await inbox.react(change)
            await self._pending.send(change, inbox)
            return ""
        answered = await inbox.thread_of(self._prefix(call.channel), call.reply_to) if call.reply_to else None
        prompt = prompt_of(self.platform, call, self._clock.now(), joins=answered is not None)
        if answered is not None:
            prompt = msgspec.structs.replace(prompt, thread=answered)

        async def decoded(data: str) -> bytes:
            try:
                return base64.b64decode(data, validate=True)
            except ValueError as error:
                raise PlatformError("the file's data is not base64") from error

        files: list[IncomingFile] = []
        for file in call.files:
            author, url = author_of(file.author) if file.author is not None else None, "" if file.data else file.url
            about = Attachment(file.name, file.media_type, url=url, author=author)
            files.append((about, partial(decoded, file.data) if file.data else None))
        is_named, in_thread = call.named or answered is not None, call.thread != MAIN_THREAD
        follows = not is_named and await self._is_subscribed(prompt.thread)
        if not call.direct and not await self._is_for_agent(
            prompt, inbox, files, is_named=is_named, opens=in_thread, follows=follows
        ):
            return ""
        return await self._submit(prompt, inbox, files)

    # ---- out ----

    async def post(self, post: OutboundPost) -> str:
        """Post a message and return the id from the response, or the key if the response has no id. Raises
        PlatformError.
        """
        file = None
        if post.file is not None:
            content = await asyncio.to_thread(read_file, post.file, FILE_BYTES_MAX)
            file = _FileOut(post.file.name, base64.b64encode(content).decode())
        address = thread_address(post.thread)
        posted = await self._send(
            WebhookPost(
                "post", address.channel, address.thread, key=post.key, kind=post.kind, text=post.markdown,
                buttons=post.buttons, file=file, reply_to=post.reply_to, user=post.user
            ),
        )  # fmt: skip
        return posted.id or post.key

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        address = thread_address(thread)
        await self._send(
            WebhookPost("edit", address.channel, address.thread, id=message_id, text=markdown, buttons=buttons)
        )

    async def typing(self, thread: ThreadId, status: str) -> None:
        address = thread_address(thread)
        await self._send(WebhookPost("typing", address.channel, address.thread, text=status))

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Start a thread in a channel with this text and return its id. The same key returns the same thread. Raises
        PlatformError.
        """
        name = hashlib.sha256(key.encode()).hexdigest()[:THREAD_CHARS] if key else self._clock.new_id()
        thread = make_thread_id(self.platform, channel, name)
        await self.post(OutboundPost(thread, key or f"open:{thread}", text, maybe_posted=maybe_posted))
        return thread

    async def _send(self, out: WebhookPost) -> _PostedId:
        if not self._settings.post_url:
            return _PostedId()
        body = msgspec.json.encode(out)
        headers = {
            "content-type": "application/json",
            "x-shoal-signature": proof(self._settings.secret.reveal(), body, self._clock.now()),
        }
        if out.key:
            headers["idempotency-key"] = key_header(out.key)
        answer = await self._http.request("POST", self._settings.post_url, content=body, headers=headers)
        status = answer.status_code
        if status < 300:
            try:
                return msgspec.json.decode(answer.content, type=_PostedId)
            except UNREADABLE:
                return _PostedId()
        if status in (429, 503):
            seconds = retry_after(answer.headers, self._clock) or 1.0
            raise PlatformError(f"The rate limit of {self.platform} has been reached.", retry_after_seconds=seconds)
        if status in (401, 403):
            raise PlatformError(
                f"{self.platform} rejected the signature. Use the same platforms.webhook.{self.platform}.secret on "
                "both sides, and check both clocks."
            )
        if status < 500:
            raise PlatformError(f"{self.platform} returned status {status}.", permanent=True)
        raise PlatformError(f"{self.platform} returned status {status}.", outcome_unknown=True)


def _refusal(status: int, code: str, message: str) -> HttpAnswer:
    return HttpAnswer(status, msgspec.json.encode({"error": code, "message": message}))


PLATFORM = Platform(title="Webhook", settings=WebhookSettings, adapter="shoal.platforms.webhook:WebhookAdapter")
