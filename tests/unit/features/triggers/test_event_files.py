"""Event files: all types, partial and invalid files, and running each event exactly once."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.unit.features.triggers.test_service import START, Inbox, Stand

from shoal.features.triggers.event_files import FILES_MAX, RETRY_SECONDS, EventFiles
from shoal.kernel.errors import InvalidInput
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Inbound, Receipt

IMMEDIATE = {"type": "immediate", "threadId": "slack:C1:17.5", "text": "Look"}
WEEKDAYS = {
    "type": "periodic",
    "threadId": "slack:C1:17.5",
    "text": "Check",
    "schedule": "0 9 * * 1-5",
    "timezone": "America/New_York",
}
ONCE = {
    "type": "one-shot",
    "channelId": "C1",
    "adapterId": "slack",
    "text": "Report",
    "schedule": "2026-10-25T09:00:00",
    "timezone": "America/New_York",
}


class Files:
    """A directory of event files and its watcher."""

    def __init__(self, stand: Stand, directory: Path) -> None:
        self.stand = stand
        self.directory = directory
        self.pokes = 0
        self.marked: dict[str, str] = {}
        directory.mkdir()
        self.watching = self.again()

    def again(self) -> EventFiles:
        return EventFiles(
            self.directory,
            self.stand.triggers,
            self.stand.inbox,
            self.stand.clock,
            self.poke,
            self.source_of,
            self.zone_of,
        )

    async def zone_of(self, agent: str, place: ThreadId | None) -> str:
        return {"tokyo": "Asia/Tokyo", "": "Europe/Berlin" if place and place.startswith("slack:") else "UTC"}[agent]

    async def source_of(self, path: Path) -> str:
        return self.marked.get(path.name, "")

    def poke(self) -> None:
        self.pokes += 1

    def put(self, name: str, content: dict[str, str] | str) -> Path:
        path = self.directory / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
        return path

    def names(self, folder: str = "") -> list[str]:
        return sorted(path.name for path in (self.directory / folder).glob("*") if path.is_file())

    def reason(self, name: str) -> str:
        return (self.directory / "failed" / f"{name}.reason.txt").read_text("utf-8")


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    yield stand
    await stand.store.close()


@pytest.fixture
def files(stand: Stand, tmp_path: Path) -> Files:
    return Files(stand, tmp_path / "events")


async def test_an_immediate_file_starts_a_turn_once(files: Files) -> None:
    files.put("hook.json", IMMEDIATE)
    await files.watching.scan()
    await files.watching.scan()
    (prompt,) = files.stand.inbox.prompts
    assert (prompt.thread, prompt.text, prompt.origin) == (ThreadId("slack:C1:17.5"), "Look", "trigger")
    assert prompt.author.name == "event hook"
    assert files.names("done") == ["hook.json"]
    assert files.names() == []


async def test_an_immediate_file_that_was_sent_before_a_crash_is_a_duplicate(files: Files) -> None:
    path = files.put("hook.json", IMMEDIATE)
    stamp = path.stat().st_mtime_ns
    await files.watching.scan()
    (files.directory / "done" / "hook.json").rename(path)
    os.utime(path, ns=(stamp, stamp))
    await files.again().scan()
    assert len(files.stand.inbox.prompts) == 1
    assert files.names("done") == ["hook.json"]


async def test_an_immediate_file_may_post_into_a_channel(files: Files) -> None:
    files.put("hook.json", {"type": "immediate", "adapterId": "slack", "channelId": "C1", "text": "Look"})
    files.stand.inbox.away = True
    for _ in range(2):
        await files.again().scan()
        assert files.names() == ["hook.json"], "until it is posted"
    files.stand.inbox.away = False
    await files.stand.clock.advance(86_400)
    await files.stand.inbox.deliver()
    await files.watching.scan()
    assert [post[1:] for post in files.stand.inbox.posts] == [("slack", "C1", "Look")]
    assert files.names("done") == ["hook.json"]
    assert files.names() == []


async def test_an_unconfigured_platform_fails_the_file(files: Files) -> None:
    files.stand.inbox.fails = InvalidInput("Platform 'slack' is not connected.")
    files.put("hook.json", {"type": "immediate", "adapterId": "slack", "channelId": "C1", "text": "Look"})
    await files.watching.scan()
    assert files.reason("hook.json") == "Platform 'slack' is not connected.\n"


async def test_a_refused_post_fails_the_file_which_can_be_retried(files: Files) -> None:
    files.stand.inbox.refuses = "No such channel."
    path = files.put("hook.json", {"type": "immediate", "adapterId": "slack", "channelId": "C1", "text": "Look"})
    for _ in range(2):
        await files.watching.scan()
    assert files.names("done") == []
    assert files.reason("hook.json") == "No such channel.\n"
    files.stand.inbox.refuses = ""
    (files.directory / "failed" / "hook.json").rename(path)
    for _ in range(2):
        await files.watching.scan()
    assert len(files.stand.inbox.posts) == 1
    assert files.names("done") == ["hook.json"]


async def test_a_one_time_channel_file_moves_to_done_when_it_is_posted(files: Files) -> None:
    files.stand.inbox.away = True
    files.put("once.json", {**ONCE, "schedule": "2026-10-25T01:00:00Z"})
    await files.watching.scan()
    async with files.stand.running(files.stand.service()):
        await files.stand.let_pass(3600)
        await files.watching.scan()
        assert files.names() == ["once.json"]
        files.stand.inbox.refuses = "No such channel."
        await files.stand.let_pass(86_400)
        await files.stand.inbox.deliver()
        await files.watching.scan()
    assert files.reason("once.json") == "No such channel.\n"


@pytest.mark.parametrize("kind", ["one-shot", "periodic"])
async def test_deleting_a_file_cancels_its_waiting_post(files: Files, kind: str) -> None:
    files.stand.inbox.away = True
    schedule = "0 1 * * *" if kind == "periodic" else "2026-10-25T01:00:00Z"
    path = files.put("said.json", {**ONCE, "type": kind, "schedule": schedule, "timezone": "UTC"})
    await files.watching.scan()
    async with files.stand.running(files.stand.service()):
        await files.stand.let_pass(7200)
    assert await files.stand.store.outbox.depth() == 1
    path.unlink()
    await files.watching.scan()
    assert await files.stand.store.outbox.depth() == 0
    assert await files.stand.triggers.all() == []


async def test_an_overlong_channel_name_fails_the_file(files: Files) -> None:
    files.put("hook.json", {"type": "immediate", "adapterId": "slack", "channelId": "C" * 300, "text": "Look"})
    await files.watching.scan()
    assert "characters" in files.reason("hook.json")


async def test_a_full_queue_leaves_the_file_for_the_next_scan(files: Files) -> None:
    files.put("hook.json", IMMEDIATE)
    files.stand.inbox.full = True
    await files.watching.scan()
    assert files.names() == ["hook.json"]
    files.stand.inbox.full = False
    await files.watching.scan()
    assert len(files.stand.inbox.prompts) == 1


@pytest.mark.parametrize(
    ("more", "zone"),
    [
        ({"agent": "tokyo"}, "Asia/Tokyo"),
        ({}, "Europe/Berlin"),
        ({"adapterId": "web", "channelId": "own"}, "UTC"),
        ({"agent": "tokyo", "timezone": "America/New_York"}, "America/New_York"),
    ],
)
async def test_a_file_without_a_time_zone_uses_its_agents_zone(files: Files, more: dict[str, str], zone: str) -> None:
    weekdays = {key: value for key, value in WEEKDAYS.items() if key != "timezone"}
    place = {"threadId": "", "adapterId": "slack", "channelId": "C1"}
    files.put("weekdays.json", {**weekdays, **place, **more})
    await files.watching.scan()
    assert (await files.stand.one()).spec.timezone == zone


async def test_a_periodic_file_is_a_trigger_until_it_is_deleted(files: Files) -> None:
    path = files.put("weekdays.json", WEEKDAYS)
    await files.watching.scan()
    await files.watching.scan()
    await files.again().scan()
    trigger = await files.stand.one()
    assert (trigger.spec.name, trigger.spec.timezone) == ("file:weekdays.json", "America/New_York")
    assert trigger.next_at == datetime(2026, 10, 26, 13, tzinfo=UTC)
    assert files.pokes == 1
    path.unlink()
    await files.again().scan()
    assert await files.stand.triggers.all() == []


async def test_a_changed_file_replaces_its_trigger(files: Files) -> None:
    files.put("weekdays.json", WEEKDAYS)
    await files.watching.scan()
    files.put("weekdays.json", WEEKDAYS | {"schedule": "30 9 * * 1-5"})
    await files.watching.scan()
    assert (await files.stand.one()).spec.schedule == "30 9 * * 1-5"


async def test_two_processes_agree_on_one_trigger(files: Files) -> None:
    files.put("weekdays.json", WEEKDAYS)
    await files.watching.scan()
    first = await files.stand.one()
    await files.stand.triggers.add(first.spec, START)
    await files.again().scan()
    assert (await files.stand.one()).id == first.id


async def test_a_one_time_trigger_runs_and_its_file_moves_to_done(files: Files) -> None:
    files.put("once.json", ONCE)
    await files.watching.scan()
    async with files.stand.running(files.stand.service()):
        await files.stand.let_pass(13 * 3600)
        assert files.names() == ["once.json"]
        await files.watching.scan()
    assert files.stand.inbox.posts == [(datetime(2026, 10, 25, 13, tzinfo=UTC), "slack", "C1", "Report")]
    assert files.names("done") == ["once.json"]
    await files.watching.scan()
    assert (await files.stand.one()).state == "done"


@pytest.mark.parametrize("was_put_away", [True, False])
async def test_a_retried_one_time_trigger_outlives_its_file_unless_it_was_deleted(
    files: Files, *, was_put_away: bool
) -> None:
    stand = files.stand
    path = files.put("once.json", {**ONCE, "schedule": "2026-10-25T01:00:00Z"})
    await files.watching.scan()
    async with stand.running(stand.service()):
        await stand.let_pass(7200)
    if was_put_away:
        await files.watching.scan()
    await stand.triggers.again(await stand.one(), stand.clock.now(), error="The model is away.")
    path.unlink(missing_ok=True)
    await files.watching.scan()
    assert [one.state for one in await stand.triggers.all()] == (["active"] if was_put_away else [])


async def test_a_one_time_trigger_long_past_fails_as_missed(files: Files) -> None:
    files.put("once.json", ONCE | {"schedule": "2026-10-24T09:00:00"})
    await files.watching.scan()
    async with files.stand.running(files.stand.service()):
        pass
    await files.watching.scan()
    assert files.stand.inbox.posts == []
    assert "time passed" in files.reason("once.json")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"type": "sometimes", "text": "x"}, "`type` must be"),
        ({"type": "immediate", "text": "x"}, "Specify either"),
        ({"type": "immediate", "threadId": "slack:C1", "text": "x"}, "three parts"),
        (IMMEDIATE | {"text": " "}, "text is empty"),
        (WEEKDAYS | {"schedule": "99 * * * *"}, "invalid minute"),
        (WEEKDAYS | {"timezone": "Nowhere"}, "not known"),
        (WEEKDAYS | {"shedule": "x"}, "`shedule` is not known"),
        (ONCE | {"schedule": ""}, "found no time"),
        ("x" * 70_000, "larger than 65536 bytes"),
    ],
)
async def test_an_invalid_file_moves_to_failed_with_its_reason(
    files: Files, content: dict[str, str] | str, what: str
) -> None:
    files.put("wrong.json", content)
    files.put("right.json", IMMEDIATE)
    await files.watching.scan()
    assert what in files.reason("wrong.json")
    assert files.names("done") == ["right.json"]
    assert files.names() == []


async def test_a_half_written_file_is_read_again(files: Files) -> None:
    path = files.put("hook.json", '{"type": "immed')
    task = asyncio.create_task(files.watching.scan())
    for _ in range(2):
        await files.stand.clock.advance_to_next()
    path.write_text(json.dumps(IMMEDIATE), "utf-8")
    await files.stand.clock.advance_to_next()
    await task
    assert len(files.stand.inbox.prompts) == 1


async def test_a_slowly_written_file_is_read_once_it_is_complete(files: Files) -> None:
    text = json.dumps(IMMEDIATE)
    path = files.put("hook.json", "")
    for end in (len(text) // 3, len(text) // 2, len(text)):
        task = asyncio.create_task(files.watching.scan())
        for _ in range(2):
            await files.stand.clock.advance_to_next()
        path.write_text(text[:end], "utf-8")
        await files.stand.clock.advance_to_next()
        await task
    assert files.names("failed") == []
    assert len(files.stand.inbox.prompts) == 1


async def test_a_file_that_stays_half_written_fails(files: Files) -> None:
    files.put("hook.json", "")
    task = asyncio.create_task(files.watching.scan())
    for _ in range(3):
        await files.stand.clock.advance_to_next()
    await task
    assert "it is not valid JSON" in files.reason("hook.json")
    assert files.stand.clock.monotonic() == pytest.approx(0.7)


async def test_half_written_files_do_not_delay_others_and_wait_together(files: Files) -> None:
    for number in range(50):
        files.put(f"a{number}.json", '{"type": "imm')
    files.put("z.json", IMMEDIATE)
    scanning = asyncio.create_task(files.watching.scan())
    await files.stand.clock.sleepers()
    assert files.names("done") == ["z.json"]
    written = files.put("a7.json", IMMEDIATE).stat().st_mtime_ns
    for seconds in RETRY_SECONDS:
        await files.stand.clock.sleepers()
        await files.stand.clock.advance(seconds)
    await scanning
    assert files.names("done") == ["a7.json", "z.json"]
    assert len(files.names("failed")) == 2 * 49
    assert files.stand.inbox.prompts[-1].key == f"file:a7.json@{written}", "what was read, not what was found before"


async def test_other_files_are_left_alone(files: Files) -> None:
    files.put(".hidden.json", IMMEDIATE)
    files.put("notes.txt", "x")
    (files.directory / "folder.json").mkdir()
    (files.directory / "link.json").symlink_to(files.put("target.txt", json.dumps(IMMEDIATE)))
    await files.watching.scan()
    assert files.stand.inbox.prompts == []
    assert "link.json" in os.listdir(files.directory)


async def test_finished_files_are_kept_up_to_a_limit(files: Files) -> None:
    done = files.directory / "done"
    done.mkdir()
    for number in range(FILES_MAX):
        (done / f"{number}.json").touch()
        os.utime(done / f"{number}.json", (number, number))
    files.put("hook.json", IMMEDIATE)
    await files.watching.scan()
    names = files.names("done")
    assert len(names) == FILES_MAX
    assert "0.json" not in names
    assert "hook.json" in names


class Awaited(Inbox):
    came: asyncio.Event

    async def send(self, message: Inbound) -> Receipt:
        receipt = await super().send(message)
        self.came.set()
        return receipt


async def test_files_are_found_at_the_start_and_while_watching(stand: Stand, tmp_path: Path) -> None:
    stand.inbox = inbox = Awaited(stand.clock)
    inbox.came = asyncio.Event()
    files = Files(stand, tmp_path / "events")
    files.put("first.json", IMMEDIATE)
    task = asyncio.create_task(files.watching.run())
    await inbox.came.wait()
    inbox.came.clear()
    (files.directory / "second.tmp").write_text(json.dumps(IMMEDIATE), "utf-8")
    (files.directory / "second.tmp").rename(files.directory / "second.json")
    await inbox.came.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [prompt.author.name for prompt in inbox.prompts] == ["event first", "event second"]


@pytest.mark.parametrize("place", ["", "done", "failed"])
async def test_a_directory_that_cannot_be_created_is_retried(stand: Stand, tmp_path: Path, place: str) -> None:
    stand.inbox = inbox = Awaited(stand.clock)
    inbox.came = asyncio.Event()
    files = Files(stand, tmp_path / "events")
    taken = files.directory / place
    if not place:
        taken.rmdir()
    taken.write_text("no directory", "utf-8")
    task = asyncio.create_task(files.watching.run())
    await asyncio.sleep(0)
    assert not task.done()
    taken.unlink()
    files.directory.mkdir(exist_ok=True)
    files.put("hook.json", IMMEDIATE)
    await inbox.came.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_file_that_cannot_be_moved_does_not_delay_others(stand: Stand, tmp_path: Path) -> None:
    files = Files(stand, tmp_path / "events")
    for name in ("a.json", "b.json"):
        (files.directory / "failed" / name).mkdir(parents=True)
    files.put("a.json", {**IMMEDIATE, "type": "daily"})
    files.put("b.json", "{")
    files.put("c.json", IMMEDIATE)
    scanning = asyncio.create_task(files.watching.scan())
    for seconds in RETRY_SECONDS:
        await stand.clock.sleepers()
        await stand.clock.advance(seconds)
    await scanning
    assert [prompt.author.name for prompt in stand.inbox.prompts] == ["event c"]


async def test_a_temporarily_missing_directory_loses_no_trigger(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed, told = asyncio.Event(), list[str]()

    def warn(words: str, **fields: object) -> None:
        told.append(words)
        noticed.set()

    monkeypatch.setattr("shoal.features.triggers.event_files.log.warning", warn)
    monkeypatch.setattr("shoal.features.triggers.event_files.LOOK_SECONDS", 0.0)
    stand.inbox = inbox = Awaited(stand.clock)
    inbox.came = asyncio.Event()
    files = Files(stand, tmp_path / "events")
    files.put("weekdays.json", WEEKDAYS)
    await files.watching.scan()
    (before,) = await stand.triggers.all()
    task = asyncio.create_task(files.watching.run())
    await asyncio.sleep(0)
    files.directory.rename(tmp_path / "elsewhere")
    await noticed.wait()
    assert [trigger.id for trigger in await stand.triggers.all()] == [before.id]
    (tmp_path / "elsewhere").rename(files.directory)
    files.put("hook.json", IMMEDIATE)
    await inbox.came.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [trigger.id for trigger in await stand.triggers.all()] == [before.id]
    assert len(told) == 1


@pytest.mark.parametrize("content", ["[" * 60_000, '{"type": "immediate", "text": ' + "[" * 5000])
async def test_a_deeply_nested_file_fails_alone(files: Files, content: str) -> None:
    files.put("deep.json", content)
    files.put("fine.json", IMMEDIATE)
    await files.watching.scan()
    assert "is invalid" in files.reason("deep.json")
    assert len(files.stand.inbox.prompts) == 1


async def test_a_long_name_is_shortened_in_the_reason_files_name(files: Files) -> None:
    name = "é" * 120 + ".json"
    files.put(name, {"type": "never"})
    await files.watching.scan()
    assert len(files.names("failed")) == 2
    assert name in files.names("failed")


async def test_a_file_with_an_undecodable_name_is_left_alone(files: Files) -> None:
    name = os.fsdecode(b"\xff.json")
    files.put(name, WEEKDAYS)
    await files.watching.scan()
    assert files.names() == [name]
    assert await files.stand.triggers.all() == []


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_a_link_or_pipe_swapped_in_during_a_scan_is_not_read(files: Files, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(IMMEDIATE), "utf-8")
    path = files.put("hook.json", "")
    task = asyncio.create_task(files.watching.scan())
    await files.stand.clock.sleepers()
    path.unlink()
    if kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    await files.stand.clock.advance_to_next()
    await task
    assert files.stand.inbox.prompts == []


async def test_a_marked_file_taints_its_turn(files: Files) -> None:
    files.marked = {"hook.json": "a page", "daily.json": "a page"}
    files.put("hook.json", IMMEDIATE)
    files.put("daily.json", {**IMMEDIATE, "type": "periodic", "schedule": "0 9 * * *"})
    files.put("mine.json", {**IMMEDIATE, "type": "periodic", "schedule": "0 9 * * *"})
    await files.watching.scan()
    (prompt,) = files.stand.inbox.prompts
    assert prompt.tainted_by == "the event file hook.json, written after a page"
    stored = {trigger.spec.name: trigger.spec.tainted_by for trigger in await files.stand.triggers.all()}
    assert stored == {"file:daily.json": "the event file daily.json, written after a page", "file:mine.json": ""}
