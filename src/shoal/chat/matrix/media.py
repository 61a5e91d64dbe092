"""Files, both ways: fetched into the thread's attachments, and uploaded; encrypted where the room is."""

import asyncio

from shoal.chat.kept import keep, read_file
from shoal.chat.matrix.api import MatrixApi, Value, media_type_of
from shoal.chat.matrix.inbound import Content, Event, file_name
from shoal.chat.matrix.outbound import Contents, Target, file_content
from shoal.chat.matrix.sealing import Sealing
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.domain.messages import Attachment
from shoal.domain.posts import OutboundPost

DOWNLOAD_BYTES_MAX = 26_214_400
"""Larger files are named to the agent and not fetched."""
UPLOAD_BYTES_MAX = 104_857_600
"""Read into memory to be sealed; homeservers take less (Synapse 50 MB by default) and say so."""
SEALED_TYPE = "application/octet-stream"


class Media:
    """The files of one account."""

    def __init__(self, api: MatrixApi, sealing: Sealing, home: Home, clock: Clock) -> None:
        self._api = api
        self._sealing = sealing
        self._home = home
        self._clock = clock

    async def fetch(self, event: Event, content: Content, thread: ThreadId) -> Attachment:
        """A message's file, kept under the thread's attachments, or the reason why not."""
        given = Attachment(file_name(content), content.info.mimetype or SEALED_TYPE, content.info.size)
        return await keep(self._home, self._clock, thread, given, self._content(event, content))

    async def upload(self, post: OutboundPost, target: Target, *, sealed: bool) -> Contents:
        """Upload a post's file; returns the content of its message. Raises PlatformError."""
        path = post.file
        assert path is not None
        data = await asyncio.to_thread(read_file, path, UPLOAD_BYTES_MAX)
        kind = media_type_of(path)
        content = file_content(post, target, kind, len(data))
        if not sealed:
            return {**content, "url": await self._api.upload(path.name, kind, data)}
        hidden, keys = await asyncio.to_thread(self._sealing.seal_file, data)
        file: dict[str, Value] = {**keys, "url": await self._api.upload("file", SEALED_TYPE, hidden)}
        return {**content, "file": file}

    async def _content(self, event: Event, content: Content) -> bytes:
        if content.info.size > DOWNLOAD_BYTES_MAX:
            raise PlatformError(f"It has {content.info.size} bytes; over {DOWNLOAD_BYTES_MAX} are not fetched.")
        if content.file is None:
            return await self._api.fetch(content.url, DOWNLOAD_BYTES_MAX)
        data = await self._api.fetch(content.file.url, DOWNLOAD_BYTES_MAX)
        return await asyncio.to_thread(self._sealing.open_file, data, bytes(event.content))
