"""Socket Mode of the fake Slack: one-time URLs, envelopes that must be confirmed, and forced disconnects."""

import itertools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import msgspec

from shoal.testing.platforms.wire import Given, Json, LoopbackSocket

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection


class SocketSide(LoopbackSocket):
    """A Socket Mode server. It sends envelopes to the newest connection and resends unacknowledged envelopes on
    a new connection.
    """

    def __init__(self, on_change: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.pending: dict[str, Given] = {}
        self.opened = 0
        self._on_change = on_change
        self._tickets: set[str] = set()
        self._numbers = itertools.count(1)

    def ticket(self) -> str:
        """Return the URL for the next connection. The URL works only once."""
        ticket = f"ticket-{next(self._numbers)}"
        self._tickets.add(ticket)
        return f"{self.url}/link/?ticket={ticket}&app_id=A1"

    async def send(self, kind: str, payload: Json) -> None:
        """Send an envelope to the newest connection. If no client is connected, send it to the next connection."""
        envelope_id = f"envelope-{next(self._numbers)}"
        envelope: Given = {
            "envelope_id": envelope_id, "type": kind, "payload": payload,
            "accepts_response_payload": kind != "events_api",
        }  # fmt: skip
        self.pending[envelope_id] = envelope
        if self.connections:
            await self._write(self.connections[-1], envelope)

    async def ask_to_reconnect(self, reason: str = "refresh_requested") -> None:
        """Ask the newest connection to reconnect, as Slack does every few hours. It receives no more envelopes."""
        connection = self.connections.pop()
        await self._write(connection, {"type": "disconnect", "reason": reason, "debug_info": {"host": "applink-1"}})

    async def serve(self, connection: "ServerConnection") -> None:
        from websockets.exceptions import ConnectionClosed

        request = connection.request
        ticket = parse_qs(urlsplit(request.path).query).get("ticket", [""])[-1] if request is not None else ""
        if ticket not in self._tickets:
            await connection.close(1008, "the ticket is unknown or was already used")
            return
        self._tickets.discard(ticket)
        self.opened += 1
        try:
            hello: Given = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A1"}}
            await self._write(connection, hello)
            self.connections.append(connection)
            for envelope in tuple(self.pending.values()):
                await self._write(connection, {**envelope, "retry_attempt": 1, "retry_reason": "timeout"})
            async for frame in connection:
                answer: Given = msgspec.json.decode(frame)
                self.pending.pop(str(answer.get("envelope_id")), None)
                await self._on_change()
        except ConnectionClosed:
            pass
        finally:
            if connection in self.connections:
                self.connections.remove(connection)

    async def _write(self, connection: "ServerConnection", frame: Given) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await connection.send(msgspec.json.encode(frame).decode())
        except ConnectionClosed:
            return  # the next connection gets the unconfirmed envelopes
