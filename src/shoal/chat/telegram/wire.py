"""The Bot API's wire: calls, updates, and the prompts they make. Source: core.telegram.org/bots/api, 10.1."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import field

from shoal.chat.http import CALL_SECONDS, TRANSFER_SECONDS, Fields, PlatformHttp
from shoal.chat.inbox import open_file
from shoal.domain.errors import PlatformError
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Author, Prompt
from shoal.domain.settings import TelegramSettings
from shoal.domain.untrusted import FORWARDED, untrusted_block

T = TypeVar("T")

NO_TOPIC = "0"
"""The thread part of chats without topics, and of a forum's general topic."""
_DATE_MAX = 253_402_300_799
"""The last second of the year 9999, beyond which `datetime` ends."""


# ---- calls ----


class _ResponseParameters(msgspec.Struct, frozen=True):
    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _BotApiAnswer(msgspec.Struct, Generic[T], frozen=True):
    ok: bool
    result: T | msgspec.UnsetType = msgspec.UNSET
    error_code: int = 0
    description: str = ""
    parameters: _ResponseParameters = _ResponseParameters()


class TelegramBadRequest(PlatformError):
    """Telegram refuses this call for good; `description` is its reason."""

    def __init__(self, description: str) -> None:
        super().__init__(f"Telegram refused: {description}", permanent=True)
        self.description = description.lower()


class ChatMigrated(PlatformError):
    """A group became a supergroup and has another id now."""

    def __init__(self, chat: int) -> None:
        super().__init__(f"The group is now {chat}. Use that id in platforms.telegram.channels.")
        self.chat = chat


class TelegramApi(PlatformHttp):
    """Calls of one bot."""

    def __init__(self, settings: TelegramSettings) -> None:
        super().__init__("Telegram")
        self._base = settings.api_base.rstrip("/")
        self._file_base = settings.file_base.rstrip("/") or f"{self._base}/file"
        self._token = settings.token.reveal
        self._account = settings.account

    async def call(
        self, method: str, kind: type[T], parameters: Fields, *, file: tuple[str, Path] | None = None,
        seconds: float = CALL_SECONDS,
    ) -> T:  # fmt: skip
        """Call a method; `file` is a field's name and the file to upload in it. Raises PlatformError."""
        url = f"{self._base}/bot{self._token()}/{method}"
        given = {name: value for name, value in parameters.items() if value is not None}
        if file is None:
            response = await self.request("POST", url, seconds=seconds, json=given)
        else:
            data = {
                name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
                for name, value in given.items()
            }
            name, path = file
            with open_file(path) as content:
                files = {name: (path.name, content)}
                response = await self.request("POST", url, seconds=TRANSFER_SECONDS, data=data, files=files)
        answer = self.decode(response.status_code, response.content, _BotApiAnswer[kind])
        if answer.ok and answer.result is not msgspec.UNSET:
            return answer.result
        code, hints = answer.error_code or response.status_code, answer.parameters
        if code == 429:
            raise PlatformError("Telegram asks us to slow down.", retry_after_seconds=hints.retry_after or 1.0)
        if code in (401, 404):
            raise PlatformError(
                f"Telegram refused the token for {self._account!r}. "
                "Set platforms.telegram.token or TELEGRAM_BOT_TOKEN, then restart."
            )
        if code == 409:
            raise PlatformError(
                f"Another program receives the updates of {self._account!r}. Stop it: a bot has one receiver."
            )
        if hints.migrate_to_chat_id is not None:
            raise ChatMigrated(hints.migrate_to_chat_id)
        if 400 <= code < 500:
            raise TelegramBadRequest(answer.description)
        raise PlatformError(f"Telegram failed with {code}: {answer.description}", outcome_unknown=True)

    async def fetch_file(self, file_id: str, bytes_max: int) -> bytes:
        """The content of a file. Raises PlatformError."""
        path = (await self.call("getFile", TelegramFile, {"file_id": file_id})).file_path
        return (await self.download(f"{self._file_base}/bot{self._token()}/{path}", bytes_max)).body


# ---- updates ----


class TelegramUser(msgspec.Struct):
    """A person or a bot."""

    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""


class _Chat(msgspec.Struct):
    id: int
    type: str = "private"


class _TelegramEntity(msgspec.Struct):
    """A marked part of a text; offsets in UTF-16 units."""

    type: str
    offset: int
    length: int
    user: TelegramUser | None = None


class TelegramFile(msgspec.Struct):
    """A file on Telegram's servers."""

    file_id: str
    file_unique_id: str = ""
    file_name: str = ""
    mime_type: str = ""
    file_size: int = 0
    file_path: str = ""


class TelegramMessage(msgspec.Struct):
    """A message, as far as it is read."""

    message_id: int
    chat: _Chat
    date: int = 0
    sender: TelegramUser | None = field(name="from", default=None)
    message_thread_id: int = 0
    is_topic_message: bool = False
    text: str = ""
    caption: str = ""
    entities: tuple[_TelegramEntity, ...] = ()
    caption_entities: tuple[_TelegramEntity, ...] = ()
    reply_to_message: "TelegramMessage | None" = None
    forward_origin: dict[str, object] | None = None
    document: TelegramFile | None = None
    audio: TelegramFile | None = None
    video: TelegramFile | None = None
    voice: TelegramFile | None = None
    photo: tuple[TelegramFile, ...] = ()


class CallbackQuery(msgspec.Struct):
    """A button was pressed."""

    id: str
    sender: TelegramUser = field(name="from")
    message: TelegramMessage | None = None
    data: str = ""


class _ReactionType(msgspec.Struct):
    """A reaction; `emoji` is empty for those of other kinds."""

    emoji: str = ""


class _MessageReaction(msgspec.Struct):
    chat: _Chat
    message_id: int
    user: TelegramUser | None = None
    new_reaction: tuple[_ReactionType, ...] = ()


class Update(msgspec.Struct):
    """An event: one of the optional fields is set."""

    update_id: int
    message: TelegramMessage | None = None
    edited_message: TelegramMessage | None = None
    message_reaction: _MessageReaction | None = None
    callback_query: CallbackQuery | None = None


# ---- what they mean ----


def thread_of(platform: str, message: TelegramMessage) -> ThreadId:
    """The thread a message belongs to: its topic, or the whole chat."""
    topic = str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else NO_TOPIC
    return make_thread_id(platform, str(message.chat.id), topic)


def author_of(user: TelegramUser) -> Author:
    """The user as Telegram vouches for them."""
    name = " ".join(part for part in (user.first_name, user.last_name) if part) or user.username
    return Author(str(user.id), name, is_bot=user.is_bot, trusted=False)


def is_addressed(message: TelegramMessage, me: TelegramUser) -> bool:
    """Whether a message in a group is meant for the bot: it mentions the bot, answers it or is a command."""
    replied = message.reply_to_message
    if replied is not None and replied.sender is not None and replied.sender.id == me.id:
        return True
    units = (message.text or message.caption).encode("utf-16-le")
    for entity in message.entities or message.caption_entities:
        part = units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le", "replace")
        if entity.type == "mention" and part.lower() == f"@{me.username.lower()}":
            return True
        if entity.type == "text_mention" and entity.user is not None and entity.user.id == me.id:
            return True
        if entity.type == "bot_command" and part.partition("@")[2].lower() in ("", me.username.lower()):
            return True
    return False


def prompt_of(platform: str, message: TelegramMessage, me: TelegramUser) -> Prompt | None:
    """The prompt a message makes, without its files and the bot's first mention; None when nobody sent it."""
    if message.sender is None:
        return None
    text = message.text or message.caption
    mention = f"@{me.username}"
    at = text.lower().find(mention.lower()) if me.username and not text.startswith("/") else -1
    if at >= 0:
        after = text[at + len(mention) :]
        text = f"{text[:at]}{after.lstrip() if at == 0 else after}".strip()
    replied = message.reply_to_message
    forwarded = FORWARDED if message.forward_origin is not None else ""
    return Prompt(
        thread=thread_of(platform, message),
        key=f"{message.chat.id}/{message.message_id}",
        text=untrusted_block(FORWARDED, text) if forwarded and text else text,
        author=author_of(message.sender),
        at=datetime.fromtimestamp(min(max(message.date, 0), _DATE_MAX), UTC),
        reply_to=str(replied.message_id) if replied is not None else "",
        joins=replied is not None and replied.sender is not None and replied.sender.id == me.id,
        message_id=str(message.message_id),
        tainted_by=forwarded,
    )


def file_of(message: TelegramMessage) -> TelegramFile | None:
    """The file that came with a message; of a photo the largest size."""
    if message.photo:
        photo = message.photo[-1]
        return TelegramFile(photo.file_id, photo.file_unique_id, "photo.jpg", "image/jpeg", photo.file_size)
    for kind, found in (
        ("file", message.document), ("audio", message.audio), ("video", message.video), ("voice.ogg", message.voice),
    ):  # fmt: skip
        if found is not None:
            return msgspec.structs.replace(found, file_name=found.file_name or kind)
    return None
