"""The request to create a command's container, as the Docker daemon receives it."""

import json
import os
import re
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.kernel.errors import SandboxError
from shoal.kernel.ports import Command, Mount
from shoal.sandbox.docker import DockerSandbox

Spec = dict[str, dict[str, list[dict[str, object]]]]


class Daemon(socketserver.ThreadingUnixStreamServer):
    """A Docker daemon that records and rejects every request to create a container."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.asked: list[Spec] = []
        super().__init__(str(path), Refusing)


class Refusing(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        head = b"".join(iter(self.rfile.readline, b"\r\n")).decode()
        length = re.search(r"(?i)content-length: (\d+)", head)
        body = self.rfile.read(int(length[1]) if length else 0)
        status, answer = "200 OK", "[]"
        if "/containers/create" in head:
            assert isinstance(self.server, Daemon)
            self.server.asked.append(json.loads(body))
            status, answer = "400 Bad Request", '{"message": "no more"}'
        lines = (f"HTTP/1.1 {status}", f"content-length: {len(answer)}", "connection: close", "", answer)
        self.wfile.write("\r\n".join(lines).encode())


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "docker.sock") as made:
        serving = threading.Thread(target=made.serve_forever, args=(0.01,))
        serving.start()
        yield made
        made.shutdown()
        serving.join()


async def test_a_container_mounts_existing_folders_and_writes_only_to_writable_ones(
    daemon: Daemon, tmp_path: Path
) -> None:
    names = {"workspace": True, "scratch": True, "artifacts": False, "docs": False}
    mounts = tuple(Mount(tmp_path / name, f"/{name}", writable=writable) for name, writable in names.items())
    for mount in mounts[:3]:  # an agent without documents has no folder for them
        mount.host.mkdir()
        if os.geteuid() == 0:
            os.chown(mount.host, 1000, 1000)
    sandbox = DockerSandbox(tmp_path / "docker.sock", image="any")
    with pytest.raises(SandboxError, match="no more"):
        await sandbox.run(Command("true", mounts[0].host, mounts))
    await sandbox.close()
    (spec,) = daemon.asked
    assert spec["HostConfig"]["Mounts"] == [
        {"Type": "bind", "Source": str(mount.host), "Target": mount.inside, "ReadOnly": not mount.writable}
        for mount in mounts[:3]
    ]
