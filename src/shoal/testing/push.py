"""A Web Push service on loopback, with browsers that verify and decrypt notifications."""

import asyncio
import base64
import os
from typing import Literal, Protocol, cast

import msgspec

from shoal.testing.platforms.wire import Answered, Called, LoopbackServer


class Pushed(msgspec.Struct, frozen=True):
    """A notification that a browser has decrypted, with the headers that the push service received."""

    browser: str
    content: dict[str, str | bool]
    ttl_seconds: int
    urgency: str
    subject: str


class _Decryption(Protocol):
    """The part of http_ece that this module uses. The package has no type annotations."""

    def decrypt(
        self, content: bytes, *, private_key: object, auth_secret: bytes, version: Literal["aes128gcm"]
    ) -> bytes: ...


class FakePush:
    """A Web Push service. `browser` adds a subscribed browser, and `received` lists the notifications, oldest first.

    Set `application_key` to the key that the browsers subscribed with. The service responds with 403 if a message is
    signed with another key. It responds with 410 if the browser is unknown or in `gone`.
    """

    def __init__(self) -> None:
        self.server = LoopbackServer(self._take)
        self.application_key = ""
        self.received: list[Pushed] = []
        self.gone: set[str] = set()
        self._changed = asyncio.Condition()
        self._browsers: dict[str, tuple[object, bytes]] = {}

    async def start(self) -> None:
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()

    def browser(self, name: str) -> dict[str, str]:
        """Add a browser and return the subscription that it would post: `endpoint`, `p256dh` and `auth`."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key, secret = ec.generate_private_key(ec.SECP256R1()), os.urandom(16)
        self._browsers[name] = key, secret
        point = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return {"endpoint": f"{self.server.address}/send/{name}", "p256dh": _text(point), "auth": _text(secret)}

    async def until(self, text: str, seconds: float = 30.0) -> None:
        """Wait until a browser has received a notification with this text. Raises TimeoutError."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: any(note.content["text"] == text for note in self.received))

    async def _take(self, called: Called) -> Answered:
        import http_ece
        import jwt
        from cryptography.hazmat.primitives.asymmetric import ec

        name = called.path.removeprefix("/send/")
        if name in self.gone or name not in self._browsers:
            return Answered(410)
        parts = dict(part.strip().split("=", 1) for part in called.headers["authorization"][6:].split(","))
        if parts["k"] != self.application_key:
            return Answered(403)
        point = base64.urlsafe_b64decode(parts["k"] + "=" * (-len(parts["k"]) % 4))
        signer = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        claims = jwt.decode(parts["t"], signer, algorithms=["ES256"], audience=self.server.address)
        key, secret = self._browsers[name]
        content = cast("_Decryption", http_ece).decrypt(
            called.body, private_key=key, auth_secret=secret, version="aes128gcm"
        )
        content_read = msgspec.json.decode(content, type=dict[str, str | bool])
        ttl_seconds, urgency = int(called.headers["ttl"]), called.headers["urgency"]
        async with self._changed:
            self.received.append(Pushed(name, content_read, ttl_seconds, urgency, claims["sub"]))
            self._changed.notify_all()
        return Answered(201)


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
