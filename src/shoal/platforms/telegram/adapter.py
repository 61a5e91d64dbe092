"""Telegram adapter. Receives updates by long polling or webhook, and posts and edits text with entities."""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import TypeVar

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.errors import PlatformError, StoreError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.messages import Attachment, Author, Edit, Prompt, Reaction
from shoal.kernel.ports import InboxPort, Settings
from shoal.kernel.posts import Button, ChatLimits, OutboundPost, Window
from shoal.kernel.untrusted import UNREADABLE
from shoal.kernel.webhooks import HttpAnswer
from shoal.markdown.render import render_markup
from shoal.platforms.account import GREETING, NOT_READY, NOT_STORED, TAKEN, UNAUTHORIZED, ChatAccount, IncomingFile
from shoal.platforms.http import Fields, Json
from shoal.platforms.inbox import Recent, press
from shoal.platforms.telegram.markup import ENTITIES_MAX, TELEGRAM_MARKUP, styled
from shoal.platforms.telegram.settings import TelegramSettings
from shoal.platforms.telegram.wire import (
    NO_TOPIC,
    ChatMigrated,
    TelegramApi,
    TelegramBadRequest,
    TelegramMessage,
    TelegramUser,
    Update,
    author_of,
    chat_in,
    files_of,
    id_in,
    is_addressed,
    prompt_of,
    thread_of,
    unknown_kind,
    unknown_update,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

POLL_SECONDS = 25
"""Maximum number of seconds that Telegram holds a poll request open while no update arrives."""
ALLOWED_UPDATES: list[Json] = [
    "message", "edited_message", "channel_post", "edited_channel_post", "message_reaction", "callback_query",
    "my_chat_member",
]  # fmt: skip
CHANNEL_GREETING = (
    "Hello! Telegram does not show me who posts here. To let me answer posts that mention me, add {chat} to "
    "platforms.telegram.allow."
)
UPDATE_SECONDS_MAX = 172_800.0
"""Maximum age of a message in a webhook update. Telegram keeps undelivered updates for a day. The secret in the header
does not prevent replays, and Shoal processes a replayed update again once it has forgotten the message. Old updates
are therefore rejected.
"""
ALBUMS_MAX = 200
CAPTION_CHARS_MAX = 1024
BUTTON_BYTES_MAX, BUTTONS_MAX = 64, 100
PHOTOS = frozenset({".jpg", ".jpeg", ".png", ".webp"})
LIMITS = ChatLimits(
    text_chars_max=4096,
    markup=TELEGRAM_MARKUP,
    marks_max=ENTITIES_MAX,
    text_unit="utf16",
    edit_seconds_min=1.1,
    group_edit_seconds_min=3.1,
    group_prefix="-",
    windows=(Window(1, 1.0), Window(20, 60.0, groups_only=True), Window(30, 1.0, "account")),
    can_edit=True,
    can_upload=True,
    has_preview=True,
    has_buttons=True,
    buttons_max=BUTTONS_MAX,
    reactions="direct",
    voice="ogg",
    album_max=10,
    edits_notify=False,
)


class _Numbered(msgspec.Struct):
    update_id: int


class _Album(msgspec.Struct):
    """An album whose messages are still arriving.

    - `is_named`: one of the messages mentions the bot.
    - `waiting`: messages that are processed only if a later message mentions the bot.
    """

    is_named: bool = False
    waiting: list[tuple[TelegramMessage, Prompt]] = []


class TelegramAdapter(ChatAccount[TelegramSettings]):
    """Implements `ChatAdapter` and `HttpInbound`."""

    limits = LIMITS
    download_bytes_max = 20_971_520

    def __init__(
        self, platform: str, settings: TelegramSettings, home: Home, store: Settings, clock: Clock,
        inbound_url: str = "",
    ) -> None:  # fmt: skip
        super().__init__(platform, settings, home, store, clock, inbound_url)
        self._api = TelegramApi(settings)
        self._me = TelegramUser(0)
        self._albums: Recent[_Album] = Recent(ALBUMS_MAX)

    async def close(self) -> None:
        await self._api.close()

    # ---- receiving ----

    async def _connect(self, inbox: InboxPort) -> None:
        self._me = await self._api.call("getMe", TelegramUser, {})
        commands: list[Json] = [{"command": c.name, "description": c.description} for c in inbox.commands]
        await self._api.call("setMyCommands", bool, {"commands": commands})
        by_webhook = self._settings.mode == "webhook"
        if by_webhook:
            hook = {"url": self._inbound_url, "secret_token": self._settings.webhook_secret.reveal()}
            await self._api.call("setWebhook", bool, {**hook, "allowed_updates": ALLOWED_UPDATES})
        else:
            await self._api.call("deleteWebhook", bool, {})
        log.info("connected", extra={"platform": self.platform, "bot": self._me.username})
        self._inbox = inbox
        self.connected.set()
        if by_webhook:
            self._reset_backoff()
            await asyncio.Event().wait()
        # A request for later updates acknowledges the earlier ones. Acknowledge updates only once: after a week without
        # updates, the numbers restart and may be lower.
        scope, confirmed = f"telegram:{self._me.id}", 0
        stored = await self._store.get(scope, "taken")
        taken = msgspec.json.decode(stored, type=list[int]) if stored else []
        while True:
            given: Fields = {"offset": confirmed, "timeout": POLL_SECONDS, "allowed_updates": ALLOWED_UPDATES}
            updates = await self._api.call("getUpdates", list[msgspec.Raw], given, seconds=POLL_SECONDS + 10)
            self._reset_backoff()
            numbered = sorted(
                ((msgspec.json.decode(raw, type=_Numbered).update_id, raw) for raw in updates), key=itemgetter(0)
            )
            for number, raw in numbered:
                if number not in taken:
                    await self._intake.put(chat_in(raw), bytes(raw).decode())
            confirmed = numbered[-1][0] + 1 if numbered else 0
            if numbered:
                taken = [number for number, _ in numbered]
                await self._store.put(scope, "taken", msgspec.json.encode(taken).decode())

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Accept an update by webhook. Returns 401 if the secret is missing or wrong, and 503 if Telegram should send
        the update again.
        """
        secret = self._settings.webhook_secret.reveal()
        given = headers.get("x-telegram-bot-api-secret-token", "")
        if self._settings.mode != "webhook" or not secret or not hmac.compare_digest(given.encode(), secret.encode()):
            return UNAUTHORIZED
        if self._inbox is None:
            return NOT_READY
        try:
            await self._intake.put(chat_in(body), body.decode("utf-8", "replace"))
        except (StoreError, PlatformError):
            return NOT_STORED
        return TAKEN

    async def _process_event(self, event: str, inbox: InboxPort) -> bool:
        try:
            update = msgspec.json.decode(event, type=Update)
        except UNREADABLE as error:
            self._not_understood(unknown_update(event))
            log.info("decoding update failed", extra={"platform": self.platform, "why": str(error)})
            return False
        for chat in update.chats():
            chat.known_as = self._moves.first_id(str(chat.id))
        message = update.message or update.channel_post
        for seen in (message, update.my_chat_member):
            if seen is not None and seen.chat.type != "private":
                await self._channel_named(str(seen.chat.id), seen.chat.title)
        if message is not None and (message.migrate_to_chat_id or message.migrate_from_chat_id):
            here = message.chat.id
            old, new = message.migrate_from_chat_id or here, message.migrate_to_chat_id or here
            await self._chat_moved(str(old), str(new))
            return True
        if message is not None:
            age_seconds = self._clock.now().timestamp() - message.date
            if self._settings.mode != "webhook" or age_seconds <= UPDATE_SECONDS_MAX:
                await self._take_message(message, event, inbox)
            else:
                self._left_out("update older than two days")
            return True
        edited = update.edited_message or update.edited_channel_post
        reaction, click, member = update.message_reaction, update.callback_query, update.my_chat_member
        if click is not None:
            answer = "This message is too old."
            if click.message is not None and not click.sender.is_bot:
                thread = thread_of(self.platform, click.message)
                answer = await press(click.data, thread, author_of(click.sender), inbox)
            try:
                await self._api.call("answerCallbackQuery", bool, {"callback_query_id": click.id, "text": answer[:200]})
            except PlatformError as error:
                log.info("answering button click failed", extra={"platform": self.platform, "why": str(error)})
        elif edited is not None:
            prompt = prompt_of(self.platform, edited, self._me)
            is_moving = edited.location is not None  # a live location is edited continuously
            if prompt is None or prompt.author.is_bot or is_moving:
                self._left_out("live location change" if is_moving else "change to a bot's message")
                return True
            is_named = edited.chat.type != "private" and is_addressed(edited, self._me)
            if is_named and await self._is_unheard(prompt, self._prefix(str(edited.chat.id)), inbox):
                await self._take_message(edited, event, inbox)
            elif prompt.text:
                change = Edit(
                    prompt.thread, prompt.key, prompt.text, prompt.author, prompt.message_id, at=prompt.edited_at
                )
                await self._pending.send(change, inbox)
        elif reaction is not None and reaction.user is not None and not reaction.user.is_bot and reaction.new_reaction:
            message_id = id_in(reaction.chat, reaction.message_id)  # a reaction does not contain its topic
            thread_id = await inbox.thread_of(self._prefix(str(reaction.chat.id)), message_id)
            if thread_id is not None:
                emoji = reaction.new_reaction[-1].emoji
                await self._take_reaction(Reaction(thread_id, emoji, author_of(reaction.user), message_id), inbox)
        elif member is not None:
            if member.is_added:
                thread = make_thread_id(self.platform, member.chat.known_as, NO_TOPIC)
                come = Prompt(thread, "added", "", author_of(member.sender), self._clock.now())
                writer = msgspec.structs.replace(come, author=Author(str(member.chat.id), trusted=False))
                may_speak = member.chat.type != "channel" or await inbox.admits(writer)
                text = GREETING if may_speak else CHANNEL_GREETING.format(chat=f'"{member.chat.id}"')
                await self._greet(come, inbox, text)
        elif reaction is None:
            self._not_understood(unknown_update(event))
        elif reaction.new_reaction:
            self._left_out("reaction from a bot" if reaction.user is not None else "anonymous reaction")
        return True

    async def _take_message(self, message: TelegramMessage, event: str, inbox: InboxPort) -> None:
        """Process a message. Each topic of a group is a thread.

        An album arrives as separate messages, and only one of them has the text. A mention in one message therefore
        applies to all of them.
        """
        prompt = prompt_of(self.platform, message, self._me)
        if prompt is None or prompt.author.is_bot:
            self._left_out("message from a bot" if prompt is not None else "message without an author")
            return
        is_direct = message.chat.type == "private"
        album = f"{message.chat.id}/{message.media_group_id}" if message.media_group_id else ""
        seen = (self._albums.get(album) if album else None) or _Album()
        if not is_direct and not await self._is_for_agent(
            prompt,
            inbox,
            self._incoming(message),
            is_named=seen.is_named or is_addressed(message, self._me),
            opens=message.is_topic_message,
            follows=message.is_topic_message and await self._is_subscribed(prompt.thread),
        ):
            seen.waiting.append((message, prompt))
            if album:
                self._albums.put(album, seen)
            return
        if album:
            self._albums.put(album, _Album(is_named=True))
        if seen.waiting:  # the loop below processes these messages
            self._forget_overheard(prompt, {message_seen.key for _, message_seen in seen.waiting})
        for incoming, written in (*seen.waiting, (message, prompt)):
            files = self._incoming(incoming)
            if not (incoming.said or written.text or any(reference.text for reference in written.refers_to) or files):
                kind = unknown_kind(event)
                if not kind:
                    return
                self._not_understood(f"message with {kind}")
            await self._take_in(msgspec.structs.replace(written, direct=is_direct), inbox, files)

    def _incoming(self, message: TelegramMessage) -> list[IncomingFile]:
        files_found: list[IncomingFile] = []
        for file, author in files_of(message, self._me):
            kind = file.mime_type or "application/octet-stream"
            about = Attachment(file.file_name, kind, file.file_size, author=author)
            files_found.append((about, partial(self._api.fetch_file, file.file_id, self.download_bytes_max)))
        return files_found

    # ---- sending ----

    async def post(self, post: OutboundPost) -> str:
        try:
            return await self._post(post)
        except ChatMigrated as migrated:
            channel = self._moves.newest_id(thread_address(post.thread).channel)
            if channel == str(migrated.chat):  # a cycle of migrations, which Telegram never creates
                raise
            await self._chat_moved(channel, str(migrated.chat))
            return await self._post(post)

    async def _post(self, post: OutboundPost) -> str:
        answered = self._number_here(post.thread, post.reply_to)
        given: Fields = {
            **self._place(post.thread),
            "reply_parameters": {"message_id": answered, "allow_sending_without_reply": True} if answered else None,
            "reply_markup": keyboard_of(post.buttons),
        }
        if post.file is None:
            return self._id_of(post.thread, await self._send_text("sendMessage", given, post.markdown))
        caption = post.markdown
        if LIMITS.length(caption) > CAPTION_CHARS_MAX:  # captions have a lower limit than messages
            await self._send_text("sendMessage", {**given, "reply_markup": None}, caption)
            caption = ""
        if post.album:
            return await self._post_album(post, {**given, "reply_markup": None}, caption)
        for method, field in methods_for(post):
            send = partial(self._api.call, method, TelegramMessage, files={field: post.file})
            try:
                made = await self._styled("caption", caption, given, send)
            except TelegramBadRequest as error:  # the picture has an unsuitable size, or the chat blocks voice messages
                if method == "sendDocument":
                    raise
                log.info("file sent as document", extra={"platform": self.platform, "why": str(error)})
            else:
                return self._id_of(post.thread, made)
        raise AssertionError("sendDocument is the last method")

    async def _post_album(self, post: OutboundPost, given: Fields, caption: str) -> str:
        assert post.file is not None
        files = {f"file{number}": path for number, path in enumerate((post.file, *post.album))}
        kinds = ["photo", "document"] if all(path.suffix.lower() in PHOTOS for path in files.values()) else ["document"]
        for kind in kinds:
            further: list[Json] = [{"type": kind, "media": f"attach://{name}"} for name in [*files][1:]]

            async def send(first: Fields, further: list[Json] = further) -> list[TelegramMessage]:
                media: list[Json] = [dict(first), *further]
                return await self._api.call(
                    "sendMediaGroup", list[TelegramMessage], {**given, "media": media}, files=files
                )

            try:
                made = await self._styled("caption", caption, {"type": kind, "media": "attach://file0"}, send)
                return self._id_of(post.thread, made[0])
            except TelegramBadRequest:
                if kind == kinds[-1]:
                    raise
        raise AssertionError("documents are the last kind")

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Edit a message, unless it is from before the group became a supergroup. Raises PlatformError."""
        about, send = self._about(thread, message_id), partial(self._send_text, "editMessageText", markdown=markdown)
        try:
            await self._unless_moved(thread, send(given={**about, "reply_markup": keyboard_of(buttons)}))
        except TelegramBadRequest as error:
            if "message is not modified" not in error.description:
                raise

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        about = self._about(thread, message_id)
        await self._unless_moved(thread, self._api.call("deleteMessage", bool, about))

    async def _unless_moved(self, thread: ThreadId, calling: Awaitable[object]) -> None:
        """Await a call about a posted message. If the group became a supergroup, store its new id and raise a permanent
        PlatformError.
        """
        try:
            await calling
        except ChatMigrated as migrated:
            channel = self._moves.newest_id(thread_address(thread).channel)
            if channel != str(migrated.chat):
                await self._chat_moved(channel, str(migrated.chat))
            raise PlatformError(str(migrated), permanent=True) from migrated

    def _about(self, thread: ThreadId, message_id: str) -> dict[str, Json]:
        number = self._number_here(thread, message_id)
        if not number:
            raise PlatformError("The message was sent before the group became a supergroup.", permanent=True)
        return {"chat_id": self._place(thread)["chat_id"], "message_id": number}

    def _number_here(self, thread: ThreadId, message_id: str) -> int:
        """Return a message's number in the current chat. Returns 0 if there is no number or the message was sent before
        the group became a supergroup.
        """
        channel = thread_address(thread).channel
        chat, _, number = message_id.rpartition("/")
        is_here = (chat or channel) == self._moves.newest_id(channel)
        return int(number) if is_here and number.isdecimal() else 0

    def _id_of(self, thread: ThreadId, message: TelegramMessage) -> str:
        channel = thread_address(thread).channel
        newest = self._moves.newest_id(channel)
        return str(message.message_id) if newest == channel else f"{newest}/{message.message_id}"

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show the typing indicator for five seconds. Raises PlatformError."""
        if status:
            await self._api.call("sendChatAction", bool, {**self._place(thread), "action": "typing"})

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a chat and return the thread id of the whole chat. Raises PlatformError."""
        thread = make_thread_id(self.platform, self._moves.first_id(channel), NO_TOPIC)
        await self.post(OutboundPost(thread, key or f"open:{self._clock.new_id()}", text, maybe_posted=maybe_posted))
        return thread

    def _place(self, thread: ThreadId) -> dict[str, Json]:
        address = thread_address(thread)
        channel = self._moves.newest_id(address.channel)
        chat: Json = int(channel) if channel.lstrip("-").isdecimal() else channel
        topic = address.thread
        if not topic.isdecimal():
            raise PlatformError(f"{topic!r} is not a Telegram topic: Telegram's ids are numbers.", permanent=True)
        return {
            "chat_id": chat,
            "message_thread_id": int(topic) if topic != NO_TOPIC else None,
        }

    async def _send_text(self, method: str, given: Fields, markdown: str) -> TelegramMessage:
        given = {**given, "link_preview_options": {"is_disabled": True}}  # a link preview would send the URL to others
        return await self._styled("text", markdown, given, partial(self._api.call, method, TelegramMessage))

    async def _styled(self, field: str, markdown: str, given: Fields, send: Callable[[Fields], Awaitable[T]]) -> T:
        """Send the text with its entities. If Telegram rejects the entities, send plain Markdown."""
        if not markdown:
            return await send(given)
        text, entities = styled(render_markup(markdown, TELEGRAM_MARKUP))
        try:
            return await send({**given, field: text, "entities" if field == "text" else "caption_entities": entities})
        except TelegramBadRequest as error:
            if not any(reason in error.description for reason in ("entit", "is too long", "UTF-16")):
                raise
        return await send({**given, field: markdown})


def methods_for(post: OutboundPost) -> tuple[tuple[str, str], ...]:
    """Return the methods that can send a file, in the order in which to try them, with their field names. The last one
    sends the file as a document.
    """
    document, suffix = ("sendDocument", "document"), post.file.suffix.lower() if post.file is not None else ""
    if post.kind == "voice":
        return ("sendVoice", "voice"), document
    if suffix in PHOTOS:
        return ("sendPhoto", "photo"), document
    return (("sendAnimation", "animation"), document) if suffix == ".gif" else (document,)


def keyboard_of(buttons: tuple[Button, ...]) -> Json:
    if not buttons:
        return None
    if any(len(button.value.encode()) > BUTTON_BYTES_MAX for button in buttons):
        raise PlatformError(f"A button's value may have at most {BUTTON_BYTES_MAX} bytes.", permanent=True)
    rows: list[Json] = [[{"text": button.label, "callback_data": button.value}] for button in buttons]
    return {"inline_keyboard": rows}
