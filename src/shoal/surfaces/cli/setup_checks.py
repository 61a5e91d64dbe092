"""Checks of `shoal setup` on this machine (directory and port), and the service that starts Shoal at login."""

import os
import plistlib
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from shoal.kernel.errors import ShoalError
from shoal.surfaces.cli.init import another_products

COMMAND_SECONDS = 30.0


def not_usable(root: Path) -> str:
    """Return an error message if a directory cannot be a home directory, otherwise an empty string.

    The directory must be writable, and empty unless it is already a home directory.
    """
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    if not there.is_dir():
        return f"{there} is not a directory. Choose a different location."
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        return (
            f"You do not have permission to write to {root}. Choose another directory, or change the "
            f"permissions of {there}."
        )
    if problem := another_products(root):
        return problem
    names = sorted(set(os.listdir(root)) - {"lost+found", ".DS_Store"}) if root.is_dir() else []
    if names and not {"shoal.toml", "token", "shoal.db"} & set(names):
        return f"{root} contains other files ({', '.join(names[:3])}). Choose an empty directory, or a new one."
    return ""


def is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True


# ---- starting at login: a systemd user unit or a launchd agent ----


class LoginService(msgspec.Struct, frozen=True):
    """A systemd user unit or launchd agent that starts Shoal at login.

    commands: the commands that activate the service.
    log: the command that shows the log.
    stop: the command that stops the service.
    """

    file: Path
    content: bytes
    commands: tuple[tuple[str, ...], ...]
    log: str
    stop: str


def login_service(root: Path) -> LoginService | None:
    called = shutil.which(sys.argv[0]) or sys.argv[0]
    program = called if Path(called).name == "shoal" else str(Path(sys.executable).with_name("shoal"))
    command = [os.path.abspath(program), "--home", str(root), "run"]
    suffix = "" if root == Path("~/.shoal").expanduser() else "-" + re.sub(r"[^\w-]+", "-", root.name).strip("-")
    if sys.platform == "darwin":
        label = f"shoal{suffix}"
        file, log = Path(f"~/Library/LaunchAgents/{label}.plist").expanduser(), root / "shoal.log"
        content = {
            "Label": label, "ProgramArguments": command, "RunAtLoad": True, "KeepAlive": True,
            "StandardErrorPath": str(log), "StandardOutPath": str(log), "ExitTimeOut": 45,
            "EnvironmentVariables": {"PATH": os.environ.get("PATH", os.defpath)},
        }  # fmt: skip
        domain = f"gui/{os.getuid()}"
        commands = (("launchctl", "bootstrap", domain, str(file)),)
        stop = f"launchctl bootout {domain}/{label}"
        return LoginService(file, plistlib.dumps(content), commands, f"tail -f {log}", stop)
    if _run(
        ("systemctl", "--user", "show-environment")
    ):  # neither launchd nor systemd, or no session, as in a container or another user's shell
        return None
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "systemd" / "user"
    unit = f"shoal{suffix}.service"
    text = (
        "[Unit]\nDescription=Shoal, agents in chats\n\n"
        f"[Service]\nExecStart={' '.join(map(_quoted, command))}\nRestart=always\nRestartSec=1\nTimeoutStopSec=45\n"
        "KillMode=mixed\n\n[Install]\nWantedBy=default.target\n"
    )
    commands = (("systemctl", "--user", "daemon-reload"), ("systemctl", "--user", "enable", "--now", unit))
    stop = f"systemctl --user stop {unit}"
    return LoginService(folder / unit, text.encode(), commands, f"journalctl --user -fu {unit}", stop)


def start_at_login(service: LoginService) -> None:
    """Write and activate the service. Raises OSError, and ShoalError with the system's error message."""
    service.file.parent.mkdir(parents=True, exist_ok=True)
    service.file.write_bytes(service.content)
    for command in service.commands:
        if failure := _run(command):
            raise ShoalError(f"`{' '.join(command)}` failed: {failure}. Run it by hand to activate {service.file}.")


def _run(command: tuple[str, ...]) -> str:
    try:
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if ran.returncode == 0 else " ".join(ran.stderr.split()) or f"exit code {ran.returncode}"


def _quoted(word: str) -> str:
    """Quote a word for systemd, which expands percent and dollar signs and splits at spaces."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if re.search(r"[^\w@%+=:,./-]", word) else text
