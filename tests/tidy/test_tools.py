"""A tool's decorator describes the tool. Adding a tool needs only its file and its test, because no other code
lists tools.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.features.evals.checks import denied_in_cases
from shoal.kernel.events import FilesChanged, ToolFinished
from shoal.kernel.ids import CallId
from shoal.kernel.messages import AssistantMessage, ToolCall, ToolMessage
from shoal.kernel.permissions import Action
from shoal.kernel.settings import SandboxSettings, ToolsSettings
from shoal.kernel.traits import ANYTHING, LOOKED_UP, Traits, TraitsByName, Treatment, Treatments
from shoal.permissions.profiles import Profiles, decide, hidden
from shoal.permissions.taint import Source, TaintState, gate
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario
from shoal.tools import builtin
from shoal.tools.checkpoints import may_write
from shoal.tools.functions import tool
from shoal.tools.prompt_files import may_change
from shoal.tools.registry import Registry, standard_tools
from shoal.turn.links import known_from
from shoal.turn.prompt import rules_for
from tests.known_tools import TRAITS
from tests.tidy.source import GROUP, PACKAGE, python_files, tree, where
from tests.tool_table import pages

pytestmark = pytest.mark.xdist_group(GROUP)

BUILT_IN = {name for name, _ in TRAITS.items()}
EVERYDAY = {"edit", "list", "message", "overview", "read", "schedule", "time", "upload", "view", "write"}
"""Tool names that are also ordinary words. Two of them together need not be a list of tools, but three are."""
OWN_MODULES = (
    "tools/builtin/",
    "features/",
    "tools/offer.py",
)
PLAYS_A_MODEL = "models/demo.py"
"""The demo model, which calls tools by name as any model does."""


def words_of(node: ast.AST) -> set[str]:
    """Return the words in a collection. Collections are:

    - a tuple, a list, a set, or the keys of a dict
    - the patterns of a `match`
    - a string of words, or the alternatives in a regular expression
    """
    texts: list[ast.AST] = []
    match node:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            texts = [*items]
        case ast.Dict(keys=keys):
            texts = [key for key in keys if key is not None]
        case ast.Match(cases=cases):
            texts = [child for case in cases for child in ast.walk(case.pattern)]
        case ast.Constant(value=str(text)) if re.fullmatch(r"[\s()|a-z0-9_]+", text):
            return set(re.split(r"[\s()|]+", text))
        case ast.Constant(value=str(text)):
            return {word for group in re.findall(r"\(([a-z0-9_|]+)\)", text) for word in group.split("|")}
        case _:
            return set()
    return {node.value for node in texts if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def lists_tools(words: set[str]) -> bool:
    named = words & BUILT_IN
    return len(named) > 2 or (len(named) == 2 and bool(named - EVERYDAY))


def lists_in(module: ast.Module) -> Iterator[int]:
    for node in ast.walk(module):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or not lists_tools(words_of(node)):
            continue
        yield getattr(node, "lineno", 0)


def test_only_a_tools_own_module_lists_it() -> None:
    others = [
        path
        for path in python_files("src")
        if not str(path.relative_to(PACKAGE)).startswith((*OWN_MODULES, PLAYS_A_MODEL, "testing/"))
    ]
    assert len(others) > 200
    assert [f"{where(path)}:{line}" for path in others for line in lists_in(tree(path))] == []


@pytest.mark.parametrize(
    "source",
    [
        'X = frozenset({"remember", "note_today"})',
        'X = ("read", "view", "list")',
        'X = {"bash": 1, "write": 2}',
        'X = r"(?s:tool:(remember|remind):.*)"',
        'X = "time more_tools my_settings".split()',
        'match name:\n    case "set_model" | "set_tools":\n        pass',
    ],
)
def test_a_list_of_tools_is_detected(source: str) -> None:
    assert list(lists_in(ast.parse(source)))


def test_a_new_file_in_the_tools_package_becomes_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greet.py").write_text(
        "from shoal.kernel.traits import LOOKUP\n"
        "from shoal.tools.functions import tool\n\n\n"
        "@tool(LOOKUP)\n"
        "def greet() -> str:\n"
        '    """Say hello."""\n'
        '    return "hello"\n'
    )
    monkeypatch.setattr(builtin, "__path__", [*builtin.__path__, str(tmp_path)])
    try:
        registry = Registry(standard_tools(SandboxSettings(), ToolsSettings()))
    finally:
        sys.modules.pop(f"{builtin.__name__}.greet", None)
    assert registry.get("greet") is not None
    assert decide(Profiles(registry.traits).get("locked"), Action("tool:greet:")).decision == "allow"


# ---- a sample tool with all traits ----

MADE_UP = Traits(
    group="garden",
    offered="always",
    rank=3,
    effect="outward",
    can_stage=True,
    idempotent=True,
    origin="own",
    harm="lasting",
    harmless=("look",),
    changes="nothing",
    shows_output=True,
    in_cases=True,
    guidance="- Water with `water` in the evening.",
    treatments=Treatments(
        locked=LOOKED_UP,
        standard=Treatment("the roses", "watering the roses", "ask", "watering anything else"),
        guarded=Treatment(ANYTHING, "watering"),
    ),
)
TAINTED = TaintState((Source(1, "a page"),), active=True)


@tool(MADE_UP)
def water(place: str) -> str:
    """Water a place in the garden."""
    return f"watered {place}; see https://garden.example/roses"


def known(traits: Traits = MADE_UP) -> TraitsByName:
    return TraitsByName({**dict(TRAITS.items()), "water": traits})


@pytest.mark.parametrize(
    ("profile", "detail", "decision"),
    [
        ("locked", "anything", "allow"),
        ("standard", "the roses", "allow"),
        ("standard", "the lawn", "ask"),
        ("guarded", "the lawn", "allow"),
        ("open", "the lawn", "allow"),
    ],
)
def test_profiles_follow_a_tools_traits(profile: str, detail: str, decision: str) -> None:
    assert decide(Profiles(known()).get(profile), Action(f"tool:water:{detail}")).decision == decision


@pytest.mark.parametrize(
    ("guarded", "decision"),
    [
        (Treatment(otherwise="ask", others="watering"), "ask"),
        (Treatment(otherwise="deny"), "deny"),
        (Treatment(), "deny"),
    ],
)
def test_guarded_follows_a_tools_own_treatment(guarded: Treatment, decision: str) -> None:
    profile = Profiles(known(Traits(treatments=Treatments(guarded=guarded)))).get("guarded")
    assert decide(profile, Action("tool:water:the lawn")).decision == decision
    assert decide(profile, Action("tool:watering:the lawn")).decision == "allow", "another tool"


def test_profiles_follow_all_existing_tools() -> None:
    traits = TraitsByName(dict(TRAITS.items()))
    profiles = Profiles(traits)
    assert hidden(profiles.get("locked"), "water")
    traits.add("water", MADE_UP)
    assert not hidden(profiles.get("locked"), "water")
    traits.remove("water")
    assert hidden(profiles.get("locked"), "water")


def test_taint_follows_a_tools_traits() -> None:
    profile = Profiles(known()).get("open")
    assert gate("allow", [Action("tool:water:look")], TAINTED, profile) == ("allow", "")
    decision, reason = gate("allow", [Action("tool:water:the lawn")], TAINTED, profile)
    assert (decision, "later conversations read" in reason) == ("ask", True)
    said = [
        AssistantMessage("", tool_calls=(ToolCall(CallId("1"), "water", "{}"),)),
        ToolMessage(CallId("1"), "water", "https://garden.example/roses"),
    ]
    assert not known_from(said, known())("https://garden.example/roses"), "the model may have composed it"


@pytest.mark.parametrize(
    ("changes", "workspace", "home"),
    [("nothing", False, False), ("workspace", True, False), ("home", False, True), ("anything", True, True)],
)
def test_checkpoints_and_marks_follow_a_tools_traits(changes: str, workspace: bool, home: bool) -> None:
    traits = Traits(changes=changes)  # pyrefly: ignore[bad-argument-type]
    actions = [Action("tool:water:the lawn")]
    assert may_write(traits, actions) is workspace
    assert may_change("water", traits, actions, isolated=True) is home
    assert not may_write(Traits(changes=changes, effect="read"), actions)  # pyrefly: ignore[bad-argument-type]


def test_prompts_and_cases_follow_a_tools_traits() -> None:
    assert rules_for([water.spec], known())[-1] == "- Water with `water` in the evening."
    assert rules_for([water.spec], TRAITS)[-1] != "- Water with `water` in the evening."
    assert "|water|" in denied_in_cases(known(), is_sealed=False)[0]


async def test_a_turn_follows_a_tools_traits(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=(Call("water", '{"place": "the roses"}'),)), "Watered.")
    async with scenario(tmp_path, model, tools=(water,), profile="guarded") as world:
        await world.ada.says("water the roses")
        await world.ada.sees("Watered.")
        events = [event.data for event in await world.journal()]
        (finished,) = (data for data in events if isinstance(data, ToolFinished))
        assert (finished.is_error, finished.tainted_by) == (False, ""), "its text counts as the owner's"
        assert not [data for data in events if isinstance(data, FilesChanged)], "no checkpoint was taken"
        offer = world.app[Registry].offer((), lambda name: False)
        assert "water" in [spec.name for spec in offer.listed]
    assert "Water with `water`" in model.requests[0].system


def test_the_pages_agree_with_the_tools() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: .venv/bin/python -m tests.tool_table"
