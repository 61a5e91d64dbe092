"""The Discord adapter: what comes in by the gateway, and posts, threads and channels by the API."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from importlib.util import find_spec

import msgspec

from shoal.chat.account import cut
from shoal.chat.discord.receive import (
    POSTED_MAX,
    DiscordReceiver,
    chain_of,
    holds_text,
    is_said,
    prompt_of,
    read_messages,
    snowflake_at,
    text_of,
)
from shoal.chat.discord.send import DiscordTarget, is_try_of, message_body, nonce_of, post_body, target_of, thread_body
from shoal.chat.discord.wire import (
    CANNOT_MESSAGE_USER,
    CHAIN,
    THREAD_EXISTS,
    UNKNOWN_CHANNEL,
    UNKNOWN_MESSAGE,
    WHOLE,
    DiscordChannel,
    DiscordMessage,
    DiscordRefusal,
    DiscordUser,
)
from shoal.chat.http import Json
from shoal.chat.inbox import Recent
from shoal.domain.clock import Clock
from shoal.domain.errors import ConfigError, PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Prompt
from shoal.domain.ports import Settings
from shoal.domain.posts import REPEATED, Button, OutboundPost
from shoal.domain.settings import DiscordSettings

log = logging.getLogger(__name__)

LOOK_BACK = timedelta(days=1)
LOOK_BACK_MAX = 300
"""How far back a post is looked for whose outcome is unknown: posts are tried for a day."""
CHAIN_READ_MAX = 500
"""How far back a channel is read for the replies of one chain."""
EDIT_WAIT_SECONDS_MAX = 30.0
"""Longest wait for a channel's budget of edits; beyond it the sender waits."""
WHISPERED = "I have something to tell you alone, but you do not accept direct messages from here."


class _DiscordServer(msgspec.Struct, frozen=True):
    id: str


class DiscordAdapter(DiscordReceiver):
    """Implements `ChatAdapter`, `ChannelHost` and `ReadsBack`."""

    def __init__(self, platform: str, settings: DiscordSettings, home: Home, store: Settings, clock: Clock) -> None:
        if find_spec("websockets") is None:
            raise ConfigError(
                ["platforms.discord needs a package that is not installed: pip install 'shoal[discord]'."]
            )
        super().__init__(platform, settings, home, store, clock)
        self._edit_locks: Recent[asyncio.Lock] = Recent(POSTED_MAX)
        self._moved: Recent[DiscordTarget] = Recent(POSTED_MAX)

    async def close(self) -> None:
        await self._api.close()

    # ---- posts ----

    async def post(self, post: OutboundPost) -> str:
        """Post and return the message's id; a repeat of a post returns the same. Raises PlatformError."""
        nonce = nonce_of(post.key)
        message_id = self._posted.get(nonce)
        if message_id is not None:
            return message_id
        if post.kind == "ephemeral" and post.user:  # except after commands, only a direct message is for one person
            try:
                direct = await self._open_direct(post.user)
                message_id = await self._create(post, DiscordTarget(direct.id))
            except DiscordRefusal as error:
                if error.code != CANNOT_MESSAGE_USER:
                    raise
                post = msgspec.structs.replace(post, markdown=WHISPERED, file=None)
        if message_id is None:
            message_id = await self._send(post)
        self._posted.put(nonce, message_id)
        return message_id

    async def find_posted(self, post: OutboundPost) -> list[str]:
        """The ids of the bot's messages that an earlier try of this post may have left; see `ReadsBack`.

        Discord remembers nonces for minutes only, so the channel's newest messages are read. Raises PlatformError.
        """
        known = self._posted.get(nonce_of(post.key))
        if known is not None or (post.kind == "ephemeral" and post.user):
            return [known] if known is not None else []
        target = self._target(post.thread)
        body = post_body(post, target)
        try:
            me = self._me or (await self._api.call("GET", "/users/@me", DiscordUser)).id
            read = await self._read(target.channel, snowflake_at(self._clock.now() - LOOK_BACK), LOOK_BACK_MAX)
        except DiscordRefusal as error:
            log.info("a post could not be looked for", extra={"platform": self.platform, "why": str(error)})
            return []
        mine = (one for one in read if one.author is not None and one.author.id == me)
        return [message.id for message in mine if is_try_of(post, body, message)]

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        await self._change("PATCH", thread, message_id, message_body(markdown, buttons))

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        await self._change("DELETE", thread, message_id)

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show `typing` for ten seconds; it ends by itself, or with a post. Raises PlatformError."""
        if not status:
            return
        target = self._target(thread)
        try:
            await self._api.call("POST", f"/channels/{target.channel}/typing", msgspec.Raw, {})
        except DiscordRefusal as error:
            if error.code != UNKNOWN_CHANNEL or not target.parent:
                raise
            target = await self._open(target)
            await self._api.call("POST", f"/channels/{target.channel}/typing", msgspec.Raw, {})

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel, or to a person by their id, and return the thread this opens. Raises PlatformError."""
        try:
            place = await self._place(channel)
        except DiscordRefusal as error:
            if error.code != UNKNOWN_CHANNEL:
                raise
            place = await self._place((await self._open_direct(channel)).id)
        text = REPEATED + text if maybe_posted else text  # not seen while Discord remembers the nonce
        first, *rest = cut(text, self.limits)
        here, key = place.thread(self.platform), key or f"open:{self._clock.new_id()}"
        message_id = await self.post(OutboundPost(here, key, first))
        threading = self._settings.threading_in(place.guild)
        thread = here
        if not place.direct and place.topic == WHOLE and threading != "channel":
            part = message_id if threading == "native" else f"{CHAIN}{message_id}"
            thread = make_thread_id(self.platform, place.channel, part)
            if threading == "native":
                await self._open(target_of(thread))
                await self._subscribe(thread)
        for number, piece in enumerate(rest, 1):
            await self.post(OutboundPost(thread, f"{key}:{number}", piece))
        return thread

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """The newest messages of people in a thread, at most `limit`, oldest first. Raises PlatformError."""
        target = target_of(thread)
        lower = snowflake_at(after) if after is not None else 0
        if target.answers:
            read = await self._read(target.channel, max(lower, int(target.answers) - 1), CHAIN_READ_MAX)
            found = chain_of(read, target.answers)[-limit:]
        else:
            found = await self._read(target.channel, lower, limit)
        for message in found:
            prompt = prompt_of(thread, message, self._me) if is_said(message, self._me) else None
            if prompt is not None:
                yield prompt

    # ---- channels ----

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Make a text channel in the server and category of `beside`; returns its id. Raises PlatformError."""
        body: dict[str, Json] = {"name": name[:100], "type": 0}
        if beside:
            near = await self._api.call("GET", f"/channels/{beside}", DiscordChannel)
            guild = near.guild_id
            body |= {"parent_id": near.parent_id} if near.parent_id and near.type == 0 else {}
        else:
            servers = await self._api.call("GET", "/users/@me/guilds", list[_DiscordServer])
            guild = servers[0].id if len(servers) == 1 else ""
        if not guild:
            reason = "Discord makes channels in servers: name a channel of the server to make it in."
            raise PlatformError(reason, permanent=True)
        return (await self._api.call("POST", f"/guilds/{guild}/channels", DiscordChannel, body)).id

    async def has_channel(self, channel: str) -> bool:
        """Whether the channel is there, holds text and may be seen. Raises PlatformError when that is not known."""
        try:
            return holds_text(await self._api.call("GET", f"/channels/{channel}", DiscordChannel))
        except DiscordRefusal:
            return False

    # ---- calls ----

    def _target(self, thread: ThreadId) -> DiscordTarget:
        """Where a thread's posts go now. Raises PlatformError for an id that is not of Discord's form."""
        target = target_of(thread)
        return self._moved.get(target.channel) or target

    async def _open_direct(self, user: str) -> DiscordChannel:
        return await self._api.call("POST", "/users/@me/channels", DiscordChannel, {"recipient_id": user})

    async def _send(self, post: OutboundPost) -> str:
        """Post to where it belongs; its thread is opened with the first post."""
        target = self._target(post.thread)
        try:
            return await self._create(post, target)
        except DiscordRefusal as error:
            if error.code != UNKNOWN_CHANNEL or not target.parent:
                raise
        return await self._create(post, await self._open(target))

    async def _create(self, post: OutboundPost, target: DiscordTarget) -> str:
        path = f"/channels/{target.channel}/messages"
        return (await self._api.call("POST", path, DiscordMessage, post_body(post, target), file=post.file)).id

    async def _change(
        self, method: str, thread: ThreadId, message_id: str, body: dict[str, Json] | None = None
    ) -> None:
        """Change a message where it stands: in the thread, or in the channel that it is in."""
        target = self._target(thread)
        try:
            await self._change_in(method, target.channel, message_id, body)
        except DiscordRefusal as error:
            if error.code not in (UNKNOWN_CHANNEL, UNKNOWN_MESSAGE) or not target.parent:
                raise
            await self._change_in(method, target.parent, message_id, body)

    async def _change_in(self, method: str, channel: str, message_id: str, body: dict[str, Json] | None) -> None:
        """Edits have a budget of their own, five in five seconds a channel, and queue for it where it is busy."""
        path = f"/channels/{channel}/messages/{message_id}"
        lock = self._edit_locks.get(channel) or asyncio.Lock()
        self._edit_locks.put(channel, lock)
        async with lock:
            await self._clock.sleep(min(self._api.wait_seconds(method, path), EDIT_WAIT_SECONDS_MAX))
            await self._api.call(method, path, msgspec.Raw, body)

    async def _open(self, target: DiscordTarget) -> DiscordTarget:
        """Open the thread at its message; where Discord refuses that, answer the message in its channel."""
        path = f"/channels/{target.parent}/messages/{target.channel}"
        try:
            starter = await self._api.call("GET", path, DiscordMessage)
            await self._api.call("POST", f"{path}/threads", DiscordChannel, thread_body(text_of(starter, self._me)))
        except DiscordRefusal as error:
            if error.code != THREAD_EXISTS:
                log.info("a thread could not be opened", extra={"platform": self.platform, "why": str(error)})
                target = DiscordTarget(target.parent, answers=target.channel)
                self._moved.put(target.answers, target)
        return target

    async def _read(self, channel: str, after: int, limit: int) -> list[DiscordMessage]:
        """A channel's messages; none where a thread was not opened yet."""
        try:
            return await read_messages(self._api, channel, after, limit)
        except DiscordRefusal as error:
            if error.code != UNKNOWN_CHANNEL:
                raise
            return []
