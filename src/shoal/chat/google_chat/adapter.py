"""The Google Chat adapter: what comes in, and posts and cards as the app's service account."""

import asyncio
import hashlib
import re
import uuid
from collections.abc import AsyncIterator
from datetime import datetime

import msgspec

from shoal.chat.google_chat.receive import GoogleChatReceiver
from shoal.chat.google_chat.wire import WHOLE, ChatSpace, SpaceMessage, prompt_of, time_of
from shoal.chat.http import ApiRefusal, Fields, Json
from shoal.chat.tokens import check_package
from shoal.domain.clock import Clock, iso
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id, thread_address
from shoal.domain.markup import SINGLE_MARKS, Dialect, around, bare_fence, is_link, plain_link, render_markup
from shoal.domain.messages import Prompt
from shoal.domain.ports import Settings
from shoal.domain.posts import Button, ChatLimits, OutboundPost, Window
from shoal.domain.settings import GoogleChatSettings

BUTTONS_MAX = 100
VALUE_BYTES_MAX = 512
EMPTY = "…"

_EVERYBODY = re.compile(r"<(?=users/all>)")

GOOGLE_CHAT_MARKUP = Dialect(
    text=lambda text: text,
    styles=SINGLE_MARKS,
    code=around("`"),
    fence=bare_fence,
    link=lambda label, url: f"<{url.replace('|', '%7C')}|{label}>" if is_link(url) else plain_link(label, url),
    heading=lambda text, level: f"*{text}*",
)
LIMITS = ChatLimits(
    text_chars_max=4096,
    markup=GOOGLE_CHAT_MARKUP,
    edit_seconds_min=2.0,
    windows=(Window(1, 1.0), Window(50, 1.0, "account")),
    idempotent_posts=True,
    can_edit=True,
    has_preview=True,
    has_buttons=True,
)


class GoogleChatAdapter(GoogleChatReceiver):
    """Implements `ChatAdapter` and `HttpInbound`."""

    def __init__(
        self, platform: str, settings: GoogleChatSettings, home: Home, store: Settings, clock: Clock,
        inbound_url: str = "",
    ) -> None:  # fmt: skip
        check_package("google_chat")
        super().__init__(platform, settings, home, store, clock, inbound_url)
        self.limits = msgspec.structs.replace(LIMITS, has_history=settings.read_history)

    async def close(self) -> None:
        await self._api.close()

    async def post(self, post: OutboundPost) -> str:
        """Post and return the message's name. Raises PlatformError."""
        file = post.file
        if file is not None:
            try:
                size = (await asyncio.to_thread(file.stat)).st_size
            except OSError as error:
                reason = f"The file {file.name!r} cannot be read: {error.strerror}."
                raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error
            note = f"The file {file.name} ({size:,} bytes) cannot be sent here: Google Chat takes none from apps."
            post = msgspec.structs.replace(post, markdown=f"{post.markdown}\n\n{note}".strip())
        space, thread = place_of(post.thread)
        private = post.kind == "ephemeral" and bool(post.user) and bool(thread)
        quoted = SpaceMessage() if thread else self._seen.get(post.reply_to) or SpaceMessage()
        quoted_at = quoted.last_update_time or quoted.create_time
        content = message_of(post, private=private, quoted_at=quoted_at)
        try:
            made = await self._api.create(space, content, request_id(post.key))
        except ApiRefusal as refusal:
            if not quoted_at or refusal.status != 400:
                raise
            content = message_of(post, private=private)  # what it answers was changed or deleted meanwhile
            made = await self._api.create(space, content, request_id(post.key))
        return made.name

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        await self._api.update(message_id, content_of(markdown, buttons))

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        await self._api.delete(message_id)

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a space, or to a person by their id, and return the thread this opens. Raises PlatformError."""
        is_person = channel.isdecimal()
        if is_person:
            channel = (await self._api.direct_space(channel)).removeprefix("spaces/")
        key = key or f"open:{self._clock.new_id()}"
        made = await self._api.create(f"spaces/{channel}", content_of(text, ()), request_id(key))
        thread = WHOLE if is_person else made.thread.name.rpartition("/")[2] or WHOLE
        return make_thread_id(self.platform, channel, thread)

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """What others wrote in a thread, oldest first, the newest `limit` of it; nothing without the right to read.

        Raises PlatformError.
        """
        if not self._settings.read_history:
            return
        space, name = place_of(thread)
        for message in await self._api.newest(space, name, iso(after) if after is not None else "", limit):
            at = time_of(message.create_time, self._clock.now())
            prompt = prompt_of(self.platform, message, ChatSpace(space), at)
            if prompt.text and message.sender.type != "BOT":
                yield msgspec.structs.replace(prompt, thread=thread)


def place_of(thread: ThreadId) -> tuple[str, str]:
    """The names of a thread's space, and of the thread itself; empty where the space has none."""
    address = thread_address(thread)
    space = f"spaces/{address.channel}"
    return space, "" if address.thread == WHOLE else f"{space}/threads/{address.thread}"


def request_id(key: str) -> str:
    """A UUID that is the same for the same key, so that Google Chat posts it once."""
    return str(uuid.UUID(bytes=hashlib.sha256(key.encode()).digest()[:16], version=4))


def message_of(post: OutboundPost, *, private: bool, quoted_at: str = "") -> Fields:
    """A message in its thread; `private` to one person; quoting what it answers, which was last changed then."""
    _, thread = place_of(post.thread)
    message: dict[str, Json] = {**content_of(post.markdown, post.buttons)}
    if thread:
        message["thread"] = {"name": thread}
    if private:
        message["privateMessageViewer"] = {"name": f"users/{post.user}"}
    if quoted_at:
        message["quotedMessageMetadata"] = {"name": post.reply_to, "lastUpdateTime": quoted_at}
    return message


def content_of(markdown: str, buttons: tuple[Button, ...]) -> Fields:
    """What is seen of a message; without buttons the empty list removes those that are there.

    It may mention people by <users/ID>, but not everybody.
    """
    text = _EVERYBODY.sub("<\u200b", render_markup(markdown, GOOGLE_CHAT_MARKUP)) or EMPTY
    cards: list[Json] = [{"cardId": "shoal", "card": card_of(buttons)}] if buttons else []
    return {"text": text, "cardsV2": cards}


def card_of(buttons: tuple[Button, ...]) -> Json:
    """A card of buttons. Raises PlatformError for what Google Chat would refuse."""
    if len(buttons) > BUTTONS_MAX:
        raise PlatformError(f"A card may have {BUTTONS_MAX} buttons.", permanent=True)
    listed: list[Json] = []
    for button in buttons:
        if len(button.value.encode()) > VALUE_BYTES_MAX:
            raise PlatformError(f"A button's value may have {VALUE_BYTES_MAX} bytes.", permanent=True)
        action: Json = {"function": "shoal", "parameters": [{"key": "shoal", "value": button.value}]}
        listed.append({"text": button.label, "onClick": {"action": action}})
    return {"sections": [{"widgets": [{"buttonList": {"buttons": listed}}]}]}
