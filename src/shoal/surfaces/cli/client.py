"""Calls the API for commands.

Commands call the running server of this home directory. If no server runs, `open_client` starts an application in
this process, and `call_api` only opens the database.

The lock file contains the server's address. The credential is `web.token`, or the content of the token file.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

import click
import msgspec

from shoal.config.secrets import read_token
from shoal.kernel import lazy_re
from shoal.kernel.errors import (
    Conflict,
    Gone,
    InvalidId,
    InvalidInput,
    KeyRefused,
    NotFound,
    ShoalError,
    StoreNewer,
    Unreachable,
)
from shoal.kernel.regular_files import read_regular
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.lock import is_held
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.transports import AsgiTransport, HttpTransport, Transport

if TYPE_CHECKING:
    from shoal.services import Services
    from shoal.store.store import Store

T = TypeVar("T")

LINE_BYTES_MAX = 67_108_864
RULES = "/api/permissions/"
"""Path prefix of API calls whose responses depend on this machine's sandbox."""
_HOLDER = lazy_re.compile(r"process \d+ at (http://\S+)")


class Busy(ShoalError):
    """The thread's mailbox is full."""


class Client:
    """A client of the API, over HTTP or in this process."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.place = transport.place
        self.address = transport.address
        self.is_remote = transport.is_remote

    async def call(self, method: str, path: str, body: object = None, *, into: type[T] = object) -> T:
        """Call the API and decode the response as `into`.

        Raises the error for the response's status: InvalidInput (400), NotFound (404), Conflict (409), Gone (410),
        Busy (429) or StoreNewer (501). Raises ShoalError for any other failure.
        """
        async with self._transport.open(method, path, "application/json", body) as (status, pieces):
            try:
                async with asyncio.timeout(self._transport.seconds):
                    content = b"".join([piece async for piece in pieces])
            except (OSError, TimeoutError) as error:
                raise ShoalError(f"{self._named} stopped in the middle of a response. Check its log.") from error
        return decoded(status, content, into, self._named)

    async def stream(self, path: str, method: str = "GET", body: object = None) -> AsyncGenerator[bytes]:
        """Yield the data of server-sent events until the server ends the stream. Raises ShoalError."""
        async with self._transport.open(method, path, "text/event-stream", body) as (status, pieces):
            if status != 200:
                decoded(status, b"".join([piece async for piece in pieces]), object, self._named)
            rest = b""
            try:
                async for piece in pieces:
                    *lines, rest = (rest + piece).split(b"\n")
                    if len(rest) > LINE_BYTES_MAX:
                        raise ShoalError(f"{self._named} sent an event larger than {LINE_BYTES_MAX} bytes.")
                    for line in lines:
                        if line.startswith(b"data: "):
                            yield line.removeprefix(b"data: ")
            except OSError as error:
                raise ShoalError(f"{self._named} stopped sending events. Check its log.") from error

    @property
    def _named(self) -> str:
        return f"Shoal at {self.address}" if self.address else "Shoal"


def find_server(context: CommandContext) -> Client | None:
    try:
        match = _HOLDER.fullmatch(read_regular(context.home.lock_file).decode("utf-8", "replace").strip())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if match is None or not is_held(context.home.lock_file):
        return None
    token = context.config().web.token.reveal()
    if not token and context.home.token_file.exists():
        token = read_token(context.home)
    return Client(HttpTransport(match[1], token))


def call_api(context: CommandContext, method: str, path: str, body: object = None, *, into: type[T] = object) -> T:
    """Call the API and decode the response as `into`.

    If no server is running, this opens the database as `CommandContext.read` does for GET, and as
    `CommandContext.write` does for other methods. No services start, and changes take effect at Shoal's next start.
    Raises the errors of these `CommandContext` methods and of `Client.call`.
    """
    server = find_server(context)
    if server is not None:
        return asyncio.run(server.call(method, path, body, into=into))
    config = context.config()

    async def call(store: "Store") -> T:
        from shoal.app import Overrides, open_app
        from shoal.surfaces.cli.known_tools import sandbox_here

        sandbox = await sandbox_here(config) if path.startswith(RULES) else None
        async with (
            open_app(config, Overrides(driver=store.driver, sandbox=sandbox), role="offline") as services,
            client_of(services) as client,
        ):
            return await client.call(method, path, body, into=into)

    return (context.read if method == "GET" else context.write)(call)


@asynccontextmanager
async def client_of(services: "Services") -> AsyncGenerator[Client]:
    """Yield a client that calls an application in this process with the owner's rights."""
    from shoal.surfaces.http.options import WebOptions
    from shoal.surfaces.http.server import WebApp

    token = secrets.token_urlsafe(32)
    web = WebApp(services, WebOptions(token=token))
    try:
        yield Client(AsgiTransport(web, token))
    finally:
        web.close()


@asynccontextmanager
async def open_client(context: CommandContext) -> AsyncGenerator[Client]:
    """Yield a client of the running server of this home directory. If no server runs, start an application in this
    process.

    Raises NotFound if the home directory does not exist, and the errors of `open_app`.
    """
    server = find_server(context)
    if server is not None:
        yield server
        return
    context.check_root()
    async with started(context) as services, client_of(services) as client:
        yield client


@asynccontextmanager
async def started(context: CommandContext) -> AsyncGenerator["Services"]:
    from shoal.app import open_app
    from shoal.maintenance import collect_seldom

    config = context.config()
    context.guard()
    async with open_app(config) as services:
        collect_seldom()
        yield services


def call_app(context: CommandContext, method: str, path: str, body: object = None, *, into: type[T]) -> T:
    """Make one call to a running application, through `open_client`. Raises the errors of `open_client` and
    `Client.call`.
    """

    async def call() -> T:
        async with open_client(context) as api:
            return await api.call(method, path, body, into=into)

    return asyncio.run(call())


def get(context: CommandContext, path: str, into: type[T], **query: str | int | bool) -> T:
    """Call `call_api` with GET. Query parameters with an empty string are omitted."""
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
    asked = urlencode({name: value for name, value in given.items() if value != ""})
    return call_api(context, "GET", f"{path}?{asked}" if asked else path, into=into)


def decoded(status: int, content: bytes, into: type[T], who: str = "Shoal") -> T:
    if status < 400:
        try:
            return msgspec.json.decode(content, type=into)
        except UNREADABLE as error:
            from shoal.kernel.schema import refusal

            why = f"{who} sent a response that this version does not understand: {refusal(error, into)}."
            raise ShoalError(f"{why} Use the same version of `shoal` as the server.") from error
    try:
        refused = msgspec.json.decode(content, type=dict[str, str])
    except UNREADABLE:
        refused = {}
    message = refused.get("message")
    named: dict[str, type[ShoalError]] = {"key_refused": KeyRefused, "unreachable": Unreachable}
    kinds: dict[int, type[ShoalError]] = {
        400: InvalidInput, 404: NotFound, 409: Conflict, 410: Gone, 429: Busy, 501: StoreNewer
    }  # fmt: skip
    kind = named.get(refused.get("error", "")) or kinds.get(status, ShoalError)
    raise kind(message or f"{who} returned an error ({status}). Check its log.")


@contextmanager
def as_usage() -> Generator[None]:
    """Convert InvalidId, InvalidInput and NotFound to click.UsageError, for errors in a command's arguments."""
    try:
        yield
    except (InvalidId, InvalidInput, NotFound) as error:
        raise click.UsageError(str(error)) from error


def path_part(text: str) -> str:
    return quote(text, safe="")
