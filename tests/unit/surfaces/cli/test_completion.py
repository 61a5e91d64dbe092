"""`shoal completion`: what a shell offers for Tab, and that it is set up once."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import PROGRAM, VARIABLES, Shoal


def offered(home: Path, *words: str) -> list[str]:
    """What a shell is told may stand in the place of the last word."""
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environ |= {"_SHOAL_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words))}
    environ |= {"COMP_WORDS": " ".join(("shoal", *words)), "SHOAL_HOME": str(home)}
    ran = subprocess.run([PROGRAM], env=environ, check=True, capture_output=True, text=True)
    return [line.partition(",")[2] for line in ran.stdout.splitlines()]


def test_commands_options_agents_and_files_are_offered(home: Path) -> None:
    (home / "agents" / "main").mkdir(parents=True)
    (home / "agents" / "mate").mkdir()
    assert offered(home, "ap") == ["approvals"]
    assert offered(home, "agents", "cr") == ["create"]
    assert offered(home, "ask", "--ag") == ["--agent"]
    assert offered(home, "ask", "--agent", "ma") == ["main", "mate"]
    assert offered(home, "agents", "destroy", "mat") == ["mate"]
    assert offered(home, "--home", str(home), "chat", "--agent", "mai") == ["main"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_it_is_set_up_once_however_often(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    settings = tmp_path / f".{shell}rc"
    settings.write_text("echo mine")
    assert shoal("completion").code == 0
    ran = shoal("completion")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("It works in every new shell.\n")
    if shell == "fish":
        assert "complete " in (tmp_path / ".config/fish/completions/shoal.fish").read_text()
        assert settings.read_text() == "echo mine"
    else:
        file = tmp_path / f".local/share/shoal/completion.{shell}"
        line = f'[ -r "{file}" ] && . "{file}"  # completion of shoal'
        assert settings.read_text().splitlines() == ["echo mine", line]
        assert "_SHOAL_COMPLETE" in file.read_text()


def test_the_script_can_be_printed(shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "_SHOAL_COMPLETE=fish_complete" in shoal("completion", "fish", "--print").out
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_shell_is_told_which_there_are(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    ran = shoal("completion")
    assert (ran.code, ran.err) == (
        1,
        "shoal: Which shell? 'shoal completion NAME', where NAME is one of: bash, zsh, fish.\n",
    )
