"""Verify JSON Web Tokens that platforms send.

Sources: RFC 7519 (tokens), RFC 7517 (key sets), RFC 8725 (best practice: check the algorithm, issuer and audience).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import msgspec

from shoal.installation import how_to_add
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ConfigError, PlatformError
from shoal.kernel.untrusted import UNREADABLE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

ALGORITHM = "RS256"
LEEWAY_SECONDS = 300.0
"""Tolerated difference between this machine's clock and the issuer's clock."""
TOKEN_CHARS_MAX = 16_384
KEYS_BYTES_MAX = 262_144
KEYS_MAX = 64
KEEP_KEYS_SECONDS = 86_400.0
ASK_AGAIN_SECONDS = 60.0
"""Minimum number of seconds between fetches caused by unknown key ids. Anyone can send requests with unknown key ids.
"""

Claims: TypeAlias = Mapping[str, object]
Fetch: TypeAlias = Callable[[str, int], Awaitable[bytes]]
"""Function that downloads a URL. Takes the URL and the maximum number of bytes. Raises PlatformError."""


class BadToken(Exception):
    """The token is invalid. The message explains the reason and never contains the token."""


class SigningKey(NamedTuple):
    """A public key and the channels for which it is endorsed. If no channels are listed, the key is valid for all
    channels.
    """

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


class _KeysDescription(msgspec.Struct, frozen=True):
    jwks_uri: str = ""


def check_package(extra: str) -> None:
    """Raise ConfigError if the package for verifying tokens is not installed."""
    if find_spec("jwt") is None:
        raise ConfigError([f"platforms.{extra} needs the `{extra}` extra. {how_to_add(extra)}"])


class KeyRing:
    """Signing keys from one URL: a key set, certificates by id, or OpenID metadata that refers to a key set.

    An unknown key id triggers a fetch, because the keys may have been rotated. If the fetch fails, the cached keys stay
    valid.
    """

    def __init__(self, url: str, fetch: Fetch, clock: Clock) -> None:
        self._url = url
        self._fetch = fetch
        self._clock = clock
        self._keys: Mapping[str, SigningKey] = {}
        self._fetched_at: float | None = None
        self._lock = asyncio.Lock()

    async def verify(
        self, headers: Mapping[str, str], audiences: Sequence[str], issuers: Collection[str], channel: str | None = None
    ) -> Claims:
        """Verify a request's bearer token and return its claims. Checks the signature, issuer, audience and times.

        If the key is endorsed for certain channels, `channel` must be one of them. Raises BadToken if the token is
        invalid, or PlatformError if the keys are unavailable.
        """
        import jwt

        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or len(token) > TOKEN_CHARS_MAX:
            raise BadToken("the request has no valid bearer token")
        token = token.strip()
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.InvalidTokenError, UnicodeError, RecursionError) as error:
            raise BadToken("the token is malformed") from error
        kid: object = header.get("kid")
        if header.get("alg") != ALGORITHM or not isinstance(kid, str):
            raise BadToken(f"the token is not signed with {ALGORITHM}")
        async with self._lock:
            now = self._clock.monotonic()
            age = None if self._fetched_at is None else now - self._fetched_at
            is_stale = age is None or age > KEEP_KEYS_SECONDS
            if is_stale or (kid not in self._keys and age is not None and age >= ASK_AGAIN_SECONDS):
                try:
                    body = await self._fetch(self._url, KEYS_BYTES_MAX)
                    try:
                        key_set_url = msgspec.json.decode(body, type=_KeysDescription).jwks_uri
                    except UNREADABLE:
                        key_set_url = ""
                    self._keys = _keys_in(await self._fetch(key_set_url, KEYS_BYTES_MAX) if key_set_url else body)
                except PlatformError:
                    if not self._keys:
                        raise
                self._fetched_at = now
        key = self._keys.get(kid)
        if key is None:
            raise BadToken("the token is signed with an unknown key")
        if key.endorsements and channel not in key.endorsements:
            raise BadToken("the token's key is not endorsed for this channel")
        if not audiences or not all(audiences):
            raise BadToken("no audience is configured")
        options = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "require": ["exp", "iss", "aud"]}
        try:
            claims: Claims = jwt.decode(
                token, key.key, algorithms=[ALGORITHM], audience=list(audiences), issuer=list(issuers),
                options=options,  # pyright: ignore[reportArgumentType]  # the times are checked by our own clock,
            )  # fmt: skip
        except (jwt.InvalidTokenError, UnicodeError, RecursionError) as error:
            raise BadToken(type(error).__name__) from error
        at = self._clock.now().timestamp()
        if at > _seconds(claims, "exp", 0.0) + LEEWAY_SECONDS:
            raise BadToken("the token has expired")
        if at < max(_seconds(claims, "nbf", 0.0), _seconds(claims, "iat", 0.0)) - LEEWAY_SECONDS:
            raise BadToken("the token is not valid yet")
        return claims


def _keys_in(body: bytes) -> Mapping[str, SigningKey]:
    """Return the RSA keys in a key set (RFC 7517) or in a JSON object of PEM certificates."""
    try:
        listed = msgspec.json.decode(body, type=_Keys).keys
        if listed:
            from jwt.algorithms import RSAAlgorithm

            return {
                jwk.kid: SigningKey(
                    _public(RSAAlgorithm.from_jwk({"kty": jwk.kty, "n": jwk.n, "e": jwk.e})), jwk.endorsements
                )
                for jwk in listed[:KEYS_MAX]
                if jwk.kty == "RSA" and jwk.kid
            }
        from cryptography.x509 import load_pem_x509_certificate

        certificates = msgspec.json.decode(body, type=dict[str, str])
        return {
            kid: SigningKey(_public(load_pem_x509_certificate(pem.encode()).public_key()))
            for kid, pem in list(certificates.items())[:KEYS_MAX]
        }
    except (*UNREADABLE, ValueError, TypeError) as error:
        raise PlatformError(f"Cannot read the signing keys: {type(error).__name__}.") from error


def _public(key: object) -> "RSAPublicKey":
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if not isinstance(key, RSAPublicKey):
        raise TypeError("not a public RSA key")
    return key


def _seconds(claims: Claims, name: str, missing: float) -> float:
    value = claims.get(name, missing)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken(f"the token's {name} is not a time")
    return float(value)


@lru_cache(KEYS_MAX)
def _private(pem: str) -> "RSAPrivateKey":
    """Parse a private key. The result is cached because validating the key takes about 30 ms."""
    from jwt.algorithms import RSAAlgorithm

    key = RSAAlgorithm(RSAAlgorithm.SHA256).prepare_key(pem)
    return cast("RSAPrivateKey", key)  # `encode` raises an error for a public key


def signed(claims: Mapping[str, object], private_key: str, kid: str) -> str:
    """Sign the claims as a JWT with an RSA key in PEM format. Raises ConfigError if the key is invalid."""
    import jwt

    try:
        return jwt.encode(dict(claims), _private(private_key), algorithm=ALGORITHM, headers={"kid": kid})
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise ConfigError(["Cannot read the service account's private key."]) from error


class Granted(msgspec.Struct, frozen=True):
    """Response of an authorization server that grants an access token (RFC 6749)."""

    access_token: str
    expires_in: float = 3600.0
