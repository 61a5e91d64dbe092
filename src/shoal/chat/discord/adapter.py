"""The Discord adapter: posts and edits by the API, opens threads where they are native, and receives by the gateway."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from importlib.util import find_spec

import msgspec

from shoal.chat.account import ChatAccount
from shoal.chat.discord.api import (
    CANNOT_MESSAGE_USER,
    THREAD_EXISTS,
    UNKNOWN_CHANNEL,
    UNKNOWN_MESSAGE,
    DiscordApi,
    Refused,
    Value,
)
from shoal.chat.discord.inbound import (
    CHAIN,
    WHOLE,
    Channel,
    Message,
    Place,
    User,
    chain_of,
    holds_text,
    is_said,
    prompt_of,
    snowflake_at,
    text_of,
)
from shoal.chat.discord.intake import DiscordSettings, Intake
from shoal.chat.discord.outbound import (
    Target,
    cut,
    is_try_of,
    limits_of,
    message_body,
    nonce_of,
    post_body,
    target_of,
    thread_body,
)
from shoal.chat.discord.reading import read_messages
from shoal.chat.discord.receiver import Receiver
from shoal.chat.discord.recent import Recent
from shoal.domain.clock import Clock
from shoal.domain.errors import ConfigError, PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Prompt
from shoal.domain.ports import InboxPort
from shoal.domain.posts import REPEATED, Button, OutboundPost
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

POSTED_MAX = 4096
"""Posts whose ids are remembered by their nonce, for repeats that come later than Discord remembers."""
LOOK_BACK = timedelta(days=1)
LOOK_BACK_MAX = 300
"""How far back a post is looked for whose outcome is unknown: posts are tried for a day."""
CHAIN_READ_MAX = 500
"""How far back a channel is read for the replies of one chain."""
LINE_SECONDS_MAX = 30.0
"""Longest wait for a channel's budget of edits; beyond it the sender waits."""
WHISPERED = "I have something to tell you alone, but you take no direct messages from here."


class _Server(msgspec.Struct, frozen=True):
    id: str


class DiscordAdapter:
    """Implements `ChatAdapter`, `ChannelHost` and `ReadsBack`."""

    def __init__(self, platform: str, settings: DiscordSettings, home: Home, store: Settings, clock: Clock) -> None:
        if find_spec("websockets") is None:
            raise ConfigError(
                ["platforms.discord needs a package that is not installed: pip install 'shoal[discord]'."]
            )
        self.platform = platform
        self.limits = limits_of(opens_threads=settings.opens_threads)
        self._settings = settings
        self._clock = clock
        self._api = DiscordApi(settings.api_base, settings.token, settings.account, clock)
        account = ChatAccount(platform, clock, self.post, cut=cut)
        self.connected = account.connected
        self._intake = Intake(account, settings, self._api, store, home, clock)
        self._posted: Recent[str] = Recent(POSTED_MAX)
        self._lines: Recent[asyncio.Lock] = Recent(POSTED_MAX)
        self._moved: Recent[Target] = Recent(POSTED_MAX)
        self._receiver = Receiver(account, settings, self._api, self._intake, store, clock, self._posted)

    async def run(self, inbox: InboxPort) -> None:
        """Receive until cancelled; reconnect with backoff by itself."""
        try:
            await self._receiver.run(inbox)
        finally:
            await self._api.close()

    async def close(self) -> None:
        """Give connections back; for who posts without `run`."""
        await self._api.close()

    # ---- out ----

    async def post(self, post: OutboundPost) -> str:
        """Post and return the message's id; a repeat of a post returns the same. Raises PlatformError."""
        nonce = nonce_of(post.key)
        message_id = self._posted.get(nonce)
        if message_id is None:
            target = target_of(post.thread)
            if post.kind == "ephemeral" and post.user:
                message_id = await self._whisper(post, target)
            else:
                message_id = await self._send(post, target)
            self._posted.put(nonce, message_id)
        return message_id

    async def standing(self, post: OutboundPost) -> list[str]:
        """The ids of the bot's messages that an earlier try of this post may have left; see `ReadsBack`.

        Nonces are remembered for minutes only, so the channel's newest messages are read. Raises PlatformError.
        """
        known = self._posted.get(nonce_of(post.key))
        if known is not None or (post.kind == "ephemeral" and post.user):
            return [known] if known is not None else []
        target = target_of(post.thread)
        target = self._moved.get(target.channel) or target
        body = post_body(post, target)
        try:
            me = self._receiver.me or (await self._api.call("GET", "/users/@me", User)).id
            read = await self._read(target.channel, snowflake_at(self._clock.now() - LOOK_BACK), LOOK_BACK_MAX)
        except Refused as error:
            log.info("a post could not be looked for", extra={"platform": self.platform, "why": str(error)})
            return []
        mine = (one for one in read if one.author is not None and one.author.id == me)
        return [message.id for message in mine if is_try_of(post, body, message)]

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a message. Raises PlatformError."""
        await self._change("PATCH", thread, message_id, message_body(markdown, buttons))

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        await self._change("DELETE", thread, message_id)

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show `typing` for ten seconds; it ends by itself, or with a post. Raises PlatformError."""
        if not status:
            return
        target = target_of(thread)
        target = self._moved.get(target.channel) or target
        try:
            await self._api.call("POST", f"/channels/{target.channel}/typing", msgspec.Raw, {})
        except Refused as error:
            if error.code != UNKNOWN_CHANNEL or not target.parent:
                raise
            target = await self._opened(target)
            await self._api.call("POST", f"/channels/{target.channel}/typing", msgspec.Raw, {})

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel, or to a person by their id, and return the thread this opens. Raises PlatformError."""
        place = await self._place(channel)
        first, *rest = cut(REPEATED + text if maybe_posted else text)  # which is not seen while the nonce is remembered
        here, key = place.thread(self.platform), key or f"open:{self._clock.new_id()}"
        message_id = await self.post(OutboundPost(here, key, first))
        threading = self._settings.threading_in(place.guild)
        thread = here
        if not place.direct and place.topic == WHOLE and threading != "channel":
            part = message_id if threading == "native" else f"{CHAIN}{message_id}"
            thread = make_thread_id(self.platform, place.channel, part)
            if threading == "native":
                await self._opened(target_of(thread))
                await self._intake.subscribe(thread)
        for number, piece in enumerate(rest, 1):
            await self.post(OutboundPost(thread, f"{key}:{number}", piece))
        return thread

    async def _place(self, channel: str) -> Place:
        """The place of a channel, or of the direct conversation with the person who has this id."""
        try:
            return await self._intake.place(channel)
        except Refused as error:
            if error.code != UNKNOWN_CHANNEL:
                raise
        direct = await self._api.call("POST", "/users/@me/channels", Channel, {"recipient_id": channel})
        return await self._intake.place(direct.id)

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
            prompt = prompt_of(thread, message, self._receiver.me) if is_said(message, self._receiver.me) else None
            if prompt is not None:
                yield prompt

    # ---- rooms ----

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Make a text channel in the server and category of `beside`; returns its id. Raises PlatformError."""
        body: dict[str, Value] = {"name": name[:100], "type": 0}
        if beside:
            near = await self._api.call("GET", f"/channels/{beside}", Channel)
            guild = near.guild_id
            body |= {"parent_id": near.parent_id} if near.parent_id and near.type == 0 else {}
        else:
            servers = await self._api.call("GET", "/users/@me/guilds", list[_Server])
            guild = servers[0].id if len(servers) == 1 else ""
        if not guild:
            reason = "Discord makes channels in servers: name a channel of the server to make it in."
            raise PlatformError(reason, permanent=True)
        return (await self._api.call("POST", f"/guilds/{guild}/channels", Channel, body)).id

    async def has_channel(self, channel: str) -> bool:
        """Whether the channel is there, holds text and may be seen. Raises PlatformError when that is not known."""
        try:
            return holds_text(await self._api.call("GET", f"/channels/{channel}", Channel))
        except Refused:
            return False

    # ---- parts ----

    async def _send(self, post: OutboundPost, target: Target) -> str:
        """Post to where it belongs; its thread is opened with the first post."""
        target = self._moved.get(target.channel) or target
        try:
            return await self._create(post, target)
        except Refused as error:
            if error.code != UNKNOWN_CHANNEL or not target.parent:
                raise
        return await self._create(post, await self._opened(target))

    async def _create(self, post: OutboundPost, target: Target) -> str:
        path = f"/channels/{target.channel}/messages"
        return (await self._api.call("POST", path, Message, post_body(post, target), file=post.file)).id

    async def _change(
        self, method: str, thread: ThreadId, message_id: str, body: dict[str, Value] | None = None
    ) -> None:
        """Change a message where it stands: in the thread, or in the channel that it is in."""
        target = target_of(thread)
        target = self._moved.get(target.channel) or target
        try:
            await self._change_in(method, target.channel, message_id, body)
        except Refused as error:
            if error.code not in (UNKNOWN_CHANNEL, UNKNOWN_MESSAGE) or not target.parent:
                raise
            await self._change_in(method, target.parent, message_id, body)

    async def _change_in(self, method: str, channel: str, message_id: str, body: dict[str, Value] | None) -> None:
        """Edits have a budget of their own, five in five seconds a channel; in a busy one they stand in line for it."""
        path = f"/channels/{channel}/messages/{message_id}"
        line = self._lines.get(channel) or asyncio.Lock()
        self._lines.put(channel, line)
        async with line:
            await self._clock.sleep(min(self._api.wait_seconds(method, path), LINE_SECONDS_MAX))
            await self._api.call(method, path, msgspec.Raw, body)

    async def _opened(self, target: Target) -> Target:
        """Open the thread at its message; where Discord lets none be opened, answer that message in its channel."""
        path = f"/channels/{target.parent}/messages/{target.channel}"
        try:
            starter = await self._api.call("GET", path, Message)
            name = text_of(starter, self._receiver.me)
            await self._api.call("POST", f"{path}/threads", Channel, thread_body(name))
        except Refused as error:
            if error.code != THREAD_EXISTS:
                log.info("a thread could not be opened", extra={"platform": self.platform, "why": str(error)})
                target = Target(target.parent, answers=target.channel)
                self._moved.put(target.answers, target)
        return target

    async def _whisper(self, post: OutboundPost, target: Target) -> str:
        """Outside of commands only a direct message is for one person alone."""
        try:
            direct = await self._api.call("POST", "/users/@me/channels", Channel, {"recipient_id": post.user})
            return await self._create(post, Target(direct.id))
        except Refused as error:
            if error.code != CANNOT_MESSAGE_USER:
                raise
        return await self._send(msgspec.structs.replace(post, markdown=WHISPERED, file=None), target)

    async def _read(self, channel: str, after: int, limit: int) -> list[Message]:
        """A channel's messages; none where a thread was not opened yet."""
        try:
            return await read_messages(self._api, channel, after, limit)
        except Refused as error:
            if error.code != UNKNOWN_CHANNEL:
                raise
            return []
