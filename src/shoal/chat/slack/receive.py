"""What comes in from Slack, by Socket Mode or signed calls, and the prompts, edits, deletions and reactions it makes.

Every event is confirmed after it was stored; one that is not comes again, and its key makes that harmless. Clicks and
commands are confirmed at once, since Slack waits three seconds, and answered at their response_url. What was written
while nobody was connected is read back.
"""

import asyncio
import hashlib
import logging
import re
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import parse_qs
from weakref import WeakValueDictionary

import anyio
import anyio.abc
import msgspec

from shoal.chat.account import NOT_READY, NOT_STORED, UNAUTHORIZED, ChatAccount, IncomingFile
from shoal.chat.http import Json
from shoal.chat.inbox import ParsedCommand, Recent, parse_command, press
from shoal.chat.slack.send import NO_THREAD, is_direct, place_of, rendered
from shoal.chat.slack.wire import (
    Confirm,
    Envelope,
    EventCall,
    SlackApi,
    SlackBot,
    SlackFile,
    SlackInteraction,
    SlackMessage,
    SlackRefusal,
    SlashCommand,
    SocketOpened,
    is_signed,
    listen,
)
from shoal.domain.clock import Clock
from shoal.domain.commands import OF_THREAD, CommandRequest
from shoal.domain.errors import PlatformError, StoreError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id, thread_address
from shoal.domain.messages import Attachment, Author, Deletion, Edit, Prompt, Reaction
from shoal.domain.ports import InboxPort, Settings
from shoal.domain.settings import SlackSettings
from shoal.domain.untrusted import UNREADABLE
from shoal.domain.webhooks import HttpAnswer

log = logging.getLogger(__name__)
T = TypeVar("T")

MISSED_MAX = 100
"""Messages of one conversation that are taken in when they came while nobody was connected."""
PAGE = 200
PAGES_MAX = 20
"""Pages read of one conversation; what is older is left out."""
PEOPLE_MAX = 2000
KNOWN_SECONDS = 3600.0
"""How long a person's name and roles are remembered."""
RECENT_THREADS_MAX = 30
"""Threads looked into for what was missed, those last spoken in."""
ASKERS_MAX = 5000
DONE_MAX = 2000
"""Messages remembered, so that the second event about one does not fetch its files again."""
TAKEN = HttpAnswer(200)
"""Without a body: Slack would show one as the answer to a command."""
BAD_BODY = HttpAnswer(400, b'{"error":"bad_request","message":"The body is not one of Slack\'s."}')
LOST = "That could not be stored. Try again in a moment."
NO_THREAD_HERE = "I do not know which thread you mean. Write it there instead, with my name before it: `@{} /{}`."

_CHANNEL = re.compile(r"[A-Z0-9]{2,40}")
_TIMESTAMP = re.compile(r"[0-9]{1,11}\.[0-9]{1,9}")
_MARKED = re.compile(r"<([^<>]*)>")
_SUBTYPES = frozenset({"", "file_share", "thread_broadcast", "me_message"})
"""Messages that somebody wrote; all others are notes of what happened in the channel."""


# ---- what messages mean ----


def key_of(channel: str, ts: str) -> str:
    """A message's key, the same in each of the events that tell of it."""
    return f"{channel}/{ts}"


def thread_of(platform: str, channel: str, ts: str, thread_ts: str) -> ThreadId:
    """The thread a message belongs to: the one it is in, or would begin; in direct conversations the whole."""
    alone = NO_THREAD if is_direct(channel) else ts
    return make_thread_id(platform, channel, thread_ts or alone)


def is_written(message: SlackMessage, me: SlackBot) -> bool:
    """Whether a person wrote it: not the bot itself, no other bot, no note of the platform."""
    if message.subtype not in _SUBTYPES or message.bot_id or message.user in ("", me.user_id, "USLACKBOT"):
        return False
    return _is_place(message.channel, message.ts, message.thread_ts)


def was_said(message: SlackMessage, me: SlackBot) -> bool:
    """Whether somebody else said it, another bot maybe."""
    own = message.user == me.user_id or (message.bot_id is not None and message.bot_id == me.bot_id)
    said = message.subtype in _SUBTYPES or message.subtype == "bot_message"
    return said and not own and _is_place(message.channel, message.ts, message.thread_ts)


def is_about_message(event: SlackMessage) -> bool:
    """Whether an edit or a deletion names a message that can exist."""
    about = event.previous_message or event.message
    return about is not None and _is_place(event.channel, event.deleted_ts or about.ts, about.thread_ts)


def _is_place(channel: str, ts: str, thread_ts: str) -> bool:
    threaded = not thread_ts or _TIMESTAMP.fullmatch(thread_ts) is not None
    return _CHANNEL.fullmatch(channel) is not None and _TIMESTAMP.fullmatch(ts) is not None and threaded


def is_addressed(message: SlackMessage, me: SlackBot) -> bool:
    """Whether it mentions the bot."""
    text = message.text or ""
    return f"<@{me.user_id}>" in text or f"<@{me.user_id}|" in text


def prompt_of(platform: str, message: SlackMessage, me: SlackBot) -> Prompt:
    """The prompt a written message makes, without its files; the author has no name yet."""
    channel = message.channel
    return Prompt(
        thread=thread_of(platform, channel, message.ts, message.thread_ts),
        key=key_of(channel, message.ts),
        text=text_of(message.text or "", me),
        author=Author(message.user, is_bot=bool(message.bot_id), trusted=False),
        at=datetime.fromtimestamp(float(message.ts), UTC),
        reply_to=message.thread_ts if is_direct(channel) and message.thread_ts != message.ts else "",
        message_id=message.ts,
        direct=is_direct(channel),
    )


def text_of(text: str, me: SlackBot) -> str:
    """The text without mentions of the bot, and with Slack's marks read: links, channels, announcements, entities.

    Other people stay `<@ID>`, which is how one writes to them.
    """
    if me.user_id:
        text = re.sub(rf"<@{re.escape(me.user_id)}(\|[^<>]*)?>[ \t]*", "", text)

    def read(found: re.Match[str]) -> str:
        target, _, label = found[1].partition("|")
        if target.startswith("@"):
            return f"<{target}>"
        if target.startswith("#"):
            return f"#{label}" if label else f"<{target}>"
        if target.startswith("!"):
            return label or f"@{target[1:].partition('^')[0]}"
        if not label or label == target or target.removeprefix("mailto:") == label:
            return label or target
        return f"{label} ({target})"

    plain = _MARKED.sub(read, text)
    return plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def command_in(slash: SlashCommand) -> ParsedCommand | None:
    """The command that was given, as `/stop all` or as `/shoal stop all`; `/shoal` alone asks for help."""
    own = parse_command(f"{slash.command} {slash.text}")
    if own is not None:
        return own
    return parse_command(f"/{slash.text.strip().removeprefix('/') or 'help'}")


# ---- receiving ----


class _PageCursor(msgspec.Struct, frozen=True):
    next_cursor: str = ""


class _MessagePage(msgspec.Struct, frozen=True):
    messages: tuple[SlackMessage, ...] = ()
    response_metadata: _PageCursor = _PageCursor()


class _SlackProfile(msgspec.Struct, frozen=True):
    display_name: str = ""
    real_name: str = ""


class _SlackUser(msgspec.Struct, frozen=True):
    name: str = ""
    real_name: str = ""
    is_bot: bool = False
    is_admin: bool = False
    is_owner: bool = False
    is_restricted: bool = False
    is_ultra_restricted: bool = False
    is_stranger: bool = False
    profile: _SlackProfile = _SlackProfile()


class _UserInfo(msgspec.Struct, frozen=True):
    user: _SlackUser


class _FileInfo(msgspec.Struct, frozen=True):
    file: SlackFile


class SlackReceiver(ChatAccount):
    """Takes the events of one account in; those of one channel one after the other."""

    whispers = True

    def __init__(self, platform: str, settings: SlackSettings, home: Home, store: Settings, clock: Clock) -> None:
        super().__init__(platform, home, store, clock, settings.agent)
        self._settings = settings
        self._api = SlackApi(settings)
        self._me = SlackBot()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._people: Recent[tuple[float, Author]] = Recent(PEOPLE_MAX)
        self._askers: Recent[str] = Recent(ASKERS_MAX)
        self._done: Recent[None] = Recent(DONE_MAX)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def _keep_connected(self, inbox: InboxPort) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                await super()._keep_connected(inbox)
        finally:
            self._tasks = None

    async def _connect(self, inbox: InboxPort) -> None:
        assert self._tasks is not None
        tasks = self._tasks
        self._me = await self._api.call("auth.test", SlackBot, {})
        self._inbox = inbox

        def hello() -> None:
            self._reset_backoff()
            extra = {"platform": self.platform, "bot": self._me.user, "workspace": self._me.team}
            log.info("connected", extra=extra)
            self.connected.set()
            tasks.start_soon(self._catch_up, inbox)

        if self._settings.mode == "http":
            hello()
            await asyncio.Event().wait()
        opened = await self._api.call(
            "apps.connections.open", SocketOpened, {}, token=self._settings.app_token.reveal()
        )
        await listen(
            opened.url, hello, lambda envelope, confirm: tasks.start_soon(self._take_envelope, envelope, confirm, inbox)
        )

    async def _take_envelope(self, envelope: Envelope, confirm: Confirm, inbox: InboxPort) -> None:
        match envelope.type:
            case "events_api":
                call = _decoded(envelope.payload, EventCall)
                if call is None or await self._take_call(call, inbox):
                    await confirm()
            case "interactive":
                await confirm()
                click = _decoded(envelope.payload, SlackInteraction)
                if click is not None:
                    await self._take_click(click, inbox)
            case "slash_commands":
                await confirm()
                slash = _decoded(envelope.payload, SlashCommand)
                if slash is not None:
                    await self._take_slash(slash, inbox)
            case _:
                await confirm()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """A call of Slack's. Answers 401 without its signature, 503 when it has to be sent again."""
        timestamp, signature = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
        secret = self._settings.signing_secret.reveal()
        if self._settings.mode != "http" or not is_signed(secret, timestamp, signature, body, self._clock.now()):
            return UNAUTHORIZED
        if not body.lstrip().startswith(b"{"):  # the signature does not cover the type that a header tells
            return self._receive_form(body)
        call = _decoded(body, EventCall)
        if call is None:
            return BAD_BODY
        if call.type == "url_verification":
            return HttpAnswer(200, call.challenge.encode(), "text/plain")
        if self._inbox is None:
            return NOT_READY
        return TAKEN if await self._take_call(call, self._inbox) else NOT_STORED

    def _receive_form(self, body: bytes) -> HttpAnswer:
        """A command or a click, done while Slack has its answer already."""
        fields = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        if self._inbox is None or self._tasks is None:
            return NOT_READY
        if "payload" not in fields:
            slash = msgspec.convert(fields, SlashCommand)
            if not (slash.command and slash.channel_id and slash.user_id):
                return BAD_BODY
            self._tasks.start_soon(self._take_slash, slash, self._inbox)
            return TAKEN
        click = _decoded(fields["payload"].encode(), SlackInteraction)
        if click is None:
            return BAD_BODY
        self._tasks.start_soon(self._take_click, click, self._inbox)
        return TAKEN

    # ---- events ----

    async def _take_call(self, call: EventCall, inbox: InboxPort) -> bool:
        """Take an event in; False when it could not be stored and has to come again."""
        if call.event is None or not call.is_of(self._me.team_id):
            return True
        try:
            await self._take_event(call.event, inbox)
        except StoreError:
            log.exception("an event was not stored; Slack sends it again", extra={"platform": self.platform})
            return False
        return True

    async def _take_event(self, event: SlackMessage, inbox: InboxPort) -> None:
        """Take in an event of the Events API; nothing comes of those that are nobody's words. Raises StoreError."""
        item = event.item
        lock = self._locks.setdefault(item.channel if item is not None else event.channel, asyncio.Lock())
        async with lock:
            match event.type, event.subtype:
                case "message", "message_changed":
                    await self._take_edit(event, inbox)
                case "message", "message_deleted":
                    before = event.previous_message
                    if before is not None and not before.bot_id and is_about_message(event):
                        await self._take_deletion(event.channel, event.deleted_ts, before.user, inbox)
                case (("message" | "app_mention"), _):
                    await self._take_message(event, inbox)
                case "reaction_added", _:
                    if (
                        item is None
                        or item.type != "message"
                        or not item.channel
                        or event.user in ("", self._me.user_id)
                    ):
                        return
                    thread = await inbox.thread_of(self._prefix(item.channel), item.ts)
                    author = await self._author(event.user)
                    if thread is not None and not author.is_bot:
                        await inbox.send(Reaction(thread, event.reaction, author, item.ts))
                case _:
                    pass

    async def _take_message(self, event: SlackMessage, inbox: InboxPort) -> None:
        key = key_of(event.channel, event.ts)
        if not is_written(event, self._me) or key in self._done:
            return
        prompt = prompt_of(self.platform, event, self._me)
        if not await self._is_meant(event, prompt.thread):
            return
        author = await self._author(event.user)
        if prompt.direct and prompt.reply_to:  # a thread under a message of ours goes on with that conversation
            thread = await inbox.thread_of(self._prefix(event.channel), prompt.reply_to)
            if thread is not None:
                prompt = msgspec.structs.replace(prompt, thread=thread, joins=True)
        prompt = msgspec.structs.replace(prompt, author=author, agent=self._agent)
        if author.is_bot or not await inbox.admits(prompt):
            return
        await self._note_heard(prompt)
        files = [await self._incoming(file) for file in event.files]
        await self._take_in(prompt, inbox, files, self._me.user)
        self._done.put(key, None)

    async def _is_meant(self, message: SlackMessage, thread: ThreadId) -> bool:
        """Direct messages are; in channels what mentions the bot, and all that follows in that thread or its own."""
        if is_direct(message.channel):
            return True
        if is_addressed(message, self._me):
            await self._subscribe(thread)
            return True
        if not message.thread_ts:
            return False
        return message.parent_user_id == self._me.user_id or await self._is_subscribed(thread)

    async def _incoming(self, file: SlackFile) -> IncomingFile:
        """A file that came with a message; one of another organisation is told of by its id alone."""
        failure: PlatformError | None = None
        if file.file_access == "check_file_info":
            try:
                file = (await self._api.call("files.info", _FileInfo, {"file": file.id})).file
            except PlatformError as error:
                failure = error

        async def fetch() -> bytes:
            if failure is not None:
                raise failure
            if file.is_external:
                raise PlatformError("The file is stored outside of Slack; it was not fetched.")
            found = await self._api.fetch(file.url_private_download or file.url_private, self.download_bytes_max)
            if found.media_type.startswith("text/html") and not file.mimetype.startswith("text/"):
                raise PlatformError("Slack showed a login page. Give the app the scope files:read.")
            return found.body

        return Attachment(file.label, file.mimetype or "application/octet-stream", file.size), fetch

    async def _take_edit(self, event: SlackMessage, inbox: InboxPort) -> None:
        after, before = event.message, event.previous_message
        if after is None or after.user in ("", self._me.user_id) or after.bot_id or not is_about_message(event):
            return
        if after.subtype == "tombstone":  # what is left of a deleted message that has replies
            await self._take_deletion(event.channel, after.ts, (before or after).user, inbox)
            return
        text = text_of(after.text or "", self._me)
        if not text or (before is not None and before.text == after.text):
            return  # Slack only added a picture of a linked page
        place = make_thread_id(self.platform, event.channel, NO_THREAD)
        author = await self._author(after.user)
        await self._pending.send(Edit(place, key_of(event.channel, after.ts), text, author, after.ts), inbox)

    async def _take_deletion(self, channel: str, ts: str, user: str, inbox: InboxPort) -> None:
        place = make_thread_id(self.platform, channel, NO_THREAD)
        await self._pending.send(Deletion(place, key_of(channel, ts), await self._author(user), ts), inbox)

    # ---- clicks and slash commands ----

    async def _take_click(self, click: SlackInteraction, inbox: InboxPort) -> None:
        """Do what a button of ours says, and tell the person who pressed it."""
        message = click.message
        if click.type != "block_actions" or click.channel is None or message is None or not click.actions:
            return
        thread = thread_of(self.platform, click.channel.id, message.ts, message.thread_ts)
        author = await self._author(click.user.id)
        try:
            answer = await press(click.actions[0].value, thread, author, inbox)
        except StoreError:
            log.exception("a click was lost", extra={"platform": self.platform})
            answer = LOST
        await self._respond(click.response_url, answer, message.thread_ts)

    async def _take_slash(self, slash: SlashCommand, inbox: InboxPort) -> None:
        """Do what a slash command asks, and tell the person who gave it."""
        try:
            answer = await self._do(slash, inbox)
        except StoreError:
            log.exception("a command was lost", extra={"platform": self.platform})
            answer = LOST
        await self._respond(slash.response_url, answer, "")

    async def _do(self, slash: SlashCommand, inbox: InboxPort) -> str:
        """Run a slash command; returns what to tell. Raises StoreError."""
        command = command_in(slash)
        if command is None:
            return f"I know no command `{slash.text.split(' ')[0]}`. See `{slash.command} help`."
        direct = is_direct(slash.channel_id)
        thread = make_thread_id(self.platform, slash.channel_id, NO_THREAD)
        if not direct:  # Slack does not say in which thread it was written: the one they last spoke in
            latest = await self._store.get(f"latest:{self.platform}", f"{slash.channel_id}:{slash.user_id}")
            if not latest and command.name in OF_THREAD:
                return NO_THREAD_HERE.format(self._me.user, command.name)
            thread = ThreadId(latest) if latest else thread
        author = await self._author(slash.user_id)
        key = f"slash/{slash.trigger_id or hashlib.sha256(msgspec.json.encode(slash)).hexdigest()}"
        now = self._clock.now()
        return await inbox.command(
            CommandRequest(thread, author, command.name, command.argument, key, now, direct=direct, private=True)
        )

    async def _respond(self, url: str, answer: str, thread_ts: str) -> None:
        """Tell the person who clicked or asked, and nobody else. A failure is only logged."""
        if not (url and answer):
            return
        content = {"response_type": "ephemeral", "replace_original": False, "text": rendered(answer)}
        if thread_ts:
            content["thread_ts"] = thread_ts
        try:
            await self._api.respond(url, content)
        except PlatformError as error:
            log.info("an answer was lost", extra={"platform": self.platform, "why": str(error)})

    # ---- what was missed ----

    async def _catch_up(self, inbox: InboxPort) -> None:
        """Take in what was written while nobody was connected, where the bot spoke last; commands come too late."""
        found: list[SlackMessage] = []
        try:
            threads, seen = await self._recent_threads()
            places = dict.fromkeys(place_of(thread) for thread in threads)
            places |= dict.fromkeys((channel, "") for channel, _ in places)
            for channel, thread_ts in places:
                try:
                    newest = await self._newest(channel, thread_ts, seen, MISSED_MAX)
                except SlackRefusal as refusal:  # the bot may no longer read there
                    log.info("a conversation was not read", extra={"platform": self.platform, "why": str(refusal)})
                    continue
                for message in newest:
                    meant = is_direct(channel) or thread_ts or is_addressed(message, self._me)
                    if meant and parse_command(text_of(message.text or "", self._me)) is None:
                        found.append(msgspec.structs.replace(message, type="message"))
            for message in sorted(found, key=lambda message: message.ts):
                await self._take_event(message, inbox)
        except (PlatformError, StoreError) as error:
            text = "missed messages could not be read; what people wrote meanwhile may stay unanswered: %s"
            log.warning(text, error, extra={"platform": self.platform})

    async def _note_heard(self, prompt: Prompt) -> None:
        """Note who spoke where, and up to when everything was taken in. Raises StoreError."""
        self._askers.put(prompt.thread, prompt.author.id)
        channel = thread_address(prompt.thread).channel
        if not is_direct(channel):
            await self._store.put(f"latest:{self.platform}", f"{channel}:{prompt.author.id}", prompt.thread)
        known, seen = await self._recent_threads()
        recent = (prompt.thread, *(thread for thread in known if thread != prompt.thread))[:RECENT_THREADS_MAX]
        noted = (recent, max(seen, prompt.message_id))
        await self._store.put(f"heard:{self.platform}", "recent", msgspec.json.encode(noted).decode())

    async def _recent_threads(self) -> tuple[Sequence[ThreadId], str]:
        """The threads last spoken in, newest first, and the newest message's timestamp. Raises StoreError."""
        found = await self._store.get(f"heard:{self.platform}", "recent")
        try:
            return msgspec.json.decode(found or "", type=tuple[tuple[ThreadId, ...], str])
        except UNREADABLE:
            return (), ""

    # ---- reading ----

    async def _newest(self, channel: str, thread_ts: str, oldest: str, limit: int) -> Sequence[SlackMessage]:
        """The newest `limit` messages after `oldest` (a timestamp, or empty), oldest first. Raises PlatformError.

        With `thread_ts` those of that thread, else those in the channel itself.
        """
        found: deque[SlackMessage] = deque(maxlen=limit)
        cursor = ""
        for _ in range(PAGES_MAX):
            page = await self._page(channel, thread_ts, oldest, cursor, min(PAGE, limit))
            if thread_ts:  # Slack gives threads from their beginning, channels from their end
                found.extend(page.messages)
            else:
                found.extendleft(page.messages[: limit - len(found)])
            cursor = page.response_metadata.next_cursor
            if not cursor or (not thread_ts and len(found) >= limit):
                break
        return [msgspec.structs.replace(message, channel=channel) for message in found if message.ts > oldest]

    async def _page(self, channel: str, thread_ts: str, oldest: str, cursor: str, limit: int) -> _MessagePage:
        given: dict[str, Json] = {
            "channel": channel,
            "limit": limit,
            "oldest": oldest or None,
            "cursor": cursor or None,
            "include_all_metadata": True,
        }
        if thread_ts:
            return await self._api.call("conversations.replies", _MessagePage, {**given, "ts": thread_ts})
        return await self._api.call("conversations.history", _MessagePage, given)

    async def _author(self, user: str) -> Author:
        """The user with name and roles (`admin`, `owner`, `guest`, `external`); the bare id when Slack does not say."""
        now = self._clock.monotonic()
        until, author = self._people.get(user) or (0.0, Author(user, trusted=False))
        if now < until:
            return author
        try:
            found = (await self._api.call("users.info", _UserInfo, {"user": user})).user
        except PlatformError:
            return author
        name = found.profile.display_name or found.profile.real_name or found.real_name or found.name
        roles = {
            "admin": found.is_admin,
            "owner": found.is_owner,
            "guest": found.is_restricted or found.is_ultra_restricted,
            "external": found.is_stranger,
        }
        author = Author(user, name, tuple(role for role, has in roles.items() if has), found.is_bot, trusted=False)
        self._people.put(user, (now + KNOWN_SECONDS, author))
        return author


def _decoded(body: bytes | msgspec.Raw, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE:
        return None
