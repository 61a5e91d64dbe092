"""What comes in from Google Chat by HTTP or Pub/Sub, and the prompts, edits, deletions and reactions it makes."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from weakref import WeakValueDictionary

import msgspec

from shoal.chat.account import NOT_READY, NOT_STORED, TAKEN, UNAUTHORIZED, ChatAccount, IncomingFile
from shoal.chat.google_chat.wire import (
    WHOLE,
    WORKSPACE_EVENT,
    ChatEvent,
    ChatSpace,
    GoogleChatApi,
    PubSubMessage,
    SpaceAttachment,
    SpaceChanges,
    SpaceMessage,
    author_of,
    channel_of,
    command_of,
    is_direct,
    message_name,
    pressed_in,
    prompt_of,
    push_in,
    text_of,
    thread_of,
    time_of,
)
from shoal.chat.inbox import DECIDED, Recent, press
from shoal.chat.tokens import BadToken
from shoal.domain.clock import Clock
from shoal.domain.errors import InvalidId, PlatformError, StoreError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Attachment, Deletion, Edit, Prompt, Reaction
from shoal.domain.ports import InboxPort, Settings
from shoal.domain.settings import GoogleChatSettings
from shoal.domain.untrusted import UNREADABLE
from shoal.domain.webhooks import HttpAnswer

log = logging.getLogger(__name__)

PULL_SECONDS = 100.0
"""How long Pub/Sub may hold a pull open when there is nothing."""
PULL_MAX = 10
PAUSE_SECONDS = 1.0
"""Between pulls that bring nothing."""
SEEN_MAX = 2000
"""Messages whose time and author are remembered: an answer quotes them, and a deletion does not tell whose it is."""
BAD_BODY = HttpAnswer(400, b'{"error":"bad_request","message":"The body is not an event."}')


class _PulledMessage(msgspec.Struct, frozen=True, rename="camel"):
    ack_id: str
    message: PubSubMessage = PubSubMessage()


class _PullAnswer(msgspec.Struct, frozen=True, rename="camel"):
    received_messages: tuple[_PulledMessage, ...] = ()


class GoogleChatReceiver(ChatAccount):
    """Takes the events of one account in; those of one space one after the other."""

    whispers = True

    def __init__(
        self, platform: str, settings: GoogleChatSettings, home: Home, store: Settings, clock: Clock,
        inbound_url: str = "",
    ) -> None:  # fmt: skip
        super().__init__(platform, home, store, clock, settings.agent)
        self._settings = settings
        self._api = GoogleChatApi(settings, home, clock, inbound_url)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._seen: Recent[SpaceMessage] = Recent(SEEN_MAX)

    async def _connect(self, inbox: InboxPort) -> None:
        self._inbox = inbox
        self.connected.set()
        await self._api.token()
        log.info("connected", extra={"platform": self.platform})
        self._reset_backoff()
        if not self._settings.subscription:
            await asyncio.Event().wait()
        while True:
            pulled = await self._api.pubsub("pull", _PullAnswer, {"maxMessages": PULL_MAX}, PULL_SECONDS)
            now = self._clock.now()  # Pub/Sub hands them out in any order
            for received in sorted(pulled.received_messages, key=lambda one: time_of(one.message.publish_time, now)):
                try:
                    await self._take_published(received.message, inbox)
                except InvalidId as error:
                    log.info("an event was dropped", extra={"platform": self.platform, "why": str(error)})
                await self._api.pubsub("acknowledge", msgspec.Raw, {"ackIds": [received.ack_id]}, PULL_SECONDS)
            if not pulled.received_messages:
                await self._clock.sleep(PAUSE_SECONDS)
            self._reset_backoff()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """An event of Google's. Answers 401 without its token, 503 when it has to be sent again."""
        push = push_in(body)
        try:
            await (self._api.check_event(headers) if push is None else self._api.check_push(headers))
            event = None if push is not None else msgspec.json.decode(body, type=ChatEvent)
        except BadToken as error:
            log.info("an event was refused", extra={"platform": self.platform, "why": str(error)})
            return UNAUTHORIZED
        except UNREADABLE:
            return BAD_BODY
        except PlatformError as error:
            log.warning("events cannot be checked: %s", error, extra={"platform": self.platform})
            return NOT_READY
        if self._inbox is None:
            return NOT_READY
        try:
            if event is not None:
                await self._take(event, self._inbox)
            elif push is not None:
                await self._take_published(push.message, self._inbox)
        except InvalidId:
            return BAD_BODY if push is None else TAKEN  # a push that is refused would come for days
        except (StoreError, PlatformError):
            log.exception("an event was not taken in", extra={"platform": self.platform})
            return NOT_STORED
        return TAKEN

    async def _take(self, event: ChatEvent, inbox: InboxPort) -> None:
        """Take in what somebody did with the app. Raises StoreError, InvalidId."""
        message = event.message
        # The event describes the space better than its message does.
        space = event.space if event.space.name or message is None else message.space
        lock = self._locks.setdefault(event.space.name, asyncio.Lock())
        async with lock:
            match event.type:
                case "MESSAGE" | "ADDED_TO_SPACE" | "APP_COMMAND" if message is not None:
                    await self._take_message(message, space, inbox, addressed=True)
                case "CARD_CLICKED":
                    thread = thread_of(self.platform, message or SpaceMessage(), space)
                    answer = await press(pressed_in(event), thread, author_of(event.user), inbox)
                    if answer not in DECIDED:
                        await self._answer(self._action_prompt(event, thread, ""), answer)
                case "APP_COMMAND":
                    text = command_of(event)
                    thread = thread_of(self.platform, SpaceMessage(), event.space)
                    prompt = self._action_prompt(event, thread, text)
                    if text and not prompt.author.is_bot and await inbox.admits(prompt):
                        await self._take_in(prompt, inbox)
                case _:
                    pass

    def _action_prompt(self, event: ChatEvent, thread: ThreadId, text: str) -> Prompt:
        """What somebody did, as a prompt."""
        when = event.event_time or hashlib.sha256(msgspec.json.encode(event)).hexdigest()
        key = f"{event.type}/{when}/{event.user.name}"
        return Prompt(thread, key, text, author_of(event.user), self._clock.now(), direct=is_direct(event.space))

    async def _take_published(self, published: PubSubMessage, inbox: InboxPort) -> None:
        """Take in what came by Pub/Sub; what cannot be read is dropped. Raises StoreError, InvalidId, PlatformError."""
        try:
            if not published.kind.startswith(WORKSPACE_EVENT):
                await self._take(msgspec.json.decode(published.content(), type=ChatEvent), inbox)
                return
            changes = msgspec.json.decode(published.content(), type=SpaceChanges)
        except UNREADABLE:
            return
        verb = published.kind.rpartition(".")[2].removeprefix("batch").lower()
        messages, reactions = changes.found()
        for message in messages:
            lock = self._locks.setdefault(f"spaces/{channel_of(message.name)}", asyncio.Lock())
            async with lock:
                await self._take_change(verb, message, inbox)
        for reaction in reactions if verb == "created" else ():
            name = message_name(reaction.name)
            if reaction.user.type == "BOT" or not reaction.emoji.unicode or not channel_of(name):
                continue
            thread = await inbox.thread_of(self._prefix(channel_of(name)), name)
            if thread is not None:
                await inbox.send(Reaction(thread, reaction.emoji.unicode, author_of(reaction.user), name))

    async def _take_message(
        self, message: SpaceMessage, space: ChatSpace, inbox: InboxPort, *, addressed: bool
    ) -> None:
        """Google Chat says what is meant for the app; of the rest, all of a thread it was mentioned in is."""
        if message.sender.type == "BOT" or not message.sender.name:
            return
        self._note_seen(message)
        prompt = prompt_of(self.platform, message, space, self._clock.now())
        if not addressed and not await self._is_subscribed(prompt.thread):
            return
        if addressed and not prompt.direct and not prompt.thread.endswith(f":{WHOLE}"):
            await self._subscribe(prompt.thread)
        prefix = self._prefix(channel_of(message.name))
        joins = bool(prompt.reply_to) and await inbox.thread_of(prefix, prompt.reply_to) is not None
        prompt = msgspec.structs.replace(prompt, agent=self._agent, joins=joins)
        if await inbox.admits(prompt):
            await self._take_in(prompt, inbox, map(self._incoming, message.attachment))

    def _incoming(self, file: SpaceAttachment) -> IncomingFile:
        async def fetch() -> bytes:
            if file.attachment_data_ref is None or not file.attachment_data_ref.resource_name:
                raise PlatformError("The file is stored in Drive; it was not fetched.")
            return await self._api.fetch_media(file.attachment_data_ref.resource_name, self.download_bytes_max)

        return Attachment(file.content_name or "file", file.content_type or "application/octet-stream"), fetch

    def _note_seen(self, message: SpaceMessage) -> None:
        about = SpaceMessage(sender=message.sender, create_time=message.create_time)
        self._seen.put(message.name, msgspec.structs.replace(about, last_update_time=message.last_update_time))

    async def _take_change(self, verb: str, message: SpaceMessage, inbox: InboxPort) -> None:
        """Take in a message that was made, changed or deleted without the app being addressed."""
        place = make_thread_id(self.platform, channel_of(message.name), WHOLE)
        if verb == "deleted":
            sender = message.sender if message.sender.name else (self._seen.get(message.name) or message).sender
            gone = Deletion(place, message.name, author_of(sender), message.name)
            if sender.name:
                await self._pending.send(gone, inbox)
            else:  # Google Chat does not tell whose it was
                self._pending.keep(gone)
            return
        if not message.sender.name:  # the subscription tells names alone
            message = await self._api.get(message.name)
        if message.sender.type == "BOT" or verb not in ("created", "updated"):
            return
        if verb == "created":
            await self._take_message(message, message.space, inbox, addressed=False)
            return
        self._note_seen(message)
        text = text_of(message)
        if text:
            await self._pending.send(Edit(place, message.name, text, author_of(message.sender), message.name), inbox)
