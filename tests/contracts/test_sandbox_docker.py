"""The sandbox contract for Docker, against a real daemon. The suite starts a daemon where it can."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.kernel.errors import SandboxError
from shoal.kernel.ports import Mount, Sandbox
from shoal.sandbox.docker import IDLE_MAX, DockerApi, DockerSandbox
from shoal.sandbox.limits import CommandLimits
from shoal.testing.contracts import isolation
from shoal.testing.contracts.disk import DiskContract
from shoal.testing.contracts.isolation import IsolationContract
from shoal.testing.contracts.sandbox import SandboxContract, Witness

SCRIPT = Path(__file__).parents[2] / "scripts" / "dockerd.sh"
IMAGE = "shoal-test"
SANDBOX_USER = 1000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("docker"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a Docker daemon can be started by root only"),
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("docker")
    started = subprocess.run([SCRIPT, "start", folder], check=False, capture_output=True, text=True)
    if started.returncode != 0:
        pytest.skip(f"cannot start a Docker daemon here: {started.stderr[-300:]}")
    yield folder / "docker.sock"
    subprocess.run([SCRIPT, "stop", folder], check=True)


class TestDockerSandbox(SandboxContract):
    """The contract for containers that are reused between commands."""

    workspace_owner = SANDBOX_USER

    @pytest.fixture
    async def sandbox(self, daemon: Path) -> AsyncIterator[Sandbox]:
        sandbox = DockerSandbox(daemon, image=IMAGE)
        yield sandbox
        await sandbox.close()

    async def test_a_container_serves_one_command_after_the_other(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...], daemon: Path
    ) -> None:
        """When a command had to be killed, its container is replaced."""
        await self.run(sandbox, mounts, "echo kept > /tmp/file")
        assert (await self.run(sandbox, mounts, "cat /tmp/file")).stdout == b"kept\n"
        assert (await self.run(sandbox, mounts, "sleep 600", timeout_seconds=1)).timed_out
        assert (await self.run(sandbox, mounts, "cat /tmp/file")).exit_code == 1
        assert len(await containers(daemon)) == 1

    async def test_idle_containers_are_bounded_and_removed_at_the_end(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...], daemon: Path
    ) -> None:
        await asyncio.gather(*(self.run(sandbox, mounts, "true") for _ in range(IDLE_MAX + 2)))
        assert len(await containers(daemon)) == IDLE_MAX
        await sandbox.close()
        assert await containers(daemon) == []

    async def test_a_daemon_problem_is_an_error(self, mounts: tuple[Mount, ...], daemon: Path, tmp_path: Path) -> None:
        for sandbox, message in (
            (DockerSandbox(tmp_path / "no.sock", image=IMAGE), "does not respond"),
            (DockerSandbox(daemon, image="no-such-image"), "No such image"),
            (DockerSandbox(daemon), "needs an image"),
            (DockerSandbox(daemon, image=IMAGE, network="on"), "has no python3"),
            (DockerSandbox(daemon, container="any", network=("example.org",)), "has its own network"),
            (DockerSandbox(daemon, container="no-such-container"), "No such container"),
        ):
            with pytest.raises(SandboxError, match=message):
                await self.run(sandbox, mounts, "true")
            await sandbox.close()

    async def test_commands_never_run_as_root(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        os.chown(mounts[0].host, 0, 0)
        with pytest.raises(SandboxError, match="belongs to root"):
            await self.run(sandbox, mounts, "true")

    async def test_containers_of_a_dead_server_are_removed(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...], daemon: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next server removes them before it runs its first command."""
        dead = DockerSandbox(daemon, image=IMAGE)
        monkeypatch.setattr("shoal.sandbox.docker.identity_of", lambda pid: "999999999 1 -")
        await self.run(dead, mounts, "true")
        monkeypatch.undo()
        with monkeypatch.context() as patch:

            async def nothing(*_: object) -> None:
                """Leaves the containers running, as a killed server does."""

            patch.setattr(DockerApi, "remove", nothing)
            await dead.close()
        (left,) = await containers(daemon)
        await self.run(sandbox, mounts, "true")
        assert left not in await containers(daemon)
        assert len(await containers(daemon)) == 1

    async def test_an_operators_container_is_used_and_kept(
        self, sandbox: Sandbox, mounts: tuple[Mount, ...], daemon: Path
    ) -> None:
        """The sandbox finds the processes of a timed-out command by an environment variable and kills only those."""
        await self.run(sandbox, mounts, "true")
        (name,) = await containers(daemon)
        attached = DockerSandbox(daemon, container=name)
        with Witness(mounts[0].host) as witness:
            text = "setsid bash -c 'exec 9>alive; echo up >up; exec sleep 600' & cat up; sleep 600"
            other = asyncio.gather(self.run(attached, mounts, "read -r word < ready; echo $word"))
            os.mkfifo(mounts[0].host / "ready")
            (mounts[0].host / "ready").chmod(0o666)
            assert (await self.run(attached, mounts, text, timeout_seconds=3)).timed_out
            assert witness.has_ended()
            await asyncio.to_thread((mounts[0].host / "ready").write_text, "on\n")
            assert (await other)[0].stdout == b"on\n"
        await attached.close()
        assert await containers(daemon) == [name]


class TestDockerIsolation(IsolationContract):
    """Isolation under low limits."""

    workspace_owner = SANDBOX_USER

    @pytest.fixture
    async def sandbox(self, daemon: Path) -> AsyncIterator[Sandbox]:
        limits = CommandLimits(
            memory_bytes_max=isolation.MEMORY_BYTES_MAX,
            processes_max=isolation.PROCESSES_MAX,
            file_bytes_max=isolation.FILE_BYTES_MAX,
            temporary_bytes_max=isolation.TEMPORARY_BYTES_MAX,
            cpu_seconds_max=isolation.CPU_SECONDS_MAX,
            open_files_max=isolation.OPEN_FILES_MAX,
        )
        sandbox = DockerSandbox(daemon, limits, image=IMAGE)
        yield sandbox
        await sandbox.close()


async def containers(daemon: Path) -> list[str]:
    api = DockerApi(daemon)
    names = [container for container, _ in await api.owned()]
    await api.close()
    return names


def test_containers_have_no_network(tmp_path: Path) -> None:
    os.chown(tmp_path, SANDBOX_USER, SANDBOX_USER)
    mounts = (Mount(tmp_path, "/workspace", writable=True),)
    for network in ("off", "on"):
        sandbox = DockerSandbox(tmp_path, image=IMAGE, network=network)
        spec = json.loads(msgspec.json.encode(sandbox.container_spec(mounts)))
        assert (spec["NetworkDisabled"], spec["HostConfig"]["NetworkMode"]) == (True, "none")


class TestDockerDisk(DiskContract):
    workspace_owner = SANDBOX_USER

    @pytest.fixture
    async def inner(self, daemon: Path) -> AsyncIterator[Sandbox]:
        sandbox = DockerSandbox(daemon, image=IMAGE)
        yield sandbox
        await sandbox.close()
