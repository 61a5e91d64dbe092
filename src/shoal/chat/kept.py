"""Files on their way: those that came in are kept under the thread's attachments, those that go out are read."""

import asyncio
from collections.abc import Awaitable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, encode_part
from shoal.domain.messages import Attachment, Prompt

NAME_BYTES_MAX = 120


async def keep(home: Home, clock: Clock, thread: ThreadId, file: Attachment, content: Awaitable[bytes]) -> Attachment:
    """The file with where its content was kept, or with the reason why it was not."""
    try:
        body = await content
        path = await asyncio.to_thread(_write, home.attachments(thread), f"{clock.new_id()}-{_short(file.name)}", body)
    except PlatformError as error:
        return msgspec.structs.replace(file, error=str(error))
    except OSError as error:
        return msgspec.structs.replace(file, error=f"could not be stored: {error.strerror}")
    return msgspec.structs.replace(file, size_bytes=len(body), path=path)


def remove_files(prompt: Prompt) -> None:
    """Remove what was kept for a message that no turn will have."""
    for file in prompt.attachments:
        if file.path:
            with suppress(OSError):
                Path(file.path).unlink()


def read_file(path: Path, bytes_max: int) -> bytes:
    """The content of a file that goes out. Raises PlatformError, for good when it is gone or too large."""
    with opened(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise PlatformError(f"The file {path.name!r} has more than {bytes_max:,} bytes.", permanent=True)
    return content


@contextmanager
def opened(path: Path) -> Generator[BinaryIO]:
    """A file to upload. Raises PlatformError when it cannot be read; for good when it is gone."""
    try:
        with path.open("rb") as content:
            yield content
    except OSError as error:
        reason = f"The file {path.name!r} cannot be read: {error.strerror}."
        raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error


def _short(name: str) -> str:
    return encode_part(name).encode()[-NAME_BYTES_MAX:].decode("utf-8", "ignore")


def _write(folder: Path, name: str, content: bytes) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return str(path)
