"""What goes to Slack: its limits, its markup, the parameters of its calls, and streamed previews.

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
"""What a section block holds, so that buttons can stand under any piece; a message alone would hold 4,000."""
BUTTON_CHARS_MAX = 2000
LABEL_CHARS_MAX = 75
BUTTONS_MAX = 25
CHANNEL_NAME_CHARS_MAX = 80
EVENT_TYPE = "shoal_post"
EMPTY = "…"
"""Stands where there is no text; Slack posts no empty message."""
STREAMS_MAX = 200
"""Streams written to at once; further previews are edited instead."""
IDLE_SECONDS = 60.0
"""A stream without news for this long is ended, and shows all it was given."""
HOME = (
    "Write to me under *Messages*, or name me in a channel that I am in: I answer in a thread there, and read on in it "
    "without being named. Files, pictures and voice messages may come along."
)
NOT_OFFERED = frozenset(
    {"unknown_method", "missing_scope", "not_allowed_token_type", "access_denied", "feature_not_enabled"}
)

_NATIVE = re.compile(
    r"<(?:@[UW][A-Z0-9]{1,40}|#[CG][A-Z0-9]{1,40})(?:\|[^<>|]*)?>|<!date\^[0-9]+\^[^<>|^]{1,200}(?:\^https?://[^<>|^]+)?\|[^<>|]*>"
)
"""People, channels and times, as Slack writes them. What calls everybody (`<!channel>`, `<!subteam^…>`) stays text."""
_MARK = re.compile("(?<![A-Za-z0-9])[*_~\uff0a\uff3f]|[*_~\uff0a\uff3f](?![A-Za-z0-9])|[`\uff40]")
"""Marks in plain text that Slack may take for markup, their wide forms too: all but those between two letters."""
_QUOTE = re.compile("^(?=&gt;|\uff1e)", re.MULTILINE)
SOFT_HYPHEN = "\u00ad"
_NOT_IN_NAME = re.compile(r"[^\w-]+")


def _literal(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _text(text: str) -> str:
    """Text without markup. Slack has no escape for marks, but shows what stands for a time that is none as it is
    written; a soft hyphen keeps `>` from beginning a quote. Source: yhatt/jsx-slack, about-escape-and-exact-mode."""
    return _QUOTE.sub(SOFT_HYPHEN, _MARK.sub(lambda mark: f"<!date^00000000^{{_}}|{mark[0]}>", _literal(text)))


def _token(token: str) -> str:
    if _NATIVE.fullmatch(token):
        return token
    return _link(_literal(token), token) if is_link(token) else _text(token)


def _link(label: str, url: str) -> str:
    address = _literal(url).replace("|", "%7C")
    return f"<{address}>" if label == address else f"<{address}|{label}>"


def _code(code: str) -> str:
    """Slack ends code at the first backtick; one within it is shown as its look-alike."""
    kept = _literal(code.replace("`", "\u02cb").replace("\n", " "))
    return f"`{kept}`" if kept.strip() else kept


def _each_line(mark: str) -> Wrap:
    """A mark around each line: in Slack none reaches over a line's end."""
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
    quote=before_lines("> "),  # which would be shown within code
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
    """The channel of a thread, and the timestamp of the message it hangs from. That is empty for a direct conversation,
    and for what is to open a thread. Raises PlatformError for an id that is not of Slack's form."""
    address = thread_address(thread)
    if address.thread == UNOPENED or (address.thread == NO_THREAD and is_direct(address.channel)):
        return address.channel, ""
    if not re.fullmatch(r"[0-9]+\.[0-9]+", address.thread):
        raise PlatformError(f"Slack has no thread {address.thread!r}; its ids are timestamps.", permanent=True)
    return address.channel, address.thread


def rendered(markdown: str) -> str:
    """The text in Slack's markup."""
    return render_markup(markdown, MRKDWN) or EMPTY


def message_of(post: OutboundPost) -> Fields:
    """The parameters of chat.postMessage. Slack opens no address in it, which would tell others of it."""
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
    """The parameters of chat.update; without buttons the empty list removes those that are there.

    It has no flags against opening addresses, and takes plain names for mentions unless told otherwise: `parse` is
    `client` there, where chat.postMessage has `none`. Source: docs.slack.dev/reference/methods/chat.update.
    """
    text = rendered(markdown)
    metadata = metadata_of(f"edited:{ts}")
    blocks = blocks_of(text, buttons)
    return {"channel": channel, "ts": ts, "text": text, "parse": "none", "blocks": blocks, "metadata": metadata}


def metadata_of(key: str) -> Json:
    """What is kept with each message of ours; only a stream that nobody finished has none."""
    return {"event_type": EVENT_TYPE, "event_payload": {"key": key}}


def key_in(message: SlackMessage) -> str:
    """The key of the post that a message of ours is; empty for others."""
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
    """What calls about one channel answer."""

    channel: SlackChannel


def sharing_of(post: OutboundPost, files: Mapping[str, Path]) -> Fields:
    """What shares uploaded files, by their ids, with the post's text. Raises PlatformError."""
    channel, thread_ts = place_of(post.thread)
    return {
        "files": [{"id": id, "title": file.name} for id, file in files.items()],
        "channel_id": channel,
        "thread_ts": thread_ts or None,
        "initial_comment": rendered(post.markdown) if post.markdown else None,
    }


def blocks_of(text: str, buttons: tuple[Button, ...]) -> list[Json]:
    """The text with buttons under it; no blocks without buttons. Raises PlatformError for what Slack would refuse."""
    if not buttons:
        return []
    if len(buttons) > BUTTONS_MAX:
        raise PlatformError(f"A message may have {BUTTONS_MAX} buttons.", permanent=True)
    elements: list[Json] = []
    for number, button in enumerate(buttons):
        if len(button.value) > BUTTON_CHARS_MAX or len(button.label) > LABEL_CHARS_MAX:
            reason = f"A button may have {LABEL_CHARS_MAX} characters, its value {BUTTON_CHARS_MAX}."
            raise PlatformError(reason, permanent=True)
        label: Json = {"type": "plain_text", "text": button.label}
        elements.append({"type": "button", "action_id": f"choice-{number}", "text": label, "value": button.value})
    section: Json = {"type": "section", "text": {"type": "mrkdwn", "text": text[:TEXT_CHARS_MAX]}, "expand": True}
    return [section, {"type": "actions", "elements": elements}]


SUGGESTED: list[Json] = [
    {"title": "What can you do?", "message": "/help"},
    {"title": "What are you working on?", "message": "/tasks"},
]
"""What the assistant's pane offers where it is opened; a click sends the message."""


def home_view(commands: Iterable[CommandSpec]) -> Fields:
    """The app's home tab: how it is talked to, and its commands. Source: docs.slack.dev/surfaces/app-home."""
    lines = "\n".join(f"`{command.line}` {_literal(command.description)}" for command in commands)
    texts = (HOME, f"*Commands*, to be written as messages:\n{lines}")
    blocks: list[Json] = [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]
    return {"type": "home", "blocks": blocks}


def channel_name(name: str) -> str:
    """A name that Slack takes for a channel: small letters, digits, hyphens and underscores."""
    return _NOT_IN_NAME.sub("-", name.lower()).strip("-_")[:CHANNEL_NAME_CHARS_MAX] or "channel"


# ---- streamed previews ----


def _streamed(markdown: str) -> str:
    """A preview's Markdown, as far as it is written, that calls no group. What it begins with stays as more follows."""
    return markdown.removesuffix(WRITING).rstrip().replace("<!", f"<{ZERO_WIDTH_SPACE}!")


class _StreamStarted(msgspec.Struct, frozen=True):
    ts: str


class _OpenStream(msgspec.Struct):
    channel: str
    sent: str
    whole: str
    at: float


class SlackStreams:
    """Slack's own streaming of one account: begun, appended to, and ended before the finished answer takes its place.

    A stream is a preview only: Slack ends it by itself after some minutes, people may stop it, and it is ended where it
    is in the way of an edit. The finished answer always comes as an edit with the whole text. Streams are known by
    message id. Source: docs.slack.dev/reference/methods/chat.startStream and its neighbours.
    """

    def __init__(self, api: SlackApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._streams: Recent[_OpenStream] = Recent(STREAMS_MAX)
        self._offered = True

    async def start(self, channel: str, thread_ts: str, user: str, team: str, markdown: str) -> str:
        """Begin to stream to a person's thread; returns the message's id, empty where Slack does not stream. Raises
        PlatformError when it is not known whether the stream was begun."""
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
                log.info("Slack does not stream here; previews are edited", extra={"why": error.code})
            return ""
        self._streams.put(started.ts, _OpenStream(channel, text, markdown, self._clock.monotonic()))
        return started.ts

    async def append(self, ts: str, markdown: str) -> bool:
        """Append what is new of a preview; False when the message has to be edited instead. Raises PlatformError."""
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
            self._streams.pop(ts)  # it ended, or what it shows is not known
            return False
        stream.sent = text
        return True

    async def end(self, ts: str) -> None:
        """End a stream, if it is one; a failure shows when the message is edited."""
        stream = self._streams.pop(ts)
        if stream is not None:
            await self.stop(stream.channel, ts)

    async def stop(self, channel: str, ts: str) -> None:
        """Tell Slack that a message is complete; nothing happens to one that is."""
        try:
            await self._api.call("chat.stopStream", Ok, {"channel": channel, "ts": ts})
        except PlatformError as error:
            log.debug("a stream was not ended", extra={"why": str(error)})

    def idle(self) -> list[tuple[str, str, str]]:
        """Channel, id and whole text of streams without news for IDLE_SECONDS."""
        before = self._clock.monotonic() - IDLE_SECONDS
        return [(stream.channel, ts, stream.whole) for ts, stream in self._streams.items() if stream.at <= before]
