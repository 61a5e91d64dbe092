"""What becomes of Discord's events: prompts, edits, deletions and reactions for the inbox, each in its thread."""

import logging
from collections.abc import Callable
from typing import Literal

import msgspec

from shoal.chat.account import ChatAccount
from shoal.chat.commands import parse_command, take_in
from shoal.chat.discord.api import DiscordApi
from shoal.chat.discord.inbound import (
    CHAIN,
    WHOLE,
    Channel,
    Deleted,
    File,
    Message,
    Place,
    ReactionAdded,
    Threading,
    answered_id,
    answers,
    author_of,
    is_addressed,
    is_said,
    passed_on,
    place_of,
    prompt_of,
    text_of,
    thread_of,
)
from shoal.chat.discord.reading import Missed
from shoal.chat.discord.recent import Recent
from shoal.chat.kept import keep
from shoal.chat.servers import Servers
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.messages import Attachment, Author, Deletion, Edit, Prompt, Reaction
from shoal.domain.ports import InboxPort
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

DOWNLOAD_BYTES_MAX = 26_214_400
"""Larger files are named to the agent and not fetched."""
PLACES_MAX = 10_000
WRITTEN_MAX = 4096
"""Prompts whose authors are remembered, because Discord does not say whose message was deleted."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What differs in one server; empty takes the account's."""

    threading: Threading | Literal[""] = ""
    agent: str = ""


class DiscordSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One account. `token` is asked for when it is needed; `servers` by their ids."""

    account: str = "main"
    token: Callable[[], str]
    api_base: str = "https://discord.com/api/v10"
    gateway_url: str = ""
    threading: Threading = "native"
    agent: str = ""
    servers: dict[str, ServerSettings] = {}

    def threading_in(self, guild: str) -> Threading:
        """What is a thread in a server."""
        return self.servers.get(guild, _NOTHING).threading or self.threading

    @property
    def opens_threads(self) -> bool:
        """Whether every conversation has a Discord thread of its own, and with it a budget of its own."""
        return self.threading == "native" and all(one.threading in ("", "native") for one in self.servers.values())

    def agent_in(self, guild: str) -> str:
        """Who answers in a server."""
        return self.servers.get(guild, _NOTHING).agent or self.agent


_NOTHING = ServerSettings()


class Intake:
    """Takes the events of one account in."""

    def __init__(
        self,
        account: ChatAccount,
        settings: DiscordSettings,
        api: DiscordApi,
        store: Settings,
        home: Home,
        clock: Clock,
    ) -> None:
        self._platform = platform = account.platform
        self._account = account
        self._settings = settings
        self._api = api
        self._store = store
        self._home = home
        self._clock = clock
        self._places: Recent[Place] = Recent(PLACES_MAX)
        self._written: Recent[tuple[Author, str]] = Recent(WRITTEN_MAX)
        self._servers = Servers(platform, store)
        self.missed = Missed(api, store, f"discord:{platform}")

    async def place(self, channel: str, guild: str | None = None) -> Place:
        """Where a channel is; without a server it is a direct one, None if that is not known. Raises PlatformError."""
        if guild == "":
            return Place(channel)
        known = self._places.get(channel)
        if known is None:
            found = await self._api.call("GET", f"/channels/{channel}", Channel)
            known = place_of(found, guild or "")
            self._places.put(channel, known)
        return known

    async def note_server(self, place: Place) -> None:
        """Remember the server of a channel where somebody spoke. Raises StoreError."""
        await self._servers.note(place.channel, place.guild.removeprefix("?"))

    async def subscribe(self, thread: ThreadId) -> None:
        """Follow a thread from now on, named or not. Raises StoreError."""
        await self._store.put(f"subscribed:{self._platform}", thread, "1")

    async def message(self, message: Message, me: str, inbox: InboxPort) -> bool:
        """Take a message in; returns whether it was meant for the bot. Raises PlatformError and StoreError."""
        if not is_said(message, me):
            return False
        place = await self.place(message.channel_id, message.guild_id)
        thread = await self._thread(message, place, me, inbox)
        prompt = prompt_of(thread, message, me) if thread is not None else None
        if prompt is None:
            return False
        if parse_command(prompt.text) and place.topic == WHOLE and not answered_id(message):
            prompt = msgspec.structs.replace(prompt, thread=place.thread(self._platform))  # opens no thread
        agent = self._settings.agent_in(place.guild)
        prompt = msgspec.structs.replace(prompt, agent=agent, direct=place.direct)
        if not await inbox.admits(prompt):
            return True
        await self.note_server(place)
        if message.attachments:
            files = [await self._download(file, prompt) for file in message.attachments]
            prompt = msgspec.structs.replace(prompt, attachments=tuple(files))
        elif not prompt.text:
            return True
        self._written.put(message.id, (prompt.author, prompt.text))
        if place.direct:
            await self.missed.know(place.channel)
        told = await take_in(prompt, "", inbox)
        if told:
            await self._account.answer(prompt, told)
        return True

    async def edit(self, message: Message, me: str, inbox: InboxPort) -> bool:
        """Take a change in; Discord also tells of what it does to a message by itself."""
        if message.edited_timestamp is None or not is_said(message, me) or message.author is None:
            return False
        text = text_of(message, me)
        known = self._written.get(message.id)
        thread = await self._of_prompt(message.channel_id, message.guild_id, message.id, inbox)
        if thread is None or not text or (known is not None and known[1] == text):
            return False
        author = author_of(message.author, message.member)
        self._written.put(message.id, (author, text))
        await inbox.send(Edit(thread, message.id, text, author, message.id, tainted_by=passed_on(message)))
        return True

    async def deletion(self, deleted: Deleted, guild: str, inbox: InboxPort) -> bool:
        """Take in that messages are gone, as far as they are prompts that this process has seen."""
        for message_id in (deleted.id, *deleted.ids):
            known = self._written.get(message_id)
            thread = await self._of_prompt(deleted.channel_id, guild, message_id, inbox) if known else None
            if known is not None and thread is not None:
                await inbox.send(Deletion(thread, message_id, known[0], message_id))
        return True

    async def reaction(self, reaction: ReactionAdded, guild: str, me: str, inbox: InboxPort) -> bool:
        """Take an emoji in that somebody put to one of the bot's messages."""
        member, user = reaction.member, reaction.member.user if reaction.member is not None else None
        if reaction.user_id == me or not reaction.emoji.name or (user is not None and user.bot):
            return False
        place = await self.place(reaction.channel_id, guild)
        thread = await inbox.thread_of(place.prefix(self._platform), reaction.message_id)
        if thread is None:
            return False
        author = author_of(user, member) if user is not None else Author(reaction.user_id, trusted=False)
        await inbox.send(Reaction(thread, reaction.emoji.name, author, reaction.message_id))
        return True

    async def _thread(self, message: Message, place: Place, me: str, inbox: InboxPort) -> ThreadId | None:
        """The thread a message is for; None when it is not meant for the bot."""
        if place.direct:
            return place.thread(self._platform)
        answered = answered_id(message)
        known: ThreadId | None = None
        if place.topic == WHOLE and answered:
            known = await inbox.thread_of(place.prefix(self._platform), answered, answered)
        opener = answered if answers(message, me) else message.id  # one of the bot's own that began a conversation
        thread = known or thread_of(self._platform, place, opener, self._settings.threading_in(place.guild))
        part = thread_address(thread).thread
        if is_addressed(message, me):
            if part != WHOLE and not part.startswith(CHAIN):
                await self.subscribe(thread)
            return thread
        if known is not None and part.startswith(CHAIN):
            return thread  # it answers something in the chain
        if place.topic == WHOLE:
            return None
        return thread if await self._store.get(f"subscribed:{self._platform}", thread) is not None else None

    async def _of_prompt(self, channel: str, guild: str, message_id: str, inbox: InboxPort) -> ThreadId | None:
        place = await self.place(channel, guild)
        return await inbox.thread_of(place.prefix(self._platform), "", message_id)

    async def _download(self, file: File, prompt: Prompt) -> Attachment:
        given = Attachment(file.filename, file.content_type or "application/octet-stream", file.size)
        return await keep(self._home, self._clock, prompt.thread, given, self._content(file))

    async def _content(self, file: File) -> bytes:
        if file.size > DOWNLOAD_BYTES_MAX:
            raise PlatformError(f"It has {file.size} bytes; files over {DOWNLOAD_BYTES_MAX} are not fetched.")
        return await self._api.fetch(file.url, DOWNLOAD_BYTES_MAX)
