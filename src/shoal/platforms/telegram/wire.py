"""Telegram's Bot API: calls, update fields and their conversion to prompts. Source: core.telegram.org/bots/api,
10.1.
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import field

from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import Author, Prompt, Reference
from shoal.kernel.untrusted import UNREADABLE
from shoal.platforms.http import CALL_SECONDS, PASSING_STATUSES, TRANSFER_SECONDS, Fields, PlatformHttp
from shoal.platforms.inbox import open_file
from shoal.platforms.telegram.settings import TelegramSettings

T = TypeVar("T")

NO_TOPIC = "0"
"""Value of the thread part of a thread id for chats without topics and for a forum's general topic."""
_DATE_MAX = 253_402_300_799
"""Last second of the year 9999, which is the latest time that `datetime` supports."""


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


_GONE = (
    "chat not found",
    "channel_invalid",
    "chat_id_invalid",
    "input_user_deactivated",
    "message thread not found",
    "topic_id_invalid",
    "topic_deleted",
    "was deleted",
    "is deactivated",
    "peer_id_invalid",
)
"""Parts of Telegram's error messages for a chat or topic that no longer exists."""
_CLOSED = (
    "topic_closed", "not enough rights", "have no rights", "no write access", "need administrator rights",
    "_forbidden", "chat_admin_required", "chat_restricted", "user_banned_in_channel", "channel_private", "is_blocked",
    "payment_required", "premium_required", "privacy_restricted", "peer_flood",
)  # fmt: skip
"""Parts of Telegram's error messages for chats that do not accept posts for now. Status 403 means the same: the bot was
kicked or blocked, or is not a member. Sources: core.telegram.org/method/messages.sendMessage, possible errors
(CHAT_WRITE_FORBIDDEN, and one for each kind of message), the Bot API server's Client.cpp, and TDLib ("Have no write
access to the chat", tdlib/td issue 2301).
"""


class TelegramBadRequest(PlatformError):
    """Telegram rejected a call. `description` is Telegram's reason in lower case. The error is permanent unless the
    chat is closed for now.
    """

    def __init__(self, description: str, code: int = 400) -> None:
        self.description = description.lower()
        gone = any(reason in self.description for reason in _GONE)
        closed = not gone and (code == 403 or any(reason in self.description for reason in _CLOSED))
        super().__init__(f"Telegram returned an error: {description}", permanent=not closed, barred=closed or gone)


class ChatMigrated(PlatformError):
    """A group became a supergroup with a new id."""

    def __init__(self, chat: int) -> None:
        super().__init__(f"The group's id is now {chat}. Use it in platforms.telegram.channels.")
        self.chat = chat


class TelegramApi(PlatformHttp):
    def __init__(self, settings: TelegramSettings) -> None:
        super().__init__("Telegram")
        self._base = settings.api_base.rstrip("/")
        self._file_base = settings.file_base.rstrip("/") or f"{self._base}/file"
        self._token = settings.token.reveal
        self._account = settings.account

    async def call(
        self, method: str, kind: type[T], parameters: Fields, *, files: Mapping[str, Path] | None = None,
        seconds: float = CALL_SECONDS,
    ) -> T:  # fmt: skip
        """Call a method and upload `files`, which are named by form field. Raises PlatformError."""
        url = f"{self._base}/bot{self._token()}/{method}"
        given = {name: value for name, value in parameters.items() if value is not None}
        if not files:
            response = await self.request("POST", url, seconds=seconds, json=given)
        else:
            data = {
                name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
                for name, value in given.items()
            }
            with ExitStack() as opened:
                sent = {name: (path.name, opened.enter_context(open_file(path))) for name, path in files.items()}
                response = await self.request("POST", url, seconds=TRANSFER_SECONDS, data=data, files=sent)
        answer = self.decode(response.status_code, response.content, _BotApiAnswer[kind])
        if answer.ok and answer.result is not msgspec.UNSET:
            return answer.result
        code, hints = answer.error_code or response.status_code, answer.parameters
        if code == 429:
            raise PlatformError("Telegram's rate limit has been reached.", retry_after_seconds=hints.retry_after or 1.0)
        if code in (401, 404):
            raise PlatformError(
                f"Telegram rejected the token for {self._account!r}. Set platforms.telegram.token or "
                "TELEGRAM_BOT_TOKEN, then restart."
            )
        if code == 409:
            raise PlatformError(
                f"Another program receives updates for {self._account!r}. Stop the other program, because a bot can "
                "have only one receiver."
            )
        if hints.migrate_to_chat_id is not None:
            raise ChatMigrated(hints.migrate_to_chat_id)
        if code in PASSING_STATUSES or code == 420:
            raise PlatformError(f"Telegram is temporarily refusing requests: {answer.description}")
        if 400 <= code < 500:
            raise TelegramBadRequest(answer.description, code)
        raise PlatformError(f"Telegram returned status {code}: {answer.description}", outcome_unknown=True)

    async def fetch_file(self, file_id: str, bytes_max: int) -> bytes:
        path = (await self.call("getFile", TelegramFile, {"file_id": file_id})).file_path
        return (await self.download(f"{self._file_base}/bot{self._token()}/{path}", bytes_max)).body


# ---- updates ----


class TelegramUser(msgspec.Struct):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""


class _Chat(msgspec.Struct):
    """A chat. `known_as` is its first id, which does not change when the group becomes a supergroup."""

    id: int
    known_as: str = field(name="", default="")
    type: str = "private"
    title: str = ""
    username: str = ""
    first_name: str = ""


class _TelegramEntity(msgspec.Struct):
    """A formatted part of a text. `offset` and `length` count UTF-16 code units."""

    type: str
    offset: int
    length: int
    user: TelegramUser | None = None
    url: str = ""


class TelegramFile(msgspec.Struct):
    file_id: str
    file_unique_id: str = ""
    file_name: str = ""
    mime_type: str = ""
    file_size: int = 0
    file_path: str = ""


class _Sticker(msgspec.Struct):
    emoji: str = ""


class _Location(msgspec.Struct):
    latitude: float
    longitude: float


class _Venue(msgspec.Struct):
    location: _Location
    title: str = ""
    address: str = ""


class _Contact(msgspec.Struct):
    phone_number: str = ""
    first_name: str = ""
    last_name: str = ""


class _TelegramText(msgspec.Struct):
    text: str = ""


class _Poll(msgspec.Struct):
    question: str = ""
    options: tuple[_TelegramText, ...] = ()


class _Dice(msgspec.Struct):
    emoji: str = ""
    value: int = 0


class _Titled(msgspec.Struct):
    title: str = ""
    description: str = ""


class _ChecklistTask(msgspec.Struct):
    id: int = 0
    text: str = ""
    completion_date: int = 0

    @property
    def said(self) -> str:
        return f"{self.text} (done)" if self.completion_date else self.text


class _Checklist(msgspec.Struct):
    title: str = ""
    tasks: tuple[_ChecklistTask, ...] = ()
    others_can_add_tasks: bool = False

    @property
    def said(self) -> str:
        tasks = " / ".join(task.said for task in self.tasks)
        return f"[a checklist: {': '.join(filter(None, (self.title, tasks)))}]"


class _Story(msgspec.Struct):
    """A story. Telegram sends bots only its author."""

    chat: _Chat


class _ForwardOrigin(msgspec.Struct):
    """Original author of a forwarded message: a user, a user who hides their account, a chat or a channel."""

    sender_user: TelegramUser | None = None
    sender_user_name: str = ""
    sender_chat: _Chat | None = None
    chat: _Chat | None = None
    author_signature: str = ""


class _Content(msgspec.Struct, kw_only=True):
    """Content of a message other than text."""

    document: TelegramFile | None = None
    audio: TelegramFile | None = None
    video: TelegramFile | None = None
    voice: TelegramFile | None = None
    video_note: TelegramFile | None = None
    animation: TelegramFile | None = None
    photo: tuple[TelegramFile, ...] = ()
    sticker: _Sticker | None = None
    location: _Location | None = None
    venue: _Venue | None = None
    contact: _Contact | None = None
    poll: _Poll | None = None
    dice: _Dice | None = None
    game: _Titled | None = None
    invoice: _Titled | None = None
    checklist: _Checklist | None = None
    story: _Story | None = None
    paid_media: dict[str, msgspec.Raw] | None = None
    giveaway: dict[str, msgspec.Raw] | None = None
    giveaway_winners: dict[str, msgspec.Raw] | None = None


class _ExternalReply(_Content):
    """A reply to a message in another chat or topic. Telegram sends only the quoted part of its text."""

    origin: _ForwardOrigin
    message_id: int = 0


class TelegramMessage(_Content):
    message_id: int
    chat: _Chat
    date: int = 0
    sender: TelegramUser | None = field(name="from", default=None)
    sender_chat: _Chat | None = None
    message_thread_id: int = 0
    is_topic_message: bool = False
    forum_topic_created: dict[str, msgspec.Raw] | None = None
    text: str = ""
    caption: str = ""
    entities: tuple[_TelegramEntity, ...] = ()
    caption_entities: tuple[_TelegramEntity, ...] = ()
    reply_to_message: "TelegramMessage | None" = None
    reply_to_story: _Story | None = None
    reply_to_checklist_task_id: int = 0
    external_reply: _ExternalReply | None = None
    quote: _TelegramText | None = None
    forward_origin: _ForwardOrigin | None = None
    media_group_id: str = ""
    edit_date: int = 0
    migrate_to_chat_id: int = 0
    migrate_from_chat_id: int = 0
    via_bot: TelegramUser | None = None
    sender_business_bot: TelegramUser | None = None

    @property
    def said(self) -> str:
        """The text with the URLs of its links."""
        return self.text_without(range(0))

    def text_without(self, units: range) -> str:
        """Return the text with the URLs of its links, without the given range of UTF-16 code units."""
        encoded = (self.text or self.caption).encode("utf-16-le")
        links = [
            entity for entity in self.entities or self.caption_entities if entity.url and entity.type == "text_link"
        ]
        changes = [(link.offset + link.length, link.offset + link.length, f" ({link.url})") for link in links]
        changes += [(units.start, units.stop, "")] if units else []
        for start, end, text in sorted(changes, reverse=True):
            encoded = encoded[: 2 * start] + text.encode("utf-16-le") + encoded[2 * end :]
        return encoded.decode("utf-16-le", "replace")

    @property
    def maker(self) -> Author | None:
        """Author of content that the sender did not write, or None.

        This is an inline bot, a business bot that writes for the sender, or the original author of a forwarded message.
        """
        bot = self.via_bot or self.sender_business_bot
        if bot is not None:
            return author_of(bot)
        return _origin_of(self.forward_origin) if self.forward_origin is not None else None

    @property
    def answered(self) -> "TelegramMessage | None":
        """The message that this one replies to. In a topic, every message refers to the topic's first message, which is
        therefore ignored.
        """
        replied = self.reply_to_message
        opens = self.is_topic_message and replied is not None and replied.forum_topic_created is not None
        return None if opens else replied


class CallbackQuery(msgspec.Struct):
    id: str
    sender: TelegramUser = field(name="from")
    message: TelegramMessage | None = None
    data: str = ""


class _ReactionType(msgspec.Struct):
    """A reaction. `emoji` is empty unless the reaction is a standard emoji."""

    emoji: str = ""


class _MessageReaction(msgspec.Struct):
    chat: _Chat
    message_id: int
    user: TelegramUser | None = None
    new_reaction: tuple[_ReactionType, ...] = ()


class _Member(msgspec.Struct, frozen=True):
    status: str = ""


PRESENT = ("member", "administrator", "restricted")


class _MemberUpdated(msgspec.Struct):
    """A change to the bot's membership in a chat."""

    chat: _Chat
    sender: TelegramUser = field(name="from")
    old_chat_member: _Member = _Member()
    new_chat_member: _Member = _Member()

    @property
    def is_added(self) -> bool:
        was, is_now = (member.status in PRESENT for member in (self.old_chat_member, self.new_chat_member))
        return is_now and not was and self.chat.type != "private"


class Update(msgspec.Struct):
    """An update. Only one of the optional fields is set."""

    update_id: int
    message: TelegramMessage | None = None
    edited_message: TelegramMessage | None = None
    channel_post: TelegramMessage | None = None
    edited_channel_post: TelegramMessage | None = None
    message_reaction: _MessageReaction | None = None
    callback_query: CallbackQuery | None = None
    my_chat_member: _MemberUpdated | None = None

    def chats(self) -> list[_Chat]:
        clicked = self.callback_query.message if self.callback_query is not None else None
        posts = (self.message, self.edited_message, self.channel_post, self.edited_channel_post, clicked)
        messages = [post for post in posts if post is not None]
        messages += [post.reply_to_message for post in messages if post.reply_to_message is not None]
        chats = [message.chat for message in messages]
        chats += [message.sender_chat for message in messages if message.sender_chat is not None]
        return chats + [update.chat for update in (self.message_reaction, self.my_chat_member) if update is not None]


# ---- meaning of updates ----


def thread_of(platform: str, message: TelegramMessage) -> ThreadId:
    """Return a message's thread: its topic, or the whole chat."""
    topic = str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else NO_TOPIC
    return make_thread_id(platform, message.chat.known_as or str(message.chat.id), topic)


def author_of(user: TelegramUser) -> Author:
    name = " ".join(part for part in (user.first_name, user.last_name) if part) or user.username
    return Author(str(user.id), name, is_bot=user.is_bot, trusted=False)


def sender_of(message: TelegramMessage) -> Author | None:
    """Return a message's author. For an anonymous sender, this is the chat."""
    chat = message.sender_chat
    if chat is not None:
        return _author_as(chat)
    return author_of(message.sender) if message.sender is not None else None


def _author_as(chat: _Chat) -> Author:
    return Author(chat.known_as or str(chat.id), chat.title or chat.first_name or chat.username, trusted=False)


def is_addressed(message: TelegramMessage, me: TelegramUser) -> bool:
    if message.answered is not None and is_of(message.answered, me):
        return True
    is_command = any(
        entity.type == "bot_command" and "@" not in _marked(message, entity)
        for entity in message.entities or message.caption_entities
    )
    return is_command or bool(mention_in(message, me))


def _marked(message: TelegramMessage, entity: _TelegramEntity) -> str:
    units = (message.text or message.caption).encode("utf-16-le")
    return units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le", "replace")


def mention_in(message: TelegramMessage, me: TelegramUser) -> range:
    """Return the position of the first mention of the bot, in UTF-16 code units, or an empty range.

    Only mentions that Telegram marks as entities count. The bot's name inside another word does not count.
    """
    name = f"@{me.username}".lower()
    for entity in sorted(message.entities or message.caption_entities, key=attrgetter("offset")):
        end, part = entity.offset + entity.length, _marked(message, entity).lower()
        is_name = entity.type == "mention" and part == name
        if is_name or (entity.type == "text_mention" and entity.user is not None and entity.user.id == me.id):
            return range(entity.offset, end)
        if entity.type == "bot_command" and part.partition("@")[2] == name[1:]:
            return range(end - len(name), end)
    return range(0)


def prompt_of(platform: str, message: TelegramMessage, me: TelegramUser) -> Prompt | None:
    """Convert a message to a prompt without its files and without the first mention of the bot. Returns None if the
    message has no author.
    """
    author = sender_of(message)
    if author is None:
        return None
    named, written = mention_in(message, me), message.text or message.caption
    if written.startswith("/") and named.stop != len(written.split(maxsplit=1)[0]):
        named = range(0)  # keep mentions in the arguments of a command
    text = message.text_without(named)
    text = text.strip() if named else text
    text = "\n".join(filter(None, (text, describe_content(message))))
    replied = message.answered
    passed_on = message.maker is not None
    refers = replied or message.external_reply or message.reply_to_story or passed_on or shown_by(message)
    return Prompt(
        thread=thread_of(platform, message),
        key=f"{message.chat.id}/{message.message_id}",
        text="" if passed_on else text,
        author=author,
        at=_time_of(message.date),
        reply_to=id_in(message.chat, replied.message_id) if replied is not None else "",
        joins=replied is not None and is_of(replied, me),
        message_id=id_in(message.chat, message.message_id),
        refers_to=tuple(references_of(message, text, me)) if refers else (),
        edited_at=_time_of(message.edit_date) if message.edit_date else None,
    )


def id_in(chat: _Chat, message_id: int) -> str:
    """Return a message's id. After a group became a supergroup, the id includes the chat's id, because message numbers
    restart.
    """
    return str(message_id) if chat.known_as in ("", str(chat.id)) else f"{chat.id}/{message_id}"


def references_of(message: TelegramMessage, text: str, me: TelegramUser) -> list[Reference]:
    replied, external, quote = message.answered, message.external_reply, message.quote
    quoted = quote.text if quote is not None else ""
    kind: Literal["quote", "reply"] = "quote" if quoted else "reply"
    references: list[Reference] = []
    if replied is not None:
        own, tasks = is_of(replied, me), replied.checklist.tasks if replied.checklist is not None else ()
        task = next((task.said for task in tasks if task.id == message.reply_to_checklist_task_id), "")
        author = author_in(replied) or Author("", replied.chat.title, trusted=False)
        if own and replied.sender is not None:
            author = author_of(replied.sender)
        quote_text = quoted or (task and f"[a checklist task: {task}]") or _full_text(replied, replied.said)
        author = author if own else _vouched(replied, author)
        references.append(Reference(kind, quote_text, author, id_in(message.chat, replied.message_id), own=own))
    elif external is not None:
        quote_text = quoted or _full_text(external) or "[a message from another chat]"
        references.append(Reference(kind, quote_text, _sender_elsewhere(external), str(external.message_id or "")))
    if message.reply_to_story is not None:
        references.append(Reference("reply", "[a story]", _author_as(message.reply_to_story.chat)))
    shown = shown_by(message)
    if message.maker is not None:
        quote_text = "\n".join(filter(None, (text, shown))) or _full_text(message)
        references.append(
            Reference("forward", quote_text, _vouched(message, message.maker), id_in(message.chat, message.message_id))
        )
    elif shown:
        author = Author("", trusted=False)
        references.append(Reference("forward", shown, author, id_in(message.chat, message.message_id)))
    return references


def _vouched(content: _Content, author: Author) -> Author:
    """Return the author. The id is omitted if the message also contains text by other people."""
    return Author("", author.name, trusted=False) if shown_by(content) else author


def _sender_elsewhere(external: _ExternalReply) -> Author:
    """Return the sender of a message in another chat, with a name but no id. Telegram does not report whether a bot
    wrote the message for them.
    """
    return Author("", _origin_of(external.origin).name, trusted=False)


def _full_text(content: _Content, text: str = "") -> str:
    file = file_of(content)
    name = f"[file {file.file_name}]" if file is not None else ""
    return "\n".join(filter(None, (text, describe_content(content), shown_by(content), name)))


def is_of(message: TelegramMessage, user: TelegramUser) -> bool:
    return message.sender is not None and message.sender.id == user.id


def author_in(message: TelegramMessage) -> Author | None:
    return message.maker or sender_of(message)


def files_of(message: TelegramMessage, me: TelegramUser) -> list[tuple[TelegramFile, Author | None]]:
    """Return the message's file and the file of the message that it replies to, each with its author. None means the
    message's sender.

    A file that the bot posted is omitted.
    """
    files: list[tuple[TelegramFile, Author | None]] = []
    own, replied, external = file_of(message), message.answered, message.external_reply
    if own is not None:
        files.append((own, message.maker))
    # A reply may ask about this file, for example "what is this?".
    shown = file_of(replied) if replied is not None and not is_of(replied, me) else None
    if replied is not None and shown is not None:
        files.append((shown, author_in(replied) or Author("", trusted=False)))
    elif external is not None and (shown := file_of(external)) is not None:
        files.append((shown, _sender_elsewhere(external)))
    return files


def _origin_of(origin: _ForwardOrigin) -> Author:
    if origin.sender_user is not None:
        return author_of(origin.sender_user)
    chat = origin.sender_chat or origin.chat
    name = origin.sender_user_name or (chat.title or chat.username if chat is not None else "")
    return Author("", " ".join(filter(None, (name, origin.author_signature))), trusted=False)


def shown_by(message: _Content) -> str:
    """Describe content that other people may have written: a game, an invoice, a venue, a contact, a poll or a shared
    checklist. Returns an empty string if the message has no such content.
    """
    parts: list[str] = []
    if message.venue is not None:
        venue, place = message.venue, message.venue.location
        parts.append(f"[a location: {venue.title}, {venue.address}, {place.latitude:.6f}, {place.longitude:.6f}]")
    if message.contact is not None:
        contact = message.contact
        name = " ".join(filter(None, (contact.first_name, contact.last_name)))
        parts.append(f"[a contact: {name}, {contact.phone_number}]")
    if message.poll is not None:
        parts.append(f"[a poll: {message.poll.question} {' / '.join(option.text for option in message.poll.options)}]")
    if message.checklist is not None and message.checklist.others_can_add_tasks:
        parts.append(message.checklist.said)
    for kind, titled in (("a game", message.game), ("an invoice", message.invoice)):
        if titled is not None:
            parts.append(f"[{kind}: {': '.join(filter(None, (titled.title, titled.description)))}]")
    return "\n".join(parts)


def describe_content(message: _Content) -> str:
    """Describe content other than text and files. Returns an empty string if the message has no such content."""
    parts: list[str] = []
    if message.sticker is not None:
        parts.append(f"[a sticker: {message.sticker.emoji or 'without an emoji'}]")
    if message.location is not None and message.venue is None:
        parts.append(f"[a location: {message.location.latitude:.6f}, {message.location.longitude:.6f}]")
    if message.dice is not None:
        parts.append(f"[thrown: {message.dice.emoji} {message.dice.value}]")
    if message.checklist is not None and not message.checklist.others_can_add_tasks:
        parts.append(message.checklist.said)
    for kind, content in (
        ("a story", message.story), ("paid media", message.paid_media), ("a giveaway", message.giveaway),
        ("the winners of a giveaway", message.giveaway_winners),
    ):  # fmt: skip
        if content is not None:
            parts.append(f"[{kind}]")
    return "\n".join(parts)


def _time_of(seconds: int) -> datetime:
    return datetime.fromtimestamp(min(max(seconds, 0), _DATE_MAX), UTC)


def file_of(message: _Content) -> TelegramFile | None:
    """Return a message's file. For a photo, this is the largest version."""
    if message.photo:
        photo = message.photo[-1]
        return TelegramFile(photo.file_id, photo.file_unique_id, "photo.jpg", "image/jpeg", photo.file_size)
    for kind, media in (
        ("animation.mp4", message.animation), ("file", message.document), ("audio", message.audio),
        ("video", message.video), ("video note.mp4", message.video_note), ("voice.ogg", message.voice),
    ):  # fmt: skip
        if media is not None:
            return msgspec.structs.replace(media, file_name=media.file_name or kind)
    return None


ENVELOPE = frozenset(
    """
    message_id chat date from sender_chat message_thread_id is_topic_message direct_messages_topic
    business_connection_id sender_boost_count sender_business_bot sender_tag via_bot forward_origin
    is_automatic_forward reply_to_message external_reply quote reply_to_story reply_to_checklist_task_id edit_date
    has_protected_content is_from_offline is_paid_post media_group_id author_signature paid_star_count
    link_preview_options effect_id reply_markup suggested_post_info
    """.split()  # noqa: SIM905
)
"""Fields that any kind of message may contain. All other fields identify the kind. Source:
core.telegram.org/bots/api#message.
"""
_NOTICE = re.compile(
    r"(?:new_chat|left_chat|delete_chat|group_chat|supergroup_chat|channel_chat|migrate|pinned|message_auto_delete|forum_"
    r"|general_forum|video_chat|write_access|users_shared|chat_shared|connected_website|boost_added|chat_background"
    r"|proximity_alert|giveaway_(?:created|completed)|successful_payment|refunded_payment|gift|unique_gift|direct_message_price|checklist_tasks"
    r"|suggested_post|passport_data|web_app_data|chat_owner|paid_message_price|managed_bot|poll_option).*"
)
"""Matches the names of fields that only system messages contain."""


def unknown_kind(event: str) -> str:
    """Return the kind of an unsupported message. Returns an empty string for a system message."""
    update = msgspec.json.decode(event, type=_RawUpdate)
    message = update.message or update.channel_post
    kinds = sorted(message.keys() - ENVELOPE)
    return "" if any(_NOTICE.fullmatch(kind) for kind in kinds) else ", ".join(kinds) or "empty"


def unknown_update(event: str) -> str:
    try:
        kinds = msgspec.json.decode(event, type=dict[str, msgspec.Raw]).keys() - {"update_id"}
    except UNREADABLE:
        return "update that is not a JSON object"
    return f"update with {', '.join(sorted(kinds)) or 'nothing'}"


def chat_in(event: bytes | msgspec.Raw) -> str:
    """Return the id of the chat that an update belongs to, or an empty string."""
    try:
        for content in msgspec.json.decode(event, type=dict[str, msgspec.Raw]).values():
            try:
                place = msgspec.json.decode(content, type=_InChat)
            except UNREADABLE:  # not an object with a chat, for example the update's number
                continue
            chat = place.chat or (place.message.chat if place.message is not None else None)
            if chat is not None:
                return str(chat.id)
    except UNREADABLE:
        pass
    return ""


class _RawUpdate(msgspec.Struct):
    message: dict[str, msgspec.Raw] = {}
    channel_post: dict[str, msgspec.Raw] = {}


class _InChat(msgspec.Struct):
    chat: _Chat | None = None
    message: "_InChat | None" = None
