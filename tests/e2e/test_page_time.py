"""Going back in time on the page, with a real `shoal run`: alternative replies, undo, test cases, comparisons and
suggested rules.
"""

import json
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from tests.e2e.page_kit import opened, violations
from tests.rows.running import Running, call, calls, until

from shoal.testing.model import Gate, Refusal, Reply, Seen
from shoal.testing.model.script import Step

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

SETTINGS = """
[model]
context_tokens_max = 100000

[checkpoints]
file_bytes_max = 1000

[sandbox]
kind = "host"
"""
PLAN = "# Plan\n\n- 9:20 Knot leaves\n"


def planned(seen: Seen) -> Step | str:
    if seen.rounds == 0:
        text = PLAN if seen.model == "fake-1" else PLAN.replace("9:20", "8:00")
        return calls(call("write", path="plan.md", content=text), call("write", path="crew.txt", content="Ada\n"))
    return "The plan is written."


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("home"), SETTINGS) as fake_models:
        fake_models.plays("plan", planned)
        with fake_models.run(SHOAL_PROVIDERS__FAKE__MODELS='["fake-2", "fake-3"]') as running:
            yield running


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, shoal: Running) -> AsyncIterator[Page]:
    """Yield the signed-in page. After the test, check that its policy blocked nothing."""
    async with opened(browser, f"{shoal.process.address}/?token={shoal.process.token}", place="new") as page:
        yield page
        assert await violations(page) == []


async def go(page: Page, place: str) -> None:
    await page.evaluate("place => { location.hash = place; }", f"#/{place}")


async def test_a_turns_changes_are_undone_and_redone(page: Page, shoal: Running) -> None:
    plan, crew = shoal.workspace / "plan.md", shoal.workspace / "crew.txt"
    shoal.asks("web:lobby:undo", "plan the day")
    await go(page, "t/web:lobby:undo")
    await page.get_by_role("button", name="Changed 2 files").click()
    changes = page.locator(".row.end .changes")
    await expect(changes.locator(".diff.plus")).to_contain_text(["+Ada", "+# Plan"])
    await page.get_by_text("Cannot be undone").click()
    await expect(changes).to_contain_text("Undo does not affect messages.")

    await page.get_by_role("button", name="Undo these changes").click()
    await expect(page.locator(".row.note")).to_contain_text("You undid a turn's changes: 2 files restored")
    assert not plan.exists()
    assert not crew.exists()
    await expect(page.get_by_role("button", name="Changed 2 files, undone")).to_be_visible()
    await expect(changes).to_be_focused()
    await page.get_by_role("button", name="Redo these changes").click()
    await expect(page.locator(".row.note").last).to_contain_text("You reversed an undo: 2 files restored")
    await expect(page.get_by_role("button", name="Changed 2 files", exact=True)).to_be_visible()
    assert plan.read_text() == PLAN

    plan.write_text("by hand\n")
    await page.reload()
    await page.get_by_role("button", name="Changed 2 files").click()
    await expect(changes).to_contain_text("plan.md · added · +3 · changed since")
    await page.get_by_role("button", name="Undo these changes, keep later changes").click()
    await expect(page.locator(".row.note").last).to_contain_text("1 of 2 files restored")
    assert plan.read_text() == "by hand\n"
    assert not crew.exists()


async def test_another_model_answers_as_an_alternative(page: Page, shoal: Running) -> None:
    shoal.asks("web:lobby:again", "plan the night")
    await go(page, "t/web:lobby:again")
    await page.get_by_role("button", name="Try another model").click()
    await page.get_by_label("Filter models").fill("fake 2")
    await page.get_by_role("button", name="fake/fake-2").click()
    await expect(page.locator(".branches")).to_contain_text("2/2")
    await expect(page.locator(".row.begin")).to_contain_text("fake/fake-2")
    await expect(page.get_by_role("button", name="Try again", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Previous branch").click()
    await expect(page.locator(".row.begin")).to_contain_text("fake/fake-1")
    await expect(page.get_by_role("button", name="Previous branch")).to_be_focused()

    gate = Gate()
    shoal.plays("slowly", Reply("There.", gate=gate))
    shoal.says("web:lobby:again", "slowly, please")
    until(gate.reached.is_set)
    await page.get_by_role("button", name="Next branch").click()
    await expect(page.locator(".branches").get_by_role("alert")).to_contain_text("Wait for its answer or stop the turn")
    shoal.open(gate)
    await page.get_by_role("button", name="Next branch").click()
    await expect(page.locator(".branches")).to_contain_text("2/2")
    await expect(page.get_by_role("alert")).to_have_count(0)

    edit = page.get_by_role("button", name="Edit", exact=True)
    await edit.click()
    await expect(page.get_by_label("Your message")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(edit).to_be_focused()


async def test_a_read_token_sees_changes_without_actions(browser: Browser, shoal: Running) -> None:
    shoal.asks("web:lobby:read", "plan the week")
    (shoal.workspace / "plan.md").unlink()
    shoal.asks("web:lobby:read", "plan the week anew")
    token = shoal.cli("token", "create", "eve", "--scope", "read").strip()
    async with opened(browser, f"{shoal.process.address}/?token={token}", place="t/web:lobby:read") as page:
        await page.get_by_role("button", name="Changed").last.click()
        await expect(page.locator(".changes")).to_contain_text("plan.md · added")
        for name in (
            "Try again",
            "Try another model",
            "Continue in a copy",
            "Save as test case",
            "Edit",
            "Undo these changes",
        ):
            await expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)


async def test_a_turn_is_saved_as_a_test_case(page: Page, shoal: Running) -> None:
    shoal.asks("web:lobby:case", "plan for Tuesday, please")
    await go(page, "t/web:lobby:case")
    await page.get_by_role("button", name="Save as test case").click()
    form = page.get_by_role("dialog", name="Save as test case")
    await expect(form.get_by_label("Name", exact=True)).to_have_value("plan-for-tuesday-please")
    await form.get_by_label("With at least these arguments").fill("{")
    await form.get_by_role("button", name="Save", exact=True).click()
    await expect(form.get_by_role("alert")).to_contain_text("Enter the arguments as a JSON object")
    await form.get_by_label("With at least these arguments").fill("")
    await form.get_by_role("button", name="Use this turn's arguments").click()
    kinds = ("contains", "lacks", "matches", "never_calls", "judged")
    for number, kind in enumerate(kinds, 1):
        await form.get_by_role("button", name="Add expectation").click()
        row = form.locator(".expectation").nth(number)
        await row.locator("select").select_option(kind)
        await row.locator("input").first.fill("bash" if kind == "never_calls" else kind)
    await form.get_by_role("button", name="Remove").nth(2).click()
    await form.get_by_role("button", name="Save", exact=True).click()
    await expect(form).to_contain_text("agents/main/cases/plan-for-tuesday-please.toml")
    await form.get_by_role("button", name="Done").click()
    (case,) = shoal.listed("/api/agents/main/cases")
    expects = case["expects"]
    assert isinstance(expects, list)
    assert len(expects) == len(kinds)
    text = (shoal.home / "agents/main/cases/plan-for-tuesday-please.toml").read_text()
    assert 'calls = "write"' in text
    assert "9:20 Knot leaves" in text
    assert 'never_calls = "bash"' in text
    assert 'lacks = "lacks"' not in text


async def test_comparisons_are_run_stopped_and_continued(page: Page, shoal: Running) -> None:
    gate = Gate()

    def tide(seen: Seen) -> Step | str:
        if seen.model == "fake-3":
            return Refusal(400, "There is no such thing here.")
        path, held = ("crew.txt", None) if seen.model == "fake-1" else ("tides.csv", gate)
        answer = call("read", path=path) if seen.rounds == 0 else Reply("It is low at noon.")
        return msgspec.structs.replace(answer, gate=held)

    shoal.plays("tide", tide)
    shoal.asks("web:lobby:tide", "when is the tide low?")
    await go(page, "compare")
    await expect(page.get_by_text("No comparisons yet.")).to_be_visible()
    form = page.locator(".compare-form")
    await form.get_by_label("Model").fill("fake/fake-2")
    await form.get_by_label("Turns: a number").fill("web:lobby:nobody")
    estimate = form.get_by_role("button", name="Estimate")
    await estimate.click()
    await expect(form.get_by_role("alert")).to_contain_text("Thread web:lobby:nobody does not exist.")
    await form.get_by_label("Turns: a number").fill("web:lobby:tide")
    await estimate.click()
    await expect(form.get_by_role("alert")).to_contain_text("The price of fake-2 is unknown")
    await form.get_by_label("Limit in US$").fill("0")

    await form.get_by_label("Turns: a number").fill("web:lobby:tide")
    await estimate.click()
    await expect(form.get_by_role("status")).to_contain_text("2 calls from 1 turn. Remaining: about")
    assert all(seen.model == "fake-1" for seen in shoal.requests("tide"))
    cell = page.locator(".matrix tbody td .cell")
    await expect(cell).to_have_text("pending")

    await form.get_by_role("button", name="Ask now").click()
    await expect(form.get_by_role("status")).to_contain_text("0 of 2 answered")
    until(gate.reached.is_set)
    await form.get_by_role("button", name="Stop").click()
    await expect(page.locator(".matrix tfoot")).to_contain_text("0 of 2")
    await page.reload()
    shoal.open(gate)
    await page.get_by_role("button", name="Continue with fake/fake-2").click()
    await expect(page.locator(".matrix tfoot")).to_contain_text("2 of 2, –")
    await expect(cell).to_have_text("different arguments 1 of 2")
    await expect(page.get_by_label("Legend")).to_contain_text("the same tools with different arguments")

    await cell.click()
    sides = page.get_by_role("dialog", name="Recorded and new answers")
    await expect(sides.locator(".is-gone")).to_contain_text("crew.txt")
    await expect(sides.locator(".is-new")).to_contain_text("tides.csv")
    await page.keyboard.press("Escape")
    await expect(sides).to_have_count(0)
    await expect(cell).to_be_focused()

    await form.get_by_label("Model").fill("fake/fake-3")
    await form.get_by_label("Turns: a number").fill("web:lobby:tide")
    await form.get_by_label("Limit in US$").fill("0")
    await estimate.click()
    await form.get_by_role("button", name="Ask now").click()
    await expect(page.locator(".cell.is-failed").first).to_be_visible()
    await expect(page.locator(".matrix thead th")).to_have_text(["Turn", "fake/fake-3", "fake/fake-2"])
    await page.get_by_role("button", name="Remove fake/fake-3").click()
    await page.get_by_role("button", name="Remove it").click()
    await expect(page.locator(".matrix thead th")).to_have_text(["Turn", "fake/fake-2"])
    await expect(page.get_by_role("link", name="when is the tide low?").last).to_be_visible()


async def test_rules_are_suggested_and_accepted_one_by_one(page: Page, shoal: Running) -> None:
    for number in range(3):
        for command in ("touch log.txt", "touch tides.txt"):
            thread = f"web:lobby:{command[6:9]}{number}"
            shoal.says(thread, f"tools=1 tool=bash args={json.dumps({'command': command})}")
            decided = shoal.api(f"/api/approvals/{shoal.approval(thread)['id']}", {"decision": "allow"})
            assert decided.status == 200, decided.body
            shoal.ends(thread)
    await go(page, "approvals")
    cards = page.locator(".suggested .card")
    await expect(cards).to_have_count(2)
    card = cards.filter(has_text="touch log.txt")
    await expect(card).to_contain_text("Asked 3 times")
    await card.get_by_role("button", name="Add rule").click()
    await card.get_by_role("button", name="Keep asking").click()
    await expect(card.get_by_role("button", name="Add rule")).to_be_visible()
    assert "touch" not in (shoal.home / "shoal.toml").read_text()
    await card.get_by_role("button", name="Add rule").click()
    await card.get_by_role("button", name="Always allow this").click()
    await expect(card).to_contain_text("Added.")
    await expect(cards.filter(has_text="touch tides.txt").get_by_role("button", name="Add rule")).to_be_visible()
    rules = (shoal.home / "shoal.toml").read_text()
    assert "touch log" in rules
    assert "touch tides" not in rules
    printed = shoal.cli("permissions", "suggest")
    (number,) = [line.split(".")[0] for line in printed.splitlines() if line.endswith("and each request was allowed:")]
    assert "To accept a suggestion, run" in printed
    assert "touch tides" in shoal.cli("permissions", "suggest", "--accept", number)
    assert "touch tides" in (shoal.home / "shoal.toml").read_text()
    assert "To accept a suggestion, run" not in shoal.cli("permissions", "suggest")
    shoal.says("web:lobby:at-once", f"tools=1 tool=bash args={json.dumps({'command': 'touch log.txt'})}")
    shoal.ends("web:lobby:at-once")  # the new rule allows the call without asking


async def test_files_that_an_undo_skips_are_named_with_the_reason(page: Page, shoal: Running) -> None:
    shoal.plays(
        "large", calls(call("write", path="large.txt", content="x" * 2_000), call("write", path="s", content="s"))
    )
    shoal.asks("web:lobby:large", "large, please")
    await go(page, "t/web:lobby:large")
    await page.get_by_role("button", name="Changed 2 files").click()
    changes = page.locator(".row.end .changes")
    await expect(changes).to_contain_text("large.txt added · It is too large to be stored, so the undo keeps it.")
    await page.get_by_role("button", name="Undo these changes").click()
    await expect(changes.get_by_role("status")).to_contain_text(
        "large.txt: It is too large to be stored, so the undo keeps it."
    )
    assert (shoal.workspace / "large.txt").exists()


async def test_a_copy_links_to_its_original_for_undo(page: Page, shoal: Running) -> None:
    shoal.plays("mooring", calls(call("write", path="m1.txt", content="1"), call("write", path="m2.txt", content="2")))
    shoal.asks("web:lobby:original", "mooring, please")
    copy = shoal.cli("threads", "fork", "web:lobby:original").split()[-1]
    await go(page, f"t/{copy}")
    await expect(page.locator(".row.end")).to_contain_text("Changed 2 files. You can undo this only in")
    await expect(page.get_by_role("button", name="Changed")).to_have_count(0)
    await page.get_by_role("link", name="the original conversation").click()
    await expect(page.get_by_role("button", name="Changed 2 files")).to_be_visible()
