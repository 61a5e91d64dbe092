"""`shoal agents`: creating from the template, changing single keys, and removing with or without files."""

import io
import json
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal

from shoal.agents.versions import EDIT, History


@pytest.fixture(autouse=True)
def made(shoal: Shoal) -> None:
    shoal("init")


def listed(shoal: Shoal) -> dict[str, dict[str, object]]:
    return {agent["name"]: agent for agent in json.loads(shoal("agents", "list", "--json").out)}


def test_a_new_agent_is_listed_with_its_settings(shoal: Shoal) -> None:
    ran = shoal("agents", "create", "ops", "--model", "demo", "--profile", "locked", "--prompt", 'Say "no".')
    assert ran.code == 0
    ops = listed(shoal)["ops"]
    assert (ops["model"], ops["profile"]) == ("demo", "locked")


def test_an_agent_has_the_configured_profile_without_a_server(shoal: Shoal, home: Path) -> None:
    (home / "shoal.toml").write_text('[permissions]\ndefault_profile = "guarded"\n')
    assert listed(shoal)["main"]["profile"] == "guarded"


def test_an_unknown_model_is_refused(shoal: Shoal) -> None:
    ran = shoal("agents", "create", "ops", "--model", "nosuch/x")
    assert ran.code == 1
    assert "No provider has the model 'nosuch/x'" in ran.err
    assert "ops" not in listed(shoal)


def test_an_empty_profile_is_refused_for_a_new_agent(shoal: Shoal) -> None:
    ran = shoal("agents", "create", "ada", "--profile", "")
    assert ran.code == 1
    assert "guarded, locked, open, standard" in ran.err


def test_a_change_of_an_agent_is_reverted_and_audited(shoal: Shoal, home: Path) -> None:
    folder = home / "agents" / "main"
    file, history = folder / "SOUL.md", History(folder)
    history.open()
    before = file.read_text()
    file.write_text("Calm as the sea.\n")
    history.record(file, "write SOUL.md", "main", f"{EDIT}: SOUL.md")
    assert shoal("agents", "undo", "main").out.startswith("Undone: write SOUL.md (SOUL.md).")
    assert file.read_text() == before
    entries = json.loads(shoal("audit", "tail", "--json").out)
    assert "take back: write SOUL.md" in [one["entry"]["action"] for one in entries]
    assert "Nothing is left to undo" in shoal("agents", "undo", "main").err


def test_a_channel_is_bound_and_unbound(shoal: Shoal, home: Path) -> None:
    shoal("agents", "create", "ops")
    (home / "shoal.toml").write_text(
        '[platforms.matrix]\nuser = "@s:b.c"\naccess_token = "t"\nhomeserver = "http://b.c"\n'
    )
    assert shoal("agents", "bind", "ops", "matrix:!room:b.c").code == 0
    assert listed(shoal)["ops"]["channels"] == ["matrix:!room:b.c"]
    assert "matrix:!room:b.c (all)" in shoal("agents", "list").out
    assert "answers mentions in" in shoal("agents", "bind", "ops", "matrix:!room:b.c", "--listen", "named").out
    assert listed(shoal)["ops"]["listen"] == {"matrix:!room:b.c": "named"}
    assert shoal("agents", "bind", "ops", "matrix:!room:b.c", "--listen", "never").code == 2
    assert shoal("agents", "unbind", "matrix:!room:b.c").code == 0
    assert "not bound to an agent" in shoal("agents", "unbind", "matrix:!room:b.c").err
    assert "Specify the channel as PLATFORM:CHANNEL" in shoal("agents", "bind", "ops", "nowhere").err
    shoal("agents", "bind", "ops", "matrix:!room:b.c")
    shoal("agents", "destroy", "ops", "--yes")
    shoal("agents", "create", "ops")
    assert listed(shoal)["ops"]["channels"] == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [("main", "already"), ("Ops!", "is not a valid agent name"), ("../x", "is not a valid agent name")],
)
def test_an_invalid_name_is_refused(shoal: Shoal, name: str, problem: str) -> None:
    ran = shoal("agents", "create", name)
    assert ran.code == 1
    assert problem in ran.err
    assert list(listed(shoal)) == ["main"]


@pytest.mark.parametrize(
    ("key", "value", "written"),
    [
        ("model", "demo", 'model = "demo"'),
        ("tools", '["bash", "read"]', 'tools = ["bash", "read"]'),
        ("tools", "bash, subagent", 'tools = ["bash", "subagent"]'),
        ("temperature", "0.5", "temperature = 0.5"),
        ("taint", "false", "taint = false"),
        ("system_prompt", 'Two\n"lines"', 'system_prompt = "Two\\n\\"lines\\""'),
        ("system_prompt", "4", 'system_prompt = "4"'),
        ("budget.usd_per_day", "2.5", "usd_per_day = 2.5"),
    ],
)
def test_a_key_is_set_and_removed(shoal: Shoal, home: Path, key: str, value: str, written: str) -> None:
    file = home / "agents/main/agent.toml"
    before = file.read_text()
    assert shoal("agents", "config", "main", key, value).code == 0
    assert written in file.read_text().splitlines()
    assert "main" in listed(shoal)
    assert shoal("agents", "config", "main", key, "").code == 0
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("taint", "maybe", "Cannot set taint to 'maybe': 'taint' must be true or false"),
        ("colour", "red", "'colour' is not an agent setting. Available: model, profile,"),
        ("profile", "lax", "No permission profile is named 'lax'"),
        ("profile", "./lax.toml", "No permission profile is named './lax.toml'"),
        ("tools", "bash, hammer", "No tool named 'hammer'. Tools: ask_agent, bash,"),
        ("tools", '["mcp_gone_echo"]', "No tool named 'mcp_gone_echo'"),
        ("tools", "[bash]", "Cannot set tools to '[bash]'"),
        ("fallback", "nosuch/x", "No provider has the model 'nosuch/x'"),
        ("model", "x\ny = 1", "No provider has the model"),
    ],
)
def test_a_wrong_value_changes_nothing(shoal: Shoal, home: Path, key: str, value: str, problem: str) -> None:
    file = home / "agents/main/agent.toml"
    before = file.read_text()
    ran = shoal("agents", "config", "main", key, value)
    assert (ran.code, file.read_text()) == (1, before)
    assert problem in ran.err


def test_tools_of_a_configured_mcp_server_are_accepted_unchecked(shoal: Shoal, home: Path) -> None:
    (home / "shoal.toml").write_text("[mcp.files]\ncommand = '/nowhere/server'\n")
    assert shoal("agents", "config", "main", "tools", "read, mcp_files_search").code == 0
    assert "No tool named 'mcp_other_search'" in shoal("agents", "config", "main", "tools", "mcp_other_search").err


@pytest.mark.parametrize("place", ["discord:1", "telegram.second:1", "nowhere:1"])
def test_an_unconfigured_platform_cannot_be_bound(shoal: Shoal, home: Path, place: str) -> None:
    (home / "shoal.toml").write_text(
        "[platforms.telegram]\ntoken = 't'\n[platforms.discord]\nenabled = false\ntoken = 't'\n"
    )
    ran = shoal("agents", "bind", "main", place)
    assert ran.code == 1
    assert (
        f"No platform named {place.partition(':')[0]!r} is connected. Platforms: openai, telegram, terminal, web."
        in ran.err
    )
    assert listed(shoal)["main"]["channels"] == []
    assert shoal("agents", "bind", "main", "telegram:1").code == 0


def test_an_agent_is_removed_with_or_without_its_files(shoal: Shoal, home: Path) -> None:
    shoal("agents", "create", "ops")
    (home / "agents/ops/workspace/work.txt").write_text("x")
    assert shoal("agents", "destroy", "ops", "--keep-files").code == 0
    assert [path.read_text() for path in home.glob("removed/ops-*/workspace/work.txt")] == ["x"]
    shoal("agents", "create", "ops")
    assert shoal("agents", "destroy", "ops").code == 0
    assert list(listed(shoal)) == ["main"]
    assert not (home / "agents/ops").exists()


class Terminal(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_deleting_files_asks_at_a_terminal(shoal: Shoal, home: Path) -> None:
    shoal("agents", "create", "ops")
    assert shoal("agents", "destroy", "ops", stdin=Terminal("n\n")).code == 130
    assert (home / "agents/ops").exists()
    assert shoal("agents", "destroy", "ops", "--yes").code == 0
    assert not (home / "agents/ops").exists()


def test_the_default_agent_cannot_be_removed(shoal: Shoal) -> None:
    ran = shoal("agents", "destroy", "main", "--yes")
    assert ran.code == 1
    assert "is the default agent" in ran.err


def test_an_unknown_agent_is_reported_with_the_known_ones(shoal: Shoal) -> None:
    for words in (("config", "ops", "model", "x"), ("destroy", "ops", "--yes"), ("destroy", "../data", "--yes")):
        ran = shoal("agents", *words)
        assert ran.code == 1
        assert "Agents: main." in ran.err
