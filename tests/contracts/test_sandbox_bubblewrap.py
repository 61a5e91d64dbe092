"""The sandbox's contract under bubblewrap, without a network and with one of allowed hosts."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.domain.ports import Sandbox
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.limits import Limits
from shoal.sandbox.seccomp import filter_file
from shoal.testing.contracts import isolation
from shoal.testing.contracts.disk import DiskContract
from shoal.testing.contracts.isolation import IsolationContract
from shoal.testing.contracts.sandbox import SandboxContract

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


class TestBubblewrapSandbox(SandboxContract):
    """Namespaces, no network."""

    @pytest.fixture
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        """With the usual limits."""
        sandbox = BubblewrapSandbox()
        yield sandbox
        await sandbox.close()


class TestBubblewrapIsolation(IsolationContract):
    """What a command cannot do."""

    @pytest.fixture
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        """With tight limits."""
        sandbox = BubblewrapSandbox(
            Limits(
                memory_bytes_max=isolation.MEMORY_BYTES_MAX,
                processes_max=isolation.PROCESSES_MAX,
                file_bytes_max=isolation.FILE_BYTES_MAX,
                temporary_bytes_max=isolation.TEMPORARY_BYTES_MAX,
                cpu_seconds_max=isolation.CPU_SECONDS_MAX,
                open_files_max=isolation.OPEN_FILES_MAX,
            )
        )
        yield sandbox
        await sandbox.close()


class TestBubblewrapDisk(DiskContract):
    """What a command cannot do to the disk."""

    @pytest.fixture
    async def inner(self) -> AsyncIterator[Sandbox]:
        """With the usual limits."""
        sandbox = BubblewrapSandbox()
        yield sandbox
        await sandbox.close()

    async def test_room_cannot_be_reserved_without_writing(self, inner: Sandbox, workspace: Path) -> None:
        """A call that takes a gigabyte in a millisecond is quicker than any look; the C library writes instead."""
        with filter_file() as files:
            if not files:
                pytest.skip("no filter of system calls for this machine")
        reserve = "import os; f = os.open('f', os.O_CREAT | os.O_RDWR); os.posix_fallocate(f, 0, 1000000)"
        result = await self.run(
            inner, workspace, f'fallocate -l 1M x; stat -c %s x; python3 -c "{reserve}"; stat -c %s f'
        )
        assert (result.stdout, b"not supported" in result.stderr) == (b"0\n1000000\n", True)
