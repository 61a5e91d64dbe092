"""Discord's gateway: one connection that hands out events in order, and a session that outlives connections.

    the connection ends by           what comes next
    ------------------------------   ------------------------------------------------------------------------
    a drop, opcode 7, silence        the session is resumed: Discord sends again what was not taken in
    opcode 9 "not resumable"         a new session; what was missed in between is read from the channels
    a refused token or intent        PlatformError that says what to do; tried again later
    an event that cannot be stored   resumed from before it, so that it comes again

An event counts as taken in when its handler has returned, and only then moves the session's number. The session is
kept in the store, so that a restarted process goes on with it. Source: docs.discord.com, Gateway.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import anyio
import msgspec

from shoal.domain.backoff import retry_delay
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError, StoreError
from shoal.domain.foreign import UNREADABLE

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

T = TypeVar("T")

INTENTS = 1 << 0 | 1 << 9 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 15
"""Servers, messages and reactions there, direct messages and reactions there, and what messages say."""
FRAME_BYTES_MAX = 67_108_864
OPEN_SECONDS = 20.0
CLOSE_SECONDS = 2.0
KEEP_SESSION = 4000
"""A close code that leaves the session resumable."""

HEARTBEAT, IDENTIFY, RESUME, HELLO = 1, 2, 6, 10

_SESSION_OVER = frozenset({4003, 4006, 4007, 4009})
_REFUSALS = {
    4004: "Discord refused the token for {account!r}. Set platforms.discord.token or DISCORD_TOKEN, then restart.",
    4010: "Discord refused the connection of {account!r}: invalid shard.",
    4011: "Discord wants {account!r} to be sharded: it is in more servers than one connection may serve.",
    4012: "Discord does not know this version of its gateway any more. Update Shoal.",
    4013: "Discord refused the intents of {account!r}.",
    4014: "Discord refused the intents of {account!r}: switch on Message Content Intent for the bot in the developer "
    "portal (Bot, Privileged Gateway Intents).",
}

Ending: TypeAlias = Literal["resume", "anew"]
Take: TypeAlias = Callable[[str, bytes, int | None], Awaitable[None]]
"""Takes in an event: its name, its data as JSON, and its number, to which it moves the session when that is done."""


class Session(msgspec.Struct):
    """What Discord knows a connection by, and who the bot is. `seq` is the last event taken in."""

    id: str = ""
    url: str = ""
    seq: int | None = None
    user: str = ""
    name: str = ""
    application: str = ""


class _Frame(msgspec.Struct, frozen=True):
    op: int
    d: msgspec.Raw = msgspec.Raw(b"null")
    s: int | None = None
    t: str | None = None


class _Hello(msgspec.Struct, frozen=True):
    heartbeat_interval: float


class _Me(msgspec.Struct, frozen=True):
    id: str
    username: str = ""


class _Ready(msgspec.Struct, frozen=True):
    session_id: str
    user: _Me
    application: _Me
    resume_gateway_url: str = ""


class Gateway:
    """One account's connection; `session` is the one to go on with, changed in place."""

    def __init__(self, token: Callable[[], str], account: str, clock: Clock) -> None:
        self._token = token
        self._account = account
        self._clock = clock
        self._answered = True

    async def serve(self, url: str, session: Session, take: Take) -> Ending:
        """Connect and hand out events until the connection ends; returns whether the session can be resumed.

        Raises PlatformError when it cannot be had, and StoreError from `take`.
        """
        socket = await self._open(session.url if session.id and session.url else url)
        try:
            hello = await self._frame(socket)
            if hello is None or hello.op != HELLO:
                raise PlatformError("Discord's gateway did not say hello.")
            await self._introduce(socket, session)
            return await self._attend(socket, session, take, _decode(hello.d, _Hello).heartbeat_interval / 1000)
        finally:
            with anyio.CancelScope(shield=True):
                await socket.close(KEEP_SESSION)

    async def _open(self, url: str) -> "ClientConnection":
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        address = f"{url}{'&' if '?' in url else '?'}v=10&encoding=json"
        try:
            return await connect(
                address, max_size=FRAME_BYTES_MAX, open_timeout=OPEN_SECONDS, close_timeout=CLOSE_SECONDS,
                ping_interval=None,
            )  # fmt: skip
        except (OSError, TimeoutError, WebSocketException) as error:
            raise PlatformError(f"Discord's gateway cannot be reached: {type(error).__name__}.") from error

    async def _introduce(self, socket: "ClientConnection", session: Session) -> None:
        token = self._token()
        if session.id:
            said = {"token": token, "session_id": session.id, "seq": session.seq}
            await self._send(socket, RESUME, said)
            return
        properties = {"os": "linux", "browser": "shoal", "device": "shoal"}
        await self._send(socket, IDENTIFY, {"token": token, "intents": INTENTS, "properties": properties})

    async def _attend(self, socket: "ClientConnection", session: Session, take: Take, seconds: float) -> Ending:
        """Take frames in while the heart beats."""
        ending: Ending = "resume"
        failure: PlatformError | StoreError | None = None
        self._answered = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat, socket, session, seconds)
            try:
                ending = await self._listen(socket, session, take)
            except (PlatformError, StoreError) as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return ending

    async def _beat(self, socket: "ClientConnection", session: Session, seconds: float) -> None:
        await self._clock.sleep(seconds * retry_delay(1))  # at another moment than others that start now
        while self._answered:
            self._answered = False
            await self._send(socket, HEARTBEAT, session.seq)
            await self._clock.sleep(seconds)
        await socket.close(KEEP_SESSION)

    async def _listen(self, socket: "ClientConnection", session: Session, take: Take) -> Ending:
        while True:
            frame = await self._frame(socket)
            if frame is None:
                return self._ended(socket.close_code)
            match frame.op:
                case 0:  # dispatch
                    await self._event(frame, session, take)
                case 1:  # asked for a heartbeat
                    await self._send(socket, HEARTBEAT, session.seq)
                case 7:  # reconnect
                    return "resume"
                case 9:  # invalid session
                    if _decode(frame.d, bool):
                        return "resume"
                    await self._clock.sleep(retry_delay(1, base_seconds=5.0))  # Discord asks for one to five
                    return "anew"
                case 11:  # heartbeat answered
                    self._answered = True
                case _:
                    pass

    async def _event(self, frame: _Frame, session: Session, take: Take) -> None:
        if frame.t == "READY":
            ready = _decode(frame.d, _Ready)
            session.id, session.url = ready.session_id, ready.resume_gateway_url
            session.user, session.name = ready.user.id, ready.user.username
            session.application = ready.application.id
        await take(frame.t or "", bytes(frame.d), frame.s)

    def _ended(self, code: int | None) -> Ending:
        if code in _REFUSALS:
            raise PlatformError(_REFUSALS[code].format(account=self._account))
        return "anew" if code in _SESSION_OVER else "resume"

    async def _frame(self, socket: "ClientConnection") -> _Frame | None:
        """The next frame; None when the connection has ended."""
        from websockets.exceptions import ConnectionClosed

        try:
            return _decode(await socket.recv(), _Frame)
        except ConnectionClosed:
            return None

    async def _send(self, socket: "ClientConnection", op: int, data: object) -> None:
        """Send a frame; on a connection that has ended nothing happens, since receiving tells of that."""
        from websockets.exceptions import ConnectionClosed

        try:
            await socket.send(msgspec.json.encode({"op": op, "d": data}).decode())
        except ConnectionClosed:
            return


def _decode(text: str | bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE as error:
        raise PlatformError("Discord's gateway sent something else than its frames.") from error
