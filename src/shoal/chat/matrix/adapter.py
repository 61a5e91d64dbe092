"""The Matrix adapter: what comes in, and posts, threads and rooms."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import msgspec

from shoal.chat.account import cut
from shoal.chat.http import Fields, Json
from shoal.chat.inbox import read_file
from shoal.chat.matrix.receive import (
    DIRECT_MEMBERS,
    ENCRYPTED_TYPE,
    PAGE,
    MatrixBot,
    MatrixPlace,
    MatrixReceiver,
    answered_id,
    content_of,
    is_said,
    prompt_of,
    root_of,
    time_of,
)
from shoal.chat.matrix.send import (
    LIMITS,
    MatrixTarget,
    edit_content,
    file_content,
    post_content,
    target_of,
    transaction_of,
)
from shoal.chat.matrix.wire import POST, JsonObject, MatrixEvent, MatrixRefusal, media_type_of, path_of
from shoal.domain.clock import Clock
from shoal.domain.errors import ConfigError, PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Prompt
from shoal.domain.ports import Settings
from shoal.domain.posts import Button, OutboundPost
from shoal.domain.settings import MatrixSettings

log = logging.getLogger(__name__)

TYPING_MILLISECONDS = 30_000
READ_MAX = 1000
"""How far back a room is read for the messages of people in it."""
LOOK_BACK = timedelta(days=1)
"""How far back a post is looked for whose outcome is unknown; posts are tried for as long."""
INVITED_MAX = 50
"""People of a room that are invited to a new one beside it."""
NAME_CHARS_MAX = 100
UPLOAD_BYTES_MAX = 104_857_600
"""Read into memory to be encrypted; homeservers take less (Synapse 50 MB by default) and say so."""


class _SentEvent(msgspec.Struct, frozen=True):
    event_id: str


class _CreatedRoom(msgspec.Struct, frozen=True):
    room_id: str


class _EventPage(msgspec.Struct, frozen=True):
    chunk: tuple[MatrixEvent, ...] = ()
    end: str = ""
    next_batch: str = ""


class MatrixAdapter(MatrixReceiver):
    """Implements `ChatAdapter`, `ChannelHost` and `ReadsBack`."""

    limits = LIMITS

    def __init__(
        self, platform: str, settings: MatrixSettings, home: Home, store: Settings, clock: Clock, *, seals: bool = True
    ) -> None:
        if not settings.homeserver:
            raise ConfigError(["platforms.matrix.homeserver is missing: the address of your homeserver."])
        super().__init__(platform, settings, home, store, clock, seals=seals)
        self._owner = settings.owner

    async def close(self) -> None:
        self._encryption.close()
        await self._api.close()

    # ---- posts ----

    async def post(self, post: OutboundPost) -> str:
        """Post and return the message's id; a repeat of a post returns the same. Raises PlatformError."""
        target = target_of(post.thread)
        if post.kind == "ephemeral" and post.user and not (await self._place(target.room)).direct:
            # Matrix shows nothing to one person alone, so it is said in a room with them alone.
            alone = MatrixTarget(await self._direct_room(post.user))
            content = post_content(msgspec.structs.replace(post, reply_to=""), alone)
            return await self._send(alone.room, transaction_of(post.key), content)
        if post.file is None:
            return await self._send(target.room, transaction_of(post.key), post_content(post, target))
        path = post.file
        data = await asyncio.to_thread(read_file, path, UPLOAD_BYTES_MAX)
        media_type = media_type_of(path)
        content = file_content(post, path.name, target, media_type, len(data))
        if await self._is_encrypted(target.room):
            data, keys = await asyncio.to_thread(self._encryption.encrypt_file, data)
            content["file"] = {**keys, "url": await self._api.upload("file", ENCRYPTED_TYPE, data)}
        else:
            content["url"] = await self._api.upload(path.name, media_type, data)
        return await self._send(target.room, transaction_of(post.key), content)

    async def find_posted(self, post: OutboundPost) -> list[str]:
        """The id of the message that an earlier try of this post left; see `ReadsBack`.

        Some homeservers remember transactions for less than an hour. Raises PlatformError.
        """
        if post.kind == "ephemeral" and post.user:
            return []
        target, transaction = target_of(post.thread), transaction_of(post.key)
        oldest = self._clock.now() - LOOK_BACK
        me = (await self._api.login()).user_id
        try:
            async for event in self._backwards(target):
                if time_of(event) < oldest:
                    break
                content = content_of(event)
                if content is not None and content.post == transaction and event.sender == me:
                    return [event.event_id]
        except MatrixRefusal as error:
            log.info("a post could not be looked for", extra={"platform": self.platform, "why": str(error)})
        return []

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        content = edit_content(message_id, markdown, buttons)
        await self._send(target_of(thread).room, self._clock.new_id(), content)

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        path = path_of("rooms", target_of(thread).room, "redact", message_id, self._clock.new_id())
        await self._api.call("PUT", path, _SentEvent, {})

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show `typing` for half a minute; it ends by itself, or with an empty status. Raises PlatformError."""
        me = (await self._api.login()).user_id
        path = path_of("rooms", target_of(thread).room, "typing", me)
        shown = {"typing": True, "timeout": TYPING_MILLISECONDS} if status else {"typing": False}
        await self._api.call("PUT", path, msgspec.Raw, shown)

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a room, or to a person by their id, and return the thread this opens. Raises PlatformError."""
        if channel.startswith("@"):
            place = MatrixPlace(await self._direct_room(channel), direct=True)  # also before they have joined
        else:
            place = await self._place(channel)
        first, *rest = cut(text, LIMITS)
        here, key = place.thread(self.platform), key or f"open:{self._clock.new_id()}"
        post = OutboundPost(here, key, first, maybe_posted=maybe_posted)
        posted = await self.find_posted(post) if maybe_posted else []
        message_id = posted[0] if posted else await self.post(post)
        thread = here
        if not place.direct:
            thread = make_thread_id(self.platform, place.room, message_id)
            await self._subscribe(thread)
        for number, piece in enumerate(rest, 1):
            await self.post(OutboundPost(thread, f"{key}:{number}", piece))
        return thread

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """The newest messages of people in a thread, at most `limit`, oldest first. Raises PlatformError."""
        target = target_of(thread)
        me = MatrixBot((await self._api.login()).user_id)
        found: list[Prompt] = []
        async for event in self._backwards(target):
            if after is not None and time_of(event) <= after:
                break
            decrypted = self._decrypted(target.room, event)
            content = content_of(decrypted) if decrypted is not None else None
            if decrypted is None or content is None or not is_said(decrypted, content, me.user_id):
                continue
            if not target.root and root_of(content):
                continue  # it is in a thread of its own
            author = await self._author(target.room, event.sender)
            prompt = prompt_of(thread, decrypted, content, author, me)
            found.append(msgspec.structs.replace(prompt, reply_to=answered_id(content)))
            if len(found) >= limit:
                break
        for prompt in reversed(found):
            yield prompt

    async def _send(self, room: str, transaction: str, content: JsonObject) -> str:
        kind = "m.room.message"
        if await self._is_encrypted(room):
            kind, content = "m.room.encrypted", await self._encryption.encrypt(room, kind, content)
        path = path_of("rooms", room, "send", kind, transaction)
        return (await self._api.call("PUT", path, _SentEvent, {**content, POST: transaction})).event_id

    async def _backwards(self, target: MatrixTarget) -> AsyncIterator[MatrixEvent]:
        """The events of a thread, newest first, at most READ_MAX."""
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
        """Make a private room with the people of `beside`, else the owner; returns its id. Raises PlatformError."""
        me = (await self._api.login()).user_id
        people = [user for user in await self._members_of(beside) if user != me] if beside else []
        invited = people[:INVITED_MAX] or ([self._owner] if self._owner else [])
        if not invited:
            reason = "Nobody would be in the room: name a room beside it, or set platforms.matrix.owner."
            raise PlatformError(reason, permanent=True)
        return await self._create(name, invited)

    async def has_channel(self, channel: str) -> bool:
        """Whether the bot is in the room. Raises PlatformError when that is not known."""
        try:
            return bool(await self._members_of(channel))
        except MatrixRefusal:
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
        """The room that somebody has alone with the bot; made when there is none. Raises PlatformError."""
        me = (await self._api.login()).user_id
        path = path_of("user", me, "account_data", "m.direct")
        try:
            known = await self._api.call("GET", path, dict[str, list[str]])
        except MatrixRefusal as error:
            if error.code != "M_NOT_FOUND":
                raise
            known = {}
        for room in reversed(known.get(user, [])):
            try:
                members = await self._members_of(room)
            except MatrixRefusal:
                continue
            if user in members and len(members) == DIRECT_MEMBERS:
                return room
        made = await self._create("", [user], direct=True)
        mine: JsonObject = {one: list[Json](rooms) for one, rooms in known.items()}
        mine[user] = [*known.get(user, []), made]
        await self._api.call("PUT", path, msgspec.Raw, mine)
        return made
