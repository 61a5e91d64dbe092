"""Everyday use of the page: own messages and approvals in view, instant search, and a helpful message box."""

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Browser, FilePayload, Page, ViewportSize, expect
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import PHONE, THREAD, opened, violations
from tests.e2e.test_page import ask, begin
from tests.e2e.test_page_answers import answer
from tests.e2e.test_page_layout import assert_fits

from shoal.kernel.clock import iso
from shoal.kernel.events import AssistantSaid, ToolFinished, ToolStarted, UserSaid
from shoal.kernel.ids import CallId, ThreadId
from shoal.kernel.messages import Attachment, Author, ToolCall

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

OWNER = Author("owner", trusted=True)
FOCUSED = "document.activeElement.id || document.activeElement.localName"


def much(api: PageApi) -> None:
    """Add more replies than fit on the screen."""
    for number in range(2, 14):
        answer(api, f"Answer {number}. " + "Words that go on and on. " * 40, f"t{number}")


async def read_from_the_top(page: Page) -> None:
    await expect(page.get_by_text("Answer 13.")).to_be_in_viewport()
    await page.locator(".log").hover()
    await page.mouse.wheel(0, -100_000)
    await expect(page.get_by_text("Answer 2.")).to_be_in_viewport()


async def test_sending_scrolls_to_the_new_message(browser: Browser, api: PageApi) -> None:
    much(api)
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await read_from_the_top(page)
        await page.get_by_label("Message").fill("And now?")
        await page.keyboard.press("Enter")
        await expect(page.locator(".outgoing")).to_be_in_viewport()
        api.append(THREAD, UserSaid("And now?", OWNER, str(api.sent[0].body["message_id"])))
        await expect(page.locator(".outgoing")).to_have_count(0)
        await expect(page.get_by_text("And now?")).to_be_in_viewport()


async def test_new_content_does_not_move_the_reader(browser: Browser, api: PageApi) -> None:
    much(api)
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await read_from_the_top(page)
        answer(api, "This came meanwhile.", "t99")
        await expect(page.get_by_role("button", name="Jump to newest")).to_be_visible()
        await expect(page.get_by_text("Answer 2.")).to_be_in_viewport()


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (820, 1100), (390, 780), (390, 420)])
async def test_the_jump_button_does_not_cover_the_command_menu(
    browser: Browser, api: PageApi, width: int, height: int
) -> None:
    much(api)
    api.answers["commands"] = [{"name": f"do{n}", "usage": "[NUMBER]", "description": "Do it."} for n in range(20)]
    async with opened(browser, api.address, viewport=ViewportSize(width=width, height=height)) as page:
        await api.watched(THREAD)
        await read_from_the_top(page)
        answer(api, "This came meanwhile.", "t99")
        newest, choices = page.get_by_role("button", name="Jump to newest"), page.get_by_role("listbox")
        await expect(newest).to_be_visible()
        await page.get_by_label("Message").press_sequentially("/")
        await expect(choices.get_by_role("option")).to_have_count(12)
        await expect(choices).to_be_in_viewport(ratio=1)
        await expect(newest).to_be_in_viewport(ratio=1)
        pill, menu = await newest.bounding_box(), await choices.bounding_box()
        assert pill
        assert menu
        assert pill["y"] + pill["height"] <= menu["y"], (pill, menu)


async def test_an_approval_out_of_sight_is_announced_with_a_link(browser: Browser, api: PageApi) -> None:
    much(api)
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await read_from_the_top(page)
        begin(api)
        ask(api)
        await page.get_by_role("button", name="Waiting for your decision").click()
        await expect(page.get_by_role("button", name="Allow once")).to_be_in_viewport()
        await expect(page.get_by_role("button", name="Waiting for your decision")).to_have_count(0)
        await page.mouse.wheel(0, -100_000)  # the link appears again when the reader scrolls away
        await expect(page.get_by_role("button", name="Waiting for your decision")).to_be_visible()


async def test_an_approval_scrolls_into_view_for_a_reader_at_the_end(browser: Browser, api: PageApi) -> None:
    much(api)
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await expect(page.get_by_text("Answer 13.")).to_be_in_viewport()
        begin(api)
        ask(api)
        await expect(page.get_by_role("button", name="Allow once")).to_be_in_viewport()


async def test_text_typed_right_after_ctrl_k_is_searched_for(browser: Browser, api: PageApi) -> None:
    answer(api, "An answer.")
    async with opened(browser, api.address) as page:
        box = page.get_by_label("Message")
        await expect(box).to_be_focused()
        await page.evaluate(
            """() => {
              const press = (key, ctrlKey) => document.activeElement.dispatchEvent(
                new KeyboardEvent("keydown", { key, ctrlKey, bubbles: true, cancelable: true }));
              press("k", true);
              for (const key of "low tide") press(key, false);
            }"""
        )
        await expect(page.get_by_role("combobox", name="Search")).to_have_value("low tide")
        await expect(page.get_by_role("combobox", name="Search")).to_be_focused()
        await page.keyboard.press("Control+k")
        await page.keyboard.type("!")
        await expect(page.get_by_role("combobox", name="Search")).to_have_value("low tide!")
        await expect(box).to_have_value("")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(box).to_be_focused()


async def test_two_approvals_of_one_tool_are_distinguishable(browser: Browser, api: PageApi) -> None:
    begin(api)
    expires_at = iso(datetime.now(UTC) + timedelta(minutes=60))
    api.lists["approvals"] = [
        {
            "id": f"a{number}", "thread": THREAD, "tool": "bash", "state": "pending", "shown": shown,
            "actions": [f"tool:bash:{shown}"], "expires_at": expires_at, "created_at": expires_at,
            "asked_by": ("web:owner", "terminal:owner")[number], "agent": "main",
        }
        for number, shown in enumerate(("make", "make test"))
    ]  # fmt: skip
    async with opened(browser, api.address, place="approvals") as page:
        for shown in ("make", "make test"):
            name = f"bash asks for approval: {shown}"
            await expect(page.get_by_role("group", name=name, exact=True)).to_have_count(1)
        await expect(page.get_by_text("Asked by main, for you", exact=True)).to_have_count(2)
        await expect(page.get_by_text("expires in 1h")).to_have_count(2)


async def test_arrow_up_recalls_earlier_messages(browser: Browser, api: PageApi) -> None:
    for text in ("first", "second"):
        api.append(THREAD, UserSaid(text, OWNER))
    api.append(THREAD, UserSaid("", OWNER))  # a message with only a file
    api.append(THREAD, UserSaid("of somebody else", Author("ben", trusted=True)))
    async with opened(browser, api.address) as page:
        box = page.get_by_label("Message")
        await expect(page.get_by_text("of somebody else")).to_be_visible()
        await box.focus()
        for key, text in (("Up", "second"), ("Up", "first"), ("Up", "first"), ("Down", "second"), ("Down", "")):
            await page.keyboard.press(f"Arrow{key}")
            await expect(box).to_have_value(text)
        await box.fill("my own")
        await page.keyboard.press("ArrowUp")
        await expect(box).to_have_value("my own")


async def test_a_message_with_only_a_file_has_no_empty_text(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("", OWNER, attachments=(Attachment("voice.webm", "audio/webm", 3),)))
    async with opened(browser, api.address) as page:
        await expect(page.get_by_text("voice.webm")).to_be_visible()
        await expect(page.locator(".said")).to_have_count(0)


@pytest.mark.parametrize(("thread", "words"), [("terminal:local:main", "in a terminal"), (THREAD, "by a program")])
async def test_terminal_messages_differ_from_those_of_programs(
    browser: Browser, api: PageApi, thread: str, words: str
) -> None:
    api.append(ThreadId(thread), UserSaid("hello", OWNER, origin="api"))
    async with opened(browser, api.address, place=f"t/{thread}") as page:
        await expect(page.locator(".user .by")).to_contain_text(words)


async def test_attachments_are_shown_above_the_buttons(browser: Browser, api: PageApi) -> None:
    begin(api)
    notes = FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"x")
    async with opened(browser, api.address) as page:
        await page.locator("input[type=file]").set_input_files(notes)
        chip = await page.locator(".files li").bounding_box()
        button = await page.get_by_role("button", name="Attach a file").bounding_box()
        assert chip is not None
        assert button is not None
        assert chip["y"] + chip["height"] <= button["y"]


async def test_agents_and_files_are_completed_while_typing(browser: Browser, api: PageApi) -> None:
    begin(api)
    call = ToolCall(CallId("c1"), "write", '{"content": "x", "path": "notes/plan.md"}')
    api.append(THREAD, AssistantSaid("", (call,), "tool_calls"))
    api.append(THREAD, ToolStarted(call.id, "write"))
    api.append(THREAD, ToolFinished(call.id, "write", "Written."))
    api.lists["agents"] = [{"name": name, "model": "demo"} for name in ("main", "writer")]
    sent = "attachments/01M87X8JXQ77A7P8BZWW70MGJ1-chart.pdf"
    api.answers[f"threads/{THREAD}/files"] = [{"path": "scratch/plot.png"}, {"path": sent}]
    async with opened(browser, api.address) as page:
        box = page.get_by_label("Message")
        await box.press_sequentially("Ask @wri")
        await expect(page.get_by_role("listbox", name="Agents")).to_contain_text("writer")
        await page.keyboard.press("Enter")
        await expect(box).to_have_value("Ask @writer ")
        await box.press_sequentially("about #chart")
        chart = page.get_by_role("listbox", name="Files").get_by_role("option")
        assert (await chart.inner_text()).strip() == "chart.pdf"
        await page.keyboard.press("Tab")
        await expect(box).to_have_value(f"Ask @writer about /{sent} ")
        await box.fill("Ask @writer ")
        await box.press_sequentially("about #pl")
        await expect(page.get_by_role("listbox", name="Files").get_by_role("option")).to_have_text(
            [re.compile("/scratch/plot.png"), re.compile("notes/plan.md")]
        )
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Tab")
        await expect(box).to_have_value("Ask @writer about notes/plan.md ")
        await page.keyboard.press("Enter")
        await expect(page.locator(".outgoing .said")).to_have_text("Ask @writer about notes/plan.md ")


async def test_a_draft_is_shared_between_tabs_until_it_is_sent(browser: Browser, api: PageApi) -> None:
    begin(api)
    async with opened(browser, api.address) as page:
        await page.get_by_label("Message").fill("half a thought")
        other = await page.context.new_page()
        await other.goto(page.url)
        await expect(other.get_by_label("Message")).to_have_value("half a thought")
        await other.get_by_label("Message").press("Enter")
        await expect(other.locator(".outgoing")).to_be_visible()
        assert "half" not in await other.evaluate("JSON.stringify(localStorage)")


async def test_an_upload_shows_its_progress(browser: Browser, api: PageApi) -> None:
    begin(api)
    async with opened(browser, api.address) as page:
        await page.evaluate(
            """() => {
              window.shares = [];
              new MutationObserver(() => {
                const share = document.querySelector("progress")?.value;
                if (share !== undefined) window.shares.push(share);
              }).observe(document.body, { childList: true, subtree: true, attributes: true });
            }"""
        )
        line = await page.context.new_cdp_session(page)  # so slow that the browser reports progress
        slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 4_000_000}
        await line.send("Network.emulateNetworkConditions", slow)
        large = FilePayload(name="large.bin", mimeType="application/octet-stream", buffer=b"x" * 6_000_000)
        await page.locator("input[type=file]").set_input_files(large)
        await page.get_by_role("button", name="Queue").click()
        async with asyncio.timeout(60):
            while not any(request.kind == "message" for request in api.sent):
                await page.evaluate("new Promise(requestAnimationFrame)")
        shares = await page.evaluate("window.shares")
        assert shares
        assert all(0 < share <= 1 for share in shares)
        assert [request.body for request in api.sent if request.kind == "upload"] == [{"bytes": 6_000_000}]


async def test_turn_actions_appear_on_hover_and_focus(browser: Browser, api: PageApi) -> None:
    answer(api, "One.")
    answer(api, "Two.", "t2")
    async with opened(browser, api.address) as page:
        first, last = page.locator(".acts").first, page.locator(".acts").last
        await expect(last).to_have_css("opacity", "1")
        await expect(first).to_have_css("opacity", "0")
        await page.get_by_text("One.").hover()
        await expect(first).to_have_css("opacity", "1")
        await first.get_by_role("button", name="Try again").focus()
        await expect(first.locator(".label", has_text="Try again")).to_be_visible()


async def test_on_touch_screens_turn_actions_expand(browser: Browser, api: PageApi) -> None:
    answer(api, "One.")
    async with opened(browser, api.address, viewport=PHONE) as page:
        session = await page.context.new_cdp_session(page)
        await session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
        await expect(page.get_by_role("button", name="Try again")).to_be_hidden()
        await page.get_by_role("button", name="Actions on this turn").click()
        await expect(page.locator(".acts .label", has_text="Try again")).to_be_visible()
        await assert_fits(page)


async def test_a_hidden_list_stays_hidden(browser: Browser, api: PageApi) -> None:
    begin(api)
    async with opened(browser, api.address) as page:
        rail = page.get_by_role("navigation", name="Conversations and views")
        await page.get_by_role("button", name="Hide sidebar").click()
        await expect(rail).to_be_hidden()
        await expect(page.get_by_role("button", name="Conversations and views")).to_be_focused()
        await page.reload()
        await expect(page.get_by_label("Message")).to_be_visible()
        await expect(rail).to_be_hidden()
        await page.get_by_role("button", name="Conversations and views").click()
        await expect(rail).to_be_visible()
        await expect(page.get_by_role("button", name="Hide sidebar")).to_be_focused()
        assert await violations(page) == []


async def test_most_views_are_behind_a_menu(browser: Browser, api: PageApi) -> None:
    begin(api)
    async with opened(browser, api.address) as page:
        places = page.locator(".places")
        shown = places.get_by_role("link").locator("visible=true")
        await expect(shown).to_have_text(["Today", "Approvals", "Schedules", "Agents"])
        assert await page.evaluate(
            "document.querySelector('.places').offsetHeight < innerHeight / 7"
            " && document.querySelector('.threads').offsetHeight > innerHeight / 2"
        )
        await places.get_by_text("Manage").click()
        await places.get_by_role("link", name="Audit").click()
        await expect(page.get_by_role("heading", name="Audit", exact=True)).to_be_visible()
        await page.reload()
        await expect(places.get_by_role("link", name="Audit")).to_be_visible()
