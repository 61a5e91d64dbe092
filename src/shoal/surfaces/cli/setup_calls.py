"""API calls of `shoal setup`. They go to the running server, or to an application in this process that runs no
services.
"""

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
    """A blocking API client for `shoal setup`. `receives` is True if this process receives the bot's messages,
    because no server is running.
    """

    def __init__(self, portal: BlockingPortal, client: Client, chats: ChatSetup | None) -> None:
        self._portal = portal
        self._client = client
        self._chats = chats
        self.receives = chats is not None

    def call(self, method: str, path: str, body: object = None, *, into: type[T] = object) -> T:
        async def call() -> T:
            return await self._client.call(method, path, body, into=into)

        return self.wait_for(call)

    def wait_for(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` and return its result. Ctrl-C cancels it and raises click.Abort."""
        future = self._portal.start_task_soon(work)
        try:
            return future.result()
        except KeyboardInterrupt:  # a KeyboardInterrupt inside the portal's context would end its event loop
            raise click.Abort from None
        finally:
            future.cancel()

    def hearing(self, platform: str) -> AbstractContextManager[Hearing]:
        """Receive messages that people send to a bot until the context exits. Raises PlatformError and ConfigError."""
        assert self._chats is not None
        return self._portal.wrap_async_context_manager(self._chats.hearing(platform))


@contextmanager
def open_calls(context: CommandContext) -> Generator[SetupCalls]:
    """Open a client of the running server, or of an application in this process. Raises ConfigError and the errors
    of `CommandContext.open_store`.
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
        chats = services[ChatSetup]  # created before the API, which then uses the same object
        async with client_of(services) as client:
            yield client, chats
