"""Bash runs random commands among real programs. They must do only what Shoal's analysis predicted."""

import random
from collections.abc import Generator

import pytest
from tests.fuzz.commands import SEGMENTS, random_command
from tests.fuzz.foreseen import is_opaque, runs_unasked, unforeseen
from tests.fuzz.fuzz_shell import Ground, ground
from tests.fuzz.target import Missing

from shoal.kernel.permissions import Action

pytestmark = pytest.mark.xdist_group("jail")  # on one worker, because a jail takes long to create

COMMANDS = 1_000
"""Number of random commands. The target `shell` of `make fuzz` runs many more."""
SEEDS = 4
FOUND_BEFORE = [
    "seq >&'q'\\EOF\n",
    '>&x$\'"${X:-"}"}"E\raa <<"E"\n$(tac)\nE\n\'^done>f',
    "rev\ntac && rev 21 rev 0>f9 >&f10",
    "r\\ev & cd .. && { rev; } >f5 2>&1 #c\n",
    "rev >&'$(tac)'",
    'rev "$\\\n(tac)"',
    "rev$X'tac'",
    "rev \\{x,y}",
    "rev {x\\,y}",
    "rev '{x',y} {x",
    "rev {1\\..3}",
]


@pytest.fixture(scope="module")
def made() -> Generator[Ground]:
    try:
        with ground() as started:
            yield started
    except Missing as missing:
        pytest.skip(str(missing))


def test_known_fragments_and_past_findings_have_only_the_predicted_effects(made: Ground) -> None:
    readable = [command for command in (*SEGMENTS, *FOUND_BEFORE) if not is_opaque(made.actions(command))]
    assert made.unforeseen(readable) == []


def test_only_five_fragments_are_opaque_to_the_analysis(made: Ground) -> None:
    opaque = [piece for piece in SEGMENTS if is_opaque(made.actions(piece))]
    assert opaque == ["A=1 tac", "$(echo rev)", "f() { rev; }; f", "rev >$X", "rev <>f11"]


PLAIN = Action("tool:bash:id", harmless=True, reads=())


@pytest.mark.parametrize(
    ("command", "noticed"),
    [
        ("id; tac x", "['tac', 'x'] (/usr/bin/tac) was run and is not named"),
        ("id 1", "['id', '1'] (/usr/bin/id) was run and is not named"),
        ("id > /dev/shm/f", "/dev/shm/f outside the workspace was written by ['bash'"),
        ("id > .git/config", "/workspace/.git/config in a repository was written by"),
        ("id > x.sh", "/workspace/x.sh, which something may execute, was written by"),
        ("id > p", "/workspace/p, which something may execute, was written by"),
        ("id < .env", "the secret /workspace/.env was read by"),
        ("id < a.txt", "/workspace/a.txt was read by"),
        ("id < link", "/workspace/a.txt was read by"),
        ("id 3<> /dev/tcp/127.0.0.1/1", "it connected to"),
        ("./p", "was run and is not named"),
    ],
)
def test_an_unpredicted_effect_is_reported(made: Ground, command: str, noticed: str) -> None:
    assert noticed in unforeseen([PLAIN], made.run([command])[0], made.code)


def test_a_workspace_program_is_reported_even_if_named_by_the_action(made: Ground) -> None:
    named = [Action(f"tool:bash:{text}", harmless=True, reads=()) for text in ("./p", "factor 7")]
    assert "/workspace/p of the workspace was run" in unforeseen(named, made.run(["./p"])[0], made.code)


def test_each_command_finds_the_original_workspace(made: Ground) -> None:
    changing = "rm -r sub; echo x > a.txt; mkdir -p y/z; mv b.txt y; chmod 0 notes.md; ln -s x z; echo x > /tmp/x"
    looking = "test -e sub/d/e.md -a -e b.txt -a -r notes.md -a ! -e y -a ! -L z -a ! -e /tmp/x && cat a.txt && id"
    ran = made.run([changing, looking])[1]
    assert [execution.argv[0] for execution in ran.executed] == ["bash", "cat", "id"]
    assert not ran.written.keys() - {"/tmp/output"}


def test_leftover_processes_are_ended_and_reported(made: Ground) -> None:
    late, after = made.run(["(trap '' TERM; sleep 60) & disown; id", "id"])
    assert late.is_late
    assert not after.is_late
    assert [execution.argv[0] for execution in after.executed] == ["bash", "id"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_commands_have_only_the_predicted_effects(made: Ground, seed: int) -> None:
    source = random.Random(seed)
    commands: list[str] = []
    while len(commands) < COMMANDS // SEEDS:
        command = random_command(source)
        if not is_opaque(made.actions(command)):
            commands.append(command)
    assert made.unforeseen(commands) == []
    assert any(runs_unasked(made.actions(command)) for command in commands)
