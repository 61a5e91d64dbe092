"""The command that adds an extra depends on how Shoal was installed."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from shoal import installation
from shoal.installation import as_typed, how_to_add, install_command


class Noted:
    """An installed package with this `direct_url.json`."""

    def __init__(self, note: str | None) -> None:
        self.read_text = {"direct_url.json": note}.get


@pytest.fixture(autouse=True)
def asked_anew() -> Generator[None]:
    installation.source.cache_clear()
    yield
    installation.source.cache_clear()


PIP = [sys.executable, "-m", "pip", "install"]


@pytest.mark.parametrize(
    ("note", "command"),
    [
        (
            '{"url": "file:///home/ada/shoal", "dir_info": {"editable": true}}',
            [*PIP, "--editable", "/home/ada/shoal[slack]"],
        ),
        ('{"url": "file:///tmp/a%20b/shoal-1.whl", "archive_info": {}}', [*PIP, "/tmp/a b/shoal-1.whl[slack]"]),
        (None, [*PIP, "shoal[slack]"]),
        ("damaged", [*PIP, "shoal[slack]"]),
    ],
)
def test_the_install_command_names_the_source_of_this_shoal(
    monkeypatch: pytest.MonkeyPatch, note: str | None, command: list[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: Noted(note))
    monkeypatch.setattr(installation, "find_spec", lambda _: object())
    assert install_command("slack") == command


def test_pipx_and_uv_install_in_their_own_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: Noted('{"url": "file:///d/shoal-1.whl"}'))
    monkeypatch.setattr(installation, "find_spec", lambda _: None)
    assert install_command("s3") == ["uv", "pip", "install", "--python", sys.executable, "/d/shoal-1.whl[s3]"]
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "pipx_metadata.json").write_text("{}")
    assert install_command("s3") == ["pipx", "runpip", "shoal", "install", "/d/shoal-1.whl[s3]"]
    assert how_to_add("s3") == "Run: pipx runpip shoal install '/d/shoal-1.whl[s3]'"


def test_commands_are_shown_as_they_must_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "shoal"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", str(tmp_path))
    said = "Run `shoal doctor`; shoal.toml and `shoal` stay."
    assert as_typed(said) == f"Run `{program} doctor`; shoal.toml and `{program}` stay."
    monkeypatch.setenv("PATH", str(program.parent))
    assert as_typed(said) == said
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pytest"])
    assert as_typed(said) == said
