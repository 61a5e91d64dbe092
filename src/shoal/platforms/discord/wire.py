"""Discord's REST API, gateway and event fields. Source: docs.discord.com, API v10.

The gateway delivers events in order within a session. A session can outlive a connection.

    cause                                   result
    -------------------------------------   -----------------------------------------------------------------
    connection lost, or opcode 7            the session resumes, and Discord sends the missed events again
    heartbeat not acknowledged              the session resumes, and Discord sends the missed events again
    opcode 9, session not resumable         a new session starts, and missed messages are read from channels
    token or intent rejected                `serve` raises PlatformError, and the account retries later
    event cannot be stored                  the session resumes, and Discord sends the event again

The sequence number advances only after an event's handler returns. The session is stored, so a restarted process
resumes it.
"""

import mimetypes
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import anyio
import msgspec

from shoal.kernel.clock import Clock, retry_after, retry_delay
from shoal.kernel.errors import PlatformError, StoreError
from shoal.kernel.untrusted import UNREADABLE
from shoal.net.connections import network_reason
from shoal.platforms.discord.settings import DiscordSettings
from shoal.platforms.http import TRANSFER_SECONDS, Fields, Json, PlatformHttp, PlatformRefusal
from shoal.platforms.inbox import Recent, open_file

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

T = TypeVar("T")

PAGE = 100
SPENT_ROUTES_MAX = 4096
UNKNOWN_CHANNEL = 10003
UNKNOWN_MESSAGE = 10008
CANNOT_MESSAGE_USER = 50007
THREAD_EXISTS = 160004
IS_FORUM = 40058
CLOSED = frozenset({40002, 40007, 50001, 50007, 50009, 50013, 50083, 50095, 50278, 60003, 110001, 160005})
"""Error codes that mean the channel does not accept posts for now: no access, no permission, closed direct messages, an
archived or locked thread, a forum thread whose author has not posted yet, or an unverified bot owner. Source:
docs.discord.com/developers/topics/opcodes-and-status-codes.
"""
PASSING = frozenset({20016, 20028, 20029, 40003, 40004, 40006, 40333, 130000})
"""Error codes of temporary limits and outages."""
RESET_SECONDS_MAX = 3600.0
GONE = frozenset({10003, 10004, IS_FORUM, 50008, 50024, 50055})
"""Error codes that mean the channel or server does not exist, or that the channel cannot contain messages. For example,
a forum contains only threads.
"""
NO_REFERENCE = frozenset({160002, 160009, 160010})
"""Error codes that mean the bot may post but may not reply to the message."""

INTENTS = 1 << 0 | 1 << 9 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 15
"""Gateway intents: servers, messages and reactions in servers and in direct conversations, and message content."""
FRAME_BYTES_MAX = 67_108_864
OPEN_SECONDS = 20.0
CLOSE_SECONDS = 2.0
KEEP_SESSION = 4000
"""WebSocket close code after which Discord lets the session resume."""
HEARTBEAT, IDENTIFY, RESUME, HELLO = 1, 2, 6, 10

_SESSION_OVER = frozenset({4003, 4006, 4007, 4009})
_REFUSALS = {
    4004: "Discord rejected the token for {account!r}. Set platforms.discord.token or DISCORD_TOKEN, then restart.",
    4010: "Discord refused the connection for {account!r}: invalid shard.",
    4011: "Discord requires sharding for {account!r}, because the bot is in too many servers for one connection.",
    4012: "Discord no longer supports this version of its gateway. Update Shoal.",
    4013: "Discord rejected the intents of {account!r}.",
    4014: "Discord rejected the intents of {account!r}. Turn on Message Content Intent for the bot in the "
    "developer portal (Bot, Privileged Gateway Intents).",
}
_ID_IN_PATH = re.compile(r"(?<=/messages/)\d+")


# ---- refusals ----


class _DiscordError(msgspec.Struct, frozen=True):
    message: str = ""
    code: int = 0
    retry_after: float | None = None
    everywhere: bool = msgspec.field(name="global", default=False)


# ---- event fields ----


class DiscordUser(msgspec.Struct, frozen=True):
    id: str
    username: str = ""
    global_name: str | None = None
    bot: bool = False


class DiscordMember(msgspec.Struct, frozen=True):
    """A user's nickname and roles in one server."""

    user: DiscordUser | None = None
    nick: str | None = None
    roles: tuple[str, ...] = ()


class DiscordFile(msgspec.Struct, frozen=True):
    id: str
    filename: str
    url: str
    size: int = 0
    content_type: str | None = None


class _MessageReference(msgspec.Struct, frozen=True):
    """Reference to a message that this one replies to (type 0) or forwards (type 1)."""

    message_id: str | None = None
    type: int = 0


class _StickerItem(msgspec.Struct, frozen=True):
    name: str = ""


class _Emoji(msgspec.Struct, frozen=True):
    """An emoji. `name` is the character, or the name of a custom emoji."""

    name: str | None = None


class _PollMedia(msgspec.Struct, frozen=True):
    text: str | None = None
    emoji: _Emoji | None = None


class _PollAnswer(msgspec.Struct, frozen=True):
    poll_media: _PollMedia = _PollMedia()


class _DiscordPoll(msgspec.Struct, frozen=True):
    question: _PollMedia = _PollMedia()
    answers: tuple[_PollAnswer, ...] = ()


class _EmbedPart(msgspec.Struct, frozen=True):
    """An embed's author, field or footer."""

    name: str = ""
    value: str = ""
    text: str = ""


class _Embed(msgspec.Struct, frozen=True):
    author: _EmbedPart | None = None
    title: str | None = None
    url: str | None = None
    description: str | None = None
    fields: tuple[_EmbedPart, ...] = ()
    footer: _EmbedPart | None = None


class SnapshotContent(msgspec.Struct, frozen=True):
    """Content of a message. Forwarded messages have only these fields."""

    content: str = ""
    attachments: tuple[DiscordFile, ...] = ()
    sticker_items: tuple[_StickerItem, ...] = ()
    poll: _DiscordPoll | None = None
    embeds: tuple[_Embed, ...] = ()
    components: tuple[msgspec.Raw, ...] = ()


class RepliedMessage(SnapshotContent, frozen=True, kw_only=True):
    id: str
    author: DiscordUser | None = None
    mentions: tuple[DiscordUser, ...] = ()
    message_snapshots: tuple["_MessageSnapshot", ...] = ()


class _MessageSnapshot(msgspec.Struct, frozen=True):
    message: SnapshotContent = SnapshotContent()


class DiscordMessage(RepliedMessage, frozen=True, kw_only=True):
    channel_id: str
    guild_id: str = ""
    member: DiscordMember | None = None
    timestamp: datetime | None = None
    edited_timestamp: datetime | None = None
    type: int = 0
    webhook_id: str | None = None
    nonce: str | int | None = None
    mention_roles: tuple[str, ...] = ()
    message_reference: _MessageReference | None = None
    referenced_message: RepliedMessage | None = None

    @property
    def answered_id(self) -> str:
        """Id of the message that this one replies to, or an empty string. Forwards are not replies."""
        reference = self.message_reference
        return reference.message_id or "" if reference is not None and reference.type == 0 else ""


class DeletedMessages(msgspec.Struct, frozen=True):
    channel_id: str
    id: str = ""
    ids: tuple[str, ...] = ()
    guild_id: str = ""


class ReactionAdded(msgspec.Struct, frozen=True):
    user_id: str
    channel_id: str
    message_id: str
    guild_id: str = ""
    member: DiscordMember | None = None
    emoji: _Emoji = _Emoji()


class DiscordChannel(msgspec.Struct, frozen=True):
    """A channel, a thread or a direct conversation."""

    id: str
    type: int = 0
    guild_id: str = ""
    parent_id: str | None = None
    last_message_id: str | None = None
    name: str | None = None


class _RoleTags(msgspec.Struct, frozen=True):
    bot_id: str = ""


class GuildRole(msgspec.Struct, frozen=True):
    """A role in a server. If Discord created the role for a bot, `tags` identifies that bot."""

    id: str
    tags: _RoleTags = _RoleTags()


class Guild(msgspec.Struct, frozen=True):
    id: str
    name: str = ""
    channels: tuple[DiscordChannel, ...] = ()
    threads: tuple[DiscordChannel, ...] = ()
    unavailable: bool = False


class _CommandOption(msgspec.Struct, frozen=True):
    name: str
    value: str | int | float | bool = ""


class _InteractionData(msgspec.Struct, frozen=True):
    name: str = ""
    custom_id: str = ""
    options: tuple[_CommandOption, ...] = ()


class Interaction(msgspec.Struct, frozen=True):
    """A slash command (type 2), a button click (type 3) or an autocomplete request (type 4)."""

    id: str
    token: str
    type: int
    application_id: str
    data: _InteractionData = _InteractionData()
    guild_id: str = ""
    channel: DiscordChannel | None = None
    member: DiscordMember | None = None
    user: DiscordUser | None = None


# ---- calls ----


def _route(method: str, path: str) -> str:
    return f"{method} {_ID_IN_PATH.sub('ID', path)}"


class DiscordApi(PlatformHttp):
    def __init__(self, settings: DiscordSettings, clock: Clock) -> None:
        super().__init__("Discord", {"user-agent": "DiscordBot (Shoal, 1)"})
        self._base = settings.api_base.rstrip("/")
        self._token = settings.token.reveal
        self._account = settings.account
        self._clock = clock
        self._spent: Recent[float] = Recent(SPENT_ROUTES_MAX)

    async def call(
        self, method: str, path: str, kind: type[T], body: Fields | list[Json] | None = None, *,
        files: Sequence[Path] = (), query: Mapping[str, str] | None = None,
    ) -> T:  # fmt: skip
        """Call a route and upload `files`. Raises PlatformError, or its subclass PlatformRefusal if Discord rejects the
        call.

        After Discord reports a rate limit, calls fail without a request until the limit resets.
        """
        wait = self.wait_seconds(method, path)
        if wait > 0:
            raise PlatformError("Discord's rate limit for this call has been reached.", retry_after_seconds=wait)
        headers = {} if path.startswith(("/interactions/", "/webhooks/")) else {"authorization": f"Bot {self._token()}"}
        url = f"{self._base}{path}"
        if files:
            data = {"payload_json": msgspec.json.encode(body or {}).decode()}
            with ExitStack() as opened:
                sent = {
                    f"files[{number}]": (
                        file.name,
                        opened.enter_context(open_file(file)),
                        mimetypes.guess_type(file.name)[0] or "application/octet-stream",
                    )
                    for number, file in enumerate(files)
                }
                answer = await self.request(
                    method, url, seconds=TRANSFER_SECONDS, headers=headers, data=data, files=sent
                )
        elif body is not None:
            answer = await self.request(method, url, headers=headers, json=body)
        else:
            answer = await self.request(method, url, headers=headers, params=query)
        if answer.headers.get("x-ratelimit-remaining") == "0":
            try:
                seconds = float(answer.headers.get("x-ratelimit-reset-after", 0.0))
            except ValueError:
                seconds = 0.0
            self._spent.put(_route(method, path), self._clock.monotonic() + min(seconds, RESET_SECONDS_MAX))
        status = answer.status_code
        if 200 <= status < 300:
            return self.decode(status, answer.content or b"null", kind)
        try:
            failure = msgspec.json.decode(answer.content, type=_DiscordError)
        except UNREADABLE:
            failure = None
        if status == 429:
            asked = failure.retry_after if failure is not None else None
            wait = asked or retry_after(answer.headers) or 1.0
            # A response without JSON comes from the network in front of Discord, which blocks this IP address.
            everywhere = failure is None or failure.everywhere or "x-ratelimit-global" in answer.headers
            raise PlatformError(
                "Discord's rate limit has been reached.", retry_after_seconds=wait, everywhere=everywhere
            )
        if status == 401:
            raise PlatformError(_REFUSALS[4004].format(account=self._account))
        if 400 <= status < 500 and failure is not None:
            reason = failure.message or f"status {status}"
            if failure.code in PASSING:
                raise PlatformError(f"Discord is temporarily refusing requests: {reason} ({failure.code})")
            closed, gone = failure.code in CLOSED, failure.code in GONE
            raise PlatformRefusal(
                (f"Discord returned an error: {reason} ({failure.code})"), failure.code, closed=closed, gone=gone
            )
        raise PlatformError(f"Discord returned status {status}.", outcome_unknown=not 400 <= status < 500)

    async def messages(self, channel: str, after: int, limit: int) -> list[DiscordMessage]:
        """Return up to `limit` of the newest messages with ids above `after`, oldest first. Raises PlatformError."""
        messages: list[DiscordMessage] = []
        before = ""
        while len(messages) < limit:
            size = min(PAGE, limit - len(messages))
            query = {"limit": str(size), **({"before": before} if before else {})}
            page = await self.call("GET", f"/channels/{channel}/messages", list[DiscordMessage], query=query)
            messages += [message for message in page if int(message.id) > after]
            if len(page) < size or int(page[-1].id) <= after:
                break
            before = page[-1].id
        return messages[::-1]

    def wait_seconds(self, method: str, path: str) -> float:
        route = _route(method, path)
        wait = (self._spent.get(route) or 0.0) - self._clock.monotonic()
        if wait <= 0:
            self._spent.pop(route)
        return max(0.0, wait)


# ---- gateway ----

SessionEnd: TypeAlias = Literal["resume", "anew"]
TakeEvent: TypeAlias = Callable[[str, bytes, int | None], Awaitable[None]]
"""Handler for a gateway event. Takes the event's name, its JSON data, and the sequence number to store after
processing.
"""


class GatewaySession(msgspec.Struct):
    """A gateway session and the bot's identity. `seq` is the sequence number of the last processed event."""

    id: str = ""
    url: str = ""
    seq: int | None = None
    user: str = ""
    name: str = ""
    application: str = ""


class _GatewayFrame(msgspec.Struct, frozen=True):
    op: int
    d: msgspec.Raw = msgspec.Raw(b"null")
    s: int | None = None
    t: str | None = None


class _GatewayHello(msgspec.Struct, frozen=True):
    heartbeat_interval: float


class _SessionReady(msgspec.Struct, frozen=True):
    session_id: str
    user: DiscordUser
    application: DiscordUser
    resume_gateway_url: str = ""


class Gateway:
    """Gateway connection of one account."""

    def __init__(self, settings: DiscordSettings, clock: Clock) -> None:
        self._token = settings.token.reveal
        self._account = settings.account
        self._clock = clock
        self._heartbeat_answered = True

    async def serve(self, url: str, session: GatewaySession, take: TakeEvent) -> SessionEnd:
        """Connect, and pass events to `take` until the connection ends. Updates `session` in place.

        Returns "resume" if the session can be resumed. Raises PlatformError if the connection fails, and any error that
        `take` raises.
        """
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        url = session.url if session.id and session.url else url
        address = f"{url}{'&' if '?' in url else '?'}v=10&encoding=json"
        try:
            socket = await connect(
                address, max_size=FRAME_BYTES_MAX, open_timeout=OPEN_SECONDS, close_timeout=CLOSE_SECONDS,
                ping_interval=None,
            )  # fmt: skip
        except (OSError, TimeoutError, WebSocketException) as error:
            raise PlatformError(f"Cannot reach Discord's gateway: {network_reason(error)}.") from error
        try:
            hello = await self._frame(socket)
            if hello is None or hello.op != HELLO:
                raise PlatformError("Discord's gateway did not send a Hello message.")
            token = self._token()
            if session.id:
                await self._send(socket, RESUME, {"token": token, "session_id": session.id, "seq": session.seq})
            else:
                properties = {"os": "linux", "browser": "shoal", "device": "shoal"}
                await self._send(socket, IDENTIFY, {"token": token, "intents": INTENTS, "properties": properties})
            ending: SessionEnd = "resume"
            failure: PlatformError | StoreError | None = None
            self._heartbeat_answered = True
            async with anyio.create_task_group() as tasks:
                interval = _decode(hello.d, _GatewayHello).heartbeat_interval / 1000
                tasks.start_soon(self._beat, socket, session, interval)
                try:
                    ending = await self._listen(socket, session, take)
                except (PlatformError, StoreError) as error:
                    failure = error  # a task group would wrap the error, so it is raised outside
                tasks.cancel_scope.cancel()
            if failure is not None:
                raise failure
            return ending
        finally:
            with anyio.CancelScope(shield=True):
                await socket.close(KEEP_SESSION)

    async def _beat(self, socket: "ClientConnection", session: GatewaySession, seconds: float) -> None:
        # the random first delay spreads the heartbeats of many clients
        await self._clock.sleep(seconds * retry_delay(1))
        while self._heartbeat_answered:
            self._heartbeat_answered = False
            await self._send(socket, HEARTBEAT, session.seq)
            await self._clock.sleep(seconds)
        await socket.close(KEEP_SESSION)

    async def _listen(self, socket: "ClientConnection", session: GatewaySession, take: TakeEvent) -> SessionEnd:
        while True:
            frame = await self._frame(socket)
            if frame is None:
                code = socket.close_code
                if code in _REFUSALS:
                    raise PlatformError(_REFUSALS[code].format(account=self._account))
                return "anew" if code in _SESSION_OVER else "resume"
            match frame.op:
                case 0:  # dispatch
                    if frame.t == "READY":
                        ready = _decode(frame.d, _SessionReady)
                        session.id, session.url = ready.session_id, ready.resume_gateway_url
                        session.user, session.name = ready.user.id, ready.user.username
                        session.application = ready.application.id
                    await take(frame.t or "", bytes(frame.d), frame.s)
                case 1:  # heartbeat requested
                    await self._send(socket, HEARTBEAT, session.seq)
                case 7:  # reconnect
                    return "resume"
                case 9:  # invalid session
                    if _decode(frame.d, bool):
                        return "resume"
                    # Discord requires a pause of one to five seconds
                    await self._clock.sleep(retry_delay(1, base_seconds=5.0))
                    return "anew"
                case 11:  # heartbeat acknowledged
                    self._heartbeat_answered = True
                case _:
                    pass

    async def _frame(self, socket: "ClientConnection") -> _GatewayFrame | None:
        from websockets.exceptions import ConnectionClosed

        try:
            return _decode(await socket.recv(), _GatewayFrame)
        except ConnectionClosed:
            return None

    async def _send(self, socket: "ClientConnection", op: int, data: object) -> None:
        """Send a frame. A closed connection is ignored, because `_listen` detects it."""
        from websockets.exceptions import ConnectionClosed

        try:
            await socket.send(msgspec.json.encode({"op": op, "d": data}).decode())
        except ConnectionClosed:
            return


def _decode(text: str | bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE as error:
        raise PlatformError("Discord's gateway sent invalid frames.") from error
