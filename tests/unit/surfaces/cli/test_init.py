"""`shoal init` creates missing files and leaves existing ones unchanged."""

import stat
from pathlib import Path

import msgspec
import pytest
from tests.unit.surfaces.cli.conftest import Shoal

from shoal.agents.registry import AgentDefaults, AgentRegistry
from shoal.config import load_config
from shoal.kernel.home import Home

LAYOUT = {
    "shoal.toml", "token", "template/agent.toml", "template/AGENTS.md", "template/SOUL.md", "template/USER.md",
    "template/IDENTITY.md", "agents/main/agent.toml", "agents/main/AGENTS.md", "agents/main/SOUL.md",
    "agents/main/USER.md", "agents/main/IDENTITY.md", "data/IDENTITY.md", "data/MEMORY.md", "data/SYSTEM.md",
    "data/settings.json", "data/HEARTBEAT.md",
}  # fmt: skip
FOLDERS = ("agents/main/docs", "agents/main/sessions", "agents/main/workspace", "data/events", "data/skills")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_init_creates_the_documented_layout(shoal: Shoal, home: Path) -> None:
    assert shoal("init").code == 0
    files = {
        path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file() and ".git" not in path.parts
    }
    assert files == LAYOUT
    assert all((home / folder).is_dir() for folder in FOLDERS)


def test_secrets_are_unreadable_for_other_users(shoal: Shoal, home: Path) -> None:
    shoal("init")
    assert (mode(home), mode(home / "shoal.toml"), mode(home / "token")) == (0o700, 0o600, 0o600)
    assert len((home / "token").read_text().strip()) >= 32


def test_the_created_files_load(shoal: Shoal, home: Path) -> None:
    shoal("init")
    defaults = msgspec.structs.replace(load_config(home / "nowhere", {}), home=home)
    assert load_config(home, {}) == defaults
    spec = AgentRegistry(Home(home), AgentDefaults(model="demo")).spec("main")
    assert (spec.model, spec.profile) == ("demo", "standard")


def test_documented_tables_can_be_appended_to_the_created_file(shoal: Shoal, home: Path) -> None:
    shoal("init")
    with (home / "shoal.toml").open("a") as file:
        file.write('[model]\nname = "demo"\n[budget]\nusd_per_day = 3.0\n[sandbox]\n[permissions]\n')
    assert load_config(home, {}).budget.usd_per_day == 3.0


def test_without_git_the_workspace_is_created(
    shoal: Shoal, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert shoal("init").code == 0
    assert list((home / "agents/main/workspace").iterdir()) == []


def test_existing_files_are_unchanged(shoal: Shoal, home: Path) -> None:
    shoal("init")
    token = (home / "token").read_text()
    (home / "shoal.toml").write_text("[web]\nport = 1\n")
    (home / "agents/main/SOUL.md").unlink()
    (home / "agents/main/AGENTS.md").write_text("mine")
    ran = shoal("init")
    assert ran.out.splitlines()[1:2] == ["  agents/main/SOUL.md"]
    assert (home / "shoal.toml").read_text() == "[web]\nport = 1\n"
    assert (home / "agents/main/AGENTS.md").read_text() == "mine"
    assert (home / "token").read_text() == token
    assert shoal("init").out == f"The home directory {home} is already complete.\n"


def test_a_non_empty_directory_keeps_its_permissions(shoal: Shoal, home: Path) -> None:
    home.mkdir(mode=0o755)
    (home / "mine").write_text("x")
    shoal("init")
    assert mode(home) == 0o755


def test_an_empty_directory_becomes_private(shoal: Shoal, home: Path) -> None:
    home.mkdir(mode=0o755)
    shoal("init")
    assert mode(home) == 0o700


def test_an_unwritable_folder_is_reported(shoal: Shoal, home: Path) -> None:
    home.write_text("a file")
    ran = shoal("init")
    assert ran.code == 1
    assert ran.err == f"shoal: {home} is not a directory. Choose another with --home DIR or SHOAL_HOME.\n"


def test_new_agents_come_from_the_template(shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "template/AGENTS.md").write_text("our way")
    (home / "template/docs/house.md").write_text("rules")
    shoal("agents", "create", "ops")
    assert (home / "agents/ops/AGENTS.md").read_text() == "our way"
    assert (home / "agents/ops/docs/house.md").read_text() == "rules"
