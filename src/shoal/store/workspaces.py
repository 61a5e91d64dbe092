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
"""

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import anyio.to_thread
import msgspec

from shoal.domain.errors import Conflict, StoreCorrupt
from shoal.domain.files import Files, FolderMarks
from shoal.domain.ids import encode_part
from shoal.domain.store import Settings
from shoal.store.tree import Entry, Seen, Tree, Wanted, check_path, everything, keep_beside, make, remove, scan

log = logging.getLogger(__name__)

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

T = TypeVar("T")
Entries = Mapping[str, Entry]


class _State(msgspec.Struct):
    """What this machine remembers of one directory."""

    base: dict[str, Entry] = {}
    seen: dict[str, Seen] = {}
    newest: str = ""
    swept_at: float = 0.0


class _Next(NamedTuple):
    """What a push is about to do: the state to remember, the next manifest and its digest, whose changes met ours.

    Without a digest nothing changed here.
    """

    state: _State
    manifest: Entries
    digest: str
    conflicts: list[str]


class _Manifest(msgspec.Struct):
    """What a directory holds, and what had a hand in which of its files when they were pushed."""

    entries: dict[str, Entry]
    marked: dict[str, str] = {}


class _Plan(NamedTuple):
    """What a pull is about to do: the paths that change here, those of them that changed here too, and the rest."""

    state: _State
    remote: _Manifest
    local: Tree
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

    def __init__(self, files: Files, settings: Settings, memory: Path, marks: FolderMarks) -> None:
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
                return coming.conflicts
        raise Conflict(f"{name} changes too fast on other machines; what changed here is pushed next time.")

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
            if local.entries.get(path) not in (None, state.base.get(path)) and not _is_folder(path, local, remote)
        ]
        return _Plan(_State(remote, local.seen, newest, state.swept_at), manifest, local, here, met)

    def _apply(self, name: str, root: Path, plan: _Plan, paths: Collection[str]) -> None:
        """Change these paths here. Sorted, so that a folder is made before what is in it and removed after it."""
        remote = plan.remote.entries
        for path in (path for path in plan.met if path in paths):
            log.warning("changed here and elsewhere; the one from here is kept beside it", extra={"path": path})
            keep_beside(root, path)
        for path in sorted(paths, reverse=True):
            if path not in remote or (remote[path].kind == "folder" and not _is_folder_here(path, plan.local)):
                remove(root, path)
        self._make(self._place(name), root, {path: remote[path] for path in sorted(paths) if path in remote})

    def _make(self, files: Files, root: Path, entries: Entries) -> None:
        arriving = self._memory / f".arriving-{secrets.token_hex(4)}"
        try:
            digests = {entry.value for entry in entries.values() if entry.kind == "file"}
            _side_by_side(lambda digest: files.fetch(digest, arriving / digest), digests)
            for path, entry in entries.items():
                make(root, path, entry, arriving / entry.value if entry.kind == "file" else None)
        finally:
            _clear(arriving)

    def _prepare(self, name: str, root: Path, newest: str, wanted: Wanted, source_of: Callable[[Path], str]) -> _Next:
        state = self._recall(name, root)
        local = scan(root, state.seen, time.time_ns(), wanted)
        paths = local.entries.keys() | state.base.keys()
        changed = {path for path in paths if local.entries.get(path) != state.base.get(path)}
        if not changed:
            return _Next(_State(state.base, local.seen, state.newest, state.swept_at), {}, "", [])
        files = self._place(name)
        new = {entry.value: path for path, entry in local.entries.items() if entry.kind == "file" and path in changed}
        _side_by_side(lambda digest: _keep(files, root / new[digest], digest), new)
        manifest = _read(files, newest) if newest else _Manifest({})
        remote, merged = manifest.entries, dict(manifest.entries)
        met = sorted(
            path for path in changed if _meets(local.entries.get(path), state.base.get(path), remote.get(path))
        )
        for path in changed:
            merged.pop(path, None)
        merged |= {path: local.entries[path] for path in changed if path in local.entries}
        marked = {path: source for path, source in manifest.marked.items() if path not in changed}
        marked |= {path: source for path in changed & local.seen.keys() if (source := source_of(root / path))}
        for path in met:
            log.warning("changed here and elsewhere; the other one is kept beside it", extra={"path": path})
            aside = _beside(path, merged)
            merged[aside] = remote[path]
            if path in manifest.marked:
                marked[aside] = manifest.marked[path]
        following = files.keep(_encoder.encode(_Manifest(merged, marked)))
        common = following if merged == local.entries else ""
        return _Next(_State(local.entries, local.seen, common, state.swept_at), merged, following, met)

    def _conclude(self, name: str, done: _Next) -> None:
        state = done.state
        if done.digest and time.time() > state.swept_at + SWEEP_SECONDS:
            used = {entry.value for entry in done.manifest.values() if entry.kind == "file"}
            self._place(name).sweep({done.digest, *used})
            state.swept_at = time.time()
        self._remember(name, state)

    def _place(self, name: str) -> Files:
        return self._files.below(encode_part(name))

    def _recall(self, name: str, root: Path) -> _State:
        if not root.exists():  # it was lost, not emptied
            return _State()
        try:
            return _state.decode(self._path(name).read_bytes())
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


def _keep(files: Files, path: Path, digest: str) -> None:
    if files.keep_file(path) != digest:  # also of what is there already, so that it counts as young
        raise Conflict("A file changed while it was read; it is pushed next time.")


def _read(files: Files, digest: str) -> _Manifest:
    try:
        manifest = _manifest.decode(files.read(digest))
    except (msgspec.MsgspecError, FileNotFoundError) as error:
        raise StoreCorrupt(f"The manifest {digest} of a workspace is damaged or gone: {error}.") from error
    for path in manifest.entries:
        check_path(path)
    return manifest


def _meets(ours: Entry | None, base: Entry | None, theirs: Entry | None) -> bool:
    """Whether another changed to something of value what we changed too."""
    return theirs is not None and theirs.kind != "folder" and theirs not in (ours, base)


def _beside(path: str, taken: Entries) -> str:
    """A free name for the other one."""
    aside = f"{path}.conflict"
    return aside if aside not in taken else f"{aside}.{secrets.token_hex(4)}"


def _is_folder(path: str, local: Tree, remote: Entries) -> bool:
    """Folders are not in conflict: they are only there or not."""
    entry = remote.get(path)
    return _is_folder_here(path, local) and (entry is None or entry.kind == "folder")


def _is_folder_here(path: str, local: Tree) -> bool:
    return path in local.entries and local.entries[path].kind == "folder"


def _side_by_side(transfer: Callable[[str], None], digests: Iterable[str]) -> None:
    with ThreadPoolExecutor(TRANSFERS_MAX, "shoal-files") as pool:
        for _ in pool.map(transfer, digests):
            pass


def _clear(folder: Path) -> None:
    if folder.exists():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
