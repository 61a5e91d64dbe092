"""Download the files attached to messages in the background, detect their types, and store them in the thread's folder.

    file                                what the model gets
    ---------------------------------   ------------------------------------------------------------------
    an image                            the image, reduced if it is too large, and its path
    an image that cannot be shown       its path and an error message
    a text file                         its path and its beginning
    a recording                         its path, and a transcript if a feature recognizes speech
    any other file                      its path
    a file that is too large,           an error message. The turn continues.
    executable or unreachable
    a file that takes longer than       its future path. If the download fails, a file there contains the
    the turn can wait                   error message.

A download starts when its message is accepted, even while an earlier turn runs. A turn waits at most
`attachment_wait_seconds` for its files.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.errors import FetchError, InvalidInput, StoreError, system_words
from shoal.kernel.files import in_thread
from shoal.kernel.home import Home
from shoal.kernel.ids import encode_part
from shoal.kernel.messages import Attachment, Prompt
from shoal.kernel.permissions import Asker
from shoal.kernel.regular_files import read_regular
from shoal.kernel.settings import ContextSettings
from shoal.kernel.turnstate import NOT_SHOWN
from shoal.net.addresses import Fetcher, FetchRequest
from shoal.tools.attachments import EXECUTABLE, fit_image, is_image, media_type_of
from shoal.tools.output import text_of, visible
from shoal.tools.tainted_files import MarkedFiles

log = logging.getLogger(__name__)

DOWNLOADS_MAX = 4
"""Maximum number of threads whose files are downloaded at the same time. The files of one thread are downloaded one
after another.
"""
WAITING_MAX = 1000
"""Maximum number of downloads whose results are remembered. The oldest are dropped first."""
FILES_MAX = 10
SECONDS_MAX = 60.0
EXCERPT_CHARS = 2_000
NAME_BYTES_MAX = 120
_BINARY = frozenset({"application/octet-stream", "application/pdf", "application/zip", "application/gzip"})

Transcribe: TypeAlias = Callable[[Prompt, str, Asker], Awaitable[Prompt]]
"""Function that transcribes the recordings in a message. The cost is charged to the given agent and asker."""


class _Download:
    """A download. `result` is set once it is `done`. `source` names an untrusted sender, or is empty."""

    def __init__(self, attachment: Attachment, path: Path, source: str) -> None:
        self.attachment = attachment
        self.path = path
        self.source = source
        self.done = asyncio.Event()
        self.result: Attachment | None = None

    def finish(self, result: Attachment) -> None:
        self.result = result
        self.done.set()


class Attachments:
    """Downloads and examines the files attached to prompts while `run` is active. Taints files from untrusted people.

    A feature that recognizes speech sets `transcribe`.
    """

    def __init__(
        self, home: Home, fetcher: Fetcher, settings: ContextSettings, clock: Clock, marked: MarkedFiles
    ) -> None:
        self.transcribe: Transcribe | None = None
        self._marked = marked
        self.fetcher = fetcher
        self._home = home
        self._settings = settings
        self._clock = clock
        self._known: OrderedDict[Path, _Download] = OrderedDict()
        self._files: dict[Path, deque[_Download]] = {}
        """Files to download, by thread folder. `_queue` contains each folder only once."""
        self._queue: asyncio.Queue[Path] = asyncio.Queue()

    async def run(self) -> None:
        """Download until cancelled, for at most DOWNLOADS_MAX threads at a time."""

        async def download() -> None:
            while True:
                folder = await self._queue.get()
                files = self._files[folder]
                download = files[0]
                try:
                    taken = await self._take(download)
                    was_awaited = self._known.get(download.path) is download
                    download.finish(taken)
                    if taken.error and not taken.path and not was_awaited:
                        note = f"This file is missing ({taken.error}).\n".encode()
                        # A turn may expect the file at this path, so write the error there.
                        with contextlib.suppress(OSError):
                            await in_thread(partial(_store, download.path, note))
                    files.popleft()
                finally:  # Queue an interrupted download again.
                    if files:
                        self._queue.put_nowait(folder)
                    else:
                        del self._files[folder]
                    self._queue.task_done()

        async with anyio.create_task_group() as tasks:
            for _ in range(DOWNLOADS_MAX):
                tasks.start_soon(download)

    def expect(self, prompt: Prompt) -> None:
        """Start the downloads of a prompt's files. Does not block."""
        for number in range(len(prompt.attachments)):
            self._begin(prompt, number)

    async def take(self, prompt: Prompt, inside: Callable[[Path], str], agent: str, asker: Asker) -> Prompt:
        """Return the prompt with its downloaded files and the transcripts of recordings.

        If a file is missing, the prompt contains the error, or the path where the download will appear. Does not
        raise for file errors. `inside` converts a host path to the path that the agent's tools and commands use.
        """
        if not prompt.attachments:
            return prompt
        downloads = [self._begin(prompt, number) for number in range(len(prompt.attachments))]
        until = self._clock.monotonic() + self._settings.attachment_wait_seconds
        for download in downloads:
            await self._clock.wait(download.done, max(0.0, until - self._clock.monotonic()))
        taken: list[Attachment] = []
        for download in downloads:
            self._known.pop(download.path, None)
            attachment = download.result
            if attachment is None:
                still = f"still downloading; it will be at {inside(download.path)}"
                attachment = msgspec.structs.replace(download.attachment, error=still)
            taken.append(
                msgspec.structs.replace(attachment, inside=inside(Path(attachment.path)) if attachment.path else "")
            )
        prompt = msgspec.structs.replace(prompt, attachments=tuple(taken))
        return prompt if self.transcribe is None else await self.transcribe(prompt, agent, asker)

    def _begin(self, prompt: Prompt, number: int) -> _Download:
        attachment = prompt.attachments[number]
        mark = hashlib.sha256(f"{prompt.key}/{number}".encode()).hexdigest()[:16]
        name = encode_part(attachment.name.strip().lstrip(".") or "file").encode()[-NAME_BYTES_MAX:]
        path = self._home.attachments(prompt.thread) / f"{mark}-{name.decode('utf-8', 'ignore')}"
        download = self._known.get(path)
        if download is None:
            author = attachment.author or prompt.author
            source = f"a file from {author.name or author.id or 'an unknown person'}"
            source = attachment.tainted_by if author.trusted else source
            download = self._known[path] = _Download(attachment, path, source)
            if number >= FILES_MAX:
                download.finish(_failed(attachment, f"not downloaded: a message can have at most {FILES_MAX} files"))
            elif attachment.error or not (attachment.path or attachment.url):
                download.finish(attachment)
            else:
                files = self._files.setdefault(path.parent, deque())
                files.append(download)
                if len(files) == 1:
                    self._queue.put_nowait(path.parent)
            if len(self._known) > WAITING_MAX:
                self._known.popitem(last=False)
        return download

    async def join(self) -> None:
        await self._queue.join()

    async def _take(self, download: _Download) -> Attachment:
        attachment, bytes_max = download.attachment, self._settings.attachment_bytes_max

        def read() -> bytes:
            return read_regular(Path(attachment.path), bytes_max)

        try:
            if attachment.path:
                content = await in_thread(read)
            elif attachment.size_bytes > bytes_max:
                raise FetchError(f"it is larger than {bytes_max:,} bytes")
            else:
                request = FetchRequest(attachment.url, bytes_max=bytes_max, seconds_max=SECONDS_MAX)
                answer = await self.fetcher.fetch(request)
                if answer.status != 200:
                    raise FetchError(f"the server returned {answer.status}")
                if answer.cut or len(answer.body) > bytes_max:
                    raise FetchError(f"it is larger than {bytes_max:,} bytes")
                content = answer.body
            taken = await in_thread(lambda: self._with_stored_file(attachment, content, download.path))
            if download.source:
                paths = [Path(path) for path in (taken.path, taken.shown) if path]
                await self._marked.note(download.path.parent, paths, download.source)
            return taken
        except FetchError as error:
            return _failed(attachment, f"not downloaded: {error}")
        except OSError as error:
            return _failed(attachment, f"not stored: {system_words(error)}")
        except StoreError as error:
            return _failed(attachment, f"Shoal could not mark the file as untrusted: {error}")

    def _with_stored_file(self, attachment: Attachment, content: bytes, path: Path) -> Attachment:
        media_type = media_type_of(content)
        if media_type == EXECUTABLE and not attachment.path:
            return _failed(attachment, "not stored: executable files are not accepted")
        if not attachment.path:
            _store(path, content)
        error = shown = shown_type = excerpt = ""
        if media_type == "text/plain":
            excerpt = visible(text_of(content[: EXCERPT_CHARS * 4]))
            if len(content) > EXCERPT_CHARS:
                excerpt = f"{excerpt[:EXCERPT_CHARS]}\n[… {len(content):,} bytes in all; the rest is in the file.]"
        if is_image(media_type):
            try:
                image, image_type = fit_image(content, self._settings.attachment_image_bytes_max)
            except InvalidInput as problem:
                error = f"{NOT_SHOWN}{problem}"
            else:
                if image is not content:
                    smaller = path.with_name(f"{path.name}.shown")
                    _store(smaller, image)
                    shown, shown_type = str(smaller), image_type
        return msgspec.structs.replace(
            attachment,
            media_type=specific_media_type(attachment.media_type, media_type),
            size_bytes=len(content),
            path=attachment.path or str(path),
            digest=hashlib.sha256(content).hexdigest(),
            error=error,
            excerpt=excerpt,
            shown=shown,
            shown_type=shown_type,
        )


def specific_media_type(claimed: str, detected: str) -> str:
    """Return the claimed media type if it is compatible with the detected type, otherwise the detected type.

    For example, a video container may contain only sound.
    """
    family = claimed.partition("/")[0]
    if detected == "text/plain":
        fits = family == "text" or (family == "application" and claimed not in _BINARY)
    elif detected == "application/octet-stream":
        fits = family in ("application", "audio", "video", "font")
    elif detected.startswith("video/"):
        fits = claimed == detected.replace("video/", "audio/")
    else:
        fits = detected == "application/zip" and claimed.startswith("application/vnd.")
    return claimed if fits else detected


def _failed(attachment: Attachment, why: str) -> Attachment:
    log.info("attachment rejected", extra={"why": why})
    return msgspec.structs.replace(attachment, error=why)


def _store(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
