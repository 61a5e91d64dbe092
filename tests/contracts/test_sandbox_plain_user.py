"""The isolation of bubblewrap for a server that is not root: no capabilities, no control groups, the same rules."""

import asyncio
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from shoal.domain.errors import SandboxError
from shoal.domain.ports import Command, CommandResult, Mount, Sandbox
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.limits import CommandLimits
from shoal.testing.contracts import isolation
from shoal.testing.contracts.isolation import CANARY, IsolationContract

NOBODY = 65_534
SANDBOX = BubblewrapSandbox(
    CommandLimits(
        memory_bytes_max=isolation.MEMORY_BYTES_MAX,
        processes_max=isolation.PROCESSES_MAX,
        file_bytes_max=isolation.FILE_BYTES_MAX,
        temporary_bytes_max=isolation.TEMPORARY_BYTES_MAX,
        cpu_seconds_max=isolation.CPU_SECONDS_MAX,
        open_files_max=isolation.OPEN_FILES_MAX,
    )
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("nobody"),  # the limit of processes counts all of the user's
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root can become another user; the other tests are those of a user"
    ),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]


class AsNobody:
    """Runs each command in a child of this process that has become the user nobody."""

    name = SANDBOX.name
    isolated = SANDBOX.isolated

    async def run(self, command: Command) -> CommandResult:
        """As the sandbox's own. Raises SandboxError."""
        content = await asyncio.to_thread(_in_child, command)
        result: CommandResult | str = pickle.loads(content)
        if isinstance(result, str):
            raise SandboxError(result)
        return result

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        """As the sandbox's own."""
        return SANDBOX.inside(path, mounts)

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        """As the sandbox's own."""
        return SANDBOX.outside(path, mounts)

    async def close(self) -> None:
        """Nothing is held."""


def _in_child(command: Command) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            answer: CommandResult | str = asyncio.run(SANDBOX.run(command))
        except SandboxError as error:
            answer = str(error)
        with open(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    return content


class TestBubblewrapIsolationOfAPlainUser(IsolationContract):
    """What a command cannot do when the server is an ordinary user."""

    workspace_owner = NOBODY

    @pytest.fixture
    def home(self) -> Iterator[Path]:
        """A home that this user can reach, with secrets that could be read from outside of a sandbox."""
        above = Path(tempfile.mkdtemp())
        folder = above / "home"
        folder.mkdir()
        above.chmod(0o755)
        for name in ("shoal.toml", "token", "shoal.db"):
            (folder / name).write_text(CANARY)
            (folder / name).chmod(0o644)
        (folder / "workspace").mkdir()
        os.chown(folder / "workspace", NOBODY, NOBODY)
        yield folder
        shutil.rmtree(above)

    @pytest.fixture
    def sandbox(self) -> Sandbox:
        """With tight limits, as nobody."""
        return AsNobody()

    async def test_it_is_another_user_who_runs_it(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        """Files come to belong to that user, and what is root's alone stays closed even where it is mounted."""
        (mounts[0].host / "mine").write_text(CANARY)
        (mounts[0].host / "mine").chmod(0o600)
        result = await self.run(sandbox, mounts, "touch made; cat mine; echo $?; id -u")
        assert result.stdout == b"1\n1000\n"
        assert (mounts[0].host / "made").stat().st_uid == NOBODY
