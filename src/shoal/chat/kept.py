"""Files on their way: those that came in are kept under the thread's attachments, those that go out are read."""

from pathlib import Path

from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, encode_part

NAME_BYTES_MAX = 120


def keep_file(home: Home, clock: Clock, thread: ThreadId, name: str, content: bytes) -> str:
    """Write a file that came in and return its path. Raises OSError."""
    folder = home.attachments(thread)
    folder.mkdir(parents=True, exist_ok=True)
    safe = encode_part(name).encode()[-NAME_BYTES_MAX:].decode("utf-8", "ignore")
    path = folder / f"{clock.new_id()}-{safe}"
    path.write_bytes(content)
    return str(path)


def read_file(path: Path, bytes_max: int) -> bytes:
    """The content of a file that goes out. Raises PlatformError, for good when it is gone or too large."""
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        reason = f"The file {path.name!r} cannot be read: {error.strerror}."
        raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error
    if len(content) > bytes_max:
        raise PlatformError(f"The file {path.name!r} has more than {bytes_max:,} bytes.", permanent=True)
    return content
