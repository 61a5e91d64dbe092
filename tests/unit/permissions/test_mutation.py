"""Every comparison and boolean operator of what decides matters: turning any of them makes a test fail."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal.permissions
from tests.unit.permissions import mutant

HERE = Path(__file__).parent
PACKAGE = Path(shoal.permissions.__file__).parent
ROOT = HERE.parents[2]
MUTANTS_SECONDS_MAX = 300
_LINE = re.compile(r"[01] \w+\.py line")


def changed(module: Path, tests: list[Path]) -> list[str]:
    """A line for every change of a module."""
    command = [sys.executable, str(HERE / "mutant.py"), str(module), *map(str, tests)]
    assert all(test.exists() for test in tests), tests
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=MUTANTS_SECONDS_MAX, check=False)
    return [line for line in done.stdout.splitlines() if _LINE.match(line)]


TESTS = {
    "access": ("test_access", "test_audiences", "../threads/test_access_gate", "test_approvals"),
    "taint": ("test_taint", "test_effects"),
    "profiles": ("test_rules", "test_engine", "test_effects"),
}
"""The tests that have to notice a change in a module."""


@pytest.mark.slow
@pytest.mark.parametrize("module", TESTS)
def test_every_operator_matters(module: str) -> None:
    path, tests = PACKAGE / f"{module}.py", [(HERE / f"{name}.py").resolve() for name in TESTS[module]]
    lines = changed(path, tests)
    assert len(lines) == mutant.mutations(path) >= 5
    assert [line for line in lines if not line.startswith("1 ")] == []


def test_a_change_that_nothing_notices_is_seen(tmp_path: Path) -> None:
    module, idle = tmp_path / "shoal" / "permissions" / "taint.py", tmp_path / "test_idle.py"
    module.parent.mkdir(parents=True)
    module.write_text("def f(a, b):\n    return a < b\n")
    idle.write_text("def test_nothing():\n    pass\n")
    assert changed(module, [idle]) == [f"0 taint.py line 2: {other} in a < b" for other in ("LtE", "GtE")]
