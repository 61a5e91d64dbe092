"""The sandbox contract on the bare host."""

import pytest

from shoal.kernel.ports import Sandbox
from shoal.sandbox.host import HostSandbox
from shoal.testing.contracts.disk import DiskContract
from shoal.testing.contracts.sandbox import SandboxContract


class TestHostSandbox(SandboxContract):
    """The host isolates nothing. It only bounds time and output, and ends the process tree."""

    @pytest.fixture
    def sandbox(self) -> Sandbox:
        return HostSandbox()


class TestHostDisk(DiskContract):
    @pytest.fixture
    def inner(self) -> Sandbox:
        return HostSandbox()
