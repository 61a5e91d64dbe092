"""The contract of an isolating sandbox. Each test tries to escape or to exhaust the machine.

class TestMySandbox(IsolationContract):
    @pytest.fixture
    async def sandbox(self): ...  # yields a sandbox with this module's limits and no network
"""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from shoal.kernel.ports import Command, CommandResult, Mount, Sandbox

MEBIBYTE = 1_048_576
MEMORY_BYTES_MAX = 192 * MEBIBYTE
PROCESSES_MAX = 40
FILE_BYTES_MAX = 8 * MEBIBYTE
TEMPORARY_BYTES_MAX = 8 * MEBIBYTE
CPU_SECONDS_MAX = 2
OPEN_FILES_MAX = 64
"""Limit on open files. The sandbox under test must enforce it and the limits above."""

PATIENCE_SECONDS = 60.0
SHORT_SECONDS = 3.0
CANARY = "canary-that-no-command-may-see"


class IsolationContract:
    """Contract suite for an isolating sandbox. Subclass it and provide a `sandbox` fixture.

    Set `workspace_owner` to a user id if the workspace must belong to a user other than the one who runs the tests.
    """

    workspace_owner: ClassVar[int] = -1

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        """Create a home directory with secrets next to the workspace."""
        for name in ("shoal.toml", "token", "shoal.db"):
            (tmp_path / name).write_text(CANARY)
            (tmp_path / name).chmod(0o644)
        workspace = tmp_path / "workspace"
        workspace.mkdir()
        workspace.chmod(0o777)
        os.chown(workspace, self.workspace_owner, self.workspace_owner)
        return tmp_path

    @pytest.fixture
    def mounts(self, home: Path) -> tuple[Mount, ...]:
        return (Mount(home / "workspace", "/workspace", writable=True),)

    @pytest.fixture
    def victim(self) -> Iterator[int]:
        """Yield the id of a process that this user runs outside the sandbox."""
        with subprocess.Popen(["sleep", "600"], env={"SECRET": CANARY}) as process:
            yield process.pid
            assert process.poll() is None, "the command killed a process outside its sandbox"
            process.kill()

    @pytest.fixture
    async def server(self) -> AsyncIterator[int]:
        """Yield the port of a server on loopback. A connection to it fails the test."""
        connected: list[bool] = []

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.append(True)
            writer.write(CANARY.encode())
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]
        assert not connected

    @staticmethod
    async def run(
        sandbox: Sandbox, mounts: tuple[Mount, ...], text: str, timeout_seconds: float = PATIENCE_SECONDS
    ) -> CommandResult:
        """Run a command in the workspace and assert that its output does not contain the canary."""
        result = await sandbox.run(Command(text, mounts[0].host, mounts, timeout_seconds=timeout_seconds))
        assert CANARY.encode() not in result.stdout + result.stderr
        return result

    async def test_secrets_in_the_home_directory_cannot_be_read(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...], home: Path
    ) -> None:
        """The test tries absolute paths, `..`, /proc and links."""
        (mounts[0].host / "link").symlink_to(home / "token")
        (mounts[0].host / "up").symlink_to("../")
        names = [
            f"{home}/shoal.toml",
            "../token",
            "../../../../..{home}/token",
            "link",
            "up/token",
            "/workspace/../token",
        ]
        names += [f"/proc/{who}/root{home}/token" for who in ("self", "1", "thread-self")]
        names += [f"/proc/1/cwd/{home}/token", "/proc/self/cwd/../token"]
        result = await self.run(sandbox, mounts, "\n".join(f"cat {name} && echo READ" for name in names))
        assert b"READ" not in result.stdout

    async def test_host_directories_are_not_visible(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...], home: Path
    ) -> None:
        result = await self.run(sandbox, mounts, f"ls -A /home /root {home} {home.parent} 2>/dev/null; echo end")
        assert result.stdout.replace(b"/home:\n", b"").replace(b"/root:\n", b"").strip() in (
            b"end",
            b".bashrc\n.profile\nend",
        )

    async def test_a_link_swapped_during_a_command_reveals_nothing(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...], home: Path
    ) -> None:
        text = f"touch plain; for i in {{1..200}}; do ln -sfn {home}/token swap; cat swap; ln -sfn plain swap; done"
        result = await self.run(sandbox, mounts, f"{text} 2>/dev/null; echo end")
        assert result.stdout == b"end\n"

    async def test_only_the_workspace_is_writable(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        places = ["/x", "/usr/x", "/usr/bin/env", "/etc/passwd", "/etc/x", "/dev/x", "/sys/x", "/proc/sysrq-trigger"]
        places += ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/lib/x"]
        places += ["/proc/sys/kernel/sysrq", "/proc/sys/net/ipv4/ip_forward", "/proc/self/oom_score_adj"]
        lines = [f"(echo x >> {place}) 2>/dev/null && echo WROTE {place}" for place in places]
        result = await self.run(sandbox, mounts, "\n".join([*lines, "echo x > fine && echo end"]))
        assert result.stdout == b"end\n"

    async def test_hard_links_cannot_cross_mounts(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        result = await self.run(sandbox, mounts, "ln /usr/bin/env stolen; ln -P /etc/passwd stolen2; ls")
        assert result.stdout == b""

    async def test_a_command_has_no_privileges_and_cannot_gain_any(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...]
    ) -> None:
        result = await self.run(
            sandbox, mounts, "id -u; grep -E '^(Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs)' /proc/self/status"
        )
        uid, *lines = result.stdout.decode().split("\n")
        assert int(uid) != 0
        values = dict(line.split(":\t") for line in lines if line)
        assert values.pop("NoNewPrivs") == "1"
        assert {int(value, 16) for value in values.values()} == {0}

    async def test_a_command_cannot_mount_or_create_devices_or_namespaces(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...]
    ) -> None:
        attempts = ["mount -t tmpfs none /tmp", "mount --bind / /tmp", "mknod device c 1 1", "chroot / true"]
        attempts += [
            "unshare --user true",
            "unshare --user --map-root-user true",
            "unshare --mount true",
            "unshare --pid --fork true",
        ]
        attempts += ["nsenter --target 1 --mount true", "sysctl -w kernel.hostname=x"]
        text = "\n".join(f"{attempt} >/dev/null 2>&1 && echo 'WORKED {attempt}'" for attempt in attempts)
        result = await self.run(sandbox, mounts, f"{text}\necho end")
        assert result.stdout == b"end\n"

    async def test_a_command_cannot_change_device_permissions(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...]
    ) -> None:
        """Changing the permissions of a host device would affect every user of the machine."""
        devices = "null zero full random urandom tty"
        text = f"for name in {devices}; do chmod 644 /dev/$name 2>/dev/null && echo WORKED $name; done; echo end"
        result = await self.run(sandbox, mounts, text)
        assert result.stdout == b"end\n"

    async def test_outside_processes_cannot_be_read_or_killed(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...], victim: int
    ) -> None:
        text = f"cat /proc/{victim}/environ /proc/{victim}/cmdline; kill -9 {victim}; ls -d /proc/[0-9]* | wc -l"
        result = await self.run(sandbox, mounts, text)
        assert int(result.stdout) < 10
        assert os.path.exists(f"/proc/{victim}")
        await self.run(sandbox, mounts, "kill -9 -1; kill -9 0; kill -9 1; echo on")
        assert os.path.exists(f"/proc/{victim}")

    async def test_no_visible_process_has_the_servers_environment(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SHOAL_CANARY_KEY", CANARY)
        await self.run(sandbox, mounts, "for file in /proc/*/environ; do tr '\\0' '\\n' < $file; done; true")

    async def test_the_network_is_unreachable(self, sandbox: Sandbox, mounts: tuple[Mount, ...], server: int) -> None:
        """The test tries the loopback interface of this machine and a cloud metadata address."""
        addresses = [f"127.0.0.1/{server}", "169.254.169.254/80", "192.0.2.1/80", f"localhost/{server}"]
        text = "\n".join(f"(exec 3<>/dev/tcp/{address}) 2>/dev/null && echo REACHED" for address in addresses)
        result = await self.run(sandbox, mounts, f"{text}\necho end")
        assert result.stdout == b"end\n"

    async def test_a_fork_bomb_is_limited(self, sandbox: Sandbox, mounts: tuple[Mount, ...], victim: int) -> None:
        text = "for i in {1..200}; do sleep 600 & echo $i; done 2>/dev/null"
        result = await self.run(sandbox, mounts, text, SHORT_SECONDS)
        assert 0 < len(result.stdout.splitlines()) <= PROCESSES_MAX
        assert result.timed_out
        bomb = await self.run(sandbox, mounts, "bomb() { bomb | bomb & }; bomb; sleep 600", SHORT_SECONDS)
        assert bomb.timed_out
        assert (await self.run(sandbox, mounts, "echo fine")).stdout == b"fine\n"

    async def test_memory_is_limited(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        result = await self.run(sandbox, mounts, "head -c 2G /dev/zero | tail | wc -c; exit ${PIPESTATUS[1]}")
        assert result.exit_code != 0
        assert not result.timed_out

    async def test_temporary_files_are_limited(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        """The sandbox keeps temporary files in memory."""
        for folder in ("/tmp", "/dev/shm"):
            text = f"for i in {{1..40}}; do head -c 1M /dev/zero > {folder}/$i; done 2>/dev/null"
            text += f"; du -sm {folder} | cut -f1"
            result = await self.run(sandbox, mounts, text)
            assert 0 < int(result.stdout) * MEBIBYTE <= TEMPORARY_BYTES_MAX

    async def test_file_size_is_limited(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        result = await self.run(sandbox, mounts, "head -c 64M /dev/zero > big; echo $?")
        assert (mounts[0].host / "big").stat().st_size == FILE_BYTES_MAX
        assert int(result.stdout) != 0

    async def test_other_limits_cannot_be_raised(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        """The test covers open files, CPU time and core dumps. A command can only lower these limits."""
        result = await self.run(sandbox, mounts, "ulimit -Hn; ulimit -Ht; ulimit -Hc; ulimit -n 4096 && echo RAISED")
        assert result.stdout.split() == [str(OPEN_FILES_MAX).encode(), str(CPU_SECONDS_MAX).encode(), b"0"]
        busy = await self.run(sandbox, mounts, "while :; do :; done")
        assert (busy.timed_out, busy.exit_code == 0) == (False, False)
