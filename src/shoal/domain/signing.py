"""Calls over HTTP that prove who makes them, and the proofs we add to our own.

A call proves itself in one of these ways, each compared in constant time:

proof                                           covers               good for
---------------------------------------------   ------------------   --------------------------------------------
`X-Shoal-Signature: t=SECONDS,v1=HEX`           time and body        five minutes before and after its time
`X-Hub-Signature-256: sha256=HEX`               body                 ever, so that whoever takes it must remember it
`Authorization: Bearer SECRET`                  nothing              ever; who has seen it can say anything

What makes a call the same call is what its proof covers: never a header, the address, or an id beside the body, which
whoever has seen one call can change in the next. `domain/deliveries.py` remembers which were taken.

What is signed together with a time is that time, a full stop and the body. A body that begins so proves nothing by
itself: its signature may be one that was captured from the other header, where it was good for five minutes.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec

SECRET_CHARS_MIN = 16
AGE_SECONDS_MAX = 300.0
_SIGNED = re.compile(r"t=([0-9]{1,12}),\s*v1=([0-9a-f]{64})")
_TIMED_BODY = re.compile(rb"[0-9]{1,12}\.")


class Proof(msgspec.Struct, frozen=True):
    """One way in which a call has proved itself. `identity` depends on the secret and on what is covered alone."""

    kind: Literal["timed", "signed", "bearer"]
    identity: str


def proofs(headers: Mapping[str, str], body: bytes, secret: str, now: datetime) -> tuple[Proof, ...]:
    """Every way in which a call proves that its sender knows `secret`, the one that covers most first.

    `headers` by lower-case names. Empty for a call that proves nothing, and for a secret shorter than SECRET_CHARS_MIN,
    so that an empty setting lets nobody in.
    """
    if len(secret) < SECRET_CHARS_MIN:
        return ()
    found: list[Proof] = []
    timed = _SIGNED.fullmatch(headers.get("x-shoal-signature", "").strip())
    if timed and abs(now.timestamp() - int(timed[1])) <= AGE_SECONDS_MAX:
        expected = signature(secret, f"{timed[1]}.".encode() + body)
        if hmac.compare_digest(expected, timed[2]):
            found.append(Proof("timed", _identity(expected)))
    expected = signature(secret, body)
    signed = headers.get("x-hub-signature-256", "").strip().lower()
    if hmac.compare_digest(f"sha256={expected}".encode(), signed.encode()) and not _TIMED_BODY.match(body):
        found.append(Proof("signed", _identity(expected)))
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), secret.encode()):
        found.append(Proof("bearer", _identity(expected)))
    return tuple(found)


def _identity(signed: str) -> str:
    """A digest of a signature: what is remembered of a call signs no other."""
    return hashlib.sha256(signed.encode()).hexdigest()


def signature(secret: str, signed: bytes) -> str:
    """The HMAC-SHA256 in lower-case hexadecimal."""
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def proof(secret: str, body: bytes, now: datetime) -> str:
    """The value of `X-Shoal-Signature` for a body sent now."""
    seconds = int(now.timestamp())
    return f"t={seconds},v1={signature(secret, f'{seconds}.'.encode() + body)}"
