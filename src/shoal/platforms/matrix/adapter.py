"""Matrix adapter. Continues from the last sync, and posts to rooms and threads.

Messages that a sync omits are read from the room. The bot accepts invitations from people with access.
"""

import asyncio
import logging
import mimetypes
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from importlib.util import find_spec

import msgspec

from shoal.kernel.clock import Clock, to_micros
from shoal.kernel.errors import ConfigError, PlatformError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import Attachment, Author, Deletion, Edit, Prompt, Reaction, Reference
from shoal.kernel.ports import InboxPort, Settings
from shoal.kernel.posts import Button, OutboundPost
from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import UNREADABLE
from shoal.platforms.account import CONTEXT_SECONDS_MAX, ChatAccount, IncomingFile, cut
from shoal.platforms.http import Fields, Json, PlatformRefusal, Tolerating
from shoal.platforms.inbox import Recent, read_file
from shoal.platforms.matrix.settings import MatrixSettings
from shoal.platforms.matrix.wire import (
    LIMITS,
    MEDIA,
    POST,
    WHOLE,
    WRITTEN,
    Encryption,
    EventContent,
    JoinedRoom,
    JsonObject,
    MatrixApi,
    MatrixBot,
    MatrixEvent,
    MatrixLocation,
    MatrixTarget,
    SyncResult,
    answered_id,
    content_of,
    edit_content,
    file_content,
    foreign_in,
    is_addressed,
    is_from_person,
    message_text,
    path_of,
    post_content,
    prompt_of,
    redacted_by,
    root_of,
    target_of,
    thread_of,
    time_of,
    transaction_of,
    unseen,
)

log = logging.getLogger(__name__)
POLL_SECONDS = 25
"""Maximum number of seconds that the homeserver holds a sync request open while nothing happens."""
TIMELINE_MAX = 50
MISSED_A_ROOM_MAX = 500
"""Maximum number of missed messages read per room. Older messages are skipped."""
PAGE = 100
ROOMS_MAX = 500
"""Maximum number of rooms whose members are cached. The least recently used room is evicted first."""
DIRECT_MEMBERS = 2
ENCRYPTED_TYPE = "application/octet-stream"
UNREADABLE_ROOM = (
    "I cannot read this encrypted room, because encryption is not installed. Write to me in an unencrypted room, "
    "or ask the owner to run `shoal doctor`, which explains how to add the `matrix` extra."
)
LATE_KEY_SECONDS = 60.0
"""Seconds after which the author of a direct message is notified that its key has not arrived. Shoal continues to wait
for the key.
"""
LATE_KEY_DAYS = 7
UNDECRYPTED_MAX = 500
UNREADABLE_MESSAGE = (
    "I cannot decrypt your message yet, because its key has not arrived. I will answer when the key arrives, or "
    "you can send the message again."
)
_TYPES = (
    "m.room.message", "m.room.encrypted", "m.room.encryption", "m.room.redaction", "m.room.member", "m.reaction",
    "m.room.name", "m.room.tombstone",
    *sorted(WRITTEN - {"m.room.message"}),
)  # fmt: skip
STRANGERS_MAX = 100
"""Maximum number of unpaired people for whom the bot has joined a direct room. Further invitations are declined."""
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
TYPING_MILLISECONDS = 30_000
READ_MAX = 1000
LOOK_BACK = timedelta(days=1)
"""Maximum age of messages to search when the outcome of a post is unknown. Posts are retried for the same period."""
INVITED_MAX = 50
NAME_CHARS_MAX = 100
UPLOAD_BYTES_MAX = 104_857_600
"""Maximum size of an uploaded file, which is read into memory. Homeservers may have lower limits (Synapse: 50 MB by
default) and return an error for larger files.
"""


class _MatrixProfile(msgspec.Struct, frozen=True):
    displayname: str | None = None


class _MatrixMember(msgspec.Struct, frozen=True):
    display_name: str | None = None


class _JoinedMembers(msgspec.Struct, frozen=True):
    joined: dict[str, _MatrixMember]


class _RoomEncryption(msgspec.Struct, frozen=True):
    algorithm: str = ""


class _RoomName(msgspec.Struct, frozen=True):
    name: str = ""


class _SentEvent(msgspec.Struct, frozen=True):
    event_id: str


class _CreatedRoom(msgspec.Struct, frozen=True):
    room_id: str


class _EventPage(msgspec.Struct, frozen=True):
    chunk: tuple[MatrixEvent, ...] = ()
    end: str = ""
    next_batch: str = ""


class _Undecrypted(msgspec.Struct, frozen=True):
    """An event that cannot be decrypted yet. `at` is when Shoal began to wait for the key, in microseconds."""

    room: str
    event: MatrixEvent
    at: int
    is_told: bool = False


class MatrixAdapter(ChatAccount[MatrixSettings]):
    """Implements `ChatAdapter`, `ChannelHost` and `ReadsBack`."""

    limits = LIMITS

    def __init__(
        self, platform: str, settings: MatrixSettings, home: Home, store: Settings, clock: Clock,
        inbound_url: str = "", *, seals: bool = True, encryption: Encryption | None = None,
    ) -> None:  # fmt: skip
        if not settings.homeserver:
            raise ConfigError(["platforms.matrix.homeserver is missing. Set it to your homeserver's URL."])
        super().__init__(platform, settings, home, store, clock, inbound_url)
        self._scope = f"matrix:{platform}"
        self._api = MatrixApi(settings, store, self._scope)
        self._encryption = encryption or Encryption()
        if (
            encryption is None
            and seals
            and all(find_spec(package) is not None for package in ("nio", "vodozemac", "peewee"))
        ):
            from shoal.platforms.matrix.crypto import MegolmEncryption

            self._encryption = MegolmEncryption(self._api, home.data / "matrix" / platform)
        self._undecrypted: dict[str, _Undecrypted] = {}
        self._me = MatrixBot("")
        self._joined: set[str] = set()
        self._members: Recent[dict[str, str]] = Recent(ROOMS_MAX)
        self._encrypted: dict[str, bool] = {}

    async def _connect(self, inbox: InboxPort) -> None:
        user = (await self._api.login()).user_id
        try:
            shown = (await self._api.call("GET", path_of("profile", user), _MatrixProfile)).displayname or ""
        except PlatformRefusal:  # the account has no profile
            shown = ""
        self._me = MatrixBot(user, shown)
        since = await self._store.get(self._scope, "since") or ""
        begun, are_keys_new = bool(since), True
        rows = await self._store.page(f"undecrypted:{self.platform}", limit=UNDECRYPTED_MAX)
        self._undecrypted = {id: msgspec.json.decode(row, type=_Undecrypted) for id, row in rows}
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
                    raise PlatformError(
                        f"The homeserver's sync response has an unknown format: {refusal(error, SyncResult)}."
                    ) from error
                self._reset_backoff()
                poll_seconds = POLL_SECONDS
                try:
                    await self._encryption.take(raw)
                except PlatformRefusal as error:  # unencrypted rooms still work
                    log.warning("key exchange failed: %s", error, extra={"platform": self.platform})
                for event in (event for joined in synced.rooms.join.values() for event in joined.timeline.events):
                    if event.type == "m.room.redaction" and (redacted := redacted_by(event)) in self._undecrypted:
                        await self._forget_undecrypted(redacted)
                if self._undecrypted:
                    await self._retry_undecrypted(are_keys_new=are_keys_new or bool(synced.to_device.events))
                are_keys_new = False
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
        """Read the events that the sync omitted, then enqueue all events in order."""
        me = self._me.user_id
        events = joined.timeline.events
        is_new = room in self._joined or len(unseen(events, me)) < len(events)
        if joined.timeline.limited and joined.timeline.prev_batch:
            # Read the messages after `since`, but none from before the bot's invitation.
            history: list[MatrixEvent] = []
            start, until = joined.timeline.prev_batch, {"to": since} if since and not is_new else {}
            while start and len(history) < MISSED_A_ROOM_MAX:
                query = {"dir": "b", "from": start, "limit": str(PAGE), **until}
                page = await self._api.call("GET", path_of("rooms", room, "messages"), _EventPage, query=query)
                history += page.chunk
                if not page.chunk or len(unseen(page.chunk[::-1], me)) < len(page.chunk):
                    break
                start = page.end
            events = (*history[::-1], *events)
        for event in events:
            self._note(room, event)
        for event in unseen(events, me):
            self._note(room, event)
            if event.sender == me:
                continue
            await self._intake.put(room, msgspec.json.encode((room, event)).decode())
        self._joined.discard(room)

    async def _take_invitation(self, room: str, events: tuple[MatrixEvent, ...], inbox: InboxPort) -> None:
        """Accept an invitation from a person with access, and decline others.

        The bot also joins an unknown person's direct room, because it can reply to them only there.
        """
        me = self._me.user_id
        asked = next((event for event in events if event.type == "m.room.member" and event.state_key == me), None)
        accepted, is_unknown, prompt, before = False, False, None, None
        if asked is not None:
            thread, author = self._thread_in(room), Author(asked.sender, trusted=False)
            prompt = Prompt(thread, f"invitation:{room}", "", author, self._clock.now())
            before = await self._store.get(f"upgraded:{self.platform}", room)
            accepted = bool(before) or await inbox.admits(prompt)
            content = content_of(asked)
            if not accepted and content is not None and content.is_direct:
                scope = f"strangers:{self.platform}"  # at most one room per unknown person, and STRANGERS_MAX in total
                if len(await self._store.page(scope, limit=STRANGERS_MAX)) < STRANGERS_MAX:
                    is_unknown = accepted = await self._store.swap(scope, asked.sender, None, room)
        extra = {"platform": self.platform, "channel": room, "user": asked.sender if asked is not None else ""}
        try:
            await self._api.call("POST", path_of("rooms", room, "join" if accepted else "leave"), msgspec.Raw, {})
            if accepted:
                self._joined.add(room)  # read all messages since the invitation, even those before the last sync
            if accepted and before:
                await self._chat_moved(before, room)
                await self._store.drop(f"upgraded:{self.platform}", room, before)
            elif is_unknown and prompt is not None:
                await inbox.admits(msgspec.structs.replace(prompt, direct=True))
            elif accepted and prompt is not None:
                await self._greet(prompt, inbox)
            log.info("invitation %s", "accepted" if accepted else "declined", extra=extra)
        except PlatformRefusal as error:
            log.warning("invitation response failed: %s", error, extra=extra)

    # ---- rooms ----

    def _note(self, room: str, event: MatrixEvent) -> None:
        if event.type == "m.room.member":
            self._members.pop(room)
        elif event.type == "m.room.name":
            self._names.pop(self._moves.first_id(room))
        elif event.type == "m.room.encryption":
            self._encrypted[room] = True

    async def _members_of(self, room: str) -> dict[str, str]:
        known = self._members.get(room)
        if known is None:
            members = await self._api.call("GET", path_of("rooms", room, "joined_members"), _JoinedMembers)
            known = {user: member.display_name or "" for user, member in members.joined.items()}
            self._members.put(room, known)
        return known

    async def _place(self, room: str) -> MatrixLocation:
        """Return the room's location. A room with DIRECT_MEMBERS members is a direct conversation."""
        return MatrixLocation(room, len(await self._members_of(room)) == DIRECT_MEMBERS, self._moves.first_id(room))

    def _thread_in(self, room: str, root: str = WHOLE) -> ThreadId:
        """Return a thread's id. The id contains the room's first id, which does not change when the room is
        upgraded.
        """
        return make_thread_id(self.platform, self._moves.first_id(room), root)

    def _target(self, thread: ThreadId) -> MatrixTarget:
        """Return the target of a thread's posts. After a room upgrade, the target is in the newest room."""
        target = target_of(thread)
        return msgspec.structs.replace(target, room=self._moves.newest_id(target.room))

    async def _follow(self, room: str, event: MatrixEvent) -> bool:
        """Continue in the room that replaces this one. If the bot cannot join without an invitation, it waits for one.
        Source: spec.matrix.org, client-server API, room upgrades.
        """
        content = content_of(event)
        new = content.replacement_room if content is not None else ""
        if not new.startswith("!") or event.state_key != "":
            return False
        server = event.sender.partition(":")[2]
        try:
            query = {"server_name": server, "via": server}
            await self._api.call("POST", path_of("join", new), msgspec.Raw, {}, query=query)
        except PlatformRefusal as error:
            log.info("waiting for an invitation", extra={"platform": self.platform, "channel": new, "why": str(error)})
            await self._store.put(f"upgraded:{self.platform}", new, room)
            return True
        await self._chat_moved(room, new)
        return True

    async def _author(self, room: str, user: str) -> Author:
        return Author(user, (await self._members_of(room)).get(user, ""), trusted=False)

    async def _name_of(self, channel: str) -> str:
        room_name = _RoomName()
        with Tolerating("M_NOT_FOUND"):
            room_name = await self._api.call("GET", path_of("rooms", channel, "state", "m.room.name"), _RoomName)
        return room_name.name

    async def _is_encrypted(self, room: str) -> bool:
        if room not in self._encrypted:
            path, encryption = path_of("rooms", room, "state", "m.room.encryption"), _RoomEncryption()
            with Tolerating("M_NOT_FOUND"):
                encryption = await self._api.call("GET", path, _RoomEncryption)
            self._encrypted[room] = bool(encryption.algorithm)
        return self._encrypted[room]

    # ---- events ----

    def _decrypted(self, room: str, event: MatrixEvent) -> MatrixEvent | None:
        return self._encryption.decrypt(room, event) if event.type == "m.room.encrypted" else event

    async def _await_key(self, room: str, event: MatrixEvent) -> None:
        """Store an event until its key arrives, and request the key. At most UNDECRYPTED_MAX events wait, and the
        oldest is dropped first.
        """
        if event.event_id in self._undecrypted:
            return
        log.info("waiting for a key", extra={"platform": self.platform, "channel": room})
        while len(self._undecrypted) >= UNDECRYPTED_MAX:
            await self._forget_undecrypted(next(iter(self._undecrypted)), "too many messages are waiting")
        await self._note_undecrypted(_Undecrypted(room, event, to_micros(self._clock.now())))
        try:
            await self._encryption.request_key(room, event)
        except PlatformError as error:
            log.info("key request failed", extra={"platform": self.platform, "why": str(error)})

    async def _note_undecrypted(self, waiting: _Undecrypted) -> None:
        id = waiting.event.event_id
        await self._store.put(f"undecrypted:{self.platform}", id, msgspec.json.encode(waiting).decode())
        self._undecrypted[id] = waiting

    async def _forget_undecrypted(self, id: str, why: str = "") -> None:
        waiting = self._undecrypted.pop(id)
        if why:
            extra = {"platform": self.platform, "channel": waiting.room, "why": why}
            log.warning("message decryption failed", extra=extra)
        await self._store.drop(f"undecrypted:{self.platform}", id, msgspec.json.encode(waiting).decode())

    async def _retry_undecrypted(self, *, are_keys_new: bool) -> None:
        """Enqueue the events that can now be decrypted. An event without a key is reported once after LATE_KEY_SECONDS
        and dropped after LATE_KEY_DAYS.
        """
        now = to_micros(self._clock.now())
        for id, waiting in [*self._undecrypted.items()]:
            seconds = (now - waiting.at) / 1_000_000
            if are_keys_new and self._encryption.decrypt(waiting.room, waiting.event) is not None:
                await self._intake.put(waiting.room, msgspec.json.encode((waiting.room, waiting.event)).decode())
                await self._forget_undecrypted(id)
            elif seconds >= LATE_KEY_DAYS * 86_400:
                await self._forget_undecrypted(id, "the key did not arrive")
            elif seconds >= LATE_KEY_SECONDS and not waiting.is_told:
                await self._note_undecrypted(msgspec.structs.replace(waiting, is_told=True))
                try:
                    place = await self._place(waiting.room)
                except PlatformRefusal:  # the bot left the room
                    await self._forget_undecrypted(id, "the bot left the room")
                    continue
                if place.direct:
                    await self._say(place.thread(self.platform), id, UNREADABLE_MESSAGE)

    async def _process_event(self, event: str, inbox: InboxPort) -> bool:
        room, happened = msgspec.json.decode(event, type=tuple[str, MatrixEvent])
        decrypted = self._decrypted(room, happened)
        if decrypted is None:
            place = await self._place(room)
            if self._encryption.works:
                await self._await_key(room, happened)
                return True
            scope = f"refused:{self.platform}"
            if await self._store.get(scope, room) is None:
                log.warning("%s", UNREADABLE_ROOM, extra={"platform": self.platform, "channel": room})
                path = path_of("rooms", room, "send", "m.room.message", "encrypted-room-refused")
                await self._api.call("PUT", path, msgspec.Raw, {"msgtype": "m.notice", "body": UNREADABLE_ROOM})
                await self._store.put(scope, room, "1")
            return True
        if decrypted.type == "m.room.tombstone":
            return await self._follow(room, decrypted)
        happened, place = decrypted, self._thread_in(room)
        content = content_of(happened)
        if content is None:
            self._not_understood(f"{happened.type} in an unknown format")
        elif happened.type == "m.reaction":
            emoji, target = content.relation.key, content.relation.event_id
            thread = await inbox.thread_of(self._prefix(room), target) if emoji and target else None
            if thread is not None:
                author = await self._author(room, happened.sender)
                await self._take_reaction(Reaction(thread, emoji, author, target), inbox)
        elif happened.type == "m.room.redaction":
            key, author = redacted_by(happened), await self._author(room, happened.sender)
            if key:
                await self._pending.send(Deletion(place, key, author, key), inbox)
        elif happened.type in WRITTEN and content.relation.rel_type == "m.replace":
            key, new = content.relation.event_id, content.new_content
            if new is not None and is_addressed(new, self._me) and await self._take_named(room, key, new, inbox):
                return True
            text = message_text(happened, new, self._me, changes=True) if new is not None else ""
            if text:
                author = await self._author(room, happened.sender)
                await self._pending.send(Edit(place, key, text, author, key, at=time_of(happened)), inbox)
        elif is_from_person(happened, content, self._me.user_id):
            await self._take_message(room, happened, content, inbox)
        elif content.msgtype == "m.notice":
            self._left_out("message from a bot")
        return True

    async def _take_named(self, room: str, changed: str, new: EventContent, inbox: InboxPort) -> bool:
        if (await self._place(room)).direct or await inbox.thread_of(self._prefix(room), "", changed) is not None:
            return False
        current = await self._event(room, changed)
        if current is None or current[0].sender == self._me.user_id:
            return False
        event, before = current
        author, thread = Author(event.sender, trusted=False), self._thread_in(room)
        prompt = prompt_of(thread, event, before, author, self._me)
        if is_addressed(before, self._me) or not await self._is_unheard(prompt, self._prefix(room), inbox):
            return False
        # The edited message stays in its thread.
        await self._take_message(room, event, msgspec.structs.replace(new, relation=before.relation), inbox)
        return True

    async def _take_message(self, room: str, event: MatrixEvent, content: EventContent, inbox: InboxPort) -> None:
        place, prefix = await self._place(room), self._prefix(room)
        root, answered = root_of(content), answered_id(content)
        ours = await inbox.thread_of(prefix, answered) if answered else None
        joins, thread = ours is not None, thread_of(self.platform, place, event, content)
        known = ours or (await inbox.thread_of(prefix, "", answered) if answered and not root else None)
        begun = self._thread_in(room, answered) if answered and not root and known is None else None
        follows = False
        if known is not None and not root:
            thread, follows = known, True
        elif begun is not None and await self._is_subscribed(begun):
            thread, joins = begun, True  # a reply continues the thread that the bot's message opened
        elif root:
            follows = await self._is_subscribed(thread) or await inbox.thread_of(prefix, root) is not None
        names = is_addressed(content, self._me)
        prompt = prompt_of(thread, event, content, await self._author(room, event.sender), self._me)
        prompt = msgspec.structs.replace(prompt, text=inbox.commands.with_slash(prompt.text))
        files = [self._incoming(event, content)] if content.msgtype in MEDIA else []
        if not place.direct:
            await self._learn_name(room)
        if not place.direct and not await self._is_for_agent(
            prompt, inbox, files, is_named=names or joins, opens=names, follows=follows
        ):
            return
        if inbox.commands.parse(prompt.text) and not root and not answered:
            prompt = msgspec.structs.replace(prompt, thread=place.thread(self.platform))  # a command opens no thread
        prompt = msgspec.structs.replace(prompt, direct=place.direct, joins=joins)
        if answered and not await inbox.admits(prompt):
            return
        answered_event = await self._event(room, answered) if answered else None
        if answered_event is not None:
            quoted, quoted_text = answered_event
            own = quoted.sender == self._me.user_id
            foreign, author = foreign_in(quoted, quoted_text, self._me), await self._author(room, quoted.sender)
            if foreign:
                author = Author("", author.name, trusted=False)
            reference = (
                foreign
                or message_text(quoted, quoted_text, self._me)
                or (f"[file {quoted_text.filename or quoted_text.body}]" if quoted_text.url else "")
            )
            reply = Reference("reply", reference, author, answered, own=own)
            prompt = msgspec.structs.replace(prompt, refers_to=(*prompt.refers_to, reply))
            if quoted_text.msgtype in MEDIA and not own:
                files.append(self._incoming(quoted, quoted_text, author))
        await self._take_in(prompt, inbox, files)

    def _incoming(self, event: MatrixEvent, content: EventContent, author: Author | None = None) -> IncomingFile:
        async def fetch() -> bytes:
            if content.file is None:
                return await self._api.fetch_media(content.url, self.download_bytes_max)
            data = await self._api.fetch_media(content.file.url, self.download_bytes_max)
            return await asyncio.to_thread(self._encryption.decrypt_file, data, bytes(event.content))

        name = content.filename or content.body or "file"
        return Attachment(name, content.info.mimetype or ENCRYPTED_TYPE, content.info.size, author=author), fetch

    async def _event(self, room: str, event_id: str) -> tuple[MatrixEvent, EventContent] | None:
        try:
            async with asyncio.timeout(CONTEXT_SECONDS_MAX):
                event = await self._api.call("GET", path_of("rooms", room, "event", event_id), MatrixEvent)
        except (PlatformError, TimeoutError) as error:
            log.info("message lookup failed", extra={"platform": self.platform, "why": str(error)})
            return None
        decrypted = self._decrypted(room, event)
        content = content_of(decrypted) if decrypted is not None else None
        return (decrypted, content) if decrypted is not None and content is not None else None

    async def _opening(self, thread: ThreadId) -> Prompt | None:
        target = self._target(thread)
        event = await self._event(target.room, target.root) if target.root else None
        if event is None or event[0].sender == self._me.user_id:
            return None
        return self._read_back(thread, *event, await self._author(target.room, event[0].sender), self._me)

    def _read_back(
        self, thread: ThreadId, event: MatrixEvent, content: EventContent, author: Author, me: MatrixBot
    ) -> Prompt:
        files = (self._incoming(event, content)[0],) if content.msgtype in MEDIA else ()
        return msgspec.structs.replace(prompt_of(thread, event, content, author, me), attachments=files)

    async def close(self) -> None:
        self._encryption.close()
        await self._api.close()

    # ---- posts ----

    async def post(self, post: OutboundPost) -> str:
        target = self._target(post.thread)
        if post.kind == "ephemeral" and post.user and not (await self._place(target.room)).direct:
            # Matrix has no private messages in a room, so post to a direct room.
            alone = MatrixTarget(await self._direct_room(post.user))
            content = post_content(msgspec.structs.replace(post, reply_to=""), alone)
            return await self._send(alone.room, transaction_of(post.key), content)
        if post.file is None:
            return await self._send(target.room, transaction_of(post.key), post_content(post, target))
        path = post.file
        data = await asyncio.to_thread(read_file, path, UPLOAD_BYTES_MAX)
        media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        content = file_content(post, path.name, target, media_type, data)
        if await self._is_encrypted(target.room):
            data, keys = await asyncio.to_thread(self._encryption.encrypt_file, data)
            content["file"] = {**keys, "url": await self._api.upload("file", ENCRYPTED_TYPE, data)}
        else:
            content["url"] = await self._api.upload(path.name, media_type, data)
        return await self._send(target.room, transaction_of(post.key), content)

    async def find_posted(self, post: OutboundPost) -> list[str]:
        """Implement `ReadsBack` by searching the room, because some homeservers remember transaction ids for less than
        an hour. Raises PlatformError.
        """
        if post.kind == "ephemeral" and post.user:
            return []
        target, transaction = self._target(post.thread), transaction_of(post.key)
        oldest = self._clock.now() - LOOK_BACK
        me = (await self._api.login()).user_id
        try:
            async for event in self._backwards(target):
                if time_of(event) < oldest:
                    break
                content = content_of(event)
                if content is not None and content.post == transaction and event.sender == me:
                    return [event.event_id]
        except PlatformRefusal as error:
            log.info("post lookup failed", extra={"platform": self.platform, "why": str(error)})
        return []

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        content = edit_content(message_id, markdown, buttons)
        await self._send(self._target(thread).room, self._clock.new_id(), content)

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        path = path_of("rooms", self._target(thread).room, "redact", message_id, self._clock.new_id())
        await self._api.call("PUT", path, _SentEvent, {})

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show the typing indicator for 30 seconds. An empty status ends it. Raises PlatformError."""
        me = (await self._api.login()).user_id
        path = path_of("rooms", self._target(thread).room, "typing", me)
        shown = {"typing": True, "timeout": TYPING_MILLISECONDS} if status else {"typing": False}
        await self._api.call("PUT", path, msgspec.Raw, shown)

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Start a thread in a room with this text and return its id. If `channel` is a user id, start a direct
        conversation. Raises PlatformError.
        """
        if channel.startswith("@"):
            # the person does not need to join first
            place = MatrixLocation(await self._direct_room(channel), direct=True)
        else:
            place = await self._place(self._moves.newest_id(channel))
        first, *rest = cut(text, LIMITS)
        here, key = place.thread(self.platform), key or f"open:{self._clock.new_id()}"
        post = OutboundPost(here, key, first, maybe_posted=maybe_posted)
        posted = await self.find_posted(post) if maybe_posted else []
        message_id = posted[0] if posted else await self.post(post)
        thread = here
        if not place.direct:
            thread = place.thread(self.platform, message_id)
            await self._subscribe(thread)
        for number, piece in enumerate(rest, 1):
            await self.post(OutboundPost(thread, f"{key}:{number}", piece))
        return thread

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        target = self._target(thread)
        me = MatrixBot((await self._api.login()).user_id)
        prompts: list[Prompt] = []
        async for event in self._backwards(target):
            if after is not None and time_of(event) <= after:
                break
            decrypted = self._decrypted(target.room, event)
            content = content_of(decrypted) if decrypted is not None else None
            if decrypted is None or content is None or not is_from_person(decrypted, content, me.user_id, by_bots=True):
                continue
            if not target.root and root_of(content):
                continue  # the message belongs to another thread
            author = await self._author(target.room, event.sender)
            prompts.append(self._read_back(thread, decrypted, content, author, me))
            if len(prompts) >= limit:
                break
        for prompt in reversed(prompts):
            yield prompt

    async def _send(self, room: str, transaction: str, content: JsonObject) -> str:
        kind = "m.room.message"
        if await self._is_encrypted(room):
            kind, content = "m.room.encrypted", await self._encryption.encrypt(room, kind, content)
        path = path_of("rooms", room, "send", kind, transaction)
        return (await self._api.call("PUT", path, _SentEvent, {**content, POST: transaction})).event_id

    async def _backwards(self, target: MatrixTarget) -> AsyncIterator[MatrixEvent]:
        """Yield a thread's events, newest first. Stops after READ_MAX events."""
        parts = ("rooms", target.room, "relations", target.root, "m.thread")
        path = path_of(*parts, base="/_matrix/client/v1") if target.root else path_of("rooms", target.room, "messages")
        start, read = "", 0
        while read < READ_MAX:
            query = {"dir": "b", "limit": str(PAGE), **({"from": start} if start else {})}
            page = await self._api.call("GET", path, _EventPage, query=query)
            for event in page.chunk:
                yield event
            read += len(page.chunk)
            start = page.end or page.next_batch
            if not page.chunk or not start:
                break
        if target.root:
            yield await self._api.call("GET", path_of("rooms", target.room, "event", target.root), MatrixEvent)

    # ---- rooms ----

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Create a private room and return its id. Invites the members of `beside`, or the owner. Raises
        PlatformError.
        """
        me = (await self._api.login()).user_id
        people = [user for user in await self._members_of(beside) if user != me] if beside else []
        invited = people[:INVITED_MAX] or ([self._settings.owner] if self._settings.owner else [])
        if not invited:
            reason = "The new room would have no members. Specify an existing room, or set platforms.matrix.owner."
            raise PlatformError(reason, permanent=True)
        return await self._create(name, invited)

    async def has_channel(self, channel: str) -> bool:
        try:
            return bool(await self._members_of(self._moves.newest_id(channel)))
        except PlatformRefusal:
            return False

    async def _create(self, name: str, invited: list[str], *, direct: bool = False) -> str:
        people: list[Json] = list(invited)
        body: Fields = {
            "preset": "trusted_private_chat" if direct else "private_chat",
            "is_direct": direct,
            "invite": people,
            **({"name": name[:NAME_CHARS_MAX]} if name else {}),
        }
        return (await self._api.call("POST", path_of("createRoom"), _CreatedRoom, body)).room_id

    async def _direct_room(self, user: str) -> str:
        me = (await self._api.login()).user_id
        path = path_of("user", me, "account_data", "m.direct")
        known = dict[str, list[str]]()
        with Tolerating("M_NOT_FOUND"):
            known = await self._api.call("GET", path, dict[str, list[str]])
        for room in reversed(known.get(user, [])):
            try:
                members = await self._members_of(room)
            except PlatformRefusal:
                continue
            if user in members and len(members) == DIRECT_MEMBERS:
                return room
        made = await self._create("", [user], direct=True)
        mine: JsonObject = {user: list[Json](rooms) for user, rooms in known.items()}
        mine[user] = [*known.get(user, []), made]
        await self._api.call("PUT", path, msgspec.Raw, mine)
        return made
