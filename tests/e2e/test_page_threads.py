"""Threads on the page: groups, names, views, deletion, message search, and the choice of agent."""

import asyncio
import re
from datetime import timedelta
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import PHONE, THREAD, opened, violations
from tests.e2e.test_page_layout import CONTRAST, assert_fits

from shoal.kernel.events import AssistantSaid, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.messages import Author, Usage

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

OWNER = Author("owner", trusted=True)
OTHER = "web:lobby:other"
ULID = "terminal:ask:01JQXYZ0000000000000000000"


def talk(api: PageApi, thread: str, text: str, turn: str = "t1", agent: str = "main") -> None:
    api.append(thread, UserSaid(text, OWNER), turn)
    api.append(thread, TurnStarted(agent, "demo"), turn)
    api.append(thread, AssistantSaid(f"On {text}.", usage=Usage(900, 40)), turn)
    api.append(thread, TurnFinished("done", f"On {text}.", 1, Usage(900, 40)), turn)


def plans(api: PageApi) -> None:
    """Add two threads. A search for `plan` finds one of them and a command."""
    talk(api, THREAD, "one")
    talk(api, OTHER, "two")
    api.titles = {OTHER: "Plan of the coast"}
    api.lists["commands"] = [{"name": "plan", "description": "make one", "usage": ""}]


async def manage(page: Page) -> None:
    await page.get_by_role("button", name="Conversation options").click()


def groups(page: Page) -> Locator:
    return page.locator(".group > summary > span")


async def test_a_thread_is_renamed_pinned_and_archived(browser: Browser, api: PageApi) -> None:
    talk(api, THREAD, "one")
    talk(api, OTHER, "two")
    api.titles = {THREAD: "The first", OTHER: "The second"}
    async with opened(browser, api.address) as page:
        await expect(page.get_by_role("heading", name="The first")).to_be_visible()
        await manage(page)
        await page.get_by_label("Name").fill("A better name")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(page.get_by_role("heading", name="A better name")).to_be_visible()
        await manage(page)
        await page.get_by_role("button", name="Pin", exact=True).click()
        await expect(page.locator(".group", has_text="Pinned").locator(".thread")).to_have_text(
            [re.compile("A better name")]
        )
        await page.get_by_role("button", name="Options for The second").click()
        await page.get_by_role("button", name="Archive").click()
        await expect(page.locator(".threads a", has_text="The second")).to_be_hidden()
        await page.get_by_text("Archived").click()
        await expect(page.locator(".threads a", has_text="The second")).to_be_visible()
        assert [sent.body for sent in api.sent] == [{"title": "A better name"}, {"pinned": True}, {"archived": True}]
        assert await violations(page) == []


async def test_a_thread_is_deleted_after_a_confirmation(browser: Browser, api: PageApi) -> None:
    talk(api, THREAD, "one")
    talk(api, OTHER, "two")
    async with opened(browser, api.address) as page:
        await manage(page)
        await page.get_by_role("button", name="Delete").click()
        assert api.sent == []
        await page.get_by_role("button", name="Delete permanently").click()
        await expect(page.get_by_role("heading", name="What can I help you with?")).to_be_visible()
        await expect(page.locator(".threads a", has_text="test")).to_have_count(0)
        assert [(sent.kind, sent.target) for sent in api.sent] == [("delete", THREAD)]


async def test_a_running_thread_cannot_be_deleted(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    api.append(THREAD, TurnStarted("main", "demo"))
    async with opened(browser, api.address) as page:
        await manage(page)
        await expect(page.get_by_text("A turn is running.")).to_be_visible()
        await expect(page.get_by_role("button", name="Delete")).to_have_count(0)


async def test_threads_are_grouped_by_day_agent_and_platform(browser: Browser, api: PageApi) -> None:
    talk(api, ULID, "what time is it?")
    api.titles = {THREAD: "Mine"}
    talk(api, THREAD, "one", agent="main")
    talk(api, "slack:C1:1", "two")
    api.marks["slack:C1:1"] = {"agent": "ops"}
    talk(api, "web:lobby:over", "over")
    api.marks["web:lobby:over"] = {"archived": True}
    async with opened(browser, api.address) as page:
        await expect(page.locator(".group").first).to_be_visible()
        await expect(groups(page).last).to_have_text("Archived")
        assert (await groups(page).all_inner_texts())[-2:] == ["One-off questions", "Archived"]
        await expect(page.locator(".threads a", has_text="Untitled")).to_have_count(1)
        await page.get_by_label("Group conversations").select_option("agent")
        await expect(groups(page).first).to_have_text(re.compile("^(main|ops)$"))
        assert set((await groups(page).all_inner_texts())[:2]) == {"main", "ops"}
        await page.get_by_label("Group conversations").select_option("platform")
        await expect(groups(page).first).to_have_text(re.compile("^(This page|Slack)$"))
        assert set((await groups(page).all_inner_texts())[:2]) == {"This page", "Slack"}
        await page.reload()
        await expect(page.get_by_label("Group conversations")).to_have_value("platform")


async def test_messages_are_found_and_shown(browser: Browser, api: PageApi) -> None:
    for number in range(300):
        api.append(THREAD, UserSaid(f"message {number}", OWNER), f"t{number}")
        api.append(THREAD, AssistantSaid(f"answer {number}"), f"t{number}")
    api.titles = {THREAD: "The long one"}
    results = {
        "thread": THREAD, "title": "The long one", "agent": "main", "seq": 5, "at": "2026-03-05T09:00:00Z",
        "by": "person", "excerpt": "message 2 <b>",
    }  # fmt: skip
    api.answers["search"] = [results]
    async with opened(browser, api.address) as page:
        await expect(page.get_by_text("answer 299")).to_be_visible()
        await expect(page.get_by_text("message 2", exact=True)).to_have_count(0)
        await page.keyboard.press("Control+k")
        await page.get_by_role("combobox", name="Search").fill("mess")
        option = page.get_by_role("option", name="message 2 <b>")
        await expect(option.locator("mark")).to_have_text("mess")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("message 2", exact=True)).to_be_in_viewport()
        await expect(page.locator(".is-sought")).to_contain_text("message 2")
        assert await violations(page) == []


async def test_the_search_finds_threads_views_and_commands(browser: Browser, api: PageApi) -> None:
    plans(api)
    async with opened(browser, api.address) as page:
        await page.get_by_role("button", name="Search", exact=True).click()
        await page.get_by_role("combobox", name="Search").fill("plan")
        await expect(page.get_by_role("dialog").get_by_role("option")).to_have_count(2)
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Message")).to_have_value("/plan")
        await page.keyboard.press("Control+k")
        await page.get_by_role("combobox", name="Search").fill("coast")
        await page.get_by_role("option", name="Plan of the coast").click()
        await expect(page.get_by_role("heading", name="Plan of the coast")).to_be_visible()
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("combobox", name="Search")).to_be_focused()
        await page.keyboard.type("audit")
        await page.get_by_role("option", name="Audit").click()
        await expect(page.get_by_role("heading", name="Audit")).to_be_visible()
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("combobox", name="Search")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)


MEANT = {
    "token": "Tokens for scripts and other people", "telegram": "Connect a chat", "dark": "Use the dark theme",
    "night mode": "Use the dark theme", "delete": "Delete this conversation", "price": "Model prices",
    "pricing": "Model prices", "password": "Tokens for scripts and other people", "backup": "Backups",
    "stop asking": "Stop asking about a command", "never ask again": "Stop asking about a command",
    "how do i add an api key": "Model and API key", "ollama": "Model and API key", "budget": "Budget for all agents",
    "spending limits": "Budget for all agents", "reminders": "New schedule", "morning": "Daily brief",
    "log": "Audit", "restore": "Backups", "sandbox": "How commands run", "plugins": "MCP", "forget": "Forget something",
    "personal data": "Memory", "invite": "People with access", "pair my phone": "People with access",
    "personality": "An agent's persona and instructions", "rename": "Conversation titles",
    "export": "Export this conversation", "download": "Export this conversation", "cancel": "Stop the running turn",
    "kill": "Processes", "change the model": "Choose this conversation's agent and model", "cost": "Usage",
    "s3": "Backups",
    "which agent answers": "Bind agents to chats", "sidebar": "Hide the sidebar",
    "docker": "How commands run", "cron": "Schedules", "approved": "Approvals", "skill": "Install a skill",
}  # fmt: skip


async def test_the_search_knows_everyday_words_for_settings(browser: Browser, api: PageApi) -> None:
    async with opened(browser, api.address) as page:
        names = await page.evaluate(
            """words => import("/console/findable.js").then(({ meant }) => words.map((text) => {
              const { places, settings, actions } = meant(text);
              return [...places, ...settings].map(([, name]) => name).concat(actions.map(({ name }) => name));
            }))""",
            list(MEANT),
        )
        assert {text: view for text, view in zip(MEANT, names, strict=True) if MEANT[text] not in view} == {}
        assert await page.evaluate("import('/console/findable.js').then(({ meant }) => meant('xyzzy').settings)") == []


async def test_the_search_shows_more_of_each_group_and_older_messages(browser: Browser, api: PageApi) -> None:
    plans(api)
    message = {"thread": THREAD, "title": "Tides", "agent": "main", "at": "2026-03-05T09:00:00Z", "by": "person"}
    api.answers["search"] = [{**message, "seq": seq, "excerpt": f"tide {seq}"} for seq in range(1, 31)]
    async with opened(browser, api.address) as page:
        await page.get_by_role("button", name="Search", exact=True).click()
        await page.get_by_role("combobox", name="Search").fill("tide")
        options = page.get_by_role("dialog").get_by_role("option")
        await page.get_by_role("option", name="Show 24 more").click()
        await expect(options.filter(has_text="tide 30")).to_have_count(1)
        api.answers["search"] = [{**message, "seq": seq, "excerpt": f"tide {seq}"} for seq in range(1, 41)]
        await page.get_by_role("option", name="Show older messages").click()
        await expect(options.filter(has_text="tide 40")).to_have_count(1)
        await expect(page.get_by_role("option", name="Show older messages")).to_have_count(0)


PRESS = """
const press = (key) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const rendered = async () => { for (let passed = 0; passed < 20; passed += 1) await null; };
"""
"""Keys that arrive before the next paint, and so before effects."""


async def test_a_key_right_after_a_search_moves_the_selection(browser: Browser, api: PageApi) -> None:
    plans(api)
    async with opened(browser, api.address) as page:
        await page.get_by_role("button", name="Search", exact=True).click()
        await page.get_by_role("combobox", name="Search").fill("coast")
        await expect(page.get_by_role("dialog").get_by_role("option")).to_have_count(1)
        await page.evaluate(
            f"""async () => {{
              {PRESS}
              document.activeElement.value = "plan";
              document.activeElement.dispatchEvent(new InputEvent("input", {{ bubbles: true }}));
              await rendered();
              press("ArrowDown");
            }}"""
        )
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Message")).to_have_value("/plan")


async def test_a_key_right_after_switching_threads_sends_nothing_from_the_old_one(
    browser: Browser, api: PageApi
) -> None:
    talk(api, THREAD, "one")
    talk(api, OTHER, "two")
    async with opened(browser, api.address) as page:
        await page.get_by_label("Message").fill("for the first alone")
        await page.evaluate(
            f"""async (address) => {{
              {PRESS}
              const changed = new Promise((go) => addEventListener("hashchange", go, {{ once: true }}));
              location.hash = address;
              await changed;
              await rendered();
              press("Enter");
            }}""",
            f"#/t/{quote(OTHER, safe='')}",
        )
        await expect(page.get_by_label("Message")).to_have_value("")
        await page.get_by_label("Message").fill("for the second")
        await page.keyboard.press("Enter")
        await expect(page.locator(".outgoing")).to_contain_text("for the second")
        assert [sent.body["text"] for sent in api.sent] == ["for the second"]


async def test_a_command_chosen_in_the_search_is_inserted_once(browser: Browser, api: PageApi) -> None:
    plans(api)
    async with opened(browser, api.address) as page:
        box = page.get_by_label("Message")
        await page.get_by_role("button", name="Search", exact=True).click()
        await page.get_by_role("combobox", name="Search").fill("plan make")
        await page.get_by_role("option", name="/plan").click()
        await expect(box).to_have_value("/plan")
        await box.fill("something else")
        await page.locator(".threads a", has_text="Plan of the coast").click()
        await expect(box).to_have_value("")
        await page.go_back()
        await expect(box).to_have_value("something else")


async def test_a_commands_result_is_shown_where_it_was_given(browser: Browser, api: PageApi) -> None:
    plans(api)
    left = asyncio.Event()

    async def late(route: Route) -> None:
        await left.wait()
        await route.fulfill(status=503, json={"error": {"code": "away", "message": "The database is away."}})

    async with opened(browser, api.address) as page:
        box = page.get_by_label("Message")
        await page.route("**/command", late)
        await box.fill("/status of the first")
        async with page.expect_response("**/command"):
            await page.keyboard.press("Enter")
            await page.locator(".threads a", has_text="Plan of the coast").click()
            await expect(page.get_by_role("heading", name="Plan of the coast")).to_be_visible()
            left.set()
        await expect(page.get_by_role("alert")).to_have_count(0)
        await expect(box).to_have_value("")
        await page.go_back()
        await expect(box).to_have_value("/status of the first")


async def test_agent_and_model_are_chosen_at_the_first_message_or_later(browser: Browser, api: PageApi) -> None:
    api.lists["agents"] = [
        {"name": "main", "model": "demo", "is_default": True},
        {"name": "ops", "model": "big/one", "is_default": False},
    ]
    api.lists["models"] = [
        {"name": "big/one", "context_tokens": 200_000, "input_usd": 3, "output_usd": 15},
        {"name": "odd/two", "context_tokens": 0, "input_usd": None, "output_usd": None},
    ]
    async with opened(browser, api.address, place="new") as page:
        await page.locator(".answers button").click()
        await expect(page.get_by_role("button", name="big/one").last).to_contain_text("200k · $3.00 in, $15.00 out")
        await expect(page.get_by_role("button", name="odd/two")).to_contain_text("–")
        await page.get_by_role("button", name="ops").click()
        await page.get_by_label("Filter models").fill("one")
        await page.get_by_role("button", name="big/one 200k").click()
        await expect(page.locator(".answerer")).to_have_text("ops · big/one")
        await page.get_by_label("Message").fill("Hello")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Delivered")).to_be_visible()
        thread, body = api.sent[0].target, api.sent[0].body
        assert (body["agent"], body["model"]) == ("ops", "big/one")
        talk(api, thread, "Hello", agent="ops")
        await expect(page.locator(".row.begin")).to_contain_text("ops")
        await page.locator(".answerer").click()
        await page.get_by_role("button", name="The agent's default model").click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert api.sent[-1].body == {"model": ""}


async def test_an_expanded_turn_shows_its_cost(browser: Browser, api: PageApi) -> None:
    talk(api, THREAD, "one")
    api.answers[f"threads/{THREAD}/turns/t1/cost"] = {
        "calls": 1, "input_tokens": 900, "output_tokens": 40, "cached_tokens": 0, "usd": 0.5, "models": ["demo"]
    }  # fmt: skip
    async with opened(browser, api.address) as page:
        await expect(page.get_by_text("$0.50")).to_have_count(0)
        await page.locator(".end-line").click()
        await expect(page.get_by_text("900 tokens in, 40 out · cost $0.50")).to_be_visible()


async def test_dialogs_fit_a_phone_and_are_readable(browser: Browser, api: PageApi) -> None:
    talk(api, THREAD, "one")
    api.now += timedelta(days=1)
    api.titles = {THREAD: "averylongwordwithoutanyplacetobreakit" * 6}
    api.lists["models"] = [{"name": "m" * 150, "context_tokens": 1_000_000, "input_usd": 0.1, "output_usd": 0.4}]
    api.lists["agents"] = [{"name": "main", "model": "m" * 150, "is_default": True}]
    for scheme in ("light", "dark"):
        async with opened(browser, api.address, viewport=PHONE, scheme=scheme) as page:
            await manage(page)
            for opens in ("Close", ".answerer", "search"):
                if opens == ".answerer":
                    await page.locator(opens).click()
                    await expect(page.get_by_role("button", name="m" * 150).last).to_be_visible()
                elif opens == "search":
                    await page.keyboard.press("Control+k")
                    await page.keyboard.type("a")
                await assert_fits(page)
                sheet = page.locator("dialog")
                assert await sheet.evaluate("box => box.scrollWidth <= box.clientWidth + 1"), opens
                assert (await page.evaluate(CONTRAST))[1] == []
                await page.keyboard.press("Escape")
                await expect(page.get_by_role("dialog")).to_have_count(0)
