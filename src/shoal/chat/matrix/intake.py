"""What becomes of a room's events: prompts, edits, deletions and reactions for the inbox, each in its thread."""

import logging

import msgspec

from shoal.chat.account import ChatAccount
from shoal.chat.commands import parse_command, press, take_in
from shoal.chat.matrix.api import MatrixApi, Refused, path_of
from shoal.chat.matrix.inbound import (
    MEDIA,
    Content,
    Event,
    Me,
    Place,
    answered_id,
    content_of,
    is_addressed,
    is_said,
    prompt_of,
    root_of,
    text_of,
    thread_of,
)
from shoal.chat.matrix.media import Media
from shoal.chat.matrix.rooms import Rooms
from shoal.chat.matrix.sealing import UNREADABLE_MESSAGE, UNREADABLE_ROOM
from shoal.domain.errors import InvalidId
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Deletion, Edit, Reaction
from shoal.domain.ports import InboxPort
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

YES = frozenset({"✅", "✔", "✔️", "👍", "👍️"})
NO = frozenset({"❌", "✖", "✖️", "👎", "👎️"})
"""What decides an approval when it is put to its card."""
SETTLED = frozenset({"Allowed.", "Denied."})
"""What needs no word: the card shows it."""


class Intake:
    """Takes the events of one account in."""

    def __init__(
        self, account: ChatAccount, agent: str, api: MatrixApi, rooms: Rooms, media: Media, store: Settings
    ) -> None:
        self._platform = account.platform
        self._agent = agent
        self._api = api
        self._rooms = rooms
        self._media = media
        self._store = store
        self._account = account

    async def subscribe(self, thread: ThreadId) -> None:
        """Follow a thread from now on, named or not. Raises StoreError."""
        await self._store.put(f"subscribed:{self._platform}", thread, "1")

    async def event(self, room: str, event: Event, me: Me, inbox: InboxPort) -> None:
        """Take an event in, or leave one that can never be. Raises PlatformError and StoreError to get it again."""
        self._rooms.note(room, event)
        if event.sender == me.user_id:
            return
        try:
            await self._handed(room, event, me, inbox)
        except (Refused, InvalidId) as error:
            log.warning("an event was left", extra={"platform": self._platform, "kind": event.type, "why": str(error)})

    async def _handed(self, room: str, event: Event, me: Me, inbox: InboxPort) -> None:
        if event.type == "m.room.encrypted":
            opened = self._rooms.sealing.opened(room, event)
            if opened is None:
                await self._unreadable(room, event)
                return
            event = opened
        content = content_of(event)
        if content is None:
            log.info("an event of an unknown form was left", extra={"platform": self._platform, "kind": event.type})
        elif event.type == "m.reaction":
            await self._reaction(room, event, content, inbox)
        elif event.type == "m.room.redaction":
            await self._deletion(room, event, content, inbox)
        elif event.type == "m.room.message" and content.relation.rel_type == "m.replace":
            await self._edit(room, event, content, me, inbox)
        elif is_said(event, content, me.user_id):
            await self._message(room, event, content, me, inbox)

    # ---- messages ----

    async def _message(self, room: str, event: Event, content: Content, me: Me, inbox: InboxPort) -> None:
        place = await self._rooms.place(room)
        thread, joins = await self._thread(place, event, content, me, inbox)
        if thread is None:
            return
        author = await self._rooms.author(room, event.sender)
        prompt = prompt_of(thread, event, content, author, me)
        if parse_command(prompt.text) and not root_of(content) and not answered_id(content):
            prompt = msgspec.structs.replace(prompt, thread=place.thread(self._platform))  # opens no thread
        prompt = msgspec.structs.replace(prompt, agent=self._agent, direct=place.direct, joins=joins)
        if not await inbox.admits(prompt):
            return
        if content.msgtype in MEDIA:
            file = await self._media.fetch(event, content, prompt.thread)
            prompt = msgspec.structs.replace(prompt, attachments=(file,))
        elif not prompt.text:
            return
        told = await take_in(prompt, "", inbox)
        if told:
            await self._account.answer(prompt, told)

    async def _thread(
        self, place: Place, event: Event, content: Content, me: Me, inbox: InboxPort
    ) -> tuple[ThreadId | None, bool]:
        """The thread a message is for, None when it is not meant for the bot; and whether it answers one of ours."""
        prefix, root, answered = place.prefix(self._platform), root_of(content), answered_id(content)
        ours = await inbox.thread_of(prefix, answered) if answered else None
        thread = thread_of(self._platform, place, event, content)
        if not root:
            known = ours or (await inbox.thread_of(prefix, "", answered) if answered else None)
            if known is not None:
                return known, ours is not None
            begun = make_thread_id(self._platform, place.room, answered) if answered else None
            if begun is not None and await self._is_followed(begun):
                return begun, True  # one of the bot's own that began a conversation
        if place.direct:
            return thread, ours is not None
        if is_addressed(content, me):
            await self.subscribe(thread)
            return thread, ours is not None
        if root and (await self._is_followed(thread) or await inbox.thread_of(prefix, root) is not None):
            return thread, ours is not None
        return None, False

    async def _is_followed(self, thread: ThreadId) -> bool:
        return await self._store.get(f"subscribed:{self._platform}", thread) is not None

    async def _edit(self, room: str, event: Event, content: Content, me: Me, inbox: InboxPort) -> None:
        key, new = content.relation.event_id, content.new_content
        thread = await inbox.thread_of(self._prefix(room), "", key) if new is not None else None
        text = text_of(new.body, me, answers=False) if new is not None else ""
        if thread is not None and text:
            author = await self._rooms.author(room, event.sender)
            await inbox.send(Edit(thread, key, text, author, key))

    async def _deletion(self, room: str, event: Event, content: Content, inbox: InboxPort) -> None:
        key = content.redacts or event.redacts
        thread = await inbox.thread_of(self._prefix(room), "", key) if key else None
        if thread is not None:
            await inbox.send(Deletion(thread, key, await self._rooms.author(room, event.sender), key))

    # ---- reactions ----

    async def _reaction(self, room: str, event: Event, content: Content, inbox: InboxPort) -> None:
        """✅ and ❌ on an approval's card decide it; other emojis, and those on other messages, are told."""
        emoji, target = content.relation.key, content.relation.event_id
        thread = await inbox.thread_of(self._prefix(room), target) if emoji and target else None
        if thread is None:
            return
        author = await self._rooms.author(room, event.sender)
        approval = await self._approval(room, target) if emoji in YES | NO else ""
        if not approval:
            await inbox.send(Reaction(thread, emoji, author, target))
            return
        verb = "allow" if emoji in YES else "deny"
        told = await press(f"{verb}:{approval}", thread, author, inbox)
        if told not in SETTLED:
            await self._account.say(thread, event.event_id, told, reply_to=target)

    async def _approval(self, room: str, message_id: str) -> str:
        """The approval that one of the bot's messages asks for; empty for none."""
        try:
            found = await self._api.call("GET", path_of("rooms", room, "event", message_id), Event)
        except Refused:
            return ""
        if found.sender != (await self._api.session()).user_id:
            return ""
        opened = self._rooms.sealing.opened(room, found) if found.type == "m.room.encrypted" else found
        content = content_of(opened) if opened is not None else None
        return content.approval if content is not None else ""

    # ---- encryption ----

    async def _unreadable(self, room: str, event: Event) -> None:
        """Say once in a room that nothing can be read there, or of one message that its key is missing."""
        place = await self._rooms.place(room)
        if self._rooms.sealing.works:
            log.warning("a message could not be decrypted", extra={"platform": self._platform, "channel": room})
            if place.direct:
                await self._account.say(place.thread(self._platform), event.event_id, UNREADABLE_MESSAGE)
            return
        scope = f"refused:{self._platform}"
        if await self._store.get(scope, room) is None:
            log.warning("%s", UNREADABLE_ROOM, extra={"platform": self._platform, "channel": room})
            path = path_of("rooms", room, "send", "m.room.message", "encrypted-room-refused")
            await self._api.call("PUT", path, msgspec.Raw, {"msgtype": "m.notice", "body": UNREADABLE_ROOM})
            await self._store.put(scope, room, "1")

    def _prefix(self, room: str) -> str:
        return Place(room).prefix(self._platform)
