"""Git commands that run without asking in a tainted turn never execute a program that an untrusted repository or home
names.

Each command really runs, in the sandbox and with the environment of the `bash` tool.
"""

from functools import partial

import pytest
from tests.contracts.hostile_repositories import HOSTILE, LOOKS, PLACE, SPRINGS_NOT_HERE, make_hostile
from tests.fuzz.foreseen import runs_unasked, sprang
from tests.fuzz.fuzz_shell import ground
from tests.fuzz.target import Missing

FEW = 6
"""Batch size for running commands until one triggers the trap."""


def _commands(begin: str) -> list[str]:
    return [f"{begin} {look}" for look in LOOKS]


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_looking_at_a_hostile_repository_runs_nothing_unasked(name: str) -> None:
    asked = _commands(f"cd {PLACE} && git")
    try:
        with ground(partial(make_hostile, name=name)) as jail:
            unasked = [
                command for command in (*asked, *_commands(f"git -C {PLACE}")) if runs_unasked(jail.actions(command))
            ]
            assert jail.unforeseen(unasked) == []
            few = (asked[at : at + FEW] for at in range(0, len(asked), FEW))
            springs = any(sprang(ran) for commands in few for ran in jail.run(commands))
            assert springs is (name not in SPRINGS_NOT_HERE), (
                "the trap never springs" if not springs else "the trap springs now"
            )
    except Missing as missing:
        pytest.skip(str(missing))
