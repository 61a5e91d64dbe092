"""Real Shoal processes, each with its own home, and calls of their API."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from shoal.config import load_config
from tests.variables import VARIABLES
from tests.waiting import WAIT_SECONDS, until

PROGRAM = str(Path(sys.executable).with_name("shoal"))


class Answer(NamedTuple):
    """An HTTP response. The status is 0 if the connection failed."""

    status: int
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)


class Entry(msgspec.Struct, frozen=True):
    """A journal event."""

    type: str
    turn: str
    data: dict[str, object]


class Process(NamedTuple):
    popen: subprocess.Popen[str]
    address: str
    token: str

    def ask(self, path: str, body: object = None, *, raw: bytes | None = None) -> Answer:
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if raw is not None:
            headers["Content-Type"] = "application/octet-stream"
        request = urllib.request.Request(f"{self.address}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read())
        except OSError:
            return Answer(0, b"")

    def says(self, thread: str, text: str, message_id: str, **more: object) -> None:
        body = {"text": text, "message_id": message_id, **more}
        assert self.ask(f"/api/threads/{quote(thread)}/messages", body).status == 202

    def events(self, thread: str) -> list[Entry]:
        return msgspec.json.decode(self.ask(f"/api/threads/{quote(thread)}/events").body, type=list[Entry])

    def turn_of(self, thread: str, message_id: str) -> list[Entry]:
        until(lambda: any(self._finished(thread, message_id)))
        return list(self._finished(thread, message_id))

    def _finished(self, thread: str, message_id: str) -> list[Entry]:
        events = self.events(thread)
        turn = next((event.turn for event in events if event.data.get("message_id") == message_id), None)
        turn_events = [event for event in events if event.turn == turn]
        return turn_events if any(event.type == "turn_finished" for event in turn_events) else []

    def stop(self) -> int:
        self.popen.terminate()
        return self.popen.wait(WAIT_SECONDS)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait(WAIT_SECONDS)


@contextmanager
def process(role: str, home: Path, settings: Mapping[str, str]) -> Generator[Process]:
    """Run `shoal ROLE` on a free port until the block ends. `settings` are environment variables."""
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environ = {**inherited, "HOME": str(home), **settings}
    command = [PROGRAM, "--home", str(home), role, "--port", "0"]
    home.mkdir(exist_ok=True)
    said = home / "stderr.log"
    with (
        said.open("a") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ) as popen,
    ):
        assert popen.stdout is not None
        try:
            ready = popen.stdout.readline().split()
            assert ready[:1] == ["ready"], said.read_text()
            token = Path(popen.stdout.readline().removeprefix("token ").rstrip("\n"))
            yield Process(popen, ready[1].rstrip("/"), token.read_text().strip())
        finally:
            popen.terminate()
            popen.wait(WAIT_SECONDS)


class Server(NamedTuple):
    process: subprocess.Popen[str]
    address: str
    token: str


@contextmanager
def running(home: Path, *arguments: str) -> Generator[Server]:
    command = [PROGRAM, "--home", str(home), "run", "--port", "0", *arguments]
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert ready[:1] == ["ready"], process.communicate()
            assert process.stdout.readline().startswith("token ")
            token = load_config(home, {}).web.token.reveal() or (home / "token").read_text().strip()
            yield Server(process, ready[1].rstrip("/"), token)
        finally:
            process.terminate()
            process.communicate()
