"""A thread of the Shoal that runs already, over its HTTP API."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from shoal.domain.errors import NotFound, ShoalError
from shoal.domain.events import Event, LiveEvent, Scope, StatusChanged, TextStreamed, decode_data
from shoal.domain.ids import ApprovalId, ThreadId, TurnId
from shoal.domain.posts import OutboundPost
from shoal.surfaces.cli.link import Sent, Standing
from shoal.surfaces.cli.remote import Busy, Remote, part

RECONNECT_SECONDS = 1.0
RECONNECTS_MAX = 30
"""How often a server that went away is looked for, once every RECONNECT_SECONDS, before giving up."""


class _Thread(msgspec.Struct):
    agent: str
    last_seq: int
    open_turn: str
    queued: int


class _Accepted(msgspec.Struct):
    message_id: str


class _Delivered(msgspec.Struct):
    delivered: bool


class _Decided(msgspec.Struct):
    state: str


class _Answered(msgspec.Struct):
    answer: str


class _Item(msgspec.Struct):
    type: str
    thread: ThreadId
    turn: TurnId
    data: msgspec.Raw
    seq: int = 0
    at: str = ""


class RemoteLink:
    """Implements `Link` over the API."""

    def __init__(self, remote: Remote, thread: ThreadId) -> None:
        self._remote = remote
        self._path = f"/api/threads/{part(thread)}"
        self.place = f"the Shoal at {remote.address}"

    async def standing(self) -> Standing | None:
        """How the thread stands."""
        try:
            found = msgspec.json.decode(await self._remote.call("GET", self._path), type=_Thread)
        except NotFound:
            return None
        return Standing(found.agent, found.last_seq, bool(found.open_turn), found.queued)

    async def send(self, text: str, agent: str) -> Sent:
        """Send a prompt."""
        try:
            answer = await self._remote.call("POST", f"{self._path}/messages", {"text": text, "agent": agent})
        except Busy:
            return Sent(accepted=False, message_id="")
        return Sent(accepted=True, message_id=msgspec.json.decode(answer, type=_Accepted).message_id)

    async def steer(self, text: str) -> bool:
        """Hand a message to the running turn."""
        return await self._deliver("steer", {"text": text})

    async def abort(self, *, all_queued: bool) -> bool:
        """End the running turn."""
        return await self._deliver("abort", {"all_queued": all_queued})

    async def clear(self) -> None:
        """Start the model's window anew."""
        await self._remote.call("POST", f"{self._path}/clear")

    async def decide(self, approval: ApprovalId, *, allow: bool, scope: Scope) -> str:
        """Settle an approval."""
        body = {"decision": "allow" if allow else "deny", "scope": scope}
        answer = await self._remote.call("POST", f"/api/approvals/{part(approval)}", body)
        return msgspec.json.decode(answer, type=_Decided).state

    async def command(self, text: str) -> str:
        """Do what a slash command of the chats does."""
        answer = await self._remote.call("POST", f"{self._path}/command", {"text": text})
        return msgspec.json.decode(answer, type=_Answered).answer

    async def watch(self, after: int) -> AsyncGenerator[Event | LiveEvent]:
        """The live stream, taken up where it broke off when the server was restarted."""
        seq, failures = after, 0
        while True:
            try:
                async for line in self._remote.stream(f"{self._path}/events?after={seq}"):
                    item = _decode(line)
                    failures = 0
                    seq = item.seq if isinstance(item, Event) else seq
                    yield item
            except ShoalError:
                if failures >= RECONNECTS_MAX:
                    raise
            failures += 1
            await asyncio.sleep(RECONNECT_SECONDS)

    def posts(self, show: Callable[[OutboundPost], None]) -> AbstractContextManager[None]:
        """The server posts; its journal shows what."""
        return nullcontext()

    async def _deliver(self, call: str, body: object) -> bool:
        answer = await self._remote.call("POST", f"{self._path}/{call}", body)
        return msgspec.json.decode(answer, type=_Delivered).delivered


def _decode(line: bytes) -> Event | LiveEvent:
    from datetime import datetime

    item = msgspec.json.decode(line, type=_Item)
    match item.type:
        case TextStreamed.type:
            return LiveEvent(item.thread, item.turn, msgspec.json.decode(item.data, type=TextStreamed))
        case StatusChanged.type:
            return LiveEvent(item.thread, item.turn, msgspec.json.decode(item.data, type=StatusChanged))
        case _:
            data = decode_data(item.type, bytes(item.data))
            return Event(item.seq, item.thread, item.turn, datetime.fromisoformat(item.at), data)
