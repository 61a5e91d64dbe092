"""Files, both ways: fetched into the thread's attachments, and uploaded; encrypted where the room is."""

import asyncio

from shoal.chat.matrix.api import MatrixApi, Value, media_type_of
from shoal.chat.matrix.inbound import Content, Event, file_name
from shoal.chat.matrix.outbound import Contents, Target, file_content
from shoal.chat.matrix.sealing import Sealing
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, encode_part
from shoal.domain.messages import Attachment
from shoal.domain.posts import OutboundPost

DOWNLOAD_BYTES_MAX = 26_214_400
"""Larger files are named to the agent and not fetched."""
NAME_BYTES_MAX = 120
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
        name, kind = file_name(content), content.info.mimetype or SEALED_TYPE
        try:
            if content.info.size > DOWNLOAD_BYTES_MAX:
                raise PlatformError(f"It has {content.info.size} bytes; over {DOWNLOAD_BYTES_MAX} are not fetched.")
            address = content.file.url if content.file is not None else content.url
            data = await self._api.fetch(address, DOWNLOAD_BYTES_MAX)
            if content.file is not None:
                data = await asyncio.to_thread(self._sealing.open_file, data, bytes(event.content))
            path = await asyncio.to_thread(self._keep, thread, name, data)
        except (PlatformError, OSError) as error:
            return Attachment(name, kind, content.info.size, error=str(error))
        return Attachment(name, kind, len(data), path=path)

    async def upload(self, post: OutboundPost, target: Target, *, sealed: bool) -> Contents:
        """Upload a post's file; returns the content of its message. Raises PlatformError."""
        path = post.file
        assert path is not None
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            reason = f"The file {path.name!r} cannot be read: {error.strerror}."
            raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error
        kind = media_type_of(path)
        content = file_content(post, target, kind, len(data))
        if not sealed:
            return {**content, "url": await self._api.upload(path.name, kind, data)}
        hidden, keys = await asyncio.to_thread(self._sealing.seal_file, data)
        file: dict[str, Value] = {**keys, "url": await self._api.upload("file", SEALED_TYPE, hidden)}
        return {**content, "file": file}

    def _keep(self, thread: ThreadId, name: str, data: bytes) -> str:
        folder = self._home.attachments(thread)
        folder.mkdir(parents=True, exist_ok=True)
        safe = encode_part(name).encode()[-NAME_BYTES_MAX:].decode("utf-8", "ignore")
        path = folder / f"{self._clock.new_id()}-{safe}"
        path.write_bytes(data)
        return str(path)
