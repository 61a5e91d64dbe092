"""Outgoing posts, and the capabilities of each platform as data."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.markup import Dialect
from shoal.kernel.speech import AudioFormat

REPEATED = "(possibly a repeat)\n"
"""Prefix of a post that may be a duplicate."""
WRITING = " …"
"""Suffix of an unfinished preview."""


class Window(msgspec.Struct, frozen=True):
    """A rate limit of `posts` in any `seconds` seconds, per thread, channel or account."""

    posts: int
    seconds: float
    scope: Literal["thread", "channel", "account"] = "channel"
    groups_only: bool = False


class ChatLimits(msgspec.Struct, frozen=True):
    """Capabilities of a platform, as data.

    `text_chars_max` is counted in `text_unit` over the text in its `markup`. A markup of None means unchanged Markdown.
    Channels whose names begin with `group_prefix` are groups, where edits are at least `group_edit_seconds_min` apart.
    `reactions` names the conversations whose emojis on a bot's messages reach it without further setup; `direct` means
    everywhere except in groups. `voice` is the format of spoken answers, or empty if people could not play them.
    `album_max` is the number of files per message. `edits_notify` means that finishing an edited message needs no new
    message to notify people. `buttons_max` limits the buttons of a message with buttons. `marks_max` limits the marks
    of its dialect, and 0 means no limit.
    """

    text_chars_max: int
    markup: Dialect | None = None
    text_unit: Literal["characters", "utf16", "bytes"] = "characters"
    edit_seconds_min: float = 0.5
    group_edit_seconds_min: float = 0.0
    group_prefix: str = ""
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
    voice: AudioFormat | Literal[""] = ""
    album_max: int = 1
    edits_notify: bool = True
    marks_max: int = 0

    def length(self, text: str) -> int:
        """Return the length of `text` as the platform counts it."""
        match self.text_unit:
            case "characters":
                return len(text)
            case "utf16":
                return len(text) + sum(1 for character in text if ord(character) > 0xFFFF)
            case "bytes":
                return len(text.encode("utf-8", "replace"))


class Button(msgspec.Struct, frozen=True):
    """A button below a message. A click returns its `value`."""

    label: str
    value: str


CHOOSING = "Tick what you allow."
"""Answer after a click that made a card show its checkboxes."""


def ticks(numbers: Iterable[int]) -> int:
    """Encode the numbers of calls as bits, with the first call lowest."""
    return sum(1 << (number - 1) for number in set(numbers))


def ticked_numbers(mask: str) -> tuple[int, ...]:
    """Decode the numbers in a button's value. Raises ValueError if it is not hexadecimal."""
    bits = int(mask or "0", 16)
    return tuple(at + 1 for at in range(bits.bit_length()) if bits >> at & 1)


class OutboundPost(msgspec.Struct, frozen=True):
    """A single message for a platform, within its limits. `key` is its idempotency key, stable over retries.

    `album` are additional files on platforms that allow several. `voice` marks a recording. `maybe_posted` means that
    an earlier attempt may have reached the platform.
    """

    thread: ThreadId
    key: str
    markdown: str
    kind: Literal["text", "file", "card", "ephemeral", "voice"] = "text"
    file: Path | None = None
    album: tuple[Path, ...] = ()
    buttons: tuple[Button, ...] = ()
    reply_to: str = ""
    user: str = ""
    maybe_posted: bool = False


@runtime_checkable
class ReadsBack(Protocol):
    """An adapter that can search for its own posts, for platforms that forget keys while posts may still be retried."""

    async def find_posted(self, post: OutboundPost) -> Sequence[str]:
        """Return ids of the bot's messages that may be an earlier attempt of this post, oldest first.

        They may include other messages with the same text. Empty without read access. Raises PlatformError.
        """
        ...


@runtime_checkable
class Deletes(Protocol):
    """An adapter whose platform allows a bot to delete its messages."""

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of the bot. Raises PlatformError, which is permanent if the message is missing."""
        ...


@runtime_checkable
class HasAround(Protocol):
    """An adapter whose threads are inside chats that also accept posts."""

    def around(self, thread: ThreadId) -> ThreadId | None:
        """Return the chat that contains a thread, as a thread to post to. Return None if the thread is a whole chat."""
        ...


PREVIEW = "preview:"


def preview_key(turn: TurnId) -> str:
    """Return the idempotency key of a turn's preview."""
    return f"{PREVIEW}{turn}"


def reply_key(turn: TurnId) -> str:
    return f"{turn}:reply"


def turn_of_reply(post_id: str) -> TurnId:
    """Return the turn whose reply this post is, or an empty string."""
    return TurnId(post_id.removesuffix(":reply") if post_id.endswith(":reply") else "")


def turn_of_preview(post_id: str) -> TurnId:
    """Return the turn whose preview this post is, or an empty string."""
    return TurnId(post_id.removeprefix(PREVIEW) if post_id.startswith(PREVIEW) else "")


def spoken_id(turn: TurnId) -> str:
    """Return the id of the post with a turn's spoken answer."""
    return f"{turn}:voice"
