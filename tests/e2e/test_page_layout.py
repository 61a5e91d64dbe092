"""The page on a phone and with the keyboard alone, and the display of every kind of content."""

from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Browser, Page, expect
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import PHONE, THREAD, opened

from shoal.kernel.clock import iso
from shoal.kernel.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Failed,
    LimitReached,
    RetryScheduled,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import ApprovalId, CallId
from shoal.kernel.messages import Author, ToolCall, Usage

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

OWNER = Author("owner", trusted=True)
LONG = "averylongwordwithoutanyplacetobreakit" * 6
MARKDOWN = f"""## Heading
Text with `code`, **weight**, [a link](https://example.org/{LONG}) and {LONG}

> a quotation

| one | two | three | four | five |
|---|---|---|---|---|
| {LONG} | b | c | d | e |

```python
line = "{LONG}"
```
"""
DIFF = f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-{LONG}\n+shorter"

CONTRAST = """
() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, under) => [0, 1, 2].map((at) => top[at] * top[3] + under[at] * (1 - top[3])).concat(1);
  const luminance = (color) => {
    const linear = (part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = color.map((part) => linear(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ratio = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const low = [];
  let checked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    if (element.closest(".offscreen, :disabled, [aria-disabled=true], script, noscript")) continue;
    const grounds = [];
    for (let at = element; at; at = at.parentElement) grounds.unshift(parse(getComputedStyle(at).backgroundColor));
    const ground = grounds.reduce((under, top) => over(top, under), [255, 255, 255, 1]);
    let alpha = 1;
    for (let at = element; at; at = at.parentElement) alpha *= Number(getComputedStyle(at).opacity);
    const ink = parse(getComputedStyle(element).color);
    ink[3] *= alpha;
    checked += 1;
    const found = ratio(over(ink, ground), ground);
    if (found < 4.5) low.push(`${found.toFixed(2)} ${node.data.trim().slice(0, 40)}`);
  }
  return [checked, low];
}
"""


def tell_everything(api: PageApi) -> None:
    api.append(THREAD, UserSaid(f"Do it all {LONG}", OWNER))
    api.append(THREAD, TurnStarted("main", "demo"))
    calls = tuple(ToolCall(CallId(f"c{n}"), "bash", f'{{"command": "echo {n} {LONG}"}}') for n in range(3))
    api.append(THREAD, AssistantSaid(MARKDOWN, calls, "tool_calls", "demo", Usage(10, 5), thinking="Hm."))
    api.append(THREAD, RetryScheduled("overloaded", LONG, datetime.now(UTC), datetime.now(UTC), 1, LONG, (LONG,)))
    api.append(THREAD, ToolStarted(CallId("c0"), "bash"))
    api.append(THREAD, ToolFinished(CallId("c0"), "bash", LONG, duration_ms=5))
    expires_at = datetime.now(UTC) + timedelta(hours=1)
    api.append(THREAD, ApprovalRequested(ApprovalId("a1"), CallId("c1"), "bash", (f"x{LONG}",), DIFF, expires_at))
    api.append(THREAD, ApprovalSettled(ApprovalId("a1"), CallId("c1"), "deny", "once", "owner"))
    api.append(THREAD, ToolFinished(CallId("c1"), "bash", "Denied.", True))
    api.append(THREAD, LimitReached("steps"))
    api.append(THREAD, Failed("overloaded", "The model is overloaded.", LONG))
    api.append(THREAD, TurnFinished("failed", "The model is overloaded.", 1, Usage(10, 5)))
    api.append(THREAD, UserSaid("Again", OWNER), "t2")
    api.append(THREAD, TurnStarted("main", "demo"), "t2")
    api.append(THREAD, AssistantSaid("", calls[:1], "tool_calls"), "t2")
    api.append(
        THREAD, ApprovalRequested(ApprovalId("a2"), CallId("c0"), "edit", (f"x{LONG}", "y"), DIFF, expires_at), "t2"
    )
    fill_lists(api)


def fill_lists(api: PageApi) -> None:
    soon = iso(datetime.now(UTC) + timedelta(hours=1))
    api.lists["approvals"] = [
        {"id": "a2", "thread": THREAD, "tool": "edit", "actions": [f"x{LONG}"], "shown": DIFF, "reason": "Asked.",
         "asked_by": "owner", "state": "pending", "created_at": iso(api.now), "expires_at": soon}
    ]  # fmt: skip
    api.lists["triggers"] = [
        {"id": "t1", "name": "", "kind": "periodic", "schedule": "0 9 * * *", "timezone": "UTC", "text": LONG,
         "thread": f"web:lobby:{LONG}", "platform": "", "channel": "", "state": "active", "next_at": soon, "error": "x"}
    ]  # fmt: skip
    api.lists["processes"] = [
        {"id": "p1", "name": LONG, "agent": "main", "thread": THREAD, "command": LONG, "state": state, "exit_code": 1,
         "started_at": iso(api.now), "ended_at": soon, "reason": LONG, "hooks": [{"on": "output", "pattern": LONG}]}
        for state in ("running", "exited")
    ]  # fmt: skip
    person = {"platform": "matrix", "user": f"@{LONG}:example.org", "name": "", "by": LONG, "at": None}
    waiting = {"platform": "discord", "user": "1", "name": LONG, "expires_at": soon}
    api.answers["access"] = {"paired": [person], "waiting": [waiting]}
    tool = {"name": f"mcp_odd_{LONG}", "state": "changed", "digest": "ab" * 32, "change": DIFF, "proposed": "read"}
    tools = [tool, {**tool, "name": f"mcp_odd_a{LONG}", "state": "allowed", "kind": None}]
    server = {"server": "odd", "since": soon, "tools": tools, "offer": LONG, "unconfirmed": 1, "digest": "ab" * 32}
    api.answers["mcp"] = {"servers": [server]}
    state = {
        "name": LONG,
        "where": LONG,
        "args": ["--key", "•••", LONG],
        "secrets": [LONG],
        "enabled": True,
        "status": "down",
        "tools": [LONG],
        "why": LONG,
        "waiting": 1,
        "left_out": [LONG],
    }
    api.answers["mcp-servers"] = [state]
    field = {"name": "token", "question": LONG, "secret": True, "is_set": False, "value": ""}
    account = {"name": "telegram", "platform": "telegram", "title": "Telegram", "failure": "", "owner": "", "agent": ""}
    choice = {"name": "server", "title": LONG, "wants": ["address", "key"], "is_set": True, "has_key": True,
              "address": f"http://{LONG}", "usual_model": LONG}  # fmt: skip
    api.answers["setup"] = {
        "model": LONG, "is_demo": True, "models": [choice],
        "chats": [{"name": "telegram", "title": "Telegram", "fields": [field], "install": ""}],
        "accounts": [{**account, "state": "connected"}, {**account, "name": LONG, "state": "failing", "failure": LONG}],
    }  # fmt: skip
    backups = [{"name": f"shoal-{LONG}.tar.gz", "at": iso(api.now), "size_bytes": 10**12}]
    api.answers["backups"] = {"scheduled": False, "problem": LONG, "backups": backups, "has_place": True}
    api.answers["usage/ceilings"] = [
        {"scope": f"user:{LONG}", "day": "", "usd": usd, "usd_max": 10, "tokens": 0, "tokens_max": 0}
        for usd in (1, 9, 10)
    ]
    api.answers[f"threads/{THREAD}/files"] = [
        {"path": f"scratch/{LONG}", "media_type": "text/plain", "size_bytes": 5, "modified_at": soon}
    ]
    api.answers[f"threads/{THREAD}/artifacts"] = [
        {"artifact": "ab" * 32, "name": "bash", "size_bytes": 5, "turn": "t1", "call_id": "c0",
         "tainted_by": LONG, "created_at": soon}
    ]  # fmt: skip
    api.lists["agents"] = [
        {"name": "main", "model": LONG, "profile": "standard", "tools": ["bash"], "fallback": [LONG], "error": error,
         "channels": [f"matrix:{LONG}"], "listen": {f"matrix:{LONG}": "threads"},
         "system_prompt": LONG, "at_work": 1, "is_default": not error,
         "budget": {"usd_per_day": 5, "tokens_per_day": 1000}}
        for error in ("", LONG)
    ]  # fmt: skip
    api.answers["info"] = {
        "platforms": ["web"], "model": LONG, "models": 1, "providers": [LONG], "tools": [LONG], "skills": [],
        "sandbox": "none", "isolated": False, "notes": [LONG], "mcp": [f"files: {LONG}"],
    }  # fmt: skip
    api.lists["usage"] = [
        {"day": "2026-03-05", "agent": "main", "model": "provider/model-with-a-long-name", "calls": 3,
         "usage": {"input_tokens": 12000, "output_tokens": 5, "cached_tokens": 3}, "usd": None}
    ]  # fmt: skip
    entries = [
        {"kind": "check", "action": f"tool:bash:{LONG}", "decision": decision, "rule": LONG, "user": "owner"}
        for decision in ("allow", "ask", "deny")
    ]
    api.lists["audit"] = [
        {"chain": THREAD, "number": at, "at": soon, "entry": entry} for at, entry in enumerate(entries)
    ]


async def unfold(page: Page) -> None:
    await expect(page.locator(".approval")).to_be_visible()
    for line in await page.locator(".tool-line, .end-line").all():
        await line.click()
    await page.evaluate("for (const box of document.querySelectorAll('details')) box.open = true;")


async def assert_fits(page: Page) -> None:
    wide: list[str] = await page.evaluate(
        """() => [...document.querySelectorAll("html, body, main, .log, .column, .place, .rail")]
             .filter((box) => box.scrollWidth > box.clientWidth + 1)
             .map((box) => `${location.hash} ${box.className} ${box.scrollWidth} > ${box.clientWidth}`)"""
    )
    assert wide == []


async def test_the_drawer_of_a_phone_opens_and_closes(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    api.append("web:lobby:other", UserSaid("two", OWNER))
    async with opened(browser, api.address, viewport=PHONE) as page:
        menu = page.get_by_role("button", name="Conversations and views")
        await expect(page.get_by_role("link", name="Shoal")).to_be_hidden()
        await menu.click()
        await expect(page.get_by_role("link", name="Shoal")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("link", name="Shoal")).to_be_hidden()
        await expect(menu).to_be_focused()
        await menu.click()
        await page.locator(".threads a", has_text="other").click()
        await expect(page.get_by_role("link", name="Shoal")).to_be_hidden()
        await expect(page.get_by_text("two")).to_be_visible()


async def test_everything_works_with_the_keyboard_alone(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        box = page.get_by_label("Message")
        await expect(box).to_be_focused()
        await page.keyboard.type("first line")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("second line")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Delivered")).to_be_visible()
        assert api.sent[0].body["text"] == "first line\nsecond line"
        await expect(box).to_be_focused()

        tell_everything(api)
        await expect(page.locator(".approval")).to_be_visible()
        deny = page.get_by_role("button", name="Deny")
        for _ in range(40):
            await page.keyboard.press("Shift+Tab")
            if await deny.evaluate("button => button === document.activeElement"):
                break
        await expect(deny).to_be_focused()
        assert await deny.evaluate("button => getComputedStyle(button).outlineStyle") == "solid"
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Denied.", exact=True)).to_be_visible()
        assert api.sent[-1].body == {"decision": "deny", "scope": "once"}

        await page.evaluate("document.activeElement.blur()")
        await page.get_by_role("link", name="Skip to the message box").focus()
        await page.keyboard.press("Enter")
        await expect(box).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("alertdialog")).to_be_visible()
        assert api.sent[-1].kind == "decision"
        await page.keyboard.press("Escape")
        await expect(page.locator(".end-line").last).to_contain_text("Stopped")
        assert api.sent[-1].kind == "abort"


async def test_the_first_tab_stop_skips_the_list(browser: Browser, api: PageApi) -> None:
    async with opened(browser, api.address, place="audit") as page:
        await expect(page.get_by_role("heading", name="Audit")).to_be_visible()
        skip = page.get_by_role("link", name="Skip the sidebar")
        for _ in range(20):  # a page that is still loading may move the focus
            await page.evaluate("document.activeElement.blur()")
            await page.keyboard.press("Tab")
            if await skip.evaluate("link => link === document.activeElement"):
                break
        await expect(skip).to_be_focused()
        await expect(page.get_by_role("link", name="Skip the sidebar")).to_be_in_viewport()


async def test_the_banner_and_the_sign_in_have_contrast_too(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    for scheme in ("light", "dark"):
        async with opened(browser, api.address, scheme=scheme) as page:
            await api.watched(THREAD)
            await api.stop()
            await expect(page.locator(".offline")).to_be_visible()
            await page.get_by_label("Message").fill("later")
            await page.keyboard.press("Enter")
            await expect(page.locator(".outgoing")).to_be_visible()
            assert (await page.evaluate(CONTRAST))[1] == []
            await api.start()
        async with opened(browser, f"http://127.0.0.1:{api.port}/", scheme=scheme) as page:
            await expect(page.get_by_role("heading", name="You are signed out")).to_be_visible()
            assert (await page.evaluate(CONTRAST))[1] == []


async def test_controls_have_names_and_replies_are_announced_politely(browser: Browser, api: PageApi) -> None:
    tell_everything(api)
    async with opened(browser, api.address) as page:
        await unfold(page)
        nameless = await page.evaluate(
            """() => [...document.querySelectorAll("button, a, input:not([type=file]), textarea, select")]
                 .filter((one) => one.checkVisibility())
                 .filter((one) => !one.innerText?.trim() && !one.getAttribute("aria-label") && !one.labels?.length)
                 .map((one) => one.outerHTML)"""
        )
        assert nameless == []
        await expect(page.locator("#said")).to_have_attribute("aria-live", "polite")
        await expect(page.locator("[role=log]")).to_have_attribute("aria-live", "off")


async def test_a_schedule_is_added_and_removed(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await page.get_by_role("link", name="Schedules").click()
        await expect(page.get_by_text("Nothing is scheduled.")).to_be_visible()
        await page.get_by_label("Message", exact=True).fill("Good morning")
        await page.get_by_label("Repeatedly").check()
        await page.get_by_label("How often").select_option("Cron expression")
        await page.get_by_label("Cron expression", exact=True).fill("0 9 * * 1-5")
        await page.get_by_role("button", name="Add schedule").click()
        await expect(page.locator(".cards .card")).to_contain_text("Good morning")
        body = dict(api.sent[-1].body)
        thread = body.pop("thread")
        assert str(thread).startswith("web:lobby:")
        assert thread != THREAD, "a new thread"
        assert body == {"kind": "periodic", "schedule": "0 9 * * 1-5", "text": "Good morning", "timezone": "UTC"}
        await page.get_by_role("button", name="Remove").click()
        await page.get_by_role("button", name="Remove it").click()
        await expect(page.get_by_text("Nothing is scheduled.")).to_be_visible()


async def test_approvals_of_all_threads_are_decided_in_one_view(browser: Browser, api: PageApi) -> None:
    tell_everything(api)
    async with opened(browser, api.address, place="approvals") as page:
        await expect(page.locator(".places .count")).to_contain_text("1")
        await expect(page).to_have_title("(1) Approvals · Shoal")
        card = page.get_by_role("group", name="edit asks for approval")
        await expect(card.locator(".diff.plus").last).to_have_text("+shorter\n")
        await card.get_by_role("button", name="Allow once").click()
        api.lists["approvals"] = []
        await expect(page.get_by_text("Nothing is waiting for you.")).to_be_visible()
        assert api.sent[-1].target == "a2"
