"""A real Matrix homeserver (Synapse) in a separate process, with user accounts, for tests of the adapter."""

import hashlib
import hmac
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import msgspec
import pytest

from shoal.net.connections import default_tls

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 90.0
SECRET = "for tests only"
PASSWORD = "a password for tests"

_MORE = """
registration_shared_secret: "{secret}"
enable_registration: false
presence: {{enabled: false}}
bcrypt_rounds: 4
rc_message: {{per_second: 1000, burst_count: 1000}}
rc_login:
  address: {{per_second: 1000, burst_count: 1000}}
  account: {{per_second: 1000, burst_count: 1000}}
  failed_attempts: {{per_second: 1000, burst_count: 1000}}
rc_joins:
  local: {{per_second: 1000, burst_count: 1000}}
rc_invites:
  per_room: {{per_second: 1000, burst_count: 1000}}
  per_user: {{per_second: 1000, burst_count: 1000}}
rc_room_creation: {{per_second: 1000, burst_count: 1000}}
"""


class Synapse:
    """A running homeserver on which tests can register people."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._names = 0

    def person(self, name: str) -> str:
        """Register a person and return their full user id. A number makes the id unique."""
        self._names += 1
        name = f"{name}{self._names}"
        url = f"{self.address}/_synapse/admin/v1/register"
        nonce = httpx2.get(url, verify=default_tls()).json()["nonce"]
        signed = "\0".join((nonce, name, PASSWORD, "notadmin")).encode()
        mac = hmac.new(SECRET.encode(), signed, hashlib.sha1).hexdigest()
        body = {"nonce": nonce, "username": name, "password": PASSWORD, "admin": False, "mac": mac}
        response = httpx2.post(url, json=body, verify=default_tls())
        assert response.status_code == 200, response.text
        return str(response.json()["user_id"])


@contextmanager
def homeserver(folder: Path) -> Generator[Synapse]:
    setup = subprocess.run(
        [ROOT / "scripts" / "counterpart.sh", "synapse"], check=False, capture_output=True, text=True
    )
    if setup.returncode:
        pytest.skip(setup.stderr.strip())
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "synapse" / "python")}
    config = folder / "homeserver.yaml"
    argv = [sys.executable, "-m", "synapse.app.homeserver", "--config-path", str(config)]
    generated = subprocess.run(
        [*argv, "--server-name", "localhost", "--generate-config", "--report-stats=no"],
        env=environment, cwd=folder, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if generated.returncode:
        pytest.skip(f"Synapse does not start here: {generated.stderr[-300:]}")
    port = _free_port()
    text = config.read_text().replace("port: 8008", f"port: {port}")
    config.write_text(text + "\n" + _MORE.format(secret=SECRET))
    with (folder / "log").open("w") as log, subprocess.Popen(argv, env=environment, cwd=folder, stderr=log) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process)
            yield Synapse(address)
        finally:
            process.terminate()
            process.wait(20)


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            httpx2.get(f"{address}/_matrix/client/versions", timeout=2, verify=default_tls()).raise_for_status()
        except httpx2.HTTPError:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.3)  # Synapse does not signal when it is ready
        else:
            return
    pytest.skip("Synapse did not come up in time")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def told(answer: httpx2.Response) -> dict[str, object]:
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=dict[str, object])
