"""What comes in from Teams by HTTP, and the prompts, edits, deletions, reactions and clicks it makes."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from shoal.chat.account import NOT_READY, NOT_STORED, TAKEN, UNAUTHORIZED, ChatAccount, IncomingFile
from shoal.chat.http import TRANSFER_SECONDS, Fields, Json
from shoal.chat.inbox import DECIDED, Recent, press, read_file
from shoal.chat.teams.wire import (
    FileConsent,
    TeamsActivity,
    TeamsApi,
    UploadInfo,
    author_of,
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
from shoal.chat.tokens import BadToken
from shoal.domain.clock import Clock
from shoal.domain.errors import InvalidId, PlatformError, StoreError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.domain.messages import Attachment, Deletion, Edit, Reaction
from shoal.domain.ports import InboxPort, Settings
from shoal.domain.settings import TeamsSettings
from shoal.domain.untrusted import UNREADABLE
from shoal.domain.webhooks import HttpAnswer

log = logging.getLogger(__name__)

BAD_BODY = HttpAnswer(400, b'{"error":"bad_request","message":"The body is not an activity."}')
NOT_IMPLEMENTED = HttpAnswer(501, b'{"error":"not_implemented","message":"This is not done here."}')
OFFER_GONE = "This file is no longer offered."
FILE_CARD = "application/vnd.microsoft.teams.card.file.info"
UPLOAD_BYTES_MAX = 26_214_400
CHANNELS_MAX = 1000
PEOPLE_MAX = 200


class OfferedFile(msgspec.Struct, frozen=True):
    """A file that was offered to somebody who has not answered yet."""

    thread: ThreadId
    path: str


class TeamsReceiver(ChatAccount):
    """Takes the activities of one account in; those of one conversation one after the other."""

    whispers = True

    def __init__(self, platform: str, settings: TeamsSettings, home: Home, store: Settings, clock: Clock) -> None:
        super().__init__(platform, home, store, clock, settings.agent)
        self._settings = settings
        self._api = TeamsApi(platform, settings, store, clock)
        self._offers = f"offers:{platform}"
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._people: Recent[dict[str, str]] = Recent(CHANNELS_MAX)
        """Of each conversation, the ids of those who wrote since the start, by their names."""

    async def _connect(self, inbox: InboxPort) -> None:
        """Activities come in at once; meanwhile see that there is an access token to answer with."""
        self._inbox = inbox
        self.connected.set()
        if self._settings.emulator:
            log.warning("platforms.teams.emulator is on: whoever reaches this server can speak as anybody in Teams")
        else:
            await self._api.token()
        log.info("connected", extra={"platform": self.platform})
        await asyncio.Event().wait()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """An activity of Teams'. Answers 401 without its token, 503 when it has to be sent again."""
        try:
            activity = msgspec.json.decode(body, type=TeamsActivity)
        except UNREADABLE:
            return BAD_BODY
        try:
            await self._api.check(headers, activity)
        except BadToken as error:
            log.info("an activity was refused", extra={"platform": self.platform, "why": str(error)})
            return UNAUTHORIZED
        except PlatformError as error:
            log.warning("activities cannot be checked: %s", error, extra={"platform": self.platform})
            return NOT_READY
        if self._inbox is None:
            return NOT_READY
        try:
            await self._api.learn(activity)
            return await self._take(activity, self._inbox)
        except InvalidId:
            return BAD_BODY
        except StoreError:
            log.exception("an activity was not stored", extra={"platform": self.platform})
            return NOT_STORED

    async def _take(self, activity: TeamsActivity, inbox: InboxPort) -> HttpAnswer:
        """Take a checked activity in and say what Teams is answered. Raises StoreError, InvalidId."""
        if is_of_bot(activity):
            return TAKEN
        lock = self._locks.setdefault(activity.conversation.id, asyncio.Lock())
        async with lock:
            channel, author = channel_of(activity), author_of(activity.sender)
            match activity.type:
                case "message":
                    await self._take_message(activity, inbox)
                case "messageUpdate" if text := text_of(activity):
                    thread, key = thread_of(self.platform, activity), key_of(channel, activity.id)
                    await self._pending.send(Edit(thread, key, text, author, activity.id), inbox)
                case "messageDelete":
                    thread, key = thread_of(self.platform, activity), key_of(channel, activity.id)
                    await self._pending.send(Deletion(thread, key, author, activity.id), inbox)
                case "messageReaction" if activity.reply_to_id:
                    reacted = await inbox.thread_of(self._prefix(channel), activity.reply_to_id)
                    if reacted is not None:
                        for reaction in activity.reactions_added or ():
                            await inbox.send(Reaction(reacted, emoji_of(reaction), author, activity.reply_to_id))
                case "invoke":
                    return await self._take_invoke(activity, inbox)
                case _:
                    pass
        return TAKEN

    async def _take_message(self, activity: TeamsActivity, inbox: InboxPort) -> None:
        prompt = prompt_of(self.platform, activity, self._clock.now())
        pressed = pressed_in(activity)
        if pressed:
            answer = await press(pressed, prompt.thread, prompt.author, inbox)
            if answer not in DECIDED:
                await self._answer(prompt, answer)
            return
        channel, sender = channel_of(activity), activity.sender
        joins = bool(prompt.reply_to) and await inbox.thread_of(self._prefix(channel), prompt.reply_to) is not None
        if not (joins or await self._is_meant(activity, prompt.thread)):
            return
        prompt = msgspec.structs.replace(prompt, agent=self._agent, joins=joins)
        if not await inbox.admits(prompt):
            return
        people = self._people.get(channel) or {}
        if sender.name and (sender.name in people or len(people) < PEOPLE_MAX):
            people[sender.name] = sender.id
        self._people.put(channel, people)
        await self._take_in(prompt, inbox, map(self._incoming, files_of(activity)), activity.recipient.name or "")

    async def _is_meant(self, activity: TeamsActivity, thread: ThreadId) -> bool:
        """Chats with the bot are; elsewhere what mentions it, and in channels the threads where it was mentioned."""
        if is_direct(activity):
            return True
        if is_addressed(activity):
            if is_channel(activity):
                await self._subscribe(thread)
            return True
        return is_channel(activity) and await self._is_subscribed(thread)

    def _incoming(self, file: tuple[str, str, str]) -> IncomingFile:
        name, media_type, url = file
        return Attachment(name, media_type), lambda: self._api.fetch_file(url, self.download_bytes_max)

    async def _take_invoke(self, activity: TeamsActivity, inbox: InboxPort) -> HttpAnswer:
        """Do what Teams waits for: a pressed button, or a file that was accepted."""
        match activity.name:
            case "adaptiveCard/action":
                thread, author = thread_of(self.platform, activity), author_of(activity.sender)
                answer = await press(pressed_in(activity), thread, author, inbox)
                shown = {"statusCode": 200, "type": "application/vnd.microsoft.activity.message", "value": answer}
                return HttpAnswer(200, msgspec.json.encode(shown))
            case "fileConsent/invoke":
                consent = consent_in(activity)
                answer = await self._take_consent(consent) if consent is not None else ""
                if answer:
                    await self._answer(prompt_of(self.platform, activity, self._clock.now()), answer)
                return TAKEN
            case _:
                return NOT_IMPLEMENTED

    async def _take_consent(self, consent: FileConsent) -> str:
        """Put an offered file where it was accepted, once, or forget it; returns what to say. Raises StoreError."""
        key = consent.context.shoal
        stored = await self._store.get(self._offers, key) or ""
        try:
            offer = msgspec.json.decode(stored, type=OfferedFile)
        except UNREADABLE:
            return OFFER_GONE
        if not await self._store.swap(self._offers, key, stored, ""):
            return ""
        upload = consent.upload_info
        if consent.action != "accept" or upload is None:
            return ""
        try:
            self._api.check_file_url(upload.upload_url)
            content = await asyncio.to_thread(read_file, Path(offer.path), UPLOAD_BYTES_MAX)
            headers = {
                "content-type": "application/octet-stream",
                "content-range": f"bytes 0-{len(content) - 1}/{len(content)}",
            }
            answer = await self._api.send("PUT", upload.upload_url, content, headers, seconds=TRANSFER_SECONDS)
            if answer.status_code not in (200, 201, 202):
                raise PlatformError(f"the upload was answered with {answer.status_code}.")
            await self._api.call_thread("POST", offer.thread, uploaded_file(upload))
        except PlatformError as error:
            await self._store.put(self._offers, key, stored)
            return f"The file could not be sent: {error}"
        return ""


def uploaded_file(upload: UploadInfo) -> Fields:
    """A card with the file that was put where it was accepted."""
    content: Json = {"uniqueId": upload.unique_id, "fileType": upload.file_type}
    card: Json = {"contentType": FILE_CARD, "contentUrl": upload.content_url, "name": upload.name, "content": content}
    return {"type": "message", "attachments": [card]}
