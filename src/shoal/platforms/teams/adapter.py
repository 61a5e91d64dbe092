"""Teams adapter. Receives activities over HTTP, and sends posts, cards and files to the service URL of each
conversation.

Source: the Teams platform pages on learn.microsoft.com about message size, rate limits, Adaptive Cards and files for
bots.
"""

import asyncio
import base64
import html
import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.errors import InvalidId, PlatformError, StoreError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.markup import CODE_LINE, is_link, joined
from shoal.kernel.messages import Attachment, Deletion, Edit, Prompt, Reaction
from shoal.kernel.ports import InboxPort, Settings
from shoal.kernel.posts import Button, ChatLimits, OutboundPost, Window
from shoal.kernel.untrusted import UNREADABLE, decode_known
from shoal.kernel.webhooks import HttpAnswer
from shoal.markdown.dialects import ZERO_WIDTH_SPACE, escaped_markdown, flat_markdown, markdown_link
from shoal.markdown.render import render_markup
from shoal.platforms.account import NOT_READY, NOT_STORED, TAKEN, UNAUTHORIZED, ChatAccount
from shoal.platforms.http import TRANSFER_SECONDS, Fields, Json, PlatformRefusal
from shoal.platforms.inbox import DECIDED, Recent, press, read_file
from shoal.platforms.teams.settings import TeamsSettings
from shoal.platforms.teams.wire import (
    CHAT,
    FileConsent,
    TeamsActivity,
    TeamsApi,
    author_of,
    channel_of,
    emoji_of,
    files_of,
    is_addressed,
    is_channel,
    is_direct,
    is_of_bot,
    key_of,
    missing_files,
    pressed_in,
    prompt_of,
    text_of,
    thread_of,
)
from shoal.platforms.tokens import BadToken, check_package

log = logging.getLogger(__name__)
NOT_IMPLEMENTED = HttpAnswer(501, b'{"error":"not_implemented","message":"Shoal does not support this."}')
READ_RECEIPT = "application/vnd.microsoft.readReceipt"
OFFER_GONE = "This file is no longer available here. Ask for it again."
FILE_CARD = "application/vnd.microsoft.teams.card.file.info"
UPLOAD_BYTES_MAX = 26_214_400
CHANNELS_MAX = 1000
PEOPLE_MAX = 200
TYPING_SECONDS = 4.0
"""Minimum number of seconds between typing indicators. An indicator counts as a message and is visible for a few
seconds.
"""
TYPED_MAX = 1000
TEXT_UNITS_MAX = 6_000
"""Maximum length of a text, in UTF-16 units. Teams allows 28 KB of JSON per message, which is enough even if every
character is escaped.
"""
BUTTONS_MAX = 6
LABEL_CHARS_MAX = 75
VALUE_BYTES_MAX = 512
IMAGE_BYTES_MAX = 1_048_576
"""Maximum size of an image that Teams shows inline."""
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif"}
CARD = "application/vnd.microsoft.card.adaptive"
CONSENT = "application/vnd.microsoft.teams.card.file.consent"
EMPTY = "…"
_AT = re.compile(r"<(?=/?at\b)", re.IGNORECASE)
_NAMED = re.compile(r"&lt;at&gt;(.{1,100}?)&lt;/at&gt;")


def _text(text: str) -> str:
    return escaped_markdown(html.escape(text, quote=False)).replace("\\&", "&")


def _token(token: str) -> str:
    return markdown_link(_text(token), token) if is_link(token) else _text(token)


def _silent(code: str) -> str:
    """Disable mentions in code."""
    return _AT.sub(f"<{ZERO_WIDTH_SPACE}", code)


def _with_breaks(text: str) -> str:
    """End each line outside code with two spaces, because Teams would otherwise join the lines."""
    lines = text.split("\n")
    return "\n".join(
        line if not line or not after or CODE_LINE in line + after else f"{line.rstrip(' ')}  "
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
    )


def _blocks(blocks: Sequence[str], tight: bool) -> str:
    return joined([_with_breaks(part) for part in blocks], tight)


TEAMS_MARKDOWN = msgspec.structs.replace(flat_markdown(_text, _token, _silent), blocks=_blocks)

LIMITS = ChatLimits(
    opens_threads=True,
    text_chars_max=TEXT_UNITS_MAX,
    markup=TEAMS_MARKDOWN,
    text_unit="utf16",
    edit_seconds_min=2.0,
    windows=(Window(6, 1.0), Window(8, 2.0), Window(60, 30.0), Window(1800, 3600.0), Window(40, 1.0, "account")),
    can_edit=True,
    can_upload=True,
    has_preview=True,
    has_buttons=True,
    buttons_max=BUTTONS_MAX,
    reactions="all",
)


class OfferedFile(msgspec.Struct, frozen=True):
    """A file that Shoal offered to a person, who has neither accepted nor declined it yet."""

    thread: ThreadId
    path: str


class TeamsAdapter(ChatAccount[TeamsSettings]):
    """Implements `ChatAdapter` and `HttpInbound`. Activities of one conversation are processed in order."""

    limits = LIMITS
    whispers = True

    def __init__(
        self, platform: str, settings: TeamsSettings, home: Home, store: Settings, clock: Clock, inbound_url: str = ""
    ) -> None:
        check_package("teams")
        super().__init__(platform, settings, home, store, clock, inbound_url)
        self._api = TeamsApi(platform, settings, store, clock)
        self._offers = f"offers:{platform}"
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._people: Recent[dict[str, str]] = Recent(CHANNELS_MAX)
        """Ids of people who have written since Shoal started, by conversation and name."""
        self._typed: Recent[float] = Recent(TYPED_MAX)

    async def _connect(self, inbox: InboxPort) -> None:
        self._inbox = inbox
        self.connected.set()
        if self._settings.emulator:
            log.warning("teams emulator mode on; anyone who reaches this server can impersonate any teams user")
        else:
            await self._api.token()
        log.info("connected", extra={"platform": self.platform})
        await asyncio.Event().wait()

    async def check(self) -> None:
        if not self._settings.emulator:
            await self._api.token()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Verify and process an activity. Returns 401 if the token is missing or invalid, and 503 if Teams should send
        the activity again.
        """
        try:
            activity, odd = decode_known(body, TeamsActivity)
        except UNREADABLE:
            activity, odd = TeamsActivity(), []  # not verified yet
        try:
            await self._api.check(headers, activity)
        except BadToken as error:
            log.info("activity rejected", extra={"platform": self.platform, "why": str(error)})
            return UNAUTHORIZED
        except PlatformError as error:
            log.warning("teams activity verification failed: %s", error, extra={"platform": self.platform})
            return NOT_READY
        if self._inbox is None:
            return NOT_READY
        for path in odd:
            self._not_understood(f"{activity.type or 'activity'} with {path} in an unknown format")
        if not activity.sender.id:
            self._not_understood(f"{activity.type} without a sender")
        try:
            await self._api.learn(activity)
            return await self._take(activity, self._inbox)
        except InvalidId:
            self._not_understood(f"{activity.type} without a conversation")
            return TAKEN
        except StoreError:
            log.exception("storing activity failed", extra={"platform": self.platform})
            return NOT_STORED

    async def _take(self, activity: TeamsActivity, inbox: InboxPort) -> HttpAnswer:
        if is_of_bot(activity):
            if activity.type == "message":
                self._left_out("message from a bot")
            return TAKEN
        channel, author = channel_of(activity), author_of(activity.sender)
        async with self._locks.setdefault(activity.conversation.id, asyncio.Lock()):
            match activity.type, activity.name:
                case "message", _:
                    await self._take_message(activity, inbox)
                case "messageUpdate", _ if await self._begins_a_turn(activity, inbox):
                    await self._take_message(activity, inbox)
                case "messageUpdate", _ if text_of(activity):
                    now = prompt_of(self.platform, activity, self._clock.now())
                    at = now.at if activity.timestamp else None
                    edit = Edit(now.thread, now.key, now.text, author, now.message_id, now.tainted_by, at)
                    await self._pending.send(edit, inbox)
                case "messageDelete", _:
                    thread, key = thread_of(self.platform, activity), key_of(channel, activity.id)
                    await self._pending.send(Deletion(thread, key, author, activity.id), inbox)
                case "messageReaction", _ if activity.reply_to_id:
                    reacted = await inbox.thread_of(self._prefix(channel), activity.reply_to_id)
                    if reacted is not None:
                        for reaction in activity.reactions_added or ():
                            put = Reaction(reacted, emoji_of(reaction), author, activity.reply_to_id)
                            await self._take_reaction(put, inbox)
                case "invoke", "adaptiveCard/action":
                    answer = await press(pressed_in(activity), thread_of(self.platform, activity), author, inbox)
                    shown = {"statusCode": 200, "type": "application/vnd.microsoft.activity.message", "value": answer}
                    return HttpAnswer(200, msgspec.json.encode(shown))
                case "invoke", "fileConsent/invoke":
                    consent = self._decode(activity.value, FileConsent, "fileConsent/invoke")
                    answer = await self._take_consent(consent) if consent is not None and consent.action else ""
                    if answer in ("", OFFER_GONE) and activity.reply_to_id:  # the card has expired
                        await self._withdraw_card(thread_of(self.platform, activity), activity.reply_to_id)
                    if answer:
                        await self._answer(prompt_of(self.platform, activity, self._clock.now()), answer)
                case "invoke", name:
                    self._not_understood(f"invoke {name}")
                    return NOT_IMPLEMENTED
                case (("conversationUpdate" | "installationUpdate"), _):
                    added, action = activity.members_added or (), activity.action or ""
                    if action.startswith("add") or any(account.id == activity.recipient.id for account in added):
                        thread, direct = make_thread_id(self.platform, channel, CHAT), is_direct(activity)
                        come = Prompt(thread, f"added/{activity.id}", "", author, self._clock.now(), direct=direct)
                        await self._greet(come, inbox)
                case "event", name if name != READ_RECEIPT:
                    self._not_understood(f"event {name}")
                case (("event" | "messageUpdate" | "messageReaction" | "typing" | "endOfConversation") as kind, name):
                    self._left_out(" ".join(filter(None, (kind, name))))
                case kind, _:
                    self._not_understood(kind or "activity without a type")
        return TAKEN

    async def _take_message(self, activity: TeamsActivity, inbox: InboxPort) -> None:
        prompt = prompt_of(self.platform, activity, self._clock.now())
        pressed = pressed_in(activity)
        if pressed:
            answer = await press(pressed, prompt.thread, prompt.author, inbox)
            if answer not in DECIDED:
                await self._answer(prompt, answer)
            return
        channel, sender, in_channel = channel_of(activity), activity.sender, is_channel(activity)
        if not is_direct(activity):
            await self._channel_named(channel, activity.conversation.name or "")
        joins = bool(prompt.reply_to) and await inbox.thread_of(self._prefix(channel), prompt.reply_to) is not None
        follows = in_channel and await self._is_subscribed(prompt.thread)
        is_named = joins or is_addressed(activity)
        files = [
            (Attachment(name, media_type), partial(self._api.fetch_file, url, self.download_bytes_max))
            for name, media_type, url in files_of(activity)
        ]
        files += [(Attachment("a file"), _not_handed_out)] * missing_files(activity)
        if not prompt.direct and not await self._is_for_agent(
            prompt, inbox, files, is_named=is_named, opens=in_channel, follows=follows
        ):
            return
        prompt = msgspec.structs.replace(prompt, joins=joins)
        if not await inbox.admits(prompt):
            return
        people = self._people.get(channel) or {}
        if sender.name and (sender.name in people or len(people) < PEOPLE_MAX):
            people[sender.name] = sender.id
        self._people.put(channel, people)
        await self._take_in(prompt, inbox, files)

    async def _begins_a_turn(self, activity: TeamsActivity, inbox: InboxPort) -> bool:
        if is_direct(activity) or not is_addressed(activity):
            return False
        channel = channel_of(activity)
        prompt = prompt_of(self.platform, activity, self._clock.now())
        return await self._is_unheard(prompt, self._prefix(channel), inbox)

    async def _withdraw_card(self, thread: ThreadId, message_id: str) -> None:
        try:
            await self.delete(thread, message_id)
        except PlatformError as error:
            log.info("removing consent card failed", extra={"platform": self.platform, "why": str(error)})

    async def _take_consent(self, consent: FileConsent) -> str:
        """Upload an offered file if the person accepted it. Each offer is processed only once. Returns the reply to the
        person, which may be empty.
        """
        key = consent.context.shoal
        stored = await self._store.get(self._offers, key) or ""
        try:
            offer = msgspec.json.decode(stored, type=OfferedFile)
        except UNREADABLE:
            return OFFER_GONE
        if not await self._store.swap(self._offers, key, stored, ""):
            return ""
        upload = consent.upload_info
        if consent.action != "accept":
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
                raise PlatformError(f"the upload returned status {answer.status_code}.")
            about: Json = {"uniqueId": upload.unique_id, "fileType": upload.file_type}
            card: Json = {"contentType": FILE_CARD, "contentUrl": upload.content_url, "name": upload.name}
            message: Fields = {"type": "message", "attachments": [{**card, "content": about}]}
            await self._api.call_thread("POST", offer.thread, message)
        except PlatformError as error:
            await self._store.put(self._offers, key, stored)
            return f"Sending the file failed: {error}"
        return ""

    # ---- sending ----

    async def close(self) -> None:
        await self._api.close()

    async def post(self, post: OutboundPost) -> str:
        if post.kind == "ephemeral" and post.user:
            post = msgspec.structs.replace(post, thread=await self._aside(post.thread, post.user), reply_to="")
        path = post.file
        if path is None:
            return await self._send(post, self._message(post))
        if post.buttons:  # a file cannot have buttons
            await self._send(post, self._message(post))
            post = msgspec.structs.replace(post, markdown="", buttons=(), reply_to="")
        content = await asyncio.to_thread(read_file, path, UPLOAD_BYTES_MAX)
        media_type = IMAGES.get(path.suffix.lower(), "")
        if media_type and len(content) <= IMAGE_BYTES_MAX:
            address = f"data:{media_type};base64,{base64.b64encode(content).decode()}"
            picture: Json = {"contentType": media_type, "contentUrl": address, "name": path.name}
            text = message_of(post.markdown or path.name, self._people_in(post.thread))
            return await self._send(post, {**text, "attachments": [picture]})
        if content and await self._api.is_direct(post.thread):  # files can be offered only in direct chats
            if post.markdown:
                await self._send(post, self._message(post))
            offer = self._clock.new_id()
            offered = msgspec.json.encode(OfferedFile(post.thread, str(path))).decode()
            await self._store.put(self._offers, offer, offered)
            context: Json = {"shoal": offer}
            about: Json = {
                "description": path.name, "sizeInBytes": len(content), "acceptContext": context,
                "declineContext": context,
            }  # fmt: skip
            asked: Json = {"contentType": CONSENT, "name": path.name, "content": about}
            return await self._send(post, {"type": "message", "attachments": [asked]})
        note = f"I cannot send {path.name} ({len(content):,} bytes) here. Write to me directly to get it."
        post = msgspec.structs.replace(post, markdown=f"{post.markdown}\n\n{note}".strip())
        return await self._send(post, self._message(post))

    def _people_in(self, thread: ThreadId) -> Mapping[str, str]:
        return self._people.get(thread_address(thread).channel) or {}

    def _message(self, post: OutboundPost) -> Fields:
        return message_of(post.markdown, self._people_in(post.thread), post.buttons)

    async def _send(self, post: OutboundPost, content: Fields) -> str:
        """Send a message. It replies to `post.reply_to` in a chat, but not in a channel."""
        answers = post.reply_to if thread_address(post.thread).thread == CHAT else ""
        made = await self._api.call_thread("POST", post.thread, content, answers)
        return made.id or post.key

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        content = message_of(markdown, self._people_in(thread), buttons)
        await self._api.call_thread("PUT", thread, {**content, "id": message_id}, message_id)

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        await self._api.call_thread("DELETE", thread, None, message_id)

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show the typing indicator, at most once in TYPING_SECONDS. Raises PlatformError."""
        now = self._clock.monotonic()
        typed_at = self._typed.get(thread)
        if status and (typed_at is None or now - typed_at >= TYPING_SECONDS):
            self._typed.put(thread, now)
            await self._api.call_thread("POST", thread, {"type": "typing"})

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a chat, or start a thread in a team's channel. Raises PlatformError."""
        content = message_of(text, self._people.get(channel) or {})
        if not channel.endswith(("@thread.tacv2", "@thread.skype")):
            thread = make_thread_id(self.platform, channel, CHAT)
            await self._api.call_thread("POST", thread, content)
            return thread
        opened = await self._api.open_conversation(
            {"isGroup": True, "channelData": {"channel": {"id": channel}}, "activity": content}
        )
        root = opened.id.partition(";messageid=")[2] or opened.activity_id
        return make_thread_id(self.platform, channel, root)

    async def _aside(self, thread: ThreadId, user: str) -> ThreadId:
        """Return the direct chat with a person, or `thread` if the bot cannot open a direct chat."""
        if await self._api.is_direct(thread):
            return thread
        scope = f"direct:{self.platform}"
        channel = await self._store.get(scope, user)
        if not channel:
            bot = {"id": f"28:{self._settings.app_id}"}
            tenant = {"tenant": {"id": self._settings.tenant}} if self._settings.tenant else {}
            wanted: Fields = {"isGroup": False, "bot": bot, "members": [{"id": user}], "channelData": tenant}
            try:
                channel = (await self._api.open_conversation(wanted)).id
            except PlatformRefusal:
                return thread
            await self._store.put(scope, user, channel)
        return make_thread_id(self.platform, channel, CHAT)


async def _not_handed_out() -> bytes:
    raise PlatformError(
        "Bots cannot download files from Teams channels and group chats. Ask for the file in a direct chat."
    )


def message_of(markdown: str, people: Mapping[str, str], buttons: tuple[Button, ...] = ()) -> Fields:
    """Build a message. If it has buttons, it becomes a card. `<at>NAME</at>` mentions a person in `people`."""
    text = render_markup(markdown, TEAMS_MARKDOWN) or EMPTY
    if buttons:
        card: Json = {"contentType": CARD, "content": card_of(text, buttons)}
        return {"type": "message", "attachments": [card]}
    entities: list[Json] = []

    def mention(match: re.Match[str]) -> str:
        shown = match[1].replace("\\", "")
        if shown not in people:
            return match[0]
        entities.append(
            {"type": "mention", "text": f"<at>{shown}</at>", "mentioned": {"id": people[shown], "name": shown}}
        )
        return f"<at>{shown}</at>"

    text = _NAMED.sub(mention, text)
    message: dict[str, Json] = {"type": "message", "textFormat": "markdown", "text": text}
    return {**message, "entities": entities} if entities else message


def card_of(text: str, buttons: tuple[Button, ...]) -> Json:
    if len(buttons) > BUTTONS_MAX:
        raise PlatformError(f"A card may have at most {BUTTONS_MAX} buttons.", permanent=True)
    actions: list[Json] = []
    for button in buttons:
        if len(button.value.encode()) > VALUE_BYTES_MAX or len(button.label) > LABEL_CHARS_MAX:
            reason = (
                f"A button's label may have at most {LABEL_CHARS_MAX} characters, and its value at most "
                f"{VALUE_BYTES_MAX} bytes."
            )
            raise PlatformError(reason, permanent=True)
        data: Json = {"shoal": button.value}
        submit: Json = {"type": "Action.Submit", "title": button.label, "data": data}
        actions.append(
            {"type": "Action.Execute", "verb": "shoal", "title": button.label, "data": data, "fallback": submit}
        )
    return {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [{"type": "TextBlock", "text": text, "wrap": True}],
        "actions": actions,
    }
