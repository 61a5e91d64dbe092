"""Lets a directory follow the work from machine to machine: an agent's workspace, a thread's files.

What the machines agree on is a manifest (path, kind, digest), kept by digest like every file it names; a setting names
the newest one. Each machine remembers the manifest it last had in common with the others, its base:

    pull    what changed from the base to the newest manifest is changed here; what also changed here is kept beside it
            as NAME.conflict
    push    what changed from the base here is put on top of the newest manifest, which becomes the next one, unless
            somebody was faster: then again; what also changed there is kept beside it as NAME.conflict

So threads of one agent may work on different machines at the same time; of two changes to one file the later push has
the name, and the other one is kept. Each name's content has a place of its own, which a push empties once a day of what
no manifest names any more. Of the rights only whether a file can be run is followed, of owners and times nothing.
Links are kept as links, and nothing is ever written through one.

A fetched file is as old as the fetch, which is what files are marked by that untrusted content had a hand in. So a push
notes in the manifest which files are marked, and a pull marks them here again.

directory                       of it                       brought before a turn and given with a call's result
-----------------------------   -------------------------   ----------------------------------------------------
the thread's own                all but the readable logs   so, and with an upload and a posted file
the agent's workspace           all                         so
memory: data/, the platform's   MEMORY.md                   so
  and the channel's directory
data/memory/                    the daily notes             so
"""

import asyncio
import errno
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import anyio.to_thread
import msgspec

from shoal.files.deep_folders import remove_tree
from shoal.kernel.agents import AgentSpec
from shoal.kernel.errors import Conflict, InvalidInput, StoreCorrupt, StoreUnavailable
from shoal.kernel.files import Files, Folders, digest_of_file
from shoal.kernel.home import MEMORY_FILE, MEMORY_SCOPES, Home, memory_path
from shoal.kernel.ids import ThreadId, encode_part
from shoal.kernel.ports import Settings
from shoal.kernel.regular_files import read_regular, regular_only
from shoal.kernel.untrusted import is_text
from shoal.store.projections import CONTEXT, LOG
from shoal.tools.locks import lock_file
from shoal.tools.tainted_files import MarkedFiles

log = logging.getLogger(__name__)

ENTRIES_MAX = 20_000
BYTES_MAX = 2_147_483_648
SETTLED_NANOSECONDS = 2_000_000_000
"""A file changed this shortly before it was read may change again without its time telling."""


Wanted: TypeAlias = Callable[[str], bool]
"""Which names at the top of a directory belong to it."""


class ManifestEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file (`value` is its digest, `mode` 0o755 when it can be run, else 0o644), a link (its target) or a folder."""

    kind: Literal["file", "link", "folder"]
    value: str = ""
    mode: int = 0


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when its digest was taken; `at` is when, in nanoseconds since 1970."""

    digest: str
    size_bytes: int
    modified: int
    at: int


class DirectoryTree(msgspec.Struct):
    """The entries of a directory by path, and what spares reading unchanged files again."""

    entries: dict[str, ManifestEntry]
    seen: dict[str, Seen]


def everything(name: str) -> bool:
    """Any name at the top of a directory."""
    return True


def scan(root: Path, seen: Mapping[str, Seen], now: int, wanted: Wanted = everything) -> DirectoryTree:
    """Read a directory, of its top the names that are wanted. Sockets, pipes and names that are not UTF-8 are left out.

    Raises InvalidInput beyond ENTRIES_MAX entries or BYTES_MAX bytes, OSError.
    """
    tree = DirectoryTree({}, {})
    size = 0
    for path, found in _walk(root, "", wanted):
        info = found.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            tree.entries[path] = ManifestEntry("folder")
        elif stat.S_ISLNK(info.st_mode):
            tree.entries[path] = ManifestEntry("link", os.readlink(found.path))
        elif stat.S_ISREG(info.st_mode):
            size += info.st_size
            before = seen.get(path)
            if (
                before is not None
                and (before.size_bytes, before.modified) == (info.st_size, info.st_mtime_ns)
                and before.modified + SETTLED_NANOSECONDS < before.at
            ):
                digest = before.digest
            else:
                digest = digest_of_file(Path(found.path))
            tree.seen[path] = Seen(digest, info.st_size, info.st_mtime_ns, now)
            tree.entries[path] = ManifestEntry("file", digest, 0o755 if info.st_mode & stat.S_IXUSR else 0o644)
        if len(tree.entries) > ENTRIES_MAX or size > BYTES_MAX:
            raise InvalidInput(
                f"{root} is too large to follow its work to other machines ({ENTRIES_MAX} entries and {BYTES_MAX} bytes"
                " at most). Put it on a shared volume, or clean it up."
            )
    return tree


def _walk(root: Path, inside: str, wanted: Wanted) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    left = [inside]
    while left:
        inside, folders = left.pop(), list[str]()
        with suppress(FileNotFoundError), os.scandir(root / inside) as found:
            for entry in sorted(found, key=lambda one: one.name):
                path = f"{inside}/{entry.name}" if inside else entry.name
                if not is_text(entry.name) or not wanted(entry.name):
                    continue
                yield path, entry
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
        left += reversed(folders)
        wanted = everything


def check_path(path: str) -> tuple[str, ...]:
    """The parts of a path in a manifest. Raises InvalidInput when it does not stay inside."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\0" in path or any(part in ("..", ".") for part in parts):
        raise InvalidInput(f"A manifest names the path {path[:200]!r}, which leads out of its directory.")
    return parts


def remove(root: Path, path: str) -> None:
    """Delete a file, a link, or a folder when nothing else is in it."""
    *parents, name = check_path(path)
    with suppress(FileNotFoundError, NotADirectoryError), _folder(root, parents, enter=_open) as folder:
        try:
            os.unlink(name, dir_fd=folder)
        except (IsADirectoryError, PermissionError):  # what unlink says of a folder, on Linux and elsewhere
            with suppress(OSError):
                os.rmdir(name, dir_fd=folder)


def keep_beside(root: Path, path: str) -> None:
    """Rename what is there, if anything, to NAME.conflict."""
    *parents, name = check_path(path)
    with suppress(FileNotFoundError, NotADirectoryError), _folder(root, parents, enter=_open) as folder:
        _put_aside(folder, name)


def make(root: Path, path: str, entry: ManifestEntry, content: Path | None) -> None:
    """Put an entry into its place; a file's content is copied from `content`. What was there is gone."""
    *parents, name = check_path(path)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _folder(root, parents, enter=_make) as folder:
        if entry.kind == "folder":
            os.close(_make(folder, name))
            return
        fresh = f".{secrets.token_hex(8)}"
        if entry.kind == "link":
            os.symlink(entry.value, fresh, dir_fd=folder)
        else:
            assert content is not None, "a file needs its content"
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            with open(content, "rb", opener=regular_only) as source, open(file, "wb") as target:
                shutil.copyfileobj(source, target)
                os.fchmod(target.fileno(), entry.mode & 0o777)
        try:
            os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:  # something that others do not know of is in it
                _put_aside(folder, name)
            os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _folder(root: Path, parents: list[str], *, enter: Callable[[int, str], int]) -> Generator[int]:
    """The directory of an entry, opened part by part, so that no link below the root is followed."""
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parents:
            below = enter(here, part)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _open(folder: int, name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link, which some systems say so
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from error
        raise


def _make(folder: int, name: str) -> int:
    try:
        return _open(folder, name)
    except NotADirectoryError:
        _put_aside(folder, name)
    except FileNotFoundError:
        pass
    os.mkdir(name, 0o700, dir_fd=folder)
    return _open(folder, name)


def _put_aside(folder: int, name: str) -> None:
    aside = f"{name}.conflict"
    try:
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            raise
        os.rename(name, f"{aside}.{secrets.token_hex(4)}", src_dir_fd=folder, dst_dir_fd=folder)


SCOPE = "workspace"
PUSH_ATTEMPTS_MAX = 20
TRANSFERS_MAX = 8
"""Files that are on their way at the same time."""
SWEEP_SECONDS = 86_400.0
"""How often a machine deletes what no manifest names any more."""
PULL_SECONDS_MAX = 900.0
"""For how long a pull that is cut by a crash marks what changes."""
APART_SECONDS = 0.04
"""Between fetching other files and marked ones, so that times tell them apart."""

Entries = Mapping[str, ManifestEntry]


class _State(msgspec.Struct):
    base: dict[str, ManifestEntry] = {}
    seen: dict[str, Seen] = {}
    newest: str = ""
    swept_at: float = 0.0


class _Next(NamedTuple):
    """What a push is about to do: the state to remember, the digest of the next manifest (empty: nothing changed here),
    the contents that it names, and the paths whose changes met ours."""

    state: _State
    digest: str = ""
    used: frozenset[str] = frozenset()
    conflicts: tuple[str, ...] = ()


class _Manifest(msgspec.Struct):
    """What a directory holds, and what had a hand in which of its files when they were pushed."""

    entries: dict[str, ManifestEntry]
    marked: dict[str, str] = {}


class _Plan(NamedTuple):
    """What a pull is about to do: the paths that change here, those of them that changed here too, and the rest."""

    state: _State
    remote: _Manifest
    local: DirectoryTree
    here: list[str]
    met: list[str]

    def marked(self, source_of: Callable[[str], str]) -> tuple[list[str], str]:
        """The paths that are to be made as marked ones, and by what; all of them where a marked one is put aside."""
        sources = {path: source for path in self.here if (source := self.remote.marked.get(path))}
        aside = {path: source for path in self.met if (source := source_of(path))}
        names = sorted({*sources.values(), *aside.values()})
        return self.here if aside else list(sources), " and ".join(names[:2]) + (" and others" if names[2:] else "")


_encoder = msgspec.json.Encoder(order="sorted")
_manifest = msgspec.json.Decoder(_Manifest)
_state = msgspec.json.Decoder(_State)


class WorkspaceSync:
    """Pulls before and pushes after work on a directory. One call a name at a time in a process.

    `memory` is a folder of this machine's own, outside of every directory that is synced. `folders` are those of or in
    the directory whose files can be marked.
    """

    def __init__(self, files: Files, settings: Settings, memory: Path, marks: MarkedFiles) -> None:
        self._files = files
        self._settings = settings
        self._memory = memory
        self._marks = marks

    async def pull(
        self, name: str, root: Path, wanted: Wanted = everything, folders: Collection[Path] = ()
    ) -> list[str]:
        """Bring the directory up to date with what others pushed under this name.

        Only the names at its top that are `wanted` are anybody else's. Returns the files that changed here and
        elsewhere. Raises OSError, and StoreCorrupt when a manifest is damaged; what is done by then is right, and is
        gone on with.
        """
        newest = await self._settings.get(SCOPE, name) or ""
        plan = await anyio.to_thread.run_sync(self._plan, name, root, newest, wanted) if newest else None
        if plan is None:
            return []
        source_of = await self._marks.sources(folders)
        marked, source = plan.marked(lambda path: source_of(root / path))
        others = [path for path in plan.here if path not in frozenset(marked)]
        await anyio.to_thread.run_sync(self._apply, name, root, plan, others)
        if marked:
            await anyio.sleep(APART_SECONDS)
            async with self._marks.during(folders, source, PULL_SECONDS_MAX):
                await anyio.to_thread.run_sync(self._apply, name, root, plan, marked)
        await anyio.to_thread.run_sync(self._remember, name, plan.state)
        return plan.met

    async def push(
        self, name: str, root: Path, wanted: Wanted = everything, folders: Collection[Path] = ()
    ) -> list[str]:
        """Give others what changed here; returns the files that changed here and elsewhere.

        Raises OSError, Conflict, and InvalidInput for a directory that is too large.
        """
        for _ in range(PUSH_ATTEMPTS_MAX):
            newest = await self._settings.get(SCOPE, name)
            source_of = await self._marks.sources(folders)
            coming = await anyio.to_thread.run_sync(self._prepare, name, root, newest or "", wanted, source_of)
            if not coming.digest or await self._settings.swap(SCOPE, name, newest, coming.digest):
                await anyio.to_thread.run_sync(self._conclude, name, coming)
                return list(coming.conflicts)
        raise Conflict(f"{name} changes too fast on other machines; what changed here is pushed next time.")

    async def forget(self, name: str) -> None:
        """Delete all content but the newest manifest's, also what was stored just now. Raises OSError."""
        newest = await self._settings.get(SCOPE, name) or ""

        def sweep() -> None:
            files = self._place(name)
            used = {entry.value for entry in _read(files, newest).entries.values()} if newest else set[str]()
            files.sweep({newest, *used}, at_once=True)

        await anyio.to_thread.run_sync(sweep)

    # ---- blocking parts ----

    def _plan(self, name: str, root: Path, newest: str, wanted: Wanted) -> _Plan | None:
        state = self._recall(name, root)
        if state.newest == newest:
            return None
        manifest = _read(self._place(name), newest)
        remote = manifest.entries
        local = scan(root, state.seen, time.time_ns(), wanted)
        changed = [path for path in remote.keys() | state.base.keys() if remote.get(path) != state.base.get(path)]
        here = sorted(path for path in changed if local.entries.get(path) != remote.get(path))
        met = [
            path
            for path in here
            if local.entries.get(path) not in (None, state.base.get(path))
            and not (_is_folder(path, local.entries) and _is_folder(path, remote, absent=True))  # only there or not
        ]
        return _Plan(_State(remote, local.seen, newest, state.swept_at), manifest, local, here, met)

    def _apply(self, name: str, root: Path, plan: _Plan, paths: Collection[str]) -> None:
        """Change these paths here. Sorted, so that a folder is made before what is in it and removed after it."""
        remote = plan.remote.entries
        for path in (path for path in plan.met if path in paths):
            log.warning("changed here and elsewhere; the one from here is kept beside it", extra={"path": path})
            keep_beside(root, path)
        for path in sorted(paths, reverse=True):
            if path not in remote or (_is_folder(path, remote) and not _is_folder(path, plan.local.entries)):
                remove(root, path)
        files, arriving = self._place(name), self._memory / f".arriving-{secrets.token_hex(4)}"
        entries = {path: remote[path] for path in sorted(paths) if path in remote}
        try:
            digests = {entry.value for entry in entries.values() if entry.kind == "file"}
            _side_by_side(lambda digest: files.fetch(digest, arriving / digest), digests)
            for path, entry in entries.items():
                make(root, path, entry, arriving / entry.value if entry.kind == "file" else None)
        finally:
            remove_tree(arriving)

    def _prepare(self, name: str, root: Path, newest: str, wanted: Wanted, source_of: Callable[[Path], str]) -> _Next:
        state = self._recall(name, root)
        local = scan(root, state.seen, time.time_ns(), wanted)
        paths = local.entries.keys() | state.base.keys()
        changed = {path for path in paths if local.entries.get(path) != state.base.get(path)}
        if not changed:
            return _Next(_State(state.base, local.seen, state.newest, state.swept_at))
        files = self._place(name)
        new = {entry.value: path for path, entry in local.entries.items() if entry.kind == "file" and path in changed}

        def keep(digest: str) -> None:  # also what is there already, so that it counts as young
            if files.keep_file(root / new[digest]) != digest:
                raise Conflict("A file changed while it was read; it is pushed next time.")

        _side_by_side(keep, new)
        manifest = _read(files, newest) if newest else _Manifest({})
        remote, merged = manifest.entries, dict(manifest.entries)
        met = sorted(  # others changed these to something of value
            path
            for path in changed & remote.keys()
            if remote[path].kind != "folder" and remote[path] not in (local.entries.get(path), state.base.get(path))
        )
        for path in changed:
            merged.pop(path, None)
        merged |= {path: local.entries[path] for path in changed if path in local.entries}
        marked = {path: source for path, source in manifest.marked.items() if path not in changed}
        marked |= {path: source for path in changed & local.seen.keys() if (source := source_of(root / path))}
        for path in met:
            log.warning("changed here and elsewhere; the other one is kept beside it", extra={"path": path})
            aside = f"{path}.conflict"
            if aside in merged:
                aside += f".{secrets.token_hex(4)}"
            merged[aside] = remote[path]
            if path in manifest.marked:
                marked[aside] = manifest.marked[path]
        following = files.keep(_encoder.encode(_Manifest(merged, marked)))
        common = following if merged == local.entries else ""
        used = frozenset(entry.value for entry in merged.values() if entry.kind == "file")
        return _Next(_State(local.entries, local.seen, common, state.swept_at), following, used, tuple(met))

    def _conclude(self, name: str, done: _Next) -> None:
        state = done.state
        if done.digest and time.time() > state.swept_at + SWEEP_SECONDS:
            self._place(name).sweep({done.digest, *done.used})
            state.swept_at = time.time()
        self._remember(name, state)

    def _place(self, name: str) -> Files:
        return self._files.below(encode_part(name))

    def _recall(self, name: str, root: Path) -> _State:
        if not root.exists():  # it was lost, not emptied
            return _State()
        try:
            return _state.decode(read_regular(self._path(name)))
        except (FileNotFoundError, msgspec.MsgspecError):  # nothing in common: what is here counts as new
            return _State()

    def _remember(self, name: str, state: _State) -> None:
        path = self._path(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        fresh.write_bytes(_encoder.encode(state))
        fresh.replace(path)

    def _path(self, name: str) -> Path:
        return self._memory / f"{encode_part(name)}.json"


def _read(files: Files, digest: str) -> _Manifest:
    try:
        manifest = _manifest.decode(files.read(digest))
    except (msgspec.MsgspecError, FileNotFoundError) as error:
        raise StoreCorrupt(f"The manifest {digest} of a workspace is damaged or gone. Restore a backup.") from error
    for path in manifest.entries:
        check_path(path)
    return manifest


def _is_folder(path: str, entries: Entries, *, absent: bool = False) -> bool:
    """Whether a path is a folder; `absent` is the answer where there is nothing."""
    return entries[path].kind == "folder" if path in entries else absent


def _side_by_side(transfer: Callable[[str], None], digests: Iterable[str]) -> None:
    with ThreadPoolExecutor(TRANSFERS_MAX, "shoal-files") as pool:
        for _ in pool.map(transfer, digests):
            pass


MET = "[{count} changed here and on another machine at the same time; the other version is beside it as NAME.conflict.]"
STAYS = "[What changed here could not be stored for other machines: {why} It is tried again after the next call.]"
BEHIND = "[What changed on other machines could not be brought here: {why}]"
PROJECTED = frozenset({LOG, CONTEXT})
"""Each machine writes these from the journal."""

_Transfer = Callable[[str, Path, Wanted, tuple[Path, ...]], Awaitable[list[str]]]


class _FollowedFolder(NamedTuple):
    name: str
    root: Path
    wanted: Wanted
    marked: tuple[Path, ...] = ()


class SyncedFolders(Folders):
    """Follow the work from machine to machine. What is in common with others is remembered below the home's `sync/`."""

    def __init__(self, files: Files, settings: Settings, home: Home, marks: MarkedFiles) -> None:
        self._memory = home.root / "sync"
        self._sync = WorkspaceSync(files, settings, self._memory, marks)
        self._home = home
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def pull(self, thread: ThreadId, agent: AgentSpec | None = None) -> tuple[str, ...]:
        """Bring a thread's files, and the agent's workspace, up to date."""
        notices: list[str] = []
        for folder in self._folders(thread, agent):
            try:
                notices += await self._transfer(self._sync.pull, folder)
            except OSError as error:
                raise StoreUnavailable(f"The files of {folder.name} cannot be had: {_why(error)}") from error
            except (StoreCorrupt, InvalidInput) as error:
                log.error("a directory is not brought up to date", extra={"folder": folder.name, "why": str(error)})
                notices.append(BEHIND.format(why=error))
        return tuple(notices)

    async def push(self, thread: ThreadId, agent: AgentSpec | None = None) -> tuple[str, ...]:
        notices: list[str] = []
        for folder in self._folders(thread, agent):
            try:
                notices += await self._transfer(self._sync.push, folder)
            except (OSError, Conflict, StoreCorrupt, InvalidInput) as error:
                log.warning("a directory's changes stay here", extra={"folder": folder.name, "why": str(error)})
                notices.append(STAYS.format(why=_why(error)))
        return tuple(notices)

    async def forget(self, thread: ThreadId) -> None:
        """Push that they are gone, which other machines follow at their next pull, and delete them from the store."""
        (folder,) = self._folders(thread, None)
        await self._transfer(self._sync.push, folder)
        await self._sync.forget(folder.name)

    def here(self, thread: ThreadId, path: str) -> str:
        root = self._home.thread(thread)
        inside = path.partition(f"/data/{thread.replace(':', '/')}/")[2]
        return str(root / inside) if inside and not path.startswith(f"{root}/") else path

    async def _transfer(self, transfer: _Transfer, folder: _FollowedFolder) -> list[str]:
        lock = self._locks.setdefault(folder.name, asyncio.Lock())
        file = self._memory / f"{encode_part(folder.name)}.lock"
        async with lock, lock_file(file):  # in this process, and among all processes with this home
            met = len(await transfer(*folder))
            if met and folder.marked == (self._home.root,):  # memory: what others keep is for no turn to know
                log.warning("memory was changed on two machines at once", extra={"folder": folder.name})
                return []
            count = "A file was" if met == 1 else f"{met} files were"
            return [MET.format(count=count)] if met else []  # in a prompt, names would be anybody's words

    def _folders(self, thread: ThreadId, agent: AgentSpec | None) -> Iterator[_FollowedFolder]:
        home = self._home
        marked = home.scratch(thread), home.attachments(thread)
        yield _FollowedFolder(f"thread {thread}", home.thread(thread), _is_shared, marked)
        if agent is None:
            return
        own = agent.workspace.relative_to(agent.home)  # a channel that strangers may read has one of its own
        name = f"agent {agent.name}" if own.parts == ("workspace",) else f"agent {agent.name} {own.as_posix()}"
        yield _FollowedFolder(name, agent.workspace, everything, (agent.workspace,))
        in_prompts = (home.root,)  # see tools/tainted_files.py
        yield _FollowedFolder("notes", home.data / "memory", everything, in_prompts)
        for scope in MEMORY_SCOPES:
            root = memory_path(home, scope, thread).parent
            name = "/".join(root.relative_to(home.data).parts)
            yield _FollowedFolder(f"memory {name}".rstrip(), root, _is_memory, in_prompts)


def _is_shared(name: str) -> bool:
    return name not in PROJECTED


def _is_memory(name: str) -> bool:
    """MEMORY.md, and what was kept beside it."""
    return name.startswith(MEMORY_FILE)


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
