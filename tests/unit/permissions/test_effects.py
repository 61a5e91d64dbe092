"""Each action has one effect, which determines how profiles treat it."""

import re
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from shoal.features.mcp.kinds import TRAITS as KINDS
from shoal.features.mcp.kinds import UNCONFIRMED
from shoal.kernel.permissions import Action, Asker, Decision
from shoal.kernel.settings import OverrideSettings, ProfileSettings
from shoal.kernel.traits import Effect, Traits, TraitsByName
from shoal.permissions.actions import shell_actions
from shoal.permissions.effects import ANSWERS, WORDS, EffectCase, Situation, effect_of, in_words
from shoal.permissions.profiles import Profile, Profiles, compile_profile, decide_all, hidden
from shoal.permissions.taint import MESSAGE_OF, Source, TaintState, gate, sink_of
from tests.known_tools import TRAITS

SEALED = Situation(isolated=True, sealed=True, covered=True, trusted=True)
ONLINE = replace(SEALED, sealed=False)
HOST = Situation(trusted=True)
STANDARD = Profiles(TRAITS).get("standard")
GUARDED = Profiles(TRAITS).get("guarded")
PAGE = TaintState((Source(1, "the page https://example.org/"),), active=True)


def shell(command: str, *, isolated: bool = True) -> tuple[Action, ...]:
    return shell_actions("bash", command, cwd=Path("/workspace"), isolated=isolated)


def decided(actions: tuple[Action, ...], situation: Situation, profile: Profile = STANDARD) -> Decision:
    return decide_all(profile, actions, situation)[0]


def guarded(actions: tuple[Action, ...], situation: Situation, taint: TaintState = PAGE) -> Decision:
    tainted = replace(situation, tainted=True)
    return gate(decided(actions, tainted), actions, taint, STANDARD, tainted)[0]


def effects(command: str, situation: Situation) -> set[Effect]:
    found = shell(command, isolated=situation.isolated)
    return {effect_of(action, TRAITS, situation) for action in found if not action.whole}


def test_every_combination_of_effect_and_context_has_an_answer() -> None:
    assert set(ANSWERS) == set(map(EffectCase._make, product(get_args(Effect), *[(True, False)] * 3)))


@pytest.mark.parametrize("effect", ["outward", "lasting", "unknown"])
def test_outward_persistent_and_unknown_effects_always_ask(effect: Effect) -> None:
    assert {answer for case, answer in ANSWERS.items() if case.effect == effect} == {"ask"}


@pytest.mark.parametrize(
    ("command", "sealed", "online", "host"),
    [
        ("ls -la", "read", "read", "read"),
        ("git status", "contained", "unknown", "unknown"),  # the repository's configuration may run programs
        ("cat notes.md | sort | uniq -c", "read", "read", "read"),
        ("cat /etc/hostname", "read", "read", "unknown"),
        ("cat $FILE", "read", "read", "unknown"),
        ("mkdir out", "contained", "contained", "contained"),
        ("echo x > out.txt", "contained", "contained", "contained"),
        ("pytest -q", "contained", "unknown", "unknown"),
        ("make test", "contained", "unknown", "unknown"),
        ("sed -i s/a/b/ x.py", "contained", "unknown", "unknown"),
        ("git push", "contained", "outward", "outward"),
        ("curl https://example.org/", "contained", "outward", "outward"),
        ("pip install flask", "contained", "outward", "outward"),
        ("rm -rf build", "contained", "unknown", "unknown"),
        ("sh -c 'eval $X'", "contained", "unknown", "unknown"),
        ("echo x > .git/hooks/pre-commit", "lasting", "unknown", "unknown"),
        ("cp evil .git/config", "lasting", "unknown", "unknown"),
        ("if then", "contained", "unknown", "unknown"),
    ],
)
def test_commands_are_classified_by_reach(command: str, sealed: Effect, online: Effect, host: Effect) -> None:
    order = get_args(Effect)
    worst = [max(effects(command, place), key=order.index) for place in (SEALED, ONLINE, HOST)]
    assert worst == [sealed, online, host]


@pytest.mark.parametrize(
    ("action", "effect"),
    [
        ("tool:read:/workspace/a", "read"),
        ("tool:read:/etc/passwd", "unknown"),
        ("tool:list:host:/workspace", "unknown"),
        ("tool:write:/workspace/a.py", "contained"),
        ("tool:write:/scratch/a", "contained"),
        ("tool:write:/workspace/.git/config", "lasting"),
        ("tool:edit:/etc/hosts", "lasting"),
        ("tool:upload:/workspace/a", "read"),
        ("tool:upload:/etc/passwd", "outward"),
        ("tool:message:here", "read"),
        ("tool:message:slack:C1", "outward"),
        ("tool:web_search:tides", "read"),
        ("tool:set_model:x", "lasting"),
        ("tool:process_start:ls", "lasting"),
        ("tool:mcp_files_read:{}", "unknown"),
        ("tool:made_up:x", "unknown"),
    ],
)
def test_tools_are_classified_by_reach(action: str, effect: Effect) -> None:
    assert {effect_of(Action(action), TRAITS, place) for place in (SEALED, ONLINE, HOST)} == {effect}


def test_commands_that_write_run_without_approval_only_in_a_sealed_sandbox() -> None:
    assert [decided(shell("make"), place) for place in (SEALED, ONLINE, HOST)] == ["allow", "ask", "ask"]
    assert [decided(shell("mkdir a"), place) for place in (SEALED, ONLINE, HOST)] == ["allow", "ask", "ask"]
    assert decided(shell("ls", isolated=False), HOST) == "allow"


def test_irreversible_changes_ask() -> None:
    bare = replace(SEALED, covered=False)
    assert [decided(shell(command), bare) for command in ("make", "echo x > a.txt", "ls")] == ["ask", "ask", "allow"]


def test_commands_of_untrusted_people_still_ask() -> None:
    stranger = replace(SEALED, trusted=False)
    assert [decided(shell(command), stranger) for command in ("ls", "make", "git push")] == ["ask", "ask", "ask"]
    assert decided((Action("tool:write:/workspace/a.txt"),), stranger) == "allow"


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("pytest -q", "allow"),
        ("python3 script.py", "allow"),
        (".venv/bin/pytest tests", "allow"),
        ("python3 manage.py test", "allow"),
        ("echo x > out.py", "allow"),
        ("sed -i s/a/b/ src/a.py", "allow"),
        ("echo x > Makefile", "ask"),
        ("sed -i s/a/b/ Makefile", "ask"),
        ("cp a.txt .github/workflows/ci.yml", "ask"),
        ('python3 -c \'open("package.json", "w")\'', "ask"),
        ("echo x > .git/hooks/post-checkout", "ask"),
        ("git commit -m x", "ask"),
        ("git config core.pager x", "ask"),
        ("cat .env", "ask"),
        ("tar xf secrets.tar", "ask"),
    ],
)
def test_contained_work_continues_after_untrusted_content(command: str, decision: Decision) -> None:
    assert guarded(shell(command), SEALED) == decision
    assert guarded(shell(command), ONLINE) == "ask"
    assert guarded(shell(command), replace(SEALED, trusted=False)) == "ask"


def test_words_of_untrusted_people_are_identified_among_taint_sources() -> None:
    assert not PAGE.by_people
    assert TaintState((*PAGE.sources, Source(2, f"{MESSAGE_OF}Eve")), active=True).by_people
    assert TaintState((Source(2, f"a summary of {MESSAGE_OF}Eve"),), active=True).by_people


def test_custom_rules_override_effects() -> None:
    own = compile_profile(
        "mine",
        ProfileSettings(extends="standard", deny=("tool:bash:rm .*",), ask=("tool:bash:make( .*)?",)),
        traits=TRAITS,
    )
    assert [decided(shell(one), SEALED, own) for one in ("rm x", "make", "pytest")] == ["deny", "ask", "allow"]
    profiles = Profiles(TRAITS, {}, (OverrideSettings(allow=("tool:message:slack:C1",)),))
    mine = profiles.effective("standard", Asker(trust="owner"), "main")
    assert decided((Action("tool:message:slack:C1"),), SEALED, mine) == "allow"
    assert decided((Action("tool:message:slack:C2"),), SEALED, mine) == "ask"


def test_the_rule_names_the_effect() -> None:
    assert decide_all(STANDARD, shell("make"), SEALED)[1][0].rule == "allow effect contained"


def test_a_custom_profile_may_use_effects() -> None:
    own = compile_profile("mine", ProfileSettings(effects=True), traits=TRAITS)
    assert decided(shell("make"), SEALED, own) == "allow"
    assert not hidden(own, "made_up")
    assert hidden(compile_profile("mine", ProfileSettings(), traits=TRAITS), "made_up")


def test_an_added_tool_that_declares_contained_asks_under_taint() -> None:
    traits = TraitsByName({**dict(TRAITS.items()), "water": Traits(effect="contained")})
    profile = Profiles(traits).get("standard")
    actions = (Action("tool:water:roses"),)
    tainted = replace(SEALED, tainted=True)
    assert gate("allow", actions, PAGE, profile, tainted)[0] == "ask"


@pytest.mark.parametrize(
    ("allow", "action", "decision"),
    [
        ("tool:read_url:https://docs\\.example(/.*)?", "tool:read_url:https://docs.example/a", "allow"),
        ("tool:read_url:https://docs\\.example(/.*)?", "tool:read_url:https://evil.example/", "ask"),
        ("tool:read_url:.*", "tool:read_url:https://evil.example/", "ask"),
        ("tool:read_url:(https://docs\\.example/.*|.*)", "tool:read_url:https://evil.example/", "ask"),
        ("(?s:.*)", "tool:read_url:https://evil.example/", "ask"),
        ("tool:read_url:https://docs\\.example(/.*)?", "tool:read_url:https://docs.example/?api_key=x", "ask"),
        ("tool:message:slack:C1", "tool:message:slack:C1", "ask"),
        ("tool:remember:global .*", "tool:remember:global x", "ask"),
    ],
)
def test_an_owners_rule_for_a_read_applies_after_untrusted_content(allow: str, action: str, decision: Decision) -> None:
    profiles = Profiles(TRAITS, {}, (OverrideSettings(allow=(allow,)),))
    mine = profiles.effective("standard", Asker(trust="owner"), "main")
    tainted, actions = replace(SEALED, tainted=True), (Action(action),)
    assert decided(actions, tainted, mine) == "allow"
    assert gate("allow", actions, PAGE, mine, tainted)[0] == decision
    stranger = replace(tainted, trusted=False)
    assert gate("allow", actions, PAGE, mine, stranger)[0] == "ask"


def test_searches_and_granted_addresses_of_trusted_people_are_not_sinks() -> None:
    given = "https://docs.example/"
    search, page, other = (
        Action("tool:web_search:tides"),
        Action(f"tool:read_url:{given}"),
        Action("tool:read_url:https://evil.example/"),
    )
    harms = [sink_of(action, TRAITS, SEALED, given.__eq__) for action in (search, page, other)]
    outside = "reach the network or act outside the workspace"
    assert harms == ["", "", outside]
    assert [sink_of(action, TRAITS, HOST) for action in (search, page)] == ["", outside]
    stranger = replace(SEALED, trusted=False)
    assert [sink_of(action, TRAITS, stranger, given.__eq__) for action in (search, page)] == [outside, outside]


def test_the_description_of_what_asks_matches_the_sandbox() -> None:
    assert "commands in the sandbox" in in_words(SEALED)
    assert "the sandbox has network access" in in_words(ONLINE)
    assert "no sandbox isolates them" in in_words(HOST)


def test_an_undeclared_tool_runs_under_guarded_until_untrusted_content_is_read() -> None:
    actions = (Action("tool:made_up:x"),)
    assert decided(actions, SEALED, GUARDED) == "allow"
    tainted = replace(SEALED, tainted=True)
    assert gate(decided(actions, tainted, GUARDED), actions, PAGE, GUARDED, tainted)[0] == "ask"


MCP = TraitsByName(
    {
        **dict(TRAITS.items()),
        "mcp_mail_new": UNCONFIRMED,
        "mcp_mail_search": KINDS["read"],
        "mcp_web_fetch": KINDS["read_outside"],
        "mcp_mail_send": KINDS["write"],
    }
)


@pytest.mark.parametrize("name", ["standard", "guarded"])
@pytest.mark.parametrize(
    ("action", "untainted", "tainted"),
    [
        ("tool:mcp_mail_new:{}", "ask", "ask"),
        ("tool:mcp_mail_search:{}", "allow", "allow"),
        ('tool:mcp_mail_search:{"path":".env"}', "allow", "ask"),
        ("tool:mcp_web_fetch:{}", "allow", "ask"),
        ('tool:mcp_web_fetch:{"url":"https://docs.example"}', "allow", "allow"),
        ('tool:mcp_web_fetch:{"url":"https://docs.example/"}', "allow", "allow"),
        ('tool:mcp_web_fetch:{"url":"https://DOCS.example/"}', "allow", "ask"),
        ('tool:mcp_web_fetch:{"url":"https://evil.example/"}', "allow", "ask"),
        ('tool:mcp_web_fetch:{"query":"https://docs.example/"}', "allow", "ask"),
        ('tool:mcp_web_fetch:{"agent":"x","url":"https://docs.example/"}', "allow", "ask"),
        ('tool:mcp_web_fetch:{"size":1,"url":"https://docs.example/"}', "allow", "ask"),
        ("tool:mcp_mail_send:{}", "ask", "ask"),
        ('tool:mcp_mail_send:{"url":"https://docs.example/"}', "ask", "ask"),
    ],
)
def test_mcp_tools_follow_their_confirmed_kind(name: str, action: str, untainted: Decision, tainted: Decision) -> None:
    profile, actions = Profiles(MCP).get(name), (Action(action),)
    read = replace(SEALED, tainted=True)

    def after(situation: Situation, taint: TaintState = PAGE) -> Decision:
        decision = decided(actions, situation, profile)
        return gate(decision, actions, taint, profile, situation, "https://docs.example/".__eq__)[0]

    assert (decided(actions, SEALED, profile), after(read)) == (untainted, tainted)
    stranger = replace(SEALED, trusted=False)
    assert (decided(actions, stranger, profile), after(replace(stranger, tainted=True))) == ("ask", "ask")


def test_a_confirmed_read_asks_for_an_untrusted_person() -> None:
    profile, actions = Profiles(MCP).get("open"), (Action("tool:mcp_mail_search:{}"),)
    for trusted, decision in ((True, "allow"), (False, "ask")):
        situation = replace(SEALED, trusted=trusted, tainted=True)
        assert gate(decided(actions, situation, profile), actions, PAGE, profile, situation)[0] == decision


def test_locked_denies_confirmed_tools() -> None:
    profile, names = Profiles(MCP).get("locked"), MCP.names(lambda one: one.group == "mcp")
    assert {decided((Action(f"tool:{name}:{{}}"),), SEALED, profile) for name in names} == {"deny"}


def test_the_page_uses_the_same_effect_descriptions() -> None:
    script = (files("shoal.surfaces.console") / "static/views/rules.js").read_text("utf-8")
    found = re.search(r"const EFFECTS = \{\n(.*?)\n\};", script, re.DOTALL)
    assert found is not None
    assert dict(re.findall(r'^  (\w+): "(.*)",$', found[1], re.MULTILINE)) == dict(WORDS)
