"""Which files a call reads, by its actions and its tool's traits.

a call                                     what it is taken to read
----------------------------------------   ---------------------------------------------------------------------
that shows or edits a file                 the file it names
that lists a folder                        the folder it names with all below it
that replaces or sends a file              nothing: it shows nothing of the file it names
of a command                               what its actions say that they read and run; where one of them does
                                           not know, everything below its folders
any other                                  each file or folder that one of its arguments names

A marked file counts that a command names to read or run. Where a command may run files that it does not name, each
marked file that may be code counts.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

import msgspec

from shoal.files.deep_folders import walk
from shoal.files.mounts import from_host, from_inside
from shoal.kernel import lazy_re
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Mount
from shoal.kernel.traits import TraitsByName
from shoal.kernel.untrusted import UNREADABLE
from shoal.permissions.secret_files import holds_secret, is_secret_file
from shoal.tools.jail import is_systems, resolve

ENTRIES_MAX = 20_000
"""Files looked at for one call; what lies beyond counts as marked."""
_PATH_CHARS_MAX = 4096
_TEXT = lazy_re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))(\s*+:)?')
"""A text of a JSON document, and whether it is the name of a field."""
MEMORY_PAGES = "/memory/"
"""Path of the memory for file tools. No mount uses it."""
_LISTERS = frozenset({"ls", "find", "tree", "fd", "du", "stat", "pwd", "cd", "test", "["})
"""Commands that show the names of what a folder holds, not its content."""


SEARCHED_MAX = 2_000
"""Files per call whose content is searched for secrets. The names of further files are checked as well."""


def secret_below(actions: Sequence[Action], mounts: Sequence[Mount], traits: TraitsByName, *, mapped: bool) -> str:
    """Return the first file that looks like a secret, by name or content, among the files that are read or sent.

    A folder with more than ENTRIES_MAX files is returned itself.
    """
    read: list[str] = []
    for action in actions:
        tool, detail = traits.of(action.tool), action.detail
        if tool.names == "sent":
            read.append(detail)
        if tool.takes_commands and not action.whole and detail.partition(" ")[0] not in _LISTERS:
            read += action.reads or ()
    searched = 0
    for place in host_paths(read, mounts, mapped=mapped):
        is_folder = place.is_dir()
        for number, file in enumerate(files_below(place)):
            if number == ENTRIES_MAX:
                return place.name
            searched += 1
            is_named = is_folder and is_secret_file(str(file.relative_to(place)))
            if is_named or (searched <= SEARCHED_MAX and holds_secret(file)):
                return file.name
    return ""


def paths_read(actions: Sequence[Action], mounts: Sequence[Mount], traits: TraitsByName) -> list[str | None]:
    """The paths, as actions name them, of what a call reads; None among them: whatever there is."""
    named: list[str | None] = []
    for action in actions:
        tool, detail = traits.of(action.tool), action.detail
        if tool.names in ("replaced", "sent"):
            continue
        if tool.shows_file and f"{detail}/".startswith(MEMORY_PAGES):
            continue
        if tool.shows_file or tool.names == "edited":
            named.append(detail)
        elif not tool.takes_commands:
            named += _mentioned(detail, mounts)
        elif not action.whole:
            writes = bool(action.also) and all(name.startswith("tool:write:") for name in action.also)
            if action.reads or not writes or action.opaque:  # else it is only a redirection to a file
                named += (None,) if action.reads is None else (*action.reads, *action.runs)
    return named


def _mentioned(detail: str, mounts: Sequence[Mount]) -> Iterator[str]:
    """Paths of the mounts that a call of any other tool names, by itself or among its arguments: it may read them."""
    texts = [(detail, "")] if detail.startswith("/") else _TEXT.findall(detail) if detail.startswith("{") else []
    for text in [text for text, names_field in texts if not names_field]:
        with suppress(*UNREADABLE):
            named = msgspec.json.decode(text, type=str) if text.startswith('"') else text
            if not named or len(named) > _PATH_CHARS_MAX or "\0" in named:
                continue
            path = os.path.join("/workspace", named)
            place = from_inside(path, mounts) or from_host(Path(path), mounts)
            if place is not None:
                yield str(PurePosixPath(place.mount.inside, *place.parts))


def host_paths(named: Iterable[str | None], mounts: Sequence[Mount], *, mapped: bool) -> list[Path]:
    """Where these paths lead on the host, without those where nothing is; all mounts where that is not known."""
    found: dict[Path, None] = {}
    for path in named:
        place = resolve(path, mounts, mapped=mapped) if path else None
        if place is None or (place.mount not in mounts and not is_systems(place.shown)):
            return [mount.host for mount in mounts]
        if os.path.lexists(place.host):
            found[place.host] = None
    return list(found)


def files_below(path: Path, apart: Collection[str] = ()) -> Iterator[Path]:
    """A file itself, or all files and empty folders below a folder but those `apart`; follows no links to folders."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in walk(path):
        folders[:] = [name for name in folders if name not in apart]
        for name in names:
            yield Path(folder, name)
        for name in folders:
            below = os.path.join(folder, name)
            try:
                with os.scandir(below) as scan:
                    is_empty = next(scan, None) is None
            except OSError:
                is_empty = False
            if is_empty or os.path.islink(below):
                yield Path(below)


def change_times(file: Path) -> tuple[int, ...]:
    """When a file, or the link it is, was changed last, by the clock that no program can set; nothing for no file."""
    try:
        return (file.lstat().st_ctime_ns,)
    except (OSError, ValueError):
        return ()
