"""What the browser tests share: one Chromium, and the scripted server under the page."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import chromium, launched


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all tests of the page, which run in the event loop of the session."""
    async with launched(chromium()) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def api() -> AsyncIterator[PageApi]:
    """The scripted server."""
    server = PageApi()
    await server.start()
    yield server
    await server.stop()
