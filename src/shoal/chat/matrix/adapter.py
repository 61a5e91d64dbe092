"""The Matrix adapter: posts and edits events, opens threads and rooms, reads back, and receives by syncing."""

import logging
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta

import msgspec

from shoal.chat.account import ChatAccount
from shoal.chat.matrix.api import Credentials, MatrixApi, Refused, path_of
from shoal.chat.matrix.inbound import (
    POST,
    WHOLE,
    Event,
    Me,
    Place,
    answered_id,
    content_of,
    is_said,
    prompt_of,
    root_of,
    time_of,
)
from shoal.chat.matrix.intake import Intake
from shoal.chat.matrix.media import Media
from shoal.chat.matrix.outbound import (
    LIMITS,
    Contents,
    Target,
    cut,
    edit_content,
    post_content,
    target_of,
    transaction_of,
)
from shoal.chat.matrix.receiver import Receiver
from shoal.chat.matrix.rooms import Rooms
from shoal.chat.matrix.sealing import NoSealing, Sealing, can_seal
from shoal.domain.clock import Clock
from shoal.domain.errors import ConfigError, PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Prompt
from shoal.domain.ports import InboxPort
from shoal.domain.posts import Button, ChatLimits, OutboundPost
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

TYPING_MILLISECONDS = 30_000
PAGE = 100
READ_MAX = 1000
"""How far back a room is read for the messages of people in it."""
LOOK_BACK = timedelta(days=1)
"""How far back a post is looked for whose outcome is unknown; so long posts are tried."""
INVITED_MAX = 50
"""People of a room that are invited to a new one beside it."""


class MatrixSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One account. Secrets are asked for when they are needed; `owner` is who new rooms are made for."""

    account: str = "main"
    homeserver: str
    user: str
    access_token: Callable[[], str] = str
    password: Callable[[], str] = str
    owner: str = ""
    agent: str = ""


class _Sent(msgspec.Struct, frozen=True):
    event_id: str


class _Page(msgspec.Struct, frozen=True):
    chunk: tuple[Event, ...] = ()
    end: str = ""
    next_batch: str = ""


class MatrixAdapter:
    """Implements `ChatAdapter`, `ChannelHost` and `ReadsBack`."""

    limits: ChatLimits = LIMITS

    def __init__(
        self, platform: str, settings: MatrixSettings, home: Home, store: Settings, clock: Clock, *, seals: bool = True
    ) -> None:
        if not settings.homeserver:
            raise ConfigError(["platforms.matrix.homeserver is missing: the address of your homeserver."])
        self.platform = platform
        self._settings = settings
        self._clock = clock
        given = Credentials(
            account=settings.account,
            user=settings.user,
            access_token=settings.access_token,
            password=settings.password,
        )
        self._api = MatrixApi(settings.homeserver, given, store, f"matrix:{platform}")
        self._rooms = Rooms(self._api, self._sealing(home) if seals and can_seal() else NoSealing())
        self._media = Media(self._api, self._rooms.sealing, home, clock)
        account = ChatAccount(platform, clock, self.post, cut=cut)
        self.connected = account.connected
        self._intake = Intake(account, settings.agent, self._api, self._rooms, self._media, store)
        self._receiver = Receiver(account, self._api, self._rooms, self._intake, store, clock)

    async def run(self, inbox: InboxPort) -> None:
        """Receive until cancelled; reconnect with backoff by itself."""
        try:
            await self._receiver.run(inbox)
        finally:
            await self.close()

    async def close(self) -> None:
        """Give connections back; for who posts without `run`."""
        self._rooms.sealing.close()
        await self._api.close()

    # ---- out ----

    async def post(self, post: OutboundPost) -> str:
        """Post and return the message's id; a repeat of a post returns the same. Raises PlatformError."""
        target = target_of(post.thread)
        if post.kind == "ephemeral" and post.user and not (await self._rooms.place(target.room)).direct:
            return await self._whisper(post)
        if post.file is None:
            content = post_content(post, target)
        else:
            content = await self._media.upload(post, target, sealed=await self._rooms.is_encrypted(target.room))
        return await self._send(target.room, transaction_of(post.key), content)

    async def standing(self, post: OutboundPost) -> list[str]:
        """The id of the message that an earlier try of this post left; see `ReadsBack`.

        Some homeservers remember transactions for less than an hour. Raises PlatformError.
        """
        if post.kind == "ephemeral" and post.user:
            return []
        target, transaction = target_of(post.thread), transaction_of(post.key)
        oldest = self._clock.now() - LOOK_BACK
        me = (await self._api.session()).user_id
        try:
            async for event in self._backwards(target):
                if time_of(event) < oldest:
                    break
                content = content_of(event)
                if content is not None and content.post == transaction and event.sender == me:
                    return [event.event_id]
        except Refused as error:
            log.info("a post could not be looked for", extra={"platform": self.platform, "why": str(error)})
        return []

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a message. Raises PlatformError."""
        content = edit_content(message_id, markdown, buttons)
        await self._send(target_of(thread).room, self._clock.new_id(), content)

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        path = path_of("rooms", target_of(thread).room, "redact", message_id, self._clock.new_id())
        await self._api.call("PUT", path, _Sent, {})

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show `typing` for half a minute; it ends by itself, or with an empty status. Raises PlatformError."""
        me = (await self._api.session()).user_id
        path = path_of("rooms", target_of(thread).room, "typing", me)
        shown = {"typing": True, "timeout": TYPING_MILLISECONDS} if status else {"typing": False}
        await self._api.call("PUT", path, msgspec.Raw, shown)

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a room, or to a person by their id, and return the thread this opens. Raises PlatformError."""
        if channel.startswith("@"):
            place = Place(await self._rooms.direct(channel), direct=True)  # also before they have come in
        else:
            place = await self._rooms.place(channel)
        first, *rest = cut(text)
        here, key = place.thread(self.platform), key or f"open:{self._clock.new_id()}"
        post = OutboundPost(here, key, first, maybe_posted=maybe_posted)
        standing = await self.standing(post) if maybe_posted else []
        message_id = standing[0] if standing else await self.post(post)
        thread = here
        if not place.direct:
            thread = make_thread_id(self.platform, place.room, message_id)
            await self._intake.subscribe(thread)
        for number, piece in enumerate(rest, 1):
            await self.post(OutboundPost(thread, f"{key}:{number}", piece))
        return thread

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """The newest messages of people in a thread, at most `limit`, oldest first. Raises PlatformError."""
        target = target_of(thread)
        me = Me((await self._api.session()).user_id)
        found: list[Prompt] = []
        async for event in self._backwards(target):
            if after is not None and time_of(event) <= after:
                break
            prompt = await self._said(thread, target, event, me)
            if prompt is not None:
                found.append(prompt)
            if len(found) >= limit:
                break
        for prompt in reversed(found):
            yield prompt

    # ---- rooms ----

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Make a private room with the people of `beside`, else the owner; returns its id. Raises PlatformError."""
        me = (await self._api.session()).user_id
        people = [user for user in await self._rooms.members(beside) if user != me] if beside else []
        invited = people[:INVITED_MAX] or ([self._settings.owner] if self._settings.owner else [])
        if not invited:
            reason = "Nobody would be in the room: name a room beside it, or set platforms.matrix.owner."
            raise PlatformError(reason, permanent=True)
        return await self._rooms.create(name, tuple(invited))

    async def has_channel(self, channel: str) -> bool:
        """Whether the bot is in the room. Raises PlatformError when that is not known."""
        try:
            return bool(await self._rooms.members(channel))
        except Refused:
            return False

    # ---- parts ----

    async def _send(self, room: str, transaction: str, content: Contents) -> str:
        kind = "m.room.message"
        if await self._rooms.is_encrypted(room):
            kind, content = "m.room.encrypted", await self._rooms.sealing.seal(room, kind, content)
        path = path_of("rooms", room, "send", kind, transaction)
        content = {**content, POST: transaction}
        return (await self._api.call("PUT", path, _Sent, content)).event_id

    async def _whisper(self, post: OutboundPost) -> str:
        """Matrix shows nothing to one person alone, so it is said in a room with them alone."""
        room = await self._rooms.direct(post.user)
        alone = msgspec.structs.replace(post, thread=make_thread_id(self.platform, room, WHOLE), reply_to="")
        return await self._send(room, transaction_of(post.key), post_content(alone, Target(room)))

    async def _said(self, thread: ThreadId, target: Target, event: Event, me: Me) -> Prompt | None:
        """The prompt that an event of a thread made; None for what nobody said, or not there."""
        opened = self._rooms.sealing.opened(target.room, event) if event.type == "m.room.encrypted" else event
        content = content_of(opened) if opened is not None else None
        if opened is None or content is None or not is_said(opened, content, me.user_id):
            return None
        if not target.root and root_of(content):
            return None  # it stands in a thread of its own
        author = await self._rooms.author(target.room, event.sender)
        prompt = prompt_of(thread, opened, content, author, me)
        return msgspec.structs.replace(prompt, reply_to=answered_id(content))

    async def _backwards(self, target: Target) -> AsyncIterator[Event]:
        """The events of a thread, newest first, at most READ_MAX."""
        parts = ("rooms", target.room, "relations", target.root, "m.thread")
        path = path_of(*parts, base="/_matrix/client/v1") if target.root else path_of("rooms", target.room, "messages")
        start, read = "", 0
        while read < READ_MAX:
            query = {"dir": "b", "limit": str(PAGE), **({"from": start} if start else {})}
            page = await self._api.call("GET", path, _Page, query=query)
            for event in page.chunk:
                yield event
            read += len(page.chunk)
            start = page.end or page.next_batch
            if not page.chunk or not start:
                break
        if target.root:
            yield await self._api.call("GET", path_of("rooms", target.room, "event", target.root), Event)

    def _sealing(self, home: Home) -> Sealing:
        from shoal.chat.matrix.crypto import Crypto

        return Crypto(self._api, home.data / "matrix" / self.platform)
