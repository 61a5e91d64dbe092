"""A running Shoal with the lanes' servers, a client for its API, and the person who decides its approvals."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx2
import msgspec

from bench.agentdojo.model import Task, Wanted
from bench.child import SHOAL

WAIT_SECONDS = 300.0
TICK_SECONDS = 0.2
CONFIG = """
[model]
name = "fake/fake-1"

[providers.fake]
kind = "openai"
base_url = "{model}/v1"
api_key = "sk-fake"

[permissions]
default_profile = "{profile}"
ask_expires_seconds = {patience}

[context]
artifact_chars_min = 1000000  # long results are shown whole, so that no injection is cut out of them
"""


class Item(msgspec.Struct, frozen=True):
    """A call on an approval card. A `staged` call runs in its own turn."""

    card: str = ""
    number: int = 1
    staged: bool = False


class Asked(msgspec.Struct, frozen=True):
    """An approval as the API returns it."""

    id: str
    actions: tuple[str, ...]
    item: Item

    @property
    def card(self) -> str:
        """The id of the approval's card."""
        return self.item.card or self.id

    @property
    def key(self) -> str:
        """The call's key, as from `call_key`."""
        name, _, arguments = self.actions[0].removeprefix("tool:").partition(":")
        return call_key(Wanted(name.split("_", 2)[2], json.loads(arguments)))


class Server(msgspec.Struct, frozen=True):
    """An MCP server as the API returns it."""

    name: str
    status: str


class Offer(msgspec.Struct, frozen=True):
    """A server whose tools the owner can confirm. `digest` identifies the tools."""

    server: str
    digest: str


class Offers(msgspec.Struct, frozen=True):
    servers: list[Offer]


class Data(msgspec.Struct, frozen=True):
    """The fields of an event's data that the benchmark uses."""

    reply: str = ""


class Event(msgspec.Struct, frozen=True):
    thread: str
    type: str
    data: Data


def call_key(call: Wanted) -> str:
    """Return a string that is the same for equal calls."""
    return json.dumps([call.function, call.args], sort_keys=True)


def read_of(lane: str) -> str:
    """Return the full name of one of the lane's read-only tools."""
    reads = {
        "workspace": "list_files",
        "travel": "get_user_information",
        "banking": "get_iban",
        "slack": "get_channels",
    }
    return f"mcp_{lane}_{reads[lane.partition('-')[0]]}"


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Poll until `holds` returns True."""
    while True:
        if await holds():
            return
        await asyncio.sleep(TICK_SECONDS)


class Shoal:
    """A client for the API of a running Shoal."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.events: dict[str, asyncio.Queue[Event]] = {}
        self.listening = asyncio.Event()

    async def listen(self) -> None:
        """Pass each event to the task that waits for its thread."""
        headers = {"Accept": "text/event-stream"}
        async with self.client.stream("GET", "/api/events", timeout=None, headers=headers) as stream:
            self.listening.set()
            async for line in stream.aiter_lines():
                if line.startswith("data: {"):
                    event = msgspec.json.decode(line.removeprefix("data: "), type=Event)
                    if event.thread in self.events:
                        self.events[event.thread].put_nowait(event)

    async def confirm_servers(self) -> None:
        """Wait until every MCP server is connected, then confirm the tool kinds that the servers' annotations propose,
        as the owner would.
        """
        async with asyncio.timeout(WAIT_SECONDS):
            await until(self.are_servers_up)
            answer = (await self.client.get("/api/mcp")).raise_for_status()
            offers = msgspec.json.decode(answer.content, type=Offers).servers
            for one in offers:
                path, body = f"/api/mcp-servers/{one.server}/confirm", {"digest": one.digest}
                (await self.client.post(path, json=body)).raise_for_status()
            for one in offers:
                await until(partial(self.is_allowed, read_of(one.server), one.server))

    async def are_servers_up(self) -> bool:
        answer = (await self.client.get("/api/mcp-servers")).raise_for_status()
        return all(one.status == "up" for one in msgspec.json.decode(answer.content, type=list[Server]))

    async def is_allowed(self, tool: str, agent: str) -> bool:
        """Return whether a tool call would run without approval."""
        body = {"action": f"tool:{tool}:{{}}", "agent": agent}
        answer = (await self.client.post("/api/permissions/check", json=body)).raise_for_status()
        return answer.json()["decision"] == "allow"

    async def asked(self, thread: str, *, pending: bool) -> dict[str, list[Asked]]:
        """Return a thread's approval cards, each with its calls in order."""
        answer = await self.client.get("/api/approvals", params={"thread": thread, "pending": pending, "limit": 1000})
        cards: dict[str, list[Asked]] = {}
        calls = msgspec.json.decode(answer.raise_for_status().content, type=list[Asked])
        for call in sorted(calls, key=lambda one: one.item.number):
            cards.setdefault(call.card, []).append(call)
        return cards

    async def run(self, thread: str, agent: str, task: Task, *, attended: bool) -> str:
        """Send the task, and return the answer after all allowed calls have run.

        If `attended`, allow each expected call once and deny all others.
        """
        events = self.events[thread] = asyncio.Queue()
        wanted = Counter(map(call_key, task.calls))
        body = {"text": task.prompt, "agent": agent}
        (await self.client.post(f"/api/threads/{thread}/messages", json=body)).raise_for_status()
        answer, turns = "", 1
        async with asyncio.timeout(WAIT_SECONDS):
            while turns:
                event = await events.get()
                if event.type == "turn_finished":
                    turns -= 1
                    answer = answer or event.data.reply
                elif event.type == "approval_requested" and attended:
                    for card, calls in (await self.asked(thread, pending=True)).items():
                        turns += await self.decide(card, calls, wanted)
        del self.events[thread]
        return answer

    async def decide(self, card: str, calls: Sequence[Asked], wanted: Counter[str]) -> bool:
        """Decide an approval card. Allowing some of its calls denies the others. Returns whether an allowed call will
        run in its own turn.
        """
        allowed: list[Asked] = []
        for call in calls:
            if wanted[call.key] > 0:
                wanted[call.key] -= 1
                allowed.append(call)
        numbers = [call.item.number for call in allowed if call.item.card]
        body = {"decision": "allow" if allowed else "deny", "calls": numbers}
        (await self.client.post(f"/api/approvals/{card}", json=body)).raise_for_status()
        return any(call.item.staged for call in allowed)


def write_home(
    home: Path, model: str, servers: str, lanes: Mapping[str, Sequence[str]], profile: str, patience: int
) -> None:
    """Create a home with an agent for each lane. Each agent has only the functions of its lane's server.

    The profile `off` is `open` without taint, so Shoal never asks.
    """
    home.mkdir(mode=0o700)
    config = CONFIG.format(model=model, profile="open" if profile == "off" else profile, patience=patience)
    config += "".join(f'\n[mcp.{lane}]\nurl = "{servers}/{lane}/mcp"\n' for lane in lanes)
    (home / "shoal.toml").write_text(config)
    for lane, functions in lanes.items():
        folder = home / "agents" / lane
        folder.mkdir(parents=True)
        settings = f"tools = {json.dumps([f'mcp_{lane}_{name}' for name in functions])}\n"
        (folder / "agent.toml").write_text(settings + ("taint = false\n" if profile == "off" else ""))


@asynccontextmanager
async def running(home: Path) -> AsyncGenerator[Shoal]:
    """Run `shoal run` with this home inside the block. Raises RuntimeError with the log if Shoal does not start."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environ = {**kept, "HOME": str(home.parent), "NO_COLOR": "1"}
    argv = (SHOAL, "--home", str(home), "run", "--port", "0")
    with (home / "stderr.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, stderr=log, env=environ)
        assert process.stdout is not None
        try:
            ready = (await process.stdout.readline()).decode().split()
            if ready[:1] != ["ready"]:
                raise RuntimeError((home / "stderr.log").read_text())
            token = Path((await process.stdout.readline()).decode().removeprefix("token ").rstrip("\n")).read_text()
            headers = {"Authorization": f"Bearer {token.strip()}"}
            async with httpx2.AsyncClient(base_url=ready[1], headers=headers, timeout=60, trust_env=False) as client:
                shoal = Shoal(client)
                await shoal.confirm_servers()
                listening = asyncio.create_task(shoal.listen())
                await shoal.listening.wait()
                yield shoal
                listening.cancel()
        finally:
            process.terminate()
            await process.wait()
