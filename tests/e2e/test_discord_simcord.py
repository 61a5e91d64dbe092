"""The complete application against simcord, an independent simulation of Discord with its own validation."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import httpx2
import msgspec
import pytest

from shoal.agents.registry import AgentRegistry
from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.net.connections import default_tls
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.model import Call, FakeModel, Gate, Reply
from shoal.testing.scenario import FakeModels

pytestmark = pytest.mark.slow

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 60.0
TEXT_CHARS_MAX = 2000
THREAD_CREATED = 18
"""Type of the note that Discord posts in the name of the person who opened a thread."""


class Shown(msgspec.Struct, frozen=True):
    """A message. A `hidden` message is visible only to the person who ran the command."""

    id: str
    channel: str
    text: str
    labels: tuple[str, ...]
    bot: bool
    edited: bool
    hidden: bool
    kind: int
    files: tuple[str, ...]


class Heard(msgspec.Struct, frozen=True):
    """A command or click, and the id of the reply's message. While `loading`, the reply is not complete."""

    message: str
    loading: bool
    ephemeral: bool


class World(msgspec.Struct, frozen=True):
    """Everything visible in the simulation.

    - commands: the commands that the bot registered.
    - refused: the bot's failed calls, with status and error code.
    """

    changes: int
    messages: tuple[Shown, ...]
    threads: dict[str, str]
    heard: dict[str, Heard]
    commands: tuple[str, ...]
    refused: tuple[tuple[str, str, int, int], ...]

    def said(self, channel: str) -> list[Shown]:
        return [
            message
            for message in self.messages
            if message.channel == channel and message.bot and not message.hidden and message.kind != THREAD_CREATED
        ]


class Pier(msgspec.Struct, frozen=True):
    """The running simulation, with Ada in it."""

    address: str
    token: str
    bot: str
    ada: str
    harbour: str
    direct: str

    async def does(self, verb: str, **what: str) -> str:
        arguments: Mapping[str, object] = {
            name: int(value) if name in ("channel", "message") else value for name, value in what.items()
        }
        async with httpx2.AsyncClient(verify=default_tls()) as http:
            answer = await http.post(f"{self.address}/people/{verb}", json=arguments)
        assert answer.status_code == 200, answer.text
        return str(answer.json())

    async def until(self, found: Callable[[World], T | None]) -> T:
        seen = -1
        async with asyncio.timeout(SECONDS_MAX), httpx2.AsyncClient(verify=default_tls(), timeout=SECONDS_MAX) as http:
            while True:
                answer = await http.get(f"{self.address}/people/world", params={"after": seen})
                world = msgspec.json.decode(answer.content, type=World)
                there = found(world)
                if there is not None:
                    return there
                seen = world.changes

    async def sees(self, channel: str, part: str) -> Shown:
        def found(world: World) -> Shown | None:
            finished = (message for message in world.said(channel) if not message.text.endswith(" …"))
            return next((message for message in finished if part in message.text), None)

        return await self.until(found)

    async def hears(self, heard: str) -> tuple[Heard, Shown]:
        def answered(world: World) -> tuple[Heard, Shown] | None:
            one = world.heard[heard]
            message = next((message for message in world.messages if message.id == one.message), None)
            return (one, message) if message is not None and not one.loading else None

        return await self.until(answered)

    async def refused(self) -> list[tuple[str, str, int, int]]:
        """Return the bot's failed calls, except lookups of threads that do not exist yet."""
        refused = await self.until(lambda world: world.refused)
        return [call for call in refused if call[3] != 10003]


@pytest.fixture
def pier() -> Iterator[Pier]:
    setup = subprocess.run(
        [ROOT / "scripts" / "counterpart.sh", "simcord"], check=False, capture_output=True, text=True
    )
    if setup.returncode:
        pytest.skip(setup.stderr.strip())
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "simcord" / "python")}
    argv = [sys.executable, str(ROOT / "tests" / "e2e" / "simcord_server.py")]
    with subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield msgspec.json.decode(process.stdout.readline(), type=Pier)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(SECONDS_MAX) == 0


@asynccontextmanager
async def running(home: Path, pier: Pier, model: FakeModel, profile: str = "open") -> AsyncGenerator[Services]:
    account: Mapping[str, object] = {"token": pier.token, "api_base": f"{pier.address}/api/v10", "owner": pier.ada}
    overrides: Mapping[str, object] = {
        "platforms": {"discord": [account]},
        "permissions": {"default_profile": profile},
        "sandbox": {"kind": "host"},
    }
    parts = Overrides(models=FakeModels(model), sandbox=HostSandbox())
    async with open_app(load_config(home, {}, overrides), parts) as app:
        await pier.until(lambda world: world.commands or None)
        yield app


async def test_a_mention_is_answered_in_a_thread_that_is_followed(tmp_path: Path, pier: Pier) -> None:
    async with running(tmp_path, pier, FakeModel("Hello in here", "And again")):
        asked = await pier.does("says", channel=pier.harbour, text=f"<@{pier.bot}> what is the tide?")
        await pier.sees(asked, "Hello in here")
        await pier.does("says", channel=asked, text="thanks, and tomorrow?")
        await pier.sees(asked, "And again")
        assert await pier.until(lambda world: world.threads) == {asked: "what is the tide?"}
        assert await pier.until(lambda world: [world.said(pier.harbour)]) == [[]]
        assert await pier.refused() == []


async def test_a_preview_is_edited_into_the_answer(tmp_path: Path, pier: Pier) -> None:
    gate = Gate()
    model = FakeModel(Reply("Let me count: one, two, three, four, five", gate=gate, gate_at=2))
    async with running(tmp_path, pier, model):
        await pier.does("says", channel=pier.direct, text="count")
        preview = await pier.until(lambda world: next(iter(world.said(pier.direct)), None))
        assert preview is not None
        assert preview.text.endswith(" …")
        gate.open()
        answer = await pier.sees(pier.direct, "four, five")
    assert (answer.id, answer.edited) == (preview.id, True)


async def test_no_message_exceeds_discords_limit(tmp_path: Path, pier: Pier) -> None:
    text = "\n\n".join(f"Paragraph {number}: " + "the tide comes and goes. " * 12 for number in range(18))
    async with running(tmp_path, pier, FakeModel(text)):
        await pier.does("says", channel=pier.direct, text="tell me all")
        await pier.sees(pier.direct, "Paragraph 17")
        said = await pier.until(lambda world: world.said(pier.direct))
        assert await pier.refused() == []
    assert len(said) >= len(text) // TEXT_CHARS_MAX
    assert all(len(message.text) <= TEXT_CHARS_MAX for message in said)
    assert [word for message in said for word in message.text.split()] == text.split()


async def test_the_simulation_refuses_a_message_that_is_too_long(pier: Pier) -> None:
    async with httpx2.AsyncClient(verify=default_tls(), headers={"authorization": f"Bot {pier.token}"}) as http:
        url = f"{pier.address}/api/v10/channels/{pier.direct}/messages"
        answer = await http.post(url, json={"content": "x" * (TEXT_CHARS_MAX + 1)})
    assert (answer.status_code, answer.json()["code"]) == (400, 50035)
    assert await pier.refused() == [("POST", f"/channels/{pier.direct}/messages", 400, 50035)]


async def test_a_button_gives_an_approval(tmp_path: Path, pier: Pier) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "echo x > made"}'),)), "It is made.")
    async with running(tmp_path, pier, model, profile="standard") as app:
        await pier.does("says", channel=pier.direct, text="go")
        card = await pier.sees(pier.direct, "echo x > made")
        assert "Allow once" in card.labels
        clicked = await pier.does("clicks", channel=pier.direct, message=card.id, label="Allow once")
        heard, answer = await pier.hears(clicked)
        assert (heard.ephemeral, answer.hidden, answer.text) == (True, True, "Allowed.")
        await pier.sees(pier.direct, "It is made.")
        ran = await pier.sees(pier.direct, "it ran")
        assert (ran.id, ran.labels) == (card.id, ())
        assert await asyncio.to_thread((app[AgentRegistry].spec("main").workspace / "made").read_text) == "x\n"
        assert await pier.refused() == []


async def test_the_answer_to_a_slash_command_is_shown_only_to_its_author(tmp_path: Path, pier: Pier) -> None:
    async with running(tmp_path, pier, FakeModel("never")):
        command = await pier.does("commands", channel=pier.harbour, name="status")
        heard, answer = await pier.hears(command)
        assert (heard.ephemeral, answer.hidden) == (True, True)
        assert "This channel has no messages yet" in answer.text
        command = await pier.does("commands", channel=pier.harbour, name="steer", text="faster")
        assert (await pier.hears(command))[1].hidden
        assert await pier.until(lambda world: [world.said(pier.harbour)]) == [[]]
        assert await pier.refused() == []


async def test_a_reaction_stops_the_turn(tmp_path: Path, pier: Pier) -> None:
    gate = Gate()
    model = FakeModel(Reply("Let me count: one, two, three, four, five", gate=gate, gate_at=2))
    async with running(tmp_path, pier, model) as app:
        await pier.does("says", channel=pier.direct, text="count")
        preview = await pier.until(lambda world: next(iter(world.said(pier.direct)), None))
        assert preview is not None
        async with asyncio.timeout(SECONDS_MAX):  # a person reacts more slowly than the bot records its message
            while await app[Store].outbox.thread_of(f"discord:{pier.direct}:", preview.id) is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await pier.does("reacts", channel=pier.direct, message=preview.id, emoji="❌")
        assert (await pier.sees(pier.direct, "Stopped")).id == preview.id


async def test_a_file_is_posted_in_the_thread(tmp_path: Path, pier: Pier) -> None:
    call = Reply(calls=(Call("bash", '{"command": "echo high > tides.txt"}'),))
    model = FakeModel(call, Reply(calls=(Call("upload", '{"path": "tides.txt"}'),)), "Sent.")
    async with running(tmp_path, pier, model):
        asked = await pier.does("says", channel=pier.harbour, text=f"<@{pier.bot}> the table, please")
        await pier.sees(asked, "Sent.")
        said = await pier.until(lambda world: world.said(asked))
        assert await pier.refused() == []
    assert [message.files for message in said if message.files] == [("tides.txt",)]
