"""A server is killed while a command runs. The command must have no effect after the next server has started."""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import WAIT_SECONDS

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.sandbox.host import HostSandbox
from shoal.testing.contracts.sandbox import Witness
from shoal.testing.model import FakeModel
from shoal.testing.scenario import FakeModels

SERVER = """
import asyncio, sys
from pathlib import Path
from shoal.kernel.ports import Command, Mount
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.host import HostSandbox
sandbox = {"host": HostSandbox, "bubblewrap": BubblewrapSandbox}[sys.argv[1]]()
folder = Path(sys.argv[2])
asyncio.run(sandbox.run(Command(sys.argv[3], folder, (Mount(folder, "/workspace", writable=True),))))
"""
ACT = "exec 9>alive; echo started >&9; sleep 600; echo acted >acted"
CLOSE = 'for fd in /proc/$$/fd/*; do fd=${fd##*/}; [ $fd -gt 2 ] && eval "exec $fd>&-"; done'
ESCAPES = {
    "none": ACT,
    "another session": f"setsid -f bash -c '{ACT}'; sleep 600",
    "a lost parent": f"(setsid bash -c '{ACT}' >/dev/null 2>&1 &); sleep 600",
    "a bare environment": f"env -i PATH=\"$PATH\" setsid -f bash -c '{ACT}' >/dev/null 2>&1; sleep 600",
    "closed files": f"setsid -f bash -c '{CLOSE}; {ACT}' >/dev/null 2>&1; sleep 600",
}
"""Ways in which a command's processes escape their parent."""


@contextmanager
def serving(sandbox: str, folder: Path, command: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a server process with one command. The process is killed when the block ends."""
    argv = [sys.executable, "-c", SERVER, sandbox, str(folder), command]
    with subprocess.Popen(argv) as server:
        try:
            yield server
        finally:
            server.kill()


@pytest.mark.parametrize("sandbox", ["host", "bubblewrap"])
@pytest.mark.parametrize("escape", ESCAPES)
async def test_a_killed_servers_command_is_ended_before_the_next_server_runs_any(
    tmp_path: Path, sandbox: str, escape: str
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    with Witness(folder) as witness, serving(sandbox, folder, ESCAPES[escape]) as server:
        async with asyncio.timeout(WAIT_SECONDS):
            await witness.started.wait()
        server.kill()
        server.wait()
        config = load_config(tmp_path / "home", {}, {"sandbox": {"kind": "host"}})
        async with open_app(config, Overrides(models=FakeModels(FakeModel()), sandbox=HostSandbox())):
            assert witness.has_ended()
    assert not (folder / "acted").exists()
