"""The program `shoal`: imports, exit codes, environment variables and pipes."""

import os
import subprocess
import sys
from pathlib import Path

from tests.processes import PROGRAM
from tests.unit.surfaces.cli.conftest import Shoal

HELP_MODULES_MAX = 250


def test_help_imports_little() -> None:
    code = (
        "import sys\nfrom shoal.surfaces.cli import main\n"
        "assert main.run(['--help']) == 0\nprint(len(sys.modules), 'asyncio' in sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    count, has_asyncio = result.stderr.split()
    assert int(count) <= HELP_MODULES_MAX
    assert has_asyncio == "False"


def test_the_running_system_imports_rare_modules_lazily() -> None:
    rare = ("configparser", "cronsim", "importlib.resources", "shoal_hardware", "zoneinfo")
    code = f"import sys, shoal.app\nprint(*(name for name in {rare} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.split() == []


def test_a_command_exits_without_tearing_down_its_interpreter() -> None:
    code = (
        "import atexit, sys\nfrom shoal.surfaces.cli import main\n"
        "class Late:\n    def __del__(self): print('taken apart')\n"
        "late = Late()\nsys.argv = ['shoal', 'nothing']\n"
        "main.run = lambda *_: [atexit.register(print, 'registered'), print('done'), 7][-1]\nmain.main()"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (result.stdout.split(), result.stderr, result.returncode) == (["done", "registered"], "", 7)


def test_debug_shows_the_traceback(home: Path) -> None:
    environ = {**os.environ, "SHOAL_HOME": str(home)}
    result = subprocess.run([PROGRAM, "--debug", "usage"], check=False, capture_output=True, text=True, env=environ)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "shoal.kernel.errors.NotFound" in result.stderr


def test_shoal_home_names_the_home_directory(home: Path) -> None:
    environ = {**os.environ, "SHOAL_HOME": str(home)}
    result = subprocess.run([PROGRAM, "init"], check=True, capture_output=True, text=True, env=environ)
    assert result.stdout.startswith(f"Created {home}:")
    assert (home / "shoal.toml").exists()


def test_a_closed_pipe_causes_no_traceback(home: Path, shoal: Shoal) -> None:
    shoal("init")
    result = subprocess.run(
        ["bash", "-c", f"'{PROGRAM}' --home '{home}' skills list --json | head -c 1"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" not in result.stderr
