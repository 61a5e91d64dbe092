"""Locks of files: one at a time over threads and processes, a limit that the model understands, and nothing kept."""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.kernel.errors import ToolError
from shoal.tools import locks as locks_module
from shoal.tools.locks import FileLock, PathLocks, lock_file

FILES = [f"f{number}.txt" for number in range(5)]
THREADS = 20
PAGE = "\n." * 10

HOLDER = """
import asyncio, sys
from pathlib import Path
from shoal.tools.locks import PathLocks

async def main():
    async with PathLocks().hold(Path(sys.argv[1]), "f"):
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""

EDITOR = """
import asyncio, json, sys
from pathlib import Path
from shoal.kernel.errors import ToolError
from shoal.testing.contracts.tool import tool_context
from shoal.tools.builtin.files import edit_tool
from shoal.tools.locks import PathLocks

async def main(folder, first, last, names):
    tool, context = edit_tool(PathLocks()), tool_context(Path(folder))

    async def thread(number):
        for name in names:
            told = {"path": name, "old_string": f"{number:02}: open", "new_string": f"{number:02}: done"}
            await tool.prepare(json.dumps(told), context).run()

    print("ready", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(thread(number) for number in range(first, last)))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file."""
    found = tmp_path / "f"
    found.write_text("as it was")
    return found


@contextmanager
def other(script: str, *arguments: object) -> Generator[subprocess.Popen[str]]:
    """Another process, which has said its first line; killed at the end of the block if it still runs."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


async def test_a_file_is_held_by_one_at_a_time(path: Path) -> None:
    locks, order = PathLocks(), list[str]()

    async def change(name: str) -> None:
        async with locks.hold(path, "f"):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(*(change(name) for name in "abc"))
    assert order == [f"{name} {step}" for name in "abc" for step in ("in", "out")]
    assert len(locks) == 0


async def test_other_files_do_not_wait(path: Path, tmp_path: Path) -> None:
    locks, second = PathLocks(), tmp_path / "g"
    second.write_text("too")
    async with locks.hold(path, "f"), locks.hold(second, "g"):
        assert len(locks) == 2


async def test_waiting_has_an_end_that_is_explained(path: Path) -> None:
    locks = PathLocks()
    async with locks.hold(path, "f"):
        with pytest.raises(ToolError, match=r"Another thread has been changing f .*Nothing was changed"):
            async with PathLocks(wait_seconds=0.01).hold(path, "f"):
                pytest.fail("held twice")
    async with locks.hold(path, "f"):
        assert len(locks) == 1


async def test_a_cancelled_wait_leaves_nothing(path: Path) -> None:
    locks = PathLocks()

    async def wait() -> None:
        async with locks.hold(path, "f"):
            pytest.fail("held twice")

    async with asyncio.TaskGroup() as group, locks.hold(path, "f"):
        waiting = group.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        assert len(locks) == 1
    assert len(locks) == 0


async def test_the_number_of_files_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "PATHS_MAX", 1)
    locks = PathLocks()
    async with locks.hold(path, "f"):
        with pytest.raises(ToolError, match="Too many files"):
            async with locks.hold(Path("/g"), "g"):
                pytest.fail("beyond the bound")


async def test_another_process_holds_a_file_too_until_it_is_killed(path: Path) -> None:
    with other(HOLDER, path) as holder:
        with pytest.raises(ToolError, match="Another thread has been changing f"):
            async with PathLocks(wait_seconds=0.1).hold(path, "f"):
                pytest.fail("held by two processes")
        holder.kill()
        async with PathLocks().hold(path, "f"):
            assert path.read_text() == "as it was"


async def test_a_file_that_is_not_there_yet_is_held_too_and_none_is_left(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "new"
    with other(HOLDER, path), pytest.raises(ToolError, match="Another thread"):
        async with PathLocks(wait_seconds=0.1).hold(path, "new"):
            pytest.fail("held by two processes")
    async with PathLocks().hold(path, "new"):
        pass
    assert list(tmp_path.iterdir()) == []


async def test_waiting_for_another_process_leaves_the_event_loop_free(path: Path) -> None:
    locks, entered, second = PathLocks(), asyncio.Event(), path.with_name("g")

    async def wait() -> None:
        async with locks.hold(path, "f"):
            entered.set()

    async def pass_through() -> None:
        async with locks.hold(second, "g"):
            assert not entered.is_set()

    second.write_text("")
    async with asyncio.TaskGroup() as group:
        with other(HOLDER, path):
            group.create_task(wait())
            for _ in range(50):
                await pass_through()
    assert entered.is_set()


def test_the_lock_of_a_file_that_was_replaced_is_not_the_lock_of_the_path(path: Path) -> None:
    first, second, third = FileLock(path), FileLock(path), FileLock(path)
    assert first.take()
    assert not second.take()
    path.with_name("new").write_text("as it is")
    path.with_name("new").rename(path)
    assert second.take()
    first.release()
    assert not third.take()
    second.release()
    assert third.take()
    third.release()


async def test_what_cannot_be_locked_is_left_to_whoever_writes(tmp_path: Path) -> None:
    tmp_path.joinpath("link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "link", Path("/dev/null")):
        async with PathLocks().hold(path, path.name), PathLocks().hold(path, path.name):
            pass


async def test_two_processes_with_twenty_threads_lose_no_edit_of_the_same_files(tmp_path: Path) -> None:
    workspace = tmp_path / "agents" / "main" / "workspace"
    workspace.mkdir(parents=True)
    for name in FILES:
        (workspace / name).write_text("\n".join(f"{number:02}: open{PAGE}" for number in range(THREADS)))
    half = THREADS // 2
    with other(EDITOR, tmp_path, 0, half, *FILES) as one, other(EDITOR, tmp_path, half, THREADS, *FILES) as two:
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.close()
        assert [process.wait() for process in (one, two)] == [0, 0]
    for name in FILES:
        assert (workspace / name).read_text() == "\n".join(f"{number:02}: done{PAGE}" for number in range(THREADS))
    assert sorted(path.name for path in workspace.iterdir()) == FILES, "no lock is left lying about"


@pytest.mark.parametrize("steps", range(12))
async def test_a_lock_file_whose_taker_is_cancelled_at_any_moment_is_free_again(tmp_path: Path, steps: int) -> None:
    place = tmp_path / "made" / "x.lock"

    async def hold() -> None:
        async with lock_file(place):
            await asyncio.Event().wait()

    taker = asyncio.create_task(hold())
    for _ in range(steps):
        await asyncio.sleep(0)
    taker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taker
    async with asyncio.timeout(60), lock_file(place):
        other = FileLock(place)
        assert not other.take(), "it is held"
    assert other.take(), "and given back"
    other.release()
