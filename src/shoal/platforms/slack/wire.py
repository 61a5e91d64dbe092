"""Slack's Web API, Socket Mode and event fields. Source: docs.slack.dev.

Every request sends a form, which all methods accept. Lists and objects in the form are encoded as JSON.
"""

import hashlib
import hmac
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

from shoal.installation import how_to_add
from shoal.kernel.clock import Clock, retry_after
from shoal.kernel.commands import CommandTable, ParsedCommand
from shoal.kernel.errors import ConfigError, PlatformError
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import Author, Prompt, Reference
from shoal.kernel.untrusted import UNREADABLE, decode_known
from shoal.net.connections import network_reason
from shoal.platforms.cards import CardForm, Part, words_of
from shoal.platforms.http import (
    CALL_SECONDS,
    TRANSFER_SECONDS,
    ApiAnswer,
    Download,
    Fields,
    Json,
    PlatformHttp,
    PlatformRefusal,
    RequestParts,
)
from shoal.platforms.inbox import Recent, open_file
from shoal.platforms.slack.settings import SlackSettings

if TYPE_CHECKING:
    from typing import Unpack

    from websockets.asyncio.client import ClientConnection

T = TypeVar("T")

TOKEN_ERRORS = frozenset(
    {
        "invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "not_allowed_token_type",
        "user_removed_from_team"
    },
)  # fmt: skip
PASSING_ERRORS = frozenset(
    {"service_unavailable", "request_timeout", "team_added_to_org", "accesslimited", "org_login_required"}
)
CLOSED_ERRORS = frozenset(
    {
        "access_denied", "channel_not_found", "ekm_access_denied", "enterprise_is_restricted", "is_archived",
        "message_limit_exceeded", "messages_tab_disabled", "missing_scope", "no_permission",
        "two_factor_setup_required", "user_is_restricted",
        "not_in_channel", "restricted_action", "restricted_action_non_threadable_channel",
        "restricted_action_read_only_channel", "restricted_action_thread_locked",
        "restricted_action_thread_only_channel", "team_access_not_granted", "thread_locked",
    }
)  # fmt: skip
"""Error codes that mean the channel does not accept posts for now. This includes private channels from which the bot
was removed. Source: docs.slack.dev/reference/methods/chat.postMessage, errors.
"""
THREAD_NOT_FOUND = "thread_not_found"
GONE_ERRORS = frozenset({"cannot_reply_to_message", "invalid_thread_ts", THREAD_NOT_FOUND})
"""Error codes for a thread whose root message was deleted."""
UNKNOWN_ERRORS = frozenset({"fatal_error", "internal_error"})
"""Error codes that leave the outcome of a call unknown."""
FRAME_BYTES_MAX = 4_194_304
OPEN_SECONDS = 20.0
SIGNED_SECONDS_MAX = 300
"""Maximum age of a signed request. Source: docs.slack.dev/authentication/verifying-requests-from-slack."""

_DIGITS_MAX = 20
_ADVICE = {
    "channel_not_found": " The channel does not exist, or the bot cannot see it. Invite the bot to the channel.",
    "not_in_channel": " Invite the bot to the channel.",
    "is_archived": " The channel is archived.",
    "link_disabled": " Turn Socket Mode on in the app's settings.",
}
PAGE = 200
PAGES_MAX = 20
"""Maximum number of pages read per conversation. Channels are read newest first, and threads oldest first."""
PEOPLE_MAX = 2000
KNOWN_SECONDS = 3600.0
"""Cache lifetime of a person's name and roles."""


# ---- Web API ----


class Ok(msgspec.Struct, frozen=True):
    """A response whose content is ignored."""


class _WebApiAnswer(msgspec.Struct, frozen=True):
    ok: bool = False
    error: str = ""
    needed: str = ""


def _slow_down(asked_seconds: float | None) -> PlatformError:
    return PlatformError("Slack's rate limit has been reached.", retry_after_seconds=max(asked_seconds or 0.0, 1.0))


# ---- event fields ----


class _Stamped(msgspec.Struct, frozen=True):
    ts: str = ""


class SlackFile(msgspec.Struct, frozen=True):
    id: str = ""
    name: str | None = None
    title: str | None = None
    user: str = ""
    editors: tuple[str, ...] = ()
    last_editor: str = ""
    mimetype: str = ""
    size: int = 0
    url_private: str = ""
    url_private_download: str = ""
    is_external: bool = False
    file_access: str = ""
    shares: dict[str, dict[str, tuple[_Stamped, ...]]] = {}

    @property
    def label(self) -> str:
        return self.name or self.title or "file"

    def others(self, sharer: str) -> list[str]:
        """Return other people who may have written the content: the uploader, and the editors of a canvas or list."""
        return [user for user in (self.user, self.last_editor, *self.editors) if user not in ("", sharer)]


class _Shared(msgspec.Struct, frozen=True):
    """An attachment of a message, such as a shared message or a link preview."""

    is_share: bool = False
    is_msg_unfurl: bool = False
    author_name: str = ""
    text: str = ""
    fallback: str = ""
    ts: str | float = ""
    files: tuple[SlackFile, ...] = ()
    blocks: tuple[msgspec.Raw, ...] = ()
    message_blocks: tuple[msgspec.Raw, ...] = ()
    attachments: tuple[msgspec.Raw, ...] = ()

    @property
    def is_message(self) -> bool:
        return self.is_share or self.is_msg_unfurl


class _ReactedItem(msgspec.Struct, frozen=True):
    type: str = ""
    channel: str = ""
    ts: str = ""


class _MessageMetadata(msgspec.Struct, frozen=True):
    """Metadata of an app's message. Shoal stores the post's key in it."""

    event_type: str = ""
    event_payload: dict[str, msgspec.Raw] = {}


class _AssistantThread(msgspec.Struct, frozen=True):
    """The assistant pane, where a person chats with the app."""

    channel_id: str = ""
    thread_ts: str = ""


class SlackMessage(msgspec.Struct, frozen=True):
    type: str = ""
    subtype: str = ""
    channel: str = ""
    user: str = ""
    bot_id: str | None = None
    text: str | None = ""
    ts: str = ""
    thread_ts: str = ""
    parent_user_id: str = ""
    files: tuple[SlackFile, ...] = ()
    message: "SlackMessage | None" = None
    previous_message: "SlackMessage | None" = None
    deleted_ts: str = ""
    reaction: str = ""
    item: _ReactedItem | None = None
    metadata: _MessageMetadata | None = None
    attachments: tuple[msgspec.Raw, ...] | None = ()
    blocks: tuple[msgspec.Raw, ...] | None = ()
    edited: _Stamped | None = None
    inviter: str = ""
    tab: str = ""
    assistant_thread: _AssistantThread | None = None


def lane_of(event: SlackMessage) -> str:
    """Return the queue key for an event: the direct conversation, or the thread in a channel."""
    if event.item is not None:
        return event.item.channel
    if event.channel.startswith("D"):
        return event.channel
    about = event.message or event.previous_message or event
    return f"{event.channel}/{about.thread_ts or about.ts or event.ts}"


class SlackFileInfo(msgspec.Struct, frozen=True):
    """Response of files.info."""

    file: SlackFile


class SlackPosted(msgspec.Struct, frozen=True):
    ts: str = ""
    message_ts: str = ""
    channel: str = ""
    message: SlackMessage | None = None


class EventType(msgspec.Struct, frozen=True):
    """Type of an event. The content is decoded only for the types in EVENTS."""

    type: str = ""


class _AppAuthorization(msgspec.Struct, frozen=True):
    """An installation of the app that may see the event. `team_id` is its workspace."""

    team_id: str | None = None


class EventCall(msgspec.Struct, frozen=True):
    """A request of the Events API, sent over HTTP or in a Socket Mode envelope."""

    type: str = ""
    challenge: str = ""
    team_id: str = ""
    event: msgspec.Raw = msgspec.Raw(b"{}")
    authorizations: tuple[_AppAuthorization, ...] = ()

    def is_of(self, team: str) -> bool:
        teams = {authorization.team_id for authorization in self.authorizations if authorization.team_id} or {
            self.team_id
        }
        return not team or team in teams or teams == {""}


class _Ref(msgspec.Struct, frozen=True):
    id: str = ""


class _BlockAction(msgspec.Struct, frozen=True):
    value: str = ""


class SlackInteraction(msgspec.Struct, frozen=True):
    """A click on an interactive element. Shoal uses only buttons."""

    type: str = ""
    user: _Ref = _Ref()
    channel: _Ref | None = None
    message: SlackMessage | None = None
    actions: tuple[_BlockAction, ...] = ()
    response_url: str = ""


class SlashCommand(msgspec.Struct, frozen=True):
    """A slash command. Slack does not report the thread in which it was used."""

    command: str = ""
    text: str = ""
    user_id: str = ""
    channel_id: str = ""
    response_url: str = ""
    trigger_id: str = ""


class SlackBot(msgspec.Struct, frozen=True):
    user_id: str = ""
    bot_id: str = ""
    team_id: str = ""
    team: str = ""
    user: str = ""


class _PageCursor(msgspec.Struct, frozen=True):
    next_cursor: str = ""


class MessagePage(msgspec.Struct, frozen=True):
    """Response of conversations.history and conversations.replies."""

    messages: tuple[SlackMessage, ...] = ()
    response_metadata: _PageCursor = _PageCursor()


class _SlackProfile(msgspec.Struct, frozen=True):
    display_name: str = ""
    real_name: str = ""


class _SlackUser(msgspec.Struct, frozen=True):
    name: str = ""
    real_name: str = ""
    is_bot: bool = False
    is_admin: bool = False
    is_owner: bool = False
    is_restricted: bool = False
    is_ultra_restricted: bool = False
    is_stranger: bool = False
    profile: _SlackProfile = _SlackProfile()


class _UserInfo(msgspec.Struct, frozen=True):
    user: _SlackUser


class _UploadSlot(msgspec.Struct, frozen=True):
    upload_url: str
    file_id: str


class SlackApi(PlatformHttp):
    def __init__(self, settings: SlackSettings, clock: Clock) -> None:
        super().__init__("Slack")
        self._clock = clock
        self._people: Recent[tuple[float, Author]] = Recent(PEOPLE_MAX)
        self._base = settings.api_base.rstrip("/")
        self._token = settings.bot_token.reveal
        self._account = settings.account

    async def call(self, method: str, kind: type[T], parameters: Fields, *, token: str = "") -> T:
        """Call a method with the bot's token, or with `token` if it is set. Raises PlatformError, or its subclass
        PlatformRefusal if Slack rejects the call.
        """
        form = {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in parameters.items()
            if value is not None
        }
        headers = {"authorization": f"Bearer {token or self._token()}"}
        answer = await self._post(f"{self._base}/{method}", data=form, headers=headers)
        outcome = self.decode(answer.status_code, answer.content, _WebApiAnswer)
        if outcome.ok:
            return self.decode(answer.status_code, answer.content, kind)
        code = outcome.error
        if code in ("ratelimited", "rate_limited"):
            raise _slow_down(None)
        if code in TOKEN_ERRORS:
            which = "app token" if method == "apps.connections.open" else "bot token"
            key = "app_token or SLACK_APP_TOKEN" if which == "app token" else "bot_token or SLACK_BOT_TOKEN"
            raise PlatformError(
                f"Slack rejected the {which} of {self._account!r}: {code}. Set platforms.slack.{key}, then restart."
            )
        if code in PASSING_ERRORS:
            raise PlatformError(f"Slack's {method} failed: {code}.")
        if code in UNKNOWN_ERRORS or not code:
            raise PlatformError(f"Slack's {method} failed: {code}.", outcome_unknown=True)
        needed = outcome.needed
        advice = f" Add the scope {needed} to the app, and reinstall the app." if needed else _ADVICE.get(code, "")
        closed, gone = code in CLOSED_ERRORS, code in GONE_ERRORS
        raise PlatformRefusal(f"Slack's {method} failed: {code}.{advice}", code, closed=closed, gone=gone)

    async def respond(self, url: str, content: Fields) -> None:
        headers = {"content-type": "application/json"}
        answer = await self._post(url, content=msgspec.json.encode(content), headers=headers)
        if answer.status_code != 200:
            raise PlatformError(f"Slack returned status {answer.status_code} for a reply.")

    async def upload(self, path: Path) -> str:
        """Upload a file without sharing it, and return its id. Raises PlatformError."""
        try:
            length = str(path.stat().st_size)
        except OSError as error:
            raise PlatformError(f"Cannot read {path.name!r}: {error.strerror}.", permanent=True) from error
        given: Fields = {"filename": path.name, "length": length}
        slot = await self.call("files.getUploadURLExternal", _UploadSlot, given)
        try:
            with open_file(path) as content:
                answer = await self._post(slot.upload_url, TRANSFER_SECONDS, files={"file": (path.name, content)})
        except PlatformError as error:  # nothing is shared yet, so a retry is safe
            if not error.outcome_unknown:
                raise
            raise PlatformError(str(error)) from error
        if answer.status_code != 200:
            raise PlatformError(f"Slack returned status {answer.status_code} for the upload of {path.name!r}.")
        return slot.file_id

    async def newest(self, channel: str, thread_ts: str, oldest: str, limit: int) -> Sequence[SlackMessage]:
        """Return the newest `limit` messages after the timestamp `oldest`, oldest first. Raises PlatformError.

        Reads the thread `thread_ts`, or the channel if `thread_ts` is empty. If `oldest` is empty, all messages are
        included.
        """
        messages: deque[SlackMessage] = deque(maxlen=limit)
        cursor = ""
        for _ in range(PAGES_MAX):
            page = await self.page(channel, thread_ts, oldest, cursor, min(PAGE, limit))
            if thread_ts:  # Slack returns threads oldest first, but channels newest first
                messages.extend(page.messages)
            else:
                messages.extendleft(page.messages[: limit - len(messages)])
            cursor = page.response_metadata.next_cursor
            if not cursor or (not thread_ts and len(messages) >= limit):
                break
        return [msgspec.structs.replace(message, channel=channel) for message in messages if message.ts > oldest]

    async def page(self, channel: str, thread_ts: str, oldest: str, cursor: str, limit: int) -> MessagePage:
        given: dict[str, Json] = {
            "channel": channel,
            "limit": limit,
            "oldest": oldest or None,
            "cursor": cursor or None,
            "include_all_metadata": True,
        }
        if thread_ts:
            return await self.call("conversations.replies", MessagePage, {**given, "ts": thread_ts})
        return await self.call("conversations.history", MessagePage, given)

    async def author(self, user: str, known_seconds: float = KNOWN_SECONDS) -> Author:
        """Return the user with their name and roles (`admin`, `owner`, `guest`, `external`). The result is cached for
        `known_seconds`. If Slack returns an error, the author has only an id.
        """
        now = self._clock.monotonic()
        known_at, author = self._people.get(user) or (now - known_seconds, Author(user, trusted=False))
        if now - known_at < known_seconds:
            return author
        try:
            user_info = (await self.call("users.info", _UserInfo, {"user": user})).user
        except PlatformError:
            return author
        name = user_info.profile.display_name or user_info.profile.real_name or user_info.real_name or user_info.name
        roles = {
            "admin": user_info.is_admin,
            "owner": user_info.is_owner,
            "guest": user_info.is_restricted or user_info.is_ultra_restricted,
            "external": user_info.is_stranger,
        }
        author = Author(user, name, tuple(role for role, has in roles.items() if has), user_info.is_bot, trusted=False)
        self._people.put(user, (now, author))
        return author

    async def fetch_file(self, url: str, bytes_max: int) -> Download:
        """Download a file with the bot's token. Raises PlatformError if this fails or if the URL does not belong to
        Slack.
        """
        asked, own = urlsplit(url), urlsplit(self._base)
        host = asked.hostname or ""
        is_slack = host == "slack.com" or host.endswith((".slack.com", ".slack-files.com"))
        is_own = (asked.scheme, asked.netloc) == (own.scheme, own.netloc)
        if not (is_own or (is_slack and asked.scheme == "https")):
            raise PlatformError("Shoal cannot download the file, because it is stored outside Slack.", permanent=True)
        return await self.download(url, bytes_max, {"authorization": f"Bearer {self._token()}"})

    async def _post(self, url: str, seconds: float = CALL_SECONDS, **parts: "Unpack[RequestParts]") -> ApiAnswer:
        answer = await self.request("POST", url, seconds=seconds, **parts)
        if answer.status_code == 429:
            raise _slow_down(retry_after(answer.headers))
        return answer


def is_signed(secret: str, timestamp: str, signature: str, body: bytes, now: datetime) -> bool:
    """Return True if Slack signed this request and the timestamp is at most SIGNED_SECONDS_MAX seconds old."""
    if not secret or not (timestamp.isascii() and timestamp.isdecimal()) or len(timestamp) > _DIGITS_MAX:
        return False
    if abs(now.timestamp() - int(timestamp)) > SIGNED_SECONDS_MAX:
        return False
    return hmac.compare_digest(signature_of(secret, timestamp, body).encode(), signature.encode())


def signature_of(secret: str, timestamp: str, body: bytes) -> str:
    """Compute the value of X-Slack-Signature."""
    signed = hmac.new(secret.encode(), b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256)
    return f"v0={signed.hexdigest()}"


# ---- Socket Mode ----


class SocketOpened(msgspec.Struct, frozen=True):
    """Response of apps.connections.open."""

    url: str


class Envelope(msgspec.Struct, frozen=True):
    """A Socket Mode frame. The format of `payload` depends on `type`."""

    type: str = ""
    envelope_id: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    reason: str = ""


Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Function that acknowledges an envelope. Never raises."""


def check_package(package: str = "websockets") -> None:
    """Raise ConfigError if the package for Socket Mode is not installed."""
    if find_spec(package) is None:
        raise ConfigError([f"Slack's Socket Mode needs the `slack` extra. {how_to_add('slack')}"])


async def listen(url: str, hello: Callable[[], None], take: Callable[[Envelope, Confirm], object]) -> None:
    """Pass envelopes to `take` until Slack requests a new connection. Raises PlatformError if the connection breaks.

    `hello` is called when the connection is ready. `take` must return immediately and process the envelope in a task,
    because later envelopes wait for it. Source: docs.slack.dev/apis/events-api/using-socket-mode.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed, WebSocketException

    async def confirm(socket: "ClientConnection", envelope_id: str) -> None:
        if not envelope_id:
            return
        try:
            await socket.send(msgspec.json.encode({"envelope_id": envelope_id}).decode())
        except ConnectionClosed:
            return  # Slack repeats the envelope on the next connection, and its key identifies the repeat

    try:
        async with connect(url, max_size=FRAME_BYTES_MAX, open_timeout=OPEN_SECONDS) as socket:
            async for frame in socket:
                try:
                    envelope, _ = decode_known(frame, Envelope)
                except UNREADABLE:
                    envelope = Envelope("in an unknown format")
                if envelope.type == "disconnect" and envelope.reason == "link_disabled":
                    raise PlatformError("Slack ended the connection: Socket Mode is turned off in the app's settings.")
                if envelope.type == "disconnect" and envelope.reason != "warning":
                    return
                if envelope.type == "hello":
                    hello()
                elif envelope.type != "disconnect":
                    take(envelope, partial(confirm, socket, envelope.envelope_id))
            raise PlatformError("Slack closed the connection.")
    except (OSError, WebSocketException) as error:
        raise PlatformError(f"The connection to Slack failed: {network_reason(error)}.") from error


_CHANNEL = re.compile(r"[A-Z0-9]{2,40}")
_TIMESTAMP = re.compile(r"[0-9]{1,11}\.[0-9]{1,9}")
_MARKED = re.compile(r"<([^<>]*)>")
_SUBTYPES = frozenset({"", "file_share", "thread_broadcast", "me_message"})
"""Subtypes of messages that people write."""
_NOTES = frozenset(
    {
        *(
            f"{kind}_{what}"
            for kind in ("channel", "group")
            for what in ("archive", "join", "leave", "name", "purpose", "topic", "unarchive")
        ),
        "assistant_app_thread", "bot_add", "bot_disable", "bot_enable", "bot_message", "bot_remove",
        "channel_convert_to_private", "channel_posting_permissions", "document_mention", "file_comment", "file_mention",
        "huddle_thread", "joiner_notification", "joiner_notification_for_inviter", "message_changed", "message_deleted",
        "message_replied", "pinned_item", "reminder_add", "reminder_delete", "reply_broadcast", "sh_room_created",
        "sh_room_shared", "tombstone", "unpinned_item",
    }
)  # fmt: skip
"""Subtypes of system messages. Source: docs.slack.dev/reference/events/message."""
EVENTS = frozenset(
    {
        "message", "app_mention", "reaction_added", "member_joined_channel", "assistant_thread_started",
        "app_home_opened",
    }
)  # fmt: skip
UNUSED_EVENTS = frozenset({"reaction_removed", "assistant_thread_context_changed"})
"""Types of events that Slack sends together with the supported types. Shoal ignores them."""


# ---- meaning of events ----

NO_THREAD = "0"
"""Value of the thread part of a thread id for direct messages outside a thread."""


def is_direct(channel: str) -> bool:
    return channel.startswith("D")


def key_of(channel: str, ts: str) -> str:
    return f"{channel}/{ts}"


def thread_of(platform: str, channel: str, ts: str, thread_ts: str) -> ThreadId:
    """Return the message's thread, or the thread that it would open. Without a thread, a direct message belongs to the
    direct conversation as a whole.
    """
    alone = NO_THREAD if is_direct(channel) else ts
    return make_thread_id(platform, channel, thread_ts or alone)


def is_written(message: SlackMessage, me: SlackBot) -> bool:
    """Return True if a person wrote the message. Messages of bots and of Slack do not count."""
    if message.subtype not in _SUBTYPES or message.bot_id or message.user in ("", me.user_id, "USLACKBOT"):
        return False
    return is_valid_location(message.channel, message.ts, message.thread_ts)


def is_of_unknown_kind(message: SlackMessage) -> bool:
    return message.subtype not in _SUBTYPES and message.subtype not in _NOTES


def is_from_others(message: SlackMessage, me: SlackBot) -> bool:
    own = message.user == me.user_id or (message.bot_id is not None and message.bot_id == me.bot_id)
    is_spoken = message.subtype in _SUBTYPES or message.subtype == "bot_message"
    return is_spoken and not own and is_valid_location(message.channel, message.ts, message.thread_ts)


def is_about_message(event: SlackMessage) -> bool:
    about = event.previous_message or event.message
    return about is not None and is_valid_location(event.channel, event.deleted_ts or about.ts, about.thread_ts)


def is_valid_location(channel: str, ts: str, thread_ts: str) -> bool:
    threaded = not thread_ts or _TIMESTAMP.fullmatch(thread_ts) is not None
    return _CHANNEL.fullmatch(channel) is not None and _TIMESTAMP.fullmatch(ts) is not None and threaded


def is_addressed(message: SlackMessage, me: SlackBot) -> bool:
    text = message.text or ""
    return f"<@{me.user_id}>" in text or f"<@{me.user_id}|" in text


def prompt_of(platform: str, message: SlackMessage, me: SlackBot) -> Prompt:
    """Convert a message to a prompt without its files. The author has an id but no name."""
    channel = message.channel
    return Prompt(
        thread=thread_of(platform, channel, message.ts, message.thread_ts),
        key=key_of(channel, message.ts),
        text=text_of(message.text or "", me),
        author=Author(message.user, is_bot=bool(message.bot_id), trusted=False),
        at=datetime.fromtimestamp(float(message.ts), UTC),
        reply_to=message.thread_ts if is_direct(channel) and message.thread_ts != message.ts else "",
        message_id=message.ts,
        direct=is_direct(channel),
        refers_to=tuple(references_of(message, me)),
    )


def cards_of(message: SlackMessage, me: SlackBot) -> str:
    """Return the text of an app's blocks and attachments, except for lines that the message's text already contains."""
    written = text_of(message.text or "", me)
    return _without(written, [*(message.blocks or ()), *(message.attachments or ())], me)


def _without(written: str, cards: Sequence[msgspec.Raw], me: SlackBot) -> str:
    form = _form(me)
    lines = (line for card in cards for line in (words_of(card, form) or words_of(card, _FALLBACK)).splitlines())
    return "\n".join(line for line in dict.fromkeys(lines) if line.strip() not in written)


def _form(me: SlackBot) -> CardForm:
    """Return the form for extracting text from blocks and attachments. Sources:
    docs.slack.dev/reference/block-kit/blocks and
    docs.slack.dev/legacy/legacy-messaging/legacy-secondary-message-attachments.
    """

    def leaf(part: Part) -> str | None:
        kind, url = part.get("type"), part.get("url")
        text = part.get("text")
        match kind:
            case "mrkdwn" | "markdown" if isinstance(text, str):
                return text_of(text, me)
            case "link":
                return f"{text} ({url})" if text and text != url else str(url or "")
            case "emoji":
                return f":{part.get('name', '')}:"
            case "user" | "channel" | "usergroup":
                sign = {"user": "@", "channel": "#", "usergroup": "!subteam^"}[kind]
                return f"<{sign}{part.get(f'{kind}_id', '')}>"
            case "broadcast":
                return f"@{part.get('range', '')}"
            case "date":
                return str(part.get("fallback") or part.get("timestamp", ""))
            case "button" | "workflow_button":
                label = text.get("text", "") if isinstance(text, Mapping) else text or ""
                return f"{label} ({url})" if url else ""
            case "actions" | "input":
                return None
            case "call" if isinstance(part.get("call"), Mapping):
                return _of_call(part["call"])
            case str() if kind.endswith(("_select", "_picker", "picker", "overflow", "checkboxes", "radio_buttons")):
                return ""  # the choices of a menu are not part of the text
            case _:
                return None

    return CardForm(
        said=_SAID,
        links=(("title", "title_link"),),
        rows=frozenset({"rows"}),
        inline=_INLINE,
        pairs=(("title", "value"),),
        leaf=leaf,
    )


def _of_call(call: Json) -> str:
    """Return a call's name and URL. Source: docs.slack.dev/apis/web-api/using-the-calls-api."""
    about = call.get("v1") if isinstance(call, Mapping) else None
    part: Part = about if isinstance(about, Mapping) else {}
    name, url = part.get("name") or "a call", part.get("join_url")
    return f"{name} ({url})" if url else str(name)


_SAID = frozenset(
    """text pretext author_name title footer alt_text description subtitle label details heading
    username""".split()  # noqa: SIM905
)
_FALLBACK = CardForm(said=frozenset({"fallback"}))
_INLINE = frozenset({"rich_text_section", "rich_text_preformatted", "rich_text_quote"})


def references_of(message: SlackMessage, me: SlackBot) -> list[Reference]:
    """Return the shared messages. The names of their authors are unverified."""
    references: list[Reference] = []
    for raw in message.attachments or ():
        try:
            shared, odd = decode_known(raw, _Shared)
        except UNREADABLE:
            continue
        # If one of these fields is unreadable, treat the attachment as a shared message.
        if shared.is_message or {"is_share", "is_msg_unfurl"}.intersection(odd):
            files = (f"[file {file.label}]" for file in shared.files)
            text = text_of(shared.text, me)
            cards = _without(text, [*shared.blocks, *shared.message_blocks, *shared.attachments], me)
            shown_text = "\n".join(filter(None, (text, cards))) or text_of(shared.fallback, me)
            full_text = "\n".join(filter(None, (shown_text, *files)))
            author = Author("", shared.author_name, trusted=False)
            kind = "forward" if shared.is_share and not message.text else "quote"
            references.append(Reference(kind, full_text, author, str(shared.ts)))
    return references


def edited_at(message: SlackMessage) -> datetime | None:
    ts = message.edited.ts if message.edited is not None else ""
    return datetime.fromtimestamp(float(ts), UTC) if _TIMESTAMP.fullmatch(ts) else None


def text_of(text: str, me: SlackBot) -> str:
    """Return the text without mentions of the bot and with Slack's markup decoded.

    Links, channels, announcements and entities are decoded. Mentions of other people stay in the form `<@ID>`, which
    the agent also uses.
    """
    if me.user_id:
        text = re.sub(rf"<@{re.escape(me.user_id)}(\|[^<>]*)?>[ \t]*", "", text)

    def read(match: re.Match[str]) -> str:
        target, _, label = match[1].partition("|")
        if target.startswith("@"):
            return f"<{target}>"
        if target.startswith("#"):
            return f"#{label}" if label else f"<{target}>"
        if target.startswith("!"):
            return label or f"@{target[1:].partition('^')[0]}"
        if not label or label == target or target.removeprefix("mailto:") == label:
            return label or target
        return f"{label} ({target})"

    plain = _MARKED.sub(read, text)
    return plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def command_in(slash: SlashCommand, commands: CommandTable) -> ParsedCommand | None:
    """Return the command in `/stop all` or `/shoal stop all`. `/shoal` alone is the same as `/help`."""
    own = commands.parse(f"{slash.command} {slash.text}")
    if own is not None:
        return own
    return commands.parse(f"/{slash.text.strip().removeprefix('/') or 'help'}")
