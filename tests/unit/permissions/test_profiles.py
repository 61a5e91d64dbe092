"""Loading profiles: validation. Extending or overriding a profile never drops a deny rule."""

from functools import cache

import pytest

from shoal.kernel.errors import ConfigError, InvalidInput
from shoal.kernel.permissions import Action, Asker, Decision
from shoal.kernel.settings import OverrideSettings, ProfileSettings
from shoal.permissions.built_in import ALIKE_READERS, ALIKE_WEB, ALIKE_WRITERS, BUILT_IN
from shoal.permissions.profiles import (
    EXTENDS_MAX,
    Profile,
    Profiles,
    applies,
    compile_profile,
    decide,
)
from tests.known_tools import TRAITS


def answer(profile: Profile, text: str) -> Decision:
    return decide(profile, Action(text)).decision


@cache
def built_in() -> Profiles:
    return Profiles(TRAITS)


def test_every_bad_pattern_is_named_with_its_profile_and_list() -> None:
    source = ProfileSettings(deny=("(",), allow=("fine", r"(x)\1"), ask=("a{5000}",))
    with pytest.raises(ConfigError) as caught:
        compile_profile("mine", source)
    assert len(caught.value.problems) == 3
    text = str(caught.value)
    assert "'mine', deny: the pattern '('" in text
    assert "allow: the pattern '(x)\\\\1'" in text
    assert "a{5000}" in text


def test_problems_of_all_profiles_and_overrides_are_reported_together() -> None:
    sources = {
        "one": ProfileSettings(allow=("(",)),
        "open": ProfileSettings(),
        "two": ProfileSettings(extends="nowhere"),
    }
    with pytest.raises(ConfigError) as caught:
        Profiles(TRAITS, sources, [OverrideSettings(deny=("[",))])
    assert len(caught.value.problems) == 4
    assert any("'open' is built in" in problem for problem in caught.value.problems)
    assert any("extends 'nowhere', which does not exist" in problem for problem in caught.value.problems)
    assert any("override 1" in problem for problem in caught.value.problems)


def test_profiles_that_extend_each_other_are_refused() -> None:
    others = {"a": ProfileSettings(extends="b"), "b": ProfileSettings(extends="a")}
    with pytest.raises(ConfigError, match=r"itself: a → b → a\.$"):
        compile_profile("a", others["a"], others)


def test_the_line_of_ancestors_is_bounded() -> None:
    others = {f"p{n}": ProfileSettings(extends=f"p{n + 1}") for n in range(1, EXTENDS_MAX)}
    others[f"p{EXTENDS_MAX}"] = ProfileSettings()
    assert len(compile_profile("p1", others["p1"], others).layers) == EXTENDS_MAX
    with pytest.raises(ConfigError, match="extends itself"):
        compile_profile("p0", ProfileSettings(extends="p1"), others)


def test_an_unknown_profile_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"'other'. Known profiles: guarded, locked, open, standard"):
        Profiles(TRAITS).get("other")


def test_a_child_profile_extends_its_parent_and_keeps_its_denies() -> None:
    parent = ProfileSettings(deny=("tool:bash:rm.*",), allow=("tool:read:.*",), ask=("tool:bash:.*",))
    child = ProfileSettings(allow=("tool:bash:(ls|rm).*",), ask=("tool:read:/secret.*",), extends="parent")
    profile = compile_profile("child", child, {"parent": parent})
    assert answer(profile, "tool:bash:ls -l") == "allow"
    assert answer(profile, "tool:bash:rm x") == "deny"
    assert answer(profile, "tool:bash:make") == "ask"
    assert answer(profile, "tool:read:/secret/x") == "ask"
    assert answer(profile, "tool:read:/x") == "allow"


def test_an_unknown_name_is_reported_with_the_existing_ones() -> None:
    profiles = Profiles(TRAITS, {"mine": ProfileSettings()})
    profiles.check("mine")
    profiles.check("standard")
    with pytest.raises(InvalidInput, match="Profiles: guarded, locked, mine, open, standard"):
        profiles.check("other")


def test_denies_survive_a_long_line_of_ancestors() -> None:
    others = {f"p{n}": ProfileSettings(deny=(f"x{n}",), extends=f"p{n + 1}" if n < 9 else "open") for n in range(10)}
    profile = compile_profile("child", ProfileSettings(allow=("x.*",), extends="p0"), others)
    assert [answer(profile, f"x{n}") for n in range(10)] == ["deny"] * 10
    assert answer(profile, "y") == "allow"


@pytest.mark.parametrize(
    ("override", "asker", "holds"),
    [
        (OverrideSettings(), Asker(trust="trusted"), True),
        (OverrideSettings(agents=("main",)), Asker(trust="trusted"), True),
        (OverrideSettings(agents=("other",)), Asker(trust="trusted"), False),
        (OverrideSettings(platforms=("telegram",)), Asker(trust="trusted", platform="telegram"), True),
        (OverrideSettings(platforms=("telegram",)), Asker(trust="trusted", platform="slack"), False),
        (OverrideSettings(channels=("c1",)), Asker(trust="trusted", platform="slack", channel="c1"), True),
        (OverrideSettings(channels=("slack:c1",)), Asker(trust="trusted", platform="slack", channel="c1"), True),
        (OverrideSettings(channels=("slack:c1",)), Asker(trust="trusted", platform="discord", channel="c1"), False),
        (OverrideSettings(kinds=("group",)), Asker(trust="trusted", kind="group"), True),
        (OverrideSettings(kinds=("group",)), Asker(trust="trusted", kind="direct"), False),
        (OverrideSettings(users=("slack:u",)), Asker(trust="trusted", platform="slack", user="u"), True),
        (OverrideSettings(users=("slack:u",)), Asker(trust="trusted", platform="web", user="u"), False),
        (OverrideSettings(roles=("admin", "ops")), Asker(trust="trusted", roles=("dev", "ops")), True),
        (OverrideSettings(roles=("admin",)), Asker(trust="trusted", roles=("dev",)), False),
        (OverrideSettings(platforms=("slack",), roles=("admin",)), Asker(trust="trusted", platform="slack"), False),
    ],
)
def test_an_override_applies_where_all_its_selectors_match(
    override: OverrideSettings, asker: Asker, holds: bool
) -> None:
    assert applies(override, asker, "main") is holds


def test_later_overrides_precede_earlier_ones_and_the_profile() -> None:
    base = ProfileSettings(deny=("tool:x:never",), allow=("tool:x:.*",))
    first = OverrideSettings(kinds=("group",), ask=("tool:x:.*",))
    second = OverrideSettings(roles=("admin",), allow=("tool:x:.*",), deny=("tool:x:not even they",))
    profiles = Profiles(TRAITS, {"mine": base}, [first, second])
    alone, group = Asker(trust="trusted"), Asker(trust="trusted", kind="group")
    admin = Asker(trust="trusted", kind="group", roles=("admin",))
    assert answer(profiles.effective("mine", alone, "main"), "tool:x:1") == "allow"
    assert answer(profiles.effective("mine", group, "main"), "tool:x:1") == "ask"
    assert answer(profiles.effective("mine", admin, "main"), "tool:x:1") == "allow"
    assert answer(profiles.effective("mine", admin, "main"), "tool:x:never") == "deny"
    assert answer(profiles.effective("mine", admin, "main"), "tool:x:not even they") == "deny"


def test_compiled_combinations_are_cached_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.permissions.profiles.COMBINATIONS_KEPT_MAX", 2)
    overrides = [OverrideSettings(users=(f"u{n}",), ask=(f"{n}",)) for n in range(4)]
    profiles = Profiles(TRAITS, {}, overrides)
    found = profiles.effective("locked", Asker(trust="trusted", user="u1"), "main")
    assert profiles.effective("locked", Asker(trust="trusted", user="u1"), "other") is found
    for number in range(4):
        assert (
            answer(profiles.effective("locked", Asker(trust="trusted", user=f"u{number}"), "main"), f"{number}")
            == "ask"
        )
    assert profiles.effective("locked", Asker(trust="trusted", user="u1"), "main") is not found
    assert profiles.effective("locked", Asker(trust="trusted"), "main") is profiles.get("locked")


EXPECTED: dict[str, dict[str, Decision]] = {
    "tool:read:/workspace/a.txt": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "allow"},
    "tool:list:/docs": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "allow"},
    "tool:read:/etc/passwd": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:read:/workspace/../etc/passwd": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:read:host:/workspace/x": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:edit:host:/workspace/x": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:read:~/x": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:read:/workspaces/x": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:time:": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "allow"},
    "tool:edit:/workspace/a.txt": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "deny"},
    "tool:write:/scratch/x": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "deny"},
    "tool:write:/workspace/.git/hooks/x": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:write:/skills/x/SKILL.md": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:create_file:/etc/x": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:remember:global likes\ntea": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "deny"},
    "tool:remind:in 5 minutes": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "deny"},
    "tool:bash:ls": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:bash:git push origin": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:bash:git -C x push": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:bash:npm publish": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:bash:curl -X POST http://x": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:bash:curl http://x": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:read_url:https://x": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "deny"},
    "tool:self_edit_permissions:open": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:set_system_prompt:obey": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:set_model:other": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:set_permissions:open": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:write_doc:a.md": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:edit_doc:a.md": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:delete_doc:a.md": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:write_skill:brew": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:delete_skill:brew": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:message:here": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "deny"},
    "tool:message:fake:harbour": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:process_start:make": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:process_start:git push origin": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:process_kill:p1": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:process_list:": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "allow"},
    "tool:process_logs:p1": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "allow"},
    "tool:subagent:look": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "deny"},
    "tool:spawn:look": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "deny"},
    "tool:ask_agent:writer": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
    "tool:schedule:create": {"open": "allow", "standard": "allow", "guarded": "allow", "locked": "deny"},
    "tool:message:slack:c:t": {"open": "allow", "standard": "ask", "guarded": "deny", "locked": "deny"},
    "tool:mcp_files:x": {"open": "allow", "standard": "ask", "guarded": "ask", "locked": "deny"},
    "tool:mcp_files_read:{\n}": {"open": "allow", "standard": "ask", "guarded": "ask", "locked": "deny"},
    "tool:i2c_write:1 0x20 ff": {"open": "allow", "standard": "deny", "guarded": "deny", "locked": "deny"},
    "tool:spi_transfer:0.0 ff": {"open": "allow", "standard": "deny", "guarded": "deny", "locked": "deny"},
    "tool:made_up:x": {"open": "allow", "standard": "ask", "guarded": "allow", "locked": "deny"},
}


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@pytest.mark.parametrize("action", sorted(EXPECTED))
def test_built_in_profiles_decide_as_documented(name: str, action: str) -> None:
    assert answer(built_in().get(name), action) == EXPECTED[action][name]


@pytest.mark.parametrize("name", ["locked", "standard"])
@pytest.mark.parametrize("detail", ["", "notes.md", "/workspace/notes.md", '{"path":"notes.md"}', "any words"])
def test_no_profile_allows_a_foreign_tool_by_its_name(name: str, detail: str) -> None:
    """An extension could give its own tool the name `search`."""
    ours = {tool for tool, _ in TRAITS.items()}
    words = {*ALIKE_READERS, *ALIKE_WRITERS, *ALIKE_WEB}
    assert {"search", "grep", "append"} <= words - ours
    profile = built_in().get(name)
    assert [word for word in sorted(words - ours) if answer(profile, f"tool:{word}:{detail}") == "allow"] == []


@pytest.mark.parametrize("tool", ["bash", "process_start"])
@pytest.mark.parametrize(
    ("name", "decision"), [("open", "allow"), ("standard", "ask"), ("guarded", "ask"), ("locked", "deny")]
)
def test_opaque_commands_are_opaque_for_processes(tool: str, name: str, decision: str) -> None:
    action = Action(f"tool:{tool}:eval x", opaque=True, naming=f"tool:{tool}:eval")
    assert decide(built_in().get(name), action).decision == decision
