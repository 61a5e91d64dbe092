"""Files of Teams: fetched when they come in, shown or offered when they go out.

A bot may put a file into a chat only where the person who gets it says so; until then what was offered is remembered.
"""

import asyncio
from pathlib import Path

import msgspec

from shoal.chat.connection import TRANSFER_SECONDS
from shoal.chat.kept import keep, read_file
from shoal.chat.teams.inbound import Activity, Consent, Upload, files_of
from shoal.chat.teams.outbound import UPLOAD_BYTES_MAX, delivered_of
from shoal.chat.teams.service import Service
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.domain.messages import Attachment
from shoal.domain.store import Settings

DOWNLOAD_BYTES_MAX = 26_214_400
FILES_MAX = 10
GONE = "This file is not offered any more."


class _Offer(msgspec.Struct, frozen=True):
    thread: ThreadId
    path: str


class Files:
    """The files of one account."""

    def __init__(self, platform: str, service: Service, home: Home, store: Settings, clock: Clock) -> None:
        self._scope = f"offers:{platform}"
        self._service = service
        self._home = home
        self._store = store
        self._clock = clock

    async def fetch_all(self, activity: Activity, thread: ThreadId) -> tuple[Attachment, ...]:
        """The files of a message, each kept under the thread's attachments, or with the reason why not."""
        files = enumerate(files_of(activity))
        return tuple([await self._fetch(file, thread, number) for number, file in files])

    async def _fetch(self, file: tuple[str, str, str], thread: ThreadId, number: int) -> Attachment:
        name, kind, url = file
        content = self._content(url, number)
        return await keep(self._home, self._clock, thread, Attachment(name, kind), content)

    async def _content(self, url: str, number: int) -> bytes:
        if number >= FILES_MAX:
            raise PlatformError(f"Of one message {FILES_MAX} files are fetched.")
        return await self._service.fetch(url, DOWNLOAD_BYTES_MAX)

    async def offer(self, thread: ThreadId, path: Path) -> str:
        """Remember a file that is offered; returns what its acceptance will name. Raises StoreError."""
        offer = self._clock.new_id()
        await self._store.put(self._scope, offer, msgspec.json.encode(_Offer(thread, str(path))).decode())
        return offer

    async def settle(self, consent: Consent, activity: Activity) -> str:
        """Put an offered file where it was accepted, once, or forget it; returns what to tell. Raises StoreError."""
        kept = await self._store.get(self._scope, consent.context.shoal) or ""
        try:
            offer = msgspec.json.decode(kept, type=_Offer)
        except UNREADABLE:
            return GONE
        if not await self._store.swap(self._scope, consent.context.shoal, kept, ""):
            return ""
        if consent.action != "accept" or consent.upload_info is None:
            return ""
        try:
            await self._put(Path(offer.path), consent.upload_info)
            await self._service.tell("POST", offer.thread, delivered_of(consent.upload_info))
        except PlatformError as error:
            await self._store.put(self._scope, consent.context.shoal, kept)
            return f"The file could not be sent: {error}"
        return ""

    async def _put(self, path: Path, upload: Upload) -> None:
        self._service.check_foreign(upload.upload_url)
        content = await asyncio.to_thread(read_file, path, UPLOAD_BYTES_MAX)
        headers = {
            "content-type": "application/octet-stream",
            "content-range": f"bytes 0-{len(content) - 1}/{len(content)}",
        }
        answer = await self._service.rest.send("PUT", upload.upload_url, content, headers, seconds=TRANSFER_SECONDS)
        if answer.status not in (200, 201, 202):
            raise PlatformError(f"the place for it answered {answer.status}.")
