"""File locks across processes."""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.kernel.errors import ToolError
from shoal.tools.locks import PathLocks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "f"
    file.write_text("as it was")
    return file


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


@contextmanager
def other(script: str, *arguments: object) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


async def test_a_lock_of_another_process_lasts_until_it_is_killed(path: Path) -> None:
    with other(HOLDER, path) as holder:
        with pytest.raises(ToolError, match="Another thread has been changing f"):
            async with PathLocks(wait_seconds=0.1).hold(path, "f"):
                pytest.fail("held by two processes")
        holder.kill()
        async with PathLocks().hold(path, "f"):
            assert path.read_text() == "as it was"


async def test_a_missing_file_can_be_locked_and_leaves_no_lock_file(tmp_path: Path) -> None:
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


async def test_two_processes_with_twenty_threads_keep_all_edits_of_the_same_files(tmp_path: Path) -> None:
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
    assert sorted(path.name for path in workspace.iterdir()) == FILES, "no lock file is left behind"
