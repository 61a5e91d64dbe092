"""What goes to Discord: the bodies of its calls, and its limits."""

import hashlib
from collections.abc import Iterable

import msgspec

from shoal.chat.discord.api import Body, Value
from shoal.chat.discord.inbound import CHAIN, WHOLE, Message, answered_id
from shoal.domain.commands import CommandSpec
from shoal.domain.errors import PlatformError
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.markup import measure, render_markup
from shoal.domain.posts import WRITING, Button, ChatLimits, OutboundPost, Window

TEXT_CHARS_MAX = 2000
BUTTON_CHARS_MAX = 100
BUTTON_LABEL_CHARS_MAX = 80
BUTTONS_MAX = 5
THREAD_NAME_CHARS_MAX = 100
SUPPRESS_EMBEDS = 4
"""A flag: nothing that the model writes makes Discord fetch an address."""
EPHEMERAL = 64

_STYLES = {"allow": 3, "thread": 1, "deny": 4}
"""Green, blue and red, by what a button's value begins with."""


def limits_of(*, opens_threads: bool) -> ChatLimits:
    """Discord counts posts by channel, and each of its threads is a channel to it: five in five seconds.

    The window is a little longer, for what the way there takes now longer and now shorter.
    """
    return ChatLimits(
        text_chars_max=TEXT_CHARS_MAX,
        markup="discord",
        edit_seconds_min=1.2 if opens_threads else 3.0,
        windows=(Window(5, 5.2, "thread" if opens_threads else "channel"), Window(45, 1.0, "account")),
        button_bytes_max=BUTTON_CHARS_MAX,
        idempotent_posts=True,
        can_edit=True,
        can_upload=True,
        has_preview=True,
        has_buttons=True,
        has_ephemeral=True,
        has_history=True,
        upload_bytes_max=10_485_760,
    )


class Target(msgspec.Struct, frozen=True):
    """Where a thread's posts go: a channel; `parent` where that is a thread to be opened at the parent's message of the
    same id; and the message of a chain that is answered."""

    channel: str
    parent: str = ""
    answers: str = ""


def target_of(thread: ThreadId) -> Target:
    """Where posts go. Raises PlatformError for an id that is not of Discord's form."""
    address = thread_address(thread)
    topic = address.thread.removeprefix(CHAIN)
    if not address.channel.isdecimal() or not topic.isdecimal():
        raise PlatformError(f"Discord has no thread {thread!r}; its ids are numbers.", permanent=True)
    if topic != address.thread:
        return Target(address.channel, answers=topic)
    if topic == WHOLE:
        return Target(address.channel)
    return Target(topic, parent=address.channel)


def nonce_of(key: str) -> str:
    """The idempotency key in the 25 characters that Discord compares."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def message_body(markdown: str, buttons: tuple[Button, ...] = ()) -> dict[str, Value]:
    """A message's content; it pings nobody and shows no previews of links. Raises PlatformError for bad buttons."""
    return {
        "content": render_markup(markdown, "discord"),
        "components": components_of(buttons),
        "allowed_mentions": {"parse": [], "replied_user": False},
        "flags": SUPPRESS_EMBEDS,
    }


def post_body(post: OutboundPost, target: Target) -> dict[str, Value]:
    """The body of a new message. Posted also when what it answers is gone."""
    body = message_body(post.markdown, post.buttons)
    body |= {"nonce": nonce_of(post.key), "enforce_nonce": True}
    answered = post.reply_to or target.answers
    if answered.isdecimal() and answered != target.channel:
        body["message_reference"] = {"message_id": answered, "fail_if_not_exists": False}
    if post.file is not None:
        body["attachments"] = [{"id": "0", "filename": post.file.name}]
    return body


def is_try_of(post: OutboundPost, body: Body, message: Message) -> bool:
    """Whether a message says what a post would say: the same text, below the same message, with the same file.

    A preview may have been of any length.
    """
    reference = body.get("message_reference")
    wanted = reference.get("message_id") if isinstance(reference, dict) else ""
    said, wants = message.content.strip(), str(body.get("content", "")).strip()
    if post.key.startswith("preview:"):
        return said.endswith(WRITING.strip()) and answered_id(message) in ("", wanted)
    sizes = [post.file.stat().st_size] if post.file is not None and post.file.exists() else []
    return said == wants and answered_id(message) == wanted and [one.size for one in message.attachments] == sizes


def components_of(buttons: tuple[Button, ...]) -> Value:
    """One row of buttons. Raises PlatformError for what Discord would not take."""
    if not buttons:
        return []
    if len(buttons) > BUTTONS_MAX or any(not 1 <= len(button.value) <= BUTTON_CHARS_MAX for button in buttons):
        reason = f"A message may have {BUTTONS_MAX} buttons, with values of {BUTTON_CHARS_MAX} characters."
        raise PlatformError(reason, permanent=True)
    row: list[Value] = [
        {
            "type": 2, "style": _STYLES.get(button.value.partition(":")[0], 2),
            "label": button.label[:BUTTON_LABEL_CHARS_MAX], "custom_id": button.value,
        }
        for button in buttons
    ]  # fmt: skip
    return [{"type": 1, "components": row}]


def commands_of(commands: Iterable[CommandSpec]) -> list[Value]:
    """The slash commands as Discord registers them; what may follow one is an option `text`."""
    found: list[Value] = []
    for command in commands:
        body: dict[str, Value] = {"name": command.name, "description": command.description[:100], "type": 1}
        if command.usage:
            required = not command.usage.startswith("[")
            body["options"] = [{"type": 3, "name": "text", "description": command.usage[:100], "required": required}]
        found.append(body)
    return found


def thread_body(text: str) -> Body:
    """A thread at a message, named by how that begins; it is put away after a day without a word."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return {"name": first[:THREAD_NAME_CHARS_MAX] or "Conversation", "auto_archive_duration": 1440}


def cut(markdown: str) -> list[str]:
    """The text in pieces that fit, at lines where that goes; for short words of our own that came out long."""
    if (
        measure(render_markup(markdown, "discord"), limits_of(opens_threads=True)) <= TEXT_CHARS_MAX
        or len(markdown) < 2
    ):
        return [markdown]
    half = len(markdown) // 2
    at = markdown.rfind("\n", 1, half + 1) + 1 or half
    return [*cut(markdown[:at]), *cut(markdown[at:])]
