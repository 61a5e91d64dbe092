"""Files that untrusted content had a hand in: noted while such calls work, and found again when a call reads them.

a call                                     what it is taken to read
----------------------------------------   ---------------------------------------------------------------------
read, view, edit, append, str_replace      the file it names
list, grep and their like                  the folder it names with all below it
bash, process_start                        what its actions say that they read and run; where one of them does
                                           not know, everything below its folders

So a command is clean only if every file that it can read is known and none is marked, however it spells them. Before it
runs, a marked file counts that it names to read or run, and where it may run files that it does not name, each marked
one that may be code. A mark is of a file's content: a clean call that changes only its name, links or rights leaves it
marked.
"""

import os
import shlex
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path, PurePosixPath

import anyio
import msgspec

from shoal.domain.files import digest_of_file
from shoal.domain.home import Home
from shoal.domain.permissions import Action
from shoal.domain.ports import Mount
from shoal.domain.store import Settings
from shoal.permissions.code_files import is_code
from shoal.permissions.marks import (
    SLACK_NS,
    SYSTEM_FILE_CLOCK,
    FileClock,
    Marks,
    Span,
    decode_marks,
    encode_marks,
    planned_span,
)
from shoal.permissions.taint import is_secret_file
from shoal.tools.resolve import is_systems, resolve
from shoal.tools.threads import in_thread

SCOPE = "marks"
ENTRIES_MAX = 20_000
"""Files looked at for one call; what lies beyond counts as marked."""
SETTLED_NS = 3_600_000_000_000
"""A span is only forgotten when it ended so long ago."""

_NAMING_TOOLS = frozenset({"read", "view", "edit", "append", "str_replace", "list", "ls", "glob", "grep", "find"})
_COMMAND_TOOLS = frozenset({"bash", "process_start"})
_AFTER = ", written after "
_APART = frozenset({"workspace", "scratch", "attachments", "artifacts", ".git"})
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
        """See `domain.files.FolderMarks`."""
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

    async def sources(self, folders: Collection[Path], person: str | None = None) -> Callable[[Path], str]:
        """See `domain.files.FolderMarks`."""
        kept = {folder: await self._marks(folder) for folder in folders}
        return lambda path: _source_of(path, kept, person)

    async def sources_by_person(self, folder: Path, file: Path) -> dict[str, str]:
        """See `domain.files.FolderMarks`."""
        marks = await self._marks(folder)
        return marks.sources_of(_changed(file)) if marks.spans else {}

    async def since(self, folders: Iterable[Path], began_ns: int, source: str) -> None:
        """Mark what changed below the folders from a time on until now. Raises StoreError."""
        span = planned_span(began_ns, (self.clock.now_ns() - began_ns) / 1e9, source, slack_ns=self.clock.slack_ns)
        for folder in folders:
            await self._change(folder, lambda marks: marks.with_span(span))

    async def note(self, folder: Path, files: Iterable[Path], source: str) -> None:
        """Mark these files of a folder as they are now; one that is gone is none. Raises StoreError."""
        found = await in_thread(lambda: list(_changes(files)))
        for changed in found:
            span = Span(changed, changed, planned_span(0, 0, source).source)
            await self._change(folder, lambda marks, span=span: marks.with_span(span))

    async def renew(self, changed_at: Mapping[Path, int]) -> None:
        """Mark files that were made again, and had been changed at these times before. Raises StoreError."""
        after, marked = "", list[tuple[Path, Path, str]]()
        while page := await self._settings.page(SCOPE, after):
            for after, kept in page:
                marks, folder = decode_marks(kept), self._home.root / after
                below = ((path, at) for path, at in changed_at.items() if path.is_relative_to(folder))
                marked += [(folder, path, source) for path, at in below if (source := marks.source_of([at]))]
        await in_thread(lambda: _touch({path for _, path, _ in marked}))
        for folder, path, source in marked:
            await self.note(folder, [path], source)

    async def source_of(self, actions: Sequence[Action], mounts: Sequence[Mount], *, mapped: bool) -> str:
        """What had a hand in any of the files that a call with these actions may read; empty when nothing had.

        Raises StoreError.
        """
        named = _read_by(actions, mounts)
        return await self._source(None if None in named else named, mounts, mapped=mapped)

    async def steers(self, actions: Sequence[Action], mounts: Sequence[Mount], *, mapped: bool) -> str:
        """What had a hand in a file that a call is known to read, or may run; empty when nothing had.

        A program that is not known may run any file that it is given as a word. Raises StoreError.
        """
        named = [path for path in _read_by(actions, mounts) if path is not None]
        named += [path for action in actions if not action.whole for path in action.runs]
        found = await self._source(named, mounts, mapped=mapped)
        hiding = [action for action in actions if action.runs_more and not action.whole]
        if not found and hiding:
            words = {word for action in hiding if action.opaque for word in _file_names(action.text)}
            found = await self._source(
                None, mounts, mapped=mapped, wanted=lambda path: path.name in words or _may_be_code(path)
            )
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
        marks = {
            mount.host: await self._marks_of(mount)
            for mount in mounts
            if any(path.is_relative_to(mount.host) or mount.host.is_relative_to(path) for path in paths)
        }
        home = self._home.root
        if any(path.is_relative_to(home) and not any(map(path.is_relative_to, marks)) for path in paths):
            marks[home] = await self._marks(home)
        if not any(kept.spans for kept in marks.values()):
            return ""
        return await in_thread(lambda: _first_source(paths, marks, wanted))

    async def below(self, folders: Iterable[Path]) -> dict[Inode, MarkedFile]:
        """The marked files of folders; none, without a look at any file, where nothing is marked. Raises StoreError."""
        found: dict[Inode, MarkedFile] = {}
        for folder in folders:
            if (marks := await self._marks(folder)).spans:
                found |= await in_thread(lambda folder=folder, marks=marks: _marked_below(folder, marks))
        return found

    async def keep(self, before: Mapping[Inode, MarkedFile], folders: Iterable[Path]) -> None:
        """Mark again what a call has changed of marked files without changing their content. Raises StoreError."""
        for folder in folders if before else ():
            marks = await self._marks(folder)
            for changed, source in await in_thread(lambda folder=folder, marks=marks: _lost(folder, marks, before)):
                span = Span(changed, changed, source)
                await self._change(folder, lambda marks, span=span: marks.with_span(span))

    async def forget_unused(self) -> int:
        """Forget what marks no file any more; returns how many folders are without marks now. Raises StoreError.

        For homes whose files every machine sees: what no file here was changed in counts as gone. Spans that may still
        be open stay, as do folders with too many files to look at, and those on a disk that may just be away.
        """
        emptied, after = 0, ""
        while page := await self._settings.page(SCOPE, after):
            for after, kept in page:
                emptied += await self._forget_in(after, kept)
        return emptied

    async def _forget_in(self, key: str, kept: str) -> bool:
        marks, settled, folder = decode_marks(kept), time.time_ns() - SETTLED_NS, self._home.root / key
        is_away = not folder.is_dir() and (Path(key).is_absolute() or not folder.parent.parent.is_dir())
        apart = _APART if folder == self._home.root else frozenset[str]()
        changed = None if is_away else await in_thread(lambda: _changed_below(folder, apart))
        if changed is None:
            return False
        used = marks.within(changed, settled)
        if used == marks:
            return False
        if used.spans:
            await self._settings.swap(SCOPE, key, kept, encode_marks(used))
            return False
        return await self._settings.drop(SCOPE, key, kept)

    async def _change(self, folder: Path, change: Callable[[Marks], Marks]) -> None:
        key = self._key(folder)
        while True:
            kept = await self._settings.get(SCOPE, key)
            marks = decode_marks(kept) if kept else Marks()
            if await self._settings.swap(SCOPE, key, kept, encode_marks(change(marks))):
                return

    async def _marks(self, folder: Path) -> Marks:
        kept = await self._settings.get(SCOPE, self._key(folder))
        return decode_marks(kept) if kept else Marks()

    async def _marks_of(self, mount: Mount) -> Marks:
        """Its own, and those of the home's files where calls change them by other ways (documents, skills)."""
        own = await self._marks(mount.host)
        return own if mount.writable else Marks((*own.spans, *(await self._marks(self._home.root)).spans))

    def _key(self, folder: Path) -> str:
        """The folder, below the home directory where it lies in it, so that it may lie elsewhere on other machines."""
        home = self._home.root
        return str(folder.relative_to(home) if folder.is_relative_to(home) else folder)


_LISTERS = frozenset({"ls", "find", "tree", "fd", "du", "stat", "pwd", "cd", "test", "["})
"""Commands that show the names of what a folder holds, not its content."""


def secret_below(actions: Sequence[Action], mounts: Sequence[Mount], *, mapped: bool) -> str:
    """The first file that looks like a secret below the folders that commands read; beyond ENTRIES_MAX files the folder
    itself."""
    read: list[str] = []
    for action in actions:
        tool, _, detail = action.text.removeprefix("tool:").partition(":")
        if tool in _COMMAND_TOOLS and not action.whole and detail.partition(" ")[0] not in _LISTERS:
            read += action.reads or ()
    for folder in [place for place in _places(read, mounts, mapped=mapped) if place.is_dir()]:
        for number, file in enumerate(_below(folder)):
            if number == ENTRIES_MAX or is_secret_file(PurePosixPath(file.relative_to(folder))):
                return folder.name if number == ENTRIES_MAX else file.name
    return ""


def _read_by(actions: Sequence[Action], mounts: Sequence[Mount]) -> list[str | None]:
    """The paths, as actions name them, of what a call reads; None among them: whatever there is."""
    named: list[str | None] = []
    for action in actions:
        tool, _, detail = action.text.removeprefix("tool:").partition(":")
        if tool in _NAMING_TOOLS:
            named.append(detail)
        elif tool in _COMMAND_TOOLS and not action.whole and (action.reads or not _only_writes(action)):
            named += (None,) if action.reads is None else (*action.reads, *action.runs)
    return named


def _only_writes(action: Action) -> bool:
    """Whether it is a redirection to a file."""
    return bool(action.also) and all(name.startswith("tool:write:") for name in action.also) and not action.opaque


def _file_names(text: str) -> list[str]:
    """The last parts of a command's words, and of what stands behind a `=` in them."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return [PurePosixPath(word.rpartition("=")[2]).name for word in words]


def _may_be_code(path: Path) -> bool:
    return is_code(path.name) or os.access(path, os.X_OK)


def _places(named: Iterable[str | None], mounts: Sequence[Mount], *, mapped: bool) -> list[Path]:
    """Where these paths lead on the host, without those where nothing is; all mounts where that is not known."""
    found: dict[Path, None] = {}
    for path in named:
        place = resolve(path, mounts, mapped=mapped) if path else None
        if place is None or (place.mount not in mounts and not is_systems(place.shown)):
            return [mount.host for mount in mounts]
        if place.host is not None and os.path.lexists(place.host):
            found[place.host] = None
    return list(found)


def _first_source(named: Sequence[Path], marks: Mapping[Path, Marks], wanted: Callable[[Path], bool]) -> str:
    """What marked the first marked file below what is read."""
    left = ENTRIES_MAX
    for path in named:
        for file in _below(path):
            left -= 1
            if left < 0:
                return _TOO_MANY
            if (source := _source_of(file, marks)) and wanted(file):
                return f"{file.name!r}{_AFTER}{source.rpartition(_AFTER)[2]}"
    return ""


def _source_of(file: Path, marks: Mapping[Path, Marks], person: str | None = None) -> str:
    found = ""
    for path in (file, Path(os.path.realpath(file))) if file.is_symlink() else (file,):
        kept = next((kept for folder, kept in marks.items() if path.is_relative_to(folder)), Marks())
        found = found or (kept.source_of(_changed(path), person) if kept.spans else "")
    return found


def _marked_below(folder: Path, marks: Marks) -> dict[Inode, MarkedFile]:
    found: dict[Inode, MarkedFile] = {}
    for file in islice(_below(folder), ENTRIES_MAX):
        if source := marks.source_of(_changed(file)):
            try:
                is_file, stood = file.is_file() and not file.is_symlink(), file.lstat()
                digest = digest_of_file(file) if is_file else ""
            except OSError:
                continue
            found[stood.st_dev, stood.st_ino] = MarkedFile(folder, stood.st_size, digest, source)
    return found


def _lost(folder: Path, marks: Marks, before: Mapping[Inode, MarkedFile]) -> Iterator[tuple[int, str]]:
    """When the files were changed that are no longer marked and have the content that they had, and what marked it."""
    for file in islice(_below(folder), ENTRIES_MAX):
        try:
            now = file.lstat()
            known = before.get((now.st_dev, now.st_ino))
            if known is None or now.st_size != known.size_bytes or marks.source_of((now.st_ctime_ns,)):
                continue
            if not known.digest or digest_of_file(file) == known.digest:
                yield now.st_ctime_ns, known.source
        except OSError:
            continue


def _below(path: Path, apart: Collection[str] = ()) -> Iterator[Path]:
    """A file itself, or all files and empty folders below a folder, without those `apart`; links to folders are not
    followed."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name not in apart]
        for name in names:
            yield Path(folder, name)
        for name in folders:
            if os.path.islink(below := os.path.join(folder, name)) or not _has_entries(below):
                yield Path(below)


def _has_entries(folder: str) -> bool:
    try:
        with os.scandir(folder) as scan:
            return next(scan, None) is not None
    except OSError:
        return True


def _changed_below(folder: Path, apart: Collection[str] = ()) -> list[int] | None:
    """When the files of a folder were changed, none where it is gone; None for more files than can be looked at."""
    files = list(islice(_below(folder, apart), ENTRIES_MAX + 1))
    return None if len(files) > ENTRIES_MAX else list(_changes(files))


def _touch(files: Iterable[Path]) -> None:
    """Have files be changed later than all others, so that what marks them marks no other."""
    time.sleep(SLACK_NS / 1e9)
    for file in files:
        status = file.stat()
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def _changes(files: Iterable[Path]) -> Iterator[int]:
    for file in files:
        yield from _changed(file)


def _changed(file: Path) -> tuple[int, ...]:
    """When a file, or the link it is, was changed last, by the clock that no program can set; nothing where there is
    none."""
    try:
        return (file.lstat().st_ctime_ns,)
    except (OSError, ValueError):
        return ()
