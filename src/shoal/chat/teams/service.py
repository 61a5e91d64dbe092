"""The Bot Connector service: who may call us, where we may call, and the calls.

Nothing is sent, and no token shown, to an address that neither the configuration trusts nor, in emulator mode, is on
this machine. Source: learn.microsoft.com, Bot Framework: authentication, and the Connector's REST API.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote

import msgspec

from shoal.chat.connection import Fields
from shoal.chat.rest import RestClient
from shoal.chat.servers import Servers
from shoal.chat.teams.inbound import (
    Activity,
    channel_of,
    conversation_of,
    host_of,
    is_direct,
    is_here,
    team_of,
    tenant_of,
)
from shoal.chat.tokens import BadToken, Granted, KeyRing, bearer_of, key_id, verified
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.store import Settings

T = TypeVar("T")

ISSUERS = ("https://api.botframework.com", "https://api.botframework.us")
SCOPE = "https://api.botframework.com/.default"
TENANT = "botframework.com"
"""Whose tokens a bot of no single tenant has."""
PLACES_MAX = 5000
"""Conversations whose service is remembered without asking the store."""


class TeamsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One bot. The password is asked for when it is needed."""

    account: str = "main"
    app_id: str
    app_password: Callable[[], str]
    tenant: str = ""
    openid_metadata_url: str = "https://login.botframework.com/v1/.well-known/openidconfiguration"
    login_url: str = "https://login.microsoftonline.com"
    service_url: str = "https://smba.trafficmanager.net/teams/"
    service_hosts: tuple[str, ...] = ()
    emulator: bool = False
    agent: str = ""


class Place(msgspec.Struct, frozen=True):
    """What is known of a conversation: the address of its service, and whether it is with one person alone."""

    service_url: str
    is_direct: bool = False


class Made(msgspec.Struct, frozen=True, rename="camel"):
    """What was made: a message, or a conversation with its first one."""

    id: str = ""
    activity_id: str = ""


class Service:
    """The Connector as one bot sees it."""

    def __init__(self, platform: str, settings: TeamsSettings, store: Settings, clock: Clock) -> None:
        self._scope = f"service:{platform}"
        self._settings = settings
        self._store = store
        self._servers = Servers(platform, store)
        self._clock = clock
        advice = "Set platforms.teams.app_id, app_password and tenant of the bot's registration, then restart."
        self.rest = RestClient("Teams", self._grant, advice, clock)
        self._keys = KeyRing(settings.openid_metadata_url, self.rest.fetch, clock)
        self._places: OrderedDict[str, Place] = OrderedDict()

    async def _grant(self, rest: RestClient) -> Granted:
        settings = self._settings
        form = {
            "grant_type": "client_credentials",
            "client_id": settings.app_id,
            "client_secret": settings.app_password(),
            "scope": SCOPE,
        }
        url = f"{settings.login_url.rstrip('/')}/{quote(settings.tenant or TENANT, safe='')}/oauth2/v2.0/token"
        return await rest.ask(url, form, Granted)

    # ---- in ----

    async def check(self, headers: Mapping[str, str], activity: Activity) -> None:
        """Raise BadToken unless Teams vouches for this activity, PlatformError when that cannot be known now."""
        token = bearer_of(headers)
        if not token and self._is_emulated(activity.service_url):
            return
        key = await self._keys.key(key_id(token))
        if key.endorsements and activity.channel_id not in key.endorsements:
            raise BadToken("its key does not vouch for this channel")
        app = self._settings.app_id
        claims = verified(token, key.key, self._clock.now(), audiences=[app], issuers=ISSUERS)
        vouched = claims.get("serviceurl")
        if not isinstance(vouched, str) or vouched.rstrip("/") != activity.service_url.rstrip("/"):
            raise BadToken("it is for another service URL")
        if not self.trusts(activity.service_url):
            raise BadToken("its service URL is at none of platforms.teams.service_hosts")
        if self._settings.tenant and tenant_of(activity) not in ("", self._settings.tenant):
            raise BadToken("it is of another tenant")

    async def learn(self, activity: Activity) -> None:
        """Remember where answers to a checked activity go. Raises StoreError."""
        channel = channel_of(activity)
        place = Place(activity.service_url, is_direct(activity))
        if channel and await self.place(channel) != place:
            await self._store.put(self._scope, channel, msgspec.json.encode(place).decode())
            self._keep(channel, place)
        if channel:
            await self._servers.note(channel, team_of(activity))

    # ---- out ----

    def trusts(self, url: str) -> bool:
        """Whether our token may be shown there: a configured host, encrypted unless it is on this machine."""
        host = host_of(url)
        known = host in self._settings.service_hosts or host == host_of(self._settings.service_url)
        return bool(host) and known and (url.startswith("https://") or is_here(url))

    def _is_emulated(self, url: str) -> bool:
        return self._settings.emulator and is_here(url)

    async def place(self, channel: str) -> Place | None:
        """What is known of a conversation; None where nobody has written yet. Raises StoreError."""
        found = self._places.get(channel)
        if found is None:
            kept = await self._store.get(self._scope, channel)
            try:
                found = msgspec.json.decode(kept or "", type=Place)
            except UNREADABLE:
                return None
            self._keep(channel, found)
        return found

    def _keep(self, channel: str, place: Place) -> None:
        self._places[channel] = place
        self._places.move_to_end(channel)
        while len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    async def is_direct(self, thread: ThreadId) -> bool:
        """Whether a thread is with one person alone. Raises StoreError."""
        place = await self.place(thread_address(thread).channel)
        return place is not None and place.is_direct

    async def tell(self, method: str, thread: ThreadId, content: Fields | None, message_id: str = "") -> Made:
        """Send, change, delete or answer a message of a thread. Raises PlatformError."""
        address = thread_address(thread)
        conversation = quote(conversation_of(address.channel, address.thread), safe="")
        place = await self.place(address.channel)
        path = f"v3/conversations/{conversation}/activities"
        if message_id:
            path += f"/{quote(message_id, safe='')}"
        return await self.call(method, place.service_url if place is not None else "", path, Made, content)

    async def open(self, content: Fields) -> Made:
        """Begin a conversation. Raises PlatformError."""
        return await self.call("POST", "", "v3/conversations", Made, content)

    async def call(self, method: str, service_url: str, path: str, kind: type[T], content: Fields | None) -> T:
        """Call the service at this address, or the configured one. Raises PlatformError for one we do not trust."""
        base = service_url or self._settings.service_url
        anonymous = self._is_emulated(base)
        if not (anonymous or self.trusts(base)):
            reason = f"Teams' service at {host_of(base) or 'no address'!r} is none of platforms.teams.service_hosts."
            raise PlatformError(reason, permanent=True)
        return await self.rest.call(method, f"{base.rstrip('/')}/{path}", kind, content, anonymous=anonymous)

    async def fetch(self, url: str, bytes_max: int) -> bytes:
        """A file's content; the token is shown to trusted services alone. Raises PlatformError."""
        if self.trusts(url) and "/v3/attachments/" in url:
            return await self.rest.fetch(url, bytes_max, anonymous=False)
        self.check_foreign(url)
        return await self.rest.fetch(url, bytes_max)

    def check_foreign(self, url: str) -> None:
        """Raise PlatformError for an address where files neither come from nor go to."""
        if not (self.trusts(url) or self._is_emulated(url) or (url.startswith("https://") and is_sharing(url))):
            raise PlatformError("The file lies outside of Teams; it was left there.", permanent=True)


def is_sharing(url: str) -> bool:
    """Whether an address is of SharePoint or OneDrive, where Teams keeps files."""
    host = host_of(url)
    return host.endswith((".sharepoint.com", ".sharepoint.us", ".svc.ms", ".1drv.com"))
