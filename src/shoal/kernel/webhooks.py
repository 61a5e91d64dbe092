"""Calls over HTTP that platforms and programs make to us: what proves who makes them, and which were taken in.

A call proves itself in one of these ways, each compared in constant time:

proof                                           covers               good for
---------------------------------------------   ------------------   --------------------------------------------
`X-Shoal-Signature: t=SECONDS,v1=HEX`           time and body        five minutes before and after its time
`X-Hub-Signature-256: sha256=HEX`               body                 ever, so that whoever takes it must remember it
`Authorization: Bearer SECRET`                  nothing              ever; who has seen it can say anything

What makes a call the same call is what its proof covers: never a header, the address, or an id beside the body, which
whoever has seen one call can change in the next. `first_delivery` remembers which were taken.

What is signed together with a time is that time, a full stop and the body. A body that begins so proves nothing by
itself: its signature may be one that was captured from the other header, where it was good for five minutes.

A call is known by what its proofs cover: a signature over all addresses that share a secret, so
that what was captured at one is no news at another; a bearer secret at its own address, since whoever has captured it
may make any call, and programs send two addresses the same body.

known by           until                                           a call that is the same
----------------   ---------------------------------------------   --------------------------------------------------
time and body      it is out of date, which is sooner than that    has the first one's key
the body, signed   for ever                                        has the first one's key for REPEATED_SECONDS, and
                                                                   is over from then on
the body, bearer   `repeat_seconds` later, or for ever             the same; afterwards it is a new call

The key is what the store takes a message in once by (`Inbox.accept`, `Outbox.put`). Those rows are forgotten later than
REPEATED_SECONDS, so that between them and this no call is ever taken in twice. A weaker proof that a call also shows
leads to the same delivery: taking the stronger one away gains nothing.
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
    """What a platform that called us gets back."""

    status: int
    body: bytes = b""
    media_type: str = "application/json"


@runtime_checkable
class HttpInbound(Protocol):
    """An adapter whose platform calls `POST /platforms/NAME[/ACCOUNT]`; it checks by itself who calls."""

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Accept a call. `headers` by lower-case names. Never raises for the content of the call."""
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
    """Return every authentication of a call with `secret`, the one that covers most first.

    `headers` by lower-case names. Empty without a valid one, and for a secret shorter than SECRET_CHARS_MIN, so that an
    empty setting admits nobody.
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
    """The HMAC-SHA256 in lower-case hexadecimal."""
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def proof(secret: str, body: bytes, now: datetime) -> str:
    """The value of `X-Shoal-Signature` for a body sent now."""
    seconds = int(now.timestamp())
    return f"t={seconds},v1={signature(secret, f'{seconds}.'.encode() + body)}"


FOR_EVER = "deliveries"
"""The scope of calls that stay good; those with a time of their own are under `ONCE`, which is forgotten."""
REPEATED_SECONDS = 7 * 86_400.0
"""How long a call that was cut off may still be made again. The longest that a platform tries is Pub/Sub's message
retention."""


class Delivery(msgspec.Struct, frozen=True):
    """The first delivery of a call: its address and time."""

    identity: str
    place: str
    at: datetime

    @property
    def key(self) -> str:
        """Return the key that deduplicates its message."""
        return f"{self.place}@{self.identity[:32]}.{to_micros(self.at)}"


async def first_delivery(
    settings: Settings, proved: Sequence[Proof], place: str, now: datetime, repeat_seconds: float | None = None
) -> Delivery | None:
    """The delivery that a call is, itself or an earlier one; None for one that is over, so that nothing comes of it.

    `proved` is what the call proves, not empty; `place` is the address it was made to. A body that is known by nothing
    but a bearer secret is a new one after `repeat_seconds` (None: never). Durable on return. Raises StoreError.
    """
    strongest = proved[0]
    repeats = repeat_seconds if strongest.kind == "bearer" else None
    delivery = await _kept(settings, strongest, Delivery(strongest.identity, place, now), repeats)
    for weaker in proved[1:]:
        await _kept(settings, weaker, delivery, None)
    age_seconds = (now - delivery.at).total_seconds()
    return delivery if delivery.place == place and age_seconds < REPEATED_SECONDS else None


async def _kept(settings: Settings, proved: Proof, fresh: Delivery, repeat_seconds: float | None) -> Delivery:
    """What is known of a proof, else `fresh` from now on."""
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
