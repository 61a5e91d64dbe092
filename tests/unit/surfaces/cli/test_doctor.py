"""`shoal doctor`: a line for everything that was looked at, what to do about it, exit 1 when something fails."""

import json
import sqlite3
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal


def findings(shoal: Shoal) -> dict[str, dict[str, str]]:
    return {one["check"]: one for one in json.loads(shoal("doctor", "--json").out)}


def test_a_fresh_home_has_nothing_that_fails(shoal: Shoal) -> None:
    shoal("init")
    ran = shoal("doctor")
    assert ran.code == 0
    assert {line.split()[0] for line in ran.out.splitlines()} <= {"ok", "warn"}
    found = findings(shoal)
    assert {"home", "config", "database", "models", "agent main", "sandbox", "platforms", "skills"} <= set(found)
    assert found["models"]["status"] == "warn"


def test_what_is_not_ok_says_what_to_do(shoal: Shoal, home: Path) -> None:
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
    assert findings(shoal)["database"]["message"].endswith("was written by a newer Shoal.")


@pytest.mark.parametrize(("key", "status"), [("right", "ok"), ("wrong", "fail")])
def test_a_key_is_tried(shoal: Shoal, home: Path, model: str, key: str, status: str) -> None:
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


def test_a_default_model_that_is_not_offered_is_told(shoal: Shoal, home: Path, model: str) -> None:
    shoal("init")
    (home / "shoal.toml").write_text(
        f"[model]\nname = 'openai/other'\n[providers.openai]\nbase_url = '{model}/v1'\napi_key = 'right'\n"
    )
    found = findings(shoal)["models"]
    assert found["status"] == "warn"
    assert "does not list it" in found["message"]


def test_platforms_are_looked_at_one_by_one(shoal: Shoal, home: Path) -> None:
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


def test_broken_agents_and_skills_are_told(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "agents/main/agent.toml").write_text("profile = 'lax'\n")
    (home / "data/skills/bad").mkdir()
    (home / "data/skills/bad/SKILL.md").write_text("nothing")
    found = findings(shoal)
    assert found["agent main"]["status"] == "fail"
    assert found["skills"]["status"] == "warn"
