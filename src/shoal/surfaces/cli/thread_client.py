"""A client of one thread, for `shoal ask` and `shoal chat`. It calls the running server of this home directory, or
an application that it starts in this process.
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


@asynccontextmanager
async def open_thread(
    context: CommandContext, thread: ThreadId | None, *, channel: str
) -> AsyncGenerator[tuple["ThreadClient", ThreadId]]:
    """Open a client of a thread. If `thread` is None, use a new thread in the terminal channel `channel`.

    If no server runs for this home directory, this starts Shoal in this process. Raises the errors of `open_app`.
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
    """A client of one thread, for the person at the terminal.

    place: where Shoal runs, as shown in messages.
    terminal: the adapter that posts to terminals, or None if another process delivers posts.
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
        """Send a prompt. Return its message id, which identifies the turn, or an empty string if the mailbox is full.

        Raises InvalidInput for an unknown agent.
        """
        try:
            body = {"text": text, "agent": agent}
            answer = await self._client.call("POST", f"{self._path}/messages", body, into=dict[str, object])
        except Busy:
            return ""
        return str(answer["message_id"])

    async def steer(self, text: str) -> bool:
        """Send a message to the running turn. Return False if no turn is running."""
        return await self._deliver("steer", {"text": text})

    async def abort(self, *, all_queued: bool) -> bool:
        """End the running turn. Return False if no turn is running."""
        return await self._deliver("abort", {"all_queued": all_queued})

    async def clear(self) -> None:
        await self._client.call("POST", f"{self._path}/clear")

    async def decide(self, approval: ApprovalId, *, allow: bool, scope: Scope) -> str:
        """Decide an approval and return its new state. Raises NotFound, Conflict or Gone."""
        body = {"decision": "allow" if allow else "deny", "scope": scope}
        answer = await self._client.call("POST", f"/api/approvals/{path_part(approval)}", body, into=dict[str, str])
        return answer["state"]

    async def decide_card(self, card: CardId, *, allow: bool, numbers: Sequence[int]) -> ApprovalDecided:
        """Decide the pending calls with these numbers on a card, or all of its pending calls if `numbers` is empty.
        Raises NotFound, Conflict, Gone and InvalidInput.
        """
        body = {"decision": "allow" if allow else "deny", "calls": list(numbers)}
        return await self._client.call("POST", f"/api/approvals/{path_part(card)}", body, into=ApprovalDecided)

    async def always(self, asked: ApprovalId | CardId, numbers: Sequence[int]) -> str:
        """Allow a call, or calls on a card, and create rules that always allow them. Return a message for the person.

        Raises Forbidden, and the errors of `decide_card`.
        """
        body = {"decision": "allow", "scope": "always", "calls": list(numbers)}
        answer = await self._client.call("POST", f"/api/approvals/{path_part(asked)}", body, into=dict[str, str])
        return answer["message"]

    async def take_back(self, named: str) -> str:
        """Remove the rule that a card created. `named` is the card's id, or the end of the id. Return a message
        for the person. Raises NotFound and Conflict.
        """
        path = f"/api/approvals?pending=false&thread={path_part(self._thread)}"
        asked = await self._client.call("GET", path, into=list[ApprovalView])
        names = [approval.item.card or approval.id for approval in asked if approval.scope in ("always", "withdrawn")]
        name = next((name for name in names if name.upper().endswith(named.upper())), named)
        answer = await self._client.call("DELETE", f"/api/approvals/{path_part(name)}/always", into=dict[str, str])
        return answer["message"]

    async def command(self, text: str) -> str:
        """Run a slash command and return the reply, which is Markdown and may be empty."""
        return (await self._client.call("POST", f"{self._path}/command", {"text": text}, into=dict[str, str]))["answer"]

    async def commands(self) -> list[CommandSpec]:
        return await self._client.call("GET", "/api/commands", into=list[CommandSpec])

    async def watch(self, after: int) -> AsyncGenerator[Event | LiveEvent]:
        """Yield the thread's events after number `after`, then live events. Reconnects after the server restarts."""
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
        """Pass the thread's posts to `show` until the context exits. Does nothing if another process delivers them."""
        return self._terminal.attach(self._thread, show) if self._terminal is not None else nullcontext()

    async def _deliver(self, call: str, body: object) -> bool:
        return (await self._client.call("POST", f"{self._path}/{call}", body, into=dict[str, bool]))["delivered"]


# ---- decoding of events ----


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
    item = msgspec.json.decode(content, type=_ReceivedEvent)
    live = LIVE_CLASSES.get(item.type)
    return LiveEvent(item.thread, item.turn, msgspec.json.decode(item.data, type=live)) if live else item.event()


def decode_event(content: msgspec.Raw) -> Event:
    return msgspec.json.decode(content, type=_ReceivedEvent).event()
