"""The contract of `shoal.kernel.ports.Sandbox`, with or without isolation.

    class TestMySandbox(SandboxContract):
        @pytest.fixture
        async def sandbox(self): ...  # yields a sandbox and closes it after the test

The suite needs bash, coreutils and util-linux where the commands run.
"""

import asyncio
import os
import select
from pathlib import Path
from typing import ClassVar

import pytest

from shoal.kernel.errors import SandboxError
from shoal.kernel.ports import Command, CommandResult, Mount, Sandbox

PATIENCE_SECONDS = 60.0
"""Timeout for waits that must succeed."""
SHORT_SECONDS = 1.0
"""Timeout for commands that never end by themselves."""
PARALLEL = 8
DAEMON = "setsid bash -c 'exec 9>alive; echo started >&9; echo up >up; exec sleep 600' >/dev/null 2>&1 </dev/null &"
"""Shell code that starts a process in its own session. The process keeps the pipe `alive` open until it ends."""


ENDING_MILLISECONDS = 2000


class Witness:
    """Context manager that watches the process that DAEMON starts.

    It creates two named pipes in the workspace. The process keeps `alive` open until it ends. `cat up` waits until
    the process has started. The event `started` is set when the process starts.
    """

    def __init__(self, workspace: Path) -> None:
        for name in ("alive", "up"):
            os.mkfifo(workspace / name)
            (workspace / name).chmod(0o666)
        self.started = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pipe = os.open(workspace / "alive", os.O_RDONLY | os.O_NONBLOCK)

    def __enter__(self) -> "Witness":
        self._loop.add_reader(self._pipe, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)

    def _look(self) -> None:
        self._loop.remove_reader(self._pipe)
        self.started.set()

    def has_ended(self) -> bool:
        """Wait up to ENDING_MILLISECONDS for the process to end, and return True if it has ended."""
        ends = select.poll()
        ends.register(self._pipe, 0)
        return bool(ends.poll(ENDING_MILLISECONDS))


class SandboxContract:
    """Contract suite for a sandbox. Subclass it and provide a `sandbox` fixture.

    Set `workspace_owner` to a user id if the workspace must belong to a user other than the one who runs the tests.
    """

    workspace_owner: ClassVar[int] = -1

    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Path:
        folder = tmp_path / "workspace"
        folder.mkdir()
        folder.chmod(0o777)
        os.chown(folder, self.workspace_owner, self.workspace_owner)
        return folder

    @pytest.fixture
    def mounts(self, workspace: Path) -> tuple[Mount, ...]:
        """Return the mounts of the workspace and of a read-only directory."""
        skills = workspace.parent / "skills"
        skills.mkdir()
        (skills / "SKILL.md").write_text("a skill")
        return Mount(workspace, "/workspace", writable=True), Mount(skills, "/skills")

    @staticmethod
    async def run(sandbox: Sandbox, mounts: tuple[Mount, ...], text: str, **limits: float) -> CommandResult:
        """Run a command in the workspace."""
        command = Command(
            text=text,
            cwd=mounts[0].host,
            mounts=mounts,
            timeout_seconds=limits.get("timeout_seconds", PATIENCE_SECONDS),
            output_bytes_max=int(limits.get("output_bytes_max", 10_485_760)),
            env=(("GIVEN", "to the command"),),
        )
        return await sandbox.run(command)

    async def test_a_command_returns_its_output_and_exit_code(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...]
    ) -> None:
        result = await self.run(sandbox, mounts, "echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
        assert (result.timed_out, result.stdout_cut, result.stderr_cut) == (False, False, False)

    async def test_commands_run_in_bash(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        result = await self.run(sandbox, mounts, "words=(a b)\n# a comment\necho ${#words[@]} <<< x\n")
        assert result.stdout == b"2\n"

    async def test_a_signal_is_an_exit_code(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        result = await self.run(sandbox, mounts, "bash -c 'kill -9 $$'")
        assert result.exit_code == 128 + 9

    async def test_standard_input_is_empty(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        result = await self.run(sandbox, mounts, "cat; echo end")
        assert result.stdout == b"end\n"

    async def test_output_is_seen_before_the_command_ends(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        seen: list[tuple[int, bytes]] = []
        os.mkfifo(mounts[0].host / "go")
        (mounts[0].host / "go").chmod(0o666)
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def see(stream: int, data: bytes) -> None:
            seen.append((stream, data))
            loop.call_soon_threadsafe(begun.set)

        text = "echo first; read -r line <go; echo $line; echo wrong >&2"
        running = asyncio.ensure_future(sandbox.run(Command(text, mounts[0].host, mounts, see=see)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await begun.wait()
            assert seen == [(1, b"first\n")]
            await asyncio.to_thread((mounts[0].host / "go").write_text, "second\n")
            result = await running
        assert [data for stream, data in seen if stream == 1] == [b"first\n", b"second\n"]
        assert b"".join(data for stream, data in seen if stream == 2) == b"wrong\n" == result.stderr
        assert result.stdout == b"first\nsecond\n"

    async def test_output_may_contain_any_bytes(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        result = await self.run(sandbox, mounts, r"printf '\000\377\n\033[0m'")
        assert result.stdout == b"\x00\xff\n\x1b[0m"

    async def test_long_output_is_truncated_and_marked(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        """Truncation does not stop the command."""
        text = "head -c 300000 /dev/zero; head -c 5 /dev/zero >&2; touch finished"
        result = await self.run(sandbox, mounts, text, output_bytes_max=1000)
        assert (len(result.stdout), result.stdout_cut, len(result.stderr), result.stderr_cut) == (1000, True, 5, False)
        assert (mounts[0].host / "finished").exists()

    async def test_output_of_exactly_the_limit_is_complete(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        result = await self.run(sandbox, mounts, "head -c 1000 /dev/zero", output_bytes_max=1000)
        assert (len(result.stdout), result.stdout_cut) == (1000, False)

    async def test_a_command_times_out(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        result = await self.run(sandbox, mounts, "echo begun; sleep 600", timeout_seconds=SHORT_SECONDS)
        assert (result.timed_out, result.exit_code, result.stdout) == (True, None, b"begun\n")

    async def test_a_timeout_kills_a_child_with_its_own_session(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...]
    ) -> None:
        with Witness(mounts[0].host) as witness:
            result = await self.run(sandbox, mounts, f"{DAEMON} cat up; sleep 600", timeout_seconds=3 * SHORT_SECONDS)
            assert result.timed_out
            assert witness.started.is_set()
            assert witness.has_ended()

    async def test_cancelling_kills_a_child_with_its_own_session(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...]
    ) -> None:
        with Witness(mounts[0].host) as witness:
            async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
                running = group.create_task(self.run(sandbox, mounts, f"{DAEMON} cat up; sleep 600"))
                await witness.started.wait()
                running.cancel()
            assert running.cancelled()
            assert witness.has_ended()

    async def test_a_process_left_behind_is_killed(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        with Witness(mounts[0].host) as witness:
            result = await self.run(sandbox, mounts, f"{DAEMON} cat up")
            assert (result.stdout, result.exit_code, result.timed_out) == (b"up\n", 0, False)
            assert witness.has_ended()

    async def test_a_command_sees_only_the_given_environment(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SHOAL_CANARY_KEY", "canary-of-the-server")
        result = await self.run(sandbox, mounts, "env; cat /proc/self/environ | tr '\\0' '\\n'")
        assert b"canary" not in result.stdout.lower()
        names = {line.partition(b"=")[0] for line in result.stdout.splitlines()}
        assert {b"PATH", b"HOME", b"LANG", b"TERM", b"GIVEN"} <= names
        allowed = {b"PWD", b"OLDPWD", b"SHLVL", b"_", b"SHOAL_COMMAND", b"HOSTNAME"}
        assert names <= {b"PATH", b"HOME", b"LANG", b"TERM", b"GIVEN"} | allowed

    async def test_commands_work_in_the_workspace(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        result = await self.run(sandbox, mounts, "pwd; echo content > file.txt")
        assert result.stdout.decode().strip() == sandbox.inside(mounts[0].host, mounts)
        assert (mounts[0].host / "file.txt").read_text() == "content\n"

    async def test_other_mounts_can_be_read(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        skill = sandbox.inside(mounts[1].host / "SKILL.md", mounts)
        result = await self.run(sandbox, mounts, f"cat {skill}; echo more >> {skill}")
        assert result.stdout == b"a skill"
        if sandbox.isolated:
            assert (mounts[1].host / "SKILL.md").read_text() == "a skill"

    async def test_paths_translate_both_ways(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        path = mounts[0].host / "a" / "b.txt"
        assert sandbox.outside(sandbox.inside(path, mounts), mounts) == path
        assert sandbox.inside(Path("/elsewhere/x"), mounts) == "/elsewhere/x"
        assert sandbox.outside("/elsewhere/x", mounts) == Path("/elsewhere/x")

    async def test_a_missing_directory_is_an_error(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        command = Command(text="true", cwd=mounts[0].host / "missing", mounts=mounts)
        with pytest.raises(SandboxError, match="missing"):
            await sandbox.run(command)

    async def test_a_command_that_cannot_start_is_an_error(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        """For example, the arguments of a program cannot contain a NUL."""
        with pytest.raises(SandboxError):
            await self.run(sandbox, mounts, "echo a\0b")

    async def test_concurrent_commands_do_not_mix(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        results = await asyncio.gather(
            *(self.run(sandbox, mounts, f"echo {number}; exit {number}") for number in range(PARALLEL))
        )
        assert [result.exit_code for result in results] == list(range(PARALLEL))
        assert [result.stdout for result in results] == [f"{number}\n".encode() for number in range(PARALLEL)]

    async def test_no_descriptor_or_child_process_is_left(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        await self.run(sandbox, mounts, "true")
        before, children = _descriptors(), _children()  # descriptors of other code may close during the test
        await self.run(sandbox, mounts, "sleep 600", timeout_seconds=SHORT_SECONDS / 4)
        await self.run(sandbox, mounts, "sleep 600 & exit 4")
        await self.run(sandbox, mounts, "head -c 100000 /dev/zero")
        assert _descriptors() <= before
        assert _children() <= children


def _descriptors() -> set[str]:
    names: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            names.add(f"{name} {os.readlink(f'/proc/self/fd/{name}').partition('socket:')[0]}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return names


def _children() -> set[str]:
    names: set[str] = set()
    for task in os.listdir("/proc/self/task"):
        names.update(Path(f"/proc/self/task/{task}/children").read_text().split())
    return names
