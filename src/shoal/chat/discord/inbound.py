"""What Discord tells: the parts of events that matter, and the prompt they make. Source: docs.discord.com, API v10."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec

from shoal.domain.foreign import FORWARDED, untrusted_block
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Author, Prompt

Threading: TypeAlias = Literal["native", "reply", "channel"]

WHOLE = "0"
"""The thread part of conversations that are a whole channel."""
CHAIN = "r"
"""Before the id of a chain's first message, in the thread part of a conversation by replies."""

_DISCORD_EPOCH_MS = 1_420_070_400_000
_THREADS = frozenset({10, 11, 12})
_DIRECT = frozenset({1, 3})
_TEXT = frozenset({0, 2, 5, 13, 10, 11, 12})
_SAID = frozenset({0, 19})
"""Types of messages that somebody wrote: plain ones and replies; the others are notices."""
_MENTION = re.compile(r"<@!?(\d+)>")
_HANDLE = re.compile(r"[\w.]{2,32}")


class User(msgspec.Struct, frozen=True):
    """Who."""

    id: str
    username: str = ""
    global_name: str | None = None
    bot: bool = False


class Member(msgspec.Struct, frozen=True):
    """Somebody in a server."""

    user: User | None = None
    nick: str | None = None
    roles: tuple[str, ...] = ()


class File(msgspec.Struct, frozen=True):
    """An attachment on Discord's servers."""

    id: str
    filename: str
    url: str
    size: int = 0
    content_type: str | None = None


class Reference(msgspec.Struct, frozen=True):
    """The message that another one answers (type 0) or forwards (type 1)."""

    message_id: str | None = None
    type: int = 0


class Quoted(msgspec.Struct, frozen=True):
    """The message that is answered, as far as it is read."""

    id: str
    author: User | None = None


class SnapshotMessage(msgspec.Struct, frozen=True):
    """What a forwarded message says."""

    content: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """A forwarded message."""

    message: SnapshotMessage = SnapshotMessage()


class Message(msgspec.Struct, frozen=True):
    """A message, as far as it is read."""

    id: str
    channel_id: str
    guild_id: str = ""
    author: User | None = None
    member: Member | None = None
    content: str = ""
    timestamp: datetime | None = None
    edited_timestamp: datetime | None = None
    type: int = 0
    webhook_id: str | None = None
    nonce: str | int | None = None
    mentions: tuple[User, ...] = ()
    attachments: tuple[File, ...] = ()
    message_reference: Reference | None = None
    referenced_message: Quoted | None = None
    message_snapshots: tuple[Snapshot, ...] = ()


class Deleted(msgspec.Struct, frozen=True):
    """One or more messages are gone."""

    channel_id: str
    id: str = ""
    ids: tuple[str, ...] = ()


class Emoji(msgspec.Struct, frozen=True):
    """An emoji; custom ones have a name of their own."""

    name: str | None = None


class ReactionAdded(msgspec.Struct, frozen=True):
    """Somebody put an emoji to a message."""

    user_id: str
    channel_id: str
    message_id: str
    member: Member | None = None
    emoji: Emoji = Emoji()


class Channel(msgspec.Struct, frozen=True):
    """A channel, a thread or a direct conversation."""

    id: str
    type: int = 0
    guild_id: str = ""
    parent_id: str | None = None
    last_message_id: str | None = None


class Guild(msgspec.Struct, frozen=True):
    """A server, as it is told after connecting."""

    id: str
    channels: tuple[Channel, ...] = ()
    threads: tuple[Channel, ...] = ()
    unavailable: bool = False


class Option(msgspec.Struct, frozen=True):
    """What was written behind a slash command."""

    name: str
    value: str | int | float | bool = ""


class InteractionData(msgspec.Struct, frozen=True):
    """The command or the button."""

    name: str = ""
    custom_id: str = ""
    options: tuple[Option, ...] = ()


class Interaction(msgspec.Struct, frozen=True):
    """A slash command (type 2) or a pressed button (type 3)."""

    id: str
    token: str
    type: int
    application_id: str
    data: InteractionData = InteractionData()
    guild_id: str = ""
    channel: Channel | None = None
    member: Member | None = None
    user: User | None = None


class Place(msgspec.Struct, frozen=True):
    """Where something was said: a channel, in which thread of it (WHOLE for none), in which server (empty: direct)."""

    channel: str
    topic: str = WHOLE
    guild: str = ""

    @property
    def direct(self) -> bool:
        """Whether nobody else reads along."""
        return not self.guild

    def prefix(self, platform: str) -> str:
        """What the ids of the channel's threads begin with."""
        return make_thread_id(platform, self.channel, WHOLE).removesuffix(WHOLE)

    def thread(self, platform: str) -> ThreadId:
        """The thread that the place is by itself."""
        return make_thread_id(platform, self.channel, self.topic)


def place_of(channel: Channel, guild: str = "") -> Place:
    """The place a channel is; threads belong to the channel they hang below."""
    guild = channel.guild_id or guild
    if channel.type in _DIRECT:
        return Place(channel.id)
    if channel.type in _THREADS and channel.parent_id:
        return Place(channel.parent_id, channel.id, guild or "?")
    return Place(channel.id, WHOLE, guild or "?")


def holds_text(channel: Channel) -> bool:
    """Whether messages can be written there."""
    return channel.type in _TEXT or channel.type in _DIRECT


def is_said(message: Message, me: str) -> bool:
    """Whether a person wrote it: no notice, no webhook, no bot, not this bot."""
    author = message.author
    return (
        message.type in _SAID
        and author is not None
        and not author.bot
        and author.id != me
        and not message.webhook_id
    )  # fmt: skip


def is_addressed(message: Message, me: str) -> bool:
    """Whether a message in a server is meant for the bot: it is named or answered."""
    return answers(message, me) or any(user.id == me for user in message.mentions)


def answers(message: Message, me: str) -> bool:
    """Whether it is a reply to a message of the bot's own."""
    quoted = message.referenced_message
    return bool(answered_id(message)) and quoted is not None and quoted.author is not None and quoted.author.id == me


def answered_id(message: Message) -> str:
    """The id of the message that this one replies to; empty for none, and for forwarded ones."""
    reference = message.message_reference
    return reference.message_id or "" if reference is not None and reference.type == 0 else ""


def thread_of(platform: str, place: Place, message_id: str, threading: Threading) -> ThreadId:
    """The thread that a message belongs to when it answers nothing known."""
    if place.direct or place.topic != WHOLE or threading == "channel":
        return place.thread(platform)
    return make_thread_id(platform, place.channel, message_id if threading == "native" else f"{CHAIN}{message_id}")


def author_of(user: User, member: Member | None = None) -> Author:
    """The user as Discord vouches for them; roles by id, since in a server of their own anybody can name a role."""
    name = (member.nick if member is not None else None) or user.global_name or user.username
    return Author(user.id, name, member.roles if member is not None else (), is_bot=user.bot, trusted=False)


def text_of(message: Message, me: str) -> str:
    """What it says: without the bot's name at its beginning, other people by their handle instead of number.

    What somebody calls themselves is their words, and nobody else's; so is a bot's name that is no handle.
    """
    names = {user.id: user.username for user in message.mentions if _HANDLE.fullmatch(user.username)}
    content = message.content
    if not content and message.message_snapshots:
        return untrusted_block(FORWARDED, message.message_snapshots[0].message.content)
    content = _MENTION.sub("", content, count=1) if _leads(content, me) else content
    return _MENTION.sub(lambda found: _named(found[1], me, names) or found[0], content).strip()


def passed_on(message: Message) -> str:
    """What of it is somebody else's; empty when nothing is."""
    return FORWARDED if message.message_snapshots else ""


def _leads(content: str, me: str) -> bool:
    found = _MENTION.match(content.lstrip())
    return found is not None and found[1] == me


def _named(user: str, me: str, names: Mapping[str, str]) -> str:
    return "" if user not in names and user != me else f"@{names.get(user) or 'you'}"


def prompt_of(thread: ThreadId, message: Message, me: str) -> Prompt | None:
    """The prompt a message makes, without its files; None when nobody sent it."""
    if message.author is None:
        return None
    return Prompt(
        thread=thread,
        key=message.id,
        text=text_of(message, me),
        author=author_of(message.author, message.member),
        at=message.timestamp or time_of(message.id),
        reply_to=answered_id(message),
        message_id=message.id,
        joins=answers(message, me),
        tainted_by=passed_on(message),
    )


def time_of(snowflake: str) -> datetime:
    """When something with this id was made; what is no id of Discord's counts as its first."""
    number = int(snowflake) if re.fullmatch(r"[0-9]{1,20}", snowflake) else 0
    return datetime.fromtimestamp(((number >> 22) + _DISCORD_EPOCH_MS) / 1000, UTC)


def snowflake_at(at: datetime) -> int:
    """The smallest id of something made at this time."""
    return max(0, int(at.timestamp() * 1000) - _DISCORD_EPOCH_MS) << 22


def chain_of(messages: list[Message], root: str) -> list[Message]:
    """Those of a channel's messages, oldest first, that answer `root` directly or through others."""
    chain = {root}
    found: list[Message] = []
    for message in messages:
        if message.id == root or answered_id(message) in chain:
            chain.add(message.id)
            found.append(message)
    return found
