"""The adapter of the webhook chat: whatever speaks its JSON can be a platform. Also implements `HttpInbound`."""

import asyncio
import base64
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime

import msgspec

from shoal.chat.commands import press, take_in
from shoal.chat.connection import Connection
from shoal.chat.early import Early
from shoal.chat.kept import keep, read_file
from shoal.chat.webhook.wire import (
    MAIN_THREAD,
    Call,
    Clicked,
    FileIn,
    Made,
    Out,
    Said,
    author_of,
    edit_out,
    key_header,
    place_of,
    post_out,
    prompt_of,
    revision_of,
    typing_out,
)
from shoal.domain.backoff import retry_after
from shoal.domain.calls import HttpAnswer
from shoal.domain.clock import Clock, to_micros
from shoal.domain.deliveries import first_delivery
from shoal.domain.errors import InvalidId, PlatformError, StoreError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Attachment, Prompt, Reaction
from shoal.domain.ports import InboxPort
from shoal.domain.posts import Button, ChatLimits, OutboundPost
from shoal.domain.signing import SECRET_CHARS_MIN, Proof, proof, proofs
from shoal.domain.store import ONCE, Settings

log = logging.getLogger(__name__)

THREAD_CHARS = 26
FILES_MAX = 10
FILE_BYTES_MAX = 10_485_760
LIMITS = ChatLimits(
    text_chars_max=100_000,
    idempotent_posts=True,
    can_edit=True,
    can_upload=True,
    has_preview=True,
    has_buttons=True,
    has_ephemeral=True,
    upload_bytes_max=FILE_BYTES_MAX,
)


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One chat of the owner's own. Without a `post_url` nothing goes out but what the journal shows."""

    secret: Callable[[], str]
    post_url: str = ""
    agent: str = ""


class WebhookAdapter:
    """A platform under the name that the configuration gives it."""

    limits: ChatLimits = LIMITS

    def __init__(self, platform: str, settings: WebhookSettings, home: Home, store: Settings, clock: Clock) -> None:
        self.platform = platform
        self._settings = settings
        self._home = home
        self._store = store
        self._clock = clock
        self._inbox: InboxPort | None = None
        self._http = _Http(platform, settings, clock)
        self._early = Early()
        self.connected = asyncio.Event()

    # ---- in ----

    async def run(self, inbox: InboxPort) -> None:
        """Take calls in until cancelled."""
        if len(self._settings.secret()) < SECRET_CHARS_MIN:
            log.warning(
                "platforms.webhook.%s takes nothing in: its secret has to have %d characters or more",
                self.platform, SECRET_CHARS_MIN,
            )  # fmt: skip
        self._inbox = inbox
        self.connected.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._inbox = None
            self.connected.clear()
            await self._http.close()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """A call of the other side. 401 unsigned, 400 unreadable, 429 busy, 503 to be sent again, else 200."""
        now = self._clock.now()
        proved = proofs(headers, body, self._settings.secret(), now)
        if not proved:
            return _refusal(401, "unauthorized", "The signature is missing, wrong or too old.")
        try:
            call = msgspec.json.decode(body, type=Call)
            place_of(self.platform, call)
        except (*UNREADABLE, InvalidId) as error:
            return _refusal(400, "bad_request", str(error))
        inbox = self._inbox
        if inbox is None:
            return _refusal(503, "unavailable", "Not ready yet; send it again.")
        try:
            told = await self._take_once(call, proved, now, inbox)
        except StoreError:
            return _refusal(503, "unavailable", "It could not be stored; send it again.")
        return HttpAnswer(200, msgspec.json.encode({"answer": told}))

    async def close(self) -> None:
        """Give connections back; for who posts without `run`."""
        await self._http.close()

    async def _take_once(self, call: Call, proved: Sequence[Proof], now: datetime, inbox: InboxPort) -> str:
        """Take a call in that was not yet. A message is known by its id besides; anything else only by its signature,
        so that with a bearer secret it counts each time. Raises StoreError."""
        if not isinstance(call, Said) and proved[0].kind == "bearer":
            return await self._take(call, inbox)
        delivery = await first_delivery(self._store, proved, f"platform:{self.platform}", now)
        if delivery is None:
            return ""
        if isinstance(call, Said):
            return await self._take(call, inbox)
        once, at = f"call:{delivery.key}", str(to_micros(now))
        if not await self._store.swap(ONCE, once, None, at):
            return ""
        try:
            return await self._take(call, inbox)
        except StoreError:  # the other side sends it again
            await self._store.drop(ONCE, once, at)
            raise

    async def _take(self, call: Call, inbox: InboxPort) -> str:
        if call.author.is_bot:
            return ""
        if isinstance(call, Clicked):
            return await press(call.value, place_of(self.platform, call), author_of(call.author), inbox)
        if not isinstance(call, Said):
            change = revision_of(self.platform, call)
            await (inbox.send(change) if isinstance(change, Reaction) else self._early.send(change, inbox))
            return ""
        channel = make_thread_id(self.platform, call.channel, MAIN_THREAD).rpartition(":")[0]
        answered = await inbox.thread_of(f"{channel}:", call.reply_to) if call.reply_to else None
        now = self._clock.now()
        prompt = prompt_of(self.platform, call, now, agent=self._settings.agent, joins=answered is not None)
        if answered is not None:
            prompt = msgspec.structs.replace(prompt, thread=answered)
        if not await inbox.admits(prompt):
            return ""
        files = [await self._kept(prompt, file, number) for number, file in enumerate(call.files[:FILES_MAX])]
        changed = self._early.applied(msgspec.structs.replace(prompt, attachments=tuple(files)))
        return await take_in(changed, "", inbox) if changed is not None else ""

    async def _kept(self, prompt: Prompt, file: FileIn, number: int) -> Attachment:
        if not file.data:
            return Attachment(file.name, file.media_type, url=file.url)
        given = Attachment(f"{number}-{file.name}", file.media_type)
        kept = await keep(self._home, self._clock, prompt.thread, given, _content_of(file))
        return msgspec.structs.replace(kept, name=file.name)

    # ---- out ----

    async def post(self, post: OutboundPost) -> str:
        """Send it and return the id the other side gives it, else its key. Raises PlatformError."""
        content = None
        if post.file is not None:
            content = await asyncio.to_thread(read_file, post.file, FILE_BYTES_MAX)
        made = await self._http.send(post_out(post, content), post.key)
        return made.id or post.key

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a message. Raises PlatformError."""
        await self._http.send(edit_out(thread, message_id, markdown, buttons))

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show that the agent works. Raises PlatformError."""
        await self._http.send(typing_out(thread, status))

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel, which opens a thread there, the same one for the same key. Raises PlatformError."""
        name = hashlib.sha256(key.encode()).hexdigest()[:THREAD_CHARS] if key else self._clock.new_id()
        thread = make_thread_id(self.platform, channel, name)
        await self.post(OutboundPost(thread, key or f"open:{thread}", text, maybe_posted=maybe_posted))
        return thread

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Nothing: the other side is not asked for what it has."""
        for prompt in tuple[Prompt, ...]():
            yield prompt


def _refusal(status: int, code: str, message: str) -> HttpAnswer:
    return HttpAnswer(status, msgspec.json.encode({"error": code, "message": message}))


async def _content_of(file: FileIn) -> bytes:
    try:
        return base64.b64decode(file.data, validate=True)
    except ValueError as error:
        raise PlatformError("could not be read: its data is not base64") from error


class _Http:
    """Signed calls of the other side."""

    def __init__(self, platform: str, settings: WebhookSettings, clock: Clock) -> None:
        self._platform = platform
        self._settings = settings
        self._clock = clock
        self._connection = Connection(platform)

    async def send(self, out: Out, key: str = "") -> Made:
        """Send one call. Raises PlatformError."""
        if not self._settings.post_url:
            return Made()
        body = msgspec.json.encode(out)
        headers = {
            "content-type": "application/json",
            "x-shoal-signature": proof(self._settings.secret(), body, self._clock.now()),
        }
        if key:
            headers["idempotency-key"] = key_header(key)
        answer = await self._connection.request("POST", self._settings.post_url, content=body, headers=headers)
        if answer.status_code >= 300:
            raise self._error(answer.status_code, retry_after(answer.headers, self._clock))
        try:
            return msgspec.json.decode(answer.content, type=Made)
        except UNREADABLE:
            return Made()

    async def close(self) -> None:
        """Give connections back."""
        await self._connection.close()

    def _error(self, status: int, asked_seconds: float | None) -> PlatformError:
        if status in (429, 503):
            return PlatformError(f"{self._platform} asks to slow down.", retry_after_seconds=asked_seconds or 1.0)
        if status in (401, 403):
            return PlatformError(
                f"{self._platform} refused the signature. Give both sides the same platforms.webhook."
                f"{self._platform}.secret and set their clocks."
            )
        if status < 500:
            return PlatformError(f"{self._platform} refused it with {status}.", permanent=True)
        return PlatformError(f"{self._platform} failed with {status}.", outcome_unknown=True)
