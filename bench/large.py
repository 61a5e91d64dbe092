"""Time until each view of the page opens in a large home: 10,000 threads, 300 agents and 500 schedules."""

import asyncio
import random
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

from playwright.async_api import Page, async_playwright

from bench.page import BROWSERS, FLAGS, TOKEN
from bench.rows import Row, middle
from shoal.agents.lifecycle import AgentLifecycle
from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.schedules import first_time
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.clock import Clock
from shoal.kernel.events import AssistantSaid, Event, EventData, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Author, Usage
from shoal.kernel.records import AuditEntry, Spend
from shoal.services import Services
from shoal.store.store import Store
from shoal.surfaces.console import FILES
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.clock import ManualClock
from shoal.testing.model.fake import FakeModel
from shoal.testing.scenario import FakeModels

THREADS, AGENTS, SCHEDULES, CHATS = 10_000, 300, 500, 200
OPEN_MS_MAX = 500.0
ROUNDS = 3
OWNER = Author("owner", trusted=True)
CRONS = ("0 8 * * *", "30 6 * * 1-5", "*/20 * * * *", "15 10 1 * *", "* * * * *", "0 0 29 2 *")
PLACES = re.findall(r'^  \["(\w+)", "', (FILES / "views" / "shell.js").read_text("utf-8"), re.MULTILINE)
SEEN = """place => new Promise((done) => {
  const began = performance.now();
  location.hash = `#/${place}`;
  let quiet = 0;
  const look = () => requestAnimationFrame(() => {
    const main = document.querySelector("main");
    const isThere = main.querySelector(".place, .log") && !main.querySelector(".loading") && main.innerText.length > 80;
    quiet = isThere ? quiet + 1 : 0;
    quiet > 1 ? done(performance.now() - began) : look();
  });
  setTimeout(look);
})"""


def measure() -> list[Row]:
    """Measure the milliseconds until each view is shown. Returns no rows without Chromium."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), browser))


@asynccontextmanager
async def large(home: Path) -> AsyncGenerator[tuple[Services, str]]:
    """Serve an app with a large home. Creates the home if it does not exist."""
    is_new = not (home / "shoal.db").exists()
    settings: dict[str, object] = {"mailbox": {"pause_seconds": 0}}
    async with (
        open_app(
            load_config(home, {}, settings), Overrides(models=FakeModels(FakeModel(script=lambda seen: "Yes.")))
        ) as app,
        serve(app, WebOptions(token=TOKEN, port=0)) as address,
    ):
        if is_new:
            await _fill(app)
        yield app, address


async def _measure(home: Path, path: str) -> list[Row]:
    async with large(home) as (_, address), async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=[*FLAGS])
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{address}/?token={TOKEN}#/today")
        await page.get_by_role("heading", name="Today", exact=True).wait_for()
        await page.wait_for_timeout(1_000)
        views = {place: await _view(page, place) for place in ("t/web:lobby:7", *PLACES)}
        await browser.close()
    return [Row(f"page, large home: {place}", "ms", ms, bound=OPEN_MS_MAX) for place, ms in views.items()]


async def _view(page: Page, place: str) -> float:
    taken: list[float] = []
    for _ in range(ROUNDS):
        await page.evaluate(SEEN, "t/web:lobby:8")
        taken.append(await page.evaluate(SEEN, place))
        await page.wait_for_timeout(300)
    return middle(taken)


async def _fill(app: Services) -> None:
    now, chance = app[Clock].now(), random.Random(7)
    for number in range(AGENTS):
        await app[AgentLifecycle].create(f"agent-{number}", {"profile": "guarded"} if number % 3 else {}, "owner")
    for number in range(THREADS):
        await _thread(app, number, now - timedelta(minutes=chance.uniform(0, 60 * 24 * 20)))
    for number in range(SCHEDULES):
        thread, cron = ThreadId(f"web:lobby:{number}"), CRONS[number % len(CRONS)]
        spec = NewTrigger("periodic", cron, f"Do task {number}.", OWNER, "", thread, timezone="Europe/Berlin")
        await app[TriggerStore].add(spec, first_time(spec, now + timedelta(hours=2)))
    for day in range(90, 0, -1):
        ledger = Store(app[Store].driver, ManualClock(now - timedelta(days=day))).ledger
        for number in range(20):
            spent = Spend(f"{day}:{number}", f"agent-{number}", "owner", f"demo/{number % 5}", Usage(9_000, 900), 0.04)
            await ledger.record(ThreadId(f"web:lobby:{number * day}"), TurnId(f"t{day}:{number}"), spent)
    for number in range(300):
        await app[Store].audit.record("owner", [AuditEntry("bash", f"ls {number}", "allow", user="owner")])


async def _thread(app: Services, number: int, at: datetime) -> None:
    place = f"telegram:{number % CHATS}" if number % 5 == 0 else "web:lobby"
    agent = "main" if number % 2 else f"agent-{number % AGENTS}"
    thread, outcome = ThreadId(f"{place}:{number}"), "failed" if number % 50 == 0 else "done"
    said: list[EventData] = [
        TurnStarted(agent, "fake-1"),
        UserSaid(f"How is the sea at mooring {number}?", Author(str(number % CHATS), "Ada", trusted=True)),
        AssistantSaid(f"It is **calm** at mooring {number}."),
        TurnFinished(outcome, reply="It is **calm**." if outcome == "done" else ""),
    ]
    events = [Event(seq, thread, TurnId(f"t{number}"), at, data) for seq, data in enumerate(said, 1)]
    await app[Store].journal.add_thread(thread, agent, f"The sea at mooring {number}", events)


async def _serve(home: Path) -> None:
    async with large(home) as (_, address):
        print(f"{address}/?token={TOKEN}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
