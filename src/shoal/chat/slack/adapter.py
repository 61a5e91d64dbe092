"""The Slack adapter: what the port asks of it, put together from its parts."""

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta

import msgspec

from shoal.chat.account import ChatAccount
from shoal.chat.slack.api import Parameters, Refusal, SlackApi
from shoal.chat.slack.connection import Connection, SlackSettings
from shoal.chat.slack.files import Files
from shoal.chat.slack.followed import Followed
from shoal.chat.slack.inbound import Me, Message, is_direct, prompt_of, was_said
from shoal.chat.slack.intake import Intake
from shoal.chat.slack.outbound import LIMITS, change_of, message_of, place_of
from shoal.chat.slack.people import People
from shoal.chat.slack.reading import Reader
from shoal.chat.slack.rooms import Rooms
from shoal.chat.slack.sockets import check_package
from shoal.chat.slack.streams import IDLE_SECONDS, Streams
from shoal.domain.calls import HttpAnswer
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id, unopened
from shoal.domain.messages import Attachment, Author, Prompt
from shoal.domain.ports import InboxPort
from shoal.domain.posts import REPEATED, Button, ChatLimits, OutboundPost
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

STATUS_SECONDS = 30.0
"""A status that was shown so recently is not shown again; Slack keeps it for two minutes."""
STATUSES_MAX = 1000
THINKING = "is thinking…"
LOOK_BACK = timedelta(days=1)
"""How far back a post is looked for whose outcome is unknown; so long posts are tried."""
DOUBTFUL_MAX = 2000
ADOPTED_MAX = 50
"""Messages among which a stream is looked for that a killed process left."""


class _Posted(msgspec.Struct, frozen=True):
    ts: str = ""
    message_ts: str = ""
    channel: str = ""


class _Done(msgspec.Struct, frozen=True):
    pass


class SlackAdapter:
    """Implements `ChatAdapter`, `HttpInbound` and `ChannelHost`."""

    limits: ChatLimits = LIMITS

    def __init__(self, platform: str, settings: SlackSettings, home: Home, store: Settings, clock: Clock) -> None:
        if settings.mode == "socket":
            check_package()
        self.platform = platform
        self._clock = clock
        self._api = api = SlackApi(settings.api_base, settings.bot_token, settings.account)
        self._people = People(api, clock)
        self._files = Files(platform, api, home, store, clock)
        self._followed = Followed(platform, store)
        account = ChatAccount(platform, clock, self.post, whispers=True)
        self._intake = Intake(account, settings.agent, self._followed, self._people, self._files, clock)
        self.connected = account.connected
        self._connection = Connection(settings, api, self._intake, self._followed, clock, account)
        self._reader = Reader(api)
        self._streams = Streams(api, clock)
        self._rooms = Rooms(api)
        self._doubtful: OrderedDict[str, None] = OrderedDict()
        self._statuses: OrderedDict[ThreadId, tuple[str, float]] = OrderedDict()

    async def run(self, inbox: InboxPort) -> None:
        """Receive until cancelled; reconnect with backoff by itself."""
        try:
            await self._connection.run(inbox, self._tend_streams)
        finally:
            await self._api.close()

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """A call of Slack's. Answers 401 without its signature, 503 when it has to come again."""
        return await self._connection.receive(headers, body)

    async def close(self) -> None:
        """Give connections back; for who posts without `run`."""
        await self._api.close()

    # ---- out ----

    async def post(self, post: OutboundPost) -> str:
        """Post and return the message's id. Raises PlatformError."""
        self._statuses.pop(post.thread, None)  # Slack takes the status away
        if post.kind == "ephemeral" and post.user and not is_direct(place_of(post.thread)[0]):
            given = {
                **message_of(post),
                "user": post.user,
                "metadata": None,
                "unfurl_links": None,
                "unfurl_media": None,
            }
            return (await self._api.call("chat.postEphemeral", _Posted, given)).message_ts
        if post.key.startswith("preview:") and (ts := await self._stream(post)):
            return ts
        path = post.file
        if path is None:
            return await self._post_once(post)
        if post.buttons:  # a file has none
            text = msgspec.structs.replace(post, key=f"{post.key}:text", file=None)
            await self._post_once(text)
            post = msgspec.structs.replace(post, markdown="")
        return await self._files.send(post, path)

    async def _post_once(self, post: OutboundPost) -> str:
        return (await self._posted_once(post)).ts

    async def _posted_once(self, post: OutboundPost) -> _Posted:
        """Post unless it stands there already, which is looked up where an earlier try may have gone through."""
        given = message_of(post)
        if post.maybe_posted or post.key in self._doubtful:
            try:
                found = await self._find(post)
            except Refusal as refusal:  # without the right to read, the repeat is marked
                log.info("a post could not be looked for", extra={"platform": self.platform, "why": str(refusal)})
                given = message_of(msgspec.structs.replace(post, markdown=REPEATED + post.markdown))
            else:
                if found:
                    self._doubtful.pop(post.key, None)
                    return _Posted(found)
        try:
            posted = await self._api.call("chat.postMessage", _Posted, given)
        except PlatformError as error:
            if error.outcome_unknown:
                self._doubtful[post.key] = None
                while len(self._doubtful) > DOUBTFUL_MAX:
                    self._doubtful.popitem(last=False)
            raise
        self._doubtful.pop(post.key, None)
        return posted

    async def _find(self, post: OutboundPost) -> str:
        channel, thread_ts = place_of(post.thread)
        oldest = f"{(self._clock.now() - LOOK_BACK).timestamp():.6f}"
        return await self._reader.find(channel, thread_ts, oldest, post.key)

    async def _stream(self, post: OutboundPost) -> str:
        """Begin a preview as a stream; empty where it has to be a message that is edited."""
        channel, thread_ts = place_of(post.thread)
        if not thread_ts or post.buttons:
            return ""
        asker = self._followed.asker(post.thread)
        if post.maybe_posted or not asker:
            found = await self._adopt(channel, thread_ts, post)
            if found or not asker:
                return found
        return await self._streams.start(channel, thread_ts, asker, self._intake.me.team_id, post.markdown)

    async def _adopt(self, channel: str, thread_ts: str, post: OutboundPost) -> str:
        """Go on with the stream that a killed process left in this thread, should there be one."""
        oldest = f"{(self._clock.now() - LOOK_BACK).timestamp():.6f}"
        if not self._intake.me.user_id:  # posts go out before it has connected for the first time
            self._intake.me = await self._api.call("auth.test", Me, {})
        me = self._intake.me.user_id
        for message in await self._reader.newest(channel, thread_ts, oldest, ADOPTED_MAX):
            if message.user == me and message.metadata is None and not (message.files or message.subtype):
                await self._change(channel, message.ts, change_of(channel, message.ts, post.markdown, ()))
                return message.ts
        return ""

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a posted message, or append to it while it is a stream. Raises PlatformError."""
        channel, _ = place_of(thread)
        if buttons or not await self._streams.follow(message_id, markdown):
            await self._change(channel, message_id, change_of(channel, message_id, markdown, buttons))

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        await self._streams.end(message_id)
        await self._api.call("chat.delete", _Done, {"channel": place_of(thread)[0], "ts": message_id})

    async def _change(self, channel: str, ts: str, given: Parameters) -> None:
        try:
            await self._api.call("chat.update", _Done, given)
        except Refusal as refusal:
            if refusal.code != "streaming_state_conflict":
                raise
        else:
            return
        await self._streams.stop(channel, ts)
        await self._api.call("chat.update", _Done, given)

    async def _tend_streams(self) -> None:
        """End streams that nobody writes to any more, with all they were given."""
        while True:
            await self._clock.sleep(IDLE_SECONDS / 2)
            for channel, ts, markdown in self._streams.idle():
                await self._streams.end(ts)
                try:
                    await self._change(channel, ts, change_of(channel, ts, markdown, ()))
                except PlatformError as error:
                    log.info("a preview was left as it is", extra={"platform": self.platform, "why": str(error)})

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show a status in a thread, which Slack has there only; an empty one ends it. Raises PlatformError."""
        channel, thread_ts = place_of(thread)
        shown = THINKING if status == "…" else status
        now = self._clock.monotonic()
        before, at = self._statuses.get(thread, ("", -STATUS_SECONDS))
        if not thread_ts or (before == shown and (not shown or now - at < STATUS_SECONDS)):
            return
        self._statuses[thread] = (shown, now)
        while len(self._statuses) > STATUSES_MAX:
            self._statuses.popitem(last=False)
        given = {"channel_id": channel, "thread_ts": thread_ts, "status": shown}
        await self._api.call("assistant.threads.setStatus", _Done, given)

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel, or to a person by their id, and return the thread this opens. Raises PlatformError."""
        if channel[:1] in ("U", "W"):
            channel = await self._rooms.direct(channel)
        key = key or f"open:{self._clock.new_id()}"
        post = OutboundPost(unopened(self.platform, channel), key, text, maybe_posted=maybe_posted)
        posted = await self._posted_once(post)
        channel = posted.channel or channel
        return make_thread_id(self.platform, channel, "0" if is_direct(channel) else posted.ts)

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """What others wrote in a thread, oldest first, the newest `limit` of it. Raises PlatformError."""
        channel, thread_ts = place_of(thread)
        oldest = f"{after.timestamp():.6f}" if after is not None else ""
        for message in await self._reader.newest(channel, thread_ts, oldest, limit):
            if was_said(message, self._intake.me):
                yield await self._told(message, thread)

    async def _told(self, message: Message, thread: ThreadId) -> Prompt:
        if message.bot_id:
            author = Author(message.user or message.bot_id, is_bot=True, trusted=False)
        else:
            author = await self._people.author(message.user)
        files = tuple(Attachment(file.label, file.mimetype, file.size) for file in message.files)
        prompt = prompt_of(self.platform, message, self._intake.me)
        return msgspec.structs.replace(prompt, thread=thread, author=author, attachments=files)

    # ---- channels ----

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Make a channel; beside a private one it is private, with the same people. Returns its id.

        Raises PlatformError.
        """
        return await self._rooms.make(name, beside, self._intake.me.user_id)

    async def has_channel(self, channel: str) -> bool:
        """Whether the channel is there and the bot may write to it. Raises PlatformError when that is not known."""
        return await self._rooms.has(channel)
