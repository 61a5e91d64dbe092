"""Run commands on the host without isolation, or under macOS `sandbox-exec`. Both use the host's paths."""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal.kernel.errors import SandboxError
from shoal.kernel.ports import Command, CommandResult, Mount
from shoal.sandbox.limits import CommandLimits, ulimit_line
from shoal.sandbox.processes import Spawn, run_process
from shoal.sandbox.proxy import Network

_READABLE = "/usr /bin /sbin /System /Library /opt/homebrew /private/etc /private/var/db/timezone".split()  # noqa: SIM905
_BASE = """(version 1)
(deny default)
(allow process-fork)
(allow process-exec)
(allow signal (target same-sandbox))
(allow sysctl-read)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow file-read-metadata)
(allow file-read* file-write-data (literal "/dev/null") (literal "/dev/zero") (literal "/dev/tty"))
(allow file-read* (literal "/") (literal "/dev/random") (literal "/dev/urandom"))
"""


class _HostPaths:
    """Path conversion for sandboxes whose commands see the host's paths."""

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        return str(path)

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        return Path(path)

    async def close(self) -> None:
        pass


class HostSandbox(_HostPaths):
    """A `Sandbox` that limits only time and output. Commands have this user's full rights, so Shoal asks first."""

    name = "host"
    isolated = False

    def __init__(self) -> None:
        self._shell = shutil.which("bash")
        tie = shutil.which("setpriv") if sys.platform == "linux" else None
        self._tie = (tie, "--pdeathsig", "KILL", "--") if tie else ()
        self._env = (
            ("PATH", os.environ.get("PATH") or os.defpath),
            ("HOME", os.environ.get("HOME") or "/"),
            ("LANG", os.environ.get("LANG") or "C.UTF-8"),
            ("TERM", "dumb"),
        )

    async def run(self, command: Command) -> CommandResult:
        if self._shell is None:
            raise SandboxError("Commands need bash, which is not installed. Install it.")
        if not command.cwd.is_dir():
            raise SandboxError(f"The working directory {command.cwd} does not exist.")
        argv, env = (*self._tie, self._shell, "-c", command.text), (*self._env, *command.env)
        bounds = command.timeout_seconds, command.output_bytes_max
        return await run_process(Spawn(argv, str(command.cwd), env, *bounds, command.watch, see=command.see))


class SeatbeltSandbox(_HostPaths):
    """A `Sandbox` that uses macOS sandbox profiles. Written from their documentation and reviewed, but never tested.

    The profile denies everything except reading the mounts and the system's programs and libraries, and writing to the
    writable mounts and a temporary directory. The network is allowed only if `network` is on. A list of hosts is
    rejected. macOS has no process namespaces, so the command's processes are found as on the host.
    """

    name = "seatbelt"
    isolated = True

    def __init__(self, limits: CommandLimits | None = None, network: Network = "off") -> None:
        # macOS counts processes per user, not per command, and cannot limit private memory.
        self._limits = msgspec.structs.replace(limits or CommandLimits(), processes_max=0, memory_bytes_max=0)
        self._network: Network = network
        self._program = shutil.which("sandbox-exec") or ""

    async def run(self, command: Command) -> CommandResult:
        if not self._program:
            raise SandboxError("sandbox-exec is not installed. It exists only on macOS, so choose another sandbox.")
        if isinstance(self._network, tuple):
            raise SandboxError("The macOS sandbox cannot allow individual hosts. Set sandbox.network to off or on.")
        with tempfile.TemporaryDirectory(prefix="shoal-") as temporary:
            own = Mount(Path(temporary).resolve(), temporary, writable=True)
            text = seatbelt_profile((*command.mounts, own), open_network=self._network == "on")
            environment = {"PATH": "/opt/homebrew/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}
            environment |= {"HOME": str(command.cwd), "TMPDIR": temporary, **dict(command.env)}
            limits = ulimit_line(self._limits, is_watched=command.watch is not None)
            argv = (self._program, "-p", text, "/bin/bash", "-c", limits + command.text)
            env, bounds = tuple(environment.items()), (command.timeout_seconds, command.output_bytes_max)
            return await run_process(Spawn(argv, str(command.cwd), env, *bounds, command.watch, see=command.see))


def seatbelt_profile(mounts: Sequence[Mount], *, open_network: bool) -> str:
    readable = [*_READABLE, *(str(mount.host) for mount in mounts)]
    writable = [str(mount.host) for mount in mounts if mount.writable]
    lines = [_BASE, *(f"(allow file-read* (subpath {_quoted(path)}))" for path in readable)]
    lines += [f"(allow file-write* (subpath {_quoted(path)}))" for path in writable]
    if open_network:
        lines.append("(allow network*)")
    return "\n".join(lines)


def _quoted(path: str) -> str:
    if any(ord(character) < 32 for character in path):
        raise SandboxError(
            f"The path {path!r} contains control characters, which macOS sandbox profiles do not support."
        )
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
