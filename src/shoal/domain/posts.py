"""What goes out to chat platforms, what each platform can do, as data, and a long text in pieces that it takes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.markup import Dialect, render_markup
from shoal.domain.speech import AudioFormat

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
    """What a platform can and cannot do, as data.

    `text_chars_max` is counted in `text_unit` over the text in its `markup`; None takes markdown as it is. Channels
    whose names begin with `group_prefix` are groups; edits there are at least `group_edit_seconds_min` apart.
    `reactions`: where emojis on its messages reach a bot without more setup than it needs anyway; `direct` is
    everywhere but in groups. `voice`: in which form it takes a spoken answer; empty where people could not play it.
    `album_max`: how many files one message holds. `edits_notify`: people need no new message to learn that a text which
    was shown while it was written is finished.
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
    has_history: bool = False
    opens_threads: bool = False
    reactions: Literal["", "direct", "all"] = ""
    voice: AudioFormat | Literal[""] = ""
    album_max: int = 1
    edits_notify: bool = True

    def length(self, text: str) -> int:
        """How long `text` is, as the platform counts."""
        match self.text_unit:
            case "characters":
                return len(text)
            case "utf16":
                return len(text) + sum(1 for character in text if ord(character) > 0xFFFF)
            case "bytes":
                return len(text.encode("utf-8", "replace"))

    def rendered_length(self, markdown: str) -> int:
        """How long `markdown` is in the platform's markup, as the platform counts."""
        return self.length(render_markup(markdown, self.markup))


class Button(msgspec.Struct, frozen=True):
    """A choice under a message; `value` comes back with the click."""

    label: str
    value: str


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
    """An adapter whose threads lie within chats that take posts as well."""

    def around(self, thread: ThreadId) -> ThreadId | None:
        """The chat around a thread, as where to post; None for what is a whole chat."""
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


# ---- a long text in pieces ----

CHARS_MIN = 64
"""The shortest piece that may be asked for."""
TAIL_SHARE = 8
"""A last piece has this part of the one before it at least: nobody wants a message of two letters."""

_FENCE = re.compile(r"^(`{3,16}(?!`)|~{3,16}(?!~))([^\n`]*)$", re.MULTILINE)
_INFO_CHARS_MAX = 20
"""Of what an opening fence says, so much is said again where it is opened again."""
_BOUNDARIES = ("\n\n", "\n", ". ", "! ", "? ", "。", " ")


class Cut(NamedTuple):
    """A piece, what is left of the text, and the opening line of the fence that is open there."""

    piece: str
    rest: str
    fence: str


def _first_piece(text: str, fence: str, chars_max: int) -> Cut:
    """Cut a piece of at most `chars_max` characters off, at a paragraph, line, sentence or word.

    A code fence that is cut is closed at the end of its piece and opened again, with its language, in the next. So
    apart from those fence lines, and from line ends that did not fit in at a cut, the pieces joined are the text.
    `fence` opens the code that `text` begins within, empty for none.
    """
    head = f"{fence}\n" if fence else ""
    room = chars_max - len(head)
    if len(text.rstrip("\n")) <= room:
        return Cut(head + text[:room], "", "")
    end = _cut(text, room)
    opening = _open_fence(text[:end], fence)
    if not opening:
        return Cut(head + text[:end], text[end:].lstrip("\n"), "")
    closing = f"\n{_marker(opening)}"
    end = _cut(text, room - len(closing))
    opening = _open_fence(text[:end], fence)
    before = text[:end].rstrip("\n").rfind("\n") + 1
    if opening and not fence and before and not _open_fence(text[:before], ""):  # it would be opened for nothing
        return Cut(text[:before], text[before:], "")
    if not opening:
        return Cut(head + text[:end], text[end:].lstrip("\n"), "")
    rest = text[end:] if text[:end].endswith("\n") else text[end:].removeprefix("\n")
    line, _, after = rest.partition("\n")
    if not _open_fence(line, opening):  # it would be opened again for nothing
        rest, opening = after.lstrip("\n"), ""
    return Cut(head + text[:end].removesuffix("\n") + closing, rest, opening)


def _cut(text: str, room: int) -> int:
    """Where to cut so that the first piece has at most `room` characters: the best boundary in its second half.

    Line ends at the boundary count only as far as they fit in. Where two pieces are enough, they are, and the second is
    no mere tail, as far as there are boundaries for that.
    """
    least, snug = room // 2, room
    if len(text) <= 2 * room:
        snug = min(room, len(text) - room // TAIL_SHARE)
        found = _boundary(text, max(least, len(text) - snug), snug)
        if found:
            return found
    return _boundary(text, least, room) or snug


def _boundary(text: str, least: int, room: int) -> int:
    """The end of the best boundary between these two places, the last of its kind; 0 when there is none."""
    for boundary in _BOUNDARIES:
        over = 0 if boundary.strip("\n") else len(boundary)
        at = text.rfind(boundary, least, room + over)
        if at >= 0:
            return min(at + len(boundary), room)
    return 0


def _marker(fence: str) -> str:
    return fence[: len(fence) - len(fence.lstrip("`~"))]


def _open_fence(body: str, fence: str) -> str:
    """The opening line of the fence that is open after `body`, empty when none is."""
    for found in _FENCE.finditer(body):
        marker, info = found.group(1), found.group(2).strip()
        if not fence:
            fence = marker + info[:_INFO_CHARS_MAX]
        elif not info and marker[0] == fence[0] and len(marker) >= len(_marker(fence)):
            fence = ""
    return fence


def pieces_of(text: str, limits: ChatLimits, reserve: int = 0) -> list[str]:
    """`text` as pieces of markdown, each at most `limits.text_chars_max` less `reserve` when rendered.

    At least one piece, even for no text; no word is lost, and fences are closed and opened again. The same text and
    limits give the same pieces, which a resend relies on.
    """
    found: list[str] = []
    left = Cut("", text, "")
    while left.rest or not found:
        left = first_piece_of(left.rest, limits, reserve, left.fence)
        found.append(left.piece)
    return found


def first_piece_of(text: str, limits: ChatLimits, reserve: int = 0, fence: str = "") -> Cut:
    """The first piece: as much of the text as fits in when rendered. `fence` opens the code that it begins within."""
    room = limits.text_chars_max - reserve
    chars_max = max(CHARS_MIN, room)
    while True:
        cut = _first_piece(text, fence, chars_max)
        length = limits.rendered_length(cut.piece)
        if length <= room or chars_max == CHARS_MIN:
            return cut
        fitting = int(len(cut.piece) * 0.95 * room / length)
        chars_max = max(CHARS_MIN, min(chars_max, len(cut.piece)) - 1 if fitting >= len(cut.piece) else fitting)
