"""What Teams tells: the parts of an activity that matter, and what they mean.

Source: the Bot Framework's activity schema, and what Teams adds to it in channelData.
"""

import html
import re
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec

from shoal.domain.foreign import QUOTED, UNREADABLE, untrusted_block
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Author, Prompt

CHAT = "0"
"""The thread part of chats, which have no threads."""
DOWNLOAD = "application/vnd.microsoft.teams.file.download.info"
FORWARDED = "forwardedMessageReference"
"""What stands for a message that was passed on, in the words of Microsoft Graph."""
_ROOT = ";messageid="
_AT = re.compile(r"<at\b[^>]*>(.*?)</at>", re.DOTALL | re.IGNORECASE)
_QUOTE = re.compile(r"<blockquote\b", re.IGNORECASE)
_AUTHOR_OF_QUOTE = re.compile(
    r"<blockquote\b[^<>]*schema\.skype\.com/Reply[^<>]*>\s*<strong\b[^<>]*itemprop=\"mri\"[^<>]*itemid=\"([^\"]*)\"",
    re.IGNORECASE,
)
_EMOJI = re.compile(r"([0-9a-f]{4,6})_\w*")
_DIRECT, _CHANNEL = "personal", "channel"


class Account(msgspec.Struct, frozen=True, rename="camel"):
    """Who."""

    id: str = ""
    name: str | None = None
    aad_object_id: str | None = None
    role: str | None = None


class Conversation(msgspec.Struct, frozen=True, rename="camel"):
    """Where; a channel's id ends with the message that its thread hangs from."""

    id: str = ""
    conversation_type: str | None = None
    is_group: bool | None = None
    tenant_id: str | None = None


class Entity(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a text that means something."""

    type: str = ""
    mentioned: Account | None = None
    text: str | None = None


class Attached(msgspec.Struct, frozen=True, rename="camel"):
    """Something that came with a message."""

    content_type: str = ""
    content_url: str | None = None
    name: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"null")


class FileInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Where a file can be fetched for a while."""

    download_url: str = ""
    file_type: str | None = None


class Emoji(msgspec.Struct, frozen=True):
    """A reaction: like, heart… or a code point and a name."""

    type: str = ""


class Tenant(msgspec.Struct, frozen=True):
    """An organisation, or a team in it."""

    id: str = ""


class ChannelData(msgspec.Struct, frozen=True, rename="camel"):
    """What Teams adds."""

    tenant: Tenant | None = None
    team: Tenant | None = None
    event_type: str | None = None


class Activity(msgspec.Struct, frozen=True, rename="camel"):
    """One thing that happened."""

    type: str = ""
    id: str = ""
    name: str | None = None
    timestamp: str | None = None
    service_url: str = ""
    channel_id: str | None = None
    sender: Account = msgspec.field(name="from", default=Account())
    recipient: Account = Account()
    conversation: Conversation = Conversation()
    text: str | None = None
    entities: tuple[Entity, ...] | None = None
    attachments: tuple[Attached, ...] | None = None
    value: msgspec.Raw = msgspec.Raw(b"null")
    reply_to_id: str | None = None
    reactions_added: tuple[Emoji, ...] | None = None
    channel_data: ChannelData | None = None


class _Data(msgspec.Struct, frozen=True):
    shoal: str = ""


class _Pressed(msgspec.Struct, frozen=True):
    data: _Data = _Data()


class _Click(msgspec.Struct, frozen=True):
    action: _Pressed = _Pressed()
    shoal: str = ""


class Upload(msgspec.Struct, frozen=True, rename="camel"):
    """Where a file that somebody accepted may be put."""

    upload_url: str = ""
    content_url: str = ""
    unique_id: str = ""
    file_type: str = ""
    name: str = ""


class Consent(msgspec.Struct, frozen=True, rename="camel"):
    """What somebody answered when a file was offered."""

    action: str = ""
    context: _Data = _Data()
    upload_info: Upload | None = None


def is_direct(activity: Activity) -> bool:
    """Whether nobody else reads along."""
    conversation = activity.conversation
    return conversation.conversation_type == _DIRECT or (
        conversation.conversation_type is None and not conversation.is_group
    )


def is_channel(activity: Activity) -> bool:
    """Whether it is in a team's channel, where conversations are threads."""
    return activity.conversation.conversation_type == _CHANNEL or _ROOT in activity.conversation.id


def is_of_bot(activity: Activity) -> bool:
    """Whether a bot did it, this one or another."""
    sender = activity.sender
    return not sender.id or sender.id == activity.recipient.id or sender.id.startswith("28:") or sender.role == "bot"


def tenant_of(activity: Activity) -> str:
    """The organisation; empty when it is not told."""
    told = activity.channel_data.tenant if activity.channel_data is not None else None
    return (told.id if told is not None else "") or activity.conversation.tenant_id or ""


def team_of(activity: Activity) -> str:
    """The team whose channel it is; empty for chats."""
    told = activity.channel_data.team if activity.channel_data is not None else None
    return told.id if told is not None else ""


def channel_of(activity: Activity) -> str:
    """The chat or channel, without the thread."""
    return activity.conversation.id.partition(_ROOT)[0]


def thread_of(platform: str, activity: Activity) -> ThreadId:
    """The thread: below a message of a channel, or the whole chat. Raises InvalidId."""
    channel, _, root = activity.conversation.id.partition(_ROOT)
    if is_channel(activity):
        return make_thread_id(platform, channel, root or activity.reply_to_id or activity.id)
    return make_thread_id(platform, channel, CHAT)


def conversation_of(channel: str, thread: str) -> str:
    """The conversation's id as Teams knows it; inverse of `thread_of`."""
    return channel if thread == CHAT else f"{channel}{_ROOT}{thread}"


def beginning_of(platform: str, channel: str) -> str:
    """How the ids of a channel's threads begin. Raises InvalidId."""
    return f"{make_thread_id(platform, channel, CHAT).rpartition(':')[0]}:"


def key_of(channel: str, message_id: str) -> str:
    """What a message is told from all others of the platform by."""
    return f"{channel}/{message_id}"


def author_of(account: Account) -> Author:
    """Who, by the id that their organisation gives them, which every bot sees alike."""
    return Author(account.aad_object_id or account.id, account.name or "", is_bot=account.role == "bot", trusted=False)


def is_addressed(activity: Activity) -> bool:
    """Whether the message names this bot."""
    return any(_names(entity, activity.recipient.id) for entity in activity.entities or ())


def _names(entity: Entity, account: str) -> bool:
    return (
        entity.type == "mention" and entity.mentioned is not None and bool(account) and entity.mentioned.id == account
    )


def quotes_others(activity: Activity) -> bool:
    """Whether the text has words of somebody else: Teams puts a quotation before the answer, told apart in the HTML. Of
    a message that is passed on it tells no author that could be checked."""
    for attached in activity.attachments or ():
        if attached.content_type == FORWARDED:
            return True
        try:
            body = msgspec.json.decode(attached.content, type=str) if attached.content_type == "text/html" else ""
        except UNREADABLE:
            body = ""
        own = [author for author in _AUTHOR_OF_QUOTE.findall(body) if author == activity.recipient.id]
        if len(_QUOTE.findall(body)) > len(own):
            return True
    return False


def text_of(activity: Activity) -> str:
    """What was written, in an untrusted block where somebody else is quoted."""
    text = _written(activity)
    return untrusted_block(QUOTED, text) if text and quotes_others(activity) else text


def _written(activity: Activity) -> str:
    """The text without the bot's own name, and with other people's as @NAME."""
    text = (activity.text or "").replace("\u00a0", " ").replace("\r\n", "\n")
    for entity in activity.entities or ():
        if _names(entity, activity.recipient.id) and entity.text:
            text = text.replace(entity.text, "", 1)
    return _AT.sub(lambda found: f"@{html.unescape(found[1])}", text).strip()


def time_of(activity: Activity, now: datetime) -> datetime:
    """When it happened; now, when Teams does not say it well."""
    try:
        at = datetime.fromisoformat(activity.timestamp or "")
        return at.astimezone(UTC) if at.tzinfo is not None else now
    except (ValueError, OverflowError):
        return now


def prompt_of(platform: str, activity: Activity, now: datetime) -> Prompt:
    """The prompt a message makes, without its files. Raises InvalidId."""
    channel = channel_of(activity)
    return Prompt(
        thread=thread_of(platform, activity),
        key=key_of(channel, activity.id),
        text=text_of(activity),
        author=author_of(activity.sender),
        at=time_of(activity, now),
        reply_to="" if is_channel(activity) else activity.reply_to_id or "",
        message_id=activity.id,
        direct=is_direct(activity),
        tainted_by=QUOTED if quotes_others(activity) else "",
    )


def pressed_in(activity: Activity) -> str:
    """The value of the button of ours that was pressed; empty for anything else."""
    try:
        click = msgspec.json.decode(activity.value, type=_Click)
    except UNREADABLE:
        return ""
    return click.action.data.shoal or click.shoal


def consent_in(activity: Activity) -> Consent | None:
    """What somebody answered when a file was offered."""
    try:
        return msgspec.json.decode(activity.value, type=Consent)
    except UNREADABLE:
        return None


def files_of(activity: Activity) -> list[tuple[str, str, str]]:
    """Name, media type and address of each file; cards and the text's own HTML are none."""
    found: list[tuple[str, str, str]] = []
    for attached in activity.attachments or ():
        kind = attached.content_type
        if kind == DOWNLOAD:
            try:
                info = msgspec.json.decode(attached.content, type=FileInfo)
            except UNREADABLE:
                info = FileInfo()
            found.append((attached.name or "file", "application/octet-stream", info.download_url))
        elif attached.content_url and not kind.startswith(("text/html", "application/vnd.microsoft.")):
            kind = "image/png" if kind == "image/*" else kind
            name = attached.name or f"{kind.partition('/')[0]}.{kind.partition('/')[2] or 'bin'}"
            found.append((name, kind or "application/octet-stream", attached.content_url))
    return found


def emoji_of(reaction: Emoji) -> str:
    """The emoji itself where Teams tells its code point, else its name."""
    found = _EMOJI.fullmatch(reaction.type)
    if found is None or int(found[1], 16) > 0x10FFFF:
        return reaction.type
    return chr(int(found[1], 16))


def host_of(url: str) -> str:
    """The host of an address with its port, the usual ones left out; empty for what is no address of the web."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        return ""
    usual = 443 if parts.scheme == "https" else 80
    return parts.hostname if port in (None, usual) else f"{parts.hostname}:{port}"


def is_here(url: str) -> bool:
    """Whether an address is on this machine."""
    return host_of(url).partition(":")[0] in ("127.0.0.1", "localhost")
