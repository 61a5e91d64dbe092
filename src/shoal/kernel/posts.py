"""Outgoing posts, and the capabilities of platforms."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.markup import Dialect
from shoal.kernel.speech import AudioFormat

REPEATED = "(possible duplicate)\n"
WRITING = " …"


class Window(msgspec.Struct, frozen=True):
    """A rate limit: at most `posts` posts in any `seconds` seconds, per thread, channel or account."""

    posts: int
    seconds: float
    scope: Literal["thread", "channel", "account"] = "channel"
    groups_only: bool = False


class ChatLimits(msgspec.Struct, frozen=True):
    """Capabilities and limits of a platform."""

    text_chars_max: int
    """Maximum length of a message in the platform's `markup`, counted in `text_unit`."""
    markup: Dialect | None = None
    """Dialect that renders Markdown for the platform. None sends Markdown unchanged."""
    text_unit: Literal["characters", "utf16", "bytes"] = "characters"
    edit_seconds_min: float = 0.5
    group_edit_seconds_min: float = 0.0
    group_prefix: str = ""
    """Prefix of the ids of group channels. In groups, edits are at least `group_edit_seconds_min` apart."""
    windows: tuple[Window, ...] = ()
    idempotent_posts: bool = False
    can_edit: bool = False
    can_upload: bool = False
    can_stream: bool = False
    has_preview: bool = False
    has_buttons: bool = False
    buttons_max: int = 5
    has_history: bool = False
    opens_threads: bool = False
    reactions: Literal["", "direct", "all"] = ""
    """Where the bot receives emoji reactions to its messages without additional setup. Empty means nowhere.

    `direct`: everywhere except in groups.
    `all`: everywhere.
    """
    voice: AudioFormat | Literal[""] = ""
    """Audio format of spoken answers. Empty if people cannot play recordings on the platform."""
    album_max: int = 1
    """Maximum number of files per message."""
    edits_notify: bool = True
    """True if people are notified when a message is edited. If False, an answer that is finished late is posted as a
    new message.
    """
    marks_max: int = 0
    """Maximum number of formatting entities per message. 0 means no limit."""

    def length(self, text: str) -> int:
        match self.text_unit:
            case "characters":
                return len(text)
            case "utf16":
                return len(text) + sum(1 for character in text if ord(character) > 0xFFFF)
            case "bytes":
                return len(text.encode("utf-8", "replace"))


class Button(msgspec.Struct, frozen=True):
    """A button below a message. A click sends its `value` back."""

    label: str
    value: str


CHOOSING = "Select the calls to allow."


def ticks(numbers: Iterable[int]) -> int:
    """Encode call numbers as a bit mask. The lowest bit is the first call."""
    return sum(1 << (number - 1) for number in set(numbers))


def ticked_numbers(mask: str) -> tuple[int, ...]:
    """Decode the call numbers from a hexadecimal bit mask. Raises ValueError if the mask is not hexadecimal."""
    bits = int(mask or "0", 16)
    return tuple(at + 1 for at in range(bits.bit_length()) if bits >> at & 1)


class OutboundPost(msgspec.Struct, frozen=True):
    """One message for a platform, within the platform's limits."""

    thread: ThreadId
    key: str
    """Idempotency key, stable across retries."""
    markdown: str
    kind: Literal["text", "file", "card", "ephemeral", "voice"] = "text"
    """Kind of message.

    `ephemeral`: only `user` sees the message.
    `voice`: the file is a spoken answer.
    """
    file: Path | None = None
    album: tuple[Path, ...] = ()
    """Additional files in the same message, on platforms that allow several files per message."""
    buttons: tuple[Button, ...] = ()
    reply_to: str = ""
    user: str = ""
    maybe_posted: bool = False


@runtime_checkable
class ReadsBack(Protocol):
    """An adapter that can find its own posts, for platforms that forget idempotency keys before the last retry."""

    async def find_posted(self, post: OutboundPost) -> Sequence[str]:
        """Return the ids of messages that may be an earlier attempt to send this post, oldest first.

        They may include other messages from the bot with the same text. The result is empty without read access. Raises
        PlatformError.
        """
        ...


@runtime_checkable
class Deletes(Protocol):
    """An adapter whose platform allows a bot to delete its own messages."""

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete one of the bot's messages. Raises PlatformError, with `permanent` set if the message does not
        exist.
        """
        ...


@runtime_checkable
class HasAround(Protocol):
    """An adapter whose threads belong to chats that accept posts themselves."""

    def around(self, thread: ThreadId) -> ThreadId | None:
        """Return the chat that contains a thread, as a thread to post to. Return None if the thread is already a
        whole chat.
        """
        ...


PREVIEW = "preview:"


def preview_key(turn: TurnId) -> str:
    return f"{PREVIEW}{turn}"


def reply_key(turn: TurnId) -> str:
    return f"{turn}:reply"


def turn_of_reply(post_id: str) -> TurnId:
    return TurnId(post_id.removesuffix(":reply") if post_id.endswith(":reply") else "")


def turn_of_preview(post_id: str) -> TurnId:
    return TurnId(post_id.removeprefix(PREVIEW) if post_id.startswith(PREVIEW) else "")


def spoken_id(turn: TurnId) -> str:
    return f"{turn}:voice"
