"""Google's side: who may call us, and the calls of the Chat API as a service account.

Sources: developers.google.com/workspace/chat/verify-requests-from-chat, RFC 7523 (JWT bearer grant), and the Chat API's
discovery document.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from shoal.chat.connection import Fields
from shoal.chat.google_chat.inbound import Message
from shoal.chat.rest import RestClient
from shoal.chat.tokens import BadToken, Claims, Granted, KeyRing, bearer_of, key_id, signed, verified
from shoal.domain.clock import Clock
from shoal.domain.errors import ConfigError, PlatformError
from shoal.domain.foreign import UNREADABLE

T = TypeVar("T")

CHAT_ACCOUNT = "chat@system.gserviceaccount.com"
OIDC_ISSUERS = ("https://accounts.google.com", "accounts.google.com")
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
SCOPES = "https://www.googleapis.com/auth/"
ASSERTION_SECONDS = 3600
ACCOUNT_BYTES_MAX = 65_536
PAGE = 100
PAGES_MAX = 20


class GoogleChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One app. `push_url` is where Pub/Sub pushes to; `service_account_file` is absolute."""

    account: str = "main"
    audience: str
    service_account_file: Path
    api_base: str = "https://chat.googleapis.com"
    certs_url: str = f"https://www.googleapis.com/service_accounts/v1/metadata/x509/{CHAT_ACCOUNT}"
    oidc_certs_url: str = "https://www.googleapis.com/oauth2/v3/certs"
    push_account: str = ""
    push_url: str = ""
    subscription: str = ""
    pubsub_base: str = "https://pubsub.googleapis.com"
    read_history: bool = False
    agent: str = ""


class _ServiceAccount(msgspec.Struct, frozen=True):
    client_email: str
    private_key: str
    token_uri: str
    private_key_id: str = ""


class _Page(msgspec.Struct, frozen=True, rename="camel"):
    messages: tuple[Message, ...] = ()
    next_page_token: str = ""


class Service:
    """Google Chat as one app sees it."""

    def __init__(self, settings: GoogleChatSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        advice = "Check platforms.google_chat.service_account_file and that the Chat API is on in its project."
        self.rest = RestClient("Google Chat", self._grant, advice, clock)
        self._base = settings.api_base.rstrip("/")
        self._certificates = KeyRing(settings.certs_url, self.rest.fetch, clock)
        self._oidc_keys = KeyRing(settings.oidc_certs_url, self.rest.fetch, clock)

    async def _grant(self, rest: RestClient) -> Granted:
        try:
            account = await asyncio.to_thread(_service_account, self._settings.service_account_file)
            now = int(self._clock.now().timestamp())
            claims = {
                "iss": account.client_email,
                "scope": self._scopes(),
                "aud": account.token_uri,
                "iat": now,
                "exp": now + ASSERTION_SECONDS,
            }
            assertion = signed(claims, account.private_key, account.private_key_id)
        except ConfigError as error:
            raise PlatformError(f"There is no access token for Google Chat. {error}") from error
        return await rest.ask(account.token_uri, {"grant_type": GRANT, "assertion": assertion}, Granted)

    def _scopes(self) -> str:
        wanted = ["chat.bot"]
        if self._settings.read_history:
            wanted.append("chat.app.messages.readonly")
        if self._settings.subscription:
            wanted.append("pubsub")
        return " ".join(SCOPES + scope for scope in wanted)

    # ---- in ----

    async def check_event(self, headers: Mapping[str, str]) -> None:
        """Raise BadToken unless Google Chat makes this call, PlatformError when that cannot be known now."""
        audience = self._settings.audience
        if audience.isdecimal():
            await self._claims(headers, self._certificates, (audience,), (CHAT_ACCOUNT,))
            return
        self._check_email(await self._claims(headers, self._oidc_keys, (audience,), OIDC_ISSUERS), CHAT_ACCOUNT)

    async def check_push(self, headers: Mapping[str, str]) -> None:
        """Raise BadToken unless Pub/Sub pushes as the configured account, PlatformError as above."""
        settings = self._settings
        if not settings.push_account:
            raise BadToken("platforms.google_chat.push_account is not set")
        audiences = [audience for audience in (settings.audience, settings.push_url) if audience]
        claims = await self._claims(headers, self._oidc_keys, audiences, OIDC_ISSUERS)
        self._check_email(claims, settings.push_account)

    async def _claims(
        self, headers: Mapping[str, str], keys: KeyRing, audiences: Sequence[str], issuers: tuple[str, ...]
    ) -> Claims:
        token = bearer_of(headers)
        key = await keys.key(key_id(token))
        return verified(token, key.key, self._clock.now(), audiences=audiences, issuers=issuers)

    def _check_email(self, claims: Claims, account: str) -> None:
        if claims.get("email") != account or claims.get("email_verified") is not True:
            raise BadToken("it is of another account")

    # ---- out ----

    async def create(self, space: str, content: Fields, request_id: str) -> Message:
        """Post a message, once for each request id. Raises PlatformError."""
        params = {"requestId": request_id}
        if "thread" in content:
            params["messageReplyOption"] = "REPLY_MESSAGE_FALLBACK_TO_NEW_THREAD"
        return await self._call("POST", f"{space}/messages", Message, content, params)

    async def update(self, name: str, content: Fields) -> None:
        """Change a message of ours. Raises PlatformError."""
        await self._call("PATCH", name, Message, content, {"updateMask": "text,cardsV2"})

    async def delete(self, name: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        await self._call("DELETE", name, msgspec.Raw)

    async def get(self, name: str) -> Message:
        """A message. Raises PlatformError."""
        return await self._call("GET", name, Message)

    async def direct_space(self, user: str) -> str:
        """The space of direct messages with a person who has written to the app. Raises PlatformError."""
        found = await self._call("GET", "spaces:findDirectMessage", Message, params={"name": f"users/{user}"})
        return found.name

    async def newest(self, space: str, thread: str, after: str, limit: int) -> Sequence[Message]:
        """The newest `limit` messages, oldest first. Raises PlatformError."""
        conditions = [f'create_time > "{after}"'] if after else []
        conditions += [f"thread.name = {thread}"] if thread else []
        found: list[Message] = []
        token = ""
        for _ in range(PAGES_MAX):
            params = {"pageSize": str(min(PAGE, limit)), "orderBy": "createTime desc"}
            params |= {"filter": " AND ".join(conditions)} if conditions else {}
            params |= {"pageToken": token} if token else {}
            page = await self._call("GET", f"{space}/messages", _Page, params=params)
            found += page.messages
            token = page.next_page_token
            if not token or len(found) >= limit:
                break
        return found[:limit][::-1]

    async def download(self, resource: str, bytes_max: int) -> bytes:
        """The content of a file that came with a message. Raises PlatformError."""
        url = f"{self._base}/v1/media/{quote(resource, safe='/=')}?alt=media"
        return await self.rest.fetch(url, bytes_max, anonymous=False)

    async def pubsub(self, verb: str, kind: type[T], content: Fields, seconds: float) -> T:
        """Call the subscription: pull or acknowledge. Raises PlatformError."""
        url = f"{self._settings.pubsub_base.rstrip('/')}/v1/{self._settings.subscription}:{verb}"
        return await self.rest.call("POST", url, kind, content, seconds=seconds)

    async def _call(
        self, method: str, path: str, kind: type[T], content: Fields | None = None,
        params: Mapping[str, str] | None = None,
    ) -> T:  # fmt: skip
        url = f"{self._base}/v1/{quote(path, safe='/:')}"
        return await self.rest.call(method, url, kind, content, params=params)


def _service_account(path: Path) -> _ServiceAccount:
    """The key file. Raises ConfigError."""
    where = "platforms.google_chat.service_account_file"
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(ACCOUNT_BYTES_MAX), type=_ServiceAccount)
    except OSError as error:
        raise ConfigError([f"{where} {path.name!r} cannot be read: {error.strerror}."]) from error
    except UNREADABLE as error:
        raise ConfigError([f"{where} {path.name!r} is no key of a service account."]) from error
