"""`shoal permissions check`: a profile's decisions, printed for people and for programs."""

import json
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal

RULES = 'deny = ["tool:bash:rm .*"]\nallow = ["tool:bash:.*"]\nask = ["tool:write:.*"]\n'


@pytest.fixture
def rules(tmp_path: Path) -> str:
    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    return str(file)


def check(shoal: Shoal, *arguments: str, stdin: str = "") -> list[tuple[str, str, str]]:
    ran = shoal("permissions", "check", "--json", *arguments, stdin=stdin)
    assert (ran.code, ran.err) == (0, "")
    return [(one["action"], one["decision"], one["rule"]) for one in json.loads(ran.out)]


def test_each_action_has_its_decision_and_rule(shoal: Shoal, rules: str) -> None:
    actions = ("tool:bash:ls", "tool:bash:rm -r x", "tool:write:/workspace/a", "tool:read:/workspace/a")
    assert check(shoal, "--profile", rules, *actions) == [
        ("tool:bash:ls", "allow", "allow tool:bash:.*"),
        ("tool:bash:rm -r x", "deny", "deny tool:bash:rm .*"),
        ("tool:write:/workspace/a", "ask", "ask tool:write:.*"),
        ("tool:read:/workspace/a", "deny", ""),
    ]


def test_actions_may_come_from_standard_input(shoal: Shoal, rules: str) -> None:
    found = check(shoal, "--profile", rules, "-", stdin="tool:bash:ls\n\ntool:bash:rm x\r\n")
    assert [decision for _, decision, _ in found] == ["allow", "deny"]


def test_a_general_rule_does_not_allow_an_opaque_command(shoal: Shoal, rules: str) -> None:
    ((_, decision, _),) = check(shoal, "--profile", rules, 'tool:bash:eval "$X"')
    assert decision == "deny"


@pytest.mark.parametrize(("profile", "decision"), [("open", "allow"), ("standard", "ask"), ("locked", "deny")])
def test_built_in_profiles_need_no_home(shoal: Shoal, profile: str, decision: str) -> None:
    assert check(shoal, "--profile", profile, "tool:message:slack:C1")[0][1] == decision


def test_the_check_uses_the_rules_in_force(shoal: Shoal, home: Path) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text(
        "[[permissions.overrides]]\nagents = ['main']\nallow = ['tool:message:slack:C1']\n"
        "[[permissions.overrides]]\nagents = ['other']\nask = ['tool:read:.*']\n"
        "[sandbox]\nkind = 'host'\n"
    )
    decisions = [one[1] for one in check(shoal, "tool:message:slack:C1", "tool:message:slack:C2", "tool:bash:make")]
    assert decisions == ["allow", "ask", "ask"]
    assert check(shoal, "tool:read:/workspace/a")[0][1] == "allow"
    assert check(shoal, "--agent", "other", "tool:read:/workspace/a")[0][1] == "ask"


def test_configured_profiles_are_known_and_the_default_is_used(shoal: Shoal, home: Path) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text(
        "[permissions]\ndefault_profile = 'mine'\n"
        "[permissions.profiles.mine]\nextends = 'locked'\nallow = ['tool:x:.*']\n"
    )
    assert check(shoal, "tool:x:1", "tool:read:/workspace/a", "tool:bash:ls") == [
        ("tool:x:1", "allow", "allow tool:x:.*"),
        check(shoal, "--profile", "locked", "tool:read:/workspace/a")[0],
        ("tool:bash:ls", "deny", ""),
    ]


def test_a_shell_command_is_decided_whole_with_its_parts(shoal: Shoal, rules: str) -> None:
    ran = shoal("permissions", "check", "--profile", rules, "--json", "--shell", "ls | sort && rm -r x")
    answer = json.loads(ran.out)
    assert answer["decision"] == "deny"
    assert {part["action"]: part["decision"] for part in answer["parts"]} == {
        "tool:bash:ls": "allow",
        "tool:bash:sort": "allow",
        "tool:bash:rm -r x": "deny",
    }


def test_people_get_a_table(shoal: Shoal, rules: str) -> None:
    lines = shoal("permissions", "check", "--profile", rules, "tool:bash:ls", "tool:x:y").out.splitlines()
    assert [line.split() for line in lines] == [
        ["DECISION", "ACTION", "RULE"],
        ["allow", "tool:bash:ls", "allow", "tool:bash:.*"],
        ["deny", "tool:x:y", "no", "rule", "matches"],
    ]


def test_an_action_cannot_control_the_terminal(shoal: Shoal, rules: str) -> None:
    assert "\x1b" not in shoal("permissions", "check", "--profile", rules, "tool:x:\x1b[2J").out


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("allow = ['(']", "permission profile 'rules.toml', allow: the pattern '('"),
        ("allow = 'x'", "'allow' must be a list"),
        ("alow = []", "alow"),
        ("allow", "it is not valid TOML at"),
    ],
)
def test_a_broken_file_is_reported(shoal: Shoal, rules: str, content: str, problem: str) -> None:
    Path(rules).write_text(content)
    ran = shoal("permissions", "check", "--profile", rules, "tool:x:y")
    assert (ran.code, ran.out) == (1, "")
    assert problem in ran.err


@pytest.mark.parametrize("name", ["lax", ""])
def test_an_unknown_profile_is_reported_with_the_known_ones(shoal: Shoal, name: str) -> None:
    ran = shoal("permissions", "check", "--profile", name, "tool:x:y")
    assert ran.code == 1
    assert "guarded, locked, open, standard" in ran.err


def test_rules_are_listed_added_and_removed(shoal: Shoal, home: Path) -> None:
    assert shoal("init").code == 0
    nothing = shoal("permissions", "rules")
    assert (nothing.code, "You have no rules of your own." in nothing.out) == (0, True)
    made = shoal("permissions", "add", "allow", "command", "git status", "--beginning")
    assert (made.code, "allow the command git status, with any arguments, for everybody." in made.out) == (0, True)
    identity = made.out.partition(":")[0]
    assert identity in shoal("permissions", "rules").out
    assert 'allow = ["tool:(bash|process_start):git status( .*)?"]' in (home / "shoal.toml").read_text()
    refused = shoal("permissions", "add", "deny", "command", "ls && rm x")
    assert (refused.code != 0, "A rule covers one command." in refused.err) == (True, True)
    assert "is built in" in shoal("permissions", "add", "deny", "tool", "bash", "--profile", "locked").err
    assert shoal("permissions", "remove", identity).code == 0
    assert "No rule has this ID." in shoal("permissions", "remove", identity).err


@pytest.mark.parametrize(
    ("kind", "rule", "is_noted"),
    [
        ("auto", ("allow", "command", "make"), True),
        ("auto", ("allow", "pattern", "tool:bash:make.*"), True),
        ("auto", ("deny", "command", "make"), False),
        ("auto", ("allow", "read", "notes.md"), False),
        ("host", ("allow", "command", "make"), False),
    ],
)
def test_a_rule_without_effect_is_reported(
    shoal: Shoal,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    rule: tuple[str, ...],
    is_noted: bool,
) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text(f"[sandbox]\nkind = '{kind}'\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    made = shoal("permissions", "add", *rule)
    assert made.code == 0, made.err
    assert ("Shoal still asks before every command that does more than read" in made.out) is is_noted
