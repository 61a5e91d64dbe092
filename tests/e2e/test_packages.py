"""Third-party packages: wheels from packages/ installed with Shoal's in a new environment, and IRC on a real server."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.test_wheel import ROOT, python, run

from shoal.testing.model import Call, FakeModel, Reply

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]
EXAMPLE = ROOT / "packages/shoal-irc"
WAIT_SECONDS = 60.0
CONFIG = """
[model]
name = "fake/fake-1"
[providers.fake]
kind = "openai"
base_url = "{model}/v1"
api_key = "x"
[sandbox]
kind = "host"
[platforms.irc.main]
server = "127.0.0.1"
port = {port}
tls = false
join = ["#harbour"]
owner = "~olga@127.0.0.1"
"""
NGIRCD = """
[Global]
Name = irc.example.net
Info = Tides
Listen = 127.0.0.1
Ports = {port}
MotdPhrase = Hello
[Limits]
MaxConnectionsIP = 0
MaxNickLength = 16
[Options]
DNS = no
Ident = no
PAM = no
"""
__all__ = ["python"]


def add(python: Path, package: str, dist: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist, cwd=ROOT / "packages" / package)
    uv = Path(sys.executable).with_name("uv")
    run(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", *dist.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    add(python, "shoal-irc", tmp_path_factory.mktemp("irc"))
    run(Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--python", python, "hypothesis")
    return python


def test_import_is_a_command_once_its_package_is_installed(python: Path, tmp_path: Path) -> None:
    shoal, home, root = python.with_name("shoal"), tmp_path / "home", tmp_path / "nanobot"
    before = subprocess.run([shoal, "--home", home, "import", "nanobot"], capture_output=True, text=True, check=False)
    assert before.returncode == 1
    assert "shoal import' is in the package shoal-import. Run: " in before.stderr
    add(python, "shoal-import", tmp_path / "dist")
    (root / "workspace").mkdir(parents=True)
    (root / "config.json").write_text("{}")
    (root / "workspace/SOUL.md").write_text("You are calm.")
    said = run(shoal, "--home", home, "import", "nanobot", root)
    assert "agent nanobot" in said
    assert (home / "agents/nanobot/SOUL.md").read_text() == "You are calm.\n"


def test_hardware_tools_exist_once_their_package_is_installed(python: Path, tmp_path: Path) -> None:
    shoal, home = python.with_name("shoal"), tmp_path / "home"
    home.mkdir()
    (home / "shoal.toml").write_text("[tools]\nhardware = true\n")
    for words in (("ask", "hello"), ("doctor",)):
        before = subprocess.run([shoal, "--home", home, *words], capture_output=True, text=True, check=False)
        assert before.returncode == 1
        assert "tools.hardware is on, but its package is missing" in before.stdout + before.stderr
    add(python, "shoal-hardware", tmp_path / "dist")
    assert "demo model" in run(shoal, "--home", home, "ask", "What can you do?")


def test_the_contract_and_the_examples_own_tests_run_against_the_installed_plugin(
    installed: Path, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")
    options = ("-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto")
    said = run(installed, "-m", "pytest", *options, "tests", cwd=tmp_path)
    assert re.search(r"[4-9]\d passed", said), said


class Person:
    """A person who is connected to the IRC server by a plain socket. `heard` lists the lines received."""

    def __init__(self, nick: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.nick = nick
        self.heard: list[str] = []
        self._reader = reader
        self._writer = writer
        self._changed = asyncio.Condition()

    def send(self, line: str) -> None:
        self._writer.write(f"{line}\r\n".encode())

    async def listen(self) -> None:
        while line := (await self._reader.readline()).decode().rstrip("\r\n"):
            if line.startswith("PING"):
                self.send(line.replace("PING", "PONG", 1))
            async with self._changed:
                self.heard.append(line)
                self._changed.notify_all()

    async def hears(self, part: str) -> str:
        """Wait for a line that contains `part` and return it. Discards this line and all earlier ones."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(lambda: any(part in line for line in self.heard))
        at = next(number for number, line in enumerate(self.heard) if part in line)
        line, self.heard = self.heard[at], self.heard[at + 1 :]
        return line


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    fetched = await asyncio.to_thread(
        subprocess.run,
        [ROOT / "scripts/debian-packages.sh", "ngircd", "ngircd", "libident"],
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode:
        pytest.skip(fetched.stderr.strip())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
    root = ROOT / "build/ngircd/root"
    (tmp_path / "ngircd.conf").write_text(NGIRCD.format(port=port))
    libraries = os.pathsep.join(str(path.parent) for path in root.rglob("libident.so*"))
    server = await asyncio.create_subprocess_exec(
        root / "usr/sbin/ngircd", "-n", "-f", tmp_path / "ngircd.conf", env={"LD_LIBRARY_PATH": libraries},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    yield port
    server.terminate()
    await server.wait()


@contextlib.asynccontextmanager
async def person(nick: str, port: int) -> AsyncGenerator[Person]:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0)
    someone = Person(nick, reader, writer)
    listening = asyncio.ensure_future(someone.listen())
    someone.send(f"NICK {nick}")
    someone.send(f"USER {nick} 0 * :{nick}")
    await someone.hears(" 001 ")
    try:
        yield someone
    finally:
        listening.cancel()
        writer.close()


@contextlib.asynccontextmanager
async def shoal(python: Path, home: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
    command = (python.with_name("shoal"), "--home", home, "run", "--port", "0")
    with (home / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command, env=environ, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_SECONDS):
        assert (await process.stdout.readline()).startswith(b"ready ")
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def test_on_a_real_irc_server_pairing_approval_and_a_kill_work(
    installed: Path, port: int, tmp_path: Path
) -> None:
    asks = Reply(calls=(Call("bash", '{"command": "echo six > tide.txt"}'),))
    model = FakeModel("High at six.", asks, "It stands in tide.txt.", "Still here.", "In the harbour.")
    home = tmp_path / "home"
    home.mkdir()
    (home / "shoal.toml").write_text(CONFIG.format(model=await model.start(), port=port))
    async with person("olga", port) as olga, person("ada", port) as ada:
        ada.send("JOIN #harbour")
        async with shoal(installed, home) as process:
            await ada.hears(":shoal!")
            ada.send("PRIVMSG shoal :When is the tide?")
            code = re.search(r"shoal pair (\w+)", await ada.hears("send this code to my owner"))
            assert code is not None
            olga.send(f"PRIVMSG shoal :pair {code[1]}")
            await olga.hears("~ada@127.0.0.1 can now talk to me.")
            ada.send("PRIVMSG shoal :When is the tide?")
            await ada.hears("High at six.")
            ada.send("PRIVMSG shoal :Write it down")
            card = re.search(r"`?allow (\w+)", (await ada.hears("To decide, write")).replace("\x11", ""))
            assert card is not None
            process.kill()
            await process.wait()
        await ada.hears("QUIT")
        async with shoal(installed, home):
            await ada.hears("JOIN")
            ada.send(f"PRIVMSG shoal :allow {card[1]}")
            await ada.hears("It stands in tide.txt.")
            ada.send("PRIVMSG shoal :!status")
            await ada.hears("messages in this conversation")
            ada.send("PRIVMSG #harbour :just talk")
            ada.send("PRIVMSG #harbour :shoal: are you there?")
            line = await ada.hears("PRIVMSG #harbour")
            assert line.endswith("Still here.")
    await model.stop()
    assert not [line for line in (home / "log").read_text().splitlines() if "Traceback" in line]
