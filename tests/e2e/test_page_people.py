"""The page with restricted tokens: it offers no forbidden actions and separates the data of different people."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from tests.e2e.http_stand import TOKEN, Served, served
from tests.e2e.page_kit import opened, violations
from tests.e2e.test_http_tokens import CANARY, FOREIGN, lived_in

from shoal.kernel.permissions import TokenScope
from shoal.threads.access_tokens import NewToken

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]


async def entry(stand: Served, name: str, scope: TokenScope, person: str = "", agent: str = "") -> str:
    _, secret = await stand.tokens.create(NewToken(name, scope, person, agent), "web:owner")
    return f"{stand.address}/?token={secret}"


async def test_a_chat_token_offers_only_the_chat(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path / "home") as stand:
        await lived_in(stand)
        stand.orchestrator.on_prompt = stand.echo
        async with opened(browser, await entry(stand, "ben", "chat"), place="audit") as page:
            await page.get_by_role("textbox", name="Message").fill("hello")
            await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_role("log").get_by_text("You said: hello")).to_be_visible()
            await expect(page.locator(".by b").first).to_have_text("You")
            await expect(page.locator(".who")).to_have_text("ben")
            await expect(page.locator(".places li")).to_have_count(0)
            await expect(page.locator(".threads li")).to_have_count(1)
            assert "web%3A%40ben%3A" in page.url
            await page.get_by_role("textbox", name="Message").fill("/")
            await expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(3)
            assert CANARY not in await page.content()
            assert await violations(page) == []


async def test_another_persons_thread_looks_empty(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path / "home") as stand:
        await lived_in(stand)
        async with opened(browser, await entry(stand, "ben", "chat"), place=f"t/{FOREIGN}") as page:
            await expect(page.get_by_text("What can I help you with?")).to_be_visible()
            assert CANARY not in await page.content()


async def test_a_read_token_sees_everything_and_changes_nothing(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path / "home") as stand:
        await lived_in(stand)
        async with opened(browser, await entry(stand, "eve", "read"), place=f"t/{FOREIGN}") as page:
            await expect(page.get_by_text(CANARY).first).to_be_visible()
            await expect(page.get_by_role("textbox")).to_have_count(0)
            await expect(page.get_by_role("link", name="New conversation")).to_have_count(0)
            await page.locator(".places").get_by_text("Manage").click()
            for place in ("Approvals", "Schedules", "Processes", "Agents", "Access", "Usage", "Audit"):
                await page.get_by_role("link", name=place).click()
                await expect(page.get_by_role("heading", name=place, exact=True)).to_be_visible()
                await expect(page.get_by_text("Loading…")).to_have_count(0)
                offered = await page.locator(
                    "#main button:visible, #main input:not([type=search]):visible"
                ).all_inner_texts()
                assert [text for text in offered if not text.startswith(("Copy", "Wrap", "Show", "Reload"))] == [], (
                    place
                )
            assert await violations(page) == []


async def test_an_approve_token_can_only_decide(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path / "home") as stand:
        await lived_in(stand)
        async with opened(browser, await entry(stand, "phone", "approve", "owner"), place="approvals") as page:
            await page.get_by_role("button", name="Allow once").click()
            await expect(page.get_by_text("Nothing is waiting for you.")).to_be_visible()
            await page.get_by_role("link", name="Schedules").click()
            await expect(page.get_by_role("button", name="Remove")).to_have_count(0)


async def test_the_next_person_does_not_see_the_previous_persons_data(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path / "home") as stand:
        stand.orchestrator.on_prompt = stand.echo
        ben, owner = await entry(stand, "ben", "chat"), f"{stand.address}/?token={TOKEN}"
        async with opened(browser, owner, place="t/web:lobby:mine") as page:
            await page.get_by_role("textbox", name="Message").fill("a draft of the owner's")
            await page.goto(ben)
            await page.get_by_role("button", name="Sign in as ben").click()
            await expect(page.locator(".who")).to_have_text("ben")
            assert "web%3A%40ben%3A" in page.url
            storage = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
            assert "mine" not in storage
            assert "draft of" not in storage


async def test_the_owner_creates_and_revokes_a_token_on_the_page(browser: Browser, tmp_path: Path) -> None:
    async with (
        served(tmp_path / "home") as stand,
        opened(browser, f"{stand.address}/?token={TOKEN}", place="access") as page,
    ):
        form = page.get_by_role("form", name="New token")
        await form.get_by_label("Name").fill("ben")
        await form.get_by_label("Permissions").select_option("approve")
        await form.get_by_role("button", name="Create token").click()
        secret = await page.locator(".panel code").inner_text()
        token = await stand.tokens.find(secret)
        assert token is not None
        assert (token.name, token.scope) == ("ben", "approve")
        await page.reload()
        revoke = page.get_by_role("button", name="Revoke ben")
        await expect(revoke).to_be_visible()
        assert secret not in await page.content()  # the page shows the secret only once
        await revoke.click()
        await page.get_by_role("button", name="Revoke it").click()
        await expect(revoke).to_have_count(0)
        assert await stand.tokens.find(secret) is None


async def test_the_page_of_a_revoked_token_asks_for_another(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path / "home") as stand:
        address = await entry(stand, "ben", "chat")
        async with opened(browser, address, place="new") as page:
            await expect(page.get_by_text("What can I help you with?")).to_be_visible()
            await stand.tokens.revoke("ben", "web:owner")
            await expect(page.get_by_role("heading", name="You are signed out")).to_be_visible()
