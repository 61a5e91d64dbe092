"""What people do in Teams, taken in: messages, edits, deletions, reactions, clicks and accepted files."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from weakref import WeakValueDictionary

import msgspec

from shoal.chat.account import TAKEN, ChatAccount
from shoal.chat.commands import press, take_in
from shoal.chat.early import Early
from shoal.chat.teams.files import Files
from shoal.chat.teams.inbound import (
    Activity,
    author_of,
    beginning_of,
    channel_of,
    consent_in,
    emoji_of,
    files_of,
    is_addressed,
    is_channel,
    is_direct,
    is_of_bot,
    key_of,
    pressed_in,
    prompt_of,
    text_of,
    thread_of,
)
from shoal.domain.calls import HttpAnswer
from shoal.domain.clock import Clock
from shoal.domain.ids import ThreadId
from shoal.domain.messages import Deletion, Edit, Reaction
from shoal.domain.ports import InboxPort
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

NOT_KNOWN = HttpAnswer(501, b'{"error":"not_implemented","message":"This is not done here."}')
TOLD = ("Allowed.", "Denied.")
"""What the card itself shows soon, so that nothing more is said in the chat."""
CHANNELS_MAX = 1000
PEOPLE_MAX = 200


class Intake:
    """Takes the activities of one account to an inbox; those of one conversation one after the other."""

    def __init__(self, account: ChatAccount, agent: str, files: Files, store: Settings, clock: Clock) -> None:
        self._platform = account.platform
        self._account = account
        self._agent = agent
        self._files = files
        self._store = store
        self._clock = clock
        self._early = Early()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._people: OrderedDict[str, dict[str, str]] = OrderedDict()

    def people(self, channel: str) -> Mapping[str, str]:
        """The ids of those who wrote in a conversation since the start, by their names."""
        return self._people.get(channel, {})

    async def take(self, activity: Activity, inbox: InboxPort) -> HttpAnswer:
        """Take in a checked activity and say what Teams is answered. Raises StoreError, InvalidId."""
        if is_of_bot(activity):
            return TAKEN
        lock = self._locks.setdefault(activity.conversation.id, asyncio.Lock())
        async with lock:
            match activity.type:
                case "message":
                    await self._take_message(activity, inbox)
                case "messageUpdate":
                    await self._take_edit(activity, inbox)
                case "messageDelete":
                    await self._take_deletion(activity, inbox)
                case "messageReaction":
                    await self._take_reactions(activity, inbox)
                case "invoke":
                    return await self._answer(activity, inbox)
                case _:
                    pass
        return TAKEN

    async def _take_message(self, activity: Activity, inbox: InboxPort) -> None:
        pressed = pressed_in(activity)
        if pressed:
            told = await self._press(pressed, activity, inbox)
            if told not in TOLD:
                await self._account.answer(prompt_of(self._platform, activity, self._clock.now()), told)
            return
        prompt = prompt_of(self._platform, activity, self._clock.now())
        joins = bool(prompt.reply_to) and await inbox.thread_of(self._beginning(activity), prompt.reply_to) is not None
        if not (joins or await self._is_meant(activity, prompt.thread)):
            return
        prompt = msgspec.structs.replace(prompt, agent=self._agent, joins=joins)
        if not await inbox.admits(prompt):
            return
        self._meet(activity)
        if files_of(activity):
            files = await self._files.fetch_all(activity, prompt.thread)
            prompt = msgspec.structs.replace(prompt, attachments=files)
        elif not prompt.text:
            return
        changed = self._early.applied(prompt)
        told = await take_in(changed, activity.recipient.name or "", inbox) if changed is not None else ""
        if told:
            await self._account.answer(prompt, told)

    async def _is_meant(self, activity: Activity, thread: ThreadId) -> bool:
        """Chats with the bot are; elsewhere what names it, and in channels all of a thread once it was named there."""
        if is_direct(activity):
            return True
        scope = f"subscribed:{self._platform}"
        if is_addressed(activity):
            if is_channel(activity):
                await self._store.put(scope, thread, "1")
            return True
        return is_channel(activity) and await self._store.get(scope, thread) is not None

    def _meet(self, activity: Activity) -> None:
        channel, sender = channel_of(activity), activity.sender
        people = self._people.setdefault(channel, {})
        self._people.move_to_end(channel)
        if sender.name and (sender.name in people or len(people) < PEOPLE_MAX):
            people[sender.name] = sender.id
        while len(self._people) > CHANNELS_MAX:
            self._people.popitem(last=False)

    async def _take_edit(self, activity: Activity, inbox: InboxPort) -> None:
        key, text = key_of(channel_of(activity), activity.id), text_of(activity)
        if text:
            place = thread_of(self._platform, activity)
            await self._early.send(Edit(place, key, text, author_of(activity.sender), activity.id), inbox)

    async def _take_deletion(self, activity: Activity, inbox: InboxPort) -> None:
        key = key_of(channel_of(activity), activity.id)
        place = thread_of(self._platform, activity)
        await self._early.send(Deletion(place, key, author_of(activity.sender), activity.id), inbox)

    async def _take_reactions(self, activity: Activity, inbox: InboxPort) -> None:
        message_id = activity.reply_to_id or ""
        thread = await inbox.thread_of(self._beginning(activity), message_id) if message_id else None
        if thread is None:
            return
        for reaction in activity.reactions_added or ():
            await inbox.send(Reaction(thread, emoji_of(reaction), author_of(activity.sender), message_id))

    async def _answer(self, activity: Activity, inbox: InboxPort) -> HttpAnswer:
        """Do what waits for an answer: a pressed button, or a file that was accepted."""
        match activity.name:
            case "adaptiveCard/action":
                told = await self._press(pressed_in(activity), activity, inbox)
                shown = {"statusCode": 200, "type": "application/vnd.microsoft.activity.message", "value": told}
                return HttpAnswer(200, msgspec.json.encode(shown))
            case "fileConsent/invoke":
                consent = consent_in(activity)
                told = await self._files.settle(consent, activity) if consent is not None else ""
                if told:
                    await self._account.answer(prompt_of(self._platform, activity, self._clock.now()), told)
                return TAKEN
            case _:
                return NOT_KNOWN

    async def _press(self, value: str, activity: Activity, inbox: InboxPort) -> str:
        thread = thread_of(self._platform, activity)
        return await press(value, thread, author_of(activity.sender), inbox)

    def _beginning(self, activity: Activity) -> str:
        return beginning_of(self._platform, channel_of(activity))
