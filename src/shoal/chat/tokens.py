"""Signed tokens: checking those that platforms show us, against keys that are fetched and kept, and holding our own.

Pure checks and small caches, for every platform that calls with a JSON Web Token and is called with a bearer token.
Sources: RFC 7519 (tokens), RFC 7517 (key sets), RFC 8725 (best practice: one algorithm, issuer and audience checked).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.errors import ConfigError, PlatformError
from shoal.domain.foreign import UNREADABLE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

ALGORITHM = "RS256"
LEEWAY_SECONDS = 300.0
"""How far the clocks of both sides may be apart."""
TOKEN_CHARS_MAX = 16_384
KEYS_BYTES_MAX = 262_144
KEYS_MAX = 64
KEEP_KEYS_SECONDS = 86_400.0
"""Keys older than this are fetched again."""
ASK_AGAIN_SECONDS = 60.0
"""An unknown key makes us fetch, but not more often than this, whatever strangers send."""
RENEW_SECONDS = 300.0
"""Our own token is renewed when it is valid for less than this."""

Claims: TypeAlias = Mapping[str, object]
Fetch: TypeAlias = Callable[[str, int], Awaitable[bytes]]
"""Gets an address, at most so many bytes. Raises PlatformError."""


class BadToken(Exception):
    """A token proves nothing; the text says why, without anything of it."""


class Key(NamedTuple):
    """A public key, and for which channels its owner vouches with it; none named means all."""

    key: "RSAPublicKey"
    endorsements: tuple[str, ...] = ()


class _Jwk(msgspec.Struct, frozen=True):
    kid: str = ""
    kty: str = ""
    n: str = ""
    e: str = ""
    endorsements: tuple[str, ...] = ()


class _Keys(msgspec.Struct, frozen=True):
    keys: tuple[_Jwk, ...] = ()


class _Described(msgspec.Struct, frozen=True):
    jwks_uri: str = ""


def check_package(extra: str, name: str = "jwt") -> None:
    """Raise ConfigError, naming the extra to install, when the package that checks tokens is missing."""
    if find_spec(name) is None:
        raise ConfigError([f"{name} is not installed. Run: pip install 'shoal[{extra}]'"])


class KeyRing:
    """The keys that one address tells of: a key set, certificates by their ids, or a description that names a key set.

    A key that is not known makes it fetch again, so that a rotation is noticed; when the address does not answer, the
    keys it told last stay good.
    """

    def __init__(self, url: str, fetch: Fetch, clock: Clock) -> None:
        self._url = url
        self._fetch = fetch
        self._clock = clock
        self._keys: Mapping[str, Key] = {}
        self._fetched_at: float | None = None
        self._lock = asyncio.Lock()

    async def key(self, kid: str) -> Key:
        """The key of this id. Raises BadToken when there is none, PlatformError when keys cannot be had."""
        async with self._lock:
            now = self._clock.monotonic()
            age = None if self._fetched_at is None else now - self._fetched_at
            is_stale = age is None or age > KEEP_KEYS_SECONDS
            if is_stale or (kid not in self._keys and age is not None and age >= ASK_AGAIN_SECONDS):
                await self._renew(now)
        found = self._keys.get(kid)
        if found is None:
            raise BadToken("it is signed with a key that nobody told of")
        return found

    async def _renew(self, now: float) -> None:
        try:
            body = await self._fetch(self._url, KEYS_BYTES_MAX)
            described = _decoded(body)
            if described:
                body = await self._fetch(described, KEYS_BYTES_MAX)
            keys = keys_in(body)
        except PlatformError:
            if not self._keys:
                raise
            keys = self._keys
        self._keys, self._fetched_at = keys, now


def _decoded(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Described).jwks_uri
    except UNREADABLE:
        return ""


def keys_in(body: bytes) -> Mapping[str, Key]:
    """The RSA keys of a key set (RFC 7517), or of an object of certificates in PEM. Raises PlatformError."""
    try:
        listed = msgspec.json.decode(body, type=_Keys).keys
        found = {jwk.kid: _of_jwk(jwk) for jwk in listed[:KEYS_MAX] if jwk.kty == "RSA" and jwk.kid}
        if not listed:
            certificates = msgspec.json.decode(body, type=dict[str, str])
            found = {kid: _of_certificate(pem) for kid, pem in list(certificates.items())[:KEYS_MAX]}
    except (*UNREADABLE, ValueError, TypeError) as error:
        raise PlatformError(f"The signing keys cannot be read: {type(error).__name__}.") from error
    return found


def _of_jwk(jwk: _Jwk) -> Key:
    from jwt.algorithms import RSAAlgorithm

    key = RSAAlgorithm.from_jwk({"kty": jwk.kty, "n": jwk.n, "e": jwk.e})
    return Key(_public(key), jwk.endorsements)


def _of_certificate(pem: str) -> Key:
    from cryptography.x509 import load_pem_x509_certificate

    return Key(_public(load_pem_x509_certificate(pem.encode()).public_key()))


def _public(key: object) -> "RSAPublicKey":
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if not isinstance(key, RSAPublicKey):
        raise TypeError("no public RSA key")
    return key


def bearer_of(headers: Mapping[str, str]) -> str:
    """The token of an `Authorization: Bearer` header; empty without one, or for one that is too long to be genuine."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and len(token) <= TOKEN_CHARS_MAX else ""


def key_id(token: str) -> str:
    """Which key a token says it is signed with. Raises BadToken."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
    except (jwt.InvalidTokenError, UnicodeError, RecursionError) as error:
        raise BadToken("it is no token") from error
    kid: object = header.get("kid")
    if header.get("alg") != ALGORITHM or not isinstance(kid, str):
        raise BadToken(f"it is not signed with {ALGORITHM}")
    return kid


def verified(
    token: str, key: "RSAPublicKey", now: datetime, *, audiences: Sequence[str], issuers: Collection[str]
) -> Claims:
    """The claims of a token whose signature, issuer, audience and times hold. Raises BadToken."""
    import jwt

    if not audiences or not all(audiences):
        raise BadToken("no audience is configured")
    options = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "require": ["exp", "iss", "aud"]}
    try:
        claims: Mapping[str, object] = jwt.decode(
            token, key, algorithms=[ALGORITHM], audience=list(audiences), issuer=list(issuers),
            options=options,  # pyright: ignore[reportArgumentType]  # the times are checked by our own clock
        )  # fmt: skip
    except (jwt.InvalidTokenError, UnicodeError, RecursionError) as error:
        raise BadToken(type(error).__name__) from error
    at = now.timestamp()
    if at > _seconds(claims, "exp", 0.0) + LEEWAY_SECONDS:
        raise BadToken("it has expired")
    if at < max(_seconds(claims, "nbf", 0.0), _seconds(claims, "iat", 0.0)) - LEEWAY_SECONDS:
        raise BadToken("it is not valid yet")
    return claims


def _seconds(claims: Claims, name: str, missing: float) -> float:
    value = claims.get(name, missing)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken(f"its {name} is no time")
    return float(value)


def signed(claims: Mapping[str, object], private_key: str, kid: str) -> str:
    """A token of our own, signed with an RSA key in PEM. Raises ConfigError for what is no such key."""
    import jwt

    try:
        return jwt.encode(dict(claims), private_key, algorithm=ALGORITHM, headers={"kid": kid})
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise ConfigError(["The private key of the service account cannot be read."]) from error


class Granted(msgspec.Struct, frozen=True):
    """An access token, as authorization servers answer (RFC 6749)."""

    access_token: str
    expires_in: float = 3600.0


class TokenCache:
    """Our own access token, asked for when it is needed and renewed before it expires."""

    def __init__(self, grant: Callable[[], Awaitable[Granted]], clock: Clock) -> None:
        self._grant = grant
        self._clock = clock
        self._token = ""
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def token(self) -> str:
        """A token that is valid for a while. Raises PlatformError."""
        async with self._lock:
            if not self._token or self._clock.monotonic() >= self._until:
                granted = await self._grant()
                keep = max(granted.expires_in - RENEW_SECONDS, granted.expires_in / 2)
                self._token, self._until = granted.access_token, self._clock.monotonic() + keep
            return self._token

    def drop(self, token: str) -> None:
        """Forget a token that was refused."""
        if token == self._token:
            self._token = ""
