"""The heartbeat: its schedule and its message. An empty file sends nothing."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.unit.features.triggers.test_service import Inbox

from shoal.features.triggers.heartbeat import TEXT_BYTES_MAX, Heartbeat, tasks
from shoal.kernel.ids import HEARTBEAT_THREAD
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import MemorySettings


def heart(
    path: Path, inbox: Inbox, minutes: float = 30, *, marked_by: str = "", kept: MemorySettings | None = None
) -> Heartbeat:
    async def source_of(_: Path) -> str:
        return marked_by

    settings = kept or MemorySettings()
    return Heartbeat(path, inbox, settings, inbox.clock, source_of, minutes)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# Tasks\n\n## Daily\n", "<!-- water the\nplants -->", "- [ ]\n* \n", "<!-- open"]
)
def test_an_empty_task_list_is_detected(tmp_path: Path, text: str) -> None:
    (tmp_path / "HEARTBEAT.md").write_text(text, "utf-8")
    assert tasks(tmp_path / "HEARTBEAT.md") == ""


def test_tasks_are_read_without_comments_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "HEARTBEAT.md"
    assert tasks(path) == ""
    path.write_text("# Tasks\n<!-- old -->\n- Look at the tide\n", "utf-8")
    assert tasks(path) == "# Tasks\n\n- Look at the tide"
    path.write_text("x" * (TEXT_BYTES_MAX * 2), "utf-8")
    assert len(tasks(path)) == TEXT_BYTES_MAX


@pytest.mark.timeout(60)
def test_a_pipe_or_folder_in_place_of_the_task_list_is_ignored(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    assert [tasks(tmp_path / name) for name in ("pipe", "", "circle")] == ["", "", ""]


async def test_an_unreadable_stored_count_does_not_stop_the_heartbeat(tmp_path: Path) -> None:
    path, kept = tmp_path / "HEARTBEAT.md", MemorySettings()
    path.write_text("- Look at the tide", "utf-8")
    await kept.put("heartbeat", "main", "often lately")
    assert await heart(path, Inbox(ManualClock()), kept=kept).beat()


async def test_beats_follow_a_grid_and_run_once_across_two_processes(tmp_path: Path) -> None:
    path = tmp_path / "HEARTBEAT.md"
    path.write_text("- Look at the tide", "utf-8")
    clock = ManualClock()
    inbox = Inbox(clock)
    await clock.advance(600)
    kept = MemorySettings()
    beating = [asyncio.create_task(heart(path, inbox, kept=kept).run()) for _ in range(2)]
    await clock.sleepers(2)
    await clock.advance(2 * 3600)
    for task in beating:
        task.cancel()
    await asyncio.gather(*beating, return_exceptions=True)
    assert [at.strftime("%H:%M") for at, _ in inbox.fired] == ["09:30", "10:00", "10:30", "11:00"]
    prompt = inbox.prompts[0]
    assert (prompt.history, prompt.thread, prompt.agent, prompt.origin) == (False, HEARTBEAT_THREAD, "", "trigger")
    assert prompt.text.endswith("\n\n- Look at the tide")


@pytest.mark.parametrize(("minute", "beats"), [(1, ["10:01"]), (3, []), (59, [])])
async def test_an_interrupted_beat_is_sent_at_the_next_start_if_that_is_soon(
    tmp_path: Path, minute: int, beats: list[str]
) -> None:
    path = tmp_path / "HEARTBEAT.md"
    path.write_text("- Look at the tide", "utf-8")
    inbox = Inbox(ManualClock(datetime(2026, 1, 5, 10, minute, tzinfo=UTC)))
    kept = MemorySettings()
    for _ in range(2):
        beating = asyncio.create_task(heart(path, inbox, minutes=60, kept=kept).run())
        await inbox.clock.sleepers(1)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
    assert [at.strftime("%H:%M") for at, _ in inbox.fired] == beats


async def test_a_beat_sent_but_not_recorded_before_a_crash_is_a_duplicate(tmp_path: Path) -> None:
    path = tmp_path / "HEARTBEAT.md"
    path.write_text("- Look at the tide", "utf-8")
    inbox = Inbox(ManualClock())
    assert await heart(path, inbox).beat()
    kept = MemorySettings()
    assert await heart(path, inbox, kept=kept).beat()
    assert len(inbox.prompts) == 1
    assert not await heart(path, inbox, kept=kept).beat()


@pytest.mark.parametrize("restarts", [False, True])
async def test_setting_the_clock_back_skips_no_beat(tmp_path: Path, *, restarts: bool) -> None:
    path = tmp_path / "HEARTBEAT.md"
    path.write_text("- Look at the tide", "utf-8")
    inbox, kept = Inbox(ManualClock()), MemorySettings()
    beating = heart(path, inbox, kept=kept)
    for _ in range(3):
        for _ in range(4):
            assert await beating.beat()
            assert not await beating.beat()
            await inbox.clock.advance(1800)
        inbox.clock.jump(-2 * 3600)
        if restarts:
            beating = heart(path, inbox, kept=kept)
    assert len(inbox.fired) == 12


async def test_an_empty_file_sends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "HEARTBEAT.md"
    inbox = Inbox(ManualClock())
    assert not await heart(path, inbox).beat()
    path.write_text("- Now", "utf-8")
    assert await heart(path, inbox).beat()
    assert len(inbox.prompts) == 1


async def test_an_interval_of_zero_minutes_disables_the_heartbeat(tmp_path: Path) -> None:
    await heart(tmp_path / "HEARTBEAT.md", Inbox(ManualClock()), minutes=0).run()


@pytest.mark.parametrize(("source", "tainted_by"), [("", ""), ("a page", "HEARTBEAT.md, written after a page")])
async def test_a_marked_file_taints_the_beat(tmp_path: Path, source: str, tainted_by: str) -> None:
    path = tmp_path / "HEARTBEAT.md"
    path.write_text("- Look at the tide", "utf-8")
    inbox = Inbox(ManualClock())
    assert await heart(path, inbox, marked_by=source).beat()
    assert [prompt.tainted_by for prompt in inbox.prompts] == [tainted_by]
