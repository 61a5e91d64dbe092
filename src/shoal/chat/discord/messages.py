"""What Discord's messages mean: where they stand, who wrote them, what they say, and the prompts they make."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec

from shoal.chat.discord.wire import (
    DiscordChannel,
    DiscordFile,
    DiscordMember,
    DiscordMessage,
    DiscordUser,
    RepliedMessage,
    SnapshotContent,
)
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Attachment, Author, Prompt, Reference

Threading: TypeAlias = Literal["native", "reply", "channel"]

WHOLE = "0"
"""The thread part of conversations that are a whole channel."""
CHAIN = "r"
"""Before the id of a chain's first message, in the thread part of a conversation by replies."""

_DISCORD_EPOCH_MS = 1_420_070_400_000
_THREADS = frozenset({10, 11, 12})
_DIRECT = frozenset({1, 3})
_TEXT = frozenset({0, 2, 5, 13, 10, 11, 12})
_FORUMS = frozenset({15, 16})
_SAID = frozenset({0, 19})
"""Types of messages that somebody wrote: plain ones and replies; the others are notices."""
_ANSWERED = frozenset({20, 23})
"""Types of messages that a bot wrote to whoever gave it a command."""
KNOWN_TYPES = frozenset(range(47))
"""These, and the types of messages that Discord writes itself.

Source: docs.discord.com/developers/resources/message.
"""
_MENTION = re.compile(r"<@!?(\d+)>")
_HANDLE = re.compile(r"[\w.]{2,32}")


class DiscordPlace(msgspec.Struct, frozen=True):
    """Where something was said: a channel, in which thread of it (WHOLE for none), in which server (empty: direct).
    A forum holds threads alone."""

    channel: str
    topic: str = WHOLE
    guild: str = ""
    is_forum: bool = False

    @property
    def direct(self) -> bool:
        """Whether nobody else reads along."""
        return not self.guild

    def thread(self, platform: str) -> ThreadId:
        return make_thread_id(platform, self.channel, self.topic)


def place_of(channel: DiscordChannel, guild: str = "") -> DiscordPlace:
    """The place a channel is; threads belong to the channel they hang below."""
    guild = channel.guild_id or guild
    if channel.type in _DIRECT:
        return DiscordPlace(channel.id)
    if channel.type in _THREADS and channel.parent_id:
        return DiscordPlace(channel.parent_id, channel.id, guild or "?")
    return DiscordPlace(channel.id, WHOLE, guild or "?", channel.type in _FORUMS)


def holds_text(channel: DiscordChannel) -> bool:
    """Whether messages can be written there."""
    return channel.type in _TEXT | _DIRECT


def is_said(message: DiscordMessage, me: str) -> bool:
    """Whether a person wrote it: no notice, no webhook, no bot, not this bot."""
    author = message.author
    is_person = author is not None and not author.bot and author.id != me
    return is_person and message.type in _SAID and not message.webhook_id


def was_said(message: DiscordMessage, me: str) -> bool:
    """Whether somebody else said it, another bot or a program maybe."""
    author = message.author
    return author is not None and author.id != me and message.type in _SAID | _ANSWERED


def is_addressed(message: DiscordMessage, me: str) -> bool:
    """Whether a message in a server is meant for the bot: it mentions or answers the bot."""
    return answers(message, me) or any(user.id == me for user in message.mentions)


def answers(message: DiscordMessage, me: str) -> bool:
    """Whether it is a reply to a message of the bot's own."""
    replied = message.referenced_message
    return bool(message.answered_id) and replied is not None and replied.author is not None and replied.author.id == me


def thread_of(platform: str, place: DiscordPlace, message_id: str, threading: Threading) -> ThreadId:
    """The thread that a message belongs to when it answers nothing known."""
    if place.direct or place.topic != WHOLE or threading == "channel":
        return place.thread(platform)
    return make_thread_id(platform, place.channel, message_id if threading == "native" else f"{CHAIN}{message_id}")


def author_of(user: DiscordUser, member: DiscordMember | None = None) -> Author:
    """The user as Discord vouches for them; roles by id, since in a server of their own anybody can name a role."""
    name = (member.nick if member is not None else None) or user.global_name or user.username
    return Author(user.id, name, member.roles if member is not None else (), is_bot=user.bot, trusted=False)


def text_of(message: RepliedMessage, me: str) -> str:
    """What it says: without the bot's mention at its beginning, other people by their handle instead of number.

    What somebody calls themselves is their words, and nobody else's; so is a bot's name that is not a handle.
    """
    content = message.content
    names = {user.id: user.username for user in message.mentions if _HANDLE.fullmatch(user.username)}
    leading = _MENTION.match(content.lstrip())
    if leading is not None and leading[1] == me:
        content = _MENTION.sub("", content, count=1)

    def name(found: re.Match[str]) -> str:
        known = names.get(found[1]) or ("you" if found[1] == me else "")
        return f"@{known}" if known else found[0]

    return "\n".join(filter(None, (_MENTION.sub(name, content).strip(), said_besides(message))))


def said_besides(message: SnapshotContent) -> str:
    """What it says in another way than by words and files; empty for none."""
    parts = [f"[a sticker: {sticker.name}]" for sticker in message.sticker_items]
    if message.poll is not None:
        media = [answer.poll_media for answer in message.poll.answers]
        answers = " / ".join(one.text or (one.emoji.name if one.emoji is not None else "") or "" for one in media)
        parts.append(f"[a poll: {message.poll.question.text or ''} {answers}]")
    return "\n".join(parts)


def cards_of(message: SnapshotContent) -> str:
    """What its cards and parts say, which bots and links show: words of nobody who wrote in the conversation."""
    said: list[str | None] = []
    for card in message.embeds:
        said += [card.author.name if card.author is not None else "", card.title, card.description]
        said += [f"{one.name}: {one.value}" for one in card.fields]
        said.append(card.footer.text if card.footer is not None else "")
    waiting = list(message.components[::-1])
    while waiting:
        part = waiting.pop()
        said.append(part.content)
        waiting += part.components[::-1]
    return "\n".join(filter(None, said))


def references_of(message: DiscordMessage, me: str) -> list[Reference]:
    """What a message answers and passes on; of the latter nobody says who wrote it."""
    replied, found = message.referenced_message, list[Reference]()
    if message.answered_id and replied is not None and replied.author is not None:
        author = author_of(replied.author)
        text = text_of(replied, me)
        if replied.message_snapshots:  # whoever passed it on did not write it
            author, text = _NOBODY, "\n".join(_snapshot(one.message) for one in replied.message_snapshots)
        files = (f"[file {file.filename}]" for file in replied.attachments)
        said = "\n".join(filter(None, (text, cards_of(replied), *files)))
        found.append(Reference("reply", said, author, replied.id, own=replied.author.id == me))
    for one in message.message_snapshots:
        found.append(Reference("forward", _snapshot(one.message), _NOBODY, message.id))
    return found


def _snapshot(content: SnapshotContent) -> str:
    files = (f"[file {file.filename}]" for file in content.attachments)
    return "\n".join(filter(None, (content.content, said_besides(content), cards_of(content), *files)))


_NOBODY = Author("", trusted=False)


def files_of(message: DiscordMessage, me: str) -> list[DiscordFile]:
    """Its files, those of what it passes on, and those of what it answers unless the bot posted that."""
    found = [*message.attachments, *(file for one in message.message_snapshots for file in one.message.attachments)]
    replied = message.referenced_message
    if message.answered_id and replied is not None and not answers(message, me):
        found += replied.attachments
    return found


def prompt_of(thread: ThreadId, message: DiscordMessage, me: str) -> Prompt | None:
    """The prompt a message makes, without its files; None when nobody sent it."""
    if message.author is None:
        return None
    return Prompt(
        thread=thread,
        key=message.id,
        text=text_of(message, me),
        author=author_of(message.author, message.member),
        at=message.timestamp or time_of(message.id),
        reply_to=message.answered_id,
        message_id=message.id,
        joins=answers(message, me),
        refers_to=tuple(references_of(message, me)),
        edited_at=message.edited_timestamp,
    )


def read_back(thread: ThreadId, message: DiscordMessage, me: str) -> Prompt | None:
    """A message of a conversation's past, its files by their names; of a bot or a program with its cards."""
    prompt = prompt_of(thread, message, me)
    if prompt is None:
        return None
    is_bot = prompt.author.is_bot or bool(message.webhook_id)
    return msgspec.structs.replace(
        prompt,
        author=msgspec.structs.replace(prompt.author, is_bot=is_bot),
        text="\n".join(filter(None, (prompt.text, cards_of(message) if is_bot else ""))),
        attachments=tuple(Attachment(file.filename, size_bytes=file.size) for file in message.attachments),
    )


def time_of(snowflake: str) -> datetime:
    """When something with this id was made; anything else counts as Discord's first."""
    number = int(snowflake) if re.fullmatch(r"[0-9]{1,20}", snowflake) else 0
    return datetime.fromtimestamp(((number >> 22) + _DISCORD_EPOCH_MS) / 1000, UTC)


def snowflake_at(at: datetime) -> int:
    """The smallest id of something made at this time."""
    return max(0, int(at.timestamp() * 1000) - _DISCORD_EPOCH_MS) << 22


def chain_of(messages: Iterable[DiscordMessage], root: str) -> list[DiscordMessage]:
    """Those of a channel's messages, oldest first, that answer `root` directly or through others."""
    chain = {root}
    found: list[DiscordMessage] = []
    for message in messages:
        if message.id == root or message.answered_id in chain:
            chain.add(message.id)
            found.append(message)
    return found
