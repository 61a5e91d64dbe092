"""The sandbox contract on the host without isolation."""

import pytest

from shoal.kernel.ports import Sandbox
from shoal.sandbox.host import HostSandbox
from shoal.testing.contracts.disk import DiskContract
from shoal.testing.contracts.sandbox import SandboxContract


class TestHostSandbox(SandboxContract):
    """The host sandbox isolates nothing. It limits time and output and kills all processes of a command."""

    @pytest.fixture
    def sandbox(self) -> Sandbox:
        return HostSandbox()


class TestHostDisk(DiskContract):
    @pytest.fixture
    def inner(self) -> Sandbox:
        return HostSandbox()
