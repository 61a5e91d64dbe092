"""Search index of memory, daily notes, documents, attached files and messages.

Sources are split into passages. If an embedding model is configured, the passages are also embedded.

source                                         who may see its passages
--------------------------------------------   ------------------------------------------------------------------------
data/MEMORY.md, data/memory/…                  everyone; a private line is visible only to its person
data/PLATFORM/[CHANNEL/]MEMORY.md              people on the platform or in the channel
agents/NAME/docs/…                             everyone who talks to the agent
data/PLATFORM/CHANNEL/THREAD/attachments/…     turns in the thread
said:THREAD                                    turns that may see the thread (docs/security.md)

A search first indexes the changed files that it may see, for at most REFRESH_SECONDS_MAX. Edits and deletions therefore
take effect immediately. Vectors are computed in the background at a limited rate. All state is in the database, so a
crash loses nothing.

A query is first compared with the signs of all visible vectors, one bit per component. The best candidates are then
compared with eight bits per component (measured in docs/decisions/028-recall.md). Results that are no closer to the
query than unrelated sentences are dropped.
"""

import asyncio
import heapq
import logging
import os
import re
import stat
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.features.recall.embeddings import build_embeddings
from shoal.features.recall.settings import RecallSettings
from shoal.features.recall.store import PIECES_MAX, Known, NewPassage, Passage, RecallStore
from shoal.features.recall.vectors import COHORT, Floor, bits_of, closeness, code_of
from shoal.kernel.clock import Clock, from_micros, to_micros
from shoal.kernel.errors import ProviderError, ProviderRefused, ToolError
from shoal.kernel.events import AssistantSaid, Event, Steered, UserSaid
from shoal.kernel.files import in_thread
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.memory_files import MEMORY_FILE, MEMORY_SCOPES, entry_lines, memory_path, note_files
from shoal.kernel.ports import Embeddings, ToolContext
from shoal.kernel.untrusted import is_text
from shoal.store.store import Store
from shoal.tools.documents import DOCUMENT_BYTES_MAX, document_parts, documents_below, pieces_of

if TYPE_CHECKING:
    from shoal.services import Services

log = logging.getLogger(__name__)

REFRESH_SECONDS_MAX = 10.0
"""Maximum time that a search spends on indexing changed files. After that, it searches the existing index."""
POLL_SECONDS = 10.0
AGAIN_SECONDS = 60.0
"""Seconds to wait after indexing or embedding fails."""
BATCH_TEXTS = 32
MESSAGE_CHARS_MIN = 12
"""Minimum length of a message to embed, in characters. Shorter messages, such as "ok" and "thanks", are skipped."""
SAID_CHARS_MAX = 2_000
"""Maximum number of characters of a message that are embedded. The rest of a longer message is ignored."""
RESCORED = 96
"""Number of best candidates whose vectors are compared with eight bits per component."""
HELD_MAX = 250_000
"""Maximum number of cached message vectors, about 30 MB. Older messages are searched only by words."""
RACY_NS = 50_000_000
"""Time in nanoseconds within which a file can change twice and keep the same timestamp, because of the clock's
resolution.
"""
SAID = "said:"
SCOPE = "recall"
_MARGIN = timedelta(minutes=5)
_WORD = re.compile(r"\w+")


class Refreshed(NamedTuple):
    """Result of indexing the files for a search.

    files: paths by source.
    problems: errors by source, for files that are not searched completely.
    late: changed sources that were not indexed before the time limit.
    """

    files: Mapping[str, Path]
    problems: Mapping[str, str]
    late: Sequence[str]


class _Signs(NamedTuple):
    piece: int
    bits: int
    person: str


class Library:
    """Service that indexes and searches passages. Without `embeddings`, it searches by words only."""

    def __init__(
        self, home: Home, store: Store, clock: Clock, settings: RecallSettings, embeddings: Embeddings | None
    ) -> None:
        self._home = home
        self.pieces = RecallStore(store.driver, clock)
        self._journal = store.journal
        self._marks = store.settings
        self._clock = clock
        self._settings = settings
        self.embeddings = embeddings
        self._reading: dict[str, asyncio.Event] = {}
        self._held: dict[str, list[_Signs]] = {}
        self._held_count = 0
        self._seen = 0
        self._loading = asyncio.Lock()
        self._floor: Floor | None = None

    @classmethod
    def of(cls, services: "Services") -> "Library":
        """Create the service from the configuration. Raises ConfigError if `recall.model` is invalid."""
        settings, embeddings = services[LiveConfig].current.section(RecallSettings), None
        if settings.model:
            embeddings = build_embeddings(
                settings.model, services[LiveConfig].current.providers, services[Clock], os.environ, services[Home].root
            )
        return cls(services[Home], services[Store], services[Clock], settings, embeddings)

    # ---- files ----

    async def refresh(self, context: ToolContext) -> Refreshed:
        """Index the files that a tool call may search, for at most REFRESH_SECONDS_MAX."""
        home, root = self._home, self._home.root
        memory = [memory_path(home, scope, context.chat) for scope in MEMORY_SCOPES]
        folders = [home.data / "memory", context.agent.home / "docs", home.attachments(context.thread)]
        beginnings = [_source(path, root) for path in memory] + [f"{_source(path, root)}/" for path in folders]
        return await self._refresh(beginnings, REFRESH_SECONDS_MAX)

    async def look(self, folder: Path) -> dict[Path, str]:
        """Index the files below a folder of the home directory.

        Return, for each file, the reason why it is not searched completely, or an empty string. Omits files that were
        not indexed in time.
        """
        known = await self._refresh([f"{_source(folder, self._home.root)}/"], REFRESH_SECONDS_MAX)
        return {
            path: known.problems.get(source, "") for source, path in known.files.items() if source not in known.late
        }

    async def _refresh(self, beginnings: Sequence[str], seconds_max: float) -> Refreshed:
        beginnings = [beginning for beginning in beginnings if is_text(beginning)]
        listed = await in_thread(lambda: _listed(self._home, beginnings))
        known = await self.pieces.sources(beginnings)
        until, late, problems = self._clock.monotonic() + seconds_max, list[str](), dict[str, str]()
        for source in known.keys() - listed.keys():
            await self.pieces.drop(source)
        for source, (path, stamp) in listed.items():
            stored = known.get(source)
            if stored is not None and stored.stamp == stamp:
                problem = stored.problem
            elif self._clock.monotonic() > until:
                late.append(source)
                continue
            elif (reading := self._reading.get(source)) is not None:
                await reading.wait()
                read = (await self.pieces.sources([source])).get(source)
                problem = read.problem if read is not None else ""
            else:
                problem = await self._read(source, path, stamp)
            if problem:
                problems[source] = problem
        return Refreshed({source: path for source, (path, _) in listed.items()}, problems, late)

    async def _read(self, source: str, path: Path, stamp: str) -> str:
        """Index a file. Return its error, or an empty string. Concurrent refreshes wait for this call through
        `_reading`.
        """
        reading = self._reading[source] = asyncio.Event()
        try:
            problem, pieces = await self._pieces_of(path)
            # The database rejects NUL characters and invalid UTF-8.
            texts = (piece.text.replace("\0", " ").encode("utf-8", "replace").decode() for piece in pieces)
            pieces_with_text = [piece._replace(text=text) for piece, text in zip(pieces, texts, strict=True)]
            await self.pieces.put(source, Known(stamp, problem), pieces_with_text)
        finally:
            self._reading.pop(source, None)
            reading.set()
        return problem

    async def _pieces_of(self, path: Path) -> tuple[str, list[NewPassage]]:
        problem, pieces = "", list[NewPassage]()
        try:
            if path.name == MEMORY_FILE or path.is_relative_to(self._home.data / "memory"):
                pieces = await in_thread(lambda: [NewPassage(*line) for line in entry_lines(path)])
            elif (await in_thread(path.stat)).st_size > DOCUMENT_BYTES_MAX:
                problem = f"it is larger than {DOCUMENT_BYTES_MAX // 1_048_576} MiB"
            else:
                parts = await document_parts(path.name, await in_thread(path.read_bytes))
                pieces = await in_thread(lambda: [NewPassage(place, text) for place, text in pieces_of(parts)])
                if len(pieces) > PIECES_MAX:
                    problem = f"the file has more than {PIECES_MAX:,} passages"
        except ToolError as error:
            problem = str(error)
        except OSError as error:
            problem = error.strerror or str(error)
        return problem, pieces

    async def with_words(self, query: str, sources: Sequence[str], person: str) -> list[Passage]:
        """Return the passages that contain every word of the query and that the person may see."""
        words = [word.casefold() for word in _WORD.findall(query)]
        pieces = await self.pieces.pieces(sources) if words else []

        def matching() -> list[Passage]:
            mine = [(piece, piece.text.casefold()) for piece in pieces if piece.person in ("", person)]
            return [piece for piece, text in mine if all(word in text for word in words)]

        return await in_thread(matching)

    # ---- search by meaning ----

    async def nearest(self, query: str, may_see: Callable[[str], bool], person: str, limit: int) -> list[Passage]:
        """Return up to `limit` passages that are close to the query in meaning, closest first.

        The list is empty if no passage is close enough. Raises ProviderError.
        """
        assert self.embeddings is not None
        (vector,) = await self.embeddings.embed([query])
        if self._floor is None or self._floor.numbers != len(vector):
            cohort = await self.embeddings.embed(COHORT)
            self._floor = await in_thread(lambda: Floor(cohort))
        await self._load()
        code = code_of(vector)
        floor = self._floor.of(code)
        bits = bits_of(code)

        def best() -> list[tuple[int, int]]:
            candidates = (
                ((one.bits ^ bits).bit_count(), one.piece)
                for source, held in list(self._held.items())
                if may_see(source)
                for one in held
                if one.person in ("", person)
            )
            return heapq.nsmallest(max(RESCORED, 2 * limit), candidates)

        while True:
            near = await in_thread(best)
            rows = await self.pieces.embedded([piece for _, piece in near])
            gone = {piece for _, piece in near} - {piece.id for piece, _ in rows}
            if not gone:
                break
            self._forget(gone)
        scored = [(closeness(code, b64decode(text)), piece) for piece, text in rows]
        scored.sort(key=lambda item: -item[0])
        return [piece for cosine, piece in scored[:limit] if cosine > floor]

    async def _load(self) -> None:
        async with self._loading:
            while rows := await self.pieces.vectors(self._seen):
                self._seen = rows[-1].number
                for row in rows:
                    if not row.source.startswith(SAID) or self._held_count < HELD_MAX:
                        held = _Signs(row.piece, bits_of(b64decode(row.vector)), row.person)
                        self._held.setdefault(row.source, []).append(held)
                        self._held_count += 1

    def _forget(self, gone: set[int]) -> None:
        for source, held in list(self._held.items()):
            left = [piece for piece in held if piece.piece not in gone]
            self._held_count -= len(held) - len(left)
            if left:
                self._held[source] = left
            else:
                del self._held[source]

    # ---- background work ----

    async def run(self) -> None:
        await self.begin()
        problem = ""
        while True:
            await self._clock.sleep(POLL_SECONDS)
            try:
                await self.catch_up()
                problem = ""
            except (ProviderError, OSError) as error:
                if str(error) != problem:
                    problem = str(error)
                    log.warning("indexing or embedding failed; check recall.model", extra={"why": problem})
                await self._clock.sleep(AGAIN_SECONDS)

    async def begin(self) -> None:
        """Delete all vectors if the embedding model has changed, because vectors of different models are not
        comparable.
        """
        assert self.embeddings is not None
        if await self._marks.get(SCOPE, "model") != self.embeddings.name:
            await self.pieces.reset()
            await self._marks.put(SCOPE, "model", self.embeddings.name)

    async def catch_up(self) -> None:
        """Index and embed all changes, limited to `texts_per_minute`. Raises ProviderError and StoreError."""
        data, root = self._home.data, self._home.root

        def everywhere() -> list[str]:
            memory = [path for form in ("", "*/", "*/*/") for path in data.glob(f"{form}{MEMORY_FILE}")]
            folders = (data / "memory", *sorted((root / "agents").glob("*/docs")))
            return [_source(path, root) for path in memory] + [f"{_source(path, root)}/" for path in folders]

        await self._refresh(await in_thread(everywhere), float("inf"))
        if self._settings.history:
            await self.index_conversations()
        while count := await self.embed_some():
            await self._clock.sleep(count * 60 / self._settings.texts_per_minute)

    async def index_conversations(self) -> None:
        mark = await self._marks.get(SCOPE, "said")
        since = datetime(1970, 1, 1, tzinfo=UTC)
        with suppress(ValueError, OverflowError):  # ignore an invalid stored time
            since = from_micros(int(mark or 0))
        before, newest = None, since
        while page := await self._journal.threads(limit=200, before=before):
            for info in page:
                if info.updated_at >= since:
                    newest = max(newest, info.updated_at)
                    await self.read_thread(info.thread, info.last_seq)
            before = page[-1].updated_at
            if before < since:
                break
        if newest > since:
            await self._marks.put(SCOPE, "said", str(to_micros(newest - _MARGIN)))

    async def read_thread(self, thread: ThreadId, last_seq: int) -> None:
        source, brought = f"{SAID}{thread}", False
        after = int(await self.pieces.stamp(source) or 0)
        while after < last_seq and (events := await self._journal.events(thread, after, 500)):
            after = events[-1].seq
            places = [str(event.seq) for event in events if len(message_text(event)) >= MESSAGE_CHARS_MIN]
            brought = brought or any(isinstance(event.data, UserSaid) and event.data.attachments for event in events)
            await self.pieces.add(source, str(after), places)
        folder = self._home.attachments(thread)
        if brought and folder.is_dir():
            await self._refresh([f"{_source(folder, self._home.root)}/"], float("inf"))

    async def embed_some(self) -> int:
        """Embed a batch of passages that have no vector, newest first. Return the size of the batch."""
        assert self.embeddings is not None
        waiting, wanted, empty = await self.pieces.waiting(BATCH_TEXTS), list[tuple[Passage, str]](), list[int]()
        for piece in waiting:
            text = piece.text
            if piece.source.startswith(SAID):
                event = await self.message_of(piece)
                text = message_text(event)[:SAID_CHARS_MAX] if event is not None else ""
            if text.strip():
                wanted.append((piece, text))
            else:
                empty.append(piece.id)
        await self.pieces.drop_pieces(empty)
        if wanted:
            vectors = await self._vectors([text for _, text in wanted])
            numbers, before = str(len(vectors[0])), await self._marks.get(SCOPE, "numbers")
            if before != numbers:  # the model with this name was replaced, and its vectors are not comparable
                if before is not None:
                    await self.pieces.reset()
                await self._marks.put(SCOPE, "numbers", numbers)
            coded = [b64encode(code_of(vector)).decode() for vector in vectors]
            await self.pieces.embed([(piece.id, code) for (piece, _), code in zip(wanted, coded, strict=True)])
        return len(waiting)

    async def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed texts. A text that the model rejects gets a vector of zeros, which never matches a query.

        Raises ProviderRefused if the model rejects even an ordinary sentence.
        """
        assert self.embeddings is not None
        try:
            return await self.embeddings.embed(texts)
        except ProviderRefused:
            (ordinary,) = await self.embeddings.embed(COHORT[:1])  # raises if the model rejects every text
        vectors: list[list[float]] = []
        for text in texts:
            try:
                vectors += await self.embeddings.embed([text])
            except ProviderRefused as error:
                log.info("embedding model rejected text; using word search", extra={"why": str(error)})
                vectors.append([0.0] * len(ordinary))
        return vectors

    async def message_of(self, piece: Passage) -> Event | None:
        seq = int(piece.place)
        events = await self._journal.events(ThreadId(piece.source.removeprefix(SAID)), seq - 1, 1)
        return events[0] if events and events[0].seq == seq else None


def message_text(event: Event) -> str:
    return event.data.text if isinstance(event.data, UserSaid | Steered | AssistantSaid) else ""


# ---- files ----


def _source(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _listed(home: Home, beginnings: Sequence[str]) -> dict[str, tuple[Path, str]]:
    """List the files that `beginnings` selects, each with a stamp that changes when the file changes.

    The stamp of a file that changed within RACY_NS is provisional, so the next search reads the file again.
    """
    readable: dict[str, tuple[Path, str]] = {}
    for beginning in beginnings:
        path = home.root / beginning
        if not beginning.endswith("/"):
            files = [path]
        elif path == home.data / "memory":
            files = [file for _, file in note_files(home)]
        else:
            files = documents_below(path)
        for file in files:
            try:
                status = file.lstat()
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            racy = time.time_ns() - status.st_mtime_ns < RACY_NS
            stamp = f"{status.st_mtime_ns}.{status.st_size}.{status.st_ino}{'?' if racy else ''}"
            if is_text(source := _source(file, home.root)):
                readable[source] = file, stamp
    return readable
