"""Runs commands under bubblewrap: own namespaces, the mounted directories and a read-only /usr, nothing else.

Inside, a command is user 1000 without capabilities, in its own process, network, IPC and mount namespaces, and cannot
make further user namespaces. It sees /usr, a bare /etc, its own /proc and /dev, a bounded /tmp, and the mounts. All
its processes end with the first one, since the kernel ends a process namespace with its first process. Limits come
from `ulimit` in the shell that runs the command, and from a control group where one can be made.

What cannot be set up is a SandboxError; a command never runs with less around it than it should have.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path

from shoal.domain.errors import SandboxError
from shoal.domain.ports import Command, CommandResult, Mount
from shoal.sandbox.cgroups import Groups, find_groups
from shoal.sandbox.limits import Limits, limits_for, ulimit_line
from shoal.sandbox.paths import require_inside, to_inside, to_outside
from shoal.sandbox.processes import Spawn, run_process
from shoal.sandbox.proxy import Network, ProxiedNetwork
from shoal.sandbox.seccomp import filter_file

_ETC = Path(__file__).with_name("etc")
_ETC_SHOWN = ("alternatives", "ssl", "ca-certificates", "pki", "ld.so.cache")
_JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 126; shift; done; shift; exec "$@"'
"""Joins the control groups named up to `--`, then becomes the rest."""

_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8", "TERM": "dumb"}
_SETUP_FAILED = b"bwrap: "
_SWEEPS_MAX = 100
_SWEEP_SECONDS = 0.01


class BubblewrapSandbox:
    """A `Sandbox` of Linux namespaces. `network` is off, on (the host's own), or a list of allowed hosts."""

    name = "bubblewrap"
    isolated = True

    def __init__(self, limits: Limits | None = None, network: Network = "off") -> None:
        self._limits = limits or Limits()
        self._network: Network = network
        self._program = shutil.which("bwrap") or ""
        self._groups: Groups | None = None

    @property
    def bounds_processes(self) -> bool:
        """Whether the number of a command's processes is bounded: not as root without control groups."""
        return os.geteuid() != 0 or self._find_groups().can_bound

    async def run(self, command: Command) -> CommandResult:
        """Run it. Raises SandboxError when the sandbox cannot be set up."""
        with filter_file() as files:
            async with self._enclosed(command, files) as argv:
                spawn = Spawn(argv, "/", (), command.timeout_seconds, command.output_bytes_max, command.watch, files)
                return _checked(await run_process(spawn))

    def enclosed(self, command: Command) -> AbstractAsyncContextManager[tuple[str, ...]]:
        """The argument vector that runs the command inside, good while the block lasts; its limits of time and output
        are the caller's, and system calls are not filtered. Raises SandboxError."""
        return self._enclosed(command, ())

    @asynccontextmanager
    async def _enclosed(self, command: Command, filters: tuple[int, ...]) -> AsyncGenerator[tuple[str, ...]]:
        if not self._program:
            raise SandboxError("bubblewrap is not installed. Install its package, or choose another sandbox.")
        async with AsyncExitStack() as stack:
            join_files = stack.enter_context(self._find_groups().group())
            argv = [self._program, *_namespaces(self._network), *_system(), *self._temporary(), *_binds(command.mounts)]
            environment = {**_ENVIRONMENT, **dict(command.env)}
            limits = ulimit_line(limits_for(command, self._limits))
            shell = ["/bin/bash", "-c", limits + command.text]
            if isinstance(self._network, tuple):
                proxied = await stack.enter_async_context(ProxiedNetwork(self._network))
                argv += proxied.mounts
                environment.update(proxied.environment)
                shell = ["/bin/bash", "-c", limits + 'exec "$@"', "bash", *proxied.forwarder]
                shell += ["/bin/bash", "-c", command.text]
            for name, value in environment.items():
                argv += ["--setenv", name, value]
            for file in filters:
                argv += ["--seccomp", str(file)]
            argv += ["--remount-ro", "/", "--chdir", require_inside(command.cwd, command.mounts), "--", *shell]
            if join_files:
                argv = ["/bin/sh", "-c", _JOIN, "sh", *join_files, "--", *argv]
            yield tuple(argv)

    def _find_groups(self) -> Groups:
        if self._groups is None:
            self._groups = find_groups(self._limits)
        return self._groups

    def _temporary(self) -> list[str]:
        size = str(self._limits.temporary_bytes_max)
        return ["--size", size, "--tmpfs", "/tmp", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        """The path below a mount's inside name; itself where no mount holds it."""
        return to_inside(path, mounts)

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        """The host path; unchanged where no mount holds it."""
        return to_outside(path, mounts)

    async def close(self) -> None:
        """Remove what control groups are left, once their last processes are gone."""
        for _ in range(_SWEEPS_MAX):
            if self._groups is None or self._groups.sweep():
                return
            await asyncio.sleep(_SWEEP_SECONDS)


def _checked(result: CommandResult) -> CommandResult:
    """The result, unless it is bubblewrap's own failure."""
    if result.exit_code == 1 and result.stderr.startswith(_SETUP_FAILED) and not result.stdout:
        detail = result.stderr.decode(errors="replace").strip().splitlines()[0]
        raise SandboxError(f"bubblewrap could not set up the sandbox ({detail}). Run `shoal doctor` for what to do.")
    return result


def _namespaces(network: Network) -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
    options += ["--cap-drop", "ALL", "--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"]
    if network == "on":
        options += ["--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
    return options


@cache
def _system() -> tuple[str, ...]:
    options = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib32", "lib64", "sbin"):
        folder = Path("/", name)
        if folder.is_symlink():
            options += ["--symlink", f"usr/{name}", str(folder)]
        elif folder.is_dir():
            options += ["--ro-bind", str(folder), str(folder)]
    for name in _ETC_SHOWN:
        if Path("/etc", name).exists():
            options += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    for file in ("passwd", "group", "hosts"):
        options += ["--ro-bind", str(_ETC / file), f"/etc/{file}"]
    if Path("/etc/localtime").is_symlink():
        options += ["--symlink", os.path.realpath("/etc/localtime"), "/etc/localtime"]
    # All of /proc is read-only: the kernel lets whoever is root on the host write its settings, such as core_pattern,
    # from within a user namespace too.
    return (*options, "--dev", "/dev", "--proc", "/proc", "--remount-ro", "/proc")


def _binds(mounts: Sequence[Mount]) -> list[str]:
    options: list[str] = []
    for mount in sorted(mounts, key=lambda mount: len(mount.inside)):
        if mount.writable and not mount.host.is_dir():
            raise SandboxError(f"The directory {mount.host} of the sandbox's {mount.inside} does not exist.")
        options += ["--bind" if mount.writable else "--ro-bind-try", str(mount.host), mount.inside]
    return options
