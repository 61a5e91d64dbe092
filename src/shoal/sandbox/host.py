"""Runs commands on the host itself, with no isolation: everything this user may do, a command may do."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.domain.errors import SandboxError
from shoal.domain.ports import Command, CommandResult, Mount
from shoal.sandbox.processes import Spawn, run_process


class HostSandbox:
    """A `Sandbox` that bounds time and output only; with it every command is asked for."""

    name = "host"
    isolated = False

    def __init__(self) -> None:
        self._shell = shutil.which("bash")
        tie = shutil.which("setpriv") if sys.platform == "linux" else None
        self._tie = (tie, "--pdeathsig", "KILL", "--") if tie else ()
        self._env = tuple(_inherited().items())

    async def run(self, command: Command) -> CommandResult:
        """Run it with the user's own rights in `command.cwd`. Raises SandboxError when it cannot be started."""
        if self._shell is None:
            raise SandboxError("Commands need bash, which was not found: install it.")
        if not command.cwd.is_dir():
            raise SandboxError(f"The working directory {command.cwd} does not exist.")
        return await run_process(
            Spawn(
                argv=(*self._tie, self._shell, "-c", command.text),
                cwd=str(command.cwd),
                env=(*self._env, *command.env),
                timeout_seconds=command.timeout_seconds,
                output_bytes_max=command.output_bytes_max,
                watch=command.watch,
            )
        )

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        """The path itself: commands see the host's names."""
        return str(path)

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        """The path itself."""
        return Path(path)

    async def close(self) -> None:
        """Nothing is held between commands."""


def _inherited() -> dict[str, str]:
    home = os.environ.get("HOME") or "/"
    path = os.environ.get("PATH") or os.defpath
    return {"PATH": path, "HOME": home, "LANG": os.environ.get("LANG") or "C.UTF-8", "TERM": "dumb"}
