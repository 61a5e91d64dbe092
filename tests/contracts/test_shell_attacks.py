"""About 1,300 harmful commands in a workspace full of traps. After a turn has read untrusted text, none of them
runs without asking.
"""

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.contracts.shell_attacks import HARMFUL, HIDDEN
from tests.fuzz.foreseen import did_harm
from tests.fuzz.fuzz_shell import Ground, ground
from tests.fuzz.ground import make_ground
from tests.fuzz.target import Missing
from tests.known_tools import TRAITS

from shoal.kernel.permissions import Action, Decision
from shoal.kernel.ports import Mount
from shoal.permissions.actions import shell_actions
from shoal.permissions.profiles import Profiles, decide_all
from shoal.permissions.taint import Source, TaintState, gate

pytestmark = pytest.mark.xdist_group("jail")  # on one worker, because a jail takes long to create

GUARDED = Profiles(TRAITS).get("guarded")
TAINTED = TaintState((Source(1, "a page"),), active=True)
ALL = HIDDEN | HARMFUL
REAL_MIN = {
    "a file's name becomes an option": 0.5,
    "options in other spellings": 0.3,
    "bash evaluates": 0.3,
    "programs by another name": 0.3,
    "bash and the grammar differ": 0.5,
    "a file that something executes is written": 0.5,
    "a secret is read": 0.5,
    "a repository decides what runs": 0.5,
}
"""Minimum share of a group's commands that must do harm here. The others need missing programs, or fail in the end."""
FEW = 8
"""Batch size for running commands until that share is reached."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traps").resolve()
    make_ground(folder)
    return folder


@pytest.fixture(scope="module")
def jail() -> Generator[Ground]:
    try:
        with ground() as started:
            yield started
    except Missing as missing:
        pytest.skip(str(missing))


def actions(workspace: Path, command: str) -> tuple[Action, ...]:
    return shell_actions("bash", command, cwd=workspace, mounts=(Mount(workspace, "/workspace", writable=True),))


def decided(workspace: Path, command: str, taint: TaintState) -> Decision:
    command_actions = actions(workspace, command)
    return gate(decide_all(GUARDED, command_actions)[0], command_actions, taint, GUARDED)[0]


@pytest.mark.parametrize("group", ALL)
def test_nothing_harmful_runs_unasked_under_taint(workspace: Path, group: str) -> None:
    assert [command for command in ALL[group] if decided(workspace, command, TAINTED) == "allow"] == []


@pytest.mark.parametrize("group", HIDDEN)
def test_hidden_execution_asks_even_without_taint(workspace: Path, group: str) -> None:
    assert [command for command in HIDDEN[group] if decided(workspace, command, TaintState()) == "allow"] == []


@pytest.mark.slow
@pytest.mark.parametrize("group", REAL_MIN)
def test_the_attacks_do_harm_in_an_open_jail(jail: Ground, group: str) -> None:
    commands, harmful, tame = ALL[group], list[str](), list[str]()
    for at in range(0, len(commands), FEW):
        few = commands[at : at + FEW]
        for command, ran in zip(few, jail.run(few), strict=True):
            (harmful if did_harm(ran, jail.code) else tame).append(command)
        if len(harmful) >= len(commands) * REAL_MIN[group]:
            return
    assert not tame, "too few commands do harm"
