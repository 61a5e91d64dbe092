"""Synchronize a directory between machines.

Machines share a manifest (path, kind, digest), which is stored by digest like every file that it names. A setting
contains the digest of the newest manifest. Each machine stores its base, which is the last state that it had in
common with the others.

    pull    Apply the changes between the base and the newest manifest to the directory. Rename a file that also changed
            here to NAME.conflict.
    push    Apply the local changes since the base to the newest manifest and publish the result. Store the version of
            a file that also changed elsewhere as NAME.conflict. Retry if another machine was faster.

Threads of one agent can therefore work on different machines at the same time. If two machines changed a file, the
later push keeps the name, and the other version is preserved. The content of each directory is stored separately.
Once a day, a push deletes content that the newest manifest does not name.

Fetching a file changes the timestamp that identifies tainted files (`tainted_files`). A push therefore records the
tainted files in the manifest, and a pull taints them again.
"""

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread
import msgspec

from shoal.files.deep_folders import remove_tree
from shoal.kernel.errors import Conflict, StoreCorrupt
from shoal.kernel.files import Files
from shoal.kernel.ids import encode_part
from shoal.kernel.ports import Settings
from shoal.kernel.regular_files import read_regular
from shoal.tools.manifests import (
    DirectoryTree,
    Entries,
    ManifestEntry,
    Seen,
    Wanted,
    check_path,
    everything,
    keep_beside,
    make,
    remove,
    scan,
)
from shoal.tools.tainted_files import MarkedFiles

log = logging.getLogger(__name__)

SCOPE = "workspace"
PUSH_ATTEMPTS_MAX = 20
TRANSFERS_MAX = 8
SWEEP_SECONDS = 86_400.0
"""Seconds between deletions of content that the newest manifest does not name. Each machine has its own schedule."""
PULL_SECONDS_MAX = 900.0
"""If a pull crashes, the files that change within this time after its start are tainted."""
APART_SECONDS = 0.04
"""Seconds between fetching untainted and tainted files, so that their timestamps differ."""


class _State(msgspec.Struct):
    base: dict[str, ManifestEntry] = {}
    seen: dict[str, Seen] = {}
    newest: str = ""
    swept_at: float = 0.0


class _Next(NamedTuple):
    """Plan of a push.

    state: the state to store.
    digest: digest of the next manifest, or an empty string if nothing changed here.
    used: digests of the files that the manifest names.
    conflicts: paths that also changed elsewhere.
    """

    state: _State
    digest: str = ""
    used: frozenset[str] = frozenset()
    conflicts: tuple[str, ...] = ()


class _Manifest(msgspec.Struct):
    """Entries of a directory by path, and the taint sources of files that were tainted when they were pushed."""

    entries: dict[str, ManifestEntry]
    marked: dict[str, str] = {}


class _Plan(NamedTuple):
    """Plan of a pull.

    state: the state to store.
    remote, local: the newest manifest and the directory on this machine.
    here: paths to change on this machine.
    met: those paths in `here` that also changed on this machine.
    """

    state: _State
    remote: _Manifest
    local: DirectoryTree
    here: list[str]
    met: list[str]

    def marked(self, source_of: Callable[[str], str]) -> tuple[list[str], str]:
        """Return the paths to create as tainted files, and their taint source. If a tainted local file must be
        renamed, all paths are returned.
        """
        sources = {path: source for path in self.here if (source := self.remote.marked.get(path))}
        aside = {path: source for path in self.met if (source := source_of(path))}
        names = sorted({*sources.values(), *aside.values()})
        return self.here if aside else list(sources), " and ".join(names[:2]) + (" and others" if names[2:] else "")


_encoder = msgspec.json.Encoder(order="sorted")
_manifest = msgspec.json.Decoder(_Manifest)
_state = msgspec.json.Decoder(_State)


class WorkspaceSync:
    """Pulls changes before work on a directory, and pushes them afterward. The caller must not run two calls for the
    same name at once.

    `memory` is a private folder of this machine, outside all synced directories. The `folders` that `pull` and `push`
    receive are those whose files can be tainted: the directory itself, or folders in it.
    """

    def __init__(self, files: Files, settings: Settings, memory: Path, marks: MarkedFiles) -> None:
        self._files = files
        self._settings = settings
        self._memory = memory
        self._marks = marks

    async def pull(
        self, name: str, root: Path, wanted: Wanted = everything, folders: Collection[Path] = ()
    ) -> list[str]:
        """Update the directory with the changes that other machines pushed under this name.

        `wanted` selects the names to share at the top level of the directory. Returns the paths that changed both here
        and elsewhere. Raises OSError, or StoreCorrupt if a manifest is damaged. Changes applied before an error are
        valid, and the next pull continues.
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
        """Push local changes. Returns the paths that changed both here and elsewhere.

        Raises OSError. Raises Conflict if a file or the newest manifest changes too fast, and InvalidInput if the
        directory is too large.
        """
        for _ in range(PUSH_ATTEMPTS_MAX):
            newest = await self._settings.get(SCOPE, name)
            source_of = await self._marks.sources(folders)
            coming = await anyio.to_thread.run_sync(self._prepare, name, root, newest or "", wanted, source_of)
            if not coming.digest or await self._settings.swap(SCOPE, name, newest, coming.digest):
                await anyio.to_thread.run_sync(self._conclude, name, coming)
                return list(coming.conflicts)
        raise Conflict(f"{name} changes too often on other machines, so Shoal will push the local changes next time.")

    async def forget(self, name: str) -> None:
        """Delete all content that the newest manifest does not name, even if it was stored just now. Raises OSError."""
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
            and not (
                _is_folder(path, local.entries) and _is_folder(path, remote, absent=True)
            )  # two folders never conflict
        ]
        return _Plan(_State(remote, local.seen, newest, state.swept_at), manifest, local, here, met)

    def _apply(self, name: str, root: Path, plan: _Plan, paths: Collection[str]) -> None:
        remote = plan.remote.entries
        for path in (path for path in plan.met if path in paths):
            log.warning("file changed on two machines; local version kept as copy", extra={"path": path})
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

        def keep(digest: str) -> None:  # existing content is stored again to count as recent
            if files.keep_file(root / new[digest]) != digest:
                raise Conflict("A file changed while Shoal was reading it. Shoal will push the file next time.")

        _side_by_side(keep, new)
        manifest = _read(files, newest) if newest else _Manifest({})
        remote, merged = manifest.entries, dict(manifest.entries)
        met = sorted(  # paths that others changed and did not delete
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
            log.warning("file changed on two machines; other version kept as copy", extra={"path": path})
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
        if not root.exists():  # the directory was lost, not emptied on purpose
            return _State()
        try:
            return _state.decode(read_regular(self._path(name)))
        except (FileNotFoundError, msgspec.MsgspecError):  # with no last synced state, every file here counts as new
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
        raise StoreCorrupt(f"The manifest {digest} of a workspace is damaged or missing. Restore a backup.") from error
    for path in manifest.entries:
        check_path(path)
    return manifest


def _is_folder(path: str, entries: Entries, *, absent: bool = False) -> bool:
    return entries[path].kind == "folder" if path in entries else absent


def _side_by_side(transfer: Callable[[str], None], digests: Iterable[str]) -> None:
    with ThreadPoolExecutor(TRANSFERS_MAX, "shoal-files") as pool:
        for _ in pool.map(transfer, digests):
            pass
