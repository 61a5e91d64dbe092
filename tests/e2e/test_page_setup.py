"""The first run on the page: a person sets up a model and a chat, and both work without a restart."""

import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser, ViewportSize, expect
from tests.e2e.http_stand import TOKEN
from tests.e2e.page_kit import opened, violations
from tests.e2e.test_http_setup import ADA, BOT, MCP_SERVER, OTHER_BOT, running

from shoal.agents.registry import AgentRegistry

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

WIDTHS = (390, 820, 1440)


async def test_a_new_home_gets_a_model_and_a_bot(browser: Browser, tmp_path: Path) -> None:
    async with running(tmp_path / "home") as stand:
        address = str(stand.client.base_url).rstrip("/")
        async with opened(browser, f"{address}/?token={TOKEN}", place="new") as page:
            await page.get_by_role("link", name="Set up a model").click()
            form = page.get_by_role("form", name="Set up a model")
            await form.get_by_label("Provider").select_option("server")
            await form.get_by_role("textbox", name="URL").fill(stand.model)
            await form.get_by_role("textbox", name="Key").fill("wrong-key")
            await form.get_by_role("button", name="Test").click()
            await expect(form.get_by_role("alert")).to_contain_text("The server (401) rejected the API key")
            await form.get_by_role("textbox", name="Key").fill("right")
            await form.get_by_role("button", name="Test").click()
            await expect(form.get_by_role("combobox", name="Model")).to_have_value("fake-1")
            await form.get_by_role("button", name="Use this model").click()
            model = page.get_by_role("region", name="Model", exact=True)
            await expect(model.get_by_role("status").filter(has_text="Ahoy.")).to_be_visible()
            await expect(model).to_contain_text("mine/fake-1")

            await page.get_by_role("button", name="Connect a chat").click()
            form = page.get_by_role("form", name="Connect a chat")
            await form.get_by_label("Your bot's token").fill(OTHER_BOT)
            await form.get_by_role("button", name="Test").click()
            await expect(form.get_by_role("alert")).to_have_text("Telegram rejected the token for 'main'.")
            await form.get_by_label("Your bot's token").fill(BOT)
            await form.get_by_role("button", name="Connect", exact=True).click()
            await expect(page.locator(".card", has_text="Telegram")).to_contain_text("connected")

            await stand.telegram.says(ADA, "hello")
            code = (await stand.telegram.sees(ADA, "shoal pair")).text.partition("shoal pair ")[2][:8]
            await page.get_by_label("Code").fill("AAAA1111")
            await page.get_by_role("button", name="Become owner").click()
            await expect(page.get_by_role("alert")).to_contain_text("Write to your bot again.")
            await page.get_by_label("Code").fill(code)
            await page.get_by_role("button", name="Become owner").click()
            await expect(page.locator(".card", has_text="Telegram")).to_contain_text("Owner: user 7")
            await stand.telegram.says(ADA, "How is the sea?")
            await stand.telegram.sees(ADA, "Ahoy.")

            shown = await page.content()
            assert BOT not in shown
            assert await violations(page) == []


async def test_setup_fits_phones_tablets_and_desktops(browser: Browser, tmp_path: Path) -> None:
    async with running(tmp_path / "home") as stand:
        address = str(stand.client.base_url).rstrip("/")
        for width in WIDTHS:
            size = ViewportSize(width=width, height=800)
            async with opened(browser, f"{address}/?token={TOKEN}", place="setup", viewport=size) as page:
                await page.get_by_role("button", name="Connect a chat").click()
                await expect(page.get_by_label("Your bot's token")).to_be_visible()
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_an_agents_files_are_edited_and_its_settings_chosen(browser: Browser, tmp_path: Path) -> None:
    async with running(tmp_path / "home") as stand:
        address = str(stand.client.base_url).rstrip("/")
        async with opened(browser, f"{address}/?token={TOKEN}", place="agents") as page:
            await page.get_by_role("button", name="Files of main").click()
            files = page.get_by_role("region", name="Files of main")
            await files.get_by_role("button", name="Open SOUL.md").click()
            await files.get_by_role("button", name="Edit SOUL.md").click()
            await files.get_by_label("Text of SOUL.md").fill("# Calm\n\nCalm as the sea.\n")
            await files.get_by_role("button", name="Save").click()
            await expect(files.get_by_role("heading", name="Calm")).to_be_visible()
            await files.get_by_text("History").click()
            await expect(files.locator("details")).to_contain_text("write SOUL.md")
            tides = {"name": "tides.md", "mimeType": "text/markdown", "buffer": b"The tide turns at six."}
            await files.get_by_label("Add a document").set_input_files([tides])
            await expect(files.locator(".file-row", has_text="tides.md")).to_contain_text("indexed")

            await page.get_by_role("button", name="Change", exact=True).click()
            form = page.get_by_role("form", name="Change main")
            await form.get_by_label("Permissions").select_option("locked")
            await form.get_by_label("Dollars per day").fill("2.5")
            await form.get_by_role("combobox", name="Tools").select_option("some")
            await form.get_by_label("recall").check()
            await form.get_by_role("button", name="Save").click()
            await expect(form).to_have_count(0)
            agent = stand.app[AgentRegistry].spec("main")
            assert (agent.profile, agent.tools, agent.budget.usd_per_day) == ("locked", ("recall",), 2.5)
            assert await violations(page) == []


async def test_an_mcp_server_is_added_switched_off_and_removed(browser: Browser, tmp_path: Path) -> None:
    async with running(tmp_path / "home") as stand:
        address = str(stand.client.base_url).rstrip("/")
        async with opened(browser, f"{address}/?token={TOKEN}", place="mcp") as page:
            form = page.get_by_role("form", name="Add an MCP server")
            await form.get_by_label("Name", exact=True).fill("odd")
            await form.get_by_label("Program and its arguments").fill("no-such-program")
            await form.get_by_role("button", name="Add server").click()
            await expect(form.get_by_role("alert")).to_contain_text("Shoal could not connect to the server.")
            await form.get_by_label("Program and its arguments").fill(f"{sys.executable} {MCP_SERVER}")
            await form.get_by_role("button", name="Add server").click()
            await expect(page.locator(".card", has_text="odd_server.py")).to_contain_text("up")
            await page.get_by_role("button", name="Switch off odd").click()
            await expect(page.locator(".card", has_text="odd_server.py")).to_contain_text("switched off")
            await page.get_by_role("button", name="Remove odd").click()
            await page.get_by_role("button", name="Remove it").click()
            await expect(page.get_by_text("No MCP server is set up yet. Add one below.")).to_be_visible()
