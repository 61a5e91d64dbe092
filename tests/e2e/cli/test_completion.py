"""Tab completion in a real shell."""

import os
import subprocess
from pathlib import Path

from tests.processes import PROGRAM
from tests.variables import VARIABLES


def offered(home: Path, *words: str) -> list[str]:
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environ |= {"_SHOAL_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words))}
    environ |= {"COMP_WORDS": " ".join(("shoal", *words)), "SHOAL_HOME": str(home)}
    result = subprocess.run([PROGRAM], env=environ, check=True, capture_output=True, text=True)
    return [line.partition(",")[2] for line in result.stdout.splitlines()]


def test_commands_options_agents_and_files_are_offered(home: Path) -> None:
    (home / "agents" / "main").mkdir(parents=True)
    (home / "agents" / "mate").mkdir()
    assert offered(home, "ap") == ["approvals"]
    assert offered(home, "agents", "cr") == ["create"]
    assert offered(home, "ask", "--ag") == ["--agent"]
    assert offered(home, "ask", "--agent", "ma") == ["main", "mate"]
    assert offered(home, "agents", "destroy", "mat") == ["mate"]
    assert offered(home, "--home", str(home), "chat", "--agent", "mai") == ["main"]
