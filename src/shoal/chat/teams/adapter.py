"""The Teams adapter: takes activities in over HTTP, posts and edits by the service that each conversation has."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from datetime import datetime

import msgspec

from shoal.chat.account import NOT_READY, NOT_STORED, UNAUTHORIZED, ChatAccount
from shoal.chat.connection import Fields
from shoal.chat.kept import read_file
from shoal.chat.teams.files import Files
from shoal.chat.teams.inbound import CHAT, Activity
from shoal.chat.teams.intake import Intake
from shoal.chat.teams.outbound import (
    IMAGE_BYTES_MAX,
    IMAGES,
    LIMITS,
    UPLOAD_BYTES_MAX,
    message_of,
    offer_of,
    picture_of,
)
from shoal.chat.teams.service import Service, TeamsSettings
from shoal.chat.tokens import BadToken, check_package
from shoal.domain.calls import HttpAnswer
from shoal.domain.clock import Clock
from shoal.domain.errors import InvalidId, PlatformError, StoreError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id, thread_address
from shoal.domain.messages import Prompt
from shoal.domain.ports import InboxPort
from shoal.domain.posts import Button, ChatLimits, OutboundPost
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

TYPING_SECONDS = 4.0
"""A sign of typing so recent is not given again; each counts as a message, and is seen a few seconds."""
TYPED_MAX = 1000
NO_ACTIVITY = HttpAnswer(400, b'{"error":"bad_request","message":"The body is no activity."}')


class TeamsAdapter:
    """Implements `ChatAdapter` and `HttpInbound`."""

    limits: ChatLimits = LIMITS

    def __init__(self, platform: str, settings: TeamsSettings, home: Home, store: Settings, clock: Clock) -> None:
        check_package("teams")
        self.platform = platform
        self._settings = settings
        self._store = store
        self._clock = clock
        self._account = ChatAccount(platform, clock, self.post, whispers=True)
        self._service = Service(platform, settings, store, clock)
        self._files = Files(platform, self._service, home, store, clock)
        self._intake = Intake(self._account, settings.agent, self._files, store, clock)
        self._inbox: InboxPort | None = None
        self._typed: OrderedDict[ThreadId, float] = OrderedDict()
        self.connected = self._account.connected

    # ---- in ----

    async def run(self, inbox: InboxPort) -> None:
        """Take activities in until cancelled, and see meanwhile that there is an access token to answer with."""
        self._inbox = inbox
        self.connected.set()
        try:
            if self._settings.emulator:
                log.warning("platforms.teams.emulator is on: whoever reaches this server can speak as anybody in Teams")
            await self._account.keep_connected(self._stay)
        finally:
            self._inbox = None
            self.connected.clear()
            await self._service.rest.close()

    async def _stay(self) -> None:
        if not self._settings.emulator:
            await self._service.rest.token()
        log.info("connected", extra={"platform": self.platform})
        await asyncio.Event().wait()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """An activity of Teams'. Answers 401 without its token, 503 when it has to come again."""
        try:
            activity = msgspec.json.decode(body, type=Activity)
        except UNREADABLE:
            return NO_ACTIVITY
        try:
            await self._service.check(headers, activity)
        except BadToken as error:
            log.info("an activity was refused", extra={"platform": self.platform, "why": str(error)})
            return UNAUTHORIZED
        except PlatformError as error:
            log.warning("activities cannot be checked: %s", error, extra={"platform": self.platform})
            return NOT_READY
        if self._inbox is None:
            return NOT_READY
        try:
            await self._service.learn(activity)
            return await self._intake.take(activity, self._inbox)
        except InvalidId:
            return NO_ACTIVITY
        except StoreError:
            log.exception("an activity was not stored", extra={"platform": self.platform})
            return NOT_STORED

    async def close(self) -> None:
        """Give connections back; for who posts without `run`."""
        await self._service.rest.close()

    # ---- out ----

    async def post(self, post: OutboundPost) -> str:
        """Post and return the message's id. Raises PlatformError."""
        if post.kind == "ephemeral" and post.user:
            post = msgspec.structs.replace(post, thread=await self._aside(post.thread, post.user), reply_to="")
        if post.file is None:
            return await self._send(post, self._message(post))
        if post.buttons:  # a file has none
            await self._send(post, self._message(post))
            post = msgspec.structs.replace(post, markdown="", buttons=(), reply_to="")
        return await self._send_file(post)

    def _message(self, post: OutboundPost) -> Fields:
        return message_of(post.markdown, self._intake.people(thread_address(post.thread).channel), post.buttons)

    async def _send(self, post: OutboundPost, content: Fields) -> str:
        """In channels it stands in its thread; in chats it may answer a message."""
        answers = post.reply_to if thread_address(post.thread).thread == CHAT else ""
        made = await self._service.tell("POST", post.thread, content, answers)
        return made.id or post.key

    async def _send_file(self, post: OutboundPost) -> str:
        """A small picture is shown; another file is offered to whom it is for, which works in direct chats alone."""
        assert post.file is not None
        path = post.file
        content = await asyncio.to_thread(read_file, path, UPLOAD_BYTES_MAX)
        if path.suffix.lower() in IMAGES and len(content) <= IMAGE_BYTES_MAX:
            people = self._intake.people(thread_address(post.thread).channel)
            return await self._send(post, picture_of(post, content, people))
        if content and await self._service.is_direct(post.thread):
            if post.markdown:
                await self._send(post, self._message(post))
            offer = await self._files.offer(post.thread, path)
            return await self._send(post, offer_of(path.name, path.name, len(content), offer))
        note = f"The file {path.name} ({len(content):,} bytes) cannot be sent here: write to me directly to get it."
        post = msgspec.structs.replace(post, markdown=f"{post.markdown}\n\n{note}".strip())
        return await self._send(post, self._message(post))

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a posted message. Raises PlatformError."""
        content = message_of(markdown, self._intake.people(thread_address(thread).channel), buttons)
        await self._service.tell("PUT", thread, {**content, "id": message_id}, message_id)

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        await self._service.tell("DELETE", thread, None, message_id)

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show that it types; it ends by itself. Raises PlatformError."""
        now = self._clock.monotonic()
        if not status or now - self._typed.get(thread, -TYPING_SECONDS) < TYPING_SECONDS:
            return
        self._typed[thread] = now
        self._typed.move_to_end(thread)
        while len(self._typed) > TYPED_MAX:
            self._typed.popitem(last=False)
        await self._service.tell("POST", thread, {"type": "typing"})

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a team's channel, which opens a thread there, or to a chat. Raises PlatformError."""
        content = message_of(text, self._intake.people(channel))
        if not channel.endswith(("@thread.tacv2", "@thread.skype")):
            thread = make_thread_id(self.platform, channel, CHAT)
            await self._service.tell("POST", thread, content)
            return thread
        opened = await self._service.open(
            {"isGroup": True, "channelData": {"channel": {"id": channel}}, "activity": content}
        )
        root = opened.id.partition(";messageid=")[2] or opened.activity_id
        return make_thread_id(self.platform, channel, root)

    async def _aside(self, thread: ThreadId, user: str) -> ThreadId:
        """The chat with one person alone; the thread itself where there is none. Raises PlatformError."""
        if await self._service.is_direct(thread):
            return thread
        scope = f"direct:{self.platform}"
        channel = await self._store.get(scope, user)
        if not channel:
            bot = {"id": f"28:{self._settings.app_id}"}
            tenant = {"tenant": {"id": self._settings.tenant}} if self._settings.tenant else {}
            wanted: Fields = {"isGroup": False, "bot": bot, "members": [{"id": user}], "channelData": tenant}
            try:
                channel = (await self._service.open(wanted)).id
            except PlatformError as error:
                if not error.permanent:
                    raise
                return thread
            await self._store.put(scope, user, channel)
        return make_thread_id(self.platform, channel, CHAT)

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Nothing: a bot cannot read back what was written."""
        for prompt in tuple[Prompt, ...]():
            yield prompt
