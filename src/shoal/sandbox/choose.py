"""Create the configured sandbox and test it with a real command."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal.kernel.errors import SandboxError
from shoal.kernel.ports import Command, Enclose, Mount, Sandbox
from shoal.kernel.settings import SANDBOX_KINDS, SandboxSettings
from shoal.sandbox.bounded import BoundedSandbox
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.host import HostSandbox, SeatbeltSandbox
from shoal.sandbox.limits import CommandLimits

TRIAL_SECONDS = 10.0
ASKED = "Shoal asks before each command that no rule allows."
DOCKER_SOCKET = Path("/var/run/docker.sock")


class Chosen(msgspec.Struct, frozen=True):
    """A sandbox, and a note for the operator, for example that the sandbox does not isolate commands."""

    sandbox: Sandbox
    note: str = ""


def server_enclosure(settings: SandboxSettings) -> Enclose | None:
    """Return the bubblewrap sandbox for a server, without a CPU time limit. Returns None for other kinds of sandbox."""
    if settings.kind not in ("auto", "bubblewrap"):
        return None
    limits = msgspec.structs.replace(CommandLimits.of(settings), cpu_seconds_max=0)
    return BubblewrapSandbox(limits, settings.network, settings.ports).enclosed


def reach(sandbox: Sandbox, settings: SandboxSettings) -> str:
    if not sandbox.isolated or settings.container or (sandbox.name == "seatbelt" and settings.network == "on"):
        whose = "the container's own" if settings.container else "this machine's own"
        return f"{whose} network, with loopback and private addresses"
    if settings.network == "off":
        return "no network"
    if settings.network == "on":
        ports = ", ".join(map(str, settings.ports)) or "none"
        return f"public addresses only, through a proxy (ports {ports})"
    return f"only these hosts, through a proxy: {', '.join(settings.network) or 'none'}"


async def open_sandbox(settings: SandboxSettings, extension: Callable[[str], Sandbox]) -> Chosen:
    """Create the sandbox that [sandbox] selects, built in or from `extension`, and limit its disk use.

    Raises SandboxError, and the errors of `extension` for an unknown name.
    """
    if settings.kind in SANDBOX_KINDS:
        chosen = await choose_sandbox(settings)
    else:
        chosen = Chosen(extension(settings.kind))
    return Chosen(BoundedSandbox(chosen.sandbox, settings), chosen.note)


async def choose_sandbox(settings: SandboxSettings) -> Chosen:
    """Create a built-in sandbox.

    `auto` selects the platform's isolating sandbox if a trial run succeeds, otherwise the host with a note. Raises
    SandboxError if a kind that was configured by name does not work here.
    """
    limits = CommandLimits.of(settings)
    sandbox: Sandbox
    match settings.kind:
        case "host":
            return Chosen(HostSandbox(), f"Commands run on this host without isolation. {ASKED}")
        case "docker":
            from shoal.sandbox.docker import DockerSandbox

            sandbox = DockerSandbox(
                DOCKER_SOCKET, limits, settings.network, settings.image, settings.container, settings.ports
            )
        case "seatbelt":
            sandbox = SeatbeltSandbox(limits, settings.network)
        case "auto" if sys.platform == "darwin":
            sandbox = SeatbeltSandbox(limits, settings.network)
        case _:
            sandbox = BubblewrapSandbox(limits, settings.network, settings.ports)
    mount = Mount(Path("/usr"), "/workspace")
    trial = Command(text="exit 7", cwd=mount.host, mounts=(mount,), timeout_seconds=TRIAL_SECONDS)
    try:
        result = await sandbox.run(trial)
        if result.exit_code != 7:
            detail = result.stderr.decode(errors="replace").strip() or "it timed out"
            raise SandboxError(f"The trial run of {sandbox.name} failed: {detail}.")
    except SandboxError as error:
        await sandbox.close()
        if settings.kind != "auto":
            raise
        return Chosen(HostSandbox(), f"No sandbox works here: {error} {ASKED}")
    if isinstance(sandbox, BubblewrapSandbox) and not sandbox.bounds_processes:
        weakness = "Shoal runs as root without control groups, so a command may start any number of processes"
        return Chosen(sandbox, f"{weakness}. Run Shoal as another user.")
    return Chosen(sandbox)
