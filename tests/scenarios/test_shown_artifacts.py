"""Stored results as files below /artifacts: their visibility, expiry, and copies in forks and backups."""

import asyncio
import json
import os
import re
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.scenarios.kit import calls

from shoal.kernel.clock import Clock
from shoal.kernel.events import ToolFinished
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.ports import Sandbox
from shoal.kernel.traits import Traits
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.host import HostSandbox
from shoal.store.files import LocalFiles
from shoal.store.store import Store
from shoal.surfaces.cli.main import run
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply, Seen, Step, own_words
from shoal.testing.scenario import World, scenario
from shoal.threads.forks import Forks
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.functions import tool
from shoal.tools.storage import Retention

ROWS = "".join(f"row {number}: hay\n" for number in range(1000))


@tool(Traits(origin="own"))
async def report(name: str, lines: int = 1000) -> str:
    """Return a long report."""
    return f"needle of {name}\n" + ROWS * (lines // 1000)


@tool(Traits(origin="foreign"))
async def page(name: str) -> str:
    """Return a long untrusted text."""
    return f"needle of {name}\n" + ROWS


def script(seen: Seen) -> Step | str:
    """Follow the instruction in the message: `report: a b`, `page: a`, or `$ command`. Then reply."""
    asked = re.findall(r"\[ada\] (.*)", own_words(seen.user_text))[-1]
    if seen.rounds:
        return "done"
    if asked.startswith("$"):
        return Reply(calls=(Call("bash", json.dumps({"command": asked[2:]})),))
    name, _, words = asked.partition(": ")
    return Reply(calls=tuple(Call(name, json.dumps({"name": word})) for word in words.split()))


class Talk:
    def __init__(self, world: World, thread: ThreadId | None = None) -> None:
        self.world, self.thread = world, thread or world.ada.thread

    async def asks(self, text: str) -> list[ToolFinished]:
        world, before = self.world, len(await self.results())
        turns = len([one for one in await world.journal(self.thread) if one.type == "turn_finished"])
        _, channel, name = self.thread.split(":")
        await world.chat.says(channel, name, text)
        await world.happens(self.thread, "turn_finished", turns + 1)
        return (await self.results())[before:]

    async def needles(self) -> list[str]:
        """Return the names after "needle of" that a command finds below /artifacts, and "tainted" if its result is
        tainted.
        """
        (found,) = await self.asks("$ grep -rh needle /artifacts | sort")
        return [*re.findall(r"needle of (\w+)", found.text), *(["tainted"] if found.tainted_by else [])]

    async def results(self) -> list[ToolFinished]:
        return [one.data for one in await self.world.journal(self.thread) if isinstance(one.data, ToolFinished)]


def open_world(
    home: Path, clock: Clock | None = None, sandbox: Sandbox | None = None, *, replays: bool = True
) -> AbstractAsyncContextManager[World]:
    """Open the app with the tools `report` and `page`. Commands are isolated by default."""
    model, sandbox = FakeModel(script=script), sandbox or BubblewrapSandbox()
    return scenario(home, model, tools=[report, page], sandbox=sandbox, clock=clock, replays=replays)


def retention(world: World, clock: ManualClock, days: float) -> Retention:
    app, files = world.app, LocalFiles(world.app[Home].artifacts)
    places = (app[Store], files, app[Folders], app[Orchestrator].services.loop.checkpoints, app[Home])
    return Retention(*places, clock, days=days, checkpoint_days=14)


async def test_the_newest_results_are_shown_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.tools.shown_artifacts.FILES_MAX", 2)
    async with open_world(tmp_path) as world:
        talk = Talk(world)
        for name in "abc":
            await talk.asks(f"report: {name}")
        assert await talk.needles() == ["b", "c"]
        await talk.asks("report: d")
        assert await talk.needles() == ["c", "d"]


async def test_an_oversized_result_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.tools.shown_artifacts.BYTES_MAX", 2 * len(ROWS) + 100)
    async with open_world(tmp_path) as world:
        talk = Talk(world)
        for name in "abc":
            await talk.asks(f"report: {name}")
        assert await talk.needles() == ["b", "c"]
        world.model.follow(lambda seen: script(seen) if seen.rounds else calls("report", arguments=LARGE))
        await talk.asks("report: large")
        world.model.follow(script)
        assert await talk.needles() == ["b", "c"]


LARGE = json.dumps({"name": "large", "lines": 9000})


async def test_an_expired_result_leaves_its_thread_while_another_keeps_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_world(tmp_path, clock=clock) as world:
        talk, other = Talk(world), Talk(world, ThreadId("fake:harbour:2"))
        await talk.asks("report: a")
        assert await talk.needles() == ["a"]
        clock.jump(86_400)
        await other.asks("report: a")
        assert await other.needles() == ["a"]
        clock.jump(1.5 * 86_400)
        assert await retention(world, clock, 2).expire() == 0
        home = world.app[Home]
        assert [len(list(home.shown_artifacts(one.thread).iterdir())) for one in (talk, other)] == [0, 1]
        assert await talk.needles() == []
        assert await other.needles() == ["a"]


async def test_a_fork_has_its_own_results_with_their_taint(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        talk, fork = Talk(world), Talk(world, ThreadId("fake:harbour:fork"))
        await talk.asks("report: mine")
        await talk.asks("page: theirs")
        assert await talk.needles() == ["mine", "theirs", "tainted"]
        await world.app[Forks].fork(talk.thread, fork.thread, "owner")
        assert not world.app[Home].shown_artifacts(fork.thread).exists()
        assert await fork.needles() == ["mine", "theirs", "tainted"]
        await world.app[Store].artifacts.expire(world.app[Clock].now() + timedelta(days=1))
        assert await fork.needles() == []


async def test_a_backup_stores_each_result_once_and_restores_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, fresh, archive = tmp_path / "home", tmp_path / "fresh", tmp_path / "all.tar.gz"
    home.mkdir()
    async with open_world(home) as world:
        talk = Talk(world)
        await talk.asks("page: theirs")
        assert await talk.needles() == ["theirs", "tainted"]
        digest = (await talk.results())[0].artifact
    assert await asyncio.to_thread(run, ["--home", str(home), "backup", str(archive)]) == 0
    restored = ["--home", str(home), "restore", str(archive), "--into", str(fresh)]
    assert await asyncio.to_thread(run, restored) == 0
    capsys.readouterr()
    assert [path.relative_to(fresh).parts[:2] for path in fresh.rglob(digest)] == [("data", "artifacts")]
    # the restored instructions contain other times, so requests cannot be replayed
    async with open_world(fresh, replays=False) as world:
        assert await Talk(world).needles() == ["theirs", "tainted"]


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "changed"])
async def test_files_left_by_commands_are_replaced(tmp_path: Path, kind: str) -> None:
    """Without a sandbox, commands can write to the folder that shows the artifacts."""
    async with open_world(tmp_path, sandbox=HostSandbox()) as world:
        talk, outside = Talk(world), tmp_path / "outside"
        outside.write_text("untouched")
        await talk.asks("report: a")
        (first,) = await talk.results()
        folder = world.app[Home].shown_artifacts(talk.thread)
        for path in (folder / first.artifact, folder / "stray"):
            if kind == "folder":
                (path / "inner").mkdir(parents=True)
            elif kind == "link":
                path.symlink_to(outside)
            elif kind == "pipe":
                os.mkfifo(path)
            else:
                path.write_text("needle of forged")
        (found,) = await talk.asks(f"$ cat {folder}/* | head -1")
        assert "needle of a" in found.text
        assert [path.name for path in folder.iterdir()] == [first.artifact]
        assert outside.read_text() == "untouched"
