"""Lets a directory follow the work from machine to machine: an agent's workspace, a thread's files.

What the machines agree on is a manifest (path, kind, digest), kept by digest like every file it names; a setting names
the newest one. Each machine remembers the manifest it last had in common with the others, its base:

    pull    what changed from the base to the newest manifest is changed here; what also changed here is kept beside it
            as NAME.conflict
    push    what changed from the base here is put on top of the newest manifest, which becomes the next one, unless
            somebody was faster: then again

So threads of one agent may work on different machines at the same time; of two changes to one file the later push
counts. Of the rights only whether a file can be run is followed, of owners and times nothing.
Links are kept as links, and nothing is ever written through one.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import msgspec

from shoal.domain.errors import Conflict, StoreCorrupt
from shoal.domain.files import Files
from shoal.domain.ids import encode_part
from shoal.domain.store import Settings
from shoal.store.tree import Entry, Seen, Tree, check_path, keep_beside, make, remove, scan

log = logging.getLogger(__name__)

SCOPE = "workspace"
PUSH_ATTEMPTS_MAX = 20
TRANSFERS_MAX = 8
"""Files that are on their way at the same time."""

T = TypeVar("T")
Entries = Mapping[str, Entry]


class _State(msgspec.Struct):
    """What this machine remembers of one directory."""

    base: dict[str, Entry] = {}
    seen: dict[str, Seen] = {}
    newest: str = ""


_encoder = msgspec.json.Encoder(order="sorted")
_manifest = msgspec.json.Decoder(dict[str, Entry])
_state = msgspec.json.Decoder(_State)


class WorkspaceSync:
    """Pulls before and pushes after work on a directory. One call a directory at a time in a process.

    `memory` is a folder of this machine's own, outside of every directory that is synced.
    """

    def __init__(self, files: Files, settings: Settings, memory: Path) -> None:
        self._files = files
        self._settings = settings
        self._memory = memory

    async def pull(self, name: str, root: Path) -> None:
        """Bring the directory up to date with what others pushed under this name.

        Raises OSError, and StoreCorrupt when a manifest is damaged; what is done by then is right, and is gone on with.
        """
        newest = await self._settings.get(SCOPE, name) or ""
        if newest:
            await anyio.to_thread.run_sync(self._pull, name, root, newest)

    async def push(self, name: str, root: Path) -> None:
        """Give others what changed here. Raises OSError, InvalidInput for a directory that is too large."""
        for _ in range(PUSH_ATTEMPTS_MAX):
            newest = await self._settings.get(SCOPE, name)
            state, following = await anyio.to_thread.run_sync(self._prepare, name, root, newest or "")
            if following is None or await self._settings.swap(SCOPE, name, newest, following):
                await anyio.to_thread.run_sync(self._remember, name, state)
                return
        raise Conflict(f"{name} changes too fast on other machines; what changed here is pushed next time.")

    # ---- blocking parts ----

    def _pull(self, name: str, root: Path, newest: str) -> None:
        state = self._recall(name, root)
        if state.newest == newest:
            return
        remote = self._read(newest)
        local = scan(root, state.seen, time.time_ns())
        changed = [path for path in remote.keys() | state.base.keys() if remote.get(path) != state.base.get(path)]
        here = [path for path in changed if local.entries.get(path) != remote.get(path)]
        for path in here:
            if local.entries.get(path) not in (None, state.base.get(path)) and not _is_folder(path, local, remote):
                log.warning("changed here and elsewhere; the one from here is kept beside it", extra={"path": path})
                keep_beside(root, path)
        for path in sorted(here, reverse=True):
            if path not in remote or (remote[path].kind == "folder" and not _is_folder_here(path, local)):
                remove(root, path)
        self._make(root, {path: remote[path] for path in sorted(here) if path in remote})
        self._remember(name, _State(dict(remote), local.seen, newest))

    def _make(self, root: Path, entries: Entries) -> None:
        arriving = self._memory / f".arriving-{secrets.token_hex(4)}"
        files = {path: entry for path, entry in entries.items() if entry.kind == "file"}
        try:
            digests = {entry.value for entry in files.values()}
            _side_by_side(lambda digest: self._files.fetch(digest, arriving / digest), digests)
            for path, entry in entries.items():
                make(root, path, entry, arriving / entry.value if entry.kind == "file" else None)
        finally:
            _clear(arriving)

    def _prepare(self, name: str, root: Path, newest: str) -> tuple[_State, str | None]:
        """What to remember, and the digest of the next manifest; None when nothing changed here."""
        state = self._recall(name, root)
        local = scan(root, state.seen, time.time_ns())
        paths = local.entries.keys() | state.base.keys()
        changed = {path for path in paths if local.entries.get(path) != state.base.get(path)}
        if not changed:
            return _State(state.base, local.seen, state.newest), None
        files = {entry.value: path for path, entry in local.entries.items() if entry.kind == "file" and path in changed}
        _side_by_side(lambda digest: self._keep(root / files[digest], digest), files)
        merged = dict(self._read(newest)) if newest else {}
        for path in changed:
            merged.pop(path, None)
        merged |= {path: local.entries[path] for path in changed if path in local.entries}
        following = self._files.keep(_encoder.encode(merged))
        is_all = merged == local.entries
        return _State(local.entries, local.seen, following if is_all else ""), following

    def _keep(self, path: Path, digest: str) -> None:
        if not self._files.has(digest) and self._files.keep_file(path) != digest:
            raise Conflict(f"{path} changed while it was read; it is pushed next time.")

    def _read(self, digest: str) -> Entries:
        try:
            entries = _manifest.decode(self._files.read(digest))
        except (msgspec.MsgspecError, FileNotFoundError) as error:
            raise StoreCorrupt(f"The manifest {digest} of a workspace is damaged or gone: {error}.") from error
        for path in entries:
            check_path(path)
        return entries

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
