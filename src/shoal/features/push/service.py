"""Web Push: notify browsers and phones about pending approvals and new replies.

A browser subscribes with the URL of its push service and its keys. Each notification is encrypted for that browser (RFC
8291) and signed by this installation (VAPID, RFC 8292). A browser receives a notification only if the token with which
it signed in may read the thread at that moment. Failed notifications are not retried, because the page shows the same
content.
"""

import asyncio
import base64
import contextlib
import hashlib
import logging
import os
import secrets
from importlib.util import find_spec
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from shoal.backend import Backend
from shoal.config.secrets import read_token
from shoal.delivery.hub import Hub
from shoal.installation import how_to_add
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ConfigError, Conflict, FetchError, InvalidInput, NotFound
from shoal.kernel.events import ApprovalRequested, Event, TurnFinished
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, encode_part, is_child
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.permissions import NO_COVERAGE, CardItem
from shoal.kernel.phrases import counted
from shoal.kernel.regular_files import read_regular
from shoal.kernel.settings import WebSettings
from shoal.kernel.untrusted import UNREADABLE
from shoal.maintenance import Upkeep
from shoal.net.addresses import FetchRequest, parse_target
from shoal.net.fetch import GuardedFetcher
from shoal.store.store import Store
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.principals import HOME_TOKEN, OWNER, Principal, bearer_of, may_use

if TYPE_CHECKING:
    from shoal.services import Services

log = logging.getLogger(__name__)

SCOPE = "push"
BROWSERS_MAX = 200
TEXT_CHARS_MAX = 500
NOTIFIED_CHARS_MAX = 100
"""Number of characters that every operating system shows in a notification. Longer commands must be approved on the
page.
"""
ANSWER_SECONDS = 86_400
"""Seconds for which a push service stores a reply for a phone that is off. Approval requests are stored until they
expire.
"""
SEND_SECONDS = 15.0
SIGNED_SECONDS = 3600
KEY_BYTES_MAX = 65_536
SILENT = "[SILENT]"

Kind: TypeAlias = Literal["approval", "answer"]
Text = Annotated[str, msgspec.Meta(max_length=2_000)]


class Browser(msgspec.Struct, frozen=True):
    """A browser's push subscription. The keys are in base64url without padding.

    endpoint: URL at the push service.
    p256dh: P-256 point, 65 bytes.
    auth: 16 random bytes.
    """

    endpoint: Text
    p256dh: Text
    auth: Text


class NotifiedBrowser(Browser, frozen=True, kw_only=True):
    """A stored subscription, bound to the token with which the browser signed in.

    token: name of the token, or empty for the page's token.
    digest: digest of the token. A browser with an outdated digest is unsubscribed.
    origin: origin of the page, used as the contact in VAPID claims.
    """

    person: str
    token: str
    digest: str
    origin: str


class Notification(msgspec.Struct, frozen=True):
    """The content of a notification.

    approval: id of the approval or approval card to decide, or empty for a reply.
    is_cut: whether the text is incomplete. An incomplete request can only be denied from the notification.
    """

    kind: Kind
    thread: ThreadId
    title: str
    text: str
    approval: str = ""
    expires_at: str = ""
    is_cut: bool = False


class _Encryption(Protocol):
    """The part of `http_ece` that Shoal uses. The package has no type hints."""

    def encrypt(
        self, content: bytes, *, private_key: object, dh: bytes, auth_secret: bytes, version: Literal["aes128gcm"]
    ) -> bytes: ...


def _open_fetcher() -> GuardedFetcher:
    """Return a fetcher without address restrictions, for the push services that the operator lists."""
    return GuardedFetcher(allowed=(ip_network("0.0.0.0/0"), ip_network("::/0")))


class WebPush(msgspec.Struct, eq=False):
    """Web Push subscriptions and delivery.

    Connections to private addresses are allowed only for the push services in `settings.push_services`.
    """

    settings: WebSettings
    store: Store
    tokens: AccessTokens
    home: Home
    clock: Clock
    hub: Hub
    _fetcher: GuardedFetcher = msgspec.field(default_factory=GuardedFetcher)
    _nearby: GuardedFetcher = msgspec.field(default_factory=_open_fetcher)

    @classmethod
    def of(cls, services: "Services") -> "WebPush":
        return cls(
            services[LiveConfig].current.web,
            services[Store],
            services[AccessTokens],
            services[Home],
            services[Clock],
            services[Hub],
        )

    @property
    def why_off(self) -> str:
        """Reason why notifications are off, or an empty string if they are on."""
        if not self.settings.push:
            return "Notifications are off. Set web.push = true to turn them on."
        if find_spec("http_ece") is None or find_spec("jwt") is None:
            return f"Notifications need the `push` extra. {how_to_add('push')}"
        if not self.settings.token and not self.home.token_file.exists():
            return f"Notifications need the page's token. Set web.token, or create the file {self.home.token_file}."
        return ""

    async def public_key(self) -> str:
        """Return this installation's public key, a P-256 point in base64url.

        Raises InvalidInput if notifications are off or the key is unusable.
        """
        if why := self.why_off:
            raise InvalidInput(why)
        return await asyncio.to_thread(lambda: public_part(_key(self.home)))

    async def subscribe(self, by: Principal, browser: Browser, origin: str) -> None:
        """Subscribe a browser. Replaces the browser's existing subscription, even if it belongs to another person.

        Raises InvalidInput if notifications are off or the subscription is invalid, and Conflict if BROWSERS_MAX
        browsers are already subscribed.
        """
        if why := self.why_off:
            raise InvalidInput(why)
        try:
            address = parse_target(browser.endpoint)
            keys = _bytes(browser.p256dh), _bytes(browser.auth)
            await asyncio.to_thread(check_point, keys[0])
        except (FetchError, ValueError) as error:
            raise InvalidInput(f"The browser subscription is not valid: {error}") from error
        if address.scheme != "https" and not self._is_own(browser.endpoint):
            raise InvalidInput("A push service's URL must use https.")
        if (len(keys[0]), keys[0][:1], len(keys[1])) != (65, b"\x04", 16):
            raise InvalidInput("The keys p256dh and auth are invalid.")
        key = _name(browser.endpoint)
        if await self.store.settings.get(SCOPE, key) is None and len(await self._subscriptions()) >= BROWSERS_MAX:
            raise Conflict(f"{BROWSERS_MAX} browsers are already subscribed. Turn notifications off in one of them.")
        given, digest = msgspec.structs.asdict(browser), await self._digest(by)
        notified = NotifiedBrowser(**given, person=by.person, token=by.token.name, digest=digest, origin=origin)
        await self.store.settings.put(SCOPE, key, msgspec.json.encode(notified).decode())

    async def unsubscribe(self, by: Principal, endpoint: str) -> None:
        """Unsubscribe one of this person's browsers. Raises NotFound if the browser is not subscribed."""
        stored = await self.store.settings.get(SCOPE, _name(endpoint))
        if stored is None or msgspec.json.decode(stored, type=NotifiedBrowser).person != by.person:
            raise NotFound("This browser is not subscribed.")
        await self.store.settings.drop(SCOPE, _name(endpoint), stored)

    async def run(self) -> None:
        while True:
            with self.hub.subscribe() as coming:
                async for item in coming:
                    if not (isinstance(item, Event) and isinstance(item.data, ApprovalRequested | TurnFinished)):
                        continue
                    browsers = await self._subscriptions()
                    info = await self.store.journal.thread(item.thread) if browsers else None
                    note = notification(item, info.title, info.agent) if info else None
                    if note is not None:
                        await asyncio.gather(
                            *(self._notify_browser(stored, browser, note) for stored, browser in browsers)
                        )
            if not coming.lost:
                return
            log.warning("events missed, notifications skipped")

    async def _subscriptions(self) -> list[tuple[str, NotifiedBrowser]]:
        browsers: list[tuple[str, NotifiedBrowser]] = []
        for _, stored in await self.store.settings.page(SCOPE, limit=BROWSERS_MAX):
            with contextlib.suppress(*UNREADABLE):
                browsers.append((stored, msgspec.json.decode(stored, type=NotifiedBrowser)))
        return browsers

    async def _notify_browser(self, stored: str, browser: NotifiedBrowser, note: Notification) -> None:
        try:
            await self._send(stored, browser, note)
        except (FetchError, InvalidInput) as error:
            fields = {"service": urlsplit(browser.endpoint).hostname, "person": browser.person}
            log.info("sending notification failed", extra=fields | {"why": str(error)})

    async def _send(self, stored: str, browser: NotifiedBrowser, note: Notification) -> None:
        """Send a notification if the browser's token may read the thread.

        Deletes the subscription if the token was revoked or the push service no longer knows the subscription.
        """
        bearer = None
        if not browser.token:
            bearer = OWNER if browser.digest == await self._digest(OWNER) else None
        elif (token := await self.tokens.named(browser.token)) and token.digest == browser.digest:
            if self.tokens.has_expired(token):  # keep the subscription: our clock may be wrong
                return
            bearer = await bearer_of(self.tokens, token)
        if bearer is None:
            await self.store.settings.drop(SCOPE, _name(browser.endpoint), stored)
            return
        if not concerns(bearer, note) or not await may_use(bearer, self.store.journal, note.thread):
            return
        request = await asyncio.to_thread(self._request, browser, note)
        fetcher = self._nearby if self._is_own(browser.endpoint) else self._fetcher
        status = (await fetcher.fetch(request)).status
        if status in (404, 410):
            await self.store.settings.drop(SCOPE, _name(browser.endpoint), stored)
        elif status >= 400:
            fields = {"service": urlsplit(browser.endpoint).hostname, "person": browser.person}
            log.warning("push service rejected notification", extra=fields | {"status": status})

    async def _digest(self, by: Principal) -> str:
        if by.token is not HOME_TOKEN:
            return by.token.digest
        try:
            token = self.settings.token.reveal() or await asyncio.to_thread(read_token, self.home)
        except (ConfigError, OSError) as error:
            raise InvalidInput("Shoal cannot read the page's token. Run `shoal doctor` for details.") from error
        return hashlib.sha256(token.strip().encode()).hexdigest()

    def _is_own(self, endpoint: str) -> bool:
        parts = urlsplit(endpoint)
        return f"{parts.scheme}://{parts.netloc}" in self.settings.push_services

    def _request(self, browser: NotifiedBrowser, note: Notification) -> FetchRequest:
        """Build the encrypted and signed request to the push service. Blocking."""
        import http_ece
        import jwt
        from cryptography.hazmat.primitives.asymmetric import ec

        pem, now = _key(self.home), self.clock.now()
        expires = msgspec.convert(note.expires_at, type=type(now)) if note.expires_at else None
        keep_seconds = max(0, int((expires - now).total_seconds())) if expires else ANSWER_SECONDS
        parts = urlsplit(browser.endpoint)
        claims = {
            "aud": f"{parts.scheme}://{parts.netloc}",
            "exp": int(now.timestamp()) + SIGNED_SECONDS,
            "sub": browser.origin if browser.origin.startswith("https://") else "mailto:owner@localhost",
        }
        signed = jwt.encode(claims, pem, algorithm="ES256")
        try:
            body = cast("_Encryption", http_ece).encrypt(
                msgspec.json.encode(note),
                private_key=ec.generate_private_key(ec.SECP256R1()),
                dh=_bytes(browser.p256dh),
                auth_secret=_bytes(browser.auth),
                version="aes128gcm",
            )
        except ValueError as error:
            raise InvalidInput(f"The browser's keys are invalid: {error}") from error
        headers = (
            ("Authorization", f"vapid t={signed}, k={public_part(pem)}"),
            ("Content-Encoding", "aes128gcm"),
            ("Content-Type", "application/octet-stream"),
            ("TTL", str(keep_seconds)),
            ("Urgency", "high" if note.kind == "approval" else "normal"),
        )
        return FetchRequest(browser.endpoint, "POST", headers, body, seconds_max=SEND_SECONDS, redirects_max=0)


def attach(services: "Services") -> None:
    push = services[WebPush]
    if not push.why_off:
        services[Backend].add_service(services[Upkeep].keep("notifications", push.run))


def notification(event: Event, title: str, agent: str) -> Notification | None:
    match event.data:
        case ApprovalRequested(item=CardItem(number=number)) if number > 1:  # notify only for the first call of a card
            return None
        case ApprovalRequested(shown=shown, actions=actions, item=CardItem(card=card, total=calls) as item) if card:
            text = (shown or "\n".join(actions)).strip()
            what = f"do {counted(calls, 'thing')}" if item.staged else f"make {calls} calls"
            title = f"{agent or 'An agent'} asks to {what}"
            expires_at = event.data.expires_at.isoformat()
            return Notification("approval", event.thread, title, _short(text), card, expires_at, is_cut=True)
        case ApprovalRequested(approval_id=asked, tool=tool, shown=shown, actions=actions, covers=covers):
            text = (shown or "\n".join(actions)).strip()
            title = f"{agent or 'An agent'} asks to run {tool}"
            is_cut = len(text) > NOTIFIED_CHARS_MAX or not text.isprintable() or covers != NO_COVERAGE
            expires_at = event.data.expires_at.isoformat()
            return Notification("approval", event.thread, title, _short(text), asked, expires_at, is_cut)
        case TurnFinished(outcome="done" | "failed" | "limit", reply=reply) if (
            reply.strip() and reply.strip() != SILENT and not is_child(event.thread)
        ):
            return Notification("answer", event.thread, title or agent or "Answered", _short(reply))
        case _:
            return None


def concerns(bearer: Principal, note: Notification) -> bool:
    if note.kind == "approval":
        return bearer.token.scope in ("approve", "admin")
    return note.thread.startswith(f"web:{encode_part(bearer.channel or 'lobby')}:")


def check_point(encoded: bytes) -> None:
    """Raise ValueError if `encoded` is not a P-256 point. Blocking."""
    from cryptography.hazmat.primitives.asymmetric import ec

    ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), encoded)


def public_part(pem: bytes) -> str:
    """Return the public key as an uncompressed point in base64url without padding. Browsers expect this form."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    key = load_pem_private_key(pem, None).public_key()
    point = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return base64.urlsafe_b64encode(point).rstrip(b"=").decode()


def _key(home: Home) -> bytes:
    """Return this installation's private VAPID key in PEM. Creates the key on first use. Blocking."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )  # fmt: skip

    path = home.secrets / "push"
    try:
        if not path.exists():
            made = ec.generate_private_key(ec.SECP256R1())
            home.secrets.mkdir(mode=0o700, exist_ok=True)
            fresh = path.with_name(f".push-{secrets.token_hex(8)}")
            fresh.touch(mode=0o600)
            fresh.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            with contextlib.suppress(FileExistsError):  # another process created the key first
                os.link(fresh, path)
            fresh.unlink()
        pem = read_regular(path, KEY_BYTES_MAX)
        key = load_pem_private_key(pem, None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError if the key has a passphrase
        raise InvalidInput(f"Shoal cannot use the notification key in {path}: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidInput(
            f"The notification key in {path} is not a P-256 key. Remove the file, and Shoal will create a new key."
        )
    return pem


def _name(endpoint: str) -> str:
    return hashlib.sha256(endpoint.encode()).hexdigest()[:32]


def _bytes(text: str) -> bytes:
    """Decode base64url without padding. Raises ValueError."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _short(text: str) -> str:
    plain = text.strip()
    return plain if len(plain) <= TEXT_CHARS_MAX else f"{plain[: TEXT_CHARS_MAX - 1]}…"
