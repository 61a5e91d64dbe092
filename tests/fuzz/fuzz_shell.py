"""Every program that bash runs, every file it writes or reads, was foreseen by the actions of the command."""

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
"""Commands that one attempt runs."""


class Ground:
    """A workspace full of traps, and a jail in which commands are run in a copy of it."""

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
        """What is foreseen."""
        return shell_actions("bash", command, cwd=self.folder, mounts=self.mounts)

    def run(self, commands: list[str]) -> list[Ran]:
        """What the commands do."""
        return self._jail.run(commands)

    def unforeseen(self, commands: list[str]) -> list[str]:
        """What each command did that was not foreseen."""
        foreseen = [self.actions(command) for command in commands]
        return [
            f"{command!r}: {problem}; foreseen was {[action for action in actions if not action.whole]}"
            for command, actions, ran in zip(commands, foreseen, self.run(commands), strict=True)
            if (problem := unforeseen(actions, ran, self.code, self.mounts))
        ]


@contextmanager
def ground(make: Callable[[Path], None] = make_ground) -> Generator[Ground]:
    """A ground that `make` fills, while the block lasts. Raises Missing where this machine cannot have one."""
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
    """Random commands that are not opaque, run by bash among the real programs; tells in the end how many they were."""
    counts = {"run": 0, "opaque": 0}
    with ground() as made:

        def attempt(source: random.Random) -> None:
            commands: list[str] = []
            while len(commands) < COMMANDS:
                command = random_command(source)
                if is_opaque(made.actions(command)):
                    counts["opaque"] += 1
                else:
                    commands.append(command)
            found = made.unforeseen(commands)
            counts["run"] += len(commands)
            assert not found, found

        try:
            yield attempt
        finally:
            print(f"shell: {counts['run']:,} commands were run; {counts['opaque']:,} were opaque, and not run")
