"""What comes in from Matrix by syncing from where the last sync ended, and the prompts, edits and reactions it makes.

What a sync leaves out of a room is read back. Invitations are accepted from people who may speak.
"""

import asyncio
import logging
import re
from datetime import UTC, datetime

import msgspec

from shoal.chat.account import ChatAccount, IncomingFile
from shoal.chat.inbox import DECIDED, Recent, parse_command, press
from shoal.chat.matrix.wire import (
    WHOLE,
    Encryption,
    EventContent,
    JoinedRoom,
    MatrixApi,
    MatrixEvent,
    MatrixRefusal,
    NewContent,
    SyncResult,
    can_encrypt,
    path_of,
)
from shoal.domain.clock import Clock
from shoal.domain.commands import ALIASES, COMMANDS
from shoal.domain.errors import InvalidId, PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Attachment, Author, Deletion, Edit, Prompt, Reaction
from shoal.domain.ports import InboxPort, Settings
from shoal.domain.settings import MatrixSettings
from shoal.domain.untrusted import UNREADABLE

log = logging.getLogger(__name__)

POLL_SECONDS = 25
"""How long the homeserver holds a sync open when there is nothing."""
TIMELINE_MAX = 50
MISSED_A_ROOM_MAX = 500
"""How many messages of a room are read that came while nobody listened; older ones are left."""
PAGE = 100
ROOMS_MAX = 500
"""Rooms whose members are remembered; the longest unused are asked for again."""
DIRECT_MEMBERS = 2
ENCRYPTED_TYPE = "application/octet-stream"
YES = frozenset({"✅", "✔", "✔️", "👍", "👍️"})
NO = frozenset({"❌", "✖", "✖️", "👎", "👎️"})
"""What decides an approval when it is put on its card."""
UNREADABLE_ROOM = (
    "This room is encrypted, and I have no encryption installed, so I can read nothing here. "
    "Write to me in a room without encryption, or have Shoal installed with: pip install 'shoal[matrix]'."
)
UNREADABLE_MESSAGE = "I could not decrypt your message; its key did not reach me. Please send it again."

MEDIA = frozenset({"m.file", "m.image", "m.audio", "m.video"})
_SAID = MEDIA | {"m.text", "m.emote"}
"""Kinds of messages that people write; programs write m.notice."""
_TYPES = (
    "m.room.message", "m.room.encrypted", "m.room.encryption", "m.room.redaction", "m.room.member", "m.reaction",
)  # fmt: skip
_NONE = {"types": ()}
FILTER = msgspec.json.encode(
    {
        "presence": _NONE,
        "account_data": _NONE,
        "room": {
            "timeline": {"types": _TYPES, "limit": TIMELINE_MAX}, "ephemeral": _NONE, "account_data": _NONE,
            "state": {"types": ("m.room.member", "m.room.encryption")}
        }
    },
).decode()  # fmt: skip
_QUOTED = re.compile(r"^(?:>.*\n?)+\n?")
_BANG = re.compile(r"^!([A-Za-z]+)")


# ---- what events mean ----


class MatrixBot(msgspec.Struct, frozen=True):
    """The bot: its user id and the name it shows."""

    user_id: str
    name: str = ""


class MatrixPlace(msgspec.Struct, frozen=True):
    """A room; `direct` where one person is alone in it with the bot."""

    room: str
    direct: bool = False

    def thread(self, platform: str) -> ThreadId:
        """The thread that the room is by itself."""
        return make_thread_id(platform, self.room, WHOLE)


def content_of(event: MatrixEvent) -> EventContent | None:
    """What an event says; None where it has an unknown form."""
    try:
        return msgspec.json.decode(bytes(event.content), type=EventContent)
    except UNREADABLE:
        return None


def is_said(event: MatrixEvent, content: EventContent, me: str) -> bool:
    """Whether a person wrote it: no notice of another program, not this bot, no change of another message."""
    is_new = event.type == "m.room.message" and content.relation.rel_type != "m.replace"
    return is_new and event.sender != me and content.msgtype in _SAID


def root_of(content: EventContent) -> str:
    """The message whose thread an event is in; empty for none."""
    return content.relation.event_id if content.relation.rel_type == "m.thread" else ""


def answered_id(content: EventContent) -> str:
    """The message that an event answers; empty for none, and where a thread only names its last one."""
    return "" if content.relation.is_falling_back else content.relation.answered.event_id


def thread_of(platform: str, place: MatrixPlace, event: MatrixEvent, content: EventContent) -> ThreadId:
    """The thread that a message belongs to when it answers nothing known. Raises InvalidId for endless ids."""
    return make_thread_id(platform, place.room, root_of(content) or (WHOLE if place.direct else event.event_id))


def is_addressed(content: EventContent | NewContent, me: MatrixBot) -> bool:
    """Whether a message mentions the bot; clients say so, and where an old one does not, its words do."""
    if content.mentions is not None:
        return me.user_id in content.mentions.user_ids
    named = f"matrix.to/#/{me.user_id}" in content.formatted_body or me.user_id in content.body
    return named or bool(me.name and _leading(me).match(content.body))


def text_of(body: str, me: MatrixBot, *, answers: bool) -> str:
    """What a message says: without the quotation that old clients repeat, and without the bot's name in front.

    `!stop` is `/stop` to us, since clients keep what begins with a slash for themselves.
    """
    text = _QUOTED.sub("", body, count=1) if answers else body
    text = _leading(me).sub("", text, count=1).strip()
    found = _BANG.match(text)
    if found is not None and ALIASES.get(found[1].lower(), found[1].lower()) in COMMANDS:
        text = f"/{text[1:]}"
    return text


def _leading(me: MatrixBot) -> re.Pattern[str]:
    """The bot's name at the beginning of a text."""
    local = me.user_id.removeprefix("@").partition(":")[0]
    names = [me.user_id, f"@{local}", *([f"@{me.name}", me.name] if me.name else ()), local]
    return re.compile(rf"\s*(?:{'|'.join(map(re.escape, names))})(?![\w@])\s*[:,]?\s*", re.IGNORECASE)


def prompt_of(thread: ThreadId, event: MatrixEvent, content: EventContent, author: Author, me: MatrixBot) -> Prompt:
    """The prompt a message makes, without its file; a file's name is not text, its caption is."""
    captioned = bool(content.filename) and content.filename != content.body
    body = "" if content.msgtype in MEDIA and not captioned else content.body
    text = text_of(body, me, answers=bool(content.relation.answered.event_id))
    return Prompt(
        thread=thread,
        key=event.event_id,
        text=f"* {text}" if content.msgtype == "m.emote" else text,
        author=author,
        at=time_of(event),
        reply_to=answered_id(content),
        message_id=event.event_id,
    )


def time_of(event: MatrixEvent) -> datetime:
    """When it was sent, by its homeserver; nonsense counts as the first moment."""
    milliseconds = event.origin_server_ts if 0 <= event.origin_server_ts < 1 << 47 else 0
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def unseen(events: tuple[MatrixEvent, ...], me: str) -> tuple[MatrixEvent, ...]:
    """Those of a room's events that came after the bot was invited, or joined; all where neither is among them."""
    entries = [number for number, event in enumerate(events) if _entry(event, me)]
    invitations = [number for number in entries if _entry(events[number], me) == "invite"]
    last = (invitations or entries or [-1])[-1]
    return events[last + 1 :]


def _entry(event: MatrixEvent, me: str) -> str:
    """`invite` or `join` where the bot enters the room with this event; a new name is not an entry."""
    content = content_of(event) if event.type == "m.room.member" and event.state_key == me else None
    if content is None or content.membership not in ("invite", "join"):
        return ""
    return "" if event.unsigned.prev_content.membership == "join" else content.membership


# ---- receiving ----


class _TimelinePage(msgspec.Struct, frozen=True):
    chunk: tuple[MatrixEvent, ...] = ()
    end: str = ""


class _MatrixProfile(msgspec.Struct, frozen=True):
    displayname: str | None = None


class _MatrixMember(msgspec.Struct, frozen=True):
    display_name: str | None = None


class _JoinedMembers(msgspec.Struct, frozen=True):
    joined: dict[str, _MatrixMember]


class _RoomEncryption(msgspec.Struct, frozen=True):
    algorithm: str = ""


class MatrixReceiver(ChatAccount):
    """Takes the events of one account in."""

    def __init__(
        self, platform: str, settings: MatrixSettings, home: Home, store: Settings, clock: Clock, *, seals: bool = True
    ) -> None:
        super().__init__(platform, home, store, clock, settings.agent)
        self._scope = f"matrix:{platform}"
        self._api = MatrixApi(settings, store, self._scope)
        self._encryption = Encryption()
        if seals and can_encrypt():
            from shoal.chat.matrix.crypto import MegolmEncryption

            self._encryption = MegolmEncryption(self._api, home.data / "matrix" / platform)
        self._me = MatrixBot("")
        self._joined: set[str] = set()
        self._members: Recent[dict[str, str]] = Recent(ROOMS_MAX)
        self._encrypted: dict[str, bool] = {}

    async def _connect(self, inbox: InboxPort) -> None:
        user = (await self._api.login()).user_id
        try:
            shown = (await self._api.call("GET", path_of("profile", user), _MatrixProfile)).displayname or ""
        except MatrixRefusal:  # an account without a profile
            shown = ""
        self._me = MatrixBot(user, shown)
        since = await self._store.get(self._scope, "since") or ""
        begun = bool(since)
        log.info("connected", extra={"platform": self.platform, "bot": user})
        try:
            poll_seconds = 0
            while True:
                query = {"timeout": str(poll_seconds * 1000), "filter": FILTER, **({"since": since} if since else {})}
                raw = bytes(
                    await self._api.call("GET", path_of("sync"), msgspec.Raw, query=query, seconds=POLL_SECONDS + 35)
                )
                try:
                    synced = msgspec.json.decode(raw, type=SyncResult)
                except UNREADABLE as error:
                    raise PlatformError(f"The homeserver's sync has an unknown form: {error}") from error
                self._reset_backoff()
                poll_seconds = POLL_SECONDS
                try:
                    await self._encryption.take(raw)
                except MatrixRefusal as error:  # plain rooms go on all the same
                    log.warning("keys could not be exchanged: %s", error, extra={"platform": self.platform})
                for room, invited in synced.rooms.invite.items():
                    await self._take_invitation(room, invited.invite_state.events, inbox)
                for room, joined in synced.rooms.join.items() if begun else ():
                    await self._take_room(room, joined, since, inbox)
                if synced.next_batch != since:
                    since = synced.next_batch
                    await self._store.put(self._scope, "since", since)
                begun = True
                self.connected.set()
        finally:
            self.connected.clear()

    async def _take_room(self, room: str, joined: JoinedRoom, since: str, inbox: InboxPort) -> None:
        """Take in the events of a room in their order, after those that the sync left out."""
        me = self._me.user_id
        events = joined.timeline.events
        is_new = room in self._joined or len(unseen(events, me)) < len(events)
        if joined.timeline.limited and joined.timeline.prev_batch:
            events = (*await self._left_out(room, joined.timeline.prev_batch, "" if is_new else since), *events)
        for event in events:
            self._note(room, event)
        for event in unseen(events, me):
            self._note(room, event)
            if event.sender == me:
                continue
            try:
                await self._take_event(room, event, inbox)
            except (MatrixRefusal, InvalidId) as error:
                extra = {"platform": self.platform, "kind": event.type, "why": str(error)}
                log.warning("an event was dropped", extra=extra)
        self._joined.discard(room)

    async def _left_out(self, room: str, start: str, since: str) -> tuple[MatrixEvent, ...]:
        """What came after `since` and before `start`, oldest first; no further back than the bot's own invitation."""
        found: list[MatrixEvent] = []
        while start and len(found) < MISSED_A_ROOM_MAX:
            query = {"dir": "b", "from": start, "limit": str(PAGE), **({"to": since} if since else {})}
            page = await self._api.call("GET", path_of("rooms", room, "messages"), _TimelinePage, query=query)
            found += page.chunk
            if not page.chunk or len(unseen(page.chunk[::-1], self._me.user_id)) < len(page.chunk):
                break
            start = page.end
        return tuple(found[::-1])

    async def _take_invitation(self, room: str, events: tuple[MatrixEvent, ...], inbox: InboxPort) -> None:
        """Join where somebody asks who may speak there, by the rules for messages; decline elsewhere."""
        me = self._me.user_id
        asked = next((one for one in events if one.type == "m.room.member" and one.state_key == me), None)
        accepted = False
        if asked is not None:
            thread, author = make_thread_id(self.platform, room, WHOLE), Author(asked.sender, trusted=False)
            accepted = await inbox.admits(Prompt(thread, f"invitation:{room}", "", author, self._clock.now()))
        extra = {"platform": self.platform, "channel": room, "user": asked.sender if asked is not None else ""}
        try:
            await self._api.call("POST", path_of("rooms", room, "join" if accepted else "leave"), msgspec.Raw, {})
            if accepted:
                self._joined.add(room)  # all since the invitation is for us, also what came before the last sync
            log.info("an invitation was %s", "accepted" if accepted else "declined", extra=extra)
        except MatrixRefusal as error:
            log.warning("an invitation could not be answered: %s", error, extra=extra)

    # ---- rooms ----

    def _note(self, room: str, event: MatrixEvent) -> None:
        """Something happened in a room that may change what is known of it."""
        if event.type == "m.room.member":
            self._members.pop(room)
        elif event.type == "m.room.encryption":
            self._encrypted[room] = True

    async def _members_of(self, room: str) -> dict[str, str]:
        """Who is in a room, with the names they show there. Raises PlatformError."""
        known = self._members.get(room)
        if known is None:
            found = await self._api.call("GET", path_of("rooms", room, "joined_members"), _JoinedMembers)
            known = {user: member.display_name or "" for user, member in found.joined.items()}
            self._members.put(room, known)
        return known

    async def _place(self, room: str) -> MatrixPlace:
        """The room, and whether one person is alone in it with the bot. Raises PlatformError."""
        return MatrixPlace(room, len(await self._members_of(room)) == DIRECT_MEMBERS)

    async def _author(self, room: str, user: str) -> Author:
        """Somebody in a room. Raises PlatformError."""
        return Author(user, (await self._members_of(room)).get(user, ""), trusted=False)

    async def _is_encrypted(self, room: str) -> bool:
        """Whether what is written there is encrypted. Raises PlatformError."""
        if room not in self._encrypted:
            path = path_of("rooms", room, "state", "m.room.encryption")
            try:
                self._encrypted[room] = bool((await self._api.call("GET", path, _RoomEncryption)).algorithm)
            except MatrixRefusal as error:
                if error.code != "M_NOT_FOUND":
                    raise
                self._encrypted[room] = False
        return self._encrypted[room]

    # ---- events ----

    def _decrypted(self, room: str, event: MatrixEvent) -> MatrixEvent | None:
        """The event, or the one inside it; None when its key is not known."""
        return self._encryption.decrypt(room, event) if event.type == "m.room.encrypted" else event

    async def _take_event(self, room: str, event: MatrixEvent, inbox: InboxPort) -> None:
        """Take an event in. Raises MatrixRefusal and InvalidId to drop it, PlatformError and StoreError to retry."""
        decrypted = self._decrypted(room, event)
        if decrypted is None:
            await self._refuse_unreadable(room, event)
            return
        event = decrypted
        content = content_of(event)
        if content is None:
            log.info("an event of an unknown form was dropped", extra={"platform": self.platform, "kind": event.type})
        elif event.type == "m.reaction":
            await self._take_reaction(room, event, content, inbox)
        elif event.type == "m.room.redaction":
            key = content.redacts or event.redacts
            thread = await inbox.thread_of(self._prefix(room), "", key) if key else None
            if thread is not None:
                await inbox.send(Deletion(thread, key, await self._author(room, event.sender), key))
        elif event.type == "m.room.message" and content.relation.rel_type == "m.replace":
            key, new = content.relation.event_id, content.new_content
            thread = await inbox.thread_of(self._prefix(room), "", key) if new is not None else None
            text = text_of(new.body, self._me, answers=False) if new is not None else ""
            if thread is not None and text:
                await inbox.send(Edit(thread, key, text, await self._author(room, event.sender), key))
        elif is_said(event, content, self._me.user_id):
            await self._take_message(room, event, content, inbox)

    async def _take_message(self, room: str, event: MatrixEvent, content: EventContent, inbox: InboxPort) -> None:
        place = await self._place(room)
        thread, joins = await self._thread(place, event, content, inbox)
        if thread is None:
            return
        prompt = prompt_of(thread, event, content, await self._author(room, event.sender), self._me)
        if parse_command(prompt.text) and not root_of(content) and not answered_id(content):
            prompt = msgspec.structs.replace(prompt, thread=place.thread(self.platform))  # opens no thread
        prompt = msgspec.structs.replace(prompt, agent=self._agent, direct=place.direct, joins=joins)
        if await inbox.admits(prompt):
            files = (self._incoming(event, content),) if content.msgtype in MEDIA else ()
            await self._take_in(prompt, inbox, files)

    def _incoming(self, event: MatrixEvent, content: EventContent) -> IncomingFile:
        async def fetch() -> bytes:
            if content.file is None:
                return await self._api.fetch(content.url, self.download_bytes_max)
            data = await self._api.fetch(content.file.url, self.download_bytes_max)
            return await asyncio.to_thread(self._encryption.decrypt_file, data, bytes(event.content))

        name = content.filename or content.body or "file"
        return Attachment(name, content.info.mimetype or ENCRYPTED_TYPE, content.info.size), fetch

    async def _thread(
        self, place: MatrixPlace, event: MatrixEvent, content: EventContent, inbox: InboxPort
    ) -> tuple[ThreadId | None, bool]:
        """The thread a message is for, None when it is not meant for the bot; and whether it answers one of ours."""
        prefix, root, answered = self._prefix(place.room), root_of(content), answered_id(content)
        ours = await inbox.thread_of(prefix, answered) if answered else None
        thread = thread_of(self.platform, place, event, content)
        if not root:
            known = ours or (await inbox.thread_of(prefix, "", answered) if answered else None)
            if known is not None:
                return known, ours is not None
            begun = make_thread_id(self.platform, place.room, answered) if answered else None
            if begun is not None and await self._is_subscribed(begun):
                return begun, True  # one of the bot's own opened a conversation
        if place.direct:
            return thread, ours is not None
        if is_addressed(content, self._me):
            await self._subscribe(thread)
            return thread, ours is not None
        if root and (await self._is_subscribed(thread) or await inbox.thread_of(prefix, root) is not None):
            return thread, ours is not None
        return None, False

    async def _take_reaction(self, room: str, event: MatrixEvent, content: EventContent, inbox: InboxPort) -> None:
        """✅ and ❌ on an approval's card decide it; other emojis, and those on other messages, are passed on."""
        emoji, target = content.relation.key, content.relation.event_id
        thread = await inbox.thread_of(self._prefix(room), target) if emoji and target else None
        if thread is None:
            return
        author = await self._author(room, event.sender)
        approval = await self._approval(room, target) if emoji in YES | NO else ""
        if not approval:
            await inbox.send(Reaction(thread, emoji, author, target))
            return
        verb = "allow" if emoji in YES else "deny"
        answer = await press(f"{verb}:{approval}", thread, author, inbox)
        if answer not in DECIDED:
            await self._say(thread, event.event_id, answer, reply_to=target)

    async def _approval(self, room: str, message_id: str) -> str:
        """The approval that one of the bot's messages asks for; empty for none."""
        try:
            found = await self._api.call("GET", path_of("rooms", room, "event", message_id), MatrixEvent)
        except MatrixRefusal:
            return ""
        if found.sender != self._me.user_id:
            return ""
        decrypted = self._decrypted(room, found)
        content = content_of(decrypted) if decrypted is not None else None
        return content.approval if content is not None else ""

    async def _refuse_unreadable(self, room: str, event: MatrixEvent) -> None:
        """Say once in a room that nothing can be read there, or of one message that its key is missing."""
        place = await self._place(room)
        if self._encryption.works:
            log.warning("a message could not be decrypted", extra={"platform": self.platform, "channel": room})
            if place.direct:
                await self._say(place.thread(self.platform), event.event_id, UNREADABLE_MESSAGE)
            return
        scope = f"refused:{self.platform}"
        if await self._store.get(scope, room) is None:
            log.warning("%s", UNREADABLE_ROOM, extra={"platform": self.platform, "channel": room})
            path = path_of("rooms", room, "send", "m.room.message", "encrypted-room-refused")
            await self._api.call("PUT", path, msgspec.Raw, {"msgtype": "m.notice", "body": UNREADABLE_ROOM})
            await self._store.put(scope, room, "1")
