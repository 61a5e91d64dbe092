"""What a call will do, as action strings: `tool:NAME:DETAIL`, built from resolved arguments and nothing else.

Paths are those that commands and the model know: `/workspace`, `/scratch`, `/skills` and `/docs`, wherever these lie on
the host. A host path beside them that happens to have such a name is written `host:/workspace/…`.
"""

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath

import msgspec

from shoal.domain.permissions import Action
from shoal.domain.ports import Mount
from shoal.permissions.commands import Part
from shoal.permissions.shell import Taken, take_apart
from shoal.permissions.words import Unreadable, quote

COMMAND_CHARS_MAX = 32_768
COMMANDS_KEPT_MAX = 512
PLACES_MAX = 16
FRAGMENTS_MAX = 500

_BETWEEN = re.compile(r"[;|&\n(){}`'\"=!<>]|::|\b(?:do|then|else|exec|[0-9]*e|shell|system)\s")
_ROOTS = ("/workspace", "/scratch", "/skills", "/docs")
_SILENT = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"})


def path_name(path: Path, mounts: Sequence[Mount]) -> str:
    """The name of a resolved host path in actions: by the mount that holds it, else as it is."""
    best: Mount | None = None
    for mount in mounts:
        if path.is_relative_to(mount.host) and (best is None or len(mount.host.parts) > len(best.host.parts)):
            best = mount
    if best is not None:
        return str(PurePosixPath(best.inside) / path.relative_to(best.host).as_posix())
    name = path.as_posix()
    taken = (*_ROOTS, *(mount.inside for mount in mounts))
    return f"host:{name}" if any(PurePosixPath(name).is_relative_to(root) for root in taken) else name


def shell_actions(
    tool_name: str, command: str, *, cwd: Path, mounts: Sequence[Mount] = (), isolated: bool = True
) -> tuple[Action, ...]:
    """Everything a shell command will do, never empty: its simple commands, redirections, and views for deny patterns.

    `cwd` is a host path; without mounts it counts as the workspace. `isolated` tells that absolute paths in the command
    are those inside the sandbox. A command that cannot be read, or is longer than `COMMAND_CHARS_MAX` characters, is
    one opaque action. A command with opaque parts has a view of every piece of its text as well, so that a deny pattern
    for `rm` sees the `rm x` in `sh -c 'rm x'`, wherever it stands. Reading is kept for the last `COMMANDS_KEPT_MAX`
    commands; resolving paths asks the file system.
    """
    taken = _taken(command)
    whole = Action(f"tool:{tool_name}:{command}", whole=True)
    if taken is None:
        return (Action(f"tool:{tool_name}:{_one_line(command)}", opaque=True), whole, *_fragments(tool_name, command))
    places = _Places(cwd.resolve(), tuple(mounts) or (Mount(cwd.resolve(), "/workspace", writable=True),), isolated)
    actions: list[Action] = []
    for part in taken.parts:
        actions += _part_actions(tool_name, part, taken.moves, places)
    if all(action.whole for action in actions):
        actions.insert(0, Action(f"tool:{tool_name}:"))
    hidden = _fragments(tool_name, command) if any(action.opaque for action in actions) else []
    return tuple(dict.fromkeys([*actions, whole, *hidden]))


@lru_cache(maxsize=COMMANDS_KEPT_MAX)
def _taken(command: str) -> Taken | None:
    """The command taken apart; None when it cannot be read."""
    if len(command) > COMMAND_CHARS_MAX:
        return None
    try:
        return take_apart(command)
    except Unreadable:
        return None


def _fragments(tool_name: str, command: str) -> list[Action]:
    """Views of what an opaque command may hide: every piece of its text that could be read as a command of its own."""
    pieces = (" ".join(piece.split()) for piece in _BETWEEN.split(command))
    found = dict.fromkeys(piece for piece in pieces if piece)
    return [Action(f"tool:{tool_name}:{piece}", whole=True) for piece in list(found)[:FRAGMENTS_MAX]]


def _one_line(command: str) -> str:
    """The text on one line, so that patterns see it whole."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in command)


def _part_actions(tool_name: str, part: Part, moves: Sequence[str | None], places: "_Places") -> list[Action]:
    begin = f"tool:{tool_name}:"
    if part.operator:
        return _redirection(begin, part, moves, places)
    if part.view:
        return [Action(begin + part.text, whole=True)]
    return [Action(begin + part.text, opaque=part.opaque, naming=begin + part.naming if part.naming else "")]


def _redirection(begin: str, part: Part, moves: Sequence[str | None], places: "_Places") -> list[Action]:
    """Reading or writing a file, for each place the command may be in; opaque where only the shell will know."""
    tool = "tool:read:" if part.operator == "<" else "tool:write:"
    network = part.target is not None and part.target.startswith(("/dev/tcp/", "/dev/udp/"))
    names = None if part.target is None or network else places.names(part.target, part.moves, moves)
    if names is None:
        shown = f"{part.operator} {part.text}"
        return [Action(begin + shown, opaque=True, also=(f"{tool}{part.text}",))]
    actions = [
        Action(f"{begin}{part.operator} {quote(name)}", also=(tool + name,)) for name in names if name not in _SILENT
    ]
    lexical = str(PurePosixPath(os.path.normpath(part.target or "")))
    if lexical.startswith("/") and lexical not in names and lexical not in _SILENT:
        actions.append(Action(tool + lexical, whole=True))
    return actions


class _Places(msgspec.Struct, frozen=True):
    """Resolves the paths of one command."""

    cwd: Path
    mounts: tuple[Mount, ...]
    isolated: bool

    def names(self, target: str, count: int, moves: Sequence[str | None]) -> list[str] | None:
        """The names a path may have after changes of directory, each of which may have failed; None when unknown."""
        if target.startswith("/"):
            return [self._name(target)]
        if count < 0 or len(target) == 0:
            return None
        places = [str(self.cwd)] if not self.isolated else [path_name(self.cwd, self.mounts)]
        for move in moves[:count]:
            if move is None or len(places) > PLACES_MAX:
                return None
            places += [os.path.join(place, move) for place in places]
        return list(dict.fromkeys(self._name(os.path.join(place, target)) for place in places))

    def _name(self, path: str) -> str:
        """The name of an absolute path as the command writes it, symlinks followed."""
        if not self.isolated:
            return path_name(Path(os.path.realpath(path)), self.mounts)
        for mount in sorted(self.mounts, key=lambda mount: -len(mount.inside)):
            if path == mount.inside or path.startswith(mount.inside.rstrip("/") + "/"):
                rest = path[len(mount.inside) :].lstrip("/")
                return path_name(Path(os.path.realpath(mount.host / rest)), self.mounts)
        return os.path.normpath(path)
