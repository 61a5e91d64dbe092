"""The page in Firefox: every view at three widths, and a message that gets a reply."""

import asyncio
import signal
from pathlib import Path

import pytest
from tests.e2e.firefox import ENTER, Firefox, firefox
from tests.e2e.test_page_real import running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("page")]

WIDTHS = (1440, 820, 390)
VIEWS = "[...document.querySelectorAll('nav a[href^=\"#/\"]')].map((link) => link.getAttribute('href')).join(' ')"
SIDEWAYS = """Math.max(document.documentElement.scrollWidth - innerWidth,
    ...[...document.querySelectorAll("main, main .log")].map((box) => box.scrollWidth - box.clientWidth))"""


async def looked_at(browser: Firefox, view: str) -> str:
    """Open a view and wait for its content. If it scrolls sideways, return the view and the distance, otherwise an
    empty string.
    """
    await browser.run(f"location.hash = {view!r}")
    await browser.until("document.querySelector('main h1, main h2')?.checkVisibility()")
    await browser.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 100)))")
    beyond = await browser.run(SIDEWAYS)
    return f"{view}: {beyond}" if isinstance(beyond, int | float) and beyond > 0 else ""


async def test_every_view_opens_and_a_message_is_answered(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.mkdir()
    async with firefox(profile) as browser, running(tmp_path / "home") as shoal:
        await browser.resize(WIDTHS[0])
        await browser.open(shoal.address)
        await browser.until("document.querySelector('nav a[href=\"#/setup\"]')")
        views = str(await browser.run(VIEWS)).split()
        assert len(views) > 10
        wide: list[str] = []
        for width in WIDTHS:
            await browser.resize(width)
            wide += [f"{width} px {overflow}" for view in views if (overflow := await looked_at(browser, view))]
        assert wide == []

        await browser.resize(WIDTHS[0])
        await browser.run("location.hash = '#/t/web:lobby:firefox'")
        await browser.until("document.querySelector('textarea')?.checkVisibility()")
        await browser.run("document.querySelector('textarea').focus()")
        await browser.press(f"hello{ENTER}")
        await browser.until("document.querySelector('main').innerText.includes('Hello! I am the demo model')")
        assert browser.errors == []
        await asyncio.wait_for(shoal.end(signal.SIGTERM), 60)
