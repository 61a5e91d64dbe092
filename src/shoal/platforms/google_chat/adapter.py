"""Google Chat adapter. Receives events over HTTP or Pub/Sub, and posts as the app's service account."""

import asyncio
import base64
import hashlib
import logging
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import datetime

import msgspec

from shoal.kernel.clock import Clock, iso
from shoal.kernel.errors import PlatformError, StoreError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.markup import is_link
from shoal.kernel.messages import UNTOLD, Attachment, Deletion, Edit, Prompt, Reaction, Reference
from shoal.kernel.ports import InboxPort, Settings
from shoal.kernel.posts import Button, ChatLimits, OutboundPost, Window
from shoal.kernel.webhooks import HttpAnswer
from shoal.markdown.dialects import ZERO_WIDTH_SPACE, escaped_markdown, flat_markdown, markdown_link
from shoal.markdown.render import render_markup
from shoal.platforms.account import (
    CONTEXT_SECONDS_MAX,
    NOT_READY,
    NOT_STORED,
    TAKEN,
    UNAUTHORIZED,
    ChatAccount,
    IncomingFile,
)
from shoal.platforms.google_chat.settings import GoogleChatSettings
from shoal.platforms.google_chat.wire import (
    WHOLE,
    WORKSPACE_EVENT,
    AddonEvent,
    ChatEvent,
    ChatSpace,
    GoogleChatApi,
    PubSubMessage,
    SpaceAttachment,
    SpaceChanges,
    SpaceMessage,
    addon_in,
    author_of,
    cards_of,
    channel_of,
    command_of,
    is_direct,
    message_name,
    pressed_in,
    prompt_of,
    push_in,
    space_in,
    text_of,
    thread_of,
)
from shoal.platforms.http import Fields, Json, PlatformRefusal
from shoal.platforms.inbox import DECIDED, Recent, press, time_of
from shoal.platforms.tokens import BadToken, check_package

log = logging.getLogger(__name__)
PULL_SECONDS = 100.0
"""Timeout for Pub/Sub requests. Pub/Sub may hold a pull request open until a message arrives."""
PULL_MAX = 10
PAUSE_SECONDS = 1.0
"""Pause after an empty pull."""
SEEN_MAX = 2000
"""Maximum number of messages whose timestamps are cached. A post that quotes a message must include that message's
timestamp.
"""
BUTTONS_MAX = 100
VALUE_BYTES_MAX = 512
EMPTY = "…"
NO_COMMAND = "I do not know that command. /help lists my commands, which you can also send as messages."
PRESSED = "shoal"
"""Name of the function that Shoal's buttons call."""
MARKUP_SYNTAX = "MARKUP_SYNTAX_MARKDOWN"
"""Markup format of Shoal's posts. Set explicitly, because the default differs between apps. Source:
developers.google.com/workspace/chat, format messages.
"""
_PERSON = re.compile(r"<users/[0-9]{1,40}>")
_ANYBODY = re.compile(r"<(?=users/)", re.IGNORECASE)


def _text(text: str) -> str:
    """Escape markup and mentions. A zero-width space after `<` disables a mention."""
    return escaped_markdown(_ANYBODY.sub(f"<{ZERO_WIDTH_SPACE}", text))


def _token(token: str) -> str:
    if _PERSON.fullmatch(token):
        return token
    return markdown_link(_text(token), token) if is_link(token) else _text(token)


def _silent(code: str) -> str:
    return _ANYBODY.sub(f"<{ZERO_WIDTH_SPACE}", code)


GOOGLE_CHAT_MARKUP = flat_markdown(_text, _token, _silent)
LIMITS = ChatLimits(
    opens_threads=True,
    text_chars_max=4096,
    markup=GOOGLE_CHAT_MARKUP,
    edit_seconds_min=2.0,
    windows=(Window(1, 1.0), Window(50, 1.0, "account")),
    idempotent_posts=True,
    can_edit=True,
    has_preview=True,
    has_buttons=True,
    buttons_max=BUTTONS_MAX,
)


class _PulledMessage(msgspec.Struct, frozen=True, rename="camel"):
    ack_id: str
    message: PubSubMessage = PubSubMessage()


class _PullAnswer(msgspec.Struct, frozen=True, rename="camel"):
    received_messages: tuple[_PulledMessage, ...] = ()


class GoogleChatAdapter(ChatAccount[GoogleChatSettings]):
    """Implements `ChatAdapter` and `HttpInbound`. Events from the same space are processed in order."""

    whispers = True

    def __init__(
        self, platform: str, settings: GoogleChatSettings, home: Home, store: Settings, clock: Clock,
        inbound_url: str = "",
    ) -> None:  # fmt: skip
        check_package("google_chat")
        super().__init__(platform, settings, home, store, clock, inbound_url)
        self.limits = msgspec.structs.replace(LIMITS, has_history=settings.read_history)
        self._api = GoogleChatApi(settings, home, clock, inbound_url)
        self._function = inbound_url if settings.addon_account else PRESSED
        self._seen: Recent[SpaceMessage] = Recent(SEEN_MAX)
        self._name = ""

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
            now = self._clock.now()  # Pub/Sub does not deliver in order
            for received in sorted(
                pulled.received_messages, key=lambda message: time_of(message.message.publish_time, now)
            ):
                await self._put(received.message)
                await self._api.pubsub("acknowledge", msgspec.Raw, {"ackIds": [received.ack_id]}, PULL_SECONDS)
            if not pulled.received_messages:
                await self._clock.sleep(PAUSE_SECONDS)
            self._reset_backoff()

    async def check(self) -> None:
        await self._api.token()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Verify and process an event from Google. Returns 401 if the token is missing or invalid, and 503 if Google
        should send the event again.
        """
        push, addon = push_in(body), addon_in(body)
        try:
            if addon is not None:
                await self._api.check_addon(headers, addon)
            else:
                await (self._api.check_event(headers) if push is None else self._api.check_push(headers))
        except BadToken as error:
            log.info("event rejected", extra={"platform": self.platform, "why": str(error)})
            return UNAUTHORIZED
        except PlatformError as error:
            log.warning("google chat event verification failed: %s", error, extra={"platform": self.platform})
            return NOT_READY
        if self._inbox is None:
            return NOT_READY
        event = self._event_in(body) if push is None else ChatEvent()
        if event is None:
            return TAKEN
        try:
            envelope = PubSubMessage(
                base64.b64encode(msgspec.json.encode(event)).decode()
            )  # wrap an HTTP event like a Pub/Sub message, so both are stored in the same format
            await self._put(envelope if push is None else push.message)
        except (StoreError, PlatformError):
            log.exception("accepting event failed", extra={"platform": self.platform})
            return NOT_STORED
        return TAKEN

    def _event_in(self, content: bytes) -> ChatEvent | None:
        if addon_in(content) is None:
            return self._decode(content, ChatEvent, "event")
        addon = self._decode(content, AddonEvent, "add-on event")
        return addon.plain() if addon is not None else None

    async def _put(self, published: PubSubMessage) -> None:
        await self._intake.put(space_in(published), msgspec.json.encode(published).decode())

    async def _take(self, event: ChatEvent, inbox: InboxPort) -> None:
        message = event.message
        # The event describes the space in more detail than the message.
        space = event.space if event.space.name or message is None else message.space
        if space.name and not is_direct(space):
            await self._channel_named(space.name.removeprefix("spaces/"), space.display_name)
        match event.type:
            case "APP_COMMAND" if message is not None and message.text.strip():
                # this event type has no argument text
                command = msgspec.structs.replace(message, argument_text=message.text)
                await self._take_message(command, space, inbox, addressed=True)
            case "MESSAGE" | "ADDED_TO_SPACE" if message is not None:
                await self._take_message(message, space, inbox, addressed=True)
            case "CARD_CLICKED":
                thread = thread_of(self.platform, message or SpaceMessage(), space)
                answer = await press(pressed_in(event), thread, author_of(event.user), inbox)
                if answer not in DECIDED:
                    await self._answer(self._action_prompt(event, thread, ""), answer)
            case "APP_COMMAND":
                thread = thread_of(self.platform, SpaceMessage(), event.space)
                prompt = self._action_prompt(event, thread, command_of(event, inbox.commands))
                if prompt.text and not prompt.author.is_bot:
                    await self._take_in(prompt, inbox)
                elif await inbox.admits(prompt):
                    await self._answer(prompt, NO_COMMAND)
            case "ADDED_TO_SPACE":
                thread = thread_of(self.platform, SpaceMessage(), event.space)
                await self._greet(self._action_prompt(event, thread, ""), inbox)
            case "REMOVED_FROM_SPACE" | "WIDGET_UPDATED" | "MESSAGE":
                self._left_out(event.type)
            case kind:
                self._not_understood(kind or "event without a type")

    def _action_prompt(self, event: ChatEvent, thread: ThreadId, text: str) -> Prompt:
        when = event.event_time or hashlib.sha256(msgspec.json.encode(event)).hexdigest()
        key = f"{event.type}/{when}/{event.user.name}"
        return Prompt(thread, key, text, author_of(event.user), self._clock.now(), direct=is_direct(event.space))

    async def _process_event(self, event: str, inbox: InboxPort) -> bool:
        published = msgspec.json.decode(event, type=PubSubMessage)
        content = published.content()
        if not published.kind.startswith(WORKSPACE_EVENT):
            done = self._event_in(content)
            if done is not None:
                await self._take(done, inbox)
            return done is not None
        changes = self._decode(content, SpaceChanges, published.kind)
        if changes is None:
            return False
        verb = published.kind.rpartition(".")[2].removeprefix("batch").lower()
        messages, reactions = changes.found()
        for message in messages:
            place = make_thread_id(self.platform, channel_of(message.name), WHOLE)
            if verb == "deleted":
                who = author_of(message.sender) if message.sender.name else UNTOLD
                await self._pending.send(Deletion(place, message.name, who, message.name), inbox)
                continue
            current = message
            if not message.sender.name:  # the subscription may deliver only the message's name
                current = await self._api.resource("GET", message.name, SpaceMessage)
            if (
                current.sender.type == "BOT"
                and verb == "created"
                and await self._own_name() not in ("", current.sender.name)
            ):
                self._overhear(self._read_back(current, current.space), ())
            if current.sender.type == "BOT":
                self._left_out("message from an app")
            if current.sender.type == "BOT" or verb not in ("created", "updated"):
                continue
            if verb == "created":
                await self._take_message(current, current.space, inbox, addressed=False)
                continue
            if await self._begins_a_turn(current, inbox):
                await self._take_message(current, current.space, inbox, addressed=True)
                continue
            self._note_seen(current)
            text = text_of(current)
            if text:
                changed_at = current.last_update_time
                at = time_of(changed_at, self._clock.now()) if changed_at else None
                change = Edit(place, current.name, text, author_of(current.sender), current.name, at=at)
                await self._pending.send(change, inbox)
        for reaction in reactions if verb == "created" else ():
            name = message_name(reaction.name)
            if reaction.user.type == "BOT" or not reaction.emoji.unicode or not channel_of(name):
                self._left_out(
                    ("reaction from an app") if reaction.user.type == "BOT" else "reaction with a custom emoji"
                )
                continue
            thread = await inbox.thread_of(self._prefix(channel_of(name)), name)
            if thread is not None:
                put = Reaction(thread, reaction.emoji.unicode, author_of(reaction.user), name)
                await self._take_reaction(put, inbox)
        return True

    async def _begins_a_turn(self, message: SpaceMessage, inbox: InboxPort) -> bool:
        own = await self._own_name()
        if not own or is_direct(message.space) or not message.mentions(own):
            return False
        prompt = prompt_of(self.platform, message, message.space, self._clock.now())
        return await self._is_unheard(prompt, self._prefix(channel_of(message.name)), inbox)

    async def _take_message(
        self, message: SpaceMessage, space: ChatSpace, inbox: InboxPort, *, addressed: bool
    ) -> None:
        if message.sender.type == "BOT" or not message.sender.name:
            self._left_out("message from an app" if message.sender.name else "message without an author")
            return
        self._note_seen(message)
        prompt = prompt_of(self.platform, message, space, self._clock.now())
        prefix = self._prefix(channel_of(message.name))
        joins = bool(prompt.reply_to) and await inbox.thread_of(prefix, prompt.reply_to) is not None
        files = [self._incoming(file) for file in message.attachment]
        is_named, opens = addressed or joins, not prompt.thread.endswith(f":{WHOLE}")
        follows = not prompt.direct and await self._is_subscribed(prompt.thread)
        if not prompt.direct and not await self._is_for_agent(
            prompt, inbox, files, is_named=is_named, opens=opens, follows=follows
        ):
            return
        prompt = msgspec.structs.replace(prompt, joins=joins)
        if prompt.refers_to and not await inbox.admits(prompt):
            return
        for reference in prompt.refers_to:  # the event does not identify the quoted message's author
            if reference.kind != "reply":
                continue
            try:
                async with asyncio.timeout(CONTEXT_SECONDS_MAX):
                    quoted = await self._api.resource("GET", reference.message_id, SpaceMessage)
            except (PlatformError, TimeoutError) as error:
                log.info("message lookup failed", extra={"platform": self.platform, "why": str(error)})
                continue
            names = (f"[file {file.content_name}]" for file in quoted.attachment)
            text = "\n".join(filter(None, (text_of(quoted), cards_of(quoted), *names))) or reference.text
            own = quoted.sender.type == "BOT" and joins
            quote = Reference("reply", text, author_of(quoted.sender), reference.message_id, own=own)
            prompt = msgspec.structs.replace(prompt, refers_to=(quote,))
        await self._take_in(prompt, inbox, files)

    def _begins(self, prompt: Prompt) -> bool:
        """Return True if the message starts its thread. Its name then ends in ID.ID, where ID is the thread's id."""
        first, _, rest = prompt.message_id.rpartition("/")[2].partition(".")
        return bool(rest) and first == rest

    def _incoming(self, file: SpaceAttachment) -> IncomingFile:
        async def fetch() -> bytes:
            if file.attachment_data_ref is None or not file.attachment_data_ref.resource_name:
                raise PlatformError("Shoal cannot download the file, because it is stored in Drive.")
            return await self._api.fetch_media(file.attachment_data_ref.resource_name, self.download_bytes_max)

        return Attachment(file.content_name or "file", file.content_type or "application/octet-stream"), fetch

    async def _own_name(self) -> str:
        """Return the app's resource name, which identifies its own messages. Returns an empty string until the app has
        posted.
        """
        self._name = self._name or await self._store.get(f"google_chat:{self.platform}", "name") or ""
        return self._name

    def _read_back(self, message: SpaceMessage, space: ChatSpace) -> Prompt:
        prompt = prompt_of(self.platform, message, space, self._clock.now())
        cards = cards_of(message) if message.sender.type == "BOT" else ""
        return msgspec.structs.replace(prompt, text="\n".join(filter(None, (prompt.text, cards))))

    def _note_seen(self, message: SpaceMessage) -> None:
        about = SpaceMessage(create_time=message.create_time, last_update_time=message.last_update_time)
        self._seen.put(message.name, about)

    # ---- sending ----

    async def close(self) -> None:
        await self._api.close()

    async def post(self, post: OutboundPost) -> str:
        file = post.file
        if file is not None:
            try:
                size = (await asyncio.to_thread(file.stat)).st_size
            except OSError as error:
                reason = f"Cannot read {file.name!r}: {error.strerror}."
                raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error
            note = f"Google Chat does not accept files from apps, so I could not send {file.name} ({size:,} bytes)."
            post = msgspec.structs.replace(post, markdown=f"{post.markdown}\n\n{note}".strip())
        space, thread = place_of(post.thread)
        private = post.kind == "ephemeral" and bool(post.user) and bool(thread)
        quoted = SpaceMessage() if thread else self._seen.get(post.reply_to) or SpaceMessage()
        quoted_at = quoted.last_update_time or quoted.create_time
        content = message_of(post, private=private, quoted_at=quoted_at, function=self._function)
        try:
            made = await self._api.create(space, content, request_id(post.key))
        except PlatformRefusal as refusal:
            if not quoted_at or refusal.code != 400:
                raise
            # the quoted message was edited or deleted, so post without the quote
            content = message_of(post, private=private, function=self._function)
            made = await self._api.create(space, content, request_id(post.key))
        if made.sender.name and made.sender.name != self._name:
            self._name = made.sender.name
            await self._store.put(f"google_chat:{self.platform}", "name", self._name)
        return made.name

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        mask = {"updateMask": "text,cardsV2"}
        await self._api.resource("PATCH", message_id, SpaceMessage, content_of(markdown, buttons, self._function), mask)

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        await self._api.resource("DELETE", message_id, msgspec.Raw)

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Start a thread in a space with this text and return its id. If `channel` is a user id, post to the direct
        conversation. Raises PlatformError.
        """
        is_person = channel.isdecimal()
        if is_person:
            query = {"name": f"users/{channel}"}
            space = await self._api.resource("GET", "spaces:findDirectMessage", ChatSpace, params=query)
            channel = space.name.removeprefix("spaces/")
        key = key or f"open:{self._clock.new_id()}"
        made = await self._api.create(f"spaces/{channel}", content_of(text, ()), request_id(key))
        thread = WHOLE if is_person else made.thread.name.rpartition("/")[2] or WHOLE
        return make_thread_id(self.platform, channel, thread)

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Yield those of the thread's newest `limit` messages that the app did not post, oldest first. Yields nothing
        unless the `read_history` setting is on. Raises PlatformError.
        """
        if not self._settings.read_history:
            return
        space, name = place_of(thread)
        own = await self._own_name()
        for message in await self._api.newest(space, name, iso(after) if after is not None else "", limit):
            prompt = self._read_back(message, ChatSpace(space))
            is_others = message.sender.type != "BOT" or message.sender.name not in ("", own)
            if prompt.text and is_others and (own or message.sender.type != "BOT"):
                yield msgspec.structs.replace(prompt, thread=thread)


def place_of(thread: ThreadId) -> tuple[str, str]:
    """Return the resource names of a thread's space and of the thread. The thread's name is empty if the space has no
    threads.
    """
    address = thread_address(thread)
    space = f"spaces/{address.channel}"
    return space, "" if address.thread == WHOLE else f"{space}/threads/{address.thread}"


def request_id(key: str) -> str:
    """Derive a UUID from a key. Google Chat creates only one message for each request id."""
    return str(uuid.UUID(bytes=hashlib.sha256(key.encode()).digest()[:16], version=4))


def message_of(post: OutboundPost, *, private: bool, quoted_at: str = "", function: str = PRESSED) -> Fields:
    """Build a message.

    - `private`: only the user in `post.user` sees the message.
    - `quoted_at`: the time of the last change to the message that this one replies to.
    - `function`: see `content_of`.
    """
    _, thread = place_of(post.thread)
    message: dict[str, Json] = {**content_of(post.markdown, post.buttons, function)}
    if thread:
        message["thread"] = {"name": thread}
    if private:
        message["privateMessageViewer"] = {"name": f"users/{post.user}"}
    if quoted_at:
        message["quotedMessageMetadata"] = {"name": post.reply_to, "lastUpdateTime": quoted_at}
    return message


def content_of(markdown: str, buttons: tuple[Button, ...], function: str = PRESSED) -> Fields:
    """Build a message's text and buttons. Without buttons, an empty list of cards removes existing ones.

    `function` is the function that buttons call. For an add-on, it is the endpoint's URL. The text may mention a single
    person as <users/ID>, but not everyone.
    """
    text = render_markup(markdown, GOOGLE_CHAT_MARKUP) or EMPTY
    cards: list[Json] = [{"cardId": "shoal", "card": card_of(buttons, function)}] if buttons else []
    return {"text": text, "markupSyntax": MARKUP_SYNTAX, "cardsV2": cards}


def card_of(buttons: tuple[Button, ...], function: str) -> Json:
    """Build a card of buttons. Raises PlatformError if Google Chat would reject it."""
    if len(buttons) > BUTTONS_MAX:
        raise PlatformError(f"A card may have at most {BUTTONS_MAX} buttons.", permanent=True)
    listed: list[Json] = []
    for button in buttons:
        if len(button.value.encode()) > VALUE_BYTES_MAX:
            raise PlatformError(f"A button's value may have at most {VALUE_BYTES_MAX} bytes.", permanent=True)
        action: Json = {"function": function, "parameters": [{"key": "shoal", "value": button.value}]}
        listed.append({"text": button.label, "onClick": {"action": action}})
    return {"sections": [{"widgets": [{"buttonList": {"buttons": listed}}]}]}
