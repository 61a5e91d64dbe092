"""What a call will do, as action strings: `tool:NAME:DETAIL`, built from resolved arguments and nothing else.

Paths are those that commands and the model know: `/workspace`, `/scratch`, `/skills` and `/docs`, wherever these lie on
the host. A host path beside them that happens to have such a name is written `host:/workspace/…`.
"""

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath

from shoal.domain.permissions import Action
from shoal.domain.ports import Mount
from shoal.permissions.commands import Part
from shoal.permissions.paths import CommandPaths, is_special, path_name
from shoal.permissions.shell import Taken, take_apart
from shoal.permissions.words import Unreadable, quote

__all__ = [
    "COMMANDS_KEPT_MAX",
    "COMMAND_CHARS_MAX",
    "FRAGMENTS_MAX",
    "forget_commands",
    "judged_by_words",
    "path_name",
    "shell_actions",
]

COMMAND_CHARS_MAX = 32_768
COMMANDS_KEPT_MAX = 512
FRAGMENTS_MAX = 500

_BETWEEN = re.compile(r"[;|&\n(){}`'\"=!<>]|::|\b(?:do|then|else|exec|[0-9]*e|shell|system)\s")
_LISTED = re.compile(r"\{([^\s{}]*,[^\s{}]*)\}")
_SILENT = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"})


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
        unreadable = Action(f"tool:{tool_name}:{_one_line(command)}", opaque=True, runs_more=True, reads=None)
        return (unreadable, whole, *_fragments(tool_name, command))
    host = cwd.resolve()
    paths = CommandPaths(host, tuple(mounts) or (Mount(host, "/workspace", writable=True),), taken, isolated=isolated)
    actions: list[Action] = []
    for part in taken.parts:
        actions += _part_actions(tool_name, part, paths)
    if all(action.whole for action in actions):
        actions.insert(0, Action(f"tool:{tool_name}:", harmless=True))
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


def forget_commands() -> None:
    """Read every command anew from now on, for who measures how long that takes."""
    _taken.cache_clear()


def judged_by_words(command: str) -> Action:
    """What is known of one simple command from its words alone, for an action that was not made by `shell_actions`."""
    taken = _taken(command)
    parts = [part for part in taken.parts if not part.view] if taken is not None else []
    harmless = len(parts) == 1 and parts[0].effect.harmless and not parts[0].opaque
    return Action(command, harmless=harmless, reads=() if harmless else None)


def _fragments(tool_name: str, command: str) -> list[Action]:
    """Views of what an opaque command may hide: every piece of its text that could be read as a command of its own,
    also of the words that braces make."""
    listed = _LISTED.sub(lambda braces: braces[1].replace(",", " "), command)
    texts = [command] if listed == command else [command, listed]
    pieces = (" ".join(piece.split()) for text in texts for piece in _BETWEEN.split(text))
    found = dict.fromkeys(piece for piece in pieces if piece)
    return [Action(f"tool:{tool_name}:{piece}", whole=True) for piece in list(found)[:FRAGMENTS_MAX]]


def _one_line(command: str) -> str:
    """The text on one line, so that patterns see it whole."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in command)


def _part_actions(tool_name: str, part: Part, paths: CommandPaths) -> list[Action]:
    begin = f"tool:{tool_name}:"
    if part.operator:
        return _redirection(begin, part, paths)
    if part.view:
        return [Action(begin + part.text, whole=True)]
    found = paths.effects(part)
    return [
        Action(
            begin + part.text,
            opaque=part.opaque,
            naming=begin + part.naming if part.naming else "",
            harmless=found.harmless,
            runs=found.runs,
            runs_more=found.runs_more,
            reads=found.reads,
        )
    ]


def _redirection(begin: str, part: Part, paths: CommandPaths) -> list[Action]:
    """Reading or writing a file, for each place the command may be in; opaque where only the shell will know."""
    reads = part.operator == "<"
    tool = "tool:read:" if reads else "tool:write:"
    target = part.target.value if part.target is not None else None
    network = target is not None and target.startswith(("/dev/tcp/", "/dev/udp/"))
    names = None if target is None or network or not target else paths.of_text(target, part)
    if names is None:
        shown = f"{part.operator} {part.text}"
        return [Action(begin + shown, opaque=True, also=(f"{tool}{part.text}",), reads=None)]
    actions: list[Action] = []
    for name in names:
        if name in _SILENT:
            continue
        harmless = reads or paths.may_be_written(name, target or "")
        readable = (name,) if part.keeps or (reads and not is_special(name)) else () if harmless and not reads else None
        shown = f"{begin}{part.operator} {quote(name)}"
        actions.append(Action(shown, also=(tool + name,), harmless=harmless, reads=readable))
    lexical = str(PurePosixPath(os.path.normpath(target or "")))
    if lexical.startswith("/") and lexical not in names and lexical not in _SILENT:
        actions.append(Action(tool + lexical, whole=True))
    return actions
