"""The sandbox's contract on the bare host."""

import pytest

from shoal.kernel.ports import Sandbox
from shoal.sandbox.host import HostSandbox
from shoal.testing.contracts.disk import DiskContract
from shoal.testing.contracts.sandbox import SandboxContract


class TestHostSandbox(SandboxContract):
    """No isolation: time, output and the end of the process tree only."""

    @pytest.fixture
    def sandbox(self) -> Sandbox:
        """The host."""
        return HostSandbox()


class TestHostDisk(DiskContract):
    """What a command cannot do to the disk."""

    @pytest.fixture
    def inner(self) -> Sandbox:
        """The host."""
        return HostSandbox()
