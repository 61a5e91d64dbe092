"""The Telegram adapter: receives by long polling or webhook, posts, edits, and lets only those speak who may."""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Literal

import msgspec

from shoal.chat.account import NOT_READY, NOT_STORED, TAKEN, UNAUTHORIZED, ChatAccount
from shoal.chat.commands import press, take_in
from shoal.chat.early import Early
from shoal.chat.kept import keep
from shoal.chat.telegram.api import BadRequest, Moved, Parameters, TelegramApi, Value
from shoal.chat.telegram.inbound import (
    ALLOWED_UPDATES,
    CallbackQuery,
    FileRef,
    Message,
    MessageReaction,
    Update,
    User,
    author_of,
    file_of,
    is_addressed,
    prompt_of,
    thread_of,
)
from shoal.chat.telegram.outbound import CAPTION_CHARS_MAX, LIMITS, keyboard_of, place_of, reply_to, styled, unstyled
from shoal.domain.calls import HttpAnswer
from shoal.domain.clock import Clock
from shoal.domain.commands import COMMANDS
from shoal.domain.errors import PlatformError, StoreError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id, thread_address
from shoal.domain.markup import measure
from shoal.domain.messages import Attachment, Edit, Prompt, Reaction
from shoal.domain.ports import InboxPort
from shoal.domain.posts import Button, ChatLimits, OutboundPost
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

POLL_SECONDS = 25
"""How long Telegram holds a poll open when there is nothing."""
UPDATE_SECONDS_MAX = 172_800.0
"""An update by webhook that is older is not taken in. Telegram keeps updates for a day, and the secret in the header
covers neither content nor time; so a call that is made again is refused long before its message is forgotten."""
DOWNLOAD_BYTES_MAX = 20_971_520
"""What the Bot API hands out; larger files are named to the agent and not fetched."""


class TelegramSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One account. `token` and `webhook_secret` are asked for when they are needed."""

    account: str = "main"
    token: Callable[[], str]
    api_base: str = "https://api.telegram.org"
    file_base: str = ""
    mode: Literal["polling", "webhook"] = "polling"
    webhook_secret: Callable[[], str] = str
    webhook_url: str = ""
    agent: str = ""


class TelegramAdapter:
    """Implements `ChatAdapter` and `HttpInbound`."""

    limits: ChatLimits = LIMITS

    def __init__(self, platform: str, settings: TelegramSettings, home: Home, store: Settings, clock: Clock) -> None:
        self.platform = platform
        self._settings = settings
        self._home = home
        self._store = store
        self._clock = clock
        self._api = TelegramApi(settings.api_base, settings.file_base, settings.token, settings.account)
        self._me = User(0)
        self._inbox: InboxPort | None = None
        self._moved: dict[str, int] = {}
        self._early = Early()
        self._one_by_one = asyncio.Lock()
        self._account = ChatAccount(platform, clock, self.post)
        self.connected = self._account.connected

    # ---- in ----

    async def run(self, inbox: InboxPort) -> None:
        """Receive until cancelled; reconnect with backoff by itself."""
        try:
            await self._account.keep_connected(lambda: self._stay(inbox))
        finally:
            self._inbox = None
            await self._api.close()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """An update by webhook. Answers 401 without the secret, 503 when it has to come again."""
        secret = self._settings.webhook_secret()
        given = headers.get("x-telegram-bot-api-secret-token", "")
        if self._settings.mode != "webhook" or not secret or not hmac.compare_digest(given.encode(), secret.encode()):
            return UNAUTHORIZED
        try:
            update = msgspec.json.decode(body, type=Update)
        except UNREADABLE:
            return HttpAnswer(400, b'{"error":"bad_request","message":"The body is no update."}')
        if update.message is not None and self._clock.now().timestamp() - update.message.date > UPDATE_SECONDS_MAX:
            return TAKEN  # it was delivered long ago, or is forgotten by Telegram
        inbox = self._inbox
        if inbox is None:
            return NOT_READY
        try:
            async with self._one_by_one:
                await self._take(update, inbox)
        except StoreError:
            return NOT_STORED
        return TAKEN

    async def close(self) -> None:
        """Give connections back; for who posts without `run`."""
        await self._api.close()

    async def _stay(self, inbox: InboxPort) -> None:
        await self._connect()
        self._inbox = inbox
        self.connected.set()
        await self._receive(inbox)

    async def _connect(self) -> None:
        self._me = await self._api.call("getMe", User, {})
        commands: list[Value] = [{"command": c.name, "description": c.description} for c in COMMANDS.values()]
        await self._api.call("setMyCommands", bool, {"commands": commands})
        if self._settings.mode == "webhook":
            given: Parameters = {
                "url": self._settings.webhook_url,
                "secret_token": self._settings.webhook_secret(),
                "allowed_updates": list(ALLOWED_UPDATES),
            }
            await self._api.call("setWebhook", bool, given)
        else:
            await self._api.call("deleteWebhook", bool, {})
        log.info("connected", extra={"platform": self.platform, "bot": self._me.username})

    async def _receive(self, inbox: InboxPort) -> None:
        if self._settings.mode == "webhook":
            self._account.works()
            await asyncio.Event().wait()
        scope = f"telegram:{self._me.id}"
        offset = int(await self._store.get(scope, "offset") or 0)
        while True:
            given: Parameters = {
                "offset": offset, "timeout": POLL_SECONDS, "allowed_updates": list(ALLOWED_UPDATES),
            }  # fmt: skip
            updates = await self._api.call("getUpdates", list[Update], given, seconds=POLL_SECONDS + 10)
            self._account.works()
            for update in sorted(updates, key=lambda one: one.update_id):
                await self._take(update, inbox)
                offset = max(offset, update.update_id + 1)
            if updates:
                await self._store.put(scope, "offset", str(offset))

    async def _take(self, update: Update, inbox: InboxPort) -> None:
        if update.message is not None:
            await self._take_message(update.message, inbox)
        elif update.callback_query is not None:
            await self._take_click(update.callback_query, inbox)
        elif update.edited_message is not None:
            await self._take_edit(update.edited_message, inbox)
        elif update.message_reaction is not None:
            await self._take_reaction(update.message_reaction, inbox)

    async def _take_message(self, message: Message, inbox: InboxPort) -> None:
        sender = message.sender
        if sender is None or sender.is_bot:
            return
        prompt = prompt_of(self.platform, message, self._me)
        if prompt is None or not await self._is_meant(message, prompt.thread):
            return
        is_direct = message.chat.type == "private"
        prompt = msgspec.structs.replace(prompt, agent=self._settings.agent, direct=is_direct)
        if not await inbox.admits(prompt):
            return
        file = file_of(message)
        if file is not None:
            prompt = msgspec.structs.replace(prompt, attachments=(await self._download(file, prompt),))
        elif not prompt.text:
            return
        changed = self._early.applied(prompt)
        told = await take_in(changed, self._me.username, inbox) if changed is not None else ""
        if told:
            await self._account.answer(prompt, told)

    async def _take_edit(self, message: Message, inbox: InboxPort) -> None:
        prompt = prompt_of(self.platform, message, self._me)
        if prompt is not None and prompt.text and not prompt.author.is_bot:
            change = Edit(
                prompt.thread, prompt.key, prompt.text, prompt.author, prompt.message_id, tainted_by=prompt.tainted_by
            )
            await self._early.send(change, inbox)

    async def _take_reaction(self, reaction: MessageReaction, inbox: InboxPort) -> None:
        """Telegram does not say in which topic the message stands; it is one of ours."""
        message_id, chat = str(reaction.message_id), str(reaction.chat.id)
        if reaction.user is None or reaction.user.is_bot or not reaction.new_reaction:
            return
        thread = await inbox.thread_of(f"{make_thread_id(self.platform, chat, '0').rpartition(':')[0]}:", message_id)
        if thread is not None:
            emoji = reaction.new_reaction[-1].emoji
            await inbox.send(Reaction(thread, emoji, author_of(reaction.user), message_id))

    async def _is_meant(self, message: Message, thread: ThreadId) -> bool:
        """Direct messages are; in groups what addresses the bot, and all of a topic once it was addressed there."""
        if message.chat.type == "private":
            return True
        scope = f"subscribed:{self.platform}"
        if is_addressed(message, self._me):
            if message.is_topic_message:
                await self._store.put(scope, thread, "1")
            return True
        return message.is_topic_message and await self._store.get(scope, thread) is not None

    async def _take_click(self, click: CallbackQuery, inbox: InboxPort) -> None:
        told = "This message is too old."
        if click.message is not None and not click.sender.is_bot:
            thread = thread_of(self.platform, click.message)
            told = await press(click.data, thread, author_of(click.sender), inbox)
        try:
            await self._api.call("answerCallbackQuery", bool, {"callback_query_id": click.id, "text": told[:200]})
        except PlatformError as error:
            log.info("a click was not answered", extra={"platform": self.platform, "why": str(error)})

    async def _download(self, file: FileRef, prompt: Prompt) -> Attachment:
        given = Attachment(file.file_name, file.mime_type or "application/octet-stream", file.file_size)
        return await keep(self._home, self._clock, prompt.thread, given, self._content(file))

    async def _content(self, file: FileRef) -> bytes:
        if file.file_size > DOWNLOAD_BYTES_MAX:
            raise PlatformError(f"Telegram gives bots no files over {DOWNLOAD_BYTES_MAX} bytes.")
        found = await self._api.call("getFile", FileRef, {"file_id": file.file_id})
        return await self._api.fetch(found.file_path, DOWNLOAD_BYTES_MAX)

    # ---- out ----

    async def post(self, post: OutboundPost) -> str:
        """Post and return the message's id. Raises PlatformError."""
        try:
            return await self._post(post)
        except Moved as moved:
            log.warning("%s", moved, extra={"platform": self.platform, "channel": thread_address(post.thread).channel})
            self._moved[thread_address(post.thread).channel] = moved.chat
            return await self._post(post)

    def _place(self, thread: ThreadId) -> dict[str, Value]:
        """Where a thread is now."""
        where = dict(place_of(thread))
        moved = self._moved.get(thread_address(thread).channel)
        return where if moved is None else {**where, "chat_id": moved}

    async def _post(self, post: OutboundPost) -> str:
        given: Parameters = {
            **self._place(post.thread),
            "reply_parameters": reply_to(post.reply_to),
            "reply_markup": keyboard_of(post.buttons),
        }
        if post.file is None:
            made = await self._say("sendMessage", given, post.markdown, "text")
            return str(made.message_id)
        if measure(post.markdown, LIMITS) * 2 > CAPTION_CHARS_MAX:  # the caption holds less than a message
            await self._say("sendMessage", {**given, "reply_markup": None}, post.markdown, "text")
            made = await self._api.call("sendDocument", Message, given, file=("document", post.file))
        else:
            made = await self._api.call(
                "sendDocument", Message, {**given, **unstyled(post.markdown, "caption")}, file=("document", post.file)
            )
        return str(made.message_id)

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a message; one that says so already is left. Raises PlatformError."""
        given: Parameters = {
            "chat_id": self._place(thread)["chat_id"],
            "message_id": int(message_id),
            "reply_markup": keyboard_of(buttons),
        }
        try:
            await self._say("editMessageText", given, markdown, "text")
        except BadRequest as error:
            if "message is not modified" not in error.description:
                raise

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        await self._api.call(
            "deleteMessage", bool, {"chat_id": self._place(thread)["chat_id"], "message_id": int(message_id)}
        )

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show `typing` for five seconds; it ends by itself. Raises PlatformError."""
        if status:
            await self._api.call("sendChatAction", bool, {**self._place(thread), "action": "typing"})

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a chat; in Telegram that is the chat's own thread. Raises PlatformError."""
        thread = make_thread_id(self.platform, channel, "0")
        await self.post(OutboundPost(thread, key or f"open:{self._clock.new_id()}", text, maybe_posted=maybe_posted))
        return thread

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Nothing: the Bot API has no way to read back."""
        for prompt in tuple[Prompt, ...]():
            yield prompt

    async def _say(self, method: str, given: Parameters, markdown: str, field: str) -> Message:
        """Call with the text in Telegram's markup, and plain where that is refused."""
        try:
            return await self._api.call(method, Message, {**given, **styled(markdown, field)})
        except BadRequest as error:
            if not any(reason in error.description for reason in ("can't parse entities", "message is too long")):
                raise
        return await self._api.call(method, Message, {**given, **unstyled(markdown, field)})
