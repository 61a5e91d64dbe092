"""`shoal doctor`: one line per check with a remedy, and exit code 1 if one fails."""

import json
import os
import sqlite3
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal


def findings(shoal: Shoal) -> dict[str, dict[str, str]]:
    return {one["check"]: one for one in json.loads(shoal("doctor", "--json").out)}


def test_a_fresh_home_has_no_failures(shoal: Shoal) -> None:
    shoal("init")
    ran = shoal("doctor")
    assert ran.code == 0
    *lines, last = ran.out.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "warn"}
    assert last == "Next: run 'shoal setup' to connect a model and a chat."
    found = findings(shoal)
    assert {"home", "config", "database", "models", "agent main", "sandbox", "platforms", "skills"} <= set(found)
    assert found["models"]["status"] == "warn"


def test_the_next_step_names_only_what_is_missing(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "shoal.toml").write_text('[platforms.telegram]\ntoken = "123456:AAFakeTokenForTestsOnly"\nowner = "7"\n')
    assert shoal("doctor").out.splitlines()[-1] == "Next: run 'shoal setup model' to connect a model."


def test_every_problem_has_a_remedy(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "token").chmod(0o644)
    for one in findings(shoal).values():
        assert bool(one["todo"]) == (one["status"] != "ok"), one
    assert findings(shoal)["home"]["todo"] == f"Run `chmod go= {home / 'token'}`."


def test_a_wrong_configuration_fails_with_every_problem(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "shoal.toml").write_text("[web]\nport = 'x'\n[modle]\n")
    ran = shoal("doctor")
    assert ran.code == 1
    assert len([line for line in ran.out.splitlines() if line.startswith("fail  config: ")]) == 2


def test_a_damaged_database_fails(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "shoal.db").write_bytes(b"SQLite format 3\x00" + b"x" * 8192)
    assert findings(shoal)["database"]["status"] == "fail"
    (home / "shoal.db").unlink()
    connection = sqlite3.connect(home / "shoal.db")
    connection.execute("pragma user_version = 999")
    connection.close()
    assert findings(shoal)["database"]["message"].endswith("was written by a newer version of Shoal (schema 999).")


@pytest.mark.parametrize(("key", "status"), [("right", "ok"), ("wrong", "fail")])
def test_a_provider_key_is_tested(shoal: Shoal, home: Path, model: str, key: str, status: str) -> None:
    shoal("init")
    (home / "shoal.toml").write_text(
        f"[model]\nname = 'openai/fake-1'\n[providers.openai]\nbase_url = '{model}/v1'\napi_key = '{key}'\n"
    )
    assert findings(shoal)["provider openai"]["status"] == status
    refreshed = shoal("models", "refresh")
    assert refreshed.code == (status == "fail")
    names = [one["name"] for one in json.loads(shoal("models", "list", "--json").out)]
    assert "openai/fake-1" in names
    assert "right" not in refreshed.out


def test_an_unlisted_default_model_is_reported(shoal: Shoal, home: Path, model: str) -> None:
    shoal("init")
    (home / "shoal.toml").write_text(
        f"[model]\nname = 'openai/other'\n[providers.openai]\nbase_url = '{model}/v1'\napi_key = 'right'\n"
    )
    found = findings(shoal)["models"]
    assert found["status"] == "warn"
    assert "openai does not offer the model 'other'" in found["message"]


@pytest.mark.parametrize(
    ("own", "status", "what"),
    [
        ("model = 'openai/fake-1'", "ok", "model openai/fake-1"),
        ("model = 'openai/other'", "warn", "openai does not offer the model 'other'"),
        ("model = 'nosuch/x'", "fail", "No provider has the model 'nosuch/x'"),
        ("fallback = ['openai/fake-1', 'nosuch/x']", "fail", "No provider has the model 'nosuch/x'"),
        ("tools = ['read', 'hammer']", "fail", "No tool named 'hammer'"),
        ("profile = './lax.toml'", "fail", "No permission profile is named './lax.toml'"),
    ],
)
def test_an_agents_own_settings_are_checked(
    shoal: Shoal, home: Path, model: str, own: str, status: str, what: str
) -> None:
    shoal("init")
    (home / "shoal.toml").write_text(
        f"[model]\nname = 'openai/fake-1'\n[providers.openai]\nbase_url = '{model}/v1'\napi_key = 'right'\n"
    )
    (home / "agents/main/agent.toml").write_text(f"{own}\n")
    found = findings(shoal)["agent main"]
    assert (found["status"], what in found["message"]) == (status, True)


def test_an_unknown_fallback_is_reported(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "shoal.toml").write_text("[model]\nname = 'demo'\nfallback = ['nosuch/x']\n")
    found = findings(shoal)["models"]
    assert (found["status"], found["todo"]) == ("fail", "Set model.fallback.")


def test_platforms_are_checked_one_by_one(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "shoal.toml").write_text(
        """
        [[platforms.discord]]
        account = "a"
        token = "t"
        [[platforms.discord]]
        account = "b"
        token = { env = "NOT_SET" }
        allow = ["1"]
        [[platforms.discord]]
        account = "c"
        enabled = false
        """
    )
    found = {name: one["status"] for name, one in findings(shoal).items() if name.startswith("discord")}
    assert list(found) == ["discord a", "discord b", "discord c"]
    assert found["discord c"] == "ok"
    assert found["discord b"] == "fail"


def test_a_platforms_required_packages_match_its_adapters_imports(
    shoal: Shoal, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shoal("init")
    (home / "shoal.toml").write_text("[platforms.discord]\ntoken = 't'\nowner = '1'\n")
    assert findings(shoal)["discord main"]["status"] == "ok"
    monkeypatch.setattr("shoal.platforms.discord.adapter.find_spec", lambda name: None)
    found = findings(shoal)["discord main"]
    assert (found["status"], found["message"]) == ("fail", "platforms.discord needs the `discord` extra.")
    assert found["todo"].startswith("Run: ")
    assert found["todo"].endswith("[discord]'")


def test_the_last_line_is_the_next_step(shoal: Shoal, home: Path, model: str) -> None:
    assert shoal("doctor").out.splitlines()[-1].startswith("Next: run 'shoal setup'")
    shoal("init")
    (home / "shoal.toml").write_text(
        f"[model]\nname = 'openai/fake-1'\n[providers.openai]\nbase_url = '{model}/v1'\napi_key = 'right'\n"
    )
    assert shoal("doctor").out.splitlines()[-1] == "Next: run 'shoal run' to start Shoal."
    (home / "agents/main/agent.toml").write_text("profile = 'lax'\n")
    assert shoal("doctor").out.splitlines()[-1].startswith("Next: agent main: Correct ")


def test_broken_agents_and_skills_are_reported(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "agents/main/agent.toml").write_text("profile = 'lax'\n")
    (home / "data/skills/bad").mkdir()
    (home / "data/skills/bad/SKILL.md").write_text("nothing")
    found = findings(shoal)
    assert found["agent main"]["status"] == "fail"
    assert found["skills"]["status"] == "warn"


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("[mcp.odd]\n", "mcp.odd.command is missing"),
        ("[mcp.odd]\ncommand = 'x'\nurl = 'http://x'\n", "both set"),
        ("[mcp.Odd_One]\ncommand = 'x'\n", "lowercase letters"),
        ("[mcp.odd]\nurl = 'http://x'\nsandbox = true\n", "must be false for a server with a url"),
    ],
)
def test_an_invalid_mcp_section_lists_the_allowed_values(shoal: Shoal, home: Path, section: str, why: str) -> None:
    shoal("init")
    (home / "shoal.toml").write_text(section)
    assert why in findings(shoal)["config"]["message"]


def test_an_unknown_model_fails_even_without_a_provider(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "shoal.toml").write_text("[model]\nname = 'anthropic/claude'\n")
    assert findings(shoal)["models"]["status"] == "fail"
    asked = shoal("ask", "hi")
    assert asked.code == 1
    assert "No provider has the model" in asked.err


def test_an_unreachable_postgres_fails_without_showing_its_password(shoal: Shoal, home: Path) -> None:
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    shoal("init")
    address = "postgresql://me:hush-hush@127.0.0.1:1/x"
    (home / "shoal.toml").write_text(f"[database]\nurl = '{address}'\n")
    found = findings(shoal)["database"]
    assert found["status"] == "fail"
    assert "hush" not in found["message"]


def test_an_unopenable_database_advises_to_check_the_disk(shoal: Shoal, home: Path) -> None:
    shoal("init")
    sqlite3.connect(home / "shoal.db").execute("pragma journal_mode = wal").connection.close()
    (home / "shoal.db-wal").mkdir()
    found = findings(shoal)["database"]
    assert found["status"] == "fail"
    assert found["todo"] == "Check its disk and its permissions."


def test_a_database_path_of_another_kind_does_not_block(shoal: Shoal, home: Path) -> None:
    shoal("init")
    os.mkfifo(home / "shoal.db")
    found = findings(shoal)["database"]
    assert found["status"] == "fail"
    assert "is not a regular file" in str(found)
    assert "is not a regular file" in shoal("backup", str(home.parent / "backup.tar.gz")).err


def test_a_webhook_chat_is_checked(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "shoal.toml").write_text("[platforms.webhook.ticker]\nsecret = 'sixteen-letters-or-more'\nowner = 'ada'\n")
    found = findings(shoal)
    assert found["webhook ticker"]["status"] == "ok"
    assert "platforms" not in found


def test_checking_a_missing_home_does_not_create_it(shoal: Shoal, home: Path) -> None:
    assert findings(shoal)["home"]["status"] == "warn"
    assert not home.exists()


def test_an_account_whose_agent_does_not_exist_is_reported(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "shoal.toml").write_text("[platforms.discord]\ntoken = 't'\nowner = '1'\nagent = 'nosuch'\n")
    found = findings(shoal)["discord main"]
    assert (found["status"], found["message"]) == (
        "warn",
        "the agent 'nosuch' does not exist, so the default agent answers there.",
    )
    assert "shoal agents create nosuch" in found["todo"]
