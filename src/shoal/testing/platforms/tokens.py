"""Signing keys for the fakes of platforms that sign tokens, and the formats of their public keys."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey


class Signer(NamedTuple):
    """An RSA key pair with an id."""

    kid: str
    key: "RSAPrivateKey"

    def token(self, claims: Mapping[str, object], *, kid: str = "", algorithm: str = "RS256") -> str:
        """Return a signed token. An `algorithm` other than RS256 uses a shared secret, so the signature is invalid."""
        import jwt

        key: object = self.key if algorithm == "RS256" else "a secret of thirty-two bytes, or more" * 2
        headers = {"kid": kid or self.kid}
        return jwt.encode(dict(claims), key, algorithm=algorithm, headers=headers)  # pyright: ignore[reportArgumentType]

    def jwk(self, **more: object) -> dict[str, object]:
        from jwt.algorithms import RSAAlgorithm

        jwk = msgspec.json.decode(RSAAlgorithm.to_jwk(self.key.public_key()), type=dict[str, object])
        return {**jwk, "kid": self.kid, "use": "sig", **more}

    def pem(self) -> str:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def certificate(self) -> str:
        from cryptography import x509
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import Encoding
        from cryptography.x509.oid import NameOID

        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake")])
        start = datetime(2026, 1, 1, tzinfo=UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(1)
            .not_valid_before(start)
            .not_valid_after(start + timedelta(days=3650))
            .sign(self.key, SHA256())
        )
        return made.public_bytes(Encoding.PEM).decode()


@cache
def signer(kid: str) -> Signer:
    """Return the key pair with this id. Key pairs are cached because creating one is slow."""
    from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

    return Signer(kid, generate_private_key(public_exponent=65537, key_size=2048))
