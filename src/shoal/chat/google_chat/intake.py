"""What people do in Google Chat, taken in: messages, edits, deletions, reactions, clicks and commands."""

import asyncio
import hashlib
from collections import OrderedDict
from weakref import WeakValueDictionary

import msgspec

from shoal.chat.account import ChatAccount
from shoal.chat.commands import press, take_in
from shoal.chat.early import Early
from shoal.chat.google_chat.inbound import (
    EVENT,
    WHOLE,
    Attached,
    Changes,
    Event,
    Message,
    Published,
    ReactionEvent,
    Space,
    author_of,
    beginning_of,
    channel_of,
    command_of,
    is_direct,
    message_name,
    pressed_in,
    prompt_of,
    text_of,
    thread_of,
)
from shoal.chat.google_chat.service import Service
from shoal.chat.kept import keep
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Attachment, Deletion, Edit, Prompt, Reaction
from shoal.domain.ports import InboxPort
from shoal.domain.store import Settings

DOWNLOAD_BYTES_MAX = 26_214_400
FILES_MAX = 10
SEEN_MAX = 2000
"""Messages whose time and author are remembered: an answer quotes them, and a deletion does not tell whose it is."""
TOLD = ("Allowed.", "Denied.")
"""What the card itself shows soon, so that nothing more is said."""


class Intake:
    """Takes the events of one account to an inbox; those of one space one after the other."""

    def __init__(
        self, account: ChatAccount, agent: str, service: Service, home: Home, store: Settings, clock: Clock
    ) -> None:
        self._platform = account.platform
        self._account = account
        self._agent = agent
        self._service = service
        self._home = home
        self._store = store
        self._clock = clock
        self._early = Early()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._seen: OrderedDict[str, Message] = OrderedDict()

    def changed_at(self, message: str) -> str:
        """When a message was written or changed last, as Google Chat told it; empty when it is not known."""
        seen = self._seen.get(message, Message())
        return seen.last_update_time or seen.create_time

    async def take(self, event: Event, inbox: InboxPort) -> None:
        """Take in what somebody did with the app. Raises StoreError, InvalidId."""
        lock = self._locks.setdefault(event.space.name, asyncio.Lock())
        async with lock:
            match event.type:
                case "MESSAGE" | "ADDED_TO_SPACE" if event.message is not None:
                    await self._take_message(event.message, _space(event), inbox, addressed=True)
                case "CARD_CLICKED":
                    await self._take_click(event, inbox)
                case "APP_COMMAND":
                    await self._take_command(event, inbox)
                case _:
                    pass

    async def take_published(self, published: Published, inbox: InboxPort) -> None:
        """Take in what came by Pub/Sub; what cannot be read is left. Raises StoreError, InvalidId, PlatformError."""
        kind = published.kind
        try:
            if not kind.startswith(EVENT):
                await self.take(msgspec.json.decode(published.content(), type=Event), inbox)
                return
            changes = msgspec.json.decode(published.content(), type=Changes)
        except UNREADABLE:
            return
        verb = kind.rpartition(".")[2].removeprefix("batch").lower()
        messages, reactions = changes.found()
        for message in messages:
            lock = self._locks.setdefault(f"spaces/{channel_of(message.name)}", asyncio.Lock())
            async with lock:
                await self._take_change(verb, message, inbox)
        if verb == "created":
            for reaction in reactions:
                await self._take_reaction(reaction, inbox)

    # ---- what is said ----

    async def _take_message(self, message: Message, space: Space, inbox: InboxPort, *, addressed: bool) -> None:
        if message.sender.type == "BOT" or not message.sender.name:
            return
        self._see(message)
        prompt = prompt_of(self._platform, message, space, self._clock.now())
        if not await self._is_meant(prompt, addressed):
            return
        joins = bool(prompt.reply_to) and await inbox.thread_of(self._beginning(message), prompt.reply_to) is not None
        prompt = msgspec.structs.replace(prompt, agent=self._agent, joins=joins)
        if not await inbox.admits(prompt):
            return
        if message.attachment:
            files = [await self._fetch(one, prompt.thread, number) for number, one in enumerate(message.attachment)]
            prompt = msgspec.structs.replace(prompt, attachments=tuple(files))
        elif not prompt.text:
            return
        changed = self._early.applied(prompt)
        told = await take_in(changed, "", inbox) if changed is not None else ""
        if told:
            await self._account.answer(prompt, told)

    async def _is_meant(self, prompt: Prompt, addressed: bool) -> bool:
        """Google Chat tells the app what is meant for it; of what else is told, all of a thread it was named in is."""
        scope = f"subscribed:{self._platform}"
        if not addressed:
            return await self._store.get(scope, prompt.thread) is not None
        if not prompt.direct and not prompt.thread.endswith(":0"):
            await self._store.put(scope, prompt.thread, "1")
        return True

    def _see(self, message: Message) -> None:
        about = Message(sender=message.sender, create_time=message.create_time)
        self._seen[message.name] = msgspec.structs.replace(about, last_update_time=message.last_update_time)
        self._seen.move_to_end(message.name)
        while len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    async def _fetch(self, file: Attached, thread: ThreadId, number: int) -> Attachment:
        given = Attachment(file.content_name or "file", file.content_type or "application/octet-stream")
        return await keep(self._home, self._clock, thread, given, self._content(file, number))

    async def _content(self, file: Attached, number: int) -> bytes:
        if number >= FILES_MAX:
            raise PlatformError(f"Of one message {FILES_MAX} files are fetched.")
        if file.attachment_data_ref is None or not file.attachment_data_ref.resource_name:
            raise PlatformError("The file lies in Drive; it was not fetched.")
        return await self._service.download(file.attachment_data_ref.resource_name, DOWNLOAD_BYTES_MAX)

    # ---- what is done ----

    async def _take_click(self, event: Event, inbox: InboxPort) -> None:
        message = event.message or Message()
        thread = thread_of(self._platform, message, _space(event))
        author = author_of(event.user)
        told = await press(pressed_in(event), thread, author, inbox)
        if told not in TOLD:
            await self._account.answer(self._doing(event, thread, ""), told)

    async def _take_command(self, event: Event, inbox: InboxPort) -> None:
        if event.message is not None:
            await self._take_message(event.message, _space(event), inbox, addressed=True)
            return
        text = command_of(event)
        prompt = self._doing(event, thread_of(self._platform, Message(), event.space), text)
        if not text or prompt.author.is_bot or not await inbox.admits(prompt):
            return
        told = await take_in(prompt, "", inbox)
        if told:
            await self._account.answer(prompt, told)

    def _doing(self, event: Event, thread: ThreadId, text: str) -> Prompt:
        told = event.event_time or hashlib.sha256(msgspec.json.encode(event)).hexdigest()
        key = f"{event.type}/{told}/{event.user.name}"
        return Prompt(thread, key, text, author_of(event.user), self._clock.now(), direct=is_direct(event.space))

    # ---- what is changed ----

    async def _take_change(self, verb: str, message: Message, inbox: InboxPort) -> None:
        place = make_thread_id(self._platform, channel_of(message.name), WHOLE)
        if verb == "deleted":
            sender = message.sender if message.sender.name else self._seen.get(message.name, message).sender
            gone = Deletion(place, message.name, author_of(sender), message.name)
            if sender.name:
                await self._early.send(gone, inbox)
            else:  # Google Chat does not tell whose it was
                self._early.keep(gone)
            return
        if not message.sender.name:  # the subscription tells names alone
            message = await self._service.get(message.name)
        if message.sender.type == "BOT" or verb not in ("created", "updated"):
            return
        if verb == "created":
            await self._take_message(message, message.space, inbox, addressed=False)
            return
        self._see(message)
        text = text_of(message)
        if text:
            await self._early.send(Edit(place, message.name, text, author_of(message.sender), message.name), inbox)

    async def _take_reaction(self, reaction: ReactionEvent, inbox: InboxPort) -> None:
        name = message_name(reaction.name)
        if reaction.user.type == "BOT" or not reaction.emoji.unicode or not channel_of(name):
            return
        thread = await inbox.thread_of(beginning_of(self._platform, channel_of(name)), name)
        if thread is not None:
            await inbox.send(Reaction(thread, reaction.emoji.unicode, author_of(reaction.user), name))

    def _beginning(self, message: Message) -> str:
        return beginning_of(self._platform, channel_of(message.name))


def _space(event: Event) -> Space:
    """The space, which the event tells better than its message does."""
    return event.space if event.space.name or event.message is None else event.message.space
