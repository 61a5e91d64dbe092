"""What Discord's messages mean, the prompts they make, and what goes there: limits, markup, the bodies of calls."""

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
    """What it says: without the bot's mention at its beginning, other people by their handle instead of number. What
    somebody calls themselves is their words, and nobody else's; so is a bot's name that is not a handle."""
    content = message.content
    names = {user.id: user.username for user in message.mentions if _HANDLE.fullmatch(user.username)}
    leading = _MENTION.match(content.lstrip())
    if leading is not None and leading[1] == me:
        content = _MENTION.sub("", content, count=1)

    def name(found: re.Match[str]) -> str:
        known = names.get(found[1]) or ("you" if found[1] == me else "")
        return f"@{known}" if known else found[0]

    return "\n".join(filter(None, (_MENTION.sub(name, content).strip(), poll_of(message))))


def poll_of(message: SnapshotContent) -> str:
    """The question and the answers of its poll; empty for none."""
    if message.poll is None:
        return ""
    media = [answer.poll_media for answer in message.poll.answers]
    answers = " / ".join(one.text or (one.emoji.name if one.emoji is not None else "") or "" for one in media)
    return f"[a poll: {message.poll.question.text or ''} {answers}]"


def stickers_of(message: SnapshotContent) -> str:
    """The names of its stickers, which whoever uploaded them chose; empty for none."""
    return "\n".join(f"[a sticker: {sticker.name}]" for sticker in message.sticker_items)


def cards_of(message: SnapshotContent) -> str:
    """What its cards and parts say, which bots and links show: words of nobody who wrote in the conversation."""
    said: list[str | None] = []
    for card in message.embeds:
        is_new = bool(card.title and card.url and card.url not in message.content)  # not of a link's own preview
        title = f"{card.title} ({card.url})" if is_new else card.title
        said += [card.author.name if card.author is not None else "", title, card.description]
        said += [f"{one.name}: {one.value}" for one in card.fields]
        said.append(card.footer.text if card.footer is not None else "")
    said += [words_of(part, _COMPONENTS) for part in message.components]
    return "\n".join(filter(None, said))


def _of_control(part: Part) -> str | None:
    """Of what people press or choose from, the address it opens, and nothing else; None for other parts."""
    kind = part.get("type")
    if not isinstance(kind, int) or kind not in _CONTROLS:
        return None
    return f"{part.get('label', '')} ({part['url']})" if part.get("url") else ""


_CONTROLS = frozenset({2, 3, 4, 5, 6, 7, 8, 19, 21, 22, 23})
_COMPONENTS = CardForm(said=frozenset({"content", "description", "label", "name"}), leaf=_of_control)
"""Parts of a message that is laid out by its author.

Source: docs.discord.com/developers/components/reference.
"""


def naming(message: DiscordMessage, me: str, role: str) -> DiscordMessage:
    """A message in which the role that Discord made for the bot stands, as one in which the bot itself does."""
    content = message.content.replace(f"<@&{role}>", f"<@{me}>")
    return msgspec.structs.replace(message, content=content, mentions=(*message.mentions, DiscordUser(me)))


def references_of(message: DiscordMessage, me: str) -> list[Reference]:
    """What a message answers and passes on; of the latter nobody says who wrote it."""
    replied, found = message.referenced_message, list[Reference]()
    if message.answered_id and replied is not None and replied.author is not None:
        author = author_of(replied.author)
        text = text_of(replied, me)
        if replied.message_snapshots:  # whoever passed it on did not write it
            author, text = _NOBODY, "\n".join(_snapshot(one.message) for one in replied.message_snapshots)
        own, shown = replied.author.id == me, "\n".join(filter(None, (stickers_of(replied), cards_of(replied))))
        if shown and not own:  # pages, programs and makers of stickers wrote that
            author = Author("", author.name, trusted=False)
        files = (f"[file {file.filename}]" for file in replied.attachments)
        said = "\n".join(filter(None, (text, shown, *files)))
        found.append(Reference("reply", said, author, replied.id, own=own))
    for one in message.message_snapshots:
        found.append(Reference("forward", _snapshot(one.message), _NOBODY, message.id))
    if message.sticker_items:
        found.append(Reference("forward", stickers_of(message), _NOBODY))
    return found


def _snapshot(content: SnapshotContent) -> str:
    files = (f"[file {file.filename}]" for file in content.attachments)
    return "\n".join(filter(None, (content.content, stickers_of(content), poll_of(content), cards_of(content), *files)))


_NOBODY = Author("", trusted=False)


def files_of(message: DiscordMessage, me: str) -> list[DiscordFile]:
    """Its files, those of what it passes on, and those of what it answers unless the bot posted that."""
    found = [*message.attachments, *(file for one in message.message_snapshots for file in one.message.attachments)]
    replied = message.referenced_message
    if message.answered_id and replied is not None and not answers(message, me):
        found += replied.attachments
    return found


def prompt_of(thread: ThreadId, message: DiscordMessage, me: str) -> Prompt:
    """The prompt a message makes, without its files."""
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
    """A message of a conversation's past, its files by their names; of a bot or a program with its cards."""
    prompt = prompt_of(thread, message, me)
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


# ---- what goes out ----

TEXT_CHARS_MAX = 2000
BUTTON_CHARS_MAX = 100
BUTTON_LABEL_CHARS_MAX = 80
BUTTONS_MAX, ROW_MAX = 25, 5
"""Buttons of a message, and of one row."""
THREAD_NAME_CHARS_MAX = 100
CHOICES_MAX, CHOICE_CHARS_MAX = 25, 100
"""What is offered while a command is typed."""
SUPPRESS_EMBEDS = 4
"""A flag: nothing that the model writes makes Discord fetch an address."""
EPHEMERAL = 64
VOICE_MESSAGE = 1 << 13
"""A flag: one audio file and nothing else, shown as a voice message."""
VOICE_BYTES_MAX = 26_214_400
WAVE_POINTS_MAX = 256

_STYLES = {"allow": 3, "all": 3, "take": 3, "thread": 1, "deny": 4, "none": 4}
"""Green, blue and red, by what a button's value begins with."""


_NATIVE = re.compile(
    r"<(?:@[!&]?[0-9]+|#[0-9]+|a?:[A-Za-z0-9_]+:[0-9]+|/[^<>:\n]+:[0-9]+|t:-?[0-9]+(?::[A-Za-z])?|id:[a-z]+)>"
)
"""Mentions, which notify nobody here, custom emojis, commands and times, as Discord writes them."""
_BARE_URL = re.compile(r"(https?://[^\s<>]+)")
_ESCAPES = re.compile(r"([\\*_~`|<\[\]])")
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_LINE_START = re.compile(r"^([ \t]*)([>#-])", re.MULTILINE)


def _text(text: str) -> str:
    """Text without markup. Source: docs.discord.com/developers/reference, message formatting; a backslash before any
    sign is left out by clients, but not in addresses and code. An address between angle brackets ends there."""
    parts = _BARE_URL.split(text)
    parts[::2] = (_LINE_START.sub(r"\1\\\2", _ESCAPES.sub(r"\\\1", part)) for part in parts[::2])
    parts[1::2] = (f"<{url}>" for url in parts[1::2])
    return "".join(parts)


def _token(token: str) -> str:
    return token if _NATIVE.fullmatch(token) else _text(token)


def _strong(inner: str) -> str:
    """Bold words; plain ones where they hold marks that would end it early, in code or in an address."""
    return inner if "**" in _ESCAPED.sub("", inner) else f"**{inner}**"


def _em(inner: str) -> str:
    return inner if "*" in _ESCAPED.sub("", inner).replace("**", "") else f"*{inner}*"


def _struck(inner: str) -> str:
    """Struck words, within which Discord knows no backslash."""
    return inner if "~~" in inner or inner.endswith("~") else f"~~{inner}~~"


def _fence(content: str, info: str) -> str:
    """Three backticks always: Discord knows no longer fences, and shows an empty one as it is written."""
    kept = without_fences(content.removesuffix("\n"))
    return f"```{language_in(info)}\n{kept if kept.strip() else ' '}\n```"


def _link(label: str, url: str) -> str:
    if label == _text(url):
        return label
    # Discord shows a link whose words have an address or an open bracket as it is written.
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
    """Discord counts posts by channel, and each of its threads is a channel to it: five in five seconds. The window is
    a little longer, since some posts take longer to arrive than others."""
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
    """Where a thread's posts go: a channel; `parent` where that is a thread to be opened at the parent's message of the
    same id; and the message of a chain that is answered."""

    channel: str
    parent: str = ""
    answers: str = ""


def target_of(thread: ThreadId) -> DiscordTarget:
    """Where posts go. Raises PlatformError for an id that is not of Discord's form."""
    address = thread_address(thread)
    topic = address.thread.removeprefix(CHAIN)
    if not address.channel.isdecimal() or not topic.isdecimal():
        raise PlatformError(f"Discord has no thread {thread!r}; its ids are numbers.", permanent=True)
    if topic != address.thread:
        return DiscordTarget(address.channel, answers=topic)
    if topic == WHOLE:
        return DiscordTarget(address.channel)
    return DiscordTarget(topic, parent=address.channel)


def nonce_of(key: str) -> str:
    """The idempotency key in the 25 characters that Discord compares."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def message_body(markdown: str, buttons: tuple[Button, ...] = ()) -> dict[str, Json]:
    """A message's content; it pings nobody and shows no previews of links. Raises PlatformError for bad buttons."""
    return {
        "content": render_markup(markdown, DISCORD_MARKDOWN),
        "components": components_of(buttons),
        "allowed_mentions": {"parse": [], "replied_user": False},
        "flags": SUPPRESS_EMBEDS,
    }


def post_body(post: OutboundPost, target: DiscordTarget) -> dict[str, Json]:
    """The body of a new message. It is posted even if what it answers is gone."""
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
    """What Discord shows of a voice message: how long it lasts, and a wave, here an even one. Raises PlatformError."""
    seconds = seconds_of(read_file(file, VOICE_BYTES_MAX))
    points = max(1, min(WAVE_POINTS_MAX, round(seconds * 10)))
    return {"duration_secs": round(seconds, 2), "waveform": base64.b64encode(b"\x60" * points).decode()}


def is_try_of(post: OutboundPost, body: Fields, message: DiscordMessage) -> bool:
    """Whether a message says what a post would say: the same text, below the same message, with the same file. A
    preview may have been of any length."""
    reference = body.get("message_reference")
    wanted = reference.get("message_id") if isinstance(reference, dict) else ""
    said, wants = message.content.strip(), str(body.get("content", "")).strip()
    if post.key.startswith("preview:"):
        return said.endswith(WRITING.strip()) and message.answered_id in ("", wanted)
    files = (post.file, *post.album) if post.file is not None else ()
    sizes = [file.stat().st_size for file in files if file.exists()]
    return said == wants and message.answered_id == wanted and [one.size for one in message.attachments] == sizes


def components_of(buttons: tuple[Button, ...]) -> Json:
    """Rows of buttons. Raises PlatformError for what Discord would not take."""
    if not buttons:
        return []
    if len(buttons) > BUTTONS_MAX or any(not 1 <= len(button.value) <= BUTTON_CHARS_MAX for button in buttons):
        reason = f"A message may have {BUTTONS_MAX} buttons, with values of {BUTTON_CHARS_MAX} characters."
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
    """The slash commands as Discord registers them; what may follow one is an option `text`."""
    found: list[Json] = []
    for command in commands:
        body: dict[str, Json] = {"name": command.name, "description": command.description[:100], "type": 1}
        if command.usage:
            required = not command.usage.startswith("[")
            option: dict[str, Json] = {"type": 3, "name": "text", "description": command.usage[:100]}
            completes: dict[str, Json] = {"autocomplete": True} if command.completes else {}
            body["options"] = [{**option, "required": required, **completes}]
        found.append(body)
    return found


def choices_body(texts: Iterable[str]) -> Fields:
    """What a person may choose while they type; those that are too long for a choice are left out."""
    fitting = [text for text in texts if len(text) <= CHOICE_CHARS_MAX][:CHOICES_MAX]
    return {"type": 8, "data": {"choices": [{"name": text, "value": text} for text in fitting]}}


def thread_body(text: str) -> Fields:
    """A thread at a message, named by the message's first line; archived after a day without a message."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return {"name": first[:THREAD_NAME_CHARS_MAX] or "Conversation", "auto_archive_duration": 1440}
