"""Shoal as its users see it: a process with a home directory, platforms and a model.

The fakes run in an event loop of their own thread, so tests may block.
"""

import asyncio
import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from shoal.testing.model import Call, FakeModel, Gate, Refusal, Reply, Seen, follow_directive, own_words
from shoal.testing.model.script import Script, Step
from shoal.testing.platforms import discord_world, matrix_world, slack_methods
from shoal.testing.platforms.discord import TOKEN as DISCORD_TOKEN
from shoal.testing.platforms.discord import FakeDiscord
from shoal.testing.platforms.fake import FakePlatform
from shoal.testing.platforms.google_chat import FakeGoogleChat
from shoal.testing.platforms.matrix import TOKEN as MATRIX_TOKEN
from shoal.testing.platforms.matrix import FakeMatrix
from shoal.testing.platforms.slack import APP_TOKEN, BOT_TOKEN, FakeSlack
from shoal.testing.platforms.slack_wire import Room
from shoal.testing.platforms.teams import FakeTeams
from shoal.testing.platforms.telegram import TOKEN as TELEGRAM_TOKEN
from shoal.testing.platforms.telegram import FakeTelegram
from tests import processes
from tests.processes import PROGRAM, Answer, Entry, Process, process

T = TypeVar("T")

SECONDS_MAX = 60.0
ADA = 7
"""The owner's Telegram user and direct chat. The owner is ada on every platform."""
SLACK_CHANNEL, TEAMS_DIRECT, SPACE = "C00000001", "a:1ada", "DmAda"
_CONTEXT = re.compile(r"<context>.*?</context>", re.DOTALL)
NO_SETTINGS: Mapping[str, str] = {}
_DIRECTIVE = re.compile(r"\b(words|tools)=\d")
_TABLES: Mapping[str, Callable[["Platforms"], Mapping[str, object]]] = {
    "telegram": lambda all_: {"token": TELEGRAM_TOKEN, "api_base": all_.telegram.server.address, "owner": str(ADA)},
    "discord": lambda all_: {
        "token": DISCORD_TOKEN, "api_base": all_.discord.api_base, "owner": discord_world.ADA, "threading": "reply",
    },
    "slack": lambda all_: {
        "bot_token": BOT_TOKEN, "app_token": APP_TOKEN, "api_base": f"{all_.slack.address}/api/", "owner": "UADA",
    },
    "teams": lambda all_: {**all_.teams.settings(), "owner": "aad-ada"},
    "google_chat": lambda all_: {
        **all_.google_chat.settings(), "service_account_file": "app.json", "owner": "1001",
    },
    "matrix": lambda all_: {
        "homeserver": all_.matrix.address, "user": matrix_world.BOT, "access_token": MATRIX_TOKEN,
        "owner": matrix_world.ADA,
    },
}  # fmt: skip


class Platforms:
    """A fake of each platform with a conversation of the owner. `Running` starts only the requested ones."""

    def __init__(self) -> None:
        self.telegram = FakeTelegram()
        self.telegram.add_chat(ADA)
        self.discord = FakeDiscord()
        self.guild, self.discord_channel = self.discord.add_server()
        self.slack = FakeSlack(time.time() - 600)
        people = ["UADA", "UBEA", slack_methods.BOT]
        self.slack.add_room(Room(SLACK_CHANNEL, "harbour", "channel", people))
        self.teams = FakeTeams()
        self.teams.add(TEAMS_DIRECT, "personal")
        self.google_chat = FakeGoogleChat()
        self.google_chat.add(SPACE, "DIRECT_MESSAGE")
        self.matrix = FakeMatrix()
        self.room = self.matrix.add_room()

    def fake(self, name: str) -> FakePlatform:
        found = getattr(self, name)
        assert isinstance(found, FakePlatform)
        return found

    def are_connected(self, names: Sequence[str]) -> bool:
        """Return True if the bot is connected to all of these platforms."""
        listens = {
            "telegram": any(name == "getUpdates" for name, _ in self.telegram.calls),
            "discord": bool(self.discord.world.commands),
            "slack": bool(self.slack.socket.connections),
            "teams": self.teams.granted,
            "google_chat": self.google_chat.granted > 0,
            "matrix": self.matrix.syncs > 0,
        }
        return all(listens[name] for name in names)


class Loop:
    """An event loop that runs in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[object, object, T], seconds: float = SECONDS_MAX) -> T:
        """Run a coroutine on the loop and wait for its result, at most this many seconds."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def call(self, work: Callable[[], T]) -> T:
        """Call a function in the thread of the loop and wait for its result."""

        async def called() -> T:
            return work()

        return self.do(called())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def until(holds: Callable[[], bool]) -> None:
    """Wait until the condition is true. Raises AssertionError after SECONDS_MAX."""
    processes.until(holds, SECONDS_MAX)


def said(seen: Seen) -> list[str]:
    """Return the people's messages in a request, oldest first, without the text that Shoal adds.

    Messages that an adapter has merged are split at the contexts between them.
    """
    found: list[str] = []
    for message in seen.messages:
        if message.role == "user":
            parts = [own_words(part) for part in _CONTEXT.split(message.text)]
            found += [part for part in parts if part.strip()] or [""]
    return found


class Running:
    """A model, platforms, and the Shoal process that uses them. `process` exists only inside `run`."""

    process: Process

    def __init__(self, home: Path, settings: str, platforms: Sequence[str] = ()) -> None:
        self.home = home
        self.loop = Loop()
        self.model = FakeModel(script=self._answer)
        self.platforms = Platforms()
        self._names = tuple(platforms)
        self._scripts: dict[str, Script] = {}
        self._settings = settings

    def __enter__(self) -> "Running":
        self.loop.do(self.model.start())
        for name in self._names:
            self.loop.do(self.platforms.fake(name).start())
        self.home.mkdir(exist_ok=True)
        (self.home / "app.json").write_bytes(self.platforms.google_chat.key_file())
        tables = {f"platforms.{name}": _TABLES[name](self.platforms) for name in self._names}
        provider = {"kind": "openai", "base_url": f"{self.model.url}/v1"}
        head = [_table(name, keys) for name, keys in {"providers.fake": provider, **tables}.items()]
        (self.home / "shoal.toml").write_text("\n".join([*head, self._settings]))
        self.home.chmod(0o700)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            self.loop.do(self.platforms.fake(name).stop())
        self.loop.do(self.model.stop())
        self.loop.close()

    @contextmanager
    def run(self, role: str = "run", **settings: str) -> Generator["Running"]:
        """Run `shoal` in this role until the block ends. `settings` are environment variables."""
        named = {"SHOAL_MODEL__NAME": "fake/fake-1", "SHOAL_TURNS__RETRY_BASE_SECONDS": "0.01"}
        with process(role, self.home, named | settings) as self.process:
            for name in ("teams", "google_chat"):
                self.platforms.fake(name).call(f"{self.process.address}/platforms/{name}")
            until(lambda: self.platforms.are_connected(self._names))
            yield self

    # ---- the model ----

    def plays(self, word: str, *steps: Step | str | Script) -> None:
        """Set the model's replies to messages that contain this word: one step per request, or one script for all
        requests.
        """
        left = list(steps)

        def play(seen: Seen) -> Step | str:
            if not left:
                return Refusal(400, f"The script for {word!r} is at its end.")
            step = left[0] if len(left) == 1 and callable(left[0]) else left.pop(0)
            return step(seen) if callable(step) else step

        self._scripts[word] = play

    def _answer(self, seen: Seen) -> Step | str:
        texts = said(seen)
        for text in reversed(texts if texts and not _DIRECTIVE.search(texts[-1]) else []):
            if known := [word for word in self._scripts if word in text]:
                return self._scripts[max(known, key=len)](seen)
        return follow_directive(seen)

    def requests(self, word: str) -> list[Seen]:
        """Return the requests in which a message from a person contains this word."""
        log = self.loop.call(lambda: list(self.model.log))
        return [seen for seen in log if any(word in text for text in said(seen))]

    def open(self, gate: Gate) -> None:
        """Wait until a reply blocks at the gate, then open the gate."""
        until(gate.reached.is_set)
        self.loop.call(gate.open)

    # ---- conversations ----

    def says(
        self, thread: str, text: str, message_id: str = "", *, agent: str = "", attachments: Sequence[object] = ()
    ) -> Answer:
        """Send a message as the owner, without waiting for the reply."""
        given = {"message_id": message_id, "agent": agent, "attachments": attachments}
        body = {"text": text, **{name: value for name, value in given.items() if value}}
        return self.api(f"/api/threads/{quote(thread)}/messages", body)

    def asks(self, thread: str, text: str, *, agent: str = "", attachments: Sequence[object] = ()) -> str:
        """Send a message as the owner and return the reply."""
        turns = len(self.ends(thread, 0))
        assert self.says(thread, text, agent=agent, attachments=attachments).status == 202
        return str(self.ends(thread, turns + 1)[-1].data.get("reply", ""))

    def command(self, thread: str, text: str) -> str:
        """Send a slash command as the owner and return the response."""
        return str(self.api(f"/api/threads/{quote(thread)}/command", {"text": text}).json.get("answer"))

    def events(self, thread: str, kind: str = "") -> list[Entry]:
        """Return the events of a thread, optionally of one type. A thread that does not exist has no events."""
        answer = self.api(f"/api/threads/{quote(thread)}/events")
        found = self.process.events(thread) if answer.status == 200 else []
        return [event for event in found if not kind or event.type == kind]

    def ends(self, thread: str, turns: int = 1) -> list[Entry]:
        """Wait until this many turns of a thread have finished, and return their `turn_finished` events."""
        until(lambda: len(self.events(thread, "turn_finished")) >= turns)
        return self.events(thread, "turn_finished")

    def results(self, thread: str) -> list[str]:
        """Return the results of the tools in a thread."""
        return [str(event.data["text"]) for event in self.events(thread, "tool_result")]

    def approval(self, thread: str) -> dict[str, object]:
        """Wait until a thread requests an approval, and return it as decoded JSON."""

        def asked() -> list[dict[str, object]]:
            return [one for one in json.loads(self.api("/api/approvals").body) if one["thread"] == thread]

        until(lambda: bool(asked()))
        return asked()[0]

    # ---- API, command line and files ----

    def api(self, path: str, body: object = None, *, method: str = "") -> Answer:
        """Call the API as the owner. The status is 0 if the connection fails."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.process.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.process.address + path, data=data, headers=headers)
        if method:
            request.method = method
        try:
            with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read())
        except OSError:
            return Answer(0, b"")

    def listed(self, path: str) -> list[dict[str, object]]:
        """Return the list that the API serves at a path."""
        return json.loads(self.api(path).body)

    def listed_in(self, path: str, key: str) -> list[object]:
        """Return a list that is one field of an API response."""
        return json.loads(self.api(path).body)[key]

    def cli(
        self, *arguments: str, stdin: str = "", exit_code: int = 0, settings: Mapping[str, str] = NO_SETTINGS
    ) -> str:
        """Run `shoal` on this home directory and return its output. Includes error output if `exit_code` expects a
        failure.
        """
        known = {"SHOAL_MODEL__NAME": "fake/fake-1", **settings}
        done = command_line(self.home, *arguments, stdin=stdin, settings=known)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout + (done.stderr if exit_code else "")

    def folder(self, thread: str) -> Path:
        """Return the folder with the files of a thread."""
        return self.home / "data" / Path(*thread.split(":"))

    @property
    def workspace(self) -> Path:
        """The workspace of the default agent."""
        return self.home / "agents" / "main" / "workspace"

    @contextmanager
    def stream(self, path: str) -> Generator[Iterator[dict[str, object]]]:
        """Open a stream of server-sent events and yield an iterator over its events."""
        headers = {"Authorization": f"Bearer {self.process.token}", "Accept": "text/event-stream"}
        request = urllib.request.Request(self.process.address + path, headers=headers)
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            yield (json.loads(line[5:]) for line in answer if line.startswith(b"data:"))


def command_line(
    home: Path, *arguments: str, stdin: str = "", settings: Mapping[str, str] = NO_SETTINGS
) -> subprocess.CompletedProcess[str]:
    """Run `shoal` with a home directory. `settings` are environment variables."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [PROGRAM, "--home", str(home), *arguments],
        input=stdin, env={**kept, "HOME": str(home), **settings}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip


def call(tool: str, **arguments: object) -> Reply:
    """Return an assistant message that calls a tool."""
    return Reply(calls=(Call(tool, json.dumps(arguments)),))


def calls(*each: Reply) -> Reply:
    """Merge the calls of several assistant messages into one message."""
    return Reply(calls=tuple(one for reply in each for one in reply.calls))


def change(model: FakeModel, **settings: object) -> None:
    """Change settings of the fake model."""
    model.settings = msgspec.structs.replace(model.settings, **settings)


def _table(name: str, keys: Mapping[str, object]) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ""])
