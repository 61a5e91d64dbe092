"""The page's charts and views: overview, costs, context window, schedules and records."""

import io
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import Browser, FilePayload, expect
from tests.e2e.http_stand import TOKEN, served
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import DESKTOP, PHONE, THREAD, opened, violations
from tests.e2e.test_http_app import site
from tests.e2e.test_page_layout import CONTRAST, assert_fits

from shoal.kernel.clock import iso
from shoal.kernel.events import AssistantSaid, RetryRequested, RetryScheduled, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.messages import Author, Usage
from shoal.surfaces.console import FILES
from shoal.testing.model import FakeModel

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

OWNER = Author("owner", trusted=True)
LONG = "averylongwordwithoutanyplacetobreakit" * 6


def how_things_stand(api: PageApi, second: str = "failed") -> None:
    now = datetime.now(UTC)
    turn = {
        "thread": THREAD, "title": "Boats", "agent": "main", "seq": 4, "seconds": 3.5, "outcome": "done",
        "asked": "Paint the boat", "reply": f"**Painted** {LONG}", "tainted_by": "", "tokens": 900,
    }  # fmt: skip
    turns = [
        {**turn, "at": iso(now - timedelta(minutes=5))},
        {**turn, "at": iso(now - timedelta(hours=3)), "outcome": second, "reply": "No credit is left."},
    ]
    api.answers["overview"] = {
        "since": iso(now - timedelta(days=1)), "until": iso(now), "tokens": 900, "calls": 3, "usd": 0.25,
        "turns": turns,
        "faults": [turn for turn in turns if turn["outcome"] in ("failed", "limit")],
        "hours": [
            {"at": iso(now - timedelta(minutes=5)), "outcome": "done", "turns": 224, "tokens": 900},
            {"at": iso(now - timedelta(hours=3)), "outcome": second, "turns": 1, "tokens": 0},
        ],
        "waiting": [
            {"id": "a1", "thread": THREAD, "asked_in": THREAD, "title": "Boats", "agent": "main",
             "asked_by": "web:owner", "reason": "", "tool": "bash", "action": "tool:bash:make",
             "shown": f"make {LONG}", "expires_at": iso(now + timedelta(hours=1))}
        ],
        "coming_soon": 1, "coming_total": 1,
        "coming": [
            {"id": "t1", "text": LONG, "where": THREAD, "at": iso(now + timedelta(hours=2)), "error": ""}
        ],
        "failing": [{"id": "t2", "text": "Tide table", "where": THREAD, "at": None, "error": "It was refused."}],
    }  # fmt: skip


def nothing_stands(api: PageApi) -> None:
    now = iso(datetime.now(UTC))
    lists = {name: [] for name in ("turns", "faults", "hours", "waiting", "coming", "failing")}
    api.answers["overview"] = {
        "since": now,
        "until": now,
        "tokens": 0,
        "calls": 0,
        "usd": None,
        "coming_soon": 0,
        "coming_total": 0,
        **lists,
    }


def spent(api: PageApi) -> None:
    today = datetime.now(UTC).date()
    used = {"input_tokens": 1000, "output_tokens": 50, "cached_tokens": 400}
    row = {"agent": "main", "calls": 3, "usage": used}
    api.lists["usage"] = [
        {**row, "day": (today - timedelta(days=day)).isoformat(), "model": f"demo/{LONG if day == 3 else day % 7}",
         "usd": None if day == 2 else 0.5}
        for day in range(40)
    ]  # fmt: skip
    api.lists["usage/threads"] = [
        {"thread": THREAD, "title": LONG, "calls": 3, "tokens": 900, "cached_tokens": 4, "usd": 1.5},
        {"thread": "web:lobby:b", "title": "", "calls": 1, "tokens": 90, "cached_tokens": 0, "usd": None},
    ]


def window(api: PageApi) -> None:
    parts = [("system", 500), ("tools", 2100), ("skills", 0), ("memory", 40), ("summary", 0), ("transcript", 9000)]
    api.answers[f"threads/{THREAD}/context"] = {
        "thread": THREAD, "agent": "main", "model": f"demo/{LONG}", "window_tokens": 20_000, "output_tokens": 4096,
        "tokens": 11_640, "parts": [{"name": name, "bytes": size * 4, "tokens": size} for name, size in parts],
        "found_tools": 25, "left_out": 0, "fitted": True, "room_tokens": 10_000, "oldest": f"Paint {LONG}",
    }  # fmt: skip


def scheduled(api: PageApi) -> None:
    now = datetime.now(UTC)
    row = {
        "kind": "periodic", "timezone": "UTC", "text": LONG, "thread": THREAD, "platform": "", "channel": "",
        "state": "active", "next_at": iso(now + timedelta(hours=1)), "error": "", "failures": 0, "last_at": None,
    }  # fmt: skip
    api.lists["triggers"] = [
        {**row, "id": "t1", "name": "Brief", "schedule": "0 9 * * 1-5", "words": "every weekday at 9:00"}
    ]
    first = now.replace(hour=0, minute=0) + timedelta(days=1)
    often = [iso(first + timedelta(days=day, minutes=20 * number)) for day in range(6) for number in range(4)]
    api.lists["triggers/calendar"] = [
        {"id": "t1", "name": "Brief", "words": "every weekday at 9:00", "at": [often[8]], "more": False},
        {"id": "t2", "name": LONG, "words": "every 20 minutes", "at": often, "more": True},
    ]


def recorded(api: PageApi, count: int) -> None:
    api.lists["audit"] = [
        {"chain": THREAD, "number": number, "at": iso(api.now), "entry": {
            "kind": "check" if number % 2 else "decision", "action": f"tool:bash:make {number}",
            "decision": ("allow", "ask", "deny")[number % 3], "rule": LONG, "user": "owner"}}
        for number in range(count)
    ]  # fmt: skip
    api.answers["audit/verify"] = {"chains": 2, "entries": count, "broken": []}


def everything(api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    how_things_stand(api)
    spent(api)
    window(api)
    scheduled(api)
    recorded(api, 30)
    known(api)
    some = {name: [] for name in ("platforms", "providers", "tools", "skills", "mcp")}
    about = {"model": "demo", "models": 1, "sandbox": "none", "isolated": False}
    api.answers["info"] = {**some, **about, "notes": [f"Commands run here without isolation. {LONG}"]}


def known(api: PageApi) -> None:
    api.answers["memory"] = [
        {
            "scope": "global",
            "path": "data/MEMORY.md",
            "day": "",
            "text": f"# Memory\n- {LONG}\n- Two.\n",
            "digest": "a",
        },
        {"scope": "note", "path": "data/n.md", "day": "2026-03-05", "text": "- Three.\n", "digest": "b"},
    ]
    change = {"id": "m1", "at": iso(api.now), "removed": [LONG], "added": ["Two."], "changed_by": "owner"}
    api.answers["memory/changes"] = [{**change, "agent": "main", "undone": False}]
    skill = {
        "name": LONG,
        "description": LONG,
        "path": "x",
        "inline": False,
        "hidden": True,
        "text": "# Do",
        "source": "x",
    }
    problems = [{"path": LONG, "problem": "It has no name."}]
    api.answers["skills"] = {"skills": [{**skill, "scope": "global"}], "problems": problems, "shadowed": []}
    lists = ("deny", "allow", "ask", "trusted_allow")
    rules = [
        {"list": name, "pattern": f"tool:bash:{LONG}.*", "words": "" if name == "allow" else LONG} for name in lists
    ]
    api.answers["permissions/profiles"] = [{"name": "standard", "agents": ["main"], "rules": rules, "built_in": True}]
    command = {"what": "command", "text": LONG, "beginning": True}
    api.answers["permissions/rules"] = [
        {
            **rule,
            "id": rule["list"],
            "agents": [LONG],
            "profile": "",
            "subject": command if rule["list"] == "ask" else None,
        }
        for rule in rules
    ]
    api.lists["agents"] = [{"name": name, "is_default": name == "main", "error": ""} for name in ("main", "ops")]


async def test_the_owners_first_view_is_today(browser: Browser, api: PageApi) -> None:
    everything(api)
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await page.evaluate("location.hash = ''")
        await expect(page.get_by_role("heading", name="Today", exact=True)).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("heading", name="Today", exact=True)).to_be_visible()


async def test_today_shows_pending_failed_and_upcoming_work(browser: Browser, api: PageApi) -> None:
    everything(api)
    async with opened(browser, api.address, place="today") as page:
        figures = page.locator(".figures > div")
        await expect(figures).to_contain_text(["224of 225 turns", "1", "2", "$0.25", "1next in"])
        wrong = page.get_by_role("region", name="Problems")
        await expect(wrong).to_contain_text("No credit is left.")
        await expect(wrong).to_contain_text("Tide table: It was refused.")
        await expect(page.get_by_role("region", name="Waiting for you").locator("code")).to_contain_text(
            "make averylong"
        )
        did = page.get_by_role("region", name="Recent activity")
        await expect(did.locator(".done")).not_to_contain_text("**")
        await expect(did.get_by_role("img", name="Turns by hour: 225 in 24 hours")).to_be_visible()
        await expect(did.locator(".column rect:not(.catch)")).to_have_count(2)
        await did.get_by_role("link", name="Paint the boat").first.click()
        await expect(page).to_have_url(f"http://127.0.0.1:{api.port}/#/t/{THREAD.replace(':', '%3A')}/e/4")


async def test_an_empty_day_says_so(browser: Browser, api: PageApi) -> None:
    nothing_stands(api)
    async with opened(browser, api.address, place="today") as page:
        await expect(page.get_by_text("No turns in the last 24 hours.")).to_be_visible()
        await expect(page.get_by_text("Nothing is scheduled.")).to_be_visible()
        await expect(page.locator(".figures")).to_contain_text("$0.00")


async def test_only_completed_turns_count_as_done(browser: Browser, api: PageApi) -> None:
    how_things_stand(api, second="aborted")
    async with opened(browser, api.address, place="today") as page:
        await expect(page.locator(".figures > div").first).to_contain_text("224of 225 turns")


async def test_usage_is_charted_by_day_and_listed_by_thread(browser: Browser, api: PageApi) -> None:
    everything(api)
    async with opened(browser, api.address, place="usage") as page:
        chart = page.get_by_role("img", name="Cost by day over 30 days")
        await expect(chart.locator(".column")).to_have_count(30)
        await page.get_by_role("combobox", name="Days").select_option("7")
        await page.get_by_role("combobox", name="Unit").select_option("tokens")
        await expect(page.get_by_role("img", name="Tokens by day over 7 days").locator(".column")).to_have_count(7)
        await expect(page.locator(".figures")).to_contain_text("at least")
        threads = page.get_by_role("table", name="By conversation, over 30 days")
        await expect(threads.get_by_role("row").nth(2)).to_contain_text("–")
        assert await violations(page) == []


async def test_the_forecast_uses_the_last_seven_days(browser: Browser, api: PageApi) -> None:
    async with opened(browser, api.address, place="audit") as page:
        forecast = await page.evaluate(
            """async () => {
              const { forecast } = await import("/console/views/usage.js");
              const row = (day, usd) => ({ day, usd });
              return [
                forecast(
                  [row("2026-03-10", 2), row("2026-03-09", 7), row("2026-03-03", 7), row("2026-02-27", 100)],
                  "2026-03-10",
                ),
                forecast([row("2026-03-10", 3)], "2026-03-10"),
                forecast([row("2026-03-31", 1), row("2026-03-30", null)], "2026-03-31"),
                forecast([], "2026-02-28"),
              ];
            }"""
        )
    assert forecast == [
        {"soFar": 16, "whole": 16 + 2 * 21, "isPartial": False},
        {"soFar": 3, "whole": 3 + 3 * 21, "isPartial": False},
        {"soFar": 1, "whole": 1, "isPartial": True},
        {"soFar": 0, "whole": 0, "isPartial": False},
    ]


async def test_the_context_view_shows_its_parts_and_what_is_trimmed_first(browser: Browser, api: PageApi) -> None:
    everything(api)
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        await page.get_by_role("link", name="Context").click()
        await expect(page.locator(".window")).to_contain_text("58 %")
        await expect(page.get_by_role("row").filter(has_text="Tools")).to_contain_text("2.1k")
        await expect(page.get_by_role("row").filter(has_text="Skills")).to_have_count(0)
        leaves = page.get_by_role("region", name="Trimmed first")
        await expect(leaves).to_contain_text("will summarize the oldest part of the conversation after the next turn")
        await expect(leaves).to_contain_text("Paint averylong")


async def test_schedules_are_shown_as_a_week_and_in_words(browser: Browser, api: PageApi) -> None:
    everything(api)
    async with opened(browser, api.address, place="schedules") as page:
        days = page.locator(".week > li")
        await expect(days).to_have_count(7)
        await expect(days.first).to_contain_text("Today")
        await expect(days.nth(4)).to_contain_text("Every 20 minutes")
        await expect(page.locator(".cards .card")).to_contain_text("Every weekday at 9:00, in test")
        await page.get_by_label("Message", exact=True).fill("Good morning")
        await page.get_by_label("Repeatedly").check()
        await page.get_by_role("combobox", name="How often").select_option("Every week")
        await page.get_by_label("At", exact=True).fill("08:30")
        await page.get_by_role("combobox", name="On", exact=True).select_option("Friday")
        await page.get_by_role("button", name="Add schedule").click()
        await expect(page.locator(".cards .card")).to_have_count(2)
        assert api.sent[-1].body["schedule"] == "30 8 * * 5"
        await expect(page.get_by_label("At", exact=True)).to_have_value("09:00")
        await expect(page.get_by_role("combobox", name="On", exact=True)).to_have_count(0)


async def test_the_audit_log_is_searched_and_checked(browser: Browser, api: PageApi) -> None:
    recorded(api, 10_000)
    async with opened(browser, api.address, place="audit") as page:
        rows = page.locator(".audit tbody tr")
        await expect(rows).to_have_count(100)
        await expect(page.get_by_role("status").filter(has_text="entries")).to_have_text("10k entries")
        await page.get_by_role("button", name="Show more").click()
        await expect(rows).to_have_count(500)
        await page.get_by_role("combobox", name="Decision").select_option("deny")
        await page.get_by_role("combobox", name="Event").select_option("check")
        await page.get_by_role("searchbox", name="Find").fill("make 99")
        await expect(rows).to_have_count(17)
        await page.get_by_role("searchbox", name="Find").fill("nothing of the kind")
        await expect(page.get_by_text("Nothing found.")).to_be_visible()
        await page.get_by_role("button", name="Check now").click()
        await expect(page.get_by_text("The log is intact")).to_be_visible()
        api.answers["audit/verify"] = {"chains": 2, "entries": 3, "broken": ["owner, entry 3 is missing."]}
        await page.get_by_role("button", name="Check again").click()
        await expect(page.get_by_text("owner, entry 3 is missing.")).to_be_visible()


async def test_the_timeline_of_a_turn_shows_a_scale_and_the_waits(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("one", OWNER))
    api.append(THREAD, TurnStarted("main", "demo"))
    again = api.now + timedelta(seconds=30)
    api.append(THREAD, RetryScheduled("overloaded", "Busy.", again, again, 1, "", ()), seconds=2)
    api.append(THREAD, RetryRequested("owner", ""), seconds=8)
    api.append(THREAD, AssistantSaid("done", usage=Usage(10, 5)), seconds=4)
    api.append(THREAD, TurnFinished("done", "done", 1, Usage(10, 5)), seconds=0)
    async with opened(browser, api.address) as page:
        await page.locator(".end-line").click()
        steps = page.locator(".timeline tbody tr")
        await expect(steps).to_have_text(["model2.0 s", "wait8.0 s", "model4.0 s10 in, 5 out"])
        await expect(page.locator(".timeline .scale")).to_have_text("07.0 s14 s")


# ---- personal settings, signing in, installing ----


async def test_a_theme_is_stored_for_the_person(browser: Browser, tmp_path: Path) -> None:
    dark, light = "rgb(21, 25, 24)", "rgb(251, 250, 248)"
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    async with served(tmp_path) as stand:
        entry = f"{stand.address}/?token={TOKEN}"
        async with opened(browser, entry, place="audit") as page:
            assert await page.evaluate(ground) == light
            await page.get_by_role("button", name="System theme").click()
            await page.get_by_role("button", name="Light theme").click()
            assert await page.evaluate(ground) == dark
            await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
            for _ in range(100):
                if (await stand.client.get("/api/me")).json()["preferences"]["theme"] == "dark":
                    break
            await page.reload()
            await expect(page.get_by_role("button", name="Dark theme")).to_be_visible()
            assert await page.evaluate(ground) == dark
        async with opened(browser, entry, place="audit") as page:  # as in another browser
            await expect(page.get_by_role("button", name="Dark theme")).to_be_visible()
            assert await page.evaluate(ground) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_sign_in_matches_the_page(browser: Browser, tmp_path: Path, scheme: str) -> None:
    async with (
        served(tmp_path) as stand,
        opened(browser, stand.address, scheme="dark" if scheme == "dark" else "light", viewport=PHONE) as page,
    ):
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert (await page.evaluate(CONTRAST))[1] == []
        await assert_fits(page)
        await page.get_by_label("Token").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("The token is wrong")
        await page.wait_for_load_state()  # the style sheet of the new page may still be loading
        assert (await page.evaluate(CONTRAST))[1] == []
        await page.get_by_label("Token").fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Message")).to_be_visible()
        assert await violations(page) == []


async def test_the_page_is_installable_and_caches_no_personal_data(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as stand:
        await stand.client.put("/api/memory", json={"scope": "global", "text": "- a secret\n"})
        async with opened(browser, f"{stand.address}/?token={TOKEN}", place="usage", viewport=DESKTOP) as page:
            scope = await page.evaluate("navigator.serviceWorker.ready.then((found) => found.scope)")
            assert scope == f"{stand.address}/"
            cached = await page.evaluate(
                """async () => {
                  const found = [];
                  for (const name of await caches.keys())
                    for (const one of await (await caches.open(name)).keys()) found.push(new URL(one.url).pathname);
                  return found.sort();
                }"""
            )
            assert cached == ["/console/base.css", "/console/offline.html", "/console/places.css", "/key"]
            assert await violations(page) == []
        answer = await stand.stranger.get("/console/app.webmanifest")
        assert answer.headers["content-type"] == "application/manifest+json"
        manifest = msgspec.json.decode(answer.content, type=dict[str, object])
        assert (manifest["start_url"], manifest["display"]) == ("/", "standalone")
        icons = msgspec.convert(manifest["icons"], list[dict[str, str]])
        assert all((FILES / icon["src"].removeprefix("/console/")).is_file() for icon in icons)
        assert {icon.get("sizes") for icon in icons} >= {"192x192", "512x512"}


# ---- memory and skills ----


async def test_memory_is_read_edited_deleted_and_restored(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as stand:
        await stand.client.put(
            "/api/memory", json={"scope": "global", "text": "- The tide is low.\n- Boats are wet.\n"}
        )
        async with opened(browser, f"{stand.address}/?token={TOKEN}", place="memory") as page:
            everywhere = page.locator(".cards .card").first
            await expect(everywhere).to_contain_text("The tide is low.")
            await everywhere.get_by_role("button", name="Forget Boats are wet.").click()
            await everywhere.get_by_role("button", name="Forget this").click()
            await expect(everywhere).not_to_contain_text("Boats are wet.")
            changes = page.get_by_role("region", name="Changes")
            await changes.get_by_role("button", name="Undo").first.click()
            await expect(everywhere).to_contain_text("Boats are wet.")
            await everywhere.get_by_role("button", name="Edit Everywhere").click()
            await everywhere.get_by_role("textbox").fill("- The tide is high.\n")
            (file,) = (await stand.client.get("/api/memory?notes=0")).json()
            Path(file["path"]).write_text("- Changed meanwhile.\n")
            await everywhere.get_by_role("button", name="Save").click()
            await expect(everywhere.get_by_role("alert")).to_contain_text("has changed since")
            await everywhere.get_by_role("button", name="Cancel").click()
            await page.reload()
            await everywhere.get_by_role("button", name="Edit Everywhere").click()
            await everywhere.get_by_role("textbox").fill("- The tide is high.\n")
            await everywhere.get_by_role("button", name="Save").click()
            await expect(everywhere.get_by_role("textbox")).to_have_count(0)
            assert Path(file["path"]).read_text() == "- The tide is high.\n"
            assert await violations(page) == []
            await assert_fits(page)


async def test_skills_are_read_written_and_removed(browser: Browser, tmp_path: Path) -> None:
    text = "---\nname: tide-table\ndescription: Read the tide table.\nlicense: MIT\n---\n\n# Tides\n\nLook it up.\n"
    async with served(tmp_path) as stand:
        await stand.client.post("/api/agents", json={"name": "main"})
        async with opened(browser, f"{stand.address}/?token={TOKEN}", place="skills") as page:
            await page.get_by_role("button", name="New skill").click()
            await page.get_by_label("SKILL.md").fill("no front matter")
            await page.get_by_role("button", name="Save").click()
            await expect(page.get_by_role("alert")).to_be_visible()
            await page.get_by_label("SKILL.md").fill(text)
            await page.get_by_role("button", name="Save").click()
            card = page.locator(".cards .card").filter(has_text="tide-table")
            await expect(card).to_contain_text("Read the tide table.")
            await card.get_by_role("button", name="Read tide-table").click()
            await expect(card.get_by_role("heading", name="Tides")).to_be_visible()
            await card.get_by_role("button", name="Edit tide-table").click()
            await expect(card.get_by_label("SKILL.md")).to_have_value(text)
            await card.get_by_role("button", name="Cancel").click()
            await card.get_by_role("button", name="Remove tide-table").click()
            await card.get_by_role("button", name="Remove it").click()
            await expect(card).to_have_count(0)
            assert await violations(page) == []
            await assert_fits(page)


async def test_a_command_is_checked_against_the_rules(browser: Browser, tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel("ok"), profile="standard") as served:
        entry = f"{served.client.base_url}/?token={TOKEN}".replace("//?", "/?")
        async with opened(browser, entry, place="permissions") as page:
            await page.get_by_label("Command, or an action").fill("ls && git push")
            await page.get_by_role("button", name="Check").click()
            await expect(page.get_by_text("It would ask for approval.")).to_be_visible()
            await expect(page.get_by_role("row").filter(has_text="git push")).to_contain_text("asks")
            rule = page.get_by_role("row").filter(has_text="git push").locator("details")
            await expect(
                rule.get_by_text("calls that send something outside this machine or this conversation")
            ).to_be_visible()
            await expect(rule.locator("code")).not_to_be_visible()
            await rule.locator("summary").click()
            await expect(rule.locator("code")).to_have_text("ask effect outward")
            await page.get_by_label("Command, or an action").fill("tool:write:/workspace/notes.md")
            await page.get_by_role("combobox", name="For").select_option("locked")
            await page.get_by_role("button", name="Check").click()
            await expect(page.get_by_text("It would be denied.")).to_be_visible()
            assert await violations(page) == []
        both = {"shell": "ls", "action": "tool:read:x", "agent": "main"}
        for wrong in (both, {"shell": "ls"}, {"shell": "ls", "profile": "none"}, {"shell": "ls", "agent": "none"}):
            assert (await served.client.post("/api/permissions/check", json=wrong)).status_code in (400, 404)


async def test_rules_are_edited_through_menus(browser: Browser, tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel("ok"), profile="standard") as served:
        entry = f"{served.client.base_url}/?token={TOKEN}".replace("//?", "/?")
        async with opened(browser, entry, place="permissions") as page:
            mine = page.get_by_role("region", name="Your rules")
            await mine.get_by_role("button", name="Add a rule").press("Enter")
            form = mine.get_by_role("form", name="Add a rule")
            await form.get_by_label("Command", exact=True).fill("ls && git push")
            await form.get_by_role("combobox", name="For").select_option("agent/main")
            await form.get_by_role("button", name="Add rule").click()
            await expect(form.get_by_role("alert")).to_contain_text("A rule covers one command.")
            await form.get_by_label("Command", exact=True).fill("git push")
            await form.get_by_role("button", name="Add rule").click()
            card = mine.locator(".card")
            await expect(card).to_contain_text("the command git push, with any arguments")
            await expect(card).to_contain_text("Runs without askingFor main")
            await page.get_by_label("Command, or an action").fill("git push origin")
            await page.get_by_role("button", name="Check", exact=True).click()
            await expect(page.get_by_text("It would run without asking.")).to_be_visible()

            await card.get_by_role("button", name="Change").click()
            await card.get_by_role("combobox", name="Decision").select_option("Denied")
            assert await violations(page) == []
            await assert_fits(page)
            await card.get_by_role("button", name="Save").click()
            await expect(card.locator(".tag")).to_have_text("Denied")
            await page.get_by_role("button", name="Check", exact=True).click()
            await expect(page.get_by_text("It would be denied.")).to_be_visible()

            await card.get_by_role("button", name="Remove").click()
            await card.get_by_role("button", name="Remove it").click()
            await expect(mine).to_contain_text("You have no rules yet")
            await page.evaluate("location.hash = '#/audit'")
            await expect(page.get_by_role("cell", name="Set up")).to_have_count(3)


async def test_a_zip_with_skills_is_installed(browser: Browser, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tides/SKILL.md", "---\nname: tides\ndescription: Read the tide table.\n---\n\n# Tides\n")
    async with site(tmp_path, FakeModel("ok"), profile="standard") as served:
        entry = f"{served.client.base_url}/?token={TOKEN}".replace("//?", "/?")
        async with opened(browser, entry, place="skills") as page:
            place = page.get_by_label("Install a SKILL.md or .zip file")
            file = FilePayload(name="tides.zip", mimeType="application/zip", buffer=buffer.getvalue())
            await place.set_input_files(file)
            card = page.locator(".cards .card").filter(has_text="Read the tide table.")
            await expect(card).to_contain_text("everywhere")
            await place.set_input_files(file)
            await expect(page.get_by_role("alert")).to_contain_text("The skill tides already exists.")
