"""Choosing a sandbox: the requested one or an error. `auto` selects an isolating sandbox, or the host with a
warning.
"""

import shutil
from pathlib import Path

import pytest

from shoal.kernel.errors import SandboxError
from shoal.kernel.settings import SandboxSettings
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.choose import choose_sandbox

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture
def without_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def broken_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@needs_bubblewrap
async def test_auto_uses_bubblewrap_where_it_works() -> None:
    chosen = await choose_sandbox(SandboxSettings())
    assert (chosen.sandbox.name, chosen.sandbox.isolated) == ("bubblewrap", True)


@pytest.mark.usefixtures("without_bubblewrap")
async def test_auto_warns_and_uses_the_host_without_a_sandbox() -> None:
    chosen = await choose_sandbox(SandboxSettings())
    assert (chosen.sandbox.name, chosen.sandbox.isolated) == ("host", False)
    assert "bubblewrap is not installed" in chosen.note
    assert "Shoal asks before each command that no rule allows" in chosen.note


@pytest.mark.usefixtures("broken_bubblewrap")
async def test_auto_tests_the_sandbox_with_a_trial_run() -> None:
    chosen = await choose_sandbox(SandboxSettings())
    assert chosen.sandbox.name == "host"
    assert "No permissions to create a new namespace" in chosen.note


@pytest.mark.usefixtures("broken_bubblewrap")
async def test_a_requested_sandbox_is_never_replaced() -> None:
    with pytest.raises(SandboxError, match="No permissions"):
        await choose_sandbox(SandboxSettings(kind="bubblewrap"))


async def test_the_host_sandbox_is_not_isolated_and_carries_a_notice() -> None:
    chosen = await choose_sandbox(SandboxSettings(kind="host"))
    assert not chosen.sandbox.isolated
    assert chosen.note


@pytest.mark.usefixtures("without_bubblewrap")
async def test_the_seatbelt_sandbox_is_refused_outside_macos() -> None:
    with pytest.raises(SandboxError, match="macOS"):
        await choose_sandbox(SandboxSettings(kind="seatbelt"))


def test_a_user_other_than_root_needs_no_groups_to_bound_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = BubblewrapSandbox()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert sandbox.bounds_processes
