"""What the browser tests share: one Chromium a file, and the scripted server under the page."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, async_playwright
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import FLAGS, chromium


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for a file's tests, which run in the file's event loop."""
    path = chromium()
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=path, args=[*FLAGS])
        yield launched
        await launched.close()


@pytest_asyncio.fixture(loop_scope="module")
async def api() -> AsyncIterator[PageApi]:
    """The scripted server."""
    server = PageApi()
    await server.start()
    yield server
    await server.stop()
