"""The page while its server is unreachable: nothing is lost, shown twice or sent twice."""

import asyncio

import pytest
from playwright.async_api import Browser, Locator, Page, expect
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import THREAD, opened

from shoal.kernel.events import AssistantSaid, TextStreamed, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.messages import Author

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

OWNER = Author("owner", trusted=True)


def answer(api: PageApi, text: str, turn: str = "t1") -> None:
    api.append(THREAD, AssistantSaid(text), turn)
    api.append(THREAD, TurnFinished("done", text, 1), turn)


def texts(page: Page) -> Locator:
    return page.locator(".said, .row.assistant .prose")


def posted_ids(api: PageApi) -> list[object]:
    return [sent.body["message_id"] for sent in api.sent if sent.kind == "message"]


async def try_now(page: Page) -> None:
    """Press "Try now". The button disappears if the page has reconnected by itself."""
    await page.get_by_role("button", name="Try now").evaluate_all("(found) => found.forEach((one) => one.click())")


async def test_a_restart_neither_loses_nor_repeats_anything(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    api.append(THREAD, TurnStarted("main", "demo"))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        api.live(THREAD, TextStreamed("half of the ans"))
        await expect(page.locator(".live")).to_contain_text("half of the ans")
        await api.stop()
        await expect(page.locator(".offline")).to_contain_text("Cannot reach Shoal")
        answer(api, "the answer")
        api.append(THREAD, UserSaid("two", OWNER), "t2")
        api.append(THREAD, TurnStarted("main", "demo"), "t2")
        await api.start()
        await try_now(page)
        await expect(page.locator(".offline")).to_have_count(0)
        await expect(page.get_by_text("two", exact=True)).to_be_visible()
        await api.watched(THREAD)
        answer(api, "the second answer", "t2")
        await expect(page.get_by_role("log").get_by_text("the second answer")).to_be_visible()
        await expect(texts(page)).to_have_text(["one", "the answer", "two", "the second answer"])
        await expect(page.locator(".live")).to_have_count(0)


async def test_the_page_reconnects_by_itself(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await api.stop()
        await expect(page.locator(".offline")).to_be_visible()
        await api.start()
        await expect(page.locator(".link")).to_have_text("Connected")


async def test_a_message_written_offline_is_sent_once(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await api.stop()
        await expect(page.locator(".offline")).to_be_visible()
        for text in ("first", "second"):
            await page.get_by_label("Message").fill(text)
            await page.keyboard.press("Enter")
        await expect(page.locator(".outgoing")).to_have_count(2)
        await expect(page.locator(".outgoing").first).to_contain_text("Not sent yet")
        await api.start()
        await try_now(page)
        await expect(page.get_by_text("Not sent yet")).to_have_count(0)
        await expect(page.get_by_text("Delivered")).to_have_count(2)
        assert [sent.body["text"] for sent in api.sent] == ["first", "second"]


async def test_a_message_with_a_lost_response_is_resent_with_its_id(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    api.drop_answers = 2
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await page.get_by_label("Message").fill("only once")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Delivered")).to_be_visible()
        ids = posted_ids(api)
        assert len(ids) == 3
        assert len(set(ids)) == 1
        api.append(THREAD, UserSaid("only once", OWNER, str(ids[0])), "t2")
        await expect(page.locator(".outgoing")).to_have_count(0)
        await expect(texts(page)).to_have_text(["one", "only once"])


async def test_unsent_messages_survive_a_reload(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await page.route("**/messages", lambda route: route.abort())
        await page.get_by_label("Message").fill("kept")
        await page.keyboard.press("Enter")
        await expect(page.locator(".outgoing")).to_contain_text("Not sent yet")
        await page.get_by_label("Message").fill("a draft")
        await page.reload()
        await expect(page.get_by_label("Message")).to_have_value("a draft")
        await expect(page.locator(".outgoing")).to_contain_text("kept")
        await page.unroute("**/messages")
        await expect(page.get_by_text("Delivered")).to_be_visible()
        assert [sent.body["text"] for sent in api.sent] == ["kept"]


async def test_a_message_removed_from_the_queue_is_not_lost(browser: Browser, api: PageApi) -> None:
    """After `/stop all`, the server has neither the message nor an event about it. The page must keep the text."""
    api.append(THREAD, UserSaid("one", OWNER))
    api.append(THREAD, TurnStarted("main", "demo"))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await page.get_by_label("Message").fill("and this")
        await page.keyboard.press("Enter")
        await expect(page.locator(".outgoing")).to_contain_text("Queued")
        answer(api, "done")
        await expect(page.locator(".outgoing")).to_contain_text("removed from the queue")
        await page.get_by_role("button", name="Discard").click()
        await expect(page.locator(".outgoing")).to_have_count(0)


async def test_a_replaced_journal_is_read_again(browser: Browser, api: PageApi) -> None:
    for text in ("old one", "old two"):
        api.append(THREAD, UserSaid(text, OWNER))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await api.stop()
        api.journals[THREAD].clear()
        api.append(THREAD, UserSaid("a new life", OWNER))
        await api.start()
        await expect(page.get_by_text("a new life")).to_be_visible()
        await expect(texts(page)).to_have_text(["a new life"])


async def test_other_threads_show_a_new_marker(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    api.append("web:lobby:other", UserSaid("two", OWNER))
    async with opened(browser, api.address) as page:
        other = page.locator(".threads a", has_text="other")
        await expect(other).to_be_visible()
        await expect(other).not_to_contain_text("new")
        api.append("web:lobby:other", UserSaid("three", OWNER))
        await expect(other).to_contain_text("new")
        await other.click()
        await expect(page.get_by_text("three")).to_be_visible()
        await expect(other).not_to_contain_text("new")


async def test_an_idle_page_makes_no_request_for_a_minute(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    api.append(THREAD, TurnStarted("main", "demo"))
    async with opened(browser, api.address) as page:
        await page.clock.install()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.reload()
        await expect(page.get_by_text("one", exact=True)).to_be_visible()
        await api.watched(THREAD)
        async with asyncio.timeout(60):
            while asked:  # the page polls until its change stream is open
                asked.clear()
                await page.clock.run_for(5_000)
        api.append("web:lobby:other", UserSaid("two", OWNER))  # both streams now deliver something
        api.live(THREAD, TextStreamed("half of the ans"))
        await expect(page.locator(".threads a", has_text="other")).to_be_visible()
        await expect(page.locator(".live")).to_contain_text("half of the ans")
        assert not any(url.endswith("/api/me") for url in asked)
        async with asyncio.timeout(60):
            while True:  # the page loads what has changed
                asked.clear()
                await page.clock.run_for(500)
                if not asked:
                    break
        await page.clock.run_for(54_000)
        assert asked == []
        async with page.expect_request("**/api/me"):
            await page.clock.run_for(40_000)


async def test_lists_are_polled_without_the_change_stream(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await page.route("**/api/changes", lambda route: route.abort())
        await page.reload()
        await expect(page.get_by_text("one", exact=True)).to_be_visible()
        api.append("web:lobby:other", UserSaid("two", OWNER))
        await expect(page.locator(".threads a", has_text="other")).to_be_visible()


async def test_two_tabs_of_a_browser_both_show_changes(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        other = await page.context.new_page()
        await other.goto(page.url)
        await expect(other.get_by_text("one", exact=True)).to_be_visible()
        api.append("web:lobby:other", UserSaid("two", OWNER))
        for shown in (page, other):
            await expect(shown.locator(".threads a", has_text="other")).to_be_visible()
        await other.close()
        api.append("web:lobby:third", UserSaid("three", OWNER))
        await expect(page.locator(".threads a", has_text="third")).to_be_visible()
