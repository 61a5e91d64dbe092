"""Opens the page in a real Chromium, against a scripted or a real server."""

import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from playwright.async_api import Browser, BrowserContext, Page, ViewportSize, async_playwright, expect

WITH_NOTIFICATIONS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSERS = ("chromium-headless-shell", *WITH_NOTIFICATIONS)
"""Browsers to try. The headless shell is the same engine without notifications and takes half the time."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
DESKTOP = ViewportSize(width=1180, height=820)
PHONE = ViewportSize(width=360, height=740)
THREAD = "web:lobby:test"
PATIENCE_MS = 60_000
"""Timeout for anything to appear. It is generous because test machines are busy."""
expect.set_options(timeout=PATIENCE_MS)

# Records all violations of the content security policy. `pwned` stays 0 unless injected code runs.
WATCH = """
window.pwned = 0;
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


def chromium(names: Sequence[str] = BROWSERS) -> str:
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"None of {', '.join(names)} is installed; scripts/browser.sh installs Chromium")
    return program


@asynccontextmanager
async def launched(path: str, *flags: str) -> AsyncGenerator[Browser]:
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
    """Open a view of the page, signed in through `address`. Fails at the end if a script raised an error."""
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
    blocked: list[str] = await page.evaluate("window.violations")
    return blocked
