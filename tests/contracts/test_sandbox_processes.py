"""On the host, no process outlives its command, even if it hides, and exit codes are reported correctly."""

import asyncio
import os
import selectors
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import until

from shoal.kernel.errors import SandboxError
from shoal.kernel.ports import CommandResult
from shoal.sandbox import processes
from shoal.sandbox.processes import Spawn, run_process
from shoal.testing.contracts.sandbox import Witness

ENVIRONMENT = (("PATH", os.environ["PATH"]),)
HOLD = "exec 9>alive; echo started >&9; echo up >up; exec sleep 600"
PATIENCE_SECONDS = 60.0
SHORT_SECONDS = 2.0


async def run(folder: Path, text: str, timeout_seconds: float = PATIENCE_SECONDS) -> CommandResult:
    return await run_process(Spawn(("/bin/bash", "-c", text), str(folder), ENVIRONMENT, timeout_seconds, 1_000_000))


@pytest.mark.parametrize(
    "start",
    [
        f"bash -c '{HOLD}' &",
        f"setsid bash -c '{HOLD}' &",
        f"setsid bash -c '{HOLD}' >/dev/null 2>&1 &",
        f"(setsid setsid bash -c '{HOLD}' >/dev/null 2>&1 &) ; (true)",
        f"env -i PATH=$PATH setsid -f bash -c '{HOLD}' >/dev/null 2>&1",
        f"nohup setsid -f bash -c 'trap \"\" TERM HUP INT; {HOLD}' >/dev/null 2>&1",
    ],
)
@pytest.mark.parametrize("then", ["", pytest.param("; sleep 600", marks=pytest.mark.slow)])
async def test_a_child_that_hides_is_found(tmp_path: Path, start: str, then: str) -> None:
    with Witness(tmp_path) as witness:
        result = await run(tmp_path, f"{start}\ncat up{then}", SHORT_SECONDS)
        assert witness.started.is_set()
        assert witness.has_ended()
    assert result.timed_out is bool(then)


async def test_a_process_that_only_carries_the_environment_mark_is_found(tmp_path: Path) -> None:
    close = 'exec 0<&- 1>&- 2>&-; for fd in /proc/$$/fd/*; do fd=${fd##*/}; [ $fd -gt 2 ] && eval "exec $fd>&-"; done'
    with Witness(tmp_path) as witness:
        await run(tmp_path, f"setsid -f bash -c '{close}; {HOLD}'; cat up; sleep 600", SHORT_SECONDS)
        assert witness.started.is_set()
        assert witness.has_ended()


async def test_the_process_trees_of_two_commands_are_separate(tmp_path: Path) -> None:
    with Witness(tmp_path) as witness:
        async with asyncio.TaskGroup() as group:
            other = group.create_task(run(tmp_path, f"{HOLD.replace('echo up >up; ', '')}"))
            await witness.started.wait()
            for _ in range(3):
                await run(tmp_path, "setsid -f sleep 600; exit 0")
            assert not witness.has_ended()
            other.cancel()
        assert witness.has_ended()


async def test_output_after_the_end_of_the_first_process_is_kept(tmp_path: Path) -> None:
    result = await run(tmp_path, "echo one; echo two > >(cat; echo three)")
    assert sorted(result.stdout.split()) == [b"one", b"three", b"two"]


async def test_a_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="Failed to start /no/such/program"):
        await run_process(Spawn(("/no/such/program",), str(tmp_path), (), 1.0, 100))


async def test_running_out_of_descriptors_is_an_error(tmp_path: Path) -> None:
    code = """
import asyncio, os, resource
from pathlib import Path
from shoal.kernel.errors import SandboxError
from shoal.sandbox.processes import Spawn, run_process
async def main():
    spawn = Spawn(("/bin/true",), "/", (), 10.0, 100)
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    for limit in range(max(held), max(held) + 20):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 10000))
        try:
            print((await run_process(spawn)).exit_code)
        except SandboxError as error:
            print("refused")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 10000))
    print(len(os.listdir("/proc/self/fd")) - len(held), len(os.listdir("/proc/self/task")))
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, errors = await process.communicate()
    words = output.split()
    assert not errors, errors
    assert words[0] == b"refused"
    assert words[-3] == b"0"
    # standard streams, the event loop's files and the listing itself, but no files of the commands
    assert int(words[-2]) <= 8


async def test_only_leftovers_of_dead_servers_in_this_namespace_are_killed() -> None:
    """A server is identified by its start time as well as its process id, because process ids are reused.

    The number of killed processes is not checked, because other tests' servers may leave orphans too.
    """
    mine = processes.new_mark()
    namespace, number, start, boot = mine.partition("/")[0].split()
    dead = f"{namespace} {number} {int(start) - 1} {boot}/7"
    foreign = f"pid:[1] 999999999 1 {boot}/7"
    orphan, *others = [
        await asyncio.create_subprocess_exec("sleep", "600", env={processes.MARK: mark})
        for mark in (dead, mine, foreign)
    ]
    try:
        assert processes.kill_orphans() >= 1
        assert await orphan.wait() == -9
        processes.kill_orphans()
        assert all(processes.identity_of(other.pid) for other in others)
    finally:
        for other in others:
            other.kill()
            await other.wait()


async def test_a_second_cancellation_still_waits_for_the_end(tmp_path: Path) -> None:
    with Witness(tmp_path) as witness:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(run(tmp_path, f"setsid -f bash -c '{HOLD}'; sleep 600"))
            await witness.started.wait()
            running.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
                running.cancel()
        assert running.cancelled()
        assert witness.has_ended()


async def test_process_ends_are_noticed_without_pidfds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert (await run(tmp_path, "echo out; exit 3")).exit_code == 3
    with Witness(tmp_path) as witness:
        assert (await run(tmp_path, f"setsid -f bash -c '{HOLD}'\ncat up; sleep 600", SHORT_SECONDS)).timed_out
        assert witness.has_ended()


class CountingSelector(selectors.DefaultSelector):
    rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.rounds += 1
        return super().select(timeout)


def test_the_loop_sleeps_while_nothing_happens(tmp_path: Path) -> None:
    """This includes the time after the first process ended, while a child keeps its pipes open."""
    selector = CountingSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        result = runner.run(run(tmp_path, "sleep 0.4 & sleep 0.2; echo done"))
    assert result.stdout == b"done\n"
    assert selector.rounds < 30


def test_no_script_continues_after_its_child_was_killed(tmp_path: Path) -> None:
    environment = {**dict(ENVIRONMENT), processes.MARK: f"test {os.getpid()}"}
    waiting = [
        subprocess.Popen(["bash", "-c", f"sleep 600; echo >{number}"], cwd=tmp_path, env=environment)
        for number in range(16)
    ]
    begun = [Path(f"/proc/{process.pid}/task/{process.pid}/children") for process in waiting]
    until(lambda: all(children.read_text() for children in begun))
    processes.kill_marked(lambda mark: mark == environment[processes.MARK])
    assert [process.wait() for process in waiting] == [-9] * 16
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", ["²", "9" * 5_000, "", "-1"])
def test_a_forged_mark_does_not_block_a_start(number: str) -> None:
    made_up = f"{os.readlink('/proc/self/ns/pid')} {number} 1 2/1"
    with subprocess.Popen(["sleep", "600"], env={**dict(ENVIRONMENT), processes.MARK: made_up}) as pretender:
        try:
            assert processes.kill_marked(lambda mark: mark == made_up and processes.is_orphaned(mark)) in (0, 1)
        finally:
            pretender.kill()
