"""Files that untrusted content had a hand in: noted while such calls work, and found again when a call reads them.

a call                                     what it is taken to read
----------------------------------------   --------------------------------------------------------------
read, view, edit, append, str_replace      the file it names
list, grep and their like                  the folder it names with all below it
git_status, git_diff, git_log              the workspace
bash, process_start                        every file and folder its text names, patterns filled in; the
                                           workspace where it searches or lists and names nothing

A turn that nothing has steered has no reason to hide what it reads, so the names in a command are enough for the way
that counts: reading on in good faith what an earlier turn was made to write.
"""

import glob
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path

import anyio

from shoal.domain.home import Home
from shoal.domain.permissions import Action
from shoal.domain.ports import Mount
from shoal.domain.store import Settings
from shoal.permissions.marks import Marks, Span, decode_marks, encode_marks, planned_span
from shoal.tools.threads import in_thread

SCOPE = "marks"
ENTRIES_MAX = 20_000
"""Files looked at for one call; what lies beyond counts as marked."""
SETTLED_NS = 3_600_000_000_000
"""A span is only forgotten when it ended so long ago."""
NAMES_MAX = 200
"""Names of a command that are looked for."""

_NAMING_TOOLS = frozenset({"read", "view", "edit", "append", "str_replace", "list", "ls", "glob", "grep", "find"})
_COMMAND_TOOLS = frozenset({"bash", "process_start"})
_GIT_TOOLS = frozenset({"git_status", "git_diff", "git_log"})
_SEARCHERS = frozenset({"ls", "find", "fd", "tree", "rg", "ag", "ack", "grep", "egrep", "fgrep", "git", "dir"})
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_PLAIN = re.compile(r"[^\s'\"`()<>|&;,=:]+")
_AFTER = ", written after "
_UPWARD = re.compile(r"^(?:\.\./)+")
_PATTERN = re.compile(r"[*?\[]")


class MarkedFiles:
    """Keeps the marks of folders in the store, for all workers together."""

    def __init__(self, settings: Settings, home: Home) -> None:
        self._settings = settings
        self._home = home

    @asynccontextmanager
    async def during(self, folders: Collection[Path], source: str, seconds_max: float) -> AsyncGenerator[None]:
        """See `domain.files.FolderMarks`."""
        async with AsyncExitStack() as stack:
            for folder in folders if source else ():
                await stack.enter_async_context(self._noting(folder, source, seconds_max))
            yield

    async def sources(self, folders: Collection[Path]) -> Callable[[Path], str]:
        """See `domain.files.FolderMarks`."""
        kept = {folder: await self._marks(folder) for folder in folders}
        return lambda path: _source_of(path, kept)

    async def since(self, folders: Iterable[Path], began_ns: int, source: str) -> None:
        """Mark what changed below the folders from a time on until now. Raises StoreError."""
        span = planned_span(began_ns, (time.time_ns() - began_ns) / 1e9, source)
        for folder in folders:
            await self._change(folder, lambda marks: marks.with_span(span))

    async def note(self, folder: Path, files: Iterable[Path], source: str) -> None:
        """Mark these files of a folder as they are now; one that is gone is none. Raises StoreError."""
        found = await in_thread(lambda: list(_changes(files)))
        for changed in found:
            span = Span(changed, changed, planned_span(0, 0, source).source)
            await self._change(folder, lambda marks, span=span: marks.with_span(span))

    async def source_of(self, actions: Sequence[Action], mounts: Sequence[Mount]) -> str:
        """What had a hand in any of the files that a call with these actions reads; empty when nothing had.

        Raises StoreError.
        """
        named = await in_thread(lambda: _standing(actions, mounts)) if _may_read(actions) else []
        marks = {
            mount.host: kept
            for mount in mounts
            if any(path.is_relative_to(mount.host) or mount.host.is_relative_to(path) for path in named)
            and (kept := await self._marks(mount.host)).spans
        }
        if not marks:
            return ""
        return await in_thread(lambda: _first_source(named, marks))

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
        changed = None if is_away else await in_thread(lambda: _changed_below(folder))
        if changed is None:
            return False
        used = marks.within(changed, settled)
        if used == marks:
            return False
        if used.spans:
            await self._settings.swap(SCOPE, key, kept, encode_marks(used))
            return False
        return await self._settings.drop(SCOPE, key, kept)

    @asynccontextmanager
    async def _noting(self, folder: Path, source: str, seconds_max: float) -> AsyncGenerator[None]:
        span = planned_span(time.time_ns(), seconds_max, source)
        await self._change(folder, lambda marks: marks.with_span(span))
        try:
            yield
        finally:
            ended = time.time_ns()
            with anyio.CancelScope(shield=True):  # were it lost, more would be marked, never less
                await self._change(folder, lambda marks: marks.ended(span, ended))

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

    def _key(self, folder: Path) -> str:
        """The folder, below the home directory where it lies in it, so that it may lie elsewhere on other machines."""
        home = self._home.root
        return str(folder.relative_to(home) if folder.is_relative_to(home) else folder)


def _may_read(actions: Sequence[Action]) -> bool:
    tools = {action.text.removeprefix("tool:").partition(":")[0] for action in actions}
    return bool(tools & (_NAMING_TOOLS | _GIT_TOOLS | _COMMAND_TOOLS))


def _standing(actions: Sequence[Action], mounts: Sequence[Mount]) -> list[Path]:
    """The files and folders that the actions read and that there are: most commands name none."""
    return [path for path in dict.fromkeys(_named(actions, mounts)) if os.path.lexists(path)]


def _first_source(named: Sequence[Path], marks: Mapping[Path, Marks]) -> str:
    """What marked the first marked file below what is read."""
    left = ENTRIES_MAX
    for path in named:
        for file in _below(path):
            left -= 1
            if left < 0:
                return "one of more files than can be looked at"
            if source := _source_of(file, marks):
                return f"{file.name!r}{_AFTER}{source.rpartition(_AFTER)[2]}"
    return ""


def _source_of(file: Path, marks: Mapping[Path, Marks]) -> str:
    kept = next((kept for folder, kept in marks.items() if file.is_relative_to(folder)), Marks())
    return kept.source_of(_changed(file))


def _named(actions: Sequence[Action], mounts: Sequence[Mount]) -> Iterator[Path]:
    """The host paths of the files and folders that actions read."""
    workspace = mounts[0].host
    command = ""
    for action in actions:
        tool, _, detail = action.text.removeprefix("tool:").partition(":")
        if tool in _NAMING_TOOLS:
            yield _host_path(detail, workspace, mounts)
        elif tool in _GIT_TOOLS:
            yield workspace
        elif tool in _COMMAND_TOOLS:
            command += f"{detail}\n"
    if command:
        yield from _named_in(command, workspace, mounts)


def _named_in(command: str, workspace: Path, mounts: Sequence[Mount]) -> Iterator[Path]:
    """The files and folders that a command's words may mean, seen from the workspace and the folders it names."""
    quoted = ["".join(groups) for groups in _QUOTED.findall(command)]
    words = [*quoted, *_PLAIN.findall(command)]
    words += [_UPWARD.sub("", word) for word in words]  # from a folder that the command makes first
    names = [name for name in dict.fromkeys(words) if name.strip("-")]
    bases, found = [workspace], False
    for name in names[:NAMES_MAX]:
        meant = [path for base in bases for path in _matching(name, base, mounts)]
        yield from meant
        found = found or bool(meant)
        bases += [path for path in meant if path.is_dir()][: NAMES_MAX - len(bases)]
    if len(names) > NAMES_MAX or (not found and any(name.rpartition("/")[2] in _SEARCHERS for name in names)):
        yield workspace


def _matching(name: str, base: Path, mounts: Sequence[Mount]) -> Iterator[Path]:
    path = _host_path(name, base, mounts)
    try:
        if os.path.lexists(path):
            yield path
        elif _PATTERN.search(name):
            yield from (Path(one) for one in islice(glob.iglob(str(path), recursive=True), ENTRIES_MAX))
    except (OSError, ValueError):  # no name that a file can have
        return


def _host_path(name: str, base: Path, mounts: Sequence[Mount]) -> Path:
    """Where a path of a command lies on the host; one outside of all folders stays as it is."""
    plain = os.path.normpath(name)
    for mount in mounts:
        if plain == mount.inside or plain.startswith(f"{mount.inside}/"):
            return Path(f"{mount.host}{plain[len(mount.inside) :]}")
    if any(mount.inside.startswith(f"{plain.rstrip('/')}/") for mount in mounts):
        return mounts[0].host
    return Path(os.path.normpath(base / name))


def _below(path: Path) -> Iterator[Path]:
    """A file itself, or all files below a folder; links to folders are not followed."""
    if not path.is_dir():
        yield path
        return
    for folder, _, names in os.walk(path):
        for name in names:
            yield Path(folder, name)


def _changed_below(folder: Path) -> list[int] | None:
    """When the files of a folder were changed, none where it is gone; None for more files than can be looked at."""
    files = list(islice(_below(folder), ENTRIES_MAX + 1))
    return None if len(files) > ENTRIES_MAX else list(_changes(files))


def _changes(files: Iterable[Path]) -> Iterator[int]:
    for file in files:
        yield from _changed(file)


def _changed(file: Path) -> tuple[int, ...]:
    """When a file was changed last, by the clock that no program can set; nothing where there is none."""
    try:
        return (file.stat().st_ctime_ns,)
    except (OSError, ValueError):
        return ()
