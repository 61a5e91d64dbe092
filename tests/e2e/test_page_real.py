"""The page with a real `shoal run` and the demo model: a chat, an approval, and a process killed during a turn."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect
from tests.e2e.page_kit import opened, violations

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

SHOAL = Path(sys.executable).with_name("shoal")
START_SECONDS = 60
SHOWN = ".by, .said, .prose, .verdict, .tool-line, .end-line"


class Running:
    """A `shoal run` on one home directory. After a restart it listens on the same port."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: Process | None = None
        self._port = 0
        self.address = ""

    async def start(self) -> None:
        # Uses no isolating sandbox even if one is installed, so commands that write a file ask for approval.
        environment = {**os.environ, "SHOAL_HOME": str(self._home), "SHOAL_SANDBOX__KIND": "host"}
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"):
            environment.pop(name, None)
        arguments = ("run", "--port", str(self._port))
        self._process = await asyncio.create_subprocess_exec(
            SHOAL, *arguments, env=environment, stdout=PIPE, stderr=DEVNULL
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            async for line in self._process.stdout:
                word, _, address = line.decode().strip().partition(" ")
                if word == "ready":
                    token = (self._home / "token").read_text().strip()
                    self.address = f"{address}?token={token}"
                    self._port = int(address.rstrip("/").rpartition(":")[2])
                    return
        raise AssertionError("shoal run ended before it served")

    async def end(self, how: signal.Signals) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        return await self._process.wait()


@asynccontextmanager
async def running(home: Path) -> AsyncGenerator[Running]:
    shoal = Running(home)
    await shoal.start()
    try:
        yield shoal
    finally:
        await shoal.end(signal.SIGKILL)


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


async def test_a_chat_with_tools_and_approvals_survives_a_kill(browser: Browser, tmp_path: Path) -> None:
    async with running(tmp_path / "home") as shoal, opened(browser, shoal.address, place="new") as page:
        await say(page, "What can you do?")
        await expect(page.locator(".row.assistant").first).to_contain_text("demo model")
        await expect(page.locator(".end-line")).to_have_count(1)
        await expect(page.locator(".outgoing")).to_have_count(0)

        await say(page, "run echo from-the-shell | tee note.txt")
        await page.get_by_role("button", name="Allow once").click()
        await expect(page.locator(".verdict")).to_contain_text("Allowed once by you, and ran")
        await page.locator(".tool-line").click()
        await expect(page.locator(".tool-panel")).to_contain_text("from-the-shell")

        await say(page, "run echo after-the-kill | tee note.txt")
        await expect(page.locator(".approval pre")).to_have_text("echo after-the-kill | tee note.txt")
        await shoal.end(signal.SIGKILL)
        await expect(page.locator(".offline")).to_be_visible()
        await say(page, "what time is it?")
        await expect(page.locator(".outgoing")).to_contain_text("Not sent yet")
        await shoal.start()
        await expect(page.locator(".offline")).to_have_count(0)
        await expect(page.locator(".outgoing")).to_contain_text("Queued")

        await page.get_by_role("button", name="Allow for this conversation").click()
        await expect(page.locator(".verdict").last).to_contain_text("Allowed for this conversation by you, and ran")
        await expect(page.locator(".end-line")).to_have_count(4)
        await expect(page.locator(".outgoing")).to_have_count(0)
        said = [
            "What can you do?",
            "run echo from-the-shell | tee note.txt",
            "run echo after-the-kill | tee note.txt",
            "what time is it?",
        ]
        await expect(page.locator(".said")).to_have_text(said)
        assert await violations(page) == []
        before = await page.locator(SHOWN).all_inner_texts()
        await page.reload()
        await expect(page.locator(".end-line")).to_have_count(4)
        await expect(page.locator(SHOWN)).to_have_text(before, use_inner_text=True)
        assert await shoal.end(signal.SIGTERM) == 0


async def test_calls_can_be_denied_and_turns_stopped_and_lists_opened(browser: Browser, tmp_path: Path) -> None:
    async with running(tmp_path / "home") as shoal, opened(browser, shoal.address, place="new") as page:
        await say(page, "run echo never | tee note.txt")
        await page.get_by_role("button", name="Deny").click()
        await expect(page.locator(".verdict")).to_have_text("Denied by you. The call did not run.")
        await expect(page.locator(".end-line")).to_have_count(1)

        await say(page, "run echo not-now | tee note.txt")
        await expect(page.locator(".places .count")).to_contain_text("1")
        await page.get_by_role("button", name="Stop", exact=True).click()
        await expect(page.locator(".end-line").last).to_contain_text("Stopped")
        await expect(page.locator(".verdict").last).to_have_text("Cancelled. The call did not run.")

        await page.locator(".places").get_by_text("Manage").click()
        await page.get_by_role("link", name="Audit").click()
        await expect(page.locator(".audit tbody tr").first).to_contain_text("bash tee note.txt")
        await page.get_by_role("link", name="Usage").click()
        await expect(page.get_by_role("rowheader", name="demo", exact=True)).to_be_visible()
        await page.get_by_role("link", name="Agents").click()
        await expect(page.locator("#agent-main")).to_contain_text("demo")
        await page.get_by_role("link", name="Schedules").click()
        await page.get_by_label("Message", exact=True).fill("Good morning")
        await page.get_by_label("Repeatedly").check()
        await page.get_by_label("How often").select_option("Cron expression")
        await page.get_by_label("Cron expression", exact=True).fill("61 9 * * *")
        await page.get_by_role("button", name="Add schedule").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await page.get_by_label("Cron expression", exact=True).fill("0 9 * * *")
        await page.get_by_role("button", name="Add schedule").click()
        await expect(page.locator(".cards .card")).to_contain_text("Good morning")
        assert await violations(page) == []
        assert await shoal.end(signal.SIGTERM) == 0


async def test_a_long_command_is_read_and_decided_in_its_thread(browser: Browser, tmp_path: Path) -> None:
    command = f"echo {'long ' * 800}the-end | tee note.txt"
    async with running(tmp_path / "home") as shoal, opened(browser, shoal.address, place="new") as page:
        await say(page, f"run {command}")
        await expect(page.get_by_role("button", name="Allow once")).to_be_visible()
        await page.evaluate("location.hash = '#/approvals'")
        text = page.locator(".pending .approval pre").first
        await expect(text).to_have_text(command)
        await expect(page.get_by_text("Part of the call is out of view.")).to_be_visible()
        await text.evaluate("box => box.scrollTo(box.scrollWidth, box.scrollHeight)")
        await page.locator(".pending").get_by_role("button", name="Allow once").click()
        await expect(page.get_by_text("Nothing is waiting for you.")).to_be_visible()
        await page.go_back()
        await expect(page.locator(".verdict")).to_contain_text("Allowed once by you, and ran")


async def test_a_chat_goes_back_to_an_earlier_message(browser: Browser, tmp_path: Path) -> None:
    async with running(tmp_path / "home") as shoal, opened(browser, shoal.address, place="new") as page:
        said = page.locator(".said")
        for number, text in enumerate(("What can you do?", "what time is it?"), 1):
            await say(page, text)
            await expect(page.locator(".end-line")).to_have_count(number)
        await page.get_by_role("button", name="Try again").last.click()
        await expect(page.locator(".branches")).to_contain_text("2/2")
        await expect(page.locator(".end-line")).to_have_count(2)

        await page.get_by_role("button", name="Edit").last.click()
        await page.get_by_label("Your message").fill("What can I do?")
        await page.get_by_role("button", name="Send", exact=True).first.click()
        await expect(said.last).to_have_text("What can I do?")
        await expect(page.locator(".branches")).to_contain_text("3/3")
        await expect(page.locator(".end-line")).to_have_count(2)
        assert await violations(page) == []
        await page.get_by_role("button", name="Previous branch").click()
        await expect(said.last).to_have_text("what time is it?")
        await expect(page.locator(".branches")).to_contain_text("2/3")
        await page.reload()
        await expect(page.locator(".branches")).to_contain_text("2/3")

        await page.get_by_role("button", name="Continue in a copy").first.click()
        await expect(page.locator(".row.note")).to_contain_text("Everything above was copied from another conversation")
        await expect(said).to_have_text(["What can you do?"])
        await say(page, "and in the copy?")
        await expect(page.locator(".end-line")).to_have_count(2)
        await page.get_by_role("link", name="Show the original").click()
        await expect(said).to_have_text(["What can you do?", "what time is it?"])
