"""What goes to Discord: its limits, its markup, and the bodies of its calls."""

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from shoal.chat.discord.messages import CHAIN, WHOLE
from shoal.chat.discord.wire import DiscordMessage
from shoal.chat.http import Fields, Json
from shoal.chat.inbox import read_file
from shoal.domain.commands import CommandSpec
from shoal.domain.errors import PlatformError
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.markup import (
    MARKDOWN_MARKS,
    Dialect,
    escaped_markdown,
    is_link,
    markdown_code,
    plain_link,
    render_markup,
)
from shoal.domain.posts import WRITING, Button, ChatLimits, OutboundPost, Window
from shoal.domain.speech import seconds_of

TEXT_CHARS_MAX = 2000
BUTTON_CHARS_MAX = 100
BUTTON_LABEL_CHARS_MAX = 80
BUTTONS_MAX = 5
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

_STYLES = {"allow": 3, "thread": 1, "deny": 4}
"""Green, blue and red, by what a button's value begins with."""


def _link(label: str, url: str) -> str:
    if not is_link(url):
        return plain_link(label, escaped_markdown(url))
    return f"{label} (<{url}>)" if ")" in url or label == escaped_markdown(url) else f"[{label}]({url})"


DISCORD_MARKDOWN = Dialect(
    text=escaped_markdown,
    styles=MARKDOWN_MARKS,
    code=markdown_code,
    link=_link,
    heading=lambda text, level: f"{'#' * level} {text}" if level < 4 else f"**{text}**",
)


def limits_of(*, opens_threads: bool) -> ChatLimits:
    """Discord counts posts by channel, and each of its threads is a channel to it: five in five seconds.

    The window is a little longer, since some posts take longer to arrive than others.
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
        reactions="all",
        has_history=True,
        voice="ogg",
        album_max=10,
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
    """Whether a message says what a post would say: the same text, below the same message, with the same file.

    A preview may have been of any length.
    """
    reference = body.get("message_reference")
    wanted = reference.get("message_id") if isinstance(reference, dict) else ""
    said, wants = message.content.strip(), str(body.get("content", "")).strip()
    if post.key.startswith("preview:"):
        return said.endswith(WRITING.strip()) and message.answered_id in ("", wanted)
    files = (post.file, *post.album) if post.file is not None else ()
    sizes = [file.stat().st_size for file in files if file.exists()]
    return said == wants and message.answered_id == wanted and [one.size for one in message.attachments] == sizes


def components_of(buttons: tuple[Button, ...]) -> Json:
    """One row of buttons. Raises PlatformError for what Discord would not take."""
    if not buttons:
        return []
    if len(buttons) > BUTTONS_MAX or any(not 1 <= len(button.value) <= BUTTON_CHARS_MAX for button in buttons):
        reason = f"A message may have {BUTTONS_MAX} buttons, with values of {BUTTON_CHARS_MAX} characters."
        raise PlatformError(reason, permanent=True)
    row: list[Json] = [
        {
            "type": 2, "style": _STYLES.get(button.value.partition(":")[0], 2),
            "label": button.label[:BUTTON_LABEL_CHARS_MAX], "custom_id": button.value
        }
        for button in buttons
    ]  # fmt: skip
    return [{"type": 1, "components": row}]


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
