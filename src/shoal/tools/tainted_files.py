"""Files that untrusted content had a hand in: marked while such calls work, and found again when a call reads them.

What is kept is not the files but the spans of time in which such calls worked, on the file system's clock: a file is
marked while its last change is in one of them. So a later change by a call that nothing steered clears it, and nothing
has to be searched after a command.

a call                                     what it is taken to read
----------------------------------------   ---------------------------------------------------------------------
that shows or edits a file                 the file it names
that lists a folder                        the folder it names with all below it
that replaces or sends a file              nothing: it shows nothing of the file it names
of a command                               what its actions say that they read and run; where one of them does
                                           not know, everything below its folders
any other                                  each file or folder that one of its arguments names

So a command is clean only if every file that it can read is known and none is marked, however it spells them. Before it
runs, a marked file counts that it names to read or run, and where it may run files that it does not name, each marked
one that may be code. A mark is of a file's content: a clean call that changes only its name, links or rights leaves it
marked.

Files of the home that enter prompts are marked as well, by spans of time for the whole home. What an append, an edit or
a copy leaves of a marked file keeps its mark.

file                                             how it enters a prompt
----------------------------------------------   --------------------------------------------------------------------
data/**/MEMORY.md, data/memory/                  memory and daily notes, in every prompt of their scope
agents/NAME/{agent.toml,*.md}, docs/, skills/    who the agent is, its documents, the list of its skills
data/{IDENTITY,SYSTEM}.md                        who all agents are, what was changed in their environment
agents/NAME/sessions/                            a saved conversation, once it is restored
data/events/, data/HEARTBEAT.md                  a message that starts a turn
template/                                        what the files of a new agent are made from
"""

import os
import shlex
import stat
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path, PurePosixPath

import anyio
import msgspec

from shoal.files.deep_folders import walk
from shoal.files.mounts import from_host, from_inside
from shoal.kernel import lazy_re
from shoal.kernel.files import digest_of_file, in_thread
from shoal.kernel.home import MEMORY_FILE, MEMORY_SCOPES, Home, MemoryScope, memory_path, note_path
from shoal.kernel.ids import ThreadId
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Mount, Settings, ToolContext
from shoal.kernel.traits import Keeps, Traits, TraitsByName
from shoal.kernel.untrusted import UNREADABLE, short_source, written_after
from shoal.permissions.code_files import is_code
from shoal.permissions.secret_files import holds_secret, is_secret_file
from shoal.tools.jail import is_systems, resolve

SPANS_MAX = 128
"""Spans kept of a folder for each person; beyond it the two with the smallest gap become one, which marks what lies
between. Those of others stay as they are: nobody sees how much was written in private."""
SLACK_NS = 20_000_000
"""A file system stamps changes by a clock that runs this much behind (a tick of the kernel, at most 10 ms)."""
_OTHERS = " and others"


class FileClock(msgspec.Struct, frozen=True):
    """Tells the time (nanoseconds since 1970); file systems stamp changes by a clock up to `slack_ns` behind it."""

    now_ns: Callable[[], int] = time.time_ns
    slack_ns: int = SLACK_NS


SYSTEM_FILE_CLOCK = FileClock()


class Span(msgspec.Struct, frozen=True, array_like=True):
    """From when to when (nanoseconds since 1970, both ends included) changes were steered, and by what; `person` is
    whose private lines alone were written, empty where anybody may see them."""

    began: int
    ended: int
    source: str
    person: str = ""


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """The spans of a folder, by their beginning."""

    spans: tuple[Span, ...] = ()

    def with_span(self, span: Span) -> "Marks":
        """One more span; past the bound, and never less marked, the closest two of its person become one."""
        spans = sorted((*self.spans, span), key=lambda one: (one.began, one.ended))
        own = [place for place, one in enumerate(spans) if one.person == span.person]
        if len(own) > SPANS_MAX:
            gaps = [(spans[after].began - spans[before].ended, before, after) for before, after in pairwise(own)]
            _, before, after = min(gaps)
            first, second = spans[before], spans.pop(after)
            named = first.source.removesuffix(_OTHERS)
            source = first.source if named == second.source.removesuffix(_OTHERS) else f"{named}{_OTHERS}"
            spans[before] = Span(first.began, max(first.ended, second.ended), source, span.person)
        return Marks(tuple(spans))

    def ended(self, span: Span, at: int) -> "Marks":
        """The span ended earlier than foreseen; unchanged when it was joined with others meanwhile."""
        sooner = msgspec.structs.replace(span, ended=at)
        return Marks(tuple([sooner if one == span else one for one in self.spans]))

    def within(self, changed: Iterable[int], settled: int) -> "Marks":
        """Only the spans in which one of these changes lies, and those that ended after `settled`."""
        times = sorted(changed)

        def holds(span: Span) -> bool:
            return bisect_left(times, span.began) < bisect_right(times, span.ended)

        return Marks(tuple([span for span in self.spans if span.ended > settled or holds(span)]))

    def source_of(self, changed: Iterable[int], person: str | None = None) -> str:
        """What steered the last change of any of these times, in what `person` may see (None: anything), or nothing."""
        found = self.sources_of(changed)
        return next((source for whose, source in found.items() if person is None or whose in ("", person)), "")

    def sources_of(self, changed: Iterable[int]) -> dict[str, str]:
        """What steered the last change of any of these times, by the person whose private lines alone were written."""
        found: dict[str, str] = {}
        for at in changed:
            for span in self.spans:
                if span.began <= at <= span.ended:
                    found.setdefault(span.person, span.source)
        return found


def planned_span(began: int, seconds: float, source: str, person: str = "", slack_ns: int = SLACK_NS) -> Span:
    """What is noted before a call that may take this long, so that a crash in it leaves nothing unmarked."""
    return Span(began - slack_ns, began + int(seconds * 1e9), short_source(source), person)


def encode_marks(marks: Marks) -> str:
    return msgspec.json.encode(marks).decode()


def decode_marks(text: str | None) -> Marks:
    """Invert `encode_marks`; no marks where nothing is kept. Where that cannot be read everything counts as marked."""
    try:
        return msgspec.json.decode(text, type=Marks) if text else Marks()
    except UNREADABLE:
        return Marks((Span(0, 2**63 - 1, "marks that cannot be read"),))


SCOPE = "marks"
ENTRIES_MAX = 20_000
"""Files looked at for one call; what lies beyond counts as marked."""
SETTLED_NS = 3_600_000_000_000
"""A span is only forgotten when it ended so long ago."""

_PATH_CHARS_MAX = 4096
_TEXT = lazy_re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))(\s*+:)?')
"""A text of a JSON document, and whether it is the name of a field."""
_APART = frozenset({"workspace", "scratch", "attachments", "artifacts", "checkpoints", ".git"})
"""Folders of the home that have marks of their own, or none: what lies in them enters no prompt by itself."""
_TOO_MANY = "one of more files than can be looked at"


class MarkedFile(msgspec.Struct, frozen=True):
    """A marked file as it was before a call: what it was known by, its content, and what marked it."""

    folder: Path
    size_bytes: int
    digest: str
    source: str


Inode = tuple[int, int]


class MarkedFiles:
    """Keeps the marks of folders in the store, for all workers together."""

    def __init__(self, settings: Settings, home: Home, clock: FileClock = SYSTEM_FILE_CLOCK) -> None:
        self._settings = settings
        self._home = home
        self.clock = clock

    @asynccontextmanager
    async def during(
        self, folders: Collection[Path], source: str, seconds_max: float, person: str = ""
    ) -> AsyncGenerator[None]:
        """Mark what changes below the folders while the block runs, at most this long; nothing without a source.

        With a person, only lines that are for them alone are written. Noted before, so that a crash loses no mark.
        Raises StoreError.
        """
        if not source or not folders:
            yield
            return
        span = planned_span(self.clock.now_ns(), seconds_max, source, person, self.clock.slack_ns)
        noted: list[Path] = []
        try:
            for folder in folders:
                await self._change(folder, lambda marks: marks.with_span(span))
                noted.append(folder)
            yield
        finally:
            ended = self.clock.now_ns()
            with anyio.CancelScope(shield=True):  # were it lost, more would be marked, never less
                for folder in noted:
                    await self._change(folder, lambda marks: marks.ended(span, ended))

    async def marks(self, folder: Path) -> Marks:
        """The marks of a folder, by what is known now. Raises StoreError."""
        return decode_marks(await self._settings.get(SCOPE, self._key(folder)))

    async def sources(self, folders: Collection[Path], person: str | None = None) -> Callable[[str | Path], str]:
        """What tells the source of a file below these folders, empty when there is none, by what is known now.

        With a person, of what they may see of it; an empty one may see what everybody may. Raises StoreError.
        """
        kept = {folder: await self.marks(folder) for folder in folders}
        if not any(marks.spans for marks in kept.values()):
            return lambda path: ""
        return lambda path: _source_of(Path(path), kept, person)

    async def sources_by_person(self, folder: Path, file: Path) -> dict[str, str]:
        """The sources of a file, by the person whose private lines alone they are of; empty: of lines for everybody.

        Raises StoreError.
        """
        marks = await self.marks(folder)
        return marks.sources_of(_changed(file)) if marks.spans else {}

    async def since(self, folders: Iterable[Path], began_ns: int, source: str) -> None:
        """Mark what changed below the folders from a time on until now. Raises StoreError."""
        span = Span(began_ns - self.clock.slack_ns, self.clock.now_ns(), short_source(source))
        for folder in folders:
            await self._change(folder, lambda marks: marks.with_span(span))

    async def note(self, folder: Path, files: Iterable[Path], source: str) -> None:
        """Mark these files of a folder as they are now; one that is gone is none. Raises StoreError."""
        for changed in await in_thread(lambda: [at for file in files for at in _changed(file)]):
            span = Span(changed, changed, short_source(source))
            await self._change(folder, lambda marks, span=span: marks.with_span(span))

    async def renew(self, changed_at: Mapping[Path, int]) -> None:
        """Mark files that were made again, and had been changed at these times before. Raises StoreError."""
        after, marked = "", list[tuple[Path, Path, str]]()
        while page := await self._settings.page(SCOPE, after):
            for after, kept in page:
                marks, folder = decode_marks(kept), self._home.root / after
                below = ((path, at) for path, at in changed_at.items() if path.is_relative_to(folder))
                marked += [(folder, path, source) for path, at in below if (source := marks.source_of([at]))]

        def touch() -> None:
            """Have the files be changed later than all others, so that what marks them marks no other."""
            time.sleep(SLACK_NS / 1e9)
            for path in {path for _, path, _ in marked}:
                status = path.stat()
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

        await in_thread(touch)
        for folder, path, source in marked:
            await self.note(folder, [path], source)

    async def source_of(
        self, actions: Sequence[Action], mounts: Sequence[Mount], traits: TraitsByName, *, mapped: bool
    ) -> str:
        """What had a hand in any of the files that a call with these actions may read; empty when nothing had.

        Raises StoreError.
        """
        named = _read_by(actions, mounts, traits)
        return await self._source(None if None in named else named, mounts, mapped=mapped)

    async def steers(
        self, actions: Sequence[Action], mounts: Sequence[Mount], traits: TraitsByName, *, mapped: bool
    ) -> str:
        """What had a hand in a file that a call is known to read, or may run; empty when nothing had.

        A program that is not known may run any file that it is given as a word. Raises StoreError.
        """
        named = [path for path in _read_by(actions, mounts, traits) if path is not None]
        named += [path for action in actions if not action.whole for path in action.runs]
        found = await self._source(named, mounts, mapped=mapped)
        hiding = [action for action in actions if action.runs_more and not action.whole]
        if not found and hiding:
            names: set[str] = set()  # the last part of each word, and of what follows a `=` in it
            for action in hiding:
                if action.opaque:
                    try:
                        words = shlex.split(action.text)
                    except ValueError:
                        words = action.text.split()
                    names |= {PurePosixPath(word.rpartition("=")[2]).name for word in words}

            def wanted(path: Path) -> bool:
                return path.name in names or is_code(path.name) or os.access(path, os.X_OK)

            found = await self._source(None, mounts, mapped=mapped, wanted=wanted)
        return found

    async def _source(
        self,
        named: Sequence[str | None] | None,
        mounts: Sequence[Mount],
        *,
        mapped: bool,
        wanted: Callable[[Path], bool] = os.path.lexists,
    ) -> str:
        """What marked the first marked file among these, and below them, that is wanted; None: among all there are."""
        if named is not None and not named:
            return ""
        paths = [mount.host for mount in mounts]
        if named is not None:
            paths = await in_thread(lambda: _places(named, mounts, mapped=mapped))
        marks, home = dict[Path, Marks](), self._home.root
        for mount in mounts:
            if any(path.is_relative_to(mount.host) or mount.host.is_relative_to(path) for path in paths):
                spans = (await self.marks(mount.host)).spans
                if not mount.writable:  # documents, skills: calls change these by other ways
                    spans += (await self.marks(home)).spans
                marks[mount.host] = Marks(spans)
        if any(path.is_relative_to(home) and not any(map(path.is_relative_to, marks)) for path in paths):
            marks[home] = await self.marks(home)
        if not any(kept.spans for kept in marks.values()):
            return ""

        def first() -> str:
            left = ENTRIES_MAX
            for file in (file for path in paths for file in _below(path)):
                left -= 1
                if left < 0:
                    return _TOO_MANY
                if (source := _source_of(file, marks)) and wanted(file):
                    return written_after(repr(file.name), source)
            return ""

        return await in_thread(first)

    async def below(self, folders: Iterable[Path]) -> dict[Inode, MarkedFile]:
        """The marked files of folders; none, without a look at any file, where nothing is marked. Raises StoreError."""
        found: dict[Inode, MarkedFile] = {}

        def look(folder: Path, marks: Marks) -> None:
            for file in islice(_below(folder), ENTRIES_MAX):
                if source := marks.source_of(_changed(file)):
                    with suppress(OSError):
                        status = file.lstat()
                        digest = digest_of_file(file) if stat.S_ISREG(status.st_mode) else ""
                        found[status.st_dev, status.st_ino] = MarkedFile(folder, status.st_size, digest, source)

        for folder in folders:
            if (marks := await self.marks(folder)).spans:
                await in_thread(partial(look, folder, marks))
        return found

    async def keep(self, before: Mapping[Inode, MarkedFile], folders: Iterable[Path]) -> None:
        """Mark again what a call has changed of marked files without changing their content. Raises StoreError."""

        def lost(folder: Path, marks: Marks) -> list[Span]:
            """When files were changed that are no longer marked, though they have the content that they had."""
            found: list[Span] = []
            for file in islice(_below(folder), ENTRIES_MAX):
                with suppress(OSError):
                    now = file.lstat()
                    known, at = before.get((now.st_dev, now.st_ino)), now.st_ctime_ns
                    if known is None or now.st_size != known.size_bytes or marks.source_of((at,)):
                        continue
                    if not known.digest or digest_of_file(file) == known.digest:
                        found.append(Span(at, at, known.source))
            return found

        for folder in folders if before else ():
            for span in await in_thread(partial(lost, folder, await self.marks(folder))):
                await self._change(folder, lambda marks, span=span: marks.with_span(span))

    async def forget_unused(self) -> int:
        """Forget what marks no file any more; returns how many folders are without marks now. Raises StoreError.

        For homes whose files every machine sees: what no file here was changed in counts as gone. Spans that may still
        be open stay, as do folders with too many files to look at, and those on a disk that may just be away.
        """
        emptied, after, home = 0, "", self._home.root
        while page := await self._settings.page(SCOPE, after):
            for after, kept in page:
                marks, settled, folder = decode_marks(kept), time.time_ns() - SETTLED_NS, home / after
                apart = _APART if folder == home else frozenset[str]()

                def changes(
                    after: str = after, folder: Path = folder, apart: Collection[str] = apart
                ) -> list[tuple[int, ...]] | None:
                    """When what is below was changed; None where that may just be away."""
                    try:
                        if not folder.is_dir() and (Path(after).is_absolute() or not folder.parent.parent.is_dir()):
                            return None
                        return [_changed(file) for file in islice(_below(folder, apart), ENTRIES_MAX + 1)]
                    except OSError:
                        return None

                changed = await in_thread(changes)
                if changed is None or len(changed) > ENTRIES_MAX:
                    continue
                used = marks.within(chain.from_iterable(changed), settled)
                if used != marks and used.spans:
                    await self._settings.swap(SCOPE, after, kept, encode_marks(used))
                elif used != marks:
                    emptied += await self._settings.drop(SCOPE, after, kept)
        return emptied

    async def _change(self, folder: Path, change: Callable[[Marks], Marks]) -> None:
        key = self._key(folder)
        while True:
            kept = await self._settings.get(SCOPE, key)
            if await self._settings.swap(SCOPE, key, kept, encode_marks(change(decode_marks(kept)))):
                return

    def _key(self, folder: Path) -> str:
        """The folder, below the home directory where it lies in it, so that it may lie elsewhere on other machines."""
        with suppress(ValueError):
            folder = folder.relative_to(self._home.root)
        return str(folder)


_LISTERS = frozenset({"ls", "find", "tree", "fd", "du", "stat", "pwd", "cd", "test", "["})
"""Commands that show the names of what a folder holds, not its content."""


SEARCHED_MAX = 2_000
"""Files per call whose content is searched for secrets. The names of further files are checked as well."""


def secret_below(actions: Sequence[Action], mounts: Sequence[Mount], traits: TraitsByName, *, mapped: bool) -> str:
    """Return the first file that looks like a secret, by name or content, among the files that are read or sent.

    A folder with more than ENTRIES_MAX files is returned itself.
    """
    read: list[str] = []
    for action in actions:
        tool, detail = traits.of(action.tool), action.detail
        if tool.names == "sent":
            read.append(detail)
        if tool.takes_commands and not action.whole and detail.partition(" ")[0] not in _LISTERS:
            read += action.reads or ()
    searched = 0
    for place in _places(read, mounts, mapped=mapped):
        is_folder = place.is_dir()
        for number, file in enumerate(_below(place)):
            if number == ENTRIES_MAX:
                return place.name
            searched += 1
            is_named = is_folder and is_secret_file(str(file.relative_to(place)))
            if is_named or (searched <= SEARCHED_MAX and holds_secret(file)):
                return file.name
    return ""


def _read_by(actions: Sequence[Action], mounts: Sequence[Mount], traits: TraitsByName) -> list[str | None]:
    """The paths, as actions name them, of what a call reads; None among them: whatever there is."""
    named: list[str | None] = []
    for action in actions:
        tool, detail = traits.of(action.tool), action.detail
        if tool.names in ("replaced", "sent"):
            continue
        if tool.shows_file and f"{detail}/".startswith(MEMORY_PAGES):
            continue
        if tool.shows_file or tool.names == "edited":
            named.append(detail)
        elif not tool.takes_commands:
            named += _mentioned(detail, mounts)
        elif not action.whole:
            writes = bool(action.also) and all(name.startswith("tool:write:") for name in action.also)
            if action.reads or not writes or action.opaque:  # else it is only a redirection to a file
                named += (None,) if action.reads is None else (*action.reads, *action.runs)
    return named


def _mentioned(detail: str, mounts: Sequence[Mount]) -> Iterator[str]:
    """Paths of the mounts that a call of any other tool names, by itself or among its arguments: it may read them."""
    texts = [(detail, "")] if detail.startswith("/") else _TEXT.findall(detail) if detail.startswith("{") else []
    for text in [text for text, names_field in texts if not names_field]:
        with suppress(*UNREADABLE):
            named = msgspec.json.decode(text, type=str) if text.startswith('"') else text
            if not named or len(named) > _PATH_CHARS_MAX or "\0" in named:
                continue
            path = os.path.join("/workspace", named)
            place = from_inside(path, mounts) or from_host(Path(path), mounts)
            if place is not None:
                yield str(PurePosixPath(place.mount.inside, *place.parts))


def _places(named: Iterable[str | None], mounts: Sequence[Mount], *, mapped: bool) -> list[Path]:
    """Where these paths lead on the host, without those where nothing is; all mounts where that is not known."""
    found: dict[Path, None] = {}
    for path in named:
        place = resolve(path, mounts, mapped=mapped) if path else None
        if place is None or (place.mount not in mounts and not is_systems(place.shown)):
            return [mount.host for mount in mounts]
        if os.path.lexists(place.host):
            found[place.host] = None
    return list(found)


def _source_of(file: Path, marks: Mapping[Path, Marks], person: str | None = None) -> str:
    found = ""
    for path in (file, Path(os.path.realpath(file))) if file.is_symlink() else (file,):
        kept = next((kept for folder, kept in marks.items() if path.is_relative_to(folder)), Marks())
        found = found or (kept.source_of(_changed(path), person) if kept.spans else "")
    return found


def _below(path: Path, apart: Collection[str] = ()) -> Iterator[Path]:
    """A file itself, or all files and empty folders below a folder but those `apart`; follows no links to folders."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in walk(path):
        folders[:] = [name for name in folders if name not in apart]
        for name in names:
            yield Path(folder, name)
        for name in folders:
            below = os.path.join(folder, name)
            try:
                with os.scandir(below) as scan:
                    is_empty = next(scan, None) is None
            except OSError:
                is_empty = False
            if is_empty or os.path.islink(below):
                yield Path(below)


def _changed(file: Path) -> tuple[int, ...]:
    """When a file, or the link it is, was changed last, by the clock that no program can set; nothing for no file."""
    try:
        return (file.lstat().st_ctime_ns,)
    except (OSError, ValueError):
        return ()


AMEND_SECONDS_MAX = 60.0
_INSIDE = ("/workspace/", "/scratch/")
MEMORY_PAGES = "/memory/"
"""Path of the memory for file tools. No mount uses it."""


class PromptFiles:
    """The marks of the home's files."""

    def __init__(self, marks: MarkedFiles, home: Home) -> None:
        self.marks = marks
        self.home = home

    async def sources(self, person: str | None = None) -> Callable[[str | Path], str]:
        """What tells the source of a file, of what this person may see of it (None: of all of it), empty when there is
        none, by what is known now. Raises StoreError."""
        return await self.marks.sources([self.home.root], person)

    async def source_of(self, *files: Path) -> str:
        """What had a hand in the first marked one of these files; empty when none is. Raises StoreError."""
        source_of = await self.sources()
        return next((source for file in files if (source := source_of(file))), "")

    @asynccontextmanager
    async def amending(
        self, files: Sequence[Path], source: str, seconds_max: float, person: str = ""
    ) -> AsyncGenerator[None]:
        """While the block runs, at most so long, changes are marked with the source, and with what marks these files.

        With a person, only lines that are for them alone are written, so that the source marks nobody else's prompt.
        Raises StoreError.
        """
        root, sources = self.home.root, dict[str, str]()
        for file in files:
            sources = {**await self.marks.sources_by_person(root, file), **sources}
        if source:
            sources[person] = source
        async with AsyncExitStack() as stack:
            for whose, one in sources.items():
                await stack.enter_async_context(self.marks.during([root], one, seconds_max, whose))
            yield

    def marking(self, source: str) -> AbstractAsyncContextManager[None]:
        """While the block runs, at most AMEND_SECONDS_MAX, changes are marked; nothing without a source."""
        return self.marks.during([self.home.root], source, AMEND_SECONDS_MAX)


def may_change(name: str, traits: Traits, actions: Sequence[Action], *, isolated: bool) -> bool:
    """Whether a call may change files of the home outside of the agent's workspace; `isolated`: commands cannot."""
    if traits.read_only or traits.changes in ("nothing", "workspace") or (traits.runs_commands and isolated):
        return False
    inside = tuple(f"tool:{name}:{folder}" for folder in _INSIDE)
    return any(not action.text.startswith(inside) for action in actions)


def memory_read(actions: Sequence[Action], home: Home, chat: ThreadId, traits: TraitsByName) -> list[Path]:
    """Return the memory files that a file-reading tool call reads, by the names of their pages."""
    scopes: list[tuple[str, MemoryScope]] = [("person", "global"), *((scope, scope) for scope in MEMORY_SCOPES)]
    named: dict[str, MemoryScope] = {f"{MEMORY_PAGES}{name}/{MEMORY_FILE}": scope for name, scope in scopes}
    return [
        memory_path(home, named[action.detail], chat)
        for action in actions
        if action.detail in named and traits.of(action.tool).shows_file
    ]


def amended(keeps: Keeps, actions: Collection[Action], context: ToolContext) -> list[Path]:
    """The files whose text stays in what a call writes, by what its tool keeps."""
    home, agent = context.home, context.agent.home
    match keeps:
        case "memory":
            scopes = {action.detail.partition(" ")[0] for action in actions}
            if "person" in scopes:
                scopes.add("global")  # where it stands
            files = [memory_path(home, scope, context.chat) for scope in MEMORY_SCOPES if scope in scopes]
            days = [scope for scope in scopes if scope.isdecimal()]
            return [*files, *(home.data / "memory" / day[:6] / f"{day}.md" for day in days)]
        case "note":
            return [note_path(home, context.clock.local().date())]
        case "document":
            return [agent / "docs" / action.detail for action in actions]
        case "settings":
            return [agent / "agent.toml"]
        case "":
            return []
