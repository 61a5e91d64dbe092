"""What `shoal setup` sees to besides models and tokens: the directory, the port, who owns a bot, the start at login."""

import asyncio
import os
import plistlib
import queue
import re
import secrets
import shutil
import socket
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

import anyio
import msgspec

from shoal.config import Config
from shoal.kernel.errors import PlatformError, ShoalError
from shoal.kernel.messages import Prompt
from shoal.kernel.posts import OutboundPost
from shoal.permissions.access import code_digest, is_code, make_code
from shoal.setup.trying import adapter_of, connected
from shoal.store.store import Store
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.init import another_products

WRITE_SECONDS = 600.0
"""How long a person may take to write to their bot."""
WRITERS_MAX = 100
"""So many people are shown a code."""
COMMAND_SECONDS = 30.0


def not_usable(root: Path) -> str:
    """A sentence where a directory cannot be a home: it is none, it cannot be written, or it holds something else,
    wholly or in part; empty where it can."""
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    if not there.is_dir():
        return f"{there} is a file. Choose another directory."
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        return f"{root} cannot be written by this user. Choose another directory, or correct the rights of {there}."
    if problem := another_products(root):
        return problem
    names = sorted(set(os.listdir(root)) - {"lost+found", ".DS_Store"}) if root.is_dir() else []
    if names and not {"shoal.toml", "token", "shoal.db"} & set(names):
        return f"{root} holds other files ({', '.join(names[:3])}). Choose an empty directory, or a new one."
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


# ---- the owner of a bot: whoever is shown the code in the chat and types it at the terminal ----


class Hearing:
    """Listens beside the terminal: whoever writes to the bot directly is shown a code there, each person another one.

    A thread of its own does it until the block ends. Who wrote before is shown one too, and is in nobody's way. It is a
    daemon, since Ctrl-C may come while it starts, and then nothing would end it.
    """

    def __init__(self, context: CommandContext, config: Config, platform: str) -> None:
        self._codes: dict[str, Prompt] = {}
        self._context = context
        self._config = config
        self._platform = platform
        self._writers = queue.SimpleQueue[Prompt | None]()
        self._stop = Future[None]()
        self._problem: Exception = PlatformError(f"Nobody wrote within {WRITE_SECONDS / 60:.0f} minutes.")
        self._thread = Thread(target=self._hear, daemon=True)

    def __enter__(self) -> "Hearing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stop.done():
            self._stop.set_result(None)
        self._thread.join()

    def first(self) -> Prompt:
        """Wait for somebody to write. Raises PlatformError when the connection fails or nobody does."""
        prompt = self._writers.get()
        if prompt is None:
            raise self._problem
        return prompt

    def owner(self, typed: str) -> Prompt | None:
        """What that person wrote to whom this code was shown, however it is typed."""
        return next((one for code, one in list(self._codes.items()) if is_code(typed, code_digest(code))), None)

    def _hear(self) -> None:
        try:
            self._context.write(self._listen)
        except* (ShoalError, OSError) as problems:
            self._problem = problems.exceptions[0]
        finally:
            self._writers.put(None)

    async def _listen(self, store: Store) -> None:
        people = set[str]()
        async with connected(self._config, self._platform, store.settings) as (adapter, inbox):

            async def answer() -> None:
                while len(people) < WRITERS_MAX:
                    prompt = await inbox.prompts.get()
                    if prompt.author.id in people:
                        continue
                    people.add(prompt.author.id)
                    code = make_code(secrets.token_bytes(16))
                    self._codes[code] = prompt
                    text = f"Your code is {code}. Type it where `shoal setup` is running, and you are my owner."
                    await adapter.post(OutboundPost(prompt.thread, f"setup:{code}", text))
                    self._writers.put(prompt)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answer)
                with anyio.move_on_after(WRITE_SECONDS):
                    await asyncio.wrap_future(self._stop)
                tasks.cancel_scope.cancel()


async def greet(config: Config, platform: str, store: Store, prompt: Prompt) -> None:
    """Post the first message to the owner. Raises PlatformError."""
    adapter = adapter_of(config, platform, store.settings)
    try:
        text = "You are my owner now. As soon as Shoal is running I answer here."
        await adapter.post(OutboundPost(prompt.thread, f"setup:{prompt.key}", text))
    finally:
        await adapter.close()


# ---- the start at login: a unit of the user's systemd, or a launchd agent ----


class LoginService(msgspec.Struct, frozen=True):
    """What has a system start Shoal at login: a file, the commands that make it count, the one that shows the log."""

    file: Path
    content: bytes
    commands: tuple[tuple[str, ...], ...]
    log: str
    stop: str


def login_service(root: Path) -> LoginService | None:
    """What would start Shoal on this home directory at each login; None where the system has nothing for that."""
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
    if _run(("systemctl", "--user", "show-environment")):  # none, or no session: a container, another user's shell
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
    """Write its file and have the system start Shoal. Raises ShoalError with what the system said, OSError."""
    service.file.parent.mkdir(parents=True, exist_ok=True)
    service.file.write_bytes(service.content)
    for command in service.commands:
        if failure := _run(command):
            raise ShoalError(f"`{' '.join(command)}` failed: {failure}. {service.file} is written; run it by hand.")


def _run(command: tuple[str, ...]) -> str:
    """Run a command of the system; returns why it failed, or nothing."""
    try:
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if ran.returncode == 0 else " ".join(ran.stderr.split()) or f"it ended with {ran.returncode}"


def _quoted(word: str) -> str:
    """A word as systemd reads it back: percent signs and dollars are its own, spaces part words."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if re.search(r"[^\w@%+=:,./-]", word) else text
