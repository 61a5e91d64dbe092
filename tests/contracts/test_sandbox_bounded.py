"""A sandbox runs only the file that a person allowed, even if the file is swapped before, during or after the setup."""

import asyncio
import hashlib
import os
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from shoal.kernel.errors import ContentChanged
from shoal.kernel.ports import Command, CommandResult, Mount, RunFile, Sandbox
from shoal.sandbox.bounded import EXIT_CODE, BoundedSandbox, ContentCheck
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.host import HostSandbox

GOOD, EVIL = b"echo good\n", b"echo EVIL\n"
TRIES = 25


needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture(params=[pytest.param("bubblewrap", marks=needs_bubblewrap), "host"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return BoundedSandbox(BubblewrapSandbox() if request.param == "bubblewrap" else HostSandbox())


@pytest.fixture
def mounts(tmp_path: Path) -> tuple[Mount, ...]:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return (Mount(folder, "/workspace", writable=True),)


def allowed(sandbox: Sandbox, mounts: tuple[Mount, ...], name: str = "x.sh", content: bytes | None = GOOD) -> RunFile:
    """Return the file at the time of the approval: with this content, or missing if `content` is None."""
    host = mounts[0].host / name
    path = sandbox.inside(host, mounts)
    if content is None:
        return RunFile(path, "")
    status = host.parent.stat()
    folders = ((sandbox.inside(host.parent, mounts), status.st_ino, status.st_mtime_ns),)
    return RunFile(path, hashlib.sha256(content).hexdigest(), host, (), content, folders=folders)


async def run(sandbox: Sandbox, mounts: tuple[Mount, ...], text: str, *runs: RunFile) -> str:
    command = Command(text, mounts[0].host, mounts, runs=runs)
    return (await sandbox.run(command)).stdout.decode()


async def test_the_allowed_file_runs(sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
    (mounts[0].host / "x.sh").write_bytes(GOOD)
    assert await run(sandbox, mounts, "bash x.sh", allowed(sandbox, mounts)) == "good\n"
    absent = allowed(sandbox, mounts, "y.sh", None)
    assert await run(sandbox, mounts, "cp x.sh y.sh; bash y.sh", absent) == "good\n"


class Watcher:
    """A `shoal.kernel.agents.Watch` that records its calls."""

    def __init__(self) -> None:
        self.seen: list[bytes | str] = []

    def started(self, pid: int) -> None:
        self.seen.append("started" if pid else "started somewhere")

    def output(self, data: bytes) -> None:
        self.seen.append(data)


@pytest.mark.parametrize("content", [GOOD, EVIL])
async def test_a_watcher_sees_the_output_of_the_command_but_not_of_the_check(
    sandbox: Sandbox, mounts: tuple[Mount, ...], content: bytes
) -> None:
    (mounts[0].host / "x.sh").write_bytes(content)
    watch = Watcher()
    # without the stored content, so the file on disk runs
    file = msgspec.structs.replace(allowed(sandbox, mounts), content=None)
    command = Command("bash x.sh", mounts[0].host, mounts, runs=(file,), watch=watch)
    if content == GOOD:
        await sandbox.run(command)
        assert watch.seen[0] == "started"
        assert b"".join(piece for piece in watch.seen[1:] if isinstance(piece, bytes)) == b"good\n"
    else:
        with pytest.raises(ContentChanged):
            await sandbox.run(command)
        assert watch.seen == []


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("PASSED\nout\n", "out\n"),
        ("out\nPASSED\nmore\n", "out\nmore\n"),  # PASSED arrives on the other pipe, which is read later
        ("outPASSED\n", "out"),
        ("a warning of the shell's\nPASSED\nout\n", "a warning of the shell's\nout\n"),
        ("PASSED\nPASSED\n", "PASSED\n"),
        ("a shell that cannot begin\n", "a shell that cannot begin\n"),
        ("REFUSED\n", ""),
        ("", ""),
    ],
)
def test_the_result_line_of_the_check_is_recognized_anywhere_in_the_output(
    mounts: tuple[Mount, ...], said: str, seen: str, size: int
) -> None:
    watch = Watcher()
    run = Command("x", mounts[0].host, mounts, runs=(RunFile("/x", ""),), watch=watch)
    guard = ContentCheck(run, sees_inodes=False)
    checking = guard.command.watch
    assert checking is not None
    refused, passed = (shlex.split(part)[2] for part in re.findall(r"printf '%s\\n' '[^']*'", guard.command.text))
    checking.started(7)
    output = said.replace("PASSED", passed).replace("REFUSED", refused).encode()
    for at in range(0, len(output), size):
        checking.output(output[at : at + size])
    guard.checked(CommandResult(b"", b"", 0))
    assert b"".join(piece for piece in watch.seen if isinstance(piece, bytes)).decode() == seen.replace(
        "PASSED", passed
    )
    assert watch.seen[:1] == (["started"] if seen else [])


async def test_a_file_created_after_the_approval_does_not_run(sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
    (mounts[0].host / "x.sh").write_bytes(EVIL)
    with pytest.raises(ContentChanged):
        await run(sandbox, mounts, "bash x.sh", allowed(sandbox, mounts, content=None))


async def test_a_name_with_shell_syntax_is_compared_literally(sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
    name = "it's $(touch made) *.sh"
    (mounts[0].host / name).write_bytes(GOOD)
    file = allowed(sandbox, mounts, name)
    assert await run(sandbox, mounts, "bash ./it*", file) == "good\n"
    assert not (mounts[0].host / "made").exists()


async def test_a_command_cannot_pretend_that_the_check_failed(sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
    (mounts[0].host / "x.sh").write_bytes(GOOD)
    result = await sandbox.run(Command(f"exit {EXIT_CODE}", mounts[0].host, mounts, runs=(allowed(sandbox, mounts),)))
    assert result.exit_code == EXIT_CODE


@contextmanager
def looping(swap: Callable[[int], None]) -> Generator[None]:
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            swap(number)
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def renamed(folder: Path, number: int) -> None:
    new = folder / ".new"
    new.write_bytes((GOOD, EVIL)[number % 2])
    os.rename(new, folder / "x.sh")


def rewritten(folder: Path, number: int) -> None:
    (folder / "x.sh").write_bytes((GOOD, EVIL)[number % 2])


def relinked(folder: Path, number: int) -> None:
    new = folder / ".link"
    new.symlink_to(("good", "evil")[number % 2])
    os.rename(new, folder / "x.sh")


def moved_away_and_back(folder: Path, number: int) -> None:
    there, away = (folder / "x.sh", folder / "good.sh")
    if number % 2:
        os.rename(there, folder / "evil")
        os.rename(away, there)
    else:
        os.rename(there, away)
        os.rename(folder / "evil", there)


async def test_a_temporary_replacement_is_noticed(sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
    (mounts[0].host / "x.sh").write_bytes(GOOD)
    file = allowed(sandbox, mounts)
    os.utime(mounts[0].host, ns=(1, 1))
    with pytest.raises(ContentChanged):
        await run(sandbox, mounts, "bash x.sh", file)


@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.parametrize("swap", [renamed, rewritten, relinked, moved_away_and_back])
async def test_a_constantly_swapped_file_never_runs_with_other_content(
    mounts: tuple[Mount, ...], swap: Callable[[Path, int], None]
) -> None:
    sandbox, folder = BoundedSandbox(BubblewrapSandbox()), mounts[0].host
    (folder / "good").write_bytes(GOOD)
    (folder / "evil").write_bytes(EVIL)
    (folder / "x.sh").write_bytes(GOOD)
    file = allowed(sandbox, mounts)
    with looping(lambda number: swap(folder, number)):
        for _ in range(TRIES):
            try:
                output = await run(sandbox, mounts, "bash x.sh", file)
            except ContentChanged:
                continue
            assert output == "good\n"
            await asyncio.sleep(0)
