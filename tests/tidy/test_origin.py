"""tests/GUARANTEES.md lists every function that creates a prompt, or an object that becomes part of one, with a test.

A new function fails here until the table has a row that states whose text it contains and which test proves that.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.tidy.source import GROUP, PACKAGE, ROOT, package_files, tree

pytestmark = pytest.mark.xdist_group(GROUP)
PAGE = (ROOT / "tests" / "GUARANTEES.md").read_text(encoding="utf-8")
SECTION = "## Where a turn comes from"
MAKERS = {
    "shoal.kernel.messages": {"Prompt", "Steer", "FollowUp", "Edit", "Caller"},
    "shoal.kernel.events": {"UserSaid", "Steered", "Revised", "Compacted"},
    "shoal.features.triggers.records": {"NewTrigger"},
    "shoal.kernel.records": {"Report"},
    "shoal.features.processes.records": {"ProcessSpec"},
    "shoal.turn.prompt": {"PromptSection", "file_section"},
    "shoal.turn.context": {"volatile"},
}
"""Types that become part of a model request, by the module that defines them."""


TRUSTING = {
    "importing.bring._events",  # only with --trust, which confirms that a person has read the text
    "importing.bring.Bringing._schedules",
    "threads.access_gate.AccessGate.command",
    "threads.access_gate.AccessGate.react",
    "threads.access_gate.AccessGate._judged",  # the agent's own text, from the journal
    "threads.admissions.Admissions.judge",
    "threads.access_gate.AccessGate.send",
    "features.snapshots.service.restorable",
    "kernel.agents.report_of",
    "permissions.access.admit",
    "store.inbox.Inbox.revise",
    "threads.access_tokens.AccessTokens.author",
    "threads.presence.Rights.of",  # never more trusted than before
    "threads.principals",
    "tools.builtin.message._note",
    "surfaces.cli.known_tools.situation_here",  # the person for whom `shoal permissions` evaluates the rules
    "tools.executor.Executor.situation",
    "tools.executor.Executor._situation",  # as trusted as the person who asked
    "features.triggers.event_files",
    "features.triggers.heartbeat.Heartbeat.beat",
    "features.triggers.routes.take_hook",
}
"""Places that trust a person: the access rules, the machine's owner, and code that passes on their decision."""


def made_names(tree: ast.Module, module: str) -> set[str]:
    names = set(MAKERS.get(f"shoal.{module}", set()))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in MAKERS:
            makers = [alias for alias in node.names if alias.name in MAKERS[node.module]]
            assert all(alias.asname is None for alias in makers), f"{module}: a maker has one name"
            names |= {alias.name for alias in makers}
    return names


def calls(node: ast.AST, where: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call with the function that contains it. Skips class patterns in `match`, which look like calls
    but create nothing.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.pattern):
            continue
        if isinstance(child, ast.Call):
            yield where, child
        is_named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from calls(child, f"{where}.{child.name}" if is_named else where)


def makes(call: ast.Call, names: set[str]) -> bool:
    """Return True if the call is to a maker, or passes one to `convert`, which then creates an object."""
    called = _name(call.func)
    return called in names or (called == "convert" and any(_name(one) in names for one in call.args))


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def trusts(call: ast.Call) -> bool:
    """Return True unless the call omits `trusted` or sets it to a literal False."""
    values = [one.value for one in call.keywords if one.arg == "trusted"]
    return any(not (isinstance(value, ast.Constant) and value.value is False) for value in values)


@cache
def in_product() -> tuple[set[str], set[str]]:
    making: set[str] = set()
    trusting: set[str] = set()
    for path in package_files():
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        names = made_names(tree(path), module)
        for where, call in calls(tree(path), module):
            making |= {where} if makes(call, names) else set()
            trusting |= {where} if trusts(call) else set()
    return making, trusting


def rows() -> list[list[str]]:
    section = PAGE.split(SECTION)[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_place_that_creates_a_prompt_is_listed() -> None:
    listed = {place for _, made_in, _, _ in rows() for place in re.findall(r"`([\w.]+)`", made_in)}
    making, _ = in_product()
    assert making - listed == set(), f"say in {SECTION!r} of tests/GUARANTEES.md whose words these carry"
    assert listed - making == set(), "these no longer create a prompt"


def test_only_listed_places_grant_trust() -> None:
    _, trusting = in_product()
    assert trusting == TRUSTING


def test_every_row_has_a_test() -> None:
    assert [route for route, _, _, shown in rows() if not re.search(r"`test_\w+`", shown)] == []


CODE = """
from shoal.kernel.messages import Prompt
class A:
    def b(self):
        match self:
            case Prompt(): return Prompt(trusted=self)
    def c(self):
        return msgspec.convert(self, Prompt, trusted=False)
"""


def test_a_new_place_that_creates_a_prompt_is_detected() -> None:
    code = ast.parse(CODE)
    calls_found = list(calls(code, "new"))
    assert {where for where, call in calls_found if makes(call, made_names(code, "new"))} == {"new.A.b", "new.A.c"}
    assert {where for where, call in calls_found if trusts(call)} == {"new.A.b"}
