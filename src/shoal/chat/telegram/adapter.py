"""The Telegram adapter: receives by long polling or webhook, posts and edits in MarkdownV2."""

import asyncio
import hmac
import logging
import re
from collections.abc import Mapping

import msgspec

from shoal.chat.account import NOT_READY, NOT_STORED, TAKEN, UNAUTHORIZED, ChatAccount, IncomingFile
from shoal.chat.http import Fields, Json
from shoal.chat.inbox import press
from shoal.chat.telegram.wire import (
    NO_TOPIC,
    ChatMigrated,
    TelegramApi,
    TelegramBadRequest,
    TelegramMessage,
    TelegramUser,
    Update,
    author_of,
    file_of,
    is_addressed,
    prompt_of,
    thread_of,
)
from shoal.domain.clock import Clock
from shoal.domain.commands import COMMANDS
from shoal.domain.errors import PlatformError, StoreError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id, thread_address
from shoal.domain.markup import SINGLE_MARKS, Dialect, before_lines, escaped, is_link, language_in, render_markup
from shoal.domain.messages import Attachment, Edit, Reaction
from shoal.domain.ports import InboxPort, Settings
from shoal.domain.posts import Button, ChatLimits, OutboundPost, Window
from shoal.domain.settings import TelegramSettings
from shoal.domain.untrusted import UNREADABLE
from shoal.domain.webhooks import HttpAnswer

log = logging.getLogger(__name__)

POLL_SECONDS = 25
"""How long Telegram holds a poll open when there is nothing."""
ALLOWED_UPDATES: list[Json] = ["message", "edited_message", "message_reaction", "callback_query"]
UPDATE_SECONDS_MAX = 172_800.0
"""An update by webhook that is older is dropped. Telegram keeps updates for a day, and the secret in the header covers
neither content nor time; so a replayed call is refused long before its message is forgotten."""
CAPTION_CHARS_MAX = 1024
BUTTON_BYTES_MAX = 64
PARSE_MODE = "MarkdownV2"

_SPECIAL = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_SPECIAL_IN_CODE = re.compile(r"([`\\])")
_SPECIAL_IN_URL = re.compile(r"([)\\])")


def _link(label: str, url: str) -> str:
    if not is_link(url):
        address = escaped(_SPECIAL, url)
        return label if label == address else rf"{label} \({address}\)"
    return f"[{label}]({escaped(_SPECIAL_IN_URL, url)})"


MARKDOWN_V2 = Dialect(
    text=lambda text: escaped(_SPECIAL, text),
    styles=SINGLE_MARKS,
    code=lambda code: f"`{escaped(_SPECIAL_IN_CODE, code)}`",
    fence=lambda content, info: f"```{language_in(info)}\n{escaped(_SPECIAL_IN_CODE, content.rstrip(chr(10)))}\n```",
    link=_link,
    heading=lambda text, level: f"*{text}*" if text.strip() else text,
    quote=before_lines(">"),
    inner_quote=before_lines("\\> "),
    em_separator="**",
)
LIMITS = ChatLimits(
    text_chars_max=4096,
    markup=MARKDOWN_V2,
    text_unit="utf16",
    edit_seconds_min=1.1,
    group_edit_seconds_min=3.1,
    group_prefix="-",
    windows=(Window(1, 1.0), Window(20, 60.0, groups_only=True), Window(30, 1.0, "account")),
    can_edit=True,
    can_upload=True,
    has_preview=True,
    has_buttons=True,
)


class TelegramAdapter(ChatAccount):
    """Implements `ChatAdapter` and `HttpInbound`."""

    limits = LIMITS
    download_bytes_max = 20_971_520

    def __init__(
        self, platform: str, settings: TelegramSettings, home: Home, store: Settings, clock: Clock,
        inbound_url: str = "",
    ) -> None:  # fmt: skip
        super().__init__(platform, home, store, clock, settings.agent)
        self._settings = settings
        self._inbound_url = inbound_url
        self._api = TelegramApi(settings)
        self._me = TelegramUser(0)
        self._migrated: dict[str, int] = {}
        self._one_by_one = asyncio.Lock()

    async def close(self) -> None:
        await self._api.close()

    # ---- in ----

    async def _connect(self, inbox: InboxPort) -> None:
        self._me = await self._api.call("getMe", TelegramUser, {})
        commands: list[Json] = [{"command": c.name, "description": c.description} for c in COMMANDS.values()]
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
        scope = f"telegram:{self._me.id}"
        offset = int(await self._store.get(scope, "offset") or 0)
        while True:
            given: Fields = {"offset": offset, "timeout": POLL_SECONDS, "allowed_updates": ALLOWED_UPDATES}
            updates = await self._api.call("getUpdates", list[Update], given, seconds=POLL_SECONDS + 10)
            self._reset_backoff()
            for update in sorted(updates, key=lambda one: one.update_id):
                await self._take(update, inbox)
                offset = max(offset, update.update_id + 1)
            if updates:
                await self._store.put(scope, "offset", str(offset))

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """An update by webhook. Answers 401 without the secret, 503 when it has to be sent again."""
        secret = self._settings.webhook_secret.reveal()
        given = headers.get("x-telegram-bot-api-secret-token", "")
        if self._settings.mode != "webhook" or not secret or not hmac.compare_digest(given.encode(), secret.encode()):
            return UNAUTHORIZED
        try:
            update = msgspec.json.decode(body, type=Update)
        except UNREADABLE:
            return HttpAnswer(400, b'{"error":"bad_request","message":"The body is not an update."}')
        if update.message is not None and self._clock.now().timestamp() - update.message.date > UPDATE_SECONDS_MAX:
            return TAKEN  # it was delivered long ago, or Telegram has forgotten it
        if self._inbox is None:
            return NOT_READY
        try:
            async with self._one_by_one:
                await self._take(update, self._inbox)
        except StoreError:
            return NOT_STORED
        return TAKEN

    async def _take(self, update: Update, inbox: InboxPort) -> None:
        """Take an update in. Raises StoreError to get it again."""
        edited, reaction, click = update.edited_message, update.message_reaction, update.callback_query
        if update.message is not None:
            # Meant are direct messages; in groups what addresses the bot, and all of a topic once addressed there.
            message = update.message
            prompt = prompt_of(self.platform, message, self._me)
            if prompt is None or prompt.author.is_bot:
                return
            is_direct = message.chat.type == "private"
            if not is_direct and is_addressed(message, self._me):
                if message.is_topic_message:
                    await self._subscribe(prompt.thread)
            elif not is_direct and not (message.is_topic_message and await self._is_subscribed(prompt.thread)):
                return
            prompt = msgspec.structs.replace(prompt, agent=self._agent, direct=is_direct)
            if await inbox.admits(prompt):
                file = file_of(message)
                files: list[IncomingFile] = []
                if file is not None:
                    attachment = Attachment(
                        file.file_name, file.mime_type or "application/octet-stream", file.file_size
                    )
                    files.append((attachment, lambda: self._api.fetch_file(file.file_id, self.download_bytes_max)))
                await self._take_in(prompt, inbox, files, self._me.username)
        elif click is not None:
            answer = "This message is too old."
            if click.message is not None and not click.sender.is_bot:
                thread = thread_of(self.platform, click.message)
                answer = await press(click.data, thread, author_of(click.sender), inbox)
            try:
                await self._api.call("answerCallbackQuery", bool, {"callback_query_id": click.id, "text": answer[:200]})
            except PlatformError as error:
                log.info("a click was not answered", extra={"platform": self.platform, "why": str(error)})
        elif edited is not None:
            prompt = prompt_of(self.platform, edited, self._me)
            if prompt is not None and prompt.text and not prompt.author.is_bot:
                change = Edit(
                    prompt.thread, prompt.key, prompt.text, prompt.author, prompt.message_id,
                    tainted_by=prompt.tainted_by,
                )  # fmt: skip
                await self._pending.send(change, inbox)
        elif reaction is not None and reaction.user is not None and not reaction.user.is_bot and reaction.new_reaction:
            message_id = str(reaction.message_id)  # Telegram does not say in which topic it stands
            found = await inbox.thread_of(self._prefix(str(reaction.chat.id)), message_id)
            if found is not None:
                emoji = reaction.new_reaction[-1].emoji
                await inbox.send(Reaction(found, emoji, author_of(reaction.user), message_id))

    # ---- out ----

    async def post(self, post: OutboundPost) -> str:
        try:
            return await self._post(post)
        except ChatMigrated as migrated:
            channel = thread_address(post.thread).channel
            log.warning("%s", migrated, extra={"platform": self.platform, "channel": channel})
            self._migrated[channel] = migrated.chat
            return await self._post(post)

    async def _post(self, post: OutboundPost) -> str:
        given: Fields = {
            **self._place(post.thread),
            "reply_parameters": {"message_id": int(post.reply_to), "allow_sending_without_reply": True}
            if post.reply_to.isdecimal()
            else None,
            "reply_markup": keyboard_of(post.buttons),
        }
        if post.file is None:
            return str((await self._send_text("sendMessage", given, post.markdown)).message_id)
        caption: Fields = {"caption": post.markdown}
        if LIMITS.length(post.markdown) * 2 > CAPTION_CHARS_MAX:  # a caption holds less than a message
            await self._send_text("sendMessage", {**given, "reply_markup": None}, post.markdown)
            caption = {}
        file = ("document", post.file)
        return str((await self._api.call("sendDocument", TelegramMessage, {**given, **caption}, file=file)).message_id)

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        given: Fields = {
            "chat_id": self._place(thread)["chat_id"],
            "message_id": int(message_id),
            "reply_markup": keyboard_of(buttons),
        }
        try:
            await self._send_text("editMessageText", given, markdown)
        except TelegramBadRequest as error:
            if "message is not modified" not in error.description:
                raise

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        chat = self._place(thread)["chat_id"]
        await self._api.call("deleteMessage", bool, {"chat_id": chat, "message_id": int(message_id)})

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show `typing` for five seconds; it ends by itself. Raises PlatformError."""
        if status:
            await self._api.call("sendChatAction", bool, {**self._place(thread), "action": "typing"})

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a chat; in Telegram that is the chat's own thread. Raises PlatformError."""
        thread = make_thread_id(self.platform, channel, NO_TOPIC)
        await self.post(OutboundPost(thread, key or f"open:{self._clock.new_id()}", text, maybe_posted=maybe_posted))
        return thread

    def _place(self, thread: ThreadId) -> dict[str, Json]:
        """The chat and topic of a thread as they are now. Raises PlatformError for an id not of Telegram's form."""
        address = thread_address(thread)
        chat: Json = int(address.channel) if address.channel.lstrip("-").isdecimal() else address.channel
        topic = address.thread
        if not topic.isdecimal():
            raise PlatformError(f"Telegram has no topic {topic!r}; its ids are numbers.", permanent=True)
        return {
            "chat_id": self._migrated.get(address.channel, chat),
            "message_thread_id": int(topic) if topic != NO_TOPIC else None,
        }

    async def _send_text(self, method: str, given: Fields, markdown: str) -> TelegramMessage:
        """Call with the text in Telegram's markup, or plain, with nothing left out, where Telegram refuses that."""
        styled = {"text": render_markup(markdown, MARKDOWN_V2), "parse_mode": PARSE_MODE}
        try:
            return await self._api.call(method, TelegramMessage, {**given, **styled})
        except TelegramBadRequest as error:
            if not any(reason in error.description for reason in ("can't parse entities", "message is too long")):
                raise
        return await self._api.call(method, TelegramMessage, {**given, "text": markdown})


def keyboard_of(buttons: tuple[Button, ...]) -> Json:
    """An inline keyboard, a row for each button. Raises PlatformError for a value that Telegram would not take."""
    if not buttons:
        return None
    if any(len(button.value.encode()) > BUTTON_BYTES_MAX for button in buttons):
        raise PlatformError(f"A button's value may have {BUTTON_BYTES_MAX} bytes.", permanent=True)
    rows: list[Json] = [[{"text": button.label, "callback_data": button.value}] for button in buttons]
    return {"inline_keyboard": rows}
