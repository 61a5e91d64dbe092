"""`shoal run`: the ready line, the token, one process per home, signals, and other commands while it runs."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.processes import PROGRAM, running
from tests.unit.surfaces.cli.conftest import Shoal

pytestmark = pytest.mark.slow


def status(address: str, token: str = "") -> int:
    request = urllib.request.Request(f"{address}/api/threads", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@contextmanager
def started(home: Path, output: int) -> Generator[subprocess.Popen[bytes]]:
    command = [PROGRAM, "--home", str(home), "run", "--port", "0"]
    with subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_the_token_is_shown_to_a_terminal(home: Path) -> None:
    ours, theirs = pty.openpty()
    with started(home, theirs):
        os.close(theirs)
        with os.fdopen(ours, "rb") as terminal:
            line = terminal.readline().decode().strip()
    token = (home / "token").read_text().strip()
    assert re.fullmatch(rf"ready http://127\.0\.0\.1:\d+/\?token={token}", line)


def test_outside_a_terminal_the_ready_line_only_names_the_token_file(home: Path) -> None:
    with started(home, subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode().strip() for _ in range(2)]
        process.terminate()
        lines += process.stdout.read().decode().splitlines()
    assert re.fullmatch(r"ready http://127\.0\.0\.1:\d+/", lines[0])
    assert lines[1:] == [f"token {home / 'token'}"]


def test_the_printed_address_is_served(home: Path) -> None:
    with running(home) as server:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.address)
        assert server.token == (home / "token").read_text().strip()
        assert status(server.address, server.token) == 200
        assert status(server.address, "wrong") == 401


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_process(home: Path, number: signal.Signals, code: int) -> None:
    with running(home) as server:
        server.process.send_signal(number)
        out, err = server.process.communicate()
        assert server.process.returncode == code
    assert out == ""
    assert "sandbox " in err
    assert "Traceback" not in err


def test_start_up_lists_the_services(home: Path) -> None:
    with running(home) as server:
        server.process.terminate()
        _, err = server.process.communicate()
    lines = {line.split()[0]: line for line in err.splitlines()[:7]}
    assert list(lines) == ["home", "agents", "tools", "skills", "model", "platforms", "sandbox"]
    assert lines["agents"].endswith("1: main")
    assert "bash" in lines["tools"]
    assert "demo" in lines["model"]


def test_a_second_shoal_is_refused_with_a_pointer_to_the_first(home: Path) -> None:
    with running(home) as server:
        command = [PROGRAM, "--home", str(home), "run", "--port", "0"]
        second = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (second.returncode, second.stdout) == (1, "")
        assert second.stderr.startswith(
            f"shoal: Shoal is already running in {home} (process {server.process.pid} at http://"
        )
        assert len(second.stderr.splitlines()) == 1


def test_a_port_in_use_is_reported(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [PROGRAM, "--home", str(home), "run", "--port", port]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"shoal: Cannot listen on 127.0.0.1:{port}")


def test_a_wrong_configuration_is_reported_before_anything_starts(home: Path) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text("[web]\nport = 'x'\n")
    result = subprocess.run([PROGRAM, "--home", str(home), "run"], check=False, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == f'shoal: {home}/shoal.toml: web.port must be a whole number from 0 to 65535, not "x".\n'


def test_ask_uses_the_running_shoal(home: Path, shoal: Shoal) -> None:
    with running(home):
        answer = json.loads(shoal("ask", "--json", "--thread", "terminal:ask:mine", "hello").out)
        assert (answer["outcome"], answer["reply"][:6]) == ("done", "Hello!")
        (thread,) = json.loads(shoal("threads", "list", "--json").out)
        assert thread["thread"] == "terminal:ask:mine"
        assert shoal("audit", "verify").code == 0


def test_a_killed_shoal_blocks_nothing(home: Path, shoal: Shoal) -> None:
    """The process id in the lock file may belong to another process by then. Here it belongs to the test itself."""
    shoal("init")
    (home / "shoal.lock").write_text(f"process {os.getpid()} at http://127.0.0.1:1")
    result = shoal("ask", "hello")
    assert (result.code, result.err) == (0, "")


def test_an_approval_reaches_the_running_shoal(home: Path, shoal: Shoal) -> None:
    with running(home):
        asked = json.loads(shoal("ask", "--json", "--thread", "terminal:ask:mine", "run touch .git").out)
        allowed = shoal("approvals", "allow", asked["approvals"][0]["id"])
        assert allowed.out == "Allowed. The turn continues.\n"
        assert "✓ bash" in shoal("chat", "--thread", "terminal:ask:mine").out
        again = shoal("approvals", "allow", asked["approvals"][0]["id"])
        assert again.code == 1
        assert shoal("approvals", "deny", "nonsense").err.startswith("shoal: No approval has the ID nonsense.")


def test_chat_uses_the_running_shoal(home: Path, shoal: Shoal) -> None:
    with running(home) as server:
        result = shoal("chat", stdin="hello\nrun touch .git\ny\n/status\n")
        assert result.code == 0
        assert result.out.index("Hello!") < result.out.index("allowed by owner") < result.out.index("✓ bash")
        assert f"the Shoal server at {server.address}" in result.out


def test_triggers_reach_the_running_shoal(home: Path, shoal: Shoal) -> None:
    with running(home):
        added = shoal("triggers", "add", "in 3 hours", "say hi", "--name", "greet")
        assert (added.code, added.err) == (0, "")
        (trigger,) = json.loads(shoal("triggers", "list", "--json").out)
        assert (trigger["name"], trigger["text"]) == ("greet", "say hi")
        assert shoal("triggers", "remove", trigger["id"]).code == 0
        assert shoal("triggers", "remove", trigger["id"]).code == 1
        assert json.loads(shoal("triggers", "list", "--json").out) == []


def test_direct_database_commands_are_refused_while_shoal_runs(home: Path, shoal: Shoal) -> None:
    with running(home):
        result = shoal("migrate")
        assert result.code == 1
        assert result.err.startswith("shoal: Shoal is already running in")


def test_a_backup_can_be_taken_while_shoal_runs(home: Path, shoal: Shoal, tmp_path: Path) -> None:
    with running(home):
        shoal("ask", "--thread", "terminal:ask:mine", "hello")
        assert shoal("backup", str(tmp_path / "b.tar.gz")).code == 0
    assert (tmp_path / "b.tar.gz").stat().st_size > 1000


def test_a_default_model_unknown_to_its_provider_is_reported_at_start(shoal: Shoal, home: Path, model: str) -> None:
    shoal("init")
    (home / "shoal.toml").write_text(
        f"[model]\nname = 'openai/other'\n[providers.openai]\nbase_url = '{model}/v1'\napi_key = 'right'\n"
    )
    shoal("models", "refresh")
    with running(home) as server:
        asked = urllib.request.Request(
            f"{server.address}/api/info", headers={"Authorization": f"Bearer {server.token}"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            notes = json.loads(answer.read())["notes"]
    assert any("openai does not offer the model 'other'" in note and "shoal setup model`" in note for note in notes)
