"""Determine the files that a call reads, from its actions and the traits of its tool.

call                                       files that it reads
----------------------------------------   ---------------------------------------------------------------------
showing or editing a file                  the named file
listing a folder                           the named folder and everything below it
replacing or sending a file                none, because the model sees nothing of the file
running a command                          the files that its actions read and run, or every file below the
                                           mounts if these are unknown for an action
anything else                              every file or folder that an argument names
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
"""Maximum number of files that are examined for one call. If there are more, they count as secret and tainted."""
_PATH_CHARS_MAX = 4096
_TEXT = lazy_re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))(\s*+:)?')
"""Matches a string in a JSON document, and a colon after it if the string is a field name."""
_LISTERS = frozenset({"ls", "find", "tree", "fd", "du", "stat", "pwd", "cd", "test", "["})
"""Commands that show the names of files but not their content."""


SEARCHED_MAX = 2_000
"""Maximum number of files per call whose content is searched for secrets. All names are checked."""


def secret_below(actions: Sequence[Action], mounts: Sequence[Mount], traits: TraitsByName, *, mapped: bool) -> str:
    """Return the name of the first file to be read or sent whose name or content looks like a secret. Returns an empty
    string if there is none.

    The name of a folder with more than ENTRIES_MAX files is returned if the first ENTRIES_MAX files contain no secret.
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
    """Return the paths, as written in the actions, of the files that a call reads. None in the list means any file."""
    named: list[str | None] = []
    for action in actions:
        tool, detail = traits.of(action.tool), action.detail
        if tool.names in ("replaced", "sent"):
            continue
        if tool.shows_file or tool.names == "edited":
            named.append(detail)
        elif not tool.takes_commands:
            named += _mentioned(detail, mounts)
        elif not action.whole:
            writes = bool(action.also) and all(name.startswith("tool:write:") for name in action.also)
            if action.reads or not writes or action.opaque:  # any other part only redirects output to a file
                named += (None,) if action.reads is None else (*action.reads, *action.runs)
    return named


def _mentioned(detail: str, mounts: Sequence[Mount]) -> Iterator[str]:
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
    """Convert paths to host paths and skip those that do not exist. Returns all mounts if any path is unknown."""
    paths: dict[Path, None] = {}
    for path in named:
        place = resolve(path, mounts, mapped=mapped) if path else None
        if place is None or (place.mount not in mounts and not is_systems(place.shown)):
            return [mount.host for mount in mounts]
        if os.path.lexists(place.host):
            paths[place.host] = None
    return list(paths)


def files_below(path: Path, apart: Collection[str] = ()) -> Iterator[Path]:
    """Yield a file itself, or all files and empty folders below a folder. Skips folders named in `apart`. Links to
    folders are not followed.
    """
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
    """Return the change time of a file or link, which programs cannot set. Returns an empty tuple if it does
    not exist.
    """
    try:
        return (file.lstat().st_ctime_ns,)
    except (OSError, ValueError):
        return ()
