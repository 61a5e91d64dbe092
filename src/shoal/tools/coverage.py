"""The files that an approval of a command covers. They are compared by content, to ensure that the code that runs is
the code that was approved.

the action names                 the approval covers
------------------------------   ------------------------------------------------------------------------------
a file                           its content
a missing file                   its absence
a link                           its target and the content there, resolved as the command resolves it
a folder                         every file below it
a system file of the sandbox     nothing, because no command can change it
a file outside the mounts        nothing, and the coverage is incomplete
`runs_more`                      every link, and every file below the mounts that may be code
                                 other files whose name or folder is mentioned in the command, or in a line
                                 with which a named file includes others
                                 every file, if some words of the command are known only when it runs
a part that runs nothing         the files that it reads, if it may pass their content to a part that runs it

Digests depend only on names and contents, so they stay equal when a workspace moves to another machine.
"""

import hashlib
import os
import re
import stat
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import PurePosixPath
from threading import Lock
from typing import TypeVar

import msgspec

from shoal.files.mounts import MountedPath
from shoal.kernel import lazy_re
from shoal.kernel.permissions import NO_COVERAGE, Action, Coverage, CoveredFile
from shoal.kernel.ports import Mount, RunFile
from shoal.permissions.code_files import is_code
from shoal.tools.jail import SANDBOX_FILES, is_systems, open_resolved, resolve
from shoal.tools.openat import closing_file

DIGESTS_KEPT_MAX = 20_000
SETTLED_NS = 2_000_000_000
"""Minimum age of a file's last change before its digest is cached. Any later change then gets a different timestamp."""
LISTINGS_KEPT_MAX = 8
"""Maximum number of cached listings of code files. The listings are used to name the files that changed."""
BOUND_BYTES_MAX = 4_194_304
"""Maximum size of a script that is held in memory until it runs."""
NAMED_MAX = 200
"""Maximum number of files and folders that one command may run. A command that names more is not covered."""
CHANGES_SHOWN_MAX = 5
TRIES = 3
"""Maximum number of attempts to read a file that is being moved."""
TICK_NS = 20_000_000
"""Granularity of file timestamps. Two changes within this time can have the same timestamp."""
DEPTH_MAX = 64

_GIT_DATA = frozenset(
    {"objects", "logs", "refs", "packed-refs", "index", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "COMMIT_EDITMSG", "shallow"}
)
_SCRIPTS = frozenset(
    {".sh", ".bash", ".zsh", ".py", ".js", ".mjs", ".cjs", ".ts", ".pl", ".rb", ".php", ".awk", ".sed", ".lua", ".jq"}
)
_INCLUDES = lazy_re.compile(rb"^[ \t]*(?:#!|[-s]?include\b|source\b|\.[ \t]).*", re.MULTILINE)
"""Matches lines of scripts and makefiles that include other files."""
_WORD = lazy_re.compile(r"[\w@%+=:,./~-]+")
_FOLDER = lazy_re.compile(r"(?:.*[=:,])?[./~]*")


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Content(msgspec.Struct, frozen=True):
    """The content that a call runs. `coverage` describes it for people, and `runs` lets the sandbox verify it."""

    coverage: Coverage = NO_COVERAGE
    runs: tuple[RunFile, ...] = ()


NOTHING = Content()


class ContentReader:
    """Reads the files that commands run. The number of code files and the total size per approval are limited.

    The methods block and are thread-safe.
    """

    def __init__(self, files_max: int = 5_000, bytes_max: int = 67_108_864) -> None:
        self.files_max = files_max
        self.bytes_max = bytes_max
        self._lock = Lock()
        self._digests: OrderedDict[tuple[int, ...], str] = OrderedDict()
        self._listings: OrderedDict[str, Mapping[str, str]] = OrderedDict()

    def read(self, actions: Sequence[Action], mounts: Sequence[Mount], *, mapped: bool, fetched: str = "") -> Content:
        """Read the files that a call with these actions would run now.

        `fetched` describes content that the call would download. Such content cannot be covered.
        """
        parts = [action for action in actions if not action.whole]
        running = [action for action in parts if action.runs or action.runs_more]
        if not running:
            return NOTHING
        look = _Look(self, mounts, mapped=mapped)
        if fetched:
            look.uncovered(f"it may run {fetched}")
        named = [path for action in running for path in action.runs]
        others = [action for action in parts if action not in running]
        if len(running) > 1:  # git may change files from its own data, which is not covered
            git = [action for action in running if action.text.partition(":")[2].partition(":")[2].startswith("git ")]
            others += [action for action in git if not action.harmless]
        is_plain = all(action.harmless for action in others)
        if not is_plain or any(action.opaque for action in running):
            for action in others:
                if action.reads is None and not any(name.startswith("tool:write:") for name in action.also):
                    look.uncovered("one of its parts may write code that another runs")
                named += action.reads or ()
        for path in list(dict.fromkeys(named))[:NAMED_MAX]:
            look.name(path, may_bind=is_plain)
        if len(set(named)) > NAMED_MAX:
            look.uncovered(f"it names more than {NAMED_MAX} files to run")
        hiding = [action for action in running if action.runs_more]
        # A file that one part writes for another to run, or a here-document for an interpreter, may mention further
        # files.
        names_files = not is_plain or any(action.opaque and not action.runs for action in hiding)
        listing = look.code(hiding, actions if names_files else hiding) if hiding else None
        others_digest = ""
        if listing is not None:
            others_digest = hashlib.sha256(msgspec.json.encode(sorted(listing.items()))).hexdigest()
            with self._lock:
                _keep(self._listings, others_digest, listing, LISTINGS_KEPT_MAX)
        sends = all(action.text.startswith("tool:upload:") for action in running)
        coverage = Coverage(tuple(look.files), len(listing or ()), others_digest, look.why, sends)
        return Content(coverage, tuple(look.runs))

    def changes(self, before: Coverage, now: Coverage, since: str) -> str:
        """Describe the differences with one sentence per file. Returns an empty string if there are none.

        `since` completes the phrase "… changed since".
        """
        old = {file.path: file for file in before.files}
        new = {file.path: file for file in now.files}
        absent = CoveredFile("", -1, "")
        uncovered: list[str] = []
        for path in {**old, **new}:
            was, is_now = old.get(path, absent), new.get(path, absent)
            if path in old and path in new and (was.size_bytes, was.digest) == (is_now.size_bytes, is_now.digest):
                continue
            if was.size_bytes < 0 <= is_now.size_bytes:
                uncovered.append(f"{short(path)} is new since {since}: {is_now.size_bytes:,} bytes.")
            elif is_now.size_bytes < 0 <= was.size_bytes:
                uncovered.append(f"{short(path)} was removed since {since}.")
            else:
                uncovered.append(
                    f"{short(path)} changed since {since}: {was.size_bytes:,} → {is_now.size_bytes:,} bytes."
                )
        if before.others_digest != now.others_digest:
            with self._lock:
                then, code = self._listings.get(before.others_digest), self._listings.get(now.others_digest)
            if then is None or code is None:
                uncovered.append(f"Other code files changed since {since} ({before.others} then, {now.others} now).")
            else:
                for path in sorted({*then, *code} - {*old, *new}):
                    if then.get(path) != code.get(path):
                        what = "is new" if path not in then else "was removed" if path not in code else "changed"
                        uncovered.append(f"{short(path)} {what} since {since}.")
        more = len(uncovered) - CHANGES_SHOWN_MAX
        return " ".join(uncovered[:CHANGES_SHOWN_MAX]) + (f" More changed files: {more}." if more > 0 else "")

    def digest(self, file: int, status: os.stat_result) -> str:
        """Return the SHA-256 of an open file in hex, cached by its `stat` result. Raises OSError."""
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        with self._lock:
            if known := self._digests.get(key, ""):
                self._digests.move_to_end(key)
                return known
        with open(file, "rb", buffering=0, closefd=False) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if os.stat(file).st_ctime_ns == status.st_ctime_ns < time.time_ns() - SETTLED_NS:
            with self._lock:
                _keep(self._digests, key, digest, DIGESTS_KEPT_MAX)
        return digest


def _keep(cache: OrderedDict[_Key, _Value], key: _Key, value: _Value, entries_max: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > entries_max:
        cache.popitem(last=False)


class _Look:
    """State of one `read` call: the results so far and the remaining limits."""

    def __init__(self, reader: ContentReader, mounts: Sequence[Mount], *, mapped: bool) -> None:
        self.files: list[CoveredFile] = []
        self.runs: list[RunFile] = []
        self.why = ""
        self._said = ""
        self._reader = reader
        self._mounts = mounts
        self._mapped = mapped
        self._bytes_left = reader.bytes_max

    def uncovered(self, why: str) -> None:
        self.why = self.why or why

    def name(self, path: str, *, may_bind: bool) -> None:
        place = resolve(path, self._mounts, mapped=self._mapped)
        if place is None:
            self.uncovered(f"the target of {short(path)} is unknown")
            return
        shown = path if place.shown == path else f"{path} -> {place.shown}"
        if is_systems(place.shown):
            return
        if place.mount is SANDBOX_FILES:
            self.uncovered(f"{place.shown} is outside the folders of the conversation")
            return
        why = ""
        for _ in range(TRIES):
            folders, why = self._folders(place), ""
            taken = len(self.files), len(self.runs), self._bytes_left
            try:
                self._read(place, shown, folders, may_bind=may_bind)
            except OSError as error:
                why = error.strerror or str(error)
            if self._folders(place) == folders:
                break
            del self.files[taken[0] :], self.runs[taken[1] :]
            self._bytes_left = taken[2]
        else:
            why = "it is being moved"
        if why:
            self.files.append(CoveredFile(shown, -1, "unreadable"))
            self.uncovered(f"{short(shown)} cannot be read ({why})")

    def _folders(self, place: MountedPath) -> tuple[tuple[str, int, int], ...]:
        """Return the path, inode and modification time of each folder above a file. Returns an empty tuple on an
        OSError.

        After a recent change, waits for one clock tick, because two changes in one tick have the same timestamp.
        """
        ways = [MountedPath("", place.mount, place.parts[:depth]) for depth in range(len(place.parts))]
        try:
            statuses = [way.host.lstat() for way in ways]
            if max((status.st_mtime_ns for status in statuses), default=0) > time.time_ns() - TICK_NS:
                time.sleep(TICK_NS / 1e9)
                statuses = [way.host.lstat() for way in ways]
        except OSError:
            return ()
        return tuple(
            (self._found_at(way), status.st_ino, status.st_mtime_ns) for way, status in zip(ways, statuses, strict=True)
        )

    def _found_at(self, place: MountedPath) -> str:
        return str(PurePosixPath(place.mount.inside, *place.parts) if self._mapped else place.host)

    def _read(
        self, place: MountedPath, shown: str, folders: tuple[tuple[str, int, int], ...], *, may_bind: bool
    ) -> None:
        try:
            file = open_resolved(place)
        except FileNotFoundError:
            self.files.append(CoveredFile(shown, -1, ""))
            self.runs.append(RunFile(self._found_at(place), ""))
            return
        with closing_file(file):
            status = os.fstat(file)
            if stat.S_ISDIR(status.st_mode):
                entries = sorted(self._all_below(file, f"{place.shown}/"))
                size = sum(size for _, size, _ in entries)
                digest = hashlib.sha256(msgspec.json.encode([(path, value) for path, _, value in entries])).hexdigest()
                self.files.append(CoveredFile(f"{shown}/", size, digest))
                return
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is not a file")
            self._bytes_left -= status.st_size
            if self._bytes_left < 0:
                raise OSError(f"more than {self._reader.bytes_max:,} bytes in total")
            content = None
            with open(file, "rb", closefd=False) as stream:
                if status.st_size <= BOUND_BYTES_MAX:
                    content = stream.read(status.st_size)
                    digest = hashlib.sha256(content).hexdigest()
                    self._said += "\n".join(os.fsdecode(line) for line in _INCLUDES.findall(content))
                else:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
        # Only scripts are held in memory until they run. A program may rewrite a manifest or makefile that it reads.
        suffix = PurePosixPath(place.shown).suffix.lower()
        is_script = suffix in _SCRIPTS or (not suffix and status.st_mode & 0o111) or not is_code(place.shown)
        if not is_script and not (content or b"").startswith(b"#!"):
            content = None
        elif content is None:
            self.uncovered(f"{short(shown)} is too large to be preserved while it runs")
        self.files.append(CoveredFile(shown, status.st_size, digest))
        identity, mode = (status.st_dev, status.st_ino, status.st_ctime_ns), stat.S_IMODE(status.st_mode)
        bound = content if may_bind else None
        self.runs.append(RunFile(self._found_at(place), digest, place.host, identity, bound, mode, folders))

    def code(self, hiding: Sequence[Action], saying: Sequence[Action]) -> dict[str, str] | None:
        """Return the digests, by path, of links, code files, and files that the command or an included line mentions.

        Files that the actions name are omitted. Returns None, and records the reason, if a limit is exceeded or a
        folder is unreadable.
        """
        self._said = "\n".join([*(action.text for action in saying), self._said])
        covers_all = any(_is_unspecific(action, self._mounts) for action in hiding)
        named = {file.path.rpartition(" -> ")[2] for file in self.files}
        folders: dict[str, str] = {}
        try:
            for mount in [mount for mount in self._mounts if mount.host.is_dir()]:
                with closing_file(os.open(mount.host, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
                    self._add_code(folder, mount.inside, named, folders, in_git=False, whole=covers_all)
        except _TooMuchError as error:
            self.uncovered(str(error))
            return None
        except OSError as error:
            self.uncovered(f"the code it may run cannot be read ({error.strerror or error})")
            return None
        return folders

    def _all_below(self, folder: int, path: str) -> Iterator[tuple[str, int, str]]:
        for entry, below in _entries(folder, path):
            if entry.is_dir(follow_symlinks=False):
                with _entered(folder, entry.name, below) as inner:
                    yield from self._all_below(inner, f"{below}/")
            else:
                yield (below, *self._value(folder, entry, below))

    def _add_code(
        self, folder: int, path: str, named: Collection[str], folders: dict[str, str], *, in_git: bool, whole: bool
    ) -> None:
        for entry, below in _entries(folder, f"{path}/"):
            if below in named or (in_git and entry.name in _GIT_DATA):
                continue
            if entry.is_dir(follow_symlinks=False):
                within_git, is_named = entry.name == ".git" or in_git, whole or entry.name in self._said
                with _entered(folder, entry.name, below) as inner:
                    self._add_code(inner, below, named, folders, in_git=within_git, whole=is_named)
            elif (  # files that a command may run without naming them
                whole
                or entry.is_symlink()
                or is_code(entry.name)
                or is_code(below)
                or entry.name in self._said
                or entry.stat(follow_symlinks=False).st_mode & 0o111
            ):
                _, folders[below] = self._value(folder, entry, below)
                if len(folders) > self._reader.files_max:
                    raise _TooMuchError(f"it may run any of more than {self._reader.files_max:,} files")

    def _value(self, folder: int, entry: os.DirEntry[str], path: str) -> tuple[int, str]:
        text = ""
        file: int | None = None
        if entry.is_symlink():
            text = f"-> {_readable(os.readlink(entry.name, dir_fd=folder))} "
            with suppress(OSError):
                place = resolve(path, self._mounts, mapped=self._mapped)
                file = open_resolved(place) if place is not None and place.mount in self._mounts else None
        else:
            with suppress(OSError):  # deleted in the meantime, or not readable, such as a socket
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                file = os.open(entry.name, flags, dir_fd=folder)
        if file is None:
            return 0, f"{text}no file"
        with closing_file(file):
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                return 0, f"{text}no file"
            self._bytes_left -= status.st_size
            if self._bytes_left < 0:
                raise _TooMuchError(f"the code it may run is larger than {self._reader.bytes_max:,} bytes")
            return status.st_size, f"{text}{self._reader.digest(file, status)}"


class _TooMuchError(OSError):
    """Raised if a limit is exceeded. The message names the limit."""


def _entered(folder: int, name: str, path: str) -> AbstractContextManager[int]:
    """Open a subfolder without following links. Raises OSError, or _TooMuchError below DEPTH_MAX levels."""
    if path.count("/") > DEPTH_MAX:
        raise _TooMuchError(f"the code it may run is more than {DEPTH_MAX} folders deep")
    return closing_file(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder))


def _entries(folder: int, path: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    with os.scandir(folder) as scan:
        for entry in scan:
            yield entry, f"{path}{_readable(entry.name)}"


def coverage_key(coverage: Coverage) -> str:
    """Return the part of a coverage that an approval is bound to, as canonical JSON."""
    return msgspec.json.encode([coverage.files, coverage.others, coverage.others_digest]).decode()


def swapped_of(runs: Sequence[RunFile]) -> str:
    """Return the first file that was replaced after it was read, or an empty string."""
    for file in runs:
        if file.content is not None and file.host is not None:
            try:
                status = file.host.lstat()
            except OSError:
                return short(file.path)
            if (status.st_dev, status.st_ino, status.st_ctime_ns) != file.identity:
                return short(file.path)
    return ""


def short(path: str) -> str:
    return path.removeprefix("/workspace/")


def _is_unspecific(action: Action, mounts: Sequence[Mount]) -> bool:
    """Return True if a part of a command may run any file, because it names a mount or contains words that are known
    only when it runs.
    """
    if action.runs and not action.opaque:
        return False
    words = action.text.split(":", 2)[-1].split()
    places = tuple(mount.inside for mount in mounts)
    return any(
        not _WORD.fullmatch(word) or (action.opaque and (_FOLDER.fullmatch(word) or word.rstrip("/").endswith(places)))
        for word in words
    )


def _readable(name: str) -> str:
    raw = os.fsencode(name)
    return name if raw == name.encode(errors="replace") else f"bytes:{raw.hex()}"
