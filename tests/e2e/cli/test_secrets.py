"""A running Shoal never reveals a secret."""

import io
import json
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.processes import Server, running
from tests.unit.surfaces.cli.conftest import Shoal
from tests.unit.surfaces.cli.test_run_secrets import SETTINGS


@pytest.fixture
def planted(shoal: Shoal, home: Path, model: str, tmp_path: Path) -> None:
    """Put a canary into every setting and file that can contain a secret."""
    assert shoal("init").code == 0
    (tmp_path / "vault").write_text("canary-command-3")
    (home / "shoal.toml").write_text(SETTINGS.format(address=model, command_file=tmp_path / "vault"))


PATHS = (
    "/api/threads", "/api/threads/web:lobby:one", "/api/threads/web:lobby:one/events", "/api/approvals?pending=false",
    "/api/triggers", "/api/agents", "/api/agents/main", "/api/usage", "/api/usage/ceilings", "/api/audit",
    "/api/access", "/api/me", "/api/tokens", "/v1/models", "/openapi.json", "/metrics", "/healthz", "/readyz", "/",
)  # fmt: skip


COMMANDS = (
    ("doctor",), ("audit", "tail"), ("threads", "list"), ("threads", "log", "web:lobby:one"),
    ("threads", "show", "web:lobby:one"), ("agents", "list"), ("models", "list"), ("usage",), ("pair", "list"),
    ("approvals", "list", "--all"), ("token", "list"), ("ask", "hello"),
)  # fmt: skip


def fetched(server: Server, path: str, body: object = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.address}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return f"{answer.headers}{answer.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.headers}{error.read().decode()}"


def archived(file: Path) -> str:
    with tarfile.open(file) as archive:
        members = [archive.extractfile(entry) for entry in archive.getmembers() if entry.isfile()]
        return "".join((item or io.BytesIO()).read().decode("utf-8", "replace") for item in members)


@pytest.mark.usefixtures("planted")
def test_no_output_shows_a_secret(shoal: Shoal, home: Path, tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    with running(home) as server:
        assert server.token.startswith("canary-web-token")
        texts["message"] = fetched(server, "/api/threads/web:lobby:one/messages", {"text": "hello"})
        texts["ask"] = shoal("ask", "--thread", "web:lobby:one", "and again").err
        texts["errors"] = fetched(server, "/api/threads/nothing", {"text": 1})
        texts |= {path: fetched(server, path) for path in PATHS}
        for command in COMMANDS:
            result = shoal(*command)
            texts[" ".join(command)] = result.out + result.err
    assert shoal("backup", str(tmp_path / "backup.tar.gz")).code == 0
    texts["backup"] = archived(tmp_path / "backup.tar.gz")
    texts["ask alone"] = "".join(shoal("ask", "hello")[1:])
    assert "rejected the API key" in texts["/api/threads/web:lobby:one/events"]
    assert [name for name, text in texts.items() if "canary" in text] == []


@pytest.mark.usefixtures("planted")
def test_neither_the_log_nor_a_crash_shows_a_secret(shoal: Shoal, home: Path) -> None:
    with running(home) as server:
        fetched(server, "/api/threads/web:lobby:one/messages", {"text": "hello"})
        shoal("ask", "--thread", "web:lobby:one", "and again")
        server.process.terminate()
        _, log = server.process.communicate(timeout=60)
    assert "telegram" in log
    assert "canary" not in log
