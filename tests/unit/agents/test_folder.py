"""Agent folders, and edits to single keys of `agent.toml`."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agents.folder import make_folder, read_agent, remove_folder, set_key
from shoal.agents.registry import AgentDefaults, AgentRegistry
from shoal.kernel.agents import AgentBudget
from shoal.kernel.errors import InvalidInput
from shoal.kernel.home import Home

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), min_size=1, max_size=60)


@given(text=TEXTS.filter(lambda text: text.strip() == text))
def test_any_text_round_trips(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("agent")
    set_key(folder, "system_prompt", text)
    kept = read_agent(folder).system_prompt
    assert kept in (text, text[1:-1]), "a text in quotes may be read as TOML's"


def test_keys_precede_tables_and_comments_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('# mine\nmodel = "a"  # old\n\n[budget]\nusd_per_day = 1.0\n')
    set_key(tmp_path, "model", "b")
    set_key(tmp_path, "taint", "false")
    assert file.read_text() == '# mine\nmodel = "b"  # old\ntaint = false\n\n[budget]\nusd_per_day = 1.0\n'
    assert read_agent(tmp_path).budget.usd_per_day == 1.0


def test_a_multi_line_value_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('tools = [\n  "bash",\n  "read",\n]\nsystem_prompt = """\ntools = none\n"""\n')
    set_key(tmp_path, "tools", '["write"]')
    assert read_agent(tmp_path).tools == ("write",)
    assert read_agent(tmp_path).system_prompt == "tools = none\n"
    set_key(tmp_path, "system_prompt", "")
    assert file.read_text() == 'tools = ["write"]\n'


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("colour", "red"),
        ("taint", "maybe"),
        ("budget.usd_per_day", "-1"),
        ("budget", "{}"),
        ("max_output_tokens", "x"),
        ("max_output_tokens", "0"),
        ("temperature", "99"),
    ],
)
def test_an_invalid_change_leaves_the_file_unchanged(tmp_path: Path, key: str, value: str) -> None:
    (tmp_path / "agent.toml").write_text('model = "a"\n')
    with pytest.raises(InvalidInput):
        set_key(tmp_path, key, value)
    assert (tmp_path / "agent.toml").read_text() == 'model = "a"\n'


def test_an_agent_is_created_from_the_template_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (home.template / "docs").mkdir(parents=True)
    (home.template / "AGENTS.md").write_text("ours")
    (home.template / "docs" / "house.md").write_text("rules")
    made = make_folder(home, "ops")
    assert {"agents/ops/AGENTS.md", "agents/ops/docs/house.md", "agents/ops/workspace/"} <= set(made)
    assert (home.agent("ops") / "AGENTS.md").read_text() == "ours"
    assert "own settings" in (home.agent("ops") / "agent.toml").read_text(), "what the template lacks is shipped"
    (home.agent("ops") / "AGENTS.md").write_text("changed")
    assert make_folder(home, "ops") == []
    assert (home.agent("ops") / "AGENTS.md").read_text() == "changed"


def test_a_removed_agent_is_deleted_or_moved(tmp_path: Path) -> None:
    home, at = Home(tmp_path), datetime(2026, 1, 5, tzinfo=UTC)
    for keep in (True, False):
        make_folder(home, "ops")
        target = remove_folder(home, "ops", at, keep=keep)
        assert not home.agent("ops").exists()
        assert target.exists() is keep
        at = at.replace(hour=1)


def registry(root: Path, own: str, shared: str) -> AgentRegistry:
    home = Home(root)
    home.agent("main").mkdir(parents=True, exist_ok=True)
    home.data.mkdir(exist_ok=True)
    (home.agent("main") / "agent.toml").write_text(own)
    (home.data / "settings.json").write_text(shared)
    return AgentRegistry(home, AgentDefaults(model="plain", profile="standard", max_output_tokens=4096))


def test_missing_agent_settings_come_from_settings_json_then_from_the_configuration(tmp_path: Path) -> None:
    shared = (
        '{"model": "m", "profile": "locked", "tools": ["read"], "budget": {"usd_per_turn": 1, "tokens_per_day": 9}}'
    )
    agents = registry(tmp_path, 'profile = "guarded"\nbudget.usd_per_turn = 2\n', shared)
    spec = agents.spec("main")
    assert (spec.model, spec.profile, spec.tools, spec.max_output_tokens) == ("m", "guarded", ("read",), 4096)
    assert spec.budget == AgentBudget(usd_per_turn=2.0, tokens_per_day=9)
    assert agents.spec("main") is spec
    (tmp_path / "data/settings.json").write_text("{}")
    assert agents.spec("main").model == "plain", "a change counts at once"
    (tmp_path / "data/settings.json").unlink()
    assert agents.spec("main").tools == ()


@pytest.mark.parametrize(
    ("shared", "why"),
    [
        ('{"modle": "m"}', "modle"),
        ('{"temperature": 9}', "temperature"),
        ('{"budget": {"usd_per_day": -1}}', "usd_per_day"),
        ("{", "it is not valid JSON: the text is incomplete"),
        ("[]", "it must be an object"),
        ("\xff", "it is not valid JSON at byte 0"),
    ],
)
def test_an_invalid_settings_json_is_named_in_the_error(tmp_path: Path, shared: str, why: str) -> None:
    agents = registry(tmp_path, "", shared)
    with pytest.raises(InvalidInput, match=rf"^data/settings\.json: .*{why}"):
        agents.spec("main")
    (tmp_path / "data/settings.json").write_text("{}")
    assert agents.spec("main").model == "plain"
