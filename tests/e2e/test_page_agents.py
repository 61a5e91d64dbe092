"""Agents on the page: created, changed, bound and removed, and the output of slash commands."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from tests.e2e.http_stand import TOKEN, served
from tests.e2e.page_kit import opened, violations

from shoal.testing.chat import FakeChat

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]


async def test_an_agent_is_created_changed_bound_and_removed(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as stand, opened(browser, f"{stand.address}/?token={TOKEN}", place="agents") as page:
        stand.adapters["matrix"] = FakeChat("matrix")
        new = page.locator("form.card")
        await new.get_by_label("Name", exact=True).fill("ops")
        await new.get_by_label("Instructions").fill("Watch the servers.")
        await new.get_by_role("button", name="Create agent").click()
        ops = page.locator("#agent-ops")
        await expect(ops).to_contain_text("Watch the servers.")
        await ops.get_by_role("button", name="Change").click()
        await ops.get_by_role("combobox", name="Tools").select_option("some")
        await ops.get_by_label("read", exact=True).check()
        await ops.get_by_label("Time zone").fill("Asia/Tokyo")
        await ops.get_by_role("button", name="Save").click()
        await expect(ops).to_contain_text("1 tool: read")
        assert 'timezone = "Asia/Tokyo"' in (tmp_path / "agents/ops/agent.toml").read_text()
        await ops.get_by_role("button", name="Bind a channel").click()
        await ops.get_by_label("Platform").fill("discord")
        await ops.get_by_label("Channel ID").fill("7")
        await ops.get_by_role("button", name="Bind", exact=True).click()
        await expect(ops.get_by_role("alert")).to_contain_text(
            "No platform named 'discord' is connected. Platforms: matrix."
        )
        await ops.get_by_label("Platform").fill("matrix")
        await ops.get_by_label("Channel ID").fill("!room:b.c")
        await ops.get_by_label("Answers").select_option("named")
        await ops.get_by_role("button", name="Bind", exact=True).click()
        await expect(ops).to_contain_text("matrix:!room:b.c only messages that mention it")
        await ops.get_by_role("button", name="Unbind matrix:!room:b.c").click()
        await expect(ops).not_to_contain_text("matrix")
        await ops.get_by_role("button", name="Remove").click()
        await ops.get_by_role("button", name="Remove ops").click()
        await expect(ops).to_have_count(0)
        assert len(list(tmp_path.glob("removed/ops-*"))) == 1
        await expect(page.locator(".up")).to_contain_text("a note")
        assert await violations(page) == []


async def test_a_slash_command_is_answered_next_to_the_box(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as stand, opened(browser, f"{stand.address}/?token={TOKEN}") as page:
        box = page.get_by_label("Message", exact=True)
        await box.fill("/agent list")
        await box.press("Enter")
        reply = page.locator(".told")
        await expect(reply).to_contain_text("main")
        assert stand.orchestrator.received == [], "a command is not a message"
        await reply.get_by_role("button", name="Close").click()
        await expect(reply).to_have_count(0)
        await box.fill("/etc/hosts is what?")
        await box.press("Enter")
        await stand.orchestrator.arrived.wait()
        assert await violations(page) == []
