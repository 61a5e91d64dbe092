"""API calls of `shoal setup`, to the running Shoal or to an idle application in this process."""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import TypeVar

import click
from anyio.from_thread import BlockingPortal, start_blocking_portal

from shoal.assembly.overrides import Overrides
from shoal.config import with_ollama
from shoal.setup.chats import ChatSetup
from shoal.setup.hearing import Hearing
from shoal.surfaces.cli.client import Client, client_of, find_server
from shoal.surfaces.cli.context import CommandContext

T = TypeVar("T")


class SetupCalls:
    """A blocking client of the Shoal that is set up, for the thread at the terminal. `receives`: this process receives
    the messages to a bot, because no Shoal is running.
    """

    def __init__(self, portal: BlockingPortal, client: Client, chats: ChatSetup | None) -> None:
        self._portal = portal
        self._client = client
        self._chats = chats
        self.receives = chats is not None

    def call(self, method: str, path: str, body: object = None, *, into: type[T] = object) -> T:
        """Make a call. Raises the errors of `Client.call`."""

        async def call() -> T:
            return await self._client.call(method, path, body, into=into)

        return self.wait_for(call)

    def wait_for(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`. Ctrl-C cancels it and raises click.Abort."""
        future = self._portal.start_task_soon(work)
        try:
            return future.result()
        except KeyboardInterrupt:  # a KeyboardInterrupt inside the portal's context would end its event loop
            raise click.Abort from None
        finally:
            future.cancel()

    def hearing(self, platform: str) -> AbstractContextManager[Hearing]:
        """Receive messages from people who write to a bot, inside the context. Raises PlatformError, ConfigError."""
        assert self._chats is not None
        return self._portal.wrap_async_context_manager(self._chats.hearing(platform))


@contextmanager
def open_calls(context: CommandContext) -> Generator[SetupCalls]:
    """Open a client of the running Shoal, or of an application in this process. Raises ConfigError, and the errors of
    opening the database.
    """
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_opened(context)) as (client, chats):
        yield SetupCalls(portal, client, chats)


@asynccontextmanager
async def _opened(context: CommandContext) -> AsyncGenerator[tuple[Client, ChatSetup | None]]:
    server = find_server(context)
    if server is not None:
        yield server, None
        return
    from shoal.app import open_app

    config = await with_ollama(context.config(), os.environ)
    async with (
        context.open_store() as store,
        open_app(config, Overrides(driver=store.driver), role="offline") as services,
    ):
        chats = services[ChatSetup]  # created before the API, which then uses the same one
        async with client_of(services) as client:
            yield client, chats
