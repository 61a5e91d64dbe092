"""Authentication and deduplication of incoming HTTP calls from platforms and programs.

A call authenticates itself in one of these ways, each compared in constant time:

    proof                                           covers               valid
    ---------------------------------------------   ------------------   --------------------------------------------
    `X-Shoal-Signature: t=SECONDS,v1=HEX`           time and body        five minutes before and after its time
    `X-Hub-Signature-256: sha256=HEX`               body                 permanently, so receivers must remember it
    `Authorization: Bearer SECRET`                  nothing              permanently, for any body

Two calls are the same if their proofs cover the same content. Headers, the address and ids outside the body do not
count, because anyone who has captured one call can change them in the next. `first_delivery` stores accepted calls.

The signature with a time covers that time, a full stop and the body. A body that begins like this is not accepted with
the other header: its signature could be one that was captured from the first header, where it was valid for five
minutes.

A signed call is deduplicated over all addresses that share a secret, so a call captured at one address cannot be
replayed at another. A call with a bearer secret is deduplicated for its own address. Anyone who has captured the secret
can make any call, and programs send the same body to two addresses.

    known by           until                              a repeated call
    ----------------   --------------------------------   ------------------------------------------------------------
    time and body      it is out of date                  has the first one's key
    the body, signed   permanently                        has the first one's key for REPEATED_SECONDS, and is rejected
                                                          afterwards
    the body, bearer   `repeat_seconds`, or permanently   has the first one's key, and afterwards counts as a new call

The store uses the key to accept a message only once (`Inbox.accept`, `Outbox.put`). It keeps those rows for longer than
REPEATED_SECONDS, so no call is accepted twice. A weaker proof in the same call leads to the same delivery, so removing
the stronger one gains an attacker nothing.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.clock import from_micros, to_micros
from shoal.kernel.ports import ONCE, Settings


class HttpAnswer(msgspec.Struct, frozen=True):
    """The response to a platform's call."""

    status: int
    body: bytes = b""
    media_type: str = "application/json"


@runtime_checkable
class HttpInbound(Protocol):
    """An adapter whose platform calls `POST /platforms/NAME[/ACCOUNT]`. It authenticates the calls itself."""

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Handle a call. `headers` has lower-case names. The call's content never makes this raise."""
        ...


SECRET_CHARS_MIN = 16
AGE_SECONDS_MAX = 300.0
_SIGNED = lazy_re.compile(r"t=([0-9]{1,12}),\s*v1=([0-9a-f]{64})")
_TIMED_BODY = lazy_re.compile(rb"[0-9]{1,12}\.")


class Proof(msgspec.Struct, frozen=True):
    """A successful authentication of a call. `identity` depends only on the secret and the covered content."""

    kind: Literal["timed", "signed", "bearer"]
    identity: str


def proofs(headers: Mapping[str, str], body: bytes, secret: str, now: datetime) -> tuple[Proof, ...]:
    """Return every valid proof of a call with `secret`, strongest first.

    `headers` has lower-case names. Returns nothing for a secret shorter than SECRET_CHARS_MIN, so an empty setting
    admits nobody.
    """
    if len(secret) < SECRET_CHARS_MIN:
        return ()
    proofs: list[Proof] = []
    timed = _SIGNED.fullmatch(headers.get("x-shoal-signature", "").strip())
    if timed and abs(now.timestamp() - int(timed[1])) <= AGE_SECONDS_MAX:
        expected = signature(secret, f"{timed[1]}.".encode() + body)
        if hmac.compare_digest(expected, timed[2]):
            proofs.append(Proof("timed", _identity(expected)))
    expected = signature(secret, body)
    signed = headers.get("x-hub-signature-256", "").strip().lower()
    if hmac.compare_digest(f"sha256={expected}".encode(), signed.encode()) and not _TIMED_BODY.match(body):
        proofs.append(Proof("signed", _identity(expected)))
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), secret.encode()):
        proofs.append(Proof("bearer", _identity(expected)))
    return tuple(proofs)


def _identity(signed: str) -> str:
    """Return the digest of a signature. It cannot be used to sign another call."""
    return hashlib.sha256(signed.encode()).hexdigest()


def signature(secret: str, signed: bytes) -> str:
    """Return the HMAC-SHA256 in lower-case hexadecimal."""
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def proof(secret: str, body: bytes, now: datetime) -> str:
    """Return the `X-Shoal-Signature` of a body sent now."""
    seconds = int(now.timestamp())
    return f"t={seconds},v1={signature(secret, f'{seconds}.'.encode() + body)}"


FOR_EVER = "deliveries"
"""Settings scope of calls without a signed time. Calls with a time are stored under `ONCE` and expire."""
REPEATED_SECONDS = 7 * 86_400.0
"""Period in which an interrupted call may be repeated, in seconds. Pub/Sub has the longest retry period: its message
retention."""


class Delivery(msgspec.Struct, frozen=True):
    """The first delivery of a call: its address and time."""

    identity: str
    place: str
    at: datetime

    @property
    def key(self) -> str:
        """The key that deduplicates its message."""
        return f"{self.place}@{self.identity[:32]}.{to_micros(self.at)}"


async def first_delivery(
    settings: Settings, proved: Sequence[Proof], place: str, now: datetime, repeat_seconds: float | None = None
) -> Delivery | None:
    """Return a call's delivery: a new one, or that of the same earlier call. None if the call must be rejected.

    `proved` are the call's proofs, at least one. `place` is the URL that it was made to. A body that is known only by a
    bearer secret is new again after `repeat_seconds` (None: never). Durable on return. Raises StoreError.
    """
    strongest = proved[0]
    repeats = repeat_seconds if strongest.kind == "bearer" else None
    delivery = await _recorded(settings, strongest, Delivery(strongest.identity, place, now), repeats)
    for weaker in proved[1:]:
        await _recorded(settings, weaker, delivery, None)
    age_seconds = (now - delivery.at).total_seconds()
    return delivery if delivery.place == place and age_seconds < REPEATED_SECONDS else None


async def _recorded(settings: Settings, proved: Proof, fresh: Delivery, repeat_seconds: float | None) -> Delivery:
    """Return the stored delivery of a proof, or store `fresh` and return it."""
    scope = ONCE if proved.kind == "timed" else FOR_EVER
    name = f"{proved.identity} {fresh.place}" if proved.kind == "bearer" else proved.identity
    while True:
        known = await settings.get(scope, name)
        if known is not None:
            micros, identity, place = known.split(" ", 2)
            delivery = Delivery(identity, place, from_micros(int(micros)))
            if repeat_seconds is None or abs((fresh.at - delivery.at).total_seconds()) < repeat_seconds:
                return delivery
        value = f"{to_micros(fresh.at)} {fresh.identity} {fresh.place}"
        if await settings.swap(scope, name, known, value):
            return fresh
