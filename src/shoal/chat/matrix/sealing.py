"""What an encrypted room needs: the port, and the answer where no encryption is installed."""

from importlib.util import find_spec
from typing import Protocol

from shoal.chat.matrix.api import Value
from shoal.chat.matrix.inbound import Event
from shoal.domain.errors import PlatformError

UNREADABLE_ROOM = (
    "This room is encrypted, and I have no encryption installed, so I can read nothing here. "
    "Write to me in a room without encryption, or have Shoal installed with: pip install 'shoal[matrix]'."
)
UNREADABLE_MESSAGE = "I could not decrypt your message; its key did not reach me. Please send it again."


class Sealing(Protocol):
    """Encrypts and decrypts for one account's device."""

    @property
    def works(self) -> bool:
        """Whether encrypted rooms can be read and written."""
        ...

    async def take(self, synced: bytes) -> None:
        """Learn keys, devices and members from the answer of a sync. Raises PlatformError."""
        ...

    def opened(self, room: str, event: Event) -> Event | None:
        """The event that is inside an encrypted one; None when its key is not known."""
        ...

    async def seal(self, room: str, kind: str, content: dict[str, Value]) -> dict[str, Value]:
        """The content of an encrypted event for everybody in the room. Raises PlatformError."""
        ...

    def seal_file(self, content: bytes) -> tuple[bytes, dict[str, Value]]:
        """A file encrypted, and what its readers need."""
        ...

    def open_file(self, content: bytes, sealed: bytes) -> bytes:
        """A file decrypted; `sealed` is its message's content as JSON. Raises PlatformError."""
        ...

    def close(self) -> None:
        """Give files back; it opens them again when it is used."""
        ...


class NoSealing:
    """Where no encryption is installed: encrypted rooms are refused."""

    @property
    def works(self) -> bool:
        """It does not."""
        return False

    async def take(self, synced: bytes) -> None:
        """Nothing to learn."""

    def opened(self, room: str, event: Event) -> Event | None:
        """It cannot be read."""
        return None

    async def seal(self, room: str, kind: str, content: dict[str, Value]) -> dict[str, Value]:
        """Nothing is written to encrypted rooms in the clear. Raises PlatformError."""
        raise PlatformError(f"The room {room} is encrypted. {_INSTALL}", permanent=True)

    def seal_file(self, content: bytes) -> tuple[bytes, dict[str, Value]]:
        """Raises PlatformError."""
        raise PlatformError(f"The room is encrypted. {_INSTALL}", permanent=True)

    def open_file(self, content: bytes, sealed: bytes) -> bytes:
        """Raises PlatformError."""
        raise PlatformError(f"The file is encrypted. {_INSTALL}", permanent=True)

    def close(self) -> None:
        """Nothing is open."""


_INSTALL = "Install the encryption: pip install 'shoal[matrix]'."


def can_seal() -> bool:
    """Whether the packages of the extra `matrix` are installed."""
    return all(find_spec(package) is not None for package in ("nio", "vodozemac", "peewee"))
