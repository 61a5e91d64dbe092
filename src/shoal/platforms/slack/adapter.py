"""Slack adapter. Receives events through Socket Mode or signed HTTP requests. Uses the Web API for posts, files,
previews and channels.

An event is acknowledged after it is stored. Slack repeats an unacknowledged event, and the event's key identifies the
repeat. Clicks and commands are acknowledged immediately, because Slack waits only three seconds. Their replies use the
response_url. Messages that were missed while disconnected are read after reconnecting.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import parse_qs

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.commands import CommandRequest
from shoal.kernel.errors import PlatformError, StoreError
from shoal.kernel.home import Home
from shoal.kernel.ids import WHOLE_CHANNEL, ThreadId, make_thread_id, thread_address, unopened
from shoal.kernel.messages import Attachment, Author, Deletion, Edit, Prompt, Reaction
from shoal.kernel.ports import ROLES_SECONDS, InboxPort, Settings
from shoal.kernel.posts import REPEATED, Button, OutboundPost
from shoal.kernel.untrusted import UNREADABLE, untrusted_block
from shoal.kernel.webhooks import HttpAnswer
from shoal.platforms.account import NOT_READY, NOT_STORED, UNAUTHORIZED, ChatAccount, IncomingFile
from shoal.platforms.http import Fields, PlatformRefusal, Tolerating
from shoal.platforms.inbox import Recent, press
from shoal.platforms.slack.send import (
    CHANNEL_NAME_CHARS_MAX,
    IDLE_SECONDS,
    LIMITS,
    NO_THREAD,
    SUGGESTED,
    ChannelInfo,
    SlackChannel,
    SlackStreams,
    change_of,
    channel_name,
    home_view,
    is_direct,
    key_in,
    message_of,
    place_of,
    rendered,
    sharing_of,
)
from shoal.platforms.slack.settings import SlackSettings
from shoal.platforms.slack.wire import (
    EVENTS,
    PAGE,
    PAGES_MAX,
    THREAD_NOT_FOUND,
    UNUSED_EVENTS,
    Confirm,
    Envelope,
    EventCall,
    EventType,
    Ok,
    SlackApi,
    SlackBot,
    SlackFile,
    SlackFileInfo,
    SlackInteraction,
    SlackMessage,
    SlackPosted,
    SlashCommand,
    SocketOpened,
    cards_of,
    check_package,
    command_in,
    edited_at,
    is_about_message,
    is_addressed,
    is_from_others,
    is_of_unknown_kind,
    is_signed,
    is_valid_location,
    is_written,
    key_of,
    lane_of,
    listen,
    prompt_of,
    references_of,
    text_of,
    thread_of,
)

log = logging.getLogger(__name__)
MISSED_MAX = 100
RECENT_THREADS_MAX = 30
"""Maximum number of recently used threads searched for missed messages."""
ASKERS_MAX = 5000
DONE_MAX = 2000
"""Maximum number of processed messages whose keys are cached. Slack may send two events for one message, and its files
should be downloaded only once.
"""
TAKEN = HttpAnswer(200)
"""Response without a body. Slack would show a body as the reply to the command."""
LOST = "I could not process your request. Try again in a moment."
STATUS_SECONDS = 30.0
"""Minimum number of seconds before the same status is sent again. Slack shows a status for two minutes."""
STATUSES_MAX = 1000
GONE_MAX = 1000
LOOK_BACK = timedelta(days=1)
"""Maximum age of messages to search when the outcome of a post is unknown. Posts are retried for the same period."""
DOUBTFUL_MAX = 2000
ADOPTED_MAX = 50
"""Maximum number of messages searched for an unfinished preview that a killed process left behind."""
INVITED_MAX = 50
NAMES_MAX = 9
"""Maximum number of names to try for a new channel: NAME, NAME-2, and so on."""


class _ChannelMembers(msgspec.Struct, frozen=True):
    members: tuple[str, ...] = ()


class SlackAdapter(ChatAccount[SlackSettings]):
    """Implements `ChatAdapter`, `HttpInbound`, `ChannelHost` and `KnowsRoles`. Events of one thread are processed in
    order.
    """

    limits = LIMITS
    whispers = True

    def __init__(
        self, platform: str, settings: SlackSettings, home: Home, store: Settings, clock: Clock, inbound_url: str = ""
    ) -> None:
        if settings.mode == "socket":
            check_package()
        super().__init__(platform, settings, home, store, clock, inbound_url)
        self._api = SlackApi(settings, clock)
        self._me = SlackBot()
        self._askers: Recent[str] = Recent(ASKERS_MAX)
        self._done: Recent[None] = Recent(DONE_MAX)
        self._streams = SlackStreams(self._api, clock)
        self._doubtful: Recent[None] = Recent(DOUBTFUL_MAX)
        self._statuses: Recent[tuple[str, float]] = Recent(STATUSES_MAX)
        self._deleted: Recent[None] = Recent(GONE_MAX)

    async def _keep_connected(self, inbox: InboxPort) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._end_idle_streams)
        await super()._keep_connected(inbox)

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

        async def take(envelope: Envelope, confirm: Confirm) -> None:
            match envelope.type:
                case "events_api":
                    call = self._decode(envelope.payload, EventCall, "call")
                    if call is None or await self._take_call(call):
                        await confirm()
                case "interactive":
                    await confirm()
                    if (click := self._decode(envelope.payload, SlackInteraction, "interaction")) is not None:
                        await self._take_click(click, inbox)
                case "slash_commands":
                    await confirm()
                    if (slash := self._decode(envelope.payload, SlashCommand, "command")) is not None:
                        await self._take_slash(slash, inbox)
                case kind:
                    await confirm()
                    self._not_understood(f"envelope {kind}")

        if self._settings.mode == "http":
            hello()
            await asyncio.Event().wait()
        opened = await self._api.call(
            "apps.connections.open", SocketOpened, {}, token=self._settings.app_token.reveal()
        )
        await listen(opened.url, hello, lambda envelope, confirm: tasks.start_soon(take, envelope, confirm))

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Verify and process a request from Slack. Returns 401 if the signature is missing or wrong, and 503 if Slack
        should send the request again.

        In all other cases, returns 200, because Slack disables the event subscriptions of apps that return errors.
        """
        timestamp, signature = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
        secret = self._settings.signing_secret.reveal()
        if self._settings.mode != "http" or not is_signed(secret, timestamp, signature, body, self._clock.now()):
            return UNAUTHORIZED
        if not body.lstrip().startswith(b"{"):  # the signature does not cover the content type header
            # Run a command or a click after the response, because Slack waits only three seconds.
            fields = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
            if self._inbox is None or self._tasks is None:
                return NOT_READY
            if "payload" not in fields:
                self._tasks.start_soon(self._take_slash, msgspec.convert(fields, SlashCommand), self._inbox)
            elif (click := self._decode(fields["payload"].encode(), SlackInteraction, "interaction")) is not None:
                self._tasks.start_soon(self._take_click, click, self._inbox)
            return TAKEN
        call = self._decode(body, EventCall, "call")
        if call is None:
            return TAKEN
        if call.type == "url_verification":
            return HttpAnswer(200, call.challenge.encode(), "text/plain")
        if self._inbox is None:
            return NOT_READY
        return TAKEN if await self._take_call(call) else NOT_STORED

    # ---- events ----

    async def _take_call(self, call: EventCall) -> bool:
        """Process an event. Returns False if the event could not be stored and Slack must send it again."""
        known = self._decode(call.event, EventType, "event")
        if known is not None and not call.is_of(self._me.team_id):
            self._left_out("event from another workspace")
            known = None
        if known is None:
            return True
        if known.type not in EVENTS:
            if known.type in UNUSED_EVENTS:
                self._left_out(known.type)
            else:
                self._not_understood(known.type or f"call {call.type}")
            return True
        event = self._decode(call.event, SlackMessage, known.type)
        if event is None:
            return True
        try:
            await self._intake.put(lane_of(event), msgspec.json.encode(event).decode())
        except (StoreError, PlatformError):
            log.exception("storing event failed; waiting for slack to redeliver", extra={"platform": self.platform})
            return False
        return True

    async def _process_event(self, event: str, inbox: InboxPort) -> bool:
        await self._take_event(msgspec.json.decode(event, type=SlackMessage), inbox)
        return True

    async def _take_event(self, event: SlackMessage, inbox: InboxPort) -> None:
        item, nobody = event.item, ("", self._me.user_id)
        match event.type, event.subtype:
            case "message", "message_changed":
                after, before = event.message, event.previous_message
                if after is None or after.user in nobody or after.bot_id or not is_about_message(event):
                    if after is None or after.user != self._me.user_id:
                        self._left_out("change to a bot's message")
                    return
                if is_addressed(after, self._me) and not is_direct(event.channel):
                    named = msgspec.structs.replace(after, type="message", channel=event.channel)
                    if is_written(named, self._me) and await self._is_unheard(
                        prompt_of(self.platform, named, self._me), self._prefix(event.channel), inbox
                    ):
                        await self._take_message(named, inbox)
                        return
                if after.subtype == "tombstone":  # a deleted message that remains because it has replies
                    await self._take_deletion(event.channel, after.ts, (before or after).user, inbox)
                    return
                known = references_of(before, self._me) if before is not None else []
                added = [reference for reference in references_of(after, self._me) if reference not in known]
                if before is not None and before.text == after.text and not added:
                    return  # Slack only added a link preview
                # Slack adds the content of a linked message later, in an edit.
                shown = (untrusted_block(reference.tainted_by, reference.text) for reference in added)
                text = "\n".join(filter(None, (text_of(after.text or "", self._me), *shown)))
                if text:
                    place = make_thread_id(self.platform, event.channel, NO_THREAD)
                    author, key = await self._api.author(after.user), key_of(event.channel, after.ts)
                    tainted_by, at = added[0].tainted_by if added else "", edited_at(after)
                    await self._pending.send(Edit(place, key, text, author, after.ts, tainted_by, at), inbox)
            case "message", "message_deleted":
                before = event.previous_message
                if before is not None and not before.bot_id and is_about_message(event):
                    await self._take_deletion(event.channel, event.deleted_ts, before.user, inbox)
            case (("message" | "app_mention"), _):
                await self._take_message(event, inbox)
            case "reaction_added", _:
                if item is None or item.type != "message" or not item.channel or event.user in nobody:
                    return
                thread = await inbox.thread_of(self._prefix(item.channel), item.ts)
                author = await self._api.author(event.user)
                if author.is_bot:
                    self._left_out("reaction from a bot")
                elif thread is not None:
                    await self._take_reaction(Reaction(thread, event.reaction, author, item.ts), inbox)
            case "member_joined_channel", _:
                if event.user == self._me.user_id and event.channel and event.inviter:
                    thread, author = unopened(self.platform, event.channel), await self._api.author(event.inviter)
                    await self._greet(Prompt(thread, "joined", "", author, self._clock.now()), inbox)
            case "assistant_thread_started", _ if event.assistant_thread is not None:
                pane = event.assistant_thread
                given: Fields = {"channel_id": pane.channel_id, "thread_ts": pane.thread_ts, "prompts": SUGGESTED}
                await self._show("assistant.threads.setSuggestedPrompts", given)
            case "app_home_opened", _ if event.tab == "home":
                await self._show("views.publish", {"user_id": event.user, "view": home_view(inbox.commands)})
            case kind, subtype:
                if event.user != self._me.user_id:
                    self._left_out(" ".join(filter(None, (kind, subtype))))

    async def _show(self, method: str, given: Fields) -> None:
        """Call a method that only updates the display. Failures are logged, not raised."""
        try:
            await self._api.call(method, Ok, given)
        except PlatformError as error:
            log.info("%s failed", method, extra={"platform": self.platform, "why": str(error)})

    async def _take_message(self, event: SlackMessage, inbox: InboxPort) -> None:
        key = key_of(event.channel, event.ts)
        if is_of_unknown_kind(event):
            self._not_understood(f"message of subtype {event.subtype}")
        if not is_written(event, self._me) or key in self._done:
            if event.bot_id and event.bot_id != self._me.bot_id:
                self._left_out("message from a bot")
            return
        prompt = prompt_of(self.platform, event, self._me)
        files = [await self._incoming(file, event.user) for file in event.files]
        if not prompt.direct:
            await self._learn_name(event.channel)
            answers = bool(event.thread_ts) and event.parent_user_id == self._me.user_id
            follows = bool(event.thread_ts) and await self._is_subscribed(prompt.thread)
            is_named = answers or is_addressed(event, self._me)
            if not await self._is_for_agent(prompt, inbox, files, is_named=is_named, opens=True, follows=follows):
                return
        author = await self._api.author(event.user)
        begins = False
        if prompt.direct and prompt.reply_to:  # a thread under the bot's message continues the direct conversation
            thread = await inbox.thread_of(self._prefix(event.channel), prompt.reply_to)
            if thread is not None:
                prompt = msgspec.structs.replace(prompt, thread=thread, joins=True)
            else:
                begins = not (inbox.commands.parse(prompt.text) or await self._is_subscribed(prompt.thread))
        prompt = self._with_its_lines(msgspec.structs.replace(prompt, author=author), inbox)
        if author.is_bot:
            self._left_out("message from a bot")
        if author.is_bot or not await inbox.admits(prompt):
            return
        further: tuple[IncomingFile, ...] = ()
        if begins:  # a thread under another message is a new conversation, which that message opens
            before, further = await self._context_of(prompt)
            prompt = msgspec.structs.replace(prompt, refers_to=(*before, *prompt.refers_to))
        # Store the thread's author for previews, and the thread itself for the next reconnect.
        self._askers.put(prompt.thread, prompt.author.id)
        known, seen = await self._recent_threads()
        recent = (prompt.thread, *(thread for thread in known if thread != prompt.thread))[:RECENT_THREADS_MAX]
        noted = (recent, max(seen, prompt.message_id))
        await self._store.put(f"heard:{self.platform}", "recent", msgspec.json.encode(noted).decode())
        await self._take_in(prompt, inbox, [*files, *further])
        if begins:
            await self._subscribe(prompt.thread)
        self._done.put(key, None)

    async def _opening(self, thread: ThreadId) -> Prompt | None:
        channel, thread_ts = place_of(thread)
        for first in (await self._api.page(channel, thread_ts, "", "", 1)).messages[:1]:
            if is_from_others(first := msgspec.structs.replace(first, channel=channel), self._me):
                return await self._read_back(first, thread)
        return None

    async def _read_back(self, message: SlackMessage, thread: ThreadId) -> Prompt:
        author = Author(message.user or message.bot_id or "", is_bot=True, trusted=False)
        if not message.bot_id:
            author = await self._api.author(message.user)
        files = tuple(Attachment(file.label, file.mimetype, file.size) for file in message.files)
        prompt = prompt_of(self.platform, message, self._me)
        is_app = author.is_bot or bool(message.bot_id)
        text = "\n".join(filter(None, (prompt.text, cards_of(message, self._me) if is_app else "")))
        return msgspec.structs.replace(prompt, thread=thread, text=text, author=author, attachments=files)

    async def _incoming(self, file: SlackFile, sharer: str) -> IncomingFile:
        """Convert a file that `sharer` sent. If someone else uploaded or edited it, that person is its author.

        For a file from another organization, Slack sends only the id, so the details are requested.
        """
        failure: PlatformError | None = None
        if file.file_access == "check_file_info":
            try:
                file = (await self._api.call("files.info", SlackFileInfo, {"file": file.id})).file
            except PlatformError as error:
                failure = error

        async def fetch() -> bytes:
            if failure is not None:
                raise failure
            if file.is_external:
                raise PlatformError("Shoal cannot download the file, because it is stored outside Slack.")
            content = await self._api.fetch_file(file.url_private_download or file.url_private, self.download_bytes_max)
            if content.media_type.startswith("text/html") and not file.mimetype.startswith("text/"):
                raise PlatformError(
                    "Slack returned a login page instead of the file. Add the scope files:read to the app."
                )
            return content.body

        others = file.others(sharer)
        author = await self._api.author(others[0]) if others else None
        kind = file.mimetype or "application/octet-stream"
        return Attachment(file.label, kind, file.size, author=author), fetch

    async def _take_deletion(self, channel: str, ts: str, user: str, inbox: InboxPort) -> None:
        place = make_thread_id(self.platform, channel, NO_THREAD)
        await self._pending.send(Deletion(place, key_of(channel, ts), await self._api.author(user), ts), inbox)

    # ---- clicks and slash commands ----

    async def _take_click(self, click: SlackInteraction, inbox: InboxPort) -> None:
        message, channel = click.message or SlackMessage(), click.channel.id if click.channel is not None else ""
        is_press = click.type == "block_actions" and bool(click.actions and click.user.id)
        if not (is_press and is_valid_location(channel, message.ts, message.thread_ts)):
            self._not_understood(f"interaction {click.type}")
            return
        thread = thread_of(self.platform, channel, message.ts, message.thread_ts)
        author = await self._api.author(click.user.id)
        try:
            answer = await press(click.actions[0].value, thread, author, inbox)
        except StoreError:
            log.exception("processing button click failed", extra={"platform": self.platform})
            answer = LOST
        await self._respond(click.response_url, answer, message.thread_ts)

    async def _take_slash(self, slash: SlashCommand, inbox: InboxPort) -> None:
        if not (slash.command and slash.channel_id and slash.user_id):
            self._not_understood("call without a command")
            return
        command, direct = command_in(slash, inbox.commands), is_direct(slash.channel_id)
        thread = make_thread_id(self.platform, slash.channel_id, NO_THREAD)
        try:
            if command is None:
                answer = f"Unknown command `{slash.text.split(' ')[0]}`. See `{slash.command} help`."
            else:  # Slack does not report the thread in which a command was used
                author = await self._api.author(slash.user_id)
                key = f"slash/{slash.trigger_id or hashlib.sha256(msgspec.json.encode(slash)).hexdigest()}"
                answer = await inbox.command(
                    CommandRequest(
                        thread, author, command.name, command.argument, key, self._clock.now(), direct=direct,
                        private=True,
                    )
                )  # fmt: skip
        except StoreError:
            log.exception("processing command failed", extra={"platform": self.platform})
            answer = LOST
        await self._respond(slash.response_url, answer, "")

    async def _respond(self, url: str, answer: str, thread_ts: str) -> None:
        if not (url and answer):
            return
        content = {"response_type": "ephemeral", "replace_original": False, "text": rendered(answer)}
        if thread_ts:
            content["thread_ts"] = thread_ts
        try:
            await self._api.respond(url, content)
        except PlatformError as error:
            log.info("sending reply failed", extra={"platform": self.platform, "why": str(error)})

    # ---- missed messages ----

    async def _catch_up(self, inbox: InboxPort) -> None:
        """Process messages in recent threads and their channels that were missed while disconnected. Commands are
        skipped.
        """
        messages: list[SlackMessage] = []
        try:
            threads, seen = await self._recent_threads()
            places = dict.fromkeys(place_of(thread) for thread in threads)
            places |= dict.fromkeys((channel, "") for channel, _ in places)
            for channel, thread_ts in places:
                try:
                    newest = await self._api.newest(channel, thread_ts, seen, MISSED_MAX)
                except PlatformRefusal as refusal:  # the bot may have lost access
                    log.info(
                        ("conversation skipped while reading missed messages"),
                        extra={"platform": self.platform, "why": str(refusal)},
                    )
                    continue
                messages += [
                    msgspec.structs.replace(message, type="message")
                    for message in newest
                    if inbox.commands.parse(text_of(message.text or "", self._me)) is None
                ]
            for message in sorted(messages, key=lambda message: message.ts):
                await self._take_event(message, inbox)
        except (PlatformError, StoreError) as error:
            text = "reading missed messages failed: %s"
            log.warning(text, error, extra={"platform": self.platform})

    async def _recent_threads(self) -> tuple[Sequence[ThreadId], str]:
        stored = await self._store.get(f"heard:{self.platform}", "recent")
        try:
            return msgspec.json.decode(stored or "", type=tuple[tuple[ThreadId, ...], str])
        except UNREADABLE:
            return (), ""

    # ---- posts ----

    async def close(self) -> None:
        await self._api.close()

    async def post(self, post: OutboundPost) -> str:
        """Post a message and return its id. Returns a file's id if the message that shares the file is not known yet.
        Raises PlatformError.
        """
        self._statuses.pop(post.thread)  # Slack removes the status when the bot posts
        if post.kind == "ephemeral" and post.user and not is_direct(place_of(post.thread)[0]):
            shown: Fields = {
                **message_of(post), "user": post.user, "metadata": None, "unfurl_links": None, "unfurl_media": None,
            }  # fmt: skip
            return (await self._api.call("chat.postEphemeral", SlackPosted, shown)).message_ts
        is_preview = post.key.startswith("preview:")
        if post.thread in self._deleted or (
            (is_preview or post.file is not None) and await self._is_deleted(post.thread)
        ):
            raise await self._refusal_of_deleted(post.thread)
        if is_preview and (ts := await self._start_preview(post)):
            return ts
        path = post.file
        if path is None:
            return (await self._post_once(post)).ts
        if post.buttons:  # a file cannot have buttons
            await self._post_once(msgspec.structs.replace(post, key=f"{post.key}:text", file=None))
            post = msgspec.structs.replace(post, markdown="")
        # Store the file's id before sharing it, so a retry after an unknown outcome does not share it twice.
        channel = place_of(post.thread)[0]
        scope = f"uploads:{self.platform}"
        stored = (await self._store.get(scope, post.thread) or "").split(" ")
        file_id = stored[1] if len(stored) == 2 and stored[0] == post.key else ""
        if file_id and (ts := await self._shared_at(file_id, channel)):
            return ts
        files = (path, *post.album)
        file_ids = [await self._api.upload(upload) for upload in files]
        file_id = file_ids[0]
        await self._store.put(scope, post.thread, f"{post.key} {file_id}")
        given = sharing_of(post, dict(zip(file_ids, files, strict=True)))
        await self._api.call("files.completeUploadExternal", Ok, given)
        try:
            return await self._shared_at(file_id, channel) or file_id
        except PlatformError:
            return file_id  # the file is shared, but the id of its message is unknown

    async def _post_once(self, post: OutboundPost) -> SlackPosted:
        given = message_of(post)
        if post.maybe_posted or post.key in self._doubtful:
            try:
                sent = await self._find(post)
            except PlatformRefusal as refusal:  # the bot cannot read there, so mark the post as a possible repeat
                around = self.around(post.thread)
                if refusal.code == THREAD_NOT_FOUND and around is not None:
                    stray = await self._find(msgspec.structs.replace(post, thread=around))
                    raise await self._refusal_of_deleted(post.thread, stray) from refusal
                log.info("post lookup failed", extra={"platform": self.platform, "why": str(refusal)})
                given = message_of(msgspec.structs.replace(post, markdown=REPEATED + post.markdown))
            else:
                if sent:
                    self._doubtful.pop(post.key)
                    return SlackPosted(sent)
        try:
            posted = await self._api.call("chat.postMessage", SlackPosted, given)
        except PlatformError as error:
            if error.outcome_unknown:
                self._doubtful.put(post.key, None)
            raise
        self._doubtful.pop(post.key)
        if given["thread_ts"] and posted.message is not None and not posted.message.thread_ts:
            raise await self._refusal_of_deleted(post.thread, posted.ts)
        return posted

    async def _is_deleted(self, thread: ThreadId) -> bool:
        """Return True if a thread's first message was deleted and the thread has no replies."""
        channel, thread_ts = place_of(thread)
        if not thread_ts:
            return False
        try:
            await self._api.call("chat.getPermalink", Ok, {"channel": channel, "message_ts": thread_ts})
        except PlatformRefusal as refusal:
            if refusal.code == "message_not_found":
                with Tolerating("missing_scope"):
                    return not await self._has_replies(channel, thread_ts)
        return False

    async def _has_replies(self, channel: str, thread_ts: str) -> bool:
        with Tolerating(THREAD_NOT_FOUND):
            await self._api.page(channel, thread_ts, "", "", 1)
            return True
        return False

    async def _refusal_of_deleted(self, thread: ThreadId, stray_ts: str = "") -> PlatformRefusal:
        """Return the error for a thread whose first message was deleted.

        Slack accepts a post to such a thread but shows it in the channel without context. Only the missing `thread_ts`
        in the response indicates this. The post with `stray_ts` is therefore deleted. Source:
        github.com/slack-go/slack/issues/1571.
        """
        self._deleted.put(thread, None)
        if stray_ts:
            try:
                await self._api.call("chat.delete", Ok, {"channel": place_of(thread)[0], "ts": stray_ts})
            except PlatformError as error:
                log.warning("deleting stray post failed", extra={"thread_id": thread, "why": str(error)})
        return PlatformRefusal("The first message of the Slack thread was deleted.", THREAD_NOT_FOUND, gone=True)

    async def _find(self, post: OutboundPost) -> str:
        channel, thread_ts = place_of(post.thread)
        cursor = ""
        for _ in range(PAGES_MAX):
            page = await self._api.page(channel, thread_ts, self._look_back(), cursor, PAGE)
            for message in page.messages:
                if key_in(message) == post.key:
                    return message.ts
            cursor = page.response_metadata.next_cursor
            if not cursor:
                return ""
        raise PlatformError(
            "Shoal cannot check whether the message was posted, because the conversation has too many newer messages."
        )

    def _look_back(self) -> str:
        return f"{(self._clock.now() - LOOK_BACK).timestamp():.6f}"

    async def _shared_at(self, file_id: str, channel: str) -> str:
        info = await self._api.call("files.info", SlackFileInfo, {"file": file_id})
        for channels in info.file.shares.values():
            for share in channels.get(channel, ()):
                return share.ts
        return ""

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Edit a message. While the message is streaming, append to it instead. Raises PlatformError."""
        if buttons or not await self._streams.append(message_id, markdown):
            await self._change(place_of(thread)[0], message_id, markdown, buttons)

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        await self._streams.end(message_id)
        await self._api.call("chat.delete", Ok, {"channel": place_of(thread)[0], "ts": message_id})

    async def _change(self, channel: str, ts: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        given = change_of(channel, ts, markdown, buttons)
        with Tolerating("streaming_state_conflict"):
            await self._api.call("chat.update", Ok, given)
            return
        await self._streams.stop(channel, ts)
        await self._api.call("chat.update", Ok, given)

    async def roles_of(self, channel: str, user: str) -> tuple[str, ...]:
        return (await self._api.author(user, ROLES_SECONDS)).roles

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show a status. An empty status removes it. Slack supports this only in threads. Raises PlatformError."""
        channel, thread_ts = place_of(thread)
        now = self._clock.monotonic()
        before, at = self._statuses.get(thread) or ("", -STATUS_SECONDS)
        if not thread_ts or (before == status and (not status or now - at < STATUS_SECONDS)):
            return
        self._statuses.put(thread, (status, now))
        given = {"channel_id": channel, "thread_ts": thread_ts, "status": status}
        await self._api.call("assistant.threads.setStatus", Ok, given)

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Start a thread in a channel with this text and return its id. If `channel` is a user id, post to the direct
        conversation. Raises PlatformError.
        """
        if channel[:1] in ("U", "W"):
            channel = (await self._api.call("conversations.open", ChannelInfo, {"users": channel})).channel.id
        key = key or f"open:{self._clock.new_id()}"
        posted = await self._post_once(
            OutboundPost(unopened(self.platform, channel), key, text, maybe_posted=maybe_posted)
        )
        channel = posted.channel or channel
        return make_thread_id(self.platform, channel, NO_THREAD if is_direct(channel) else posted.ts)

    def around(self, thread: ThreadId) -> ThreadId | None:
        channel, thread_ts = place_of(thread)
        return unopened(self.platform, channel) if thread_ts else None

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        address = thread_address(thread)
        channel, thread_ts = (address.channel, "") if address.thread == WHOLE_CHANNEL else place_of(thread)
        oldest = f"{after.timestamp():.6f}" if after is not None else ""
        for message in await self._api.newest(channel, thread_ts, oldest, limit):
            if is_from_others(message, self._me):
                yield await self._read_back(message, thread)

    # ---- previews ----

    async def _start_preview(self, post: OutboundPost) -> str:
        """Start a preview as a stream and return the message's id. Returns an empty string if the preview cannot be
        streamed and must be sent as edits of a message.
        """
        channel, thread_ts = place_of(post.thread)
        if not thread_ts or post.buttons:
            return ""
        asker = self._askers.get(post.thread)
        if post.maybe_posted or not asker:
            if not self._me.user_id:  # posts may be sent before the first connection
                self._me = await self._api.call("auth.test", SlackBot, {})
            for message in await self._api.newest(channel, thread_ts, self._look_back(), ADOPTED_MAX):
                is_unfinished = message.metadata is None and not (message.files or message.subtype)
                if is_unfinished and message.user == self._me.user_id:  # a killed process left this preview
                    await self._change(channel, message.ts, post.markdown)
                    return message.ts
            if not asker:
                return ""
        return await self._streams.start(channel, thread_ts, asker, self._me.team_id, post.markdown)

    async def _end_idle_streams(self) -> None:
        while True:
            await self._clock.sleep(IDLE_SECONDS / 2)
            for channel, ts, markdown in self._streams.idle():
                await self._streams.end(ts)
                try:
                    await self._change(channel, ts, markdown)
                except PlatformError as error:
                    log.info("ending preview failed", extra={"platform": self.platform, "why": str(error)})

    # ---- channels ----

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Create a channel and return its id. Raises PlatformError.

        If `beside` is private, the new channel is private too and its members are invited.
        """
        people: tuple[str, ...] = ()
        private = False
        if beside:
            near = await self._channel(beside)
            private = near.is_private or near.is_im or near.is_mpim
        if private:
            asked: Fields = {"channel": beside, "limit": INVITED_MAX + 2}
            members = (await self._api.call("conversations.members", _ChannelMembers, asked)).members
            if len(members) > INVITED_MAX + 1:
                reason = (
                    f"Shoal can invite at most {INVITED_MAX} people, but the private channel has more. Create the "
                    "new channel yourself."
                )
                raise PlatformError(reason, permanent=True)
            people = tuple(person for person in members if person != self._me.user_id)
        name = channel_name(name)
        for number in range(1, NAMES_MAX + 1):
            ending = f"-{number}" if number > 1 else ""
            given: Fields = {"name": name[: CHANNEL_NAME_CHARS_MAX - len(ending)] + ending, "is_private": private}
            with Tolerating("name_taken"):
                made = (await self._api.call("conversations.create", ChannelInfo, given)).channel.id
                if people:
                    await self._api.call("conversations.invite", Ok, {"channel": made, "users": ",".join(people)})
                return made
        raise PlatformError(f"Channels named {name!r} already exist. Choose another name.", permanent=True)

    async def has_channel(self, channel: str) -> bool:
        with Tolerating("channel_not_found"):
            channel_info = await self._channel(channel)
            return not channel_info.is_archived and (
                channel_info.is_member or channel_info.is_im or channel_info.is_mpim
            )
        return False

    async def _name_of(self, channel: str) -> str:
        channel_info = await self._channel(channel)
        return f"#{channel_info.name}" if channel_info.name and not channel_info.is_mpim else ""

    async def _channel(self, channel: str) -> SlackChannel:
        return (await self._api.call("conversations.info", ChannelInfo, {"channel": channel})).channel
