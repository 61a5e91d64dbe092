"""Convert Discord messages to prompts, and posts to request bodies with Discord's markup and limits."""

import base64
import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.commands import CommandSpec
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.markup import Dialect, language_in, markdown_code
from shoal.kernel.messages import Attachment, Author, Prompt, Reference
from shoal.kernel.posts import WRITING, Button, ChatLimits, OutboundPost, Window
from shoal.kernel.speech import seconds_of
from shoal.markdown.dialects import ZERO_WIDTH_SPACE, markdown_link, without_fences
from shoal.markdown.render import render_markup
from shoal.platforms.cards import CardForm, Part, words_of
from shoal.platforms.discord.wire import (
    DiscordChannel,
    DiscordFile,
    DiscordMember,
    DiscordMessage,
    DiscordUser,
    RepliedMessage,
    SnapshotContent,
)
from shoal.platforms.http import Fields, Json
from shoal.platforms.inbox import read_file

Threading: TypeAlias = Literal["native", "reply", "channel"]

WHOLE = "0"
"""Thread part of ids for conversations that span an entire channel."""
CHAIN = "r"
"""Prefix of the thread part of an id for a reply chain. The id of the chain's first message follows."""

_DISCORD_EPOCH_MS = 1_420_070_400_000
_THREADS = frozenset({10, 11, 12})
_DIRECT = frozenset({1, 3})
_TEXT = frozenset({0, 2, 5, 13, 10, 11, 12})
_FORUMS = frozenset({15, 16})
_SAID = frozenset({0, 19})
"""Types of messages that people write. 0 is a plain message, and 19 is a reply."""
_ANSWERED = frozenset({20, 23})
"""Types of messages that answer a command."""
KNOWN_TYPES = frozenset(range(47))
"""All documented message types. Source: docs.discord.com/developers/resources/message."""
_MENTION = re.compile(r"<@!?(\d+)>")
_HANDLE = re.compile(r"[\w.]{2,32}")


class DiscordLocation(msgspec.Struct, frozen=True):
    """Location of a message.

    - `topic`: the thread, or WHOLE outside of threads.
    - `guild`: the server. Empty for direct messages, "?" if unknown.
    - `is_forum`: whether the channel is a forum, which contains only threads.
    """

    channel: str
    topic: str = WHOLE
    guild: str = ""
    is_forum: bool = False

    @property
    def direct(self) -> bool:
        return not self.guild

    def thread(self, platform: str) -> ThreadId:
        return make_thread_id(platform, self.channel, self.topic)


def place_of(channel: DiscordChannel, guild: str = "") -> DiscordLocation:
    """Return a channel's location. The location of a thread contains its parent channel."""
    guild = channel.guild_id or guild
    if channel.type in _DIRECT:
        return DiscordLocation(channel.id)
    if channel.type in _THREADS and channel.parent_id:
        return DiscordLocation(channel.parent_id, channel.id, guild or "?")
    return DiscordLocation(channel.id, WHOLE, guild or "?", channel.type in _FORUMS)


def holds_text(channel: DiscordChannel) -> bool:
    return channel.type in _TEXT | _DIRECT


def is_from_person(message: DiscordMessage, me: str) -> bool:
    """Return True if a person wrote the message. Notices, webhooks and bots do not count."""
    author = message.author
    is_person = author is not None and not author.bot and author.id != me
    return is_person and message.type in _SAID and not message.webhook_id


def is_from_others(message: DiscordMessage, me: str) -> bool:
    author = message.author
    return author is not None and author.id != me and message.type in _SAID | _ANSWERED


def is_addressed(message: DiscordMessage, me: str) -> bool:
    return answers(message, me) or any(user.id == me for user in message.mentions)


def answers(message: DiscordMessage, me: str) -> bool:
    """Return True if the message replies to the bot."""
    replied = message.referenced_message
    return bool(message.answered_id) and replied is not None and replied.author is not None and replied.author.id == me


def thread_of(platform: str, place: DiscordLocation, message_id: str, threading: Threading) -> ThreadId:
    if place.direct or place.topic != WHOLE or threading == "channel":
        return place.thread(platform)
    return make_thread_id(platform, place.channel, message_id if threading == "native" else f"{CHAIN}{message_id}")


def author_of(user: DiscordUser, member: DiscordMember | None = None) -> Author:
    """Return the author of a message. Roles are ids because server owners choose role names freely."""
    name = (member.nick if member is not None else None) or user.global_name or user.username
    return Author(user.id, name, member.roles if member is not None else (), is_bot=user.bot, trusted=False)


def text_of(message: RepliedMessage, me: str) -> str:
    """Return the text without a leading mention of the bot. Other mentions become usernames, because users choose their
    display names freely.
    """
    content = message.content
    names = {user.id: user.username for user in message.mentions if _HANDLE.fullmatch(user.username)}
    leading = _MENTION.match(content.lstrip())
    if leading is not None and leading[1] == me:
        content = _MENTION.sub("", content, count=1)

    def name(match: re.Match[str]) -> str:
        known = names.get(match[1]) or ("you" if match[1] == me else "")
        return f"@{known}" if known else match[0]

    return "\n".join(filter(None, (_MENTION.sub(name, content).strip(), poll_of(message))))


def poll_of(message: SnapshotContent) -> str:
    if message.poll is None:
        return ""
    media = [answer.poll_media for answer in message.poll.answers]
    answers = " / ".join(
        answer.text or (answer.emoji.name if answer.emoji is not None else "") or "" for answer in media
    )
    return f"[a poll: {message.poll.question.text or ''} {answers}]"


def stickers_of(message: SnapshotContent) -> str:
    """Return the names of the stickers. The people who uploaded the stickers chose these names freely."""
    return "\n".join(f"[a sticker: {sticker.name}]" for sticker in message.sticker_items)


def cards_of(message: SnapshotContent) -> str:
    """Return the text of embeds and components. Bots and link previews add this text, so the message's author did not
    write it.
    """
    texts: list[str | None] = []
    for card in message.embeds:
        # skip a URL that the message already contains
        is_new = bool(card.title and card.url and card.url not in message.content)
        title = f"{card.title} ({card.url})" if is_new else card.title
        texts += [card.author.name if card.author is not None else "", title, card.description]
        texts += [f"{field.name}: {field.value}" for field in card.fields]
        texts.append(card.footer.text if card.footer is not None else "")
    texts += [words_of(part, _COMPONENTS) for part in message.components]
    return "\n".join(filter(None, texts))


def _of_control(part: Part) -> str | None:
    kind = part.get("type")
    if not isinstance(kind, int) or kind not in _CONTROLS:
        return None
    return f"{part.get('label', '')} ({part['url']})" if part.get("url") else ""


_CONTROLS = frozenset({2, 3, 4, 5, 6, 7, 8, 19, 21, 22, 23})
_COMPONENTS = CardForm(said=frozenset({"content", "description", "label", "name"}), leaf=_of_control)
"""Form for the components of a message with a custom layout. Source: docs.discord.com/developers/components/reference.
"""


def naming(message: DiscordMessage, me: str, role: str) -> DiscordMessage:
    """Replace mentions of the bot's own role with mentions of the bot."""
    content = message.content.replace(f"<@&{role}>", f"<@{me}>")
    return msgspec.structs.replace(message, content=content, mentions=(*message.mentions, DiscordUser(me)))


def references_of(message: DiscordMessage, me: str) -> list[Reference]:
    """Return the messages that this message replies to or forwards. The author of a forwarded message is unknown."""
    replied, references = message.referenced_message, list[Reference]()
    if message.answered_id and replied is not None and replied.author is not None:
        author = author_of(replied.author)
        text = text_of(replied, me)
        if replied.message_snapshots:  # a forwarded message, which its sender did not write
            author, text = _NOBODY, "\n".join(_snapshot(snapshot.message) for snapshot in replied.message_snapshots)
        own, shown = replied.author.id == me, "\n".join(filter(None, (stickers_of(replied), cards_of(replied))))
        if shown and not own:  # this text comes from linked pages, apps and sticker uploaders
            author = Author("", author.name, trusted=False)
        files = (f"[file {file.filename}]" for file in replied.attachments)
        text_parts = "\n".join(filter(None, (text, shown, *files)))
        references.append(Reference("reply", text_parts, author, replied.id, own=own))
    for snapshot in message.message_snapshots:
        references.append(Reference("forward", _snapshot(snapshot.message), _NOBODY, message.id))
    if message.sticker_items:
        references.append(Reference("forward", stickers_of(message), _NOBODY))
    return references


def _snapshot(content: SnapshotContent) -> str:
    files = (f"[file {file.filename}]" for file in content.attachments)
    return "\n".join(filter(None, (content.content, stickers_of(content), poll_of(content), cards_of(content), *files)))


_NOBODY = Author("", trusted=False)


def files_of(message: DiscordMessage, me: str) -> list[DiscordFile]:
    """Return the files of the message, of the messages it forwards, and of the message it replies to. Files that the
    bot posted are omitted.
    """
    attachments = [
        *message.attachments,
        *(file for snapshot in message.message_snapshots for file in snapshot.message.attachments),
    ]
    replied = message.referenced_message
    if message.answered_id and replied is not None and not answers(message, me):
        attachments += replied.attachments
    return attachments


def prompt_of(thread: ThreadId, message: DiscordMessage, me: str) -> Prompt:
    return Prompt(
        thread=thread,
        key=message.id,
        text=text_of(message, me),
        author=author_of(message.author, message.member) if message.author is not None else _NOBODY,
        at=message.timestamp or time_of(message.id),
        reply_to=message.answered_id,
        message_id=message.id,
        joins=answers(message, me),
        refers_to=tuple(references_of(message, me)),
        edited_at=message.edited_timestamp,
    )


def read_back(thread: ThreadId, message: DiscordMessage, me: str) -> Prompt:
    """Convert an earlier message to a prompt. Files are included by name only. If a bot or webhook wrote the message,
    the text includes its cards.
    """
    prompt = prompt_of(thread, message, me)
    is_bot = prompt.author.is_bot or bool(message.webhook_id)
    return msgspec.structs.replace(
        prompt,
        author=msgspec.structs.replace(prompt.author, is_bot=is_bot),
        text="\n".join(filter(None, (prompt.text, cards_of(message) if is_bot else ""))),
        attachments=tuple(Attachment(file.filename, size_bytes=file.size) for file in message.attachments),
    )


def time_of(snowflake: str) -> datetime:
    """Return the creation time that an id contains. For an invalid id, return the start of Discord's epoch."""
    number = int(snowflake) if re.fullmatch(r"[0-9]{1,20}", snowflake) else 0
    return datetime.fromtimestamp(((number >> 22) + _DISCORD_EPOCH_MS) / 1000, UTC)


def snowflake_at(at: datetime) -> int:
    return max(0, int(at.timestamp() * 1000) - _DISCORD_EPOCH_MS) << 22


def chain_of(messages: Iterable[DiscordMessage], root: str) -> list[DiscordMessage]:
    """Return the message `root` and all direct and indirect replies to it. `messages` must be sorted oldest first."""
    chain = {root}
    found: list[DiscordMessage] = []
    for message in messages:
        if message.id == root or message.answered_id in chain:
            chain.add(message.id)
            found.append(message)
    return found


# ---- sending ----

TEXT_CHARS_MAX = 2000
BUTTON_CHARS_MAX = 100
BUTTON_LABEL_CHARS_MAX = 80
BUTTONS_MAX, ROW_MAX = 25, 5
THREAD_NAME_CHARS_MAX = 100
CHOICES_MAX, CHOICE_CHARS_MAX = 25, 100
SUPPRESS_EMBEDS = 4
EPHEMERAL = 64
VOICE_MESSAGE = 1 << 13
"""Flag that displays a single audio file as a voice message."""
VOICE_BYTES_MAX = 26_214_400
WAVE_POINTS_MAX = 256

_STYLES = {"allow": 3, "all": 3, "take": 3, "thread": 1, "deny": 4, "none": 4}
"""Discord button style by prefix of the button's value. 1 is blue, 3 is green, and 4 is red."""


_NATIVE = re.compile(
    r"<(?:@[!&]?[0-9]+|#[0-9]+|a?:[A-Za-z0-9_]+:[0-9]+|/[^<>:\n]+:[0-9]+|t:-?[0-9]+(?::[A-Za-z])?|id:[a-z]+)>"
)
"""Matches mentions, custom emojis, commands and timestamps in Discord's syntax. Mentions are not escaped, because posts
never notify anyone.
"""
_BARE_URL = re.compile(r"(https?://[^\s<>]+)")
_ESCAPES = re.compile(r"([\\*_~`|<\[\]])")
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_LINE_START = re.compile(r"^([ \t]*)([>#-])", re.MULTILINE)


def _text(text: str) -> str:
    """Escape markup. Clients show a backslash in a URL literally, so URLs are enclosed in angle brackets instead.
    Source: docs.discord.com/developers/reference, message formatting.
    """
    parts = _BARE_URL.split(text)
    parts[::2] = (_LINE_START.sub(r"\1\\\2", _ESCAPES.sub(r"\\\1", part)) for part in parts[::2])
    parts[1::2] = (f"<{url}>" for url in parts[1::2])
    return "".join(parts)


def _token(token: str) -> str:
    return token if _NATIVE.fullmatch(token) else _text(token)


def _strong(inner: str) -> str:
    return inner if "**" in _ESCAPED.sub("", inner) else f"**{inner}**"


def _em(inner: str) -> str:
    return inner if "*" in _ESCAPED.sub("", inner).replace("**", "") else f"*{inner}*"


def _struck(inner: str) -> str:
    """Render struck-through text, or plain text if it contains tildes that would end it early. Discord does not support
    backslash escapes there.
    """
    return inner if "~~" in inner or inner.endswith("~") else f"~~{inner}~~"


def _fence(content: str, info: str) -> str:
    """Render a fence of exactly three backticks. Discord does not support longer fences and shows an empty fence
    literally.
    """
    inner = without_fences(content.removesuffix("\n"))
    return f"```{language_in(info)}\n{inner if inner.strip() else ' '}\n```"


def _link(label: str, url: str) -> str:
    if label == _text(url):
        return label
    # Discord shows the markup of a link literally if the label contains a URL or a bracket.
    is_label = "://" not in label and not set("[]") & set(_ESCAPED.sub("", label))
    return markdown_link(label, url) if is_label else f"{ZERO_WIDTH_SPACE}{label} (<{url}>)"


DISCORD_MARKDOWN = Dialect(
    text=_text,
    token=_token,
    styles={"strong": _strong, "em": _em, "s": _struck},
    code=markdown_code,
    opens=lambda url: url.startswith(("http://", "https://")),
    link=_link,
    opens_links=True,
    heading=lambda text, level: f"{'#' * level} {text}" if level < 4 else _strong(text),
    fence=_fence,
    edges="apart",
)


def limits_of(*, opens_threads: bool) -> ChatLimits:
    """Return Discord's limits: five posts in five seconds per channel. Each thread counts as a channel. The window is
    slightly longer because network delays vary.
    """
    return ChatLimits(
        opens_threads=opens_threads,
        text_chars_max=TEXT_CHARS_MAX,
        markup=DISCORD_MARKDOWN,
        edit_seconds_min=1.2 if opens_threads else 3.0,
        windows=(Window(5, 5.2, "thread" if opens_threads else "channel"), Window(45, 1.0, "account")),
        idempotent_posts=True,
        can_edit=True,
        can_upload=True,
        has_preview=True,
        has_buttons=True,
        buttons_max=BUTTONS_MAX,
        reactions="all",
        has_history=True,
        voice="ogg",
        album_max=10,
        edits_notify=False,
    )


class DiscordTarget(msgspec.Struct, frozen=True):
    """Target of a thread's posts.

    - `parent`: the parent channel. A new thread is opened at the parent's message with the same id.
    - `answers`: the message to reply to in a reply chain.
    """

    channel: str
    parent: str = ""
    answers: str = ""


def target_of(thread: ThreadId) -> DiscordTarget:
    """Return the target of a thread's posts. Raises PlatformError if the id is invalid."""
    address = thread_address(thread)
    topic = address.thread.removeprefix(CHAIN)
    if not address.channel.isdecimal() or not topic.isdecimal():
        raise PlatformError(f"{thread!r} is not a Discord thread. Discord's ids are numeric.", permanent=True)
    if topic != address.thread:
        return DiscordTarget(address.channel, answers=topic)
    if topic == WHOLE:
        return DiscordTarget(address.channel)
    return DiscordTarget(topic, parent=address.channel)


def nonce_of(key: str) -> str:
    """Hash an idempotency key to fit Discord's limit of 25 characters for a nonce."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def message_body(markdown: str, buttons: tuple[Button, ...] = ()) -> dict[str, Json]:
    """Build a message body that notifies nobody and shows no link previews. Raises PlatformError for invalid
    buttons.
    """
    return {
        "content": render_markup(markdown, DISCORD_MARKDOWN),
        "components": components_of(buttons),
        "allowed_mentions": {"parse": [], "replied_user": False},
        "flags": SUPPRESS_EMBEDS,
    }


def post_body(post: OutboundPost, target: DiscordTarget) -> dict[str, Json]:
    """Build the body of a new message. Discord accepts it even if the message that it replies to was deleted."""
    body = message_body(post.markdown, post.buttons)
    body |= {"nonce": nonce_of(post.key), "enforce_nonce": True}
    answered = post.reply_to or target.answers
    if answered.isdecimal() and answered != target.channel:
        body["message_reference"] = {"message_id": answered, "fail_if_not_exists": False}
    if post.file is not None:
        files = enumerate((post.file, *post.album))
        body["attachments"] = [{"id": str(number), "filename": file.name} for number, file in files]
        if post.kind == "voice" and post.file.suffix == ".ogg":
            body.pop("content")
            body["flags"] = VOICE_MESSAGE
            body["attachments"] = [{"id": "0", "filename": "voice-message.ogg", **voice_of(post.file)}]
    return body


def voice_of(file: Path) -> dict[str, Json]:
    """Return a voice message's duration and a flat waveform. Raises PlatformError."""
    seconds = seconds_of(read_file(file, VOICE_BYTES_MAX))
    points = max(1, min(WAVE_POINTS_MAX, round(seconds * 10)))
    return {"duration_secs": round(seconds, 2), "waveform": base64.b64encode(b"\x60" * points).decode()}


def is_try_of(post: OutboundPost, body: Fields, message: DiscordMessage) -> bool:
    """Return True if a message matches a post in text, reply and file sizes. For a preview, only the end of the text
    must match.
    """
    reference = body.get("message_reference")
    wanted = reference.get("message_id") if isinstance(reference, dict) else ""
    spoken, wants = message.content.strip(), str(body.get("content", "")).strip()
    if post.key.startswith("preview:"):
        return spoken.endswith(WRITING.strip()) and message.answered_id in ("", wanted)
    files = (post.file, *post.album) if post.file is not None else ()
    sizes = [file.stat().st_size for file in files if file.exists()]
    return (
        spoken == wants
        and message.answered_id == wanted
        and [attachment.size for attachment in message.attachments] == sizes
    )


def components_of(buttons: tuple[Button, ...]) -> Json:
    if not buttons:
        return []
    if len(buttons) > BUTTONS_MAX or any(not 1 <= len(button.value) <= BUTTON_CHARS_MAX for button in buttons):
        reason = f"A message may have at most {BUTTONS_MAX} buttons, with values of 1 to {BUTTON_CHARS_MAX} characters."
        raise PlatformError(reason, permanent=True)
    listed: list[Json] = [
        {
            "type": 2, "style": _STYLES.get(button.value.partition(":")[0], 2),
            "label": button.label[:BUTTON_LABEL_CHARS_MAX], "custom_id": button.value
        }
        for button in buttons
    ]  # fmt: skip
    rows = [listed[at : at + ROW_MAX] for at in range(0, len(listed), ROW_MAX)]
    return [{"type": 1, "components": row} for row in rows]


def commands_of(commands: Iterable[CommandSpec]) -> list[Json]:
    """Build the slash commands for registration. All arguments of a command are in a single `text` option."""
    rows: list[Json] = []
    for command in commands:
        body: dict[str, Json] = {"name": command.name, "description": command.description[:100], "type": 1}
        if command.usage:
            required = not command.usage.startswith("[")
            option: dict[str, Json] = {"type": 3, "name": "text", "description": command.usage[:100]}
            completes: dict[str, Json] = {"autocomplete": True} if command.completes else {}
            body["options"] = [{**option, "required": required, **completes}]
        rows.append(body)
    return rows


def choices_body(texts: Iterable[str]) -> Fields:
    """Build autocomplete choices. Skips texts over CHOICE_CHARS_MAX characters and returns at most CHOICES_MAX
    choices.
    """
    fitting = [text for text in texts if len(text) <= CHOICE_CHARS_MAX][:CHOICES_MAX]
    return {"type": 8, "data": {"choices": [{"name": text, "value": text} for text in fitting]}}


def thread_body(text: str) -> Fields:
    """Build the body of a request that creates a thread. The thread's name is the first line of the text. Discord
    archives the thread after a day without messages.
    """
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return {"name": first[:THREAD_NAME_CHARS_MAX] or "Conversation", "auto_archive_duration": 1440}
