"""Trees of workspaces: scan them from disk, store them by digest, compare them and change them.

Scanning follows no link below the workspace, reads only regular files, and never blocks on a pipe. Folders are
opened below the workspace's own descriptor. A file is read again only if its times, size, mode or inode changed. All
functions block.
"""

import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from shoal.kernel.checkpoints import CheckpointsSettings, EntryKind, Lacks, Parts, TreeChange, TreeEntry, alike
from shoal.kernel.files import Files, digest_of
from shoal.tools.openat import best_opener
from shoal.tools.taint_spans import Marks

SETTLED_NANOSECONDS = 2_000_000_000
"""Granularity of file timestamps. A file that changed within this time before it was read may change again without a
new modification time.
"""
DEPTH_MAX = 200
READ_AT_ONCE_MAX = 4
"""Maximum number of new files that are read and stored at the same time. Each file is in memory until it is stored."""
_KINDS: dict[int, EntryKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Names: TypeAlias = tuple[str, ...]
"""A path as a tuple of names, in the form that system calls accept."""
Signature: TypeAlias = tuple[int, ...]
"""Value that identifies an unchanged file. Empty if the file may change again without a new timestamp."""


class SeenEntry(NamedTuple):
    signature: Signature
    entry: TreeEntry


class SeenFolder(NamedTuple):
    """The entries of a scanned folder by name, and the digest of its tree."""

    entries: dict[str, SeenEntry]
    tree: str


class Scan(NamedTuple):
    """A scanned workspace.

    tree: digest of the top folder.
    seen: cache for the next scan.
    notes: sentences about the parts that are not stored.
    """

    tree: str
    seen: dict[Names, SeenFolder]
    notes: tuple[str, ...]


class Trees:
    """The stored trees and file contents of one workspace."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(tuple[TreeEntry, ...]).decode

    def entries(self, tree: str) -> dict[bytes, TreeEntry]:
        """Return the entries of a folder by name. An empty digest has no entries. Raises OSError if the tree is
        missing or damaged.
        """
        return {entry.name: entry for entry in self._decode(self._files.read(tree))} if tree else {}

    def content(self, entry: TreeEntry) -> bytes:
        """Return a file's content. Raises OSError if it is missing or damaged."""
        return self._files.read(entry.value.decode())

    def keep(self, entries: Sequence[TreeEntry]) -> str:
        return self._files.keep(self._encode(entries))

    def find(self, tree: str, path: Parts) -> TreeEntry | None:
        """Return the entry at a path, or None. If a folder above the path was not scanned, return the entry of
        that folder.
        """
        for name in path[:-1]:
            entry = self.entries(tree).get(name)
            if entry is None or entry.kind != "folder":
                return None
            if entry.lacks:
                return entry
            tree = entry.value.decode()
        return self.entries(tree).get(path[-1])

    def lacks(self, entry: TreeEntry) -> Lacks:
        """Return the reason why an entry, or something below it, is not stored. Returns an empty string if
        everything is stored.
        """
        if entry.lacks or entry.kind != "folder":
            return entry.lacks
        for inner in self.entries(entry.value.decode()).values():
            if lacks := self.lacks(inner):
                return lacks
        return ""

    def changes(self, before: str, after: str, path: Parts = ()) -> Iterator[TreeChange]:
        """Yield the differences between two trees. A folder precedes its content. The content of unscanned folders
        is skipped.
        """
        if before == after:
            return
        old, new = self.entries(before), self.entries(after)
        for name in sorted({*old, *new}):
            old_entry, other = old.get(name), new.get(name)
            if not alike(old_entry, other):
                yield TreeChange((*path, name), old_entry, other)
            if any(entry is not None and entry.kind == "folder" and entry.lacks for entry in (old_entry, other)):
                continue
            inner, outer = ("" if e is None or e.kind != "folder" else e.value.decode() for e in (old_entry, other))
            yield from self.changes(inner, outer, (*path, name))

    def replaced(self, tree: str, targets: Mapping[Parts, TreeEntry | None]) -> str:
        """Replace entries of a tree and return the new digest.

        A replaced folder keeps its content. A folder is removed only if it is empty.
        """
        entries = self.entries(tree)
        below: dict[bytes, dict[Parts, TreeEntry | None]] = {}
        for path, target in targets.items():
            below.setdefault(path[0], {})[path[1:]] = target
        for name, inner in below.items():
            now = entries.get(name)
            own = inner.pop((), now)
            held = now.value.decode() if now is not None and now.kind == "folder" else ""
            if own is not None and own.kind != "folder" and any(inner.values()):
                own = None  # the entries below it need a folder here
            if own is not None and own.kind != "folder":
                entries[name] = own
                continue
            content = self.replaced(held, inner) if inner else held
            if own is None and not (content and self.entries(content)):
                entries.pop(name, None)
                continue
            mode = own.mode if own is not None else now.mode if now is not None and held else 0o755
            lacks = now.lacks if now is not None and now.kind == "folder" else ""
            entries[name] = TreeEntry(name, "folder", mode, (content or self.keep(())).encode(), lacks=lacks)
        return self.keep(tuple(entries[name] for name in sorted(entries)))

    def used(self, roots: Sequence[str]) -> set[str]:
        """Return the digests of these trees and of everything below them. A tree that is missing from the store
        contributes only its own digest.
        """
        trees_seen, left = set[str](), list(roots)
        while left:
            tree = left.pop()
            if not tree or tree in trees_seen:
                continue
            trees_seen.add(tree)
            with suppress(FileNotFoundError):
                for entry in self.entries(tree).values():
                    if entry.kind == "folder":
                        left.append(entry.value.decode())
                    elif entry.kind == "file":
                        trees_seen.add(entry.value.decode())
        return trees_seen

    def sweep(self, roots: Sequence[str]) -> int:
        """Delete content that none of these trees uses and that was not stored recently. Returns the number of
        deleted items.
        """
        return self._files.sweep(self.used(roots))

    # ---- scanning the disk ----

    def scan(self, root: Path, settings: CheckpointsSettings, marks: Marks, seen: Mapping[Names, SeenFolder]) -> Scan:
        """Scan a workspace and store new content. Folders near the top are scanned first. Raises OSError."""
        now, opener = time.time_ns(), best_opener()
        folders_seen: dict[Names, dict[str, SeenEntry]] = {}
        folders_in: dict[Names, list[str]] = {}
        counts = Counter[Names]()
        fresh: list[tuple[Names, str]] = []
        unread: dict[Names, Lacks] = {}
        queue, count, size = [Names()], 0, 0
        for names in queue:
            if count >= settings.files_max or len(names) > DEPTH_MAX:
                unread[names] = "full"
                continue
            before = seen[names].entries if names in seen else {}
            here, inner = dict[str, SeenEntry](), list[str]()
            try:
                with opener.directory(root, names) as folder, os.scandir(folder) as listing:
                    listed = [(item.name, item.stat(follow_symlinks=False)) for item in listing]
            except OSError:
                if not names:
                    raise
                unread[names] = "closed"
                continue
            listed.sort()
            count += len(listed)
            for name, status in listed:
                changed = status.st_ctime_ns
                signature = (status.st_mode, status.st_size, status.st_mtime_ns, changed, status.st_ino)
                source = marks.source_of((changed,)) if marks.spans else ""
                known = before.get(name)
                if known is not None and known.signature == signature and known.entry.lacks != "full":
                    if known.entry.source == source:
                        here[name] = known
                        counts[names] += 1
                    else:
                        here[name] = SeenEntry(signature, replace(known.entry, source=source))
                    size += 0 if known.entry.lacks else status.st_size
                    continue
                if max(status.st_mtime_ns, changed) + SETTLED_NANOSECONDS > now:
                    signature = ()
                entry = entry_of(name, status, source)
                if entry.kind == "folder":
                    queue.append((*names, name))
                    inner.append(name)
                elif entry.kind == "link":
                    with suppress(OSError), opener.directory(root, names) as folder:
                        entry = replace(entry, value=os.readlink(os.fsencode(name), dir_fd=folder))
                elif entry.kind == "file" and status.st_size > settings.file_bytes_max:
                    entry = replace(entry, lacks="large")
                elif entry.kind == "file" and size + status.st_size > settings.bytes_max:
                    entry = replace(entry, lacks="full")
                elif entry.kind == "file":
                    size += status.st_size
                    fresh.append((names, name))
                here[name] = SeenEntry(signature, entry)
            folders_seen[names], folders_in[names] = here, inner

        def keep(place: tuple[Names, str]) -> None:
            names, name = place
            signature, entry = folders_seen[names][name]
            try:
                with opener.directory(root, names) as folder:
                    content = read_file(folder, name, settings.file_bytes_max)
            except OSError:
                entry = replace(entry, lacks="closed")
            else:
                known = seen[names].entries.get(name) if names in seen else None
                digest = digest_of(content)
                if known is None or known.entry.value != digest.encode():
                    digest = self._files.keep(content)
                entry = replace(entry, value=digest.encode(), size=len(content))
            folders_seen[names][name] = SeenEntry(signature, entry)

        if len(fresh) > 1:
            with ThreadPoolExecutor(READ_AT_ONCE_MAX) as readers:
                list(readers.map(keep, fresh))
        else:
            list(map(keep, fresh))
        folders = dict[Names, SeenFolder]()
        for names in reversed(queue):  # contents before the folder that contains them
            if names not in folders_seen:
                continue
            here, known = folders_seen[names], seen.get(names)
            before = known.entries if known is not None else {}
            for name in folders_in[names]:
                lacks = unread.get((*names, name), "")
                tree = "" if lacks else folders[*names, name].tree
                here[name] = SeenEntry((), replace(here[name].entry, value=tree.encode(), lacks=lacks, source=""))
                counts[names] += before.get(name) == here[name]
            if known is not None and counts[names] == len(here) == len(before):
                folders[names] = known
            else:
                entries = sorted((seen.entry for seen in here.values()), key=lambda entry: entry.name)
                folders[names] = SeenFolder(here, self.keep(entries))
        return Scan(folders[()].tree, folders, notes_of(folders_seen.values(), unread, settings))


def entry_of(name: str, status: os.stat_result, source: str = "") -> TreeEntry:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "device")
    mode = 0 if kind == "link" else stat.S_IMODE(status.st_mode)
    size, modified = (status.st_size, status.st_mtime_ns) if kind == "file" else (0, 0)
    return TreeEntry(os.fsencode(name), kind, mode, b"", size, modified, source=source)


def read_file(folder: int, name: str, bytes_max: int) -> bytes:
    """Return a regular file's content. Raises OSError if the file is larger than `bytes_max` or no longer a regular
    file."""
    with open(os.open(name, _READ, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("It is no longer a file.")
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError("It has grown.")
    return content


def notes_of(
    folders: Iterable[dict[str, SeenEntry]], unread: Mapping[Names, Lacks], settings: CheckpointsSettings
) -> tuple[str, ...]:
    entries = (one.entry for here in folders for one in here.values() if one.entry.lacks)
    lacking = Counter(entry.lacks for entry in entries if entry.kind == "file" or entry.lacks == "closed")
    note = (
        (lacking["large"], f"larger than {settings.file_bytes_max:,} bytes"),
        (lacking["full"], f"beyond the {settings.bytes_max:,} bytes that are stored per workspace"),
        (lacking["closed"], "not readable"),
    )
    notes = [f"Files that are {why}: {count:,}. Changes to them cannot be undone." for count, why in note if count]
    if "full" in unread.values():
        notes.append(
            f"The workspace has more than {settings.files_max:,} files and folders, so the deepest ones are skipped."
        )
    return tuple(notes)
