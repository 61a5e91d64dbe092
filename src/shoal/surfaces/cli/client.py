"""The API as commands call it: of the Shoal that serves this home directory, else of the same application in process.

The lock file tells where a server is, the token file lets in. It is ours and on this machine, so that a few lines of
HTTP/1.0 are enough.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click
import msgspec

from shoal.domain.errors import Conflict, Gone, InvalidId, InvalidInput, NotFound, ShoalError, StoreNewer
from shoal.domain.events import LIVE_CLASSES, Event, LiveEvent, decode_data
from shoal.domain.ids import ThreadId, TurnId
from shoal.store.lock import is_held
from shoal.surfaces.cli.context import CommandContext

T = TypeVar("T")

REQUEST_SECONDS = 30.0
LINE_BYTES_MAX = 67_108_864
_HOLDER = re.compile(r"process \d+ at (http://\S+)")


class _ReceivedEvent(msgspec.Struct):
    type: str
    thread: ThreadId
    turn: TurnId
    data: msgspec.Raw
    seq: int
    at: datetime

    def event(self) -> Event:
        return Event(self.seq, self.thread, self.turn, self.at, decode_data(self.type, bytes(self.data)))


class Busy(ShoalError):
    """The thread's mailbox is full."""


class ServerClient:
    """The API of a running Shoal."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._token = token

    async def call(self, method: str, path: str, body: object = None, *, into: type[T] = object) -> T:
        """Make a call and return its answer as `into`.

        Raises NotFound, Conflict, Gone, InvalidInput or Busy as the server says, ShoalError for anything else.
        """
        async with self._open(method, path, "application/json", body) as (status, answer):
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    content = await answer.read()
            except (OSError, TimeoutError) as error:
                raise ShoalError(f"Shoal at {self.address} broke off its answer. Look at its log.") from error
        return decoded(status, content, into, f"Shoal at {self.address}")

    async def stream(self, path: str, method: str = "GET", body: object = None) -> AsyncGenerator[bytes]:
        """The data of server-sent events, until the server ends them. Raises ShoalError."""
        async with self._open(method, path, "text/event-stream", body) as (status, answer):
            if status != 200:
                decoded(status, await answer.read(), object, f"Shoal at {self.address}")
            while True:
                try:
                    line = await answer.readline()
                except (OSError, ValueError) as error:
                    raise ShoalError(f"Shoal at {self.address} broke off its events. Look at its log.") from error
                if not line:
                    return
                if line.startswith(b"data: "):
                    yield line.removeprefix(b"data: ")

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, accept: str, body: object = None
    ) -> AsyncGenerator[tuple[int, asyncio.StreamReader]]:
        content = content_of(body)
        target = urlsplit(self.address)
        head = [
            f"{method} {path} HTTP/1.0",
            f"Host: {target.netloc}",
            f"Authorization: Bearer {self._token}",
            f"Accept: {accept}",
            f"Content-Type: application/{'octet-stream' if isinstance(body, bytes) else 'json'}",
            f"Content-Length: {len(content)}",
        ]
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                reader, writer = await asyncio.open_connection(target.hostname, target.port, limit=LINE_BYTES_MAX)
                writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + content)
                status = int((await reader.readline()).split()[1])
                while (await reader.readline()).strip():
                    pass
        except (OSError, TimeoutError, ValueError, IndexError) as error:
            message = f"Shoal at {self.address} does not answer. Restart it, or stop it and try again."
            raise ShoalError(message) from error
        try:
            yield status, reader
        finally:
            writer.close()


def content_of(body: object) -> bytes:
    """What a call sends: bytes as they are, nothing for None, all else as JSON."""
    return body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)


def find_server(context: CommandContext) -> ServerClient | None:
    """The Shoal that serves this home directory now, or None."""
    try:
        found = _HOLDER.fullmatch(context.home.lock_file.read_text(encoding="utf-8").strip())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found is None or not is_held(context.home.lock_file):
        return None
    token = context.config().web.token.reveal()
    if not token and context.home.token_file.exists():
        token = context.home.token_file.read_text(encoding="utf-8").strip()
    return ServerClient(found[1], token)


def call_api(context: CommandContext, method: str, path: str, body: object = None, *, into: type[T] = object) -> T:
    """Make an API call and return its answer as `into`.

    Where no server runs, the database is opened for it, as `CommandContext.read` does for a GET and `write` for any
    other. Raises what these raise, and NotFound, Conflict, Gone or InvalidInput as the API says.
    """
    server = find_server(context)
    if server is not None:
        return asyncio.run(server.call(method, path, body, into=into))
    from shoal.surfaces.cli.offline import call_offline

    config = context.config()
    use_store = context.read if method == "GET" else context.write
    return decoded(*use_store(lambda store: call_offline(context, config, store, method, path, body)), into)


def get(context: CommandContext, path: str, into: type[T], **query: str | int | bool) -> T:
    """`call_api` for what is only looked at, with the parts of its query that are given."""
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
    asked = urlencode({name: value for name, value in given.items() if value != ""})
    return call_api(context, "GET", f"{path}?{asked}" if asked else path, into=into)


def decoded(status: int, content: bytes, into: type[T], who: str = "Shoal") -> T:
    """An answer as `into`. Raises the error that a refusal tells of."""
    if status < 400:
        try:
            return msgspec.json.decode(content, type=into)
        except msgspec.DecodeError as error:
            from shoal.domain.schema import refusal

            why = f"{who} answered in a form that this version does not know: {refusal(error, into)}."
            raise ShoalError(f"{why} Use the `shoal` of the version that runs.") from error
    try:
        message = msgspec.json.decode(content, type=dict[str, str]).get("message")
    except msgspec.DecodeError:
        message = ""
    kinds: dict[int, type[ShoalError]] = {
        400: InvalidInput, 404: NotFound, 409: Conflict, 410: Gone, 429: Busy, 501: StoreNewer
    }  # fmt: skip
    raise kinds.get(status, ShoalError)(message or f"{who} refused ({status}). Look at its log.")


@contextmanager
def as_usage() -> Generator[None]:
    """What is named in a command and is not there, or not of that form, is wrong usage. Raises click.UsageError."""
    try:
        yield
    except (InvalidId, InvalidInput, NotFound) as error:
        raise click.UsageError(str(error)) from error


def path_part(text: str) -> str:
    return quote(text, safe="")


def decode_item(content: bytes) -> Event | LiveEvent:
    """An event as the API shows it, of the journal or live."""
    item = msgspec.json.decode(content, type=_ReceivedEvent)
    live = LIVE_CLASSES.get(item.type)
    return LiveEvent(item.thread, item.turn, msgspec.json.decode(item.data, type=live)) if live else item.event()


def decode_event(content: msgspec.Raw) -> Event:
    """An event of the journal as the API shows it."""
    return msgspec.json.decode(content, type=_ReceivedEvent).event()
