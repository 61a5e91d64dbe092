"""Describe the effects of a call as action strings `tool:NAME:DETAIL`, built only from resolved arguments.

Paths are written as commands and the model see them, such as `/workspace`, `/scratch`, `/skills` and `/docs`,
wherever these are on the host. A host path outside the mounts that begins with such a name is written
`host:/workspace/…`. To resolve the files of a command, this module follows links, expands patterns below the mounts,
and inspects git repositories.
"""

import fnmatch
import os
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from shoal.files.mounts import alike_everywhere, follow_links
from shoal.kernel.permissions import BY_ITSELF, PUSH, Action
from shoal.kernel.ports import Mount
from shoal.permissions.code_files import is_code, runs_as_code
from shoal.permissions.git import Repository, holds_repository, pushed_to, repository_at
from shoal.shell.commands import Part, Taken
from shoal.shell.options import Effect
from shoal.shell.reader import take_apart
from shoal.shell.words import ANY, HERE, HOME, REST, SPLIT, Unreadable, Word, expand, quote

PLACES_MAX = 16
NAMES_MAX = 200

_ROOTS = ("/workspace", "/scratch", "/skills", "/docs")
_SPECIAL = re.compile(r"/(?:proc|dev|sys|inet[46]?)(?:/.*)?", re.DOTALL)
_PLAIN_SPECIAL = re.compile(
    r"/dev/(?:null|zero|urandom|random|stdin|stdout|stderr|tty|full)"
    r"|/proc/(?:cpuinfo|meminfo|version|loadavg|uptime|stat|filesystems|mounts|swaps)"
)
_GIT = re.compile(r"(?:.*/)?\.git(?:/.*)?", re.DOTALL)
_MARKS = (ANY, REST)
_WRITABLE = ("/workspace", "/scratch")
_INSIDE = ("/workspace/", "/scratch/")
_OPTION = "/-"
"""Text in the path of a file whose name begins with a hyphen. If a pattern such as `*` expands to the name, a command
reads it as an option.
"""
_SINKS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
_WRITE_REPOSITORY = frozenset({"add", "commit"})
"""Git commands that change the repository. They run no other programs if the repository is inert."""
_SPLITTING = re.compile(r"[\s*?\[\\]")


def path_name(path: Path, mounts: Sequence[Mount]) -> str:
    """Return the name that actions use for a resolved host path: the path inside its mount, or the host path if no
    mount contains it.
    """
    best: Mount | None = None
    for mount in mounts:
        if path.is_relative_to(mount.host) and (best is None or len(mount.host.parts) > len(best.host.parts)):
            best = mount
    if best is not None:
        return str(PurePosixPath(best.inside) / path.relative_to(best.host).as_posix())
    name = path.as_posix()
    taken = (*_ROOTS, *(mount.inside for mount in mounts))
    return f"host:{name}" if any(PurePosixPath(name).is_relative_to(root) for root in taken) else name


def is_special(name: str) -> bool:
    """Return True if a path may refer to a different file in each process, such as a path in `/proc` or `/dev/fd`.

    Paths below `/inet` count too, because gawk opens network connections for them.
    """
    return _SPECIAL.fullmatch(name) is not None and _PLAIN_SPECIAL.fullmatch(name) is None


class CommandPaths:
    def __init__(self, cwd: Path, mounts: tuple[Mount, ...], taken: Taken, *, isolated: bool) -> None:
        self._mounts = sorted(mounts, key=lambda mount: -len(mount.inside))
        self._roots = [(mount.inside.rstrip("/"), str(mount.host).rstrip("/")) for mount in self._mounts]
        self._taken = taken
        self._isolated = isolated
        self._start = path_name(cwd, mounts) if isolated else str(cwd)
        self._home = mounts[0].inside if isolated else os.environ.get("HOME") or "/"
        self._repositories: dict[str, Repository] = {}
        self._adds = any(part.effect.git == "add" for part in taken.parts)

    def action(self, begin: str, part: Part) -> Action:
        effect = part.effect
        places = self._places(part.moves, part.sure)
        if effect.folders:
            places = self._joined(places, effect.folders)
        reads = self._reads(effect.reads, places)
        runs = [name for word in effect.runs for name in self._of_word(word, places) or ()]
        # A program also runs the configuration files that it reads at every start, if they exist.
        startup = [name for word in effect.startup for name in self._of_word(word, ()) or ()]
        startup = [name for name in startup if (host := self._to_host(name)) is not None and os.path.lexists(host)]
        runs += startup
        harmless = effect.harmless and self._writes_are_harmless(effect, places) and not startup
        also: tuple[str, ...] = ()
        if effect.git:
            repositories = [self._repository(place) for place in places or ()]
            runs += [name for repository in repositories for path in repository.files for name in self._seen(path)]
            harmless = harmless and bool(repositories) and all(repository.inert for repository in repositories)
            # `git add` records embedded repositories in the index. Later git commands, including a second `git add`,
            # run inside them.
            harmless = harmless and not (
                self._adds and any(map(holds_repository, {repository.top for repository in repositories}))
            )
            if reads is not None:
                reads += [name for repository in repositories for path in repository.read for name in self._seen(path)]
            if not part.opaque and len(repositories) == 1 and (target := pushed_to(repositories[0], part.text)):
                also = (f"{begin.removesuffix(':')}{PUSH}{target}",)
        if effect.harmless and not harmless:
            reads = None
        return Action(
            begin + part.text,
            also=also,
            opaque=part.opaque,
            naming=begin + part.naming if part.naming else "",
            harmless=harmless,
            reads=None if reads is None else tuple(dict.fromkeys(reads)),
            runs=tuple(dict.fromkeys(runs)),
            runs_more=effect.runs_more or (bool(effect.git) and not harmless and not also),
            writes=self._written(effect, places) if harmless and effect.git not in _WRITE_REPOSITORY else None,
        )

    def of_text(self, target: str, part: Part) -> list[str] | None:
        if target.startswith("/"):
            return self._names(target)
        places = self._places(part.moves, part.sure)
        if places is None:
            return None
        return list(dict.fromkeys(name for place in places for name in self._names(os.path.join(place, target))))

    def may_be_written(self, name: str, target: str) -> bool:
        """Return True if a write to this file affects neither executed files nor anything outside /workspace and
        /scratch.

        `target` is the name as written in the command, which may be a link.
        """
        written = os.path.join(os.path.dirname(name), os.path.basename(target))
        inside = any(PurePosixPath(name).is_relative_to(root) for root in _WRITABLE)
        if not inside or _GIT.fullmatch(name) or _OPTION in written or any(map(is_code, (name, written))):
            return False
        host = self._to_host(name)
        return host is not None and not runs_as_code(host)

    def _written(self, effect: Effect, places: Sequence[str] | None) -> tuple[str, ...] | None:
        names: list[str] = []
        for word in (*effect.writes, *effect.makes):
            paths = self._of_word(word, places)
            if paths is None:
                return None
            names += (name for name in paths if name not in _SINKS)
        return tuple(dict.fromkeys(names))

    def _writes_are_harmless(self, effect: Effect, places: Sequence[str] | None) -> bool:
        for word in effect.writes:
            names = self._of_word(word, places)
            if (
                names is None
                or word.value == "-"
                or not all(name in _SINKS or self.may_be_written(name, word.value or name) for name in names)
            ):
                return False
        for word in effect.makes:
            names = self._of_word(word, places)
            if names is None or any(
                not name.startswith(_INSIDE) or _GIT.fullmatch(name) or _OPTION in name for name in names
            ):
                return False
        return True

    # ---- directories and names ----

    def _places(self, moves: int, sure: Collection[int]) -> list[str] | None:
        """Return the directories in which a part of the command may run after the `cd` commands before it. Returns None
        if they are unknown.

        A `cd` may have failed unless its number is in `sure`.
        """
        if moves < 0:
            return None
        places = [self._start]
        for number, move in enumerate(self._taken.moves[:moves]):
            joined = None if move is None else self._joined(places, (move,))
            if joined is None:
                return None
            # After `cd LINK`, `cd ..` removes LINK from the path. Other programs resolve `LINK/..` to the parent of the
            # target.
            failed = [] if number in sure else places
            places = list(dict.fromkeys([*failed, *joined, *map(os.path.normpath, joined)]))
            if len(places) > PLACES_MAX:
                return None
        return places

    def _joined(self, places: Sequence[str] | None, folders: Iterable[Word]) -> list[str] | None:
        for folder in folders:
            texts = expand(folder, self._taken.variables)
            if places is None or texts is None or any(mark in text for text in texts for mark in _MARKS):
                return None
            filled = [(place, self._filled(text, place)) for place in places for text in texts]
            places = [os.path.join(place, text) for place, text in filled if text is not None]
            if len(places) != len(filled) or len(places) > PLACES_MAX:
                return None
        return None if places is None else list(places)

    def _filled(self, text: str, place: str) -> str | None:
        if SPLIT in text and _SPLITTING.search(self._home + place):
            return None
        return text.replace(SPLIT, "").replace(HOME, self._home).replace(HERE, place)

    def _reads(self, words: Sequence[Word] | None, places: Sequence[str] | None) -> list[str] | None:
        names: list[str] = []
        for word in words or ():
            paths = self._of_word(word, places, is_read=True)
            if paths is None or any(is_special(name) for name in paths):
                return None
            names += paths
        return None if words is None or len(names) > NAMES_MAX else names

    def _of_word(self, word: Word, places: Sequence[str] | None, *, is_read: bool = False) -> list[str] | None:
        """Return every file that a word may name, as the command sees it. Returns None if unknown.

        If `is_read` is true, the result may contain a folder instead of its files.
        """
        texts = expand(word, self._taken.variables)
        if texts is None and [piece.kind for piece in word.pieces] == ["below"] and is_read:
            texts = (word.pieces[0].text,)
        if texts is None:
            return None
        names: list[str] = []
        for text in texts:
            if not text or text == "-":
                continue
            if text.startswith("-"):
                return None  # The word may be an option that reads another file.
            absolute = text.lstrip(SPLIT)[0] in ("/", HOME)
            if places is None and not absolute:
                return None
            for place in ("/",) if absolute else places or ():
                filled = self._filled(text, place)
                path = None if filled is None else os.path.join(place, filled)
                matching = None if path is None else self._matching(path)
                if matching is None:
                    return None
                names += matching
        return list(dict.fromkeys(names))

    def _matching(self, path: str) -> list[str] | None:
        """Expand the patterns in a path. Returns the folder if more than NAMES_MAX files match, and None if unknown."""
        if not any(mark in path for mark in _MARKS):
            return self._names(path)
        fixed, rest = list[str](), path.split("/")
        while not any(mark in rest[0] for mark in _MARKS):
            fixed.append(rest.pop(0))
        base = "/".join(fixed) or "/"
        folder = self._to_host(self._follow(base))
        if folder is None or ".." in rest:
            return None
        folders = [folder]
        for component in rest:
            shown = re.sub(rf"{REST}.*", ANY, component, flags=re.DOTALL).replace(ANY, "*")
            pattern, hidden = re.compile(fnmatch.translate(shown)), component.startswith(".")
            entries: list[str] = []
            for folder_path in folders:
                with suppress(OSError):
                    names = sorted(name for name in os.listdir(folder_path) if pattern.match(name))
                    entries += [f"{folder_path}/{name}" for name in names if hidden or not name.startswith(".")]
            folders = entries
            if any("/-" in entry[len(folder) :] for entry in folders):
                return None  # The name may be an option.
            if len(folders) > NAMES_MAX:
                return self._names(base)
        names = [name for folder_path in folders for name in self._seen(folder_path)]
        return names or [os.path.normpath(path.replace(ANY, "*").replace(REST, "["))]

    def _names(self, path: str) -> list[str]:
        """Return the names of an absolute path after following its links.

        Links are followed both inside the sandbox and on the host, because an absolute link may lead to different
        files.
        """
        followed = self._follow(path)
        if not self._isolated:
            return [path_name(Path(followed), self._mounts)]
        host = self._below_mount(path)
        if host is None or followed == path:
            return [followed]
        return list(dict.fromkeys((path_name(Path(os.path.realpath(host)), self._mounts), followed)))

    def _follow(self, path: str) -> str:
        return follow_links(path, self._below_mount if self._isolated else alike_everywhere) or path

    def _below_mount(self, path: str) -> str | None:
        for inside, host in self._roots:
            if path == inside:
                return host
            if path.startswith(inside) and path[len(inside)] == "/":
                return host + path[len(inside) :]
        return None

    def _to_host(self, name: str) -> str | None:
        mount = self._below_mount(os.path.normpath(name))
        return name if mount is None and not self._isolated and name.startswith("/") else mount

    def _seen(self, path: str) -> list[str]:
        return self._names(path_name(Path(path), self._mounts) if self._isolated else path)

    # ---- git ----

    def _repository(self, place: str) -> Repository:
        repository = self._repositories.get(place)
        if repository is None:
            followed = self._follow(place)
            folder = self._below_mount(followed) if self._isolated else alike_everywhere(followed)
            home = self._below_mount(self._home) if self._isolated else self._home
            repository = Repository()
            if folder is not None:
                repository = repository_at(folder, home, self._is_outside, self._host_of_git)
            self._repositories[place] = repository
        return repository

    def _is_outside(self, folder: str) -> bool:
        return self._isolated and not any(folder == host or folder.startswith(f"{host}/") for _, host in self._roots)

    def _host_of_git(self, path: str) -> str | None:
        """Return the host path of a path in a git file. The caller must have joined a relative path with a host
        folder.
        """
        path = os.path.normpath(path)
        if not self._isolated or self._below_mount(path) is None:
            return None if self._is_outside(path) else path
        return self._below_mount(self._follow(path))


COMMAND_CHARS_MAX = 32_768
COMMANDS_KEPT_MAX = 512
FRAGMENTS_MAX = 500

_BETWEEN = re.compile(r"[;|&\n(){}`'\"=!<>]|::|\b(?:do|then|else|exec|[0-9]*e|shell|system)\s")
_LISTED = re.compile(r"\{([^\s{},]*+,[^\s{}]*+)\}")
_SILENT = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"})


def shell_actions(
    tool_name: str, command: str, *, cwd: Path, mounts: Sequence[Mount] = (), isolated: bool = True
) -> tuple[Action, ...]:
    """Return all actions of a shell command: its simple commands, its redirections, and views for deny patterns. Never
    empty.

    `cwd` is a host path. Without mounts, it counts as the workspace. If `isolated` is true, absolute paths in the
    command are paths inside the sandbox.

    A command that cannot be parsed, or is longer than `COMMAND_CHARS_MAX` characters, is one opaque action. A
    command with opaque parts also has a view of every piece of its text, so a deny pattern for `rm` matches the `rm
    x` in `sh -c 'rm x'`.

    The last `COMMANDS_KEPT_MAX` parsed commands are cached. Resolving paths reads the file system.
    """
    taken = _taken(command)
    whole = Action(f"tool:{tool_name}:{command}", whole=True)
    if taken is None:
        one_line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in command)
        unreadable = Action(f"tool:{tool_name}:{one_line}", opaque=True, runs_more=True, reads=None, writes=None)
        return (unreadable, whole, *_fragments(tool_name, command))
    host = cwd.resolve()
    paths = CommandPaths(host, tuple(mounts) or (Mount(host, "/workspace", writable=True),), taken, isolated=isolated)
    actions: list[Action] = []
    begin = f"tool:{tool_name}:"
    for part in taken.parts:
        if part.operator:
            actions += _redirection(begin, part, paths)
        elif part.view:
            actions.append(Action(begin + part.text, whole=True))
        else:
            actions.append(paths.action(begin, part))
    simple = [number for number, action in enumerate(actions) if not action.whole]
    if len(simple) == 1 and _is_all_of(actions[simple[0]]):
        alone = f"tool:{tool_name}{BY_ITSELF}{command.strip()}"
        actions[simple[0]] = replace(actions[simple[0]], also=(alone,))
    if all(action.whole for action in actions):
        actions.insert(0, Action(begin, harmless=True))
    hidden = _fragments(tool_name, command) if any(action.opaque for action in actions) else []
    return tuple(dict.fromkeys([*actions, whole, *hidden]))


def _is_all_of(action: Action) -> bool:
    """Return True if the effect of a simple command depends only on its words."""
    return not (action.harmless or action.opaque or action.also or action.runs or action.runs_more)


@lru_cache(maxsize=COMMANDS_KEPT_MAX)
def _taken(command: str) -> Taken | None:
    if len(command) > COMMAND_CHARS_MAX:
        return None
    try:
        return take_apart(command)
    except Unreadable:
        return None


def forget_commands() -> None:
    _taken.cache_clear()


def judged_by_words(command: str) -> Action:
    """Return the action of a simple command, judged only by its words. Use this for actions that `shell_actions` did
    not create.
    """
    taken = _taken(command)
    parts = [part for part in taken.parts if not part.view] if taken is not None else []
    harmless = len(parts) == 1 and parts[0].effect.harmless and not parts[0].opaque
    return Action(command, harmless=harmless, reads=() if harmless else None, writes=None)


def _fragments(tool_name: str, command: str) -> list[Action]:
    """Return views of the commands that an opaque command may contain.

    Every piece of the text that could be a command counts, including the words in a brace expansion.
    """
    listed = _LISTED.sub(lambda braces: braces[1].replace(",", " "), command)
    texts = [command] if listed == command else [command, listed]
    pieces = (" ".join(piece.split()) for text in texts for piece in _BETWEEN.split(text))
    unique = dict.fromkeys(piece for piece in pieces if piece)
    return [Action(f"tool:{tool_name}:{piece}", whole=True) for piece in list(unique)[:FRAGMENTS_MAX]]


def _redirection(begin: str, part: Part, paths: CommandPaths) -> list[Action]:
    reads = part.operator == "<"
    tool = "tool:read:" if reads else "tool:write:"
    target = part.target.value if part.target is not None else None
    network = target is not None and target.startswith(("/dev/tcp/", "/dev/udp/"))
    names = None if target is None or network or not target else paths.of_text(target, part)
    if names is None:
        shown = f"{part.operator} {part.text}"
        return [Action(begin + shown, opaque=True, also=(f"{tool}{part.text}",), reads=None, writes=None)]
    actions: list[Action] = []
    for name in names:
        if name in _SILENT:
            continue
        harmless = reads or paths.may_be_written(name, target or "")
        readable = (name,) if part.keeps or (reads and not is_special(name)) else () if harmless and not reads else None
        shown = f"{begin}{part.operator} {quote(name)}"
        writes = () if reads else (name,)
        actions.append(Action(shown, also=(tool + name,), harmless=harmless, reads=readable, writes=writes))
    lexical = str(PurePosixPath(os.path.normpath(target or "")))
    if lexical.startswith("/") and lexical not in names and lexical not in _SILENT:
        actions.append(Action(tool + lexical, whole=True))
    return actions


def action_of(text: str) -> Action:
    """Restore an action from its text. A command is analyzed again to determine whether it hides what it runs."""
    if text.startswith("tool:bash:"):
        parts = shell_actions("bash", text.removeprefix("tool:bash:"), cwd=Path("/workspace"))
        simple = [part for part in parts if not part.whole]
        if len(simple) == 1 and simple[0].text == text:
            return simple[0]
    return Action(text)
