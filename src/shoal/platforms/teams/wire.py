"""Teams activities, verification of requests, and the Bot Connector API.

Messages and tokens are sent only to hosts that the configuration trusts or, in emulator mode, to this machine.
Sources on learn.microsoft.com: the Bot Framework activity schema, the channelData fields that Teams adds, the
authentication guide and the Connector REST API.
"""

import html
import re
from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.messages import Author, Prompt, Reference
from shoal.kernel.ports import Settings
from shoal.kernel.untrusted import QUOTED, UNREADABLE, untrusted_block
from shoal.platforms.cards import CardForm, Part, words_of
from shoal.platforms.http import Fields, RestApi
from shoal.platforms.inbox import ChannelServers, Recent, time_of
from shoal.platforms.teams.settings import TeamsSettings
from shoal.platforms.tokens import BadToken, Granted, KeyRing

T = TypeVar("T")

CHAT = "0"
"""Thread part of a chat's thread id. Chats have no threads."""
DOWNLOAD = "application/vnd.microsoft.teams.file.download.info"
FORWARDED_REFERENCE = "forwardedmessagereference"
"""Content type of forwarded messages in Microsoft Graph."""
ISSUERS = ("https://api.botframework.com", "https://api.botframework.us")
SCOPE = "https://api.botframework.com/.default"
TENANT = "botframework.com"
"""Tenant from which multi-tenant bots request tokens."""
PLACES_MAX = 5000

_ROOT = ";messageid="
_AT = re.compile(r"<at\b[^<>]*+>([^<]*+(?:<(?!/?at\b)[^<]*+)*+)</at>", re.IGNORECASE)
_TAG = re.compile(r"<!--(?:[^-<]|-(?!->))*+-->|<(/?)([a-zA-Z][^\s/<>]*+)([^<>]*+)>")
_ATTRIBUTE = re.compile(r"(?<![^\s=/\"'<>])([^\s=/\"'<>]++)\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s\"'<>]++))")
_QUOTE = re.compile(r"<blockquote\b", re.IGNORECASE)
_QUOTED_HERE = re.compile(r"<quoted\b[^<>/]*+(?:/(?!>)[^<>/]*+)*+/>[ \t]*+", re.IGNORECASE)
_ACTION = re.compile(r"Action\..+|openUrl|imBack|messageBack|postBack|invoke|signin")


def _of_button(part: Part) -> str | None:
    if not _ACTION.fullmatch(str(part.get("type", ""))):
        return None
    if part.get("type") == "Action.ShowCard":  # people see this card only after they open it
        return None
    url = part.get("url") or (part.get("value") if part.get("type") == "openUrl" else "")
    return f"{part.get('title', '')} ({url})" if isinstance(url, str) and url else ""


_CARDS = CardForm(
    said=frozenset(
        """title subtitle text value altText alt inlines label heading quantity price tax total vat
        codeSnippet description activityTitle activitySubtitle activityText summary""".split()  # noqa: SIM905
    ),
    rows=frozenset({"rows"}),
    inline=frozenset({"RichTextBlock"}),
    pairs=(("title", "value"), ("key", "value"), ("name", "value")),
    leaf=_of_button,
)
"""Form for extracting text from Adaptive Cards and from hero, thumbnail, receipt and connector cards. Sources:
adaptivecards.io/explorer and
learn.microsoft.com/microsoftteams/platform/task-modules-and-cards/cards/cards-reference.
"""
_CARD = re.compile(r"application/vnd\.microsoft\.(?:teams\.)?card\..+")
_EMOJI = re.compile(r"([0-9a-f]{4,6})_\w*")
_PLACE = re.compile(r"<attachment id=\"([^\"<>]{1,200})\">")
"""Matches a reference to an attached file in a message's HTML."""
_DIRECT, _CHANNEL = "personal", "channel"


# ---- activity fields ----


class TeamsAccount(msgspec.Struct, frozen=True, rename="camel"):
    id: str = ""
    name: str | None = None
    aad_object_id: str | None = None
    role: str | None = None


class TeamsConversation(msgspec.Struct, frozen=True, rename="camel"):
    """A conversation. In channels, the id ends with the id of the thread's root message."""

    id: str = ""
    conversation_type: str | None = None
    is_group: bool | None = None
    tenant_id: str | None = None
    name: str | None = None


class _QuotedReply(msgspec.Struct, frozen=True, rename="camel"):
    """A quoted message. `_QUOTED_HERE` marks the position of the quote in the text."""

    message_id: str = ""
    sender_id: str | None = None
    sender_name: str | None = None
    preview: str | None = None


class _TeamsEntity(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    mentioned: TeamsAccount | None = None
    text: str | None = None
    quoted_reply: _QuotedReply | None = None


class TeamsAttachment(msgspec.Struct, frozen=True, rename="camel"):
    """A file, a card, or the message's text in another format."""

    id: str | None = None
    content_type: str = ""
    content_url: str | None = None
    name: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def kind(self) -> str:
        """The media type in lower case without parameters."""
        return self.content_type.partition(";")[0].strip().lower()


class _FileDownloadInfo(msgspec.Struct, frozen=True, rename="camel"):
    download_url: str = ""
    file_type: str | None = None


class _Reaction(msgspec.Struct, frozen=True):
    type: str = ""


class _Group(msgspec.Struct, frozen=True):
    id: str = ""


class _ChannelData(msgspec.Struct, frozen=True, rename="camel"):
    tenant: _Group | None = None
    team: _Group | None = None


class TeamsActivity(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    id: str = ""
    name: str | None = None
    timestamp: str | None = None
    service_url: str = ""
    channel_id: str | None = None
    sender: TeamsAccount = msgspec.field(name="from", default=TeamsAccount())
    recipient: TeamsAccount = TeamsAccount()
    conversation: TeamsConversation = TeamsConversation()
    text: str | None = None
    entities: tuple[_TeamsEntity, ...] | None = None
    attachments: tuple[TeamsAttachment, ...] | None = None
    value: msgspec.Raw = msgspec.Raw(b"null")
    reply_to_id: str | None = None
    reactions_added: tuple[_Reaction, ...] | None = None
    members_added: tuple[TeamsAccount, ...] | None = None
    action: str | None = None
    channel_data: _ChannelData | None = None


class _ButtonData(msgspec.Struct, frozen=True):
    shoal: str = ""


class _CardAction(msgspec.Struct, frozen=True):
    data: _ButtonData = _ButtonData()


class _ButtonPress(msgspec.Struct, frozen=True):
    action: _CardAction = _CardAction()
    shoal: str = ""


class UploadInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Upload URL of an accepted file."""

    upload_url: str = ""
    content_url: str = ""
    unique_id: str = ""
    file_type: str = ""
    name: str = ""


class FileConsent(msgspec.Struct, frozen=True, rename="camel"):
    action: str = ""
    context: _ButtonData = _ButtonData()
    upload_info: UploadInfo = UploadInfo()


# ---- classifying activities ----


def is_direct(activity: TeamsActivity) -> bool:
    conversation = activity.conversation
    return conversation.conversation_type == _DIRECT or (
        conversation.conversation_type is None and not conversation.is_group
    )


def is_channel(activity: TeamsActivity) -> bool:
    return activity.conversation.conversation_type == _CHANNEL or _ROOT in activity.conversation.id


def is_of_bot(activity: TeamsActivity) -> bool:
    sender = activity.sender
    return not sender.id or sender.id == activity.recipient.id or sender.id.startswith("28:") or sender.role == "bot"


def tenant_of(activity: TeamsActivity) -> str:
    tenant = activity.channel_data.tenant if activity.channel_data is not None else None
    return (tenant.id if tenant is not None else "") or activity.conversation.tenant_id or ""


def channel_of(activity: TeamsActivity) -> str:
    """Return the id of the chat or channel without the thread."""
    return activity.conversation.id.partition(_ROOT)[0]


def thread_of(platform: str, activity: TeamsActivity) -> ThreadId:
    """Return the thread of a channel message, or the thread id of the whole chat. Raises InvalidId."""
    channel, _, root = activity.conversation.id.partition(_ROOT)
    if is_channel(activity):
        return make_thread_id(platform, channel, root or activity.reply_to_id or activity.id)
    return make_thread_id(platform, channel, CHAT)


def conversation_of(channel: str, thread: str) -> str:
    return channel if thread == CHAT else f"{channel}{_ROOT}{thread}"


def key_of(channel: str, message_id: str) -> str:
    return f"{channel}/{message_id}"


def author_of(account: TeamsAccount) -> Author:
    """Return the author. The Entra id is preferred, because it is the same for every bot."""
    return Author(account.aad_object_id or account.id, account.name or "", is_bot=account.role == "bot", trusted=False)


def is_addressed(activity: TeamsActivity) -> bool:
    return any(_names(entity, activity.recipient.id) for entity in activity.entities or ())


def _names(entity: _TeamsEntity, account: str) -> bool:
    return (
        entity.type == "mention" and entity.mentioned is not None and bool(account) and entity.mentioned.id == account
    )


class _Page:
    """A message's HTML, split into its text and quotes. `is_plain` is true if the split is certain.

    Tags are found in one pass, because the standard library's parser needs quadratic time for unclosed tags.
    """

    def __init__(self, body: str) -> None:
        self.written: list[str] = []
        self.quotes: list[_Quote] = []
        self.is_plain = True
        self._inside = self._mentions = self._names = at = 0
        for tag in _TAG.finditer(body):
            self._say(html.unescape(body[at : tag.start()]))
            at, name = tag.end(), (tag[2] or "").lower()
            if tag[1]:
                self._close(name)
            elif name:
                attributes = ((key.lower(), html.unescape(a or b or c)) for key, a, b, c in _ATTRIBUTE.findall(tag[3]))
                self._open(name, dict(attributes))
                if tag[3].endswith("/"):
                    self._close(name)
        self._say(html.unescape(body[at:]))
        self.is_plain = self.is_plain and not (self._inside or self._mentions)

    def _open(self, tag: str, given: dict[str, str]) -> None:
        kind = given.get("itemtype", "")
        if tag == "blockquote":
            self.is_plain = self.is_plain and not self._inside
            self._inside += 1
            self.quotes.append(_Quote(given.get("itemid", "") if kind == "http://schema.skype.com/Reply" else ""))
        elif self._inside and tag == "strong" and given.get("itemprop") == "mri" and not self.quotes[-1].author:
            self.quotes[-1].author, self._names = given.get("itemid", ""), 1
        elif tag == "at" or (tag == "span" and kind == "http://schema.skype.com/Mention"):
            self._mentions += 1
            self._say("<at>")
        elif tag == "span" and self._mentions:
            self._mentions += 1
        elif tag == "br":
            self._say("\n")

    def _close(self, tag: str) -> None:
        if tag == "blockquote":
            self.is_plain = self.is_plain and self._inside == 1
            self._inside = max(0, self._inside - 1)
        elif tag == "strong":
            self._names = 0
        elif tag in ("at", "span") and self._mentions:
            self._mentions -= 1
            if not self._mentions:
                self._say("</at>")
        elif tag in ("p", "div", "li"):
            self._say("\n")

    def _say(self, text: str) -> None:
        if not self._inside:
            self.written.append(text)
        elif self._names:
            self.quotes[-1].names.append(text)
        else:
            self.quotes[-1].texts.append(text)


class _Quote(msgspec.Struct):
    """A quote. The name of its author is unverified, because the person who quotes controls the HTML."""

    message_id: str
    author: str = ""
    names: list[str] = []
    texts: list[str] = []


def _page_of(activity: TeamsActivity) -> _Page | None:
    for attached in activity.attachments or ():
        try:
            body = msgspec.json.decode(attached.content, type=str) if attached.kind == "text/html" else ""
        except UNREADABLE:
            body = ""
        if _QUOTE.search(body):
            return _Page(body)
    return None


def references_of(activity: TeamsActivity) -> list[Reference]:
    """Return a message's quotes and cards. Authors are unverified. The text of a quoted message from the bot is
    omitted, because the agent already knows it.
    """
    page = _page_of(activity)
    quotes = [*page.quotes] if page is not None and page.is_plain else []
    for entity in activity.entities or ():
        if entity.type == "quotedReply" and (reply := entity.quoted_reply) is not None:
            name, preview = reply.sender_name or "", reply.preview or ""
            quotes.append(_Quote(reply.message_id, reply.sender_id or "", [name], [preview]))
    references: list[Reference] = []
    for quoted in quotes:
        own = bool(quoted.message_id) and quoted.author == activity.recipient.id
        text = "" if own else "".join(quoted.texts).strip()
        references.append(
            Reference(
                "quote", text, Author("", "".join(quoted.names).strip(), trusted=False), quoted.message_id, own=own
            )
        )
    cards = (
        words_of(attachment.content, _CARDS)
        for attachment in activity.attachments or ()
        if _CARD.fullmatch(attachment.kind)
    )
    return references + [Reference("forward", words, Author("", trusted=False)) for words in cards if words]


def quotes_unclearly(activity: TeamsActivity) -> bool:
    """Return True if the message contains other people's text that Shoal cannot separate, as in a forwarded message."""
    if any(attached.kind == FORWARDED_REFERENCE for attached in activity.attachments or ()):
        return True
    pages = sum(attached.kind == "text/html" for attached in activity.attachments or ())
    page = _page_of(activity)
    return page is not None and (pages > 1 or not page.is_plain)


def text_of(activity: TeamsActivity) -> str:
    """Return the text without the bot's name. Other mentions become @NAME.

    If the message contains other people's text that Shoal cannot separate, return all of the text in an untrusted
    block.
    """
    page = _page_of(activity)
    unclear = quotes_unclearly(activity)
    text = "".join(page.written) if page is not None and not unclear else activity.text or ""
    text = text.replace("\u00a0", " ").replace("\r\n", "\n")
    for entity in activity.entities or ():
        if _names(entity, activity.recipient.id) and entity.text:
            text = text.replace(entity.text, "", 1)
    text = _AT.sub(lambda match: f"@{html.unescape(match[1])}", _QUOTED_HERE.sub("", text)).strip()
    return untrusted_block(QUOTED, text) if text and unclear else text


def prompt_of(platform: str, activity: TeamsActivity, now: datetime) -> Prompt:
    """Convert a message to a prompt without its files. Raises InvalidId."""
    channel = channel_of(activity)
    return Prompt(
        thread=thread_of(platform, activity),
        key=key_of(channel, activity.id),
        text=text_of(activity),
        author=author_of(activity.sender),
        at=time_of(activity.timestamp or "", now),
        reply_to="" if is_channel(activity) else activity.reply_to_id or "",
        message_id=activity.id,
        direct=is_direct(activity),
        tainted_by=QUOTED if quotes_unclearly(activity) else "",
        refers_to=tuple(references_of(activity)),
    )


def pressed_in(activity: TeamsActivity) -> str:
    """Return the value of the clicked button. Returns an empty string for buttons of other apps."""
    try:
        click = msgspec.json.decode(activity.value, type=_ButtonPress)
    except UNREADABLE:
        return ""
    return click.action.data.shoal or click.shoal


def files_of(activity: TeamsActivity) -> list[tuple[str, str, str]]:
    """Return the name, media type and URL of each file. Cards and the HTML version of the text are omitted."""
    parts: list[tuple[str, str, str]] = []
    for attached in activity.attachments or ():
        kind = attached.kind
        if kind == DOWNLOAD:
            try:
                info = msgspec.json.decode(attached.content, type=_FileDownloadInfo)
            except UNREADABLE:
                info = _FileDownloadInfo()
            parts.append((attached.name or "file", "application/octet-stream", info.download_url))
        elif attached.content_url and not kind.startswith(("text/html", "application/vnd.microsoft.")):
            kind = "image/png" if kind == "image/*" else kind
            name = attached.name or f"{kind.partition('/')[0]}.{kind.partition('/')[2] or 'bin'}"
            parts.append((name, kind or "application/octet-stream", attached.content_url))
    return parts


def missing_files(activity: TeamsActivity) -> int:
    """Return the number of files that the HTML mentions but Teams does not send. Bots receive files only in direct
    chats.
    Source: learn.microsoft.com/microsoftteams/platform/bots/how-to/bots-filesv4.
    """
    attached_ids = {attached.id for attached in activity.attachments or () if attached.id}
    places: set[str] = set()
    for attached in activity.attachments or ():
        if attached.kind == "text/html":
            try:
                places.update(_PLACE.findall(msgspec.json.decode(attached.content, type=str)))
            except UNREADABLE:
                continue
    return len(places - attached_ids)


def emoji_of(reaction: _Reaction) -> str:
    match = _EMOJI.fullmatch(reaction.type)
    if match is None or int(match[1], 16) > 0x10FFFF:
        return reaction.type
    return chr(int(match[1], 16))


def host_of(url: str) -> str:
    """Return a URL's host, with the port unless it is the default port. Returns an empty string for an invalid URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        return ""
    usual = 443 if parts.scheme == "https" else 80
    return parts.hostname if port in (None, usual) else f"{parts.hostname}:{port}"


def is_here(url: str) -> bool:
    return host_of(url).partition(":")[0] in ("127.0.0.1", "localhost")


# ---- the Bot Connector ----


class _ConversationRef(msgspec.Struct, frozen=True):
    """Stored data of a conversation: its service URL and whether it is a direct chat."""

    service_url: str
    is_direct: bool = False


class CreatedActivity(msgspec.Struct, frozen=True, rename="camel"):
    """Response to the creation of a message, or of a conversation with its first message."""

    id: str = ""
    activity_id: str = ""


class TeamsApi(RestApi):
    def __init__(self, platform: str, settings: TeamsSettings, store: Settings, clock: Clock) -> None:
        advice = "Set platforms.teams.app_id, app_password and tenant from the bot's registration, then restart."
        super().__init__("Teams", advice, clock)
        self._scope = f"service:{platform}"
        self._settings = settings
        self._store = store
        self._servers = ChannelServers(platform, store)
        self._keys = KeyRing(settings.openid_metadata_url, self.fetch, clock)
        self._places: Recent[_ConversationRef] = Recent(PLACES_MAX)

    async def _grant(self) -> Granted:
        settings = self._settings
        form = {
            "grant_type": "client_credentials",
            "client_id": settings.app_id,
            "client_secret": settings.app_password.reveal(),
            "scope": SCOPE,
        }
        tenant = quote(settings.tenant or TENANT, safe="")
        return await self.request_token(f"{settings.login_url.rstrip('/')}/{tenant}/oauth2/v2.0/token", form)

    async def check(self, headers: Mapping[str, str], activity: TeamsActivity) -> None:
        """Verify that Teams signed the activity. Raises BadToken if it did not, or PlatformError if the keys are
        unavailable.
        """
        if not headers.get("authorization") and self._is_emulated(activity.service_url):
            return
        claims = await self._keys.verify(headers, [self._settings.app_id], ISSUERS, activity.channel_id)
        vouched = claims.get("serviceurl")
        if not isinstance(vouched, str) or vouched.rstrip("/") != activity.service_url.rstrip("/"):
            raise BadToken("the token is for another service URL")
        if not self._trusts(activity.service_url):
            raise BadToken("the activity's service URL is not in platforms.teams.service_hosts")
        if self._settings.tenant and tenant_of(activity) not in ("", self._settings.tenant):
            raise BadToken("the activity is for another tenant")

    async def learn(self, activity: TeamsActivity) -> None:
        """Store the service URL of a verified activity. Raises StoreError."""
        channel = channel_of(activity)
        place = _ConversationRef(activity.service_url, is_direct(activity))
        if not channel:
            return
        if await self._place(channel) != place:
            await self._store.put(self._scope, channel, msgspec.json.encode(place).decode())
            self._places.put(channel, place)
        team = activity.channel_data.team if activity.channel_data is not None else None
        await self._servers.note(channel, team.id if team is not None else "")

    async def _place(self, channel: str) -> _ConversationRef | None:
        place = self._places.get(channel)
        if place is None:
            stored = await self._store.get(self._scope, channel)
            try:
                place = msgspec.json.decode(stored or "", type=_ConversationRef)
            except UNREADABLE:
                return None
            self._places.put(channel, place)
        return place

    async def is_direct(self, thread: ThreadId) -> bool:
        place = await self._place(thread_address(thread).channel)
        return place is not None and place.is_direct

    async def call_thread(
        self, method: str, thread: ThreadId, content: Fields | None, message_id: str = ""
    ) -> CreatedActivity:
        """Send or edit a message in a thread, or delete or reply to `message_id`. Raises PlatformError."""
        address = thread_address(thread)
        conversation = quote(conversation_of(address.channel, address.thread), safe="")
        place = await self._place(address.channel)
        path = f"v3/conversations/{conversation}/activities"
        if message_id:
            path += f"/{quote(message_id, safe='')}"
        return await self._call_service(method, place.service_url if place is not None else "", path, content)

    async def open_conversation(self, content: Fields) -> CreatedActivity:
        return await self._call_service("POST", "", "v3/conversations", content)

    async def _call_service(self, method: str, service_url: str, path: str, content: Fields | None) -> CreatedActivity:
        """Call a conversation's service, or the configured service. Raises PlatformError if the URL is not trusted."""
        base = service_url or self._settings.service_url
        anonymous = self._is_emulated(base)
        if not (anonymous or self._trusts(base)):
            host = host_of(base) or "unknown"
            reason = f"The Teams service host {host!r} is not in platforms.teams.service_hosts."
            raise PlatformError(reason, permanent=True)
        url = f"{base.rstrip('/')}/{path}"
        return await self.call(method, url, CreatedActivity, content, anonymous=anonymous)

    async def fetch_file(self, url: str, bytes_max: int) -> bytes:
        """Download a file. The token is sent only to trusted services. Raises PlatformError."""
        if self._trusts(url) and "/v3/attachments/" in url:
            return await self.fetch_own(url, bytes_max)
        self.check_file_url(url)
        return await self.fetch(url, bytes_max)

    def check_file_url(self, url: str) -> None:
        """Raise PlatformError if the URL does not belong to SharePoint, OneDrive or a trusted service."""
        host = host_of(url)
        is_sharing = host.endswith((".sharepoint.com", ".sharepoint.us", ".svc.ms", ".1drv.com"))
        if not (self._trusts(url) or self._is_emulated(url) or (url.startswith("https://") and is_sharing)):
            raise PlatformError("The file's URL is not a Teams URL.", permanent=True)

    def _trusts(self, url: str) -> bool:
        """Return True if the URL may receive the bot's token. Its host must be configured, and it must use HTTPS or
        point to this machine.
        """
        host = host_of(url)
        known = host in self._settings.service_hosts or host == host_of(self._settings.service_url)
        return bool(host) and known and (url.startswith("https://") or is_here(url))

    def _is_emulated(self, url: str) -> bool:
        return self._settings.emulator and is_here(url)
