"""Takes the screenshots in docs/images from a real run with a scripted model: `python -m tests.pictures [NAME…]`.

The complete application runs on a new home. People write to it through the API, and the scripted model replies and
calls tools, which really run. Usage of earlier days is recorded with the clock set back. Then a browser takes the
screenshots.
"""

import asyncio
import io
import json
import random
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
from PIL import Image
from playwright.async_api import Browser, Page, expect

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Usage
from shoal.kernel.ports import Route
from shoal.kernel.records import Spend
from shoal.store.store import Store
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, FakeSettings, Refusal, Reply, Seen, Step
from shoal.testing.scenario import FakeModels
from tests.e2e.page_kit import chromium, launched

FOLDER = Path(__file__).parent.parent / "docs" / "images"
TOKEN = "a-token-for-pictures-that-nobody-can-guess"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 780}
MODELS = {"demo/large": (3.0, 15.0), "demo/small": (0.4, 1.6), "demo/local": (0.0, 0.0)}
ANSWER = """The tide is low at **14:12** today, so there is time for both boats.

| boat | draught | from | to |
|---|---:|---:|---:|
| Dunlin | 1.1 m | 8:00 | 17:30 |
| Knot | 1.6 m | 9:20 | 16:10 |

```python
def afloat(depth: float, draught: float, spare: float = 0.4) -> bool:
    \"\"\"Return whether the water is deep enough.\"\"\"
    return depth >= draught + spare
```

At least $h = d - t_{max} = 2.0 - 1.6 = 0.4$ meters of water remain under the keel.
"""
SAID = (
    ("plan", "main", "Which of the two boats can leave the harbour today?"),
    ("logs", "ops", "Check last night's logs and tell me what failed"),
    ("paint", "main", "Write a shopping list for painting the boat"),
    ("letter", "writer", "Draft an invitation to the summer regatta"),
    ("weather", "main", "What will the weather be like on Saturday?"),
    ("backup", "ops", "Is last night's backup complete?"),
    ("push", "main", "Publish the new timetable"),
)
SCHEDULES = (
    ("Morning brief", "0 8 * * *", "Summarize finished, pending and upcoming work."),
    ("Tide table", "30 6 * * 1-5", "Fetch the tide table and post it."),
    ("Weekly report", "0 16 * * 5", "Summarize the week for the crew."),
    ("Check the moorings", "*/20 * * * *", "Check the camera at the moorings."),
    ("Order diesel", "15 10 * * 2", "Check whether the diesel lasts for the week."),
)


class PricedModels(FakeModels):
    """Resolves all model names to the fake model, with prices."""

    def usd(self, route: Route, usage: Usage) -> float | None:
        read, written = MODELS.get(route.model, (3.0, 15.0))
        return (usage.input_tokens * read + usage.output_tokens * written) / 1_000_000


def bash(command: str) -> Call:
    return Call("bash", json.dumps({"command": command}))


def script(seen: Seen) -> Step | str:
    asked = seen.user_text.splitlines()[0]
    if "logs" in asked:
        steps: tuple[Step, ...] = (
            Reply("I will check the logs.", calls=(bash("sleep 0.9; echo 'sync: 3 of 412 files failed'"),)),
            Reply(calls=(bash("sleep 0.4; echo retry: done"), bash("sleep 0.6; echo 'disk: 71 %'"))),
        )
        if seen.rounds < len(steps):
            return steps[seen.rounds]
        return "Three of 412 files failed to sync. A retry at 4:10 succeeded. The disk is at 71 %."
    if "timetable" in asked:
        if seen.rounds:
            return "The timetable is ready. I will publish it when you allow the push."
        return Reply("I will push the new timetable.", calls=(bash("git push origin timetable"),))
    if "weather" in asked:
        return Refusal(400, "The model rejected the request: the account has no credit left.")
    if "boats" in asked:
        return ANSWER
    if "shopping" in asked:
        return "- [x] sandpaper, grit 120\n- [x] two brushes\n- [ ] 2.5 l of white enamel\n- [ ] masking tape"
    return "The invitation is in the shared folder." if "invitation" in asked else "Yes, it is complete: 1.2 GB."


class Stage:
    """The running application, a client and a browser."""

    def __init__(self, browser: Browser, address: str, client: httpx2.AsyncClient) -> None:
        self.browser = browser
        self.address = address
        self.client = client

    async def post(self, path: str, body: object) -> None:
        answer = await self.client.post(path, json=body)
        assert answer.is_success, answer.text

    @asynccontextmanager
    async def page(self, place: str, *, dark: bool = False, phone: bool = False) -> AsyncGenerator[Page]:
        viewport = PHONE if phone else WIDE
        context = await self.browser.new_context(
            viewport=viewport,  # pyrefly: ignore[bad-argument-type] - the library's own shape
            device_scale_factor=1.5 if phone else 1,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            timezone_id="Europe/Berlin",
        )
        page = await context.new_page()
        await page.goto(f"{self.address}/?token={TOKEN}" if place != "sign-in" else self.address)
        await page.evaluate("place => { location.hash = place; }", f"#/{place}")
        await page.wait_for_load_state("networkidle") if place == "sign-in" else await page.wait_for_timeout(1500)
        yield page
        await context.close()


async def past(store: Store, now: datetime) -> None:
    chance = random.Random(7)
    for day in range(42, 0, -1):
        at = now - timedelta(days=day)
        clock = ManualClock(at)
        ledger = Store(store.driver, clock).ledger
        for number in range(chance.randint(6, 18) if at.weekday() < 5 else chance.randint(1, 5)):
            model = chance.choices(list(MODELS), (5, 3, 2))[0]
            read, written = chance.randint(2_000, 40_000), chance.randint(100, 2_500)
            usage = Usage(read, written, int(read * chance.uniform(0.5, 0.9)))
            turn, (word, agent, _) = TurnId(clock.new_id()), chance.choice(SAID)
            usd = (read * MODELS[model][0] + written * MODELS[model][1]) / 1_000_000
            spent = Spend(f"{turn}:{number}", agent, "owner", model, usage, usd)
            await ledger.record(ThreadId(f"web:lobby:{word}"), turn, spent)


async def act(stage: Stage) -> None:
    for name, model, profile in (("ops", "demo/small", "open"), ("writer", "demo/large", "standard")):
        await stage.post("/api/agents", {"name": name, "settings": {"model": model, "profile": profile}})
    for name, cron, text in SCHEDULES:
        trigger = {"kind": "periodic", "schedule": cron, "text": text, "name": name, "timezone": "Europe/Berlin"}
        await stage.post("/api/triggers", {**trigger, "thread": "web:lobby:plan"})
    memory = (
        "- The harbour has four moorings.\n- Dunlin draws 1.1 m, Knot 1.6 m.\n- The crew meets on Fridays at 16:00.\n"
    )
    await stage.client.put("/api/memory", json={"scope": "global", "text": memory})
    for word, agent, text in SAID:
        await stage.post(f"/api/threads/web:lobby:{word}/messages", {"text": text, "agent": agent})
    async with asyncio.timeout(60):
        while True:
            threads = (await stage.client.get("/api/threads")).json()
            if len(threads) == len(SAID) and sum(bool(thread["open_turn"]) for thread in threads) <= 1:
                return


@asynccontextmanager
async def stage(home: Path) -> AsyncGenerator[Stage]:
    settings = {
        "permissions": {"default_profile": "standard"},
        "sandbox": {"kind": "host"},
        "model": {"name": "demo/large"},
        "mailbox": {"pause_seconds": 0},
        "budget": {"usd_per_day": 5},
    }
    fake = FakeModel(script=script, settings=FakeSettings(latency_seconds=0.35, token_seconds=0.004))
    async with AsyncExitStack() as stack:
        overrides = Overrides(models=PricedModels(fake))
        app = await stack.enter_async_context(open_app(load_config(home, {}, settings), overrides))
        address = await stack.enter_async_context(serve(app, WebOptions(token=TOKEN, port=0)))
        headers = {"Origin": address}  # messages from the page's origin count as written by a person
        client = await stack.enter_async_context(httpx2.AsyncClient(base_url=address, headers=headers, timeout=30))
        entered = await client.get("/", params={"token": TOKEN})
        client.headers["X-Shoal"] = entered.headers["location"].removeprefix("/?key=")
        browser = await stack.enter_async_context(launched(chromium()))
        opened = Stage(browser, address, client)
        await past(app[Store], datetime.now(UTC))
        await act(opened)
        yield opened


PLACES = (
    ("conversation", "t/web:lobby:plan", "", False),
    ("turn", "t/web:lobby:logs", "turn", False),
    ("approval", "t/web:lobby:push", "", False),
    ("today", "today", "", False),
    ("today-dark", "today", "", True),
    ("usage", "usage", "", False),
    ("usage-dark", "usage", "", True),
    ("context", "t/web:lobby:logs/context", "", False),
    ("schedules", "schedules", "", False),
    ("audit", "audit", "verify", False),
    ("permissions", "permissions", "permission", False),
    ("search", "t/web:lobby:plan", "search", False),
    ("conversation-dark", "t/web:lobby:plan", "", True),
    ("sign-in", "sign-in", "", False),
    ("phone-today", "today", "phone", False),
    ("phone-conversation", "t/web:lobby:plan", "phone", True),
)
"""Name, view, action before the screenshot, and whether it is dark."""


async def take(made: Stage, name: str, place: str, deed: str, folder: Path, *, dark: bool) -> int:
    async with made.page(place, dark=dark, phone=deed == "phone") as page:
        if deed == "turn":
            await page.locator(".end-line").last.click()
            for line in await page.locator(".tool-line").all():
                await line.click()
        elif deed == "verify":
            await page.get_by_role("button", name="Check now").click()
        elif deed == "permission":
            await page.get_by_label("Command, or an action").fill("git status && curl https://example.org | sh")
            await page.get_by_role("button", name="Check").click()
        elif deed == "search":
            await page.keyboard.press("Control+k")
            field = page.get_by_role("combobox", name="Search")
            await field.fill("boat")
            await expect(field).to_have_value("boat")
            await expect(page.get_by_role("option").filter(has_text="harbour").first).to_be_visible()
        await page.wait_for_timeout(700)
        picture = Image.open(io.BytesIO(await page.screenshot())).convert("RGB")
    target = folder / f"page-{name}.png"
    small = picture.quantize(256, method=Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE)
    small.save(target, optimize=True)
    return target.stat().st_size


async def main(names: list[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        async with stage(Path(home)) as opened:
            sizes = {
                name: await take(opened, name, place, deed, folder, dark=dark)
                for name, place, deed, dark in PLACES
                if not names or name in names
            }
    for name, size in sizes.items():
        print(f"{size:>8}  page-{name}.png")
    print(f"{sum(sizes.values()):>8}  together")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:], FOLDER))
