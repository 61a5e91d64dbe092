"""The wheel with only its extra `testing` installed, as a package that extends Shoal would install it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
IMPORTS = """
import importlib, pkgutil, sys
import shoal.testing

names = [one.name for one in pkgutil.walk_packages(shoal.testing.__path__, "shoal.testing.")]
for name in names:
    importlib.import_module(name)
assert "/site-packages/" in shoal.__file__, shoal.__file__
print(len(names))
"""
"""Imports `__main__` modules as well. They only run as the main program."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, uv = tmp_path_factory.mktemp("wheel"), Path(sys.executable).with_name("uv")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist", cwd=ROOT)
    run(uv, "venv", "--quiet", "--python", sys.executable, folder / "venv")
    (wheel,) = (folder / "dist").glob("*.whl")
    constraints = folder / "constraints.txt"
    pinned = re.findall(r"^([\w.-]+==\S+(?: ; [^\\\n]+)?)", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
    constraints.write_text("\n".join(pinned))
    python = folder / "venv/bin/python"
    installed = subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, "--constraint", constraints, f"{wheel}[testing]"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "error sending request" in installed.stderr or "Failed to fetch" in installed.stderr:
        pytest.skip("no package index can be reached")
    assert installed.returncode == 0, installed.stderr
    return python


def run(*words: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_every_module_of_the_shipped_tests_can_be_imported(python: Path, tmp_path: Path) -> None:
    (tmp_path / "imports.py").write_text(IMPORTS)
    shipped = list((ROOT / "src/shoal/testing").rglob("*.py"))
    count = int(run(python, "imports.py", cwd=tmp_path))
    assert count == len(shipped) - 1, "every module except shoal.testing itself"


def test_the_wheel_contains_the_documentation(python: Path, tmp_path: Path) -> None:
    assert run(python.with_name("shoal"), "docs", "import", cwd=tmp_path).startswith("# Import from another product")


def test_a_contract_suite_runs_against_an_adapter(python: Path, tmp_path: Path) -> None:
    """Shoal's own adapter plays the part of a third-party one. Its counterpart and the suite come from the wheel."""
    shutil.copy(ROOT / "tests/contracts/test_chat_discord.py", tmp_path)
    wanted = ("-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-k", "TestDiscord and not Thread")
    said = run(python, "-m", "pytest", *wanted, "test_chat_discord.py", cwd=tmp_path)
    assert re.search(r"\d\d passed", said), said
    assert "failed" not in said
