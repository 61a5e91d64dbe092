"""Files of a workspace: fetched for the agent, and sent with the three calls that Slack wants."""

from pathlib import Path

import msgspec

from shoal.chat.kept import keep
from shoal.chat.slack.api import SlackApi
from shoal.chat.slack.inbound import SlackFile
from shoal.chat.slack.outbound import place_of, text_of
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.domain.messages import Attachment
from shoal.domain.posts import OutboundPost
from shoal.domain.store import Settings

DOWNLOAD_BYTES_MAX = 26_214_400
"""Larger files are named to the agent and not fetched."""
FILES_MAX = 10
"""Files fetched of one message; further ones are named."""


class _Slot(msgspec.Struct, frozen=True):
    upload_url: str
    file_id: str


class _Share(msgspec.Struct, frozen=True):
    ts: str = ""


class _SharedFile(msgspec.Struct, frozen=True):
    shares: dict[str, dict[str, tuple[_Share, ...]]] = {}


class _FileInfo(msgspec.Struct, frozen=True):
    file: _SharedFile


class _FullInfo(msgspec.Struct, frozen=True):
    file: SlackFile


class _Done(msgspec.Struct, frozen=True):
    pass


class Files:
    """The files of one account."""

    def __init__(self, platform: str, api: SlackApi, home: Home, store: Settings, clock: Clock) -> None:
        self._scope = f"uploads:{platform}"
        self._api = api
        self._home = home
        self._store = store
        self._clock = clock

    async def fetch_all(self, files: tuple[SlackFile, ...], thread: ThreadId) -> tuple[Attachment, ...]:
        """The files of a message, each kept under the thread's attachments, or with the reason why not."""
        return tuple([await self._fetch(file, thread, number) for number, file in enumerate(files)])

    async def _fetch(self, file: SlackFile, thread: ThreadId, number: int) -> Attachment:
        if file.file_access == "check_file_info":  # a file of another organisation is told of by its id alone
            try:
                file = (await self._api.call("files.info", _FullInfo, {"file": file.id})).file
            except PlatformError as error:
                return Attachment(file.label, error=str(error))
        given = Attachment(file.label, file.mimetype or "application/octet-stream", file.size)
        return await keep(self._home, self._clock, thread, given, self._content(file, number))

    async def _content(self, file: SlackFile, number: int) -> bytes:
        if number >= FILES_MAX:
            raise PlatformError(f"Of one message {FILES_MAX} files are fetched.")
        if file.is_external:
            raise PlatformError("The file lies outside of Slack; it was not fetched.")
        if file.size > DOWNLOAD_BYTES_MAX:
            raise PlatformError(f"It has more than {DOWNLOAD_BYTES_MAX} bytes.")
        found = await self._api.fetch(file.url_private_download or file.url_private, DOWNLOAD_BYTES_MAX)
        if found.media_type.startswith("text/html") and not file.mimetype.startswith("text/"):
            raise PlatformError("Slack showed a login page. Give the app the scope files:read.")
        return found.body

    async def send(self, post: OutboundPost, path: Path) -> str:
        """Share a file in a thread with its text; returns the message's id, or the file's while Slack has none.

        The file's id is kept before it is shared, so that a repeat after an unknown outcome shares nothing twice.
        Raises PlatformError.
        """
        channel, thread_ts = place_of(post.thread)
        kept = (await self._store.get(self._scope, post.thread) or "").split(" ")
        file_id = kept[1] if len(kept) == 2 and kept[0] == post.key else ""
        if file_id and (ts := await self._shared_at(file_id, channel)):
            return ts
        file_id = await self._put(path)
        await self._store.put(self._scope, post.thread, f"{post.key} {file_id}")
        await self._api.call(
            "files.completeUploadExternal",
            _Done,
            {
                "files": [{"id": file_id, "title": path.name}],
                "channel_id": channel,
                "thread_ts": thread_ts or None,
                "initial_comment": text_of(post.markdown) if post.markdown else None,
            },
        )
        try:
            return await self._shared_at(file_id, channel) or file_id
        except PlatformError:
            return file_id  # it is shared; only its message is not known

    async def _put(self, path: Path) -> str:
        try:
            size = path.stat().st_size
        except OSError as error:
            raise PlatformError(f"The file {path.name!r} cannot be read: {error.strerror}.", permanent=True) from error
        slot = await self._api.call("files.getUploadURLExternal", _Slot, {"filename": path.name, "length": str(size)})
        try:
            await self._api.upload(slot.upload_url, path)
        except PlatformError as error:  # nothing is shared yet, so it can be tried again without a doubt
            if not error.outcome_unknown:
                raise
            raise PlatformError(str(error)) from error
        return slot.file_id

    async def _shared_at(self, file_id: str, channel: str) -> str:
        """The message that shares the file in the channel; empty when there is none."""
        found = await self._api.call("files.info", _FileInfo, {"file": file_id})
        for channels in found.file.shares.values():
            for share in channels.get(channel, ()):
                return share.ts
        return ""
