"""Run commands under bubblewrap, in new namespaces with only the mounted directories and a read-only /usr.

Inside, a command is user 1000 without capabilities, in its own process, network, IPC and mount namespaces, and cannot
create further user namespaces. It sees /usr, a minimal /etc, its own /proc and /dev, a limited /tmp, and the mounts.
When the first process ends, the kernel kills the rest of its process namespace. Limits are set by `ulimit` in the shell
that runs the command, and by a control group if one can be created. Bubblewrap itself starts in that group.

If the setup fails, SandboxError is raised. A command never runs with weaker isolation than configured.
"""

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from pathlib import Path

from shoal.files.mounts import from_host, from_inside
from shoal.kernel.errors import ContentChanged, SandboxError
from shoal.kernel.ports import Command, CommandResult, Mount, RunFile
from shoal.sandbox.limits import CommandLimits, ControlGroups, find_groups, ulimit_line
from shoal.sandbox.processes import Spawn, run_process
from shoal.sandbox.proxy import WEB_PORTS, Network, ProxiedNetwork
from shoal.sandbox.seccomp import filter_file

ALLOWED = "/run/allowed"
"""Folder in the sandbox with a second mount of each approved file, named by the file's index."""
_ETC = Path(__file__).with_name("etc")
_ETC_SHOWN = ("alternatives", "ssl", "ca-certificates", "pki", "ld.so.cache")
_JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 126; shift; done; shift; exec "$@"'
"""Shell script that joins the control groups listed before `--` and executes the command after it."""

_FILTER = 9
_OPEN = f'exec {_FILTER}<"$1" || exit 126; shift; exec "$@"'
"""Shell script that opens the system call filter named by the first argument and executes the other arguments."""

_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"),
    *("--cap-drop", "ALL", "--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"),
)
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8", "TERM": "dumb"}
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_NOBODY = 65_534
_SETUP_FAILED = b"bwrap: "
_SWEEPS_MAX = 100
_SWEEP_SECONDS = 0.01


class MountedPaths:
    """Path conversion for sandboxes whose commands see only the mounts."""

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        inside = from_host(path, mounts)
        return inside.shown if inside is not None else str(path)

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        host = from_inside(path, mounts)
        return host.host if host is not None else Path(path)


class BubblewrapSandbox(MountedPaths):
    """A `Sandbox` that uses Linux namespaces. `network` is off, on (public addresses on `ports`) or a list of hosts."""

    name = "bubblewrap"
    isolated = True

    def __init__(
        self, limits: CommandLimits | None = None, network: Network = "off", ports: Sequence[int] = WEB_PORTS
    ) -> None:
        self._limits = limits or CommandLimits()
        self._network: Network = network
        self._ports = ports
        self._program = shutil.which("bwrap") or ""
        self._groups: ControlGroups | None = None

    @property
    def bounds_processes(self) -> bool:
        """Whether the number of processes is limited. If Shoal runs as root, this requires control groups."""
        return os.geteuid() != 0 or self._find_groups().can_bound

    async def run(self, command: Command) -> CommandResult:
        """Run a command. Raises SandboxError if the setup fails, or ContentChanged if a replaced file caused the
        failure.
        """
        self._require_program()
        with filter_file() as files, self._find_groups().membership() as member:
            async with self._enclosed(command, files, member.join_files) as argv:
                bounds = command.timeout_seconds, command.output_bytes_max
                spawn = Spawn(argv, "/", (), *bounds, command.watch, files, member.starter, command.see)
                result = await run_process(spawn)
        if result.exit_code == 1 and result.stderr.startswith(_SETUP_FAILED) and not result.stdout:
            detail = result.stderr.decode(errors="replace").strip().splitlines()[0]
            if any(f" on /newroot{file.path}: " in detail for file in command.runs):
                raise ContentChanged(detail)
            raise SandboxError(f"bubblewrap could not set up the sandbox: {detail.rstrip('.')}.")
        return result

    @asynccontextmanager
    async def enclosed(self, command: Command) -> AsyncGenerator[tuple[str, ...]]:
        """Yield the arguments that run the command in the sandbox, valid until the block ends.

        The caller must limit time and output. Raises SandboxError.
        """
        self._require_program()
        with filter_file() as files, self._find_groups().group() as join_files:
            # The caller does not pass open files on, so the shell opens the filter itself.
            opening = [f"/proc/{os.getpid()}/fd/{file}" for file in files]
            async with self._enclosed(command, (_FILTER,) * len(files), join_files) as argv:
                yield ("/bin/sh", "-c", _OPEN, "sh", *opening, *argv) if opening else argv

    @asynccontextmanager
    async def _enclosed(
        self, command: Command, filters: tuple[int, ...], join_files: tuple[str, ...]
    ) -> AsyncGenerator[tuple[str, ...]]:
        try:
            async with AsyncExitStack() as stack:
                argv = [self._program, *_NAMESPACES]
                size = str(self._limits.temporary_bytes_max)
                argv += [*_system(), *_own_devices(), "--size", size, "--tmpfs", "/tmp"]
                argv += ["--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
                for mount in sorted(command.mounts, key=lambda mount: len(mount.inside)):
                    if mount.writable and not mount.host.is_dir():
                        raise SandboxError(f"The directory {mount.host}, mounted at {mount.inside}, does not exist.")
                    argv += ["--bind" if mount.writable else "--ro-bind-try", str(mount.host), mount.inside]
                if any(file.content is not None for file in command.runs):
                    copies = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-run-"))
                    argv += await asyncio.to_thread(_show_allowed, command.runs, Path(copies))
                environment = {**ENVIRONMENT, **dict(command.env)}
                limits = ulimit_line(self._limits, is_watched=command.watch is not None)
                shell = ["/bin/bash", "-c", limits + command.text]
                if self._network != "off":
                    proxied = await stack.enter_async_context(ProxiedNetwork(self._network, self._ports))
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
        except OSError as error:
            raise SandboxError(f"Failed to set up the sandbox: {error}.") from error

    def _require_program(self) -> None:
        if not self._program:
            raise SandboxError("bubblewrap is not installed (Debian: apt-get install bubblewrap).")

    def _find_groups(self) -> ControlGroups:
        if self._groups is None:
            self._groups = find_groups(self._limits)
        return self._groups

    async def close(self) -> None:
        for _ in range(_SWEEPS_MAX):
            if self._groups is None or self._groups.close():
                return
            await asyncio.sleep(_SWEEP_SECONDS)


def _own_devices() -> list[str]:
    """Return options that mount device nodes owned by `nobody`. Raises SandboxError.

    If Shoal runs as root, commands would otherwise own the host's nodes and could change their mode. Nodes from an
    earlier call are reused.
    """
    if Path("/dev/null").stat().st_uid != os.geteuid():
        return []
    folder = Path(tempfile.gettempdir(), f"shoal-devices-{os.geteuid()}")
    try:
        if not all(_is_nobodys(folder / name, device) for name, device in _DEVICES.items()):
            folder.mkdir(mode=0o755, exist_ok=True)
            for name, (major, minor) in _DEVICES.items():
                # Create the node under another name and rename it, because other processes may do the same.
                made = folder / f"{name}.{os.getpid()}"
                os.mknod(made, stat.S_IFCHR | 0o600, os.makedev(major, minor))
                os.chown(made, _NOBODY, _NOBODY)
                made.chmod(0o666)
                if name != "tty":  # /dev/tty can be opened only with a terminal.
                    made.open("rb").close()
                made.rename(folder / name)
    except OSError as error:
        raise SandboxError(
            f"As root, bubblewrap needs its own device nodes, but creating them in {folder} failed ({error}). Run "
            "Shoal as another user, or set TMPDIR to a folder on a file system without `nodev`."
        ) from error
    return [part for name in _DEVICES for part in ("--dev-bind", str(folder / name), f"/dev/{name}")]


def _is_nobodys(node: Path, device: tuple[int, int]) -> bool:
    """Return True if the node is the given device and is owned by `nobody`. Only root can replace the node.

    Raises OSError if another user can change the folder.
    """
    try:
        folder, status = node.parent.lstat(), node.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.geteuid() or folder.st_mode & 0o022:
        raise PermissionError(f"{node.parent} must be a directory that only this user can write to")
    return (status.st_mode, status.st_uid, status.st_rdev) == (stat.S_IFCHR | 0o666, _NOBODY, os.makedev(*device))


def _show_allowed(runs: Sequence[RunFile], copies: Path) -> list[str]:
    """Return options that mount the approved bytes read-only over the files, and again below `ALLOWED` for
    `ContentCheck`.
    """
    options: list[str] = []
    for number, file in enumerate(runs):
        if file.content is not None:
            copy = copies / str(number)
            copy.write_bytes(file.content)
            copy.chmod(file.mode)
            if file.host is not None:  # Some programs compare timestamps.
                with suppress(OSError):
                    status = file.host.stat()
                    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
            options += ["--ro-bind", str(copy), file.path, "--ro-bind", str(copy), f"{ALLOWED}/{number}"]
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
    # Mount all of /proc read-only, because root on the host could write kernel settings such as core_pattern even from
    # a user namespace.
    return (*options, "--dev", "/dev", "--proc", "/proc", "--remount-ro", "/proc")


def require_inside(path: Path, mounts: Sequence[Mount]) -> str:
    """Return a working directory's path inside the sandbox. Raises SandboxError if the directory is outside all
    mounts.
    """
    inside = from_host(path, mounts)
    if inside is None or ".." in path.parts:
        raise SandboxError(f"The working directory {path} is outside the sandbox's directories.")
    return inside.shown
