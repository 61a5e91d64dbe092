"""Google Chat's event fields, verification of its requests, and the Chat API client.

Sources: developers.google.com/workspace/chat (interaction events, verify-requests-from-chat, Google Workspace events
over Pub/Sub, API discovery document) and RFC 7523 (JWT bearer grant).
"""

import asyncio
import base64
import binascii
import html
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.commands import CommandTable
from shoal.kernel.errors import ConfigError, PlatformError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import Author, Prompt, Reference
from shoal.kernel.regular_files import read_regular
from shoal.kernel.untrusted import UNREADABLE, decode_known
from shoal.platforms.cards import CardForm, Part, words_of
from shoal.platforms.google_chat.settings import GoogleChatSettings
from shoal.platforms.http import Fields, RestApi
from shoal.platforms.inbox import time_of
from shoal.platforms.tokens import BadToken, Claims, Granted, KeyRing, signed

T = TypeVar("T")

WHOLE = "0"
"""Value of the thread part of a thread id in direct messages and in spaces without threads."""
WORKSPACE_EVENT = "google.workspace.chat."
CHAT_ACCOUNT = "chat@system.gserviceaccount.com"
OIDC_ISSUERS = ("https://accounts.google.com", "accounts.google.com")
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
SCOPES = "https://www.googleapis.com/auth/"
ASSERTION_SECONDS = 3600
ACCOUNT_BYTES_MAX = 65_536
PAGE = 100
PAGES_MAX = 20


# ---- event fields ----


class _GoogleUser(msgspec.Struct, frozen=True, rename="camel"):
    """A person or an app. `name` is a resource name of the form users/ID."""

    name: str = ""
    display_name: str = ""
    type: str = ""


class ChatSpace(msgspec.Struct, frozen=True, rename="camel"):
    """A room or a direct conversation. `name` is a resource name of the form spaces/ID."""

    name: str = ""
    type: str = ""
    space_type: str = ""
    space_threading_state: str = ""
    display_name: str = ""


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _DataRef(msgspec.Struct, frozen=True, rename="camel"):
    resource_name: str = ""


class SpaceAttachment(msgspec.Struct, frozen=True, rename="camel"):
    """A file in a message. A file that is stored in Drive has no `attachment_data_ref`."""

    content_name: str = ""
    content_type: str = ""
    attachment_data_ref: _DataRef | None = None


class _GifLink(msgspec.Struct, frozen=True):
    uri: str = ""


class _Snapshot(msgspec.Struct, frozen=True, rename="camel"):
    sender: str = ""
    text: str = ""
    attachments: tuple[SpaceAttachment, ...] = ()


class _SourceSpace(msgspec.Struct, frozen=True, rename="camel"):
    space_display_name: str = ""


class _Quoted(msgspec.Struct, frozen=True, rename="camel"):
    """A message that another message quotes, or forwards from another space."""

    name: str = ""
    quote_type: str = "REPLY"
    quoted_message_snapshot: _Snapshot | None = None
    forwarded_metadata: _SourceSpace | None = None


class _UserMention(msgspec.Struct, frozen=True):
    user: _GoogleUser = _GoogleUser()


class _Annotation(msgspec.Struct, frozen=True, rename="camel"):
    """An annotation of a message's text. Only mentions are decoded."""

    user_mention: _UserMention | None = None


class SpaceMessage(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    sender: _GoogleUser = _GoogleUser()
    create_time: str = ""
    last_update_time: str = ""
    text: str = ""
    argument_text: str | None = None
    thread: _Named = _Named()
    space: ChatSpace = ChatSpace()
    attachment: tuple[SpaceAttachment, ...] = ()
    attached_gifs: tuple[_GifLink, ...] = ()
    quoted_message_metadata: _Quoted | None = None
    cards: tuple[msgspec.Raw, ...] = ()
    cards_v2: tuple[msgspec.Raw, ...] = ()
    slash_command: dict[str, object] | None = None
    annotations: tuple[_Annotation, ...] = ()

    def mentions(self, name: str) -> bool:
        mentions = (annotation.user_mention for annotation in self.annotations)
        return any(mention is not None and mention.user.name == name for mention in mentions)


class _Parameter(msgspec.Struct, frozen=True):
    key: str = ""
    value: str = ""


class _CardClick(msgspec.Struct, frozen=True, rename="camel"):
    parameters: tuple[_Parameter, ...] = ()


class _AppCommand(msgspec.Struct, frozen=True, rename="camel"):
    app_command_id: int | str = 0


class ChatEvent(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    event_time: str = ""
    space: ChatSpace = ChatSpace()
    user: _GoogleUser = _GoogleUser()
    message: SpaceMessage | None = None
    action: _CardClick | None = None
    app_command_metadata: _AppCommand | None = None


class _UnicodeEmoji(msgspec.Struct, frozen=True):
    """An emoji. `unicode` is empty for custom emojis."""

    unicode: str = ""


class _ReactionEvent(msgspec.Struct, frozen=True):
    """A reaction to a message. `name` begins with the message's name."""

    name: str = ""
    user: _GoogleUser = _GoogleUser()
    emoji: _UnicodeEmoji = _UnicodeEmoji()


class _BatchEntry(msgspec.Struct, frozen=True):
    message: SpaceMessage | None = None
    reaction: _ReactionEvent | None = None


class SpaceChanges(msgspec.Struct, frozen=True):
    """Content of a Workspace event: a message, a reaction, or a batch of either."""

    message: SpaceMessage | None = None
    reaction: _ReactionEvent | None = None
    messages: tuple[_BatchEntry, ...] = ()
    reactions: tuple[_BatchEntry, ...] = ()

    def found(self) -> tuple[Sequence[SpaceMessage], Sequence[_ReactionEvent]]:
        ones = (_BatchEntry(self.message, self.reaction), *self.messages, *self.reactions)
        return (
            [item.message for item in ones if item.message is not None],
            [item.reaction for item in ones if item.reaction is not None],
        )


class PubSubMessage(msgspec.Struct, frozen=True):
    """A Pub/Sub message. `data` is Base64."""

    data: str = ""
    attributes: Mapping[str, str] = {}
    publish_time: str = msgspec.field(name="publishTime", default="")

    @property
    def kind(self) -> str:
        """Type of a Workspace event, or an empty string for interactions with the app."""
        return self.attributes.get("ce-type", "")

    def content(self) -> bytes:
        """Decode the published data. Returns empty bytes if it is not valid Base64."""
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError):
            return b""


class _PubSubPush(msgspec.Struct, frozen=True):
    """A Pub/Sub push request. Only these requests have a `subscription`."""

    subscription: str
    message: PubSubMessage = PubSubMessage()


# ---- meaning of events ----


def push_in(body: bytes) -> _PubSubPush | None:
    """Decode a Pub/Sub push. Returns None for events that Google Chat sends directly."""
    try:
        return decode_known(body, _PubSubPush)[0]
    except UNREADABLE:
        return None


def space_in(published: PubSubMessage) -> str:
    subject = published.attributes.get("ce-subject", "")
    if subject:
        return channel_of(subject.removeprefix("//chat.googleapis.com/"))
    try:
        event, _ = decode_known(published.content(), ChatEvent)
    except UNREADABLE:
        return ""
    return channel_of(event.space.name or (event.message.name if event.message is not None else ""))


def channel_of(name: str) -> str:
    """Return the space id in a resource name of the form spaces/ID/…, or an empty string for other names."""
    parts = name.split("/")
    return parts[1] if len(parts) > 1 and parts[0] == "spaces" else ""


def message_name(reaction: str) -> str:
    """Return the message's resource name from the start of a reaction's resource name."""
    return "/".join(reaction.split("/")[:4])


def is_direct(space: ChatSpace) -> bool:
    return space.space_type == "DIRECT_MESSAGE" or space.type == "DM"


def thread_of(platform: str, message: SpaceMessage, space: ChatSpace) -> ThreadId:
    """Return the thread of a message. Raises InvalidId."""
    thread = message.thread.name.rpartition("/")[2]
    if is_direct(space) or space.space_threading_state == "UNTHREADED_MESSAGES":
        thread = WHOLE
    return make_thread_id(platform, channel_of(message.name or space.name), thread or WHOLE)


def author_of(user: _GoogleUser) -> Author:
    return Author(user.name.removeprefix("users/"), user.display_name, is_bot=user.type == "BOT", trusted=False)


def text_of(message: SpaceMessage) -> str:
    """Return the text without the mention of the app. The text of a slash command includes the command's name."""
    if message.slash_command is not None:
        at = message.text.find("/")
        return message.text[at:].strip() if at >= 0 else message.text.strip()
    text = message.argument_text if message.argument_text is not None else message.text
    return "\n".join(filter(None, (text.strip(), *(f"[a picture: {gif.uri}]" for gif in message.attached_gifs))))


def _of_control(part: Part) -> str | None:
    click = part.get("onClick")
    if not ("text" in part or "icon" in part) or not isinstance(click, Mapping) or "topLabel" in part:
        return None
    link = click.get("openLink")
    url = link.get("url") if isinstance(link, Mapping) else ""
    return f"{part.get('text', '')} ({url})" if url else ""


_CARDS = CardForm(
    said=frozenset(
        "title subtitle text header topLabel bottomLabel content contentMultiline label altText hintText".split()  # noqa: SIM905
    ),
    leaf=_of_control,
)
"""Form for extracting text from cards. Source: developers.google.com/workspace/chat/api/reference/rest/v1/cards."""


_TAGS = frozenset("a b br code em font i li ol p pre s strike strong time u ul".split())  # noqa: SIM905
"""HTML tags that are removed from the text of cards."""


def cards_of(message: SpaceMessage) -> str:
    words = (words_of(card, _CARDS) for card in (*message.cards_v2, *message.cards))
    return plain_text("\n".join(filter(None, words)))


def plain_text(marked: str) -> str:
    """Remove HTML tags from a card's text and decode its entities."""
    texts: list[str] = []
    for number, part in enumerate(marked.split("<")):
        name, closes, after = part.partition(">")
        is_tag = number and closes and name.strip("/").partition(" ")[0].lower() in _TAGS
        texts.append(after if is_tag else f"<{part}" if number else part)
    return html.unescape("".join(texts))


def prompt_of(platform: str, message: SpaceMessage, space: ChatSpace, now: datetime) -> Prompt:
    """Convert a message to a prompt without its files. Raises InvalidId."""
    quoted = message.quoted_message_metadata
    return Prompt(
        thread=thread_of(platform, message, space),
        key=message.name,
        text=text_of(message),
        author=author_of(message.sender),
        at=time_of(message.create_time, now),
        reply_to=quoted.name if quoted is not None else "",
        message_id=message.name,
        direct=is_direct(space),
        refers_to=tuple(references_of(message)),
    )


def references_of(message: SpaceMessage) -> list[Reference]:
    """Return the quoted or forwarded message with the text that the event contains. Its author has a name but no id."""
    quoted = message.quoted_message_metadata
    snapshot = quoted.quoted_message_snapshot if quoted is not None else None
    if quoted is None:
        return []
    source = quoted.forwarded_metadata.space_display_name if quoted.forwarded_metadata is not None else ""
    sender, text = (snapshot.sender, snapshot.text) if snapshot is not None else ("", "")
    files = (f"[file {file.content_name}]" for file in (snapshot.attachments if snapshot is not None else ()))
    author = Author("", " in ".join(filter(None, (sender, source))), trusted=False)
    kind: Literal["forward", "reply"] = "forward" if quoted.quote_type == "FORWARD" else "reply"
    return [Reference(kind, "\n".join(filter(None, (text, *files))), author, quoted.name)]


class _AddonMessage(msgspec.Struct, frozen=True, rename="camel"):
    message: SpaceMessage | None = None
    space: ChatSpace = ChatSpace()
    app_command_metadata: _AppCommand | None = None


class _AddonChat(msgspec.Struct, frozen=True, rename="camel"):
    user: _GoogleUser = _GoogleUser()
    event_time: str = ""
    message_payload: _AddonMessage | None = None
    added_to_space_payload: _AddonMessage | None = None
    removed_from_space_payload: _AddonMessage | None = None
    button_clicked_payload: _AddonMessage | None = None
    app_command_payload: _AddonMessage | None = None
    widget_updated_payload: _AddonMessage | None = None


class _AddonParameters(msgspec.Struct, frozen=True):
    parameters: dict[str, str] = {}


class _AddonAuthorization(msgspec.Struct, frozen=True, rename="camel"):
    system_id_token: str = ""


class AddonEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event of a Google Workspace add-on that extends Chat. Source:
    developers.google.com/workspace/add-ons/chat/build, event objects."""

    common_event_object: _AddonParameters
    chat: _AddonChat
    authorization_event_object: _AddonAuthorization = _AddonAuthorization()

    def plain(self) -> ChatEvent:
        """Convert to the event that an app without an add-on would receive."""
        chat = self.chat
        payloads = (
            ("MESSAGE", chat.message_payload),
            ("ADDED_TO_SPACE", chat.added_to_space_payload),
            ("REMOVED_FROM_SPACE", chat.removed_from_space_payload),
            ("CARD_CLICKED", chat.button_clicked_payload),
            ("APP_COMMAND", chat.app_command_payload),
            ("WIDGET_UPDATED", chat.widget_updated_payload),
        )
        unknown = ("add-on event with an unknown payload", _AddonMessage())
        kind, payload = next(((kind, body) for kind, body in payloads if body is not None), unknown)
        parameters = tuple(_Parameter(key, value) for key, value in self.common_event_object.parameters.items())
        return ChatEvent(
            kind, chat.event_time, payload.space, chat.user, payload.message, _CardClick(parameters),
            payload.app_command_metadata,
        )  # fmt: skip


def addon_in(body: bytes) -> AddonEvent | None:
    try:
        return decode_known(body, AddonEvent)[0]
    except UNREADABLE:
        return None


def command_of(event: ChatEvent, commands: CommandTable) -> str:
    """Return the slash command for an event's command number, such as `/help`. Returns an empty string for an unknown
    number.
    """
    chosen = event.app_command_metadata
    number = str(chosen.app_command_id) if chosen is not None else ""
    spec = commands.numbered(int(number[:6])) if number.isascii() and number.isdecimal() else None
    return f"/{spec.name}" if spec is not None else ""


def pressed_in(event: ChatEvent) -> str:
    parameters = event.action.parameters if event.action is not None else ()
    return next((parameter.value for parameter in parameters if parameter.key == "shoal"), "")


# ---- the Chat API ----


class _ServiceAccount(msgspec.Struct, frozen=True):
    client_email: str
    private_key: str
    token_uri: str
    private_key_id: str = ""


class _SpaceMessagePage(msgspec.Struct, frozen=True, rename="camel"):
    messages: tuple[SpaceMessage, ...] = ()
    next_page_token: str = ""


class GoogleChatApi(RestApi):
    def __init__(self, settings: GoogleChatSettings, home: Home, clock: Clock, inbound_url: str) -> None:
        advice = (
            "Check platforms.google_chat.service_account_file, and enable the Chat API in its Google Cloud project."
        )
        super().__init__("Google Chat", advice, clock)
        self._settings = settings
        self._key_file = home.root / settings.service_account_file
        self._inbound_url = inbound_url
        self._base = settings.api_base.rstrip("/")
        self._certificates = KeyRing(settings.certs_url, self.fetch, clock)
        self._oidc_keys = KeyRing(settings.oidc_certs_url, self.fetch, clock)

    async def _grant(self) -> Granted:
        settings = self._settings
        scopes = ["chat.bot"]
        if settings.read_history:
            scopes.append("chat.app.messages.readonly")
        if settings.subscription:
            scopes.append("pubsub")
        try:
            account = await asyncio.to_thread(_service_account, self._key_file)
            now = int(self._clock.now().timestamp())
            claims = {
                "iss": account.client_email,
                "scope": " ".join(SCOPES + scope for scope in scopes),
                "aud": account.token_uri,
                "iat": now,
                "exp": now + ASSERTION_SECONDS,
            }
            assertion = signed(claims, account.private_key, account.private_key_id)
        except ConfigError as error:
            raise PlatformError(f"Shoal has no access token for Google Chat. {error}") from error
        return await self.request_token(account.token_uri, {"grant_type": GRANT, "assertion": assertion})

    async def check_event(self, headers: Mapping[str, str]) -> None:
        """Verify that Google Chat sent the request. Raises BadToken if it did not, or PlatformError if the keys are
        unavailable.
        """
        audience = self._settings.audience
        if audience.isdecimal():
            await self._certificates.verify(headers, (audience,), (CHAT_ACCOUNT,))
        else:
            _check_email(await self._oidc_keys.verify(headers, (audience,), OIDC_ISSUERS), CHAT_ACCOUNT)

    async def check_addon(self, headers: Mapping[str, str], addon: AddonEvent) -> None:
        """Verify that the configured add-on sent the request. The token is in a header or in the event. Raises BadToken
        if verification fails, or PlatformError if the keys are unavailable.
        """
        token = addon.authorization_event_object.system_id_token
        if "authorization" not in headers and token:
            headers = {"authorization": f"Bearer {token}"}
        await self._check_account(headers, "addon_account", self._settings.addon_account)

    async def check_push(self, headers: Mapping[str, str]) -> None:
        """Verify that Pub/Sub sent the request as the configured service account. Raises BadToken if it did not, or
        PlatformError if the keys are unavailable.
        """
        await self._check_account(headers, "push_account", self._settings.push_account)

    async def _check_account(self, headers: Mapping[str, str], setting: str, account: str) -> None:
        if not account:
            raise BadToken(f"platforms.google_chat.{setting} is not set")
        audiences = [audience for audience in (self._settings.audience, self._inbound_url) if audience]
        _check_email(await self._oidc_keys.verify(headers, audiences, OIDC_ISSUERS), account)

    async def create(self, space: str, content: Fields, request_id: str) -> SpaceMessage:
        """Post a message, once per request id. Raises PlatformError."""
        params = {"requestId": request_id}
        if "thread" in content:
            params["messageReplyOption"] = "REPLY_MESSAGE_FALLBACK_TO_NEW_THREAD"
        return await self.resource("POST", f"{space}/messages", SpaceMessage, content, params)

    async def newest(self, space: str, thread: str, after: str, limit: int) -> Sequence[SpaceMessage]:
        """Return the newest `limit` messages that were created after `after`, oldest first. Raises PlatformError."""
        conditions = [f'create_time > "{after}"'] if after else []
        conditions += [f"thread.name = {thread}"] if thread else []
        messages: list[SpaceMessage] = []
        token = ""
        for _ in range(PAGES_MAX):
            params = {"pageSize": str(min(PAGE, limit)), "orderBy": "createTime desc"}
            params |= {"filter": " AND ".join(conditions)} if conditions else {}
            params |= {"pageToken": token} if token else {}
            page = await self.resource("GET", f"{space}/messages", _SpaceMessagePage, params=params)
            messages += page.messages
            token = page.next_page_token
            if not token or len(messages) >= limit:
                break
        return messages[:limit][::-1]

    async def fetch_media(self, resource: str, bytes_max: int) -> bytes:
        url = f"{self._base}/v1/media/{quote(resource, safe='/=')}?alt=media"
        return await self.fetch_own(url, bytes_max)

    async def pubsub(self, verb: str, kind: type[T], content: Fields, seconds: float) -> T:
        """Call a method of the Pub/Sub subscription, `pull` or `acknowledge`. Raises PlatformError."""
        url = f"{self._settings.pubsub_base.rstrip('/')}/v1/{self._settings.subscription}:{verb}"
        return await self.call("POST", url, kind, content, seconds=seconds)

    async def resource(
        self, method: str, path: str, kind: type[T], content: Fields | None = None,
        params: Mapping[str, str] | None = None,
    ) -> T:  # fmt: skip
        return await self.call(method, f"{self._base}/v1/{quote(path, safe='/:')}", kind, content, params=params)


def _check_email(claims: Claims, account: str) -> None:
    if claims.get("email") != account or claims.get("email_verified") is not True:
        raise BadToken("the token is for another account")


def _service_account(path: Path) -> _ServiceAccount:
    where = "platforms.google_chat.service_account_file"
    try:
        return msgspec.json.decode(read_regular(path, ACCOUNT_BYTES_MAX), type=_ServiceAccount)
    except OSError as error:
        raise ConfigError([f"{where}: cannot read {path.name!r}: {error.strerror}."]) from error
    except UNREADABLE as error:
        raise ConfigError([f"{where}: {path.name!r} is not a service account key."]) from error
