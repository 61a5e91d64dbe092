"""What people do in Slack, taken in: messages, edits, deletions, reactions, clicks and slash commands."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from weakref import WeakValueDictionary

import msgspec

from shoal.chat.account import ChatAccount
from shoal.chat.commands import Spoken, parse_command, press, take_in
from shoal.chat.early import Early
from shoal.chat.slack.files import Files
from shoal.chat.slack.followed import Followed
from shoal.chat.slack.inbound import (
    Click,
    Me,
    Message,
    Slash,
    is_about_message,
    is_addressed,
    is_direct,
    is_written,
    key_of,
    prompt_of,
    text_of,
    thread_of,
)
from shoal.chat.slack.people import People
from shoal.domain.clock import Clock
from shoal.domain.commands import OF_THREAD, Asked
from shoal.domain.errors import StoreError
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Deletion, Edit, Prompt, Reaction
from shoal.domain.ports import InboxPort

log = logging.getLogger(__name__)

DONE_MAX = 2000
"""Messages remembered, so that the second event about one does not fetch its files again."""
NOT_STORED = "That could not be stored. Try again in a moment."
NO_THREAD_HERE = "I do not know which thread you mean. Write it there instead, with my name before it: `@{} /{}`."


class Intake:
    """Takes the events of one account to an inbox; those of one channel one after the other."""

    def __init__(
        self, account: ChatAccount, agent: str, followed: Followed, people: People, files: Files, clock: Clock
    ) -> None:
        self.me = Me()
        self._platform = account.platform
        self._account = account
        self._agent = agent
        self._followed = followed
        self._people = people
        self._files = files
        self._clock = clock
        self._done: OrderedDict[str, None] = OrderedDict()
        self._early = Early()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def take(self, event: Message, inbox: InboxPort) -> None:
        """Take in an event of the Events API; of those that are nobody's words nothing comes. Raises StoreError."""
        channel = event.item.channel if event.item is not None else event.channel
        lock = self._locks.setdefault(channel, asyncio.Lock())
        async with lock:
            match event.type, event.subtype:
                case "message", "message_changed":
                    await self._take_edit(event, inbox)
                case "message", "message_deleted":
                    await self._take_deletion(event, inbox)
                case (("message" | "app_mention"), _):
                    await self._take_message(event, inbox)
                case "reaction_added", _:
                    await self._take_reaction(event, inbox)
                case _:
                    pass

    async def _take_message(self, event: Message, inbox: InboxPort) -> None:
        key = key_of(event.channel, event.ts)
        if not is_written(event, self.me) or key in self._done:
            return
        prompt = prompt_of(self._platform, event, self.me)
        if not await self._is_meant(event, prompt.thread):
            return
        author = await self._people.author(event.user)
        prompt = msgspec.structs.replace(await self._routed(prompt, inbox), author=author, agent=self._agent)
        if author.is_bot or not await inbox.admits(prompt):
            return
        await self._followed.heard(prompt)
        if event.files:
            files = await self._files.fetch_all(event.files, prompt.thread)
            prompt = msgspec.structs.replace(prompt, attachments=files)
        elif not prompt.text:
            return
        changed = self._early.applied(prompt)
        told = await take_in(changed, self.me.user, inbox) if changed is not None else ""
        self._note_done(key)
        if told:
            await self._account.answer(prompt, told)

    async def _is_meant(self, message: Message, thread: ThreadId) -> bool:
        """Direct messages are; in channels what names the bot, and all that follows in that thread or under its own."""
        if is_direct(message.channel):
            return True
        if is_addressed(message, self.me):
            await self._followed.follow(thread)
            return True
        if not message.thread_ts:
            return False
        return message.parent_user_id == self.me.user_id or await self._followed.is_followed(thread)

    async def _routed(self, prompt: Prompt, inbox: InboxPort) -> Prompt:
        """A thread under one of the bot's messages in a direct conversation goes on with that conversation."""
        if not (prompt.direct and prompt.reply_to):
            return prompt
        thread = await inbox.thread_of(_beginning(prompt.thread), prompt.reply_to)
        return prompt if thread is None else msgspec.structs.replace(prompt, thread=thread, joins=True)

    def _note_done(self, key: str) -> None:
        self._done[key] = None
        while len(self._done) > DONE_MAX:
            self._done.popitem(last=False)

    async def _take_edit(self, event: Message, inbox: InboxPort) -> None:
        after, before = event.message, event.previous_message
        if after is None or after.user in ("", self.me.user_id) or after.bot_id or not is_about_message(event):
            return
        if after.subtype == "tombstone":  # what is left of a deleted message that has replies
            await self._delete(event.channel, after.ts, (before or after).user, inbox)
            return
        text = text_of(after.text or "", self.me)
        if not text or (before is not None and before.text == after.text):
            return  # Slack only added a picture of a linked page
        key = key_of(event.channel, after.ts)
        place = make_thread_id(self._platform, event.channel, "0")
        await self._early.send(Edit(place, key, text, await self._people.author(after.user), after.ts), inbox)

    async def _take_deletion(self, event: Message, inbox: InboxPort) -> None:
        before = event.previous_message
        if before is not None and not before.bot_id and is_about_message(event):
            await self._delete(event.channel, event.deleted_ts, before.user, inbox)

    async def _delete(self, channel: str, ts: str, user: str, inbox: InboxPort) -> None:
        key = key_of(channel, ts)
        place = make_thread_id(self._platform, channel, "0")
        await self._early.send(Deletion(place, key, await self._people.author(user), ts), inbox)

    async def _take_reaction(self, event: Message, inbox: InboxPort) -> None:
        item = event.item
        if item is None or item.type != "message" or not item.channel or event.user in ("", self.me.user_id):
            return
        thread = await inbox.thread_of(self._channel(item.channel), item.ts)
        author = await self._people.author(event.user)
        if thread is not None and not author.is_bot:
            await inbox.send(Reaction(thread, event.reaction, author, item.ts))

    async def click(self, click: Click, inbox: InboxPort) -> str:
        """Do what a button says; returns what to tell who clicked, empty for what is no button of ours."""
        if click.type != "block_actions" or click.channel is None or click.message is None or not click.actions:
            return ""
        message = click.message
        thread = thread_of(self._platform, click.channel.id, message.ts, message.thread_ts)
        author = await self._people.author(click.user.id)
        try:
            return await press(click.actions[0].value, thread, author, inbox)
        except StoreError:
            log.exception("a click was lost", extra={"platform": self._platform})
            return NOT_STORED

    async def slash(self, slash: Slash, inbox: InboxPort) -> str:
        """Do what a slash command asks; returns what to tell."""
        spoken = spoken_in(slash)
        if spoken is None:
            return f"I know no command `{slash.text.split(' ')[0]}`. See `{slash.command} help`."
        try:
            thread = await self._followed.latest(slash.channel_id, slash.user_id)
            if thread is None and spoken.name in OF_THREAD:
                return NO_THREAD_HERE.format(self.me.user, spoken.name)
            thread = thread or make_thread_id(self._platform, slash.channel_id, "0")
            author = await self._people.author(slash.user_id)
            key = f"slash/{slash.trigger_id or hashlib.sha256(msgspec.json.encode(slash)).hexdigest()}"
            now, direct = self._clock.now(), is_direct(slash.channel_id)
            asked = Asked(thread, author, spoken.name, spoken.argument, key, now, direct=direct, private=True)
            return await inbox.command(asked)
        except StoreError:
            log.exception("a command was lost", extra={"platform": self._platform})
            return NOT_STORED

    def _channel(self, channel: str) -> str:
        return _beginning(make_thread_id(self._platform, channel, "0"))


def spoken_in(slash: Slash) -> Spoken | None:
    """The command that was given, as `/stop all` or as `/shoal stop all`; `/shoal` alone asks for help."""
    own = parse_command(f"{slash.command} {slash.text}")
    if own is not None:
        return own
    return parse_command(f"/{slash.text.strip().removeprefix('/') or 'help'}")


def _beginning(thread: ThreadId) -> str:
    return f"{thread.rpartition(':')[0]}:"
