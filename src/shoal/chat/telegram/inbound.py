"""What Telegram tells: the parts of an update that matter, and the prompt it makes."""

from datetime import UTC, datetime

import msgspec
from msgspec import field

from shoal.domain.foreign import FORWARDED, untrusted_block
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Author, Prompt

NO_TOPIC = "0"
"""The thread part of chats without topics, and of a forum's general topic."""
_DATE_MAX = 253_402_300_799
"""The last second of the year 9999; a later one no calendar knows."""
ALLOWED_UPDATES = ("message", "edited_message", "message_reaction", "callback_query")


class User(msgspec.Struct):
    """Who."""

    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""


class Chat(msgspec.Struct):
    """Where."""

    id: int
    type: str = "private"


class Entity(msgspec.Struct):
    """A marked part of a text; offsets in UTF-16 units."""

    type: str
    offset: int
    length: int
    user: User | None = None


class FileRef(msgspec.Struct):
    """A file on Telegram's servers."""

    file_id: str
    file_unique_id: str = ""
    file_name: str = ""
    mime_type: str = ""
    file_size: int = 0
    file_path: str = ""


class ForwardOrigin(msgspec.Struct):
    """Where a forwarded message is from."""

    type: str = ""


class Message(msgspec.Struct):
    """A message, as far as it is read."""

    message_id: int
    chat: Chat
    date: int = 0
    sender: User | None = field(name="from", default=None)
    message_thread_id: int = 0
    is_topic_message: bool = False
    text: str = ""
    caption: str = ""
    entities: tuple[Entity, ...] = ()
    caption_entities: tuple[Entity, ...] = ()
    reply_to_message: "Message | None" = None
    forward_origin: ForwardOrigin | None = None
    document: FileRef | None = None
    audio: FileRef | None = None
    video: FileRef | None = None
    voice: FileRef | None = None
    photo: tuple[FileRef, ...] = ()


class CallbackQuery(msgspec.Struct):
    """A button was pressed."""

    id: str
    sender: User = field(name="from")
    message: Message | None = None
    data: str = ""


class Emoji(msgspec.Struct):
    """A reaction; `emoji` is empty for those of other kinds."""

    emoji: str = ""


class MessageReaction(msgspec.Struct):
    """Somebody changed what they put to a message."""

    chat: Chat
    message_id: int
    user: User | None = None
    new_reaction: tuple[Emoji, ...] = ()


class Update(msgspec.Struct):
    """One thing that happened."""

    update_id: int
    message: Message | None = None
    edited_message: Message | None = None
    message_reaction: MessageReaction | None = None
    callback_query: CallbackQuery | None = None


def thread_of(platform: str, message: Message) -> ThreadId:
    """The thread a message belongs to: its topic, or the whole chat."""
    topic = str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else NO_TOPIC
    return make_thread_id(platform, str(message.chat.id), topic)


def author_of(user: User) -> Author:
    """The user as Telegram vouches for them."""
    name = " ".join(part for part in (user.first_name, user.last_name) if part) or user.username
    return Author(str(user.id), name, is_bot=user.is_bot, trusted=False)


def is_addressed(message: Message, me: User) -> bool:
    """Whether a message in a group is meant for the bot: it is named, answered or commanded."""
    replied = message.reply_to_message
    if replied is not None and replied.sender is not None and replied.sender.id == me.id:
        return True
    text = message.text or message.caption
    units = text.encode("utf-16-le")
    for entity in message.entities or message.caption_entities:
        part = units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le", "replace")
        if entity.type == "mention" and part.lower() == f"@{me.username.lower()}":
            return True
        if entity.type == "text_mention" and entity.user is not None and entity.user.id == me.id:
            return True
        if entity.type == "bot_command" and part.partition("@")[2].lower() in ("", me.username.lower()):
            return True
    return False


def prompt_of(platform: str, message: Message, me: User) -> Prompt | None:
    """The prompt a message makes, without its files; None when nobody sent it."""
    if message.sender is None:
        return None
    text = message.text or message.caption
    if me.username and not text.startswith("/"):
        text = _without(text, f"@{me.username}")
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


def _without(text: str, mention: str) -> str:
    at = text.lower().find(mention.lower())
    if at < 0:
        return text
    return f"{text[:at]}{text[at + len(mention) :].lstrip() if at == 0 else text[at + len(mention) :]}".strip()


def file_of(message: Message) -> FileRef | None:
    """The file that came with a message; of a photo the largest size."""
    if message.photo:
        photo = message.photo[-1]
        return FileRef(photo.file_id, photo.file_unique_id, "photo.jpg", "image/jpeg", photo.file_size)
    for kind, found in (
        ("file", message.document), ("audio", message.audio), ("video", message.video), ("voice.ogg", message.voice),
    ):  # fmt: skip
        if found is not None:
            return msgspec.structs.replace(found, file_name=found.file_name or kind)
    return None
