"""`shoal ask` in a terminal, including failures and interruptions."""

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.processes import PROGRAM
from tests.terminal import Terminal
from tests.unit.surfaces.cli.conftest import Shoal
from tests.waiting import until

from shoal.testing.model import Call, FakeModel, Reply


def test_without_a_text_the_command_fails_in_a_terminal(home: Path, tmp_path: Path) -> None:
    terminal = Terminal([PROGRAM, "--home", str(home), "ask"], {**os.environ, "TERM": "dumb"}, tmp_path)
    terminal.sees("The message is empty. Pass TEXT, or pipe it in.")
    assert terminal.ends() == 2


def test_a_failed_turn_prints_one_line_to_stderr(home: Path) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text(
        "[model]\nname = 'openai/gpt'\n[turns]\nmodel_attempts_max = 1\n"
        "[providers.openai]\nbase_url = 'http://127.0.0.1:1/v1'\napi_key = 'k'\n"
    )
    result = subprocess.run([PROGRAM, "--home", home, "ask", "hello"], check=False, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith("shoal: I cannot reach the model")
    assert "http://127.0.0.1:1" in result.stderr


def test_an_interrupted_turn_is_stopped_immediately(shoal: Shoal, home: Path, slow_model: tuple[str, Path]) -> None:
    address, log = slow_model
    home.mkdir()
    (home / "shoal.toml").write_text(
        "[model]\nname = 'openai/fake-1'\n[engine]\ndrain_seconds = 60\n"
        f"[providers.openai]\nbase_url = '{address}/v1'\n"
    )
    command = [PROGRAM, "--home", home, "ask", "--thread", "terminal:ask:mine", "hello"]
    with subprocess.Popen(command) as asking:
        until(log.exists)
        asking.send_signal(signal.SIGINT)
        assert asking.wait(30) == 130
    events = json.loads(shoal("threads", "log", "--json", "terminal:ask:mine").out)
    assert (events[-1]["type"], events[-1]["data"]["outcome"]) == ("turn_finished", "aborted")


@pytest.mark.parametrize(
    ("answer", "outcome", "runs"),
    [("y", "Accepted.", True), ("yes", "Accepted.", True), ("n", "Discarded.", False), ("", "Discarded.", False)],
)
def test_staged_calls_are_decided_at_the_terminal(
    home: Path, tmp_path: Path, answer: str, outcome: str, runs: bool
) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text("[model]\nname = 'demo'\n[sandbox]\nkind = 'host'\n")
    command = [PROGRAM, "--home", str(home), "ask", "--thread", "terminal:ask:mine", "run git push nowhere"]
    terminal = Terminal(command, {**os.environ, "TERM": "dumb"}, tmp_path)
    shown = terminal.sees("anything else discards it: ")
    assert "? Not done yet, 1 of 1: bash" in shown
    terminal.types(answer)
    terminal.sees(outcome)
    if runs:
        terminal.sees("✗ bash")
        terminal.sees("exit code 128")
    assert terminal.ends() == 0
    assert "chose to say nothing" not in terminal.screen
    assert ("✗ bash" in terminal.screen) is runs


PREPARES = (
    Reply(calls=(Call("write", json.dumps({"path": "notes.txt", "content": "boats: 2\n"})),)),
    Reply(calls=(Call("bash", json.dumps({"command": "git push nowhere"})),)),
    "prepared",
)
"""A turn that changes a file and stages a push."""


@pytest.mark.parametrize("surface", ["ask", "chat"])
@pytest.mark.parametrize("answer", ["u", "keep"])
async def test_a_discarded_card_offers_to_undo_the_files(home: Path, tmp_path: Path, surface: str, answer: str) -> None:
    model = FakeModel(*PREPARES, "never mind")
    home.mkdir()
    (home / "shoal.toml").write_text(
        f"[model]\nname = 'openai/fake-1'\n[providers.openai]\nbase_url = '{await model.start()}/v1'\napi_key = 'k'\n"
        "[sandbox]\nkind = 'host'\n"
    )
    notes = home / "agents/main/workspace/notes.txt"

    def decide() -> str:
        command, environ = [PROGRAM, "--home", str(home)], {**os.environ, "TERM": "dumb"}
        if surface == "chat":
            lines = f"write and push\ndiscard\n{answer}\n"
            result = subprocess.run(
                [*command, "chat"], check=False, input=lines, capture_output=True, text=True, timeout=60
            )
            assert (result.returncode, result.stderr) == (0, "")
            return result.stdout
        terminal = Terminal([*command, "ask", "write and push"], environ, tmp_path)
        terminal.sees("anything else discards it: ")
        assert notes.exists()
        terminal.types("n")
        terminal.sees("anything else keeps them: ")
        terminal.types(answer)
        assert terminal.ends() == 0
        return terminal.screen

    try:
        shown = await asyncio.to_thread(decide)
    finally:
        await model.stop()
    assert "Discarded. The turn's file changes stay." in shown
    assert ("Restored 1 file." in shown) is (answer == "u")
    assert notes.exists() is (answer != "u")
