"""Outgoing posts, and the capabilities of each platform as data."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.markup import Dialect
from shoal.kernel.speech import AudioFormat

REPEATED = "(possibly a repeat)\n"
"""What begins a post that may stand there already, where nobody can tell."""
WRITING = " …"
"""What a preview ends with while more of it is to come."""


class Window(msgspec.Struct, frozen=True):
    """At most `posts` posts in any `seconds` seconds, counted for a thread, a channel or the whole account."""

    posts: int
    seconds: float
    scope: Literal["thread", "channel", "account"] = "channel"
    groups_only: bool = False


class ChatLimits(msgspec.Struct, frozen=True):
    """The capabilities of a platform, as data.

    `text_chars_max` is counted in `text_unit` over the text in its `markup`; None means unchanged Markdown. Channels
    whose names begin with `group_prefix` are groups; edits there are at least `group_edit_seconds_min` apart.
    `reactions` names where emojis on a bot's messages reach it without further setup; `direct` means everywhere except
    in groups. `voice` is the format of spoken answers, empty if people could not play them. `album_max` is the number
    of files per message. `edits_notify` means that finishing an edited message needs no new message to notify people.
    `buttons_max` is how many buttons a message may have, where it may have any.
    `marks_max` limits the marks of its dialect; 0 means no limit.
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
        """How long `text` is, as the platform counts."""
        match self.text_unit:
            case "characters":
                return len(text)
            case "utf16":
                return len(text) + sum(1 for character in text if ord(character) > 0xFFFF)
            case "bytes":
                return len(text.encode("utf-8", "replace"))


class Button(msgspec.Struct, frozen=True):
    """A choice under a message; `value` comes back with the click."""

    label: str
    value: str


CHOOSING = "Tick what you allow."
"""The answer to a press that made a card show its ticks."""


def ticks(numbers: Iterable[int]) -> int:
    """The numbers of calls as bits, the first call's the lowest."""
    return sum(1 << (number - 1) for number in set(numbers))


def ticked_numbers(mask: str) -> tuple[int, ...]:
    """The numbers in a button's value. Raises ValueError for what is not hexadecimal."""
    bits = int(mask or "0", 16)
    return tuple(at + 1 for at in range(bits.bit_length()) if bits >> at & 1)


class OutboundPost(msgspec.Struct, frozen=True):
    """One message for a platform, already short enough. `key` is its idempotency key, stable over retries.

    `album` are further files of it, where the platform's messages hold several; a `voice` is one recording.
    `maybe_posted`: an earlier try may have reached the platform.
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
    """An adapter that can look for its posts, where the platform forgets keys sooner than posts are given up."""

    async def find_posted(self, post: OutboundPost) -> Sequence[str]:
        """The ids of the bot's messages that an earlier try of this post may have left, oldest first.

        Others that say the same may be among them. Empty where it may not read. Raises PlatformError.
        """
        ...


@runtime_checkable
class Deletes(Protocol):
    """An adapter whose platform lets a bot delete what it posted."""

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of the bot. Raises PlatformError, never a passing one for a message that is gone."""
        ...


@runtime_checkable
class HasAround(Protocol):
    """An adapter whose threads are inside chats that accept posts as well."""

    def around(self, thread: ThreadId) -> ThreadId | None:
        """Return the chat around a thread as a thread to post to, or None for a whole chat."""
        ...


PREVIEW = "preview:"


def preview_key(turn: TurnId) -> str:
    """The key of a turn's preview, by which posts of it are known."""
    return f"{PREVIEW}{turn}"


def reply_key(turn: TurnId) -> str:
    return f"{turn}:reply"


def turn_of_reply(post_id: str) -> TurnId:
    """The turn whose reply this post is; empty when it is none."""
    return TurnId(post_id.removesuffix(":reply") if post_id.endswith(":reply") else "")


def turn_of_preview(post_id: str) -> TurnId:
    """The turn whose preview this post is; empty when it is none."""
    return TurnId(post_id.removeprefix(PREVIEW) if post_id.startswith(PREVIEW) else "")


def spoken_id(turn: TurnId) -> str:
    """The id of the post that says a turn's answer aloud."""
    return f"{turn}:voice"
