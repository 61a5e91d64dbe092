"""How often `standard` asks: 100 common calls in a workspace with a repository."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from shoal.kernel.permissions import Action
from shoal.kernel.ports import Mount
from shoal.permissions.actions import shell_actions
from shoal.permissions.effects import Situation
from shoal.permissions.profiles import Profiles, decide_all
from tests.known_tools import TRAITS
from tests.unit.permissions.git_layout import make_repository

CALLS = [
    line
    for line in (Path(__file__).parents[2] / "everyday_calls.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
SEALED = Situation(isolated=True, sealed=True, covered=True, trusted=True)
HOST = Situation(trusted=True)
STANDARD = Profiles(TRAITS).get("standard")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path.resolve()
    (folder / "src").mkdir()
    for name in ("README.md", "src/app.py", "data.csv", "old.txt", "new.txt", "run.sh", "server.log", "draft.md"):
        (folder / name).write_text("x\n")
    return make_repository(folder)


def asking(workspace: Path, situation: Situation) -> list[str]:
    mounts = (Mount(workspace, "/workspace", writable=True),)

    def actions(call: str) -> tuple[Action, ...]:
        if call.startswith("tool:"):
            return (Action(call),)
        return shell_actions("bash", call, cwd=workspace, mounts=mounts, isolated=situation.isolated)

    return [call for call in CALLS if decide_all(STANDARD, actions(call), situation)[0] != "allow"]


def test_the_list_has_100_calls() -> None:
    assert len(set(CALLS)) == len(CALLS) == 100


def test_no_everyday_call_asks_in_a_sealed_sandbox(workspace: Path) -> None:
    assert asking(workspace, SEALED) == []


def test_at_most_forty_everyday_calls_ask_without_a_sandbox(workspace: Path) -> None:
    asked = asking(workspace, HOST)
    assert len(asked) <= 40, asked
    assert {"git push", "make", "npm install", 'git commit -m "Fix the parser"'} <= set(asked)


def test_every_command_of_an_untrusted_person_asks(workspace: Path) -> None:
    commands = [call for call in CALLS if not call.startswith("tool:")]
    assert set(commands) <= set(asking(workspace, replace(SEALED, trusted=False)))


def test_outward_and_persistent_calls_still_ask(workspace: Path) -> None:
    actions = ("tool:message:slack:C1", "tool:set_system_prompt:x", "tool:process_start:ls", "tool:ask_agent:harbour x")
    assert [decide_all(STANDARD, (Action(one),), SEALED)[0] for one in actions] == ["ask"] * 4
