"""`shoal completion`: printing the script, and installing it only once."""

from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_repeated_setup_installs_completion_once(
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
    assert ran.out.endswith("Completion works in every new shell.\n")
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


def test_an_unknown_shell_is_reported_with_the_known_ones(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    ran = shoal("completion")
    assert (ran.code, ran.err) == (
        1,
        "shoal: Specify a shell (bash, zsh, fish), for example 'shoal completion bash'.\n",
    )
