"""Shared fixtures of the browser tests: one Chromium and a scripted server."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import chromium, launched


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all page tests. They must share its event loop, which is the session's."""
    async with launched(chromium()) as chromium_browser:
        yield chromium_browser


@pytest_asyncio.fixture(loop_scope="session")
async def api() -> AsyncIterator[PageApi]:
    server = PageApi()
    await server.start()
    yield server
    await server.stop()
