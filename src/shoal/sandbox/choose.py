"""Chooses the sandbox that the configuration asks for, after a real trial of it."""

import sys
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from shoal.domain.errors import SandboxError
from shoal.domain.ports import Command, Mount, Sandbox
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.host import HostSandbox
from shoal.sandbox.limits import Limits
from shoal.sandbox.proxy import Network

SandboxKind: TypeAlias = Literal["auto", "bubblewrap", "docker", "seatbelt", "host"]
TRIAL_SECONDS = 10.0


class SandboxChoice(msgspec.Struct, frozen=True):
    """What is wanted. `image` and `container` are Docker's: what to start containers from, or one that runs already."""

    kind: SandboxKind = "auto"
    network: Network = "off"
    limits: Limits = Limits()
    image: str = ""
    container: str = ""
    docker_socket: Path = Path("/var/run/docker.sock")


class Chosen(msgspec.Struct, frozen=True):
    """The sandbox, and what the operator should be told about it (empty when all is as wanted)."""

    sandbox: Sandbox
    note: str = ""


async def choose_sandbox(choice: SandboxChoice) -> Chosen:
    """Make the sandbox. `auto` is the platform's isolating one where a trial run succeeds, else the host with a note.

    Raises SandboxError when a kind that was asked for by name does not work here.
    """
    if choice.kind == "host":
        return Chosen(HostSandbox(), "Commands run on this host without isolation; every one is asked for.")
    if choice.kind != "auto":
        sandbox: Sandbox = await _tried(choice, choice.kind)
        return Chosen(sandbox, _weakness(sandbox))
    try:
        sandbox = await _tried(choice, "seatbelt" if sys.platform == "darwin" else "bubblewrap")
    except SandboxError as error:
        return Chosen(HostSandbox(), f"No sandbox here: {error} Until then every command is asked for.")
    return Chosen(sandbox, _weakness(sandbox))


async def _tried(choice: SandboxChoice, kind: SandboxKind) -> Sandbox:
    sandbox = _make(choice, kind)
    mount = Mount(Path("/usr"), "/workspace")
    trial = Command(text="exit 7", cwd=mount.host, mounts=(mount,), timeout_seconds=TRIAL_SECONDS)
    try:
        result = await sandbox.run(trial)
        if result.exit_code != 7:
            detail = result.stderr.decode(errors="replace").strip() or "it ran out of time"
            raise SandboxError(f"The trial run of {sandbox.name} failed: {detail}.")
    except SandboxError:
        await sandbox.close()
        raise
    return sandbox


def _make(choice: SandboxChoice, kind: SandboxKind) -> Sandbox:
    match kind:
        case "docker":
            from shoal.sandbox.docker import DockerSandbox

            return DockerSandbox(choice.docker_socket, choice.limits, choice.network, choice.image, choice.container)
        case "seatbelt":
            from shoal.sandbox.seatbelt import SeatbeltSandbox

            return SeatbeltSandbox(choice.limits, choice.network)
        case _:
            return BubblewrapSandbox(choice.limits, choice.network)


def _weakness(sandbox: Sandbox) -> str:
    if isinstance(sandbox, BubblewrapSandbox) and not sandbox.bounds_processes:
        return "As root, and without control groups, a command may start any number of processes: run Shoal as a user."
    return ""
