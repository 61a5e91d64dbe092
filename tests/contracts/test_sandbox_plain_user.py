"""Bubblewrap under a server without root: no capabilities and no control groups, but the same isolation."""

import asyncio
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.contracts.as_nobody import NOBODY, SANDBOX

from shoal.kernel.errors import SandboxError
from shoal.kernel.ports import Command, CommandResult, Mount, Sandbox
from shoal.testing.contracts.isolation import CANARY, IsolationContract

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("nobody"),  # the process limit counts all processes of a user
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root can become another user; the other tests are those of a user"
    ),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]


class AsNobody:
    """A sandbox that runs each command through the process `tests.contracts.as_nobody`."""

    name = SANDBOX.name
    isolated = SANDBOX.isolated

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    async def run(self, command: Command) -> CommandResult:
        result = await asyncio.to_thread(self._exchange, command)
        if isinstance(result, str):
            raise SandboxError(result)
        return result

    def _exchange(self, command: Command) -> CommandResult | str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(command, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        return SANDBOX.inside(path, mounts)

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        return SANDBOX.outside(path, mounts)

    async def close(self) -> None: ...


@pytest.fixture(scope="module")
def process() -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "tests.contracts.as_nobody"]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as process:
        yield process


class TestBubblewrapIsolationOfAPlainUser(IsolationContract):
    workspace_owner = NOBODY

    @pytest.fixture
    def home(self) -> Iterator[Path]:
        """A home directory that the user nobody can reach, with secrets that are world-readable outside a sandbox."""
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
    def sandbox(self, process: "subprocess.Popen[bytes]") -> Sandbox:
        return AsNobody(process)

    async def test_commands_run_as_another_user(self, sandbox: Sandbox, mounts: tuple[Mount, ...]) -> None:
        """New files belong to the user `nobody`. Files that only root may read stay unreadable even in a
        mounted folder.
        """
        (mounts[0].host / "mine").write_text(CANARY)
        (mounts[0].host / "mine").chmod(0o600)
        result = await self.run(sandbox, mounts, "touch made; cat mine; echo $?; id -u")
        assert result.stdout == b"1\n1000\n"
        assert (mounts[0].host / "made").stat().st_uid == NOBODY
