"""The page opened in a real Chromium, against a scripted or a real server."""

import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from playwright.async_api import Browser, BrowserContext, Page, ViewportSize, async_playwright, expect

WITH_NOTIFICATIONS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSERS = ("chromium-headless-shell", *WITH_NOTIFICATIONS)
"""The first is the same engine without what is around a page: it takes half the time, and shows no notifications."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
DESKTOP = ViewportSize(width=1180, height=820)
PHONE = ViewportSize(width=360, height=740)
THREAD = "web:lobby:test"
PATIENCE_MS = 60_000
"""How long something may take to appear: on a busy machine that is no fault of the page's."""
expect.set_options(timeout=PATIENCE_MS)

# Everything the policy blocked, and whether anything ran that must not.
WATCH = """
window.pwned = 0;
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


def chromium(names: Sequence[str] = BROWSERS) -> str:
    """The path of the first that there is; skips the test where there is none."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"None of {', '.join(names)} is installed; scripts/browser.sh installs Chromium")
    return found


@asynccontextmanager
async def launched(path: str, *flags: str) -> AsyncGenerator[Browser]:
    """A browser that runs until the block ends."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=[*FLAGS, *flags])
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(
    browser: Browser,
    address: str,
    *,
    place: str = f"t/{THREAD}",
    viewport: ViewportSize = DESKTOP,
    scheme: Literal["light", "dark"] = "light",
) -> AsyncGenerator[Page]:
    """The page at a place, signed in by `address`; fails at the end when a script of it failed."""
    context: BrowserContext = await browser.new_context(
        viewport=viewport, color_scheme=scheme, reduced_motion="reduce", timezone_id="UTC"
    )
    await context.add_init_script(WATCH)
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        await page.goto(address)
        await page.evaluate("place => { location.hash = place; }", f"#/{place}")
        yield page
        assert not errors, errors
    finally:
        await context.close()


async def violations(page: Page) -> list[str]:
    """What the page's policy has blocked so far."""
    found: list[str] = await page.evaluate("window.violations")
    return found
