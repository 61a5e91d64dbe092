"""A thousand commands from coding agents: `guarded` asks about few of the harmless ones.

In `commands.txt`, a line starts with `+` if a careful owner would call the command harmless, and with `-` if they would
want to be asked. `␤` stands for a newline.
"""

from pathlib import Path

import pytest

from shoal.permissions.actions import shell_actions
from shoal.permissions.profiles import Profiles, decide_all
from tests.known_tools import TRAITS
from tests.unit.permissions.git_layout import make_repository

ASKED_SHARE_MAX = 0.03
LINES = Path(__file__).with_name("commands.txt").read_text(encoding="utf-8").splitlines()
HARMLESS = [line[2:].replace("␤", "\n") for line in LINES if line.startswith("+ ")]
DOUBTFUL = [line[2:].replace("␤", "\n") for line in LINES if line.startswith("- ")]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("ws"))


def decided(command: str, workspace: Path) -> str:
    return decide_all(Profiles(TRAITS).get("guarded"), shell_actions("bash", command, cwd=workspace))[0]


def test_the_corpus_has_a_thousand_different_commands() -> None:
    assert len(LINES) == len({*LINES}) == len(HARMLESS) + len(DOUBTFUL) == 1000


def test_few_harmless_commands_ask(workspace: Path) -> None:
    held_up = [command for command in HARMLESS if decided(command, workspace) != "allow"]
    assert len(held_up) / len(HARMLESS) <= ASKED_SHARE_MAX, held_up


def test_doubtful_commands_are_not_allowed(workspace: Path) -> None:
    assert [command for command in DOUBTFUL if decided(command, workspace) == "allow"] == []
