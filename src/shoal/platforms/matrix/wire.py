"""Matrix's client-server API, event formats and the encryption interface. Source: spec.matrix.org, v1.15."""

import asyncio
import hashlib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar
from urllib.parse import quote, unquote

import msgspec

from shoal.kernel.clock import retry_after
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.markup import Dialect, is_link, language_in
from shoal.kernel.messages import Author, Prompt, Reference
from shoal.kernel.ports import Settings
from shoal.kernel.posts import Button, ChatLimits, OutboundPost, Window
from shoal.kernel.speech import seconds_of
from shoal.kernel.untrusted import UNREADABLE
from shoal.markdown.dialects import around
from shoal.markdown.render import render_markup
from shoal.platforms.http import (
    CALL_SECONDS,
    TRANSFER_SECONDS,
    ApiAnswer,
    Fields,
    Json,
    PlatformHttp,
    PlatformRefusal,
    Tolerating,
)
from shoal.platforms.matrix.settings import MatrixSettings

T = TypeVar("T")

CLIENT = "/_matrix/client/v3"
MEDIA_BASE = "/_matrix/media/v3"
AUTHENTICATED_MEDIA = "/_matrix/client/v1/media"

JsonObject: TypeAlias = dict[str, Json]

WHOLE = "0"
"""Value of the thread part of a thread id for conversations that span an entire room."""
POST = "dev.shoal.post"
"""Key of the field that contains the transaction id in Shoal's messages. The field is not encrypted."""


# ---- calls ----


CLOSED = frozenset({"M_FORBIDDEN", "M_USER_SUSPENDED", "M_RESOURCE_LIMIT_EXCEEDED", "M_CONSENT_NOT_GIVEN"})
"""Error codes that mean the room does not accept posts for now. Any error with status 403 means the same."""


class _MatrixError(msgspec.Struct, frozen=True):
    errcode: str = ""
    error: str = ""
    retry_after_ms: float | None = None


class _UploadedMedia(msgspec.Struct, frozen=True):
    content_uri: str


class _Login(msgspec.Struct, frozen=True):
    user_id: str
    device_id: str = ""
    access_token: str = ""


def path_of(*parts: str, base: str = CLIENT) -> str:
    """Build an API path. Each part is percent-encoded."""
    return "/".join((base, *(quote(part, safe="") for part in parts)))


class MatrixApi(PlatformHttp):
    """Client for the client-server API. The first call logs in."""

    def __init__(self, settings: MatrixSettings, store: Settings, scope: str) -> None:
        super().__init__("the homeserver")
        self._base = settings.homeserver.rstrip("/")
        self._settings = settings
        self._store = store
        self._scope = scope
        self._login: _Login | None = None
        self._logging_in = asyncio.Lock()

    async def login(self) -> _Login:
        """Log in with the token or password if necessary, and return the account's identity. Raises PlatformError,
        ConfigError and StoreError.

        A password login reuses the device id, which keeps the device's encryption keys valid.
        """
        async with self._logging_in:
            if self._login is not None:
                return self._login
            settings = self._settings
            token = settings.access_token.reveal()
            if token:
                answer = await self._send("GET", path_of("account", "whoami"), token)
                self._login = msgspec.structs.replace(self._result(answer, _Login), access_token=token)
                return self._login
            known = await self._store.get(self._scope, "device")
            body: Fields = {
                "type": "m.login.password",
                "identifier": {"type": "m.id.user", "user": settings.user},
                "password": settings.password.reveal(),
                "initial_device_display_name": "Shoal",
                **({"device_id": known} if known else {}),
            }
            login = self._result(await self._send("POST", path_of("login"), "", body), _Login, is_login=True)
            if login.device_id != known:
                await self._store.put(self._scope, "device", login.device_id)
            self._login = login
            return login

    async def call(
        self, method: str, path: str, kind: type[T], body: Fields | None = None, *,
        query: Mapping[str, str] | None = None, seconds: float = CALL_SECONDS,
    ) -> T:  # fmt: skip
        """Call an API path and decode the response. Raises PlatformError, or its subclass PlatformRefusal if the
        homeserver rejects the call.
        """
        token = (await self.login()).access_token
        return self._result(await self._send(method, path, token, body, query, seconds), kind)

    async def upload(self, name: str, media_type: str, content: bytes) -> str:
        """Upload a file to the homeserver and return its mxc URI. Raises PlatformError."""
        headers = {"content-type": media_type, "authorization": f"Bearer {(await self.login()).access_token}"}
        url = f"{self._base}{path_of('upload', base=MEDIA_BASE)}"
        try:
            answer = await self.request(
                "POST", url, seconds=TRANSFER_SECONDS, params={"filename": name}, content=content, headers=headers
            )
        except PlatformError as error:  # nothing is posted yet, so retrying is safe
            raise PlatformError(f"Uploading {name!r} failed. {error}") from error
        return self._result(answer, _UploadedMedia).content_uri

    async def fetch_media(self, address: str, bytes_max: int) -> bytes:
        server, _, media = address.removeprefix("mxc://").partition("/")
        if not address.startswith("mxc://") or not server or not media:
            raise PlatformError("The file's URL is not a valid mxc:// URL.", permanent=True)
        headers = {"authorization": f"Bearer {(await self.login()).access_token}"}
        url = self._base + path_of("download", server, media, base=AUTHENTICATED_MEDIA)
        with Tolerating("M_UNRECOGNIZED"):
            return (await self.download(url, bytes_max, headers, follow=True, refuse=self._error)).body
        # homeservers before Matrix 1.11 support only this path
        url = self._base + path_of("download", server, media, base=MEDIA_BASE)
        return (await self.download(url, bytes_max, headers, follow=True, refuse=self._error)).body

    async def _send(
        self, method: str, path: str, token: str, body: Fields | None = None, query: Mapping[str, str] | None = None,
        seconds: float = CALL_SECONDS,
    ) -> ApiAnswer:  # fmt: skip
        headers = {"authorization": f"Bearer {token}"} if token else {}
        url = f"{self._base}{path}"
        if body is None:
            return await self.request(method, url, seconds=seconds, headers=headers, params=query)
        return await self.request(method, url, seconds=seconds, headers=headers, params=query, json=body)

    def _result(self, answer: ApiAnswer, kind: type[T], *, is_login: bool = False) -> T:
        if answer.status_code != 200:
            raise self._error(answer.status_code, answer.content, retry_after(answer.headers), is_login=is_login)
        return self.decode(answer.status_code, answer.content, kind)

    def _error(
        self, status: int, body: bytes, asked_seconds: float | None = None, *, is_login: bool = False
    ) -> PlatformError:
        try:
            failure = msgspec.json.decode(body, type=_MatrixError)
        except UNREADABLE:
            failure = _MatrixError()
        if status == 429:
            asked = failure.retry_after_ms / 1000 if failure.retry_after_ms is not None else None
            seconds = asked if asked is not None else asked_seconds or 1.0
            return PlatformError(
                "The homeserver's rate limit has been reached.", retry_after_seconds=seconds, everywhere=True
            )
        is_logged_out = status == 401 or failure.errcode in ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN")
        if is_logged_out:
            self._login = None
        if is_logged_out or (is_login and 400 <= status < 500 and failure.errcode == "M_FORBIDDEN"):
            return PlatformError(
                f"The homeserver rejected the access token or password for {self._settings.account!r}. Set "
                "platforms.matrix.access_token, MATRIX_ACCESS_TOKEN or platforms.matrix.password, then restart."
            )
        if 400 <= status < 500 and failure.errcode:
            reason = failure.error or f"status {status}"
            # If the thread's first message is not in the room, Synapse mentions a relation in its error.
            is_astray = status == 400 and "relation" in failure.error.lower()
            closed = status == 403 or failure.errcode in CLOSED
            gone = failure.errcode == "M_NOT_FOUND" or is_astray
            message = f"The homeserver returned an error: {reason} ({failure.errcode})"
            return PlatformRefusal(message, failure.errcode, closed=closed, gone=gone)
        return PlatformError(f"The homeserver returned status {status}.", outcome_unknown=not 400 <= status < 500)


# ---- event fields ----


_ABSENT = msgspec.Raw(b"null")


class InReplyTo(msgspec.Struct, frozen=True):
    event_id: str = ""


class EventRelation(msgspec.Struct, frozen=True):
    rel_type: str = ""
    event_id: str = ""
    key: str = ""
    is_falling_back: bool = False
    answered: InReplyTo = msgspec.field(name="m.in_reply_to", default=InReplyTo())


class MatrixMentions(msgspec.Struct, frozen=True):
    user_ids: tuple[str, ...] = ()


class _MediaInfo(msgspec.Struct, frozen=True):
    mimetype: str = ""
    size: int = 0


class _EncryptedFile(msgspec.Struct, frozen=True):
    """URL of an encrypted file. The file's key is in the event's raw content."""

    url: str = ""


class EventContent(msgspec.Struct, frozen=True):
    msgtype: str = ""
    body: str = ""
    formatted_body: str = ""
    filename: str = ""
    url: str = ""
    file: _EncryptedFile | None = None
    info: _MediaInfo = _MediaInfo()
    membership: str = ""
    redacts: str = ""
    relation: EventRelation = msgspec.field(name="m.relates_to", default=EventRelation())
    mentions: MatrixMentions | None = msgspec.field(name="m.mentions", default=None)
    new_content: "EventContent | None" = msgspec.field(name="m.new_content", default=None)
    geo_uri: str = ""
    description: str | None = None
    live: bool = False
    poll: "_PollStart | None" = msgspec.field(name="m.poll", default=None)
    unstable_poll: "_PollStart | None" = msgspec.field(name="org.matrix.msc3381.poll.start", default=None)
    forwarded: msgspec.Raw = msgspec.field(name="m.forwarded", default=_ABSENT)
    unstable_forwarded: msgspec.Raw = msgspec.field(name="org.matrix.msc2723.forwarded", default=_ABSENT)
    is_direct: bool = False
    replacement_room: str = ""
    post: str = msgspec.field(name=POST, default="")

    @property
    def is_forwarded(self) -> bool:
        """True if the event is marked as forwarded (MSC2723). Many clients do not set this mark."""
        return (self.forwarded, self.unstable_forwarded) != (_ABSENT, _ABSENT)


class _PollText(msgspec.Struct, frozen=True):
    """Text in a poll. The field name depends on the version of the specification."""

    text: str = msgspec.field(name="org.matrix.msc1767.text", default="")
    body: str = ""
    texts: "tuple[_PollText, ...]" = msgspec.field(name="m.text", default=())

    @property
    def said(self) -> str:
        return self.text or self.body or next((text.body for text in self.texts), "")


class _PollStart(msgspec.Struct, frozen=True):
    question: _PollText = _PollText()
    answers: tuple[_PollText, ...] = ()


class _Membership(msgspec.Struct, frozen=True):
    membership: str = ""


class _Unsigned(msgspec.Struct, frozen=True):
    prev_content: _Membership = _Membership()


class MatrixEvent(msgspec.Struct, frozen=True):
    type: str
    sender: str = ""
    event_id: str = ""
    origin_server_ts: int = 0
    state_key: str | None = None
    redacts: str = ""
    unsigned: _Unsigned = _Unsigned()
    content: msgspec.Raw = msgspec.Raw(b"{}")


class _Timeline(msgspec.Struct, frozen=True):
    """New events of a room. If `limited` is true, the sync omitted the events before `prev_batch`."""

    events: tuple[MatrixEvent, ...] = ()
    limited: bool = False
    prev_batch: str = ""


class JoinedRoom(msgspec.Struct, frozen=True):
    timeline: _Timeline = _Timeline()


class _InviteState(msgspec.Struct, frozen=True):
    events: tuple[MatrixEvent, ...] = ()


class _InvitedRoom(msgspec.Struct, frozen=True):
    invite_state: _InviteState = _InviteState()


class _SyncedRooms(msgspec.Struct, frozen=True):
    join: dict[str, JoinedRoom] = {}
    invite: dict[str, _InvitedRoom] = {}


class _ToDevice(msgspec.Struct, frozen=True):
    """Messages sent directly from other devices, such as encryption keys."""

    events: tuple[msgspec.Raw, ...] = ()


class SyncResult(msgspec.Struct, frozen=True):
    next_batch: str
    to_device: _ToDevice = _ToDevice()
    rooms: _SyncedRooms = _SyncedRooms()


# ---- encryption ----

_INSTALL = "Encryption needs the `matrix` extra. Run `shoal doctor` for instructions."


class Encryption:
    """Fallback for installations without encryption support. Encrypted rooms require `MegolmEncryption`."""

    works: bool = False

    async def take(self, synced: bytes) -> None:
        """Process the keys, devices and members in a sync response. Raises PlatformError."""

    def decrypt(self, room: str, event: MatrixEvent) -> MatrixEvent | None:
        """Decrypt an event. Returns None if its key is unknown."""
        return None

    async def request_key(self, room: str, event: MatrixEvent) -> None:
        """Request an event's key from the sender's device and the account's other devices. Raises PlatformError."""

    async def encrypt(self, room: str, kind: str, content: JsonObject) -> JsonObject:
        """Encrypt an event for every member of the room. Raises PlatformError."""
        raise PlatformError(f"The room is encrypted. {_INSTALL}", permanent=True)

    def encrypt_file(self, content: bytes) -> tuple[bytes, JsonObject]:
        """Encrypt a file. Returns the encrypted file and the keys for decrypting it. Raises PlatformError."""
        raise PlatformError(f"The room is encrypted. {_INSTALL}", permanent=True)

    def decrypt_file(self, content: bytes, message: bytes) -> bytes:
        """Decrypt a file. `message` is the JSON content of the file's message. Raises PlatformError."""
        raise PlatformError(f"The file is encrypted. {_INSTALL}", permanent=True)

    def close(self) -> None:
        """Close the key store, which is reopened when necessary."""


MEDIA = frozenset({"m.file", "m.image", "m.audio", "m.video"})
_PROGRAMS = frozenset({"m.notice", "m.server_notice", "m.key.verification.request"})
"""Types of messages that programs send. They do not count as messages from people."""
_WORDS = frozenset({"m.text", "m.emote", "m.notice"})
_CALLS = frozenset({"m.call.invite", "m.rtc.notification", "org.matrix.msc4075.rtc.notification"})
_LIVE_LOCATIONS = frozenset({"m.beacon_info", "org.matrix.msc3672.beacon_info"})
WRITTEN = _CALLS | _LIVE_LOCATIONS | {"m.room.message", "m.sticker", "m.poll.start", "org.matrix.msc3381.poll.start"}
"""Types of events that count as messages from people."""
_QUOTED = re.compile(r"^> (?:\* )?<[^>\n]+>.*(?:\n|\Z)(?:>.*(?:\n|\Z))*\n?")
"""Matches the quote that old clients insert before a reply. It contains the author and the quoted text."""
_LINK = re.compile(r"<a\s([^<>]*+)>", re.IGNORECASE)
_LINK_END = re.compile(r"</a", re.IGNORECASE)
_HREF = re.compile(r"""href=(?:"([^"]++)"|'([^']++)')""", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*+>")
LINKS_MAX = 100


# ---- meaning of events ----


class MatrixBot(msgspec.Struct, frozen=True):
    user_id: str
    name: str = ""


class MatrixLocation(msgspec.Struct, frozen=True):
    """A room.

    - `direct`: whether the room contains only the bot and one other person.
    - `known_as`: the first id of an upgraded room.
    """

    room: str
    direct: bool = False
    known_as: str = ""

    def thread(self, platform: str, root: str = WHOLE) -> ThreadId:
        return make_thread_id(platform, self.known_as or self.room, root)


def redacted_by(event: MatrixEvent) -> str:
    """Return the id of the redacted event. Newer room versions store it in the content."""
    content = content_of(event)
    return (content.redacts if content is not None else "") or event.redacts


def content_of(event: MatrixEvent) -> EventContent | None:
    """Decode an event's content. Returns None if its format is unknown."""
    try:
        return msgspec.json.decode(bytes(event.content), type=EventContent)
    except UNREADABLE:
        return None


def is_from_person(event: MatrixEvent, content: EventContent, me: str, *, by_bots: bool = False) -> bool:
    """Return True if the event is a new message from a person. With `by_bots`, messages from other bots count too."""
    is_new = event.type in WRITTEN and content.relation.rel_type != "m.replace"
    is_empty = event.type == "m.room.message" and not content.msgtype  # a deleted message
    is_empty = is_empty or (event.type in _LIVE_LOCATIONS and not content.live)  # the end of a live location
    return (
        is_new
        and not is_empty
        and event.sender != me
        and (content.msgtype not in _PROGRAMS or (by_bots and content.msgtype == "m.notice"))
    )


def root_of(content: EventContent) -> str:
    return content.relation.event_id if content.relation.rel_type == "m.thread" else ""


def answered_id(content: EventContent) -> str:
    """Return the id of the message that an event replies to, or an empty string. The fallback reply in a thread does
    not count.
    """
    return "" if content.relation.is_falling_back else content.relation.answered.event_id


def thread_of(platform: str, place: MatrixLocation, event: MatrixEvent, content: EventContent) -> ThreadId:
    """Return the thread for a message that does not reply to a known message. Raises InvalidId if an id is too long."""
    return place.thread(platform, root_of(content) or (WHOLE if place.direct else event.event_id))


def is_addressed(content: EventContent, me: MatrixBot) -> bool:
    """Return True if the message mentions the bot. Old clients do not set the mention field, so their text is
    searched.
    """
    if content.mentions is not None:
        return me.user_id in content.mentions.user_ids
    markup = unquote(html.unescape(content.formatted_body))
    links = (f"matrix.to/#/{me.user_id}", f"matrix:u/{me.user_id[1:]}")
    is_linked = any(_occurs_in(markup, link) for link in links)
    return is_linked or _occurs_in(content.body, me.user_id) or bool(_leading(me).match(content.body))


def _occurs_in(text: str, id: str) -> bool:
    """Return True if the text contains the id. A longer id that contains it does not count."""
    at = text.find(id)
    while at >= 0:
        before, after = text[max(0, at - 1) : at], text[at + len(id) : at + len(id) + 2]
        is_longer = after[:1].isalnum() or after[:1] in ("_", "-") or (after[:1] in (".", ":") and after[1:].isalnum())
        if not (is_longer or before.isalnum() or before in ("_", "-", ".", "+")):
            return True
        at = text.find(id, at + 1)
    return False


def text_of(body: str, me: MatrixBot, *, answers: bool, named: bool = False) -> str:
    """Return the text without the quotation that old clients add and without a leading mention of the bot.

    A mention is the bot's id, `@name`, or the name with a colon or comma. If `named` is set, the name alone is enough.
    """
    text = _unquoted(body, answers=answers)
    called = _leading(me, named=named).match(text)
    return text[called.end() if called is not None else 0 :].strip()


def _unquoted(body: str, *, answers: bool) -> str:
    return _QUOTED.sub("", body, count=1) if answers else body


def _leading(me: MatrixBot, *, named: bool = False) -> re.Pattern[str]:
    local = me.user_id.removeprefix("@").partition(":")[0]
    plain = "|".join(map(re.escape, filter(None, (me.name, local))))
    marked, end = rf"{re.escape(me.user_id)}|@(?:{plain})", r"(?![\w@]|[-.:]\w)\s*[:,]?"
    bare = end if named else r"\s*(?:[:,]|(?=!\w))"
    return re.compile(rf"\s*(?:(?:{marked}){end}|(?:{plain}){bare})\s*", re.IGNORECASE)


def prompt_of(thread: ThreadId, event: MatrixEvent, content: EventContent, author: Author, me: MatrixBot) -> Prompt:
    """Convert a message to a prompt without its file. For a file, the prompt's text is the caption, not the file
    name.
    """
    text, foreign = message_text(event, content, me), foreign_in(event, content, me)
    if content.msgtype == "m.notice":
        author = msgspec.structs.replace(author, is_bot=True)
    return Prompt(
        thread=thread,
        key=event.event_id,
        text="" if content.is_forwarded else f"* {text}" if content.msgtype == "m.emote" else text,
        author=author,
        at=time_of(event),
        reply_to=answered_id(content),
        message_id=event.event_id,
        refers_to=(Reference("forward", foreign, Author("", trusted=False)),) if foreign else (),
    )


def foreign_in(event: MatrixEvent, content: EventContent, me: MatrixBot) -> str:
    """Return the text that the sender did not write: a forwarded message, or the name of a sticker."""
    if event.type == "m.sticker":
        return f"[a sticker: {content.body}]"
    return message_text(event, content, me) if content.is_forwarded else ""


def message_text(event: MatrixEvent, content: EventContent, me: MatrixBot, *, changes: bool = False) -> str:
    """Return a message's text, or a description of other content. For a file, the text is the caption, not the file
    name.

    Set `changes` for the new content of an edit, because some clients repeat the quotation there.
    """
    captioned = bool(content.filename) and content.filename != content.body
    body = "" if content.msgtype in MEDIA and not captioned else content.body
    poll = content.poll or content.unstable_poll
    answers = changes or bool(content.relation.answered.event_id)
    if event.type == "m.sticker":
        body = ""
    elif poll is not None:
        choices = " / ".join(answer.said for answer in poll.answers)
        body = f"[a poll: {_unquoted(poll.question.said, answers=answers)} {choices}]"
    elif content.msgtype == "m.location":
        body = f"[a location: {content.geo_uri} {_unquoted(content.body, answers=answers)}]"
    elif event.type in _CALLS:
        body = "[an unsupported call]"
    elif event.type in _LIVE_LOCATIONS:
        named = _unquoted(content.description or "", answers=answers)
        body = f"[an unsupported live location: {named}]" if content.live else ""
    elif content.msgtype not in MEDIA | _WORDS:
        body = ""
    formatted = content.formatted_body.rpartition("</mx-reply>")[2]
    text = text_of(body, me, answers=answers, named=is_addressed(content, me))
    for address, label in links_of(formatted) if body else ():  # the plain text may omit the URLs
        if "matrix.to/#/" not in address and address not in text:
            text = text.replace(label, f"{label} ({address})", 1) if label in text else f"{text} ({address})"
    return text


def links_of(formatted: str) -> Iterator[tuple[str, str]]:
    """Yield the URLs and labels of the first LINKS_MAX links in an HTML text."""
    at = 0
    for _ in range(LINKS_MAX):
        begin = _LINK.search(formatted, at)
        end = _LINK_END.search(formatted, begin.end()) if begin is not None else None
        if begin is None or end is None:
            return
        at = end.end()
        if (href := _HREF.search(begin[1])) is not None:
            label = _TAG.sub("", formatted[begin.end() : end.start()])
            yield html.unescape(href[1] or href[2]), html.unescape(label)


def time_of(event: MatrixEvent) -> datetime:
    """Return the time that the homeserver set. For an invalid time, return the Unix epoch."""
    milliseconds = event.origin_server_ts if 0 <= event.origin_server_ts < 1 << 47 else 0
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def unseen(events: tuple[MatrixEvent, ...], me: str) -> tuple[MatrixEvent, ...]:
    """Return the events after the bot's last invitation. Without an invitation, start after its last join or at the
    beginning.
    """
    entries = [number for number, event in enumerate(events) if _entry(event, me)]
    invitations = [number for number in entries if _entry(events[number], me) == "invite"]
    last = (invitations or entries or [-1])[-1]
    return events[last + 1 :]


def _entry(event: MatrixEvent, me: str) -> str:
    """Return `invite` if this event invites the bot, `join` if the bot joins the room with it, or an empty string. A
    changed display name does not count.
    """
    content = content_of(event) if event.type == "m.room.member" and event.state_key == me else None
    if content is None or content.membership not in ("invite", "join"):
        return ""
    return "" if event.unsigned.prev_content.membership == "join" else content.membership


# ---- sending ----

EVENT_BYTES_MAX = 65_536
CONTENT_BYTES_MAX = 44_000
"""Maximum size of an event's content. The remaining third of EVENT_BYTES_MAX is for encryption and the homeserver's
fields.
"""
FALLBACK_CHARS = 160

_KINDS = {"image": "m.image", "audio": "m.audio", "video": "m.video"}
_BLOCKS = ("<p>", "<h", "<pre", "<ul", "<ol", "<blockquote", "<table", "<hr")


def _fence(content: str, info: str) -> str:
    language = f' class="language-{language_in(info)}"' if info else ""
    return f"<pre><code{language}>{html.escape(content)}</code></pre>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "<tr>" + "".join(f"<{tag}>{cell.replace(chr(10), '<br>')}</{tag}>" for cell in row) + "</tr>"
        for row, tag in zip(rows, ["th", *["td"] * len(rows)], strict=False)
    ]
    return f"<table>{''.join(lines)}</table>"


def _opens(url: str) -> bool:
    return is_link(url) or url.startswith("matrix:")


def _link(label: str, url: str) -> str:
    return f'<a href="{html.escape(url)}">{label}</a>'


def _token(token: str) -> str:
    return _link(html.escape(token), token) if _opens(token) else html.escape(token)


MATRIX_HTML = Dialect(
    text=html.escape,
    token=_token,
    styles={"strong": around("<strong>", "</strong>"), "em": around("<em>", "</em>"), "s": around("<del>", "</del>")},
    code=lambda code: f"<code>{html.escape(code)}</code>",
    fence=_fence,
    opens=_opens,
    link=_link,
    heading=lambda text, level: f"<h{level}>{text}</h{level}>",
    quote=around("<blockquote>", "</blockquote>"),
    item=around("<li>", "</li>"),
    rule="<hr>",
    blocks=lambda blocks, tight: "".join(
        part if tight or part.startswith(_BLOCKS) else f"<p>{part.replace(chr(10), '<br>')}</p>"
        for part in blocks
        if part
    ),
    table=_table,
    html=True,
    nests=True,
)
LIMITS = ChatLimits(
    opens_threads=True,
    text_chars_max=12_000,
    markup=MATRIX_HTML,
    text_unit="bytes",
    edit_seconds_min=2.0,
    windows=(Window(10, 10.0, "account"),),
    idempotent_posts=True,
    can_edit=True,
    can_upload=True,
    has_preview=True,
    has_history=True,
    reactions="all",
    voice="ogg",
)
"""The length of a text is measured in bytes of HTML. A message contains its text twice, as Markdown and as HTML."""


class MatrixTarget(msgspec.Struct, frozen=True):
    """Target of a thread's posts: a room and the first message of a thread. An empty root means the room itself."""

    room: str
    root: str = ""


def target_of(thread: ThreadId) -> MatrixTarget:
    """Return the target of a thread's posts. Raises PlatformError if the id is invalid."""
    address = thread_address(thread)
    root = "" if address.thread == WHOLE else address.thread
    if not address.channel.startswith("!") or (root and not root.startswith("$")):
        reason = f"{thread!r} is not a Matrix thread: room ids begin with ! and message ids with $."
        raise PlatformError(reason, permanent=True)
    return MatrixTarget(address.channel, root)


def transaction_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def text_content(markdown: str, buttons: tuple[Button, ...] = ()) -> JsonObject:
    """Build a message. An approval request is an `m.text` message, which notifies people. Other messages are
    `m.notice`, as is usual for bots.
    """
    kind = "m.text" if any(button.value.startswith(("allow:", "all:")) for button in buttons) else "m.notice"
    return styled({"msgtype": kind, "body": markdown, "m.mentions": {}}, markdown)


def styled(content: JsonObject, markdown: str) -> JsonObject:
    """Add the text as HTML, unless the content would exceed CONTENT_BYTES_MAX."""
    body = render_markup(markdown, MATRIX_HTML)
    full: JsonObject = {**content, "format": "org.matrix.custom.html", "formatted_body": body}
    return full if len(msgspec.json.encode(full)) <= CONTENT_BYTES_MAX else content


def post_content(post: OutboundPost, target: MatrixTarget) -> JsonObject:
    return text_content(post.markdown, post.buttons) | relation_of(target, post.reply_to)


def file_content(post: OutboundPost, name: str, target: MatrixTarget, media_type: str, data: bytes) -> JsonObject:
    """Build the message for a file. The post's text is the caption. The caller adds the file's URL.

    Voice messages use the fields of MSC3245 and MSC1767, as clients do until the specification includes them.
    """
    size, info = len(data), dict[str, Json]()
    if post.kind == "voice":
        info["duration"] = round(seconds_of(data) * 1000)
    content: JsonObject = {
        "msgtype": _KINDS.get(media_type.partition("/")[0], "m.file"),
        "body": post.markdown or name,
        "filename": name,
        "info": {"mimetype": media_type, "size": size, **info},
        "m.mentions": {},
    }
    if post.kind == "voice":
        content |= {"org.matrix.msc3245.voice": {}, "org.matrix.msc1767.audio": info}
    return (styled(content, post.markdown) if post.markdown else content) | relation_of(target, post.reply_to)


def relation_of(target: MatrixTarget, reply_to: str) -> JsonObject:
    """Build the relation of a post to its thread and to the message `reply_to`. If `reply_to` is empty, clients without
    threads show the post as a reply to the thread's root.
    """
    answered = reply_to if reply_to.startswith("$") else ""
    if target.root:
        shown: Json = {"event_id": answered or target.root}
        return {
            "m.relates_to": {
                "rel_type": "m.thread", "event_id": target.root, "is_falling_back": answered in ("", target.root),
                "m.in_reply_to": shown
            },
        }  # fmt: skip
    return {"m.relates_to": {"m.in_reply_to": {"event_id": answered}}} if answered else {}


def edit_content(message_id: str, markdown: str, buttons: tuple[Button, ...]) -> JsonObject:
    """Build an edit. Clients that do not support edits show the first FALLBACK_CHARS characters."""
    new = text_content(markdown, buttons)
    return {
        "msgtype": new["msgtype"],
        "body": f"* {markdown[:FALLBACK_CHARS]}",
        "m.mentions": {},
        "m.new_content": new,
        "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
    }
