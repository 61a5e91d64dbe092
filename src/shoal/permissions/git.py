"""Determine whether a repository lets git run other programs.

Git's configuration (`diff.*.textconv`, `core.fsmonitor`, `gpg.program`, aliases …) and hooks can make it run other
programs. A repository is inert only if it can be located, every key of every configuration that it uses is on a list
of harmless keys, and no hook is active. A repository with an unusual feature (an include, a bare repository,
submodules, a split index) is not inert. An approval must cover the configuration files and the folder of hooks.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from shoal.files.deep_folders import walk
from shoal.kernel.regular_files import regular_only
from shoal.shell.known_commands import INERT_GIT_KEYS

CONFIG_BYTES_MAX = 65_536
INDEX_BYTES_MAX = 67_108_864
FILES_KEPT_MAX = 256
FOLDERS_MAX = 1_000
SETTLED_NS = 2_000_000_000

_INERT_VALUES = {"core.repositoryformatversion": "0", "core.bare": "false"}
_HEADER = re.compile(r'\[([A-Za-z0-9-]+)(?: "((?:[^"\\\n]|\\["\\])*)")?\]\s*(?:[#;].*)?')
_ENTRY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)(?:\s*+=\s*+([^\\\r\x00]*+))?")
_HEAD = re.compile(r"ref: refs/[A-Za-z0-9._/@+-]+\n|[0-9a-f]{40}\n")
_PUSH = re.compile(
    r"git push(?: (?:-u|--set-upstream|-q|--quiet|-v|--verbose))*(?: ([A-Za-z0-9][\w.-]*)(?: ([A-Za-z0-9][\w./-]*))?)?",
    re.ASCII,
)
_ON_BRANCH = re.compile(r"ref: refs/heads/([A-Za-z0-9][\w./-]*)\n", re.ASCII)
_ADDRESS = re.compile(
    r"(?:(?:https?|ssh|git|file)://(?:[\w.-]+@)?|[\w.-]+@[\w.-]+:(?!:)|/)[\w.~%/-]+(?::[0-9]+/[\w.~%/-]+)?", re.ASCII
)
"""Matches a remote's address that contains no password and for which git runs no helper."""
_SAMPLE = ".sample"
_GITLINK = b"\x00\x00\xe0\x00"  # Mode of an index entry for another repository.
_BARE = ("HEAD", "objects", "refs")


class Repository(msgspec.Struct, frozen=True):
    """A repository. All paths are host paths.

    files: files that control what git runs.
    inert: true if git runs no other program.
    top: top of the work tree.
    read: folders that git reads.
    git_dir: the repository's own directory.
    """

    files: tuple[str, ...] = ()
    inert: bool = False
    top: str = ""
    read: tuple[str, ...] = ()
    git_dir: str = ""


def repository_at(
    folder: str, home: str | None, outside: Callable[[str], bool], to_host: Callable[[str], str | None]
) -> Repository:
    """Return the repository that git uses in a folder. Reads the file system.

    `home` contains the user's configuration. `outside` returns whether commands cannot see a folder. `to_host`
    converts an absolute path in a git file to a host path, or returns None if that is unknown.
    """
    top, git_dir = _find(folder, outside, to_host)
    if git_dir is None:
        return Repository()
    common = _shared_dir(git_dir, to_host)
    configs = [f"{path}/config" for path in dict.fromkeys((git_dir, common or git_dir))]
    above: tuple[str, ...] = ()
    if home is not None:
        configs += [f"{home}/.gitconfig", f"{home}/.config/git/config"]
        above = (f"{home}/.config", f"{home}/.config/git")
    hooks = f"{common or git_dir}/hooks"
    read = tuple(path for path in (top, git_dir, common) if path)
    inert = common is not None and all(_config_is_inert(path) for path in configs)
    inert = inert and not any(os.path.islink(path) for path in (*above, *configs, hooks, f"{git_dir}/index"))
    inert = inert and not os.path.lexists(f"{common}/objects/info/alternates")
    try:
        has_hooks = any(not name.endswith(_SAMPLE) for name in os.listdir(hooks))
    except OSError as error:
        has_hooks = not isinstance(error, FileNotFoundError)
    inert = inert and not has_hooks and not _has_more(git_dir)
    return Repository((*configs, hooks), inert, top or "", read, git_dir)


def pushed_to(repository: Repository, command: str) -> str:
    """Return the only address and branch that a `git push` changes, as ADDRESS BRANCH.

    Returns an empty string if the target is uncertain, for example with force or tags, or if the repository may run
    programs.
    """
    words = _PUSH.fullmatch(command)
    head = _ON_BRANCH.fullmatch(_text(f"{repository.git_dir}/HEAD")) if repository.git_dir else None
    if words is None or head is None or not repository.inert:
        return ""
    settings = _settings(repository.files[:-1])
    if settings.get("push.default", ["simple"])[-1] not in ("simple", "current") or "push.followtags" in settings:
        return ""
    branch = words[2] if words[2] not in (None, "HEAD") else head[1]
    remote = words[1] or settings.get(f"branch.{head[1]}.remote", ["origin"])[-1]
    if any(f"remote.{remote}.{key}" in settings for key in ("push", "pushurl", "mirror")):
        return ""
    urls = settings.get(f"remote.{remote}.url", [])
    return f"{urls[0]} {branch}" if len(urls) == 1 and _ADDRESS.fullmatch(urls[0]) else ""


def _settings(configs: Iterable[str]) -> dict[str, list[str]]:
    """Return the values of each key in inert configuration files. The first and last parts of a key are in
    lower case.
    """
    values: dict[str, list[str]] = {}
    for path in configs:
        section = ""
        for line in _text(path).split("\n"):
            stripped = line.strip(" \t")
            if (header := _HEADER.fullmatch(stripped)) is not None:
                section = header[1].lower() + (f".{header[2]}" if header[2] is not None else "")
            elif (entry := _ENTRY.fullmatch(stripped)) is not None:
                values.setdefault(f"{section}.{entry[1].lower()}", []).append((entry[2] or "").strip())
    return values


def holds_repository(top: str) -> bool:
    for number, (folder, folders, files) in enumerate(walk(Path(top))):
        if number > FOLDERS_MAX or (folder != Path(top) and (".git" in folders or ".git" in files)):
            return True
        folders[:] = [name for name in folders if name != ".git"]
    return False


def _find(
    folder: str, outside: Callable[[str], bool], to_host: Callable[[str], str | None]
) -> tuple[str | None, str | None]:
    """Return the top of the work tree that contains a folder, and the directory of its repository.

    The directory is None if there is no repository, or if git may skip it.
    """
    place: str = folder
    while not outside(place) and not all(os.path.lexists(f"{place}/{name}") for name in _BARE):
        dot = f"{place}/.git"
        if os.path.isdir(dot) or os.path.islink(dot):
            return place, dot if _is_git_dir(dot, _shared_dir(dot, to_host)) else None
        if os.path.lexists(dot):
            text = _text(dot).rstrip("\n")
            git_folder = (
                to_host(os.path.join(place, text.removeprefix("gitdir: "))) if text.startswith("gitdir: ") else None
            )
            return place, git_folder if git_folder is not None and _is_git_dir(
                git_folder, _shared_dir(git_folder, to_host)
            ) else None
        if place in ("", "/"):
            break
        place = os.path.dirname(place)
    return None, None


def _is_git_dir(git_dir: str, common: str | None) -> bool:
    return (
        common is not None
        and not any(os.path.islink(path) for path in (git_dir, common, f"{git_dir}/HEAD"))
        and os.path.isdir(f"{common}/objects")
        and os.path.isdir(f"{common}/refs")
        and _HEAD.fullmatch(_text(f"{git_dir}/HEAD")) is not None
    )


def _shared_dir(git_dir: str, to_host: Callable[[str], str | None]) -> str | None:
    if not os.path.lexists(f"{git_dir}/commondir"):
        return git_dir
    text = _text(f"{git_dir}/commondir").rstrip("\n")
    return to_host(os.path.join(git_dir, text)) if text else None


def _config_is_inert(path: str) -> bool:
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    if not stat.S_ISREG(info.st_mode):
        return False

    def lines_are_inert() -> bool:
        text = _text(path)
        section = ""
        for line in text.split("\n"):
            stripped = line.strip(" \t")
            if not stripped or stripped[0] in "#;":
                continue
            header, entry = _HEADER.fullmatch(stripped), _ENTRY.fullmatch(stripped)
            if header is not None:
                section = header[1].lower() + (f".{header[2].lower()}" if header[2] is not None else "")
                continue
            if entry is None or not section:
                return False
            key, value = f"{section}.{entry[1].lower()}", (entry[2] or "").strip().lower()
            if _INERT_VALUES.get(key, value) != value:
                return False
            if key not in _INERT_VALUES and not INERT_GIT_KEYS.fullmatch(key):
                return False
        return info.st_size == 0 or bool(text)

    return _kept(path, info, lines_are_inert)


_judged: dict[tuple[str, tuple[int, ...]], bool] = {}


def _kept(path: str, info: os.stat_result, judge: Callable[[], bool]) -> bool:
    """Cache a result about a file until the file changes.

    Results about a file that has just changed are not cached, because it could change again with the same timestamp.
    """
    key = (path, (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    judgement = _judged.get(key)
    if judgement is None:
        judgement = judge()
        if time.time_ns() - info.st_ctime_ns < SETTLED_NS:
            return judgement
        while len(_judged) >= FILES_KEPT_MAX:
            _judged.pop(next(iter(_judged)))
        _judged[key] = judgement
    return judgement


def _has_more(git_dir: str) -> bool:
    index = f"{git_dir}/index"
    try:
        if any(name.startswith("sharedindex") for name in os.listdir(git_dir)):
            return True
        info = os.stat(index)
    except FileNotFoundError:
        return False
    except OSError:
        return True

    def has_links() -> bool:
        try:
            with open(index, "rb", opener=regular_only) as file:
                content = file.read(INDEX_BYTES_MAX + 1)
        except OSError:
            return True
        return len(content) > INDEX_BYTES_MAX or _GITLINK in content

    return _kept(index, info, has_links)


def _text(path: str) -> str:
    """Return the text of a regular file. Returns an empty string if it cannot be read, and "?" if it is too long
    or if programs could read it in different ways.
    """
    try:
        with open(path, "rb", opener=regular_only) as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
    except OSError:
        return ""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "?"
    return "?" if len(content) > CONFIG_BYTES_MAX or "\r" in text or "\0" in text else text
