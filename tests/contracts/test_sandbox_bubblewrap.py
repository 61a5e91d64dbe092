"""The sandbox's contract under bubblewrap, without a network and with one of allowed hosts."""

import shutil
from collections.abc import AsyncIterator

import pytest

from shoal.domain.ports import Sandbox
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.limits import Limits
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
