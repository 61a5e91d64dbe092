"""Socket Mode's side of the fake: one-time addresses, envelopes until they are confirmed, and asked disconnects."""

import itertools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs, urlsplit

import msgspec

from shoal.testing.platforms.slack_wire import Given, Json

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection


class SocketSide:
    """Serves on a free port of loopback between `start` and `stop`; what is not confirmed comes again."""

    def __init__(self, on_change: Callable[[], Awaitable[None]]) -> None:
        self.pending: dict[str, Given] = {}
        self.opened = 0
        self._on_change = on_change
        self._server: Server | None = None
        self._port = 0
        self._tickets: set[str] = set()
        self._connections: list[ServerConnection] = []
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Listen. The port stays the same when it is started again."""
        from websockets.asyncio.server import serve

        self._server = await serve(self._serve, "127.0.0.1", self._port, ping_interval=None)
        self._port = int(next(iter(self._server.sockets)).getsockname()[1])

    async def stop(self) -> None:
        """Close the listener and every connection."""
        server, self._server = self._server, None
        if server is not None:
            self.drop()
            server.close()
            await server.wait_closed()

    def drop(self) -> None:
        """Break every connection."""
        for connection in self._connections:
            connection.transport.abort()
        self._connections.clear()

    def ticket(self) -> str:
        """The address of the next connection; it can be used once."""
        ticket = f"ticket-{next(self._numbers)}"
        self._tickets.add(ticket)
        return f"ws://127.0.0.1:{self._port}/link/?ticket={ticket}&app_id=A1"

    async def send(self, kind: Literal["events_api", "interactive", "slash_commands"], payload: Json) -> None:
        """Give an envelope to the newest connection, or to the next one."""
        envelope_id = f"envelope-{next(self._numbers)}"
        envelope: Given = {
            "envelope_id": envelope_id, "type": kind, "payload": payload,
            "accepts_response_payload": kind != "events_api",
        }  # fmt: skip
        self.pending[envelope_id] = envelope
        if self._connections:
            await self._write(self._connections[-1], envelope)

    async def ask_to_reconnect(self, reason: str = "refresh_requested") -> None:
        """Ask the newest connection to come anew, as Slack does every few hours; no more is sent to it."""
        connection = self._connections.pop()
        await self._write(connection, {"type": "disconnect", "reason": reason, "debug_info": {"host": "applink-1"}})

    async def _serve(self, connection: "ServerConnection") -> None:
        from websockets.exceptions import ConnectionClosed

        request = connection.request
        ticket = parse_qs(urlsplit(request.path).query).get("ticket", [""])[-1] if request is not None else ""
        if ticket not in self._tickets:
            await connection.close(1008, "the ticket is unknown or was used")
            return
        self._tickets.discard(ticket)
        self.opened += 1
        try:
            hello: Given = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A1"}}
            await self._write(connection, hello)
            self._connections.append(connection)
            for envelope in tuple(self.pending.values()):
                await self._write(connection, {**envelope, "retry_attempt": 1, "retry_reason": "timeout"})
            async for frame in connection:
                answer: Given = msgspec.json.decode(frame)
                self.pending.pop(str(answer.get("envelope_id")), None)
                await self._on_change()
        except ConnectionClosed:
            pass
        finally:
            if connection in self._connections:
                self._connections.remove(connection)

    async def _write(self, connection: "ServerConnection", frame: Given) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await connection.send(msgspec.json.encode(frame).decode())
        except ConnectionClosed:
            return  # what was not confirmed goes to the next connection
