"""`shoal setup` asks for missing settings, tests them immediately, and writes the ones that work."""

import json
import socket
import stat
import tomllib
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal

from shoal.config import load_config
from shoal.setup.choices import mistaken
from shoal.surfaces.cli import setup_checks
from shoal.surfaces.cli.setup_checks import is_free, not_usable
from shoal.testing.platforms.telegram import TOKEN


def written(home: Path) -> dict[str, dict[str, object]]:
    return tomllib.loads((home / "shoal.toml").read_text())


# ---- without a terminal ----


def test_an_unknown_model_is_reported_with_the_models_that_exist(shoal: Shoal, home: Path, model: str) -> None:
    address = f"providers.openai.base_url={model}/v1"
    ran = shoal("setup", "--provider", "openai", "--key", "-", "--model", "nope", "--set", address, stdin="right\n")
    assert ran.code == 1
    assert "openai offers fake-1." in ran.out + ran.err
    assert "model" not in written(home)


def test_a_key_is_tested_and_stored_in_its_own_file(
    shoal: Shoal, home: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "right")
    address = f"providers.openai.base_url={model}/v1"
    ran = shoal("setup", "--provider", "openai", "--key", "env:MY_KEY", "--model", "fake-1", "--set", address)
    assert ran.code == 0, ran.out + ran.err
    file = home / "secrets" / "providers.openai.api_key"
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("right\n", 0o600)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "right" not in ran.out + (home / "shoal.toml").read_text()
    assert load_config(home, {}).providers["openai"].api_key.reveal() == "right"
    assert load_config(home, {}).model.name == "openai/fake-1"
    assert "openai/fake-1 answers: " in ran.out
    assert f"wrote    {file}" in ran.out
    assert ran.out.splitlines()[-1].startswith("Next: run 'shoal run' to start Shoal")


def test_the_rest_of_the_file_is_unchanged(shoal: Shoal, home: Path) -> None:
    shoal("init")
    before = (home / "shoal.toml").read_text()
    assert shoal("setup", "--set", "web.port=0", "--set", "budget.usd_per_day=2.5").code == 0
    after = (home / "shoal.toml").read_text()
    assert [line for line in before.splitlines() if line not in after.splitlines()] == []
    assert (written(home)["web"], written(home)["budget"]) == ({"port": 0}, {"usd_per_day": 2.5})


def test_a_file_with_windows_line_ends_is_edited(shoal: Shoal, home: Path) -> None:
    text = "[web]\r\nport = 1\r\n\r\n[model]\r\nname = 'demo'\r\n"
    home.mkdir()
    (home / "shoal.toml").write_bytes(text.encode())
    ran = shoal("setup", "--set", "web.port=8500")
    assert ran.code == 0, ran.err
    assert written(home) == {"web": {"port": 8500}, "model": {"name": "demo"}}
    assert b"\r" not in (home / "shoal.toml").read_bytes(), "its lines end in two ways"


def test_an_invalid_key_is_reported_and_not_written(shoal: Shoal, home: Path, model: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("wrong")
    address = f"providers.openai.base_url={model}/v1"
    ran = shoal("setup", "--provider", "openai", "--key", f"file:{tmp_path / 'key'}", "--set", address)
    assert ran.code == 1
    assert "rejected the API key" in ran.out
    assert not (home / "secrets").exists()
    assert "sandbox " in ran.out, "the other steps go on"


def test_a_key_of_another_service_is_not_tried(shoal: Shoal) -> None:
    ran = shoal("setup", "--provider", "anthropic", "--key", "-", stdin="123456789:AAFakeTokenForTestsOnly\n")
    assert ran.code == 1
    assert "That is a Telegram bot token, not an Anthropic key." in ran.out


def test_an_invalid_setting_is_refused_with_the_allowed_values(shoal: Shoal, home: Path) -> None:
    ran = shoal("setup", "--set", "web.prot=1")
    assert ran.code == 1
    assert "web.prot is not a known key. Did you mean port?" in ran.err
    assert "prot" not in (home / "shoal.toml").read_text()


def test_command_line_values_are_parsed_like_the_file(shoal: Shoal, home: Path) -> None:
    assert shoal("setup", "--set", "web.allowed_origins=a.example,b.example").code == 0
    assert load_config(home, {}).web.allowed_origins == ("a.example", "b.example")
    ran = shoal("setup", "--set", "web.port=abc")
    assert (ran.code, "web.port must be" in ran.err) == (1, True)
    ran = shoal("setup", "--platform", "matrix")
    assert (ran.code, "--set platforms.matrix.homeserver=VALUE is missing" in ran.out) == (1, True)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("openclaw.json", "belongs to another product (openclaw)"),
        ("webui.db", "'shoal import openwebui"),
        ("thesis.tex", "contains other files (thesis.tex)"),
    ],
)
def test_a_foreign_directory_is_left_alone(shoal: Shoal, home: Path, file: str, said: str) -> None:
    home.mkdir()
    (home / file).write_text("{}")
    ran = shoal("setup")
    assert ran.code == 1
    assert said in ran.out
    assert [one.name for one in home.iterdir()] == [file]


def test_a_home_shared_with_another_product_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text("{}")
    (tmp_path / "shoal.toml").write_text("")
    assert "belongs to another product" in not_usable(tmp_path)


def test_an_unusable_home_is_reported(shoal: Shoal, home: Path) -> None:
    home.write_text("a file")
    ran = shoal("setup")
    assert ran.code == 1
    assert f"{home} is not a directory. Choose a different location" in ran.out
    home.unlink()
    (home.parent / "file").write_text("")
    assert (
        not_usable(home.parent / "file/home")
        == f"{home.parent / 'file'} is not a directory. Choose a different location."
    )


def test_a_port_in_use_is_reported_and_not_written(shoal: Shoal, home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert not is_free("127.0.0.1", port)
        ran = shoal("setup", "--set", f"web.port={port}")
    assert f"Another program is using port {port} on 127.0.0.1." in ran.out
    assert ran.code == 1
    assert str(port) not in (home / "shoal.toml").read_text()


def test_a_running_shoal_must_be_stopped(shoal: Shoal, home: Path) -> None:
    from shoal.store.lock import HomeLock

    shoal("init")
    lock = HomeLock(home / "shoal.lock")
    lock.acquire()
    try:
        ran = shoal("setup")
    finally:
        lock.release()
    assert (ran.code, "Shoal is using" in ran.err) == (1, True)


@pytest.mark.parametrize(
    ("value", "wanted", "said"),
    [
        ("sk-ant-api03-x", "an OpenAI key", "That is an Anthropic key, not an OpenAI key."),
        ("xoxb-1-2", "a Telegram bot token", "That is a Slack bot token, not a Telegram bot token."),
        ("xapp-1-2", "a Slack bot token", "That is a Slack app-level token, not a Slack bot token."),
        ("sk-proj-x", "an OpenAI key", ""),
        ("something new", "an OpenAI key", ""),
        (TOKEN, "a Telegram bot token", ""),
    ],
)
def test_only_recognizable_mistakes_are_refused(value: str, wanted: str, said: str) -> None:
    assert mistaken(value, wanted) == said


# ---- at a terminal ----


def test_an_empty_key_and_an_invalid_hour_are_reported(shoal: Shoal) -> None:
    ran = shoal("setup", "--provider", "openai", "--key", "-", stdin="\n")
    assert (ran.code, "The value of --key is empty." in ran.out) == (1, True)
    ran = shoal("setup", "--brief", "noon")
    assert (ran.code, "'noon' is not a time of day. Use a time such as 8, 8:00 or 20:30." in ran.out) == (1, True)


def test_a_brief_can_be_set_up_in_a_fresh_home_without_a_chat(shoal: Shoal) -> None:
    ran = shoal("setup", "--brief", "8")
    assert (ran.code, "Your brief will appear on the page. The first one is due at " in ran.out) == (0, True), ran.out
    (brief,) = json.loads(shoal("triggers", "list", "--json").out)
    assert (brief["name"], brief["schedule"], brief["thread"]) == ("daily-brief", "0 8 * * *", "web:lobby:brief")


@pytest.mark.parametrize("command", [("init",), ("run", "--port", "0"), ("ask", "hello")])
def test_no_command_fills_the_home_of_another_product(shoal: Shoal, home: Path, command: tuple[str, ...]) -> None:
    home.mkdir()
    (home / "openclaw.json").write_text("{}")
    ran = shoal(*command)
    assert (ran.code, "belongs to another product (openclaw)" in ran.err) == (1, True)
    assert [one.name for one in home.iterdir()] == ["openclaw.json"]


def test_a_model_change_is_audited_without_a_running_server(shoal: Shoal, home: Path, model: str) -> None:
    ran = shoal(
        "setup", "--provider", "server", "--address", f"{model}/v1", "--model", "fake-1", "--key", "-", stdin="right\n"
    )
    assert ran.code == 0, ran.out + ran.err
    rows = json.loads(shoal("audit", "tail", "--json").out)
    assert "model mine/fake-1" in [row["entry"]["action"] for row in rows]
    again = shoal("setup")
    assert "mine/fake-1 answers: " in again.out
    assert "wrote" not in again.out, "what is written already is not told of again"


# ---- start at login ----


def test_a_launchd_service_file_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    import plistlib

    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/shoal"])
    root = Path("~/.shoal").expanduser()
    service = setup_checks.login_service(root)
    assert service is not None
    content = plistlib.loads(service.content)
    assert content["ProgramArguments"] == ["/usr/local/bin/shoal", "--home", str(root), "run"]
    assert (content["Label"], content["RunAtLoad"]) == ("shoal", True)
