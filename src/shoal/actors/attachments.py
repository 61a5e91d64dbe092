"""Files that come with messages: fetched before the turn, told apart by their bytes, kept below the thread.

what came                           what the model gets
---------------------------------   ------------------------------------------------------------------
an image within the limit           the image, and its path
a larger image, any other file      its path and why it is not shown
a text file                         its path and its beginning
too large, a program, unreachable   why it is not there; the turn goes on
"""

import asyncio
import hashlib
import logging
import os
import secrets
from pathlib import Path

import msgspec

from shoal.domain.errors import FetchError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, encode_part
from shoal.domain.messages import Attachment, Prompt
from shoal.domain.transcript import SHOWN_IMAGES
from shoal.domain.web import Fetcher, FetchRequest
from shoal.tools.media import EXECUTABLE, media_type_of
from shoal.tools.output import visible
from shoal.tools.threads import in_thread

log = logging.getLogger(__name__)

DOWNLOADS_MAX = 4
"""Downloads at the same time, of all threads together."""
FILES_MAX = 10
"""Files of one message that are fetched."""
SECONDS_MAX = 60.0
EXCERPT_CHARS = 2_000
NAME_BYTES_MAX = 120
_BINARY = frozenset({"application/octet-stream", "application/pdf", "application/zip", "application/gzip"})


class AttachmentLimits(msgspec.Struct, frozen=True):
    """Largest file that is fetched, and largest image that is shown to a model."""

    bytes_max: int = 26_214_400
    image_bytes_max: int = 5_242_880


class Attachments:
    """Fetches and looks at the files of prompts."""

    def __init__(self, home: Home, fetcher: Fetcher, limits: AttachmentLimits) -> None:
        self.fetcher = fetcher
        self._home = home
        self._limits = limits
        self._places = asyncio.Semaphore(DOWNLOADS_MAX)

    async def take(self, prompt: Prompt) -> Prompt:
        """The prompt with its files in place or with why they are not; never fails for one."""
        if not prompt.attachments:
            return prompt
        taken = await asyncio.gather(
            *(self._take(prompt.thread, one, number) for number, one in enumerate(prompt.attachments))
        )
        return msgspec.structs.replace(prompt, attachments=tuple(taken))

    async def _take(self, thread: ThreadId, attachment: Attachment, number: int) -> Attachment:
        if attachment.error or not (attachment.path or attachment.url):
            return attachment
        if number >= FILES_MAX:
            return _failed(attachment, f"not fetched: a message may have {FILES_MAX} files")
        try:
            content = await self._content(attachment)
            return await in_thread(lambda: self._kept(thread, attachment, content))
        except FetchError as error:
            return _failed(attachment, f"could not be downloaded: {error}")
        except OSError as error:
            return _failed(attachment, f"could not be stored: {error.strerror or error}")

    async def _content(self, attachment: Attachment) -> bytes:
        bytes_max = self._limits.bytes_max
        if attachment.path:
            return await in_thread(lambda: _read(Path(attachment.path), bytes_max))
        if attachment.size_bytes > bytes_max:
            raise FetchError(f"it is larger than {bytes_max:,} bytes")
        async with self._places:
            request = FetchRequest(attachment.url, bytes_max=bytes_max, seconds_max=SECONDS_MAX)
            answer = await self.fetcher.fetch(request)
        if answer.status != 200:
            raise FetchError(f"the server answered {answer.status}")
        if answer.cut or len(answer.body) > bytes_max:
            raise FetchError(f"it is larger than {bytes_max:,} bytes")
        return answer.body

    def _kept(self, thread: ThreadId, attachment: Attachment, content: bytes) -> Attachment:
        media_type = media_type_of(content)
        if media_type == EXECUTABLE and not attachment.path:
            return _failed(attachment, "not kept: it is a program")
        digest = hashlib.sha256(content).hexdigest()
        path = attachment.path or str(_store(self._home.attachments(thread), attachment.name, digest, content))
        error = ""
        if media_type in SHOWN_IMAGES and len(content) > self._limits.image_bytes_max:
            error = f"not shown: an image may have {self._limits.image_bytes_max:,} bytes"
        return Attachment(
            name=attachment.name,
            media_type=_specific(attachment.media_type, media_type),
            size_bytes=len(content),
            url=attachment.url,
            path=path,
            digest=digest,
            error=error,
            excerpt=_excerpt(content) if media_type == "text/plain" else "",
        )


def _specific(claimed: str, found: str) -> str:
    """What a sender claims counts only within the family that the bytes show."""
    family = claimed.partition("/")[0]
    if found == "text/plain":
        fits = family == "text" or (family == "application" and claimed not in _BINARY)
    elif found == "application/octet-stream":
        fits = family in ("application", "audio", "video", "font")
    else:
        fits = found == "application/zip" and claimed.startswith("application/vnd.")
    return claimed if fits else found


def _excerpt(content: bytes) -> str:
    text = visible(content[: EXCERPT_CHARS * 4].decode("utf-8", errors="replace"))
    if len(content) <= EXCERPT_CHARS:
        return text
    return f"{text[:EXCERPT_CHARS]}\n[… {len(content):,} bytes in all; the rest is in the file.]"


def _failed(attachment: Attachment, why: str) -> Attachment:
    log.info("an attachment was not taken", extra={"why": why})
    return msgspec.structs.replace(attachment, error=why)


def _read(path: Path, bytes_max: int) -> bytes:
    with path.open("rb") as file:
        return file.read(bytes_max)


def _store(folder: Path, name: str, digest: str, content: bytes) -> Path:
    safe = encode_part(name.strip().lstrip(".") or "file").encode()[-NAME_BYTES_MAX:].decode("utf-8", "ignore")
    path = folder / f"{digest[:16]}-{safe}"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
