"""What is shown is what runs: commands are run by bash, and nothing happens that no action named."""

import random
import shutil
from pathlib import Path

import pytest

from tests.fuzz.commands import SEGMENTS, Ground, random_command, unforeseen

FOUND_BEFORE = [
    "dd >&'q'\\EOF\n",
    '>&x$\'"${X:-"}"}"E\raa <<"E"\n$(bb)\nE\n\'^done>f',
    "aa\nbb && aa 21 aa 0>f9 >&f10",
    "a\\a & cd .. && { aa; } >f5 2>&1 #c\n",
    "aa >&'$(bb)'",
    'aa "$\\\n(bb)"',
    "aa$X'b'",
]


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Where commands are run."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    return Ground(tmp_path)


@pytest.mark.parametrize("command", FOUND_BEFORE)
def test_cases_that_were_found_stay_foreseen(ground: Ground, command: str) -> None:
    if not any(action.opaque for action in ground.actions(command)):
        assert not unforeseen(ground, command)


@pytest.mark.parametrize("command", SEGMENTS)
def test_every_piece_does_what_was_foreseen(ground: Ground, command: str) -> None:
    if not any(action.opaque for action in ground.actions(command)):
        assert not unforeseen(ground, command)


def test_the_pieces_are_mostly_readable(ground: Ground) -> None:
    opaque = [piece for piece in SEGMENTS if any(action.opaque for action in ground.actions(piece))]
    assert opaque == ["A=1 bb", "$(echo aa)", "f() { aa; }; f", "aa >$X", "aa <>f11"]


def test_what_was_not_foreseen_is_noticed(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    actions = ground.actions("aa")
    monkeypatch.setattr(ground, "actions", lambda _command: actions)
    assert "ran ['bb', 'x']" in unforeseen(ground, "aa; bb x")
    assert "wrote /workspace/f" in unforeseen(ground, "aa > f")
    assert "wrote" in unforeseen(ground, "aa > ../f")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_commands_do_nothing_unforeseen(ground: Ground, seed: int) -> None:
    source = random.Random(seed)
    ran = 0
    while ran < 150:
        command = random_command(source)
        if any(action.opaque for action in ground.actions(command)):
            continue
        ran += 1
        assert not unforeseen(ground, command)
