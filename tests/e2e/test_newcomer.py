"""The path of a new user from an empty home to the first reply of a local model, and the installation commands in
Shoal's texts.
"""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.terminal import Terminal, transcript
from tests.tidy.source import ROOT, project_files, where

PROGRAM = str(Path(sys.executable).with_name("shoal"))
LOCAL = ROOT / "build" / "local-model"
ANSWER_SECONDS_MAX = 900
"""The model runs on the CPU, which other processes may be using."""
COMMANDS_MAX = 4
"""Maximum number of commands, including `make setup` and `scripts/local-model.sh`."""


@pytest.fixture
def newcomer(tmp_path: Path) -> dict[str, str]:
    setup = subprocess.run([ROOT / "scripts" / "local-model.sh"], capture_output=True, text=True, check=False)
    if setup.returncode:
        pytest.skip(setup.stderr.strip())
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "systemctl").chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    with socket.socket() as probe:  # the default port may be in use by another Shoal
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return {"HOME": str(tmp_path), "PATH": path, "TERM": "xterm", "PYTHONPATH": str(LOCAL / "python"),
            "OLLAMA_HOST": "127.0.0.1:1", "SHOAL_WEB__PORT": port,
            # A small model may never stop by itself. Each time its output is cut off, Shoal asks it to continue.
            "SHOAL_MODEL__MAX_OUTPUT_TOKENS": "24", "SHOAL_TURNS__STEPS_MAX": "2"}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(2 * ANSWER_SECONDS_MAX)
def test_a_model_on_this_machine_answers_after_four_commands(newcomer: dict[str, str], tmp_path: Path) -> None:
    typed = ["make setup", "scripts/local-model.sh", "shoal setup"]
    setup = Terminal([PROGRAM, "setup"], newcomer, tmp_path)
    try:
        for seen, answer in (("Number [1]:", "7"), ("Path of the GGUF file (- goes back):", str(LOCAL / "model.gguf"))):
            setup.sees(seen)
            setup.types(answer)
        setup.sees("local/model answers: ", ANSWER_SECONDS_MAX)
        setup.sees("Number [1]:")
        setup.types("none")
        assert setup.ends() == 0, setup.screen
        expected = [
            line for line in transcript(ROOT / "docs/setup.md", 0) if not line.startswith(("extra ", "Install it"))
        ]
        assert setup.lacks(expected, tmp_path / ".shoal", PROGRAM) == []
    finally:
        setup.kill()
    typed.append('shoal ask "Say hello."')
    ask = [PROGRAM, "ask", "Say hello."]
    asked = subprocess.run(
        ask, env=newcomer, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS_MAX
    )
    assert asked.returncode == 0 or "cut off at max_output_tokens" in asked.stderr, asked.stderr
    assert asked.stdout.strip()
    assert len(typed) <= COMMANDS_MAX


def lines() -> Iterator[tuple[Path, str]]:
    for path in project_files():
        parts = path.relative_to(ROOT).parts
        if path.suffix in (".md", ".py", ".sh") and parts[0] in ("docs", "src", "scripts", "README.md"):
            for line in path.read_text(encoding="utf-8").splitlines():
                yield path, line


def test_no_text_suggests_installing_from_an_index() -> None:
    """Such a line would install a different package, or fail. `shoal.installation` provides the correct command."""
    wrong = [where(path) for path, line in lines() if re.search(r"install [^`]*(?<!/)shoal(\[|['\"`]|$)", line)]
    assert [line for line in wrong if "decisions" not in line and "installation.py" not in line] == []
