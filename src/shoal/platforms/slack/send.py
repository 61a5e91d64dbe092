"""Convert posts to call parameters with Slack's markup and limits, and stream previews.
Source: docs.slack.dev/reference.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.commands import CommandSpec
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import UNOPENED, ThreadId, thread_address
from shoal.kernel.markup import Dialect, Wrap, is_link
from shoal.kernel.posts import WRITING, Button, ChatLimits, OutboundPost, Window
from shoal.kernel.untrusted import UNREADABLE
from shoal.markdown.dialects import ZERO_WIDTH_SPACE, bare_fence, before_lines
from shoal.markdown.render import render_markup
from shoal.platforms.http import Fields, Json, PlatformRefusal
from shoal.platforms.inbox import Recent
from shoal.platforms.slack.wire import NO_THREAD, Ok, SlackApi, SlackMessage, is_direct

log = logging.getLogger(__name__)

TEXT_CHARS_MAX = 3000
"""Maximum length of a section block. Each part of a split text is sent as a section block, because buttons may follow
it. A message without buttons could have 4,000 characters.
"""
BUTTON_CHARS_MAX = 2000
LABEL_CHARS_MAX = 75
BUTTONS_MAX = 25
CHANNEL_NAME_CHARS_MAX = 80
EVENT_TYPE = "shoal_post"
EMPTY = "…"
"""Text that replaces an empty text, because Slack rejects empty messages."""
STREAMS_MAX = 200
"""Maximum number of concurrent streams. Further previews are sent as edits of a message."""
IDLE_SECONDS = 60.0
"""Seconds without an update after which a stream is ended and its message replaced with the complete text."""
HOME = (
    "Write to me under *Messages*, or mention me in a channel that I am in. I answer in a thread there and read later "
    "messages in it without a mention. You can send files, pictures and voice messages."
)
NOT_OFFERED = frozenset(
    {"unknown_method", "missing_scope", "not_allowed_token_type", "access_denied", "feature_not_enabled"}
)

_NATIVE = re.compile(
    r"<(?:@[UW][A-Z0-9]{1,40}|#[CG][A-Z0-9]{1,40})(?:\|[^<>|]*)?>|<!date\^[0-9]+\^[^<>|^]{1,200}(?:\^https?://[^<>|^]+)?\|[^<>|]*>"
)
"""Matches Slack's syntax for dates and for mentions of people and channels. Mentions of groups (`<!channel>`,
`<!subteam^…>`) do not match and are shown as plain text.
"""
_MARK = re.compile("(?<![A-Za-z0-9])[*_~\uff0a\uff3f]|[*_~\uff0a\uff3f](?![A-Za-z0-9])|[`\uff40]")
"""Matches characters in plain text that Slack may interpret as markup, including full-width forms. Between two letters
or digits, only a backtick is markup.
"""
_QUOTE = re.compile("^(?=&gt;|\uff1e)", re.MULTILINE)
SOFT_HYPHEN = "\u00ad"
_NOT_IN_NAME = re.compile(r"[^\w-]+")


def _literal(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _text(text: str) -> str:
    """Escape markup. Slack has no escape character, but it shows the fallback text of an invalid date literally.

    A soft hyphen prevents `>` from starting a quote. Source: yhatt/jsx-slack, about-escape-and-exact-mode.
    """
    return _QUOTE.sub(SOFT_HYPHEN, _MARK.sub(lambda mark: f"<!date^00000000^{{_}}|{mark[0]}>", _literal(text)))


def _token(token: str) -> str:
    if _NATIVE.fullmatch(token):
        return token
    return _link(_literal(token), token) if is_link(token) else _text(token)


def _link(label: str, url: str) -> str:
    address = _literal(url).replace("|", "%7C")
    return f"<{address}>" if label == address else f"<{address}|{label}>"


def _code(code: str) -> str:
    """Render code. Slack ends code at the first backtick, so a similar character replaces inner backticks."""
    literal = _literal(code.replace("`", "\u02cb").replace("\n", " "))
    return f"`{literal}`" if literal.strip() else literal


def _each_line(mark: str) -> Wrap:
    """Return a function that adds the mark to each line separately, because Slack's markup cannot span lines."""
    return lambda inner: "\n".join(
        f"{mark}{line.strip()}{mark}" if line.strip() else line for line in inner.split("\n")
    )


MRKDWN = Dialect(
    text=_text,
    token=_token,
    styles={"strong": _each_line("*"), "em": _each_line("_"), "s": _each_line("~")},
    code=_code,
    fence=lambda content, info: _literal(bare_fence(content, info)),
    link=_link,
    label=lambda label: _literal(label.replace("\n", " ")),
    heading=lambda text, level: _each_line("*")(text),
    quote=before_lines("> "),  # Slack shows a quote in code literally
    edges="spaced",
)
LIMITS = ChatLimits(
    opens_threads=True,
    text_chars_max=TEXT_CHARS_MAX,
    markup=MRKDWN,
    edit_seconds_min=1.2,
    windows=(Window(1, 1.0, "channel"),),
    idempotent_posts=True,
    can_edit=True,
    can_upload=True,
    can_stream=True,
    has_preview=True,
    has_buttons=True,
    buttons_max=BUTTONS_MAX,
    reactions="all",
    has_history=True,
    voice="mp3",
    album_max=10,
)


def place_of(thread: ThreadId) -> tuple[str, str]:
    """Return a thread's channel and the timestamp of its first message. Raises PlatformError if the id is invalid.

    The timestamp is empty for a direct conversation and for a post that opens a thread.
    """
    address = thread_address(thread)
    if address.thread == UNOPENED or (address.thread == NO_THREAD and is_direct(address.channel)):
        return address.channel, ""
    if not re.fullmatch(r"[0-9]+\.[0-9]+", address.thread):
        raise PlatformError(f"{address.thread!r} is not a Slack thread: Slack's ids are timestamps.", permanent=True)
    return address.channel, address.thread


def rendered(markdown: str) -> str:
    """Render Markdown in Slack's markup. Returns a placeholder for empty text."""
    return render_markup(markdown, MRKDWN) or EMPTY


def message_of(post: OutboundPost) -> Fields:
    """Build the parameters of chat.postMessage. Link previews are off, because fetching a URL could leak data."""
    channel, thread_ts = place_of(post.thread)
    text = rendered(post.markdown)
    return {
        "channel": channel,
        "thread_ts": thread_ts or None,
        "text": text,
        "blocks": blocks_of(text, post.buttons) or None,
        "metadata": metadata_of(post.key),
        "unfurl_links": False,
        "unfurl_media": False,
    }


def change_of(channel: str, ts: str, markdown: str, buttons: tuple[Button, ...]) -> Fields:
    """Build the parameters of chat.update. Without buttons, an empty list removes existing ones.

    chat.update cannot turn off link previews. Its default for `parse` is `client`, which reads plain names as mentions,
    so `parse` is set to `none`. Source: docs.slack.dev/reference/methods/chat.update.
    """
    text = rendered(markdown)
    metadata = metadata_of(f"edited:{ts}")
    blocks = blocks_of(text, buttons)
    return {"channel": channel, "ts": ts, "text": text, "parse": "none", "blocks": blocks, "metadata": metadata}


def metadata_of(key: str) -> Json:
    """Build the metadata of a message. Among the bot's messages, only unfinished streams have no metadata."""
    return {"event_type": EVENT_TYPE, "event_payload": {"key": key}}


def key_in(message: SlackMessage) -> str:
    """Return the post key in a message's metadata, or an empty string if Shoal did not post the message."""
    metadata = message.metadata
    if metadata is None or metadata.event_type != EVENT_TYPE:
        return ""
    try:
        return msgspec.json.decode(metadata.event_payload.get("key", msgspec.Raw(b"")), type=str)
    except UNREADABLE:
        return ""


class SlackChannel(msgspec.Struct, frozen=True):
    id: str = ""
    name: str = ""
    is_private: bool = False
    is_archived: bool = False
    is_member: bool = False
    is_im: bool = False
    is_mpim: bool = False


class ChannelInfo(msgspec.Struct, frozen=True):
    """Response of methods that return one channel."""

    channel: SlackChannel


def sharing_of(post: OutboundPost, files: Mapping[str, Path]) -> Fields:
    channel, thread_ts = place_of(post.thread)
    return {
        "files": [{"id": id, "title": file.name} for id, file in files.items()],
        "channel_id": channel,
        "thread_ts": thread_ts or None,
        "initial_comment": rendered(post.markdown) if post.markdown else None,
    }


def blocks_of(text: str, buttons: tuple[Button, ...]) -> list[Json]:
    """Build blocks with the text and buttons. Without buttons, returns an empty list. Raises PlatformError if Slack
    would reject the blocks.
    """
    if not buttons:
        return []
    if len(buttons) > BUTTONS_MAX:
        raise PlatformError(f"A message may have at most {BUTTONS_MAX} buttons.", permanent=True)
    elements: list[Json] = []
    for number, button in enumerate(buttons):
        if len(button.value) > BUTTON_CHARS_MAX or len(button.label) > LABEL_CHARS_MAX:
            reason = (
                f"A button's label may have at most {LABEL_CHARS_MAX} characters, and its value at most "
                f"{BUTTON_CHARS_MAX}."
            )
            raise PlatformError(reason, permanent=True)
        label: Json = {"type": "plain_text", "text": button.label}
        elements.append({"type": "button", "action_id": f"choice-{number}", "text": label, "value": button.value})
    section: Json = {"type": "section", "text": {"type": "mrkdwn", "text": text[:TEXT_CHARS_MAX]}, "expand": True}
    return [section, {"type": "actions", "elements": elements}]


SUGGESTED: list[Json] = [
    {"title": "What can you do?", "message": "/help"},
    {"title": "What are you working on?", "message": "/tasks"},
]
"""Prompts suggested in Slack's assistant pane. When a person clicks a title, Slack sends the message."""


def home_view(commands: Iterable[CommandSpec]) -> Fields:
    """Build the app's Home tab, which describes usage and commands. Source: docs.slack.dev/surfaces/app-home."""
    lines = "\n".join(f"`{command.line}` {_literal(command.description)}" for command in commands)
    texts = (HOME, f"*Commands* to send as messages:\n{lines}")
    blocks: list[Json] = [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]
    return {"type": "home", "blocks": blocks}


def channel_name(name: str) -> str:
    """Convert to a valid channel name: lowercase letters, digits, hyphens and underscores."""
    return _NOT_IN_NAME.sub("-", name.lower()).strip("-_")[:CHANNEL_NAME_CHARS_MAX] or "channel"


# ---- streamed previews ----


def _streamed(markdown: str) -> str:
    """Return the text of an unfinished preview without group mentions. Later additions do not change the beginning of
    the returned text.
    """
    return markdown.removesuffix(WRITING).rstrip().replace("<!", f"<{ZERO_WIDTH_SPACE}!")


class _StreamStarted(msgspec.Struct, frozen=True):
    ts: str


class _OpenStream(msgspec.Struct):
    channel: str
    sent: str
    whole: str
    at: float


class SlackStreams:
    """Streamed previews of one account, by message id.

    Only previews are streamed. Slack ends a stream after some minutes, people can stop it, and a message cannot be
    edited until its stream ends. The finished answer is therefore an edit with the complete text.
    Source: docs.slack.dev/reference/methods/chat.startStream and related methods.
    """

    def __init__(self, api: SlackApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._streams: Recent[_OpenStream] = Recent(STREAMS_MAX)
        self._offered = True

    async def start(self, channel: str, thread_ts: str, user: str, team: str, markdown: str) -> str:
        """Start a stream in a person's thread and return the message's id. Returns an empty string if Slack does not
        support streaming there. Raises PlatformError if the outcome is unknown.
        """
        text = _streamed(markdown)
        if not (self._offered and text and len(self._streams) < STREAMS_MAX):
            return ""
        given = {
            "channel": channel, "thread_ts": thread_ts, "recipient_user_id": user, "recipient_team_id": team,
            "markdown_text": text,
        }  # fmt: skip
        try:
            started = await self._api.call("chat.startStream", _StreamStarted, given)
        except PlatformError as error:
            if error.outcome_unknown:
                raise
            if isinstance(error, PlatformRefusal) and error.code in NOT_OFFERED:
                self._offered = False
                log.info("slack streaming unavailable; editing messages instead", extra={"why": error.code})
            return ""
        self._streams.put(started.ts, _OpenStream(channel, text, markdown, self._clock.monotonic()))
        return started.ts

    async def append(self, ts: str, markdown: str) -> bool:
        """Append new text to a preview. Returns False if the message must be edited instead. Raises PlatformError."""
        stream = self._streams.get(ts)
        if stream is None:
            return False
        text = _streamed(markdown)
        if not markdown.endswith(WRITING) or not text.startswith(stream.sent):
            await self.end(ts)
            return False
        stream.whole, stream.at = markdown, self._clock.monotonic()
        if text == stream.sent:
            return True
        given = {"channel": stream.channel, "ts": ts, "markdown_text": text[len(stream.sent) :]}
        try:
            await self._api.call("chat.appendStream", Ok, given)
        except PlatformError as error:
            if error.retry_after_seconds:
                raise
            self._streams.pop(ts)  # the stream ended, or its content is unknown
            return False
        stream.sent = text
        return True

    async def end(self, ts: str) -> None:
        """End the message's stream, if there is one. Failures are ignored, because a later edit reports them."""
        stream = self._streams.pop(ts)
        if stream is not None:
            await self.stop(stream.channel, ts)

    async def stop(self, channel: str, ts: str) -> None:
        """Mark a streamed message as complete. Failures are only logged."""
        try:
            await self._api.call("chat.stopStream", Ok, {"channel": channel, "ts": ts})
        except PlatformError as error:
            log.debug("ending stream failed", extra={"why": str(error)})

    def idle(self) -> list[tuple[str, str, str]]:
        """Return the channel, message id and text of each stream that has been idle for IDLE_SECONDS."""
        before = self._clock.monotonic() - IDLE_SECONDS
        return [(stream.channel, ts, stream.whole) for ts, stream in self._streams.items() if stream.at <= before]
