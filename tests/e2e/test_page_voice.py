"""The page's microphone, in a browser with a simulated microphone that beeps: recordings are transcribed, and
replies are spoken.
"""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from tests.e2e.page_kit import chromium, launched, opened, violations
from tests.e2e.test_page_real import running

from shoal.testing.model import FakeModel, FakeSettings

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

DEVICE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
CONFIG = """
[model]
name = "one/fake-1"
[providers.one]
kind = "openai"
base_url = "{url}/v1"
api_key = "sk-one"
[speech]
recognition = "one/whisper-1"
speaking = "one/tts-1"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talking() -> AsyncIterator[Browser]:
    async with launched(chromium(), *DEVICE) as chromium_browser:
        yield chromium_browser


async def test_a_recorded_message_is_transcribed_and_answered_aloud(talking: Browser, tmp_path: Path) -> None:
    model = FakeModel("It is high at six.", settings=FakeSettings(words="When is high tide?"))
    home = tmp_path / "home"
    home.mkdir()
    async with model.serve():
        (home / "shoal.toml").write_text(CONFIG.format(url=model.url))
        async with running(home) as shoal, opened(talking, shoal.address) as page:
            await page.get_by_role("button", name="Record a voice note").click()
            await expect(page.get_by_role("status").filter(has_text=re.compile("Recording.*[1-9]"))).to_be_visible()
            await page.get_by_role("button", name="Send recording").click()
            await expect(page.locator(".said").first).to_have_text("When is high tide?")
            await expect(page.locator(".row.assistant").first).to_contain_text("It is high at six.")
            await expect(page.locator("audio")).to_have_count(2)
            spoken = page.locator(".spoken audio")
            await expect(spoken).to_be_visible()
            await spoken.evaluate(
                "audio => audio.readyState > 0 || new Promise((met) => (audio.onloadedmetadata = met, audio.load()))"
            )
            assert await spoken.evaluate("audio => audio.duration") > 0.5
            heard = page.locator("audio.heard")
            await heard.evaluate(
                "audio => new Promise((met, not) => (audio.onloadedmetadata = met, audio.onerror = not, audio.load()))"
            )
            assert not await violations(page)
    assert [path for path, _ in model.audio] == ["/v1/audio/transcriptions", "/v1/audio/speech"]
    assert b"\x1aE\xdf\xa3" in model.audio[0][1]


async def test_a_recording_can_be_discarded(talking: Browser, tmp_path: Path) -> None:
    model = FakeModel()
    home = tmp_path / "home"
    home.mkdir()
    async with model.serve():
        (home / "shoal.toml").write_text(CONFIG.format(url=model.url))
        async with running(home) as shoal, opened(talking, shoal.address) as page:
            await page.get_by_role("button", name="Record a voice note").click()
            await page.get_by_role("button", name="Discard").click()
            await expect(page.get_by_role("button", name="Record a voice note")).to_be_visible()
            await expect(page.locator(".outgoing")).to_have_count(0)
    assert not model.audio
