"""The Google Chat adapter: takes events by HTTP or Pub/Sub, posts and edits as the app's service account."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from datetime import datetime

import msgspec

from shoal.chat.account import NOT_READY, NOT_STORED, TAKEN, UNAUTHORIZED, ChatAccount
from shoal.chat.google_chat.inbound import WHOLE, Event, Published, Space, prompt_of, push_in, time_of
from shoal.chat.google_chat.intake import Intake
from shoal.chat.google_chat.outbound import LIMITS, content_of, message_of, place_of, request_id
from shoal.chat.google_chat.service import GoogleChatSettings, Service
from shoal.chat.rest import Refusal
from shoal.chat.tokens import BadToken, check_package
from shoal.domain.calls import HttpAnswer
from shoal.domain.clock import Clock, iso
from shoal.domain.errors import InvalidId, PlatformError, StoreError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Prompt
from shoal.domain.ports import InboxPort
from shoal.domain.posts import Button, ChatLimits, OutboundPost
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

PULL_SECONDS = 100.0
"""How long Pub/Sub may hold a pull open when there is nothing."""
PULL_MAX = 10
PAUSE_SECONDS = 1.0
"""Between pulls that bring nothing."""
NO_EVENT = HttpAnswer(400, b'{"error":"bad_request","message":"The body is no event."}')


class _Received(msgspec.Struct, frozen=True, rename="camel"):
    ack_id: str
    message: Published = Published()


class _Pulled(msgspec.Struct, frozen=True, rename="camel"):
    received_messages: tuple[_Received, ...] = ()


class _Done(msgspec.Struct, frozen=True):
    pass


class GoogleChatAdapter:
    """Implements `ChatAdapter` and `HttpInbound`."""

    limits: ChatLimits

    def __init__(self, platform: str, settings: GoogleChatSettings, home: Home, store: Settings, clock: Clock) -> None:
        check_package("google_chat")
        self.platform = platform
        self.limits = msgspec.structs.replace(LIMITS, has_history=settings.read_history)
        self._settings = settings
        self._clock = clock
        self._account = ChatAccount(platform, clock, self.post, whispers=True)
        self._service = Service(settings, clock)
        self._intake = Intake(self._account, settings.agent, self._service, home, store, clock)
        self._inbox: InboxPort | None = None
        self.connected = self._account.connected

    # ---- in ----

    async def run(self, inbox: InboxPort) -> None:
        """Take events in until cancelled; reconnect with backoff by itself."""
        self._inbox = inbox
        self.connected.set()
        try:
            await self._account.keep_connected(lambda: self._stay(inbox))
        finally:
            self._inbox = None
            self.connected.clear()
            await self._service.rest.close()

    async def _stay(self, inbox: InboxPort) -> None:
        await self._service.rest.token()
        log.info("connected", extra={"platform": self.platform})
        self._account.works()
        if not self._settings.subscription:
            await asyncio.Event().wait()
        while True:
            await self._pull(inbox)
            self._account.works()

    async def _pull(self, inbox: InboxPort) -> None:
        """Take in what waits at the subscription, and acknowledge each event after it was stored."""
        pulled = await self._service.pubsub("pull", _Pulled, {"maxMessages": PULL_MAX}, PULL_SECONDS)
        now = self._clock.now()  # Pub/Sub hands them out in any order
        for received in sorted(pulled.received_messages, key=lambda one: time_of(one.message.publish_time, now)):
            try:
                await self._intake.take_published(received.message, inbox)
            except InvalidId as error:
                log.info("an event was left", extra={"platform": self.platform, "why": str(error)})
            await self._service.pubsub("acknowledge", _Done, {"ackIds": [received.ack_id]}, PULL_SECONDS)
        if not pulled.received_messages:
            await self._clock.sleep(PAUSE_SECONDS)

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """An event of Google's. Answers 401 without its token, 503 when it has to come again."""
        push = push_in(body)
        try:
            await (self._service.check_event(headers) if push is None else self._service.check_push(headers))
            event = None if push is not None else msgspec.json.decode(body, type=Event)
        except BadToken as error:
            log.info("an event was refused", extra={"platform": self.platform, "why": str(error)})
            return UNAUTHORIZED
        except UNREADABLE:
            return NO_EVENT
        except PlatformError as error:
            log.warning("events cannot be checked: %s", error, extra={"platform": self.platform})
            return NOT_READY
        if self._inbox is None:
            return NOT_READY
        try:
            if event is not None:
                await self._intake.take(event, self._inbox)
            elif push is not None:
                await self._intake.take_published(push.message, self._inbox)
        except InvalidId:
            return NO_EVENT if push is None else TAKEN  # a push that is refused would come for days
        except (StoreError, PlatformError):
            log.exception("an event was not taken in", extra={"platform": self.platform})
            return NOT_STORED
        return TAKEN

    async def close(self) -> None:
        """Give connections back; for who posts without `run`."""
        await self._service.rest.close()

    # ---- out ----

    async def post(self, post: OutboundPost) -> str:
        """Post and return the message's name. Raises PlatformError."""
        if post.file is not None:
            size = await asyncio.to_thread(_size, post)
            note = f"The file {post.file.name} ({size:,} bytes) cannot be sent here: Google Chat takes none from apps."
            post = msgspec.structs.replace(post, markdown=f"{post.markdown}\n\n{note}".strip())
        space, thread = place_of(post.thread)
        private = post.kind == "ephemeral" and bool(post.user) and bool(thread)
        quoted_at = "" if thread or not post.reply_to else self._intake.changed_at(post.reply_to)
        content = message_of(post, private=private, quoted_at=quoted_at)
        try:
            made = await self._service.create(space, content, request_id(post.key))
        except Refusal as refusal:
            if not quoted_at or refusal.status != 400:
                raise
            content = message_of(post, private=private)  # what it answers was changed or deleted meanwhile
            made = await self._service.create(space, content, request_id(post.key))
        return made.name

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a posted message. Raises PlatformError."""
        await self._service.update(message_id, content_of(markdown, buttons))

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        await self._service.delete(message_id)

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Nothing: Google Chat shows no typing of apps."""

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a space, or to a person by their id, and return the thread this opens. Raises PlatformError."""
        is_person = channel.isdecimal()
        if is_person:
            channel = (await self._service.direct_space(channel)).removeprefix("spaces/")
        made = await self._service.create(
            f"spaces/{channel}", content_of(text, ()), request_id(key or f"open:{self._clock.new_id()}")
        )
        thread = WHOLE if is_person else made.thread.name.rpartition("/")[2] or WHOLE
        return make_thread_id(self.platform, channel, thread)

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """What others wrote in a thread, oldest first, the newest `limit` of it; nothing without the right to read.

        Raises PlatformError.
        """
        if not self._settings.read_history:
            return
        space, name = place_of(thread)
        for message in await self._service.newest(space, name, iso(after) if after is not None else "", limit):
            prompt = prompt_of(self.platform, message, Space(space), time_of(message.create_time, self._clock.now()))
            if prompt.text and message.sender.type != "BOT":
                yield msgspec.structs.replace(prompt, thread=thread)


def _size(post: OutboundPost) -> int:
    assert post.file is not None
    try:
        return post.file.stat().st_size
    except OSError as error:
        reason = f"The file {post.file.name!r} cannot be read: {error.strerror}."
        raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error
