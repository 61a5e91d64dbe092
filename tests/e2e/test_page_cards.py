"""The card for several calls on the page: allow all, the selected ones or none, and see where the values came from."""

import re
from datetime import timedelta

import pytest
from playwright.async_api import Browser, expect
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import THREAD, opened

from shoal.kernel.clock import iso
from shoal.kernel.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    FilesChanged,
    ToolFinished,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import ApprovalId, CallId, CardId
from shoal.kernel.messages import Author, ToolCall
from shoal.kernel.permissions import CardItem, StandingRule, ValueOrigin

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

CALLS = [
    ("pay DE89370400440532013000", ValueOrigin("DE89370400440532013000", source="bill.txt")),
    ("mail anna@example.org", ValueOrigin("anna@example.org", named_by="you")),
    ("echo done", None),
]


def ask(api: PageApi) -> None:
    api.append(THREAD, UserSaid("Pay the bill and tell anna@example.org", Author("owner", trusted=True)), "t1")
    api.append(THREAD, TurnStarted("main", "demo"), "t1")
    calls = [ToolCall(CallId(f"c{at}"), "bash", "{}") for at in range(1, 4)]
    api.append(THREAD, AssistantSaid("I pay, then tell Anna.", tuple(calls), "tool_calls"))
    expires, records = api.now + timedelta(minutes=50), list[dict[str, object]]()
    for number, (shown, origin) in enumerate(CALLS, 1):
        origins = (origin,) if origin is not None else ()
        item = CardItem(CardId("C1"), number, 3, "main", "Ada", "I pay, then tell Anna.", origins)
        asked = ApprovalId(f"a{number}")
        api.append(THREAD, ApprovalRequested(asked, calls[number - 1].id, "bash", (), shown, expires, item=item))
        told = [{"value": origin.value, "named_by": origin.named_by, "source": origin.source} for origin in origins]
        place = {"card": "C1", "number": number, "total": 3, "why": item.why, "origins": told}
        records.append(
            {"id": asked, "thread": THREAD, "tool": "bash", "actions": [], "shown": shown, "reason": "", "covers": {},
             "asked_by": "web:owner", "agent": "main", "state": "pending", "created_at": iso(api.now),
             "expires_at": iso(expires), "item": place}
        )  # fmt: skip
    api.lists["approvals"] = records


async def test_untrusted_calls_on_a_card_are_not_preselected(browser: Browser, api: PageApi) -> None:
    ask(api)
    async with opened(browser, api.address) as page:
        card = page.locator(".approval")
        await expect(card).to_have_count(1)
        await expect(card.get_by_text("I pay, then tell Anna.")).to_be_visible()
        await expect(card.get_by_text("DE89370400440532013000 comes only from bill.txt.")).to_be_visible()
        await expect(card.get_by_text("You named anna@example.org.")).to_be_visible()
        await expect(page.get_by_text("Included in the request above.")).to_have_count(2)
        await expect(card.get_by_role("button", name="Allow all, including 1 from bill.txt")).to_be_visible()
        await card.get_by_role("button", name="Choose").click()
        ticks = [await box.is_checked() for box in await card.get_by_role("checkbox").all()]
        assert ticks == [False, True, True]
        await card.get_by_role("checkbox").nth(2).uncheck()
        await card.get_by_role("button", name="Allow 2, deny the rest").click()
        await expect(page.get_by_role("button", name="Sending…")).to_have_count(0)
        assert (api.sent[-1].target, api.sent[-1].body) == ("C1", {"decision": "allow", "scope": "once", "calls": [2]})


async def test_the_list_shows_one_card_that_can_be_denied_as_a_whole(browser: Browser, api: PageApi) -> None:
    ask(api)
    async with opened(browser, api.address, place="approvals") as page:
        await expect(page.locator(".approval")).to_have_count(1)
        await page.get_by_role("button", name="Deny", exact=True).click()
        await expect(page.get_by_role("button", name="Sending…")).to_have_count(0)
        assert (api.sent[-1].target, api.sent[-1].body["decision"]) == ("C1", "deny")


async def test_a_decision_on_an_expired_card_shows_that_it_has_expired(browser: Browser, api: PageApi) -> None:
    ask(api)
    api.decision_status = 410
    async with opened(browser, api.address, place="approvals") as page:
        await page.get_by_role("button", name="Allow all").click()
        await expect(page.get_by_text("It has expired.").first).to_be_visible()
        await expect(page.locator(".approval")).to_have_count(0)


@pytest.mark.parametrize("place", [f"t/{THREAD}", "approvals"])
async def test_a_decided_card_disappears_immediately(browser: Browser, api: PageApi, place: str) -> None:
    ask(api)
    api.decided = {"message": "Allowed 2. Denied 1 and 3."}
    async with opened(browser, api.address, place=place) as page:
        await expect(page.locator(".approval")).to_have_count(1)
        api.answers["approvals"] = "no list"
        await page.get_by_role("button", name="Allow all").click()
        await expect(page.locator(".approval")).to_have_count(0)
        await expect(page.get_by_text("Allowed 2. Denied 1 and 3.").first).to_be_visible()
        assert [request.kind for request in api.sent] == ["decision"]


async def test_the_reason_for_a_late_answer_outlives_its_card(browser: Browser, api: PageApi) -> None:
    ask(api)
    api.decision_status = 410
    async with opened(browser, api.address) as page:
        await page.get_by_role("button", name="Allow all").click()
        await expect(page.get_by_text("It has expired.").first.first).to_be_visible()
        await expect(page.locator(".approval")).to_have_count(0)


FILES = "- `notes.md` added +1\n````diff\n@@ -0,0 +1,2 @@\n+- `x` y\n+```\n````"


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_discarded_card_offers_to_undo_the_files(browser: Browser, api: PageApi, is_open: bool) -> None:
    api.append(THREAD, UserSaid("Note it and push", Author("owner", trusted=True)), "t1")
    api.append(THREAD, TurnStarted("main", "demo"), "t1")
    call = ToolCall(CallId("c1"), "bash", "{}")
    api.append(THREAD, AssistantSaid("I push.", (call,), "tool_calls"))
    api.append(THREAD, ToolFinished(call.id, "bash", "Staged, not done: git push", staged=True))
    expires, asked = api.now + timedelta(minutes=50), ApprovalId("a1")
    item = CardItem(CardId("C1"), 1, 1, "main", "Ada", staged=True, files=FILES)
    api.append(THREAD, ApprovalRequested(asked, call.id, "bash", (), "git push", expires, item=item))
    api.append(THREAD, FilesChanged("tree", 1))
    api.append(THREAD, TurnFinished("done", "I prepared it."))
    place = {"card": "C1", "number": 1, "total": 1, "staged": True, "files": item.files, "why": "", "origins": []}
    api.lists["approvals"] = [
        {"id": asked, "thread": THREAD, "turn": "t1", "tool": "bash", "actions": [], "shown": "git push", "reason": "",
         "covers": {}, "asked_by": "web:owner", "agent": "main", "state": "pending", "created_at": iso(api.now),
         "expires_at": iso(expires), "item": place}
    ]  # fmt: skip
    undo = f"threads/{THREAD}/turns/t1/undo"
    api.answers[f"POST {undo}"] = {"undo": "u1", "restored": 1, "files": ["notes.md"], "not_restored": 0, "left": []}
    settled = ApprovalSettled(asked, call.id, "deny", "once", "owner")
    if not is_open:  # it was discarded in another browser
        api.lists["approvals"] = []
        api.append(THREAD, settled)
    async with opened(browser, api.address) as page:
        if is_open:
            changes = page.get_by_label("File changes")
            assert await changes.text_content() == "notes.md added +1\n@@ -0,0 +1,2 @@\n+- `x` y\n+```\n"
            api.decided = {"message": "Discarded. The turn's file changes stay.", "undo": "t1"}
            await page.get_by_role("button", name="Discard").click()
            api.lists["approvals"] = []
            api.append(THREAD, settled)
        await expect(page.get_by_text(re.compile("The turn.s file changes stay"))).to_be_visible()
        await page.get_by_role("button", name="Undo file changes").click()
        await expect(page.get_by_text("Restored 1 file.")).to_be_visible()
        assert (api.sent[-1].target, api.sent[-1].body) == (undo, {"since": "ask"})
        await expect(page.get_by_role("button", name="Undo file changes")).to_have_count(0)


OFFER = "Always allow: exactly the command git push, in main's workspace, when you ask in direct messages."


async def test_a_rule_is_created_and_undone_on_its_card(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("Push it", Author("owner", trusted=True)), "t1")
    api.append(THREAD, TurnStarted("main", "demo"), "t1")
    call = ToolCall(CallId("c1"), "bash", "{}")
    api.append(THREAD, AssistantSaid("I push.", (call,), "tool_calls"))
    expires, asked = api.now + timedelta(minutes=50), ApprovalId("a1")
    rule = StandingRule(("tool:bash alone:git push",), "exactly the command git push", "main", ("web:owner",))
    item = CardItem(always=rule)
    api.append(THREAD, ApprovalRequested(asked, call.id, "bash", (), "git push", expires, item=item))
    api.lists["approvals"] = [
        {"id": asked, "thread": THREAD, "tool": "bash", "actions": [], "shown": "git push", "reason": "", "covers": {},
         "asked_by": "web:owner", "agent": "main", "state": "pending", "created_at": iso(api.now),
         "expires_at": iso(expires), "item": {}, "always": OFFER}
    ]  # fmt: skip
    async with opened(browser, api.address) as page:
        await expect(page.locator(".approval").get_by_text(OFFER)).to_be_visible()
        await page.get_by_role("button", name="Always allow").click()
        await expect(page.get_by_text("Allowed.", exact=True)).to_be_visible()
        assert api.sent[-1].body == {"decision": "allow", "scope": "always"}
        api.answers["approvals/a1"] = {"id": asked, "scope": "always"}
        api.answers["DELETE approvals/a1/always"] = {"message": "Removed the rule."}
        api.lists["approvals"] = []
        api.append(THREAD, ApprovalSettled(asked, call.id, "allow", "always", "owner"))
        await expect(page.get_by_text("Rule: exactly the command git push")).to_be_visible()
        await page.get_by_role("button", name="Remove the rule").click()
        await expect(page.get_by_text("Removed the rule.")).to_be_visible()
        assert (api.sent[-1].kind, api.sent[-1].target) == ("DELETE", "approvals/a1/always")
        api.answers["approvals/a1"] = {"id": asked, "scope": "withdrawn"}
        await page.reload()
        await expect(page.get_by_text("Removed rule: exactly the command git push")).to_be_visible()
        await expect(page.get_by_role("button", name="Remove the rule")).to_have_count(0)
