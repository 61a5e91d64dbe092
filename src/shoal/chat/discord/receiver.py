"""Receives for one account: keeps the connection and its session, and hands each event to whoever takes it in.

What was missed is not lost: a session that was kept is resumed, also by a restarted process, and Discord sends again
what came in between. Where it cannot be resumed any more, the channels are read back from the newest message seen.
"""

import logging
from datetime import timedelta
from typing import TypeVar

import anyio
import anyio.abc
import msgspec

from shoal.chat.account import ChatAccount
from shoal.chat.commands import press
from shoal.chat.discord.api import Body, DiscordApi, Refused
from shoal.chat.discord.gateway import Gateway, Session
from shoal.chat.discord.inbound import (
    Deleted,
    Guild,
    Interaction,
    Message,
    Place,
    ReactionAdded,
    author_of,
    place_of,
    snowflake_at,
)
from shoal.chat.discord.intake import DiscordSettings, Intake
from shoal.chat.discord.outbound import EPHEMERAL, commands_of, cut, message_body
from shoal.chat.discord.recent import Recent
from shoal.domain.backoff import retry_delay
from shoal.domain.clock import Clock
from shoal.domain.commands import COMMANDS, Asked
from shoal.domain.errors import PlatformError, StoreError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ports import InboxPort
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")

KEEP_SECONDS = 5.0
"""How long the session's number may lag behind in the store when nothing was taken in."""
MISSED_HOURS = 24.0
"""Older messages are not answered any more."""
DONE = "Done."


class Kept(msgspec.Struct):
    """What of an account's connection outlives the process; `mark` is the newest message's id."""

    session: Session
    mark: int = 0


class _Start(msgspec.Struct, frozen=True):
    remaining: int = 1
    reset_after: float = 0.0


class _Bot(msgspec.Struct, frozen=True):
    url: str
    session_start_limit: _Start = _Start()


class _Ready(msgspec.Struct, frozen=True):
    guilds: tuple[Guild, ...] = ()


class _Where(msgspec.Struct, frozen=True):
    guild_id: str = ""


class Receiver:
    """One account's ears. `posted` learns the ids of the bot's own messages by their nonce."""

    def __init__(
        self, account: ChatAccount, settings: DiscordSettings, api: DiscordApi, intake: Intake, store: Settings,
        clock: Clock, posted: Recent[str],
    ) -> None:  # fmt: skip
        self._platform = account.platform
        self._settings = settings
        self._api = api
        self._intake = intake
        self._store = store
        self._clock = clock
        self._posted = posted
        self._gateway = Gateway(settings.token, settings.account, clock)
        self._kept = Kept(Session())
        self._kept_at = 0.0
        self._since = 0
        self._expected: set[str] = set()
        self._registered = False
        self._account = account

    @property
    def me(self) -> str:
        """The bot's user id; empty before it was told for the first time."""
        return self._kept.session.user

    async def run(self, inbox: InboxPort) -> None:
        """Receive until cancelled; reconnect with backoff by itself."""
        async with anyio.create_task_group() as tasks:
            await self._account.keep_connected(lambda: self._receive(inbox, tasks))

    async def _receive(self, inbox: InboxPort, tasks: anyio.abc.TaskGroup) -> None:
        """Hold one connection until it ends."""
        self._kept = await self._load()
        url = self._settings.gateway_url or await self._gateway_url()

        async def take(name: str, data: bytes, seq: int | None) -> None:
            taken = await self._taken(name, data, inbox, tasks)
            self._kept.session.seq = seq
            if taken or self._clock.monotonic() - self._kept_at >= KEEP_SECONDS:
                await self._keep()

        try:
            ending = await self._gateway.serve(url, self._kept.session, take)
        finally:
            stood = self._account.connected.is_set()
            self._account.connected.clear()
        if ending == "anew":
            self._kept.session = Session()
            await self._keep()
        log.info("the connection ended", extra={"platform": self._platform, "next": ending})
        if not stood and ending == "resume":
            raise PlatformError("Discord ended the connection at once.")
        await self._clock.sleep(retry_delay(1))

    async def _load(self) -> Kept:
        """What was kept; at the very first start the mark is set, so that a slow first connection misses nothing."""
        kept = await self._store.get(f"discord:{self._platform}", "session")
        try:
            found = _decoded(kept.encode(), Kept) if kept else None
        except Refused:
            found = None
        if found is None:
            self._kept = found = Kept(Session(), snowflake_at(self._clock.now()))
            await self._keep()
        return found

    async def _gateway_url(self) -> str:
        found = await self._api.call("GET", "/gateway/bot", _Bot)
        start = found.session_start_limit
        if start.remaining < 1 and not self._kept.session.id:
            raise PlatformError(
                "Discord lets this bot start no further session for now.", retry_after_seconds=start.reset_after / 1000
            )
        return found.url

    # ---- events ----

    async def _taken(self, name: str, data: bytes, inbox: InboxPort, tasks: anyio.abc.TaskGroup) -> bool:
        """Take an event in, or leave one that can never be. Raises PlatformError and StoreError to get it again."""
        try:
            return await self._handed(name, data, inbox, tasks)
        except Refused as error:
            log.warning("an event was left", extra={"platform": self._platform, "event": name, "why": str(error)})
            return False

    async def _handed(self, name: str, data: bytes, inbox: InboxPort, tasks: anyio.abc.TaskGroup) -> bool:
        match name:
            case "READY" | "RESUMED":
                await self._begin(name, data, inbox)
                return True
            case "GUILD_CREATE":
                return await self._catch_up(_decoded(data, Guild), inbox)
            case "MESSAGE_CREATE":
                return await self._message(_decoded(data, Message), inbox)
            case "MESSAGE_UPDATE":
                return await self._intake.edit(_decoded(data, Message), self.me, inbox)
            case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
                return await self._intake.deletion(_decoded(data, Deleted), _guild(data), inbox)
            case "MESSAGE_REACTION_ADD":
                return await self._intake.reaction(_decoded(data, ReactionAdded), _guild(data), self.me, inbox)
            case "INTERACTION_CREATE":
                tasks.start_soon(self._interact, _decoded(data, Interaction), inbox)
                return False
            case _:
                return False

    async def _begin(self, name: str, data: bytes, inbox: InboxPort) -> None:
        """A connection stands. After another session, read back what came in between."""
        self._account.works()
        if name == "READY":
            self._since = max(self._kept.mark, snowflake_at(self._clock.now() - timedelta(hours=MISSED_HOURS)))
            self._expected = {guild.id for guild in _decoded(data, _Ready).guilds}
            await self._intake.missed.in_direct(self._since, lambda found: self._read(found, inbox))
        if not self._registered:
            await self._register()
        self._account.connected.set()
        log.info("connected", extra={"platform": self._platform, "bot": self._kept.session.name, "how": name})

    async def _register(self) -> None:
        """Make the slash commands known; without them the same words work as text."""
        path = f"/applications/{self._kept.session.application}/commands"
        try:
            await self._api.call("PUT", path, msgspec.Raw, commands_of(COMMANDS.values()))
            self._registered = True
        except PlatformError as error:
            log.warning("slash commands could not be registered: %s", error, extra={"platform": self._platform})

    async def _catch_up(self, guild: Guild, inbox: InboxPort) -> bool:
        if guild.unavailable or guild.id not in self._expected:
            return False
        channels = (*guild.channels, *guild.threads)
        await self._intake.missed.in_channels(channels, guild.id, self._since, lambda found: self._read(found, inbox))
        self._expected.discard(guild.id)
        return True

    async def _read(self, message: Message, inbox: InboxPort) -> bool:
        """A message that was missed."""
        return await self._intake.message(message, self.me, inbox)

    async def _message(self, message: Message, inbox: InboxPort) -> bool:
        if message.author is not None and message.author.id == self.me and message.nonce:
            self._posted.put(str(message.nonce), message.id)
        taken = await self._intake.message(message, self.me, inbox)
        if not self._expected:  # else what a server missed lies still before this one
            self._kept.mark = max(self._kept.mark, int(message.id))
        return taken

    async def _keep(self) -> None:
        """Store how far the session is, for this process' next connection and for the next process."""
        self._kept_at = self._clock.monotonic()
        await self._store.put(f"discord:{self._platform}", "session", msgspec.json.encode(self._kept).decode())

    # ---- commands and buttons ----

    async def _interact(self, interaction: Interaction, inbox: InboxPort) -> None:
        """Answer within Discord's three seconds that it was heard, then do it, then say how it went."""
        base = f"/webhooks/{interaction.application_id}/{interaction.token}"
        try:
            heard: Body = {"type": 5, "data": {"flags": EPHEMERAL}}
            await self._api.call(
                "POST", f"/interactions/{interaction.id}/{interaction.token}/callback", msgspec.Raw, heard
            )
            first, *rest = cut(await self._told(interaction, inbox) or DONE)
            await self._api.call("PATCH", f"{base}/messages/@original", msgspec.Raw, message_body(first))
            for piece in rest:
                body = {**message_body(piece), "flags": EPHEMERAL}
                await self._api.call("POST", base, msgspec.Raw, body)
        except (PlatformError, StoreError) as error:
            log.warning("a command or click was not answered: %s", error, extra={"platform": self._platform})

    async def _told(self, interaction: Interaction, inbox: InboxPort) -> str:
        """Do what was asked; returns what to say."""
        user = interaction.user or (interaction.member.user if interaction.member is not None else None)
        if user is None or user.bot or interaction.channel is None:
            return "This is not known here."
        place: Place = place_of(interaction.channel, interaction.guild_id)
        await self._intake.note_server(place)
        author = author_of(user, interaction.member)
        thread = place.thread(self._platform)
        if interaction.type == 3:
            return await press(interaction.data.custom_id, thread, author, inbox)
        if interaction.data.name not in COMMANDS:
            return f"There is no command /{interaction.data.name}."
        argument = " ".join(str(option.value) for option in interaction.data.options)
        asked = Asked(
            thread,
            author,
            interaction.data.name,
            argument.strip(),
            interaction.id,
            self._clock.now(),
            direct=place.direct,
            private=True,
        )
        return await inbox.command(asked)


def _guild(data: bytes) -> str:
    return _decoded(data, _Where).guild_id


def _decoded(data: bytes, kind: type[T]) -> T:
    """The event; one of a form that is not known is left. Raises Refused."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise Refused(0, f"an event of another form than is known: {error}") from error
