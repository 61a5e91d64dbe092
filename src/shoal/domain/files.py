"""The port of content that is too large for rows: kept once, by the digest of its bytes."""

import hashlib
from pathlib import Path
from typing import Protocol

DIGEST_CHARS = 32
"""How much of the SHA-256 names a content: 128 bits."""


class Files(Protocol):
    """Content by digest. Every method blocks and raises OSError; call it in a thread."""

    def keep(self, content: bytes) -> str:
        """Store the content once and return its digest; durable on return."""
        ...

    def keep_file(self, path: Path) -> str:
        """The same for a file, of any size."""
        ...

    def read(self, digest: str) -> bytes:
        """The content, checked against its digest. Raises FileNotFoundError when it is not there."""
        ...

    def fetch(self, digest: str, path: Path) -> None:
        """The same into a file, of any size; the file appears whole or not at all."""
        ...

    def has(self, digest: str) -> bool:
        """Whether it is there."""
        ...

    def remove(self, digest: str) -> bool:
        """Delete it unless it was stored or asked for lately; False when it stays."""
        ...


def digest_of(content: bytes) -> str:
    """The name of a content."""
    return hashlib.sha256(content).hexdigest()[:DIGEST_CHARS]


def digest_of_file(path: Path) -> str:
    """The name of a file's content. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_CHARS]
