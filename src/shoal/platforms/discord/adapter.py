"""Discord adapter. Receives events from the gateway and uses the REST API for posts, threads and channels.

The adapter resumes a stored session, even after a restart, and Discord sends the missed events again. If the session
cannot be resumed, the adapter reads each channel from the newest known message onward.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec
from typing import TypeVar

import msgspec

from shoal.installation import how_to_add
from shoal.kernel.clock import Clock, retry_delay
from shoal.kernel.commands import CommandRequest
from shoal.kernel.errors import ConfigError, PlatformError, StoreError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.messages import UNTOLD, Attachment, Author, Deletion, Edit, Prompt, Reaction
from shoal.kernel.ports import ROLES_SECONDS, InboxPort, Settings
from shoal.kernel.posts import REPEATED, Button, OutboundPost
from shoal.kernel.untrusted import UNREADABLE
from shoal.platforms.account import ChatAccount, IncomingFile, cut
from shoal.platforms.discord.messages import (
    CHAIN,
    EPHEMERAL,
    KNOWN_TYPES,
    WHOLE,
    DiscordLocation,
    DiscordTarget,
    answers,
    author_of,
    chain_of,
    choices_body,
    commands_of,
    files_of,
    holds_text,
    is_addressed,
    is_from_others,
    is_from_person,
    is_try_of,
    limits_of,
    message_body,
    naming,
    nonce_of,
    place_of,
    post_body,
    prompt_of,
    read_back,
    snowflake_at,
    target_of,
    text_of,
    thread_body,
    thread_of,
)
from shoal.platforms.discord.settings import DiscordSettings
from shoal.platforms.discord.wire import (
    CANNOT_MESSAGE_USER,
    IS_FORUM,
    NO_REFERENCE,
    THREAD_EXISTS,
    UNKNOWN_CHANNEL,
    UNKNOWN_MESSAGE,
    DeletedMessages,
    DiscordApi,
    DiscordChannel,
    DiscordMember,
    DiscordMessage,
    DiscordUser,
    Gateway,
    GatewaySession,
    Guild,
    GuildRole,
    Interaction,
    ReactionAdded,
)
from shoal.platforms.http import Fields, Json, PlatformRefusal, Tolerating
from shoal.platforms.inbox import ChannelServers, Recent, press

log = logging.getLogger(__name__)
T = TypeVar("T")
MISSED_A_CHANNEL_MAX = 500
"""Maximum number of missed messages read per channel. Older messages are skipped."""
MISSED_HOURS = 24.0
"""Maximum age of missed messages that are read after a reconnect."""
DIRECT_MAX = 200
"""Maximum number of direct conversations whose ids are stored, because Discord does not list them for bots. The oldest
entry is evicted first.
"""
SAVE_SECONDS = 5.0
"""Minimum number of seconds between saves of the sequence number for events that have no effect. Other events save it
immediately.
"""
PLACES_MAX = 10_000
SERVERS_MAX = 1000
MEMBERS_MAX = 4096
GONE_MEMBER = (10007, 10013, 404)
"""Error codes and statuses that mean the user is no longer a member of the server."""
WRITTEN_MAX = 4096
"""Maximum number of prompts whose text is cached. The cache detects edits that do not change the text, which Discord
also reports.
"""
POSTED_MAX = 4096
"""Maximum number of message ids cached by nonce. The cache prevents duplicate posts after Discord has forgotten the
nonce.
"""
DONE = "Done."
LOOK_BACK = timedelta(days=1)
LOOK_BACK_MAX = 300
"""Maximum number of messages searched for a post with an unknown outcome. Messages older than LOOK_BACK are not
searched, because a post is retried for at most a day.
"""
CHAIN_READ_MAX = 500
EDIT_WAIT_SECONDS_MAX = 30.0
"""Maximum number of seconds to wait for a channel's edit rate limit. If the limit lasts longer, the edit fails and the
sender retries it later.
"""
WHISPERED = "I have a private answer for you. Please allow direct messages from this server."


class ConnectionState(msgspec.Struct):
    """Connection state that survives a restart. `mark` is the id of the newest known message."""

    session: GatewaySession
    mark: int = 0


class _SessionStartLimit(msgspec.Struct, frozen=True):
    remaining: int = 1
    reset_after: float = 0.0


class _GatewayAddress(msgspec.Struct, frozen=True):
    url: str
    session_start_limit: _SessionStartLimit = _SessionStartLimit()


class _ReadyGuilds(msgspec.Struct, frozen=True):
    guilds: tuple[Guild, ...] = ()


NO_VOICE = (50013, 50173)
"""Error codes that mean the bot may not send voice messages. The recording is then sent as a file."""


class DiscordAdapter(ChatAccount[DiscordSettings]):
    """Implements `ChatAdapter`, `ChannelHost`, `KnowsRoles` and `ReadsBack`."""

    def __init__(
        self, platform: str, settings: DiscordSettings, home: Home, store: Settings, clock: Clock, inbound_url: str = ""
    ) -> None:
        if find_spec("websockets") is None:
            raise ConfigError([f"platforms.discord needs the `discord` extra. {how_to_add('discord')}"])
        super().__init__(platform, settings, home, store, clock, inbound_url)
        self.limits = limits_of(opens_threads=settings.opens_threads)
        self._api = DiscordApi(settings, clock)
        self._gateway = Gateway(settings, clock)
        self._scope = f"discord:{platform}"
        self._state = ConnectionState(GatewaySession())
        self._saved_at = 0.0
        self._missed_since = 0
        self._expected: set[str] = set()
        self._registered = False
        self._places: Recent[DiscordLocation] = Recent(PLACES_MAX)
        self._written: Recent[str] = Recent(WRITTEN_MAX)
        self._posted: Recent[str] = Recent(POSTED_MAX)
        self._own_roles: Recent[str] = Recent(SERVERS_MAX)
        """Id of the role that Discord created for the bot, by server. Empty if the server has no such role."""
        self._roles: Recent[tuple[float, tuple[str, ...]]] = Recent(MEMBERS_MAX)
        """Time of the last update (monotonic) and role ids, by server and user."""
        self._servers = ChannelServers(platform, store)
        self._edit_locks: Recent[asyncio.Lock] = Recent(POSTED_MAX)
        self._moved: Recent[DiscordTarget] = Recent(POSTED_MAX)

    @property
    def _me(self) -> str:
        return self._state.session.user

    async def _connect(self, inbox: InboxPort) -> None:
        saved = await self._store.get(self._scope, "session")
        try:
            self._state = msgspec.json.decode(saved or "", type=ConnectionState)
        except UNREADABLE:  # read messages from this time on, even if the first connection is slow
            self._state = ConnectionState(GatewaySession(), snowflake_at(self._clock.now()))
            await self._save_state()
        url = self._settings.gateway_url
        if not url:
            gateway = await self._api.call("GET", "/gateway/bot", _GatewayAddress)
            url, start = gateway.url, gateway.session_start_limit
            if start.remaining < 1 and not self._state.session.id:
                reason = "Discord's session limit for this bot has been reached."
                raise PlatformError(reason, retry_after_seconds=start.reset_after / 1000)

        async def take(name: str, data: bytes, seq: int | None) -> None:
            channel = channel_in(name, data)
            if channel:
                taken = await self._intake.put(channel, msgspec.json.encode((name, data.decode())).decode())
            else:
                taken = await self._take_event(name, data, inbox)
            self._state.session.seq = seq
            if taken or self._clock.monotonic() - self._saved_at >= SAVE_SECONDS:
                await self._save_state()

        try:
            ending = await self._gateway.serve(url, self._state.session, take)
        finally:
            was_connected = self.connected.is_set()
            self.connected.clear()
        if ending == "anew":
            self._state.session = GatewaySession()
            await self._save_state()
        log.info("connection ended", extra={"platform": self.platform, "next": ending})
        if not was_connected and ending == "resume":
            raise PlatformError("Discord ended the connection immediately.")
        await self._clock.sleep(retry_delay(1))

    async def _save_state(self) -> None:
        self._saved_at = self._clock.monotonic()
        await self._store.put(self._scope, "session", msgspec.json.encode(self._state).decode())

    async def _process_event(self, event: str, inbox: InboxPort) -> bool:
        name, data = msgspec.json.decode(event, type=tuple[str, str])
        return await self._take_event(name, data.encode(), inbox)

    async def _take_event(self, name: str, data: bytes, inbox: InboxPort) -> bool:
        """Process a gateway event. Drops invalid events. Discord sends the event again after a PlatformError or
        StoreError.
        """
        try:
            match name:
                case "READY" | "RESUMED":
                    self._reset_backoff()
                    if name == "READY":  # a new session does not include messages that were sent since the old one
                        oldest = snowflake_at(self._clock.now() - timedelta(hours=MISSED_HOURS))
                        self._missed_since = max(self._state.mark, oldest)
                        self._expected = {guild.id for guild in msgspec.json.decode(data, type=_ReadyGuilds).guilds}
                        for channel in await self._direct_channels():
                            for message in await self._read_missed(channel):
                                await self._take_message(message, inbox)
                    if not self._registered:
                        path = f"/applications/{self._state.session.application}/commands"
                        try:
                            await self._api.call("PUT", path, msgspec.Raw, commands_of(inbox.commands))
                            self._registered = True
                        except PlatformError as error:  # commands still work as plain text
                            log.warning(
                                "slash command registration failed: %s", error, extra={"platform": self.platform}
                            )
                    self.connected.set()
                    log.info(
                        "connected", extra={"platform": self.platform, "bot": self._state.session.name, "how": name}
                    )
                    return True
                case "GUILD_CREATE":
                    return await self._catch_up(msgspec.json.decode(data, type=Guild), inbox)
                case "MESSAGE_CREATE" if (message := self._decode(data, DiscordMessage, name)) is not None:
                    if message.author is not None and message.author.id == self._me and message.nonce:
                        self._posted.put(str(message.nonce), message.id)
                    taken = await self._take_message(message, inbox)
                    # Until every expected server is available, older messages may still be unread.
                    if not self._expected:
                        self._state.mark = max(self._state.mark, int(message.id))
                    return taken
                case "MESSAGE_UPDATE" if (edited := self._decode(data, DiscordMessage, name)) is not None:
                    # Discord also reports changes that it made itself, such as link previews.
                    if edited.edited_timestamp is None or edited.author is None or not is_from_person(edited, self._me):
                        return False
                    edited = await self._with_own_role(edited)
                    text = text_of(edited, self._me)
                    thread = await self._prompt_thread(edited.channel_id, edited.guild_id, edited.id, inbox)
                    if thread is None and edited.guild_id and is_addressed(edited, self._me):
                        place = await self._place(edited.channel_id, edited.guild_id)
                        prompt = prompt_of(place.thread(self.platform), edited, self._me)
                        if await self._is_unheard(prompt, self._prefix(place.channel), inbox):
                            return await self._take_message(edited, inbox)
                    if thread is None or not text or self._written.get(edited.id) == text:
                        return False
                    self._written.put(edited.id, text)
                    author = prompt_of(thread, edited, self._me).author
                    await inbox.send(Edit(thread, edited.id, text, author, edited.id, at=edited.edited_timestamp))
                    return True
                case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
                    deleted = msgspec.json.decode(data, type=DeletedMessages)
                    for gone in filter(None, (deleted.id, *deleted.ids)):
                        thread = await self._prompt_thread(deleted.channel_id, deleted.guild_id, gone, inbox)
                        if thread is not None:
                            await inbox.send(Deletion(thread, gone, UNTOLD, gone))
                    return True
                case "MESSAGE_REACTION_ADD":
                    reaction = msgspec.json.decode(data, type=ReactionAdded)
                    member, emoji, reacted = reaction.member, reaction.emoji.name, reaction.message_id
                    user = member.user if member is not None else None
                    if reaction.user_id == self._me or not emoji or (user is not None and user.bot):
                        return False
                    place = await self._place(reaction.channel_id, reaction.guild_id)
                    thread = await inbox.thread_of(self._prefix(place.channel), reacted)
                    author = author_of(user, member) if user is not None else Author(reaction.user_id, trusted=False)
                    if thread is not None:
                        await self._take_reaction(Reaction(thread, emoji, author, reacted), inbox)
                    return thread is not None
                case "INTERACTION_CREATE" if self._tasks is not None:
                    self._tasks.start_soon(self._interact, msgspec.json.decode(data, type=Interaction), inbox)
                case _:
                    pass
        except UNREADABLE:
            self._not_understood(f"{name} in an unknown format")
        except PlatformRefusal as error:
            log.warning("event dropped", extra={"platform": self.platform, "event": name, "why": str(error)})
        return False

    # ---- connecting and missed messages ----

    async def _catch_up(self, guild: Guild, inbox: InboxPort) -> bool:
        for channel in guild.channels:
            if holds_text(channel) and channel.name:
                name = f"#{channel.name} in {guild.name}" if guild.name else f"#{channel.name}"
                await self._channel_named(channel.id, name)
        if guild.unavailable or guild.id not in self._expected:
            return False
        for channel in (*guild.channels, *guild.threads):
            if not holds_text(channel) or int(channel.last_message_id or 0) <= self._missed_since:
                continue
            for message in await self._read_missed(channel.id):
                member: DiscordMember | None = None  # messages from the REST API do not contain roles
                if message.author is not None and not message.author.bot and not message.webhook_id:
                    path = f"/guilds/{guild.id}/members/{message.author.id}"
                    try:
                        member = await self._api.call("GET", path, DiscordMember)
                    except PlatformRefusal as error:
                        log.info("reading member roles failed", extra={"guild": guild.id, "why": str(error)})
                await self._take_message(msgspec.structs.replace(message, guild_id=guild.id, member=member), inbox)
        self._expected.discard(guild.id)
        return True

    async def _read_missed(self, channel: str) -> list[DiscordMessage]:
        try:
            return await self._api.messages(channel, self._missed_since, MISSED_A_CHANNEL_MAX)
        except PlatformRefusal as error:
            log.info("reading missed messages failed", extra={"channel": channel, "why": str(error)})
            return []

    async def _direct_channels(self) -> Sequence[str]:
        saved = await self._store.get(self._scope, "direct")
        return msgspec.json.decode(saved, type=list[str]) if saved else []

    # ---- messages ----

    async def _take_message(self, message: DiscordMessage, inbox: InboxPort) -> bool:
        if not is_from_person(message, self._me):
            if message.type not in KNOWN_TYPES:
                self._not_understood(f"message of type {message.type}")
            elif is_from_others(message, self._me):
                self._left_out("message from a bot")
            elif message.author is None or message.author.id != self._me:
                self._left_out(f"message of type {message.type}")
            return False
        message = await self._with_own_role(message)
        place = await self._place(message.channel_id, message.guild_id)
        prompt = await self._prompt_of(message, place, inbox)
        if prompt is None:
            return False
        if inbox.commands.parse(prompt.text) and place.topic == WHOLE and not message.answered_id:
            prompt = msgspec.structs.replace(prompt, thread=place.thread(self.platform))  # a command opens no thread
        if message.guild_id and message.member is not None:
            self._roles.put(f"{message.guild_id} {prompt.author.id}", (self._clock.monotonic(), prompt.author.roles))
        agent = self._settings.agent_in(place.guild)
        prompt = msgspec.structs.replace(prompt, agent=agent, direct=place.direct)
        if not await inbox.admits(prompt):
            return True
        await self._servers.note(place.channel, place.guild.removeprefix("?"))
        self._written.put(message.id, prompt.text)
        if place.direct:
            known = await self._direct_channels()
            if place.channel not in known:
                channels = [*known, place.channel][-DIRECT_MAX:]
                await self._store.put(self._scope, "direct", msgspec.json.encode(channels).decode())
        await self._take_in(prompt, inbox, self._incoming(message, prompt))
        return True

    async def _with_own_role(self, message: DiscordMessage) -> DiscordMessage:
        if not (message.guild_id and message.mention_roles):
            return message
        own = self._own_roles.get(message.guild_id)
        if own is None:
            roles = list[GuildRole]()
            try:
                roles = await self._api.call("GET", f"/guilds/{message.guild_id}/roles", list[GuildRole])
            except PlatformRefusal as error:
                log.info("reading server roles failed", extra={"guild": message.guild_id, "why": str(error)})
            own = next((role.id for role in roles if role.tags.bot_id == self._me), "")
            self._own_roles.put(message.guild_id, own)
        return naming(message, self._me, own) if own in message.mention_roles else message

    def _incoming(self, message: DiscordMessage, prompt: Prompt) -> list[IncomingFile]:
        others = next((reference.author for reference in prompt.refers_to), Author("", trusted=False))
        files: list[IncomingFile] = []
        for file in files_of(message, self._me):
            kind = file.content_type or "application/octet-stream"
            author = None if file in message.attachments else others
            fetch = partial(self._api.fetch, file.url, self.download_bytes_max)
            files.append((Attachment(file.filename, kind, file.size, author=author), fetch))
        return files

    async def _prompt_of(self, message: DiscordMessage, place: DiscordLocation, inbox: InboxPort) -> Prompt | None:
        if place.direct:
            return prompt_of(place.thread(self.platform), message, self._me)
        answered = message.answered_id
        known: ThreadId | None = None
        if place.topic == WHOLE and answered:
            known = await inbox.thread_of(self._prefix(place.channel), answered, answered)
        # a reply to the bot continues the thread that the bot's message opened
        opener = answered if answers(message, self._me) else message.id
        thread = known or thread_of(self.platform, place, opener, self._settings.threading_in(place.guild))
        part = thread_address(thread).thread
        in_chain = known is not None and part.startswith(CHAIN)
        prompt = prompt_of(thread, message, self._me)
        files, is_named = self._incoming(message, prompt), is_addressed(message, self._me)
        opens = part != WHOLE and not part.startswith(CHAIN)
        follows = in_chain or (place.topic != WHOLE and await self._is_subscribed(thread))
        is_for_agent = await self._is_for_agent(prompt, inbox, files, is_named=is_named, opens=opens, follows=follows)
        return prompt if is_for_agent else None

    async def _opening(self, thread: ThreadId) -> Prompt | None:
        """Read the message that opened a thread from the parent channel, where Discord stores it."""
        target = self._target(thread)
        if not target.parent:
            return None
        try:
            path = f"/channels/{target.parent}/messages/{target.channel}"
            starter = await self._api.call("GET", path, DiscordMessage)
        except PlatformRefusal:  # the message is missing or was deleted
            return None
        return read_back(thread, starter, self._me) if starter.author is not None else None

    async def roles_of(self, channel: str, user: str) -> tuple[str, ...]:
        guild = (await self._place(channel)).guild.removeprefix("?")
        heard_at, roles = self._roles.get(f"{guild} {user}") or (-ROLES_SECONDS, ())
        if guild and self._clock.monotonic() - heard_at >= ROLES_SECONDS:
            try:
                roles = (await self._api.call("GET", f"/guilds/{guild}/members/{user}", DiscordMember)).roles
            except PlatformRefusal as error:
                if error.code not in GONE_MEMBER:
                    raise
                roles = ()
            self._roles.put(f"{guild} {user}", (self._clock.monotonic(), roles))
        return roles

    async def _place(self, channel: str, guild: str | None = None) -> DiscordLocation:
        """Return a channel's location, which is requested once and then cached. An empty `guild` means a direct
        channel.
        """
        if guild == "":
            return DiscordLocation(channel)
        known = self._places.get(channel)
        if known is None:
            channel_info = await self._api.call("GET", f"/channels/{channel}", DiscordChannel)
            known = place_of(channel_info, guild or "")
            self._places.put(channel, known)
        return known

    async def _prompt_thread(self, channel: str, guild: str, message_id: str, inbox: InboxPort) -> ThreadId | None:
        place = await self._place(channel, guild)
        return await inbox.thread_of(self._prefix(place.channel), "", message_id)

    # ---- slash commands and buttons ----

    async def _interact(self, interaction: Interaction, inbox: InboxPort) -> None:
        """Acknowledge the interaction before processing it, because Discord allows only three seconds."""
        base = f"/webhooks/{interaction.application_id}/{interaction.token}"
        callback = f"/interactions/{interaction.id}/{interaction.token}/callback"
        user = interaction.user or (interaction.member.user if interaction.member is not None else None)
        place = place_of(interaction.channel, interaction.guild_id) if interaction.channel is not None else None
        author = author_of(user, interaction.member) if user is not None and not user.bot else None
        name, now = interaction.data.name, self._clock.now()
        typed = " ".join(str(option.value) for option in interaction.data.options)
        try:
            if interaction.type == 4:  # autocomplete
                texts: Sequence[str] = ()
                if author is not None and place is not None:
                    thread = place.thread(self.platform)
                    asked = CommandRequest(thread, author, name, typed.lstrip(), interaction.id, now)
                    texts = await inbox.suggestions(asked)
                await self._api.call("POST", callback, msgspec.Raw, choices_body(texts))
                return
            acknowledged: Fields = {"type": 5, "data": {"flags": EPHEMERAL}}
            await self._api.call("POST", callback, msgspec.Raw, acknowledged)
            if author is None or place is None:
                answer = "I cannot do that here."
            else:
                await self._servers.note(place.channel, place.guild.removeprefix("?"))
                thread, argument = place.thread(self.platform), typed.strip()
                if interaction.type == 3:
                    answer = await press(interaction.data.custom_id, thread, author, inbox)
                elif name not in inbox.commands:
                    answer = f"The command /{name} does not exist."
                else:
                    answer = await inbox.command(
                        CommandRequest(
                            thread, author, name, argument, interaction.id, now, direct=place.direct, private=True
                        )
                    )
            first, *rest = cut(answer or DONE, self.limits)
            await self._api.call("PATCH", f"{base}/messages/@original", msgspec.Raw, message_body(first))
            for piece in rest:
                await self._api.call("POST", base, msgspec.Raw, {**message_body(piece), "flags": EPHEMERAL})
        except (PlatformError, StoreError) as error:
            log.warning("command or button reply failed: %s", error, extra={"platform": self.platform})

    # ---- posts ----

    async def close(self) -> None:
        await self._api.close()

    async def post(self, post: OutboundPost) -> str:
        nonce = nonce_of(post.key)
        message_id = self._posted.get(nonce)
        if message_id is not None:
            return message_id
        # Discord supports private messages only as command replies and direct messages
        if post.kind == "ephemeral" and post.user:
            with Tolerating(CANNOT_MESSAGE_USER):
                direct = await self._open_direct(post.user)
                message_id = await self._create(post, DiscordTarget(direct.id))
            if message_id is None:
                post = msgspec.structs.replace(post, markdown=WHISPERED, file=None)
        if message_id is None:
            target = self._target(post.thread)
            try:
                message_id = await self._create(post, target)
            except PlatformRefusal as error:
                if error.code == IS_FORUM and not (target.parent or target.answers):
                    message_id = await self._begin_forum_post(post)
                elif error.code == UNKNOWN_CHANNEL and target.parent:
                    # the thread does not exist until its first post
                    message_id = await self._create(post, await self._open(target))
                else:
                    raise
        self._posted.put(nonce, message_id)
        return message_id

    async def find_posted(self, post: OutboundPost) -> list[str]:
        """Implement `ReadsBack`. This searches the channel's newest messages, because Discord remembers nonces for only
        a few minutes. Raises PlatformError.
        """
        known = self._posted.get(nonce_of(post.key))
        if known is not None or (post.kind == "ephemeral" and post.user):
            return [known] if known is not None else []
        target = self._target(post.thread)
        body = post_body(post, target)
        try:
            me = self._me or (await self._api.call("GET", "/users/@me", DiscordUser)).id
            read = await self._read(target.channel, snowflake_at(self._clock.now() - LOOK_BACK), LOOK_BACK_MAX)
        except PlatformRefusal as error:
            log.info("post lookup failed", extra={"platform": self.platform, "why": str(error)})
            return []
        mine = (message for message in read if message.author is not None and message.author.id == me)
        return [message.id for message in mine if is_try_of(post, body, message)]

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        await self._change("PATCH", thread, message_id, message_body(markdown, buttons))

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        await self._change("DELETE", thread, message_id)

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show the typing indicator for ten seconds or until the next post. Raises PlatformError."""
        if not status:
            return
        target = self._target(thread)
        try:
            await self._api.call("POST", f"/channels/{target.channel}/typing", msgspec.Raw, {})
        except PlatformRefusal as error:
            if error.code != UNKNOWN_CHANNEL or not target.parent:
                raise
            target = await self._open(target)
            await self._api.call("POST", f"/channels/{target.channel}/typing", msgspec.Raw, {})

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Start a thread in a channel with this text and return its id. If `channel` is a user id, start a direct
        conversation. Raises PlatformError.
        """
        place: DiscordLocation | None = None
        with Tolerating(UNKNOWN_CHANNEL):
            place = await self._place(channel)
        place = place or await self._place((await self._open_direct(channel)).id)
        text = REPEATED + text if maybe_posted else text  # Discord drops the repeated post while it remembers the nonce
        first, *rest = cut(text, self.limits)
        here, key = place.thread(self.platform), key or f"open:{self._clock.new_id()}"
        threading = self._settings.threading_in(place.guild)
        thread = here
        if place.is_forum:
            message_id, threading = await self._begin_forum_post(OutboundPost(here, key, first)), "native"
        else:
            message_id = await self.post(OutboundPost(here, key, first))
        if not place.direct and place.topic == WHOLE and threading != "channel":
            part = message_id if threading == "native" else f"{CHAIN}{message_id}"
            thread = make_thread_id(self.platform, place.channel, part)
            if threading == "native":
                if not place.is_forum:
                    await self._open(target_of(thread))
                await self._subscribe(thread)
        for number, piece in enumerate(rest, 1):
            await self.post(OutboundPost(thread, f"{key}:{number}", piece))
        return thread

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        target = target_of(thread)
        lower = snowflake_at(after) if after is not None else 0
        if target.answers:
            read = await self._read(target.channel, max(lower, int(target.answers) - 1), CHAIN_READ_MAX)
            messages = chain_of(read, target.answers)[-limit:]
        else:
            messages = await self._read(target.channel, lower, limit)
        for message in messages:
            if is_from_others(message, self._me):
                yield read_back(thread, message, self._me)

    # ---- channels ----

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Create a text channel in the same server and category as `beside`, and return its id. Raises PlatformError.

        Without `beside`, the bot must be a member of exactly one server.
        """
        body: dict[str, Json] = {"name": name[:100], "type": 0}
        if beside:
            near = await self._api.call("GET", f"/channels/{beside}", DiscordChannel)
            guild = near.guild_id
            body |= {"parent_id": near.parent_id} if near.parent_id and near.type == 0 else {}
        else:
            servers = await self._api.call("GET", "/users/@me/guilds", list[Guild])
            guild = servers[0].id if len(servers) == 1 else ""
        if not guild:
            reason = (
                "Shoal does not know in which Discord server to create the channel. Specify an existing channel in "
                "the server that you want."
            )
            raise PlatformError(reason, permanent=True)
        return (await self._api.call("POST", f"/guilds/{guild}/channels", DiscordChannel, body)).id

    async def has_channel(self, channel: str) -> bool:
        try:
            channel_info = await self._api.call("GET", f"/channels/{channel}", DiscordChannel)
            return holds_text(channel_info) or place_of(channel_info).is_forum
        except PlatformRefusal:
            return False

    # ---- calls ----

    def _target(self, thread: ThreadId) -> DiscordTarget:
        """Return the target of a thread's posts. If Discord could not open the thread, the target is in the parent
        channel.
        """
        target = target_of(thread)
        return self._moved.get(target.channel) or target

    async def _open_direct(self, user: str) -> DiscordChannel:
        return await self._api.call("POST", "/users/@me/channels", DiscordChannel, {"recipient_id": user})

    async def _create(self, post: OutboundPost, target: DiscordTarget) -> str:
        path = f"/channels/{target.channel}/messages"
        body = await asyncio.to_thread(post_body, post, target)
        try:
            files = (post.file, *post.album) if post.file is not None else ()
            return (await self._api.call("POST", path, DiscordMessage, body, files=files)).id
        except PlatformRefusal as error:
            if error.code in NO_REFERENCE and "message_reference" in body:
                log.info("posted without reply reference", extra={"platform": self.platform, "why": str(error)})
                unreferring = msgspec.structs.replace(post, reply_to="")
                return await self._create(unreferring, msgspec.structs.replace(target, answers=""))
            if post.kind != "voice" or error.code not in NO_VOICE:
                raise
            log.info("voice message sent as file", extra={"platform": self.platform, "why": str(error)})
            return await self._create(msgspec.structs.replace(post, kind="file"), target)

    async def _begin_forum_post(self, post: OutboundPost) -> str:
        """Create a forum post and return its id. Its first message has the same id."""
        target = self._target(post.thread)
        message = await asyncio.to_thread(post_body, post, target)
        del message["nonce"], message["enforce_nonce"]  # forum posts support neither
        body: Fields = {**thread_body(post.markdown), "message": message}
        files = (post.file, *post.album) if post.file is not None else ()
        path = f"/channels/{target.channel}/threads"
        return (await self._api.call("POST", path, DiscordChannel, body, files=files)).id

    async def _change(
        self, method: str, thread: ThreadId, message_id: str, body: dict[str, Json] | None = None
    ) -> None:
        """Edit or delete a message in its thread. A message that opened the thread is in the parent channel."""
        target = self._target(thread)
        try:
            await self._change_in(method, target.channel, message_id, body)
        except PlatformRefusal as error:
            if error.code not in (UNKNOWN_CHANNEL, UNKNOWN_MESSAGE) or not target.parent:
                raise
            await self._change_in(method, target.parent, message_id, body)

    async def _change_in(self, method: str, channel: str, message_id: str, body: dict[str, Json] | None) -> None:
        """Edit or delete a message. Edits have their own rate limit: five edits in five seconds per channel."""
        path = f"/channels/{channel}/messages/{message_id}"
        lock = self._edit_locks.get(channel) or asyncio.Lock()
        self._edit_locks.put(channel, lock)
        async with lock:
            await self._clock.sleep(min(self._api.wait_seconds(method, path), EDIT_WAIT_SECONDS_MAX))
            await self._api.call(method, path, msgspec.Raw, body)

    async def _open(self, target: DiscordTarget) -> DiscordTarget:
        """Open a thread at its message. If Discord returns an error, return a target that replies in the parent
        channel.
        """
        path = f"/channels/{target.parent}/messages/{target.channel}"
        try:
            starter = await self._api.call("GET", path, DiscordMessage)
            await self._api.call("POST", f"{path}/threads", DiscordChannel, thread_body(text_of(starter, self._me)))
        except PlatformRefusal as error:
            if error.code != THREAD_EXISTS:
                log.info("opening thread failed", extra={"platform": self.platform, "why": str(error)})
                target = DiscordTarget(target.parent, answers=target.channel)
                self._moved.put(target.answers, target)
        return target

    async def _read(self, channel: str, after: int, limit: int) -> list[DiscordMessage]:
        with Tolerating(UNKNOWN_CHANNEL):
            return await self._api.messages(channel, after, limit)
        return []


class _InChannel(msgspec.Struct, frozen=True):
    channel_id: str = ""


def channel_in(name: str, data: bytes) -> str:
    """Return the channel of a message event. Returns an empty string for other events and for unreadable ones."""
    if not name.startswith("MESSAGE_"):
        return ""
    try:
        return msgspec.json.decode(data, type=_InChannel).channel_id
    except UNREADABLE:
        return ""
