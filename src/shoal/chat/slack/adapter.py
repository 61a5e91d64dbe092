"""The Slack adapter: what comes in, and posts, files, previews and channels by the Web API."""

import logging
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import msgspec

from shoal.chat.http import Fields
from shoal.chat.inbox import Recent
from shoal.chat.slack.receive import PAGE, PAGES_MAX, SlackReceiver, prompt_of, was_said
from shoal.chat.slack.send import (
    CHANNEL_NAME_CHARS_MAX,
    EVENT_TYPE,
    IDLE_SECONDS,
    LIMITS,
    NO_THREAD,
    SlackStreams,
    change_of,
    channel_name,
    is_direct,
    message_of,
    place_of,
    rendered,
)
from shoal.chat.slack.wire import Ok, SlackBot, SlackRefusal, check_package
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id, unopened
from shoal.domain.messages import Attachment, Author, Prompt
from shoal.domain.ports import InboxPort, Settings
from shoal.domain.posts import REPEATED, Button, OutboundPost
from shoal.domain.settings import SlackSettings
from shoal.domain.untrusted import UNREADABLE

log = logging.getLogger(__name__)

STATUS_SECONDS = 30.0
"""A status that was shown so recently is not shown again; Slack keeps it for two minutes."""
STATUSES_MAX = 1000
THINKING = "is thinking…"
LOOK_BACK = timedelta(days=1)
"""How far back a post is looked for whose outcome is unknown; posts are tried for as long."""
DOUBTFUL_MAX = 2000
ADOPTED_MAX = 50
"""Messages among which a stream is looked for that a killed process left."""
INVITED_MAX = 50
"""People of a private channel who are invited to one made beside it."""
NAMES_MAX = 9
"""Names tried when the first is taken: name, name-2, …"""


class _PostedMessage(msgspec.Struct, frozen=True):
    ts: str = ""
    message_ts: str = ""
    channel: str = ""


class _UploadSlot(msgspec.Struct, frozen=True):
    upload_url: str
    file_id: str


class _FileShare(msgspec.Struct, frozen=True):
    ts: str = ""


class _SharedFile(msgspec.Struct, frozen=True):
    shares: dict[str, dict[str, tuple[_FileShare, ...]]] = {}


class _SharedFileInfo(msgspec.Struct, frozen=True):
    file: _SharedFile


class _SlackChannel(msgspec.Struct, frozen=True):
    id: str = ""
    is_private: bool = False
    is_archived: bool = False
    is_member: bool = False
    is_im: bool = False
    is_mpim: bool = False


class _ChannelInfo(msgspec.Struct, frozen=True):
    channel: _SlackChannel


class _ChannelMembers(msgspec.Struct, frozen=True):
    members: tuple[str, ...] = ()


class SlackAdapter(SlackReceiver):
    """Implements `ChatAdapter`, `HttpInbound` and `ChannelHost`."""

    limits = LIMITS

    def __init__(self, platform: str, settings: SlackSettings, home: Home, store: Settings, clock: Clock) -> None:
        if settings.mode == "socket":
            check_package()
        super().__init__(platform, settings, home, store, clock)
        self._streams = SlackStreams(self._api, clock)
        self._doubtful: Recent[None] = Recent(DOUBTFUL_MAX)
        self._statuses: Recent[tuple[str, float]] = Recent(STATUSES_MAX)

    async def _keep_connected(self, inbox: InboxPort) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_idle_streams)
            await super()._keep_connected(inbox)

    async def close(self) -> None:
        await self._api.close()

    # ---- posts ----

    async def post(self, post: OutboundPost) -> str:
        self._statuses.pop(post.thread)  # Slack removes the status
        if post.kind == "ephemeral" and post.user and not is_direct(place_of(post.thread)[0]):
            given: Fields = {
                **message_of(post), "user": post.user, "metadata": None, "unfurl_links": None, "unfurl_media": None,
            }  # fmt: skip
            return (await self._api.call("chat.postEphemeral", _PostedMessage, given)).message_ts
        if post.key.startswith("preview:") and (ts := await self._start_preview(post)):
            return ts
        path = post.file
        if path is None:
            return (await self._post_once(post)).ts
        if post.buttons:  # a file has none
            await self._post_once(msgspec.structs.replace(post, key=f"{post.key}:text", file=None))
            post = msgspec.structs.replace(post, markdown="")
        return await self._share_file(post, path)

    async def _post_once(self, post: OutboundPost) -> _PostedMessage:
        """Post unless it is there already, which is looked up where an earlier try may have gone through."""
        given = message_of(post)
        if post.maybe_posted or post.key in self._doubtful:
            try:
                found = await self._find(post)
            except SlackRefusal as refusal:  # without the right to read, the repeat is marked
                log.info("a post could not be looked for", extra={"platform": self.platform, "why": str(refusal)})
                given = message_of(msgspec.structs.replace(post, markdown=REPEATED + post.markdown))
            else:
                if found:
                    self._doubtful.pop(post.key)
                    return _PostedMessage(found)
        try:
            posted = await self._api.call("chat.postMessage", _PostedMessage, given)
        except PlatformError as error:
            if error.outcome_unknown:
                self._doubtful.put(post.key, None)
            raise
        self._doubtful.pop(post.key)
        return posted

    async def _find(self, post: OutboundPost) -> str:
        """The id of our message that was posted with this key; empty when there is none. Raises PlatformError."""
        channel, thread_ts = place_of(post.thread)
        cursor = ""
        for _ in range(PAGES_MAX):
            page = await self._page(channel, thread_ts, self._look_back(), cursor, PAGE)
            for message in page.messages:
                metadata = message.metadata
                if metadata is None or metadata.event_type != EVENT_TYPE:
                    continue
                try:
                    key: object = msgspec.json.decode(metadata.event_payload.get("key", msgspec.Raw(b"")))
                except UNREADABLE:
                    continue
                if key == post.key:
                    return message.ts
            cursor = page.response_metadata.next_cursor
            if not cursor:
                return ""
        raise PlatformError("Too much was written meanwhile to see whether a message was posted.")

    def _look_back(self) -> str:
        """The timestamp from which our posts are looked for."""
        return f"{(self._clock.now() - LOOK_BACK).timestamp():.6f}"

    async def _share_file(self, post: OutboundPost, path: Path) -> str:
        """Share a file in a thread with its text; returns the message's id, or the file's while Slack has none.

        The file's id is stored before it is shared, so that a repeat after an unknown outcome shares nothing twice.
        Raises PlatformError.
        """
        channel, thread_ts = place_of(post.thread)
        scope = f"uploads:{self.platform}"
        stored = (await self._store.get(scope, post.thread) or "").split(" ")
        file_id = stored[1] if len(stored) == 2 and stored[0] == post.key else ""
        if file_id and (ts := await self._shared_at(file_id, channel)):
            return ts
        try:
            length = str(path.stat().st_size)
        except OSError as error:
            raise PlatformError(f"The file {path.name!r} cannot be read: {error.strerror}.", permanent=True) from error
        given: Fields = {"filename": path.name, "length": length}
        slot = await self._api.call("files.getUploadURLExternal", _UploadSlot, given)
        file_id = slot.file_id
        try:
            await self._api.upload(slot.upload_url, path)
        except PlatformError as error:  # nothing is shared yet, so it can be tried again without a doubt
            if not error.outcome_unknown:
                raise
            raise PlatformError(str(error)) from error
        await self._store.put(scope, post.thread, f"{post.key} {file_id}")
        given = {
            "files": [{"id": file_id, "title": path.name}],
            "channel_id": channel,
            "thread_ts": thread_ts or None,
            "initial_comment": rendered(post.markdown) if post.markdown else None,
        }
        await self._api.call("files.completeUploadExternal", Ok, given)
        try:
            return await self._shared_at(file_id, channel) or file_id
        except PlatformError:
            return file_id  # it is shared; only its message is not known

    async def _shared_at(self, file_id: str, channel: str) -> str:
        """The message that shares the file in the channel; empty when there is none."""
        found = await self._api.call("files.info", _SharedFileInfo, {"file": file_id})
        for channels in found.file.shares.values():
            for share in channels.get(channel, ()):
                return share.ts
        return ""

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a posted message, or append to it while it is a stream. Raises PlatformError."""
        if buttons or not await self._streams.append(message_id, markdown):
            await self._change(place_of(thread)[0], message_id, markdown, buttons)

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        """Delete a message of ours. Raises PlatformError."""
        await self._streams.end(message_id)
        await self._api.call("chat.delete", Ok, {"channel": place_of(thread)[0], "ts": message_id})

    async def _change(self, channel: str, ts: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        given = change_of(channel, ts, markdown, buttons)
        try:
            await self._api.call("chat.update", Ok, given)
        except SlackRefusal as refusal:
            if refusal.code != "streaming_state_conflict":
                raise
            await self._streams.stop(channel, ts)
            await self._api.call("chat.update", Ok, given)

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show a status in a thread, which Slack has there only; an empty one ends it. Raises PlatformError."""
        channel, thread_ts = place_of(thread)
        shown = THINKING if status == "…" else status
        now = self._clock.monotonic()
        before, at = self._statuses.get(thread) or ("", -STATUS_SECONDS)
        if not thread_ts or (before == shown and (not shown or now - at < STATUS_SECONDS)):
            return
        self._statuses.put(thread, (shown, now))
        given = {"channel_id": channel, "thread_ts": thread_ts, "status": shown}
        await self._api.call("assistant.threads.setStatus", Ok, given)

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel, or to a person by their id, and return the thread this opens. Raises PlatformError."""
        if channel[:1] in ("U", "W"):
            channel = (await self._api.call("conversations.open", _ChannelInfo, {"users": channel})).channel.id
        key = key or f"open:{self._clock.new_id()}"
        posted = await self._post_once(
            OutboundPost(unopened(self.platform, channel), key, text, maybe_posted=maybe_posted)
        )
        channel = posted.channel or channel
        return make_thread_id(self.platform, channel, NO_THREAD if is_direct(channel) else posted.ts)

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """What others wrote in a thread, oldest first, the newest `limit` of it. Raises PlatformError."""
        channel, thread_ts = place_of(thread)
        oldest = f"{after.timestamp():.6f}" if after is not None else ""
        for message in await self._newest(channel, thread_ts, oldest, limit):
            if not was_said(message, self._me):
                continue
            if message.bot_id:
                author = Author(message.user or message.bot_id, is_bot=True, trusted=False)
            else:
                author = await self._author(message.user)
            files = tuple(Attachment(file.label, file.mimetype, file.size) for file in message.files)
            prompt = prompt_of(self.platform, message, self._me)
            yield msgspec.structs.replace(prompt, thread=thread, author=author, attachments=files)

    # ---- previews ----

    async def _start_preview(self, post: OutboundPost) -> str:
        """Begin a preview as a stream; empty where it has to be a message that is edited."""
        channel, thread_ts = place_of(post.thread)
        if not thread_ts or post.buttons:
            return ""
        asker = self._askers.get(post.thread)
        if post.maybe_posted or not asker:
            found = await self._adopt_stream(channel, thread_ts, post.markdown)
            if found or not asker:
                return found
        return await self._streams.start(channel, thread_ts, asker, self._me.team_id, post.markdown)

    async def _adopt_stream(self, channel: str, thread_ts: str, markdown: str) -> str:
        """Go on with the stream that a killed process left in this thread, if there is one."""
        if not self._me.user_id:  # posts go out before it has connected for the first time
            self._me = await self._api.call("auth.test", SlackBot, {})
        for message in await self._newest(channel, thread_ts, self._look_back(), ADOPTED_MAX):
            is_unfinished = message.metadata is None and not (message.files or message.subtype)
            if is_unfinished and message.user == self._me.user_id:
                await self._change(channel, message.ts, markdown)
                return message.ts
        return ""

    async def _end_idle_streams(self) -> None:
        """End streams that nobody writes to any more, with all they were given."""
        while True:
            await self._clock.sleep(IDLE_SECONDS / 2)
            for channel, ts, markdown in self._streams.idle():
                await self._streams.end(ts)
                try:
                    await self._change(channel, ts, markdown)
                except PlatformError as error:
                    log.info("a preview was left as it is", extra={"platform": self.platform, "why": str(error)})

    # ---- channels ----

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Make a channel; beside a private one it is private, with the same people. Returns its id.

        Raises PlatformError.
        """
        people: tuple[str, ...] = ()
        private = False
        if beside:
            near = await self._channel(beside)
            private = near.is_private or near.is_im or near.is_mpim
        if private:
            given: Fields = {"channel": beside, "limit": INVITED_MAX + 2}
            members = (await self._api.call("conversations.members", _ChannelMembers, given)).members
            if len(members) > INVITED_MAX + 1:
                reason = f"The private channel has more than {INVITED_MAX} people to invite. Make the channel yourself."
                raise PlatformError(reason, permanent=True)
            people = tuple(person for person in members if person != self._me.user_id)
        made = await self._create(channel_name(name), private)
        if people:
            await self._api.call("conversations.invite", Ok, {"channel": made, "users": ",".join(people)})
        return made

    async def _create(self, name: str, private: bool) -> str:
        for number in range(1, NAMES_MAX + 1):
            ending = f"-{number}" if number > 1 else ""
            given: Fields = {"name": name[: CHANNEL_NAME_CHARS_MAX - len(ending)] + ending, "is_private": private}
            try:
                return (await self._api.call("conversations.create", _ChannelInfo, given)).channel.id
            except SlackRefusal as refusal:
                if refusal.code != "name_taken":
                    raise
        raise PlatformError(f"Channels named {name!r} exist already. Choose another name.", permanent=True)

    async def has_channel(self, channel: str) -> bool:
        """Whether the channel is there and the bot may write to it. Raises PlatformError when that is not known."""
        try:
            found = await self._channel(channel)
        except SlackRefusal as refusal:
            if refusal.code == "channel_not_found":
                return False
            raise
        return not found.is_archived and (found.is_member or found.is_im or found.is_mpim)

    async def _channel(self, channel: str) -> _SlackChannel:
        return (await self._api.call("conversations.info", _ChannelInfo, {"channel": channel})).channel
