"""Shell commands: the actions predict every program that bash runs and every file that it reads or writes."""

import os
import random
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from shoal.kernel.permissions import Action
from shoal.kernel.ports import Mount
from shoal.permissions.actions import shell_actions
from tests.fuzz.commands import random_command
from tests.fuzz.foreseen import is_opaque, unforeseen
from tests.fuzz.ground import make_ground
from tests.fuzz.jail import Jail, Ran, jail
from tests.fuzz.target import Attempt

COMMANDS = 25
"""Number of commands per attempt."""


class Ground:
    """A workspace full of traps, and a jail that runs commands in a copy of it."""

    def __init__(self, folder: Path, jail: Jail) -> None:
        self.folder = folder
        self._jail = jail
        self.mounts = (Mount(folder, "/workspace", writable=True),)
        self.code = frozenset(
            f"/workspace/{path.relative_to(folder)}"
            for path in folder.rglob("*")
            if path.is_file() and os.access(path, os.X_OK) and path.stat().st_mode & 0o111
        )

    def actions(self, command: str) -> tuple[Action, ...]:
        return shell_actions("bash", command, cwd=self.folder, mounts=self.mounts)

    def run(self, commands: list[str]) -> list[Ran]:
        return self._jail.run(commands)

    def unforeseen(self, commands: list[str]) -> list[str]:
        foreseen = [self.actions(command) for command in commands]
        return [
            f"{command!r}: {problem}; foreseen was {[action for action in actions if not action.whole]}"
            for command, actions, ran in zip(commands, foreseen, self.run(commands), strict=True)
            if (problem := unforeseen(actions, ran, self.code, self.mounts))
        ]


@contextmanager
def ground(make: Callable[[Path], None] = make_ground) -> Generator[Ground]:
    """Yield a ground that `make` has filled. Raises Missing if this machine lacks a required program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "template").mkdir()
        (folder / "jail").mkdir()
        make(folder / "template")
        processors = sorted(os.sched_getaffinity(0))
        with jail(folder / "template", folder / "jail", {}, processors[os.getpid() % len(processors)]) as running:
            yield Ground(folder / "template", running)


@contextmanager
def target() -> Generator[Attempt]:
    counts = {"run": 0, "opaque": 0}
    with ground() as jail:

        def attempt(source: random.Random) -> None:
            commands: list[str] = []
            while len(commands) < COMMANDS:
                command = random_command(source)
                if is_opaque(jail.actions(command)):
                    counts["opaque"] += 1
                else:
                    commands.append(command)
            problems = jail.unforeseen(commands)
            counts["run"] += len(commands)
            assert not problems, problems

        try:
            yield attempt
        finally:
            print(f"shell: {counts['run']:,} commands were run; {counts['opaque']:,} were opaque, and not run")
