"""Resolve the paths of tools and commands, and open files without a race between check and use.

A path from a model is resolved once, following links, into a `MountedPath`: the mount that contains it and the real
path below the mount. Permissions are checked for this path. The file is then opened below the mount's descriptor
without following links. If a link was created after the check, the call fails.

A write creates a new file and renames it over the old one within one directory descriptor. Readers see either the
old or the new content. Hard links to the old file keep the old content.

`resolve` resolves a path in a command as the command does. In a sandbox that maps its folders, an absolute link
starts at the sandbox's root, and `/scratch/x` is in the thread's scratch folder, which may be anywhere on the host.
Without such a sandbox, a path is a host path.
"""

import difflib
import errno
import os
import secrets
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol, runtime_checkable

from shoal.files.mounts import MountedPath, alike_everywhere, follow_links, from_host, from_inside
from shoal.kernel.errors import ToolError
from shoal.kernel.ports import Mount, ToolContext
from shoal.kernel.untrusted import is_text
from shoal.text.encodings import plain_text
from shoal.tools.openat import WalkingOpener, best_opener, give_to

FILE_BYTES_MAX = 26_214_400
PATH_BYTES_MAX = 4096
"""Maximum size of a path. The kernel has the same limit."""
ENTRIES_MAX = 2000

NAMES_MAX = 20_000
"""Maximum number of names in a directory that are compared with a missing name."""

SANDBOX_FILES = Mount(Path(os.devnull), "/")
"""Mount that represents the sandbox's own file system, which does not exist on the host."""
_HOST_FILES = Mount(Path("/"), "/")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt")
_DEVICES = frozenset({"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"})
_HOST = "host:"
_NEW_FILE_MODE = 0o644
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_RESERVED = ("/workspace", "/scratch", "/skills", "/docs")


def resolve(path: str, mounts: Sequence[Mount], *, mapped: bool) -> MountedPath | None:
    """Resolve the symlinks in an action's absolute path. Components that do not exist are kept.

    Returns None for a symlink loop, for a path that differs between processes, and for a host path that commands cannot
    see.
    """
    if mapped and path.startswith(_HOST):
        return None
    if not mapped:
        named = from_inside(path, mounts)
        real = follow_links(str(named.host) if named is not None else path.removeprefix(_HOST), alike_everywhere)
        if real is None or alike_everywhere(real) is None:
            return None
        return from_host(Path(real), mounts) or MountedPath(real, _HOST_FILES, Path(real).parts[1:])

    def host_of(inside: str) -> str | None:
        held = from_inside(inside, mounts)
        return None if held is None else str(held.host)

    real = follow_links(path, host_of)
    if real is None:
        return None
    return from_inside(real, mounts) or MountedPath(real, SANDBOX_FILES, Path(real).parts[1:])


def open_resolved(place: MountedPath) -> int:
    """Open a file and return its descriptor. Raises OSError, including if a link has replaced a part of the path."""
    with best_opener().directory(place.mount.host, place.parts[:-1]) as folder:
        return os.open(place.parts[-1] if place.parts else ".", _READ, dir_fd=folder)


def is_systems(path: str) -> bool:
    """Return True if a path belongs to the sandbox's own system, which no command can change."""
    return path in _DEVICES or any(PurePosixPath(path).is_relative_to(folder) for folder in _SYSTEM)


class Entry(NamedTuple):
    """An entry of a directory listing. `size_bytes` is 0 for anything except a file."""

    name: str
    kind: str
    size_bytes: int


@runtime_checkable
class RoomKeeper(Protocol):
    """A sandbox that limits the size of the folders that commands write to."""

    async def require_room(self, mounts: Sequence[Mount]) -> None:
        """Raise SandboxError if a writable folder or its disk is full."""
        ...


class Jail:
    """The directories that a call may use. Relative paths are resolved against the first."""

    def __init__(self, roots: Sequence[Mount], opener: WalkingOpener | None = None, *, home: str = "") -> None:
        self._roots = tuple(roots)
        self._opener = opener or best_opener()
        self._home = home or self._roots[0].inside

    def resolve(self, path: str, *, is_new: bool = False) -> MountedPath:
        """Resolve a path that is relative, inside the sandbox, or on the host.

        `..` is resolved as text, and `~` is the home directory of commands. If a path does not exist and `is_new` is
        false, it resolves to an existing path that differs only in Unicode form, spaces, quotes, dashes or case, if
        there is exactly one.

        If a host path looks like a path inside the sandbox, its `shown` begins with `host:`. Raises ToolError for an
        empty path, for a path outside the allowed directories (directly or through a link), and for a name that is
        not valid UTF-8.
        """
        if not path or "\0" in path:
            raise ToolError("The path is empty." if not path else "A path cannot contain a NUL character.")
        if path == "~" or path.startswith("~/"):
            path = f"{self._home}{path[1:]}"
        place = self._resolved(path)
        if is_new or os.path.lexists(place.host):
            return place
        parts = self._alike(place)
        if parts is None:
            return place
        inside = place.mount.inside if place.mount.inside != "/" else str(place.mount.host)
        return self._resolved(str(PurePosixPath(inside, *parts)))

    def _alike(self, place: MountedPath) -> tuple[str, ...] | None:
        parts = list[str]()
        for name in place.parts:
            same = [name]
            if not os.path.lexists(place.mount.host.joinpath(*parts, name)):
                names = self._names(place, tuple(parts))
                same = [candidate for candidate in names if _plain(candidate) == _plain(name)]
                same = same or [
                    candidate for candidate in names if _plain(candidate).casefold() == _plain(name).casefold()
                ]
            if len(same) != 1:
                return None
            parts += same
        return tuple(parts)

    def _names(self, place: MountedPath, parts: tuple[str, ...]) -> list[str]:
        try:
            with self._opener.directory(place.mount.host, parts) as folder, os.scandir(folder) as scan:
                return [entry.name for entry, _ in zip(scan, range(NAMES_MAX), strict=False) if is_text(entry.name)]
        except OSError:
            return []

    def _resolved(self, path: str) -> MountedPath:
        plain = PurePosixPath(os.path.normpath(os.path.join(self._roots[0].inside, path)))
        near_names = [
            (len(PurePosixPath(start).parts), root, plain.relative_to(start).parts)
            for root in self._roots
            for start in (root.inside, str(root.host))
            if plain.is_relative_to(start)
        ]
        if not near_names:
            named = ", ".join(root.inside + ("" if root.writable else " (read only)") for root in self._roots)
            raise ToolError(f"{path} is outside the directories you may use: {named}.")
        _, root, parts = max(near_names, key=lambda entry: entry[0])
        with _as_sentences(path[:200]):
            if len(os.fsencode(path)) >= PATH_BYTES_MAX:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            try:
                parts = self._opener.real_parts(root.host, parts)
            except OSError as error:
                everything = self._roots[-1]
                if error.errno != errno.EXDEV or everything.inside != "/":
                    raise
                below = root.host.joinpath(*parts).parts[1:]
                root, parts = everything, self._opener.real_parts(everything.host, below)
        shown = PurePosixPath(root.inside, *parts)
        if not is_text(str(shown)):
            name = str(shown).encode("utf-8", "replace").decode()
            raise ToolError(f"The name of {name} is not UTF-8. Rename the file first, with a command.")
        others = (*_RESERVED, *(other.inside for other in self._roots if other is not root))
        is_taken = root.inside == "/" and any(shown.is_relative_to(other) for other in others)
        return MountedPath(f"{_HOST}{shown}" if is_taken else str(shown), root, parts)

    def read(self, place: MountedPath, bytes_max: int = FILE_BYTES_MAX) -> bytes:
        """Return a regular file's content. Raises ToolError if it is missing, not a regular file, or larger than
        `bytes_max`."""
        try:
            with self._parent(place, FileNotFoundError) as parent:
                name = place.parts[-1]
                _require_file(os.stat(name, dir_fd=parent, follow_symlinks=False), place)
                with open(os.open(name, _READ, dir_fd=parent), "rb") as file:
                    size = _require_file(os.fstat(file.fileno()), place)
                    content = b"" if size > bytes_max else file.read(bytes_max + 1)
        except FileNotFoundError as error:
            near = self._similar(place)
            hint = f" Similar names: {', '.join(near)}." if near else ""
            folder = place.host.parent
            raise ToolError(f"{place.shown} does not exist.{hint}", quotes=[folder / name for name in near]) from error
        if size > bytes_max or len(content) > bytes_max:
            raise ToolError(f"{place.shown} is {size:,} bytes long, more than the limit of {bytes_max:,} for reading.")
        return content

    def _similar(self, place: MountedPath) -> list[str]:
        names = {_plain(name).casefold(): name for name in self._names(place, place.parts[:-1])}
        close = difflib.get_close_matches(_plain(place.parts[-1]).casefold(), [*names][:ENTRIES_MAX], n=3)
        return [names[name] for name in close]

    def size(self, place: MountedPath) -> int | None:
        """Return a file's size in bytes, or None if it does not exist. Raises ToolError if it is not a regular file."""
        try:
            with self._parent(place, FileNotFoundError) as parent:
                return _require_file(os.stat(place.parts[-1], dir_fd=parent, follow_symlinks=False), place)
        except FileNotFoundError:
            return None

    def write(self, place: MountedPath, content: bytes) -> None:
        """Write `content` atomically. Keeps the mode of an existing file and creates missing directories.

        Raises ToolError if the content is too large, the root is read-only, the path is not a regular file, or the
        disk is full.
        """
        self.require_writable(place)
        if len(content) > FILE_BYTES_MAX:
            raise ToolError(
                f"The content is {len(content):,} bytes long, more than the limit of {FILE_BYTES_MAX:,} for file tools."
            )
        with self._parent(place, make=True) as parent:
            name, mode = place.parts[-1], _NEW_FILE_MODE
            owner = os.fstat(parent)
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    raise ToolError(f"{place.shown} is a link. Write to its target.")
                _require_file(status, place)
                owner, mode = status, stat.S_IMODE(status.st_mode)
            temporary = f".{name[:100]}.{secrets.token_hex(6)}"
            file = os.open(temporary, _CREATE, 0o600, dir_fd=parent)
            try:
                with open(file, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fchmod(stream.fileno(), mode & 0o777)
                    give_to(owner, stream.fileno())
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
                raise

    def require_writable(self, place: MountedPath) -> None:
        if not place.mount.writable:
            writable = ", ".join(root.inside for root in self._roots if root.writable) or "nothing"
            raise ToolError(f"{place.shown} is read only. You may write to: {writable}.")

    def entries(self, place: MountedPath) -> tuple[list[Entry], bool]:
        """Return at most ENTRIES_MAX entries of a directory, sorted by name, and whether there are more. Raises
        ToolError.
        """
        entries: list[Entry] = []
        with (
            _as_sentences(place.shown),
            self._opener.directory(place.mount.host, place.parts) as folder,
            os.scandir(folder) as scan,
        ):
            for entry, _ in zip(scan, range(ENTRIES_MAX + 1), strict=False):
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    entries.append(Entry(entry.name, "gone", 0))
                else:
                    kind = _kind(status.st_mode).partition(" ")[2]
                    entries.append(Entry(entry.name, kind, status.st_size if kind == "file" else 0))
        return sorted(entries[:ENTRIES_MAX]), len(entries) > ENTRIES_MAX

    @contextmanager
    def _parent(self, place: MountedPath, *passed: type[OSError], make: bool = False) -> Generator[int]:
        if not place.parts:
            raise ToolError(f"{place.shown} is a directory.")
        directory = self._opener.directory(place.mount.host, place.parts[:-1], make=make)
        with _as_sentences(place.shown, *passed), directory as parent:
            yield parent


def jail_of(context: ToolContext) -> Jail:
    """Return the jail of a call: the workspace, followed by the sandbox's other mounts. For an unrestricted agent,
    it also contains all other files of the host, under their host paths.
    """
    workspace = context.agent.workspace
    roots = sorted(context.mounts, key=lambda mount: mount.host != workspace)
    if not roots or roots[0].host != workspace:
        roots.insert(0, Mount(workspace, "/workspace", writable=True))
    home = roots[0].inside if context.sandbox.isolated else os.environ.get("HOME") or "/"
    if not context.agent.restrict_to_workspace:
        roots.append(Mount(Path("/"), "/", writable=True))
        return Jail(roots, WalkingOpener(), home=home)
    return Jail(roots, home=home)


async def require_room(context: ToolContext) -> None:
    if isinstance(context.sandbox, RoomKeeper):
        await context.sandbox.require_room(context.mounts)


def _plain(name: str) -> str:
    return " ".join(plain_text(name.replace("\\ ", " ")).split())


def _require_file(status: os.stat_result, place: MountedPath) -> int:
    """Return the size of a regular file. Raises OSError (ELOOP) for a link and ToolError for other kinds."""
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    raise ToolError(f"{place.shown} is {_kind(status.st_mode)}, not a file.")


_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a device")


_TOLD = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "has a parent that is not a directory",
    errno.EXDEV: "is outside the directories you may use",
    errno.ELOOP: "is, or passes through, a link that loops or was just created",
    errno.EACCES: "may not be accessed",
    errno.EPERM: "may not be accessed",
    errno.ENAMETOOLONG: "has a name that is too long",
    errno.ENOSPC: "cannot be written: the disk is full",
    errno.EDQUOT: "cannot be written: the disk quota is used up",
    errno.EROFS: "is on a read-only file system",
    errno.EISDIR: "is a directory",
    errno.ENXIO: "is not a file",
}


@contextmanager
def _as_sentences(path: str, *passed: type[OSError]) -> Generator[None]:
    try:
        yield
    except passed:
        raise
    except (OSError, UnicodeError) as error:
        code = error.errno if isinstance(error, OSError) else None
        reason = _TOLD.get(code or 0, f"cannot be used: {error}")
        raise ToolError(f"{path} {reason}.") from error
