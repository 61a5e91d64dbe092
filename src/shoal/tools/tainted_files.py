"""Track files that untrusted content influenced. Files that a tainted call changes are marked as tainted, and a call
that reads a tainted file taints its turn.

A mark is not a list of files. It is the time span in which the call ran, on the file system's clock. A file is
tainted while its last change is within such a span. A later change by a clean call clears the taint, and files need
not be searched after a command.

A call is clean only if every file that it can read is known and untainted. The taint belongs to the content of a
file: a clean call that changes only the file's name, links or mode does not clear it.
"""

import os
import shlex
import stat
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePosixPath

import anyio
import msgspec

from shoal.kernel.files import digest_of_file, in_thread
from shoal.kernel.home import Home
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Mount, Settings
from shoal.kernel.traits import TraitsByName
from shoal.kernel.untrusted import short_source, written_after
from shoal.permissions.code_files import is_code
from shoal.tools.read_files import ENTRIES_MAX, change_times, files_below, host_paths, paths_read
from shoal.tools.taint_spans import (
    SLACK_NS,
    SYSTEM_FILE_CLOCK,
    FileClock,
    Marks,
    Span,
    decode_marks,
    encode_marks,
    planned_span,
)

SCOPE = "marks"
SETTLED_NS = 3_600_000_000_000
"""Minimum time between the end of a span and its deletion."""

_APART = frozenset({"workspace", "scratch", "attachments", "artifacts", "checkpoints", ".git"})
"""Folders in the home directory whose taint is recorded separately or not at all. Their files are not added to prompts
automatically.
"""
_TOO_MANY = "folders with too many files to check"


class MarkedFile(msgspec.Struct, frozen=True):
    """The state of a tainted file before a call."""

    folder: Path
    size_bytes: int
    digest: str
    source: str


Inode = tuple[int, int]


class MarkedFiles:
    """Stores the taint spans of folders. All workers share them."""

    def __init__(self, settings: Settings, home: Home, clock: FileClock = SYSTEM_FILE_CLOCK) -> None:
        self._settings = settings
        self._home = home
        self.clock = clock

    @asynccontextmanager
    async def during(
        self, folders: Collection[Path], source: str, seconds_max: float, person: str = ""
    ) -> AsyncGenerator[None]:
        """Taint changes below the folders while the block runs, for at most `seconds_max`. Does nothing if `source` is
        empty.

        If `person` is set, the call writes only lines for that person. The span is stored before the block starts,
        so it survives a crash. Raises StoreError.
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
            with anyio.CancelScope(shield=True):  # a crash before this taints more files, never fewer
                for folder in noted:
                    await self._change(folder, lambda marks: marks.ended(span, ended))

    async def marks(self, folder: Path) -> Marks:
        return decode_marks(await self._settings.get(SCOPE, self._key(folder)))

    async def sources(self, folders: Collection[Path], person: str | None = None) -> Callable[[str | Path], str]:
        """Return a function that maps a file below these folders to its taint source, or to an empty string. The spans
        are read now, not when that function is called.

        If `person` is None, any source counts. If it is set, only sources that this person may see count. If it is
        empty, only sources that everyone may see count. Raises StoreError.
        """
        marks_of = {folder: await self.marks(folder) for folder in folders}
        if not any(marks.spans for marks in marks_of.values()):
            return lambda path: ""
        return lambda path: _source_of(Path(path), marks_of, person)

    async def sources_by_person(self, folder: Path, file: Path) -> dict[str, str]:
        """Return the taint sources of a file, by the person whose private lines are tainted. The key is an empty string
        for lines that everyone may see.

        Raises StoreError.
        """
        marks = await self.marks(folder)
        return marks.sources_of(change_times(file)) if marks.spans else {}

    async def since(self, folders: Iterable[Path], began_ns: int, source: str) -> None:
        """Mark everything that changed in these folders since `began_ns` as tainted by `source`.

        `began_ns` is in nanoseconds since 1970. Raises StoreError.
        """
        span = Span(began_ns - self.clock.slack_ns, self.clock.now_ns(), short_source(source))
        for folder in folders:
            await self._change(folder, lambda marks: marks.with_span(span))

    async def note(self, folder: Path, files: Iterable[Path], source: str) -> None:
        for changed in await in_thread(lambda: [at for file in files for at in change_times(file)]):
            span = Span(changed, changed, short_source(source))
            await self._change(folder, lambda marks, span=span: marks.with_span(span))

    async def renew(self, changed_at: Mapping[Path, int]) -> None:
        """Taint recreated files if their earlier versions were tainted. `changed_at` contains the change times of
        the earlier versions. Raises StoreError.
        """
        after, marked = "", list[tuple[Path, Path, str]]()
        while page := await self._settings.page(SCOPE, after):
            for after, row in page:
                marks, folder = decode_marks(row), self._home.root / after
                below = ((path, at) for path, at in changed_at.items() if path.is_relative_to(folder))
                marked += [(folder, path, source) for path, at in below if (source := marks.source_of([at]))]

        def touch() -> None:
            """Change the timestamps of the files to a time that no other file has."""
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
        """Return the source of a tainted file that a call with these actions may read, or an empty string. Raises
        StoreError.
        """
        named = paths_read(actions, mounts, traits)
        return await self._source(None if None in named else named, mounts, mapped=mapped)

    async def steers(
        self, actions: Sequence[Action], mounts: Sequence[Mount], traits: TraitsByName, *, mapped: bool
    ) -> str:
        """Return the source of a tainted file that a call is known to read or may run, or an empty string.

        If the call may run files that it does not name, every tainted file that may be code counts. An unknown
        program may also run any file named in its arguments. Raises StoreError.
        """
        named = [path for path in paths_read(actions, mounts, traits) if path is not None]
        named += [path for action in actions if not action.whole for path in action.runs]
        source = await self._source(named, mounts, mapped=mapped)
        hiding = [action for action in actions if action.runs_more and not action.whole]
        if not source and hiding:
            names: set[str] = set()  # the file name in each word, or in the text after its last `=`
            for action in hiding:
                if action.opaque:
                    try:
                        words = shlex.split(action.text)
                    except ValueError:
                        words = action.text.split()
                    names |= {PurePosixPath(word.rpartition("=")[2]).name for word in words}

            def wanted(path: Path) -> bool:
                return path.name in names or is_code(path.name) or os.access(path, os.X_OK)

            source = await self._source(None, mounts, mapped=mapped, wanted=wanted)
        return source

    async def _source(
        self,
        named: Sequence[str | None] | None,
        mounts: Sequence[Mount],
        *,
        mapped: bool,
        wanted: Callable[[Path], bool] = os.path.lexists,
    ) -> str:
        if named is not None and not named:
            return ""
        paths = [mount.host for mount in mounts]
        if named is not None:
            paths = await in_thread(lambda: host_paths(named, mounts, mapped=mapped))
        marks, home = dict[Path, Marks](), self._home.root
        for mount in mounts:
            if any(path.is_relative_to(mount.host) or mount.host.is_relative_to(path) for path in paths):
                spans = (await self.marks(mount.host)).spans
                # documents and skills are in the home directory, where calls change them in other ways
                if not mount.writable:
                    spans += (await self.marks(home)).spans
                marks[mount.host] = Marks(spans)
        if any(path.is_relative_to(home) and not any(map(path.is_relative_to, marks)) for path in paths):
            marks[home] = await self.marks(home)
        if not any(folder_marks.spans for folder_marks in marks.values()):
            return ""

        def first() -> str:
            left = ENTRIES_MAX
            for file in (file for path in paths for file in files_below(path)):
                left -= 1
                if left < 0:
                    return _TOO_MANY
                if (source := _source_of(file, marks)) and wanted(file):
                    return written_after(repr(file.name), source)
            return ""

        return await in_thread(first)

    async def below(self, folders: Iterable[Path]) -> dict[Inode, MarkedFile]:
        files: dict[Inode, MarkedFile] = {}

        def look(folder: Path, marks: Marks) -> None:
            for file in islice(files_below(folder), ENTRIES_MAX):
                if source := marks.source_of(change_times(file)):
                    with suppress(OSError):
                        status = file.lstat()
                        digest = digest_of_file(file) if stat.S_ISREG(status.st_mode) else ""
                        files[status.st_dev, status.st_ino] = MarkedFile(folder, status.st_size, digest, source)

        for folder in folders:
            if (marks := await self.marks(folder)).spans:
                await in_thread(partial(look, folder, marks))
        return files

    async def keep(self, before: Mapping[Inode, MarkedFile], folders: Iterable[Path]) -> None:
        """Restore the taint of files that a call changed without changing their content. Raises StoreError."""

        def lost(folder: Path, marks: Marks) -> list[Span]:
            spans: list[Span] = []
            for file in islice(files_below(folder), ENTRIES_MAX):
                with suppress(OSError):
                    now = file.lstat()
                    known, at = before.get((now.st_dev, now.st_ino)), now.st_ctime_ns
                    if known is None or now.st_size != known.size_bytes or marks.source_of((at,)):
                        continue
                    if not known.digest or digest_of_file(file) == known.digest:
                        spans.append(Span(at, at, known.source))
            return spans

        for folder in folders if before else ():
            for span in await in_thread(partial(lost, folder, await self.marks(folder))):
                await self._change(folder, lambda marks, span=span: marks.with_span(span))

    async def forget_unused(self) -> int:
        """Delete spans that taint no file. Returns the number of folders without remaining spans. Raises StoreError.

        Call this only if this machine sees all files of the home directory, because a span without a changed file
        here counts as unused. Spans that may not have ended are kept. So are the spans of folders that have too many
        files or are on a disk that may be unmounted.
        """
        emptied, after, home = 0, "", self._home.root
        while page := await self._settings.page(SCOPE, after):
            for after, row in page:
                marks, stable_since, folder = decode_marks(row), time.time_ns() - SETTLED_NS, home / after
                apart = _APART if folder == home else frozenset[str]()

                def changes(
                    after: str = after, folder: Path = folder, apart: Collection[str] = apart
                ) -> list[tuple[int, ...]] | None:
                    try:
                        if not folder.is_dir() and (Path(after).is_absolute() or not folder.parent.parent.is_dir()):
                            return None
                        return [change_times(file) for file in islice(files_below(folder, apart), ENTRIES_MAX + 1)]
                    except OSError:
                        return None

                changed = await in_thread(changes)
                if changed is None or len(changed) > ENTRIES_MAX:
                    continue
                used = marks.within(chain.from_iterable(changed), stable_since)
                if used != marks and used.spans:
                    await self._settings.swap(SCOPE, after, row, encode_marks(used))
                elif used != marks:
                    emptied += await self._settings.drop(SCOPE, after, row)
        return emptied

    async def _change(self, folder: Path, change: Callable[[Marks], Marks]) -> None:
        key = self._key(folder)
        while True:
            stored = await self._settings.get(SCOPE, key)
            if await self._settings.swap(SCOPE, key, stored, encode_marks(change(decode_marks(stored)))):
                return

    def _key(self, folder: Path) -> str:
        """Return the folder's path. A path inside the home directory is relative, because that directory may
        differ between machines.
        """
        with suppress(ValueError):
            folder = folder.relative_to(self._home.root)
        return str(folder)


def _source_of(file: Path, marks: Mapping[Path, Marks], person: str | None = None) -> str:
    source = ""
    for path in (file, Path(os.path.realpath(file))) if file.is_symlink() else (file,):
        folder_marks = next(
            (folder_marks for folder, folder_marks in marks.items() if path.is_relative_to(folder)), Marks()
        )
        source = source or (folder_marks.source_of(change_times(path), person) if folder_marks.spans else "")
    return source
