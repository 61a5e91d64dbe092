"""Calls over HTTP that prove who makes them, and the proofs we add to our own.

A call proves itself in one of these ways, each compared in constant time:

- `Authorization: Bearer SECRET`
- `X-Shoal-Signature: t=SECONDS,v1=HEX`, the HMAC-SHA256 of `SECONDS.BODY`, at most five minutes old
- `X-Hub-Signature-256: sha256=HEX`, the HMAC-SHA256 of the body, as GitHub and many others send it
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime

SECRET_CHARS_MIN = 16
AGE_SECONDS_MAX = 300.0
_SIGNED = re.compile(r"t=(\d{1,12}),\s*v1=([0-9a-f]{64})")


def is_genuine(headers: Mapping[str, str], body: bytes, secret: str, now: datetime) -> bool:
    """Whether a call was made by somebody who knows `secret`. `headers` by lower-case names.

    False for a secret shorter than SECRET_CHARS_MIN, so that an empty setting lets nobody in.
    """
    if len(secret) < SECRET_CHARS_MIN:
        return False
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), secret.encode()):
        return True
    stamped = _SIGNED.fullmatch(headers.get("x-shoal-signature", "").strip())
    if stamped:
        is_fresh = abs(now.timestamp() - int(stamped[1])) <= AGE_SECONDS_MAX
        return is_fresh and hmac.compare_digest(signature(secret, f"{stamped[1]}.".encode() + body), stamped[2])
    plain = headers.get("x-hub-signature-256", "").strip().lower()
    return hmac.compare_digest(f"sha256={signature(secret, body)}".encode(), plain.encode())


def signature(secret: str, signed: bytes) -> str:
    """The HMAC-SHA256 in lower-case hexadecimal."""
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def proof(secret: str, body: bytes, now: datetime) -> str:
    """The value of `X-Shoal-Signature` for a body sent now."""
    seconds = int(now.timestamp())
    return f"t={seconds},v1={signature(secret, f'{seconds}.'.encode() + body)}"
