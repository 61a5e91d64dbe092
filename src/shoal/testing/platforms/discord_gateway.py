"""The gateway of the fake Discord: hello, identify, resume with missed events, heartbeats, and forced disconnects."""

import asyncio
import zlib
from typing import TYPE_CHECKING

import msgspec

from shoal.testing.platforms.wire import Given, Json, LoopbackSocket

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

    from shoal.testing.platforms.discord import FakeDiscord

HEARTBEAT_MS = 41_250
BAD_TOKEN = 4004
MESSAGE_CONTENT = 1 << 15
_NEEDS = {"MESSAGE": (1 << 9, 1 << 12), "MESSAGE_REACTION": (1 << 10, 1 << 13)}
"""Intents that an event requires in servers and in direct channels, by the first part of the event's name."""


class BotSession(msgspec.Struct):
    """A gateway session and the events delivered in it. The position of an event is its sequence number."""

    id: str
    events: list[tuple[str, Given]]
    intents: int
    line: "Line | None" = None


class Line:
    def __init__(self, socket: "ServerConnection", *, compressed: bool) -> None:
        self.socket = socket
        self._deflate = zlib.compressobj() if compressed else None

    async def send(self, op: int, data: Json = None, name: str | None = None, seq: int | None = None) -> None:
        from websockets.exceptions import ConnectionClosed

        frame = msgspec.json.encode({"op": op, "d": data, "t": name, "s": seq})
        try:
            if self._deflate is None:
                await self.socket.send(frame.decode())
            else:
                await self.socket.send(self._deflate.compress(frame) + self._deflate.flush(zlib.Z_SYNC_FLUSH))
        except ConnectionClosed:
            return


class FakeGateway(LoopbackSocket):
    """The gateway server. Its sessions survive lost connections."""

    def __init__(self, discord: "FakeDiscord") -> None:
        super().__init__()
        self._discord = discord
        self._lines: set[Line] = set()
        self._numbers = 0
        self.sessions: dict[str, BotSession] = {}
        self.resumed = 0
        self.identified = 0
        self.deaf = False

    def forget(self) -> None:
        """Invalidate all sessions. None of them can be resumed."""
        self.sessions.clear()

    async def recall(self) -> None:
        """Ask every connection to reconnect (opcode 7)."""
        for line in tuple(self._lines):
            await line.send(7)

    async def end(self, code: int) -> None:
        for line in tuple(self._lines):
            await line.socket.close(code)

    async def tell(self, name: str, data: Given) -> None:
        """Deliver an event to every session. A disconnected session receives it when it resumes."""
        for session in tuple(self.sessions.values()):
            seen = _seen(name, data, session.intents)
            if seen is not None:
                session.events.append((name, seen))
                if session.line is not None:
                    await session.line.send(0, seen, name, len(session.events))

    async def serve(self, connection: "ServerConnection") -> None:
        from websockets.exceptions import ConnectionClosed

        path = connection.request.path if connection.request is not None else ""
        line = Line(connection, compressed="compress=zlib-stream" in path)
        self._lines.add(line)
        self.connections.append(connection)
        try:
            await line.send(10, {"heartbeat_interval": HEARTBEAT_MS})
            async for text in connection:
                await self._take(line, msgspec.json.decode(text))
        except ConnectionClosed:
            return
        finally:
            self._lines.discard(line)
            if connection in self.connections:
                self.connections.remove(connection)
            for session in self.sessions.values():
                session.line = None if session.line is line else session.line

    async def _take(self, line: Line, frame: Given) -> None:
        data = frame.get("d")
        match frame.get("op"):
            case 1:
                if not self.deaf:
                    await line.send(11)
            case 2:
                assert isinstance(data, dict)
                await self._identify(line, data)
            case 6:
                assert isinstance(data, dict)
                await self._resume(line, data)
            case _:
                await line.socket.close(4001)

    async def _identify(self, line: Line, given: Given) -> None:
        intents = given.get("intents")
        if not self._discord.welcomes(str(given.get("token"))):
            await line.socket.close(BAD_TOKEN, "Authentication failed.")
            return
        if not isinstance(intents, int) or "properties" not in given:
            await line.socket.close(4013, "Invalid intent(s).")
            return
        self._numbers += 1
        self.identified += 1
        session = BotSession(f"session-{self._numbers}", [], intents)
        session.events.append(("READY", self._discord.ready(session.id, self.url)))
        session.events += [("GUILD_CREATE", server) for server in self._discord.servers()]
        self.sessions[session.id] = session
        await self._replay(session, line, 0)

    async def _resume(self, line: Line, given: Given) -> None:
        session = self.sessions.get(str(given.get("session_id")))
        seq = given.get("seq")
        if not self._discord.welcomes(str(given.get("token"))):
            await line.socket.close(BAD_TOKEN, "Authentication failed.")
            return
        if session is None or not isinstance(seq, int) or seq > len(session.events):
            await line.send(9, False)
            return
        self.resumed += 1
        await self._replay(session, line, seq)
        session.events.append(("RESUMED", {}))
        await line.send(0, {}, "RESUMED", len(session.events))
        await asyncio.sleep(0)

    async def _replay(self, session: BotSession, line: Line, seq: int) -> None:
        """Send the events after `seq`, then new events as they happen, without a gap."""
        while seq < len(session.events):
            name, data = session.events[seq]
            seq += 1
            await line.send(0, data, name, seq)
        session.line = line


def _seen(name: str, data: Given, intents: int) -> Given | None:
    kind = name.rpartition("_")[0]
    if kind in _NEEDS and not intents & _NEEDS[kind]["guild_id" not in data]:
        return None
    if kind == "MESSAGE" and "guild_id" in data and not intents & MESSAGE_CONTENT:
        return {**data, "content": "", "attachments": [], "components": []}
    return data
