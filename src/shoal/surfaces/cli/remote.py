"""Talks to the Shoal that runs on this home directory, if one does: the lock file tells where, the token lets in.

The server is ours and on this machine, so that a few lines of HTTP/1.0 are all that is needed.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from shoal.domain.errors import Conflict, Gone, InvalidInput, NotFound, ShoalError
from shoal.store.lock import is_held
from shoal.surfaces.cli.place import Place

REQUEST_SECONDS = 30.0
LINE_BYTES_MAX = 67_108_864
_HOLDER = re.compile(r"process \d+ at (http://\S+)")


class Busy(ShoalError):
    """The thread's mailbox is full."""


class _Refusal(msgspec.Struct):
    message: str = ""


class _Answer(NamedTuple):
    status: int
    body: asyncio.StreamReader


class Remote:
    """The API of a running Shoal."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._token = token

    async def call(self, method: str, path: str, body: object = None) -> bytes:
        """Make a call and return the JSON of its answer.

        Raises NotFound, Conflict, Gone, InvalidInput or Busy as the server says, ShoalError for anything else.
        """
        async with self._open(method, path, "application/json", body) as answer:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    content = await answer.body.read()
            except (OSError, TimeoutError) as error:
                raise ShoalError(f"Shoal at {self.address} broke off its answer. Look at its log.") from error
        if answer.status >= 400:
            raise _refusal(answer.status, content, self.address)
        return content

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """The data of server-sent events, until the server ends them. Raises ShoalError."""
        async with self._open("GET", path, "text/event-stream") as answer:
            if answer.status != 200:
                raise _refusal(answer.status, await answer.body.read(), self.address)
            while line := await self._read_line(answer.body):
                if line.startswith(b"data: "):
                    yield line.removeprefix(b"data: ")

    async def _read_line(self, body: asyncio.StreamReader) -> bytes:
        try:
            return await body.readline()
        except (OSError, ValueError) as error:
            raise ShoalError(f"Shoal at {self.address} broke off its events. Look at its log.") from error

    @asynccontextmanager
    async def _open(self, method: str, path: str, accept: str, body: object = None) -> AsyncGenerator[_Answer]:
        content = b"" if body is None else msgspec.json.encode(body)
        target = urlsplit(self.address)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                reader, writer = await asyncio.open_connection(target.hostname, target.port, limit=LINE_BYTES_MAX)
                writer.write(self._head(method, path, accept, len(content)) + content)
                status = await _read_status(reader)
        except (OSError, TimeoutError, ValueError, IndexError) as error:
            raise ShoalError(
                f"Shoal at {self.address} does not answer. Restart it, or stop it and try again."
            ) from error
        try:
            yield _Answer(status, reader)
        finally:
            writer.close()

    def _head(self, method: str, path: str, accept: str, length: int) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.0",
            f"Host: {urlsplit(self.address).netloc}",
            f"Authorization: Bearer {self._token}",
            f"Accept: {accept}",
            "Content-Type: application/json",
            f"Content-Length: {length}",
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _read_status(reader: asyncio.StreamReader) -> int:
    status = int((await reader.readline()).split()[1])
    while (await reader.readline()).strip():
        pass
    return status


def find_remote(place: Place) -> Remote | None:
    """The Shoal that serves this home directory now, or None."""
    try:
        found = _HOLDER.fullmatch(place.home.lock_file.read_text(encoding="utf-8").strip())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found is None or not is_held(place.home.lock_file):
        return None
    return Remote(found[1], place.config().web.token.reveal() or _stored_token(place))


def part(text: str) -> str:
    """A piece of a path, quoted."""
    return quote(text, safe="")


def _stored_token(place: Place) -> str:
    try:
        return place.home.token_file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _refusal(status: int, content: bytes, address: str) -> ShoalError:
    try:
        message = msgspec.json.decode(content, type=_Refusal).message
    except msgspec.DecodeError:
        message = ""
    kinds: dict[int, type[ShoalError]] = {400: InvalidInput, 404: NotFound, 409: Conflict, 410: Gone, 429: Busy}
    return kinds.get(status, ShoalError)(message or f"Shoal at {address} refused ({status}). Look at its log.")
