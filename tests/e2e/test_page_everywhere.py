"""Each view and dialog of the page in both color schemes: it fits the screen, is readable, and all its controls
can be reached with Tab.
"""

import re
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, Page, expect
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import DESKTOP, THREAD, opened, violations
from tests.e2e.test_page_layout import CONTRAST, LONG, assert_fits, fill_lists, tell_everything, unfold
from tests.e2e.test_page_views import how_things_stand, known, recorded, scheduled, spent, window

from shoal.kernel.clock import iso
from shoal.surfaces.console import FILES

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

ROOT = Path(__file__).parents[2]
HEIGHT = 900
ROUNDS = 3
"""Maximum number of rounds through all Tab stops. A list that loads late adds stops in front of those already
passed.
"""
WIDTHS = (360, 390, 820, 1440)
GROUNDS = {"light": "rgb(251, 250, 248)", "dark": "rgb(21, 25, 24)"}
PLACES = re.findall(r'^  \["(\w+)", "', (FILES / "views" / "shell.js").read_text("utf-8"), re.MULTILINE)
VIEWS = (f"t/{THREAD}", f"t/{THREAD}/files", f"t/{THREAD}/context", "new", *PLACES)
READY = ".place :is(.panel, .sums, .week, .audit, .figures, .card, .comparison), .kept li, .strung, .welcome"

AXE = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 160)}`));
}"""

CONTROLS = """() => {
  const modal = document.querySelector("dialog[open]") || document;
  const can = "a[href], button, input, select, textarea, summary, audio[controls], [tabindex='0']";
  const controls = [...modal.querySelectorAll(can)].filter(
    (one) => one.checkVisibility({ visibilityProperty: true }) && !one.matches(":disabled, [tabindex='-1']") &&
      !one.closest("[inert]") && !(one.type === "radio" && !one.checked),
  );
  window.reached = new Set();
  window.unseen = new Set();
  window.noted ||= document.addEventListener("focusin", ({ target }) => {
    window.reached.add(target);
    const rings = [target, target.closest(".box")].filter(Boolean).map((one) => getComputedStyle(one));
    if (rings.every((style) => style.outlineStyle === "none" && style.boxShadow === "none")) window.unseen.add(target);
  }) || true;
  window.controls = controls;
  document.activeElement.blur();
  const parts = modal.querySelectorAll("input[type=date], input[type=time], input[type=datetime-local], audio").length;
  return controls.length + 8 * parts + 20; // those have stops of their own within, and lists may grow meanwhile
}"""

UNREACHED = """() => [
  ...window.controls.filter((one) => one.isConnected && !window.reached.has(one))
    .map((one) => `unreached ${one.outerHTML.slice(0, 160)}`),
  ...[...window.unseen].map((one) => `without a ring ${one.outerHTML.slice(0, 160)}`),
]"""


def fill(api: PageApi) -> None:
    tell_everything(api)
    for part in (how_things_stand, spent, window, scheduled, known):
        part(api)
    fill_lists(api)
    scheduled(api)
    recorded(api, 30)
    now = iso(datetime.now(UTC))
    api.lists["models"] = [{"name": f"demo/{LONG}", "context_tokens": 1000, "input_usd": 1, "output_usd": None}]
    state = {
        "id": "c1", "created_at": now, "model": f"demo/{LONG}", "selection": "the last 10 turns", "profile": "",
        "has_system": False, "runs": 1, "calls": 2, "done": 1, "usd": 0.01, "estimated_tokens": 5, "estimated_usd": 1,
    }  # fmt: skip
    answer = {"text": f"One\n{LONG}", "usage": {"input_tokens": 5, "output_tokens": 6}, "usd": None}
    answers = [{"run": 1, "difference": "words", "answer": {**answer, "text": "Two"}}]
    step = {
        "thread": THREAD, "turn": "t1", "seq": 3, "number": 1, "asked": LONG, "model": "demo", "recorded": answer,
        "answers": answers,
    }  # fmt: skip
    api.answers["comparisons"] = [state]
    api.answers["comparisons/c1"] = {"state": state, "steps": [step], "differences": ["same", "words"]}
    rule = {"agent": "main", "allow": [f"tool:bash:{LONG}"], "shown": LONG, "asked": 9, "since": now, "accepted": False}
    api.answers["permissions/suggestions"] = [rule]
    api.answers["commands"] = [{"name": "new", "usage": "", "description": "Begin anew."}]
    api.answers["search"] = [
        {"thread": THREAD, "seq": 1, "title": LONG, "excerpt": LONG, "at": now, "role": "user", "marks": []}
    ]


async def open_palette(page: Page) -> None:
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="Search").fill("a")


async def open_manage(page: Page) -> None:
    await page.get_by_role("button", name="Conversation options").click()


async def open_answerers(page: Page) -> None:
    await page.get_by_title("Agent and model").click()
    await expect(page.get_by_role("searchbox", name="Filter models")).to_be_visible()


async def open_sides(page: Page) -> None:
    await page.locator(".matrix .cell").first.click()


DIALOGS: dict[str, tuple[str, Callable[[Page], Awaitable[None]]]] = {
    "palette": (f"t/{THREAD}", open_palette),
    "manage": (f"t/{THREAD}", open_manage),
    "answerers": (f"t/{THREAD}", open_answerers),
    "side by side": ("compare", open_sides),
}


async def everywhere(page: Page) -> AsyncGenerator[str]:
    """Open every view, expand everything in it, and open every dialog. Yields the name of each view and dialog."""
    for view in VIEWS:
        await page.evaluate("place => { location.hash = `#/${place}`; }", view)
        await expect(page.locator(READY).first).to_be_visible()
        if view == VIEWS[0]:
            await unfold(page)
        await page.evaluate("for (const box of document.querySelectorAll('main details')) box.open = true;")
        yield view
    for name, (view, begin) in DIALOGS.items():
        await page.evaluate("place => { location.hash = `#/${place}`; }", view)
        await expect(page.locator(READY).first).to_be_visible()
        await begin(page)
        await expect(page.get_by_role("dialog")).to_be_visible()
        yield name
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.fixture(scope="module")
def axe() -> str:
    setup = subprocess.run([ROOT / "scripts" / "node-packages.sh", "axe"], check=False, capture_output=True, text=True)
    if setup.returncode:
        pytest.skip(setup.stderr.strip())
    return (ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_problem_in_any_view(
    browser: Browser, api: PageApi, axe: str, scheme: Literal["light", "dark"]
) -> None:
    fill(api)
    wrong: list[str] = []
    async with opened(browser, api.address, scheme=scheme, viewport=DESKTOP) as page:
        await page.evaluate(axe)
        async for name in everywhere(page):
            wrong += [f"{name} {violation}" for violation in await page.evaluate(AXE)]
    async with opened(browser, f"http://127.0.0.1:{api.port}/", scheme=scheme) as page:
        await expect(page.get_by_role("heading", name="You are signed out")).to_be_visible()
        await page.evaluate(axe)
        wrong += [f"sign-in {violation}" for violation in await page.evaluate(AXE)]
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_view_fits_and_is_readable(
    browser: Browser, api: PageApi, scheme: Literal["light", "dark"]
) -> None:
    fill(api)
    async with opened(browser, api.address, scheme=scheme) as page:
        async for name in everywhere(page):
            checked, low = await page.evaluate(CONTRAST)
            assert (name, low) == (name, [])
            assert checked > 12
            for width in WIDTHS if scheme == "light" else ():
                await page.set_viewport_size({"width": width, "height": HEIGHT})
                await assert_fits(page)
        assert await page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == GROUNDS[scheme]
        assert await violations(page) == []


async def test_tab_reaches_every_control_and_shows_the_focus(browser: Browser, api: PageApi) -> None:
    fill(api)
    wrong: list[str] = []
    async with opened(browser, api.address) as page:
        async for name in everywhere(page):
            stops, unreached = int(await page.evaluate(CONTROLS)), [""]
            for _ in range(ROUNDS):
                for _ in range(stops if unreached else 0):
                    await page.keyboard.press("Tab")
                unreached = await page.evaluate(UNREACHED)
            wrong += [f"{name}: {control}" for control in unreached]
    assert wrong == []
