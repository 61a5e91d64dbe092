"""Simple commands: canonical spelling, effect and views. A view is another spelling that only deny patterns match."""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from shoal.shell.known_commands import effect_of, harmless_assignment
from shoal.shell.options import ARGUMENTS, HARMLESS, UNKNOWN, Effect
from shoal.shell.words import RESERVED, Value, Variables, Word, expanded_braces, quote

SUFFIXES_MAX = 32
INNER_MAX = 4
_MAY_BE_A_COMMAND = re.compile(r"[\s;|&<>$`()]")
_VERSION = re.compile(r"(?<=[a-z])-?[0-9.]+$")

# Programs that run their arguments as a command. The list is only for deny patterns and does not decide what is opaque.
_RUNNERS = frozenset(
    """
    eval exec command builtin coproc trap sh bash dash zsh ksh mksh ash fish csh tcsh rbash busybox toybox env xargs
    parallel sudo doas su runuser pkexec setpriv capsh nohup nice ionice chrt taskset timeout watch time setsid stdbuf
    unbuffer script chroot unshare nsenter flock strace ltrace gdb valgrind setarch linux32 linux64 i386 x86_64 numactl
    cgexec prlimit rlwrap fakeroot fakechroot proot bwrap firejail xvfb-run dbus-run-session systemd-run
    start-stop-daemon daemonize entr ssh rsh autossh sshpass tmux screen at batch hyperfine torsocks proxychains
    proxychains4 tini dumb-init su-exec gosu chpst softlimit setuidgid cpulimit choom uclampset aa-exec sg catchsegv
    """.split()  # noqa: SIM905 - a list of 80 quoted words would be harder to read
)


class Part(msgspec.Struct, frozen=True):
    """A part of a command. Permission rules match `text` as the detail of an action, without `tool:NAME:`."""

    text: str
    opaque: bool = False
    naming: str = ""
    view: bool = False
    """Whether only deny patterns match this part."""
    operator: str = ""
    """`<` or `>` if the part is a redirection. Otherwise empty."""
    keeps: bool = False
    """True for a redirection that preserves the file's content. Such a redirection also counts as a read, because the
    command can open the file again by its descriptor.
    """
    target: Word | None = None
    moves: int = 0
    """Number of preceding commands that may have changed the directory. Negative if the directory is unknown."""
    sure: tuple[int, ...] = ()
    """Indexes of the preceding directory changes that cannot have failed if this part runs."""
    command: str = ""
    """Name of a simple command."""
    effect: Effect = HARMLESS


class Taken(msgspec.Struct, frozen=True):
    """A parsed command. `moves` lists the directories that the command changes to, in order. `variables` maps its
    variables to their possible values. None means unknown.
    """

    parts: tuple[Part, ...]
    moves: tuple[Word | None, ...] = ()
    variables: Mapping[str, tuple[Value, ...] | None] = {}


class Assignment(msgspec.Struct, frozen=True):
    """An assignment `NAME=VALUE`, alone or before a command. `text` is the canonical spelling."""

    name: str
    text: str
    value: str | None


def base_name(command: str) -> str:
    """Return the likely name of a program: lower case, without directory and version. Never use it in allow rules."""
    name = command.rsplit("/", 1)[-1].lower()
    return _VERSION.sub("", name) or name


def spell(words: Sequence[Word]) -> str:
    """Spell words canonically. The first word is quoted if it would otherwise have a special meaning."""
    first, *others = words
    text = first.text
    if first.value is not None and not first.bare and ("=" in first.value or first.value in RESERVED):
        text = quote(first.value, force=True)
    return " ".join([text, *(word.text for word in others)])


def command_parts(
    assignments: Sequence[Assignment],
    words: Sequence[Word],
    variables: Variables,
    moves: int = 0,
    sure: tuple[int, ...] = (),
    depth: int = 0,
) -> list[Part]:
    """Return the parts of a simple command: the command, its views, and the same for each command that it runs."""
    before = "".join(f"{item.text} " for item in assignments)
    text = before + spell(words)
    effect = effect_of(words, variables) if words[0].value not in RESERVED else UNKNOWN
    if effect.naming is None and not all(harmless_assignment(item.name, item.value) for item in assignments):
        effect = Effect(naming=1, runs=effect.runs, runs_more=True)
    if effect.commands and depth >= INNER_MAX:
        effect = UNKNOWN
    until = effect.naming
    naming = before + spell(words[:until]) if until is not None and words[0].value is not None else ""
    name = words[0].value or ""
    parts = [Part(text, until is not None, naming, moves=moves, sure=sure, command=name, effect=effect)]
    # Views for deny patterns: the command under its other names, and commands that an opaque command may run.
    views: list[str] = [spell(words), *_by_other_names(words)]
    if (expanded := expanded_braces(words)) is not None:
        views.append(spell(expanded))
    if words[-1] is ARGUMENTS and len(words) > 1:
        views.append(spell(words[:-1]))
    if base_name(name) != name.rsplit("/", 1)[-1]:
        views.append(spell([_plain(base_name(name)), *words[1:]]))
    if until is not None and (base_name(name) in _RUNNERS or not name):
        rests = [words[number:] for number in range(1, min(len(words), SUFFIXES_MAX))]
        views += [spell(rest) for rest in rests]
        views += [view for rest in rests for view in _by_other_names(rest)]
    parts += [Part(view, view=True) for view in dict.fromkeys(views) if view != text]
    for inner in effect.commands:
        parts += command_parts((), inner, variables, moves, sure, depth + 1) if inner else []
    return parts


def _by_other_names(words: Sequence[Word]) -> Iterator[str]:
    name = words[0].value or ""
    base = name.rsplit("/", 1)[-1]
    if base and base != name:
        yield spell([_plain(base), *words[1:]])
    if base.startswith("git-"):
        yield spell([_plain("git"), _plain(base.removeprefix("git-")), *words[1:]])


def _plain(value: str) -> Word:
    return Word(quote(value), value, value)


def inner_commands(words: Sequence[Word]) -> list[str]:
    """Return the arguments that a command may run as commands, as `sh -c TEXT` does."""
    values = [word.value for word in words[1:] if word.value is not None]
    texts = [value for value in values if _MAY_BE_A_COMMAND.search(value)]
    if base_name(words[0].value or "") in _RUNNERS and len(values) > 1:
        texts.append(" ".join(values))
    return texts


def unique(parts: list[Part]) -> list[Part]:
    by_key: dict[tuple[object, ...], Part] = {}
    for part in parts:
        target = "" if part.target is None else part.target.text
        place = part.operator, target, part.naming, part.moves, part.sure
        by_key.setdefault((part.text, part.opaque, part.view, *place), part)
    return list(by_key.values())
