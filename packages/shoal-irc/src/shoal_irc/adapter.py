"""IRC adapter: receives messages from channels and people, and posts lines. IRC has no threads, files, edits or
buttons."""

import asyncio
import hashlib
import logging
from fnmatch import fnmatchcase

from shoal.kernel.errors import InvalidId, PlatformError, StoreError
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.ports import InboxPort
from shoal.kernel.posts import REPEATED, ChatLimits, OutboundPost, Window
from shoal.markdown.render import render_markup
from shoal.platforms.account import ChatAccount, cut
from shoal.platforms.inbox import time_of
from shoal_irc.connection import Connection, IrcSettings, connect
from shoal_irc.wire import IRC_MARKUP, Line, Spoken, is_channel, pieces, plain, spoken

log = logging.getLogger(__name__)
WHOLE = "0"
"""Thread part of every conversation's id."""
RECONNECT_SECONDS = 20.0
"""Maximum seconds that a post waits for a connection before it fails and is retried."""
NOT_SAVED = "I could not save your message. Please send it again in a moment."


class IrcAdapter(ChatAccount[IrcSettings]):
    """Connects Shoal to an IRC network.

    The id of a person is the account that the server confirms, or USER@HOST if there is no account. A private
    conversation belongs to this id and not to the nick, because another person may use the nick later.
    """

    limits = ChatLimits(text_chars_max=350, markup=IRC_MARKUP, text_unit="bytes", windows=(Window(4, 4.0, "account"),))
    _connection: Connection | None = None

    async def _keep_connected(self, inbox: InboxPort) -> None:
        self._in_order = asyncio.Lock()
        async with asyncio.TaskGroup() as self._takes:
            await super()._keep_connected(inbox)

    async def _connect(self, inbox: InboxPort) -> None:
        connection = await connect(self._settings)
        try:
            await connection.register()
            self._connection = connection
            self._reset_backoff()
            self.connected.set()
            log.info("connected", extra={"platform": self.platform, "bot": connection.nick})
            while True:
                line = await connection.next()
                text = spoken(line, connection.nick) if line.command == "PRIVMSG" else None
                # run in a separate task, because the confirmations of the replies arrive in later lines
                if text is not None:
                    self._takes.create_task(self._take(line, text, inbox))
        finally:
            self.connected.clear()
            self._connection = None
            connection.close()

    async def close(self) -> None:
        """Do nothing, because `_connect` closes the connection."""

    async def _take(self, line: Line, spoken_line: Spoken, inbox: InboxPort) -> None:
        masks = (mask.removeprefix("role:") for mask in self._settings.allow if mask.startswith("role:"))
        roles = tuple(mask for mask in masks if fnmatchcase(line.source.lower(), mask.lower()))
        person = line.tags.get("account") or spoken_line.mask
        author = Author(person, spoken_line.nick, roles, is_bot="bot" in line.tags, trusted=False)
        key = line.tags.get("msgid") or self._clock.new_id()
        if author.is_bot:
            self._left_out("message from a bot")
        async with self._in_order:
            try:
                thread = make_thread_id(
                    self.platform, person if spoken_line.direct else spoken_line.target.lower(), WHOLE
                )
                at = time_of(line.tags.get("time", ""), self._clock.now())
                prompt = Prompt(
                    thread,
                    key,
                    inbox.commands.with_slash(spoken_line.text),
                    author,
                    at,
                    direct=spoken_line.direct,
                    message_id=key,
                )
                if spoken_line.direct:
                    await self._store.put(f"nicks:{self.platform}", person, spoken_line.nick)
                elif not await self._is_for_agent(
                    prompt, inbox, is_named=spoken_line.named, opens=False, follows=False
                ):
                    return
                if not author.is_bot:
                    await self._take_in(prompt, inbox)
            except InvalidId as error:
                log.info("message dropped", extra={"platform": self.platform, "why": str(error)})
            except StoreError:  # an IRC server never sends a message again
                log.exception("storing message failed", extra={"platform": self.platform})
                await self._say(make_thread_id(self.platform, person, WHOLE), key, NOT_SAVED)

    async def post(self, post: OutboundPost) -> str:
        channel = thread_address(post.thread).channel
        if post.kind == "ephemeral" and post.user:
            channel = post.user
        try:
            async with asyncio.timeout(RECONNECT_SECONDS):
                await self.connected.wait()
        except TimeoutError as error:
            raise PlatformError("IRC is not connected.") from error
        connection = self._connection
        assert connection is not None
        target = channel if is_channel(channel) else await self._nick_of(channel, connection)
        text = render_markup(plain(post.markdown), IRC_MARKUP)
        if post.file is not None:
            text = f"{text}\n(I cannot send the file {plain(post.file.name)} here.)"
        message_id = hashlib.sha256(post.key.encode()).hexdigest()[:20]
        for number, piece in enumerate(pieces(text, target)):
            await connection.say(target, piece, f"{message_id}.{number}")
        return message_id

    async def _nick_of(self, person: str, connection: Connection) -> str:
        """Return a person's current nick after checking that it still belongs to this person. Raises PlatformError."""
        nick = await self._store.get(f"nicks:{self.platform}", person)
        if nick is None:
            raise PlatformError(f"{person} has not written to me on IRC.", permanent=True)
        if person not in await connection.whois(nick):
            raise PlatformError(f"{nick} on IRC no longer belongs to {person}.", retry_after_seconds=60.0)
        return nick

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        thread, key = make_thread_id(self.platform, channel, WHOLE), key or self._clock.new_id()
        for number, piece in enumerate(cut(REPEATED + text if maybe_posted else text, self.limits)):
            await self.post(OutboundPost(thread, f"{key}:{number}", piece))
        return thread
