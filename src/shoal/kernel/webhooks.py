"""Authentication and deduplication of incoming HTTP calls from platforms and programs.

A call authenticates itself in one of these ways, each compared in constant time:

    proof                                   covers          valid
    -------------------------------------   -------------   -------------------------------------------------------
    `X-Shoal-Signature: t=SECONDS,v1=HEX`   time and body   for five minutes before and after its time
    `X-Hub-Signature-256: sha256=HEX`       body            permanently, so the receiver must remember the call
    `Authorization: Bearer SECRET`          nothing         permanently, for any body

The signature with a time covers the time, a period and the body. A body that begins with a number and a period is not
accepted with `X-Hub-Signature-256`. Otherwise, an attacker could send a captured signature with a time under the other
header, where it never expires.

Two calls are the same if their proofs cover the same content. Headers, the URL and ids outside the body do not count,
because an attacker who has captured a call can change them. `first_delivery` stores accepted calls.

A signed call is deduplicated across all URLs that share a secret, so a captured call cannot be replayed at another URL.
A call with a bearer secret is deduplicated for its own URL only, because programs send the same body to two URLs, and
an attacker who has captured the secret can make any call.

    identified by        remembered                           a repeated call
    ------------------   ----------------------------------   ----------------------------------------------------
    time and body        until its time is too old            has the key of the first call
    signed body          permanently                          has the key of the first call for REPEATED_SECONDS,
                                                              and is rejected after that
    body with a bearer   for `repeat_seconds`, or             has the key of the first call for that time, and is
    secret               permanently                          a new call after that

The store accepts a message only once for each key (`Inbox.accept`, `Outbox.put`). It remembers keys for longer than
REPEATED_SECONDS, so no call is accepted twice. All proofs of a call lead to the same delivery, so an attacker gains
nothing by removing the stronger one.
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
    status: int
    body: bytes = b""
    media_type: str = "application/json"


@runtime_checkable
class HttpInbound(Protocol):
    """An adapter whose platform calls `POST /platforms/NAME[/ACCOUNT]`. The adapter authenticates these calls."""

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Process a call. The names in `headers` are lowercase. The content of a call must never make this raise."""
        ...


SECRET_CHARS_MIN = 16
AGE_SECONDS_MAX = 300.0
_SIGNED = lazy_re.compile(r"t=([0-9]{1,12}),\s*v1=([0-9a-f]{64})")
_TIMED_BODY = lazy_re.compile(rb"[0-9]{1,12}\.")


class Proof(msgspec.Struct, frozen=True):
    """A successful authentication of a call. `identity` depends only on the secret and the content that the proof
    covers.
    """

    kind: Literal["timed", "signed", "bearer"]
    identity: str


def proofs(headers: Mapping[str, str], body: bytes, secret: str, now: datetime) -> tuple[Proof, ...]:
    """Return every valid proof of a call, strongest first.

    The names in `headers` must be lowercase. A secret shorter than SECRET_CHARS_MIN is never accepted, so an empty
    setting admits nobody.
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
    """Return a digest of a signature. The digest is safe to store, because it cannot be used to sign a call."""
    return hashlib.sha256(signed.encode()).hexdigest()


def signature(secret: str, signed: bytes) -> str:
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def proof(secret: str, body: bytes, now: datetime) -> str:
    """Return the `X-Shoal-Signature` header of a body that is sent now."""
    seconds = int(now.timestamp())
    return f"t={seconds},v1={signature(secret, f'{seconds}.'.encode() + body)}"


FOR_EVER = "deliveries"
"""Settings scope for calls without a signed timestamp. Calls with a timestamp are stored in the scope ONCE, whose
values expire.
"""
REPEATED_SECONDS = 7 * 86_400.0
"""Seconds within which an interrupted call may be repeated. The value is Pub/Sub's message retention period, the
longest retry period of any platform.
"""


class Delivery(msgspec.Struct, frozen=True):
    """The first delivery of a call: its URL and time."""

    identity: str
    place: str
    at: datetime

    @property
    def key(self) -> str:
        return f"{self.place}@{self.identity[:32]}.{to_micros(self.at)}"


async def first_delivery(
    settings: Settings, proved: Sequence[Proof], place: str, now: datetime, repeat_seconds: float | None = None
) -> Delivery | None:
    """Return the first delivery of a call, which may be this one.

    Return None if the call repeats a delivery that is too old or came to another URL.

    `proved` contains at least one proof of the call, strongest first. `place` is the URL of the call. A body with
    only a bearer secret counts as a new call after `repeat_seconds`, or never if that is None. The delivery is
    durable on return. Raises StoreError.
    """
    strongest = proved[0]
    repeats = repeat_seconds if strongest.kind == "bearer" else None
    delivery = await _recorded(settings, strongest, Delivery(strongest.identity, place, now), repeats)
    for weaker in proved[1:]:
        await _recorded(settings, weaker, delivery, None)
    age_seconds = (now - delivery.at).total_seconds()
    return delivery if delivery.place == place and age_seconds < REPEATED_SECONDS else None


async def _recorded(settings: Settings, proved: Proof, fresh: Delivery, repeat_seconds: float | None) -> Delivery:
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
