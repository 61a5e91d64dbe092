"""A client of one thread, for `shoal ask` and `shoal chat`. It uses the running server of this home directory, or
starts one in this process.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from shoal.kernel.clock import SystemClock
from shoal.kernel.commands import CommandSpec
from shoal.kernel.errors import NotFound, ShoalError
from shoal.kernel.events import LIVE_CLASSES, Event, LiveEvent, Scope, decode_data
from shoal.kernel.ids import ApprovalId, CardId, ThreadId, TurnId, make_thread_id
from shoal.kernel.posts import OutboundPost
from shoal.kernel.records import ThreadInfo
from shoal.surfaces.cli.client import Busy, Client, client_of, find_server, path_part, started
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.http.approval_views import ApprovalDecided, ApprovalView

if TYPE_CHECKING:
    from shoal.platforms.local import TerminalAdapter

RECONNECT_SECONDS = 1.0
RECONNECTS_MAX = 30
"""Maximum number of attempts to reconnect, one every RECONNECT_SECONDS."""


@asynccontextmanager
async def open_thread(
    context: CommandContext, thread: ThreadId | None, *, channel: str
) -> AsyncGenerator[tuple["ThreadClient", ThreadId]]:
    """Open a thread, or a new thread in a terminal channel if none is named.

    Starts Shoal in this process unless a server runs for this home directory. Raises the errors of starting.
    """
    chosen = thread or make_thread_id("terminal", channel, SystemClock().new_id())
    server = find_server(context)
    if server is not None:
        yield ThreadClient(server, chosen), chosen
        return
    from shoal.connections import Connections
    from shoal.platforms.local import TerminalAdapter
    from shoal.surfaces.cli.init import make_home

    make_home(context.home)
    async with started(context) as services, client_of(services) as client:
        terminal = services[Connections].adapters.get("terminal")
        yield ThreadClient(client, chosen, terminal if isinstance(terminal, TerminalAdapter) else None), chosen


class ThreadClient:
    """A thread, for the person at the terminal. `place` names the Shoal that runs it.

    `terminal` is this process's adapter that posts to terminals, if Shoal runs in it.
    """

    def __init__(self, client: Client, thread: ThreadId, terminal: "TerminalAdapter | None" = None) -> None:
        self._client = client
        self._thread = thread
        self._terminal = terminal
        self._path = f"/api/threads/{path_part(thread)}"
        self.place = client.place

    async def standing(self) -> ThreadInfo | None:
        """Return the thread's state, or None before its first message."""
        try:
            return await self._client.call("GET", self._path, into=ThreadInfo)
        except NotFound:
            return None

    async def send(self, text: str, agent: str) -> str:
        """Send a prompt and return its message id, which identifies its turn, or an empty string if the mailbox is
        full.

        Raises InvalidInput for an unknown agent.
        """
        try:
            body = {"text": text, "agent": agent}
            answer = await self._client.call("POST", f"{self._path}/messages", body, into=dict[str, object])
        except Busy:
            return ""
        return str(answer["message_id"])

    async def steer(self, text: str) -> bool:
        """Send a message to the running turn. Return False if no turn runs."""
        return await self._deliver("steer", {"text": text})

    async def abort(self, *, all_queued: bool) -> bool:
        """End the running turn. Return False if no turn runs."""
        return await self._deliver("abort", {"all_queued": all_queued})

    async def clear(self) -> None:
        """Clear the model's context window."""
        await self._client.call("POST", f"{self._path}/clear")

    async def decide(self, approval: ApprovalId, *, allow: bool, scope: Scope) -> str:
        """Decide an approval and return its new state. Raises NotFound, Conflict or Gone."""
        body = {"decision": "allow" if allow else "deny", "scope": scope}
        answer = await self._client.call("POST", f"/api/approvals/{path_part(approval)}", body, into=dict[str, str])
        return answer["state"]

    async def decide_card(self, card: CardId, *, allow: bool, numbers: Sequence[int]) -> ApprovalDecided:
        """Decide pending calls of a card. Raises NotFound, Conflict, Gone, InvalidInput."""
        body = {"decision": "allow" if allow else "deny", "calls": list(numbers)}
        return await self._client.call("POST", f"/api/approvals/{path_part(card)}", body, into=ApprovalDecided)

    async def always(self, asked: ApprovalId | CardId, numbers: Sequence[int]) -> str:
        """Allow a call, or calls of a card, and create their rules. Return a message. Raises the errors of
        `decide_card`, and Forbidden.
        """
        body = {"decision": "allow", "scope": "always", "calls": list(numbers)}
        answer = await self._client.call("POST", f"/api/approvals/{path_part(asked)}", body, into=dict[str, str])
        return answer["message"]

    async def take_back(self, named: str) -> str:
        """Remove a card's rule, given by its id or the id's end. Return a message. Raises NotFound and Conflict."""
        path = f"/api/approvals?pending=false&thread={path_part(self._thread)}"
        asked = await self._client.call("GET", path, into=list[ApprovalView])
        names = [approval.item.card or approval.id for approval in asked if approval.scope in ("always", "withdrawn")]
        name = next((name for name in names if name.upper().endswith(named.upper())), named)
        answer = await self._client.call("DELETE", f"/api/approvals/{path_part(name)}/always", into=dict[str, str])
        return answer["message"]

    async def command(self, text: str) -> str:
        """Run a slash command of the chats, and return its answer."""
        return (await self._client.call("POST", f"{self._path}/command", {"text": text}, into=dict[str, str]))["answer"]

    async def commands(self) -> list[CommandSpec]:
        """Return the slash commands of all platforms."""
        return await self._client.call("GET", "/api/commands", into=list[CommandSpec])

    async def watch(self, after: int) -> AsyncGenerator[Event | LiveEvent]:
        """Yield the live stream. It resumes after a restart of the server."""
        seq, failures = after, 0
        while True:
            try:
                async with aclosing(self._client.stream(f"{self._path}/events?after={seq}")) as lines:
                    async for line in lines:
                        item = decode_item(line)
                        failures = 0
                        seq = item.seq if isinstance(item, Event) else seq
                        yield item
            except ShoalError:
                if failures >= RECONNECTS_MAX or not self._client.is_remote:
                    raise
            if not self._client.is_remote:
                return
            failures += 1
            await asyncio.sleep(RECONNECT_SECONDS)

    def posts(self, show: Callable[[OutboundPost], None]) -> AbstractContextManager[None]:
        """Show the thread's posts inside the context, if this process delivers them."""
        return self._terminal.attach(self._thread, show) if self._terminal is not None else nullcontext()

    async def _deliver(self, call: str, body: object) -> bool:
        return (await self._client.call("POST", f"{self._path}/{call}", body, into=dict[str, bool]))["delivered"]


# ---- events in the API's form ----


class _ReceivedEvent(msgspec.Struct):
    type: str
    thread: ThreadId
    turn: TurnId
    data: msgspec.Raw
    seq: int
    at: datetime

    def event(self) -> Event:
        return Event(self.seq, self.thread, self.turn, self.at, decode_data(self.type, bytes(self.data)))


def decode_item(content: bytes) -> Event | LiveEvent:
    """Decode a journal event or live event from the API."""
    item = msgspec.json.decode(content, type=_ReceivedEvent)
    live = LIVE_CLASSES.get(item.type)
    return LiveEvent(item.thread, item.turn, msgspec.json.decode(item.data, type=live)) if live else item.event()


def decode_event(content: msgspec.Raw) -> Event:
    """Decode a journal event from the API."""
    return msgspec.json.decode(content, type=_ReceivedEvent).event()
