"""A `ChatAdapter` for `tests.chaos.chat_server`. It polls for messages and posts replies over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime

import httpx2
import msgspec

from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.errors import PlatformError, StoreError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.messages import Abort, Attachment, Author, Deletion, Edit, Prompt, Steer
from shoal.kernel.ports import InboxPort
from shoal.kernel.posts import Button, ChatLimits, OutboundPost
from shoal.platforms.inbox import press, save_attachment
from tests.chaos.chat_server import Ack, Change, NewMessage, Update

LIMITS = ChatLimits(text_chars_max=2000, idempotent_posts=True, has_buttons=True, opens_threads=True)
KEYLESS = ChatLimits(
    text_chars_max=2000,
    can_edit=True,
    has_preview=True,
    has_buttons=True,
    edit_seconds_min=0.05,
    opens_threads=True,
)
PAUSE_SECONDS = 0.05
TROUBLE_PAUSE_SECONDS = 0.3
HTTP_OK = 200
HTTP_TOO_MANY = 429
HTTP_FAILED = 500


class HttpChat:
    """Adapter for the simulated platform.

    Unacknowledged messages are delivered again, possibly to another process. Attached files are stored in the home
    directory, or skipped if no home directory is set. The adapter receives no messages before `opened` is set.
    """

    def __init__(
        self,
        address: str,
        clock: Clock | None = None,
        *,
        platform: str = "fake",
        limits: ChatLimits = LIMITS,
        home: Home | None = None,
    ) -> None:
        self._home = home
        self.platform = platform
        self.limits = limits
        self._http = httpx2.AsyncClient(base_url=address, timeout=10.0, trust_env=False)
        self._clock = clock or SystemClock()
        self.opened = asyncio.Event()

    async def run(self, inbox: InboxPort) -> None:
        await self.opened.wait()
        while True:
            try:
                answer = await self._http.get("/updates")
                for update in msgspec.json.decode(answer.content, type=list[Update]):
                    await self._pass_on(inbox, update)
                await self._clock.sleep(PAUSE_SECONDS)
            except (httpx2.TransportError, StoreError):
                await self._clock.sleep(TROUBLE_PAUSE_SECONDS)

    async def _pass_on(self, inbox: InboxPort, update: Update) -> None:
        place, now = update.thread or update.person, self._clock.now()
        thread, author = make_thread_id(self.platform, "harbour", place), Author(update.person, trusted=False)
        id, text, answer = update.id, update.text, ""
        match update.do:
            case "say" | "tell" | "command":
                files = await self._files(thread, update)
                prompt = Prompt(thread, id, text, author, now, agent=update.agent, message_id=id, attachments=files)
                receipt = await inbox.send(prompt)
                status, answer = receipt.status, receipt.answer
            case "steer":
                status = (await inbox.send(Steer(thread, id, text, author, now))).status
            case "stop":
                status = (await inbox.send(Abort(thread, author))).status
            case "edit":
                status = (await inbox.send(Edit(thread, update.target, text, author, update.target))).status
            case "delete":
                status = (await inbox.send(Deletion(thread, update.target, author, update.target))).status
            case "press":
                status = await press(update.target, thread, author, inbox)
        if status != "busy":
            await self._http.post("/ack", content=msgspec.json.encode(Ack(id, status, answer)))

    async def _files(self, thread: ThreadId, update: Update) -> tuple[Attachment, ...]:
        if self._home is None or not update.file:
            return ()

        async def fetch() -> bytes:
            return (await self._http.get(f"/file/{update.file}")).content

        return (await save_attachment(self._home, self._clock, thread, Attachment(update.file), fetch),)

    async def post(self, post: OutboundPost) -> str:
        """Post a message. The platform ignores a repeated key if it supports keys. Raises PlatformError."""
        thread = thread_address(post.thread).thread
        message = NewMessage(post.key, thread, post.markdown, post.reply_to, post.buttons)
        answer = await self._call("/post", message)
        return msgspec.json.decode(answer, type=dict[str, str])["id"]

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Edit a message. Raises PlatformError."""
        if not self.limits.can_edit:
            raise PlatformError("Messages cannot be edited here.", permanent=True)
        await self._call("/change", Change(message_id, markdown))

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message. Raises PlatformError."""
        await self._call("/change", Change(message_id))

    async def _call(self, path: str, content: NewMessage | Change) -> bytes:
        try:
            answer = await self._http.post(path, content=msgspec.json.encode(content))
        except httpx2.TransportError as error:
            raise PlatformError(f"The connection broke: {error!r}.", outcome_unknown=True) from error
        if answer.status_code == HTTP_TOO_MANY:
            raise PlatformError("Too many posts.", retry_after_seconds=float(answer.headers["retry-after"]))
        if answer.status_code >= HTTP_FAILED:
            raise PlatformError(f"The platform answered {answer.status_code}.", outcome_unknown=True)
        if answer.status_code != HTTP_OK:
            raise PlatformError(f"The platform answered {answer.status_code}.", permanent=True)
        return answer.content

    async def typing(self, thread: ThreadId, status: str) -> None: ...

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel, which opens a thread. The same key always opens the same thread."""
        thread = make_thread_id(self.platform, channel, key or self._clock.new_id())
        await self.post(OutboundPost(thread, f"open:{thread}", text, maybe_posted=maybe_posted))
        return thread

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Yield nothing, because the platform stores no history."""
        for prompt in ():
            yield prompt

    async def close(self) -> None:
        with suppress(httpx2.TransportError):
            await self._http.aclose()
